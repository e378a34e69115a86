#!/usr/bin/env python3
"""weft against PyTorch's own samples of its operations (op_db) and modules (module_db).

  op_db.py --driver .bazel/bin/tests/peers/differential [--only 'nn.functional.conv.*'] [--dtypes f32,i64]
           [--show 3] [--json FILE]

Every operation that op_db_mapping.py has a weft call for, and every module of op_db_modules.py, gets the
samples that PyTorch tests it with, in each dtype that PyTorch takes. A sample ends as

  agree        values, dtypes, shapes and gradients are as good as PyTorch's (compare.py)
  documented   refused, or another result, by a rule of op_db_documented.py, which has the reason
  refused      by weft, or there is no weft call for its arguments
  differ       another result, or a crash

Samples that PyTorch itself refuses do not count. Fails above REFUSED refused or DIFFERING different ones.
"""
import argparse
import collections
import copy
import itertools
import json
import re
import sys
import warnings
import zlib

import torch
from torch.utils import _pytree

import op_db_documented as documented
import op_db_mapping as mapping
import reference
from compare import Outcome, compare
from differential import reason, run_weft
from op_db_case import CaseMaker, Lacks
from reference import DTYPES, NAMES

REFUSED, DIFFERING = 100, 20  # at most, over all operations
PER_DTYPE = 200               # samples
BATCH_SECONDS = 300


def gradient_like(y, generator):
    """What comes in from above: no zeros, for 0 times what left the range is a matter of order."""
    return (torch.rand(y.shape, generator=generator, dtype=torch.float64) + 0.1).to(y.dtype)


def spec_of(memory):
    return {"dtype": NAMES[memory.dtype], "shape": list(memory.shape), "strides": list(memory.stride()), "offset": 0,
            "count": memory.numel(), "memory": memory.flatten()}


class Sample:
    """One sample: the case, and PyTorch's outcomes of it."""

    def __init__(self, name, dtype):
        self.name, self.dtype = name, dtype
        self.case = self.lacks = self.peer = self.exact = None


def leaves_of(outputs):
    """The tensors of what PyTorch returned; bools are those of weft."""
    found = [torch.tensor(x) if isinstance(x, (bool, int, float)) else x for x in _pytree.tree_leaves(outputs)]
    return [x for x in found if isinstance(x, torch.Tensor)]


def run_op(op, sample, tensors, gradients, exact):
    """PyTorch's outcome. `tensors`: those whose gradients are wanted; `gradients`: what comes in, made
    for the first run."""
    copies = {}

    def copied(t):
        if isinstance(t, torch.dtype):
            return torch.float64 if exact and t.is_floating_point else t
        if id(t) not in copies:
            y = t.detach()
            y = y.double() if exact and t.is_floating_point() else y.clone()
            copies[id(t)] = y.requires_grad_(t.requires_grad)
        return copies[id(t)]

    with reference.default_dtype(torch.float64 if exact else torch.float32):
        moved = sample.transform(copied)
        outputs = leaves_of(op(moved.input, *moved.args, **moved.kwargs))
        roots = [y for y in outputs if y.requires_grad]
        if gradients is not None and roots:
            incoming = gradients(roots)
            torch.autograd.backward(roots, [g.to(y.dtype) for g, y in zip(incoming, roots)])
    grads = [copies[id(t)].grad for t in tensors if t.requires_grad]
    return Outcome(tensors=outputs, grads=grads, requires_grad=[y.requires_grad for y in outputs])


class Gradients:
    """Incoming gradients, one for each output that requires them: the same for all runs of a sample."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.made = None

    def __call__(self, roots):
        if self.made is None:
            self.made = [gradient_like(y, self.generator) for y in roots]
        return self.made


def build(op, name, dtype, sample, index):
    """The sample as a case, or None where PyTorch refuses it."""
    built = Sample(name, dtype)
    maker = CaseMaker("elementwise" if name in mapping.ELEMENTWISE else "general")
    try:
        outputs = mapping.MAPPINGS[name](maker, sample.input, *sample.args, **sample.kwargs)
        built.case = maker.finish(outputs)
    except Lacks as lacks:
        built.lacks = f"no call: {lacks}"
    except TypeError as error:
        if "argument" not in str(error):
            raise
        built.lacks = f"no call: {re.sub(r'^.*?[(][)] ', '', str(error))}"
    gradients = Gradients(zlib.crc32(f"{name} {dtype} {index}".encode()))
    try:
        built.peer = run_op(op, sample, maker.tensors, gradients, exact=False)
        if built.lacks:
            return built
        built.exact = run_op(op, sample, maker.tensors, gradients, exact=True)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None
    roots = [i for i, y in zip(built.case["report"], built.peer.tensors) if y.requires_grad]
    if gradients.made is not None:
        built.case["backward"] = [{"of": i, "gradient": spec_of(g.contiguous())} for i, g in zip(roots, gradients.made)]
        built.case["broadcast"] = True
    return built


def samples_of(op, dtype):
    """PyTorch's samples, those for its references included, which have more shapes and values."""
    device, kind = "cpu", DTYPES[dtype]
    if not op.supports_dtype(kind, device):
        return
    grad = op.supports_autograd and kind in op.supported_backward_dtypes(device)
    torch.manual_seed(0)
    both = itertools.chain(op.sample_inputs(device, kind, requires_grad=grad),
                           op.reference_inputs(device, kind, requires_grad=grad))
    yield from itertools.islice(both, PER_DTYPE)


