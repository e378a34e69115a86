#!/usr/bin/env python3
"""Writes dcgan_goldens.json: the first losses of examples/pytorch/dcgan.py, in f64 on the CPU.

usage: python3 write_dcgan_goldens.py DATA > dcgan_goldens.json
  DATA: the folder of Debian's dataset-fashion-mnist (/usr/share/datasets/fashion-mnist). Needs torch 2.11 and numpy.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/pytorch"))
import torch

import common
import dcgan

SEED, SIZE, WIDTH, LATENT, BATCH_SIZE, STEPS = 3, 32, 4, 100, 16, 5


def main():
    torch.manual_seed(SEED)
    gan = dcgan.Gan(SIZE, WIDTH, LATENT).double()
    gan.apply(dcgan.init)
    adam_d, adam_g = (torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999))
                      for net in (gan.discriminator, gan.generator))
    images = common.Mnist(sys.argv[1], dtype=torch.float64, transform=dcgan.Transform(SIZE))
    losses = {"discriminator": [], "generator": []}
    for real, label in torch.utils.data.DataLoader(images, batch_size=BATCH_SIZE, shuffle=True):
        fake = gan.generator(torch.randn(BATCH_SIZE, LATENT, 1, 1, dtype=torch.float64))
        losses["discriminator"].append(dcgan.train_discriminator(gan, adam_d, real, fake).item())
        losses["generator"].append(dcgan.train_generator(gan, adam_g, fake).item())
        if len(losses["generator"]) == STEPS:
            break
    print(json.dumps({"torch": torch.__version__.split("+")[0], "seed": SEED, "size": SIZE, "width": WIDTH,
                      "batch_size": BATCH_SIZE, **losses}))


main()
