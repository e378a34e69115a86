#!/usr/bin/env python3
"""tools/timeline as its user meets it: what it writes, its output and exit status."""
import os
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from tools.command import Error
from tools.trace import read_spans
from traces import Trace, simulate


def a_step():
    return simulate("gpipe --stages 2 --micro-batches 3", [.010, .020], [.020, .040])


def rectangles(path):
    """(x, width, y) of the rows, and of the bars by action. Fails if the picture is not well-formed."""
    found = {}
    for rect in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}rect"):
        kind = rect.get("class")
        if kind in ("bar", "row"):
            name = rect.findtext("{*}title").split(":")[0] if kind == "bar" else kind
            found.setdefault(name, []).append([float(rect.get(key)) for key in ("x", "width", "y")])
    return found


class TimelineCommand(ToolTest):
    tool = "tools/timeline/timeline"

    def pipeline(self, device="cpu:"):
        trace = Trace()
        trace.add_pipeline(0, a_step(), 0, device)
        return self.write("trace.json", trace.text())

    def test_rectangles_lie_where_the_spans_say(self):
        trace, measured = Trace(), a_step()
        trace.add_pipeline(4, measured, 1000)
        trace.add_pipeline(5, simulate(
            "gpipe --stages 2 --micro-batches 3", [.01] * 2, [.01] * 2), 2000)
        file = self.write("trace.json", trace.text())
        for out in (self.path("out.svg"), self.path("out.html")):
            said = self.check_run(file, "--step", "4", "-o", out)
            self.assertTrue(said.startswith(
                "Step 4 of a pipeline: 2 stages on 2 devices, 3 micro-batches\n"), said)
            self.assertTrue(said.endswith(f"\n{out}\n"), said)
            found = rectangles(out)
            self.assertEqual(len(found["row"]), 4)  # two devices, predicted and measured
            self.assertEqual(found["row"][0][1], found["row"][2][1])
            for timed in measured["actions"]:
                left, length, top = found["row"][2 + timed["device"]]
                self.assertEqual(len(found[timed["action"]]), 2, timed)
                x, width, y = found[timed["action"]][1]
                scale = length / measured["end"]
                self.assertAlmostEqual(x, left + timed["begin"] * scale, delta=0.02)
                self.assertAlmostEqual(width, (timed["end"] - timed["begin"]) * scale, delta=0.02)
                self.assertEqual(y, top)

    def test_the_picture_is_a_page_by_default_in_the_folder_where_it_is_called(self):
        trace = os.path.relpath(self.pipeline(), self.folder)
        tool, self.tool = self.tool, os.path.abspath(self.tool)
        status, said = self.run_tool(trace, cwd=self.folder)
        self.tool = tool
        self.assertEqual(status, 0, said)
        self.assertTrue(said.endswith("\ntimeline.html\n"), said)
        self.assertIn("row", rectangles(self.path("timeline.html")))

    def test_nothing_else_is_left_in_the_folder_and_a_file_is_replaced(self):
        trace, out = self.pipeline(), self.write("out.svg", "old")
        self.check_run(trace, "-o", out)
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.svg", "trace.json"])
        self.assertIn("row", rectangles(out))

    def test_the_page_has_the_numbers_and_labels_of_the_golden_one(self):
        def body(path):
            text = pathlib.Path(path).read_text(encoding="utf-8")
            return re.sub("<(style|script)>.*?</", "<", text, flags=re.S)
        out = self.path("out.html")
        self.check_run(self.pipeline(), "-o", out)
        self.assertEqual(body(out), body("tests/tools/timeline/goldens/page.html"))

    def test_the_other_engines_have_pictures_too(self):
        data_parallel, ddp, out = Trace(), Trace(), self.path("out.svg")
        data_parallel.add_data_parallel(0, 0)
        self.check_run(self.write("trace.json", data_parallel.text()), "-o", out)
        self.assertEqual(len(rectangles(out)["row"]), 3)
        ddp.add_ddp(0, 0)
        self.check_run(self.write("trace.json", ddp.text()), "-o", out)
        self.assertEqual(len(rectangles(out)["row"]), 8)  # predicted and measured

    def test_names_may_hold_anything(self):
        name = "<&\">\x01\xe4 and a very long name for a device "
        for device in (name, name[:10] + "\ud800" + name[10:], "\xe4" * 40):
            trace = self.pipeline(device)
            for out in (self.path("out.svg"), self.path("out.html")):
                self.check_run(trace, "-o", out)
                self.assertEqual(len(rectangles(out)["row"]), 4)
                if device == name:
                    self.assertIn("&lt;&amp;&quot;&gt; \xe4 and a very long ...",
                                  pathlib.Path(out).read_text(encoding="utf-8"))

    def test_files_may_be_called_anything(self):
        folder = os.fsencode(self.folder) + b"/\xff \xc3\xa4"
        os.mkdir(folder)
        shutil.copy(self.pipeline(), folder + b"/t.json")
        said = self.check_run(folder + b"/t.json", b"-o", folder + b"/out.svg")
        self.assertEqual(os.fsencode(said).splitlines()[-1], folder + b"/out.svg")
        self.assertTrue(os.path.exists(folder + b"/out.svg"))

    def test_a_page_needs_nothing_else(self):
        out = self.path("out.html")
        self.check_run(self.pipeline(), "-o", out)
        page = pathlib.Path(out).read_text(
            encoding="utf-8").replace("http://www.w3.org/2000/svg", "", 1)
        for outside in ("http", "src=", "href", "url(", "@import"):
            self.assertNotIn(outside, page)

    def test_a_file_that_is_no_trace_is_two_and_says_why(self):
        for path in (self.path("nothing"), str(self.folder), self.write("empty", "")):
            self.check_refusal(
                [path], f"timeline: error: [timeline] {path} cannot be read, or is empty\n")
        path = self.write("t.json", '{"traceEvents":[')
        self.check_refusal([path], f"timeline: error: [timeline] {path} is no trace that --trace "
                                   "wrote: no JSON at byte 17; was its program ended while it "
                                   "wrote?\n")
        path = self.write("t.json", '{"traceEvents":[]}')
        self.check_refusal([path], f"timeline: error: [timeline] {path} has no spans of a "
                                   "Pipeline, of DataParallel, of DistributedDataParallel, of a "
                                   "DistributedOptimizer, of a model in parts or of one that ranks have "
                                   "cut\n")

    def test_whatever_is_wrong_in_a_trace_it_is_said(self):
        def says(text, expected):
            with self.subTest(text=text[:200]), self.assertRaises(Error) as raised:
                read_spans(self.write("t.json", text))
            said, expected = str(raised.exception), expected.replace("FILE", self.path("t.json"))
            self.assertEqual(said[:len("[timeline] " + expected)], "[timeline] " + expected)

        def says_no_trace(text, why):
            says(text, f"FILE is no trace that --trace wrote: {why}")
        with open(self.pipeline(), encoding="utf-8") as file:
            whole = file.read()
        cut = "no JSON at byte {}; was its program ended while it wrote?"
        says_no_trace("{]", cut.format(2))
        says_no_trace(whole[:-1], cut.format(len(whole)))
        says_no_trace(whole[:len(whole) // 2], "no JSON at byte ")
        says_no_trace(whole[:whole.index("forward") + 3], cut.format(whole.index("forward") + 4))
        says_no_trace('{"\xe4', cut.format(5))
        says_no_trace('{"traceEvents": [NaN]}', "no JSON, which has no NaN")
        says_no_trace('{"traceEvents": [1e999]}', "a number in it is too large")
        of_type = "something in it is not of the type that belongs there"
        for text in ("[1, 2]", "1", '{"traceEvents":"none"}', '{"traceEvents":[1]}', "[" * 100_000):
            says_no_trace(text, of_type)
        says_no_trace("{}", "a 'traceEvents' is missing in it")
        event = {"ts": 1, "dur": 1, "cat": '"c"', "name": '"n"', "args": "{}"}
        for key in event:
            def text(members):
                return '{"traceEvents":[{"ph":"X",' + ",".join(
                    f'"{name}":{value}' for name, value in members.items()) + "}]}"
            says_no_trace(text({k: v for k, v in event.items() if k != key}),
                          f"a '{key}' is missing in it")
            for wrong in ("[]", "true", "null"):
                says_no_trace(text({**event, key: wrong}), of_type)
        says_no_trace(text({**event, "ts": "9" * 400}), "a number in it is too large")
        says_no_trace(text({**event, "ts": "9" * 5000}), "a number in it is too large")
        says_no_trace(text({**event, "args": '{"step": "1"}'}), of_type)
        says(text({**event, "dur": -2}), "a span lasts -2 us in FILE")
        says(text({**event, "ts": "1.7e308", "dur": "1.7e308"}), "a span lasts 1.7e+308 us in FILE")
        self.assertEqual(len(read_spans(self.write("t.json", text(event)))), 1)

    def test_a_trace_without_a_whole_step_is_two_and_says_so(self):
        def says(trace, expected):
            self.check_refusal([self.write("t.json", trace.text()),
                               "-o", self.path("out.svg")], expected)
        other = Trace()
        other.add("parallel", "scatter", 0, 1, 0, {"step": 0})
        says(other, "error: [timeline] the trace has no whole step\n")
        other = Trace()
        other.add("ddp", "send bucket", 0, 1, 0, {"step": 0})
        says(other, "a 'bucket' is missing in it")
        for bucket in (-1, 65536):
            other = Trace()
            other.add("ddp", "send bucket", 0, 1, 0, {"step": 0, "bucket": bucket, "bytes": 4})
            says(other, f"got bucket {bucket}, expected less than 65536 in ")

    def test_wrong_usage_is_two_and_says_what_is_right(self):
        file, out = self.pipeline(), self.path("no/folder.svg")
        for arguments, expected in [
                ([], "timeline: expected a TRACE\nTry --help.\n"),
                ([file, "--stp", "2"],
                 "timeline: unknown option --stp; did you mean --step?\nTry --help.\n"),
                ([file, "--zzz"], "timeline: unknown option --zzz\nTry --help.\n"),
                ([file, "--step", "two"], "--step: got two, expected a number from 0 on"),
                ([file, "--step", "-1"], "--step: got -1, expected a number from 0 on"),
                ([file, "--step"], "--step"),
                ([file, "--step", "3"],
                 "timeline: error: [timeline] the trace has no whole step 3; its first is 0, its "
                 "last 0\n"),
                ([file, "other.json"], "timeline: unexpected argument 'other.json'\nTry --help.\n"),
                ([file, "-o", "out.png"],
                 "timeline: got -o out.png, expected a name that ends in .html or .svg\n"
                 "Try --help.\n"),
                ([file, "-o", out], f"timeline: error: [file] cannot write {out}: No such file or "
                                    "directory (errno 2)\n")]:
            self.check_refusal(arguments, expected)
        os.mkfifo(self.path("pipe.svg"))
        self.check_refusal([file, "-o", self.path("pipe.svg")],
                           "it exists and is no regular file\n")
        said = self.check_run("--help")
        for word in ("--step", "--out", "TRACE", "Exit status: 0, or 2 "):
            self.assertIn(word, said)

    def test_options_may_be_written_in_any_way(self):
        file, out = self.pipeline(), self.path("out.svg")
        for arguments in (["--step=0", f"--out={out}", file], [f"-o{out}", file],
                          [file, "--out", out]):
            self.assertIn("Step 0 of a pipeline", self.check_run(*arguments))

    def test_output_that_is_lost_is_two(self):
        self.check_full_disk(self.pipeline(), "-o", self.path("out.svg"))
        self.check_full_disk("--help")


if __name__ == "__main__":
    main()
