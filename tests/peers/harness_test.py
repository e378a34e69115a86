#!/usr/bin/env python3
"""The harness itself: would it notice?

  harness_test.py DRIVER

Results of weft's that agree are falsified, one thing at a time, and must differ; programs that end,
hang or throw must cost the case they do it in, and no other.
"""
import copy
import re
import subprocess
import sys
import unittest
import warnings

import torch

import cases
import compare
import op_db_elementwise  # noqa: F401: fills the table of the next one
import op_db_mapping
from differential import missed, judge, peer_outcomes, run_weft

CASES = 60  # a family
DRIVER = None


def change_value(x, kind, most):
    """Moves the largest element by a hundred times what roundings may."""
    x = x.clone()
    if not x.numel():
        return None
    if x.dtype == torch.bool:
        x.view(-1)[0] ^= True
    elif not x.is_floating_point():
        x.view(-1)[0] += 1
    else:
        flat = x.view(-1)
        at = int(flat.double().nan_to_num(0, 0, 0).abs().argmax())
        if not flat[at].isfinite():
            return None
        room = 100 * 16 * torch.finfo(x.dtype).eps * (most if kind != "exact" else 0)
        moved = flat[at].double() + max(room, abs(flat[at].item()) * 0.01 + 1e-30)
        if moved.to(x.dtype).isinf():
            return None
        flat[at] = moved
    return x


def spoil(x, to):
    x = x.clone()
    if not x.numel() or not x.is_floating_point() or not x.view(-1)[0].isfinite():
        return None
    x.view(-1)[0] = to
    return x


def falsifications(one, weft, most):
    """(name, outcome) pairs; the outcome is a copy with one thing wrong."""
    def with_tensor(i, x):
        wrong = copy.copy(weft)
        wrong.tensors = list(weft.tensors)
        wrong.tensors[i] = x
        return wrong

    def with_grad(i, x):
        wrong = copy.copy(weft)
        wrong.grads = list(weft.grads)
        wrong.grads[i] = x
        return wrong

    kind = one["kind"]
    for i, x in enumerate(weft.tensors):
        if (changed := change_value(x, kind, most)) is not None:
            yield "value", with_tensor(i, changed)
        for to in (float("nan"), float("inf")):
            if (spoiled := spoil(x, to)) is not None:
                yield str(to), with_tensor(i, spoiled)
        yield "shape", with_tensor(i, x.unsqueeze(0))
        yield "dtype", with_tensor(i, x.to(torch.float64 if x.dtype != torch.float64 else torch.float32))
        wrong = copy.copy(weft)
        wrong.requires_grad = list(weft.requires_grad)
        wrong.requires_grad[i] = not weft.requires_grad[i]
        yield "requires_grad", wrong
    for i, x in enumerate(weft.grads):
        if x is None:
            continue
        if (changed := change_value(x, kind, most)) is not None:
            yield "gradient", with_grad(i, changed)
        if (spoiled := spoil(x, float("nan"))) is not None:
            yield "gradient nan", with_grad(i, spoiled)
        if x.any() or not compare.OVERWRITES & {s["op"] for s in one["steps"]}:
            yield "no gradient", with_grad(i, None)


