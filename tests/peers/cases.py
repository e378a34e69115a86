"""Random cases, family by family: each is a function of a Builder (builder.py)."""
import math
import random

import torch

import reference
from builder import Builder, FLOATING, INTEGERS, MOST, Refused
from reference import DTYPES

FAMILIES = {}


def family(function):
    FAMILIES[function.__name__] = function
    return function


def make(name, seed, index):
    """Case `index` of a family: the same for the same three, whatever else was made."""
    b = Builder(random.Random(f"{name} {seed} {index}"))
    try:
        FAMILIES[name](b)
    except Refused:
        pass
    return b


# --- Element-wise ----------------------------------------------------------------------------------
SCALARS = (0, 1, -1, 2, 3, 0.5, -0.5, 2.5, 1e-3, 1e25, -7, 100, 256, 3e9, math.inf, -math.inf, math.nan)


def any_dtype(b):
    return b.one_of(FLOATING * 2 + INTEGERS + ("bool",))


def large_or_small(b, **options):
    """Now and then more than one thread takes."""
    return [b.one_of((70001, 131072, 40000))] if b.chance(0.01) else b.shape(**options)


@family
def unary(b):
    b.case["kind"] = "elementwise"
    dtype = any_dtype(b)
    x = b.input(large_or_small(b), dtype, requires_grad=dtype in FLOATING and b.chance(0.7),
                mood=b.one_of((None, None, "special", "large", "wide")))
    name = b.one_of(sorted(reference.UNARY) + ["leaky_relu", "elu", "softplus", "smooth_l1", "logical_not", "clamp", "clamp"])
    options = {"leaky_relu": {"slope": b.one_of((0, 0.01, 0.2, 1.0, 2.0))}, "smooth_l1": {"beta": b.one_of((0, 0.5, 1, 3))},
               "elu": {"alpha": b.one_of((1, 1.0, 0.5, 2.5))},
               "softplus": {"beta": b.one_of((1, 0.5, 3)), "threshold": b.one_of((20, 20, 2))},
               "clamp": {"low": b.one_of(SCALARS), "high": b.one_of(SCALARS)}}.get(name, {})
    # Not drawn: infinite bounds, which keep an integer tensor's dtype in weft, but not in PyTorch.
    if name == "clamp" and dtype not in FLOATING:
        options = {k: v if abs(v) < 2**62 else 3 for k, v in options.items()}  # NaN, too
    if dtype == "bool" and name == "clamp":
        name, options = "logical_not", {}  # i64 in PyTorch
    if name == "smooth_l1" and dtype not in FLOATING and not options["beta"]:
        options["beta"] = 1  # PyTorch knows smooth_l1 of integers for 0 alone
    b.backward(b.step(name, [x], **options))


@family
def scalar(b):
    """A tensor and a number."""
    b.case["kind"] = "elementwise"
    dtype = any_dtype(b)
    name = b.one_of(sorted(reference.BINARY) * 2 + ["rsub", "rdiv", "maximum", "minimum"] + sorted(reference.COMPARE))
    grad = dtype in FLOATING and b.chance(0.7) and name not in ("maximum", "minimum")
    x = b.input(b.shape(), dtype, requires_grad=grad)
    value = b.one_of(SCALARS)
    # To compare with or divide by, PyTorch converts the number to the tensor's dtype: 3 (u8) <= -1 is
    # true there.
    lowest, highest = {"u8": (0, 255), "i32": (-2**31, 2**31 - 1)}.get(dtype, (-math.inf, math.inf))
    converts = tuple(reference.COMPARE) + ("maximum", "minimum", "remainder", "floor_divide")
    while name in converts and not lowest <= value <= highest and value == value:
        value = b.one_of(SCALARS)
    if name == "pow":
        # In f32 the exponent 3e9 is even, and so is 3e9 - 1: the gradient's sign is anybody's guess.
        value = 3 if value == 3e9 else value
    b.backward(b.step(name, [x], value=value))


def stretched(b, shape):
    """A shape that broadcasts with `shape`."""
    shape = [1 if b.chance(0.3) else s for s in shape]
    return shape[b.rng.randint(0, len(shape)):] if b.chance(0.4) else shape


@family
def binary(b):
    b.case["kind"] = "elementwise"
    shape = large_or_small(b)
    first = any_dtype(b)
    second = first if b.chance(0.6) else any_dtype(b)
    shapes = [shape, shape] if b.chance(0.4) else [stretched(b, shape), stretched(b, shape)]
    if b.chance(0.02):
        shapes[1] = b.shape()  # most do not fit
    name = b.one_of(sorted(reference.BINARY) * 3 + ["maximum", "minimum"] * 3 + sorted(reference.COMPARE) +
                    sorted(reference.LOGICAL) + ["where"] * 2)
    grad = name in reference.BINARY or name in ("maximum", "minimum", "where")
    operands = [b.input(s, d, requires_grad=grad and d in FLOATING and b.chance(0.7))
                for s, d in zip(shapes, (first, second))]
    if name == "where":
        operands.insert(0, b.input(stretched(b, shape), "bool"))
    elif b.chance(0.05):
        operands[1] = operands[0]
    y = b.step(name, operands)
    b.case["broadcast"] = any(b.tensors[i].shape != b.tensors[y].shape for i in operands) or operands[0] == operands[1]
    b.backward(y)


@family
def arithmetic(b):
    """fmod, addcmul, addcdiv and bounds: of three tensors, or with numbers."""
    name = b.one_of(("fmod", "fmod", "addcmul", "addcdiv", "clamp_min", "clamp_max"))
    three = name.startswith("addc")
    b.case["kind"] = "general" if three else "elementwise"
    shape = b.shape(1)
    # Sums of products of what is very large or small are a matter of the order. PyTorch's fmod of
    # f64 is NaN for some numbers above 1e300.
    mood = "normal" if three else b.one_of((None, "normal", "integers"))
    if name == "fmod" and mood is None:
        mood = "wide"
    dtypes = [b.floating() if three else any_dtype(b)] * 3
    count = 3 if three else b.one_of((1, 2)) if name == "fmod" else 1
    grad = three or name == "fmod"
    operands = [b.input([1 if b.chance(0.3) else s for s in shape] if count > 1 else shape, d, mood=mood,
                        requires_grad=grad and d in FLOATING and b.chance(0.7)) for d in dtypes[:count]]
    value = b.one_of((1, 2, -3, 5) if dtypes[0] not in FLOATING else (1, 2, -3, 0.5, 2.5))
    if dtypes[0] == "u8":
        value = abs(value)
    y = b.step(name, operands, **({} if name == "fmod" and count == 2 else {"value": value}))
    b.case["broadcast"] = count > 1
    b.backward(y)


