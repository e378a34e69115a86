#!/usr/bin/env python3
"""The PyTorch side of `./weft bench`: one JSON request a line on stdin, one JSON answer a line on stdout.

  {"cmd": "hello", "device": D}                      -> versions, what it runs on; the rest happens there
  {"cmd": "prepare", "work": W, "precision": P, "threads": T, "most_seconds": S}
                                                     -> tries every configuration, each for a block of steps, and up to four in
                                                        S seconds; keeps the fastest
  {"cmd": "graph"}                                   -> that configuration, its whole step captured as a CUDA graph
  {"cmd": "compile"}                                 -> that configuration under torch.compile
  {"cmd": "run", "side": S, "steps": N}              -> milliseconds of N steps, S being plain, graphed or compiled
  {"cmd": "memory"}                                  -> peak of live tensor bytes in one step
  {"cmd": "op", "count": N}                          -> microseconds of a 1-element multiply with grad
  {"cmd": "latency", "threads": T, "seconds": S}     -> calls a second and percentiles of a small model at batch 1
  {"cmd": "loader", "case": C, "folder": F, "batch_size": B, "workers": W}
                                                     -> tries every way to load it, keeps the fastest, or why not
  {"cmd": "epoch"}                                   -> images a second over an epoch of that loader

What cannot be done answers {"error": WHY}. W is benchmarks/work.h's WorkSpec; inputs are its formula, so both
sides see the same batches. P is default (PyTorch's own), f32, tf32 or bf16 (autocast).
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
import autoencoder, char_transformer, cnn, dcgan, mlp, resnet  # noqa: E401, E402: the examples' twins
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
        torch.backends.cudnn.benchmark = True  # weft times its candidates, too
        answer |= {"capability": torch.cuda.get_device_name(device), "cuda": torch.version.cuda,
                   "cudnn": torch.backends.cudnn.version()}
    return answer


def batches(shape, classes, count):
    size = shape[0]
    x = (torch.arange(count * math.prod(shape), dtype=torch.int64) * 7919 % 256).float().div(255)
    labels = torch.arange(count * size).view(count, size) * 7 % classes
    return list(zip(x.view(count, *shape).to(device), labels.to(device)))


def adam(**options):
    return lambda model, **fused: torch.optim.Adam(model.parameters(), **options, **fused)


def sgd(**options):
    # SGD has no step count that a graph would have to keep on the device.
    return lambda model, fused, capturable: torch.optim.SGD(model.parameters(), fused=fused, **options)


class Step:
    """One configuration of one work; calling it takes one training step."""

    def __init__(self, spec, channels_last, fused, amp, graphed, compiled):
        torch.manual_seed(0)
        self.spec, self.at = spec, 0
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        # Only for a graph, since this flag of Adam costs some time.
        self.fused = {"fused": fused, "capturable": graphed and device.type == "cuda"}
        self.autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=amp,
                                cache_enabled=not graphed)  # the captured step would use a cached weight forever
        self.compiled = compiled
        # On a GPU this uses CUDA graphs, as one does if launches cost much.
        self.mode = "reduce-overhead" if device.type == "cuda" else None

    def batches(self, shape):
        data = batches(shape, self.spec["classes"], self.spec["count"])
        return [(x.contiguous(memory_format=self.format), y) for x, y in data]

    def place(self, model):
        return model.to(device).to(memory_format=self.format)

    def next(self):
        """The tensors of the next batch."""
        at, self.at = self.at % self.spec["count"], self.at + 1
        return [data[at] for data in self.data]

    def __call__(self):
        if self.compiled and device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        self.train(*self.next())


class Classifier(Step):
    """A model, and what makes a loss of its output."""

    def __init__(self, spec, *configuration, model, optimizer, loss=lambda y, label: F.cross_entropy(y, label)):
        super().__init__(spec, *configuration)
        self.model, self.loss = self.place(model(spec)), loss
        self.data = list(zip(*self.batches(spec["images"])))
        self.optimizers = [optimizer(self.model, **self.fused)]
        self.run = torch.compile(self.model, mode=self.mode) if self.compiled else self.model

    def train(self, x, label):
        self.optimizers[0].zero_grad()
        with self.autocast():
            loss = self.loss(self.run(x), label)
        loss.backward()
        self.optimizers[0].step()


class Autoencoder(Classifier):
    """The images are the labels."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options, loss=lambda y, x: F.mse_loss(y[0], x))
        self.data = self.data[:1]

    def train(self, x):
        super().train(x, x)


