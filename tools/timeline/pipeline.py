"""A step of a pipeline, predicted and measured. What the schedule is, whether it is whole, and when
its actions would run, tools/schedule says: weft's own code."""
import json
import pathlib
import re
import statistics
import tempfile
from collections import defaultdict, namedtuple

from tools.command import Error, output_of
from tools.timeline.figure import Bar, Color, Figure, Key, Panel, Row, milliseconds, percent, times
from tools.trace import choose_step

MOST_STAGES, MOST_MICRO_BATCHES = 4096, 65536  # parallel/schedule.h


Kind = namedtuple("Kind", "letter saturation lightness")
KINDS = {"forward": Kind("F", 65, 78), "backward": Kind("B", 60, 36),
         "backward_input": Kind("I", 60, 36), "backward_weight": Kind("W", 45, 58),
         "recompute": Kind("R", 45, 91)}  # by the names of their spans


# Begin and end in seconds.
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
    """The lists of the ranks that have the first pipeline, and how many pipelines there are."""
    rank_of_stage = {}  # the lowest one
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
        # As parallel/schedule.h reads it.
        self.schedule = (f"weft schedule traced stages {self.stages} "
                         f"micro-batches {self.micro_batches}\n")
        for d, row in enumerate(rows):
            self.schedule += " ".join([f"{d}:"] + [str(timed.action) for timed in row]) + "\n"
        begin = min(row[0].begin for row in rows)
        timed = [Timed(t.begin - begin, t.end - begin, t.action, d)
                 for d, row in enumerate(rows) for t in row]
        end = max(t.end for t in timed)
        busy = [sum(t.end - t.begin for t in row) for row in rows]
        self.measured = Timeline(timed, end, busy, 1 - sum(busy) / (len(busy) * end) if end else 0)


def _ask(step, costs=None):
    """What tools/schedule says of the step's schedule. Raises Error with what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"step {step.number} of the trace"  # which the errors name
        pathlib.Path(folder, name).write_text(step.schedule, encoding="utf-8")
        options = ["--check", name, "--json"]
        if costs:
            pathlib.Path(folder, "costs").write_text(json.dumps(costs), encoding="utf-8")
            options += ["--costs", "costs"]
        try:
            return json.loads(output_of("tools/schedule/schedule", *options, folder=folder))
        except Error as error:
            # The user has no text with lines.
            raise Error(re.sub(r"; line \d+, column \d+|, in line \d+", "", str(error))) from None


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
            except Error:  # cut off by the end of the run, say
                is_whole[step.schedule] = False
        if not is_whole[step.schedule]:
            last_cut_off = step
        elif step.measured.end > 0:
            steps.append(step)
    if not steps and last_cut_off:
        _ask(last_cut_off)
    return steps


def _median_costs(steps, stages):
    """By stage, over all these steps."""
    seconds = defaultdict(list)
    for step in steps:
        for timed in step.measured.actions:
            seconds[timed.action.kind, timed.action.stage].append(timed.end - timed.begin)

    def median(kind, stage):
        return statistics.median(seconds[kind, stage]) if (kind, stage) in seconds else 0
    return {"forward": [median("forward", s) for s in range(stages)],
            # Of a stage that does not split its backwards B is I and W.
            "backward_input": [median("backward_input", s) or median("backward", s)
                               for s in range(stages)],
            "backward_weight": [median("backward_weight", s) for s in range(stages)]}


def _color(kind, micro_batch):
    """Neighbouring micro-batches far apart in colour."""
    return Color((210 + micro_batch * 137) % 360, KINDS[kind].saturation, KINDS[kind].lightness)


def _panel(what, step, shown, measured, predicted):
    """`measured`, `predicted`: when each action ran."""
    rows = [Row(device, f"idle {percent(1 - busy / shown.end)}", [])
            for device, busy in zip(step.devices, shown.busy)]
    for begin, end, action, device in shown.actions:
        kind, stage, micro_batch = action
        rows[device].bars.append(Bar(
            begin, end, _color(kind, micro_batch), str(micro_batch),
            f"{action}: {kind} of micro-batch {micro_batch} in stage {stage} on "
            f"{step.devices[device]}\nmeasured: {times(*measured[action])}\n"
            f"predicted: {times(*predicted[action])}", kind == "recompute"))
    return Panel(f"{what}: {milliseconds(shown.end)}, bubble {percent(shown.bubble)}", rows)


def _formula(step):
    """Of schedules without idle time but at both ends, whose stages all take the same time."""
    p, m = len(step.devices), step.micro_batches
    per_device = step.stages / p
    if per_device > 1 and m < p:
        return "Fewer micro-batches than devices: no formula."
    factor, rest = ("", "") if per_device == 1 else ("v", f", v = {per_device:g} stages on each")
    return (f"GPipe and 1F1B with equal stages: bubble (p-1)/({factor}m+p-1) = "
            f"{percent((p - 1) / (per_device * m + p - 1))} for p = {p} devices, "
            f"m = {m} micro-batches{rest}.")


def pipeline_figure(spans, wanted):
    steps = _whole_steps(spans)
    step = steps[choose_step([(step.number, step.measured.end) for step in steps], wanted)]
    others = [each for each in steps if each.schedule == step.schedule and each is not step]
    answer = _ask(step, _median_costs(others or [step], step.stages))
    actions = {str(timed.action): timed.action for timed in step.measured.actions}
    measured, predicted = step.measured, Timeline(
        [Timed(t["begin"], t["end"], actions[t["action"]], t["device"]) for t in answer["actions"]],
        answer["end"], answer["busy"], answer["bubble"])

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
    used = {action.kind for action in actions.values()}
    legend = [Key(kind, _color(kind, 0), kind == "recompute") for kind in KINDS if kind in used]
    legend.append(Key("a colour and number per micro-batch", _color("forward", 1)))
    when = [{timed.action: timed[:2] for timed in each.actions} for each in (measured, predicted)]
    return Figure(
        f"Step {step.number} of {pipelines}: {step.stages} stages on {len(step.devices)} devices, "
        f"{step.micro_batches} micro-batches", facts, legend,
        [_panel("Predicted", step, predicted, *when), _panel("Measured", step, measured, *when)])