def held(x, dtype):
    """Whether dtype has all values of x, once their fractions are cut off."""
    if not x.dtype.is_floating_point or dtype in FLOATING or dtype == "bool":
        return True
    info, v = torch.iinfo(DTYPES[dtype]), x.double()
    return bool(((v > float(info.min) - 1) & (v < float(info.max) + 1)).all())


@family
def conversion(b):
    b.case["kind"] = "exact"
    x = b.input(large_or_small(b), any_dtype(b), mood=b.one_of((None, "special", "wide", "large")))
    b.case["inputs"][x]["requires_grad"] = False
    for _ in range(b.rng.randint(1, 2)):
        dtype = b.one_of(sorted(DTYPES))
        # What an integer dtype does not hold is up to the processor in PyTorch.
        x = b.step("to", [x], dtype=dtype if held(b.tensors[x], dtype) else "f64")


@family
def creation(b):
    b.case["kind"] = "exact"
    dtype = b.one_of(sorted(DTYPES))
    what = b.one_of(("arange", "arange", "eye", "full", "like"))
    if what == "arange":
        bounds = (0, 1, -3, 10, 10.5, 0.5, 100, -7.25, 33, 1e6)
        start = b.one_of(bounds)
        # An integer arange with a step that truncates to 0 ends PyTorch's process.
        step = b.one_of((1, 1, 2, 3, -1, -2, 7) + ((0.5, 0.1, 0.3) if dtype in FLOATING else ()))
        end = b.one_of(bounds)
        if dtype in ("i32", "u8", "bool"):
            # weft truncates them to the dtype; PyTorch does so only for i64.
            start, end = int(start), int(end)
        if dtype == "u8":  # weft refuses numbers that it does not hold
            start, end = (min(max(v, 0), 255) for v in (start, end))
        if abs(end - start) > 1000:
            step *= 1e5
        b.case["kind"] = "general"
        b.step("arange", [], start=start, end=end, step=step, dtype=dtype)
    elif what == "eye":
        b.step("eye", [], n=b.size(), dtype=dtype)
    elif what == "full":
        b.step("full", [], shape=b.shape(), value=b.one_of(SCALARS[:10] if dtype in FLOATING else (0, 1, 3)), dtype=dtype)
    else:
        x = b.input(b.shape(), dtype)
        b.step(b.one_of(("zeros_like", "ones_like")), [x])


@family
def einsum(b):
    """Equations of up to four operands, with diagonals, ellipses, and lengths of 1 that stretch."""
    b.case["kind"] = "general"
    letters = b.rng.sample("abcdXYZ", b.rng.randint(1, 5))
    lengths = {l: b.one_of((1, 2, 3, 4, 5)) for l in letters}
    if b.chance(0.05):
        lengths[letters[0]] = 0
    dots = [b.one_of((1, 2, 3)) for _ in range(b.rng.randint(0, 2))]
    dtype = b.one_of(("f32", "f32", "f64", "i64"))
    texts, operands = [], []
    for _ in range(b.one_of((1, 1, 2, 2, 2, 2, 3, 4))):
        mine = [b.one_of(letters) for _ in range(b.rng.randint(0, 4))]
        if b.chance(0.7):
            mine = list(dict.fromkeys(mine))  # without diagonals
        shape = [lengths[l] for l in mine]
        if len(set(mine)) == len(mine):
            shape = [1 if b.chance(0.1) else s for s in shape]
        text = "".join(mine)
        if dots and b.chance(0.7):
            taken = [1 if b.chance(0.3) else s for s in dots[b.rng.randint(0, len(dots) - 1):]]
            at = b.rng.randint(0, len(mine))
            text = "".join(mine[:at]) + "..." + "".join(mine[at:])
            shape = shape[:at] + taken + shape[at:]
        texts.append(text)
        operands.append(b.input(shape, dtype, requires_grad=dtype != "i64" and b.chance(0.7), mood=moderate(b) if dtype != "i64" else None))
    equation = (", " if b.chance(0.1) else ",").join(texts)
    if b.chance(0.8):
        known = sorted(set("".join(texts)) - {"."})
        result = b.rng.sample(known, b.rng.randint(0, len(known)))
        if any("..." in t for t in texts) and b.chance(0.8):
            result.insert(b.rng.randint(0, len(result)), "...")
        equation += "->" + "".join(result)
    b.backward(b.step("einsum", operands, equation=equation))


@family
def arrangement(b):
    """Views and copies in another order, and what has several results."""
    b.case["kind"] = "general"
    dtype = any_dtype(b)
    name = b.one_of(("view", "unfold", "unfold", "diagonal", "unbind", "meshgrid", "diag", "repeat_interleave",
                     "repeat_interleave", "outer", "p_norm", "p_norm", "amax", "amin", "std_mean", "var_mean", "cat"))
    if name in ("p_norm", "std_mean", "var_mean"):
        dtype = b.floating()
    grad = dtype in FLOATING and b.chance(0.7)
    shape = b.shape(*{"meshgrid": (0, 1), "outer": (1, 1), "diag": (1, 2)}.get(name, (0, 4)))
    x = b.input(shape, dtype, requires_grad=grad, mood=moderate(b))
    ndim = len(shape)
    d = b.dim(ndim)
    size = shape[d] if shape else 1
    if name == "view":
        y = b.step(name, [x], shape=regrouped(b, shape))
    elif name == "unfold":
        y = b.step(name, [x], dim=d, size=b.rng.randint(0, size), step=b.rng.randint(1, 5))
    elif name == "diagonal":
        y = b.step(name, [x], offset=b.rng.randint(-4, 4), dim1=d, dim2=b.dim(ndim))
    elif name == "unbind":
        y = b.step(name, [x], dim=d)
        if y == len(b.tensors):
            return
        y = b.rng.randrange(y, len(b.tensors))
    elif name == "meshgrid":
        others = [b.input(b.shape(0, 1), dtype, requires_grad=grad, mood=moderate(b)) for _ in range(b.rng.randint(0, 2))]
        y = b.step(name, [x] + others, indexing=b.one_of(("ij", "xy")))
    elif name == "diag":
        y = b.step(name, [x], diagonal=b.rng.randint(-4, 4))
    elif name == "outer":
        y = b.step(name, [x, b.input(b.shape(1, 1), dtype, requires_grad=grad, mood=moderate(b))])
    elif name == "repeat_interleave":
        options = {} if b.chance(0.3) else {"dim": d}
        if b.chance(0.5):
            y = b.step(name, [x], repeats=b.rng.randint(0, 3), **options)
        else:
            length = b.tensors[x].numel() if not options else size
            counts = torch.tensor([b.rng.randint(0, 3) for _ in range(length)], dtype=torch.int64)
            y = b.step(name, [x, b.input([length], "i64", memory=counts)], **options)
    elif name == "cat":
        empty = b.input([0], any_dtype(b))
        y = b.step(name, b.one_of(([x, empty], [empty, x], [empty, x, x])), dim=d)
    else:
        options = {"dims": b.some_dims(ndim), "keepdim": b.chance(0.4)}
        if name == "p_norm":
            options["p"] = b.one_of((0.5, 1, 1.5, 2, 3, 4.5, -1, -2.5, math.inf, -math.inf))
        y = b.step(name, [x], **options)
        if name in ("std_mean", "var_mean") and b.tensors[x].numel() <= max(1, b.tensors[y].numel()):
            return  # infinite gradients, of whatever sign in PyTorch
    b.backward(y)


