"""The operations of PyTorch's database (common_methods_invocations.op_db) that weft has names for.

Each mapping takes a CaseMaker and PyTorch's own arguments, and returns the tensors that PyTorch's call
returns. An argument that it does not take is one that weft lacks.
"""
import math

import torch

from op_db_case import Lacks

MAPPINGS = {}
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


def only(condition, text):
    if not condition:
        raise Lacks(text)


def dims_of(dim):
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)



def in_range(dim, ndim):
    return dim % max(ndim, 1)


# Names that weft gets, and their mappings: to be switched on, by leaving them out here, when they are there.
LATER = {"clamp_min", "clamp_max", "einsum", "unbind", "meshgrid/list_of_tensors", "meshgrid/variadic_tensors", "diag",
         "repeat_interleave", "addcmul", "fmod", "nn.functional.prelu", "nn.functional.embedding_bag"}


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


# --- Element-wise ----------------------------------------------------------------------------------
def unary(name):
    return lambda c, x: c(name, x)


for _name in ("abs", "neg", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin",
              "cos", "tan", "erf", "floor", "ceil", "round", "trunc", "tanh", "sigmoid", "isnan", "isinf", "isfinite",
              "logical_not"):
    maps(_name, elementwise=True)(unary(_name))
for _name, _call in (("relu", "relu"), ("silu", "silu"), ("logsigmoid", "log_sigmoid")):
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
              "logical_or", "logical_xor", "pow"):
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


@maps("clamp", elementwise=True)
def clamp(c, x, min=None, max=None):
    if isinstance(min, torch.Tensor) or isinstance(max, torch.Tensor):
        y = x if min is None else c("maximum", x, min)
        return y if max is None else c("minimum", y, max)
    return c("clamp", x, low=None if min is None else number(min), high=None if max is None else number(max))


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


@maps("masked_fill", elementwise=True)
def masked_fill(c, x, mask, value):
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return c("where", mask, value, x)
    return c("masked_fill", x, mask, value=number_of(value))


maps("masked_select")(lambda c, x, mask: c("masked_select", x, mask))


# --- Creation --------------------------------------------------------------------------------------
@maps("zeros")
def zeros(c, shape, dtype=torch.float32, device=None, requires_grad=False, value=0):
    return c("full", shape=shape, value=value, dtype=dtype)


@maps("ones")
def ones(c, shape, **options):
    return zeros(c, shape, value=1, **options)


@maps("full")
def full(c, shape, value, **options):
    dtype = torch.get_default_dtype() if isinstance(value, float) else torch.int64
    return zeros(c, shape, value=number(value), **{"dtype": dtype} | options)


@maps("scalar_tensor")
def scalar_tensor(c, value, **options):
    return zeros(c, [], value=number(value), **options)


@maps("empty", no_values=True)
def empty(c, shape, dtype=torch.float32, device=None, requires_grad=False):
    return c("empty", shape=shape, dtype=dtype)


def like(name):
    def call(c, x, *value, dtype=None, device=None, memory_format=None, requires_grad=False, layout=None,
             fill_value=None):
        value = number(value[0]) if value else fill_value
        return c(name, converted(c, x.detach(), dtype), value=value)
    return call


for _name in ("zeros_like", "ones_like", "full_like"):
    maps(_name)(like(_name))
for _name in ("empty_like", "rand_like", "randn_like"):
    maps(_name, no_values=True)(like(_name))


@maps("arange")
def arange(c, start, end=None, step=1, dtype=None, device=None, requires_grad=False):
    if end is None:
        start, end = 0, start
    if dtype is None:
        dtype = torch.float32 if any(isinstance(v, float) for v in (start, end, step)) else torch.int64
    return c("arange", start=number(start), end=number(end), step=number(step), dtype=dtype)


@maps("linspace")
def linspace(c, start, end, steps, dtype=torch.float32, device=None):
    return c("linspace", start=number(start), end=number(end), steps=steps, dtype=dtype)


@maps("eye")
def eye(c, n, m=None, dtype=torch.float32, device=None, requires_grad=False):
    return c("eye", n=n, m=m, dtype=dtype)


