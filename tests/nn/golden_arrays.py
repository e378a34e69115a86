"""What the writers of goldens share: C++ headers with arrays of PyTorch's numbers."""
import torch


def header(script):
    version = torch.__version__.split("+")[0]
    print(f"// Written by {script} with PyTorch {version}. Do not edit.")
    print("#pragma once\n\n#include <vector>\n\nnamespace weft::goldens {\n")


def footer():
    print("\n}  // namespace weft::goldens")


def numbers(t):
    suffix = "f" if t.dtype == torch.float32 else ""
    return ", ".join(float(v).hex() + suffix for v in t.detach().flatten().tolist())


def array(name, t):
    kind = "float" if t.dtype == torch.float32 else "double"
    print(f"inline const std::vector<{kind}> {name} = {{{numbers(t)}}};")


def arrays(name, tensors):
    """A list of f64 arrays."""
    body = ",\n    ".join(f"{{{numbers(t)}}}" for t in tensors)
    print(f"inline const std::vector<std::vector<double>> {name} = {{\n    {body}}};")


# A formula that both sides compute.
def ramp(*shape):
    n = 1
    for s in shape:
        n *= s
    return ((torch.arange(n, dtype=torch.float64) * 7919 % 1009) / 504.5 - 1).reshape(shape)


def results(f, inputs):
    """f's value and the gradients of its inputs."""
    inputs = [i.clone().requires_grad_() for i in inputs]
    y = f(*inputs)
    y.backward(ramp(*y.shape) if y.dim() else None)
    return y, [i.grad for i in inputs]


def run(name, f, *inputs):
    y, grads = results(f, inputs)
    array(f"{name}_y", y)
    for i, grad in enumerate(grads):
        array(f"{name}_grad{i}", grad)


def run_list(name, f, *inputs):
    """The same as one list."""
    y, grads = results(f, inputs)
    arrays(name, [y] + grads)
