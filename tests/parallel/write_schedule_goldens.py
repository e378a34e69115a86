#!/usr/bin/env python3
"""Writes schedule_goldens.json: the lists of PyTorch 2.11's ScheduleZBVZeroBubble and ScheduleDualPipeV.

usage: python3 write_schedule_goldens.py > schedule_goldens.json   (needs torch)

As weft's text, without the empty slots, and each overlapped pair as its forward and then its backward: some whole, and
of 1 to 8 devices with 1 to four times as many micro-batches the text's FNV-1a hash of 64 bits; null where PyTorch
raises ValueError.
"""
import json
import sys
import types

import torch
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble

SCHEDULES = {"zb-v": ScheduleZBVZeroBubble, "dualpipev": ScheduleDualPipeV}
WHOLE = [("zb-v", 1, 1), ("zb-v", 2, 1), ("zb-v", 2, 4), ("zb-v", 3, 2), ("zb-v", 3, 7),
         ("dualpipev", 1, 2), ("dualpipev", 2, 4), ("dualpipev", 3, 6), ("dualpipev", 4, 9)]


def stage(index, devices):
    """What a schedule asks a stage."""
    stages = 2 * devices
    return types.SimpleNamespace(stage_index=index, num_stages=stages, group_size=devices, group_rank=0,
                                 is_first=index == 0, is_last=index == stages - 1, submod=None)


def text(name, devices, micro_batches):
    last = 2 * devices - 1
    order = SCHEDULES[name]([stage(0, devices), stage(last, devices)], micro_batches).pipeline_order
    lines = [f"weft schedule {name} stages {2 * devices} micro-batches {micro_batches}"]
    for device in range(devices):
        actions = [part for action in order[device] if action for part in action.sub_actions or [action]]
        words = [f"{a.computation_type.value}{a.stage_index}.{a.microbatch_index}" for a in actions]
        lines.append(" ".join([f"{device}:", *words]))
    return "\n".join(lines) + "\n"


def fnv1a(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2 ** 64
    return value


def hash_of(*size):
    try:
        return f"{fnv1a(text(*size)):016x}"
    except ValueError:
        return None


def main():
    def lines(items):
        return "[\n  " + ",\n  ".join(map(json.dumps, items)) + "]"

    whole = lines(text(*size) for size in WHOLE)
    hashes = ", ".join(
        f'"{name}": ' + lines([hash_of(name, p, m) for m in range(1, 4 * p + 1)] for p in range(1, 9))
        for name in SCHEDULES)
    sys.stdout.write(f'{{"torch": "{torch.__version__.split("+")[0]}", "whole": {whole},\n'
                     f' "hashes": {{{hashes}}}}}\n')


if __name__ == "__main__":
    main()
