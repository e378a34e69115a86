"""A step of DistributedDataParallel, predicted and measured, or of a Horovod program, measured: two
lanes a rank."""
from tools.command import Error
from tools.picture.buckets import read_steps
from tools.picture.step_colors import (BACKWARD, EXPOSED, FORWARD, OPERATION, OPTIMIZER, REDUCTION,
                                       WAITING, WORDS_OF_DDP)
from tools.picture.svg import Color
from tools.timeline.figure import (Bar, Figure, Key, Panel, Row, counted, milliseconds, percent,
                                   times)
from tools.timeline.predicted import Border, StepOfRanks, Unpredicted, no_prediction

LEGEND = [Key(name, color) for name, color in WORDS_OF_DDP]
HELD = Key("held back by a thin link", Color(40, 70, 60))  # only where there is one


def _bar(interval, color, text, what):
    begin, end = interval[0] / 1e3, interval[1] / 1e3
    return Bar(begin, end, color, text, f"{what}\n{times(begin, end)}")


def _ms(parts):
    return milliseconds(sum(end - begin for begin, end, _ in parts) / 1e3)


def _waiting_bar(begin, end, last):
    if last is None:
        return _bar((begin, end), EXPOSED, "reducing", "waiting while buckets are reduced")
    return _bar((begin, end), WAITING, f"for rank {last}",
                f"waiting for rank {last}, which has not sent its bucket yet")


def _texts_of_operations(rank):
    """Where there are several backwards: by the longest operation of each, the backward's name."""
    texts = {}
    for k, (begin, end) in enumerate(rank.backwards):
        within = [each for each in rank.operations if begin <= each[0] and each[1] <= end]
        if within and len(rank.backwards) > 1:
            texts[max(within, key=lambda each: each[1] - each[0])] = rank.backward_name(k)
    return texts


def _reduction_bars(step, r):
    bars = []
    for b, bucket in enumerate(step.ranks[r].buckets):
        for begin, end, last in step.parts_of_reduction(r, b):
            what = (f"{step.bucket_name(b)}, {bucket.bytes} bytes, ready at "
                    f"{milliseconds(bucket.sent / 1e3)}: ")
            if last is None:
                label, *shorter = step.bucket_labels(b)
                bar = _bar((begin, end), REDUCTION, label, what + "reducing")
                bars.append(bar._replace(shorter=shorter))
            else:
                bars.append(_bar((begin, end), WAITING, f"for rank {last}",
                                 what + f"waiting for rank {last}"))
    return bars


def _fact(step, r):
    reducing = [part for b in range(len(step.complete)) for part in step.parts_of_reduction(r, b)
                if part[2] is None]
    waits = step.parts_of_waiting(r)
    skew = [part for part in waits if part[2] is not None]
    exposed = [part for part in waits if part[2] is None]
    text = f"Rank {r}: reducing takes {_ms(reducing)}; after its backward it waits {_ms(waits)}"
    for last in sorted({part[2] for part in skew}):
        text += f", {_ms([part for part in skew if part[2] == last])} of it for rank {last}"
    share = sum(end - begin for begin, end, _ in exposed) / step.end
    return f"{text}; {_ms(exposed)} are exposed communication, {percent(share)} of the step.", share


def _schedule(step, others):
    """The schedule with the times of the other steps, or of the step itself if there are none, and how
    many others there are. Raises Unpredicted if a rank has several backwards."""
    units, ranks = len(step.sizes), len(step.ranks)
    schedule = StepOfRanks("ddp", units, ranks)

    def add(one):
        for r, rank in enumerate(one.ranks):
            if not len(rank.forwards) == len(rank.backwards) == len(rank.waits) == 1:
                raise Unpredicted
            wait = [time / 1e3 for time in rank.waits[0]]
            schedule.add_computing(
                rank.forwards[0][0] / 1e3,
                [Border(">A", bucket.sent / 1e3, bucket.sent / 1e3) for bucket in rank.buckets]
                + [Border("<A", *wait)] + [Border("<A", wait[1], wait[1])] * (units - 1),
                rank.backwards[0][0] / 1e3, rank.optimizers[-1][1] / 1e3)
            for b in range(units):  # the first bucket has the last layers
                schedule.add_message("A", units - 1 - b, sum(
                    end - begin for begin, end, last in one.parts_of_reduction(r, b)
                    if last is None) / 1e3)
    return schedule, schedule.add_steps(step, others, add)


def ddp_figure(path, engine, wanted):
    """`engine`: DistributedDataParallel or DistributedOptimizer."""
    step, others = read_steps(path, wanted)
    facts, rows, shares, waits = [], [], [], []
    for r, rank in enumerate(step.ranks):
        fact, share = _fact(step, r)
        facts.append(fact)
        shares.append(share)
        waits.append(sum(end - begin for begin, end in rank.waits) / step.end)
        bars = [_bar(each, FORWARD, "forward", "forward") for each in rank.forwards]
        bars += [_bar(each, BACKWARD, "", f"{rank.backward_name(k)}, between its operations")
                 for k, each in enumerate(rank.backwards)]
        texts = _texts_of_operations(rank)
        bars += [_bar(each, OPERATION, texts.get(each, ""), "an operation of backward")
                 for each in rank.operations]
        bars += [_waiting_bar(*part) for part in step.parts_of_waiting(r)]
        bars += [_bar(each, OPTIMIZER, "optimizer", "optimizer") for each in rank.optimizers]
        rows.append(Row(f"rank {r}", "", bars))
        rows.append(Row("all-reduce", f"exposed {percent(share)}", _reduction_bars(step, r)))
        for link, held in sorted(rank.held.items()):
            rows.append(Row(link, "", [_bar(each, HELD.color, "", f"{link} holds a message back")
                                       for each in held]))
    if len(step.ranks[0].backwards) > 1:
        facts.append("Which backward sent a bucket: " + ", ".join(
            step.bucket_name(b) for b in range(len(step.complete))) + ".")
    ranks, buckets = len(step.ranks), len(step.ranks[0].buckets)
    title = f"Step {step.number} of {engine} on {ranks} ranks, {counted(buckets, 'bucket')}"
    measured = (f"Measured: {milliseconds(step.end / 1e3)}; on average {percent(sum(shares) / ranks)}"
                f" exposed communication, {percent((sum(waits) - sum(shares)) / ranks)} waiting for "
                "slower ranks")
    panels = [Panel(measured, rows)]
    legend = LEGEND + [HELD] * any(rank.held for rank in step.ranks)
    if engine != "DistributedDataParallel":
        return Figure(title, facts, legend, panels, step.begin / 1e3, step.number)
    try:
        schedule, added = _schedule(step, others)
        answer = schedule.replayed(step.number)
    except (Unpredicted, Error) as why:
        facts.append(no_prediction(why))
    else:
        facts = schedule.facts(answer, step.end / 1e3, sum(waits) / ranks * step.end / 1e3,
                               added) + facts
        panels.insert(0, schedule.panel(answer, lambda kind, unit: "" if kind == "F" else
                                        f"bucket {schedule.units - 1 - unit}"))
    return Figure(title, facts, legend, panels, step.begin / 1e3, step.number)
