"""Writes rng.txt: what PyTorch's CPU generator draws. Run by hand with PyTorch from PyPI:

    python3 tests/core/goldens/write_rng_goldens.py

One case per line: NAME SEED ARGUMENTS... : VALUES...; floating values as the hexadecimal bits of
the number, so that the comparison is exact. A case draws several times from one generator, so its
position in the stream is checked as well.
"""

import pathlib
import struct

import torch

SEEDS = [0, 1, 42, 67280421310721, 2**63 + 12345]


def bits(tensor):
    layout = {torch.float32: ("f", "I", 8), torch.float64: ("d", "Q", 16)}[tensor.dtype]
    for value in tensor.tolist():
        (number,) = struct.unpack("<" + layout[1], struct.pack("<" + layout[0], value))
        yield f"{number:0{layout[2]}x}"


def main():
    lines = [f"# torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"]

    def case(name, seed, arguments, values):
        lines.append(" ".join([name, str(seed), *map(str, arguments), ":", *map(str, values)]))

    for seed in SEEDS:
        torch.manual_seed(seed)
        full = torch.empty(6, dtype=torch.int64).random_(-(2**63), None)
        case("random64", seed, [], [v % 2**64 for v in full.tolist()])

        for name, dtype in (("uniform32", torch.float32), ("uniform64", torch.float64)):
            for low, high in ((0.0, 1.0), (-0.25, 0.75), (-0.1, 0.1), (-1 / 3, 1 / 7)):
                torch.manual_seed(seed)
                values = torch.empty(20, dtype=dtype).uniform_(low, high)
                case(name, seed, [low.hex(), high.hex()], bits(values))

        torch.manual_seed(seed)
        for n in (0, 1, 2, 3, 10, 37):
            case("randperm", seed, [n], torch.randperm(n).tolist())

    # For long permutations only a checksum: sum of position * value, and the last values.
    for n in (1000, 60000):
        torch.manual_seed(7)
        order = torch.randperm(n)
        checksum = int((torch.arange(n) * order).sum())
        case("randperm_sum", 7, [n], [checksum, *order[-4:].tolist()])

    for name, dtype in (("normal32", torch.float32), ("normal64", torch.float64)):
        for seed in (0, 42):
            torch.manual_seed(seed)  # only once: the cached second value stays for the next size
            for n in (*range(1, 41), 64, 100):
                values = torch.empty(n, dtype=dtype).normal_(0.5, 2.0)
                if n in (1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 100):
                    case(name, seed, [n], bits(values))
                else:
                    case(name, seed, [n], [])  # drawn, not compared
    (pathlib.Path(__file__).parent / "rng.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
