#!/usr/bin/env python3
"""Draws a step of a pipeline, of a model in parts, of DataParallel, of DDP, of a Horovod program, of
FSDP or of tensor parallelism from its trace: `./weft timeline trace.json -o out.html`."""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools import command
from tools.timeline import figure
from tools.timeline.cut_model import cut_model_figure, cut_model_steps
from tools.timeline.data_parallel import data_parallel_figure
from tools.timeline.ddp import ddp_figure
from tools.timeline.delays import with_delays
from tools.timeline.memory import with_memory
from tools.timeline.model_parallel import has_parts, model_parallel_figure
from tools.timeline.pipeline import pipeline_figure
from tools.trace import read_cores, read_spans


def trace_figure(path, spans, step):
    categories = {span.category for span in spans}
    if "pipeline" in categories:
        return pipeline_figure(spans, read_cores(path), step)
    if "ddp" in categories:
        return ddp_figure(path, "DistributedDataParallel", step)
    if "DistributedOptimizer" in categories:
        return ddp_figure(path, "DistributedOptimizer", step)
    if "parallel" in categories:
        return data_parallel_figure(spans, step)
    if has_parts(spans):
        return model_parallel_figure(spans, step)
    if steps := cut_model_steps(spans):
        return cut_model_figure(steps, step)
    raise command.Error(f"[timeline] {path} has no spans of a Pipeline, of DataParallel, of "
                        "DistributedDataParallel, of a DistributedOptimizer, of a model in parts "
                        "or of one that ranks have cut")


def main():
    parser = command.Parser(
        prog="timeline", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draws when the devices of a step did what, from the trace of a run.",
        epilog="A step of a pipeline, of DistributedDataParallel and of a model that ranks have cut, by\n"
               "fully_shard or parallelize, is drawn as its schedule predicts it and as it was measured;\n"
               "of a model in parts, DataParallel and Horovod's programs is shown who waits.\n"
               "Exit status: 0, or 2 for wrong usage or a file that cannot be read or written.")
    parser.add_argument("trace", metavar="TRACE", nargs="?", help="what a program's --trace wrote")
    parser.add_argument("--step", type=command.step_number, default=-1,
                        help="which step; by default the one of median length after the first two")
    parser.add_argument("-o", "--out", default="timeline.html",
                        help="a page, .html, or the picture alone, .svg (default: %(default)s)")
    options = parser.parse_args()
    if options.trace is None:
        parser.error("expected a TRACE")
    if not options.out.endswith((".svg", ".html")):
        parser.error(f"got -o {options.out}, expected a name that ends in .html or .svg")
    spans = read_spans(options.trace)
    shown = with_delays(trace_figure(options.trace, spans, options.step), spans)
    shown = with_memory(shown, options.trace)
    text = figure.svg(shown) if options.out.endswith(".svg") else figure.page(shown)
    command.write_file(options.out, text.encode(errors="replace"))
    print(shown.title, *shown.facts, options.out, sep="\n")
    return 0


if __name__ == "__main__":
    command.run("timeline", main)
