"""Element-wise operations of PyTorch's database, as calls of weft."""
import torch

from op_db_mapping import maps, maps_in_place, multiplied, number, only, scalar


# --- Element-wise ----------------------------------------------------------------------------------
def unary(name):
    return lambda c, x: c(name, x)


for _name in ("abs", "neg", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin",
              "cos", "tan", "erf", "floor", "ceil", "round", "trunc", "tanh", "sigmoid", "isnan", "isinf", "isfinite",
              "logical_not"):
    maps(_name, elementwise=True)(unary(_name))
for _name, _call in (("relu", "relu"), ("silu", "silu"), ("logsigmoid", "log_sigmoid"), ("relu6", "relu6"),
                     ("hardswish", "hardswish"), ("hardsigmoid", "hardsigmoid")):
    maps("nn.functional." + _name, elementwise=True)(lambda c, x, inplace=False, call=_call: c(call, x))


@maps("nn.functional.gelu")  # by differences of numbers near 1: x (1 + erf(x / sqrt 2)) / 2
def gelu(c, x, approximate="none"):
    return c("gelu" if approximate == "none" else "gelu_tanh", x)


@maps("nn.functional.leaky_relu", elementwise=True)
def leaky_relu(c, x, negative_slope=0.01, inplace=False):
    return c("leaky_relu", x, slope=number(negative_slope))


@maps("nn.functional.elu", elementwise=True)
def elu(c, x, alpha=1.0, inplace=False):
    return c("elu", x, alpha=number(alpha))


@maps("nn.functional.softplus", elementwise=True)
def softplus(c, x, beta=1, threshold=20):
    return c("softplus", x, beta=number(beta), threshold=number(threshold))


maps("nn.functional.prelu")(lambda c, x, weight: c("prelu", x, weight))


def binary(name, swapped=None):
    """`swapped`: the call with a number on the left."""
    def call(c, x, y):
        if isinstance(y, torch.Tensor) and isinstance(x, torch.Tensor):
            return c(name, x, y)
        if isinstance(x, torch.Tensor):  # weft's numbers are doubles; a bool is a tensor there
            return c(name, x, scalar(c, y, x)) if isinstance(y, bool) else c(name, x, value=number(y))
        if swapped and isinstance(y, torch.Tensor) and not isinstance(x, bool):
            return c(swapped, y, value=number(x))
        return c(name, scalar(c, x, y), y)
    return call


def reverse(function):
    return lambda c, x, y: function(c, y, x)


for _name in ("remainder", "floor_divide", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
              "logical_or", "logical_xor", "pow", "fmod"):
    maps(_name, elementwise=True)(binary(_name))
maps("mul", "__rmul__", elementwise=True)(binary("mul", "mul"))
maps("max/binary", elementwise=True)(binary("maximum"))
maps("min/binary", elementwise=True)(binary("minimum"))
maps("__radd__", elementwise=True)(binary("add", "add"))
maps("__rsub__", elementwise=True)(reverse(binary("sub", "rsub")))
maps("__rdiv__", elementwise=True)(reverse(binary("div", "rdiv")))
maps("__rpow__", elementwise=True)(reverse(binary("pow")))
maps("__rmod__", elementwise=True)(reverse(binary("remainder")))


@maps("true_divide", "div/no_rounding_mode", "div/floor_rounding", elementwise=True)
def div(c, x, y, rounding_mode=None):
    only(rounding_mode in (None, "floor"), f"rounding_mode={rounding_mode!r}")
    return (binary("floor_divide") if rounding_mode else binary("div", "rdiv"))(c, x, y)


def scaled(name, swapped):
    """x + alpha y is written out."""
    def call(c, x, y, alpha=1):
        if alpha == 1 and not isinstance(alpha, bool):
            return binary(name, swapped)(c, x, y)
        c.case["kind"] = "general"  # another rounding than PyTorch's
        y = multiplied(c, y, alpha) if isinstance(y, torch.Tensor) else y * alpha
        if not isinstance(x, torch.Tensor):
            only(not isinstance(y, (bool, int, float)), "no tensor among the operands")
            return c(swapped, y, value=number(x))
        return c(name, x, y) if not isinstance(y, (bool, int, float)) else c(name, x, value=number(y))
    return call


