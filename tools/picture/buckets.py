"""A step of DistributedDataParallel as its trace shows it: what each rank computed and sent."""
import re
from collections import defaultdict

from tools.command import Error
from tools.picture.canvas import (FAINT, GRID, INK, TEXT_HEIGHT, WHITE, Canvas, axis_ticks,
                                  text_width)
from tools.trace import member, read_trace

MOST_BUCKETS = 65536

# --- Reading -------------------------------------------------------------------------------------
# Intervals are pairs: milliseconds, in the end from the step's beginning.


class Bucket:
    def __init__(self):
        self.bytes = 0
        self.sent = 0  # when its last gradient was ready
        self.reduction = 0, 0  # the all-reduce


class Rank:
    def __init__(self):
        self.forward = self.backward = self.optimizer = 0, 0
        self.waiting = 0, 0  # for the last buckets, within backward
        self.operations, self.buckets = [], []  # operations of backward

    def is_whole(self):
        return (self.forward[1] > 0 and self.backward[1] > 0
                and self.optimizer[1] > self.forward[0] and len(self.buckets) > 0
                and all(bucket.sent > 0 and bucket.reduction[1] > 0 for bucket in self.buckets))

    def count_from(self, begin):
        def shifted(interval):
            return interval[0] - begin, interval[1] - begin
        self.operations = [shifted(each) for each in self.operations
                           if self.backward[0] <= each[0] and each[1] <= self.backward[1]]
        self.forward, self.backward, self.waiting, self.optimizer = map(
            shifted, (self.forward, self.backward, self.waiting, self.optimizer))
        for bucket in self.buckets:
            bucket.sent -= begin
            bucket.reduction = shifted(bucket.reduction)


class Step:
    def __init__(self, number, ranks):
        self.number, self.ranks = number, ranks
        begin = min(rank.forward[0] for rank in ranks)
        for rank in ranks:
            rank.count_from(begin)
        self.end = max(rank.optimizer[1] for rank in ranks)
        self.sizes = [bucket.bytes for bucket in ranks[0].buckets]


def _take(event, steps):
    """Adds what the event says to its step and rank. Spans stand in the order in which they end: of
    those within each other the outermost comes last."""
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
        rank.forward = interval
    elif category == "phase" and name == "backward":
        rank.backward = interval
    elif category == "backward":
        rank.operations.append(interval)
    elif category == "optim":
        rank.optimizer = interval
    if name == "wait for buckets":
        rank.waiting = interval
    if name == "send bucket":
        b = member(args, "bucket", int)
    else:
        found = re.search("bucket ([0-9]+)$", member(args, "module", str, ""))
        if category != "comm" or not found:
            return
        b = int(found[1])
    if not 0 <= b < MOST_BUCKETS:
        raise Error(f"[bucket_timeline] got bucket {b}, expected less than {MOST_BUCKETS}")
    rank.buckets += [Bucket() for _ in range(len(rank.buckets), b + 1)]
    rank.buckets[b].bytes = member(args, "bytes", int)
    if name == "send bucket":
        rank.buckets[b].sent = interval[0]
    else:
        rank.buckets[b].reduction = interval


