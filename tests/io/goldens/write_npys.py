#!/usr/bin/env python3
"""Writes the .npy and .npz files of tests/io/npy_test.cc. Needs numpy (2.x)."""
import os

import numpy
from numpy.lib import format as npy

HERE = os.path.dirname(os.path.abspath(__file__))


def put(name, array, version=None):
    with open(os.path.join(HERE, name + ".npy"), "wb") as file:
        npy.write_array(file, array, version)


put("f32", numpy.array([[0, 1, 2], [3, 4, -5.5]], "f4"))
put("f64", numpy.array([0.1, -1e-300]))
put("f16", numpy.array([1, -0.5, 65504, 2**-24, numpy.inf], "f2"))
put("i64", numpy.array([-(2**62), 5]))
put("i32", numpy.array([-7, 8], "i4"))
put("u8", numpy.array([0, 128, 255], "u1"))
put("bool", numpy.array([True, False]))
put("scalar", numpy.array(7.0))
put("empty", numpy.zeros((0, 4), "f4"))
put("fortran", numpy.asfortranarray(numpy.arange(24, dtype="i4").reshape(2, 3, 4)))
put("version2", numpy.array([1, 2, 3], "f4"), (2, 0))
put("version3", numpy.array([1, 2, 3], "f4"), (3, 0))
arrays = {"x": numpy.arange(200, dtype="f4").reshape(10, 20), "labels": numpy.array([1, 2, 3]),
          "nothing": numpy.zeros(0, "f4")}
numpy.savez_compressed(os.path.join(HERE, "deflated.npz"), **arrays)
numpy.savez(os.path.join(HERE, "stored.npz"), **arrays)
