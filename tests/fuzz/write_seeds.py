#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: small files, good and nearly good, that reach every branch."""
import glob
import gzip
import json
import os
import struct
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))


def put(target, name, data):
    folder = os.path.join(HERE, target + "_fuzz_seeds")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def idx(dims, data=b"", type=8):
    return bytes([0, 0, type, len(dims)]) + b"".join(struct.pack(">I", d) for d in dims) + data


def zipped(data, level=6):
    return gzip.compress(data, level, mtime=0)


image = bytes(range(24))
put("idx", "plain3", idx([2, 3, 4], image))
put("idx", "plain1", idx([3], b"\1\2\3"))
put("idx", "empty", idx([0, 28, 28]))
put("idx", "short", idx([2, 3, 4], image[:-1]))
put("idx", "long", idx([2, 3, 4], image + b"x"))
put("idx", "float", idx([1], b"\0\0\0\0", 13))
put("idx", "overflow", idx([2**32 - 1] * 4))
put("idx", "gzip", zipped(idx([2, 3, 4], image)))
put("idx", "gzip_stored", zipped(idx([2, 3, 4], image), 0))
put("idx", "gzip_long", zipped(idx([2], b"abc")))
put("idx", "gzip_bomb", zipped(idx([4]) + bytes(200_000)))
put("idx", "gzip_lie", zipped(idx([2**20])))

for level in (0, 1, 9):
    put("gzip", f"level{level}", b"\x04" + zipped(b"weft " * 50 + bytes(range(256)), level))
put("gzip", "empty", b"\x00" + zipped(b""))
put("gzip", "bomb", b"\xff" + zipped(bytes(300_000)))
put("gzip", "two_members", b"\x01" + zipped(b"one") + zipped(b"two"))
put("gzip", "bad_crc", b"\x01" + zipped(b"one")[:-8] + bytes(8))
# Name, comment, extra field and header checksum.
fields = b"\x1f\x8b\x08\x1e\0\0\0\0\0\x03" + b"\x04\0abcd" + b"name\0" + b"comment\0"
fields += struct.pack("<H", zlib.crc32(fields) & 0xFFFF)
put("gzip", "all_fields", b"\x01" + fields + zipped(b"text")[10:])


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


good = {"__metadata__": {"k": "v"}, "a": entry("F32", [2], 0, 8), "b": entry("BOOL", [2, 1], 8, 10)}
put("safetensors", "good", safetensors(good, bytes(8) + b"\0\1"))
put("safetensors", "nothing", safetensors({}))
put("safetensors", "padded", safetensors(b"{}      "))
put("safetensors", "dtypes", safetensors(
    {str(i): entry(t, [1], 8 * i, 8 * i + 8) for i, t in enumerate(["F64", "I64"])}
    | {"x": entry("BF16", [], 16, 18), "y": entry("U8", [0, 3], 18, 18), "z": entry("I32", [1], 18, 22)},
    bytes(22)))
put("safetensors", "escapes", safetensors(b'{"\\u00e9\\ud83d\\ude00\\n":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', b"\0"))
put("safetensors", "utf8", safetensors('{"é😀":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}'.encode(), b"\0"))
put("safetensors", "overlap", safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)))
put("safetensors", "hole", safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, bytes(6)))
put("safetensors", "twice", safetensors(b'{"a":1,"a":2}'))
put("safetensors", "deep", safetensors(b'{"a":{"b":{"c":{}}}}'))
put("safetensors", "numbers", safetensors(b'{"a":{"shape":[-1,1.5,1e9,9007199254740993]}}'))
put("safetensors", "f16", safetensors({"a": entry("F16", [1], 0, 2)}, bytes(2)))
put("safetensors", "crc", safetensors({"__metadata__": {"weft.header_crc32": "00000000", "weft.crc32.a": "00000000"},
                                       "a": entry("U8", [1], 0, 1)}, b"\0"))
put("safetensors", "huge_header", struct.pack("<Q", 2**63) + b"{}")

# The first byte is the number of repetitions, and its lowest bit the kind.
put("cifar", "ten", b"\x00\x09" + bytes(range(256)) * 12)
put("cifar", "ten_bad_label", b"\x00\x0a" + bytes(3072))
put("cifar", "ten_repeated", b"\x0c" + bytes([3]) * 439)  # 7 times 439 is 3073
put("cifar", "hundred", b"\x01\x13\x63" + bytes(range(256)) * 12)
put("cifar", "hundred_bad_coarse", b"\x01\x14\x63" + bytes(3072))
put("cifar", "short", b"\x00" + bytes(100))

