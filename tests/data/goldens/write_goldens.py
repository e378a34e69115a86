#!/usr/bin/env python3
"""Writes loader_orders.json: the batches PyTorch's DataLoader makes, two epochs each, with 0 and 2
workers alike (checked here), and what the global generator gives next; weighted_orders.json: the
same with a WeightedRandomSampler; splits.json: the indices of random_split. Made with torch 2.11."""
import itertools
import json
import os

import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, random_split


def next_draw():
    return torch.empty((), dtype=torch.int64).random_().item()


def epochs(seed, size, workers, **options):
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(torch.arange(size)), num_workers=workers, **options)
    batches = [[b.tolist() for (b,) in loader] for _ in range(2)]
    return batches, next_draw()


def write(name, cases):
    with open(os.path.join(os.path.dirname(__file__), name), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


cases = []
for seed, size, batch, shuffle, drop_last in [
    *itertools.product([0, 7, 2**40 + 5], [10], [3], [True, False], [True, False]),
    (1, 1, 1, True, False),
    (2, 100, 32, True, False),
    (3, 1000, 1000, True, False),
    (4, 12, 4, True, True),
]:
    results = [
        epochs(seed, size, workers, batch_size=batch, shuffle=shuffle, drop_last=drop_last) for workers in [0, 2]
    ]
    assert results[0] == results[1]
    cases.append(
        dict(
            seed=seed,
            size=size,
            batch_size=batch,
            shuffle=shuffle,
            drop_last=drop_last,
            epochs=results[0][0],
            next=results[0][1],
        )
    )

write("loader_orders.json", cases)

weights = [0.5, 3.0, 0.0, 1.0, 7.25, 2.0, 0.125, 1.0]
cases = []
for seed, size, samples, replacement in [
    (0, 8, 20, True),
    (1, 8, 1, True),
    (2, 8, 7, False),
    (3, 8, 1, False),
    (4, 1, 3, True),
    (5, 100, 150, True),
    (6, 100, 80, False),
]:
    own = [(weights[i % 8] * (1 + i // 8) if i > 0 else 0.5) for i in range(size)]
    results = [
        epochs(seed, size, workers, batch_size=6, sampler=WeightedRandomSampler(own, samples, replacement))
        for workers in [0, 2]
    ]
    assert results[0] == results[1]
    cases.append(
        dict(
            seed=seed,
            weights=own,
            num_samples=samples,
            replacement=replacement,
            epochs=results[0][0],
            next=results[0][1],
        )
    )
write("weighted_orders.json", cases)

cases = []
for seed, size, lengths in [
    (0, 10, [7, 3]),
    (1, 10, [0.7, 0.3]),
    (2, 11, [0.5, 0.25, 0.25]),
    (3, 7, [0.1] * 10),
    (4, 5, [0, 5]),
    (5, 1, [1.0]),
    (6, 0, [0, 0]),
    (7, 23, [0.0, 0.5, 0.5]),
]:
    torch.manual_seed(seed)
    parts = [p.indices for p in random_split(range(size), lengths)]
    kind = "lengths" if all(isinstance(n, int) for n in lengths) else "fractions"
    cases.append({"seed": seed, "size": size, kind: lengths, "parts": parts, "next": next_draw()})
write("splits.json", cases)
