"""A step of DistributedDataParallel, or of a Horovod program, as its trace shows it: what each rank
computed and sent."""
import re
import textwrap
from collections import defaultdict

from tools.command import Error
from tools.picture.step_colors import (BACKWARD, EXPOSED, FORWARD, OPERATION, OPTIMIZER, REDUCTION,
                                       WAITING, WORDS_OF_DDP)
from tools.picture.svg import CHARACTER, FAINT, GRID, INK, LINE, Drawing, axis_ticks
from tools.trace import member, read_trace

MOST_BUCKETS = 65536

# --- Reading -------------------------------------------------------------------------------------
# Intervals are pairs of milliseconds; at the end they count from the step's beginning.


class Bucket:
    def __init__(self, size, sent, reduction, backward):
        self.bytes = size
        self.sent = sent  # when the bucket's last gradient was ready
        self.reduction = reduction  # the all-reduce
        self.backward = backward  # the number of the backward that sent it


class Rank:
    """A step has one forward, one backward and one optimizer, or several: that of a GAN has two."""

    def __init__(self):
        self.forwards, self.backwards, self.optimizers = [], [], []
        self.waits = []  # for buckets
        self.operations, self.buckets = [], []  # operations of backward
        self.sent, self.reduced = [], []  # (interval, number, bytes) of buckets
        self.held = defaultdict(list)  # by thin link (WEFT_FAULT): when it held messages back

    def is_whole(self):
        self.sent.sort()
        self.reduced.sort()
        return (self.forwards and self.backwards and self.optimizers and self.sent
                and self.optimizers[-1][1] > self.forwards[0][0]
                and [number for _, number, _ in self.sent]
                == [number for _, number, _ in self.reduced])

    def backward_name(self, k):
        return "backward" if len(self.backwards) == 1 else f"backward {k}"

    def count_from(self, begin):
        def shifted(intervals):
            return [(interval[0] - begin, interval[1] - begin) for interval in intervals]
        self.operations = shifted(
            each for each in self.operations
            if any(of[0] <= each[0] and each[1] <= of[1] for of in self.backwards))
        self.forwards, self.backwards, self.waits, self.optimizers = map(
            shifted, (self.forwards, self.backwards, self.waits, self.optimizers))
        self.held = {link: shifted(intervals) for link, intervals in self.held.items()}
        for (sent, _, size), (reduction, *_) in zip(self.sent, self.reduced):
            (sent, _), reduction = shifted([sent, reduction])
            backward = sum(each[0] <= sent for each in self.backwards) - 1
            self.buckets.append(Bucket(size, sent, reduction, backward))


class Step:
    def __init__(self, number, ranks):
        self.number, self.ranks = number, ranks
        begin = self.begin = min(rank.forwards[0][0] for rank in ranks)
        for rank in ranks:
            rank.count_from(begin)
        self.end = max(rank.optimizers[-1][1] for rank in ranks)
        self.sizes = [bucket.bytes for bucket in ranks[0].buckets]
        # No rank can reduce a bucket before the last rank has it. By bucket: when that is, and
        # which rank is the last.
        self.complete = [max((rank.buckets[b].sent, r) for r, rank in enumerate(ranks))
                         for b in range(min(len(rank.buckets) for rank in ranks))]

    def bucket_name(self, b):
        """If there are several backwards, with the one that sent it."""
        rank = self.ranks[0]
        several = len(rank.backwards) > 1
        return f"bucket {b}" + f" of {rank.backward_name(rank.buckets[b].backward)}" * several

    def bucket_labels(self, b):
        """The name and shorter ones, for a bar."""
        return self.bucket_name(b), f"bucket {b}", str(b)

    def parts_of_reduction(self, rank, b):
        """(begin, end, rank waited for, or None where it is reduced) of a bucket's all-reduce."""
        begin, end = self.ranks[rank].buckets[b].reduction
        when, last = self.complete[b]
        middle = min(max(begin, when), end)
        parts = [(begin, middle, last), (middle, end, None)]
        return [part for part in parts if part[1] > part[0]]

    def parts_of_waiting(self, rank):
        """The same for the waits after the rank's backwards, which are for all buckets that are
        left."""
        parts = []
        for at, end in self.ranks[rank].waits:
            for b in range(len(self.complete)):
                for begin, stop, last in self.parts_of_reduction(rank, b):
                    begin, stop = max(at, begin), min(stop, end)
                    if stop > begin:
                        # The group's thread takes a moment to begin.
                        parts.append((at, stop, last))
                        at = stop
            if end > at:
                parts.append((at, end, None))
        return parts


