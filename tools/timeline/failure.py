#!/usr/bin/env python3
"""Draws what the ranks of a run that failed did last, from the file that weftrun --failure wrote:
`./weft failure failure.json -o failure.html`."""
import argparse
import pathlib
import sys
from collections import namedtuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools import command
from tools.picture.svg import Color
from tools.timeline import figure
from tools.timeline.figure import Bar, Figure, Key, Panel, Row, milliseconds
from tools.trace import member, read_json

ENDED, MARKED = Color(215, 30, 74), Color(275, 55, 52)
FAILED, OPEN = Color(5, 70, 50), Color(38, 90, 62)
BEFORE = 12  # operations before the first difference

TEXTS = ("name", "group", "dtype", "tag", "module", "phase", "state")
NUMBERS = ("number", "count", "bytes")
Operation = namedtuple("Operation", (*TEXTS, *NUMBERS, "peer", "step", "begin", "end"))
Rank = namedtuple("Rank", "rank end memory operations")
Difference = namedtuple("Difference", "group number call why")


def _optional(thing, key, kind):
    return None if member(thing, key, object) is None else member(thing, key, kind)


def _operation(thing):
    return Operation(*(member(thing, key, str) for key in TEXTS),
                     *(member(thing, key, int) for key in NUMBERS),
                     _optional(thing, "peer", int), _optional(thing, "step", int),
                     member(thing, "begin", float), _optional(thing, "end", float))


def _memory(thing):
    in_use = member(thing, "in_use", dict)
    return member(thing, "device", str), {owner: member(in_use, owner, int) for owner in in_use}


def _rank(thing):
    return Rank(member(thing, "rank", int), member(thing, "end", str),
                [_memory(m) for m in member(thing, "memory", list)],
                [_operation(o) for o in member(thing, "operations", list)])


def _read(json):
    difference = _optional(json, "first_difference", dict)
    if difference is not None:
        difference = Difference(member(difference, "group", str), member(difference, "number", int),
                                member(difference, "call", str), member(difference, "why", str))
    command_line = " ".join(map(str, member(json, "command", list)))
    return command_line, difference, [_rank(rank) for rank in member(json, "ranks", list)]


def _bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _duration(seconds):
    return f"{seconds:.1f} s" if seconds >= 1 else milliseconds(max(seconds, 0))


def _how_long(operation):
    if operation.end is None:
        return f"since {_duration(-operation.begin)}"
    taken = _duration(operation.end - operation.begin)
    return f"failed after {taken}" if operation.state == "failed" else f"took {taken}"


def _hover(operation):
    call = f"{operation.name} {operation.number}" + (f" ({operation.tag})" if operation.tag else "")
    if operation.peer is not None:
        call += f" with rank {operation.peer}"
    lines = [f"{call} of {operation.group}"]
    if operation.dtype:
        lines.append(f"{operation.count} {operation.dtype}, {_bytes(operation.bytes)}")
    place = [f"step {operation.step}"] if operation.step is not None else []
    lines.append(", ".join(place + [text for text in (operation.phase, operation.module) if text]))
    when = "before" if operation.begin <= 0 else "after"
    lines.append(f"began {_duration(abs(operation.begin))} {when} the failure, {_how_long(operation)}")
    return "\n".join(line for line in lines if line)


def _is_marked(operation, difference):
    return (difference is not None and operation.peer is None
            and (operation.group, operation.number) == (difference.group, difference.number))


def _window(ranks, difference):
    """Begin and end of what is drawn: some operations before the first difference, and twice their
    time after it, so that a rank that waits for minutes does not make the others too small."""
    marked = [o for rank in ranks for o in rank.operations if _is_marked(o, difference)]
    if marked:
        shown = [o for rank in ranks for o in rank.operations
                 if o.peer is None and o.group == difference.group
                 and difference.number - BEFORE <= o.number <= difference.number]
    else:
        shown = [o for rank in ranks for o in rank.operations[-BEFORE:]]
    if not shown:
        return -1, 0
    begin = min(o.begin for o in shown)
    at = min(o.begin for o in marked) if marked else max(o.begin for o in shown)
    last = max(0, *(o.begin if o.end is None else o.end for rank in ranks for o in rank.operations))
    return begin, min(last, at + 2 * (at - begin)) if begin < at else last


