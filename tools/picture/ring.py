"""The steps of a ring all-reduce, as the ranks made them."""
from tools.picture.canvas import FAINT, INK, TEXT_HEIGHT, Canvas

ADDED, REPLACED = (206, 92, 16), (40, 130, 70)
# By how many ranks' numbers are in a part, from one to all.
ONE, MORE, ALL = (222, 232, 246), (150, 186, 230), (164, 212, 176)

BLOCK_WIDTH, BLOCK_HEIGHT, ARROW, STUB = 50, 28, 34, 26
HEADING, NAMES, PANEL_GAP, MARGIN = 28, 24, 34, 28
LINE = TEXT_HEIGHT + 6
LEGEND_WIDTH, LEGEND_HEIGHT = 480, 6 * LINE


def _letters(ranks):
    """"abd" for bits 0, 1 and 3."""
    return "".join(chr(ord("a") + r) for r in range(ranks.bit_length()) if ranks >> r & 1)


def _block_left(left, rank):
    return left + STUB + rank * (BLOCK_WIDTH + ARROW)


class _Drawing:
    def __init__(self, run):
        self.run = run
        n, columns = run["ranks"], run["ranks"] - 1
        panel_width = n * BLOCK_WIDTH + (n - 1) * ARROW + 2 * STUB
        row_height = HEADING + NAMES + n * BLOCK_HEIGHT + PANEL_GAP
        legend_left = MARGIN + panel_width + PANEL_GAP
        rows = -(-len(run["steps"]) // columns)
        end = MARGIN + rows * row_height
        self.canvas = Canvas(max(2 * MARGIN + columns * (panel_width + PANEL_GAP) - PANEL_GAP,
                                 legend_left + MARGIN + LEGEND_WIDTH),
                             end + max(row_height, HEADING + LEGEND_HEIGHT))
        for s, step in enumerate(run["steps"]):
            self.draw_step(s, step, MARGIN + s % columns * (panel_width + PANEL_GAP),
                           MARGIN + s // columns * row_height)
        self.canvas.text(MARGIN, end, "at the end", INK)
        self.draw_parts(MARGIN, end + HEADING, run["result"])
        self.draw_legend(legend_left, end + HEADING)

    def draw_step(self, s, step, left, top):
        adds = step["messages"][0]["added"]
        self.canvas.text(left, top, f"step {s + 1}: {'reduce-scatter' if adds else 'all-gather'}",
                         ADDED if adds else REPLACED)
        self.draw_parts(left, top + HEADING, step["before"])
        for message in step["messages"]:
            self.draw_message(left, top + HEADING, message)

    def draw_parts(self, left, top, parts):
        for rank, of_rank in enumerate(parts):
            x = _block_left(left, rank)
            self.canvas.text_centred(x + BLOCK_WIDTH // 2, top, f"rank {rank}", FAINT)
            for part, ranks in enumerate(of_rank):
                y, text = top + NAMES + part * BLOCK_HEIGHT, _letters(ranks)
                color = ALL if len(text) == self.run["ranks"] else MORE if len(text) > 1 else ONE
                self.canvas.fill(x, y, BLOCK_WIDTH, BLOCK_HEIGHT - 1, color)
                middle, up = x + BLOCK_WIDTH // 2, y + (BLOCK_HEIGHT - TEXT_HEIGHT) // 2
                self.canvas.text_centred(middle, up, text, INK)

    def draw_message(self, left, top, message):
        """To the rank on the right; from the last one out of the picture, and in on the left."""
        y = top + NAMES + message["part"] * BLOCK_HEIGHT + (BLOCK_HEIGHT - 1) / 2
        color = ADDED if message["added"] else REPLACED
        begin = _block_left(left, message["from"]) + BLOCK_WIDTH
        end = _block_left(left, message["to"])
        if end > begin:
            self.canvas.arrow(begin + 3, y, end - 3, color)
        else:
            self.canvas.line(begin + 3, y, begin + STUB - 3, y, 2.5, color)
            self.canvas.arrow(end - STUB + 3, y, end - 3, color)

    def draw_legend(self, left, top):
        n, steps, buffer = self.run["ranks"], self.run["steps"], self.run["buffer_bytes"]
        sent, message = self.run["bytes_sent"][0], steps[0]["messages"][0]["bytes"]
        arrows = [("sent, and added by the next rank to its own", ADDED),
                  ("sent, and kept by the next rank in place of its own", REPLACED)]
        for text, color in arrows:
            self.canvas.arrow(left, top + TEXT_HEIGHT / 2, left + ARROW, color)
            self.canvas.text(left + ARROW + 10, top, text, INK)
            top += LINE
        everyone = _letters((1 << n) - 1)
        for text in [
                f"{', '.join(everyone)}: numbers of rank 0, 1 ...; {everyone}: the sum of all",
                "each step as it begins; rows are the parts of the buffer",
                f"each rank sent {len(steps)} messages of {message} bytes, {sent} in all:",
                f"{sent / buffer:g} of its buffer's {buffer} bytes; "
                f"2(n-1)/n is {2 * (n - 1) / n:g}"]:
            self.canvas.text(left, top, text, INK)
            top += LINE


def ring_picture(run):
    """Of what tools/picture/traced_ring prints."""
    return _Drawing(run).canvas
