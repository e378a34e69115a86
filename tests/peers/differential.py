#!/usr/bin/env python3
"""Random cases against PyTorch: what weft accepts, gives and refuses.

  differential.py --driver .bazel/bin/tests/peers/differential [--family conv2d] [--seed 1] [--cases 2000]
                  [--threads 1,2] [--json FILE] [--show 3] [--only INDEX]

Prints one line of JSON a family, and fails when one misses the aim (`missed`): how many cases PyTorch accepted, in how many of those weft agrees,
refuses with a typed error, differs or crashes (ends, hangs, or throws what is not weft::Error), for
every number of threads; and a few of each kind, with what makes them again. compare.py says what
agreeing is.

The cases of a batch share a child process. When it ends early, the case it ended in has crashed and
the next child starts behind it: as if each case had a process of its own, at a hundredth of the time.
"""
import argparse
import collections
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

import torch

import cases
import reference
from builder import contiguous_strides
from compare import Outcome, compare, roots_of

AIM = 0.995  # of the cases PyTorch accepts
BATCH = 250
SECONDS = 60  # a batch takes a few; what takes this long hangs


def encode(one, data):
    """The case as differential.cc reads it; memory goes to `data`."""
    def spec(s):
        at = data.tell()
        memory = s["memory"]
        if memory.numel():
            data.write(memory.contiguous().view(torch.uint8).numpy().tobytes())
        data.write(bytes(-data.tell() % 8))
        return {k: v for k, v in s.items() if k != "memory"} | {"at": at}

    out = {"inputs": [spec(s) for s in one["inputs"]], "steps": one["steps"], "report": one["report"]}
    if "grads_of" in one:
        out["grads_of"] = one["grads_of"]
    if "backward" in one:
        out["backward"] = [{"of": root["of"], "gradient": spec(root["gradient"])} for root in roots_of(one)]
    return json.dumps(out)


def decode(described, values):
    if described is None:
        return None
    dtype = reference.DTYPES[described["dtype"]]
    shape = described["shape"]
    count = 1
    for s in shape:
        count *= s
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(values, dtype=dtype, count=count, offset=described["at"]).reshape(shape) \
        if described["at"] % dtype.itemsize == 0 else torch.frombuffer(
            bytearray(values[described["at"]:described["at"] + count * dtype.itemsize]), dtype=dtype).reshape(shape)


def outcome_of(line, values):
    answer = json.loads(line)
    if "error" in answer:
        kind = "crash: " if answer["error"] == "untyped" else ""
        return Outcome(error=f"{kind}{answer['text']}")
    return Outcome(tensors=[decode(t, values) for t in answer["tensors"]],
                   grads=[decode(g, values) for g in answer["grads"]],
                   requires_grad=[t["requires_grad"] for t in answer["tensors"]])


def run_weft(driver, batch, threads, seconds=SECONDS):
    """The outcomes of the cases of a batch."""
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        with open(path("cases"), "w") as lines, open(path("bytes"), "wb") as data:
            for one in batch:
                lines.write(encode(one, data) + "\n")
        for name in ("results", "values"):
            open(path(name), "wb").close()
        done, crashes = 0, {}
        while done < len(batch):
            command = [driver, path("cases"), path("bytes"), path("results"), path("values"), str(done)]
            environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "WEFT_CACHE": "off"}
            try:
                child = subprocess.run(command, env=environment, timeout=seconds, capture_output=True, text=True,
                                       errors="replace")
                status, said = child.returncode, child.stderr.strip()[-300:]
            except subprocess.TimeoutExpired:
                status, said = "no end", ""
            with open(path("results")) as results:
                finished = sum(1 for _ in results) + len(crashes)
            if finished < len(batch):
                # The numbers in `results` skip the crashed ones.
                crashes[finished] = f"crash: ended with {status} {said}"
                done = finished + 1
            elif status != 0:
                return [Outcome(error=f"crash: ended with {status} after the last case {said}")] * len(batch)
            else:
                break
        with open(path("results")) as results, open(path("values"), "rb") as values:
            lines, values = results.read().splitlines(), bytearray(values.read())
        rest = iter(lines)
        return [Outcome(error=crashes[i]) if i in crashes else outcome_of(next(rest), values)
                for i in range(len(batch))]


def run_peer(one, convert, apart=False):
    tensors, grads = reference.run(one, convert, apart)
    return Outcome(tensors=tensors, grads=grads, requires_grad=[t.requires_grad for t in tensors])


def peer_outcomes(built):
    """PyTorch's outcome, that in f64 and that on magnitudes; or the first alone, an error."""
    if built.error:
        return Outcome(error=built.error), None, None
    one = built.case
    try:
        peer = run_peer(one, torch.clone)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if "modified by an inplace operation" not in str(error) or not one.get("no_views_written"):
            return Outcome(error=str(error)), None, None
        # weft needs less of what was saved; what it gives is held against the same without writes.
        peer = run_peer(one, torch.clone, apart=True)
        peer.error = str(error)
        return peer, run_peer(one, reference.as_f64, apart=True), None
    if one["kind"] == "random":
        return peer, peer, None
    try:
        exact = run_peer(one, reference.as_f64)
        return peer, exact, run_peer(one, reference.magnitudes) if one["kind"] == "linear" else None
    except RuntimeError as error:
        # PyTorch does a few things only in f32, such as convolutions without a pixel.
        return Outcome(error=f"in f64: {error}"), None, None


