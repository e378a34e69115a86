#!/usr/bin/env python3
"""Writes python.safetensors with Python's own package (made with torch 2.11, safetensors 0.8.0)."""
import os

import torch
from safetensors.torch import save_file

save_file(
    {
        "encoder.conv1.weight": (torch.arange(18, dtype=torch.float32) / 8 - 1).reshape(2, 1, 3, 3),
        "f64": torch.tensor([0.1, -1e-300], dtype=torch.float64),
        "bf16": torch.tensor([1, -0.5, 3.14], dtype=torch.bfloat16),
        "i64": torch.tensor([-(2**62), 5]),
        "i32": torch.tensor(-3, dtype=torch.int32),
        "u8": torch.tensor([0, 128, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
    },
    os.path.join(os.path.dirname(__file__), "python.safetensors"),
    metadata={"format": "pt", "note": "grüß"},
)
