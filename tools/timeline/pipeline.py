"""A step of a pipeline, predicted and measured."""
import re
import statistics
from collections import defaultdict, namedtuple

from tools.command import Error
from tools.picture.svg import Color
from tools.timeline.figure import (Bar, Figure, Key, Panel, Row, counted, milliseconds, percent,
                                   times)
from tools.timeline.predicted import ask
from tools.trace import choose_step

MOST_STAGES, MOST_MICRO_BATCHES = 4096, 65536  # parallel/schedule.h


Kind = namedtuple("Kind", "letter saturation lightness")
KINDS = {"forward": Kind("F", 65, 78), "backward": Kind("B", 60, 36),
         "backward_input": Kind("I", 60, 36), "backward_weight": Kind("W", 45, 58),
         "recompute": Kind("R", 45, 91)}  # by the names of the spans
KIND_OF = {kind.letter: name for name, kind in KINDS.items()}


# begin and end: in seconds.
Timed = namedtuple("Timed", "begin end action device", defaults=[0])
Timeline = namedtuple("Timeline", "actions end busy bubble")  # seconds busy, by device


class Action(namedtuple("Action", "kind stage micro_batch")):
    def __str__(self):
        return f"{KINDS[self.kind].letter}{self.stage}.{self.micro_batch}"


def _action(span):
    """None for spans that are no action: "wait", "step"."""
    if span.category != "pipeline" or span.name not in KINDS:
        return None
    if not (span.step >= 0 and 0 <= span.stage < MOST_STAGES
            and 0 <= span.micro_batch < MOST_MICRO_BATCHES):
        raise Error(f"[timeline] the span {span.name} is of step {span.step}, stage {span.stage}, "
                    f"micro-batch {span.micro_batch}; needed are all three, as train::Recorder and "
                    "Pipeline give them")
    return Action(span.name, span.stage, span.micro_batch)


def _first_pipeline(lists):
    """The lists of the first pipeline's ranks, and how many pipelines there are."""
    rank_of_stage = {}  # the lowest rank
    for rank, device in sorted(lists):
        for timed in lists[rank, device]:
            rank_of_stage.setdefault(timed.action.stage, rank)
    kept = set(rank_of_stage.values())
    ranks = {rank for rank, _ in lists}
    return {place: lists[place] for place in lists if place[0] in kept}, len(ranks) // len(kept)


class _Step:
    """`lists`: by rank and device, what each did."""

    def __init__(self, number, lists):
        self.number = number
        lists, self.pipelines = _first_pipeline(lists)
        several_ranks = len({rank for rank, _ in lists}) > 1
        # In the order of their first stages.
        places = sorted(sorted(lists), key=lambda place: min(t.action.stage for t in lists[place]))
        self.devices = [f"rank {rank}, {device}" if several_ranks else device
                        for rank, device in places]
        rows = [sorted(lists[place], key=lambda t: (t.begin, t.end)) for place in places]
        actions = [timed.action for row in rows for timed in row]
        self.stages = 1 + max(action.stage for action in actions)
        self.micro_batches = 1 + max(action.micro_batch for action in actions)
        # The format that parallel/schedule.h reads.
        self.schedule = (f"weft schedule traced stages {self.stages} "
                         f"micro-batches {self.micro_batches}\n")
        for d, row in enumerate(rows):
            self.schedule += " ".join([f"{d}:"] + [str(timed.action) for timed in row]) + "\n"
        begin = self.begin = min(row[0].begin for row in rows)
        self.ranks = [rank for rank, _ in places]
        timed = [Timed(t.begin - begin, t.end - begin, t.action, d)
                 for d, row in enumerate(rows) for t in row]
        end = max(t.end for t in timed)
        busy = [sum(t.end - t.begin for t in row) for row in rows]
        self.measured = Timeline(timed, end, busy, 1 - sum(busy) / (len(busy) * end) if end else 0)


def _ask(step, costs=None):
    return ask(step.schedule, f"step {step.number} of the trace", costs)


