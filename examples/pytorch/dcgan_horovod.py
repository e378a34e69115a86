"""Trains a DCGAN as a Horovod program does: torchrun --nproc-per-node 2 dcgan_horovod.py."""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import common
from dcgan import OPTIONS, Gan, Transform, init, train_discriminator, train_generator


def main(options):
    def noise(count):
        return torch.randn(count, options.latent, 1, 1, dtype=options.dtype).to(options.device)

    common.init_ranks(options)
    rank, size = common.ranks()
    gan = Gan(options.image_size, options.width, options.latent).to(options.dtype)
    gan.apply(init)
    gan.to(options.device)
    if rank == 0:
        print(gan)
    common.broadcast(gan)
    # Separately for both nets: a step averages only the gradients of its own net.
    adam_d = common.distributed(torch.optim.Adam(gan.discriminator.parameters(), lr=options.lr, betas=(0.5, 0.999)))
    adam_g = common.distributed(torch.optim.Adam(gan.generator.parameters(), lr=options.lr, betas=(0.5, 0.999)))
    images = common.Mnist(options.data, dtype=options.dtype, transform=Transform(options.image_size))
    sampler = DistributedSampler(images, shuffle=options.shuffle)
    loader = DataLoader(images,
                        batch_size=options.batch_size,
                        sampler=sampler,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    fixed_noise = noise(64)

    recorder = common.Recorder(options)
    recorder.resume(gan, adam_d, adam_g)
    for epoch in recorder.epochs():
        sampler.set_epoch(epoch)
        for real, label in recorder.batches(loader):
            real = real.to(options.device, non_blocking=True)
            # Draws the noise of all ranks as one process would, and takes this rank's part of it.
            fake = gan.generator(noise(size * len(real)).chunk(size)[rank])
            loss_d = train_discriminator(gan, adam_d, real, fake)
            loss_g = train_generator(gan, adam_g, fake)
            recorder.step(discriminator=loss_d, generator=loss_g)
        recorder.save(gan, adam_d, adam_g)
        gan.eval()
        with torch.no_grad():
            samples = (gan.generator(fixed_noise) + 1) / 2
        if rank == 0:
            common.image_grid(recorder.path(f"samples-epoch-{epoch}.png"), samples)
        gan.train()
    if recorder.interrupted:
        raise SystemExit(130)
    recorder.finish(gan)
    dist.destroy_process_group()


if __name__ == "__main__":
    common.run(main, "dcgan_horovod", __doc__, epochs=5, batch_size=64, lr=2e-4, options=OPTIONS)