def judge(one, weft, peer, exact, magnitude):
    """("agree", "refused", "differ", "crashed", or, where PyTorch refuses, "both refuse" or "accepted
    alone"), and why."""
    if weft.error and weft.error.startswith("crash: "):
        return "crashed", weft.error
    if peer.error:
        if weft.error:
            return "both refuse", ""
        found = compare(one, weft, peer, exact, magnitude) if peer.tensors else []
        return ("differ", "; ".join(found)) if found else ("accepted alone", peer.error)
    if weft.error:
        return "refused", weft.error
    found = compare(one, weft, peer, exact, magnitude)
    return ("differ", "; ".join(found)) if found else ("agree", "")


def reason(text):
    """An error's text without its numbers: what refusals are counted by."""
    text = re.sub(r" (in [\w.]+ )?at \S+:\d+$", "", text.strip())
    return re.sub(r"\[[-\d,]*\]", "[..]", re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text))[:160]


def brief(one):
    """The case in a line."""
    def spec(s):
        dense = s["strides"] == contiguous_strides(s["shape"]) and not s["offset"]
        layout = "" if dense else f" strides {s['strides']} offset {s['offset']}"
        values = f" = {s['memory'].tolist()}" if s["memory"].numel() <= 6 else ""
        return f"{s['dtype']}{s['shape']}{layout}{' grad' if s['requires_grad'] else ''}{values}"

    steps = []
    number = len(one["inputs"])
    for step in one["steps"]:
        options = {k: v for k, v in step.items() if k not in ("op", "in")}
        steps.append(f"{step['op']}{step['in']}{options or ''}")
    text = "inputs " + ", ".join(spec(s) for s in one["inputs"]) + "; steps (tensors from "
    text += f"{number}) " + ", ".join(steps)
    if "backward" in one:
        text += f"; backward of {one['backward']['of']} with {spec(one['backward']['gradient'])}"
    return text


def run_family(driver, name, seed, indices, threads, show):
    counts = collections.Counter()
    reasons = {kind: collections.Counter() for kind in ("refused", "differ", "accepted alone")}
    examples = collections.defaultdict(list)
    indices = iter(indices)
    while batch := list(itertools.islice(indices, BATCH)):
        built = [cases.make(name, seed, i) for i in batch]
        peers = [peer_outcomes(b) for b in built]
        weft = {t: run_weft(driver, [b.case for b in built], t) for t in threads}
        for at, index in enumerate(batch):
            verdicts = [judge(built[at].case, weft[t][at], *peers[at]) + (t,) for t in threads]
            # The worst of the runs is the case's.
            order = ("agree", "both refuse", "accepted alone", "refused", "differ", "crashed")
            verdict, why, at_threads = max(verdicts, key=lambda v: order.index(v[0]))
            counts[verdict] += 1
            short = reason(why)
            if verdict == "differ":
                short = "+".join(sorted({s["op"] for s in built[at].case["steps"]})) + " " + short.split(",")[0]
            if verdict in reasons:
                reasons[verdict][short] += 1
            if verdict not in ("agree", "both refuse") and len(examples[verdict, short]) < show:
                examples[verdict, short].append({"index": index, "verdict": verdict, "threads": at_threads, "why": why,
                                      "case": brief(built[at].case)[:1500]})
    result = {"family": name, "seed": seed, "cases": sum(counts.values()),
              "accepted": sum(counts[k] for k in ("agree", "refused", "differ")),  # by PyTorch
              "agree": counts["agree"], "refused": counts["refused"], "differ": counts["differ"],
              "crashed": counts["crashed"], "both_refuse": counts["both refuse"],
              "accepted_alone": counts["accepted alone"], "threads": threads,
              "refused_by": dict(reasons["refused"].most_common(12)),
              "differ_by": dict(reasons["differ"].most_common(12)),
              "accepted_alone_by": dict(reasons["accepted alone"].most_common(12))}
    return result, [e for group in examples.values() for e in group]


def missed(result):
    """What a family's result falls short in, or nothing."""
    if result["crashed"]:
        return f"{result['crashed']} crashed"
    if not result["accepted"]:
        return "none accepted by PyTorch"
    share = result["agree"] / result["accepted"]
    return f"{100 * share:.2f} % agree, aim {100 * AIM} %" if share < AIM else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True, help="the program of differential.cc")
    parser.add_argument("--family", default=",".join(cases.FAMILIES), help="one or several, with commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200, help="a family")
    parser.add_argument("--threads", default="1,2", help="OMP_NUM_THREADS of each run")
    parser.add_argument("--show", type=int, default=1, help="how many of each kind to print")
    parser.add_argument("--only", type=int, help="this case alone")
    parser.add_argument("--json", help="write the families' results there, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    threads = [int(t) for t in options.threads.split(",")]
    unknown = set(options.family.split(",")) - set(cases.FAMILIES)
    if unknown:
        parser.error(f"no family {unknown}; there are {', '.join(cases.FAMILIES)}")
    results, short = [], []
    for name in options.family.split(","):
        indices = range(options.cases) if options.only is None else [options.only]
        result, examples = run_family(options.driver, name, options.seed, indices, threads, options.show)
        print(json.dumps(result), flush=True)
        for example in examples:
            print(json.dumps(example), file=sys.stderr, flush=True)
        results.append(result)
        if problem := missed(result):
            short.append(f"{name}: {problem}")
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(),
                       "families": results}, out, indent=1)
    if short:
        sys.exit("; ".join(short))


if __name__ == "__main__":
    main()
