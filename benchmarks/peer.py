#!/usr/bin/env python3
"""The PyTorch side of `./weft bench`: one JSON request a line on stdin, one JSON answer a line on stdout.

  {"cmd": "hello", "device": D}                      -> versions, what it runs on; the rest happens there
  {"cmd": "prepare", "work": W, "threads": T}        -> tries every configuration, keeps the fastest
  {"cmd": "run", "work": W, "steps": N}              -> milliseconds of N steps of the kept configuration
  {"cmd": "memory", "work": W}                       -> peak of live tensor bytes in one step
  {"cmd": "op", "count": N}                          -> microseconds of a 1-element multiply with grad

Inputs are the formula of benchmarks/work.h, so both sides see the same batches.
"""
import itertools
import json
import math
import os
import sys
import tempfile
import time

import torch
from torch.nn import functional as F


sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../examples/pytorch"))
import autoencoder, cnn, mlp  # noqa: E401, E402: the programs' twins

device = torch.device("cpu")


def finish():
    """Steps only queue work on a GPU: every timed region ends here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def hello(where):
    global device
    device = torch.device(where)
    answer = {"torch": torch.__version__, "python": sys.version.split()[0],
              "capability": torch.backends.cpu.get_cpu_capability()}
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # weft times its candidates too
        answer |= {"capability": torch.cuda.get_device_name(device), "cuda": torch.version.cuda,
                   "cudnn": torch.backends.cudnn.version()}
    return answer


def batches(shape, classes, count):
    size = shape[0]
    x = (torch.arange(count * math.prod(shape), dtype=torch.int64) * 7919 % 256).float().div(255)
    labels = torch.arange(count * size).view(count, size) * 7 % classes
    return list(zip(x.view(count, *shape).to(device), labels.to(device)))


class Work:
    """A model, what makes a loss of its output, and how it is trained."""

    def __init__(self, model, shape, optimizer, loss=lambda y, label, x: F.cross_entropy(y, label), classes=10, count=8, block=10):
        self.model, self.shape, self.optimizer, self.loss = model, shape, optimizer, loss
        self.classes, self.count, self.block = classes, count, block


def adam(model, fused):
    return torch.optim.Adam(model.parameters(), fused=fused)


def sgd(**options):
    return lambda model, fused: torch.optim.SGD(model.parameters(), fused=fused, **options)


WORKS = {
    "autoencoder": Work(autoencoder.Autoencoder, (32, 1, 28, 28), adam, loss=lambda y, label, x: F.mse_loss(y[0], x)),
    "mlp": Work(mlp.mlp, (64, 1, 28, 28), sgd(lr=1e-3), block=200),
    "cnn": Work(lambda: cnn.cnn(1 / 16), (64, 3, 32, 32), sgd(lr=0.01), count=2, block=1),
}


class Step:
    """One configuration of one work; calling it takes one training step."""

    def __init__(self, work, channels_last, fused, compiled):
        torch.manual_seed(0)
        self.at = 0
        self.model = work.model().to(device)
        self.data = batches(work.shape, work.classes, work.count)
        self.optimizer = work.optimizer(self.model, fused)
        self.loss = work.loss
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in self.data]
        self.run = torch.compile(self.model) if compiled else self.model

    def __call__(self):
        x, label = self.data[self.at % len(self.data)]
        self.at += 1
        self.optimizer.zero_grad()
        loss = self.loss(self.run(x), label, x)
        loss.backward()
        self.optimizer.step()
        return loss


def time_steps(step, n):
    begin = time.perf_counter()
    for _ in range(n):
        step()
    finish()
    return (time.perf_counter() - begin) * 1e3


kept = {}


def prepare(work, threads, compile_too):
    best = None
    tried = {}
    n = WORKS[work].block
    for t, channels_last, fused, compiled in itertools.product(
            sorted({1, threads if device.type == "cpu" else 1}), (False, True), (False, True), (False, True) if compile_too else (False,)):
        if channels_last and work == "mlp":
            continue
        torch.set_num_threads(t)
        step = Step(WORKS[work], channels_last, fused, compiled)
        time_steps(step, n)
        ms = min(time_steps(step, n) for _ in range(3)) / n
        name = f"threads={t}" + " channels_last" * channels_last + " fused" * fused + " compile" * compiled
        tried[name] = ms
        if best is None or ms < best[0]:
            best = (ms, name, step, t)
    kept[work] = best
    return {"config": best[1], "ms": best[0], "tried": tried}


def peak_memory(work):
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        step = Step(WORKS[work], False, True, False)
        step()
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return {"peak_bytes": torch.cuda.max_memory_allocated(device) - before}
    step = Step(WORKS[work], False, True, False)
    step()
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as p:
            step()
        path = os.path.join(folder, "trace.json")
        p.export_chrome_trace(path)
        with open(path) as f:
            events = [e for e in json.load(f)["traceEvents"] if e.get("name") == "[memory]"]
    # The profiler counts from its own start: add what was alive then.
    live = sum(t.numel() * t.element_size() for t in step.model.parameters())
    live += sum(v.numel() * v.element_size() for s in step.optimizer.state.values() for v in s.values() if torch.is_tensor(v))
    live += sum(p.grad.numel() * p.grad.element_size() for p in step.model.parameters() if p.grad is not None)
    live += sum(t.numel() * t.element_size() for batch in step.data for t in batch)
    total = peak = 0
    for e in sorted(events, key=lambda e: e["ts"]):
        total += e["args"]["Bytes"]
        peak = max(peak, total)
    return {"peak_bytes": live + peak, "events": len(events)}


def op_cost(count):
    torch.set_num_threads(1)
    a = torch.ones(1, requires_grad=True, device=device)
    b = torch.ones(1, requires_grad=True, device=device)
    for _ in range(1000):
        a * b
    begin = time.perf_counter()
    for _ in range(count):
        a * b
    finish()
    return {"us": (time.perf_counter() - begin) / count * 1e6}


def main():
    for line in sys.stdin:
        request = json.loads(line)
        cmd = request["cmd"]
        if cmd == "hello":
            answer = hello(request["device"])
        elif cmd == "prepare":
            answer = prepare(request["work"], request["threads"], request.get("compile", False))
        elif cmd == "run":
            _, _, step, threads = kept[request["work"]]
            torch.set_num_threads(threads)
            answer = {"ms": time_steps(step, request["steps"])}
        elif cmd == "memory":
            answer = peak_memory(request["work"])
        elif cmd == "op":
            answer = op_cost(request["count"])
        else:
            answer = {"error": f"unknown command {cmd}"}
        print(json.dumps(answer), flush=True)


main()
