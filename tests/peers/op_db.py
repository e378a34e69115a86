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
import op_db_elementwise  # noqa: F401: fills the table, as the next two
import op_db_layers  # noqa: F401
import op_db_mapping as mapping
import op_db_modules as modules
import op_db_tensors  # noqa: F401
import reference
from compare import Outcome, compare
from differential import reason, run_weft
from op_db_case import CaseMaker, Lacks
from reference import DTYPES, NAMES

REFUSED, DIFFERING = 100, 20  # at most, over all operations
PER_DTYPE = 120               # samples, and as many of those for its references
BATCH_SECONDS = 300


def gradient_like(y, generator):
    """What comes in from above: no zeros, for 0 times what left the range is a matter of order."""
    return (torch.rand(y.shape, generator=generator, dtype=torch.float64) + 0.1).to(y.dtype)


def spec_of(memory):
    return {"dtype": NAMES[memory.dtype], "shape": list(memory.shape), "strides": list(memory.stride()), "offset": 0,
            "count": memory.numel(), "memory": memory.flatten()}


class Sample:
    """One sample: the case, and PyTorch's outcomes of it, in its dtype and in f64."""

    def __init__(self, name, dtype):
        self.name, self.dtype = name, dtype
        self.case = self.lacks = self.peer = self.exact = None


class Incoming:
    """The gradients that come in, one for each output that requires one: the same in all runs."""

    def __init__(self, *seed):
        self.generator = torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))
        self.made = []

    def go_back(self, outputs):
        roots = [y for y in outputs if y.requires_grad]
        if not self.made:
            self.made = [gradient_like(y, self.generator) for y in roots]
        if roots:
            torch.autograd.backward(roots, [g.to(y.dtype) for g, y in zip(self.made, roots)])


def leaves_of(outputs):
    """The tensors of what PyTorch returned; a number is a tensor of weft's."""
    found = [torch.tensor(x) if isinstance(x, (bool, int, float)) else x for x in _pytree.tree_leaves(outputs)]
    return [x for x in found if isinstance(x, torch.Tensor)]


class Copies:
    """Copies of a sample's tensors for one run: a tensor that is there twice stays one."""

    def __init__(self, exact):
        self.exact, self.made = exact, {}

    def __call__(self, t):
        if isinstance(t, torch.dtype):
            return torch.float64 if self.exact and t.is_floating_point else t
        if not isinstance(t, torch.Tensor):
            return t
        if id(t) not in self.made:
            y = t.detach()
            y = y.double() if self.exact and t.is_floating_point() else y.clone()
            self.made[id(t)] = y.requires_grad_(t.requires_grad)
        return self.made[id(t)]

    def leaves(self, tensors):
        return [self.made[id(t)] for t in tensors if t.requires_grad]


def run_op(op, sample, tensors, incoming, exact):
    """PyTorch's outcome, with the gradients of `tensors`."""
    copies = Copies(exact)
    with reference.default_dtype(torch.float64 if exact else torch.float32):
        moved = sample.transform(copies)
        outputs = leaves_of(op(moved.input, *moved.args, **moved.kwargs))
        incoming.go_back(outputs)
    return Outcome(tensors=outputs, grads=[x.grad for x in copies.leaves(tensors)],
                   requires_grad=[y.requires_grad for y in outputs])


def run_module(module, forward, tensors, incoming, exact):
    """The same of a module: the outputs are those of forward and then the state."""
    copies, module = Copies(exact), copy.deepcopy(module)
    module = module.double() if exact else module
    outputs = leaves_of(module(*_pytree.tree_map(copies, forward.args), **_pytree.tree_map(copies, forward.kwargs)))
    incoming.go_back(outputs)
    state = list(module.state_dict(keep_vars=True).values())
    return Outcome(tensors=outputs + state,
                   grads=[x.grad for x in copies.leaves(tensors) + [p for p in state if p.requires_grad]],
                   requires_grad=[y.requires_grad for y in outputs + state])


PEER_REFUSES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)


def attempt(built, to_case):
    """Makes the case, or finds out what weft lacks for it."""
    try:
        built.case = to_case()
    except Lacks as lacks:
        built.lacks = f"no call: {lacks}"
    except TypeError as error:  # an argument that a mapping does not take
        if "argument" not in str(error):
            raise
        built.lacks = "no call: " + re.sub(r"^.*?[(][)] ", "", str(error))


