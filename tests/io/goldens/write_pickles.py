#!/usr/bin/env python3
"""Writes the small .pth files of pickle_test.cc (made with torch 2.11)."""
import os
from collections import Counter, OrderedDict

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def save(name, value, **kwargs):
    torch.save(value, os.path.join(HERE, name), **kwargs)


def net():
    """Two layers with the same weight, and a batch norm, filled with simple numbers."""
    model = torch.nn.Sequential(OrderedDict(
        a=torch.nn.Linear(3, 3), norm=torch.nn.BatchNorm1d(3), b=torch.nn.Linear(3, 3)))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).reshape(p.shape) / 8 + i)
    model.b.weight = model.a.weight
    return model


base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
dtypes = {
    "f32": torch.tensor([1, -2.5, 3.25]),
    "f64": torch.tensor([0.1, -1e-300], dtype=torch.float64),
    "f16": torch.tensor([1, -0.5, 65504, 2**-24, float("inf")], dtype=torch.float16),
    "bf16": torch.tensor([1, -0.5, 3.14], dtype=torch.bfloat16),
    "i64": torch.tensor([-(2**62), 5]),
    "i32": torch.tensor(-3, dtype=torch.int32),
    "u8": torch.tensor([0, 128, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
}
values = {
    "none": None, "yes": True, "no": False, "int": -7, "byte": 200, "short": 60000,
    "long": -(2**40), "most": 2**63 - 1, "least": -(2**63), "float": 0.1, "str": "grüß",
    "bytes": b"a\x00\xff", "bytearray": bytearray(b"xy"), "list": [1, [2.5, None], []],
    "tuple": (), "one": (1,), "two": (1, 2), "three": (1, 2, 3), "four": (1, 2, 3, 4),
    "set": {5}, "counter": Counter({3: 2}), "size": torch.Size([2, 3]),
    "device": torch.device("cuda", 1), "dtype": torch.float16,
    1: "int key", None: "no key", 2.5: "float key", b"k": "bytes key",
}
views = {
    "base": base, "transposed": base.transpose(0, 2), "part": base[1, 1:, ::2], "row": base[0, 0],
    "expanded": torch.tensor([7.0]).expand(2, 3), "flat16": torch.arange(4).half()[1:],
    "parameter": torch.nn.Parameter(torch.tensor([4.0, 5.0])),
}
views["tagged"], views["tagged_parameter"] = torch.ones(2), torch.nn.Parameter(torch.ones(1))
views["tagged"].tag = views["tagged_parameter"].tag = "an attribute"
save("dtypes.pth", dtypes)
save("values.pth", values)
save("views.pth", views)
model = net()
save("state_dict.pth", model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
save("checkpoint.pt", {"epoch": 3, "state_dict": OrderedDict(
    ("module." + k, v) for k, v in net().state_dict().items()), "optimizer": optimizer.state_dict()})
# What weft has no values for, beside weights.
odd = {
    "epoch": 3, "big": 2**63, "complex": 1 + 2j, ("a", "tuple"): 1, "scheme": torch.per_channel_affine,
    "quantised": torch.quantize_per_channel(
        torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8),
    "negated": torch.imag(torch.conj(torch.tensor([1 + 2j, 3 - 4j]))),
    "u16": torch.tensor([1, 2], dtype=torch.uint16), "sparse": torch.eye(2).to_sparse(),
    "sizes": torch.tensor([1, 2], dtype=torch.int16), "type": torch.FloatTensor,
    "model": {"state_dict": {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}},
}
save("odd.pth", odd)
torch.jit.script(torch.nn.Linear(1, 1)).save(os.path.join(HERE, "script.pt"))
save("legacy.pth", {"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