def _whole_steps(spans):
    found = defaultdict(lambda: defaultdict(list))
    for span in spans:
        action = _action(span)
        if action:
            found[span.step][span.rank, span.device].append(Timed(span.begin, span.end, action))
    steps, is_whole, last_cut_off = [], {}, None
    for number in sorted(found):
        step = _Step(number, found[number])
        if step.schedule not in is_whole:
            try:
                is_whole[step.schedule] = bool(_ask(step))
            except Error:  # the end of the run may have cut it off
                is_whole[step.schedule] = False
        if not is_whole[step.schedule]:
            last_cut_off = step
        elif step.measured.end > 0:
            steps.append(step)
    if not steps and last_cut_off:
        _ask(last_cut_off)
    return steps


def _median_costs(steps, stages):
    """The median costs of each stage over all these steps."""
    seconds = defaultdict(list)
    for step in steps:
        for timed in step.measured.actions:
            seconds[timed.action.kind, timed.action.stage].append(timed.end - timed.begin)

    def median(kind, stage):
        return statistics.median(seconds[kind, stage]) if (kind, stage) in seconds else 0
    return {"forward": [median("forward", s) for s in range(stages)],
            # For a stage that does not split its backwards, B stands for I and W.
            "backward_input": [median("backward_input", s) or median("backward", s)
                               for s in range(stages)],
            "backward_weight": [median("backward_weight", s) for s in range(stages)]}


def color_of(kind, micro_batch):
    """Neighbouring micro-batches get very different colours."""
    return Color((210 + micro_batch * 137) % 360, KINDS[kind].saturation, KINDS[kind].lightness)


def legend_of(used):
    """Keys for these kinds. Those that look the same share one."""
    names = defaultdict(list)
    for kind in KINDS:
        if kind in used:
            names[color_of(kind, 0), kind == "recompute"].append(kind)
    return [Key(", ".join(kinds), *look) for look, kinds in names.items()] + [
        Key("a colour and number per micro-batch", color_of("forward", 1))]


def _sends(spans, step):
    """For each rank a row of what it sends, from the send to the end of the receive."""
    begins, sizes, ends = {}, defaultdict(int), {}
    for span in spans:
        found = re.search(r"([<>])([A-Z])(\d+)\.(\d+)$", span.module)
        if (span.category != "comm" or span.step != step.number or span.rank not in step.ranks
                or not found):
            continue
        direction, letter, stage, micro_batch = found.groups()
        if direction == ">":
            message = span.rank, letter, int(stage), int(micro_batch)
            begins[message] = min(span.begin, begins.get(message, span.begin))
            sizes[message] += max(0, span.bytes)
        else:  # the receiver's stage: the next one, or for gradients the one before
            message = letter, int(stage) + (-1 if letter == "F" else 1), int(micro_batch)
            ends[message] = max(span.end, ends.get(message, 0))
    rows = {rank: [] for rank in dict.fromkeys(step.ranks)} if begins else {}
    for message, begin in sorted(begins.items(), key=lambda item: item[1]):
        rank, letter, stage, micro_batch = message
        end = max(begin, ends.get(message[1:], begin))
        what = "the result" if letter == "F" else "the gradient of the inputs"
        begin, end = begin - step.begin, end - step.begin
        rows[rank].append(Bar(
            begin, end, color_of("backward_weight", micro_batch), f"{letter}{stage}.{micro_batch}",
            f"rank {rank} sends {what} of {letter}{stage}.{micro_batch}, {sizes[message]} bytes\n"
            f"{times(begin, end)}"))
    return {rank: Row("sends", counted(len(bars), "send"), bars) for rank, bars in rows.items()}