# --- Reductions ------------------------------------------------------------------------------------
@family
def reduction(b):
    name = b.one_of(("sum", "mean", "prod", "max", "min", "var", "std", "norm", "all", "any", "argmax", "argmin"))
    b.case["kind"] = {"sum": "linear", "mean": "linear"}.get(name, "general")
    dtype = any_dtype(b)
    shape = large_or_small(b)
    grad = dtype in FLOATING and name not in ("all", "any", "argmax", "argmin") and b.chance(0.7)
    x = b.input(shape, dtype, requires_grad=grad, mood=b.one_of(("unit", "unit", "normal", "integers")) if name == "prod" else None)
    keepdim = b.chance(0.4)
    if name in ("argmax", "argmin"):
        y = b.step(name, [x], dim=b.dim(len(shape)), keepdim=keepdim)
    else:
        options = {"dims": b.some_dims(len(shape)), "keepdim": keepdim}
        if not shape and b.chance(0.3):
            options["dims"] = [b.one_of((0, -1))]
        if name in ("var", "std"):
            options["correction"] = b.one_of((0, 1, 1, 2))
        y = b.step(name, [x], **options)
        if name in ("var", "std") and b.tensors[x].numel() <= options["correction"] * max(1, b.tensors[y].numel()):
            return  # infinite gradients, of whatever sign in PyTorch
    b.backward(y)


@family
def softmax(b):
    dtype = b.floating()
    shape = large_or_small(b)
    x = b.input(shape, dtype, requires_grad=b.chance(0.7), mood=b.one_of((None, None, None, "large")))
    b.backward(b.step(b.one_of(("softmax", "log_softmax")), [x], dim=b.dim(len(shape))))


@family
def scan(b):
    name = b.one_of(("cumsum", "cumprod"))
    b.case["kind"] = "linear" if name == "cumsum" else "general"
    dtype = any_dtype(b)
    # In f64, PyTorch's own roundings would count in long sums, which it adds one after the other.
    shape = b.shape() if dtype == "f64" else large_or_small(b)
    x = b.input(shape, dtype, requires_grad=dtype in FLOATING and b.chance(0.7),
                mood=b.one_of(("unit", "unit", "normal", "integers")) if name == "cumprod" else None)
    b.backward(b.step(name, [x], dim=b.dim(len(shape))))


@family
def sorting(b):
    b.case["kind"] = "exact"
    if b.chance(0.3):
        # Distinct values: of equal ones PyTorch takes any.
        shape = b.shape(least=1)
        x = b.input(shape, "f64", requires_grad=b.chance(0.7), mood="normal", overlap=False)
        dim = b.dim(len(shape))
        k = b.rng.randint(1, shape[dim] if shape else 1)
        b.backward(b.step("topk", [x], k=k, dim=dim, largest=b.chance(0.5)))
        return
    dtype = any_dtype(b)
    shape = large_or_small(b)
    if b.chance(0.2):
        # With distinct values PyTorch's gradient, too, goes to the one that is chosen.
        grad = dtype == "f64" and b.chance(0.7)
        x = b.input(b.shape(), dtype if dtype != "bool" else "u8", requires_grad=grad, mood="normal" if grad else None,
                    overlap=not grad)
        ndim = b.tensors[x].dim()
        b.backward(b.step("median", [x], **({"dim": b.dim(ndim), "keepdim": b.chance(0.5)} if b.chance(0.7) else {})))
        return
    x = b.input(shape, dtype, requires_grad=dtype in FLOATING and b.chance(0.7),
                mood=b.one_of((None, None, "special", "integers")))
    b.backward(b.step(b.one_of(("sort", "sort", "argsort")), [x], dim=b.dim(len(shape)), descending=b.chance(0.5)))


@family
def counting(b):
    b.case["kind"] = "exact"
    name = b.one_of(("searchsorted", "bincount", "nonzero", "unique"))
    if name == "bincount":
        n = b.size()
        operands = [indices(b, [n], b.one_of((1, 5, 40)))]
        if n and b.chance(0.5):
            b.case["kind"] = "general"
            operands.append(b.input([n], b.one_of(("f32", "f64", "i32"))))
        b.step(name, operands, minlength=b.rng.randint(0, 9))
        return
    dtype = any_dtype(b)
    # Of NaNs, and of zeros with both signs, PyTorch's unique numbers any first; NaNs in a sequence confuse its search.
    plain = b.one_of(("normal", "integers"))
    if name == "searchsorted":
        shape = b.shape(least=1)
        dtype = dtype if dtype != "bool" else "u8"
        x = b.input(shape, dtype, mood=plain)
        count = b.tensors[x].numel()
        memory = torch.empty([count], dtype=b.tensors[x].dtype).copy_(torch.sort(b.tensors[x].detach().flatten()).values)
        sequence = b.input([count], dtype, memory=memory)
        b.step(name, [sequence, x], right=b.chance(0.5))
        return
    b.step(name, [b.input(large_or_small(b), dtype, mood=plain if name == "unique" else b.one_of((None, "special")))])


# --- Matrix products, convolutions -----------------------------------------------------------------
def moderate(b):
    """Sums of products: the rules for huge values are those of addition, in any order."""
    return b.one_of(("normal", "normal", "normal", "integers", "unit"))


@family
def matmul(b):
    b.case["kind"] = "linear"
    dtype = b.floating()  # weft has no integer products, and none of vectors
    m, k, n = (b.size() if b.chance(0.97) else b.one_of((64, 100, 257)) for _ in range(3))
    batch = b.shape(0, 2, most=64)
    left, right = stretched(b, batch) + [m, k], stretched(b, batch) + [k, n]
    if b.chance(0.5):
        left, right = batch + [m, k], b.one_of((batch, [])) + [k, n]
    a = b.input(left, dtype, mood=moderate(b), requires_grad=b.chance(0.7))
    c = b.input(right, dtype, mood=moderate(b), requires_grad=b.chance(0.7))
    b.backward(b.step("matmul", [a, c]))


@family
def attention(b):
    b.case["kind"] = "general"
    dtype = b.floating()
    length, keys = (b.size() if b.chance(0.9) else b.one_of((64, 100, 300)) for _ in range(2))
    features, values = (b.size(1) if b.chance(0.9) else b.one_of((40, 64, 80)) for _ in range(2))
    batch = b.shape(0, 2, least=1, most=12)
    mood = moderate(b)
    options = {"causal": b.chance(0.4)}
    if b.chance(0.3):
        options["scale"] = b.one_of((0.5, 1.0, 0.3, 0.125))  # PyTorch takes its root
    mask = None if options["causal"] else b.one_of((None, None, "bool", dtype))
    # Where each query sees one key, the gradients of scores are 0 but for roundings.
    several = keys > 1 and mask != "bool" and not (options["causal"] and length == 1)
    operands = [b.input(batch + [n, width], dtype, mood=mood, requires_grad=needed and b.chance(0.7))
                for n, width, needed in ((length, features, several), (keys, features, several), (keys, values, True))]
    if mask:
        shape = b.one_of(([length, keys], [1, keys], batch + [length, keys], batch + [length, 1]))
        operands.append(b.input(shape, mask, mood="normal", requires_grad=mask != "bool" and b.chance(0.3)))
    b.backward(b.step("scaled_dot_product_attention", operands, **options))


@family
def linear(b):
    b.case["kind"] = "linear"
    dtype = b.floating()
    k, n = (b.size() if b.chance(0.97) else b.one_of((64, 100, 257)) for _ in range(2))
    operands = [b.input(b.shape(0, 3, most=512) + [k], dtype, mood=moderate(b), requires_grad=b.chance(0.7)),
                b.input([n, k], dtype, mood=moderate(b), requires_grad=b.chance(0.7))]
    if b.chance(0.6):
        operands.append(b.input([n], dtype, mood=moderate(b), requires_grad=b.chance(0.7)))
    b.backward(b.step("linear", operands))


def pair(b, choices):
    first = b.one_of(choices)
    return [first, first if b.chance(0.6) else b.one_of(choices)]


def image(b, channels, least=1):
    n = b.one_of((0, 1, 1, 1, 2, 2, 3, 5))
    return [n, channels, max(least, b.one_of((1, 2, 3, 4, 5, 7, 8, 9, 11, 14, 16))),
            max(least, b.one_of((1, 2, 3, 4, 5, 7, 8, 9, 11, 14, 16)))]


