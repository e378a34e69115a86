"""Writes random_goldens.h: PyTorch's CPU draws through its tensor functions.

    python3 write_random_goldens.py > random_goldens.h
"""
import torch


def hexed(values):
    return ", ".join(float(v).hex() for v in values.double().flatten())


def main():
    print(f"// Written by write_random_goldens.py with PyTorch {torch.__version__}. Do not edit.")
    print("#pragma once\n\n#include <cstdint>\n#include <vector>\n")
    print("namespace weft::testing {\n")
    print("// In the order drawn, after manual_seed(7).")
    torch.manual_seed(7)
    rows = [
        ("kRand23", torch.rand(2, 3)),
        ("kUniform5F64", torch.empty(5, dtype=torch.float64).uniform_(-2, 3)),
        ("kUniform19", torch.empty(19).uniform_(-0.25, 0.25)),
        ("kRandn20", torch.randn(20)),
        ("kRandn5", torch.randn(5)),
        ("kNormal17F64", torch.empty(17, dtype=torch.float64).normal_(1, 0.5)),
        ("kRand4After", torch.rand(4)),
    ]
    perm = torch.randperm(11)
    last = torch.rand(2)
    for name, values in rows:
        print(f"inline const std::vector<double> {name} = {{{hexed(values)}}};")
    print(f"inline const std::vector<double> kRandperm11 = {{{', '.join(str(int(v)) for v in perm)}}};")
    print(f"inline const std::vector<double> kRand2Last = {{{hexed(last)}}};")
    print("\n}  // namespace weft::testing")


main()
