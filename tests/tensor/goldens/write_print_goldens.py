"""Writes print_goldens.safetensors: arrays, and as NAME/text how numpy prints them.

usage: python3 tests/tensor/goldens/write_print_goldens.py   (needs numpy 2.3 and safetensors)
"""
import pathlib

import numpy as np
from safetensors.numpy import save_file

DTYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "u8": np.uint8,
          "boolean": np.bool_}


def cases():
    f = lambda *v: ("f32", (len(v),), v)
    d = lambda *v: ("f64", (len(v),), v)
    nan, inf = float("nan"), float("inf")
    yield "plain", f(1, 2, 3)
    yield "columns", f(1, 0.25, -3.5, 100)
    yield "tenths", f(0.1, 0.2, 0.3)
    yield "tenths_f64", d(0.1, 0.2, 0.3)
    yield "thirds", f(1 / 3, 2 / 3, 1)
    yield "thirds_f64", d(1 / 3, 2 / 3, 1)
    yield "negative_zero", f(-0.0, 0.0)
    yield "zeros", f(0, 0, 0)
    yield "one_small", f(1, 0.0001)
    yield "below_1e_4", f(0.00009, 0.00005)
    yield "at_1e_4", f(0.0001, 0.0005)
    yield "ratio_1000", f(0.001, 1)
    yield "ratio_above_1000", f(0.00099, 1)
    yield "f32_cutoff_below", f(999999, 123456)
    yield "f32_cutoff", f(1e6, 123456)
    yield "f64_cutoff_below", d(99999999, 1e6)
    yield "f64_cutoff", d(1e8, 1e6)
    yield "large", d(1e100, 1)
    yield "tiny", d(1e-300, 5e-324)
    yield "f32_extremes", f(3.4028234663852886e38, 1.1754943508222875e-38, 1e-45)
    yield "negative_exponents", f(-1.5e-7, 2.25e-7)
    yield "exponent_digits", d(1e-100, 1e5, 123.456)
    yield "nan_only", f(nan)
    yield "inf_only", f(inf, inf)
    yield "minus_inf_only", f(-inf)
    yield "nan_and_numbers", f(nan, 1.5, -2.25)
    yield "inf_and_numbers", f(inf, 1, -inf)
    yield "nan_and_one", f(nan, 1)
    yield "nan_inf_exponents", f(nan, -inf, 1e-9)
    yield "inf_wide", f(-inf, 12345.5)
    yield "rounding_at_8", d(1.123456785, 2.0000000049, 9.999999999)
    yield "rounding_exponent", d(9.9999999999e-5, 1.23456789e-5)
    yield "pi", d(3.141592653589793, 31.41592653589793)
    yield "grid", ("f32", (2, 3), (1, 2.5, -3, 4, 5, 6))
    yield "cube", ("f32", (2, 2, 2), range(8))
    yield "four_dims", ("f32", (2, 1, 2, 2), range(8))
    yield "ones_dims", ("f32", (1, 1, 1), (7,))
    yield "empty", ("f32", (0,), ())
    yield "empty_grid", ("f32", (2, 0, 3), ())
    yield "integers", ("i64", (4,), (1, -20, 300, 0))
    yield "integer_extremes", ("i64", (2,), (-2**63, 2**63 - 1))
    yield "integer_grid", ("i32", (2, 2), (1, -1, 1000, 7))
    yield "bytes", ("u8", (3,), (0, 7, 255))
    yield "truths", ("boolean", (3,), (1, 0, 1))
    yield "truth_grid", ("boolean", (2, 2), (1, 0, 0, 1))
    for value in (0.0, -0.0, 1.0, 0.1, -2.5, 1 / 3, 1e-4, 9.9e-5, 123456789.0, 1e15, 1e16, 1.5e16,
                  3e-7, 1e20, 2.5e-310, nan, inf, -inf):
        tag = str(value).replace("-", "minus_").replace(".", "_").replace("+", "")
        yield "scalar_f64_" + tag, ("f64", (), (value,))
        yield "scalar_f32_" + tag, ("f32", (), (value,))
    yield "scalar_i64", ("i64", (), (-5,))
    yield "scalar_true", ("boolean", (), (1,))
    yield "scalar_false", ("boolean", (), (0,))
    yield "wrapped_row", ("f32", (30,), range(30))
    yield "wrapped_rows", ("f64", (2, 13), [i / 7 for i in range(26)])
    yield "wrapped_integers", ("i64", (60,), range(60))
    yield "wrapped_bools", ("boolean", (25,), [i % 3 == 0 for i in range(25)])
    yield "exactly_75", ("i64", (19,), range(100, 119))
    yield "thousand", ("i32", (1000,), "counted")
    yield "summary_row", ("i64", (1001,), "counted")
    yield "summary_f32", ("f32", (2000,), "counted")
    yield "summary_grid", ("f32", (40, 30), "counted")
    yield "summary_short_columns", ("f32", (300, 5), "counted")
    yield "summary_short_rows", ("i32", (4, 300), "counted")
    yield "summary_six", ("i32", (6, 7, 30), "counted")
    yield "summary_cube", ("f32", (10, 11, 12), "counted")
    yield "summary_exponent", ("f64", (1500, 1), "counted")
    yield "summary_wide_rows", ("f64", (3, 400), "sevenths")
    rng = np.random.default_rng(1)
    for i in range(60):
        dtype = ("f32", "f64")[i % 2]
        shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
        values = rng.standard_normal(int(np.prod(shape))) * 10.0 ** rng.integers(-6, 8)
        if i % 3 == 0:
            values = values * 10.0 ** rng.uniform(-2, 2, values.shape)
        if i % 5 == 0:
            values = np.round(values, 3)
        yield f"random_{i}", (dtype, shape, list(values))


def main():
    tensors = {}
    for name, (dtype, shape, values) in cases():
        steps = {"counted": 1.0, "sevenths": 1 / 7}
        if isinstance(values, str):
            data = np.arange(int(np.prod(shape))) * steps[values]
        else:
            data = np.array(list(values), dtype=np.float64 if dtype[0] == "f" else np.int64)
        array = data.astype(DTYPES[dtype]).reshape(shape)
        tensors[name] = array
        tensors[name + "/text"] = np.frombuffer(str(array).encode(), np.uint8)
    script = pathlib.Path(__file__)
    save_file(tensors, script.with_name("print_goldens.safetensors"),
              metadata={"written_by": f"{script.name} with numpy {np.__version__}"})


main()
