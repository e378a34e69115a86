#!/usr/bin/env python3
"""Draws schedules of a pipeline one under the other: `./weft schedule --compare gpipe 1f1b --stages 4
--micro-batches 8 -o out.html`."""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools import command
from tools.timeline import figure
from tools.timeline.figure import Bar, Figure, Panel, Row, milliseconds, percent, times
from tools.timeline.pipeline import KIND_OF, color_of, legend_of

FORWARD = .010  # seconds that the forward of one device's part of the model takes
TWO_STAGES = ("interleaved", "zb-v", "dualpipev")  # on each device


def _ask(name, options):
    """What tools/schedule says of the schedule on options.stages devices, in seconds, and how many
    stages a device has."""
    per_device = 2 if name in TWO_STAGES else 1
    arguments = [name, "--stages", str(per_device * options.stages), "--micro-batches",
                 str(options.micro_batches), "--checkpoint", options.checkpoint, "--json"]
    if name == "interleaved":
        arguments += ["--devices", str(options.stages)]
    try:
        answer = json.loads(command.output_of("tools/schedule/schedule", *arguments))
    except command.Error as error:
        where = f"{name}, with two stages on each device: " * (per_device == 2)
        raise command.Error(f"{where}{error}") from None
    # Without costs, the forward of a stage takes 1, and so do its two kinds of gradients.
    stage = FORWARD / per_device
    answer["end"] *= stage
    answer["busy"] = [busy * stage for busy in answer["busy"]]
    for timed in answer["actions"]:
        timed["begin"] *= stage
        timed["end"] *= stage
    return answer, per_device


def _panel(name, answer, per_device):
    rows = [Row(f"device {d}", f"idle {percent(1 - busy / answer['end'])}", [])
            for d, busy in enumerate(answer["busy"])]
    for timed in answer["actions"]:
        kind = KIND_OF[timed["action"][0]]
        stage, micro_batch = map(int, timed["action"][1:].split("."))
        rows[timed["device"]].bars.append(Bar(
            timed["begin"], timed["end"], color_of(kind, micro_batch), str(micro_batch),
            f"{timed['action']}: {kind} of micro-batch {micro_batch} in stage {stage}\n"
            f"{times(timed['begin'], timed['end'])}", kind == "recompute"))
    kept = max(answer["kept"]) / per_device
    return Panel(f"{name}: {milliseconds(answer['end'])}, bubble {percent(answer['bubble'])}, a device "
                 f"keeps the activations of at most {kept:g} micro-batches", rows)


def compared(options):
    answers = [(name, *_ask(name, options)) for name in options.names]
    facts = ["Equal stages; the forward of a device's part of the model takes "
             f"{milliseconds(FORWARD)}, its gradients of the inputs and those of the weights as long "
             "each."]
    facts += [f"{name} has two stages on each device, each half as long." for name in TWO_STAGES
              if name in options.names]
    used = {KIND_OF[timed["action"][0]] for _, answer, _ in answers for timed in answer["actions"]}
    return Figure(f"{options.micro_batches} micro-batches on {options.stages} devices", facts,
                  legend_of(used), [_panel(*answer) for answer in answers])


def main():
    parser = command.Parser(
        prog="schedule", usage="schedule --compare NAME... --stages P --micro-batches M [-o OUT]",
        description="Draws schedules of a pipeline one under the other, with the time that they take "
                    "and the activations that they keep.",
        epilog="Exit status: 0, or 2 for wrong usage or a file that cannot be written.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="+",
                        help="gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipev")
    parser.add_argument("--stages", type=int, required=True, help="and devices, one for each")
    parser.add_argument("--micro-batches", type=int, required=True, help="of a batch")
    parser.add_argument("--checkpoint", default="never", help="never, except_last or always")
    parser.add_argument("-o", "--out", default="schedules.html",
                        help="a page, .html, or the picture alone, .svg (default: %(default)s)")
    options = parser.parse_args()
    if not options.out.endswith((".svg", ".html")):
        parser.error(f"got -o {options.out}, expected a name that ends in .html or .svg")
    shown = compared(options)
    text = figure.svg(shown) if options.out.endswith(".svg") else figure.page(shown)
    command.write_file(options.out, text.encode())
    print(shown.title, *(panel.title for panel in shown.panels), options.out, sep="\n")
    return 0


if __name__ == "__main__":
    command.run("schedule", main)