maps("fill")(lambda c, x, value: c("fill_", c("clone", x), value=number_of(value)))
maps("zero_")(lambda c, x: c("zero_", c("clone", x)))


# --- Views and copies ------------------------------------------------------------------------------
maps("reshape", "view")(lambda c, x, shape: c("reshape", x, shape=shape))
maps("reshape_as", "view_as")(lambda c, x, other: c("reshape", x, shape=other.shape))
maps("expand", "broadcast_to")(lambda c, x, shape: c("expand", x, shape=shape))
maps("expand_as")(lambda c, x, other: c("expand", x, shape=other.shape))
maps("unflatten")(lambda c, x, dim, sizes: c("unflatten", x, dim=dim, shape=sizes))
maps("flatten")(lambda c, x, start_dim=0, end_dim=-1: c("flatten", x, start=start_dim, end=end_dim))
maps("ravel")(lambda c, x: c("flatten", x, start=0, end=-1))
maps("transpose")(lambda c, x, dim0, dim1: c("transpose", x, dim0=dim0, dim1=dim1))
maps("t")(lambda c, x: c("t", x))
maps("permute")(lambda c, x, dims: c("permute", x, dims=dims))
maps("unsqueeze")(lambda c, x, dim: c("unsqueeze", x, dim=dim))
maps("narrow")(lambda c, x, dim, start, length: c("narrow", x, dim=dim, start=number_of(start), length=length))
maps("select")(lambda c, x, dim, index: c("select", x, dim=dim, index=index))


@maps("squeeze", "squeeze/multiple")
def squeeze(c, x, dim=None):
    if dim is None:
        return c("squeeze", x)
    y = x
    for d in sorted((in_range(d, x.dim()) for d in dims_of(dim)), reverse=True):
        y = c("squeeze", y, dim=d)
    return y


@maps("slice")
def slice_(c, x, dim=0, start=None, end=None, step=1):
    return c("slice", x, dim=dim, start=start or 0, end=2**62 if end is None else end, step=step)


def is_mask(index):
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


@maps("__getitem__")
def getitem(c, x, index):
    if is_mask(index):
        return c("at_mask", x, index)
    index = list(index) if isinstance(index, tuple) else [index]
    taken = sum(i is not None and i is not Ellipsis for i in index)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index[at:at + 1] = [slice(None)] * (x.dim() - taken)
    only(sum(isinstance(i, (list, torch.Tensor)) for i in index) <= 1, "several index tensors in x[...]")
    y, dim = x, 0
    for i in index:
        if i is None:
            y, dim = c("unsqueeze", y, dim=dim), dim + 1
        elif isinstance(i, slice):
            y, dim = slice_(c, y, dim, i.start, i.stop, i.step or 1), dim + 1
        elif isinstance(i, (list, torch.Tensor)):
            only(not is_mask(i), "a mask beside other indices in x[...]")
            i = torch.as_tensor(i)
            only(i.dim() == 1, "an index tensor in x[...] that is not 1-D")
            only(not (i < 0).any(), "negative numbers in an index tensor")
            y, dim = c("index_select", y, i, dim=dim), dim + 1
        else:
            only(isinstance(i, int) and not isinstance(i, bool), f"x[{type(i).__name__}]")
            y = c("select", y, dim=dim, index=i)
    return c("clone", y) if y is x else y


@maps("split")
def split(c, x, size, dim=0):
    return c("split", x, size=size, dim=dim, results=len(x.split(size, dim)))


@maps("split/list_args", "split_with_sizes")
def split_with_sizes(c, x, sizes, dim=0):
    return c("split", x, sizes=sizes, dim=dim, results=len(sizes))


@maps("chunk")
def chunk(c, x, chunks, dim=0):
    return c("chunk", x, count=chunks, dim=dim, results=len(x.chunk(chunks, dim)))


maps("contiguous")(lambda c, x, memory_format=None: c("contiguous", x))
maps("clone")(lambda c, x, memory_format=None: c("clone", x))
for _name, _dtype in (("bfloat16", torch.bfloat16), ("float", torch.float32), ("double", torch.float64),
                      ("long", torch.int64), ("int", torch.int32), ("byte", torch.uint8), ("bool", torch.bool)):
    maps(_name)(lambda c, x, memory_format=None, dtype=_dtype: c("to", x, dtype=dtype))


