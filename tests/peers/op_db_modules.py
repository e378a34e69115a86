"""The modules of PyTorch's database (common_modules.module_db) that weft has under the same name."""
import copy
import inspect

import torch
from torch.utils import _pytree

import op_db_layers as layers
import op_db_mapping as mapping
from op_db_case import Lacks

# The options of the constructors, by PyTorch's names, which the calls of module_calls.cc read.
CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias")
BATCH_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
OPTIONS = {
    "Linear": ("in_features", "out_features", "bias"),
    "Conv1d": CONV, "Conv2d": CONV, "ConvTranspose2d": CONV + ("output_padding",),
    "MaxPool2d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    "AvgPool2d": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "AdaptiveAvgPool2d": ("output_size",), "AdaptiveMaxPool2d": ("output_size",),
    "BatchNorm1d": BATCH_NORM, "BatchNorm2d": BATCH_NORM, "InstanceNorm2d": ("num_features", "eps", "affine"),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine"),
    "GroupNorm": ("num_groups", "num_channels", "eps", "affine"),
    "ReLU": (), "Sigmoid": (), "Tanh": (), "SiLU": (), "LeakyReLU": ("negative_slope",), "GELU": ("approximate",),
    "ELU": ("alpha",), "Softplus": ("beta", "threshold"), "Softmax": ("dim",), "LogSoftmax": ("dim",),
    "ZeroPad2d": ("padding",), "ReflectionPad2d": ("padding",),
    "Embedding": ("num_embeddings", "embedding_dim", "padding_idx"),
    "MultiheadAttention": ("embed_dim", "num_heads", "dropout", "bias", "batch_first"),
    "CrossEntropyLoss": ("ignore_index", "reduction", "label_smoothing"), "NLLLoss": ("ignore_index", "reduction"),
    "MSELoss": ("reduction",), "L1Loss": ("reduction",), "SmoothL1Loss": ("reduction", "beta"),
    "HuberLoss": ("reduction", "delta"), "BCELoss": ("reduction",), "BCEWithLogitsLoss": ("reduction",),
    "KLDivLoss": ("reduction", "log_target"),
}
# What is no option of weft's, and changes no value here; the losses' weights are buffers.
IGNORED = {"device", "dtype", "inplace", "size_average", "reduce", "weight", "pos_weight"}
PAIRS = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}


def options_of(name, constructor, module_class):
    signature = inspect.signature(module_class.__init__)
    bound = signature.bind(None, *constructor.args, **constructor.kwargs)
    bound.apply_defaults()
    options = {}
    for option, value in list(bound.arguments.items())[1:]:
        if option in OPTIONS[name]:
            options[option] = value
        elif option == "momentum" and not bound.arguments["track_running_stats"]:
            continue  # there is nothing that it moves
        elif option not in IGNORED and value != signature.parameters[option].default and value != {} and value != ():
            raise Lacks(f"{option}={value}")
    return translated(name, options)


def translated(name, options):
    if name in ("ZeroPad2d", "ReflectionPad2d"):
        return {"padding": layers.pair(options["padding"], 4)}
    if "Norm" in name and "normalized_shape" in options:
        return options | {"normalized_shape": mapping.dims_of(options["normalized_shape"])}
    count = 1 if name.endswith("1d") else 2
    for option in PAIRS & set(options):
        value = options[option]
        if isinstance(value, str):
            value = layers.padding_of(value, layers.pair(options["kernel_size"], count),
                                       layers.pair(options["dilation"], count))
        if value is not None:
            value = layers.pair(value, count)
            if None in value:
                raise Lacks(f"{option} with None")
            options[option] = value[0] if count == 1 else value
    return options


ATTENTION = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")


def arguments_of(name, module, forward):
    """(operands, options) of forward."""
    if name == "MultiheadAttention":
        bound = inspect.signature(module.forward).bind(*forward.args, **forward.kwargs)
        bound.apply_defaults()
        given = bound.arguments
        masks = [given.pop("key_padding_mask"), given.pop("attn_mask")]
        return [given.pop(k) for k in ("query", "key", "value")] + masks, given
    return list(forward.args) + list(forward.kwargs.values()), {}


def to_case(maker, info, sample, module, training, dtype):
    """The results: those of forward, then the state's."""
    name = info.name.removeprefix("nn.")
    options = options_of(name, sample.constructor_input, info.module_cls)
    operands, more = arguments_of(name, module, sample.forward_input)
    state = list(module.state_dict().items())
    return maker("module", *operands, *(value for _, value in state),
                 results=outputs_of(copy.deepcopy(module), sample.forward_input) + len(state),
                 names=[key for key, _ in state], training=training, dtype=dtype, **{"class": name},
                 **options, **more)


def outputs_of(module, forward):
    """How many tensors forward gives."""
    return sum(isinstance(y, torch.Tensor) for y in _pytree.tree_leaves(module(*forward.args, **forward.kwargs)))


def samples_of(info, kind):
    """(training, sample, module) triples."""
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        for sample in info.module_inputs_func(info, device="cpu", dtype=kind, requires_grad=True, training=training):
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            yield training, sample, module.to(kind).train(training)
