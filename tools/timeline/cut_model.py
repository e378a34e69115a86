"""A step of a model that ranks have cut, by fully_shard or parallelize, predicted and measured: what
a rank computes, and a lane for each kind of message."""
import collections
import itertools
import re

from tools.command import Error
from tools.picture.step_colors import (BACKWARD, EXPOSED, FORWARD, GATHER, OPERATION, OPTIMIZER,
                                       REDUCTION, SUM, WAITING)
from tools.picture.svg import Color
from tools.timeline.figure import (Bar, Figure, Key, Panel, Row, counted, covered, milliseconds,
                                   percent, times)
from tools.timeline.predicted import Border, StepOfRanks, Unpredicted, no_prediction
from tools.trace import choose_step

MESSAGES = {"all_gather": GATHER, "reduce_scatter": REDUCTION, "all_reduce": SUM,
            "all_to_all": Color(330, 45, 50)}
LEGEND = [Key("forward", FORWARD), Key("backward", BACKWARD), Key("its operations", OPERATION),
          Key("waiting for a message", EXPOSED), Key("optimizer", OPTIMIZER)]


class _Rank:
    def __init__(self, spans):
        self.spans = spans
        self.forwards = _outermost(span for span in spans if span.category == "forward")
        self.backwards = self.of("phase", "backward")
        self.optimizers = self.of("optim", "step")
        # The i-th messages of all ranks belong together if all ranks name their messages alike.
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


def _endings(module):
    """The ends of a module's path, the longest first."""
    names = module.split(".")
    return [".".join(names[i:]) for i in range(len(names))]


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
        self.units = set(names(ranks[0], "reduce_scatter"))
        self.units_with = collections.Counter(
            ending for unit in self.units for ending in _endings(unit))

    def module(self, span):
        """A short name of the message's unit: the shortest end of its path that no other unit has, without
        the module whose forward has started the message."""
        unit = next((name for name in _endings(span.module) if name in self.units), span.module)
        least = re.search(r"[^.]*(\.[0-9]+)?$", unit)[0]
        return next((name for name in reversed(_endings(unit))
                     if len(name) >= len(least) and self.units_with[name] < 2), unit)

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
        """Bars of what the computing thread waits for: with parallelize, every message."""
        spans = [span for span in rank.spans
                 if span.category == "fully_shard" and span.begin >= self.begin]
        if not spans:
            return [self.bar(span, EXPOSED, "", f"waiting for {kind} {span.module}")
                    for kind, messages in rank.messages.items() for span in messages]
        return [self.bar(span, EXPOSED, "", span.name) for span in spans
                if span.name.startswith("wait")]

    def sending(self, r, kind):
        """Bars of a rank's messages. A message is not complete before the last rank has begun it."""
        bars = []
        for i, span in enumerate(self.ranks[r].messages[kind]):
            when, last = span.begin, r
            if self.alike[kind]:
                when, last = max((rank.messages[kind][i].begin, k)
                                 for k, rank in enumerate(self.ranks))
            when = min(max(when, span.begin), span.end)
            of = self.module(span)
            what = f"{kind} {span.module}, {span.bytes} bytes"
            if when > span.begin and last != r:
                bars.append(self.bar(span, WAITING, f"for rank {last}",
                                     f"{what}: waiting for rank {last}", end=when))
            bars.append(self.bar(span, MESSAGES[kind], of, what, begin=when))
        return bars


def cut_model_steps(spans):
    """The steps in which several ranks send while they compute."""
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


class _FullyShard:
    """The schedule of steps of fully_shard. Raises Unpredicted for another step."""
    BORDERS = {"wait for parameters": "<U", "reduce-scatter": ">G", "wait for sums": "<G"}

    def __init__(self, step):
        gathers = [step.module(span) for span in step.ranks[0].messages["all_gather"]]
        self.names = list(dict.fromkeys(gathers))
        units = len(self.names)
        name = "fsdp" if units == 1 or len(gathers) > units else "zero2"
        if not units:
            raise Unpredicted
        self.schedule = StepOfRanks(name, units, len(step.ranks))

    def add(self, step):
        for r, rank in enumerate(step.ranks):
            for kind, sent in (("U", "all_gather"), ("G", "reduce_scatter")):
                units = self.schedule.messages(">" + kind)
                spans = rank.messages[sent]
                if not step.alike[sent] or [step.module(span) for span in spans] != [
                        self.names[unit] for unit in units]:
                    raise Unpredicted
                for i, unit in enumerate(units):
                    self.schedule.add_message(kind, unit, spans[i].end - max(
                        other.messages[sent][i].begin for other in step.ranks))
            borders = []
            for span in sorted(rank.spans, key=lambda span: span.begin):
                if (span.category == "fully_shard" and span.begin >= step.begin
                        and span.name != "gather"):  # a moment, for ./weft simulate --replay
                    kind = self.BORDERS.get(span.name)
                    if kind is None:
                        raise Unpredicted
                    # The copies before a reduction count as computing.
                    borders.append(Border(kind, span.end if kind == ">G" else span.begin, span.end))
            self.schedule.add_computing(rank.forwards[0].begin, borders, rank.backwards[0].begin,
                                        rank.optimizers[-1].end)


