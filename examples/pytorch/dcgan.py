"""Trains a DCGAN, a generator of images and a discriminator that tells them from real ones."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import common


class Transform:
    """[1,28,28] from 0 to 1 -> [1,size,size] from -1 to 1, with a black margin"""

    def __init__(self, size):
        self.size = size

    def __call__(self, x):
        x = F.pad(x, (2, 2, 2, 2))
        if self.size != 32:
            x = F.interpolate(x[None], (self.size, self.size), mode="bilinear")[0]
        return x.sub(0.5).div(0.5)


def init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


class Generator(nn.Module):
    """z [N,latent,1,1] -> images [N,1,size,size] in (-1,1)"""

    def __init__(self, size, width, latent):
        super().__init__()
        channels = width * size // 8
        layers = [nn.ConvTranspose2d(latent, channels, 4, bias=False)]
        while channels >= width:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(),
                       nn.ConvTranspose2d(channels, channels // 2 if channels > width else 1, 4, 2, 1, bias=False)]
            channels //= 2
        self.main = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    """images [N,1,size,size] -> logits [N]"""

    def __init__(self, size, width):
        super().__init__()
        channels = width
        layers = [nn.Conv2d(1, channels, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        while channels < width * size // 8:
            layers += [nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False),
                       nn.BatchNorm2d(2 * channels), nn.LeakyReLU(0.2)]
            channels *= 2
        self.main = nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, bias=False))

    def forward(self, x):
        return self.main(x).flatten()


class Gan(nn.Module):
    def __init__(self, size, width, latent):
        super().__init__()
        self.generator = Generator(size, width, latent)
        self.discriminator = Discriminator(size, width)


def train_discriminator(gan, adam, real, fake):
    adam.zero_grad()
    of_real, of_fake = gan.discriminator(real), gan.discriminator(fake.detach())
    loss = (F.binary_cross_entropy_with_logits(of_real, torch.ones_like(of_real)) +
            F.binary_cross_entropy_with_logits(of_fake, torch.zeros_like(of_fake)))
    loss.backward()
    adam.step()
    return loss


def train_generator(gan, adam, fake):
    gan.discriminator.requires_grad_(False)
    adam.zero_grad()
    of_fake = gan.discriminator(fake)
    loss = F.binary_cross_entropy_with_logits(of_fake, torch.ones_like(of_fake))
    loss.backward()
    adam.step()
    gan.discriminator.requires_grad_(True)
    return loss


def main(options):
    def noise(count):
        return torch.randn(count, options.latent, 1, 1, dtype=options.dtype).to(options.device)

    gan = Gan(options.image_size, options.width, options.latent).to(options.dtype)
    gan.apply(init)
    gan.to(options.device)
    print(gan)
    adam_d = torch.optim.Adam(gan.discriminator.parameters(), lr=options.lr, betas=(0.5, 0.999))
    adam_g = torch.optim.Adam(gan.generator.parameters(), lr=options.lr, betas=(0.5, 0.999))
    loader = DataLoader(common.Mnist(options.data, dtype=options.dtype, transform=Transform(options.image_size)),
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    fixed_noise = noise(64)

    recorder = common.Recorder(options)
    recorder.resume(gan, adam_d, adam_g)
    for epoch in recorder.epochs():
        for real, label in recorder.batches(loader):
            real = real.to(options.device, non_blocking=True)
            fake = gan.generator(noise(len(real)))
            loss_d = train_discriminator(gan, adam_d, real, fake)
            loss_g = train_generator(gan, adam_g, fake)
            recorder.step(discriminator=loss_d, generator=loss_g)
        recorder.save(gan, adam_d, adam_g)
        gan.eval()
        with torch.no_grad():
            common.image_grid(recorder.path(f"samples-epoch-{epoch}.png"), (gan.generator(fixed_noise) + 1) / 2)
        gan.train()
    if recorder.interrupted:
        raise SystemExit(130)
    recorder.finish(gan)


OPTIONS = {
    "--image-size": {"type": int, "choices": (32, 64), "default": 32, "help": "height and width of the images"},
    "--width": {"type": common.whole_number(1), "default": 16, "help": "channels of the layers next to the image; 64x64 wants 64: with 16 the discriminator wins"},
    "--latent": {"type": common.whole_number(1), "default": 100, "help": "random numbers an image is made from"}}

if __name__ == "__main__":
    common.run(main, "dcgan", __doc__, epochs=5, batch_size=64, lr=2e-4, options=OPTIONS)