def _panel(what, step, shown, sends, measured, predicted):
    """`measured`, `predicted`: when each action ran."""
    rows = [Row(device, f"idle {percent(1 - busy / shown.end)}", [])
            for device, busy in zip(step.devices, shown.busy)]
    for begin, end, action, device in shown.actions:
        kind, stage, micro_batch = action
        rows[device].bars.append(Bar(
            begin, end, color_of(kind, micro_batch), str(micro_batch),
            f"{action}: {kind} of micro-batch {micro_batch} in stage {stage} on "
            f"{step.devices[device]}\nmeasured: {times(*measured[action])}\n"
            f"predicted: {times(*predicted[action])}", kind == "recompute"))
    drawn = []
    for d, row in enumerate(rows):
        drawn.append(row)
        rank = step.ranks[d]
        if rank in sends and rank not in step.ranks[d + 1:]:  # below its last device
            drawn.append(sends[rank])
    return Panel(f"{what}: {milliseconds(shown.end)}, bubble {percent(shown.bubble)}", drawn)


def _formula(step):
    """The bubble of schedules that idle only at both ends, with stages that all take the same time."""
    p, m = len(step.devices), step.micro_batches
    per_device = step.stages / p
    if per_device > 1 and m < p:
        return "Fewer micro-batches than devices: no formula."
    factor, rest = ("", "") if per_device == 1 else ("v", f", v = {per_device:g} stages on each")
    return (f"GPipe and 1F1B with equal stages: bubble (p-1)/({factor}m+p-1) = "
            f"{percent((p - 1) / (per_device * m + p - 1))} for p = {p} devices, "
            f"m = {m} micro-batches{rest}.")


def _timeline(answer, step):
    """The answer of tools/schedule as a Timeline."""
    actions = {str(timed.action): timed.action for timed in step.measured.actions}
    return Timeline([Timed(t["begin"], t["end"], actions[t["action"]], t["device"])
                     for t in answer["actions"]], answer["end"], answer["busy"], answer["bubble"])


def pipeline_figure(spans, cores, wanted):
    """`cores`: on how many the program could run; 0: unknown."""
    steps = _whole_steps(spans)
    step = steps[choose_step([(step.number, step.measured.end) for step in steps], wanted)]
    others = [each for each in steps if each.schedule == step.schedule and each is not step]
    answer = _ask(step, _median_costs(others or [step], step.stages))
    measured, predicted = step.measured, _timeline(answer, step)

    known_as = answer["known_as"] or "a schedule of the user's"
    pipelines = "a pipeline" if step.pipelines == 1 else f"the first of {step.pipelines} pipelines"
    facts = [
        f"Schedule: {known_as}.",
        f"Measured {milliseconds(measured.end)}, {measured.end / predicted.end:.3f} times the "
        f"predicted {milliseconds(predicted.end)}; bubble {percent(measured.bubble)} measured, "
        f"{percent(predicted.bubble)} predicted.",
        _formula(step),
        f"Predicted from the medians of each stage's times over {len(others)} other steps of the "
        "trace, transfers taking no time." if others else
        "Predicted from this step's own medians, the only one of its schedule."]
    used = {timed.action.kind for timed in measured.actions}
    legend = legend_of(used)
    sends = _sends(spans, step)
    if sends:
        facts.append("Below each rank what it sends: from the send to the end of the receive.")
    when = [{timed.action: timed[:2] for timed in each.actions} for each in (measured, predicted)]
    panels = [_panel("Predicted", step, predicted, {}, *when),
              _panel("Measured", step, measured, sends, *when)]
    busy = len(step.devices) * step.pipelines
    if 0 < cores < busy and "cpu" in step.devices[0]:
        have = counted(cores, "core")
        # A trace does not say which cores or hosts the ranks had.
        shared = (f"{busy} devices shared {have}" if len(set(step.ranks)) == 1 else
                  f"Each rank could run on {have}. Where these are the same")
        facts.append(f"{shared}: gaps in what was measured are waits for a core, too, and not the "
                     "schedule's bubble alone.")
        facts.append("Replayed: the times of this step's own actions, each stage's median, in the "
                     "order of the schedule, with no gaps but its own.")
        replayed = _timeline(_ask(step, _median_costs([step], step.stages)), step)
        panels.append(_panel("Replayed", step, replayed, {}, *when))
    return Figure(
        f"Step {step.number} of {pipelines}: {step.stages} stages on {len(step.devices)} devices, "
        f"{step.micro_batches} micro-batches", facts, legend, panels, step.begin,
        step.number)
