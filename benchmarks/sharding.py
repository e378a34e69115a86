#!/usr/bin/env python3
"""Trains one transformer in each way in which weft divides it among two ranks or devices, and writes to a file what
they held in memory and what rank 0 sent: the table of docs/sharding.md, which benchmarks/report.py writes.

usage: benchmarks/sharding.py [--out FILE] [--tiny] [--data PATH] [--programs FOLDER]

Each way runs twice, for a few steps and for more. The difference is what a step sends: the whole run also sends the
first weights and, in some ways, a checkpoint. The test comes later, and is not counted. Memory is that of the longer run.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
STEPS = 3, 8
RANKS = 2
NET = "--width 192 --layers 8"
TINY = "--context 8 --width 16 --heads 2 --layers 2"
# All take 16 pieces of text a step; --batch-size is that of a rank.
WAYS = {
    "one process": "char_transformer --batch-size 16",
    "DataParallel": f"char_transformer_dp --batch-size 16 --host-devices {RANKS}",
    "DDP": "char_transformer_fsdp --batch-size 8 --strategy ddp",
    "ZeRO-1": "char_transformer_fsdp --batch-size 8 --strategy zero1",
    "ZeRO-2": "char_transformer_fsdp --batch-size 8 --strategy zero2",
    "FSDP": "char_transformer_fsdp --batch-size 8 --strategy fsdp",
    "tensor parallel": "char_transformer_tp --batch-size 16",
    "with sequence parallelism": "char_transformer_tp --batch-size 16 --sequence-parallel",
    "pipeline, `1f1b`, recomputed": "char_transformer_3d --batch-size 16 --tp 1 --schedule 1f1b",
}
OF_ONE_PROCESS = "char_transformer", "char_transformer_dp"


def command_of(way, options, steps):
    """As a reader types it: (words of ./weft, words of the program)."""
    program, *own = WAYS[way].split()
    net = TINY if options.tiny else NET
    start = ["run"] if program in OF_ONE_PROCESS else ["launch", "--nproc-per-node", str(RANKS)]
    return start, [program, "--device", "cpu", *net.split(), *own, "--limit-steps", str(steps)]


def metrics_of(way, options, steps):
    start, (program, *rest) = command_of(way, options, steps)
    if options.programs:
        launcher = [] if start == ["run"] else [options.programs / "launch/weftrun", *start[1:]]
        command = [*launcher, options.programs / "examples" / program, *rest]
    else:
        command = [ROOT / "weft", *start, program, *rest]
    if options.data:
        command += ["--data", options.data]
    with tempfile.TemporaryDirectory() as out:
        # The sample that a program prints need not be UTF-8.
        done = subprocess.run([*command, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stdout}")
        return json.loads(pathlib.Path(out, "metrics.json").read_text(encoding="utf-8"))


def measured(way, options):
    fewer, more = (metrics_of(way, options, steps) for steps in STEPS)
    start, words = command_of(way, options, STEPS[1])
    row = {"way": way, "command": " ".join(["./weft", *start, *words]), "memory": more["memory"]}
    if "bytes_sent" in more:
        row["bytes_sent"] = [run["bytes_sent"] for run in (fewer, more)]
        row["bytes_sent_in_a_step"] = (more["bytes_sent"] - fewer["bytes_sent"]) / (STEPS[1] - STEPS[0])
    return row, more


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default="sharding.json")
    parser.add_argument("--tiny", action="store_true", help="a small transformer, whose figures say nothing")
    parser.add_argument("--data", help="the text (default: that of the programs)")
    parser.add_argument("--programs", type=pathlib.Path, help="where they were built, in place of ./weft")
    options = parser.parse_args()
    ways = []
    for way in WAYS:
        row, metrics = measured(way, options)
        print(row["command"], flush=True)
        ways.append(row)
    result = {"commit": metrics["commit"], "cpu": metrics["cpu"], "cores": os.cpu_count(), "dtype": metrics["dtype"],
              "steps": STEPS, "ways": ways}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
