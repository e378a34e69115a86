#!/usr/bin/env python3
"""The PyTorch side of `./weft bench`: one JSON request a line on stdin, one JSON answer a line on stdout.

  {"cmd": "hello", "device": D}                      -> versions, what it runs on; the rest happens there
  {"cmd": "prepare", "work": W, "threads": T}        -> tries every configuration, keeps the fastest
  {"cmd": "compile", "work": W}                      -> the kept configuration under torch.compile, or why not
  {"cmd": "run", "work": W, "steps": N}              -> milliseconds of N steps of the kept configuration;
                                                        with "compiled": true of that one under torch.compile
  {"cmd": "memory", "work": W}                       -> peak of live tensor bytes in one step
  {"cmd": "op", "count": N}                          -> microseconds of a 1-element multiply with grad
  {"cmd": "loader", "case": C, "folder": F, "batch_size": B, "workers": W}
                                                     -> tries every way to load it, keeps the fastest, or why not
  {"cmd": "epoch"}                                   -> images a second over an epoch of that loader

Inputs are the formula of benchmarks/work.h, so both sides see the same batches.
"""
import itertools
import json
import math
import os
import sys
import tempfile
import time
from functools import partial

import torch
from torch.nn import functional as F


sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../examples/pytorch"))
import autoencoder, cnn, dcgan, mlp, resnet  # noqa: E401, E402: the programs' twins
import loader_peer  # noqa: E402

device = torch.device("cpu")