def _bar(operation, difference, window):
    begin, end = window
    color = (OPEN if operation.end is None else FAILED if operation.state == "failed"
             else MARKED if _is_marked(operation, difference) else ENDED)
    last = max(0, end) if operation.end is None else operation.end
    return Bar(max(operation.begin, begin) - begin, min(last, end) - begin, color,
               f"{operation.number} differs" if _is_marked(operation, difference)
               and operation.state != "ended" else str(operation.number), _hover(operation), operation.end is None)


def _state(rank, group, difference):
    """How far the rank is with the operation at which they differ."""
    if difference is None or group != difference.group:
        return ""
    for operation in rank.operations:
        if _is_marked(operation, difference):
            return operation.state
    return "not begun"


def failure_figure(path):
    command_line, difference, ranks = read_json(path, "failure", "file of weftrun --failure", _read)
    window = _window(ranks, difference)
    groups = sorted({o.group for rank in ranks for o in rank.operations},
                    key=lambda group: (difference is None or group != difference.group, group))
    panels = []
    for group in groups:
        rows = []
        for rank in ranks:
            bars = [_bar(o, difference, window) for o in rank.operations if o.group == group
                    and o.begin <= window[1] and (o.end is None or o.end >= window[0])]
            state = _state(rank, group, difference)
            if bars or state:
                rows.append(Row(f"rank {rank.rank}", state, bars))
        if rows:
            panels.append(Panel(f"operations of {group}" if group else "operations", rows))
    facts = [command_line]
    if difference is not None:
        facts.append(f"{difference.group} differ first at {difference.call}: {difference.why}.")
    for rank in ranks:
        memory = "; ".join(
            f"{device} has {_bytes(sum(in_use.values()))}: "
            + ", ".join(f"{owner} {_bytes(count)}" for owner, count in in_use.items())
            for device, in_use in rank.memory)
        facts.append(f"rank {rank.rank}: {rank.end}")
        if memory:
            facts.append(f"rank {rank.rank}: {memory}")
    facts.append(f"Time 0 is {_duration(-window[0])} before the failure was seen. A bar that reaches "
                 "the end may go on. The numbers count a group's operations.")
    legend = [Key("ended", ENDED), Key("failed", FAILED), Key("running", OPEN, True)]
    if difference is not None:
        legend.insert(1, Key(f"ended, and number {difference.number}", MARKED))
    return Figure("What the ranks did last", facts, legend, panels)


def main():
    parser = command.Parser(
        prog="failure", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draws what the ranks of a run that failed did last.",
        epilog="weftrun writes FILE if a run fails: --failure FILE, or failure.json beside --report.\n"
               "Exit status: 0, or 2 for wrong usage or a file that cannot be read or written.")
    parser.add_argument("file", metavar="FILE", nargs="?", help="what weftrun --failure wrote")
    parser.add_argument("-o", "--out", default="failure.html",
                        help="a page, .html, or the picture alone, .svg (default: %(default)s)")
    options = parser.parse_args()
    if options.file is None:
        parser.error("expected a FILE")
    if not options.out.endswith((".svg", ".html")):
        parser.error(f"got -o {options.out}, expected a name that ends in .html or .svg")
    shown = failure_figure(options.file)
    text = figure.svg(shown) if options.out.endswith(".svg") else figure.page(shown)
    command.write_file(options.out, text.encode(errors="replace"))
    print(shown.title, *shown.facts, options.out, sep="\n")
    return 0


if __name__ == "__main__":
    command.run("failure", main)