@maps("to")
def to(c, x, *args, memory_format=None):
    dtype = next((a.dtype if isinstance(a, torch.Tensor) else a for a in args
                  if isinstance(a, (torch.Tensor, torch.dtype))), x.dtype)
    return c("to", x, dtype=dtype)


maps("cat")(lambda c, parts, dim=0: c("cat", *parts, dim=dim))
maps("stack")(lambda c, parts, dim=0: c("stack", *parts, dim=dim))
maps("repeat")(lambda c, x, counts: c("repeat", x, counts=counts))
maps("flip")(lambda c, x, dims: c("flip", x, dims=dims))
maps("tril")(lambda c, x, diagonal=0: c("tril", x, diagonal=diagonal))
maps("triu")(lambda c, x, diagonal=0: c("triu", x, diagonal=diagonal))


@maps("roll")
def roll(c, x, shifts, dims=None):
    if dims is None:
        return c("roll", x, shift=shifts)
    y = x
    for shift, dim in zip(dims_of(shifts), dims_of(dims), strict=True):
        y = c("roll", y, shift=shift, dim=dim)
    return y


@maps("nn.functional.pad/constant", "nn.functional.pad/reflect", "nn.functional.pad/replicate",
      "nn.functional.pad/circular", "nn.functional.pad/replicate_negative")
def pad(c, x, pads, mode="constant", value=None):
    if mode == "constant":
        return c("pad", x, pads=pads, value=number(value or 0))
    return c("pad", x, pads=pads, mode=mode)


# --- Reductions, sorting, counting -----------------------------------------------------------------
def reduction(name):
    def call(c, x, dim=None, keepdim=False, dtype=None):
        return converted(c, c(name, converted(c, x, dtype), dims=dims_of(dim), keepdim=keepdim), dtype)
    return call


def scan(name):
    return lambda c, x, dim, dtype=None: converted(c, c(name, converted(c, x, dtype), dim=dim), dtype)


for _name, _call in (("sum", "sum"), ("mean", "mean"), ("prod", "prod"), ("amax", "max"), ("amin", "min"),
                     ("all", "all"), ("any", "any"), ("max/reduction_no_dim", "max"), ("min/reduction_no_dim", "min"),
                     ("logsumexp", "logsumexp")):
    maps(_name)(reduction(_call))
for _name, _call in (("max", "max_of_dim"), ("min", "min_of_dim")):
    maps(_name + "/reduction_with_dim")(lambda c, x, dim, keepdim=False, call=_call:
                                        c(call, x, dim=dim, keepdim=keepdim, results=2))
for _name in ("argmax", "argmin"):
    maps(_name)(lambda c, x, dim=None, keepdim=False, call=_name: c(call, x, dim=dim, keepdim=keepdim))


def deviation(name):
    def call(c, x, dim=None, unbiased=None, keepdim=False, correction=1):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None:
            correction = int(unbiased)
        correction = 1 if correction is None else number(correction)
        return c(name, x, dims=dims_of(dim), correction=correction, keepdim=keepdim)
    return call


maps("var", "var/unbiased")(deviation("var"))
maps("std", "std/unbiased")(deviation("std"))


@maps("norm", "norm/fro", "norm/inf", "linalg.vector_norm")
def norm(c, x, ord=2, dim=None, keepdim=False, dtype=None, p=None):
    ord = ord if p is None else p
    only(ord in (2, "fro", None), "another norm than the Euclidean")
    return c("norm", converted(c, x, dtype), dims=dims_of(dim), keepdim=keepdim)


@maps("median")
def median(c, x, dim=None, keepdim=False):
    if dim is None:
        return c("median", x)
    return c("median", x, dim=dim, keepdim=keepdim, with_indices=True, results=2)


maps("cumsum")(scan("cumsum"))
maps("cumprod")(scan("cumprod"))
for _name in ("softmax", "log_softmax"):
    maps(_name, _name + "/with_dtype")(lambda c, x, dim, dtype=None, call=_name:
                                       c(call, converted(c, x, dtype), dim=dim))