def _take(event, steps):
    """Adds what the event says to its step and rank. The spans of a thread are in the order of their
    ends: if one is within another, the outer one comes later."""
    if member(event, "ph", str, "") != "X" or "step" not in member(event, "args", dict):
        return
    args = event["args"]
    rank = steps[member(args, "step", int)][member(event, "pid", int)]
    category, name = member(event, "cat", str), member(event, "name", str)
    begin, length = member(event, "ts", float), member(event, "dur", float)
    if begin < 0 or length < 0:
        raise Error(f"[bucket_timeline] a span begins at {begin:g} us and lasts {length:g} us")
    interval = begin / 1000, (begin + length) / 1000
    if category == "forward":
        while rank.forwards and rank.forwards[-1][0] >= interval[0]:  # within this one
            rank.forwards.pop()
        rank.forwards.append(interval)
    elif category == "phase" and name == "backward":
        rank.backwards.append(interval)
    elif category == "backward":
        rank.operations.append(interval)
    elif category == "optim" and name == "step":
        rank.optimizers.append(interval)
    elif category == "link":
        rank.held[name].append(interval)
    if name in ("wait for buckets", "wait for gradients"):
        rank.waits.append(interval)
    # DDP numbers the buckets of a model, DistributedOptimizer its own messages.
    if name in ("send bucket", "send gradients"):
        number = member(args, "bucket" if name == "send bucket" else "message", int)
        if not 0 <= number < MOST_BUCKETS:
            raise Error(f"[bucket_timeline] got bucket {number}, expected less than {MOST_BUCKETS}")
        rank.sent.append((interval, number, member(args, "bytes", int)))
    elif category == "comm":
        found = re.search("(bucket|gradients) ([0-9]{1,9})$", member(args, "module", str, ""))
        if found:
            rank.reduced.append((interval, int(found[2]), member(args, "bytes", int)))


