"""onnx_peer.py FOLDER: onnx.checker and onnxruntime read the models that weft wrote to FOLDER (onnx_test.cc).

Beside NAME.onnx lie NAME.1.npz, NAME.2.npz and so on: inputs and outputs of the model for batches of different
sizes. An output may differ by 1e-5 of the largest one, in f32; with f64, by 1e-12. Prints the largest differences.
"""
import glob
import os
import sys

import numpy
import onnx
import onnxruntime

BOUND = {"float32": 1e-5, "float64": 1e-12}
PRINTED = 1e-6
failed = []


def difference(got, expected):
    """Of the elements, relative to the largest one."""
    assert numpy.isfinite(expected).all() and expected.any(), "the model's own result says nothing"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return numpy.inf
    return float(numpy.max(numpy.abs(got - expected)) / numpy.max(numpy.abs(expected)))


def check(path):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = [y.name for y in session.get_outputs()]
    largest = 0.0
    for batch in sorted(glob.glob(path.removesuffix("onnx") + "*.npz")):
        arrays = numpy.load(batch)
        inputs = {x.name: arrays[x.name] for x in session.get_inputs()}
        for name, got in zip(outputs, session.run(outputs, inputs)):
            found = difference(got, arrays[name])
            largest = max(largest, found)
            if not found <= BOUND[str(got.dtype)]:
                failed.append(f"{os.path.basename(batch)}: {name} differs by {found:.2g}, "
                              f"{got.shape} beside {arrays[name].shape}")
    return largest


paths = sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx")))
assert paths, "no models"
print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}")
all_differences = []
for path in paths:
    name = os.path.basename(path).removesuffix(".onnx")
    try:
        all_differences.append((check(path), name))
    except Exception as error:  # the other models are checked, too
        failed.append(f"{name}: {type(error).__name__}: {str(error)[:600]}")
for largest, name in sorted(all_differences, reverse=True):
    if largest > PRINTED or not name.startswith("random"):
        print(f"{name}: {largest:.2g}")
print(f"{len(all_differences)} models agree" if not failed else "\n".join(failed))
sys.exit(bool(failed))
