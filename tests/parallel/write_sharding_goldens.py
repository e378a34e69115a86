#!/usr/bin/env python3
"""Writes sharding_goldens.json: what PyTorch 2.11's fully_shard and parallelize_module compute with Gloo, in f64.

usage: python3 write_sharding_goldens.py > sharding_goldens.json   (needs torch)

Models, batches and processes are those of write_ddp_goldens.py, but all ranks seed their weights with 3, since
fully_shard takes each rank's own. In f32 Gloo's mean was a sum (pytorch#162338). Of each rank of fully_shard: the
losses of its own batches, and [name, norm, sum of value i times cos i] of its parts, of the last gradients and of the
weights. Of parallelize_module the losses, and the whole weights.
"""
import json
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)

from write_ddp_goldens import MODELS, ROWS, batch, loss_of, summary

# The modules that are cut before the whole model.
UNITS = {"mlp": ["1"], "autoencoder": ["encoder", "decoder"], "resnet": ["layer1", "layer2"]}
# By model, steps, and ranks.
RUNS = {"sgd": ("mlp", 1, (2, 3)),  # Adam and later steps hide a gradient that is n times too large
        "mlp": ("mlp", 6, (2, 3)),
        "autoencoder": ("autoencoder", 6, (2, 3)),
        "resnet": ("resnet", 6, (2, 3)),
        "whole_after_forward": ("mlp", 6, (2,)),
        "no_sync": ("mlp", 6, (2, 3)),
        "clip": ("mlp", 6, (2, 3)),
        "frozen": ("mlp", 6, (2,)),
        "replicas": ("mlp", 6, (4,))}  # two groups of two ranks


def train(run, rank, n):
    """The losses and the model."""
    name, steps, _ = RUNS[run]
    make, image = MODELS[name]
    torch.manual_seed(3)
    model = make().to(torch.float64)
    if run == "frozen":
        model[1].weight.requires_grad_(False)
    options = {"reshard_after_forward": run != "whole_after_forward"}
    options["mesh"] = init_device_mesh("cpu", (2, 2) if run == "replicas" else (n,),
                                       mesh_dim_names=("replica", "shard") if run == "replicas" else ("shard",))
    for unit in UNITS[name]:
        fully_shard(model.get_submodule(unit), **options)
    fully_shard(model, **options)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name == "autoencoder":
        optimizer = torch.optim.Adam(parameters, lr=0.01)
    elif run == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=0.05)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
    losses = []

    def backward(number):
        x, label = batch(number, ROWS * n, image)
        mine = slice(ROWS * rank, ROWS * (rank + 1))
        losses.append(loss_of(model, x[mine], label[mine]))
        losses[-1].backward()

    for step in range(steps):
        optimizer.zero_grad()
        if run == "no_sync":
            for part in range(3):
                model.set_requires_gradient_sync(part == 2)
                backward(3 * step + part)
        else:
            backward(step)
        if run == "clip":
            nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
    return [loss.item() for loss in losses], model


class Texts(nn.Module):
    """[N,L] -> logits [N,L,6]"""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 12)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)  # normal numbers differ in the last bits
        self.norm1 = nn.LayerNorm(12)
        self.fc1 = nn.Linear(12, 18)
        self.fc2 = nn.Linear(18, 12)
        self.norm2 = nn.LayerNorm(12)
        self.head = nn.Linear(12, 6)

    def forward(self, text):
        x = self.words(text)
        return self.head(self.norm2(x + self.fc2(nn.functional.gelu(self.fc1(self.norm1(x))))))


def plan_of(run):
    """`sequence`: what lies between the products is cut along the text."""
    part = Shard(1) if run == "sequence" else Replicate()
    plan = {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
            "fc1": ColwiseParallel(input_layouts=part),
            "fc2": RowwiseParallel(output_layouts=part),
            "head": ColwiseParallel(input_layouts=part, output_layouts=Shard(-1), use_local_output=False)}
    return plan | ({"norm1": SequenceParallel(), "norm2": SequenceParallel()} if run == "sequence" else {})


def train_in_parts(run, n):
    """The losses and the model."""
    torch.manual_seed(3)
    model = parallelize_module(Texts().to(torch.float64), init_device_mesh("cpu", (n,)), plan_of(run))
    # Weights that are not cut are no DTensors, which the default implementation cannot mix with others.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    losses = []
    for step in range(6):
        text = (torch.arange(4 * 6).view(4, 6) * (step + 3) + step) % 7
        optimizer.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(text).flatten(0, 1), (text * 5 % 6).flatten())
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item())
    return losses, model


def rank_main(rank, n, run, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n)
    if run in RUNS:
        losses, model = train(run, rank, n)
        parts = {name: (p.grad, p) for name, p in model.named_parameters()}
        result = {"losses": losses,
                  "gradients": [[name, *summary(g.to_local())] for name, (g, _) in parts.items() if g is not None],
                  "weights": [[name, *summary(p.to_local())] for name, (_, p) in parts.items()]}
    else:
        losses, model = train_in_parts(run, n)
        result = {"losses": losses,
                  "weights": [[name, *summary(p.full_tensor() if isinstance(p, DTensor) else p)]
                              for name, p in model.named_parameters()]}
    with open(f"{folder}/{rank}", "w") as f:
        json.dump(result, f)
    dist.destroy_process_group()


def main():
    runs = []
    for run, sizes in [*((run, sizes) for run, (_, _, sizes) in RUNS.items()), ("parts", (2, 3)), ("sequence", (2, 3))]:
        for n in sizes:
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(rank_main, (n, run, folder), n)
                ranks = [json.load(open(f"{folder}/{rank}")) for rank in range(n)]
            if run not in RUNS:  # the same on all ranks
                ranks = ranks[:1]
            runs.append({"run": run, "size": n, "ranks": ranks})
    # One line per tensor would make the file much larger.
    lines = ",\n  ".join(json.dumps(run) for run in runs)
    sys.stdout.write(f'{{"torch": "{torch.__version__.split("+")[0]}", "runs": [\n  {lines}]}}\n')


if __name__ == "__main__":
    main()
