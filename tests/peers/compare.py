"""Whether weft's results of a case are as good as PyTorch's.

Both are held against the same case in f64 (R). An element W of weft's, T of PyTorch's agrees when

  W = T or W = R, NaN being equal to NaN, or
  |W - R| <= multiple |T - R| + ulps eps scale, or |W - T| <= ulps eps scale, all finite, or
  T is not finite where R is, nor is W: an intermediate value has left the range.

The last two let a kink or an overflow be on either side of a rounding. eps is that of the coarsest
floating dtype in the case. The `multiple` gives leave to round in another order: where a result
has lost digits PyTorch shows how many. It cannot show that by one element, which may be right by
luck, except where an element depends on its own operands alone. Hence by kind of case:

  exact        bit by bit, only NaNs may differ: conversions, views, random numbers, integers.
  elementwise  scale is |R| of the element, and |x| where x is multiplied by a difference of numbers
               near 1, as in gelu(x) = x (1 + erf(x / sqrt 2)) / 2. In gradients also |g|, the
               gradient that came in: slopes like 1 - y^2 are such differences.
  linear       the results are sums of products, and scale is the sum of their magnitudes, which is
               the same case on magnitudes; |T - R| is the largest of the tensor.
  no values    only shapes and dtypes are compared: what was drawn, or not initialised.
  random       W is near T itself: normal draws go through functions that differ in the last place.
  general      scale is the largest finite magnitude of the case, times case["amplify"] where an
               operation has larger ones inside (a norm's 1 / sqrt(var + eps)), |T - R| the largest of the tensor.
"""
import math
from dataclasses import dataclass

import torch

from reference import DTYPES, NAMES

# PyTorch's and weft's errors are two draws of the same kind; four times as large is not another kind.
MULTIPLE = 4
# A few roundings each of which costs half an ulp at most; eps is one ulp of 1. "linear" and
# "general" add up to some hundred terms, whose errors grow like the root of their number.
ULPS = {"elementwise": 4, "linear": 16, "general": 16}


@dataclass
class Outcome:
    """What a program made of a case: tensors, or an error's text."""
    tensors: list = None
    grads: list = None
    requires_grad: list = None
    error: str = None


def nothing_but(values, keep):
    """The largest magnitude of `values` where `keep`, or 0."""
    values = values[keep]
    return values.abs().max().item() if values.numel() else 0.0


def equal(a, b):
    return (a == b) | (a.isnan() & b.isnan())


def same_bits(a, b):
    """Also the sign of zero; NaNs are all the same."""
    if not a.is_floating_point():
        return a == b
    return equal(a, b) & ((a != 0) | (a.signbit() == b.signbit()) | a.isnan())


def eps_of(tensors):
    return max((torch.finfo(x.dtype).eps for x in tensors if x is not None and x.is_floating_point()), default=0.0)


def differences(kind, w, t, r, scale, eps, tiniest):
    """Which elements of w do not agree."""
    if kind == "no values":
        return torch.zeros(w.shape, dtype=torch.bool)
    if not t.is_floating_point():
        return w != t
    if kind == "exact":
        return ~same_bits(w, t)
    if kind == "random":
        return ~(equal(w, t) | ((w - t).abs() <= scale))
    # R as the result's dtype can hold it: what is beyond its range is infinite there too.
    r = r.to(t.dtype).double()
    w, t = w.double(), t.double()
    finite = w.isfinite()
    peer_error = (t - r).abs()
    known = t.isfinite() & r.isfinite()
    if kind == "elementwise":
        peer_error = torch.where(known, peer_error, torch.zeros_like(peer_error))
    else:
        peer_error = nothing_but(peer_error, known)
    room = ULPS[kind] * eps * scale + 2 * tiniest
    near = ((w - r).abs() <= MULTIPLE * peer_error + room) | ((w - t).abs() <= room)
    overflow = r.isfinite() & ~t.isfinite() & ~finite
    return ~(equal(w, t) | equal(w, r) | (finite & near) | overflow)


OVERWRITES = {"fill_", "zero_", "copy_"}
GELU = {"gelu", "gelu_tanh"}


def show(x, at):
    return repr(x.flatten()[at].item())