def convolution(b, name):
    b.case["kind"] = "linear"
    dtype = b.floating()
    groups = b.one_of((1, 1, 1, 2, 3, 4))
    inputs, outputs = (groups * b.one_of((1, 1, 2, 3, 4, 5, 8)) for _ in range(2))
    kernel = pair(b, (1, 1, 2, 3, 3, 3, 4, 5))
    options = {"stride": pair(b, (1, 1, 1, 2, 3)), "padding": pair(b, (0, 0, 1, 2, 3)),
               "dilation": pair(b, (1, 1, 1, 2, 3)), "groups": groups}
    transposed = name == "conv_transpose2d"
    if not transposed and b.chance(0.15):
        del options["padding"]
        options |= {"padding_name": "same", "stride": [1, 1] if b.chance(0.95) else options["stride"]}
    if transposed and b.chance(0.4):
        options["output_padding"] = pair(b, (0, 1, 2))
    shape = image(b, inputs)
    if transposed and not shape[0]:
        # PyTorch checks nothing of an empty batch.
        options |= {"padding": [0, 0], "output_padding": [0, 0]}
    weight = [inputs, outputs // groups] if transposed else [outputs, inputs // groups]
    operands = [b.input(shape, dtype, mood=moderate(b), requires_grad=b.chance(0.7)),
                b.input(weight + kernel, dtype, mood=moderate(b), requires_grad=b.chance(0.8), overlap=False)]
    if b.chance(0.6):
        operands.append(b.input([outputs], dtype, mood=moderate(b), requires_grad=b.chance(0.8)))
    else:
        operands.append(-1)
    b.backward(b.step(name, operands, **options))


@family
def conv2d(b):
    convolution(b, "conv2d")


@family
def conv_transpose2d(b):
    convolution(b, "conv_transpose2d")


@family
def pooling(b):
    name = b.one_of(("max_pool2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d",
                     "adaptive_max_pool2d"))
    dtype = b.floating()
    x = b.input(image(b, b.one_of((0, 1, 2, 3, 4, 8, 17)) if b.chance(0.1) else b.one_of((1, 2, 3, 4, 8, 17))), dtype,
                requires_grad=b.chance(0.7), mood=b.one_of(("normal", "normal", "integers", "special")))
    if name in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
        y = b.step(name, [x], size=pair(b, (1, 1, 2, 3, 5, 7)))
    else:
        kernel = pair(b, (1, 2, 2, 3, 3, 4, 5))
        options = {"kernel": kernel, "stride": kernel if b.chance(0.5) else pair(b, (1, 2, 3)),
                   "padding": [b.rng.randint(0, k // 2) for k in kernel] if b.chance(0.5) else [0, 0],
                   "ceil_mode": b.chance(0.4)}
        if b.chance(0.03):
            options["padding"] = [k for k in kernel]  # refused by both
        if name == "max_pool2d":
            options["dilation"] = pair(b, (1, 1, 1, 2))
        else:
            options["count_include_pad"] = b.chance(0.5)
            if b.chance(0.2):
                options["divisor"] = b.one_of((1, 2, 7))
        y = b.step(name, [x], **options)
        if name == "max_pool2d" and (b.tensors[y] == -math.inf).any():
            return  # perhaps of padding alone: PyTorch gives some pixel the gradient, weft none
    b.backward(y)


@family
def windows(b):
    """unfold and fold of images."""
    b.case["kind"] = "general"
    kernel = pair(b, (1, 2, 2, 3))
    options = {"kernel": kernel, "dilation": pair(b, (1, 1, 2)), "padding": pair(b, (0, 0, 1, 2)),
               "stride": pair(b, (1, 1, 2, 3))}
    n, channels, *size = image(b, b.one_of((1, 2, 3)))
    shape = [channels, *size]
    name = b.one_of(("unfold", "fold"))
    if name == "fold":
        reach = [d * (k - 1) + 1 for d, k in zip(options["dilation"], kernel)]
        counts = [max((s + 2 * p - r) // t + 1, 0) for s, p, r, t in zip(size, options["padding"], reach,
                                                                         options["stride"])]
        shape = [channels * math.prod(kernel), math.prod(counts) + (1 if b.chance(0.02) else 0)]
        options["size"] = size
    x = b.input(shape if b.chance(0.2) else [n] + shape, b.floating(), requires_grad=b.chance(0.7), mood=moderate(b))
    b.backward(b.step(name, [x], **options))


def amplification(x, over, eps):
    """The largest 1 / sqrt(var + eps), at least 1; in f64 times the number of values, by which weft's
    variance may be off (kernels/norm.h), as its sums are in f64 for all dtypes."""
    if not x.numel():
        return 1.0
    var = x.detach().double().var(over, correction=0)
    values = x.numel() / var.numel() if x.dtype == torch.float64 else 1
    return max(1.0, (var.min().item() + eps) ** -0.5) * values


@family
def norm(b):
    """Batch, layer and group norm."""
    dtype = b.floating()
    mood = b.one_of(("normal", "normal", "normal", "unit", "integers", "large"))
    if b.chance(0.4):
        ndim = b.rng.randint(1, 3)
        shape = b.shape(ndim, ndim + 1, least=1 if b.chance(0.9) else 0)
        inner = shape[-ndim:]
        operands = [b.input(shape, dtype, mood=mood, requires_grad=b.chance(0.7))]
        if b.chance(0.7):
            operands += [b.input(inner, dtype, mood="normal", requires_grad=b.chance(0.7)) for _ in range(2)]
        eps = b.one_of((1e-5, 1e-5, 1e-3, 1e-12))
        over = tuple(range(len(shape) - ndim, len(shape)))
        b.case["amplify"] = amplification(b.tensors[0], over, eps)
        y = b.step("layer_norm", operands, shape=inner, eps=eps)
    elif b.chance(0.3):
        groups = b.one_of((1, 2, 3, 4))
        channels = groups * b.one_of((1, 2, 3, 8))
        shape = image(b, channels)[:b.one_of((2, 3, 4))]
        # PyTorch 2's backward crashes if x is bf16 and channels-last and needs no gradient.
        operands = [b.input(shape, dtype, mood=mood, requires_grad=True)]
        if b.chance(0.7):
            operands += [b.input([channels], dtype, mood="normal", requires_grad=b.chance(0.7)) for _ in range(2)]
        eps = b.one_of((1e-5, 1e-5, 1e-3, 1e-12))
        rows = b.tensors[0].reshape(shape[0] * groups, math.prod(shape[1:]) // groups)
        b.case["amplify"] = amplification(rows, (1,), eps)
        y = b.step("group_norm", operands, groups=groups, eps=eps)
    else:
        channels = b.one_of((1, 2, 3, 4, 5, 8, 16, 17))
        shape = image(b, channels)
        training = b.chance(0.7)
        operands = [b.input(shape, dtype, mood=mood, requires_grad=b.chance(0.7))]
        affine = b.chance(0.7)
        for _ in range(2):
            operands.append(b.input([channels], dtype, mood="normal", overlap=False, requires_grad=b.chance(0.7))
                            if affine else -1)
        tracked = b.chance(0.7) or not training
        for mood in ("normal", "unit"):
            operands.append(b.input([channels], dtype, memory=b.values(channels, dtype, mood)) if tracked else -1)
        operands.append(b.input([], "i64", memory=torch.tensor([b.rng.randint(0, 4)])) if tracked and b.chance(0.5)
                        else -1)
        options = {}
        if b.chance(0.2):
            options["slope"] = b.one_of((0, 0.2))
            if b.chance(0.5):
                operands.append(b.input(shape, dtype, mood="normal", requires_grad=b.chance(0.7)))
        b.case["report"] += [i for i in operands[3:6] if i >= 0]
        eps = b.one_of((1e-5, 1e-5, 1e-3))
        b.case["amplify"] = amplification(b.tensors[0], (0, 2, 3), eps) if training else \
            (b.tensors[operands[4]].double().min().item() + eps) ** -0.5
        y = b.step("batch_norm", operands, training=training, momentum=b.one_of((0.1, 0.5, 0.0, 1.0)),
                   cumulative=operands[5] >= 0 and b.chance(0.3), eps=eps, **options)
    b.backward(y)


@family
def loss(b):
    name = b.one_of(("cross_entropy", "cross_entropy", "nll_loss", "bce_with_logits", "mse_loss", "l1_loss",
                     "smooth_l1_loss"))
    dtype = b.floating()
    reduction = b.one_of(("none", "mean", "sum"))
    mood = b.one_of((None, "normal", "normal", "large"))
    if name in ("cross_entropy", "nll_loss"):
        classes = b.one_of((1, 2, 3, 5, 10, 17))
        rows = [b.size()] + (b.shape(1, 2, most=64) if b.chance(0.4) else [])
        ignored = b.one_of((-100, -1, 0))
        ignores = b.chance(0.4)
        # A row that is ignored has no gradient, in PyTorch NaN where the row itself has it.
        if ignores or ignored == 0:
            mood = b.one_of(("normal", "large"))
        x = b.input([rows[0], classes] + rows[1:], dtype, mood=mood, requires_grad=b.chance(0.8))
        target = torch.randint(0, classes, (math.prod(rows),), generator=b.generator())
        if ignores:
            target[torch.rand(len(target), generator=b.generator()) < b.one_of((0.2, 0.9))] = ignored
        if b.chance(0.02) and len(target):
            target[0] = classes
        t = b.input(rows, "i64", memory=target)
        options = {"label_smoothing": b.one_of((0, 0, 0.1, 1.0))} if name == "cross_entropy" else {}
        y = b.step(name, [x, t], ignore_index=ignored, reduction=reduction, **options)
    else:
        shape = large_or_small(b)
        operands = [b.input(shape, dtype, mood=mood, requires_grad=b.chance(0.8)),
                    b.input(shape, dtype, mood="unit" if b.chance(0.5) else mood, requires_grad=b.chance(0.4))]
        options = {}
        if name == "smooth_l1_loss":
            options["beta"] = b.one_of((0, 0.5, 1, 1, 2))
        if name == "bce_with_logits" and b.chance(0.4):
            operands.append(b.input(stretched(b, shape), dtype, mood="unit"))
        y = b.step(name, operands, reduction=reduction, **options)
    b.backward(y)


# --- Indexing, views -------------------------------------------------------------------------------
def indices(b, shape, below, p_wrong=0.02):
    low, high = (0, below) if not b.chance(p_wrong) else (-1, below + 1)
    count = math.prod(shape)
    if high <= low:
        return b.input(shape, "i64", memory=torch.zeros(count, dtype=torch.int64))
    return b.input(shape, "i64", memory=torch.randint(low, high, (count,), generator=b.generator()))


@family
def indexing(b):
    b.case["kind"] = "exact"
    name = b.one_of(("index_select", "gather", "embedding", "one_hot", "index_add_", "scatter_add_", "index_add", "scatter_add",
                     "scatter", "scatter_number", "cat", "stack", "where"))
    dtype = any_dtype(b)
    grad = dtype in FLOATING and b.chance(0.7)
    if name == "one_hot":
        classes = b.one_of((-1, 1, 3, 7, 12))
        b.step(name, [indices(b, b.shape(0, 3), max(classes, 5) if b.chance(0.1) else max(classes, 1))], classes=classes)
        return
    if name == "embedding":
        rows = b.size()
        kind = b.one_of(FLOATING)
        weight = b.input([rows, b.size()], kind, requires_grad=b.chance(0.7), overlap=True)
        options = {"padding_idx": b.rng.randint(-rows, rows - 1)} if rows and b.chance(0.4) else {}
        b.case["kind"] = "general"  # the gradient has sums
        b.backward(b.step(name, [indices(b, b.shape(0, 3), rows), weight], **options))
        return
    if name in ("cat", "stack"):
        shape = b.shape(1 if b.chance(0.95) else 0, 4, most=512)
        dim = b.dim(len(shape) + (name == "stack"))
        parts = []
        for _ in range(b.rng.randint(1, 4)):
            part = list(shape)
            if name == "cat" and part:
                part[dim] = b.size()
                if b.chance(0.002):
                    part = [0]  # PyTorch lets such pass, for the sake of old programs
            kind = dtype if b.chance(0.8) else any_dtype(b)
            parts.append(b.input(part, kind, requires_grad=kind in FLOATING and grad))
        b.backward(b.step(name, parts, dim=dim))
        return
    shape = b.shape(0 if b.chance(0.1) else 1, 4)
    dim = b.dim(len(shape))
    size = shape[dim] if shape else 1
    if name in ("index_select", "index_add_", "index_add"):
        count = b.size()
        source = list(shape)
        if source:
            source[dim] = count
        else:
            count = 1
        operands = [b.input(shape, dtype, requires_grad=grad and name != "index_add_",
                            overlap=name == "index_select")]
        operands.append(indices(b, [count], size))
        if name != "index_select":
            b.case["kind"] = "general"
            operands.append(b.input(source, dtype, requires_grad=grad and name == "index_add" and b.chance(0.7)))
    elif name in ("gather", "scatter_add_", "scatter_add", "scatter", "scatter_number"):
        source = [max(0, s - b.rng.randint(0, 2)) if b.chance(0.3) else s for s in shape]
        if source:
            source[dim] = b.size()
        operands = [b.input(shape, dtype, requires_grad=grad and name != "scatter_add_", overlap=name == "gather"),
                    indices(b, source, size)]
        if name == "scatter_number":
            b.backward(b.step(name, operands, dim=dim, value=b.one_of((0, 1, 3))))
            return
        if name == "scatter" and source:
            # Each place at most once: of equal indices PyTorch writes any.
            source[dim] = min(source[dim], size)
            order = torch.rand([size if d == dim % len(shape) else s for d, s in enumerate(source)],
                               generator=b.generator()).argsort(dim).narrow(dim, 0, source[dim])
            operands[1] = b.input(source, "i64", memory=order.contiguous().reshape(-1))
        if name != "gather":
            if name != "scatter":
                b.case["kind"] = "general"
            operands.append(b.input(source, dtype, requires_grad=grad and name != "scatter_add_" and b.chance(0.7)))
    else:
        operands = [b.input(stretched(b, shape), "bool"), b.input(shape, dtype, requires_grad=grad),
                    b.input(stretched(b, shape), dtype, requires_grad=grad)]
        b.backward(b.step("where", operands))
        return
    b.backward(b.step(name, operands, dim=dim))


def random_view(b, at):
    """A view, or a copy, of tensor `at`; the number of what came out."""
    shape = list(b.tensors[at].shape)
    ndim = len(shape)
    name = b.one_of(("reshape", "flatten", "unflatten", "transpose", "permute", "slice", "select", "narrow", "squeeze",
                     "unsqueeze", "expand", "chunk", "split", "contiguous", "clone"))
    d = b.dim(ndim)
    size = shape[d] if shape else 1
    # Whether these are views or copies is a matter of strides, which results need not share.
    if name in ("reshape", "flatten", "contiguous") and not b.tensors[at].is_contiguous():
        name = "clone"
    if name == "reshape":
        new = regrouped(b, shape)
        return b.step(name, [at], shape=new)
    if name == "flatten":
        ends = sorted((b.rng.randrange(max(ndim, 1)), b.rng.randrange(max(ndim, 1))))
        return b.step(name, [at], start=ends[0], end=ends[1] - (ndim if ndim and b.chance(0.3) else 0))
    if name == "unflatten":
        factor = b.one_of([f for f in (1, 2, 3, 4, 5) if size % f == 0])
        return b.step(name, [at], dim=d, shape=[factor, -1 if b.chance(0.3) else size // factor])
    if name == "transpose":
        return b.step(name, [at], dim0=d, dim1=b.dim(ndim))
    if name == "permute":
        order = b.rng.sample(range(ndim), ndim)
        return b.step(name, [at], dims=[o - ndim if b.chance(0.2) else o for o in order])
    if name == "slice":
        return b.step(name, [at], dim=d, start=b.rng.randint(-size - 1, size + 1), end=b.rng.randint(-size - 1, size + 2),
                      step=b.one_of((1, 1, 2, 3)))
    if name == "select":
        return b.step(name, [at], dim=d, index=b.rng.randint(-size, max(size - 1, 0)))
    if name == "narrow":
        start = b.rng.randint(0, size)
        return b.step(name, [at], dim=d, start=start, length=b.rng.randint(0, size - start))
    if name == "squeeze":
        return b.step(name, [at], **({"dim": d} if b.chance(0.5) else {}))
    if name == "unsqueeze":
        return b.step(name, [at], dim=b.rng.randint(-ndim - 1, ndim))
    if name == "expand":
        new = [b.one_of((-1, s)) if s != 1 else b.one_of((1, 2, 3, -1)) for s in shape]
        if math.prod(max(1, s) for s in shape) * 9 < MOST and b.chance(0.4):
            new.insert(0, b.one_of((1, 2, 3)))
        return b.step(name, [at], shape=new)
    if name == "chunk":
        first = b.step(name, [at], count=b.rng.randint(1, 4), dim=d)
    elif name == "split":
        if b.chance(0.5):
            cut = b.rng.randint(0, size)
            first = b.step(name, [at], sizes=[cut, size - cut], dim=d)
        else:
            first = b.step(name, [at], size=b.rng.randint(1, max(size, 1)), dim=d)
    else:
        return b.step(name, [at])
    return b.rng.randrange(first, len(b.tensors))


def regrouped(b, shape):
    """Another shape of as many elements."""
    count = math.prod(shape)
    new, rest = [], count
    for _ in range(b.rng.randint(0, 3)):
        factor = b.one_of([f for f in (1, 2, 3, 4, 5, 7, 8) if rest % f == 0])
        new.append(factor)
        rest //= factor
    new.insert(b.rng.randint(0, len(new)), -1 if count and b.chance(0.3) else rest)
    return new


def write(b, at, others):
    """An operation in place on tensor `at`."""
    y = b.tensors[at]
    floating = y.dtype.is_floating_point
    name = b.one_of(("add_", "sub_", "mul_", "div_", "copy_", "fill_", "zero_", "mul_ number", "add_ alpha",
                     "add_ number", "sub_ number", "clamp_") + (("div_ number", "square_", "sigmoid_") if floating else ()))
    if name in ("fill_", "zero_") and any(s == 0 and n > 1 for s, n in zip(y.stride(), y.shape)):
        name = "copy_"  # weft refuses all writes to an expanded tensor, PyTorch not these two
    if name == "zero_":
        return b.step(name, [at], report=False)
    if name == "fill_":
        return b.step(name, [at], report=False, value=b.one_of((0, 1, 3)))
    if name == "mul_ number":
        return b.step("mul_", [at], report=False, value=b.one_of((0, 2, -1, 0.5) if floating else (0, 2, 3)))
    if name in ("add_ number", "sub_ number", "div_ number"):
        return b.step(name.split()[0], [at], report=False, value=b.one_of((2, -1, 0.5, 3) if floating else (2, 3)))
    if name == "clamp_":
        return b.step(name, [at], report=False, low=b.one_of((0, 1)), high=b.one_of((1, 2)))
    if name in ("square_", "sigmoid_"):
        return b.step(name, [at], report=False)
    fitting = [i for i in others if fits(b.tensors[i].shape, y.shape)]
    other = b.one_of(fitting) if fitting else at
    alpha = {}
    if name == "add_ alpha" and y.dtype != torch.bool:
        alpha["alpha"] = b.one_of((2, -1, 0.5) if floating else (2, 3))
    return b.step(name.split()[0], [at, other], report=False, **alpha)


def fits(small, large):
    return len(small) <= len(large) and all(s in (1, n) for s, n in zip(reversed(small), reversed(large)))


@family
def views(b):
    """Chains of views with writes through them, without a tape."""
    b.case["kind"] = "general"
    dtype = any_dtype(b)
    b.input(b.shape(0, 4, most=512), dtype, overlap=False, mood=moderate(b))
    b.input(b.one_of(([], [1], list(b.tensors[0].shape))), dtype, overlap=False, mood=moderate(b))
    at = 0
    for _ in range(b.rng.randint(1, 6)):
        what = b.rng.random()
        if what < 0.4:
            write(b, at, range(len(b.tensors)))
        elif what < 0.45:
            at = b.step("detach", [at])
        elif what < 0.5:
            shape = b.shape(0, 3, most=64)
            _, strides, offset = b.layout(shape, overlap=False)  # some reach outside, which both refuse
            at = b.step("as_strided", [at], shape=shape, strides=strides, offset=offset)
        else:
            at = random_view(b, at)
    b.case["report"] = list(range(len(b.tensors)))


def writable(b, through_views):
    """Tensors that a write on the tape may go to: no leaf, and no view nor base of one unless wanted."""
    def base(x):
        return x._base if x._is_view() and x._base.requires_grad else None

    def may(x):
        try:
            viewed = base(x) is not None or any(base(other) is x for other in b.tensors)
            return not x.is_leaf and (through_views or not viewed)
        except RuntimeError:  # one of several views (chunk, split) of what was written to
            return False
    return [i for i, x in enumerate(b.tensors) if may(x)]


def chain(b, writes=False, through_views=False):
    """Views, element-wise operations and sums on the tape."""
    dtype = b.one_of(("f32", "f32", "f64"))
    b.input(b.shape(0, 4, most=256), dtype, requires_grad=True, mood="normal")
    b.input(b.one_of(([], [1], list(b.tensors[0].shape))), dtype, requires_grad=b.chance(0.6), mood="normal")
    at = 0
    for _ in range(b.rng.randint(1, 7)):
        what = b.rng.random()
        if what < 0.45:
            at = random_view(b, at)
        elif what < 0.6:
            at = b.step(b.one_of(("tanh", "sin", "sigmoid", "neg", "square", "exp", "relu", "clone")), [at])
        elif what < 0.75:
            fitting = [i for i in range(len(b.tensors)) if fits(b.tensors[i].shape, b.tensors[at].shape)]
            at = b.step(b.one_of(("add", "mul", "sub", "maximum")), [at, b.one_of(fitting)])
        elif what < 0.85 and b.tensors[at].dim():
            at = b.step(b.one_of(("sum", "mean")), [at], dims=b.some_dims(b.tensors[at].dim()), keepdim=b.chance(0.5))
        elif writes:
            targets = writable(b, through_views)
            if not targets:
                at = b.step(b.one_of(("clone", "neg", "sin")), [at])
                continue
            at = at if at in targets and b.chance(0.6) else b.one_of(targets)
            write(b, at, range(len(b.tensors)))
    b.case["report"] = list(range(len(b.tensors)))
    b.backward(at if b.chance(0.7) else b.rng.randrange(len(b.tensors)), p=1)


@family
def tape(b):
    chain(b)


@family
def tape_writes(b):
    """In place, to results that are no views."""
    b.case["no_views_written"] = True
    chain(b, writes=True)


@family
def view_writes(b):
    """In place to views of what is on the tape, or to what views were taken of."""
    chain(b, writes=True, through_views=True)


# --- Training --------------------------------------------------------------------------------------
NORMAL_ROOM = 2e-6  # what core/runtime/rng.h promises of normal draws


@family
def initial(b):
    """First weights and random numbers, bit for bit where they are uniform."""
    b.case["kind"] = "exact"
    what = b.one_of(("linear_init", "conv2d_init", "conv_transpose2d_init", "init", "init", "rand", "randn", "randperm"))
    seed = b.rng.randrange(2**31)
    if what == "linear_init":
        b.step(what, [], seed=seed, inputs=b.size(), outputs=b.size(), bias=b.chance(0.7))
    elif what in ("conv2d_init", "conv_transpose2d_init"):
        groups = b.one_of((1, 1, 2, 3))
        b.step(what, [], seed=seed, inputs=groups * b.rng.randint(1, 5), outputs=groups * b.rng.randint(1, 5),
               kernel=pair(b, (1, 2, 3, 5)), groups=groups, bias=b.chance(0.7))
    elif what == "init":
        name = b.one_of(("uniform_", "constant_", "zeros_", "ones_", "eye_", "dirac_", "xavier_uniform_",
                         "kaiming_uniform_", "normal_", "trunc_normal_", "xavier_normal_", "kaiming_normal_",
                         "orthogonal_"))
        if name in ("normal_", "trunc_normal_", "xavier_normal_", "kaiming_normal_", "orthogonal_"):
            # A QR decomposition enlarges the draws' errors by the matrix's condition number.
            b.case |= {"kind": "random", "room": 1e-3 if name == "orthogonal_" else NORMAL_ROOM}
        a, c = b.one_of((0, 0.5, 1)), b.one_of((1, 2))
        shape = {"eye_": b.shape(2, 2), "dirac_": b.shape(3, 5)}.get(name) or b.shape(2 if b.chance(0.9) else 0, 4)
        b.step(what, [], seed=seed, name=name, shape=shape, dtype=b.one_of(("f32", "f32", "f64")), a=a, b=c,
               groups=b.one_of((1, 1, 2)), fan_out=b.chance(0.4))
    elif what == "randperm":
        b.step(what, [], seed=seed, n=b.size())
    else:
        if what == "randn":
            b.case |= {"kind": "random", "room": NORMAL_ROOM}
        b.step(what, [], seed=seed, shape=b.shape(), dtype=b.one_of(("f32", "f32", "f64")))


SCHEDULES = (
    lambda b: {"schedule": "StepLR", "step_size": b.one_of((1, 2, 3)), "gamma": b.one_of((0.1, 0.5))},
    lambda b: {"schedule": "MultiStepLR", "milestones": sorted(b.rng.choices(range(1, 6), k=2)), "gamma": 0.3},
    lambda b: {"schedule": "CosineAnnealingLR", "T_max": b.one_of((1, 2, 4, 9)), "eta_min": b.one_of((0, 1e-3))},
    lambda b: {"schedule": "LinearLR", "start_factor": b.one_of((0.1, 0.5, 1.0)), "end_factor": b.one_of((0.0, 0.3, 1.0)),
               "total_iters": b.one_of((1, 3, 5))},
    lambda b: {"schedule": "OneCycleLR", "max_lr": b.one_of((0.1, 1.0)), "total_steps": b.one_of((3, 6, 10)),
               "pct_start": b.one_of((0.3, 0.5)), "cycle_momentum": b.chance(0.5)},
)


@family
def optimiser(b):
    kind = b.one_of(("SGD", "Adam", "AdamW", "RMSprop", "Adadelta"))
    dtype = b.one_of(("f32", "f32", "f32", "f64", "bf16"))
    shapes = [b.shape(most=600) for _ in range(b.rng.randint(1, 3))]
    steps = b.rng.randint(1, 5)
    operands = [b.input(s, dtype, mood="normal", overlap=False) for s in shapes]
    for _ in range(steps):
        operands += [b.input(s, dtype, mood=b.one_of(("normal", "normal", "normal", "integers"))) for s in shapes]
    options = {"lr": b.one_of((0.1, 0.01, 1e-3, 0.0)), "weight_decay": b.one_of((0, 0, 0.01, 0.3))}
    if kind == "SGD":
        options |= {"momentum": b.one_of((0, 0.5, 0.9)), "dampening": b.one_of((0, 0, 0.3)), "nesterov": b.chance(0.3)}
    elif kind == "RMSprop":
        options |= {"momentum": b.one_of((0, 0.5, 0.9)), "alpha": b.one_of((0.99, 0.5)), "eps": b.one_of((1e-8, 1e-3)),
                    "centered": b.chance(0.4)}
    elif kind == "Adadelta":
        # The first steps are lr times the root of eps: with the small rates they would be lost in roundings.
        options |= {"lr": b.one_of((1.0, 0.1, 0.0)), "rho": b.one_of((0.9, 0.5)), "eps": b.one_of((1e-6, 1e-3))}
    else:
        options |= {"beta1": b.one_of((0.9, 0.5)), "beta2": b.one_of((0.999, 0.9)), "eps": b.one_of((1e-8, 1e-3))}
    if b.chance(0.4):
        options |= b.one_of(SCHEDULES)(b)
    if not options.get("momentum", 1):
        options["cycle_momentum"] = False  # weft makes no buffer then, and refuses to cycle it
    if b.chance(0.3):
        options["max_norm"] = b.one_of((0.1, 1.0, 100.0))
    first = b.step("optimise", operands, kind=kind, params=len(shapes), **options)
    b.case["precise"] = [first + len(shapes)]