# Read as a file, and as lines to which the target adds their checksums.
choices = b"matmul 12,2,1,32,0a plain 0.125\nconv2d 1,0b nchw.1.2 1e-06\n"
put("choices", "lines", choices)
put("choices", "twice", choices + choices.replace(b"plain", b"other"))
put("choices", "bad_lines", b"\nplain\nk plain -1\nk plain inf\nk  1\nk plain 1x\n")
put("choices", "first_line", b"weft choices 1 m\n")


def fnv1a(data):
    total = 0xCBF29CE484222325
    for byte in data:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return b"%016x" % total


first = b"weft choices 1 m\n"
body = b"matmul 12,2,1,32,0a plain 0.125"
put("choices", "file", first + fnv1a(first + body) + b" " + body + b"\n")

schedule = b"weft schedule mine stages 2 micro-batches 2\n"
put("schedule", "1f1b", schedule + b"0: F0.0 F0.1 B0.0 B0.1\n1: F1.0 B1.0 F1.1 B1.1 # last\n")
put("schedule", "deadlock", schedule + b"0: F0.0 B0.0 F0.1 B0.1\n1: F1.0 F1.1 B1.0 B1.1\n")
put("schedule", "sends", b"weft schedule s stages 2 micro-batches 1\n0: F0.0 >F0.0 <B0.0 R0.0 B0.0\n"
    b"\n1:\t<F1.0 F1.0 I1.0 >B1.0 W1.0\r\n")
put("schedule", "one_device", b"weft schedule s stages 2 micro-batches 1\n0: F0.0 F1.0 B1.0 B0.0\n")
put("schedule", "twice", schedule + b"0: F0.0 F0.0 F0.1 F0.2 B0.1\n1:\n")
put("schedule", "large", b"weft schedule s stages 4096 micro-batches 65536\n0: F4095.65535 <B99999999999.1")

# PyTorch's files (tests/io/goldens/write_pickles.py), and their pickles without the archives.
for path in sorted(glob.glob(os.path.join(HERE, "..", "io", "goldens", "*.pt*"))):
    with open(path, "rb") as file:
        data = file.read()
    put("pickle", "file_" + os.path.basename(path), b"\0" + data)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            put("pickle", os.path.basename(path), b"\1" + archive.read(name))
put("pickle", "recursive", b"\1\x80\2]q\1h\1a.")
put("pickle", "global", b"\1\x80\2cos\nsystem\nX\4\0\0\0true\x85R.")

# numpy's files (tests/io/goldens/write_npys.py), and dicts that numpy does not write.
for path in sorted(glob.glob(os.path.join(HERE, "..", "io", "goldens", "*.np?"))):
    with open(path, "rb") as file:
        data = file.read()
    archive = path.endswith(".npz")
    put("npy", os.path.basename(path), (b"\1" if archive else b"\0") + data)
    if not archive:
        put("npy", "in_archive_" + os.path.basename(path), b"\2" + data)


def npy(text, values=b"", version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\0\x93NUMPY" + bytes([version, 0]) + length + text.encode() + values


put("npy", "spaces", npy(' { "shape" : ( 2L , ) , "descr" : "=f4" , "fortran_order" : True }', bytes(8)))
put("npy", "structs", npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", bytes(4)))
put("npy", "objects", npy("{'descr': '|O', 'fortran_order': False, 'shape': ()}", b"\x80\4N."))
put("npy", "big_endian", npy("{'descr': '>f4', 'fortran_order': False, 'shape': ()}", bytes(4)))
put("npy", "huge", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 0)}"))
put("npy", "huge_header", b"\0\x93NUMPY\2\0" + b"\xff" * 4)

put("csv", "header", b"\1a,b\n1,2.5\n-3e2,+4\n")
put("csv", "quoted", b'\1"a ""1"", x","two\r\nlines"\r\n"1"," 2 "\r\n')
put("csv", "plain", b"\2\xef\xbb\xbf1;nan\n\n-inf;5e-324")
put("csv", "bad", b'\1a\n"1"x\n')

# Pillow's files; tests/io/goldens/write_pictures.py.
for target, ending in ("jpeg", "jpg"), ("png", "png"):
    for path in glob.glob(os.path.join(HERE, "..", "io", "goldens", "*." + ending)):
        with open(path, "rb") as file:
            put(target, os.path.basename(path), file.read())
