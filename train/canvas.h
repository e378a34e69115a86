// Drawing: rectangles, smooth lines and text on an RGB picture.
#pragma once

#include <cstdint>
#include <string_view>

#include "weft/io/png.h"

namespace weft::train {

struct Color {
  std::uint8_t r = 0, g = 0, b = 0;
};

/// x goes to the right, y down, (0, 0) is the corner of the first pixel. Drawings are cut off at
/// the picture's edges.
class Canvas {
 public:
  Canvas(int width, int height, Color background);

  int width() const { return image_.width; }
  int height() const { return image_.height; }
  const io::Image& image() const { return image_; }

  void fill(int x, int y, int width, int height, Color color, double opacity = 1);
  /// A line around a rectangle, one pixel wide, just outside it.
  void frame(int x, int y, int width, int height, Color color);
  /// Smooth, with round ends.
  void line(double x0, double y0, double x1, double y1, double thickness, Color color,
            double opacity = 1);
  /// ASCII; (x, y) is the upper left corner. Other bytes show as '?'.
  void text(int x, int y, std::string_view text, Color color);

  static int text_width(std::string_view text);
  static constexpr int kTextHeight = 18;

 private:
  void blend(int x, int y, Color color, double opacity);

  io::Image image_;
};

}  // namespace weft::train
