"""Trains a two-layer perceptron to classify 28x28 images."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import common


def mlp():
    """x [N,1,28,28] -> logits [N,10]"""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def main(options):
    model = mlp().to(options.device, options.dtype)
    print(model)
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr)
    loader = DataLoader(common.Mnist(options.data, dtype=options.dtype),
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")

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
    test = DataLoader(common.test_part(common.Mnist(options.data, train=False, dtype=options.dtype), options, 500),
                      batch_size=500)
    correct = 0
    with torch.no_grad():
        for x, label in test:
            x, label = x.to(options.device), label.to(options.device)
            correct += (model(x).argmax(1) == label).sum().item()
    recorder.finish(model, "accuracy", correct / len(test.dataset))


if __name__ == "__main__":
    common.run(main, "mlp", __doc__, batch_size=64, lr=0.1)
