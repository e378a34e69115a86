"""Trains a convolutional net on CIFAR-10."""
import os
from fractions import Fraction

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import common


def cnn(width_scale=1, hidden=8000):
    """x [N,3,32,32] -> logits [N,10]"""
    def scaled(width):
        return max(1, round(width * width_scale))

    def conv(inputs, outputs):
        return nn.Conv2d(inputs if inputs == 3 else scaled(inputs), scaled(outputs), 5, padding=2)

    hidden = scaled(hidden)
    return nn.Sequential(conv(3, 32), conv(32, 64), conv(64, 512), nn.MaxPool2d(2),
                         conv(512, 1024), nn.MaxPool2d(2),
                         conv(1024, 2048), conv(2048, 4096), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(scaled(4096) * 4 * 4, hidden),
                         nn.Linear(hidden, 64), nn.Linear(64, 10))


def cifar10(folder, train, dtype):
    """The images of CIFAR-10's binary files, from 0 to 1, and their labels."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"]
    records = np.concatenate([np.fromfile(os.path.join(folder, name), np.uint8).reshape(-1, 3073) for name in names])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float().div(255).to(dtype)
    return TensorDataset(images, torch.from_numpy(records[:, 0].astype(np.int64)))


def main(options):
    loader = DataLoader(cifar10(options.data, True, options.dtype), batch_size=options.batch_size,
                        shuffle=options.shuffle, num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    test = DataLoader(cifar10(options.data, False, options.dtype), batch_size=options.batch_size)
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
        recorder.save(model, sgd)
    if recorder.interrupted:
        raise SystemExit(130)

    model.eval()
    correct = 0
    with torch.no_grad():
        for x, label in test:
            x, label = x.to(options.device), label.to(options.device)
            correct += (model(x).argmax(1) == label).sum().item()
    recorder.finish(model, "accuracy", correct / len(test.dataset))


if __name__ == "__main__":
    main(common.parse_options("cnn", __doc__, epochs=10, batch_size=64, lr=0.01, data="cifar-10-batches-bin",
                              options={"--width-scale": dict(type=lambda text: float(Fraction(text)), default=1),
                                       "--hidden": dict(type=int, default=8000)}))
