#!/usr/bin/env python3
"""Writes small JPEG and PNG files of every kind, and pictures.safetensors: what Pillow makes of each.

Needs Pillow, numpy and safetensors. The JPEG files are also seeds of tests/fuzz/jpeg_fuzz.cc.
"""
import io
import os
import struct
import zlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
W, H = 21, 18

rng = np.random.default_rng(7)
y, x = np.mgrid[0:H, 0:W]
# Slopes and edges with a little noise, so that all frequencies occur.
rgb = np.stack([x * 12, y * 14, 255 - x * y * 255 // (W * H)], 2) + 40 * ((x // 5 + y // 4) % 2)[..., None]
rgb = np.clip(rgb + rng.integers(-9, 10, rgb.shape), 0, 255).astype(np.uint8)
alpha = (x * 12).astype(np.uint8)
picture = Image.fromarray(rgb)
expected = {}


def put(name, data, pixels=None):
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(data)
    if pixels is None:
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert pixels.shape == (H, W, 3), (name, pixels.shape)
    expected[name] = np.ascontiguousarray(pixels)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


exif = Image.Exif()
exif[0x0112] = 6  # orientation: rotated by 90 degrees
put("420.jpg", saved(picture, "JPEG", quality=90, subsampling="4:2:0"))
put("422.jpg", saved(picture, "JPEG", quality=80, subsampling="4:2:2"))
put("444.jpg", saved(picture, "JPEG", quality=95, subsampling="4:4:4"))
put("grey.jpg", saved(picture.convert("L"), "JPEG"))
put("progressive.jpg", saved(picture, "JPEG", progressive=True))
put("restart.jpg", saved(picture, "JPEG", restart_marker_blocks=1))
put("cmyk.jpg", saved(picture.convert("CMYK"), "JPEG"))
put("turned.jpg", saved(picture, "JPEG", exif=exif))

quantized = picture.quantize(16)
put("rgb.png", saved(picture, "PNG"))
put("rgba.png", saved(Image.fromarray(np.dstack([rgb, alpha])), "PNG"))
put("grey.png", saved(picture.convert("L"), "PNG"))
put("grey_alpha.png", saved(Image.merge("LA", [picture.convert("L"), Image.fromarray(alpha)]), "PNG"))
put("bilevel.png", saved(picture.convert("1"), "PNG"))
put("palette.png", saved(picture.quantize(200), "PNG"))
put("palette4.png", saved(quantized, "PNG", bits=4))
put("palette_transparent.png", saved(quantized, "PNG", transparency=3))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth, color, passes, interlaced=0):
    """passes: lists of rows of bytes, unfiltered."""
    raw = b"".join(b"\0" + row for rows in passes for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, depth, color, 0, 0, interlaced))
            + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def rows(a):
    return [a[i].tobytes() for i in range(len(a))]


# Pillow writes neither of these formats. It reads the first one as here, but clips 16-bit grey.
deep = (rgb.astype(">u2") * 256 + rng.integers(0, 256, rgb.shape)).astype(">u2")
put("rgb16.png", png(16, 2, [rows(deep)]))
put("grey16.png", png(16, 0, [rows(deep[..., 0])]), np.repeat(rgb[..., :1], 3, 2))
adam7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
put("interlaced.png", png(8, 2, [rows(rgb[r::dr, c::dc]) for r, c, dr, dc in adam7], 1), rgb)

save_file(expected, os.path.join(HERE, "pictures.safetensors"))
