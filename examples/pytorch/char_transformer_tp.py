"""Trains the transformer by several processes, each of which has some heads of every attention, some columns of every
perceptron and some rows of the vocabulary: torchrun --nproc-per-node 2 char_transformer_tp.py. With --tp below the
number of processes there are several such groups, which share the batch."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

import common
from char_transformer import DEFAULTS, OPTIONS, make_model, next_character_loss, read_parts, train_on_ranks


class Attention(nn.Module):
    """A causal nn.MultiheadAttention to itself, with the three blocks of in_proj_weight apart: parallelize_module would
    cut the whole of them."""

    def __init__(self, packed):
        super().__init__()
        self.head_size = packed.head_dim
        for name, weight, bias in zip("qkv", packed.in_proj_weight.chunk(3), packed.in_proj_bias.chunk(3)):
            linear = nn.utils.skip_init(nn.Linear, *weight.shape)
            linear.weight, linear.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
            self.add_module(name, linear)
        self.out_proj = packed.out_proj

    def forward(self, x, *_, **__):
        q, k, v = (p(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).flatten(2)), None


def packed(state):
    for name in [name for name in state if ".attention.q." in name]:
        state[name.replace(".q.", ".in_proj_")] = torch.cat([state.pop(name.replace(".q.", f".{p}.")) for p in "qkv"])
    return state


def plan_of(sequence):
    """With `sequence`, what lies between attention and perceptron is cut along the text."""
    part = Shard(1) if sequence else Replicate()
    attention = "blocks.*.attention"
    plan = {"characters": RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
            attention: PrepareModuleInput(input_layouts=(part, None, None), desired_input_layouts=(Replicate(), None, None)),
            **{f"{attention}.{name}": ColwiseParallel() for name in "qkv"},
            f"{attention}.out_proj": RowwiseParallel(output_layouts=part),
            "blocks.*.mlp.0": ColwiseParallel(input_layouts=part),
            "blocks.*.mlp.2": RowwiseParallel(output_layouts=part),
            "head": ColwiseParallel(input_layouts=part, output_layouts=Shard(-1), use_local_output=False)}
    if sequence:
        plan |= {"positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
                 "blocks.*.norm1": SequenceParallel(), "blocks.*.norm2": SequenceParallel(), "norm": SequenceParallel()}
    return plan


def main(options):
    common.init_ranks(options)
    size, tp = dist.get_world_size(), options.tp or dist.get_world_size()
    mesh = init_device_mesh(options.device.type, (size // tp, tp), mesh_dim_names=("dp", "tp"))
    alphabet, train, test = read_parts(options)
    model = make_model(alphabet, options)
    for block in model.blocks:
        block.attention = Attention(block.attention)
    parallelize_module(model, mesh["tp"], plan_of(options.sequence_parallel))
    if tp < size:
        fully_shard(model, mesh=mesh["dp"])
    sampler = DistributedSampler(train, mesh["dp"].size(), mesh["dp"].get_local_rank(), shuffle=options.shuffle)
    with loss_parallel():
        train_on_ranks(options, model, lambda x, y: next_character_loss(model, x, y).to_local(), sampler, train, test,
                       packed)


if __name__ == "__main__":
    tp = {"type": common.whole_number(0), "default": 0, "help": "ranks that share each layer; 0: all"}
    sequence = {"action": "store_true", "help": "cuts along the text what lies between attention and perceptron"}
    common.run(main, "char_transformer_tp", __doc__, **DEFAULTS,
               options=OPTIONS | {"--tp": tp, "--sequence-parallel": sequence})
