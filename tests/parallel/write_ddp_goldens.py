#!/usr/bin/env python3
"""Writes ddp_goldens.json: what PyTorch 2.11's DistributedDataParallel computes with Gloo, in f64.

usage: python3 write_ddp_goldens.py > ddp_goldens.json   (needs torch)

Each run starts 2 or 3 processes. The models are those of models.h, the batches those of batch() in nets.h: numbers of
a generator that is seeded by the step. Rank r seeds its weights with 3 + r, so that rank 0's have to become everybody's.
Of each rank: the losses of its own batches, and [name, norm, sum of value i times cos i] of the state it ends with.
SyncBatchNorm is not here: PyTorch's runs on GPUs alone.
"""
import contextlib
import json
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.conv2 = nn.Conv2d(2, 4, 3)
        self.fc = nn.Linear(64, 6)

    def forward(self, x):
        return self.fc(torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 64)
        self.conv2 = nn.ConvTranspose2d(4, 2, 3)
        self.conv1 = nn.ConvTranspose2d(2, 1, 3)

    def forward(self, z):
        return torch.sigmoid(self.conv1(torch.relu(self.conv2(torch.relu(self.fc(z).view(-1, 4, 4, 4))))))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z), z


def cnn():
    def conv(a, b):
        return nn.Conv2d(a, b, 5, padding=2)

    return nn.Sequential(conv(3, 1), conv(1, 1), conv(1, 1), nn.MaxPool2d(2), conv(1, 2), nn.MaxPool2d(2), conv(2, 4),
                         conv(4, 8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 16), nn.Linear(16, 64),
                         nn.Linear(64, 10))


def conv3x3(a, b, stride=1):
    return nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1 = conv3x3(a, b, stride)
        self.bn1 = nn.BatchNorm2d(b)
        self.conv2 = conv3x3(b, b)
        self.bn2 = nn.BatchNorm2d(b)
        self.downsample = nn.Sequential()
        if stride != 1 or a != b:
            self.downsample = nn.Sequential(nn.Conv2d(a, b, 1, stride=stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = conv3x3(3, 4)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = Block(4, 4, 1)
        self.layer2 = Block(4, 8, 2)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x))))).mean((2, 3)))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(64, 8)
        self.a = nn.Linear(8, 10)
        self.b = nn.Linear(8, 10)
        self.c = nn.Linear(8, 10)

    def forward(self, x, which):
        return getattr(self, which)(torch.relu(self.trunk(x.flatten(1))))


MODELS = {"mlp": (mlp, (1, 8, 8)), "autoencoder": (Autoencoder, (1, 8, 8)), "cnn": (cnn, (3, 32, 32)),
          "resnet": (ResNet, (3, 8, 8))}
ROWS = 4  # in each rank's batch


def batch(number, rows, image):
    x = torch.empty(rows, *image, dtype=torch.float64)
    x.uniform_(-1, 1, generator=torch.Generator().manual_seed(1000 + number))
    return x, (torch.arange(rows) + number) % 3


def loss_of(model, x, label, *which):
    y = model(x, *which)
    return nn.functional.mse_loss(y[0], x) if isinstance(y, tuple) else nn.functional.cross_entropy(y, label)


def train(run, rank, n):
    """The losses and the model."""
    make, image = (Heads, (1, 8, 8)) if run == "unused" else MODELS.get(run, MODELS["mlp"])
    torch.manual_seed(3 + rank)
    model = make().to(torch.float64)
    ddp = DDP(model, find_unused_parameters=run == "unused", gradient_as_bucket_view=run == "accumulate")
    if run == "autoencoder":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    losses = []

    def backward(number, *which):
        x, label = batch(number, ROWS * n, image)
        mine = slice(ROWS * rank, ROWS * (rank + 1))
        losses.append(loss_of(ddp, x[mine], label[mine], *which))
        losses[-1].backward()

    def join(divide_by_initial_world_size):
        with ddp.join(divide_by_initial_world_size=divide_by_initial_world_size):
            for step in range(3 + rank):
                optimizer.zero_grad()
                backward(step)
                optimizer.step()

    if run == "join":
        join(True)
    elif run == "join_divide_by_those_left":
        join(False)
    else:
        for step in range(6):
            optimizer.zero_grad()
            if run == "unused":  # one head on all ranks, one on each of two, one on all; one never
                backward(step, ["a", "a" if rank == 0 else "b", "b"][step % 3])
            elif run == "no_sync":
                for part in range(3):
                    with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                        backward(3 * step + part)
            elif run == "accumulate":  # means are added, and may be changed in place
                backward(2 * step)
                backward(2 * step + 1)
                for p in model.parameters():
                    p.grad.mul_(0.25)
            else:
                backward(step)
            optimizer.step()
    return [loss.item() for loss in losses], model


def summary(x):
    x = x.detach().to(torch.float64).flatten()
    return [x.norm().item(), (x * torch.cos(torch.arange(len(x), dtype=torch.float64))).sum().item()]


def rank_main(rank, n, run, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n)
    losses, model = train(run, rank, n)
    state = [[name, *summary(x)] for name, x in model.state_dict().items()]
    with open(f"{folder}/{rank}", "w") as f:
        json.dump({"losses": losses, "state": state}, f)
    dist.destroy_process_group()


def main():
    runs = []
    for run in [*MODELS, "unused", "no_sync", "accumulate", "join", "join_divide_by_those_left"]:
        for n in 2, 3:
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(rank_main, (n, run, folder), n)
                ranks = [json.load(open(f"{folder}/{rank}")) for rank in range(n)]
            runs.append({"run": run, "ranks": ranks})
    # One line per tensor would make the file much larger.
    lines = ",\n  ".join(json.dumps(run) for run in runs)
    sys.stdout.write(f'{{"torch": "{torch.__version__.split("+")[0]}", "runs": [\n  {lines}]}}\n')


if __name__ == "__main__":
    main()
