"""A sample of PyTorch's operation database as a case of differential.cc."""
import math

import torch

from reference import NAMES


class Lacks(Exception):
    """weft has no call for this sample; the text says what it lacks."""


class Result:
    """What a step of a case gives: the number `at` of all results."""

    def __init__(self, at):
        self.at = at


def dense_memory(t):
    """(memory, strides) of a detached tensor, its elements as they lie."""
    t = t.detach()
    if not t.numel():
        return torch.empty(0, dtype=t.dtype), [0] * t.dim()
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    return t.as_strided((last + 1,), (1,), t.storage_offset()).clone(), list(t.stride())


class CaseMaker:
    """What a mapping builds a case with: c("add", x, y, alpha=2) is a step. Operands are tensors of the
    sample, results of steps, or None."""

    def __init__(self, kind):
        self.case = {"inputs": [], "steps": [], "report": [], "kind": kind}
        self.tensors = []  # those of the sample that the inputs are
        self._numbers = {}
        self._results = 0

    def __call__(self, op, *operands, results=1, **options):
        numbers = [self._number(x) for x in operands]
        clean = {k: self._clean(k, v) for k, v in options.items() if v is not None}
        self.case["steps"].append((op, numbers, clean))
        first = self._results
        self._results += results
        made = [Result(first + i) for i in range(results)]
        return made[0] if results == 1 else made

    def finish(self, outputs):
        """Gives the tensors their final numbers: inputs first, then what the steps give."""
        count = len(self.tensors)
        final = lambda x: -1 if x is None else count + x.at if isinstance(x, Result) else x
        self.case["steps"] = [{"op": op, "in": [final(x) for x in numbers]} | options
                              for op, numbers, options in self.case["steps"]]
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        self.case["report"] = [final(self._number(x)) for x in outputs]
        return self.case

    def _number(self, x):
        if x is None or isinstance(x, Result):
            return x
        if not isinstance(x, torch.Tensor):
            raise Lacks(f"{type(x).__name__} in place of a tensor")
        if id(x) not in self._numbers:
            if x.dtype not in NAMES:
                raise Lacks(f"dtype {x.dtype}")
            self._numbers[id(x)] = len(self.tensors)
            self.tensors.append(x)
            memory, strides = dense_memory(x)
            self.case["inputs"].append(
                {"dtype": NAMES[x.dtype], "shape": list(x.shape), "strides": strides, "offset": 0,
                 "count": memory.numel(), "requires_grad": x.requires_grad, "memory": memory})
        return self._numbers[id(x)]

    def _clean(self, name, v):
        if isinstance(v, torch.dtype):
            if v not in NAMES:
                raise Lacks(f"dtype {v}")
            return NAMES[v]
        if isinstance(v, (complex, torch.Tensor)):
            raise Lacks(f"{name} that is a {type(v).__name__}")
        if isinstance(v, float) and not math.isfinite(v):
            return str(v)
        return list(v) if isinstance(v, (tuple, torch.Size)) else v
