#!/usr/bin/env python3
"""Writes goldens.json: what PyTorch 2.11 computes in the autoencoder and MLP programs on the CPU.

usage: python3 write_goldens.py DATA > goldens.json
  DATA: the folder of Debian's dataset-fashion-mnist (/usr/share/datasets/fashion-mnist). Needs torch and numpy.

Each run seeds once, then makes the model, then the loader. f64 runs draw the weights in f32 and widen
them. The epoch runs (f32, seed 0, shuffled) take the whole first epoch and the test set.
"""
import gzip
import json
import sys

import numpy as np
import torch
from torch import nn


def read(folder, name):
    with gzip.open(f"{folder}/{name}.gz") as f:
        data = f.read()
    dims = np.frombuffer(data, ">i4", data[3], 4)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * len(dims)).reshape(dims).copy())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 64, 3)
        self.fc = nn.Linear(64 * 24 * 24, 32)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.flatten(1))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 64 * 24 * 24)
        self.conv2 = nn.ConvTranspose2d(64, 8, 3)
        self.conv1 = nn.ConvTranspose2d(8, 1, 3)

    def forward(self, z):
        x = torch.relu(self.fc(z).view(-1, 64, 24, 24))
        x = torch.relu(self.conv2(x))
        return torch.sigmoid(self.conv1(x))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z), z


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


class Images(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i].float().div(255).unsqueeze(0), int(self.labels[i])


def run(example, seed, shuffle, dtype, train, steps=None):
    torch.manual_seed(seed)
    autoencoder = example == "autoencoder"
    model = (Autoencoder() if autoencoder else mlp()).to(dtype)
    optimizer = torch.optim.Adam(model.parameters()) if autoencoder else torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(train, batch_size=32 if autoencoder else 64, shuffle=shuffle)
    losses = []
    for x, label in loader:
        x = x.to(dtype)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x)[0], x) if autoencoder else nn.functional.cross_entropy(model(x), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == steps:
            break
    return model, losses


def test_figure(example, model, test):
    total, n = 0.0, 0
    with torch.no_grad():
        for x, label in torch.utils.data.DataLoader(test, batch_size=500):
            if example == "autoencoder":
                total += nn.functional.mse_loss(model(x)[0], x).item() * len(x)
            else:
                total += (model(x).argmax(1) == label).sum().item()
            n += len(x)
    return total / n


def main():
    folder = sys.argv[1]
    train = Images(read(folder, "train-images-idx3-ubyte"), read(folder, "train-labels-idx1-ubyte"))
    test = Images(read(folder, "t10k-images-idx3-ubyte"), read(folder, "t10k-labels-idx1-ubyte"))
    out = {"torch": torch.__version__.split("+")[0], "data": "fashion-mnist", "runs": [], "epochs": []}
    for example in ("autoencoder", "mlp"):
        for dtype in (torch.float64, torch.float32):
            for seed, shuffle in ((0, True), (1, True), (2, False)):
                _, losses = run(example, seed, shuffle, dtype, train, 20)
                out["runs"].append({"example": example, "dtype": "f64" if dtype == torch.float64 else "f32",
                                    "seed": seed, "shuffle": shuffle, "losses": losses})
        model, losses = run(example, 0, True, torch.float32, train)
        out["epochs"].append({"example": example, "seed": 0, "steps": len(losses),
                              "mean_loss": sum(losses) / len(losses), "test": test_figure(example, model, test)})
    lines = [f'"{key}": [\n  ' + ",\n  ".join(map(json.dumps, out.pop(key))) + "]" for key in ("runs", "epochs")]
    print(json.dumps(out)[:-1] + ", " + ",\n ".join(lines) + "}")


main()
