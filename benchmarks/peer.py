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
import os
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 64, 3), nn.Linear(36864, 32)
        self.fc2, self.conv3, self.conv4 = nn.Linear(32, 36864), nn.ConvTranspose2d(64, 8, 3), nn.ConvTranspose2d(8, 1, 3)

    def forward(self, x):
        z = self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))
        y = F.relu(self.fc2(z).view(-1, 64, 24, 24))
        return torch.sigmoid(self.conv4(F.relu(self.conv3(y))))


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


def batches(size, count=8):
    n = count * size * 784
    x = (torch.arange(n, dtype=torch.int64) * 7919 % 256).float().div(255).view(count, size, 1, 28, 28)
    labels = torch.arange(count * size).view(count, size) * 7 % 10
    return list(zip(x.to(device), labels.to(device)))


class Step:
    """One configuration of one work; calling it takes one training step."""

    def __init__(self, work, channels_last, fused, compiled):
        torch.manual_seed(0)
        self.autoencoder = work == "autoencoder"
        self.at = 0
        if self.autoencoder:
            self.model, self.data = Autoencoder().to(device), batches(32)
            self.optimizer = torch.optim.Adam(self.model.parameters(), fused=fused)
        else:
            self.model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
            self.data = batches(64)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=fused)
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in self.data]
        self.run = torch.compile(self.model) if compiled else self.model

    def __call__(self):
        x, label = self.data[self.at % len(self.data)]
        self.at += 1
        self.optimizer.zero_grad()
        y = self.run(x)
        loss = F.mse_loss(y, x) if self.autoencoder else F.cross_entropy(y, label)
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
    for t, channels_last, fused, compiled in itertools.product(
            sorted({1, threads if device.type == "cpu" else 1}), (False, True), (False, True), (False, True) if compile_too else (False,)):
        if channels_last and work == "mlp":
            continue
        torch.set_num_threads(t)
        step = Step(work, channels_last, fused, compiled)
        n = 10 if work == "autoencoder" else 200
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
        step = Step(work, False, True, False)
        step()
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return {"peak_bytes": torch.cuda.max_memory_allocated(device) - before}
    step = Step(work, False, True, False)
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
