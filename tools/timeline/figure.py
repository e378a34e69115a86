"""Bars in rows on an axis of time, as an SVG picture or a page around one."""
import bisect
import html
import re
import textwrap
from collections import namedtuple

from tools.picture.svg import axis_ticks

WIDTH, MARGIN, RIGHT, CHARACTER = 1160, 12, 108, 6.8
BAR_HEIGHT, ROW_HEIGHT, PANEL_HEAD, AXIS_HEIGHT, PANEL_GAP = 24, 30, 30, 26, 16
LINE = 20
AREAS_HEIGHT = 120
LONGEST_NAME = 24

# Follows the reader's choice of light or dark; paper is white.
STYLE = """
:root { color-scheme: light dark;
        --ground: #fff; --ink: #24242c; --faint: #6a6a74; --grid: #dedee4; --row: #f4f4f7 }
@media screen and (prefers-color-scheme: dark) {
  :root { --ground: #16161b; --ink: #e6e6ec; --faint: #a2a2ae; --grid: #36363f; --row: #202027 }
}
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink) }
svg .strong { font-weight: 600; font-size: 13px }
svg .faint { fill: var(--faint) }
svg text.bar { font-size: 11px; text-anchor: middle; pointer-events: none }
svg .grid { stroke: var(--grid) }
svg .row { fill: var(--row) }
svg .ground { fill: var(--ground) }
"""

PAGE_STYLE = """
@page { size: A4 landscape; margin: 12mm }
body { margin: 0 auto; padding: 16px; max-width: 1400px;
       background: var(--ground); color: var(--ink);
       font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif }
h1 { font-size: 19px; line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere }
p { margin: 0 0 4px; overflow-wrap: anywhere }
.legend { margin: 8px 0 }
.legend span { display: inline-block; margin-right: 16px; white-space: nowrap }
.legend svg { width: 16px; height: 14px; vertical-align: -2px; margin-right: 5px }
.picture { overflow-x: auto }
.picture svg { display: block; width: 100%; min-width: 1000px; height: auto }
rect.bar:hover { stroke: var(--ink); stroke-width: 2 }
#hover { position: fixed; display: none; box-sizing: border-box; padding: 6px 9px;
         max-width: min(380px, 100vw); white-space: pre-line; font-size: 13px; pointer-events: none;
         background: var(--ground); border: 1px solid var(--faint); border-radius: 4px }
@media print { body { padding: 0; max-width: none;
                      -webkit-print-color-adjust: exact; print-color-adjust: exact }
               .picture { overflow: visible } .picture svg { min-width: 0 }
               #hover { display: none !important } }
"""

SCRIPT = """
const box = document.getElementById('hover');
for (const bar of document.querySelectorAll('rect.bar')) {
  const title = bar.querySelector('title');
  if (!title) continue;
  bar.dataset.hover = title.textContent;
  title.remove();
}
document.addEventListener('pointermove', show);
document.addEventListener('pointerdown', show);
function show(event) {
  const text = event.target.dataset?.hover;
  box.style.display = text ? 'block' : 'none';
  if (!text) return;
  box.textContent = text;
  const right = document.documentElement.clientWidth - box.offsetWidth - 8;
  const below = window.innerHeight > event.clientY + 16 + box.offsetHeight;
  box.style.left = Math.max(0, Math.min(event.clientX + 12, right)) + 'px';
  box.style.top = (below ? event.clientY + 16 : event.clientY - box.offsetHeight - 8) + 'px';
}
"""


# Panels are below each other on one time axis; the facts are lines of text; the legend has keys.
# `begin`: the time 0 of the axis, in seconds of the trace. `step`: the number of the one that is drawn.
Figure = namedtuple("Figure", "title facts legend panels begin step", defaults=[None, None])
Panel = namedtuple("Panel", "title rows")
Row = namedtuple("Row", "name note bars")  # the note is a short text after the row
# Areas on top of each other: (key, steps), where each step is (seconds, value) and lasts until the
# next one.
Areas = namedtuple("Areas", "title areas unit")
# Begin and end in seconds; the text is shown in the bar if there is room, else the first of `shorter`
# for which there is; `hover` may have several lines.
Bar = namedtuple("Bar", "begin end color text hover dashed shorter", defaults=[False, ()])
Key = namedtuple("Key", "name color dashed", defaults=[False])


def milliseconds(seconds):
    """"12.3 ms"."""
    ms = seconds * 1e3
    digits = 3 if ms < 0.9995 else 2 if ms < 9.995 else 1 if ms < 999.95 else 0
    return f"{ms:.{digits}f} ms"