@maps("sort")
def sort(c, x, dim=-1, descending=False, stable=False):
    return c("sort", x, dim=dim, descending=descending, results=2)


maps("argsort")(lambda c, x, dim=-1, descending=False, stable=False: c("argsort", x, dim=dim, descending=descending))
maps("msort")(lambda c, x: c("sort", x, dim=0, descending=False, results=2)[0])


@maps("topk")
def topk(c, x, k, dim=-1, largest=True, sorted=True):
    return c("topk", x, k=k, dim=dim, largest=largest, with_indices=True, results=2)


@maps("unique")
def unique(c, x, sorted=True, return_inverse=False, return_counts=False, dim=None):
    only(dim is None, "unique along a dimension")
    values, inverse, counts = c("unique", x, results=3)
    return [values] + [inverse] * return_inverse + [counts] * return_counts


@maps("searchsorted")
def searchsorted(c, sequence, values, out_int32=False, right=False, side="left", sorter=None):
    values = scalar(c, values, sequence)
    if sorter is not None:
        sequence = c("gather", sequence, sorter, dim=-1)
    found = c("searchsorted", sequence, values, right=right or side == "right")
    return c("to", found, dtype=torch.int32) if out_int32 else found


@maps("bincount")
def bincount(c, x, weights=None, minlength=0):
    return c("bincount", x, weights, minlength=minlength)


@maps("nonzero", "argwhere")
def nonzero(c, x, as_tuple=False):
    if not as_tuple:
        return c("nonzero", x)
    found = c("nonzero", x if x.dim() else c("unsqueeze", x, dim=0))
    return [c("select", found, dim=1, index=i) for i in range(max(x.dim(), 1))]


# --- Indexing --------------------------------------------------------------------------------------
maps("index_select")(lambda c, x, dim, index: c("index_select", x, index, dim=dim))
maps("gather")(lambda c, x, dim, index, sparse_grad=False: c("gather", x, index, dim=dim))
maps("scatter_add")(lambda c, x, dim, index, source: c("scatter_add", x, index, source, dim=dim))
maps("nn.functional.one_hot")(lambda c, x, num_classes=-1: c("one_hot", x, classes=num_classes))


@maps("index_add")
def index_add(c, x, dim, index, source, alpha=1):
    return c("index_add", x, index, multiplied(c, source, alpha), dim=dim)


@maps("scatter")
def scatter(c, x, dim, index, src=None, reduce=None, value=None):
    only(reduce is None, "scatter with reduce")
    if isinstance(src, torch.Tensor):
        return c("scatter", x, index, src, dim=dim)
    return c("scatter_number", x, index, dim=dim, value=number(src if value is None else value))


@maps("nn.functional.embedding")
def embedding(c, weight, index, padding_idx=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, sparse=False):
    only(max_norm is None, "max_norm of an embedding")
    only(not scale_grad_by_freq, "scale_grad_by_freq of an embedding")
    return c("embedding", index, weight, padding_idx=padding_idx)


# --- Products --------------------------------------------------------------------------------------
maps("matmul", "mm", "bmm", "mv")(lambda c, x, y: c("matmul", x, y))
maps("__rmatmul__")(lambda c, x, y: c("matmul", y, x))
maps("dot")(lambda c, x, y: c("dot", x, y))
maps("nn.functional.linear")(lambda c, x, w, bias=None: c("linear", x, w, bias))


