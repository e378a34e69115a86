"""Trains a generator that makes pictures four times larger, by what a frozen VGG sees in them and against a discriminator."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import common
from wgan_gp import Critic


def pictures(options, train):
    return common.Mnist(options.data, train=train, dtype=options.dtype, transform=lambda x: F.pad(x, (2, 2, 2, 2)))


def shrink(x):
    return F.avg_pool2d(x, 4)


class Upscaler(nn.Module):
    """x [N,1,H,W] -> [N,1,4H,4W] in (0,1)"""

    def __init__(self, width):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for _ in range(2):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.main = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1), nn.Sigmoid())

    def forward(self, x):
        return self.main(x)


class Vgg(nn.Module):
    """The first three blocks of torchvision's vgg16, frozen: x [N,1,H,W] -> relu1_2, relu2_2 and relu3_3"""

    def __init__(self, width):
        super().__init__()
        layers, channels = [], 3
        for convolutions in (2, 2, 3):
            if layers:
                layers.append(nn.MaxPool2d(2))
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            width *= 2
        self.features = nn.Sequential(*layers)
        for p in self.parameters():
            nn.init.kaiming_uniform_(p) if p.dim() == 4 else nn.init.zeros_(p)
        self.requires_grad_(False)

    def forward(self, x):
        y = torch.cat([(x - 0.485) / 0.229, (x - 0.456) / 0.224, (x - 0.406) / 0.225], 1)
        seen = []
        for i, layer in enumerate(self.features):
            y = layer(y)
            if i in (3, 8, 15):
                seen.append(y)
        return seen


def make_vgg(file, width):
    if file is None:
        return Vgg(width)
    values = torch.load(file, weights_only=True)
    net = Vgg(len(values["features.0.bias"]))
    net.load_state_dict({name: values[name] for name in net.state_dict()})
    return net


def gram(features):
    rows = features.flatten(2)
    return rows @ rows.transpose(1, 2) / (rows.shape[1] * rows.shape[2])


class GanStyle(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.generator = Upscaler(options.width)
        self.discriminator = Critic(32, options.width)
        self.vgg = make_vgg(options.vgg, options.vgg_width)


def train_discriminator(discriminator, adam, real, fake):
    adam.zero_grad()
    of_real, of_fake = discriminator(real), discriminator(fake.detach())
    loss = (F.binary_cross_entropy_with_logits(of_real, torch.ones_like(of_real)) +
            F.binary_cross_entropy_with_logits(of_fake, torch.zeros_like(of_fake)))
    loss.backward()
    adam.step()
    return loss


def train_generator(gan, adam, real, fake, options):
    gan.discriminator.requires_grad_(False)
    adam.zero_grad()
    seen, expected = gan.vgg(fake), gan.vgg(real)
    content = F.mse_loss(seen[1], expected[1])
    style = sum(F.mse_loss(gram(x), gram(y)) for x, y in zip(seen, expected))
    of_fake = gan.discriminator(fake)
    adversarial = F.binary_cross_entropy_with_logits(of_fake, torch.ones_like(of_fake))
    loss = content + style * options.style_weight + adversarial * options.adversarial_weight
    loss.backward()
    adam.step()
    gan.discriminator.requires_grad_(True)
    return loss, content, style


def main(options):
    gan = GanStyle(options).to(options.device, options.dtype)
    print(gan)
    adam_d = torch.optim.Adam(gan.discriminator.parameters(), lr=options.lr, betas=(0.5, 0.999))
    adam_g = torch.optim.Adam(gan.generator.parameters(), lr=options.lr, betas=(0.5, 0.999))
    loader = DataLoader(pictures(options, True),
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    tests = pictures(options, False)
    tests = torch.stack([tests[i][0] for i in range(min(8, len(tests)))]).to(options.device)

    recorder = common.Recorder(options)
    recorder.resume(gan, adam_d, adam_g)
    for epoch in recorder.epochs():
        for real, label in recorder.batches(loader):
            real = real.to(options.device, non_blocking=True)
            fake = gan.generator(shrink(real))
            loss_d = train_discriminator(gan.discriminator, adam_d, real, fake)
            loss, content, style = train_generator(gan, adam_g, real, fake, options)
            recorder.step(generator=loss, content=content, style=style, discriminator=loss_d)
        recorder.save(gan, adam_d, adam_g)
        with torch.no_grad():
            small = shrink(tests)
            rows = [F.interpolate(small, scale_factor=4), gan.generator(small), tests]
            common.image_grid(recorder.path(f"restored-epoch-{epoch}.png"), torch.cat(rows), len(tests))
    if recorder.interrupted:
        raise SystemExit(130)
    recorder.finish(gan)


OPTIONS = {
    "--width": {"type": common.whole_number(1), "default": 16, "help": "channels of the generator, and of the discriminator's first layer"},
    "--vgg": {"help": "weights of the VGG, a state dict of torchvision's vgg16; without: random ones"},
    "--vgg-width": {"type": common.whole_number(1), "default": 8, "help": "channels of the first block of a VGG with random weights"},
    "--style-weight": {"type": common.positive, "default": 10.0, "help": "of the loss of style, beside that of content"},
    "--adversarial-weight": {"type": common.positive, "default": 0.05, "help": "of the loss of being told from a real picture"}}

if __name__ == "__main__":
    common.run(main, "gan_style", __doc__, batch_size=64, lr=1e-3, options=OPTIONS)
