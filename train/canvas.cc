#include "weft/train/canvas.h"

#include <algorithm>
#include <cmath>

namespace weft::train {
namespace {

struct Glyph {
  int advance, left, top, width, height;
  const char* pixels;  // hexadecimal digits, row by row
};

constexpr Glyph kGlyphs[] = {
#include "weft/train/font_data.inc"
};

const Glyph& glyph_of(char c) { return kGlyphs[(c < ' ' || c > '~' ? '?' : c) - ' ']; }

int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

}  // namespace

Canvas::Canvas(int width, int height, Color background) {
  image_.width = width;
  image_.height = height;
  image_.channels = 3;
  image_.pixels.resize(static_cast<std::size_t>(width) * height * 3);
  fill(0, 0, width, height, background);
}

void Canvas::blend(int x, int y, Color color, double opacity) {
  if (x < 0 || y < 0 || x >= image_.width || y >= image_.height) return;
  std::uint8_t* pixel = &image_.pixels[(static_cast<std::size_t>(y) * image_.width + x) * 3];
  const std::uint8_t target[3] = {color.r, color.g, color.b};
  for (int c = 0; c < 3; ++c) {
    pixel[c] = static_cast<std::uint8_t>(std::lround(pixel[c] + (target[c] - pixel[c]) * opacity));
  }
}

void Canvas::fill(int x, int y, int width, int height, Color color, double opacity) {
  for (int j = std::max(y, 0); j < std::min(y + height, image_.height); ++j) {
    for (int i = std::max(x, 0); i < std::min(x + width, image_.width); ++i) {
      blend(i, j, color, opacity);
    }
  }
}

void Canvas::frame(int x, int y, int width, int height, Color color) {
  fill(x - 1, y - 1, width + 2, 1, color);
  fill(x - 1, y + height, width + 2, 1, color);
  fill(x - 1, y, 1, height, color);
  fill(x + width, y, 1, height, color);
}

void Canvas::line(double x0, double y0, double x1, double y1, double thickness, Color color,
                  double opacity) {
  if (!std::isfinite(x0 + y0 + x1 + y1)) return;
  const double reach = thickness / 2 + 1;
  const double dx = x1 - x0, dy = y1 - y0, length2 = dx * dx + dy * dy;
  const auto first = [](double v) { return static_cast<int>(std::floor(v)); };
  const int left = std::max(first(std::min(x0, x1) - reach), 0);
  const int right = std::min(first(std::max(x0, x1) + reach), image_.width - 1);
  const int top = std::max(first(std::min(y0, y1) - reach), 0);
  const int bottom = std::min(first(std::max(y0, y1) + reach), image_.height - 1);
  for (int y = top; y <= bottom; ++y) {
    for (int x = left; x <= right; ++x) {
      // How much of the pixel is covered, from its centre's distance to the segment.
      const double px = x + 0.5 - x0, py = y + 0.5 - y0;
      const double t = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0;
      const double distance = std::hypot(px - t * dx, py - t * dy);
      const double cover = std::clamp(thickness / 2 + 0.5 - distance, 0.0, 1.0);
      if (cover > 0) blend(x, y, color, cover * opacity);
    }
  }
}

void Canvas::text(int x, int y, std::string_view text, Color color) {
  for (const char c : text) {
    const Glyph& glyph = glyph_of(c);
    for (int j = 0; j < glyph.height; ++j) {
      for (int i = 0; i < glyph.width; ++i) {
        const int level = digit(glyph.pixels[j * glyph.width + i]);
        if (level > 0) blend(x + glyph.left + i, y + glyph.top + j, color, level / 15.0);
      }
    }
    x += glyph.advance;
  }
}

int Canvas::text_width(std::string_view text) {
  int width = 0;
  for (const char c : text) width += glyph_of(c).advance;
  return width;
}

}  // namespace weft::train
