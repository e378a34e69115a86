"""A step of a model that ranks have cut, by fully_shard or parallelize: what a rank computes, and a
lane for each kind of message."""
import collections
import re

from tools.timeline.ddp import BACKWARD, EXPOSED, FORWARD, OPERATION, OPTIMIZER, REDUCTION, WAITING
from tools.timeline.figure import (Bar, Color, Figure, Key, Panel, Row, covered, milliseconds,
                                   percent, times)
from tools.trace import choose_step

GATHER = Color(45, 70, 48)
MESSAGES = {"all_gather": GATHER, "reduce_scatter": REDUCTION, "all_reduce": Color(175, 45, 38),
            "all_to_all": Color(330, 45, 50)}
LEGEND = [Key("forward", FORWARD), Key("backward", BACKWARD), Key("its operations", OPERATION),
          Key("waiting for a message", EXPOSED), Key("optimizer", OPTIMIZER)]


class _Rank:
    def __init__(self, spans):
        self.spans = spans
        self.forwards = _outermost(span for span in spans if span.category == "forward")
        self.backwards = self.of("phase", "backward")
        self.optimizers = self.of("optim", "step")
        # Their i-th messages of a kind belong together, if all ranks name them alike.
        self.messages = {kind: self.of("comm", kind) for kind in MESSAGES}

    def of(self, category, name):
        return sorted((span for span in self.spans
                       if span.category == category and span.name == name),
                      key=lambda span: span.begin)

    def is_whole(self):
        return (self.forwards and self.backwards and self.optimizers
                and any(self.messages.values()))


def _outermost(spans):
    found = []
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        if not found or span.begin >= found[-1].end:
            found.append(span)
    return found


class _Step:
    def __init__(self, number, ranks):
        self.number, self.ranks = number, ranks
        self.begin = min(rank.forwards[0].begin for rank in ranks)
        self.length = max(rank.optimizers[-1].end for rank in ranks) - self.begin
        for rank in ranks:  # what belongs to the loading of data is left out
            for kind, spans in rank.messages.items():
                rank.messages[kind] = [span for span in spans if span.begin >= self.begin]
        def names(rank, kind):
            return [span.module for span in rank.messages[kind]]
        self.alike = {kind: all(names(rank, kind) == names(ranks[0], kind) for rank in ranks)
                      for kind in MESSAGES}

    def bar(self, span, color, text, what, begin=None, end=None):
        begin = (span.begin if begin is None else begin) - self.begin
        end = (span.end if end is None else end) - self.begin
        return Bar(begin, end, color, text, f"{what}\n{times(begin, end)}")

    def computing(self, rank):
        bars = [self.bar(span, FORWARD, "forward", "forward") for span in rank.forwards]
        bars += [self.bar(span, BACKWARD, "", "backward, between its operations")
                 for span in rank.backwards]
        bars += [self.bar(span, OPERATION, "", f"an operation of backward: {span.name}")
                 for span in rank.spans if span.category == "backward"]
        bars += self.waiting(rank)
        return bars + [self.bar(span, OPTIMIZER, "optimizer", "optimizer")
                       for span in rank.optimizers]

    def waiting(self, rank):
        """What the computing thread waits for. The layers of parallelize wait for each message."""
        spans = [span for span in rank.spans
                 if span.category == "fully_shard" and span.begin >= self.begin]
        if not spans:
            return [self.bar(span, EXPOSED, "", f"waiting for {kind} {span.module}")
                    for kind, messages in rank.messages.items() for span in messages]
        return [self.bar(span, EXPOSED, "", span.name) for span in spans
                if span.name.startswith("wait")]

    def sending(self, r, kind):
        """A message is not complete before the last rank has begun with it."""
        bars = []
        for i, span in enumerate(self.ranks[r].messages[kind]):
            when, last = span.begin, r
            if self.alike[kind]:
                when, last = max((rank.messages[kind][i].begin, k)
                                 for k, rank in enumerate(self.ranks))
            when = min(max(when, span.begin), span.end)
            of = re.search(r"[^.]*(\.[0-9]+)?$", span.module)[0]
            what = f"{kind} {span.module}, {span.bytes} bytes"
            if when > span.begin and last != r:
                bars.append(self.bar(span, WAITING, f"for rank {last}",
                                     f"{what}: waiting for rank {last}", end=when))
            bars.append(self.bar(span, MESSAGES[kind], of, what, begin=when))
        return bars


def cut_model_steps(spans):
    """Those in which several ranks send while they compute."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for span in spans:
        if span.step >= 0:
            found[span.step][span.rank].append(span)
    most = max(map(len, found.values()), default=0)
    steps = []
    for number in sorted(found):
        ranks = [_Rank(found[number][rank]) for rank in sorted(found[number])]
        if len(ranks) == most > 1 and all(rank.is_whole() for rank in ranks):
            steps.append(_Step(number, ranks))
    return steps


def cut_model_figure(steps, wanted):
    step = steps[choose_step([(step.number, step.length) for step in steps], wanted)]
    kinds = [kind for kind in MESSAGES if any(rank.messages[kind] for rank in step.ranks)]
    rows, facts = [], []
    for r, rank in enumerate(step.ranks):
        rows.append(Row(f"rank {r}", "", step.computing(rank)))
        waiting = covered(step.waiting(rank))
        parts = []
        for kind in kinds:
            bars = step.sending(r, kind)
            skew = covered([bar for bar in bars if bar.color == WAITING])
            rows.append(Row(kind, f"{len(rank.messages[kind])} messages", bars))
            parts.append(f"{kind} {milliseconds(covered(bars) - skew)}"
                         + f" and {milliseconds(skew)} waiting for a rank" * (skew > 0))
        fact = f"Rank {r}: {', '.join(parts)}"
        if waiting:
            fact += f"; its computing waits {milliseconds(waiting)}, {percent(waiting / step.length)}"
        facts.append(fact + ".")
    legend = LEGEND + [Key("waiting for a rank", WAITING)]
    legend += [Key(kind, MESSAGES[kind]) for kind in kinds]
    title = f"Step {step.number} of a model that {len(step.ranks)} ranks have cut"
    return Figure(title, facts, legend,
                  [Panel(f"Measured: {milliseconds(step.length)}", rows)], step.begin)
