"""What is in a picture."""
import struct
import unittest.mock
import zlib

from tools.picture.canvas import Canvas


def texts_of(draw):
    """The texts that draw() draws, in that order, and what it returns."""
    texts = []
    true_text = Canvas.text

    def text(canvas, x, y, what, color):
        texts.append(what)
        true_text(canvas, x, y, what, color)
    with unittest.mock.patch.object(Canvas, "text", text):
        result = draw()
    return texts, result


def _predicted(kind, left, above, corner):
    """PNG's filters 0 to 4."""
    if kind == 4:
        p = left + above - corner
        return min((left, above, corner), key=lambda near: abs(p - near))
    return (0, left, above, (left + above) // 2)[kind]


def read_png(path):
    """Width, height and rows of pixels of an RGB picture, by the specification."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length:at + 12 + \
                             length])[0] == zlib.crc32(kind + chunk)
        if kind == b"IHDR":
            width, height, *form = struct.unpack(">IIBBBBB", chunk)
            assert form == [8, 2, 0, 0, 0], form
        elif kind == b"IDAT":
            packed += chunk
        at += 12 + length
    raw, row, rows, above = zlib.decompress(packed), 1 + 3 * width, [], bytes(3 * width)
    for begin in range(0, len(raw), row):
        line = bytearray(raw[begin + 1:begin + row])
        for i, value in enumerate(line):
            left, corner = (line[i - 3], above[i - 3]) if i >= 3 else (0, 0)
            line[i] = (value + _predicted(raw[begin], left, above[i], corner)) & 255
        rows.append([tuple(line[i:i + 3]) for i in range(0, len(line), 3)])
        above = line
    assert len(rows) == height
    return width, height, rows