def percent(share):
    """"12.3 %"."""
    return f"{share * 100:.1f} %"


def counted(count, thing):
    """"1 message", "2 messages"."""
    return f"{count} {thing}" + "s" * (count != 1)


def times(begin, end):
    return f"begins at {milliseconds(begin)}, takes {milliseconds(end - begin)}"


def covered(bars):
    """Seconds that are covered by any of the bars, which may overlap."""
    total = end = 0
    for bar in sorted(bars, key=lambda bar: bar.begin):
        total += max(0, bar.end - max(bar.begin, end))
        end = max(end, bar.end)
    return total


def _seen_parts(bars):
    """Of each bar the longest part over which no later one is drawn that begins within it."""
    in_order = sorted((bar.begin, i) for i, bar in enumerate(bars))
    for i, bar in enumerate(bars):
        at, seen = bar.begin, (0, bar.begin, bar.begin)
        first, last = (bisect.bisect_left(in_order, (time, 0)) for time in bar[:2])
        over = [bars[k] for _, k in in_order[first:last] if k > i]
        for begin, end in [other[:2] for other in over] + [(bar.end, bar.end)]:
            seen = max(seen, (begin - at, at, begin))
            at = max(at, end)
        yield seen[1:]


def _escaped(text):
    # XML allows no other control characters, nor the last two of the first plane.
    text = re.sub("[\0-\t\v-\x1f\ufffe\uffff]", " ", text)
    return html.escape(text, quote=False).replace('"', "&quot;")


def _shortened(text):
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME - 1] + "..."


def _paint(color, dashed):
    stroke = f' stroke="{color.css(lightness=40)}" stroke-dasharray="3 2"' if dashed else ""
    return f' fill="{color.css()}"{stroke}'


