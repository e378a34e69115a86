"""The table of the operations of PyTorch's database (common_methods_invocations.op_db) that weft has names for, which
op_db_elementwise.py, op_db_tensors.py and op_db_layers.py fill, and what they share.

Each mapping takes a CaseMaker and PyTorch's own arguments, and returns the tensors that PyTorch's call
returns. An argument that it does not take is one that weft lacks.
"""
import torch

from op_db_case import Lacks

MAPPINGS = {}
IN_PLACE = {}        # "add_": "add", which has the samples
ELEMENTWISE = set()  # each element depends on its own operands alone: compared more strictly
NO_VALUES = set()    # random or uninitialised: only shape and dtype are compared


def maps(*names, elementwise=False, no_values=False):
    def keep(function):
        for name in names:
            MAPPINGS[name] = function
            if elementwise:
                ELEMENTWISE.add(name)
            if no_values:
                NO_VALUES.add(name)
        return function
    return keep


def copy_of(c, x):
    y = c("clone", x)
    y.dtype = x.dtype
    return y


def maps_in_place(*names, elementwise=False):
    """A mapping of the methods with a "_" after the name, which write to a copy of their first operand."""
    def keep(function):
        for name in names:
            method = name.split("/")[0].split(".")[-1] + "_"
            IN_PLACE[method] = name
            maps(method, elementwise=elementwise)(
                lambda c, x, *args, **options: function(c, copy_of(c, x), *args, **options))
        return function
    return keep


def only(condition, text):
    if not condition:
        raise Lacks(text)


def dims_of(dim):
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def in_range(dim, ndim):
    return dim % max(ndim, 1)


def number(value):
    """A double of weft's."""
    only(not isinstance(value, (complex, torch.Tensor)), f"a number that is a {type(value).__name__}")
    return int(value) if isinstance(value, bool) else value


def number_of(value):
    """The same from a tensor of one element, where it has no gradient to lose."""
    if isinstance(value, torch.Tensor):
        only(not value.requires_grad, "the gradient of a number")
        value = value.item()
    return number(value)


def scalar(c, value, x):
    """A number as a tensor without dimensions, for a place that takes no number."""
    if isinstance(value, torch.Tensor):
        return value
    only(isinstance(x, torch.Tensor), "no tensor among the operands")
    return c("full", shape=[], value=number(value), dtype=torch.result_type(x, value))


def converted(c, x, dtype):
    return x if dtype is None else c("to", x, dtype=dtype)


def multiplied(c, x, factor):
    if isinstance(factor, bool):
        return c("mul", x, scalar(c, factor, x))
    return x if factor == 1 else c("mul", x, value=number(factor))
