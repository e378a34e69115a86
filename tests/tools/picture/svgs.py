"""What is in an SVG picture."""
from collections import namedtuple
from xml.etree import ElementTree

Rectangle = namedtuple("Rectangle", "x y width height color")


def _elements(svg, kind):
    return ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}" + kind)


def texts_of(svg):
    """The texts of the picture, in its order."""
    return [text.text for text in _elements(svg, "text")]


def rectangles_of(svg):
    return [Rectangle(*(float(each.get(key)) for key in ("x", "y", "width", "height")),
                      each.get("fill")) for each in _elements(svg, "rect")]


def color_at(svg, x, y):
    """That of the last rectangle there."""
    return [each.color for each in rectangles_of(svg)
            if each.x <= x < each.x + each.width and each.y <= y < each.y + each.height][-1]
