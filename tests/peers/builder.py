"""What a random case is made of: strided tensors of chosen shapes, dtypes and values, and steps.

The case runs in PyTorch as it grows, so that the next step can look at what there is. What PyTorch
refuses ends the case, and stays in it: weft may do there what it likes, except crash.
"""
import math

import torch

import reference
from reference import DTYPES, NAMES

SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 33)
MOST = 4096  # elements of an ordinary tensor
FLOATING = ("f32", "f32", "f32", "f32", "f64", "bf16")
INTEGERS = ("i64", "i32", "u8")


class Refused(Exception):
    """PyTorch does not accept the case."""


class Builder:
    def __init__(self, rng, kind="general"):
        self.rng = rng
        self.case = {"inputs": [], "steps": [], "report": [], "kind": kind}
        self.tensors = []
        self.error = None

    # --- Choices -------------------------------------------------------------------------------
    def chance(self, p):
        return self.rng.random() < p

    def one_of(self, things):
        return self.rng.choice(things)

    def size(self, least=0):
        return max(least, self.one_of(SIZES))

    def shape(self, least_dims=0, most_dims=4, least=0, most=MOST):
        shape = [self.size(least) for _ in range(self.rng.randint(least_dims, most_dims))]
        if self.chance(0.8):  # most tensors have elements
            shape = [max(1, s) for s in shape]
        while math.prod(shape) > most:
            i = self.rng.randrange(len(shape))
            shape[i] = max(1, shape[i] // 2)
        return shape

    def some_dims(self, ndim, most=None):
        """Distinct dimensions, some counted from the end."""
        count = self.rng.randint(0, min(ndim, most if most is not None else ndim))
        return [d - ndim if self.chance(0.3) else d for d in self.rng.sample(range(ndim), count)]

    def dim(self, ndim):
        ndim = max(ndim, 1)  # 0-dimensional tensors take 0 and -1
        return self.rng.randint(-ndim, ndim - 1)

    def floating(self):
        return self.one_of(FLOATING)

    # --- Values --------------------------------------------------------------------------------
    def generator(self):
        return torch.Generator().manual_seed(self.rng.getrandbits(40))

    def values(self, count, dtype, mood=None):
        """A 1-D tensor. Moods: normal, large, small integers (ties), unit, wide (all magnitudes), special."""
        g = self.generator()
        kind = DTYPES[dtype]
        if dtype == "bool":
            return torch.randint(0, 2, (count,), generator=g).bool()
        if dtype in INTEGERS:
            if self.chance(0.1):
                info = torch.iinfo(kind)
                edge = torch.tensor([info.min, info.max, info.max - 1, 0, 1], dtype=kind)
                return edge[torch.randint(0, 5, (count,), generator=g)]
            low = 0 if dtype == "u8" else -6
            return torch.randint(low, 256 if dtype == "u8" and self.chance(0.3) else 7, (count,), generator=g).to(kind)
        mood = mood or self.one_of(("normal",) * 6 + ("integers", "unit", "wide", "special"))
        x = torch.randn(count, generator=g, dtype=torch.float64)
        if mood == "integers":
            x = torch.randint(-3, 4, (count,), generator=g).double()
        elif mood == "unit":
            x = torch.rand(count, generator=g, dtype=torch.float64)
        elif mood == "wide":
            x = x.sign() * 10 ** (torch.rand(count, generator=g, dtype=torch.float64) * 84 - 46)
        elif mood == "large":
            x = x * 30
        x = x.to(kind)
        if mood == "special" and count:
            info = torch.finfo(kind)
            tiny = info.smallest_normal
            # Sums that leave the range on their way depend on their order: only what adds nothing up
            # gets the very largest.
            largest = info.max if self.case["kind"] in ("elementwise", "exact") else info.max / 2**20
            special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, largest, -largest, tiny, -tiny, tiny / 4,
                                    tiny * info.eps, -tiny * info.eps, 1e-25, -1e-25, 1e25, 88.7, -88.8, 89, -104, 0.5,
                                    -0.5, 1.5, 2.5, -2.5, 1, -1], dtype=torch.float64).to(kind)
            chosen = special[torch.randint(0, len(special), (count,), generator=g)]
            # A single one, or many.
            rate = 1 / count if self.chance(0.5) else 0.3
            x = torch.where(torch.rand(count, generator=g) < rate, chosen, x)
        return x

    # --- Inputs --------------------------------------------------------------------------------
    def layout(self, shape, overlap=True):
        """(elements of memory, strides, offset) of a view of that shape."""
        ndim = len(shape)
        style = self.rng.random()
        order = list(range(ndim))
        gaps = [1] * ndim
        repeated = [False] * ndim
        offset = 0
        if ndim and style > 0.5:
            if style < 0.7:
                self.rng.shuffle(order)
            elif style < 0.8 and ndim == 4:
                order = [0, 2, 3, 1]
            elif style < 0.9:
                gaps = [self.one_of((1, 1, 2, 3)) for _ in order]
                offset = self.rng.randint(0, 3)
            elif overlap:
                repeated = [self.chance(0.4) for _ in order]
                if self.chance(0.3):
                    self.rng.shuffle(order)
        strides = [0] * ndim
        step = 1
        for d in reversed(order):
            step *= gaps[d]
            strides[d] = 0 if repeated[d] else step
            if not repeated[d]:
                step *= max(shape[d], 1)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides) if n > 0)
        return (last + 1 if math.prod(shape) else offset), strides, offset

    def spec(self, shape, dtype, mood=None, requires_grad=False, overlap=True, memory=None):
        count, strides, offset = self.layout(shape, overlap)
        if memory is not None:  # given values, dense
            count, strides, offset = memory.numel(), contiguous_strides(shape), 0
        else:
            memory = self.values(count, dtype, mood)
        return {"dtype": dtype, "shape": list(shape), "strides": strides, "offset": offset, "count": count,
                "requires_grad": requires_grad, "memory": memory}

    def input(self, shape, dtype, **options):
        """The number of a new input. All inputs come before the first step."""
        assert not self.case["steps"]
        spec = self.spec(shape, dtype, **options)
        self.case["inputs"].append(spec)
        self.tensors.append(reference.make_input(spec, torch.clone))
        return len(self.tensors) - 1

    def step(self, op, operands, report=True, **attributes):
        """The number of the first tensor the step gives."""
        clean = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in attributes.items()}
        one = {"op": op, "in": operands} | clean
        self.case["steps"].append(one)
        try:
            results = reference.step(self.tensors, one)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, ZeroDivisionError,
                OverflowError) as error:
            self.error = str(error)
            raise Refused from None
        first = len(self.tensors)
        self.tensors += results
        if report:
            self.case["report"] += range(first, len(self.tensors))
        return first

    def backward(self, of, p=0.85):
        y = self.tensors[of]
        if not y.requires_grad or not self.chance(p):
            return
        # Not 0 in f64: 0 times what left the range on the way is a matter of order, which f32 has f64 to
        # tell, but nothing tells f64.
        moods = ("unit",) if y.dtype == torch.float64 else ("normal", "normal", "integers")
        gradient = self.spec(list(y.shape), NAMES[y.dtype], mood=self.one_of(moods))
        self.case["backward"] = {"of": of, "gradient": gradient}


def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides
