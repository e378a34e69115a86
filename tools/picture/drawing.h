// What the pictures have in common.
#pragma once

#include <string_view>

#include "weft/train/canvas.h"

namespace weft::picture {

inline constexpr train::Color kWhite{255, 255, 255}, kInk{51, 51, 60}, kFaint{140, 140, 150},
    kGrid{232, 232, 236};

inline void text_centred(train::Canvas& canvas, int middle, int y, std::string_view text,
                         train::Color color) {
  canvas.text(middle - train::Canvas::text_width(text) / 2, y, text, color);
}

/// To the right.
inline void arrow(train::Canvas& canvas, double from, double y, double to, train::Color color) {
  constexpr double kHead = 6, kThickness = 2.5;
  canvas.line(from, y, to, y, kThickness, color);
  canvas.line(to - kHead, y - kHead, to, y, kThickness, color);
  canvas.line(to - kHead, y + kHead, to, y, kThickness, color);
}

}  // namespace weft::picture