def read_steps(path, wanted=-1):
    """From a trace of several ranks: step `wanted`, and the others with the same buckets. -1: the
    step of median length among those with the buckets of the last step."""
    steps, whole = defaultdict(lambda: defaultdict(Rank)), []
    read_trace(path, "bucket_timeline", lambda event: _take(event, steps))
    most = max(map(len, steps.values()), default=0)
    for number in sorted(steps):
        ranks = [rank for _, rank in sorted(steps[number].items()) if rank.is_whole()]
        numbers = {tuple(number for _, number, _ in rank.sent) for rank in ranks}
        if len(ranks) == most and len(numbers) == 1:
            whole.append(Step(number, ranks))
    candidates = [step for step in whole if wanted in (-1, step.number)]
    if not candidates:
        which = "" if wanted < 0 else f"{wanted} "
        raise Error(f"[bucket_timeline] {path} has no whole step {which}of "
                    "DistributedDataParallel or DistributedOptimizer: needs forward, backward with "
                    "its buckets and optimizer of every rank")
    alike = [step for step in candidates if step.sizes == candidates[-1].sizes]
    step = sorted(alike, key=lambda step: step.end)[len(alike) // 2]
    return step, [other for other in whole if other.sizes == step.sizes and other is not step]


def read_step(path, wanted=-1):
    return read_steps(path, wanted)[0]


# --- Drawing -------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, EDGE = 800, 100, 24, 12
BAR, BETWEEN, RANK_GAP = 30, 22, 30
RANK = 2 * BAR + BETWEEN + RANK_GAP


def _legend(entries):
    """(line, x, name, colour) of each, in lines of the picture's width."""
    line, x, places = 1, LEFT, []
    for name, color in entries:
        width = 24 + CHARACTER * len(name) + 20
        if x > LEFT and x + width > WIDTH:
            line, x = line + 1, LEFT
        places.append((line, x, name, color))
        x += width
    return places


class _Buckets(Drawing):
    def __init__(self, step):
        self.step, self.end = step, step.end
        sizes = ", ".join(f"{b}: {size / 2 ** 20:.3g} MiB" for b, size in enumerate(step.sizes))
        self.sizes = textwrap.wrap(sizes, int((WIDTH - LEFT) / CHARACTER))
        self.legend = _legend(WORDS_OF_DDP)
        lines = self.legend[-1][0] + len(self.sizes)
        self.top = (lines + 1) * LINE + 8
        self.bottom = self.top + len(step.ranks) * RANK
        super().__init__(WIDTH, self.bottom + 64)
        self.draw_axis()
        for r, rank in enumerate(step.ranks):
            self.draw_rank(r, rank)
        self.draw_legends()

    def at(self, ms):
        return round(LEFT + min(max(ms / self.end, 0), 1) * (WIDTH - LEFT - RIGHT), 1)

    def draw_axis(self):
        for tick in axis_ticks(0, self.end, 8):
            self.line(self.at(tick), self.top - 12, self.at(tick), self.bottom, 1, GRID)
            self.text(self.at(tick), self.bottom + 16, f"{tick:g}", FAINT, "middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, self.bottom + 44,
                  "milliseconds from the beginning of forward", INK, "middle")

    def bar(self, interval, y, color, *labels):
        """With the first label for which there is room."""
        begin, end = self.at(interval[0]), self.at(interval[1])
        self.rectangle(begin, y, max(end - begin, 1), BAR, color.css())
        for label in labels:
            if CHARACTER * len(label) + 4 <= end - begin:
                self.text((begin + end) / 2, y + BAR / 2, label, color.ink(), "middle")
                break

    def draw_rank(self, r, rank):
        computing = self.top + r * RANK
        sending = computing + BAR + BETWEEN
        self.text(EDGE, computing + BAR / 2, f"rank {r}", INK)
        self.text(EDGE, sending + BAR / 2, "all-reduce", FAINT)
        for forward in rank.forwards:
            self.bar(forward, computing, FORWARD)
        for backward in rank.backwards:
            self.bar(backward, computing, BACKWARD)
        for operation in rank.operations:
            self.bar(operation, computing, OPERATION)
            self.rectangle(self.at(operation[1]), computing, 1, BAR, BACKWARD.css())
        for begin, end, last in self.step.parts_of_waiting(r):
            if last is None:
                self.bar((begin, end), computing, EXPOSED)
            else:
                self.bar((begin, end), computing, WAITING, f"for rank {last}")
        for optimizer in rank.optimizers:
            self.bar(optimizer, computing, OPTIMIZER)
        for b, bucket in enumerate(rank.buckets):
            begin = self.at(bucket.reduction[0])
            self.line(self.at(bucket.sent), computing + BAR, begin, sending, 1.5, REDUCTION.css())
            for *interval, last in self.step.parts_of_reduction(r, b):
                if last is None:
                    self.bar(interval, sending, REDUCTION, *self.step.bucket_labels(b))
                else:
                    self.bar(interval, sending, WAITING, f"for rank {last}")
            self.rectangle(begin, sending, 1, BAR, REDUCTION.css(lightness=20))

    def draw_legends(self):
        self.text(EDGE, LINE, f"step {self.step.number}", INK)
        for line, x, name, color in self.legend:
            self.rectangle(x, line * LINE - 7, 16, 14, color.css())
            self.text(x + 24, line * LINE, name, INK)
        first = self.legend[-1][0] + 1
        self.text(EDGE, first * LINE, "buckets", INK)
        for i, sizes in enumerate(self.sizes):
            self.text(LEFT, (first + i) * LINE, sizes, INK)


def bucket_picture(step):
    return _Buckets(step)
