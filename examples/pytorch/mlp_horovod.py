"""Trains a two-layer perceptron as a Horovod program does: torchrun --nproc-per-node 2 mlp_horovod.py."""
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import common
from mlp import mlp


def main(options):
    common.init_ranks(options)
    model = mlp().to(options.device, options.dtype)
    if dist.get_rank() == 0:
        print(model)
    common.broadcast(model)
    sgd = common.distributed(torch.optim.SGD(model.parameters(), lr=options.lr))
    images = common.Mnist(options.data, dtype=options.dtype)
    sampler = DistributedSampler(images, shuffle=options.shuffle)
    loader = DataLoader(images,
                        batch_size=options.batch_size,
                        sampler=sampler,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")

    recorder = common.Recorder(options)
    recorder.resume(model, sgd)
    for epoch in recorder.epochs():
        sampler.set_epoch(epoch)
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
        for x, label in common.own_batches(test):
            x, label = x.to(options.device), label.to(options.device)
            correct += (model(x).argmax(1) == label).sum().item()
    recorder.finish(model, "accuracy", common.total(correct, options.device) / len(test.dataset))
    dist.destroy_process_group()


if __name__ == "__main__":
    common.run(main, "mlp_horovod", __doc__, batch_size=64, lr=0.1)
