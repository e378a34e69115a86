"""npy_peer.py FOLDER: numpy reads what weft wrote to FOLDER (npy_test.cc), and writes it anew."""
import os
import sys

import numpy

folder = sys.argv[1]


def path(name):
    return os.path.join(folder, name)


ramp = numpy.arange(24).reshape(2, 3, 4)
expected = {
    "f32": ramp.astype("f4"), "f64": ramp.astype("f8") / 7, "i64": ramp - 2**40, "i32": ramp.astype("i4"),
    "u8": ramp.astype("u1"), "bool": ramp % 2 == 1, "bf16": numpy.array([1, -0.5, 3.140625], "f4"),
    "scalar": numpy.array(7, "f4"), "empty": numpy.zeros((0, 4), "f4"),
    "transposed": ramp.transpose(2, 0, 1).astype("f4")}
archive = numpy.load(path("weft.npz"))
assert sorted(archive.files) == sorted(expected), archive.files
for name, array in expected.items():
    for got in (numpy.load(path(name + ".npy")), archive[name]):
        assert got.dtype == array.dtype and got.shape == array.shape, (name, got.dtype, got.shape)
        assert numpy.array_equal(got, array), name
    # To the byte what numpy writes.
    numpy.save(path("numpy.npy"), numpy.ascontiguousarray(array).reshape(array.shape))
    with open(path("numpy.npy"), "rb") as theirs, open(path(name + ".npy"), "rb") as ours:
        assert theirs.read() == ours.read(), name
archive.close()

back = {**expected, "fortran": numpy.asfortranarray(ramp.astype("f4")),
        "half": numpy.array([1, -0.5, 2.0**-24, numpy.inf], "f2")}
numpy.savez(path("stored.npz"), **back)
numpy.savez_compressed(path("compressed.npz"), **back)
print("ok")
