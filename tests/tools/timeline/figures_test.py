#!/usr/bin/env python3
"""What figures of traces made by hand say. The pictures in goldens/, but data_parallel.svg, were drawn
by another program, in C++, which this one has replaced."""
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from tools.picture.buckets import bucket_picture, read_step
from tools.picture.svg import Color
from tools.timeline import figure
from traces import Trace, simulate

GPIPE = "gpipe --stages 2 --micro-batches 2"
EQUAL = [.010, .010], [.020, .020]
UNEQUAL = [.010, .020], [.020, .040]


class Bar:
    def __init__(self, rect):
        self.x, self.width, self.y = (float(rect.get(key)) for key in ("x", "width", "y"))
        self.hover = rect.findtext("{*}title")


class Picture:
    """What an .svg says: .texts, and by panel and row .bars."""

    def __init__(self, path):
        self.elements = list(ElementTree.parse(path).getroot().iter())
        self.texts = [e.text for e in self.elements if e.tag.endswith("}text")]
        rects = [e for e in self.elements if e.tag.endswith("}rect")]
        self.rows = [Bar(e) for e in rects if e.get("class") == "row"]
        bars = [Bar(e) for e in rects if e.get("class") == "bar"]
        self.bars = [[bar for bar in bars if bar.y == row.y] for row in self.rows]


def one_bar(facts):
    black = Color(0, 0, 0)
    rows = [figure.Row("row", "", [figure.Bar(0, 1, black, "", "")])]
    return figure.Figure("title", facts, [figure.Key("key", black)], [figure.Panel("panel", rows)])


