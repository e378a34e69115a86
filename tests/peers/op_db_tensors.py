"""Creation, views, reductions, sorting, indexing and products of PyTorch's database, as calls of weft."""
import torch

from op_db_mapping import (converted, dims_of, in_range, maps, maps_in_place, multiplied, number, number_of, only,
                           scalar)


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


# Numbers for mean, std and shape, or tensors of them, as PyTorch's.
@maps("normal", "normal/number_mean", no_values=True)
def normal(c, mean, std, shape=None, dtype=None, device=None, layout=None):
    if shape is not None:
        return c("normal", mean=number(mean), std=number(std), shape=shape, dtype=dtype or torch.get_default_dtype())
    tensors = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
    numbers = {name: number(x) for name, x in (("mean", mean), ("std", std)) if not isinstance(x, torch.Tensor)}
    return c("normal", *tensors, **numbers)


maps("normal/in_place", no_values=True)(lambda c, x, mean, std: c("normal_", c("clone", x), mean=number(mean),
                                                                  std=number(std)))


@maps("multinomial", no_values=True)
def multinomial(c, x, num_samples, replacement=False):
    return c("multinomial", x, num_samples=num_samples, replacement=replacement)


maps("fill")(lambda c, x, value: c("fill_", c("clone", x), value=number_of(value)))
maps("zero_")(lambda c, x: c("zero_", c("clone", x)))


# --- Views and copies ------------------------------------------------------------------------------
for _name in ("reshape", "view"):
    maps(_name)(lambda c, x, shape, call=_name: c(call, x, shape=shape))
    maps(_name + "_as")(lambda c, x, other, call=_name: c(call, x, shape=other.shape))
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


maps("unbind")(lambda c, x, dim=0: c("unbind", x, dim=dim, results=x.shape[dim]))
maps("diag")(lambda c, x, diagonal=0: c("diag", x, diagonal=diagonal))
maps("diagonal")(lambda c, x, offset=0, dim1=0, dim2=1: c("diagonal", x, offset=offset, dim1=dim1, dim2=dim2))
maps("unfold")(lambda c, x, dimension, size, step: c("unfold", x, dim=dimension, size=size, step=step))


@maps("meshgrid/list_of_tensors", "meshgrid/variadic_tensors")
def meshgrid(c, first, *others, indexing="ij"):
    grids = list(first) if isinstance(first, (list, tuple)) else [first, *others]
    return c("meshgrid", *grids, indexing=indexing, results=len(grids))


@maps("repeat_interleave")
def repeat_interleave(c, x, repeats, dim=None, output_size=None):
    if isinstance(repeats, torch.Tensor):
        return c("repeat_interleave", x, repeats, dim=dim)
    return c("repeat_interleave", x, repeats=repeats, dim=dim)


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


maps("constant_pad_nd")(lambda c, x, pads, value=0: pad(c, x, pads, value=value))


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


def deviation_and_mean(name):
    def call(c, x, dim=None, unbiased=None, keepdim=False, correction=1):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        correction = int(unbiased) if unbiased is not None else 1 if correction is None else number(correction)
        return c(name, x, dims=dims_of(dim), correction=correction, keepdim=keepdim, results=2)
    return call


for _name in ("std_mean", "var_mean"):
    maps(_name, _name + "/unbiased")(deviation_and_mean(_name))


@maps("norm", "norm/fro", "norm/inf", "linalg.vector_norm")
def norm(c, x, ord=2, dim=None, keepdim=False, dtype=None, p=None):
    ord = ord if p is None else p
    if ord in (2, "fro", None):
        return c("norm", converted(c, x, dtype), dims=dims_of(dim), keepdim=keepdim)
    return c("p_norm", converted(c, x, dtype), p=number(ord), dims=dims_of(dim), keepdim=keepdim)


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
    values, inverse, counts = c("unique", x, dim=dim, results=3)
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


def source_of(c, x, index, src, value):
    """What scatter adds, a number as a tensor."""
    if isinstance(src, torch.Tensor):
        return src
    return c("full", shape=index.shape, dtype=x.dtype, value=number(src if value is None else value))


@maps("scatter")
def scatter(c, x, dim, index, src=None, reduce=None, value=None):
    only(reduce in (None, "add"), "scatter with reduce")
    if reduce:
        return c("scatter_add", x, index, source_of(c, x, index, src, value), dim=dim)
    if isinstance(src, torch.Tensor):
        return c("scatter", x, index, src, dim=dim)
    return c("scatter_number", x, index, dim=dim, value=number(src if value is None else value))


@maps_in_place("scatter")
def scatter_(c, x, dim, index, src=None, reduce=None, value=None):
    only(reduce in (None, "add"), "scatter with reduce")
    if reduce:
        return c("scatter_add_", x, index, source_of(c, x, index, src, value), dim=dim)
    if isinstance(src, torch.Tensor):
        return c("scatter_", x, index, src, dim=dim)
    return c("scatter_", x, index, dim=dim, value=number(src if value is None else value))


@maps("nn.functional.embedding")
def embedding(c, weight, index, padding_idx=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, sparse=False):
    only(max_norm is None, "max_norm of an embedding")
    only(not scale_grad_by_freq, "scale_grad_by_freq of an embedding")
    return c("embedding", index, weight, padding_idx=padding_idx)


@maps("nn.functional.embedding_bag")
def embedding_bag(c, weight, index, offsets=None, mode="mean", padding_idx=None, per_sample_weights=None,
                  max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False, include_last_offset=False):
    only(max_norm is None, "max_norm of an embedding")
    only(not scale_grad_by_freq, "scale_grad_by_freq of an embedding")
    return c("embedding_bag", index, weight, offsets, per_sample_weights, mode=mode, padding_idx=padding_idx,
             include_last_offset=include_last_offset)


# --- Products --------------------------------------------------------------------------------------
maps("matmul", "mm", "bmm", "mv")(lambda c, x, y: c("matmul", x, y))
maps("__rmatmul__")(lambda c, x, y: c("matmul", y, x))
maps("dot")(lambda c, x, y: c("dot", x, y))
maps("outer")(lambda c, x, y: c("outer", x, y))
maps("einsum")(lambda c, operands, equation: c("einsum", *operands, equation=equation))
maps("nn.functional.linear")(lambda c, x, w, bias=None: c("linear", x, w, bias))


@maps("nn.functional.scaled_dot_product_attention")
def attention(c, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    only(not enable_gqa, "enable_gqa")
    c.case["amplify"] = 8  # the softmax's inputs are sums of E products, and its errors grow with them
    if dropout_p:
        c.case["kind"] = "no values"
    return c("scaled_dot_product_attention", q, k, v, attn_mask, causal=is_causal, scale=scale, dropout_p=dropout_p)