maps("add", elementwise=True)(scaled("add", "add"))
maps("sub", elementwise=True)(scaled("sub", "rsub"))
maps("rsub", elementwise=True)(lambda c, x, y, alpha=1: scaled("sub", "rsub")(c, y, x, alpha))


for _name in ("addcmul", "addcdiv"):
    maps(_name)(lambda c, x, a, b, value=1, call=_name: c(call, x, a, b, value=number(value)))


def bound(name):
    def call(c, x, y):
        return c(name, x, y) if isinstance(y, torch.Tensor) else c(name, x, value=number(y))
    return call


def clamp(name):
    def call(c, x, min=None, max=None):
        if isinstance(min, torch.Tensor) or isinstance(max, torch.Tensor):
            return c(name, x, min, max)
        return c(name, x, low=None if min is None else number(min), high=None if max is None else number(max))
    return call


maps("clamp_min", elementwise=True)(bound("clamp_min"))
maps("clamp_max", elementwise=True)(bound("clamp_max"))
maps("clamp", elementwise=True)(clamp("clamp"))


@maps("where", elementwise=True)
def where(c, x, condition, other):
    return c("where", condition, scalar(c, x, other), scalar(c, other, x))


@maps("isclose")
def isclose(c, x, y, rtol=1e-5, atol=1e-8, equal_nan=False):
    return c("isclose", x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)


@maps("allclose")
def allclose(c, x, y, rtol=1e-5, atol=1e-8, equal_nan=False):
    return c("allclose", x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)


maps("equal")(lambda c, x, y: c("equal", x, y))


def filled(name):
    def call(c, x, mask, value):
        if isinstance(value, torch.Tensor):
            return c(name, x, mask, value)
        return c(name, x, mask, value=number(value))
    return call


maps("masked_fill", elementwise=True)(filled("masked_fill"))


maps("masked_select")(lambda c, x, mask: c("masked_select", x, mask))


# --- In place --------------------------------------------------------------------------------------
for _name in ("neg", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "log", "log1p", "expm1", "erf",
              "tan", "sin", "cos", "tanh", "sigmoid", "floor", "ceil", "round", "trunc"):
    maps_in_place(_name, elementwise=True)(lambda c, x, call=_name + "_": c(call, x))
maps_in_place("nn.functional.relu", elementwise=True)(lambda c, x, inplace=False: c("relu_", x))


def written(name):
    def call(c, x, y, alpha=1):
        if isinstance(y, bool) or isinstance(alpha, bool):
            return c(name, x, multiplied(c, scalar(c, y, torch.ones((), dtype=x.dtype)), alpha))
        if not isinstance(y, torch.Tensor):
            return c(name, x, value=number(y) * number(alpha))
        if alpha == 1:
            return c(name, x, y)
        c.case["kind"] = "general"  # another rounding than PyTorch's
        return c(name, x, y, alpha=number(alpha))
    return call


for _name in ("add", "sub", "mul"):
    maps_in_place(_name, elementwise=True)(written(_name + "_"))
maps_in_place("div/no_rounding_mode", elementwise=True)(lambda c, x, y, rounding_mode=None: written("div_")(c, x, y))
for _name in ("addcmul", "addcdiv"):
    maps_in_place(_name)(lambda c, x, a, b, value=1, call=_name + "_": c(call, x, a, b, value=number(value)))
for _name in ("clamp_min", "clamp_max"):
    maps_in_place(_name, elementwise=True)(bound(_name + "_"))
maps_in_place("clamp", elementwise=True)(clamp("clamp_"))
maps_in_place("masked_fill", elementwise=True)(filled("masked_fill_"))
