#!/usr/bin/env python3
"""Steps of DDP found in traces made by hand, and their picture."""
import copy
import json
import os
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from svgs import color_at, texts_of
from tools.command import Error
from tools.picture.buckets import bucket_picture, read_step
from tools.picture.step_colors import (BACKWARD, EXPOSED, FORWARD, OPERATION, OPTIMIZER, REDUCTION,
                                       WAITING)
from tools.picture.svg import WHITE


class Spans:
    """The spans of one rank in one step; times in milliseconds."""

    def __init__(self, events, rank, step, begin):
        self.events, self.rank, self.step, self.begin = events, rank, step, begin

    def add(self, category, name, start, end, **args):
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": self.rank, "tid": 0,
                            "ts": (self.begin + start) * 1000, "dur": (end - start) * 1000,
                            "args": {**args, "step": self.step}})

    def add_bucket(self, bucket, size, sent, start, end):
        self.add("ddp", "send bucket", sent, sent + 0.5, bucket=bucket, bytes=size)
        self.add("comm", "all_reduce", start, end, module=f"encoder.bucket {bucket}", bytes=size)

    def add_step(self, length, size=100):
        self.add("forward", "Linear", 1, 5)
        self.add("forward", "Sequential", 0, 10)
        self.add("backward", "linear", 10, 20)
        self.add_bucket(0, size, 20, 21, 25)
        self.add("backward", "linear", 20, 28)
        self.add_bucket(1, 2 * size, 28, 29, 37)
        self.add("ddp", "wait for buckets", 30, 38)
        self.add("phase", "backward", 10, 40)
        self.add("backward", "of the optimizer", 41, 42)  # not within the step's backward
        self.add("comm", "all_gather_object", 40, 41)
        self.add("optim", "step", 41, length)


