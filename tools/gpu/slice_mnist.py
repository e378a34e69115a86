#!/usr/bin/env python3
"""Cuts the first images out of MNIST's gzipped IDX files.

usage: slice_mnist.py FROM TO TRAIN TEST     folders, and how many images of each part
"""
import gzip
import math
import os
import struct
import sys


def cut(source, target, count):
    with gzip.open(source) as file:
        magic = file.read(4)
        shape = struct.unpack(f">{magic[3]}I", file.read(4 * magic[3]))  # its last byte counts the dimensions
        if shape[0] < count:
            sys.exit(f"{source} has {shape[0]} items, not {count}")
        items = file.read(count * math.prod(shape[1:]))  # an item has one byte per pixel
    with open(target, "wb") as file:
        # The file contains no time, so the same images give the same bytes.
        file.write(gzip.compress(magic + struct.pack(f">{magic[3]}I", count, *shape[1:]) + items, mtime=0))


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    source, target = sys.argv[1:3]
    os.makedirs(target, exist_ok=True)
    for part, count in zip(("train", "t10k"), map(int, sys.argv[3:])):
        for name in (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"):
            cut(os.path.join(source, name), os.path.join(target, name), count)


main()
