"""Trains a convolutional net on CIFAR-10."""
import math
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import common


def cnn(width_scale=1, hidden=8000):
    """x [N,3,32,32] -> logits [N,10]"""
    def scaled(width):
        return max(1, math.floor(width * width_scale + 0.5))

    def conv(inputs, outputs):
        return nn.Conv2d(inputs if inputs == 3 else scaled(inputs), scaled(outputs), 5, padding=2)

    hidden = scaled(hidden)
    return nn.Sequential(conv(3, 32), conv(32, 64), conv(64, 512), nn.MaxPool2d(2),
                         conv(512, 1024), nn.MaxPool2d(2),
                         conv(1024, 2048), conv(2048, 4096), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(scaled(4096) * 4 * 4, hidden),
                         nn.Linear(hidden, 64), nn.Linear(64, 10))


def images(options, train):
    """Images of [3,32,32] from 0 to 1, and their labels."""
    if options.data == "fake":
        return common.FakeData(50_000 if train else 10_000, (3, 32, 32), 10, first=0 if train else 50_000,
                               transform=lambda x: x.to(options.dtype))
    paths = [os.path.join(options.data, name) for name in
             ([f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"])]
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"no file {path}; name a folder of CIFAR-10's binary files (--data DIR), "
                                    "or train on made-up images (--data fake)")
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    x = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float().div(255).to(options.dtype)
    return TensorDataset(x, torch.from_numpy(records[:, 0].astype(np.int64)))


def accuracy(model, loader, device):
    """The share of the labels that are the highest logit."""
    training = model.training
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, label in common.own_batches(loader):
            correct += (model(x.to(device)).argmax(1) == label.to(device)).sum().item()
    model.train(training)
    return common.total(correct, device) / len(loader.dataset)


def main(options):
    loader = DataLoader(images(options, True), batch_size=options.batch_size,
                        shuffle=options.shuffle, num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    test = DataLoader(common.test_part(images(options, False), options, options.batch_size),
                      batch_size=options.batch_size, num_workers=options.workers)
    model = cnn(options.width_scale, options.hidden).to(options.device, options.dtype)
    print(model)
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr)

    recorder = common.Recorder(options)
    recorder.resume(model, sgd)
    for epoch in recorder.epochs():
        for x, label in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            label = label.to(options.device, non_blocking=True)
            sgd.zero_grad()
            loss = F.cross_entropy(model(x), label)
            loss.backward()
            sgd.step()
            recorder.step(loss)
        if recorder.position() == 0:  # the epoch is complete
            recorder.test("accuracy", accuracy(model, test, options.device))
        recorder.save(model, sgd)
    if recorder.interrupted:
        raise SystemExit(130)
    if recorder.position() > 0:
        recorder.test("accuracy", accuracy(model, test, options.device))
    recorder.finish(model)


if __name__ == "__main__":
    common.run(main, "cnn", __doc__, epochs=10, batch_size=64, lr=0.01, data="cifar-10-batches-bin", options={
        "--width-scale": {"type": common.positive, "default": 1, "help": "times the width of every layer: 1/16, 0.25, 1"},
        "--hidden": {"type": common.whole_number(1), "default": 8000, "help": "features of the first linear layer"}})
