"""A step of a model in parts on several devices: which of them computes when."""
from collections import defaultdict
from itertools import groupby

from tools.picture.step_colors import FORWARD, OPERATION, OPTIMIZER
from tools.picture.svg import Color
from tools.timeline.figure import (Bar, Figure, Key, Panel, Row, covered, milliseconds, percent,
                                   times)
from tools.trace import choose_step

COLORS = {"forward": FORWARD, "backward": OPERATION, "copy": Color(38, 75, 50),
          "optimizer": OPTIMIZER}


def _joined(bars):
    """The intervals that are covered by any of the bars."""
    times_of = []
    for bar in sorted(bars, key=lambda bar: bar.begin):
        if times_of and bar.begin <= times_of[-1][1]:
            times_of[-1][1] = max(times_of[-1][1], bar.end)
        else:
            times_of.append([bar.begin, bar.end])
    return times_of


class _Step:
    """From the first forward to the end of the optimizer. `bars`: by device."""

    def __init__(self, number, spans, backwards):
        self.number, self.backwards = number, backwards
        work = sorted((span for span in spans if self._kind(span)), key=lambda span: span.begin)
        begin = self.begin = min((span.begin for span in work), default=backwards[-1].end)
        self.length = backwards[-1].end - begin  # of forward and backward
        self.bars = defaultdict(list)
        # Operations of one kind, on one device, that follow each other are one bar.
        for (kind, device), group in groupby(work, lambda span: (self._kind(span), span.device)):
            group = list(group)
            start, end = group[0].begin - begin, max(span.end for span in group) - begin
            what = kind
            if kind == "copy":
                what += f" from {device.split(':')[0]}:{group[0].source} to {device}"
            else:
                parts = dict.fromkeys(span.module.split(".")[0] for span in group if span.module)
                what += f" of {', '.join(parts)}" * bool(parts) + f" on {device}"
            self.bars[device].append(Bar(start, end, COLORS[kind], kind,
                                         f"{what}\n{times(start, end)}"))

    def _kind(self, span):
        """The kind of work; None for a span that is not a device's work, or is a part of a larger span."""
        if not span.device:
            return None
        if span.category == "optim":
            return "optimizer"
        if span.category not in ("op", "backward") or span.end > self.backwards[-1].end:
            return None
        if span.source >= 0:
            return "copy"
        if any(each.begin <= span.begin <= each.end for each in self.backwards):
            return "backward" if span.category == "backward" else None
        return "forward"

    def together(self):
        """The seconds of forward and backward in which two or more devices work."""
        edges = sorted((moment, change) for bars in self.bars.values()
                       for begin, end in _joined(bars)
                       for moment, change in ((begin, 1), (min(end, self.length), -1))
                       if begin < self.length)
        seconds, working, since = 0, 0, 0
        for moment, change in edges:
            if working > 1:
                seconds += moment - since
            working, since = working + change, moment
        return seconds

    def busy(self, device):
        """The seconds of forward and backward in which it works."""
        return covered(bar._replace(end=min(bar.end, self.length)) for bar in self.bars[device]
                       if bar.begin < self.length)


def _devices_of_backward(spans):
    devices = defaultdict(set)  # by rank
    for span in spans:
        if span.category == "backward" and span.step >= 0:
            devices[span.rank].add(span.device)
    return devices


def has_parts(spans):
    return any(len(devices) > 1 for devices in _devices_of_backward(spans).values())


def model_parallel_figure(spans, wanted):
    rank, devices = min(_devices_of_backward(spans).items())
    found, backwards = defaultdict(list), defaultdict(list)
    for span in spans:
        if span.rank == rank and span.step >= 0:
            found[span.step].append(span)
            if (span.category, span.name) == ("phase", "backward"):
                backwards[span.step].append(span)
    steps = [_Step(number, found[number], backwards[number]) for number in sorted(backwards)]
    steps = [each for each in steps if each.length > 0]  # not where a damaged trace lacks the work
    step = steps[choose_step([(each.number, each.length) for each in steps], wanted)]
    busy = {device: step.busy(device) for device in sorted(devices)}
    together = step.together()
    idle = 1 - sum(busy.values()) / (len(busy) * step.length)
    took = milliseconds(step.length)
    return Figure(
        f"Step {step.number} of a model in parts on {len(busy)} devices",
        [f"Forward and backward take {took}: a device idles "
         f"{percent(idle)} of the time on average. Two or more compute at once "
         f"{percent(together / step.length)} of the time.",
         "A pipeline cuts the batch, so that the devices work on its parts at the same time."],
        [Key(kind, color) for kind, color in COLORS.items()],
        [Panel(f"Forward and backward: {took}; then the optimizer",
               [Row(device, f"idle {percent(1 - seconds / step.length)}", step.bars[device])
                for device, seconds in busy.items()])], step.begin, step.number)
