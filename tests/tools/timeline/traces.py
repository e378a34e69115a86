"""Traces made by hand."""
import json
import subprocess
import tempfile

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight",
         "R": "recompute"}


def simulate(schedule, forward, backward_input, backward_weight=None):
    """What tools/schedule says about when the actions of a schedule run: "gpipe --stages 2
    --micro-batches 2", for example, with seconds by stage."""
    with tempfile.NamedTemporaryFile("w") as costs:
        json.dump({"forward": forward, "backward_input": backward_input,
                   "backward_weight": backward_weight or [0] * len(forward)}, costs)
        costs.flush()
        return json.loads(subprocess.run(
            ["tools/schedule/schedule", *schedule.split(), "--json", "--costs", costs.name],
            check=True, stdout=subprocess.PIPE).stdout)


class Trace:
    def __init__(self):
        self.events = []

    def add(self, category, name, begin, end, thread, args, rank=0):
        """Times in milliseconds."""
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": rank, "tid": thread,
                            "ts": begin * 1000, "dur": (end - begin) * 1000, "args": args})

    def add_cores(self, count):
        """What each process writes about the number of cores on which it may run."""
        self.events.append({"ph": "M", "name": "process_labels", "pid": 0,
                            "args": {"labels": f"cores: {count}"}})

    def add_memory(self, time, device, owner, mib, rank=0):
        """What the allocator writes about the memory that an owner has from now on."""
        self.events.append({"ph": "C", "name": f"memory of {device}", "pid": rank,
                            "ts": time * 1000, "args": {owner: mib * 2 ** 20}})

    def add_pipeline(self, step, timeline, begin, device="cpu:", first_thread=3, rank=0):
        """What Pipeline writes about a step on devices `device`0, 1 ... that takes as long as
        `timeline` says."""
        for timed in timeline["actions"]:
            letter, (stage, micro_batch) = timed["action"][0], timed["action"][1:].split(".")
            d = timed["device"]
            self.add("pipeline", KINDS[letter], begin + timed["begin"] * 1e3,
                     begin + timed["end"] * 1e3, first_thread + d,
                     {"step": step, "device": f"{device}{d}", "stage": int(stage),
                      "micro_batch": int(micro_batch)}, rank)
        self.add("pipeline", "step", begin, begin + timeline["end"] * 1e3, 0, {"step": step}, rank)

    def add_data_parallel(self, step, begin):
        """What DataParallel writes about a forward and backward of 10 ms on two devices."""
        def on(device, category, name, start, end, **replica):
            self.add(category, name, begin + start, begin + end, 3 + device,
                     {"step": step, "device": f"cpu:{device}", **replica})

        def caller(category, name, start, end):
            self.add(category, name, begin + start, begin + end, 0, {"step": step})
        caller("parallel", "scatter", 0, 1)
        on(1, "parallel", "replicate", 1.5, 2, replica=1)
        caller("parallel", "replicate", 1, 2)
        on(0, "parallel", "parallel_apply", 2, 4, replica=0)
        on(1, "parallel", "parallel_apply", 2, 3.5, replica=1)
        caller("parallel", "parallel_apply", 2, 4)
        caller("parallel", "gather", 4, 4.5)
        on(0, "backward", "linear", 5, 8)
        on(0, "backward", "relu", 6, 7)  # within the other
        on(1, "backward", "linear", 6, 10)
        on(0, "parallel", "reduce_gradients", 9, 9.5)
        caller("parallel", "scatter_gradients", 5, 5.5)
        caller("parallel", "parallel_backward", 5.5, 10)
        caller("phase", "backward", 5, 10)

    def add_model_parallel(self, step, begin):
        """What a model in two parts writes about a forward and backward of 10 ms."""
        def on(device, category, name, start, end, **args):
            self.add(category, name, begin + start, begin + end, 0,
                     {"step": step, "device": f"cpu:{device}", **args})
        on(0, "op", "conv2d", 0, 1, module="encoder.conv1")
        on(0, "op", "linear", 1, 2, module="encoder.fc")
        on(1, "op", "copy_", 2, 2.5, **{"from": 0})
        on(1, "op", "linear", 2.5, 4, module="decoder.fc")
        on(1, "backward", "linear", 4, 6, module="decoder.fc")
        on(1, "op", "matmul", 4, 5, module="decoder.fc")  # within the other
        on(0, "op", "copy_", 6, 6.5, **{"from": 1})
        on(0, "backward", "linear", 6.5, 9.5, module="encoder.fc")
        self.add("phase", "backward", begin + 4, begin + 10, 0, {"step": step})
        on(0, "optim", "part", 10, 11)
        on(1, "optim", "part", 10.5, 12)

    def add_ddp(self, step, begin):
        """What two ranks write about a step of 50 ms. Rank 1 has its bucket 6 ms later."""
        for rank, late in (0, 0), (1, 6):
            def span(category, name, start, end, **args):
                self.add(category, name, begin + start, begin + end, 0, {**args, "step": step},
                         rank)
            span("forward", "Sequential", 0, 10)
            span("backward", "linear", 10, 30 + late)
            span("ddp", "send bucket", 29 + late, 30 + late, bucket=0, bytes=400)
            span("comm", "all_reduce", 31 + late, 40, module="bucket 0", bytes=400)
            span("ddp", "wait for buckets", 30 + late, 40)
            span("phase", "backward", 10, 41)
            span("optim", "step", 41, 50)

    def add_gan(self, step, begin):
        """What two ranks write about the two backwards of a Horovod program's step of 40 ms, which two
        optimizers average by groups and threads of their own. Rank 1's second one is 2 ms late."""
        for rank, late in (0, 0), (1, 2):
            def span(category, name, start, end, thread=0, **args):
                self.add(category, name, begin + start, begin + end, thread,
                         {**args, "step": step}, rank)
            span("comm", "all_reduce", 30 + late, 36, 3, module="gradients 0", bytes=800)
            for at, late_here, size in (0, 0, 400), (20, late, 800):
                span("forward", "Linear", at + 1, at + 2)
                span("forward", "Sequential", at, at + 4)
                span("backward", "linear", at + 4, at + 9)
                span("DistributedOptimizer", "send gradients", at + 9 + late_here,
                     at + 9.5 + late_here, message=0, bytes=size)
                span("phase", "backward", at + 4, at + 10 + late_here)
                span("DistributedOptimizer", "wait for gradients", at + 10 + late_here, at + 16)
                span("optim", "step", at + 16, at + 20)
            span("comm", "all_reduce", 10, 16, 2, module="gradients 0", bytes=400)

    def add_cut_model(self, step, begin):
        """What two ranks write about a step of 40 ms with fully_shard. Rank 1 asks for the parameters
        2 ms later than rank 0, and rank 0 for the sums."""
        for rank in 0, 1:
            def span(category, name, start, end, thread=0, **args):
                self.add(category, name, begin + start, begin + end, thread,
                         {**args, "step": step}, rank)
            span("comm", "all_gather", -1, -.5, 2, module="", bytes=8)  # of the loader
            span("fully_shard", "wait for parameters", 2 * rank, 3)
            span("comm", "all_gather", 2 * rank, 3, 2, module="Net.blocks.0", bytes=400)
            span("forward", "Linear", 3, 9)
            span("forward", "Net", 0, 10)
            span("backward", "linear", 12, 20)
            span("fully_shard", "reduce-scatter", 20 - 2 * rank, 22 - 2 * rank)  # puts it together
            span("comm", "reduce_scatter", 22 - 2 * rank, 24, 3, module="blocks.0", bytes=408)
            span("fully_shard", "wait for sums", 23, 24)
            span("phase", "backward", 10, 30)
            span("optim", "step", 30, 40)

    def add_step_of_ranks(self, step, begin, schedule, costs):
        """What the engine writes about a step whose actions take these seconds: "fsdp --units 3
        --ranks 2". Returns the milliseconds of the whole."""
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(costs, file)
            file.flush()
            answer = json.loads(subprocess.run(
                ["tools/schedule/schedule", *schedule.split(), "--json", "--costs", file.name],
                check=True, stdout=subprocess.PIPE).stdout)
        sent = {"U": "all_gather", "G": "reduce_scatter", "A": "all_reduce", "F": "all_reduce",
                "B": "all_reduce"}
        waits = {"U": "wait for parameters", "G": "wait for sums"}
        last = max(timed["end"] for timed in answer["actions"]
                   if timed["action"].startswith(("F", "<F")))
        units = answer["units"]
        for rank in range(len(answer["busy"])):
            def span(category, name, start, end, thread=0, rank=rank, **args):
                self.add(category, name, begin + start * 1e3, begin + end * 1e3, thread,
                         {**args, "step": step}, rank)
            own = [(timed["action"], timed["begin"], timed["end"]) for timed in answer["actions"]
                   if timed["rank"] == rank]
            for action, start, end in own:
                kind = action[1] if action[0] in "<>" else ""
                if action[0] == ">":
                    unit = int(action[2:])
                    module = {"A": f"bucket {units - 1 - unit}"}.get(kind, f"{kind.lower()}.{unit}")
                    span("comm", sent[kind], start, end, 2, bytes=8,
                         module=f"blocks.{unit}" if kind in "UG" else module)
                    if kind == "U":  # a moment for replays, which is not drawn
                        span("fully_shard", "gather", start, start, module=f"blocks.{unit}", bytes=8)
                    if kind == "G":
                        span("fully_shard", "reduce-scatter", start, start)
                    if kind == "A":
                        span("ddp", "send bucket", start, start, bucket=units - 1 - unit, bytes=8)
                elif action[0] == "<" and kind in waits:
                    span("fully_shard", waits[kind], start, end)
                elif action == "O":
                    span("optim", "step", start, end)
            for_buckets = [each for each in own if each[0].startswith("<A")]
            if for_buckets:
                span("ddp", "wait for buckets", for_buckets[0][1], for_buckets[-1][2])
            span("forward", "Net", 0, last)
            span("phase", "backward", last, max(end for action, _, end in own if action != "O"))
        return answer["end"] * 1e3

    def add_tensor_parallel(self, step, begin):
        """What two ranks write about a step of 20 ms with parallelize."""
        for rank in 0, 1:
            def span(category, name, start, end, thread=0, **args):
                self.add(category, name, begin + start, begin + end, thread,
                         {**args, "step": step}, rank)
            span("comm", "all_reduce", 2, 4 - rank, 2, module="mlp.2", bytes=400)
            span("forward", "Net", 0, 5)
            span("phase", "backward", 5, 15)
            span("optim", "step", 15, 20)

    def text(self):
        return json.dumps({"traceEvents": self.events})