class Buckets(ToolTest):
    tool = "tools/picture/picture"

    def setUp(self):
        super().setUp()
        self.events = []

    def file(self):
        return self.write("trace.json", json.dumps({"traceEvents": self.events}))

    def add_steps(self, *lengths, size=100):
        for rank in range(2):
            begin = 1000
            for step, length in enumerate(lengths):
                # Rank 1 begins a little later.
                Spans(self.events, rank, step, begin + 2 * rank).add_step(length, size)
                begin += length

    def refuses(self, path, expected, wanted=-1):
        with self.assertRaises(Error) as raised:
            read_step(path, wanted)
        self.assertIn(expected, str(raised.exception))

    def near(self, interval, begin, end):
        self.assertAlmostEqual(interval[0], begin, delta=1e-9)
        self.assertAlmostEqual(interval[1], end, delta=1e-9)

    def test_times_count_from_the_first_ranks_forward(self):
        self.add_steps(50)
        step = read_step(self.file())
        self.assertEqual(step.number, 0)
        self.assertEqual(len(step.ranks), 2)
        self.assertAlmostEqual(step.end, 52, delta=1e-9)
        for late, rank in zip((0, 2), step.ranks):
            self.near(*rank.forwards, late, late + 10)  # the outermost
            self.near(*rank.backwards, late + 10, late + 40)
            self.assertEqual(len(rank.operations), 2)
            self.near(rank.operations[1], late + 20, late + 28)
            self.near(*rank.waits, late + 30, late + 38)
            self.near(*rank.optimizers, late + 41, late + 50)
            self.assertEqual([bucket.bytes for bucket in rank.buckets], [100, 200])
            self.assertAlmostEqual(rank.buckets[1].sent, late + 28, delta=1e-9)
            self.near(rank.buckets[1].reduction, late + 29, late + 37)

    def test_the_step_is_that_of_median_length_or_the_one_asked_for(self):
        self.add_steps(90, 51, 70, 52, 60)
        self.assertEqual(read_step(self.file()).number, 4)
        self.assertEqual(read_step(self.file(), 3).number, 3)

    def test_steps_with_other_buckets_or_without_a_rank_are_left_out(self):
        for rank in range(2):
            first = Spans(self.events, rank, 0, 0)  # one bucket for all, as in the first backward
            first.add("forward", "Sequential", 0, 10)
            first.add_bucket(0, 300, 28, 29, 37)
            first.add("phase", "backward", 10, 40)
            first.add("optim", "step", 41, 60)
            Spans(self.events, rank, 1, 100).add_step(50)
            if rank == 1:
                Spans(self.events, rank, 2, 200).add_step(55)
        self.assertEqual(read_step(self.file()).number, 1)
        self.assertEqual(len(read_step(self.file(), 0).ranks[0].buckets), 1)
        self.refuses(self.file(), "has no whole step 2 of DistributedDataParallel or "
                                  "DistributedOptimizer: needs forward, backward with its buckets "
                                  "and optimizer of every rank", 2)

    def test_what_is_no_trace_is_an_error(self):
        self.refuses(self.path("nowhere"), "[bucket_timeline] " + \
                     self.path("nowhere") + " cannot be read")
        self.refuses(self.write("text", "{]"),
                     "text is no trace that --trace wrote: no JSON at byte 2")
        self.refuses(self.file(), "has no whole step of")

    def test_a_broken_trace_is_said_to_be(self):
        """The error has the file's name, whatever is missing or of another type."""
        broken = f"[bucket_timeline] {self.path('trace.json')} is no trace that --trace wrote: "
        self.add_steps(50)
        whole = self.events
        send = next(i for i, event in enumerate(whole) if event["name"] == "send bucket")
        for keys, wrong in ((("ts", "dur", "cat", "name", "pid", "args"), []),
                            (("bucket", "bytes"), "many")):
            for key in keys:
                self.events = copy.deepcopy(whole)
                holder = self.events[send]["args"] if wrong else self.events[send]
                del holder[key]
                self.refuses(self.file(), f"{broken}a '{key}' is missing in it")
                holder[key] = wrong
                self.refuses(self.file(), broken + \
                             "something in it is not of the type that belongs there")
        self.events = "none"
        self.refuses(self.file(), broken + "something in it is not of the type")
        self.events = copy.deepcopy(whole)
        self.events[send]["ts"] = -1
        self.refuses(self.file(), "a span begins at -1 us and lasts 500 us in " + \
                     self.path("trace.json"))
        text = json.dumps({"traceEvents": whole})
        for size in (len(text) - 1, len(text) // 2, 1):
            self.refuses(self.write("cut.json", text[:size]),
                         "cut.json is no trace that --trace wrote: no JSON at byte ")
        self.refuses(self.write(
            "large.json", '{"traceEvents": [1e999]}'), "a number in it is too large")
        self.events = copy.deepcopy(whole)
        for event in self.events:  # not one of DDP's buckets
            if event["cat"] == "comm":
                event["args"]["module"] = "bucket seven"
        self.refuses(self.file(), "has no whole step of")

    def test_the_picture_says_what_is_in_it(self):
        self.add_steps(50, size=1 << 20)
        picture = bucket_picture(read_step(self.file()))
        self.assertEqual(texts_of(picture.svg()), [
            "0", "5", "10", "15", "20", "25", "30", "35", "40", "45", "50",
            "milliseconds from the beginning of forward",
            "rank 0", "all-reduce", "0", "bucket 1", "rank 1", "all-reduce", "0", "bucket 1",
            "step 0", "forward", "backward", "its operations", "waiting for a rank",
            "exposed communication", "optimizer", "reducing a bucket", "buckets",
            "0: 1 MiB, 1: 2 MiB"])
        self.assertEqual((picture.width, picture.height), (800, 104 + 2 * 112 + 64))

    def test_a_wait_names_the_rank_where_there_is_room(self):
        for rank, late in ((0, 0), (1, 12)):
            spans = Spans(self.events, rank, 0, 0)
            spans.add("forward", "Sequential", 0, 5)
            spans.add_bucket(0, 100, 10 + late, 11 + late, 26)
            spans.add("ddp", "wait for buckets", 12 + late, 26)
            spans.add("phase", "backward", 5, 30)
            spans.add("optim", "step", 30, 40)
        texts = texts_of(bucket_picture(read_step(self.file())).svg())
        # Rank 0's computing and its all-reduce.
        self.assertEqual([text for text in texts if text.startswith("for ")], ["for rank 1"] * 2)

    def test_sizes_that_one_line_cannot_hold_make_the_picture_higher(self):
        for rank in range(2):
            spans = Spans(self.events, rank, 0, 0)
            spans.add_step(50, size=1 << 20)
            for bucket in range(2, 20):
                spans.add_bucket(bucket, 1 << 20, 28, 37, 38)
        picture = bucket_picture(read_step(self.file()))
        texts = texts_of(picture.svg())
        lines = texts[texts.index("buckets") + 1:]
        self.assertEqual(" ".join(lines), ", ".join(
            f"{b}: {2 if b == 1 else 1} MiB" for b in range(20)))
        self.assertEqual([len(line) * 8.6 < 700 for line in lines], [True] * 3)
        self.assertEqual(picture.height, 104 + 2 * 24 + 2 * 112 + 64)

    def test_the_picture_has_a_bar_for_each_interval(self):
        """Bars are found by their colours; times in milliseconds."""
        self.add_steps(50)
        out = self.path("out.svg")
        self.assertEqual(self.check_run("buckets", self.file(), out, "--step", "0"), "")
        with open(out, encoding="utf-8") as file:
            svg = file.read()
        for rank, late in enumerate((0, 2)):
            top = 104 + rank * 112
            for lane, time, color in [
                    (0, 5, FORWARD), (0, 15, OPERATION), (0, 29, BACKWARD),
                    (0, 34, EXPOSED), (0, 45, OPTIMIZER),
                    # Rank 1 has its bucket 2 ms later.
                    (1, 21.5, REDUCTION if rank else WAITING), (1, 23, REDUCTION),
                    (1, 31, REDUCTION), (1, 36, REDUCTION)]:
                x = 100 + (time + late) / 52 * 676
                self.assertEqual(color_at(svg, x, top + 52 * lane + 4), color.css(),
                                 (rank, lane, time))
            self.assertEqual(color_at(svg, 100 + (27 + late) / 52 * 676, top + 52 + 4), WHITE)

    def test_wrong_usage_is_two_and_says_what_is_right(self):
        self.add_steps(50)
        file, lost, pipe = self.file(), self.path("no/folder.svg"), self.path("pipe")
        os.mkfifo(pipe)
        for arguments, expected in [
                ([], "ring|buckets|tape"), (["rings", "a.svg"], "'rings'"), (["buckets", file], "OUT"),
                (["buckets", file, "o.svg", "more"],
                 "picture: unexpected argument 'more'\nTry --help.\n"),
                (["buckets", file, "o.svg", "--stp", "1"],
                 "unknown option --stp; did you mean --step?"),
                (["buckets", file, "o.svg", "--step", "-1"],
                 "--step: got -1, expected a number from 0 on"),
                (["buckets", file, "o.svg", "--step", "7"],
                 f"picture: error: [bucket_timeline] {file} has no whole step 7 of Distributed"),
                (["buckets", file, lost],
                 f"picture: error: [file] cannot write {lost}: No such file or "
                                          "directory (errno 2)\n"),
                (["buckets", file, pipe], f"picture: error: [file] cannot write {pipe}: it exists "
                                          "and is no regular file\n")]:
            self.check_refusal(arguments, expected)
        self.assertIn("buckets", self.check_run("--help"))
        self.assertIn("--step", self.check_run("buckets", "--help"))
        self.check_full_disk("--help")


if __name__ == "__main__":
    main()
