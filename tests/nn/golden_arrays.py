"""What the writers of goldens share: C++ headers with arrays of PyTorch's numbers."""
import torch


def header(script):
    version = torch.__version__.split("+")[0]
    print(f"// Written by {script} with PyTorch {version}. Do not edit.")
    print("#pragma once\n\n#include <vector>\n\nnamespace weft::goldens {\n")


def footer():
    print("\n}  // namespace weft::goldens")


def array(name, t):
    t = t.detach().flatten()
    if t.dtype == torch.float32:
        body = ", ".join(float(v).hex() + "f" for v in t.tolist())
        kind = "float"
    else:
        body = ", ".join(float(v).hex() for v in t.tolist())
        kind = "double"
    print(f"inline const std::vector<{kind}> {name} = {{{body}}};")


# A formula that both sides compute.
def ramp(*shape):
    n = 1
    for s in shape:
        n *= s
    return ((torch.arange(n, dtype=torch.float64) * 7919 % 1009) / 504.5 - 1).reshape(shape)


def run(name, f, *inputs):
    inputs = [i.clone().requires_grad_() for i in inputs]
    y = f(*inputs)
    array(f"{name}_y", y)
    y.backward(ramp(*y.shape) if y.dim() else None)
    for i, x in enumerate(inputs):
        array(f"{name}_grad{i}", x.grad)
