#!/usr/bin/env python3
"""Drawing on a picture."""
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from svgs import texts_of
from tools.picture.svg import INK, Drawing, axis_ticks


class SvgTest(ToolTest):
    def test_a_picture_has_a_white_ground_and_what_was_drawn(self):
        drawing = Drawing(200, 30.5)
        drawing.rectangle(1, 2.5, 3, 4, "#123456")
        drawing.line(5, 6, 7, 8.25, 1.5, INK)
        drawing.arrow(10, 20, 30, INK)
        drawing.text(5, 10, "loss < 0.25 & more", INK, "end")
        svg = drawing.svg()
        self.assertIn('viewBox="0 0 200 30.5" width="200" height="30.5"', svg)
        for part in ['<rect x="0" y="0" width="200" height="30.5" fill="#fff"/>',
                     '<rect x="1" y="2.5" width="3" height="4" fill="#123456"/>',
                     '<path d="M5 6L7 8.25" stroke="#33333c" stroke-width="1.5"/>',
                     '<path d="M10 20H30m-6 -6l6 6l-6 6" stroke="#33333c" stroke-width="2.5"/>',
                     '<text x="5" y="15" fill="#33333c" text-anchor="end">']:
            self.assertIn(part, svg)
        self.assertEqual(texts_of(svg), ["loss < 0.25 & more"])

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
