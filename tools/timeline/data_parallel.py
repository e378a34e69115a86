"""A step of DataParallel: what each device does, and how long it idles."""
import collections

from tools.picture.svg import Color
from tools.timeline.figure import (Bar, Figure, Key, Panel, Row, covered, milliseconds, percent,
                                   times)
from tools.trace import choose_step

SHADES = {"scatter": Color(38, 75, 62), "replicate": Color(285, 38, 68),
          "parallel_apply": Color(210, 60, 74), "gather": Color(160, 45, 45),
          "scatter_gradients": Color(38, 75, 42), "parallel_backward": Color(215, 35, 58),
          "backward": Color(215, 55, 38), "reduce_gradients": Color(330, 45, 55),
          "other": Color(0, 0, 60)}


def _shade(span):
    name = span.name if span.category == "parallel" else "backward"
    return name if name in SHADES else "other"


def _is_backward(span):
    """Whether the span is the caller's backward, of all devices."""
    return span.category == "phase" and span.name == "backward"


class _Step:
    def __init__(self, number, spans):
        # What runs within another span is drawn over it.
        self.number, self.spans = number, sorted(spans, key=lambda span: (span.begin, -span.end))
        self.begin = min(span.begin for span in spans)
        self.length = max(0, *(span.end for span in spans)) - self.begin
        self.devices = {span.replica: span.device for span in spans  # by replica
                        if span.name == "parallel_apply" and span.replica >= 0}

    def bar(self, span):
        hover = f"backward of {span.name}" if span.category == "backward" else span.name
        if span.replica >= 0:
            hover += f" of replica {span.replica}"
        if span.device:
            hover += f" on {span.device}"
        begin, end = span.begin - self.begin, span.end - self.begin
        return Bar(begin, end, SHADES[_shade(span)],
                   span.name if span.category == "parallel" else "backward",
                   f"{hover}\n{times(begin, end)}")


def _steps(spans):
    found = collections.defaultdict(list)
    for span in spans:
        if span.step >= 0 and (span.category in ("parallel", "backward") or _is_backward(span)):
            found[span.step].append(span)
    steps = [_Step(number, found[number]) for number in sorted(found)]
    return [step for step in steps if step.devices and step.length > 0]


def data_parallel_figure(spans, wanted):
    steps = _steps(spans)
    step = steps[choose_step([(step.number, step.length) for step in steps], wanted)]
    # Spans without a device belong to the caller, where the steps are named; backward begins there.
    own = [span for span in step.spans if span.category == "parallel" and not span.device]
    rows = [Row("caller", "", [
        step.bar(span) for span in step.spans
        if span in own or (_is_backward(span) and own and span.thread == own[0].thread)])]
    all_idle = 0
    for _, device in sorted(step.devices.items()):
        bars = [step.bar(span) for span in step.spans if span.device == device]
        idle = 1 - covered(bars) / step.length
        rows.append(Row(device, f"idle {percent(idle)}", bars))
        all_idle += idle
    drawn = {_shade(span) for span in step.spans}
    took, devices = milliseconds(step.length), len(step.devices)
    return Figure(f"Step {step.number} of DataParallel on {devices} devices",
                  [f"Forward and backward take {took}, in which the devices idle "
                   f"{percent(all_idle / devices)} of the time."],
                  [Key(name, color) for name, color in SHADES.items() if name in drawn],
                  [Panel(f"Forward and backward: {took}", rows)], step.begin, step.number)