def read_step(path, wanted=-1):
    """From a trace of several ranks. -1: of the steps whose buckets are those of the last one, that
    of median length."""
    steps, whole = defaultdict(lambda: defaultdict(Rank)), []
    read_trace(path, "bucket_timeline", lambda event: _take(event, steps))
    most = max(map(len, steps.values()), default=0)
    for number in sorted(steps):
        ranks = [rank for _, rank in sorted(steps[number].items()) if rank.is_whole()]
        if len(ranks) == most and wanted in (-1, number):
            whole.append(Step(number, ranks))
    if not whole:
        which = "" if wanted < 0 else f"{wanted} "
        raise Error(f"[bucket_timeline] {path} has no whole step {which}of "
                    "DistributedDataParallel: needs forward, backward with its buckets and "
                    "optimizer of every rank")
    alike = [step for step in whole if step.sizes == whole[-1].sizes]
    return sorted(alike, key=lambda step: step.end)[len(alike) // 2]


# --- Drawing -------------------------------------------------------------------------------------

FORWARD, BACKWARD, OPERATION = (196, 214, 236), (226, 230, 238), (126, 160, 206)
OPTIMIZER, WAITING = (206, 196, 226), (240, 190, 180)
BUCKETS = [(40, 140, 70), (214, 130, 20), (150, 60, 150),
            (31, 130, 150), (190, 60, 60), (120, 110, 40)]

WIDTH, LEFT, RIGHT, TOP = 1000, 104, 28, 92
BAR, BETWEEN, RANK_GAP = 30, 22, 30
RANK = 2 * BAR + BETWEEN + RANK_GAP


class _Drawing:
    def __init__(self, step):
        self.step, self.end = step, step.end
        self.bottom = TOP + len(step.ranks) * RANK
        self.canvas = Canvas(WIDTH, self.bottom + 64)
        self.draw_axis()
        for r, rank in enumerate(step.ranks):
            self.draw_rank(r, rank)
        self.draw_legends()

    def at(self, ms):
        return LEFT + int(min(max(ms / self.end, 0), 1) * (WIDTH - LEFT - RIGHT) + 0.5)

    def draw_axis(self):
        for tick in axis_ticks(0, self.end, 8):
            self.canvas.fill(self.at(tick), TOP - 12, 1, self.bottom - TOP + 12, GRID)
            self.canvas.text_centred(self.at(tick), self.bottom + 8, f"{tick:g}", FAINT)
        self.canvas.text(LEFT, self.bottom + 34, "milliseconds from the beginning of forward", INK)

    def bar(self, interval, y, color, label=""):
        """With the label where there is room for it."""
        begin, end = self.at(interval[0]), self.at(interval[1])
        self.canvas.fill(begin, y, max(end - begin, 1), BAR, color)
        if label and text_width(label) + 4 <= end - begin:
            self.canvas.text_centred(begin + (end - begin) // 2, y + (BAR - TEXT_HEIGHT) // 2,
                                     label, WHITE)

    def draw_rank(self, r, rank):
        computing = TOP + r * RANK
        sending, text = computing + BAR + BETWEEN, (BAR - TEXT_HEIGHT) // 2
        self.canvas.text(12, computing + text, f"rank {r}", INK)
        self.canvas.text(12, sending + text, "all-reduce", FAINT)
        self.bar(rank.forward, computing, FORWARD)
        self.bar(rank.backward, computing, BACKWARD)
        for operation in rank.operations:
            self.bar(operation, computing, OPERATION)
            self.canvas.fill(self.at(operation[1]), computing, 1, BAR, BACKWARD)
        self.bar(rank.waiting, computing, WAITING)
        self.bar(rank.optimizer, computing, OPTIMIZER)
        for b, bucket in enumerate(rank.buckets):
            color = BUCKETS[b % len(BUCKETS)]
            self.canvas.line(self.at(bucket.sent), computing + BAR, self.at(bucket.reduction[0]),
                             sending, 1.5, color)
            self.bar(bucket.reduction, sending, color, str(b))

    def draw_legend(self, title, y, entries):
        self.canvas.text(LEFT, y, title, INK)
        end = WIDTH - RIGHT
        for name, color in reversed(entries):
            end -= text_width(name)
            self.canvas.text(end, y, name, INK)
            self.canvas.fill(end - 24, y + 2, 16, 14, color)
            end -= 24 + 18

    def draw_legends(self):
        self.draw_legend(f"step {self.step.number}", 12, [
            ("forward", FORWARD), ("operations of backward", OPERATION), ("between them", BACKWARD),
            ("waiting", WAITING), ("optimizer", OPTIMIZER)])
        self.draw_legend("buckets", 42, [
            (f"{b}: {bucket.bytes / 2 ** 20:.3g} MiB", BUCKETS[b % len(BUCKETS)])
            for b, bucket in enumerate(self.step.ranks[0].buckets)])


def bucket_picture(step):
    return _Drawing(step).canvas
