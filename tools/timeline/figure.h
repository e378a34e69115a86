// Bars in rows on an axis of time, as an SVG picture or a page around one.
#pragma once

#include <string>
#include <vector>

namespace weft::timeline {

/// As HSL has it: degrees, and percent.
struct Color {
  int hue = 0, saturation = 55, lightness = 50;
};

struct Bar {
  double begin = 0, end = 0;  ///< seconds
  Color color;
  std::string text;   ///< in the bar, where there is room
  std::string hover;  ///< lines
  bool dashed = false;
};

struct Row {
  std::string name;
  std::string note;  ///< behind the row, short
  std::vector<Bar> bars;
};

struct Panel {
  std::string title;
  std::vector<Row> rows;
};

struct Key {
  std::string name;
  Color color;
  bool dashed = false;
};

struct Figure {
  std::string title;
  std::vector<std::string> facts;  ///< lines
  std::vector<Key> legend;
  std::vector<Panel> panels;  ///< below each other, with one scale

  /// Of the last bar.
  double end() const;
};

/// "12.3 ms", of seconds.
std::string milliseconds(double seconds);
/// "12.3 %", of a share.
std::string percent(double share);

/// Well-formed whatever the texts are. Readable on light and dark ground.
std::string svg(const Figure& figure);
/// A page that needs nothing else: shows `hover` beside the pointer.
std::string html(const Figure& figure);

}  // namespace weft::timeline
