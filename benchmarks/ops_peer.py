#!/usr/bin/env python3
"""The PyTorch side of `./weft bench ops`: peer.py's conversation, with

  {"cmd": "names"}                          -> the workloads
  {"cmd": "threads", "count": T}
  {"cmd": "prepare", "row": NAME}           -> the number of elements of the result, and the sum of their absolute values
  {"cmd": "run", "steps": N, "cpu": BOOL}   -> milliseconds of N steps, of the processor's time or the wall's

The workloads are those of ops_rows.cc, with the same inputs: both sides draw them from seed 0 in the same order.
Eager, in the default layout, in inference_mode where nothing is recorded, with fused optimisers.
"""
import time

import torch
from torch import nn
from torch.nn import functional as F

import peer
import resnet

M, H = (1024, 1024), (512, 512)
f64 = torch.float64


def infer(f):
    def step():
        with torch.inference_mode():
            return f()
    return step


def train(f, leaves):
    """Forward, and backward from a gradient of ones to the leaves."""
    for leaf in leaves:
        leaf.requires_grad_()
    ones = None

    def step():
        nonlocal ones
        for leaf in leaves:
            leaf.grad = None
        y = f()
        if ones is None:
            ones = torch.ones_like(y)
        y.backward(ones)
        return leaves[0].grad
    return step


def one(shape, f, dtype=torch.float32):
    def prepare():
        x = torch.rand(*shape, dtype=dtype)
        return infer(lambda: f(x))
    return prepare


def two(a, b, f, dtype=torch.float32):
    def prepare():
        x, y = torch.rand(*a, dtype=dtype), torch.rand(*b, dtype=dtype)
        return infer(lambda: f(x, y))
    return prepare


def many(count, shape, f):
    def prepare():
        parts = [torch.rand(*shape) for _ in range(count)]
        return infer(lambda: f(parts))
    return prepare


def integers(count, bound, dtype, f):
    def prepare():
        x = [torch.randint(0, bound, M, dtype=dtype) for _ in range(count)]
        return infer(lambda: f(x))
    return prepare


def indexed(shape, bound, index_shape, f, back=False):
    def prepare():
        x, index = torch.rand(*shape), torch.randint(0, bound, index_shape)
        return train(lambda: f(x, index), [x]) if back else infer(lambda: f(x, index))
    return prepare


def masked(f):
    def prepare():
        x, y = torch.rand(M), torch.rand(M)
        mask = torch.rand(M) < 0.5
        return infer(lambda: f(x, y, mask))
    return prepare


def layer(shape, make, back):
    def prepare():
        model = make()
        x = torch.rand(*shape)
        return train(lambda: model(x), [x, *model.parameters()]) if back else infer(lambda: model(x))
    return prepare


def trained(f, *shapes):
    def prepare():
        x = [torch.rand(*shape) for shape in shapes]
        return train(lambda: f(*x), x)
    return prepare


def embedding_of_words(back):
    def prepare():
        words = nn.Embedding(32000, 256)
        index = torch.randint(0, 32000, (1024,))
        return train(lambda: words(index), [words.weight]) if back else infer(lambda: words(index))
    return prepare


def training(shape, make):
    def prepare():
        model = make()
        x = torch.rand(*shape)
        adam = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

        def step():
            adam.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            adam.step()
            return loss.detach()
        return step
    return prepare


def parameters_with_gradients(count, side):
    parameters = []
    for _ in range(count):
        parameters.append(torch.rand(side, side).requires_grad_())
        parameters[-1].grad = torch.rand(side, side)
    return parameters


def optimiser(count, side, make, **options):
    def prepare():
        parameters = parameters_with_gradients(count, side)
        steps = make(parameters, lr=0.0, fused=True, **options)

        def step():
            steps.step()
            return parameters[0].detach()
        return step
    return prepare


def clip():
    parameters = parameters_with_gradients(500, 32)
    return lambda: nn.utils.clip_grad_norm_(parameters, 1e9, foreach=True)


def sdpa(q, kv, causal=False, back=False):
    def prepare():
        x = [torch.rand(*shape) for shape in (q, kv, kv)]
        def f():
            return F.scaled_dot_product_attention(*x, is_causal=causal)
        return train(f, x) if back else infer(f)
    return prepare


