#!/usr/bin/env python3
"""Drawing on a picture."""
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from pngs import read_png
from tools.picture.canvas import INK, WHITE, Canvas, axis_ticks, text_width


class CanvasTest(ToolTest):
    def pixels(self, canvas):
        with open(self.path("out.png"), "wb") as file:
            file.write(canvas.png())
        width, height, rows = read_png(self.path("out.png"))
        self.assertEqual((width, height), (canvas.width, canvas.height))
        return rows

    def test_drawings_are_cut_off_at_the_edges(self):
        canvas = Canvas(20, 10)
        canvas.fill(18, 8, 5, 5, INK)
        canvas.fill(-3, -3, 4, 4, INK)
        canvas.fill(30, 2, 5, 5, INK)
        rows = self.pixels(canvas)
        self.assertEqual(sum(row.count(INK) for row in rows), 2 * 2 + 1)
        self.assertEqual([rows[0][0], rows[8][18], rows[9][19]], [INK] * 3)
        canvas.line(-50, 5, 50, 5, 2, INK)
        canvas.text(-4, -4, "edge", INK)
        canvas.text(18, 8, "edge", INK)
        rows = self.pixels(canvas)
        self.assertEqual([rows[4][0], rows[4][10], rows[5][10], rows[2][14]], [INK] * 3 + [WHITE])

    def test_a_line_is_smooth(self):
        canvas = Canvas(20, 10)
        canvas.line(5, 5.5, 15, 5.5, 2, INK)  # a whole row of pixels, and half of its neighbours
        half = tuple((255 + c + 1) // 2 for c in INK)
        self.assertEqual([row[10] for row in self.pixels(canvas)[3:8]],
                         [WHITE, half, INK, half, WHITE])

    def test_text_is_as_wide_as_it_says(self):
        canvas = Canvas(200, 30)
        canvas.text(5, 5, "loss 0.25", INK)
        columns = {x for row in self.pixels(canvas)
                                            for x, pixel in enumerate(row) if pixel != WHITE}
        self.assertGreater(len(columns), 40)
        self.assertGreaterEqual(min(columns), 5)
        self.assertLessEqual(max(columns), 5 + text_width("loss 0.25"))
        self.assertEqual(text_width("loss 0.25"), 69)

    def test_ticks_are_round_numbers(self):
        for arguments, expected in [((0, 10, 5), [0, 2, 4, 6, 8, 10]),
                                    ((0, 1875, 8), range(0, 2000, 200)),
                                    ((0.013, 0.171, 6), [i / 50 for i in range(1, 9)]),
                                    ((-1, 1, 4), [-1, -0.5, 0, 0.5, 1])]:
            ticks = axis_ticks(*arguments)
            self.assertEqual(len(ticks), len(expected), ticks)
            for tick, value in zip(ticks, expected):
                self.assertAlmostEqual(tick, value, delta=1e-9)


if __name__ == "__main__":
    main()
