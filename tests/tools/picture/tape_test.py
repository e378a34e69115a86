#!/usr/bin/env python3
"""The tapes of the example models, as text and as pictures."""
import json
import subprocess
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from svgs import rectangles_of, texts_of
from tools.picture.tape import tape_picture

MODELS = "mlp", "autoencoder", "cnn", "char_transformer"


def traced_tape(model):
    return json.loads(subprocess.check_output(["tools/picture/traced_tape", model]))


class Tape(ToolTest):
    tool = "tools/picture/picture"

    def test_the_perceptrons_says_all_that_is_recorded(self):
        # Batch 2, in f32: log-probabilities 2 x 10, and 24 bytes of two labels and a count; the
        # inputs of the layers, 2 x 128 and 2 x 784; the result of relu, which is the first layer's.
        self.assertEqual(self.check_run("tape", "mlp"), """\
   0  cross_entropy     []         keeps 104 B     -> 1
   1  linear         3  [2,10]     keeps 1.00 KiB  -> 2, 3, 4
   2  linear_relu    1  [2,128]    keeps 7.12 KiB  -> -, 5, 6
   3  leaf              [10,128]
   4  leaf              [10]
   5  leaf              [128,784]
   6  leaf              [128]
""")
        self.assertEqual(texts_of(tape_picture(traced_tape("mlp")).svg())[4:12], [
            "cross_entropy", "[] keeps 104 B", "linear in 3", "[2,10] keeps 1 KiB",
            "3.weight [10,128]", "3.bias [10]", "linear_relu in 1", "[2,128] keeps 7.12 KiB"])

    def test_operations_stand_below_all_that_send_them_gradients(self):
        for model in MODELS:
            run = traced_tape(model)
            picture = tape_picture(run)
            for n, node in enumerate(run["nodes"]):
                self.assertTrue(all(o == -1 or o > n for o in node["operands"]), model)
                for o in node["operands"]:
                    if o >= 0 and not run["nodes"][o]["is_leaf"]:
                        self.assertGreater(picture.box[o][1], picture.box[n][1])

    def test_each_stands_once_and_nothing_overlaps(self):
        for model in MODELS:
            run = traced_tape(model)
            picture = tape_picture(run)
            _, *boxes = rectangles_of(picture.svg())  # without the ground
            self.assertEqual(len(boxes), len(run["nodes"]), model)
            for i, a in enumerate(boxes):
                self.assertLess(a.x + a.width, picture.width)
                self.assertLess(a.y + a.height, picture.height)
                for b in boxes[:i]:
                    self.assertTrue(a.x + a.width <= b.x or b.x + b.width <= a.x
                                    or a.y + a.height <= b.y or b.y + b.height <= a.y, (a, b))

    def test_the_picture_is_that_of_the_docs(self):
        out = self.path("tape.svg")
        self.assertEqual(self.check_run("tape", "autoencoder", out), "")
        with open(out, encoding="utf-8") as drawn, open("docs/tape.svg", encoding="utf-8") as golden:
            self.assertEqual(drawn.read(), golden.read())

    def test_another_model_is_refused(self):
        self.check_refusal(["tape", "resnet"], "picture: error: [traced_tape] got the model 'resnet', "
                           "expected mlp, autoencoder, cnn or char_transformer at ")
        self.check_refusal(["tape"], "MODEL")


if __name__ == "__main__":
    main()
