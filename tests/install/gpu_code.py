"""Prints what GPU code a file has, as `tools/cuda/list_archs` writes it: 75,80,90+ptx.

usage: gpu_code.py FILE

By the headers of nvcc's fat binaries (undocumented): a magic number, a version, the size of this header and
that of what follows; before each program its kind, the size of its header, its own, and its architecture.
"""
import struct
import sys

MAGIC = struct.pack("<IH", 0xBA55ED50, 1)
PTX, CODE = 1, 2

data = open(sys.argv[1], "rb").read()
found = {PTX: set(), CODE: set()}
start = data.find(MAGIC)
while start >= 0:
    header, size = struct.unpack_from("<HQ", data, start + 6)
    at, end = start + header, start + header + size
    while at < end:
        kind, header, size, arch = struct.unpack_from("<HxxIQ12xI", data, at)
        found[kind].add(arch)
        at += header + size
    start = data.find(MAGIC, end)
print(",".join(f"{arch}{'+ptx' if arch in found[PTX] else ''}" for arch in sorted(found[CODE] | found[PTX])))