def compare_tensor(name, kind, w, t, r, scale, eps):
    """What is wrong with w, or None."""
    if (w is None) != (t is None):
        return f"{name}: weft has {'none' if w is None else 'one'}, PyTorch {'none' if t is None else 'one'}"
    if t is None:
        return None
    if w.dtype != t.dtype:
        return f"{name}: dtype {NAMES[w.dtype]}, PyTorch {NAMES[t.dtype]}"
    if w.shape != t.shape:
        return f"{name}: shape {list(w.shape)}, PyTorch {list(t.shape)}"
    tiniest = torch.finfo(t.dtype).smallest_normal * torch.finfo(t.dtype).eps if t.is_floating_point() else 0
    wrong = differences(kind, w, t, r, scale, eps, tiniest)
    if not wrong.any():
        return None
    at = int(wrong.flatten().int().argmax())
    of = f"{int(wrong.sum())} of {wrong.numel()}"
    return f"{name}: {of} differ, [{at}] weft {show(w, at)}, PyTorch {show(t, at)}, f64 {show(r, at)}"


def roots_of(case):
    """What the case's backward starts from: a list, empty where there is no backward."""
    backward = case.get("backward", [])
    return backward if isinstance(backward, list) else [backward]


def largest(tensors):
    """The largest finite magnitude."""
    most = 0.0
    for x in tensors:
        if x is not None and x.is_floating_point():
            x = x.detach().double()
            most = max(most, nothing_but(x, x.isfinite()))
    return most


def compare(case, weft, peer, exact, magnitude):
    """What differs, as a list of texts. `peer`, `exact` and `magnitude` are the outcomes of PyTorch, of
    PyTorch in f64 and, for "linear", of PyTorch in f64 on magnitudes; their tensors are all of the
    case, weft's those of case["report"]."""
    kind = case["kind"]
    found = []
    operations = {step["op"] for step in case["steps"]}
    eps = eps_of(peer.tensors + peer.grads)
    most = largest(exact.tensors + exact.grads) * case.get("amplify", 1.0) if kind == "general" else 0.0
    incoming = largest([root["gradient"]["memory"] for root in roots_of(case)])
    for w, i, w_requires in zip(weft.tensors, case["report"], weft.requires_grad):
        t, r = peer.tensors[i].detach(), exact.tensors[i].detach()
        scale = most
        if kind == "elementwise":
            scale = torch.where(r.isfinite(), r, t.to(r.dtype)).double().abs()
            if operations & GELU:
                scale = torch.maximum(scale, exact.tensors[0].detach().double().abs())
        elif kind == "linear":
            scale = magnitude.tensors[i].detach().double()
        elif kind == "random":
            scale = case["room"] * largest([t])
        if i in case.get("precise", ()):  # f64 whatever the rest is, as learning rates
            problem = compare_tensor(f"tensor {i}", "elementwise", w, t, r, r.abs(), torch.finfo(torch.float64).eps)
        else:
            problem = compare_tensor(f"tensor {i}", kind, w, t, r, scale, eps)
        if not problem and w_requires != peer.requires_grad[i]:
            problem = f"tensor {i}: requires_grad {w_requires}, PyTorch {peer.requires_grad[i]}"
        if problem:
            found.append(problem)
    for i, (w, t, r) in enumerate(zip(weft.grads, peer.grads, exact.grads)):
        grad_kind, scale = kind, most
        # What an overwrite cuts off weft's backward does not visit: no gradient in place of zeros.
        if w is None and t is not None and operations & OVERWRITES and not t.any():
            continue
        if kind == "elementwise" and t is not None:
            scale = torch.where(r.isfinite(), r, t.to(r.dtype)).double().abs() + incoming
            if case.get("broadcast"):  # sums of such gradients
                grad_kind, scale = "general", largest([r]) + incoming * max(1.0, largest(exact.tensors))
        elif kind == "linear" and t is not None:
            scale = magnitude.grads[i].double()
        elif kind == "exact":
            grad_kind, scale = "general", largest([r]) + incoming
        problem = compare_tensor(f"gradient {i}", grad_kind, w, t, r, scale, eps)
        if problem:
            found.append(problem)
    return found