class Transformer(Step):
    """Texts of characters that follow a formula, and the characters after each; or the forward alone."""

    def __init__(self, spec, *configuration):
        super().__init__(spec, *configuration)
        (texts, length), count = spec["images"], spec["count"]
        self.model = char_transformer.CharTransformer(spec["classes"], length).to(device).train(spec["train"])
        i = torch.arange(count * texts * length + 1) * 7919 % spec["classes"]
        self.data = [part.view(count, texts, length).to(device) for part in (i[:-1], i[1:])]
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), **self.fused)] if spec["train"] else []
        self.run = torch.compile(self.model, mode=self.mode) if self.compiled else self.model

    def train(self, x, y):
        if not self.spec["train"]:
            with torch.inference_mode(), self.autocast():
                return self.run(x)
        self.optimizers[0].zero_grad()
        with self.autocast():
            loss = char_transformer.next_character_loss(self.run, x, y)
        loss.backward()
        self.optimizers[0].step()


class Gan(Step):
    """One step of the discriminator, one of the generator."""

    def __init__(self, spec, *configuration):
        super().__init__(spec, *configuration)
        size, channels, latent = spec["images"][2], spec["channels"], spec["latent"]
        self.model = dcgan.Gan(size, channels, latent)
        self.model.apply(dcgan.init)
        self.place(self.model)
        self.data = [[x for x, _ in self.batches(shape)] for shape in (spec["images"], (spec["images"][0], latent, 1, 1))]
        self.optimizers = [adam(lr=2e-4, betas=(0.5, 0.999))(net, **self.fused)
                           for net in (self.model.discriminator, self.model.generator)]
        if self.compiled:
            self.model.generator.compile(mode=self.mode)
            self.model.discriminator.compile(mode=self.mode)

    def train(self, real, noise):
        with self.autocast():
            fake = self.model.generator(noise)
            dcgan.train_discriminator(self.model, self.optimizers[0], real, fake)
            dcgan.train_generator(self.model, self.optimizers[1], fake)


# Makes the step of a WorkSpec and a configuration.
MODELS = {
    "autoencoder": partial(Autoencoder, model=lambda spec: autoencoder.Autoencoder(), optimizer=adam()),
    "mlp": partial(Classifier, model=lambda spec: mlp.mlp(), optimizer=sgd(lr=1e-3)),
    "cnn": partial(Classifier, model=lambda spec: cnn.cnn(spec["width"], spec["hidden"]), optimizer=sgd(lr=0.01)),
    "resnet": partial(Classifier, model=lambda spec: resnet.resnet(spec["depth"], num_classes=spec["classes"]),
                      optimizer=sgd(lr=0.1, momentum=0.9, weight_decay=1e-4)),
    "dcgan": Gan,
    "transformer": Transformer,
}


