"""What the writers of goldens share: tensors of PyTorch's in a file that tests/goldens.h reads."""
import pathlib

import torch
from safetensors.torch import save_file

_tensors = {}


def array(name, t):
    assert name not in _tensors, name
    _tensors[name] = t.detach().clone().contiguous()


def arrays(name, tensors):
    """A list: name.0, name.1, ..."""
    for i, t in enumerate(tensors):
        array(f"{name}.{i}", t)


def save(script):
    """All of them beside the script write_NAME.py, as NAME.safetensors."""
    script = pathlib.Path(script)
    version = torch.__version__.split("+")[0]
    save_file(_tensors, script.with_name(script.stem.removeprefix("write_") + ".safetensors"),
              metadata={"written_by": f"{script.name} with PyTorch {version}"})


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