class _Parallelize:
    """The same for parallelize, whose layers wait for each message. What a layer tells the others
    before a message belongs to the message."""

    def __init__(self, step):
        messages = self.messages(step.ranks[0], step)
        self.names = [of for of, spans in messages
                      if spans[0].begin < step.ranks[0].backwards[0].begin]
        self.schedule = StepOfRanks("tp", len(self.names), len(step.ranks)) if (
            1 < len(self.names) == (len(messages) + 1) / 2) else None
        if not self.schedule:
            raise Unpredicted

    @staticmethod
    def messages(rank, step):
        spans = sorted((span for span in rank.spans
                        if span.category == "comm" and span.begin >= step.begin
                        and span.name in MESSAGES), key=lambda span: span.begin)
        return [(of, list(group)) for of, group in
                itertools.groupby(spans, key=lambda span: span.module)]

    def add(self, step):
        of_ranks = [self.messages(rank, step) for rank in step.ranks]
        names = [[of for of, _ in messages] for messages in of_ranks]
        units = self.schedule.messages(">F", ">B")
        if any(one != names[0] for one in names) or len(names[0]) != len(units):
            raise Unpredicted
        for rank, messages in zip(step.ranks, of_ranks):
            borders = []
            for i, (unit, (_, spans)) in enumerate(zip(units, messages)):
                if spans[-1].name != "all_reduce":
                    raise Unpredicted
                kind = "F" if i < len(self.names) else "B"
                self.schedule.add_message(kind, unit, spans[-1].end - max(
                    other[i][1][0].begin for other in of_ranks))
                borders += [Border(">" + kind, spans[0].begin, spans[0].begin),
                            Border("<" + kind, spans[0].begin, spans[-1].end)]
            self.schedule.add_computing(rank.forwards[0].begin, borders, rank.backwards[0].begin,
                                        rank.optimizers[-1].end)


def _predicted(step, steps):
    """The schedule with the times of the other steps. Raises Unpredicted if the step's messages differ."""
    fully_shard = any(span.category == "fully_shard" for span in step.ranks[0].spans)
    sent = {kind for kind in MESSAGES if step.ranks[0].messages[kind]}
    if fully_shard and sent - {"all_gather", "reduce_scatter"}:
        raise Unpredicted
    made = (_FullyShard if fully_shard else _Parallelize)(step)
    made.others = made.schedule.add_steps(step, [one for one in steps if one is not step], made.add)
    return made


def cut_model_figure(steps, wanted):
    step = steps[choose_step([(step.number, step.length) for step in steps], wanted)]
    kinds = [kind for kind in MESSAGES if any(rank.messages[kind] for rank in step.ranks)]
    rows, facts, waits = [], [], 0
    for r, rank in enumerate(step.ranks):
        rows.append(Row(f"rank {r}", "", step.computing(rank)))
        waiting = covered(step.waiting(rank))
        waits += waiting / len(step.ranks)
        parts = []
        for kind in kinds:
            bars = step.sending(r, kind)
            skew = covered([bar for bar in bars if bar.color == WAITING])
            rows.append(Row(kind, counted(len(rank.messages[kind]), "message"), bars))
            parts.append(f"{kind} {milliseconds(covered(bars) - skew)}"
                         + f" and {milliseconds(skew)} waiting for a rank" * (skew > 0))
        fact = f"Rank {r}: {', '.join(parts)}"
        if waiting:
            fact += f"; its computing waits {milliseconds(waiting)}, {percent(waiting / step.length)}"
        facts.append(fact + ".")
    legend = LEGEND + [Key("waiting for a rank", WAITING)]
    legend += [Key(kind, MESSAGES[kind]) for kind in kinds]
    title = f"Step {step.number} of a model that {len(step.ranks)} ranks have cut"
    panels = [Panel(f"Measured: {milliseconds(step.length)}", rows)]
    try:
        made = _predicted(step, steps)
        answer = made.schedule.replayed(step.number)
    except (Unpredicted, Error) as why:
        facts.append(no_prediction(why))
    else:
        facts = made.schedule.facts(answer, step.length, waits, made.others) + facts
        panels.insert(0, made.schedule.panel(answer, lambda _, unit: made.names[unit] or "loss"))
    return Figure(title, facts, legend, panels, step.begin, step.number)
