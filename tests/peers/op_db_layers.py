"""Operations of layers and losses of PyTorch's database, as calls of weft."""
import math

from op_db_mapping import dims_of, maps, number, only


# --- Images and sequences --------------------------------------------------------------------------
def pair(value, count=2):
    """PyTorch's one or several numbers as `count`."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def padding_of(padding, count):
    """The options of a call, whose padding is in numbers or a name."""
    if isinstance(padding, str):
        return {"padding_name": padding}
    padding = pair(padding, count)
    return {"padding": padding[0] if count == 1 else padding}


@maps("nn.functional.conv1d")
def conv1d(c, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return c("conv1d", x, w, bias, stride=pair(stride, 1)[0], dilation=pair(dilation, 1)[0], groups=groups,
             **padding_of(padding, 1))


@maps("nn.functional.conv2d")
def conv2d(c, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return c("conv2d", x, w, bias, stride=pair(stride), dilation=pair(dilation), groups=groups,
             **padding_of(padding, 2))


@maps("nn.functional.conv_transpose2d")
def conv_transpose2d(c, x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return c("conv_transpose2d", x, w, bias, stride=pair(stride), padding=pair(padding),
             output_padding=pair(output_padding), dilation=pair(dilation), groups=groups)


@maps("nn.functional.max_pool2d")
def max_pool2d(c, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    options = {"kernel": pair(kernel_size), "stride": pair(stride or kernel_size), "padding": pair(padding),
               "dilation": pair(dilation), "ceil_mode": ceil_mode}
    return c("max_pool2d_with_indices", x, results=2, **options) if return_indices else c("max_pool2d", x, **options)


@maps("nn.functional.max_unpool2d", "nn.functional.max_unpool2d/grad")
def max_unpool2d(c, x, indices, kernel_size, stride=None, padding=0, output_size=None):
    usual = [(n - 1) * s - 2 * p + k for n, k, s, p in zip(x.shape[-2:], pair(kernel_size), pair(stride or kernel_size),
                                                           pair(padding))]
    return c("max_unpool2d", x, indices, size=usual if output_size is None else list(output_size[-2:]))


@maps("nn.functional.unfold")
def unfold(c, x, kernel_size, dilation=1, padding=0, stride=1):
    return c("unfold", x, kernel=pair(kernel_size), dilation=pair(dilation), padding=pair(padding), stride=pair(stride))


@maps("nn.functional.avg_pool2d")
def avg_pool2d(c, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
               divisor_override=None):
    return c("avg_pool2d", x, kernel=pair(kernel_size), stride=pair(stride or kernel_size),
             padding=pair(padding), ceil_mode=ceil_mode, count_include_pad=count_include_pad, divisor=divisor_override)


def adaptive(name):
    def call(c, x, output_size, return_indices=False):
        sizes = [output_size] * 2 if output_size is None else pair(output_size)
        sizes = [have if size is None else size for size, have in zip(sizes, x.shape[-2:])]
        return c(name + "_with_indices", x, results=2, size=sizes) if return_indices else c(name, x, size=sizes)
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
    c.case["amplify"] = 8  # the gradient is a difference of terms that grow with p, or 1 / p
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
