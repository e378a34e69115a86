"""The steps of a ring all-reduce, as the ranks made them."""
from tools.picture.svg import FAINT, INK, LINE, Drawing

ADDED, REPLACED = "#ce5c10", "#288246"
# Colours of a part, by how many ranks' numbers it contains: one, more, or all.
ONE, MORE, ALL = "#dee8f6", "#96bae6", "#a4d4b0"

BLOCK_WIDTH, BLOCK_HEIGHT, ARROW, STUB = 50, 28, 28, 22
HEADING, NAMES, PANEL_GAP, MARGIN = 28, 20, 22, 14
LEGEND_WIDTH, LEGEND_HEIGHT = 480, 6 * LINE


def _letters(ranks):
    """"abd" for bits 0, 1 and 3."""
    return "".join(chr(ord("a") + r) for r in range(ranks.bit_length()) if ranks >> r & 1)


def _block_left(left, rank):
    return left + STUB + rank * (BLOCK_WIDTH + ARROW)


class _Ring(Drawing):
    def __init__(self, run):
        self.run = run
        n, columns = run["ranks"], run["ranks"] - 1
        panel_width = n * BLOCK_WIDTH + (n - 1) * ARROW + 2 * STUB
        row_height = HEADING + NAMES + n * BLOCK_HEIGHT + PANEL_GAP
        legend_left = MARGIN + panel_width + PANEL_GAP
        rows = -(-len(run["steps"]) // columns)
        end = MARGIN + rows * row_height
        super().__init__(max(2 * MARGIN + columns * (panel_width + PANEL_GAP) - PANEL_GAP,
                             legend_left + MARGIN + LEGEND_WIDTH),
                         end + max(row_height, HEADING + LEGEND_HEIGHT))
        for s, step in enumerate(run["steps"]):
            self.draw_step(s, step, MARGIN + s % columns * (panel_width + PANEL_GAP),
                           MARGIN + s // columns * row_height)
        self.text(MARGIN, end + LINE / 2, "at the end", INK)
        self.draw_parts(MARGIN, end + HEADING, run["result"])
        self.draw_legend(legend_left, end + HEADING)

    def draw_step(self, s, step, left, top):
        adds = step["messages"][0]["added"]
        self.text(left, top + LINE / 2, f"step {s + 1}: {'reduce-scatter' if adds else 'all-gather'}",
                  ADDED if adds else REPLACED)
        self.draw_parts(left, top + HEADING, step["before"])
        for message in step["messages"]:
            self.draw_message(left, top + HEADING, message)

    def draw_parts(self, left, top, parts):
        for rank, of_rank in enumerate(parts):
            x = _block_left(left, rank)
            middle = x + BLOCK_WIDTH / 2
            self.text(middle, top + NAMES / 2, f"rank {rank}", FAINT, "middle")
            for part, ranks in enumerate(of_rank):
                y, text = top + NAMES + part * BLOCK_HEIGHT, _letters(ranks)
                color = ALL if len(text) == self.run["ranks"] else MORE if len(text) > 1 else ONE
                self.rectangle(x, y, BLOCK_WIDTH, BLOCK_HEIGHT - 1, color)
                self.text(middle, y + BLOCK_HEIGHT / 2, text, INK, "middle")

    def draw_message(self, left, top, message):
        """To the rank on the right; from the last one out of the picture, and in on the left."""
        y = top + NAMES + message["part"] * BLOCK_HEIGHT + (BLOCK_HEIGHT - 1) / 2
        color = ADDED if message["added"] else REPLACED
        begin = _block_left(left, message["from"]) + BLOCK_WIDTH
        end = _block_left(left, message["to"])
        if end > begin:
            self.arrow(begin + 3, y, end - 3, color)
        else:
            self.line(begin + 3, y, begin + STUB - 3, y, 2.5, color)
            self.arrow(end - STUB + 3, y, end - 3, color)

    def draw_legend(self, left, top):
        n, steps, buffer = self.run["ranks"], self.run["steps"], self.run["buffer_bytes"]
        sent, message = self.run["bytes_sent"][0], steps[0]["messages"][0]["bytes"]
        arrows = [("sent, and added by the next rank to its own", ADDED),
                  ("sent, and kept by the next rank in place of its own", REPLACED)]
        for text, color in arrows:
            self.arrow(left, top + LINE / 2, left + ARROW, color)
            self.text(left + ARROW + 10, top + LINE / 2, text, INK)
            top += LINE
        everyone = _letters((1 << n) - 1)
        for text in [
                f"{', '.join(everyone)}: numbers of rank 0, 1 ...; {everyone}: the sum of all",
                "each step as it begins; rows are the parts of the buffer",
                f"each rank sent {len(steps)} messages of {message} bytes, {sent} in all:",
                f"{sent / buffer:g} of its buffer's {buffer} bytes; "
                f"2(n-1)/n is {2 * (n - 1) / n:g}"]:
            self.text(left, top + LINE / 2, text, INK)
            top += LINE


def ring_picture(run):
    """The picture of what tools/picture/traced_ring prints."""
    return _Ring(run)
