#!/usr/bin/env python3
"""What the page about a run that failed shows, from files made by hand."""
import json
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from figures_test import Picture


def operation(number, begin, end, **others):
    """Times in milliseconds after the failure."""
    return {"name": "all_reduce", "number": number, "group": "ranks 0-1", "peer": None, "dtype": "f32",
            "count": 256, "bytes": 1024, "tag": "bucket 0", "module": "", "phase": "backward", "step": 4,
            "begin": begin * 1e-3, "end": None if end is None else end * 1e-3,
            "state": "running" if end is None else "ended", **others}


def failure(*ranks, first=(31, "rank 1 has not ended it")):
    return {"command": ["./p", "--x"], "host": "node", "world_size": 2, "status": 137,
            "first_failure": 1,
            "first_difference": first and {"group": "ranks 0-1", "number": first[0],
                                           "call": f"all_reduce {first[0]} (bucket 0)",
                                           "why": first[1]},
            "ranks": [{"rank": rank, "pid": 100 + rank, "end": f"end of {rank}", "told_to_end": False,
                       "phase": "backward", "step": 4,
                       "memory": [{"device": "cpu:0", "limit": 0, "in_use": {"parameters": 1536}}],
                       "operations": operations} for rank, operations in enumerate(ranks)]}


class FailurePage(ToolTest):
    tool = "tools/timeline/failure"

    def draw(self, failed):
        out = self.path("out.svg")
        said = self.check_run(self.write("f.json", json.dumps(failed)), "-o", out).splitlines()
        return said, Picture(out)

    def test_shows_each_rank_around_the_difference(self):
        said, picture = self.draw(failure(
            [operation(29, -40, -38), operation(30, -30, -28), operation(31, -20, 5, state="failed")],
            [operation(29, -40, -38), operation(30, -30, -27), operation(31, -19, None)]))
        self.assertEqual(said[1:7], [
            "./p --x", "ranks 0-1 differ first at all_reduce 31 (bucket 0): rank 1 has not ended it.",
            "rank 0: end of 0", "rank 0: cpu:0 has 1.5 KiB: parameters 1.5 KiB",
            "rank 1: end of 1", "rank 1: cpu:0 has 1.5 KiB: parameters 1.5 KiB"])
        self.assertIn("40.0 ms before the failure", said[7])
        self.assertEqual([len(bars) for bars in picture.bars], [3, 3])
        first, second = picture.bars
        self.assertEqual(first[2].hover, "all_reduce 31 (bucket 0) of ranks 0-1\n256 f32, 1 KiB\n"
                         "step 4, backward\nbegan 20.0 ms before the failure, failed after 25.0 ms")
        self.assertIn("began 19.0 ms before the failure, since 19.0 ms", second[2].hover)
        self.assertIn("took 3.00 ms", second[1].hover)
        # 40 ms before the failure is the left end; 5 ms after it the right one.
        scale = picture.rows[0].width / 45
        self.assertAlmostEqual((second[1].x - picture.rows[0].x) / scale, 10, delta=.01)
        self.assertAlmostEqual(second[1].width / scale, 3, delta=.01)
        self.assertAlmostEqual((second[2].x + second[2].width - picture.rows[0].x) / scale, 45,
                               delta=.01)
        for text in ("31 differs", "30", "failed", "running", "operations of ranks 0-1"):
            self.assertIn(text, picture.texts)

    # A rank that waits for two minutes does not hide what came before.
    def test_a_long_wait_is_cut_off(self):
        before = [operation(n, -120_000 - 10 * (31 - n), -120_000 - 10 * (31 - n) + 2)
                  for n in range(1, 31)]
        said, picture = self.draw(failure(
            [*before, operation(31, -120_000, None)], before, first=(31, "rank 1 has not begun it")))
        # Twelve operations before, and twice their time for the wait.
        self.assertIn("120.1 s before the failure", said[7])
        self.assertEqual([len(bars) for bars in picture.bars], [13, 12])
        self.assertAlmostEqual(picture.bars[0][-1].width / picture.rows[0].width, 2 / 3, delta=.01)
        self.assertIn("since 120.0 s", picture.bars[0][-1].hover)
        self.assertIn("not begun", picture.texts)

    def test_groups_have_panels_of_their_own(self):
        _, picture = self.draw(failure(
            [operation(30, -30, -28), operation(31, -20, None)],
            [operation(30, -30, -28), operation(7, -20, None, group="ranks 1, 3", peer=3, tag="",
                                                name="send", module="layer")],
            first=(31, "rank 1 has not begun it")))
        self.assertEqual([len(bars) for bars in picture.bars], [2, 1, 1])
        self.assertTrue(picture.bars[2][0].hover.startswith(
            "send 7 with rank 3 of ranks 1, 3\n256 f32, 1 KiB\nstep 4, backward, layer\n"))
        self.assertIn("operations of ranks 1, 3", picture.texts)

    def test_extremes(self):
        for failed in (failure([], [], first=None), failure(first=None),
                       failure([operation(1, -5, -5)], [], first=None),
                       failure([operation(1, 0, 0, state="failed")], [], first=(1, "no")),
                       failure([operation(2**62, -5, None, step=None, dtype="", count=0)], [],
                               first=(2**62, "no"))):
            said, picture = self.draw(failed)
            self.assertEqual(said[0], "What the ranks did last")
            self.assertEqual(len(picture.rows),
                             0 if not any(r["operations"] for r in failed["ranks"]) else
                             2 if failed["first_difference"] else 1)

    def test_the_page_needs_nothing_else(self):
        out = self.path("out.html")
        failed = failure([operation(1, -5, None, tag="<b>")], [], first=(1, "<i>"))
        self.check_run(self.write("f.json", json.dumps(failed)), "-o", out)
        with open(out, encoding="utf-8") as file:
            page = file.read()
        self.assertIn("&lt;b&gt;", page)
        self.assertIn("&lt;i&gt;", page)
        for outside in ("http://", "https://", "src=", "<b>", "<i>"):
            self.assertNotIn(outside, page.replace('xmlns="http://www.w3.org/2000/svg"', ""))

    def test_wrong_usage_and_other_files_are_refused(self):
        good = self.write("f.json", json.dumps(failure([], [])))
        self.check_refusal([], "expected a FILE")
        self.check_refusal([good, "-o", "out.png"], "ends in .html or .svg")
        self.check_refusal([good, "--otu", "x"], "did you mean --out?")
        self.check_refusal([good, "-o", self.path("no/out.svg")], "no/out.svg")
        self.check_refusal([self.path("none.json")], "cannot be read")
        for text in ("", "[]", "{", '{"ranks": []}',
                     '{"command": [], "first_difference": 3, "ranks": []}', json.dumps(failure([{"name": "x"}])),
                     '{"traceEvents": []}',
                     json.dumps(failure([{**operation(1, -5, None), "begin": "x"}])),
                     json.dumps(failure([{**operation(1, -5, None), "number": 1e400}]))):
            self.check_refusal([self.write("bad.json", text)], "bad.json")


if __name__ == "__main__":
    main()
