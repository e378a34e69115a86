#!/usr/bin/env python3
"""Writes transformer_goldens.json: what PyTorch 2.11 computes in char_transformer on the CPU.

usage: python3 write_transformer_goldens.py > transformer_goldens.json      Needs torch and numpy.

Each run seeds once, then makes the model, then the loader. f64 runs draw the weights in f32 and widen
them.
"""
import json
import pathlib
import sys

import numpy as np
import torch

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/pytorch"))
import char_transformer as program

CONTEXT, WIDTH, HEADS, LAYERS, STEPS = 12, 16, 4, 2, 20


def text():
    """2000 characters with some order in them; char_transformer_test.cc makes the same."""
    return np.array([97 + (i * i + i // 7) % 23 for i in range(2000)], np.uint8)


def run(dtype, seed, shuffle):
    torch.manual_seed(seed)
    alphabet, numbers = np.unique(text(), return_inverse=True)
    model = program.CharTransformer(len(alphabet), CONTEXT, WIDTH, HEADS, LAYERS).to(dtype)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = program.Windows(numbers.astype(np.int64), CONTEXT)
    losses = []
    for x, y in torch.utils.data.DataLoader(windows, batch_size=8, shuffle=shuffle):
        adam.zero_grad()
        loss = program.next_character_loss(model, x, y)
        loss.backward()
        adam.step()
        losses.append(loss.item())
        if len(losses) == STEPS:
            break
    return {"dtype": "f64" if dtype == torch.float64 else "f32", "seed": seed, "shuffle": shuffle,
            "windows": len(windows), "losses": losses,
            "names": [name for name, _ in model.named_parameters()]}


runs = [run(dtype, seed, shuffle)
        for dtype in (torch.float64, torch.float32) for seed, shuffle in ((0, True), (1, False))]
lines = ",\n  ".join(map(json.dumps, runs))
print(f'{{"torch": "{torch.__version__.split("+")[0]}", "runs": [\n  {lines}]}}')
