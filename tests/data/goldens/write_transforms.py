#!/usr/bin/env python3
"""Writes transforms.safetensors: pictures, and what Pillow's and torchvision's transforms make of them.

Needs Pillow, torch and safetensors. torchvision's random transforms are spelled out here, draw for
draw (torchvision/transforms/transforms.py); after each the generator's next number is kept too.
"""
import math
import os

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
out = {}

rng = np.random.default_rng(3)
H, W = 37, 53
y, x = np.mgrid[0:H, 0:W]
rgb = np.stack([x * 4, y * 6, (x * y) % 256], 2) + rng.integers(-60, 61, (H, W, 3))
rgb = np.clip(rgb, 0, 255).astype(np.uint8)
picture = Image.fromarray(rgb)
out["picture"] = rgb

# Pillow 13: smaller, larger, one of each, one side unchanged, a single point, much smaller.
for h, w in [(16, 16), (80, 90), (80, 20), (37, 20), (20, 53), (1, 1), (5, 7), (36, 52), (37, 53), (20, 80)]:
    out[f"resize.{h}.{w}"] = np.asarray(picture.resize((w, h), Image.BILINEAR))


def crop(image, top, left, h, w):
    return image.crop((left, top, left + w, top + h))


def randint(n):
    return int(torch.randint(0, n, (1,)))


def random_crop(size, padding):
    h, w = H + 2 * padding, W + 2 * padding
    if (h, w) == (size, size):
        return crop(picture, 0, 0, H, W)
    top, left = randint(h - size + 1), randint(w - size + 1)
    return crop(picture, top - padding, left - padding, size, size)  # black outside the picture


def random_resized_crop(size, scale, ratio):
    log_ratio = torch.log(torch.tensor(ratio))
    for _ in range(10):
        target = H * W * torch.empty(1).uniform_(scale[0], scale[1]).item()
        aspect = torch.exp(torch.empty(1).uniform_(log_ratio[0], log_ratio[1])).item()
        w, h = int(round(math.sqrt(target * aspect))), int(round(math.sqrt(target / aspect)))
        if 0 < w <= W and 0 < h <= H:
            top, left = randint(H - h + 1), randint(W - w + 1)
            break
    else:
        w, h = W, H
        if W / H < min(ratio):
            h = int(round(w / min(ratio)))
        elif W / H > max(ratio):
            w = int(round(h * max(ratio)))
        top, left = (H - h) // 2, (W - w) // 2
    return crop(picture, top, left, h, w).resize((size, size), Image.BILINEAR)


for seed in range(4):
    torch.manual_seed(seed)
    out[f"random_crop.{seed}"] = np.asarray(random_crop(32, 4))
    out[f"random_crop.{seed}.next"] = np.array([randint(2**20)])
    torch.manual_seed(seed)
    out[f"random_resized_crop.{seed}"] = np.asarray(random_resized_crop(24, (0.08, 1.0), (3 / 4, 4 / 3)))
    out[f"random_resized_crop.{seed}.next"] = np.array([randint(2**20)])
    torch.manual_seed(seed)
    flipped = torch.rand(1) < 0.5
    out[f"flip.{seed}"] = rgb[:, ::-1] if flipped else rgb
# Parts of this area and width never fit, so the central one is taken.
torch.manual_seed(0)
out["random_resized_crop.wide"] = np.asarray(random_resized_crop(24, (0.9, 1.0), (0.3, 0.4)))
torch.manual_seed(0)
out["random_resized_crop.flat"] = np.asarray(random_resized_crop(24, (0.9, 1.0), (3.0, 4.0)))

# To floats: ToTensor, Normalize.
values = torch.from_numpy(rgb[:4, :5].copy()).permute(2, 0, 1).contiguous().float().div(255)
mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.2435, 0.2616])
out["normalized"] = values.sub(mean[:, None, None]).div(std[:, None, None]).numpy()

save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, os.path.join(HERE, "transforms.safetensors"))
os.chmod(os.path.join(HERE, "transforms.safetensors"), 0o644)
