"""Traces made by hand."""
import json
import subprocess
import tempfile

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight",
         "R": "recompute"}


def simulate(schedule, forward, backward_input, backward_weight=None):
    """When the actions of a schedule run, as tools/schedule says: of "gpipe --stages 2
    --micro-batches 2", and seconds by stage."""
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

    def add_pipeline(self, step, timeline, begin, device="cpu:", first_thread=3, rank=0):
        """As Pipeline tells of a step on devices `device`0, 1 ... that took as long as `timeline`
        says."""
        for timed in timeline["actions"]:
            letter, (stage, micro_batch) = timed["action"][0], timed["action"][1:].split(".")
            d = timed["device"]
            self.add("pipeline", KINDS[letter], begin + timed["begin"] * 1e3,
                     begin + timed["end"] * 1e3, first_thread + d,
                     {"step": step, "device": f"{device}{d}", "stage": int(stage),
                      "micro_batch": int(micro_batch)}, rank)
        self.add("pipeline", "step", begin, begin + timeline["end"] * 1e3, 0, {"step": step}, rank)

    def add_data_parallel(self, step, begin):
        """As DataParallel tells of a forward and backward of 10 ms on two devices."""
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
        caller("phase", "backward", 5, 10)

    def add_ddp(self, step, begin):
        """As two ranks tell of a step of 50 ms, of which rank 0 waits 5 and rank 1 10."""
        for rank in range(2):
            def span(category, name, start, end, **args):
                self.add(category, name, begin + start, begin + \
                         end, 0, {**args, "step": step}, rank)
            span("forward", "Sequential", 0, 10)
            span("backward", "linear", 10, 30)
            span("ddp", "send bucket", 29, 30, bucket=0, bytes=400)
            span("comm", "all_reduce", 31, 40, module="bucket 0", bytes=400)
            span("ddp", "wait for buckets", 30 if rank else 35, 40)
            span("phase", "backward", 10, 41)
            span("optim", "step", 41, 50)

    def text(self):
        return json.dumps({"traceEvents": self.events})
