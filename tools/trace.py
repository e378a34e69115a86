"""Traces that --trace of a program wrote."""
import json
import math
from collections import namedtuple

from tools.command import Error


class Malformed(Exception):
    """An error that says what is wrong with the text or the members of a trace."""


WRONG_TYPE = "something in it is not of the type that belongs there"
TOO_LARGE = "a number in it is too large"


def _finite(text):
    number = float(text)
    if math.isinf(number):
        raise Malformed(TOO_LARGE)
    return number


def _no_number(name):
    raise Malformed(f"no JSON, which has no {name}")


def _parse(data):
    try:
        text = data.decode("utf-8-sig")
        return json.loads(text, parse_float=_finite, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        at = error.start
    except json.JSONDecodeError as error:
        # For a string that is cut off, Python reports where it begins.
        cut_off = error.msg.startswith("Unterminated string")
        at = len(data) if cut_off else len(text[:error.pos].encode())
    except ValueError:  # thousands of digits
        raise Malformed(TOO_LARGE) from None
    except RecursionError:
        raise Malformed(WRONG_TYPE) from None
    raise Malformed(f"no JSON at byte {at + 1}; was its program ended while it wrote?")


_REQUIRED = object()


def member(thing, key, kind, default=_REQUIRED):
    """thing[key], of type `kind`; numbers become what is asked for."""
    if not isinstance(thing, dict):
        raise Malformed(WRONG_TYPE)
    if key not in thing:
        if default is _REQUIRED:
            raise Malformed(f"a '{key}' is missing in it")
        return default
    value, number = thing[key], kind in (int, float)
    if isinstance(value, bool) or not isinstance(value, (int, float) if number else kind):
        raise Malformed(WRONG_TYPE)
    return kind(value) if number else value


def read_json(path, op, what, read):
    """read(JSON of the file). Raises Error with the file's name for a file that cannot be read, or is no
    `what`: read() raises Malformed for that."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        data = b""
    if not data:
        raise Error(f"[{op}] {path} cannot be read, or is empty")
    try:
        return read(_parse(data))
    except Malformed as why:
        raise Error(f"[{op}] {path} is no {what}: {why}") from None
    except OverflowError:
        raise Error(f"[{op}] {path} is no {what}: {TOO_LARGE}") from None
    except Error as error:
        raise Error(f"{error} in {path}") from None


def read_trace(path, op, read):
    """read(event) of each event of a trace."""
    return read_json(path, op, "trace that --trace wrote", lambda json:
                     [read(event) for event in member(json, "traceEvents", list)])


# Begin and end in seconds. Missing numbers are -1, and missing texts "". `source`: of a copy, the
# number of the device from which it came.
Span = namedtuple("Span", "category name rank thread begin end step stage micro_batch replica "
                  "source bytes device module")


# Threads of a trace with this number or a larger one are streams (core/trace/trace_json.cc).
_FIRST_STREAM = 1_000_000


def _span(event):
    if member(event, "ph", object) != "X":
        return None
    begin, length = member(event, "ts", float), member(event, "dur", float)
    if length < 0 or math.isinf(begin + length):
        raise Error(f"[timeline] a span lasts {length:g} us")
    args = member(event, "args", dict)
    return Span(member(event, "cat", str), member(event, "name", str),
                member(event, "pid", int, -1), member(event, "tid", int, -1),
                begin * 1e-6, (begin + length) * 1e-6,
                *(member(args, key, int, -1)
                  for key in ("step", "stage", "micro_batch", "replica", "from", "bytes")),
                *(member(args, key, str, "") for key in ("device", "module")))


def read_spans(path):
    """The spans in the order of the file. If a trace has the time of devices
    (TracerOptions::device_time), their work has only the spans of their streams."""
    spans = [span for span in read_trace(path, "timeline", _span) if span]
    if any(span.thread >= _FIRST_STREAM for span in spans):
        spans = [span for span in spans if not span.device or span.device.startswith("cpu")
                 or span.thread >= _FIRST_STREAM]
    return spans


def _cores(event):
    if member(event, "ph", object) != "M" or member(event, "name", str) != "process_labels":
        return 0
    label, _, count = member(member(event, "args", dict), "labels", str).partition("cores: ")
    return int(count) if not label and count.isdecimal() and len(count) < 10 else 0


def read_cores(path):
    """On how many cores a process of the trace could run: the largest number; 0 in older traces."""
    return max(read_trace(path, "timeline", _cores), default=0)


Counter = namedtuple("Counter", "name series rank time value")


def _counters(event):
    if member(event, "ph", object) != "C":
        return []
    return [Counter(member(event, "name", str), series, member(event, "pid", int, -1),
                    member(event, "ts", float) * 1e-6, member(event["args"], series, float))
            for series in member(event, "args", dict)]


def read_counters(path):
    """The counters in the order of the file; times in seconds."""
    return [counter for counters in read_trace(path, "timeline", _counters)
            for counter in counters]


def choose_step(steps, wanted):
    """The index of step `wanted` in `steps`, pairs of number and seconds; for -1 of the one of median
    length, without the first two where there are more."""
    if not steps:
        raise Error("[timeline] the trace has no whole step")
    if wanted >= 0:
        for i, (number, _) in enumerate(steps):
            if number == wanted:
                return i
        raise Error(f"[timeline] the trace has no whole step {wanted}; its first is {steps[0][0]}, "
                    f"its last {steps[-1][0]}")
    order = sorted(range(2 if len(steps) > 2 else 0, len(steps)), key=lambda i: steps[i][1])
    return order[len(order) // 2]
