#!/usr/bin/env python3
"""Writes the tables of docs/performance.md from results of `./weft bench --peer PYTHON --floor --operations`:
benchmarks/report.py benchmarks/results/cpu.json... What stands between the two marks of the document is replaced."""
import json
import os
import sys

NAMES = {"autoencoder": "autoencoder, batch 32", "mlp": "MLP, batch 64", "cnn": "CNN, width 1/16, batch 64",
         "resnet50": "ResNet-50, batch 8, 224x224", "dcgan": "DCGAN 64x64, batch 64"}
BEGIN, END = "<!-- tables: benchmarks/report.py -->\n", "<!-- end of the tables -->\n"


def ms(value):
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def mib(value):
    return f"{value / 2**20:.1f}"


def table(*rows):
    head, *rest = rows
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in (head, ["---"] * len(head), *rest)) + "\n"


def summary(result):
    rows = [("", "weft", "PyTorch", "ratio", "MiB, weft", "MiB, PyTorch", "sum of its kernels")]
    for row in result["rows"]:
        ratio = row["ratio"]
        rows.append((NAMES[row["work"]], ms(row["weft_ms"]["median"]), ms(row["peer_ms"]["median"]),
                     f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]", mib(row["weft_peak_bytes"]),
                     mib(row["peer_peak_bytes"]), f"{ms(row['floor_ms'])}, {row['weft_ms']['median'] / row['floor_ms']:.2f}x"))
    op = result["op_us"]
    rows.append(("1-element multiply, tape on", f"{op['weft']:.2f} us", f"{op['peer']:.2f} us", f"{op['peer'] / op['weft']:.1f}", "", "", ""))
    return table(*rows)


def details(row):
    step = row["weft_ms"]["median"]
    text = f"### {NAMES[row['work']]}\n\nweft: {row['weft_config']}; PyTorch: {row['peer_config']}.\n\n"
    total = sum(o["ms"] for o in row["operations"])
    shown = [o for o in row["operations"] if o["ms"] > total / 200]
    text += table(("operation", "calls a step", "time", "share"),
                  *((o["name"], f"{o['calls']:.0f}" if o["calls"] else "", ms(o["ms"]), f"{100 * o['ms'] / total:.1f} %") for o in shown))
    longest = sorted(row["floor"], key=lambda f: -f["ms"])[:12]
    text += table(("kernel alone", "time"), *((f["kernel"], ms(f["ms"])) for f in longest),
                  (f"all {len(row['floor'])}", f"{ms(row['floor_ms'])}; the step, {ms(step)}, takes {step / row['floor_ms']:.2f} times that"))
    return text


def load(path):
    with open(path) as f:
        return json.load(f)


def main(path, *more):
    result = load(path)
    for other in map(load, more):  # of the same machine and commit
        result["rows"] += other["rows"]
    text = f"{result['cpu']}, {result['cores']} cores, {result['dtype']}; PyTorch {result['peer']['torch']} ({result['peer']['capability']}); weft {result['commit']}.\n\n"
    text += summary(result) + "".join(map(details, result["rows"]))
    document = os.path.join(os.path.dirname(__file__), "../docs/performance.md")
    with open(document) as f:
        before, rest = f.read().split(BEGIN)
    with open(document, "w") as f:
        f.write(before + BEGIN + "\n" + text + END + rest.split(END)[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
