#!/usr/bin/env python3
"""Schedules one under the other, compared with the formulas of their papers."""
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from figures_test import Picture


class CompareSchedules(ToolTest):
    tool = "tools/timeline/compare_schedules"

    def test_times_and_memory_are_those_of_the_formulas(self):
        out = self.path("out.svg")
        said = self.check_run("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev",
                              "--stages", "4", "--micro-batches", "8", "-o", out).splitlines()
        # With p = 4 and m = 8: GPipe and 1F1B (m + p - 1) (F + B), interleaved with v = 2 stages
        # on a device (v m + p - 1) (F + B) / v, ZB-H1 m (F + B) + (p - 1) (F + I - W), ZB-V and
        # DualPipeV m (F + B) + (p - 1) F / 2.
        self.assertEqual(said, [
            "8 micro-batches on 4 devices",
            "gpipe: 330.0 ms, bubble 27.3 %, a device keeps the activations of at most 8 micro-batches",
            "1f1b: 330.0 ms, bubble 27.3 %, a device keeps the activations of at most 4 micro-batches",
            "interleaved: 285.0 ms, bubble 15.8 %, a device keeps the activations of at most 5.5 "
            "micro-batches",
            "zb-h1: 270.0 ms, bubble 11.1 %, a device keeps the activations of at most 4 micro-batches",
            "zb-v: 255.0 ms, bubble 5.9 %, a device keeps the activations of at most 4 micro-batches",
            "dualpipev: 255.0 ms, bubble 5.9 %, a device keeps the activations of at most 4.5 "
            "micro-batches",
            out])
        picture = Picture(out)
        self.assertEqual(len(picture.rows), 6 * 4)
        # Forwards and backwards; twice as many stages; backwards in two parts; both; on device d
        # only 7 - d backwards in two parts.
        self.assertEqual([sum(map(len, picture.bars[i:i + 4])) for i in range(0, 24, 4)],
                         [64, 64, 128, 96, 192, 128 + 7 + 6 + 5 + 4])
        self.assertIn("backward, backward_input", picture.texts)  # which look the same
        for title in said[1:-1]:
            self.assertIn(title, picture.texts)

    def test_wrong_usage_is_two_and_says_what_is_right(self):
        options = ["--stages", "4", "--micro-batches", "8"]
        for arguments, expected in [
                (options, "NAME"), (["gpipe", "--stages", "4"], "--micro-batches"),
                (["gpip", *options], "did you mean gpipe?"),
                (["gpipe", *options, "-o", "out.png"], "ends in .html or .svg"),
                (["gpipe", *options, "-o", self.path("no/out.svg")], "no/out.svg"),
                (["gpipe", "--stages", "0", "--micro-batches", "8"], "stages"),
                (["gpipe", "--stages", "9" * 30, "--micro-batches", "8"], "--stages"),
                (["zb-v", "--stages", "4096", "--micro-batches", "8"],
                 "zb-v, with two stages on each device: schedule: --stages: Value 8192")]:
            with self.subTest(arguments=arguments):
                status, text = self.run_tool(*arguments)
                self.assertEqual(status, 2, text)
                self.assertIn(expected, text)
                self.assertTrue(text.startswith("schedule: "), text)
                self.assertNotIn("Traceback", text)


if __name__ == "__main__":
    main()
