#!/usr/bin/env python3
"""Writes wgan_goldens.json: the first losses of examples/pytorch/wgan_gp.py, in f64 on the CPU.

usage: python3 write_wgan_goldens.py DATA > wgan_goldens.json
  DATA: the folder of Debian's dataset-fashion-mnist (/usr/share/datasets/fashion-mnist). Needs torch 2.11 and numpy.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/pytorch"))
import torch

import common
import wgan_gp

SEED, SIZE, WIDTH, LATENT, BATCH_SIZE, STEPS = 3, 32, 4, 100, 16, 4


def main():
    torch.manual_seed(SEED)
    gan = wgan_gp.WganGp(SIZE, WIDTH, LATENT).double()
    adam_c, adam_g = (torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.0, 0.9))
                      for net in (gan.critic, gan.generator))
    images = common.Mnist(sys.argv[1], dtype=torch.float64, transform=wgan_gp.Transform(SIZE))
    losses = {"critic": [], "distance": [], "penalty": [], "generator": []}

    def noise():
        return torch.randn(BATCH_SIZE, LATENT, 1, 1, dtype=torch.float64)

    for real, label in torch.utils.data.DataLoader(images, batch_size=BATCH_SIZE, shuffle=True):
        fake, share = gan.generator(noise()), torch.rand(BATCH_SIZE, 1, 1, 1, dtype=torch.float64)
        of_critic = wgan_gp.train_critic(gan.critic, adam_c, real, fake, share, 10)
        for name, value in zip(("critic", "distance", "penalty"), of_critic):
            losses[name].append(value.item())
        losses["generator"].append(wgan_gp.train_generator(gan.critic, adam_g, gan.generator(noise())).item())
        if len(losses["generator"]) == STEPS:
            break
    print(json.dumps({"torch": torch.__version__.split("+")[0], "seed": SEED, "size": SIZE, "width": WIDTH,
                      "batch_size": BATCH_SIZE, **losses}))


main()
