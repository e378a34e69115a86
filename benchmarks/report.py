#!/usr/bin/env python3
"""Writes the tables of docs/performance.md from results of `./weft bench --peer PYTHON --floor --operations --ieee [--compile]`
and of `./weft bench --peer PYTHON --loader`, `./weft bench ops`, `./weft bench comm` and `./weft bench ddp`: benchmarks/report.py
benchmarks/results/cpu.json..., benchmarks/report.py benchmarks/results/loader.json and so on; of `./weft bench --emulated`:
benchmarks/report.py [BEFORE.json] benchmarks/results/emulated.json; and the table of docs/sharding.md from what
benchmarks/sharding.py writes: benchmarks/report.py benchmarks/results/sharding.json. What stands between the two marks of the document
is replaced. The targets of `./weft bench --emulated` go to benchmarks/targets.md."""
import json
import math
import os
import sys

NAMES = {"autoencoder": "autoencoder, batch 32", "mlp": "MLP, batch 64", "cnn": "CNN, width 1/16, batch 64",
         "resnet50": "ResNet-50, batch 8, 224x224", "dcgan": "DCGAN 64x64, batch 64",
         "transformer": "transformer, batch 32, 64 characters", "transformer-infer": "the same, forward alone",
         "cnn-full": "CNN, full width, batch 64", "resnet50-b256": "ResNet-50, batch 256, 224x224"}
CASES = {"mnist-32": "MNIST, batch 32", "mnist-64": "MNIST, batch 64",
         "cifar-64": "CIFAR-10, crop, flip, normalised, batch 64",
         "folder-8": "JPEG, RandomResizedCrop(224), flip, normalised, batch 8"}
TABLES = "<!-- tables: benchmarks/report.py -->\n", "<!-- end of the tables -->\n"
LOADER = "<!-- loader: benchmarks/report.py -->\n", "<!-- end of the loader -->\n"
COMM = "<!-- collectives: benchmarks/report.py -->\n", "<!-- end of the collectives -->\n"
OPS = "<!-- operations: benchmarks/report.py -->\n", "<!-- end of the operations -->\n"
MODEL = "<!-- model of a GPU: benchmarks/report.py -->\n", "<!-- end of the model -->\n"
TARGETS = "<!-- targets on a GPU: benchmarks/report.py -->\n", "<!-- end of the targets -->\n"
DDP = "<!-- ddp: benchmarks/report.py -->\n", "<!-- end of ddp -->\n"
SHARDING = "<!-- sharding: benchmarks/report.py -->\n", "<!-- end of sharding -->\n"
# The columns of the last one, and their names in metrics.json.
USES = {"parameters": "parameters", "whole ones": "whole_parameters", "gradients": "gradients", "moments": "optimizer",
        "activations": "activations", "messages": "communication", "all at once": "peak"}


def ms(value):
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def mib(value):
    return f"{value / 2**20:.1f}"


def table(*rows):
    head, *rest = rows
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in (head, ["---"] * len(head), *rest)) + "\n"


def spread(q, digits=2):
    return f"{q['median']:.{digits}f} [{q['low']:.{digits}f}, {q['high']:.{digits}f}]"


def compiled(row):
    """PyTorch under torch.compile: its time and how many times weft's that is."""
    if "compiled_error" in row:
        return "failed", ""
    if "compiled_ms" not in row:
        return "not measured", ""
    return ms(row["compiled_ms"]["median"]), spread(row["compiled_ratio"])


