#!/usr/bin/env python3
"""Writes font_data.inc: ASCII of DejaVu Sans at 15 pixels, 16 levels of grey.

    make_font.py DejaVuSans.ttf > font_data.inc        (needs Pillow; made with 13.0.0, DejaVu 2.37)

One line per character: advance, left, top, width, height, then the pixels row by row, one hexadecimal
digit each. DejaVu fonts are free: https://dejavu-fonts.github.io/License.html
"""
import sys

from PIL import Image, ImageDraw, ImageFont

SIZE = 15


def glyph(font, char):
    advance = round(font.getlength(char))
    left, top, right, bottom = font.getbbox(char)
    if right <= left or bottom <= top:
        return f'{{{advance}, 0, 0, 0, 0, ""}},'
    image = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(image).text((-left, -top), char, fill=255, font=font)
    digits = "".join(f"{round(value / 17):x}" for value in image.tobytes())
    return f'{{{advance}, {left}, {top}, {image.width}, {image.height}, "{digits}"}},'


font = ImageFont.truetype(sys.argv[1], SIZE)
print("// Written by make_font.py from DejaVu Sans; one line per character from ' ' to '~'.")
for code in range(32, 127):
    char = chr(code)
    print(f"{glyph(font, char)}  // {char if char != chr(92) else 'backslash'}")