class Graphed:
    """The whole step as one CUDA graph, as torch.cuda.CUDAGraph's documentation has it; batches are copied into the
    tensors that it reads."""

    def __init__(self, step):
        self.step = step
        self.inputs = [x.clone() for x in step.next()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step.train(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        for optimizer in step.optimizers:
            optimizer.zero_grad()  # so that gradients are in the graph's memory
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step.train(*self.inputs)

    def __call__(self):
        for to, x in zip(self.inputs, self.step.next()):
            to.copy_(x)
        self.graph.replay()


def time_steps(step, n):
    begin = time.perf_counter()
    for _ in range(n):
        step()
    finish()
    return (time.perf_counter() - begin) * 1e3


def set_precision(name):
    """TF32 or not for products and convolutions; "default" as PyTorch starts."""
    torch.backends.cuda.matmul.allow_tf32 = name in ("tf32", "bf16")
    torch.backends.cudnn.allow_tf32 = name != "f32"


class Kept:
    """The work in hand: its fastest configuration, and the sides made of it."""

    def __init__(self, spec, precision, threads, most_seconds):
        self.make = partial(MODELS[spec["model"]], spec)
        self.block, self.amp = spec["block"], precision == "bf16"
        self.sides, self.tried, best = {}, {}, None
        set_precision(precision)
        has_layouts = len(spec["images"]) == 4 and spec["images"][1] > 1
        for t, channels_last, fused in itertools.product(
                sorted({1, threads if device.type == "cpu" else 1}), {False, has_layouts}, (False, True)):
            torch.set_num_threads(t)
            step = self.make(channels_last, fused, self.amp, False, False)
            first = time_steps(step, 1)
            blocks = [time_steps(step, self.block)]
            while len(blocks) < 4 and sum(blocks) < most_seconds * 1e3:
                blocks.append(time_steps(step, self.block))
            ms = min(blocks) / self.block
            name = f"threads={t}" + " channels_last" * channels_last + " fused" * fused
            if not self.tried:
                self.first_ms = first
            self.tried[name] = ms
            if best is None or ms < best:
                best, self.config, self.threads, self.configuration = ms, name, t, (channels_last, fused)
                self.sides["plain"] = step
        torch.set_num_threads(self.threads)

    def graph(self):
        if device.type != "cuda":
            return {"error": f"{device.type} has no CUDA graphs"}
        self.sides["graphed"] = Graphed(self.make(*self.configuration, self.amp, True, False))
        return {}

    def compile(self):
        """Takes minutes, so that only the fastest configuration is compiled."""
        step = self.make(*self.configuration, self.amp, False, True)
        seconds = time_steps(step, 1) / 1e3
        time_steps(step, self.block)
        self.sides["compiled"] = step
        return {"seconds": seconds}

    def run(self, side, steps):
        torch.set_num_threads(self.threads)
        return {"ms": time_steps(self.sides[side], steps)}


kept = None


def prepare(work, precision, threads, most_seconds):
    global kept
    kept = None  # frees its memory
    if device.type == "cuda":
        torch.cuda.empty_cache()
    kept = Kept(work, precision, threads, most_seconds)
    return {"config": kept.config, "tried": kept.tried, "first_ms": kept.first_ms}


def peak_memory():
    make = partial(kept.make, False, True, kept.amp, False, False)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        step = make()
        step()
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return {"peak_bytes": torch.cuda.max_memory_allocated(device) - before}
    step = make()
    step()
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as p:
            step()
        path = os.path.join(folder, "trace.json")
        p.export_chrome_trace(path)
        with open(path) as f:
            events = [e for e in json.load(f)["traceEvents"] if e.get("name") == "[memory]"]
    # The profiler counts from its start: adds what was in use before.
    live = sum(t.numel() * t.element_size() for t in step.model.parameters())
    live += sum(v.numel() * v.element_size() for o in step.optimizers for s in o.state.values() for v in s.values() if torch.is_tensor(v))
    live += sum(p.grad.numel() * p.grad.element_size() for p in step.model.parameters() if p.grad is not None)
    live += sum(t.numel() * t.element_size() for data in step.data for t in data)
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


def latency(threads, seconds):
    """One call of the model of benchmarks/latency.h after the other."""
    torch.set_num_threads(threads)
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).eval()
    x, us = torch.randn(1, 784), []
    with torch.inference_mode():
        for _ in range(100):
            model(x)
        begin = last = time.perf_counter()
        while last - begin < seconds:
            model(x)
            now = time.perf_counter()
            us.append((now - last) * 1e6)
            last = now
    us.sort()
    at = lambda share: us[int(share * (len(us) - 1))]  # noqa: E731
    return {"per_second": len(us) / (last - begin), "p50_us": at(0.5), "p99_us": at(0.99)}


COMMANDS = {
    "hello": lambda device: hello(device),
    "prepare": prepare,
    "graph": lambda: kept.graph(),
    "compile": lambda: kept.compile(),
    "run": lambda side, steps: kept.run(side, steps),
    "memory": peak_memory,
    "op": op_cost,
    "latency": latency,
    "loader": loader_peer.prepare,
    "epoch": lambda: {"per_second": loader_peer.epoch()},
}


def main(commands=COMMANDS):
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = commands[request.pop("cmd")](**request)
        except Exception as error:  # too little memory, no C++ compiler, something Inductor cannot do: that row's loss
            text = str(error).strip().splitlines()
            answer = {"error": f"{type(error).__name__}: {text[0] if text else ''}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