def summary(result):
    rows = [("", "weft", "PyTorch", "ratio, by definition", "ratio", "PyTorch compiled", "ratio", "MiB, weft", "MiB, PyTorch", "sum of its kernels", "first step, weft", "of it choosing", "PyTorch")]
    for row in result["rows"]:
        rows.append((NAMES[row["work"]] + (" (spread: wide)" if row.get("spread") == "wide" else ""), ms(row["weft_ms"]["median"]), ms(row["peer_ms"]["median"]),
                     spread(row.get("ieee_ratio", row["ratio"])), spread(row["ratio"]), *compiled(row), mib(row["weft_peak_bytes"]), mib(row["peer_peak_bytes"]),
                     f"{ms(row['floor_ms'])}, {row['weft_ms']['median'] / row['floor_ms']:.2f}x" if "floor_ms" in row else "",
                     *(ms(row[side]) if side in row else "" for side in ("weft_first_ms", "weft_choosing_ms", "peer_first_ms"))))
    op = result["op_us"]
    rows.append(("1-element multiply, tape on", f"{op['weft']:.2f} us", f"{op['peer']:.2f} us", f"{op['peer'] / op['weft']:.1f}",
                 *[""] * 9))
    if not any("weft_choosing_ms" in row for row in result["rows"]):
        rows = [row[:-2] + row[-1:] for row in rows]
    if not any(key in row for row in result["rows"] for key in ("compiled_ms", "compiled_error")):
        rows = [row[:5] + row[7:] for row in rows]
    failed = [f"torch.compile of {NAMES[row['work']]} failed: `{row['compiled_error']}`.\n\n"
              for row in result["rows"] if "compiled_error" in row]
    wide = "*Spread: wide*: half of one side's times lie further apart than a quarter of their median. Trust the ratio, not the times.\n\n"
    return table(*rows) + (wide if any(row.get("spread") == "wide" for row in result["rows"]) else "") + "".join(failed)


def details(row):
    step = row["weft_ms"]["median"]
    text = f"### {NAMES[row['work']]}\n\nweft: {row['weft_config']}; PyTorch: {row['peer_config']}.\n\n"
    total = sum(o["ms"] for o in row["operations"])
    shown = [o for o in row["operations"] if o["ms"] > total / 200]
    text += table(("operation", "calls a step", "time", "share"),
                  *((o["name"], f"{o['calls']:.0f}" if o["calls"] else "", ms(o["ms"]), f"{100 * o['ms'] / total:.1f} %") for o in shown))
    if "floor" not in row:
        return text
    longest = sorted(row["floor"], key=lambda f: -f["ms"])[:12]
    text += table(("kernel alone", "time"), *((f["kernel"], ms(f["ms"])) for f in longest),
                  (f"all {len(row['floor'])}", f"{ms(row['floor_ms'])}; the step, {ms(step)}, takes {step / row['floor_ms']:.2f} times that"))
    return text


def rates(result):
    def rate(q):
        return f"{q['median']:.0f}"

    rows = [("images a second", "workers", "weft (threads)", "libjpeg alone", "PyTorch (processes)", "ratio", "PyTorch's fastest way")]
    for row in result["rows"]:
        decoding = rate(row["decode_per_second"]) if "decode_per_second" in row else ""
        peer = (rate(row["peer_per_second"]), spread(row["ratio"], 1), row["peer_config"]) if "ratio" in row else (
            "not compared", "", row.get("peer_error", ""))
        rows.append((CASES[row["case"]], row["workers"], rate(row["weft_per_second"]), decoding, *peer))
    return table(*rows)


def heading(result):
    peer = result["peer"]
    libraries = "".join(f", {name} {peer[name]}" for name in ("torchvision", "pillow") if name in peer)
    libraries += f"; {result['jpeg_library']}, {result['jpeg_bytes']} bytes a file" if "jpeg_library" in result else ""
    return (f"{result['cpu']}, {result['cores']} cores, {result['dtype']}; PyTorch {peer['torch']} ({peer['capability']}){libraries}; "
            f"weft {result['commit']}.\n\n")


def ranks_heading(result):
    versions = f"Gloo {result['gloo']}; " if "gloo" in result else ""
    versions += "".join(f"PyTorch {v}; " for v in sorted({r["peer_version"] for r in result.get("throughput", []) if "peer_version" in r}))
    return (f"{result['cpu']}, {result['cores']} cores, load average {result['load_average']:.1f} before; {result['ranks']} ranks x "
            f"{result['threads_per_rank']} thread, {result['dtype']}, {result['rounds']} rounds; {versions}weft {result['commit']}.\n\n")


def size(count):
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB" if count >= 1e3 else f"{count} B"


def distinct(values):
    return list(dict.fromkeys(values))


def microseconds(value):
    return ms(value / 1e3) if value >= 1000 else f"{value:.3g} us"


