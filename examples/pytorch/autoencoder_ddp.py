"""Trains a convolutional autoencoder by several processes: torchrun --nproc-per-node 2 autoencoder_ddp.py."""
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import common
from autoencoder import Autoencoder


def main(options):
    common.init_ranks(options)
    model = Autoencoder().to(options.device, options.dtype)
    if dist.get_rank() == 0:
        print(model)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    adam = torch.optim.Adam(model.parameters(), lr=options.lr)
    images = common.Mnist(options.data, dtype=options.dtype)
    sampler = DistributedSampler(images, shuffle=options.shuffle)
    loader = DataLoader(images,
                        batch_size=options.batch_size,
                        sampler=sampler,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")

    recorder = common.Recorder(options)
    recorder.resume(model, adam)
    for epoch in recorder.epochs():
        sampler.set_epoch(epoch)
        for x, label in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            adam.zero_grad()
            output, code = ddp(x)
            loss = F.mse_loss(output, x)
            loss.backward()
            adam.step()
            recorder.step(loss)
        recorder.save(model, adam)
    if recorder.interrupted:
        raise SystemExit(130)

    model.eval()
    test = DataLoader(common.test_part(common.Mnist(options.data, train=False, dtype=options.dtype), options, 500),
                      batch_size=500)
    squared_error = 0.0
    with torch.no_grad():
        for i, (x, label) in enumerate(common.own_batches(test)):
            x = x.to(options.device)
            output, code = model(x)
            if i == 0 and dist.get_rank() == 0:
                common.compare_picture(recorder.path("compare.png"), x, code, output)
            squared_error += F.mse_loss(output, x).item() * len(x)
    recorder.finish(model, "mse", common.total(squared_error, options.device) / len(test.dataset))
    dist.destroy_process_group()


if __name__ == "__main__":
    common.run(main, "autoencoder_ddp", __doc__)
