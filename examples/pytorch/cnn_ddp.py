"""Trains a convolutional net on CIFAR-10 by several processes: torchrun --nproc-per-node 2 cnn_ddp.py."""
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import common
from cnn import accuracy, cnn, images


def main(options):
    common.init_ranks(options)
    train = images(options, True)
    sampler = DistributedSampler(train, shuffle=options.shuffle)
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    test = DataLoader(common.test_part(images(options, False), options, options.batch_size),
                      batch_size=options.batch_size, num_workers=options.workers)
    model = cnn(options.width_scale, options.hidden).to(options.device, options.dtype)
    if dist.get_rank() == 0:
        print(model)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr)

    recorder = common.Recorder(options)
    recorder.resume(model, sgd)
    for epoch in recorder.epochs():
        sampler.set_epoch(epoch)
        for x, label in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            label = label.to(options.device, non_blocking=True)
            sgd.zero_grad()
            loss = F.cross_entropy(ddp(x), label)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    common.run(main, "cnn_ddp", __doc__, epochs=10, batch_size=64, lr=0.01, data="cifar-10-batches-bin", options={
        "--width-scale": {"type": common.positive, "default": 1, "help": "times the width of every layer: 1/16, 0.25, 1"},
        "--hidden": {"type": common.whole_number(1), "default": 8000, "help": "features of the first linear layer"}})