class _Drawing:
    def __init__(self, figure):
        self.figure = figure
        rows = [row for panel in figure.panels if isinstance(panel, Panel) for row in panel.rows]
        self.end = max((bar.end for row in rows for bar in row.bars), default=1) or 1
        self.left = MARGIN + CHARACTER * (max((len(_shortened(row.name)) for row in rows), default=0) + 1)
        self.right = WIDTH - RIGHT
        self.y = 0
        self.out = []

    def svg(self, with_head):
        if with_head:
            self.draw_head()
        for panel in self.figure.panels:
            if isinstance(panel, Areas):
                self.draw_areas(panel)
            else:
                self.draw_panel(panel)
        height, left = self.y - PANEL_GAP, 0 if with_head else MARGIN
        size = f' width="{WIDTH - left}" height="{height:g}"'
        head = f'<style>{STYLE}</style>\n<rect class="ground"{size} fill="#fff"/>\n'
        return (f'<svg xmlns="http://www.w3.org/2000/svg" '
                f'viewBox="{left} 0 {WIDTH - left} {height:g}"{size} role="img">\n'
                f'{head if with_head else ""}{"".join(self.out)}</svg>\n')

    def at(self, seconds):
        return self.left + seconds / self.end * (self.right - self.left)

    def text(self, x, y, kind, what):
        if what:
            self.out.append(
                f'<text x="{x:.2f}" y="{y:.2f}" class="{kind}">{_escaped(what)}</text>\n')

    def draw_head(self):
        self.y = 26
        self.text(MARGIN, self.y, "strong", self.figure.title)
        for fact in self.figure.facts:
            for line in textwrap.wrap(fact, int((WIDTH - 2 * MARGIN) / CHARACTER)):
                self.y += LINE
                self.text(MARGIN, self.y, "", line)
        self.y += LINE
        x = MARGIN
        for key in self.figure.legend:
            width = 24 + CHARACTER * (len(key.name) + 2)
            if MARGIN < x and WIDTH < x + width:
                x = MARGIN
                self.y += LINE
            self.out.append(f'<rect x="{x:g}" y="{self.y - 11:g}" width="16" height="13"'
                            f'{_paint(key.color, key.dashed)}/>\n')
            self.text(x + 22, self.y, "", key.name)
            x += width
        self.y += 12

    def draw_panel(self, panel):
        self.text(MARGIN, self.y + 18, "strong", panel.title)
        self.y += PANEL_HEAD
        bottom = self.y + ROW_HEIGHT * len(panel.rows)
        for y in range(self.y, bottom, ROW_HEIGHT):
            self.out.append(f'<rect class="row" fill="#f4f4f7" x="{self.left:.2f}" y="{y:g}" '
                            f'width="{self.right - self.left:.2f}" height="{BAR_HEIGHT}"/>\n')
        self.draw_axis(bottom)
        for row in panel.rows:
            self.text(MARGIN, self.y + 16, "", _shortened(row.name))
            for bar, seen in zip(row.bars, _seen_parts(row.bars)):
                self.draw_bar(bar, seen)
            self.text(self.right + 6, self.y + 16, "faint", row.note)
            self.y += ROW_HEIGHT
        self.y = bottom + AXIS_HEIGHT + PANEL_GAP

    def draw_axis(self, bottom):
        for tick in axis_ticks(0, self.end * 1e3, 10):
            x = f"{self.at(tick / 1e3):.2f}"
            self.out.append(
                f'<line class="grid" x1="{x}" x2="{x}" y1="{self.y:g}" y2="{bottom:g}"/>\n'
                f'<text x="{x}" y="{bottom + 12:g}" class="faint" text-anchor="middle">'
                f'{tick:g}</text>\n')
        self.text(self.right + 22, bottom + 12, "faint", "ms")

    def draw_areas(self, panel):
        self.text(MARGIN, self.y + 18, "strong", panel.title)
        self.y += PANEL_HEAD
        bottom = self.y + AREAS_HEIGHT
        times = sorted({0, self.end, *(when for _, steps in panel.areas for when, _ in steps
                                       if 0 < when < self.end)})
        below = [0] * len(times)
        stacked = []
        for key, steps in panel.areas:
            above, at, value = [], 0, 0
            for when, under in zip(times, below):
                while at < len(steps) and steps[at][0] <= when:
                    value = steps[at][1]
                    at += 1
                above.append(under + value)
            stacked.append((key, below, above))
            below = above
        most = max(below) or 1

        def edge(values):
            """The points of a staircase line, from left to right: the ends of its flat parts."""
            ends = []
            for i, value in enumerate(values):
                y = f"{bottom - value / most * AREAS_HEIGHT:.1f}"
                right = times[min(i + 1, len(times) - 1)]
                if ends and ends[-1][1] == y:
                    ends.pop()
                else:
                    ends.append((self.at(times[i]), y))
                ends.append((self.at(right), y))
            return [f"{x:.1f} {y}" for x, y in ends]
        for key, under, over in stacked:
            self.out.append(f'<path class="area" d="M{"L".join(edge(over) + edge(under)[::-1])}Z"'
                            f'{_paint(key.color, False)}><title>{_escaped(key.name)}</title></path>\n')
        for tick in axis_ticks(0, most, 3):
            y = bottom - tick / most * AREAS_HEIGHT
            self.out.append(f'<line class="grid" x1="{self.left:.2f}" x2="{self.right:.2f}" '
                            f'y1="{y:.1f}" y2="{y:.1f}"/>\n')
            self.text(self.right + 6, y + 4, "faint", f"{tick:g} {panel.unit}")
        self.draw_axis(bottom + ROW_HEIGHT - BAR_HEIGHT)
        self.y = bottom + ROW_HEIGHT - BAR_HEIGHT + AXIS_HEIGHT + PANEL_GAP

    def draw_bar(self, bar, seen):
        x = self.at(bar.begin)
        width = max(1, self.at(bar.end) - x)  # so that it is seen
        self.out.append(f'<rect class="bar" x="{x:.2f}" y="{self.y:g}" width="{width:.2f}" '
                        f'height="{BAR_HEIGHT}"{_paint(bar.color, bar.dashed)}>'
                        f'<title>{_escaped(bar.hover)}</title></rect>\n')
        left, right = map(self.at, seen)
        fits = [text for text in (bar.text, *bar.shorter) if CHARACTER * len(text) + 1 <= right - left]
        if fits and fits[0]:
            self.out.append(f'<text class="bar" x="{(left + right) / 2:.2f}" y="{self.y + 16:g}" '
                            f'style="fill: {bar.color.ink()}">{_escaped(fits[0])}</text>\n')


def svg(figure):
    """Well-formed whatever the texts are. Readable on light and dark ground."""
    return _Drawing(figure).svg(with_head=True)


def page(figure):
    """An HTML page that needs nothing else: shows `hover` beside the pointer."""
    title = _escaped(figure.title)
    facts = "".join(f"<p>{_escaped(fact)}</p>\n" for fact in figure.facts)
    legend = "".join('<span><svg><rect x="1" y="1" width="14" height="12"'
                     f"{_paint(key.color, key.dashed)}/>"
                     f"</svg>{_escaped(key.name)}</span>\n" for key in figure.legend)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>{STYLE}{PAGE_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
{facts}<div class="legend">
{legend}</div>
<div class="picture">
{_Drawing(figure).svg(with_head=False)}</div>
<div id="hover"></div>
<script>{SCRIPT}</script>
</body>
</html>
"""
