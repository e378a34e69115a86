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
RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
CELL = ("input_size", "hidden_size", "bias")
BATCH_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
OPTIONS = {
    "Linear": ("in_features", "out_features", "bias"),
    "Conv1d": CONV, "Conv2d": CONV, "ConvTranspose2d": CONV + ("output_padding",),
    "MaxPool2d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "AvgPool2d": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "AdaptiveAvgPool2d": ("output_size",), "AdaptiveMaxPool2d": ("output_size",),
    "BatchNorm1d": BATCH_NORM, "BatchNorm2d": BATCH_NORM, "InstanceNorm2d": BATCH_NORM,
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine", "bias"),
    "GroupNorm": ("num_groups", "num_channels", "eps", "affine"),
    "ReLU": (), "ReLU6": (), "Hardswish": (), "PReLU": ("num_parameters",), "Sigmoid": (), "Tanh": (), "SiLU": (), "LeakyReLU": ("negative_slope",), "GELU": ("approximate",),
    "ELU": ("alpha",), "Softplus": ("beta", "threshold"), "Softmax": ("dim",), "LogSoftmax": ("dim",),
    "ZeroPad2d": ("padding",), "ReflectionPad2d": ("padding",),
    "Embedding": ("num_embeddings", "embedding_dim", "padding_idx"),
    "RNN": RECURRENT + ("nonlinearity",), "GRU": RECURRENT, "LSTM": RECURRENT + ("proj_size",),
    "RNNCell": CELL + ("nonlinearity",), "GRUCell": CELL, "LSTMCell": CELL,
    "TransformerEncoderLayer": (), "TransformerEncoder": (),
    "MultiheadAttention": ("embed_dim", "num_heads", "dropout", "bias", "batch_first"),
    "CrossEntropyLoss": ("ignore_index", "reduction", "label_smoothing"), "NLLLoss": ("ignore_index", "reduction"),
    "MSELoss": ("reduction",), "L1Loss": ("reduction",), "SmoothL1Loss": ("reduction", "beta"),
    "HuberLoss": ("reduction", "delta"), "BCELoss": ("reduction",), "BCEWithLogitsLoss": ("reduction",),
    "KLDivLoss": ("reduction", "log_target"),
}
# What is no option of weft's, and changes no value here; the losses' weights are buffers.
IGNORED = {"device", "dtype", "inplace", "size_average", "reduce", "weight", "pos_weight", "init"}
PAIRS = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}


def encoder_layer_options(layer):
    """The options of an encoder's layer, by what it consists of."""
    attention = layer.self_attn
    return {"d_model": attention.embed_dim, "nhead": attention.num_heads, "dim_feedforward": layer.linear1.out_features,
            "dropout": layer.dropout.p, "activation": layer.activation.__name__, "layer_norm_eps": layer.norm1.eps,
            "batch_first": attention.batch_first, "norm_first": layer.norm_first, "bias": layer.linear1.bias is not None}


def options_of(name, constructor, module_class, module):
    if name == "TransformerEncoderLayer":
        return encoder_layer_options(module)
    if name == "TransformerEncoder":
        return encoder_layer_options(module.layers[0]) | {"num_layers": len(module.layers)}
    if name.startswith(("RNN", "GRU", "LSTM")):  # whose constructors take anything
        return {option: getattr(module, option) for option in OPTIONS[name]}
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
    for option in sorted(PAIRS & set(options)):
        value = options[option]
        if isinstance(value, str):
            options["padding_name"] = options.pop(option)
        elif value is not None:
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
    if name.startswith("TransformerEncoder"):
        bound = inspect.signature(module.forward).bind(*forward.args, **forward.kwargs)
        bound.apply_defaults()
        given = bound.arguments
        mask = given["mask"] if "mask" in given else given["src_mask"]
        return [given["src"], given["src_key_padding_mask"], mask], {"is_causal": bool(given["is_causal"])}
    if any(isinstance(x, torch.nn.utils.rnn.PackedSequence) for x in forward.args):
        raise Lacks("a PackedSequence")
    return _pytree.tree_leaves(list(forward.args) + list(forward.kwargs.values())), {}


def to_case(maker, info, sample, module, training, dtype):
    """The results: those of forward, then the state's."""
    name = info.name.removeprefix("nn.")
    options = options_of(name, sample.constructor_input, info.module_cls, module)
    if options.pop("return_indices", False):
        name += "WithIndices"
    operands, more = arguments_of(name, module, sample.forward_input)
    state = list(module.state_dict().items())
    if name.startswith("Transformer"):
        layers.amplified(maker, 1e-5)  # by its layer norms
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
