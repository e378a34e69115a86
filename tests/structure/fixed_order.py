#!/usr/bin/env python3
"""Sums of floating numbers on CUDA run in a fixed order: no algorithm of a library whose order is
its own, and no atomic addition."""
import os
import re

# CUB's and Thrust's scans and sums by key order their additions as the blocks come.
FREE_ORDER = re.compile(r'\b(DeviceScan|ReduceByKey|(?:in|ex)clusive_scan(?:_by_key)?|reduce_by_key|atomicAdd)\b')


def mistakes(root):
    found = []
    folder = os.path.join(root, 'kernels/cuda')
    for name in sorted(os.listdir(folder)):
        if not name.endswith(('.cu', '.cuh', '.h', '.cc')):
            continue
        with open(os.path.join(folder, name), encoding='utf-8') as source:
            for number, line in enumerate(source, 1):
                if match := FREE_ORDER.search(line):
                    found.append(f'kernels/cuda/{name}:{number}: {match[0]} has no fixed order')
    return found
