"""Drawing: rectangles, smooth lines and text on an RGB picture, as train/canvas.h does it."""
import math
import pathlib
import re
import struct
import zlib

WHITE, INK, FAINT, GRID = (255, 255, 255), (51, 51, 60), (140, 140, 150), (232, 232, 236)
TEXT_HEIGHT = 18

_FONT = pathlib.Path(__file__).resolve().parents[2] / "train/font_data.inc"
# By character from ' ' on: advance, left, top, width, height; and pixels, 0 to 15, row by row.
_GLYPHS = [(*map(int, glyph[:5]), [int(digit, 16) for digit in glyph[5]]) for glyph in re.findall(
    r'^\{' + r"(-?\d+), " * 5 + r'"(\w*)"\}', _FONT.read_text(encoding="utf-8"), re.M)]


def axis_ticks(low, high, wanted):
    """Round numbers that divide [low, high] into about `wanted` parts."""
    rough = (high - low) / wanted
    power = math.pow(10, math.floor(math.log10(rough)))
    part = rough / power
    step = power * (1 if part < 1.5 else 2 if part < 3.5 else 5 if part < 7.5 else 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def text_width(text):
    return sum(_GLYPHS[ord(c) - ord(" ")][0] for c in text)


class Canvas:
    """x goes to the right, y down, (0, 0) is the corner of the first pixel. Drawings are cut off at
    the picture's edges. Text is printable ASCII."""

    def __init__(self, width, height):
        self.width, self.height = width, height
        self.pixels = bytearray(bytes(WHITE) * (width * height))

    def _blend(self, x, y, color, opacity):
        if 0 <= x < self.width and 0 <= y < self.height:
            at = 3 * (y * self.width + x)
            for c, value in enumerate(color, at):
                self.pixels[c] = math.floor(
                    self.pixels[c] + (value - self.pixels[c]) * opacity + 0.5)

    def fill(self, x, y, width, height, color):
        right = min(x + width, self.width)
        x = max(x, 0)
        for j in range(max(y, 0), min(y + height, self.height)):
            at = 3 * (j * self.width + x)
            self.pixels[at:at + 3 * (right - x)] = bytes(color) * (right - x)

    def line(self, x0, y0, x1, y1, thickness, color):
        """With round ends."""
        reach = thickness / 2 + 1
        dx, dy = x1 - x0, y1 - y0
        length2 = dx * dx + dy * dy
        for y in range(math.floor(min(y0, y1) - reach), math.floor(max(y0, y1) + reach) + 1):
            for x in range(math.floor(min(x0, x1) - reach), math.floor(max(x0, x1) + reach) + 1):
                # How much of the pixel is covered, from its centre's distance to the segment.
                px, py = x + 0.5 - x0, y + 0.5 - y0
                t = min(max((px * dx + py * dy) / length2, 0), 1) if length2 else 0
                cover = min(thickness / 2 + 0.5 - math.hypot(px - t * dx, py - t * dy), 1)
                if cover > 0:
                    self._blend(x, y, color, cover)

    def arrow(self, begin, y, end, color):
        """To the right."""
        self.line(begin, y, end, y, 2.5, color)
        self.line(end - 6, y - 6, end, y, 2.5, color)
        self.line(end - 6, y + 6, end, y, 2.5, color)

    def text(self, x, y, text, color):
        """(x, y): the upper left corner."""
        for c in text:
            advance, left, top, width, _, levels = _GLYPHS[ord(c) - ord(" ")]
            for i, level in enumerate(levels):
                if level:
                    self._blend(x + left + i % width, y + top + i // width, color, level / 15)
            x += advance

    def text_centred(self, middle, y, text, color):
        self.text(middle - text_width(text) // 2, y, text, color)

    def png(self):
        row = 3 * self.width
        rows = b"".join(b"\0" + self.pixels[at:at + row] for at in range(0, len(self.pixels), row))

        def chunk(kind, data):
            return struct.pack(f">I4s{len(data)}sI", len(data), kind, data, zlib.crc32(kind + data))
        return (b"\x89PNG\r\n\x1a\n"
                + chunk(b"IHDR", struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
