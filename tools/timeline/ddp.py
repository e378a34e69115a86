"""A step of DistributedDataParallel: two lanes a rank."""
from tools.picture.buckets import read_step
from tools.timeline.figure import Bar, Color, Figure, Key, Panel, Row, milliseconds, percent, times

FORWARD, BACKWARD, OPERATION = Color(210, 60, 78), Color(215, 20, 84), Color(215, 55, 42)
WAITING, OPTIMIZER, REDUCTION = Color(8, 75, 62), Color(285, 38, 68), Color(150, 45, 38)
LEGEND = [Key("forward", FORWARD), Key("backward", BACKWARD), Key("its operations", OPERATION),
          Key("wait for buckets", WAITING), Key("optimizer", OPTIMIZER),
          Key("all_reduce of a bucket", REDUCTION)]


def _bar(interval, color, text, what):
    begin, end = interval[0] / 1e3, interval[1] / 1e3
    return Bar(begin, end, color, text, f"{what}\n{times(begin, end)}")


def ddp_figure(path, wanted):
    step = read_step(path, wanted)
    length = step.end
    facts, rows, waiting = [], [], 0
    for r, rank in enumerate(step.ranks):
        bars = [_bar(rank.forward, FORWARD, "forward", "forward"),
                _bar(rank.backward, BACKWARD, "", "backward, between its operations")]
        bars += [_bar(each, OPERATION, "", "an operation of backward") for each in rank.operations]
        exposed = rank.waiting[1] - rank.waiting[0]
        if exposed > 0:
            bars.append(_bar(rank.waiting, WAITING, "wait", "wait for buckets"))
        bars.append(_bar(rank.optimizer, OPTIMIZER, "optimizer", "optimizer"))
        rows.append(Row(f"rank {r}", "", bars))
        rows.append(Row("all-reduce", f"exposed {percent(exposed / length)}", [
            _bar(bucket.reduction, REDUCTION, f"bucket {b}",
                 f"bucket {b}: all_reduce of {bucket.bytes} bytes, "
                 f"ready at {milliseconds(bucket.sent / 1e3)}")
            for b, bucket in enumerate(rank.buckets)]))
        sent = sum(bucket.reduction[1] - bucket.reduction[0] for bucket in rank.buckets)
        facts.append(f"Rank {r}: the all-reduces take {milliseconds(sent / 1e3)}; "
                     f"{milliseconds(exposed / 1e3)} of waiting for them are exposed "
                     f"communication, {percent(exposed / length)} of the step.")
        waiting += exposed
    ranks = len(step.ranks)
    title = (f"Step {step.number} of DistributedDataParallel on {ranks} ranks, "
             f"{len(step.ranks[0].buckets)} buckets")
    measured = (f"Measured: {milliseconds(length / 1e3)}, exposed communication "
                f"{percent(waiting / ranks / length)} on average")
    return Figure(title, facts, LEGEND, [Panel(measured, rows)])
