#!/usr/bin/env python3
"""One rank of the PyTorch side of `./weft bench ddp`: peer.py's conversation, with

  {"cmd": "prepare", "work": W, "rank": R, "ranks": N, "folder": F}
                                  -> tries every configuration of DistributedDataParallel with Gloo, keeps the fastest
  {"cmd": "run", "steps": N}      -> milliseconds of N steps

The ranks meet in folder F; each has one thread.
"""
import itertools
import os

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # before torch reads it

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import peer  # noqa: E402

step = None


def make(work, fused, static_graph, gradient_as_bucket_view):
    made = peer.MODELS[work["model"]](work, False, fused, False, False, False)
    made.run = DistributedDataParallel(made.model, static_graph=static_graph, gradient_as_bucket_view=gradient_as_bucket_view)
    return made


def slowest(ms):
    """The time of the slowest rank, so that all choose the same configuration."""
    most = torch.tensor([ms], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item()


def prepare(work, rank, ranks, folder, **_):
    global step
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    tried, best, config = {}, None, None
    names = ("fused", "static_graph", "gradient_as_bucket_view")
    for flags in itertools.product((False, True), repeat=3):
        candidate = make(work, *flags)
        peer.time_steps(candidate, work["block"])
        ms = slowest(min(peer.time_steps(candidate, work["block"]) for _ in range(3)) / work["block"])
        name = " ".join(n for n, flag in zip(names, flags) if flag) or "defaults"
        tried[name] = ms
        if best is None or ms < best:
            best, config, step = ms, name, candidate
    return {"config": config, "tried": tried, "torch": torch.__version__}


peer.main({"prepare": prepare, "run": lambda steps, **_: {"ms": peer.time_steps(step, steps)}})
if dist.is_initialized():
    dist.destroy_process_group()
