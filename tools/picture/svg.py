"""Drawing: rectangles, lines and text as an SVG picture."""
import html
import math
from collections import namedtuple

WHITE, INK, FAINT, GRID = "#fff", "#33333c", "#6e6e78", "#e8e8ec"
FONT_SIZE, LINE, CHARACTER = 15, 24, 8.6  # the width of a character in a wide font


class Color(namedtuple("Color", "hue saturation lightness")):
    """In HSL: degrees, and percent."""

    def css(self, lightness=None):
        return f"hsl({self.hue}, {self.saturation}%, {lightness or self.lightness}%)"

    def ink(self):
        """Of a text on this colour."""
        return WHITE if self.lightness < 55 else "#1c1c22"


def axis_ticks(low, high, wanted):
    """Round numbers that divide [low, high] into about `wanted` parts."""
    rough = (high - low) / wanted
    power = math.pow(10, math.floor(math.log10(rough)))
    part = rough / power
    step = power * (1 if part < 1.5 else 2 if part < 3.5 else 5 if part < 7.5 else 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


class Drawing:
    """x goes to the right, y down, (0, 0) is the upper left corner."""

    def __init__(self, width, height):
        self.width, self.height, self.out = width, height, []
        self.rectangle(0, 0, width, height, WHITE)

    def rectangle(self, x, y, width, height, color):
        self.out.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
                        f'fill="{color}"/>\n')

    def line(self, x0, y0, x1, y1, thickness, color):
        """With round ends."""
        self._path(f"M{x0:g} {y0:g}L{x1:g} {y1:g}", thickness, color)

    def arrow(self, begin, y, end, color):
        """To the right."""
        self._path(f"M{begin:g} {y:g}H{end:g}m-6 -6l6 6l-6 6", 2.5, color)

    def _path(self, commands, thickness, color):
        self.out.append(f'<path d="{commands}" stroke="{color}" stroke-width="{thickness:g}"/>\n')

    def text(self, x, middle, text, color, anchor="start"):
        """Text that begins, ends or has its middle at x; its height is centred on y = `middle`."""
        self.out.append(f'<text x="{x:g}" y="{middle + FONT_SIZE / 3:g}" fill="{color}" '
                        f'text-anchor="{anchor}">{html.escape(text, quote=False)}</text>\n')

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} '
                f'{self.height:g}" width="{self.width:g}" height="{self.height:g}" '
                f'font-size="{FONT_SIZE}" font-family="system-ui, \'DejaVu Sans\', sans-serif" '
                'fill="none" stroke-linecap="round" stroke-linejoin="round">\n'
                f'{"".join(self.out)}</svg>\n')