def finish():
    """Steps only queue work on a GPU: every timed region ends here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def hello(where):
    global device
    device = torch.device(where)
    answer = {"torch": torch.__version__, "python": sys.version.split()[0],
              "capability": torch.backends.cpu.get_cpu_capability()} | loader_peer.VERSIONS
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


def adam(model, fused):
    return torch.optim.Adam(model.parameters(), fused=fused)


def sgd(**options):
    return lambda model, fused: torch.optim.SGD(model.parameters(), fused=fused, **options)


class Step:
    """One configuration of one work; calling it takes one training step."""

    def __init__(self, channels_last):
        torch.manual_seed(0)
        self.at = 0
        self.format = torch.channels_last if channels_last else torch.contiguous_format

    def batches(self, shape, classes=10, count=8):
        data = batches(shape, classes, count)
        return [(x.contiguous(memory_format=self.format), y) for x, y in data] if len(shape) == 4 else data

    def place(self, model):
        return model.to(device).to(memory_format=self.format)

    def next(self, data):
        return data[self.at % len(data)]


class Classifier(Step):
    """A model, and what makes a loss of its output."""

    def __init__(self, channels_last, fused, compiled, model, shape, optimizer, classes=10, count=8,
                 loss=lambda y, label, x: F.cross_entropy(y, label)):
        super().__init__(channels_last)
        self.model, self.loss = self.place(model()), loss
        self.data = self.batches(shape, classes, count)
        self.optimizers = [optimizer(self.model, fused)]
        self.run = torch.compile(self.model) if compiled else self.model

    def __call__(self):
        x, label = self.next(self.data)
        self.at += 1
        self.optimizers[0].zero_grad()
        self.loss(self.run(x), label, x).backward()
        self.optimizers[0].step()

    def inputs(self):
        return [t for batch in self.data for t in batch]


class Gan(Step):
    """One step of the discriminator, one of the generator."""

    def __init__(self, channels_last, fused, compiled):
        super().__init__(channels_last)
        self.model = dcgan.Gan(64, 64, 100)
        self.model.apply(dcgan.init)
        self.place(self.model)
        self.real, self.noise = self.batches((64, 1, 64, 64), count=2), self.batches((64, 100, 1, 1), count=2)
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=fused)
                           for net in (self.model.discriminator, self.model.generator)]
        if compiled:
            self.model.generator.compile()
            self.model.discriminator.compile()

    def __call__(self):
        real, fake = self.next(self.real)[0], self.model.generator(self.next(self.noise)[0])
        self.at += 1
        dcgan.train_discriminator(self.model, self.optimizers[0], real, fake)
        dcgan.train_generator(self.model, self.optimizers[1], fake)

    def inputs(self):
        return [t for batch in self.real + self.noise for t in batch]


# What makes a step of (channels_last, fused, compiled), and how many are timed as one.
WORKS = {
    "autoencoder": (partial(Classifier, model=autoencoder.Autoencoder, shape=(32, 1, 28, 28), optimizer=adam,
                            loss=lambda y, label, x: F.mse_loss(y[0], x)), 10),
    "mlp": (partial(Classifier, model=mlp.mlp, shape=(64, 1, 28, 28), optimizer=sgd(lr=1e-3)), 200),
    "cnn": (partial(Classifier, model=partial(cnn.cnn, 1 / 16), shape=(64, 3, 32, 32), optimizer=sgd(lr=0.01),
                    count=2), 1),
    "resnet50": (partial(Classifier, model=partial(resnet.resnet, 50), shape=(8, 3, 224, 224), classes=1000, count=2,
                         optimizer=sgd(lr=0.1, momentum=0.9, weight_decay=1e-4)), 1),
    "dcgan": (Gan, 1),
}


def time_steps(step, n):
    begin = time.perf_counter()
    for _ in range(n):
        step()
    finish()
    return (time.perf_counter() - begin) * 1e3


kept = {}
compiled = {}


def prepare(work, threads):
    best = None
    tried = {}
    make, n = WORKS[work]
    for t, channels_last, fused in itertools.product(
            sorted({1, threads if device.type == "cpu" else 1}), (False, True), (False, True)):
        if channels_last and work == "mlp":
            continue
        torch.set_num_threads(t)
        step = make(channels_last, fused, False)
        time_steps(step, n)
        ms = min(time_steps(step, n) for _ in range(3)) / n
        name = f"threads={t}" + " channels_last" * channels_last + " fused" * fused
        tried[name] = ms
        if best is None or ms < best[0]:
            best = (ms, name, step, t, (channels_last, fused))
    kept[work] = best
    return {"config": best[1], "ms": best[0], "tried": tried}


def compile_kept(work):
    """Compiling takes minutes, so that only the fastest configuration is."""
    make, n = WORKS[work]
    _, _, _, threads, (channels_last, fused) = kept[work]
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    try:
        step = make(channels_last, fused, True)
        time_steps(step, 1)
    except Exception as error:  # no C++ compiler, something Inductor cannot do: to be reported, not to end the run
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"}
    seconds = time.perf_counter() - begin
    time_steps(step, n)
    compiled[work] = step
    return {"seconds": seconds}


def peak_memory(work):
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        step = WORKS[work][0](False, True, False)
        step()
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return {"peak_bytes": torch.cuda.max_memory_allocated(device) - before}
    step = WORKS[work][0](False, True, False)
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
    live += sum(v.numel() * v.element_size() for o in step.optimizers for s in o.state.values() for v in s.values() if torch.is_tensor(v))
    live += sum(p.grad.numel() * p.grad.element_size() for p in step.model.parameters() if p.grad is not None)
    live += sum(t.numel() * t.element_size() for t in step.inputs())
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
            answer = prepare(request["work"], request["threads"])
        elif cmd == "compile":
            answer = compile_kept(request["work"])
        elif cmd == "run":
            _, _, step, threads, _ = kept[request["work"]]
            torch.set_num_threads(threads)
            answer = {"ms": time_steps(compiled[request["work"]] if request.get("compiled") else step, request["steps"])}
        elif cmd == "loader":
            answer = loader_peer.prepare(request["case"], request["folder"], request["batch_size"], request["workers"])
        elif cmd == "epoch":
            answer = {"per_second": loader_peer.epoch()}
        elif cmd == "memory":
            answer = peak_memory(request["work"])
        elif cmd == "op":
            answer = op_cost(request["count"])
        else:
            answer = {"error": f"unknown command {cmd}"}
        print(json.dumps(answer), flush=True)


main()
