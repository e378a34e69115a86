"""Trains a WGAN-GP, a generator of images and a critic whose slope is held near 1 (Gulrajani et al., 2017)."""
import torch
from torch import nn
from torch.utils.data import DataLoader

import common
from dcgan import Generator, Transform


class Critic(nn.Module):
    """images [N,1,size,size] -> scores [N]: no batch norm, since the penalty is one of each image by itself"""

    def __init__(self, size, width):
        super().__init__()
        channels = width
        layers = [nn.Conv2d(1, channels, 4, 2, 1), nn.LeakyReLU(0.2)]
        while channels < width * size // 8:
            layers += [nn.Conv2d(channels, 2 * channels, 4, 2, 1), nn.LeakyReLU(0.2)]
            channels *= 2
        self.main = nn.Sequential(*layers, nn.Conv2d(channels, 1, 4))

    def forward(self, x):
        return self.main(x).flatten()


class WganGp(nn.Module):
    def __init__(self, size, width, latent):
        super().__init__()
        self.generator = Generator(size, width, latent)
        self.critic = Critic(size, width)


def gradient_penalty(critic, real, fake, share):
    x = (real * share + fake * (1 - share)).detach().requires_grad_()
    slope, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


def train_critic(critic, adam, real, fake, share, weight):
    adam.zero_grad()
    distance = critic(real).mean() - critic(fake.detach()).mean()
    penalty = gradient_penalty(critic, real, fake.detach(), share)
    loss = penalty * weight - distance
    loss.backward()
    adam.step()
    return loss, distance, penalty


def train_generator(critic, adam, fake):
    critic.requires_grad_(False)
    adam.zero_grad()
    loss = -critic(fake).mean()
    loss.backward()
    adam.step()
    critic.requires_grad_(True)
    return loss


def main(options):
    def noise(count):
        return torch.randn(count, options.latent, 1, 1, dtype=options.dtype).to(options.device)

    gan = WganGp(options.image_size, options.width, options.latent).to(options.dtype)
    gan.to(options.device)
    print(gan)
    adam_c = torch.optim.Adam(gan.critic.parameters(), lr=options.lr, betas=(0.0, 0.9))
    adam_g = torch.optim.Adam(gan.generator.parameters(), lr=options.lr, betas=(0.0, 0.9))
    loader = DataLoader(common.Mnist(options.data, dtype=options.dtype, transform=Transform(options.image_size)),
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    fixed_noise = noise(64)

    recorder = common.Recorder(options)
    recorder.resume(gan, adam_c, adam_g)
    for epoch in recorder.epochs():
        for real, label in recorder.batches(loader):
            real = real.to(options.device, non_blocking=True)
            z = noise(len(real))
            share = torch.rand(len(real), 1, 1, 1, dtype=options.dtype).to(options.device)
            loss, distance, penalty = train_critic(gan.critic, adam_c, real, gan.generator(z), share, options.penalty)
            if (recorder.position() + 1) % options.critic_steps == 0:
                train_generator(gan.critic, adam_g, gan.generator(noise(len(real))))
            recorder.step(critic=loss, distance=distance, penalty=penalty)
        recorder.save(gan, adam_c, adam_g)
        gan.eval()
        with torch.no_grad():
            common.image_grid(recorder.path(f"samples-epoch-{epoch}.png"), (gan.generator(fixed_noise) + 1) / 2)
        gan.train()
    if recorder.interrupted:
        raise SystemExit(130)
    recorder.finish(gan)


OPTIONS = {
    "--image-size": {"type": int, "choices": (32, 64), "default": 32, "help": "height and width of the images"},
    "--width": {"type": common.whole_number(1), "default": 16, "help": "channels of the layers next to the image"},
    "--latent": {"type": common.whole_number(1), "default": 100, "help": "random numbers an image is made from"},
    "--critic-steps": {"type": common.whole_number(1), "default": 5,
                       "help": "steps of the critic for one of the generator"},
    "--penalty": {"type": float, "default": 10.0, "help": "weight of the penalty on the critic's slope"}}

if __name__ == "__main__":
    common.run(main, "wgan_gp", __doc__, epochs=5, batch_size=64, lr=1e-4, options=OPTIONS)
