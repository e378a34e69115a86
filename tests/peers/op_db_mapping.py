"""The operations of PyTorch's database (common_methods_invocations.op_db) that weft has names for.

Each mapping takes a CaseMaker and PyTorch's own arguments, and returns the tensors that PyTorch's call
returns. An argument that it does not take is one that weft lacks.
"""
import torch

import reference
from op_db_case import Lacks

MAPPINGS = {}
ELEMENTWISE = set()  # each element depends on its own operands alone: compared more strictly


def maps(*names, elementwise=False):
    def keep(function):
        for name in names:
            MAPPINGS[name] = function
            if elementwise:
                ELEMENTWISE.add(name)
        return function
    return keep


def only(condition, text):
    if not condition:
        raise Lacks(text)


def dims_of(dim):
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


# --- Element-wise ----------------------------------------------------------------------------------
def unary(name):
    return lambda c, x: c(name, x)


for _name in ("abs", "neg", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin",
              "cos", "tan", "erf", "floor", "ceil", "round", "trunc", "tanh", "sigmoid", "isnan", "isinf", "isfinite",
              "logical_not"):
    maps(_name, elementwise=True)(unary(_name))


def operand(c, name, x, y, swapped=None, **options):
    """A binary operation whose second operand may be a number."""
    if isinstance(y, torch.Tensor):
        return c(name, x, y, **options)
    return c(swapped or name, x, value=y, **options)


def binary(name):
    return lambda c, x, y: operand(c, name, x, y)


for _name in ("mul", "pow", "remainder", "floor_divide", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge",
              "logical_and", "logical_or", "logical_xor"):
    maps(_name, elementwise=True)(binary(_name))
maps("true_divide", "div/no_rounding_mode", elementwise=True)(lambda c, x, y, rounding_mode=None: operand(c, "div", x, y))
maps("max/binary", elementwise=True)(binary("maximum"))
maps("min/binary", elementwise=True)(binary("minimum"))
maps("__radd__", elementwise=True)(binary("add"))
maps("__rmul__", elementwise=True)(binary("mul"))


def scaled(name):
    def call(c, x, y, alpha=1):
        if alpha == 1:
            return operand(c, name, x, y)
        raise Lacks("alpha")
    return call


maps("add", elementwise=True)(scaled("add"))
maps("sub", elementwise=True)(scaled("sub"))