def collectives(result):
    def bandwidth(row):
        return f"{microseconds(row['us']['median'])}, {row['busbw']:.2g}"

    cells = {(r["bytes"], r["side"]): bandwidth(r) for r in result["rows"] if r["collective"] == "all_reduce"}
    sides = distinct(side for _, side in cells)
    text = table(("all_reduce: time, bus bandwidth in GB/s", *sides),
                 *((size(b), *(cells[b, side] for side in sides)) for b in distinct(b for b, _ in cells)))
    if "against_gloo" in result:
        text += table(("size", "times as fast as the fastest of Gloo's own", "which is"),
                      *((size(r["bytes"]), spread(r["ratio"]), r["best"]) for r in result["against_gloo"]))
    fits = {(f["collective"], f["side"]): f"{microseconds(f['alpha_us'])}, {f['gb_per_second']:.3g} GB/s ({100 * f['worst_error']:.0f} %)"
            for f in result["fits"]}
    sides = [side for side in sides if not side.startswith("Gloo ")]
    return text + table(("alpha, B (furthest from it)", *sides),
                        *((c, *(fits.get((c, side), "") for side in sides)) for c in distinct(c for c, _ in fits)))


def ddp(result):
    text = ""
    if "throughput" in result:
        rows = [("local batch", "2 ranks x 1 thread", "1 process x 2 threads", "throughput beside it", "PyTorch DDP", "throughput beside it",
                 "PyTorch's fastest way")]
        for row in result["throughput"]:
            peer = (ms(row["peer_ms"]["median"]), spread(row["peer_ratio"]), row["peer_config"]) if "peer_ms" in row else ("not measured", "", "")
            rows.append((row["local_batch"], ms(row["weft_ms"]["median"]), ms(row["single_ms"]["median"]), spread(row["single_ratio"]), *peer))
        text += table(*rows)
    if "overlap" in result:
        rows = [("", "bucket cap, MiB", "buckets", "step", "reduced after backward", "times as long", "exposed", "exposed, after backward")]
        for row in result["overlap"]:
            name = f"{NAMES[row['work']].split(',')[0]}, local batch {row['local_batch']}"
            rows.append((name, row["bucket_cap_mb"] or "default", len(row["bucket_bytes"]), ms(row["overlap_ms"]["median"]),
                         ms(row["after_ms"]["median"]), spread(row["after_ratio"]), ms(row["overlap_exposed_ms"]["median"]),
                         ms(row["after_exposed_ms"]["median"])))
        text += table(*rows)
    if "sharding" in result:
        rows = [("", "DDP", "ZeRO-2", "times as long", "FSDP", "times as long")]
        for row in result["sharding"]:
            name = f"{NAMES[row['work']].split(',')[0]}, local batch {row['local_batch']}"
            rows.append((name, ms(row["ddp_ms"]["median"]), *(cell for strategy in ("zero2", "fsdp") for cell in (
                ms(row[strategy + "_ms"]["median"]), spread(row[strategy + "_ratio"])))))
        text += table(*rows)
    return text


def sharding(result):
    """Rank 0's memory, or that of each device of one process, in MiB."""
    def cell(value):
        return f"{value / 2**20:.2f}" if value else ""

    rows = [("way", *USES, "sent in a step")]
    for way in result["ways"]:
        memory = way["memory"][:1] if "bytes_sent" in way else way["memory"]
        names = [way["way"]] if len(memory) == 1 else [f"{way['way']}, its first device", *["its next one"] * (len(memory) - 1)]
        for name, of in zip(names, memory):
            rows.append((name, *(cell(of.get(use, 0)) for use in USES.values()), cell(way.get("bytes_sent_in_a_step"))))
    return f"{result['cpu']}, {result['cores']} cores, {result['dtype']}; weft {result['commit']}.\n\n" + table(*rows)


def operations(result):
    """How many rows are in each range, and those in which PyTorch is faster with one thread or with two."""
    rows = sorted(result["rows"], key=lambda row: row["ratio"])
    ratios = [row["ratio"] for row in rows]
    parts = [f"{sum(low <= r < high for r in ratios)} {text}" for low, high, text in (
        (0, 0.5, "below 0.5"), (0.5, 0.95, "from 0.5 to 0.95"), (0.95, 2, "from 0.95 to 2"), (2, math.inf, "of 2 or more"))]
    head = f"{len(rows)} workloads, geometric mean {math.exp(sum(map(math.log, ratios)) / len(rows)):.2f}: {', '.join(parts)}.\n\n"
    return head + table(("workload", "PyTorch's time over weft's", "median", "weft", "PyTorch", "two threads"),
                        *((row["name"], f"{row['ratio']:.2f}", f"{row['median_ratio']:.2f}", microseconds(row["weft_us"]),
                           microseconds(row["peer_us"]), f"{row['two_threads']['ratio']:.2f}") for row in rows
                          if min(row["ratio"], row["two_threads"]["ratio"]) < 1))


