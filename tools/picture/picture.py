#!/usr/bin/env python3
"""Draws what weft's own code did: `./weft picture ring OUT.png`, `./weft picture buckets TRACE
OUT.png`."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools import command
from tools.picture.buckets import bucket_picture, read_step
from tools.picture.ring import ring_picture


def main():
    parser = command.Parser(
        prog="picture", description="Draws what the ranks of a run did.",
        epilog="Exit status: 0, or 2 for wrong usage or a file that cannot be read or written.")
    commands = parser.add_subparsers(dest="what", metavar="ring|buckets", required=True)
    ring = commands.add_parser("ring", help="the steps of weft's ring all-reduce, run here")
    ring.add_argument("out", metavar="OUT", help="a PNG file")
    ring.add_argument("--ranks", type=int, default=4, help="how many ranks (default: %(default)s)")
    buckets = commands.add_parser("buckets", help="a step of DDP, from what --trace wrote")
    buckets.add_argument("trace", metavar="TRACE", help="the trace of all ranks")
    buckets.add_argument("out", metavar="OUT", help="a PNG file")
    buckets.add_argument("--step", type=command.step_number, default=-1,
                         help="which step; by default the one of median length")
    options = parser.parse_args()
    if options.what == "ring":
        run = json.loads(command.output_of("tools/picture/traced_ring", str(options.ranks)))
        picture = ring_picture(run)
    else:
        picture = bucket_picture(read_step(options.trace, options.step))
    command.write_file(options.out, picture.png())
    return 0


if __name__ == "__main__":
    command.run("picture", main)