def build(op, name, dtype, sample, index):
    """The sample as a case, or None where PyTorch refuses it."""
    built = Sample(name, dtype)
    maker = CaseMaker("elementwise" if name in mapping.ELEMENTWISE
                      else "no values" if name in mapping.NO_VALUES else "general")
    attempt(built, lambda: maker.finish(mapping.MAPPINGS[name](maker, sample.input, *sample.args, **sample.kwargs)))
    incoming = Incoming(name, dtype, index)
    try:
        built.peer = run_op(op, sample, maker.tensors, incoming, exact=False)
        built.exact = None if built.lacks else run_op(op, sample, maker.tensors, incoming, exact=True)
    except PEER_REFUSES:
        return None
    if not built.peer.tensors:  # NotImplemented
        return None
    return built if built.lacks else with_backward(built, incoming)


def build_module(name, info, dtype, training, sample, module, index):
    """The same of a module."""
    built = Sample(name, dtype)
    maker = CaseMaker("general")
    attempt(built, lambda: maker.finish(modules.to_case(maker, info, sample, module, training, DTYPES[dtype])))
    incoming = Incoming(name, dtype, index)
    try:
        run = lambda exact: run_module(module, sample.forward_input, maker.tensors, incoming, exact)
        built.peer = run(False)
        built.exact = None if built.lacks else run(True)
    except PEER_REFUSES:
        return None
    if built.lacks:
        return built
    inputs = [i for i, x in enumerate(maker.tensors) if x.requires_grad]
    state = built.case["report"][len(built.case["report"]) - len(module.state_dict()):]
    parameters = [i for i, p in zip(state, module.state_dict(keep_vars=True).values()) if p.requires_grad]
    built.case["grads_of"] = inputs + parameters
    return with_backward(built, incoming)


def with_backward(built, incoming):
    case = built.case
    roots = [i for i, y in zip(case["report"], built.peer.tensors) if y.requires_grad]
    if incoming.made:
        case["backward"] = [{"of": i, "gradient": spec_of(g.contiguous())} for i, g in zip(roots, incoming.made)]
        case["broadcast"] = True
    return built


def samples_of(op, dtype):
    """PyTorch's samples, those for its references included, which have more shapes and values."""
    device, kind = "cpu", DTYPES[dtype]
    if not op.supports_dtype(kind, device):
        return
    grad = op.supports_autograd and kind in op.supported_backward_dtypes(device)
    torch.manual_seed(0)
    for inputs in (op.sample_inputs, op.reference_inputs):
        try:
            yield from itertools.islice(inputs(device, kind, requires_grad=grad), PER_DTYPE)
        except ValueError as error:  # some samples are made of integers, with a gradient for the floating dtype
            if "integral dtypes" not in str(error):
                raise


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
        # A crash has no excuse.
        known = None if text.startswith("crash: ") else documented.reason_of(rules, name, one.dtype, text)
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


def in_place(op, method):
    """The method that writes to x, as an operation that leaves x alone."""
    def call(x, *args, **options):
        if not isinstance(x, torch.Tensor):
            raise TypeError("a number cannot be written to")
        return getattr(torch.Tensor, method)(x.clone(), *args, **options)
    one = copy.copy(op)
    one.op = call
    return one


def operations(pattern):
    from torch.testing._internal.common_methods_invocations import op_db
    named = {op.name + ("/" + op.variant_test_name if op.variant_test_name else ""): op for op in op_db}
    for name, of in mapping.IN_PLACE.items():
        named[name] = in_place(named[of], name)
    unknown = set(mapping.MAPPINGS) - set(named)
    if unknown:
        sys.exit(f"mapped, but not in PyTorch's database: {', '.join(sorted(unknown))}")
    return {name: op for name, op in named.items() if name in mapping.MAPPINGS and re.fullmatch(pattern, name)}


def module_infos(pattern):
    from torch.testing._internal.common_modules import module_db
    named = {info.name: info for info in module_db}
    return {name: named[name] for name in ("nn." + n for n in modules.OPTIONS) if re.fullmatch(pattern, name)}


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
        print(name, file=sys.stderr, flush=True)
        judge.take(name, [build(op, name, dtype, sample, i) for dtype in options.dtypes.split(",")
                          for i, sample in enumerate(samples_of(op, dtype))])
    for name, info in module_infos(options.only).items():
        judge.take(name, [build_module(name, info, dtype, *sample, i)
                          for dtype in options.dtypes.split(",") if DTYPES[dtype] in info.dtypes
                          for i, sample in enumerate(modules.samples_of(info, DTYPES[dtype]))])
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