class HarnessTest(unittest.TestCase):
    def test_false_results_are_noticed(self):
        tried = {}
        for name in cases.FAMILIES:
            built = [cases.make(name, 1, i) for i in range(CASES)]
            outcomes = run_weft(DRIVER, [b.case for b in built], 1)
            for i, (b, weft) in enumerate(zip(built, outcomes)):
                peer = peer_outcomes(b)
                if judge(b.case, weft, *peer)[0] != "agree":
                    continue
                exact = peer[1]
                most = compare.largest(exact.tensors + exact.grads) * b.case.get("amplify", 1.0)
                if "backward" in b.case:
                    most = max(most, 1.0) * max(1.0, compare.largest([b.case["backward"]["gradient"]["memory"]]))
                if most > 1e30 or any(t.dtype == torch.bfloat16 for t in peer[0].tensors):
                    continue  # no room for what would be wrong by far more than a rounding
                for what, wrong in falsifications(b.case, weft, most):
                    tried[what] = tried.get(what, 0) + 1
                    self.assertEqual(judge(b.case, wrong, *peer)[0], "differ", f"{what} of case {i} of {name}")
        for what in ("value", "nan", "inf", "shape", "dtype", "requires_grad", "gradient", "gradient nan", "no gradient"):
            self.assertGreater(tried.get(what, 0), 100, what)

    def test_every_operation_is_tried(self):
        driver = set(subprocess.run([DRIVER, "--operations"], capture_output=True, text=True, check=True).stdout.split())
        driver -= {"crash", "hang", "throw"}
        with open("autograd/ops.h") as header:
            families = re.findall(r'"weft/(autograd/\w+\.h)"', header.read())
        declared = set()
        for family in families:
            with open(family) as header:
                declared |= set(re.findall(r"^(?:Tensor|std::vector<Tensor>|using raw::) ?(\w+)[(;]", header.read(), re.M))
        self.assertGreater(len(declared), 30)
        self.assertEqual(declared - driver - {"name"}, set())
        tried = {step["op"] for name in cases.FAMILIES for i in range(400) for step in cases.make(name, 1, i).case["steps"]}
        self.assertEqual(tried - driver, set())
        # The others are tried by PyTorch's own samples (op_db.py).
        mapped = ""
        for name in ("op_db_elementwise", "op_db_tensors", "op_db_layers", "op_db_modules"):
            with open(f"tests/peers/{name}.py") as source:
                mapped += source.read()
        others = driver - tried - set(op_db_mapping.IN_PLACE)
        self.assertEqual({name for name in others if f'"{name}"' not in mapped}, set())

    def test_every_family_is_run(self):
        with open("tests/peers/differential_test.cc") as source:
            run = source.read()
        for name in cases.FAMILIES:
            self.assertIn(f'"{name}"', run)

    def test_an_error_is_a_refusal(self):
        b = cases.make("matmul", 1, 0)
        self.assertIsNone(b.error)
        verdict, why = judge(b.case, compare.Outcome(error="[matmul] no"), *peer_outcomes(b))
        self.assertEqual((verdict, why), ("refused", "[matmul] no"))

    def run_with(self, operation, **options):
        """Three cases, the middle one of which does `operation`."""
        built = [cases.make("unary", 1, i) for i in range(3)]
        batch = [b.case for b in built]
        batch[1] = batch[1] | {"steps": [{"op": operation, "in": []}]}
        outcomes = run_weft(DRIVER, batch, 1, **options)
        for i in (0, 2):
            self.assertEqual(judge(batch[i], outcomes[i], *peer_outcomes(built[i]))[0], "agree")
        return judge(batch[1], outcomes[1], *peer_outcomes(built[1]))

    def test_a_crash_costs_its_case_alone(self):
        verdict, why = self.run_with("crash")
        self.assertEqual(verdict, "crashed")
        self.assertIn("-11", why)

    def test_a_hang_costs_its_case_alone(self):
        self.assertEqual(self.run_with("hang", seconds=5)[0], "crashed")

    def test_another_exception_counts_as_a_crash(self):
        verdict, why = self.run_with("throw")
        self.assertEqual(verdict, "crashed")
        self.assertIn("not weft's", why)

    def test_what_misses_the_aim(self):
        good = {"family": "conv2d", "accepted": 1000, "agree": 995, "refused": 5, "differ": 0, "crashed": 0}
        self.assertEqual(missed(good), "")
        self.assertIn("agree", missed(good | {"agree": 994, "refused": 6}))
        self.assertIn("agree", missed(good | {"agree": 994, "differ": 6, "refused": 0}))
        self.assertIn("crashed", missed(good | {"crashed": 1}))
        self.assertIn("accepted", missed(good | {"accepted": 0, "agree": 0, "refused": 0}))


if __name__ == "__main__":
    DRIVER = sys.argv.pop(1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    unittest.main(warnings="ignore")