def captured(result):
    """The captured step of each work and precision, in the layout that needs less time."""
    best = {}
    for row in filter(lambda row: row["captured"], result["rows"]):
        key = row["work"], row["precision"]
        if key not in best or row["floor"]["h100"]["us"] < best[key]["floor"]["h100"]["us"]:
            best[key] = row
    return best


def heaviest(row, most):
    """Its heaviest nodes: `most` of them, or all by which it misses the target if they are more."""
    h100 = row["floor"]["h100"]
    shown = max(len(h100.get("groups_over", ())), most)
    title = f"{NAMES[row['work']]}, {row['precision']}: {microseconds(h100['us'])} on an H100"
    groups, rest = row["groups"][:shown], row["groups"][shown:]
    def line(name, nodes):
        def total(key, scale):
            value = sum(g[key] for g in nodes) / scale
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value else ""

        return (name, sum(g["count"] for g in nodes), total("read", 1e6), total("written", 1e6), total("operations", 1e9),
                microseconds(sum(g["h100_us"] for g in nodes)))

    return table((title, "nodes", "MB read", "written", "GFLOP", "H100"), *(line(f"`{g['name']}`", [g]) for g in groups),
                 *([line("all others", rest)] if rest else []))


def model(now, before=None):
    """The least times, and the nodes that take most of them."""
    steps, earlier = captured(now), captured(before) if before else {}

    def times(gpu):
        return [gpu, *([f"{gpu} before"] if before else [])]

    rows = [("captured step", "precision", "nodes", "launch-bound", "these alone", *times("H100"), *times("H200"))]
    for key, row in steps.items():
        def time(gpu, of):
            return microseconds(of[key]["floor"][gpu]["us"]) if key in of else ""

        h100 = row["floor"]["h100"]
        rows.append((NAMES[row["work"]], row["precision"], h100["nodes"], h100["launch_bound"], microseconds(h100["launch_bound_us"]),
                     *(time(gpu, of) for gpu in ("h100", "h200") for of in (steps, earlier) if of)))
    details = [row for row in steps.values() if row["precision"] == "bf16" or row["floor"]["h100"].get("groups_over")]
    return f"weft {now['commit']}" + (f", before: {before['commit']}" if before else "") + ".\n\n" + table(*rows) + "".join(
        heaviest(row, 8) for row in details)


def targets(result):
    """The steps that have a target, for benchmarks/targets.md."""
    rows = [("captured step", "precision", "target on an H100", "by the model", "without these nodes it is met")]
    for row in captured(result).values():
        if "target_us" in (h100 := row["floor"]["h100"]):
            late = h100["us"] > h100["target_us"]
            rows.append((NAMES[row["work"]], row["precision"], microseconds(h100["target_us"]),
                         microseconds(h100["us"]) + (": missed" if late else ""), ", ".join(f"`{name}`" for name in h100["groups_over"])))
    return f"weft {result['commit']}.\n\n" + table(*rows)


def load(path):
    with open(path) as f:
        return json.load(f)


def replace(marks, text, page="../docs/performance.md"):
    begin, end = marks
    document = os.path.join(os.path.dirname(__file__), page)
    with open(document) as f:
        before, rest = f.read().split(begin)
    with open(document, "w") as f:
        f.write(before + begin + "\n" + text + end + rest.split(end)[1])


def main(path, *more):
    result = load(path)
    if "jpeg_library" in result:
        return replace(LOADER, heading(result) + rates(result))
    if "fits" in result:
        return replace(COMM, ranks_heading(result) + collectives(result))
    if "block_ms" in result:
        return replace(OPS, heading(result) + operations(result))
    if "meaning" in result:
        now, *before = [load(more[0]), result] if more else [result]
        replace(TARGETS, targets(now), "targets.md")
        return replace(MODEL, model(now, *before))
    if "ways" in result:
        return replace(SHARDING, sharding(result), "../docs/sharding.md")
    if "rounds" in result:
        return replace(DDP, ranks_heading(result) + ddp(result))
    for other in map(load, more):  # from the same machine and commit
        result["rows"] += other["rows"]
    replace(TABLES, heading(result) + summary(result) + "".join(map(details, result["rows"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
