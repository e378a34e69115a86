"""The tape of a loss: recorded operations, what they keep, and where backward sends gradients."""
from collections import defaultdict

from tools.picture.svg import CHARACTER, FAINT, INK, LINE, Drawing

PLAIN, KEEPS, LEAF, GRADIENT = "#eef0f3", "#c3d9f1", "#cfe8d4", "#3061a6"
MARGIN, PADDING, BETWEEN, DOWN = 14, 8, 34, 26
HEIGHT, LEAF_HEIGHT = 2 * LINE, 22
BEND = 40  # how far an arrow that passes other operations bows to the left


def _bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            break
        count /= 1024
    return f"{count:.3g} {unit}"


def _shape(node):
    return f"[{','.join(map(str, node['shape']))}]"


def _lines(node):
    if node["is_leaf"]:
        return [f"{node['name']} {_shape(node)}"]
    module = f" in {node['module']}" if node["module"] else ""
    keeps = f" keeps {_bytes(node['saved_bytes'])}" if node["saved_bytes"] else ""
    return [node["name"] + module, _shape(node) + keeps]


def _width(text):
    return CHARACTER * len(text) + 2 * PADDING


class _Tape(Drawing):
    def __init__(self, run):
        self.nodes, self.run = run["nodes"], run
        self.box = {}  # x, y, width and height, by node
        self.operation = max(_width(line) for node in self.nodes if not node["is_leaf"]
                             for line in _lines(node))
        self.left = MARGIN
        layers = self.layers()
        if any(above + 1 < below for above, below, *_ in self.edges()):
            self.left += BEND
        self.top = MARGIN + 5 * LINE
        for depth, layer in enumerate(layers):
            self.place(layer, self.top + depth * (HEIGHT + DOWN))
        right = max(x + width for x, _, width, _ in self.box.values())
        super().__init__(max(right, MARGIN + max(map(_width, self.legend()))) + MARGIN,
                         self.top + len(layers) * (HEIGHT + DOWN) - DOWN + MARGIN)
        for y, text in enumerate(self.legend()):
            self.text(MARGIN, MARGIN + LINE * (y + 0.5), text, INK if y == 0 else FAINT)
        for edge in sorted(self.edges()):
            self.draw_edge(*edge)
        for n in self.box:
            self.draw_box(n)

    def layers(self):
        """Operations by depth: each is below all operations that send it gradients."""
        self.depth = defaultdict(int)
        for n, node in enumerate(self.nodes):  # every node stands before its operands
            for operand in node["operands"]:
                self.depth[operand] = max(self.depth[operand], self.depth[n] + 1)
        layers = defaultdict(list)
        for n, node in enumerate(self.nodes):
            if not node["is_leaf"]:
                layers[self.depth[n]].append(n)
        return [layers[depth] for depth in sorted(layers)]

    def edges(self):
        """(depth above, depth below, node, operand), each once; a leaf stands beside its node."""
        return {(self.depth[n], self.depth[operand], n, operand)
                for n, node in enumerate(self.nodes) for operand in node["operands"]
                if operand >= 0}

    def place(self, layer, y):
        """Places operations from left to right, each with its leaves that have no place yet."""
        x = self.left
        for n in layer:
            self.box[n] = x, y, self.operation, HEIGHT
            x += self.operation + BETWEEN
            leaves = [leaf for leaf in dict.fromkeys(self.nodes[n]["operands"])
                      if leaf >= 0 and self.nodes[leaf]["is_leaf"] and leaf not in self.box]
            for i, leaf in enumerate(leaves):
                width = _width(_lines(self.nodes[leaf])[0])
                self.box[leaf] = (x, y + HEIGHT / 2 + (i - len(leaves) / 2) * (LEAF_HEIGHT + 2) + 1,
                                  width, LEAF_HEIGHT)
            if leaves:
                x += max(self.box[leaf][2] for leaf in leaves) + BETWEEN

    def draw_edge(self, above, below, n, operand):
        x0, y0, width0, height0 = self.box[n]
        x1, y1, width1, height1 = self.box[operand]
        middle0, middle1 = y0 + height0 / 2, y1 + height1 / 2
        if self.nodes[operand]["is_leaf"] and y0 - 1 <= y1 <= y0 + height0 and x1 > x0:
            bend = x1 - BETWEEN / 2
            self._path(f"M{x0 + width0:g} {middle0:g}C{bend:g} {middle0:g} {bend:g} {middle1:g} "
                       f"{x1:g} {middle1:g}m-5 -5l5 5l-5 5", 1.5, GRADIENT)
        elif below == above + 1:
            self._path(f"M{x0 + width0 / 2:g} {y0 + height0:g}L{x1 + width1 / 2:g} {y1:g}"
                       "m-5 -5l5 5l5 -5", 1.5, GRADIENT)
        elif x0 > self.left:  # past what stands below it, on the right
            bend = x0 + width0 + BETWEEN / 3
            self._path(f"M{x0 + width0:g} {middle0:g}H{bend:g}V{y1 - DOWN / 2:g}"
                       f"H{x1 + width1 * 0.75:g}V{y1:g}m-5 -5l5 5l5 -5", 1.5, GRADIENT)
        else:
            bend = x0 - BEND
            self._path(f"M{x0:g} {middle0:g}C{bend:g} {middle0:g} {bend:g} {middle1:g} "
                       f"{x1:g} {middle1:g}m-5 -5l5 5l-5 5", 1.5, GRADIENT)

    def draw_box(self, n):
        node, (x, y, width, height) = self.nodes[n], self.box[n]
        color = LEAF if node["is_leaf"] else KEEPS if node["saved_bytes"] else PLAIN
        self.rectangle(x, y, width, height, color)
        lines = _lines(node)
        for i, line in enumerate(lines):
            self.text(x + PADDING, y + height * (i + 0.5) / len(lines), line, FAINT if i else INK)

    def legend(self):
        kept = sum(node["saved_bytes"] for node in self.nodes)
        operations = sum(not node["is_leaf"] for node in self.nodes)
        return [f"The tape of {self.run['model']}'s loss, batch {self.run['batch']}: {operations} "
                f"operations keep {_bytes(kept)}",
                "From top to bottom: the order of backward. Arrows: where gradients go.",
                "An operation: name, module; shape of its result, what it keeps for backward.",
                "Green: weights and biases, where gradients end."]


def tape_picture(run):
    """The picture of what tools/picture/traced_tape prints."""
    return _Tape(run)