class Figures(ToolTest):
    tool = "tools/timeline/timeline"

    def setUp(self):
        super().setUp()
        self.trace = Trace()

    def figure(self, *options):
        """What is printed, without the file's name, and the picture."""
        file, out = self.write("trace.json", self.trace.text()), self.path("out.svg")
        *said, name = self.check_run(file, "-o", out, *options).splitlines()
        self.assertEqual(name, out)
        picture = Picture(out)
        self.assertEqual(picture.texts[:len(said)], said)
        return said, picture

    def refuse(self, expected, *options):
        file = self.write("trace.json", self.trace.text())
        return self.check_refusal([file, "-o", self.path("out.svg"), *options], expected)

    def check_golden(self, picture, name):
        """Compares all but the style; `golden` is the picture as it was committed."""
        def drawn(elements):
            return [(e.tag, e.attrib, e.text) for e in elements if not e.tag.endswith("}style")]
        golden = Picture(os.path.join("tests/tools/timeline/goldens", name))
        self.assertEqual(drawn(picture.elements), drawn(golden.elements))

    def test_a_pipeline_is_predicted_from_the_other_steps(self):
        for step in range(5):
            self.trace.add_pipeline(step, simulate(GPIPE, *(UNEQUAL if step == 3 else EQUAL)),
                                    200 * step)
        said, picture = self.figure("--step", "3")
        # Equal stages: 1 of 3 slots is idle. With stage 1 twice as slow, 60 and 120 of 150 ms are
        # busy.
        self.assertEqual(said, [
            "Step 3 of a pipeline: 2 stages on 2 devices, 2 micro-batches",
            "Schedule: gpipe, checkpoint never.",
            "Measured 150.0 ms, 1.667 times the predicted 90.0 ms; bubble 40.0 % measured, 33.3 % "
            "predicted.",
            "GPipe and 1F1B with equal stages: bubble (p-1)/(m+p-1) = 33.3 % for p = 2 devices, "
            "m = 2 micro-batches.",
            "Predicted from the medians of each stage's times over 4 other steps of the trace, "
            "transfers taking no time."])
        panels = [text for text in picture.texts if text.startswith(("Predicted: ", "Measured: "))]
        self.assertEqual(panels, ["Predicted: 90.0 ms, bubble 33.3 %",
                         "Measured: 150.0 ms, bubble 40.0 %"])
        self.assertEqual([len(bars) for bars in picture.bars], [4] * 4)  # two devices, each twice
        self.assertIn("idle 60.0 %", picture.texts)
        row, bar = picture.rows[2], picture.bars[2][2]
        self.assertAlmostEqual(bar.x, row.x + row.width * 90 / 150, delta=0.02)
        self.assertAlmostEqual(bar.width, row.width * 20 / 150, delta=0.02)
        self.assertEqual(bar.hover, "B0.1: backward of micro-batch 1 in stage 0 on cpu:0\n"
                                    "measured: begins at 90.0 ms, takes 20.0 ms\n"
                                    "predicted: begins at 50.0 ms, takes 20.0 ms")
        self.check_golden(picture, "pipeline.svg")

    def test_a_step_alone_is_predicted_from_itself(self):
        self.trace.add_pipeline(7, simulate(GPIPE, *UNEQUAL), 0)
        said, _ = self.figure()
        self.assertIn("Measured 150.0 ms, 1.000 times the predicted 150.0 ms", said[2])
        self.assertEqual(
            said[4], "Predicted from this step's own medians, the only one of its schedule.")
        self.trace.add_pipeline(8, simulate("1f1b --stages 2 --micro-batches 2", *EQUAL), 200)
        self.assertEqual(self.figure("--step", "7")[0], said)  # that is another schedule
        self.trace.add_pipeline(9, simulate(GPIPE, *EQUAL), 400)
        said, _ = self.figure("--step", "7")
        self.assertIn("Measured 150.0 ms, 1.667 times the predicted 90.0 ms", said[2])
        self.assertIn(" over 1 other steps", said[4])

    def test_an_even_number_of_times_has_the_middle_of_two_as_its_median(self):
        for step, factor in enumerate([1, 1, 2]):
            costs = [[factor * cost for cost in costs] for costs in EQUAL]
            self.trace.add_pipeline(step, simulate(GPIPE, *costs), 1000 * step)
        # The median of steps 1 and 2: 1.5 times 90 ms, in each stage and micro-batch.
        self.assertIn("times the predicted 135.0 ms", self.figure("--step", "0")[0][2])

    def test_the_usual_step_is_of_median_length_after_the_first_two(self):
        for step, factor in enumerate([3, 2.9, 1.2, 1, 1.1]):
            costs = [[factor * cost for cost in costs] for costs in EQUAL]
            self.trace.add_pipeline(step, simulate(GPIPE, *costs), 1000 * step)
        self.assertIn("Step 4 ", self.figure()[0][0])

    def test_gradients_of_weights_and_recomputation_have_their_own_times(self):
        for schedule, known_as in [("zb-h1", "zb-h1, checkpoint never"),
                                   ("1f1b --checkpoint always", "1f1b, checkpoint always")]:
            self.trace = Trace()
            timeline = simulate(schedule + " --stages 2 --micro-batches 4", [.010, .012],
                                [.014, .015], [.008, .009])
            for step in range(3):
                self.trace.add_pipeline(step, timeline, 0)
            said, picture = self.figure()
            self.assertEqual(said[1], f"Schedule: {known_as}.")
            for d in range(2):
                predicted, measured = picture.bars[d], picture.bars[2 + d]
                self.assertEqual(len(predicted), 12)
                self.assertEqual([(bar.x, bar.width, bar.hover) for bar in predicted],
                                 [(bar.x, bar.width, bar.hover) for bar in measured])

    def test_another_order_is_a_schedule_of_the_users(self):
        timeline = simulate(GPIPE, *EQUAL)
        for timed in timeline["actions"]:  # in the opposite order
            timed["action"] = timed["action"][:3] + "10"[int(timed["action"][3])]
        self.trace.add_pipeline(0, timeline, 0)
        self.assertEqual(self.figure()[0][1], "Schedule: a schedule of the user's.")

    def test_devices_stand_in_the_order_of_their_stages(self):
        timeline = simulate(
            "interleaved --stages 4 --devices 2 --micro-batches 5", [.01] * 4, [.02] * 4)
        for timed in timeline["actions"]:
            timed["device"] = 9 - timed["device"]
        self.trace.add_pipeline(0, timeline, 0)
        said, picture = self.figure()
        self.assertEqual([t for t in picture.texts if t.startswith("cpu:")], ["cpu:9", "cpu:8"] * 2)
        self.assertEqual(said[1], "Schedule: interleaved, checkpoint never.")
        # Two stages on each device: 1 of 11 slots.
        self.assertEqual(said[3], "GPipe and 1F1B with equal stages: bubble (p-1)/(vm+p-1) = 9.1 % "
                                  "for p = 2 devices, m = 5 micro-batches, v = 2 stages on each.")

    def test_stages_may_stand_in_a_v(self):
        for schedule in "zb-v", "dualpipev":
            self.trace = Trace()
            timeline = simulate(schedule + " --stages 4 --micro-batches 5", [.01] * 4, [.01] * 4,
                                [.01] * 4)
            for step in range(3):
                self.trace.add_pipeline(step, timeline, 0)
            said, picture = self.figure()
            self.assertEqual(said[1], f"Schedule: {schedule}, checkpoint never.")
            # 30 actions of 10 ms on each device, and (p - 1) of them idle.
            self.assertIn("times the predicted 310.0 ms; bubble 3.2 % measured, 3.2 % predicted",
                          said[2])
            for d in range(2):
                predicted, measured = picture.bars[d], picture.bars[2 + d]
                self.assertEqual([(bar.x, bar.width, bar.hover) for bar in predicted],
                                 [(bar.x, bar.width, bar.hover) for bar in measured])

    def test_fewer_micro_batches_than_devices_have_no_formula(self):
        self.trace.add_pipeline(0, simulate("interleaved --stages 4 --devices 2 --micro-batches 1",
                                            [.01] * 4, [.02] * 4), 0)
        self.assertEqual(self.figure()[0][3], "Fewer micro-batches than devices: no formula.")

    def test_of_several_pipelines_the_first_is_shown(self):
        """Ranks 2 and 3 have the stages of ranks 0 and 1."""
        for rank in range(4):
            timeline = simulate(GPIPE, *(EQUAL if rank < 2 else UNEQUAL))
            timeline["actions"] = [t for t in timeline["actions"] if t["device"] == rank % 2]
            self.trace.add_pipeline(0, timeline, 0, rank=rank)
        said, picture = self.figure()
        self.assertEqual(said[0], "Step 0 of the first of 2 pipelines: 2 stages on 2 devices, "
                                  "2 micro-batches")
        self.assertIn("Measured: 90.0 ms, bubble 33.3 %", picture.texts)
        self.assertIn("rank 1, cpu:1", picture.texts)

    def test_what_ranks_send_each_other_stands_below_them(self):
        timeline = simulate(GPIPE, *EQUAL)
        for rank in range(2):
            self.trace.add_pipeline(0, {**timeline, "actions": [
                t for t in timeline["actions"] if t["device"] == rank]}, 100, rank=rank)

        def message(rank, name, tag, begin, end, size, step=0):
            self.trace.add("comm", name, begin, end, 7, {
                "step": step, "module": tag, "bytes": size}, rank)
        # A description and the values; the receiver waits before they are sent.
        message(0, "send", ">F0.1", 120, 121, 400)
        message(0, "send", ">F0.1", 121, 122, 1000)
        message(1, "recv", "<F1.1", 100, 122, 400)
        message(1, "recv", "<F1.1", 122, 123, 1000)
        message(1, "send", ">B1.0", 180, 181, 500)
        message(0, "recv", "<B0.0", 100, 182, 500)
        message(0, "send", ">F0.0", 320, 321, 400, 1)  # of another step
        said, picture = self.figure()
        self.assertEqual(
            said[-1], "Below each rank what it sends: from the send to the end of the receive.")
        self.assertEqual([text for text in picture.texts if text.startswith(("rank", "sends"))],
                         ["rank 0, cpu:0", "rank 1, cpu:1", "rank 0, cpu:0", "sends",
                          "rank 1, cpu:1", "sends"])
        self.assertEqual([bar.hover for row in (3, 5) for bar in picture.bars[row]], [
            "rank 0 sends the result of F0.1, 1400 bytes\nbegins at 20.0 ms, takes 3.00 ms",
            "rank 1 sends the gradient of the inputs of B1.0, 500 bytes\n"
            "begins at 80.0 ms, takes 2.00 ms"])

    def test_more_devices_than_cores_are_said_to_wait_and_replayed(self):
        slow = simulate(GPIPE, *UNEQUAL)
        for timed in slow["actions"][3:]:  # a gap that is no bubble
            timed["begin"] += .050
            timed["end"] += .050
        self.trace.add_pipeline(0, simulate(GPIPE, *EQUAL), 0)
        self.trace.add_pipeline(1, slow, 1000)
        said, _ = self.figure("--step", "1")  # the number of cores is not known
        self.assertNotIn("cores", " ".join(said))
        self.trace.add_cores(2)
        self.assertEqual(self.figure("--step", "1")[0], said)
        self.trace.events.pop()
        self.trace.add_cores(1)
        more, picture = self.figure("--step", "1")
        self.assertEqual(more, said + [
            "2 devices shared 1 core: gaps in what was measured are waits for a core, too, and not "
            "the schedule's bubble alone.",
            "Replayed: the times of this step's own actions, each stage's median, in the order of "
            "the schedule, with no gaps but its own."])
        panels = [text for text in picture.texts if " ms, bubble " in text]
        self.assertEqual(panels, ["Predicted: 90.0 ms, bubble 33.3 %",
                                  "Measured: 200.0 ms, bubble 55.0 %",
                                  "Replayed: 150.0 ms, bubble 40.0 %"])
        self.assertEqual(len(picture.rows), 6)

    def test_ranks_may_have_cores_of_their_own(self):
        timeline = simulate(GPIPE, *EQUAL)
        for rank in (0, 1):
            mine = [timed for timed in timeline["actions"] if timed["device"] == rank]
            self.trace.add_pipeline(0, {**timeline, "actions": mine}, 0, rank=rank)
        self.trace.add_cores(1)
        self.assertIn("Each rank could run on 1 core. Where these are the same: gaps in what was "
                      "measured are waits for a core, too, and not the schedule's bubble alone.",
                      self.figure()[0])

    def test_work_on_a_gpu_is_what_its_streams_say(self):
        self.trace.add_pipeline(0, simulate(GPIPE, *UNEQUAL), 0, "cuda:", 1_000_000)
        self.trace.add_pipeline(0, simulate(GPIPE, *EQUAL), 0, "cuda:")
        self.assertIn("Measured: 150.0 ms, bubble 40.0 %", self.figure()[1].texts)

    def test_a_step_that_is_not_whole_is_left_out_or_an_error(self):
        whole = simulate(GPIPE, *EQUAL)
        half = {**whole, "actions": whole["actions"][:5]}
        self.trace.add_pipeline(1, half, 200)
        said = self.refuse(
            "[schedule] B0.0 is missing, or I and W in its place; add it on device 0 at ")
        self.assertTrue(said.endswith(" in step 1 of the trace\n"), said)
        self.trace.add_pipeline(0, whole, 0)
        self.assertIn("Step 0 ", self.figure()[0][0])
        self.refuse("the trace has no whole step 1; its first is 0, its last 0", "--step", "1")

    def test_a_step_that_takes_no_time_is_left_out(self):
        self.trace.add_pipeline(0, simulate(GPIPE, [0, 0], [0, 0]), 0)
        self.refuse("[timeline] the trace has no whole step\n")
        self.trace.add_pipeline(1, simulate(GPIPE, *EQUAL), 100)
        self.assertIn("Step 1 ", self.figure()[0][0])

    def test_an_error_tells_of_the_last_step_and_of_no_lines(self):
        """Errors other than those of a file, which tools/schedule also checks."""
        whole = simulate(GPIPE, *EQUAL)
        twice = {**whole, "actions": whole["actions"] + whole["actions"][:1]}
        for step in (3, 4):
            self.trace.add_pipeline(step, twice, 200 * step)
        said = self.refuse(
            "F0.0 (device 0, action 2) stands twice, first F0.0 (device 0, action 1); ")
        self.assertTrue(said.endswith(" in step 4 of the trace\n"), said)

    def test_an_action_needs_step_stage_and_micro_batch(self):
        args = {"device": "cpu:0", "stage": 0, "step": 0}
        self.trace.add("pipeline", "forward", 0, 1, 3, args)
        self.refuse("the span forward is of step 0, stage 0, micro-batch -1; needed are all three")
        for changed, expected in [({"stage": 1 << 30}, "stage 1073741824"),
                                  ({"micro_batch": 65536}, "micro-batch 65536"),
                                  ({"step": -1}, "step -1")]:
            self.trace = Trace()
            self.trace.add("pipeline", "forward", 0, 1, 3, {**args, "micro_batch": 0, **changed})
            self.refuse(expected)

    def test_data_parallel_says_how_long_each_device_idles(self):
        for step in range(3):
            self.trace.add_data_parallel(step, 20 * step)
        said, picture = self.figure("--step", "1")
        # cpu:0 works 2, 3 and 0.5 ms, cpu:1 0.5, 1.5 and 4.
        self.assertEqual(said, [
            "Step 1 of DataParallel on 2 devices",
            "Forward and backward take 10.0 ms, in which the devices idle 42.5 % of the time."])
        self.assertEqual([len(bars) for bars in picture.bars], [7, 4, 3])
        notes = [text for text in picture.texts if text.startswith("idle ")]
        self.assertEqual(notes, ["idle 45.0 %", "idle 40.0 %"])
        self.assertEqual(picture.bars[2][0].hover,
                         "replicate of replica 1 on cpu:1\nbegins at 1.50 ms, takes 0.500 ms")
        self.assertEqual(picture.bars[2][2].hover,
                         "backward of linear on cpu:1\nbegins at 6.00 ms, takes 4.00 ms")
        self.check_golden(picture, "data_parallel.svg")

    def test_a_device_is_not_busy_twice(self):
        self.trace.add_data_parallel(0, 0)
        # It begins after an inner span has ended, but still within linear.
        self.trace.add("backward", "add", 7.5, 8, 3, {"step": 0, "device": "cpu:0"})
        self.assertIn("idle 45.0 %", self.figure()[1].texts)

    def test_of_a_model_in_parts_one_device_is_always_idle(self):
        for step in range(3):
            self.trace.add_model_parallel(step, 20 * step)
        said, picture = self.figure("--step", "1")
        # cpu:0 works 2, 0.5 and 3 of 10 ms, cpu:1 0.5, 1.5 and 2.
        self.assertEqual(said[:2], [
            "Step 1 of a model in parts on 2 devices",
            "Forward and backward take 10.0 ms: a device idles 52.5 % of the time on average. Two or "
            "more compute at once 0.0 % of the time."])
        self.assertEqual([text for text in picture.texts if text.startswith("idle ")],
                         ["idle 45.0 %", "idle 60.0 %"])
        self.assertEqual([bar.hover.split("\n")[0] for bars in picture.bars for bar in bars], [
            "forward of encoder on cpu:0", "copy from cpu:1 to cpu:0",
            "backward of encoder on cpu:0", "optimizer on cpu:0",
            "copy from cpu:0 to cpu:1", "forward of decoder on cpu:1",
            "backward of decoder on cpu:1", "optimizer on cpu:1"])
        row, bar = picture.rows[0], picture.bars[0][0]
        self.assertAlmostEqual(bar.width, row.width * 2 / 12, delta=0.02)

    def test_memory_stands_below_by_owner(self):
        self.trace.add_model_parallel(0, 100)
        self.assertNotIn("memory", " ".join(self.figure()[1].texts))
        # The step takes 12 ms from 100 on. Activations stand on the parameters, which are older.
        for time, owner, mib in [(50, "parameters", 10), (103, "activations", 20),
                                 (109, "activations", 5), (120, "activations", 1000)]:
            self.trace.add_memory(time, "cpu:0", owner, mib)
        self.trace.add_memory(101, "cpu:1", "gradients", 3)
        _, picture = self.figure()
        for text in ("Memory of cpu:0", "Memory of cpu:1", "memory: parameters", "30 MiB",
                     "memory: activations", "memory: gradients"):
            self.assertIn(text, picture.texts)
        self.assertNotIn("memory: optimizer", picture.texts)
        # The title stands above the lines of the axis.
        [title] = [e for e in picture.elements if e.text == "Memory of cpu:0"]
        for line in [e for e in picture.elements if e.get("class") == "grid"]:
            above, below = float(line.get("y1")), float(line.get("y2"))
            self.assertFalse(above <= float(title.get("y")) <= below)
        parameters, activations, _ = [
            [tuple(map(float, point.split())) for point in re.split("[ML]", e.get("d")[:-1])[1:]]
            for e in picture.elements if e.get("class") == "area"]
        self.assertEqual(len(parameters), 4)  # which do not change
        row = picture.rows[0]

        def heights(area):
            """At 1, 5 and 10 ms: of the area, in pixels."""
            found = []
            for ms in (1, 5, 10):
                x = row.x + row.width * ms / 12
                ys = [y0 for (x0, y0), (x1, y1) in zip(area, area[1:])
                      if y0 == y1 and min(x0, x1) <= x < max(x0, x1)]
                found.append(max(ys) - min(ys))
            return found
        for area, expected in (parameters, [40, 40, 40]), (activations, [0, 80, 20]):
            for height, wanted in zip(heights(area), expected):
                self.assertAlmostEqual(height, wanted, delta=0.2)

    def test_devices_that_compute_at_once_are_said_to(self):
        self.trace.add_model_parallel(0, 0)
        self.trace.add("op", "linear", 1, 2, 1, {"step": 0, "device": "cpu:1"})
        self.assertIn("Two or more compute at once 10.0 % of the time.", self.figure()[0][1])

    def test_ddp_says_what_communication_is_exposed(self):
        self.trace.add_ddp(0, 0)
        self.trace.add_ddp(1, 100)
        said, picture = self.figure("--step", "1")
        self.assertEqual(said, [
            "Step 1 of DistributedDataParallel on 2 ranks, 1 bucket",
            "Schedule: ddp.",
            "Measured 50.0 ms, 1.064 times the predicted 47.0 ms; ranks wait 14.0 % measured, 8.5 % "
            "predicted.",
            "Predicted from the medians of what was computed and sent in 1 other steps of the trace.",
            "Rank 0: reducing takes 5.00 ms; after its backward it waits 10.0 ms, 5.00 ms of it for "
            "rank 1; 5.00 ms are exposed communication, 10.0 % of the step.",
            "Rank 1: reducing takes 3.00 ms; after its backward it waits 4.00 ms; 4.00 ms are "
            "exposed communication, 8.0 % of the step."])
        self.assertIn("Measured: 50.0 ms; on average 9.0 % exposed communication, 5.0 % waiting for "
                      "slower ranks", picture.texts)
        notes = [text for text in picture.texts if text.startswith("exposed ") and text.endswith("%")]
        self.assertEqual(notes, ["exposed 10.0 %", "exposed 8.0 %"])
        self.assertEqual(picture.texts.count("bucket 0"), 8)
        row, (waiting, reducing) = picture.rows[5], picture.bars[5]
        self.assertAlmostEqual(waiting.x, row.x + row.width * 31 / 50, delta=0.02)
        self.assertEqual(waiting.hover, "bucket 0, 400 bytes, ready at 29.0 ms: waiting for rank 1\n"
                                        "begins at 31.0 ms, takes 4.00 ms")
        self.assertEqual(reducing.hover, "bucket 0, 400 bytes, ready at 29.0 ms: reducing\n"
                                         "begins at 35.0 ms, takes 5.00 ms")
        self.check_golden(picture, "ddp.svg")

    def test_horovods_messages_stand_below_the_backward_that_sent_them(self):
        self.trace.add_gan(3, 100)
        said, picture = self.figure()
        self.assertEqual(said, [
            "Step 3 of DistributedOptimizer on 2 ranks, 2 buckets",
            "Rank 0: reducing takes 11.0 ms; after its backward it waits 12.0 ms, 1.00 ms of it for "
            "rank 1; 11.0 ms are exposed communication, 27.5 % of the step.",
            "Rank 1: reducing takes 10.0 ms; after its backward it waits 10.0 ms; 10.0 ms are "
            "exposed communication, 25.0 % of the step.",
            "Which backward sent a bucket: bucket 0 of backward 0, bucket 1 of backward 1."])
        computing, reducing = picture.bars[0], picture.bars[1]
        self.assertEqual([bar.hover.split("\n")[0] for bar in computing[:4]], [
            "forward", "forward", "backward 0, between its operations",
            "backward 1, between its operations"])
        self.assertEqual([bar.hover.split("\n")[0] for bar in reducing], [
            "bucket 0 of backward 0, 400 bytes, ready at 9.00 ms: reducing",
            "bucket 1 of backward 1, 800 bytes, ready at 29.0 ms: waiting for rank 1",
            "bucket 1 of backward 1, 800 bytes, ready at 29.0 ms: reducing"])
        self.assertEqual([text for text in picture.texts if text.startswith("backward ")],
                         ["backward 0", "backward 1"] * 2)
        # There is no room for the name of the backward.
        self.assertEqual([text for text in picture.texts if text.startswith("bucket ")],
                         ["bucket 0", "bucket 1"] * 2)

    def test_of_a_cut_model_messages_and_waits_are_shown(self):
        self.trace.add_cut_model(0, 1)
        self.trace.add_cut_model(1, 101)
        said, picture = self.figure("--step", "1")
        self.assertEqual(said, [
            "Step 1 of a model that 2 ranks have cut",
            "Schedule: fsdp.",
            "Measured 40.0 ms, 1.026 times the predicted 39.0 ms; ranks wait 7.5 % measured, 7.7 % "
            "predicted.",
            "Predicted from the medians of what was computed and sent in 1 other steps of the trace.",
            "Rank 0: all_gather 1.00 ms and 2.00 ms waiting for a rank, reduce_scatter 2.00 ms; its "
            "computing waits 4.00 ms, 10.0 %.",
            "Rank 1: all_gather 1.00 ms, reduce_scatter 2.00 ms and 2.00 ms waiting for a rank; its "
            "computing waits 2.00 ms, 5.0 %."])
        names = ["rank 0", "all_gather", "reduce_scatter", "rank 1", "all_gather", "reduce_scatter"]
        self.assertEqual([text for text in picture.texts if text in names][-6:], names)
        self.assertEqual(picture.texts.count("1 message"), 4)
        row, (waiting, gathering) = picture.rows[7], picture.bars[7]
        self.assertAlmostEqual(waiting.x, row.x, delta=0.02)
        self.assertEqual(waiting.hover, "all_gather Net.blocks.0, 400 bytes: waiting for rank 1\n"
                                        "begins at 0.000 ms, takes 2.00 ms")
        self.assertEqual(gathering.hover, "all_gather Net.blocks.0, 400 bytes\n"
                                          "begins at 2.00 ms, takes 1.00 ms")
        self.assertEqual([bar.hover.splitlines()[0] for bar in picture.bars[9]], [
            "forward", "backward, between its operations", "an operation of backward: linear",
            "wait for parameters", "wait for sums", "optimizer"])

    def test_layers_that_are_cut_wait_for_each_message(self):
        self.trace.add_tensor_parallel(0, 0)
        said, picture = self.figure()
        self.assertEqual(said[1:], [
            "Rank 0: all_reduce 2.00 ms; its computing waits 2.00 ms, 10.0 %.",
            "Rank 1: all_reduce 1.00 ms; its computing waits 1.00 ms, 5.0 %.",
            "No prediction: these messages are none of the steps that ./weft schedule knows."])
        self.assertEqual(picture.bars[0][2].hover,
                         "waiting for all_reduce mlp.2\nbegins at 2.00 ms, takes 2.00 ms")

    def test_a_step_that_takes_what_its_schedule_says_is_predicted_to_the_microsecond(self):
        for schedule, visits, messages in (
                ("ddp --units 3 --ranks 2", 3, 1), ("fsdp --units 3 --ranks 2", 4, 3),
                ("fsdp --units 4 --ranks 3", 5, 3), ("zero2 --units 3 --ranks 2", 4, 2),
                ("tp --units 3 --ranks 2", 3, 5)):
            with self.subTest(schedule=schedule):
                self.trace = Trace()
                units = int(schedule.split()[2])
                costs = {"forward": [.001 * (1 + i) for i in range(visits)],
                         "backward": [.002 * (1 + i) for i in range(visits)], "optimizer": .001}
                # If a backward has two units without a message between them, the trace does not
                # tell more.
                if schedule.startswith("zero2"):
                    costs["backward"][-1] = 0
                if schedule.startswith(("zero2", "fsdp")):
                    costs["forward"][-1] = 0
                for kind in ("unshard", "reduce", "outputs", "inputs"):
                    costs[kind] = [.0005] * units
                end = 0
                for step in range(3):
                    end = self.trace.add_step_of_ranks(step, 100 * step, schedule, costs)
                said, picture = self.figure("--step", "1")
                self.assertEqual(said[1], f"Schedule: {schedule.split()[0]}.")
                shown = f"{end:.1f} ms" if end >= 9.995 else f"{end:.2f} ms"
                wait = messages * .5 / end * 100
                self.assertEqual(said[2], f"Measured {shown}, 1.000 times the predicted {shown}; ranks "
                                          f"wait {wait:.1f} % measured, {wait:.1f} % predicted.")
                self.assertEqual(said[3][-24:], " 2 other steps of the trace."[-24:])
                self.assertIn(f"Predicted: {shown}", picture.texts)

    def test_a_step_with_other_messages_than_its_schedule_is_not_predicted(self):
        costs = {"forward": [.001] * 4, "backward": [.002] * 4, "unshard": [.0005] * 3,
                 "reduce": [.0005] * 3}
        for name, module in ("all_gather", "blocks.2"), ("reduce_scatter", "blocks.1"):
            self.trace = Trace()
            self.trace.add_step_of_ranks(0, 0, "fsdp --units 3 --ranks 2", costs)
            for event in self.trace.events:
                if event["name"] == name and event["args"]["module"] == module:
                    event["args"]["module"] = "blocks.0"
            said, picture = self.figure()
            self.assertEqual(said[-1], "No prediction: these messages are none of the steps that "
                                       "./weft schedule knows.")
            self.assertFalse([text for text in picture.texts if text.startswith("Predicted")])

    def test_a_step_that_tools_schedule_refuses_is_drawn_as_measured(self):
        costs = {"forward": [.001], "backward": [.002], "optimizer": .001}
        self.trace.add_step_of_ranks(0, 0, "ddp --units 1 --ranks 2", costs)
        for rank in 0, 1:
            for bucket in range(1, 4097):
                self.trace.add("ddp", "send bucket", 3, 3, 0,
                               {"step": 0, "bucket": bucket, "bytes": 8}, rank)
                self.trace.add("comm", "all_reduce", 3, 3, 2,
                               {"step": 0, "module": f"bucket {bucket}", "bytes": 8}, rank)
        said, _ = self.figure()
        self.assertEqual(said[0], "Step 0 of DistributedDataParallel on 2 ranks, 4097 buckets")
        why = "No prediction: schedule: --units: Value 4097 not in range"
        self.assertEqual(said[-1][:len(why)], why)
        self.trace = Trace()
        self.trace.add_cut_model(0, 0)
        for rank in 0, 1:
            for unit in range(4096):
                self.trace.add("comm", "all_gather", 3, 3, 2,
                               {"step": 0, "module": f"more.{unit}", "bytes": 8}, rank)
        said, _ = self.figure()
        self.assertEqual(said[0], "Step 0 of a model that 2 ranks have cut")
        self.assertEqual(said[-1][:len(why)], why)

    def test_a_thin_link_has_a_row_of_its_own(self):
        self.trace.add_ddp(0, 0)
        row, key = "thin link 0-1", "held back by a thin link"
        texts = self.figure()[1].texts
        self.assertFalse({row, key} & set(texts))
        self.trace.add("link", row, 32, 38, 2, {"step": 0})
        texts = self.figure()[1].texts
        self.assertEqual({row, key} & set(texts), {row, key})

    def test_a_delay_on_purpose_has_a_row_that_says_so(self):
        self.trace.add_ddp(3, 100)
        title, key = "Delays on purpose", "delayed by WEFT_FAULT"
        self.trace.add("fault", "fault: delay", 20, 40, 0, {"step": 2}, 1)  # of another step
        said, picture = self.figure()
        self.assertFalse({title, key} & set(picture.texts))
        # The first one begins before the step, which is from 100 to 150 ms.
        for begin, end, thread in (98, 108, 0), (132, 135, 2):
            self.trace.add("fault", "fault: delay", begin, end, thread, {"step": 3}, 1)
        delayed, picture = self.figure()
        fact = "WEFT_FAULT delays rank 1 for 13.0 ms in this step."
        self.assertEqual(delayed, said + [fact])
        self.assertTrue({title, key, "fault: delay"} <= set(picture.texts))
        row, bars = picture.rows[-1], picture.bars[-1]
        self.assertEqual([bar.hover for bar in bars], [
            "WEFT_FAULT delays rank 1 for 10.0 ms\nbegins at 0.000 ms, takes 8.00 ms",
            "WEFT_FAULT delays rank 1 for 3.00 ms\nbegins at 32.0 ms, takes 3.00 ms"])
        for bar, begin, length in zip(bars, (0, 32), (8, 3)):
            self.assertAlmostEqual(bar.x, row.x + row.width * begin / 50, delta=0.02)
            self.assertAlmostEqual(bar.width, row.width * length / 50, delta=0.02)

    def test_a_delay_beside_what_is_drawn_is_told(self):
        self.trace.add_data_parallel(0, 100)
        self.trace.add("fault", "fault: delay", 80, 100, 0, {"step": 0})
        said, picture = self.figure()
        self.assertEqual(said[-1], "WEFT_FAULT delays rank 0 for 20.0 ms in this step, before or "
                         "after what is drawn.")
        self.assertNotIn("Delays on purpose", picture.texts)

    def test_every_engine_shows_a_delay(self):
        for add in (lambda: self.trace.add_pipeline(0, simulate(GPIPE, *EQUAL), 0),
                    lambda: self.trace.add_data_parallel(0, 0),
                    lambda: self.trace.add_model_parallel(0, 0),
                    lambda: self.trace.add_ddp(0, 0), lambda: self.trace.add_gan(0, 0),
                    lambda: self.trace.add_cut_model(0, 0)):
            self.trace = Trace()
            add()
            self.trace.add("fault", "fault: delay", 2, 4, 0, {"step": 0})
            self.assertEqual(len(self.figure()[1].bars[-1]), 1)

    def test_ddp_with_several_backwards_is_not_predicted(self):
        self.trace.add_ddp(0, 0)
        for rank in 0, 1:
            self.trace.add("phase", "backward", 41, 41, 0, {"step": 0}, rank)
        self.assertEqual(self.figure()[0][-1], "No prediction: these messages are none of the steps "
                         "that ./weft schedule knows.")

    def test_a_step_that_only_waits_is_not_predicted(self):
        why = "No prediction: what was computed and sent has taken no time."
        for rank in 0, 1:
            def span(category, name, begin, end, rank=rank, **args):
                self.trace.add(category, name, begin, end, 0, {**args, "step": 0}, rank)
            span("forward", "Net", 0, 0)
            span("ddp", "send bucket", 0, 0, bucket=0, bytes=8)
            span("comm", "all_reduce", 10, 10, module="bucket 0", bytes=8)
            span("ddp", "wait for buckets", 0, 10)
            span("phase", "backward", 0, 10)
            span("optim", "step", 10, 10)
        self.assertIn(why, self.figure()[0])
        self.trace = Trace()
        for rank, begin in (0, 0), (1, 10):
            def span(category, name, begin=10, rank=rank, **args):
                self.trace.add(category, name, begin, 10, 0, {**args, "step": 0}, rank)
            span("forward", "Net", begin)
            span("fully_shard", "wait for parameters", begin)
            span("comm", "all_gather", begin, module="Net", bytes=8)
            span("fully_shard", "reduce-scatter")
            span("comm", "reduce_scatter", module="Net", bytes=8)
            span("fully_shard", "wait for sums")
            span("phase", "backward")
            span("optim", "step")
        self.assertEqual(self.figure()[0][-1], why)

    def test_units_of_the_same_last_name_are_told_apart(self):
        costs = {"forward": [.001] * 3 + [0], "backward": [.002] * 4, "optimizer": .001,
                 "unshard": [.0005] * 3, "reduce": [.0005] * 3}
        self.trace.add_step_of_ranks(0, 0, "fsdp --units 3 --ranks 2", costs)
        names = {"blocks.0": "Net", "blocks.1": "encoder.layers.0", "blocks.2": "decoder.layers.0"}
        for event in self.trace.events:
            name = names.get(event["args"].get("module"))
            if name:
                whole = event["name"] == "all_gather" and name != "Net"
                event["args"]["module"] = "Net." * whole + name
        said, picture = self.figure()
        self.assertEqual(said[1], "Schedule: fsdp.")
        self.assertIn("encoder.layers.0", picture.texts)
        self.assertNotIn("layers.0", picture.texts)

    def test_messages_of_other_groups_are_not_compared(self):
        self.trace.add_cut_model(0, 0)
        for event in self.trace.events:
            if event["pid"] == 1 and event["name"] == "all_gather":
                event["args"]["module"] = "another"
        said, _ = self.figure()
        self.assertTrue(any("Rank 0: all_gather 3.00 ms, reduce_scatter" in fact for fact in said))

    def test_a_step_of_a_cut_model_needs_all_ranks(self):
        self.trace.add_cut_model(0, 0)
        self.trace.add_cut_model(1, 100)
        self.trace.events = [event for event in self.trace.events
                             if event["pid"] == 0 or event["args"]["step"] == 0]
        said, _ = self.figure()
        self.assertEqual(said[0], "Step 0 of a model that 2 ranks have cut")
        self.refuse("timeline: error: [timeline] the trace has no whole step 1; its first is 0, its "
                    "last 0\n", "--step", "1")

    def test_long_lines_are_broken_and_not_cut(self):
        fact = " ".join(f"word{n}" for n in range(100))
        shown = one_bar([fact])
        texts = [e.text for e in ElementTree.fromstring(figure.svg(shown)).findall("{*}text")]
        lines = texts[1:texts.index("key")]
        self.assertEqual(" ".join(lines), fact)
        self.assertEqual(len(lines), 5)
        self.assertLess(max(map(len, lines)) * figure.CHARACTER, figure.WIDTH - 2 * figure.MARGIN)

    def test_a_picture_is_well_formed_whatever_a_text_is(self):
        shown = one_bar(["a\0b\x1bc\ufffed\uffffe<&>"])
        texts = [e.text for e in ElementTree.fromstring(figure.svg(shown)).findall("{*}text")]
        self.assertEqual(texts[1], "a b c d e<&>")

    def test_a_bars_text_stands_where_nothing_is_drawn_over_it(self):
        shown = one_bar([])
        whole, *over = [figure.Bar(begin, end, Color(0, 0, 0), text, "") for begin, end, text in (
            (0, 10, "whole"), (2, 4, ""), (3, 6, ""), (9.5, 9.9, "too long a text"))]

        def place(*bars):
            [row] = shown.panels[0].rows
            panel = figure.Panel("panel", [row._replace(bars=bars)])
            root = ElementTree.fromstring(figure.svg(shown._replace(panels=[panel])))
            [text] = [e for e in root.findall("{*}text") if e.get("class") == "bar"]
            [row] = [Bar(e) for e in root.findall("{*}rect") if e.get("class") == "row"]
            self.assertEqual(text.text, "whole")
            return (float(text.get("x")) - row.x) / row.width * 10
        self.assertAlmostEqual(place(whole), 5, delta=0.01)
        self.assertAlmostEqual(place(whole, *over), 7.75, delta=0.01)
        self.assertAlmostEqual(place(*over, whole), 5, delta=0.01)

    def test_a_narrow_page_scrolls_its_picture_alone(self):
        page = figure.page(one_bar(["fact"]))
        style = page[:page.index("@media print")]
        self.assertIn(".picture { overflow-x: auto }", style)
        # Only the keys' boxes ask for a width of their own.
        self.assertEqual(re.findall(r"([.#]?\w+(?: svg)?) {[^}]*\bmin-width: (\w+)", style),
                         [(".picture svg", "1000px")])
        self.assertIn("#hover { position: fixed; display: none; box-sizing: border-box", style)
        self.assertIn("max-width: min(380px, 100vw)", style)

    def test_a_step_of_ddp_has_the_words_and_colors_of_its_other_picture(self):
        self.trace.add_ddp(0, 0)
        _, picture = self.figure()
        other = bucket_picture(read_step(self.path("trace.json"))).svg()
        other = list(ElementTree.fromstring(other).iter())

        def keys(elements):
            """The text behind each box of a legend, and the box's colour."""
            return [(text.text, box.get("fill")) for box, text in zip(elements, elements[1:])
                    if box.tag.endswith("}rect") and box.get("width") == "16"]
        self.assertEqual(len(keys(other)), 7)
        self.assertEqual(keys(other), keys(picture.elements))


if __name__ == "__main__":
    main()