def verdict_of(built, weft):
    """(what the sample ends as, the text)."""
    if built.lacks:
        return "refused", built.lacks
    if weft.error:
        return ("differ" if weft.error.startswith("crash: ") else "refused"), weft.error
    if len(weft.tensors) != len(built.peer.tensors):
        return "differ", f"{len(weft.tensors)} results, PyTorch {len(built.peer.tensors)}"
    one = built.case | {"report": range(len(weft.tensors))}
    found = compare(one, weft, built.peer, built.exact, None)
    return ("differ", "; ".join(found)) if found else ("agree", "")


class Judge:
    def __init__(self, driver, show):
        self.driver, self.show = driver, show
        self.counts = collections.defaultdict(collections.Counter)  # of a name
        self.reasons = {kind: collections.Counter() for kind in ("documented", "refused", "differ")}
        self.examples = collections.defaultdict(list)

    def take(self, name, samples):
        """Judges the samples of an operation."""
        built = [s for s in samples if s is not None]
        cases = [s.case for s in built if not s.lacks]
        outcomes = iter(run_weft(self.driver, cases, 1, BATCH_SECONDS))
        for one in built:
            self.count(name, one, *verdict_of(one, None if one.lacks else next(outcomes)))

    def count(self, name, one, verdict, text):
        rules = {"refused": documented.REFUSED, "differ": documented.DIFFERS}.get(verdict, ())
        known = documented.reason_of(rules, name, one.dtype, text)
        verdict = "documented" if known else verdict
        self.counts[name][verdict] += 1
        if verdict == "agree":
            return
        short = known or f"{name}: {reason(text)}"
        self.reasons[verdict][short] += 1
        if verdict != "documented" and len(self.examples[verdict, short]) < self.show:
            self.examples[verdict, short].append(f"{one.dtype} {text}\n    {brief(one)}")

    def total(self, verdict):
        return sum(c[verdict] for c in self.counts.values())


def brief(one):
    if one.lacks:
        return ""
    inputs = ", ".join(f"{i['dtype']}{i['shape']}{' grad' if i['requires_grad'] else ''}"
                       f"{' ' + str(i['memory'].tolist()) if i['count'] <= 4 else ''}" for i in one.case["inputs"])
    return f"{inputs}; {one.case['steps']}"[:600]


COLUMNS = ("agree", "documented", "refused", "differ")


def report(judge, show, out):
    for kind in ("differ", "refused", "documented"):
        print(f"\n{kind}:", file=out)
        for short, count in judge.reasons[kind].most_common(None if show else 30):
            print(f"  {count:5}  {short}", file=out)
            for example in judge.examples[kind, short]:
                print(f"         {example}", file=out)
    print(f"\n{'':44}" + "".join(f"{c:>11}" for c in COLUMNS), file=out)
    rows = sorted(judge.counts.items())
    for name, counts in rows + [(f"all {len(rows)}", {c: judge.total(c) for c in COLUMNS})]:
        print(f"{name:44}" + "".join(f"{counts[c]:11}" for c in COLUMNS), file=out)


def operations(pattern):
    from torch.testing._internal.common_methods_invocations import op_db
    named = {op.name + ("/" + op.variant_test_name if op.variant_test_name else ""): op for op in op_db}
    unknown = set(mapping.MAPPINGS) - set(named)
    if unknown:
        sys.exit(f"mapped, but not in PyTorch's database: {', '.join(sorted(unknown))}")
    return {name: op for name, op in named.items() if name in mapping.MAPPINGS and re.fullmatch(pattern, name)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True, help="the program of differential.cc")
    parser.add_argument("--only", default=".*", help="the operations whose whole name this pattern matches")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--show", type=int, default=0, help="how many samples of each kind to print")
    parser.add_argument("--json", help="write the counts there, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    judge = Judge(options.driver, options.show)
    for name, op in operations(options.only).items():
        judge.take(name, [build(op, name, dtype, sample, i) for dtype in options.dtypes.split(",")
                          for i, sample in enumerate(samples_of(op, dtype))])
    report(judge, options.show, sys.stdout)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"counts": judge.counts, "reasons": judge.reasons}, out, indent=1)
    if not judge.total("agree"):
        sys.exit("no sample agrees")
    if judge.total("refused") > REFUSED or judge.total("differ") > DIFFERING:
        sys.exit(f"{judge.total('refused')} refused, {judge.total('differ')} differ; at most {REFUSED} and {DIFFERING}")


if __name__ == "__main__":
    main()
