"""The cases of differential.cc in PyTorch.

A case is what differential.cc reads, its inputs' memory being tensors under "memory" here.
"""
import contextlib
import math

import torch
from torch import nn
from torch.nn import functional as F

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i64": torch.int64,
          "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def number(value):
    """A number of a step, an int where it is one: weft's double 3.0 stands for Python's 3."""
    value = float(value)
    return int(value) if value.is_integer() and abs(value) < 2**63 else value


def pair(a, name, otherwise):
    return tuple(a.get(name, (otherwise, otherwise)))


def conv_options(a):
    return {"stride": pair(a, "stride", 1), "padding": a.get("padding_name") or pair(a, "padding", 0),
            "dilation": pair(a, "dilation", 1), "groups": a.get("groups", 1)}


def window_options(a):
    return {"kernel_size": a["kernel"], "dilation": a["dilation"], "padding": a["padding"], "stride": a["stride"]}


UNARY = {name: getattr(torch, name) for name in (
    "neg", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "log", "sin", "cos", "tanh", "sigmoid",
    "relu", "floor", "ceil", "round", "log1p", "expm1", "erf", "tan", "trunc")}
UNARY |= {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "log_sigmoid": F.logsigmoid,
          "silu": F.silu}
BINARY = {name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "pow", "remainder", "floor_divide")}
COMPARE = {name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
LOGICAL = {name: getattr(torch, name) for name in ("logical_and", "logical_or", "logical_xor")}

OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def of_names(functions, call):
    for name, function in functions.items():
        OPERATIONS[name] = lambda x, a, function=function: call(function, x, a)


of_names(UNARY, lambda f, x, a: f(x[0]))
of_names(BINARY | COMPARE, lambda f, x, a: f(x[0], x[1] if len(x) > 1 else number(a["value"])))
of_names(LOGICAL, lambda f, x, a: f(x[0], x[1]))


def extreme(function):
    # PyTorch has none with a number, and clamp(min=nan) gives x, or NaN, depending on its size.
    def call(x, a):
        if len(x) > 1:
            return function(*x)
        value = number(a["value"])
        dtype = torch.result_type(x[0], value)
        return function(x[0].to(dtype), torch.tensor(value, dtype=dtype))
    return call


def reduced_extreme(of_all, along):
    def call(x, a):
        if dims(a):
            return along(x[0], dim=dims(a), keepdim=a.get("keepdim", False))
        y = of_all(x[0])  # whose gradient goes to the NaNs, where amax gives NaN everywhere
        return y.reshape([1] * x[0].dim()) if a.get("keepdim", False) else y
    return call


@operation
def clamp(x, a):
    return torch.clamp(x[0], number(a["low"]), number(a["high"]))


# Sums over all dimensions where "dims" is empty or not given, as weft's.
def dims(a):
    return tuple(a.get("dims", ()))


@operation
def prod(x, a):
    y = x[0]
    over = sorted({d % max(y.dim(), 1) for d in dims(a)} or range(y.dim()), reverse=True)
    if not over:
        return torch.prod(y)
    for d in over:
        y = torch.prod(y, d, keepdim=a.get("keepdim", False))
    return y


def all_or_any(function):
    def call(x, a):
        over = dims(a) or None
        # For u8 PyTorch answers in u8, for numpy's sake; everywhere else in bool.
        return function(x[0], dim=over, keepdim=a.get("keepdim", False)).bool()
    return call


@operation
def batch_norm(x, a):
    x, weight, bias, mean, var, batches, addend = x + [None] * (7 - len(x))
    momentum = a["momentum"]
    if batches is not None and a["training"]:
        batches += 1
        if a.get("cumulative"):
            momentum = 1 / batches.item()
    y = F.batch_norm(x, mean, var, weight, bias, a["training"], momentum, a["eps"])
    if addend is not None:
        y = y + addend
    return y if "slope" not in a else F.relu(y) if a["slope"] == 0 else F.leaky_relu(y, a["slope"])


def first_values(layer):
    return [p.detach() for p in layer.parameters()]


@operation
def linear_init(x, a):
    torch.manual_seed(a["seed"])
    return first_values(nn.Linear(a["inputs"], a["outputs"], a["bias"]))


@operation
def conv2d_init(x, a):
    torch.manual_seed(a["seed"])
    return first_values(nn.Conv2d(a["inputs"], a["outputs"], a["kernel"], groups=a["groups"], bias=a["bias"]))


@operation
def conv_transpose2d_init(x, a):
    torch.manual_seed(a["seed"])
    return first_values(nn.ConvTranspose2d(a["inputs"], a["outputs"], a["kernel"], groups=a["groups"],
                                           bias=a["bias"]))


@operation
def init(x, a):
    torch.manual_seed(a["seed"])
    y = torch.zeros(a["shape"], dtype=DTYPES[a["dtype"]])
    name = a["name"]
    function = getattr(nn.init, name)
    if name in ("uniform_", "normal_", "trunc_normal_"):
        return function(y, a["a"], a["b"])
    if name in ("kaiming_uniform_", "kaiming_normal_"):
        return function(y, a["a"], mode="fan_out" if a.get("fan_out") else "fan_in")
    if name == "dirac_":
        return function(y, a["groups"])
    return function(y) if name in ("zeros_", "ones_", "eye_") else function(y, a["a"])


def seeded(function):
    def call(x, a):
        torch.manual_seed(a["seed"])
        return function(a)
    return call


def make_schedule(a, optimizer):
    schedulers = torch.optim.lr_scheduler
    kind = a["schedule"]
    names = {"StepLR": ("step_size", "gamma"), "MultiStepLR": ("milestones", "gamma"),
             "CosineAnnealingLR": ("T_max", "eta_min"), "LinearLR": ("start_factor", "end_factor", "total_iters"),
             "OneCycleLR": ("max_lr", "total_steps", "pct_start", "cycle_momentum")}[kind]
    return getattr(schedulers, kind)(optimizer, **{name: a[name] for name in names})


@operation
def optimise(x, a):
    params = [p.detach().clone().requires_grad_() for p in x[:a["params"]]]
    options = {name: a[name] for name in ("lr", "momentum", "dampening", "weight_decay", "nesterov", "eps", "alpha",
                                          "centered", "rho") if name in a}
    if a["kind"] in ("Adam", "AdamW"):
        options["betas"] = (a.get("beta1", 0.9), a.get("beta2", 0.999))
    optimizer = getattr(torch.optim, a["kind"])(params, **options)
    schedule = make_schedule(a, optimizer) if "schedule" in a else None
    rates = []
    for at in range(len(params), len(x), len(params)):
        for i, p in enumerate(params):
            p.grad = x[at + i].detach().clone()
        if "max_norm" in a:
            torch.nn.utils.clip_grad_norm_(params, a["max_norm"])
        optimizer.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
        if schedule:
            schedule.step()
    return [p.detach() for p in params] + [torch.tensor(rates, dtype=torch.float64)]


def operand(x, a):
    return number(a["value"]) if "value" in a else x[1]


OPERATIONS |= {
    "maximum": extreme(torch.maximum),
    "minimum": extreme(torch.minimum),
    "rsub": lambda x, a: number(a["value"]) - x[0],
    "rdiv": lambda x, a: number(a["value"]) / x[0],
    "logical_not": lambda x, a: torch.logical_not(x[0]),
    "leaky_relu": lambda x, a: F.leaky_relu(x[0], a["slope"]),
    "elu": lambda x, a: F.elu(x[0], a["alpha"]),
    "softplus": lambda x, a: F.softplus(x[0], a["beta"], a["threshold"]),
    "smooth_l1": lambda x, a: F.smooth_l1_loss(x[0], torch.zeros_like(x[0]), reduction="none", beta=a["beta"]),
    "where": lambda x, a: torch.where(*x),
    "fmod": lambda x, a: torch.fmod(x[0], x[1] if len(x) > 1 else number(a["value"])),
    "addcmul": lambda x, a: torch.addcmul(*x, value=number(a["value"])),
    "addcdiv": lambda x, a: torch.addcdiv(*x, value=number(a["value"])),
    "clamp_min": lambda x, a: torch.clamp_min(x[0], number(a["value"])),
    "clamp_max": lambda x, a: torch.clamp_max(x[0], number(a["value"])),
    "clamp_": lambda x, a: x[0].clamp_(number(a["low"]), number(a["high"])),
    "sigmoid_": lambda x, a: x[0].sigmoid_(),
    "square_": lambda x, a: x[0].square_(),
    "add_": lambda x, a: x[0].add_(operand(x, a), alpha=number(a.get("alpha", 1))),
    "sub_": lambda x, a: x[0].sub_(operand(x, a)),
    "mul_": lambda x, a: x[0].mul_(x[1] if len(x) > 1 else number(a["value"])),
    "div_": lambda x, a: x[0].div_(operand(x, a)),
    "copy_": lambda x, a: x[0].copy_(x[1]),
    "fill_": lambda x, a: x[0].fill_(number(a["value"])),
    "zero_": lambda x, a: x[0].zero_(),

    "arange": lambda x, a: torch.arange(number(a["start"]), number(a["end"]), number(a["step"]),
                                        dtype=DTYPES[a["dtype"]]),
    "eye": lambda x, a: torch.eye(a["n"], dtype=DTYPES[a["dtype"]]),
    "full": lambda x, a: torch.full(a["shape"], number(a["value"]), dtype=DTYPES[a["dtype"]]),
    "zeros_like": lambda x, a: torch.zeros_like(x[0]),
    "ones_like": lambda x, a: torch.ones_like(x[0]),

    "reshape": lambda x, a: x[0].reshape(a["shape"]),
    "flatten": lambda x, a: x[0].flatten(a["start"], a["end"]),
    "unflatten": lambda x, a: x[0].unflatten(a["dim"], a["shape"]),
    "transpose": lambda x, a: x[0].transpose(a["dim0"], a["dim1"]),
    "permute": lambda x, a: x[0].permute(a["dims"]),
    "slice": lambda x, a: torch.ops.aten.slice(x[0], a["dim"], a["start"], a["end"], a["step"]),
    "select": lambda x, a: x[0].select(a["dim"], a["index"]),
    "narrow": lambda x, a: x[0].narrow(a["dim"], a["start"], a["length"]),
    "squeeze": lambda x, a: x[0].squeeze(a["dim"]) if "dim" in a else x[0].squeeze(),
    "unsqueeze": lambda x, a: x[0].unsqueeze(a["dim"]),
    "expand": lambda x, a: x[0].expand(a["shape"]),
    "as_strided": lambda x, a: x[0].as_strided(a["shape"], a["strides"], a["offset"]),
    "chunk": lambda x, a: list(x[0].chunk(a["count"], a["dim"])),
    "split": lambda x, a: list(x[0].split(a.get("sizes", a.get("size")), a["dim"])),

    "view": lambda x, a: x[0].view(a["shape"]),
    "unfold": lambda x, a: F.unfold(x[0], **window_options(a)) if "kernel" in a else x[0].unfold(a["dim"], a["size"],
                                                                                                 a["step"]),
    "fold": lambda x, a: F.fold(x[0], a["size"], **window_options(a)),
    "diagonal": lambda x, a: x[0].diagonal(a["offset"], a["dim1"], a["dim2"]),
    "unbind": lambda x, a: list(x[0].unbind(a["dim"])),
    "meshgrid": lambda x, a: list(torch.meshgrid(*x, indexing=a["indexing"])),
    "diag": lambda x, a: torch.diag(x[0], a["diagonal"]),
    "repeat_interleave": lambda x, a: torch.repeat_interleave(x[0], x[1] if len(x) > 1 else a["repeats"], a.get("dim")),
    "outer": lambda x, a: torch.outer(*x),
    "einsum": lambda x, a: torch.einsum(a["equation"], *x),
    "p_norm": lambda x, a: torch.linalg.vector_norm(x[0], float(a["p"]), dim=dims(a) or None,
                                                    keepdim=a.get("keepdim", False)),
    "amax": lambda x, a: torch.amax(x[0], dims(a), a.get("keepdim", False)),
    "amin": lambda x, a: torch.amin(x[0], dims(a), a.get("keepdim", False)),
    "std_mean": lambda x, a: list(torch.std_mean(x[0], dim=dims(a) or None, keepdim=a.get("keepdim", False))),
    "var_mean": lambda x, a: list(torch.var_mean(x[0], dim=dims(a) or None, keepdim=a.get("keepdim", False))),

    "contiguous": lambda x, a: x[0].contiguous(),
    "clone": lambda x, a: x[0].clone(),
    "detach": lambda x, a: x[0].detach(),
    "to": lambda x, a: x[0].to(DTYPES[a["dtype"]]),
    "cat": lambda x, a: torch.cat(x, a["dim"]),
    "stack": lambda x, a: torch.stack(x, a["dim"]),

    "sum": lambda x, a: torch.sum(x[0], dim=dims(a), keepdim=a.get("keepdim", False)),
    "mean": lambda x, a: torch.mean(x[0], dim=dims(a), keepdim=a.get("keepdim", False)),
    "max": reduced_extreme(torch.max, torch.amax),
    "min": reduced_extreme(torch.min, torch.amin),
    "norm": lambda x, a: torch.linalg.vector_norm(x[0], 2, dim=dims(a) or None, keepdim=a.get("keepdim", False)),
    "var": lambda x, a: torch.var(x[0], dim=dims(a) or None, correction=a["correction"],
                                  keepdim=a.get("keepdim", False)),
    "std": lambda x, a: torch.std(x[0], dim=dims(a) or None, correction=a["correction"],
                                  keepdim=a.get("keepdim", False)),
    "all": all_or_any(torch.all),
    "any": all_or_any(torch.any),
    "argmax": lambda x, a: torch.argmax(x[0], a["dim"], a.get("keepdim", False)),
    "argmin": lambda x, a: torch.argmin(x[0], a["dim"], a.get("keepdim", False)),
    "sort": lambda x, a: list(torch.sort(x[0], stable=True, dim=a["dim"], descending=a["descending"])),
    "argsort": lambda x, a: torch.argsort(x[0], stable=True, dim=a["dim"], descending=a["descending"]),
    "topk": lambda x, a: torch.topk(x[0], a["k"], a["dim"], a["largest"]).values,
    "median": lambda x, a: torch.median(x[0], a["dim"], a["keepdim"]).values if "dim" in a else torch.median(x[0]),
    "searchsorted": lambda x, a: torch.searchsorted(x[0], x[1], right=a["right"]),
    "bincount": lambda x, a: torch.bincount(*x, minlength=a["minlength"]),
    "nonzero": lambda x, a: torch.nonzero(x[0]),
    "unique": lambda x, a: list(torch.unique(x[0], return_inverse=True, return_counts=True)),
    "cumsum": lambda x, a: torch.cumsum(x[0], a["dim"]),
    "cumprod": lambda x, a: torch.cumprod(x[0], a["dim"]),
    "softmax": lambda x, a: torch.softmax(x[0], a["dim"]),
    "log_softmax": lambda x, a: torch.log_softmax(x[0], a["dim"]),

    "index_select": lambda x, a: torch.index_select(x[0], a["dim"], x[1]),
    "gather": lambda x, a: torch.gather(x[0], a["dim"], x[1]),
    "one_hot": lambda x, a: F.one_hot(x[0], a["classes"]),
    "embedding": lambda x, a: F.embedding(x[0], x[1], a.get("padding_idx")),
    "index_add_": lambda x, a: x[0].index_add_(a["dim"], x[1], x[2]),
    "scatter_add_": lambda x, a: x[0].scatter_add_(a["dim"], x[1], x[2]),

    "index_add": lambda x, a: torch.index_add(x[0], a["dim"], x[1], x[2]),
    "scatter_add": lambda x, a: torch.scatter_add(x[0], a["dim"], x[1], x[2]),
    "scatter": lambda x, a: torch.scatter(x[0], a["dim"], x[1], x[2]),
    "scatter_number": lambda x, a: torch.scatter(x[0], a["dim"], x[1], a["value"]),

    "matmul": lambda x, a: torch.matmul(*x),
    "scaled_dot_product_attention": lambda x, a: F.scaled_dot_product_attention(
        *x, is_causal=a["causal"], scale=a.get("scale")),
    "linear": lambda x, a: F.linear(*x),
    "conv2d": lambda x, a: F.conv2d(*x, **conv_options(a)),
    "conv_transpose2d": lambda x, a: F.conv_transpose2d(*x, output_padding=pair(a, "output_padding", 0),
                                                        **conv_options(a)),
    "max_pool2d": lambda x, a: F.max_pool2d(x[0], a["kernel"], pair(a, "stride", 1), pair(a, "padding", 0),
                                            pair(a, "dilation", 1), a.get("ceil_mode", False)),
    "avg_pool2d": lambda x, a: F.avg_pool2d(x[0], a["kernel"], pair(a, "stride", 1), pair(a, "padding", 0),
                                            a.get("ceil_mode", False), a["count_include_pad"],
                                            a.get("divisor") or None),
    "adaptive_max_pool2d": lambda x, a: F.adaptive_max_pool2d(x[0], a["size"]),
    "adaptive_avg_pool2d": lambda x, a: F.adaptive_avg_pool2d(x[0], a["size"]),
    "layer_norm": lambda x, a: F.layer_norm(x[0], a["shape"], *(x[1:] + [None] * (3 - len(x))), eps=a["eps"]),
    "group_norm": lambda x, a: F.group_norm(x[0], a["groups"], *(x[1:] + [None] * (3 - len(x))), eps=a["eps"]),

    "cross_entropy": lambda x, a: F.cross_entropy(*x, ignore_index=a["ignore_index"], reduction=a["reduction"],
                                                  label_smoothing=a["label_smoothing"]),
    "nll_loss": lambda x, a: F.nll_loss(*x, ignore_index=a["ignore_index"], reduction=a["reduction"]),
    "bce_with_logits": lambda x, a: F.binary_cross_entropy_with_logits(
        x[0], x[1], reduction=a["reduction"], pos_weight=x[2] if len(x) > 2 else None),
    "mse_loss": lambda x, a: F.mse_loss(*x, reduction=a["reduction"]),
    "l1_loss": lambda x, a: F.l1_loss(*x, reduction=a["reduction"]),
    "smooth_l1_loss": lambda x, a: F.smooth_l1_loss(*x, reduction=a["reduction"], beta=a["beta"]),

    "rand": seeded(lambda a: torch.rand(a["shape"], dtype=DTYPES[a["dtype"]])),
    "randn": seeded(lambda a: torch.randn(a["shape"], dtype=DTYPES[a["dtype"]])),
    "randperm": seeded(lambda a: torch.randperm(a["n"])),
}


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def as_f64(x):
    return x.to(torch.float64, copy=True) if x.is_floating_point() else x.clone()


def magnitudes(x):
    """f64 magnitudes: what a sum of products makes of them bounds its terms."""
    return x.double().abs() if x.is_floating_point() else x.clone()


def make_input(spec, convert, dense=False):
    x = convert(spec["memory"]).as_strided(spec["shape"], spec["strides"], spec["offset"])
    if dense:
        x = x.contiguous()
    return x.requires_grad_() if spec.get("requires_grad") else x


def step(tensors, one):
    """What the step gives, as a list."""
    operands = [None if i < 0 else tensors[i] for i in one["in"]]
    results = OPERATIONS[one["op"]](operands, one)
    return results if isinstance(results, list) else [results]


def widened(one):
    """A step as it is in f64."""
    return one | {"dtype": "f64"} if one.get("dtype") in ("f32", "bf16") else one


def write_apart(tensors, one):
    """The step in place as one that makes a new tensor, known under the old one's numbers: what it
    means where there are no views."""
    target = tensors[one["in"][0]]
    written = OPERATIONS[one["op"]]([target.clone()] + [tensors[i] for i in one["in"][1:]], one)
    tensors[:] = [written if x is target else x for x in tensors]
    return [written]


def run(case, convert=torch.clone, apart=False):
    """All tensors of the case, and the gradients of the inputs that require one. `apart`: writes are."""
    exact = convert is torch.clone
    # Apart from writes, values have nothing to do with strides: the reference does without them,
    # for PyTorch is not always right (batch norm's backward in evaluation where a dimension of 1
    # makes a layout ambiguous).
    dense = not exact and not any(one["op"].endswith("_") or one["op"] == "as_strided" for one in case["steps"])
    with contextlib.nullcontext() if exact else default_dtype(torch.float64):
        tensors = [make_input(spec, convert, dense) for spec in case["inputs"]]
        leaves = [x for x in tensors if x.requires_grad]
        for one in case["steps"]:
            perform = write_apart if apart and one["op"].endswith("_") else step
            tensors += perform(tensors, one if exact else widened(one))
        if "backward" in case:
            y = tensors[case["backward"]["of"]]
            y.backward(make_input(case["backward"]["gradient"], convert, dense))
    return tensors, [x.grad for x in leaves]
