#!/usr/bin/env python3
"""Writes loader_orders.json: the batches PyTorch's DataLoader makes, two epochs each, with 0 and 2
workers alike (checked here), and what the global generator gives next. Made with torch 2.11."""
import itertools
import json
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

cases = []
for seed, size, batch, shuffle, drop_last in [
    *itertools.product([0, 7, 2**40 + 5], [10], [3], [True, False], [True, False]),
    (1, 1, 1, True, False),
    (2, 100, 32, True, False),
    (3, 1000, 1000, True, False),
    (4, 12, 4, True, True),
]:
    results = []
    for workers in [0, 2]:
        torch.manual_seed(seed)
        loader = DataLoader(
            TensorDataset(torch.arange(size)), batch, shuffle, num_workers=workers, drop_last=drop_last
        )
        epochs = [[b.tolist() for (b,) in loader] for _ in range(2)]
        results.append((epochs, torch.empty((), dtype=torch.int64).random_().item()))
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

with open(os.path.join(os.path.dirname(__file__), "loader_orders.json"), "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