@maps("nn.functional.scaled_dot_product_attention")
def attention(c, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    only(not enable_gqa, "enable_gqa")
    c.case["amplify"] = 8  # the softmax's inputs are sums of E products, and its errors grow with them
    if dropout_p:
        c.case["kind"] = "no values"
    return c("scaled_dot_product_attention", q, k, v, attn_mask, causal=is_causal, scale=scale, dropout_p=dropout_p)


# --- Images and sequences --------------------------------------------------------------------------
def pair(value, count=2):
    """PyTorch's one or several numbers as `count`."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def padding_of(padding, kernel, dilation):
    if padding == "valid":
        return [0] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation)]
        only(all(t % 2 == 0 for t in total), "padding='same' that is not the same on both sides")
        return [t // 2 for t in total]
    return pair(padding, len(kernel))


@maps("nn.functional.conv1d")
def conv1d(c, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    dilation = pair(dilation, 1)
    return c("conv1d", x, w, bias, stride=pair(stride, 1)[0], padding=padding_of(padding, w.shape[2:], dilation)[0],
             dilation=dilation[0], groups=groups)


@maps("nn.functional.conv2d")
def conv2d(c, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    dilation = pair(dilation)
    return c("conv2d", x, w, bias, stride=pair(stride), padding=padding_of(padding, w.shape[2:], dilation),
             dilation=dilation, groups=groups)


@maps("nn.functional.conv_transpose2d")
def conv_transpose2d(c, x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return c("conv_transpose2d", x, w, bias, stride=pair(stride), padding=pair(padding),
             output_padding=pair(output_padding), dilation=pair(dilation), groups=groups)


@maps("nn.functional.max_pool2d")
def max_pool2d(c, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    only(not return_indices, "the indices of a pooling")
    return c("max_pool2d", x, kernel=pair(kernel_size), stride=pair(stride or kernel_size),
             padding=pair(padding), dilation=pair(dilation), ceil_mode=ceil_mode)


@maps("nn.functional.avg_pool2d")
def avg_pool2d(c, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
               divisor_override=None):
    return c("avg_pool2d", x, kernel=pair(kernel_size), stride=pair(stride or kernel_size),
             padding=pair(padding), ceil_mode=ceil_mode, count_include_pad=count_include_pad, divisor=divisor_override)


def adaptive(name):
    def call(c, x, output_size, return_indices=False):
        only(not return_indices, "the indices of a pooling")
        sizes = [output_size] * 2 if output_size is None else pair(output_size)
        return c(name, x, size=[have if size is None else size for size, have in zip(sizes, x.shape[-2:])])
    return call


maps("nn.functional.adaptive_avg_pool2d")(adaptive("adaptive_avg_pool2d"))
maps("nn.functional.adaptive_max_pool2d")(adaptive("adaptive_max_pool2d"))


@maps("nn.functional.interpolate/nearest", "nn.functional.interpolate/linear", "nn.functional.interpolate/bilinear")
def interpolate(c, x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None,
                antialias=False):
    only(not antialias, "antialias")
    sides = x.shape[2:]
    if mode != "nearest":
        c.case["amplify"] = max(sides)  # a weight is what a position, up to that, has after the point
    if scale_factor is not None:
        scale_factor = [float(s) for s in (scale_factor if isinstance(scale_factor, (list, tuple))
                                           else [scale_factor] * len(sides))]
        if recompute_scale_factor:
            size, scale_factor = [math.floor(n * s) for n, s in zip(sides, scale_factor)], None
    return c("interpolate", x, size=None if size is None else dims_of(size), scale_factor=scale_factor, mode=mode,
             align_corners=bool(align_corners))


@maps("nn.functional.upsample_nearest")
def upsample_nearest(c, x, size=None, scale_factor=None):
    return interpolate(c, x, size, scale_factor)


@maps("nn.functional.upsample_bilinear")
def upsample_bilinear(c, x, size=None, scale_factor=None):
    return interpolate(c, x, size, scale_factor, "bilinear", True)


maps("nn.functional.pixel_shuffle")(lambda c, x, upscale_factor: c("pixel_shuffle", x, factor=upscale_factor))
maps("nn.functional.pixel_unshuffle")(lambda c, x, downscale_factor: c("pixel_unshuffle", x, factor=downscale_factor))


def dropout(name):
    def call(c, x, p=0.5, training=True, inplace=False):
        if training and 0 < p < 1:
            c.case["kind"] = "no values"
        return c(name, x, p=p, training=training)
    return call


maps("nn.functional.dropout")(dropout("dropout"))
maps("nn.functional.dropout2d")(dropout("dropout2d"))


# --- Norms -----------------------------------------------------------------------------------------
def amplified(c, eps):
    """By 1 / sqrt(var + eps), at most."""
    c.case["amplify"] = max(1.0, eps**-0.5 if eps > 0 else 1.0)


@maps("nn.functional.batch_norm", "nn.functional.batch_norm/without_cudnn")
def batch_norm(c, x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    amplified(c, eps)
    return c("batch_norm", x, weight, bias, mean, var, None, training=training, momentum=momentum, eps=eps)


@maps("nn.functional.layer_norm")
def layer_norm(c, x, shape, weight=None, bias=None, eps=1e-5):
    amplified(c, eps)
    return c("layer_norm", x, weight, bias, shape=shape, eps=eps)


@maps("nn.functional.group_norm")
def group_norm(c, x, groups, weight=None, bias=None, eps=1e-5):
    amplified(c, eps)
    return c("group_norm", x, weight, bias, groups=groups, eps=eps)


@maps("nn.functional.normalize")
def normalize(c, x, p=2.0, dim=1, eps=1e-12):
    return c("normalize", x, p=number(p), dim=dim, eps=eps)


# --- Losses ----------------------------------------------------------------------------------------
@maps("nn.functional.cross_entropy")
def cross_entropy(c, x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    return c("cross_entropy", x, target, weight, ignore_index=ignore_index, reduction=reduction,
             label_smoothing=label_smoothing)


@maps("nn.functional.nll_loss")
def nll_loss(c, x, target, weight=None, ignore_index=-100, reduction="mean"):
    return c("nll_loss", x, target, weight, ignore_index=ignore_index, reduction=reduction)


maps("nn.functional.mse_loss")(lambda c, x, t, reduction="mean": c("mse_loss", x, t, reduction=reduction))
maps("nn.functional.l1_loss")(lambda c, x, t, reduction="mean": c("l1_loss", x, t, reduction=reduction))


@maps("nn.functional.smooth_l1_loss")
def smooth_l1_loss(c, x, target, reduction="mean", beta=1.0):
    return c("smooth_l1_loss", x, target, reduction=reduction, beta=number(beta))


@maps("nn.functional.huber_loss")
def huber_loss(c, x, target, reduction="mean", delta=1.0):
    return c("huber_loss", x, target, reduction=reduction, delta=number(delta))


@maps("nn.functional.kl_div")
def kl_div(c, x, target, reduction="mean", log_target=False):
    return c("kl_div", x, target, reduction=reduction, log_target=log_target)


@maps("nn.functional.binary_cross_entropy")
def binary_cross_entropy(c, x, target, weight=None, reduction="mean"):
    return c("bce_loss", x, target, weight, reduction=reduction)


@maps("nn.functional.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(c, x, target, weight=None, reduction="mean", pos_weight=None):
    return c("bce_with_logits", x, target, pos_weight, weight, reduction=reduction)


# --- Expected later (LATER): the calls are there in Python, and not yet in C++ ---------------------
maps("clamp_min", elementwise=True)(binary("clamp_min"))
maps("clamp_max", elementwise=True)(binary("clamp_max"))
maps("fmod", elementwise=True)(binary("fmod"))
maps("einsum")(lambda c, operands, equation: c("einsum", *operands, equation=equation))
maps("unbind")(lambda c, x, dim=0: c("unbind", x, dim=dim, results=x.shape[dim]))
maps("diag")(lambda c, x, diagonal=0: c("diag", x, diagonal=diagonal))
maps("addcmul")(lambda c, x, a, b, value=1: c("addcmul", x, a, b, value=number(value)))
maps("nn.functional.prelu")(lambda c, x, weight: c("prelu", x, weight))


@maps("meshgrid/list_of_tensors", "meshgrid/variadic_tensors")
def meshgrid(c, first, *others, indexing="ij"):
    grids = list(first) if isinstance(first, (list, tuple)) else [first, *others]
    return c("meshgrid", *grids, indexing=indexing, results=len(grids))


@maps("repeat_interleave")
def repeat_interleave(c, x, repeats, dim=None):
    if isinstance(repeats, torch.Tensor):
        return c("repeat_interleave", x, repeats, dim=dim)
    return c("repeat_interleave", x, repeats=repeats, dim=dim)


@maps("nn.functional.embedding_bag")
def embedding_bag(c, weight, index, offsets=None, mode="mean", padding_idx=None):
    return c("embedding_bag", index, weight, offsets, mode=mode, padding_idx=padding_idx)
