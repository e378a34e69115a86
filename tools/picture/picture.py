#!/usr/bin/env python3
"""Draws what weft's own code did: `./weft picture ring OUT.svg`, `./weft picture buckets TRACE
OUT.svg`, `./weft picture tape MODEL OUT.svg`."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools import command
from tools.picture.buckets import bucket_picture, read_step
from tools.picture.ring import ring_picture
from tools.picture.tape import tape_picture


def main():
    parser = command.Parser(
        prog="picture", description="Draws what the ranks of a run did, or what autograd recorded.",
        epilog="Exit status: 0, or 2 for wrong usage or a file that cannot be read or written.")
    commands = parser.add_subparsers(dest="what", metavar="ring|buckets|tape", required=True)
    ring = commands.add_parser("ring", help="the steps of weft's ring all-reduce, run here")
    ring.add_argument("out", metavar="OUT", help="an SVG file")
    ring.add_argument("--ranks", type=int, default=4, help="how many ranks (default: %(default)s)")
    buckets = commands.add_parser("buckets", help="a step of DDP, from what --trace wrote")
    buckets.add_argument("trace", metavar="TRACE", help="the trace of all ranks")
    buckets.add_argument("out", metavar="OUT", help="an SVG file")
    buckets.add_argument("--step", type=command.step_number, default=-1,
                         help="which step; by default the one of median length")
    tape = commands.add_parser("tape", help="what a loss has recorded: the graph of its backward")
    tape.add_argument("model", metavar="MODEL", help="mlp, autoencoder, cnn or char_transformer")
    tape.add_argument("out", metavar="OUT", nargs="?",
                      help="an SVG file; without: text, as autograd::print() writes it")
    options = parser.parse_args()
    if options.what == "ring":
        run = json.loads(command.output_of("tools/picture/traced_ring", str(options.ranks)))
        picture = ring_picture(run)
    elif options.what == "tape":
        run = json.loads(command.output_of("tools/picture/traced_tape", options.model))
        if options.out is None:
            print(run["text"], end="")
            return 0
        picture = tape_picture(run)
    else:
        picture = bucket_picture(read_step(options.trace, options.step))
    command.write_file(options.out, picture.svg().encode())
    return 0


if __name__ == "__main__":
    command.run("picture", main)