class TransformerBlock(nn.Module):
    """x [n,t,256], returns the same"""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(256)
        self.qkv, self.proj = nn.Linear(256, 768), nn.Linear(256, 256)
        self.norm2 = nn.LayerNorm(256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        n, t, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(n, t, 3, 4, 64).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        y = x + self.proj(a.transpose(1, 2).reshape(n, t, 256))
        return y + self.down(F.gelu(self.up(self.norm2(y))))


def mm_bf16():
    a, b = torch.rand(H).bfloat16(), torch.rand(H).bfloat16()
    return infer(lambda: a @ b)


def images():
    x = torch.randint(0, 255, (224, 224, 3), dtype=torch.uint8)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return infer(lambda: ((x.permute(2, 0, 1).float() / 255 - mean) / deviation).contiguous())


def chain100(x):
    for _ in range(100):
        x = x * 1.01 + 0.01
    return x


ROWS = {
    "mm_16": two((16, 16), (16, 16), torch.matmul),
    "mm_64": two((64, 64), (64, 64), torch.matmul),
    "mm_256": two((256, 256), (256, 256), torch.matmul),
    "mm_1024": two(M, M, torch.matmul),
    "mm_4096x64x64": two((4096, 64), (64, 64), torch.matmul),
    "mm_64x4096x64": two((64, 4096), (4096, 64), torch.matmul),
    "mv_1x1024x1024": two((1, 1024), M, torch.matmul),
    "mm_bt_512": two(H, H, lambda a, b: a @ b.t()),
    "mm_f64_384": two((384, 384), (384, 384), torch.matmul, f64),
    "mm_bf16_512": mm_bf16,
    "bmm_64x128x64x128": two((64, 128, 64), (64, 64, 128), torch.matmul),
    "bmm_512x16x16x16": two((512, 16, 16), (512, 16, 16), torch.matmul),

    "linear_b1_1024": layer((1, 1024), lambda: nn.Linear(1024, 1024), False),
    "linear_b8_256_fb": layer((8, 256), lambda: nn.Linear(256, 256), True),
    "layer_norm_512x768": layer((512, 768), lambda: nn.LayerNorm(768), False),
    "layer_norm_512x768_fb": layer((512, 768), lambda: nn.LayerNorm(768), True),
    "batch_norm_eval_8x64x56": layer((8, 64, 56, 56), lambda: nn.BatchNorm2d(64).eval(), False),
    "batch_norm_train_8x64x56_fb": layer((8, 64, 56, 56), lambda: nn.BatchNorm2d(64), True),
    "batch_norm1d_train_256x512_fb": layer((256, 512), lambda: nn.BatchNorm1d(512), True),
    "group_norm_8x64x32": layer((8, 64, 32, 32), lambda: nn.GroupNorm(8, 64), False),
    "group_norm_8x64x32_fb": layer((8, 64, 32, 32), lambda: nn.GroupNorm(8, 64), True),
    "conv_transpose4x4s2_8x64x32_fb": layer((8, 64, 32, 32), lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), True),
    "maxpool3s2_8x64x112_fb": layer((8, 64, 112, 112), lambda: nn.MaxPool2d(3, 2, 1), True),
    "avgpool2_8x64x56_fb": layer((8, 64, 56, 56), lambda: nn.AvgPool2d(2), True),
    "upsample_bilinear2_4x32x56": one((4, 32, 56, 56), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "upsample_nearest2_4x32x56_fb": trained(lambda x: F.interpolate(x, scale_factor=2), (4, 32, 56, 56)),
    "mlp_b1_infer": layer((1, 128), lambda: nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                                                          nn.Linear(256, 10)), False),
    "gelu_mlp_128x512x2048_train": training((128, 512), lambda: nn.Sequential(nn.Linear(512, 2048), nn.GELU(),
                                                                              nn.Linear(2048, 512))),
    "transformer_block_b8_t128_infer": layer((8, 128, 256), TransformerBlock, False),
    "transformer_block_b1_t16_infer": layer((1, 16, 256), TransformerBlock, False),
    "transformer_block_b8_t128_train": training((8, 128, 256), TransformerBlock),
    "resnet18_b1_infer": layer((1, 3, 224, 224), lambda: resnet.resnet(18).eval(), False),
    "sdpa_4x8x256x64": sdpa((4, 8, 256, 64), (4, 8, 256, 64)),
    "sdpa_causal_4x8x256x64_fb": sdpa((4, 8, 256, 64), (4, 8, 256, 64), causal=True, back=True),
    "sdpa_long_1x8x2048x64": sdpa((1, 8, 2048, 64), (1, 8, 2048, 64)),
    "sdpa_decode_1x8x1x64_kv512": sdpa((1, 8, 1, 64), (1, 8, 512, 64)),

    "softmax_512x1024": one((512, 1024), lambda x: x.softmax(-1)),
    "softmax_dim0_1024x512": one((1024, 512), lambda x: x.softmax(0)),
    "softmax_mid_32x256x64": one((32, 256, 64), lambda x: x.softmax(1)),
    "log_softmax_64x32000": one((64, 32000), lambda x: x.log_softmax(-1)),
    "cross_entropy_256x10000_fb": indexed((256, 10000), 10000, (256,), F.cross_entropy, back=True),
    "embedding_1024_of_32000x256": embedding_of_words(False),
    "embedding_1024_of_32000x256_fb": embedding_of_words(True),

    "adam_500x32x32": optimiser(500, 32, torch.optim.Adam),
    "adam_2000x4x4": optimiser(2000, 4, torch.optim.Adam),
    "adamw_1x2048x2048": optimiser(1, 2048, torch.optim.AdamW),
    "sgd_momentum_500x32x32": optimiser(500, 32, torch.optim.SGD, momentum=0.9),
    "clip_grad_norm_500x32x32": clip,

    "sum_all_1M": one(M, lambda x: x.sum()),
    "sum_dim0_4096x512": one((4096, 512), lambda x: x.sum(0)),
    "sum_dim1_4096x512": one((4096, 512), lambda x: x.sum(1)),
    "sum_mid_64x256x64": one((64, 256, 64), lambda x: x.sum(1)),
    "sum_0_2_of_64x64x256": one((64, 64, 256), lambda x: x.sum((0, 2))),
    "sum_of_transposed_1024": one(M, lambda x: x.t().sum(1)),
    "sum_i64_1M": integers(1, 100, torch.int64, lambda x: x[0].sum()),
    "mean_hw_32x256x7": one((32, 256, 7, 7), lambda x: x.mean((2, 3))),
    "var_dim0_2048x256": one((2048, 256), lambda x: x.var(0)),
    "var_dim1_2048x256": one((2048, 256), lambda x: x.var(1)),
    "max_dim1_1024x1000": one((1024, 1000), lambda x: x.max(1).values),
    "max_dim0_1024x1000": one((1024, 1000), lambda x: x.max(0).values),
    "argmax_1024x1000": one((1024, 1000), lambda x: x.argmax(1)),
    "amax_all_1M": one(M, lambda x: x.max()),
    "prod_dim1_1024x256": one((1024, 256), lambda x: x.prod(1)),
    "logsumexp_512x1000": one((512, 1000), lambda x: x.logsumexp(1)),
    "norm_dim1_1024x512": one((1024, 512), lambda x: x.norm(dim=1)),

    "transpose_copy_2048": one((2048, 2048), lambda x: x.t().contiguous()),
    "nchw_to_nhwc_16x64x56": one((16, 64, 56, 56), lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "nhwc_to_nchw_16x224x3": one((16, 224, 224, 3), lambda x: x.permute(0, 3, 1, 2).contiguous()),
    "heads_copy_8x128x8x64": one((8, 128, 8, 64), lambda x: x.permute(0, 2, 1, 3).contiguous()),
    "slice_step2_copy_1024x2048": one((1024, 2048), lambda x: x[:, ::2].contiguous()),
    "flip_1024": one(M, lambda x: x.flip(1)),
    "roll_1024": one(M, lambda x: x.roll(3, 1)),
    "pad_16x64x32": one((16, 64, 32, 32), lambda x: F.pad(x, (1, 1, 1, 1))),
    "repeat_256x256x4": one((256, 256), lambda x: x.repeat(4, 4)),
    "tril_1024": one(M, lambda x: x.tril()),
    "cat_dim1_16x256x64": many(16, (256, 64), lambda parts: torch.cat(parts, 1)),
    "cat_dim0_64x16x256": many(64, (16, 256), lambda parts: torch.cat(parts, 0)),
    "stack_dim2_8x256x256": many(8, (256, 256), lambda parts: torch.stack(parts, 2)),
    "cat_channels_8x64x28_fb": trained(lambda *x: torch.cat(x, 1), (8, 64, 28, 28), (8, 32, 28, 28)),
    "index_select_rows_4096_of_10000x128": indexed((10000, 128), 10000, (4096,), lambda x, i: x.index_select(0, i)),
    "index_select_cols_512_of_1024x1024": indexed(M, 1024, (512,), lambda x, i: x.index_select(1, i)),
    "gather_dim1_1024x256_of_1000": indexed((1024, 1000), 1000, (1024, 256), lambda x, i: x.gather(1, i)),
    "gather_dim1_1024x1_of_1000_fb": indexed((1024, 1000), 1000, (1024, 1), lambda x, i: x.gather(1, i), back=True),
    "masked_select_1M": masked(lambda x, y, mask: x.masked_select(mask)),
    "masked_fill_1M": masked(lambda x, y, mask: x.masked_fill(mask, 0)),
    "where_1M": masked(lambda x, y, mask: torch.where(mask, x, y)),

    "add_1M": two(M, M, torch.add),
    "add_f64_1M": two(M, M, torch.add, f64),
    "add_i64_1M": integers(2, 100, torch.int64, lambda x: x[0] + x[1]),
    "add_row_1M": two(M, (1024,), torch.add),
    "add_col_1M": two(M, (1024, 1), torch.add),
    "add_transposed_1024": two(M, M, lambda x, y: x + y.t()),
    "add_small_64": two((64,), (64,), torch.add),
    "mul_channel_8x64x56": two((8, 64, 56, 56), (1, 64, 1, 1), torch.mul),
    "outer_1024": two((1024, 1), (1, 1024), torch.mul),
    "compare_1M": two(M, M, torch.lt),
    "div_1M": two(M, M, torch.div),
    "maximum_1M": two(M, M, torch.maximum),
    "pow_tensor_256k": two(H, H, torch.pow),
    "exp_1M": one(M, torch.exp),
    "exp_f64_256k": one(H, torch.exp, f64),
    "log_1M": one(M, torch.log),
    "tanh_1M": one(M, torch.tanh),
    "sigmoid_1M": one(M, torch.sigmoid),
    "gelu_1M": one(M, F.gelu),
    "silu_1M": one(M, F.silu),
    "erf_1M": one(M, torch.erf),
    "sin_1M": one(M, torch.sin),
    "pow2_1M": one(M, lambda x: x ** 2),
    "pow_2.5_256k": one(H, lambda x: x ** 2.5),
    "sqrt_1M": one(M, torch.sqrt),
    "clamp_1M": one(M, lambda x: x.clamp(0.2, 0.8)),
    "softplus_1M": one(M, F.softplus),
    "dropout_1M": one(M, lambda x: F.dropout(x, 0.5, True)),
    "chain5_64k": one((256, 256), lambda x: ((x * 2 + 1).tanh() * x - x).square()),
    "tape_chain100_small": trained(chain100, (8, 8)),
    "u8_to_f32_div_1M": integers(1, 255, torch.uint8, lambda x: x[0].float() / 255),
    "f32_to_bf16_1M": one(M, lambda x: x.bfloat16()),
    "u8_hwc_to_f32_chw_norm_224": images,
    "randn_1M": lambda: infer(lambda: torch.randn(M)),
    "randperm_100k": lambda: infer(lambda: torch.randperm(100000)),
}

for name, n, in_channels, side, out, *rest in (
        ("conv3x3_8x64x56", 8, 64, 56, 64, 3, 1, 1, 1, 1),
        ("conv1x1_8x256x28", 8, 256, 28, 64, 1, 1, 0, 1, 1),
        ("conv7x7s2_4x3x224", 4, 3, 224, 64, 7, 2, 3, 1, 1),
        ("conv_dw3x3_8x128x56", 8, 128, 56, 128, 3, 1, 1, 1, 128),
        ("conv_dw3x3s2_8x128x56", 8, 128, 56, 128, 3, 2, 1, 1, 128),
        ("conv_dw7x7_4x96x56", 4, 96, 56, 96, 7, 1, 3, 1, 96),
        ("conv_dw31x31_1x64x56", 1, 64, 56, 64, 31, 1, 15, 1, 64),
        ("conv_g32_8x256x28", 8, 256, 28, 256, 3, 1, 1, 1, 32),
        ("conv_dil2_4x64x56", 4, 64, 56, 64, 3, 1, 2, 2, 1),
        ("conv3x3s2_8x64x56", 8, 64, 56, 128, 3, 2, 1, 1, 1),
        ("conv15x15_1x16x64", 1, 16, 64, 16, 15, 1, 7, 1, 1),
        ("conv3x3_1x3x32_small", 1, 3, 32, 16, 3, 1, 1, 1, 1),
        ("conv1d_k9_8x64x2048", 8, 64, 2048, 64, 9, 1, 4, 1, 1),
        ("conv1d_audio_k80s4_8x1x16000", 8, 1, 16000, 32, 80, 4, 0, 1, 1),
        ("conv1d_dil8_4x64x2048", 4, 64, 2048, 64, 3, 1, 8, 8, 1),
        ("conv1d_dw_k4_4x256x1024", 4, 256, 1024, 256, 4, 1, 3, 1, 256)):
    kind, sides = (nn.Conv1d, (side,)) if name.startswith("conv1d") else (nn.Conv2d, (side, side))
    for back, suffix in (False, ""), (True, "_fb"):
        ROWS[name + suffix] = layer((n, in_channels, *sides),
                                    lambda kind=kind, c=(in_channels, out, *rest): kind(*c), back)

step = None


def prepare(row):
    global step
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = ROWS[row]()
    y = step().double()
    return {"numel": y.numel(), "sum": y.abs().sum().item()}


def run(steps, cpu):
    clock = time.process_time if cpu else time.perf_counter
    begin = clock()
    for _ in range(steps):
        step()
    return {"ms": (clock() - begin) * 1e3}


if __name__ == "__main__":
    peer.main(peer.COMMANDS | {"names": lambda: {"names": sorted(ROWS)}, "prepare": prepare, "run": run,
                               "threads": lambda count: torch.set_num_threads(count) or {}})
