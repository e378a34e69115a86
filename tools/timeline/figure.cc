#include "weft/tools/timeline/figure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "weft/core/base/error.h"
#include "weft/train/pictures.h"

namespace weft::timeline {
namespace {

using weft::detail::concat;

constexpr double kWidth = 1160, kMargin = 12, kRight = 108, kCharacter = 6.8;
constexpr double kBarHeight = 24, kRowHeight = 30, kPanelHead = 30, kAxisHeight = 26,
                 kPanelGap = 16;
constexpr double kLine = 20;
constexpr std::size_t kLongestName = 24;

// Follows the reader's choice of light or dark; paper is white.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark;
        --ground: #fff; --ink: #24242c; --faint: #6a6a74; --grid: #dedee4; --row: #f4f4f7 }
@media screen and (prefers-color-scheme: dark) {
  :root { --ground: #16161b; --ink: #e6e6ec; --faint: #a2a2ae; --grid: #36363f; --row: #202027 }
}
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink) }
svg .strong { font-weight: 600; font-size: 13px }
svg .faint { fill: var(--faint) }
svg text.bar { font-size: 11px; text-anchor: middle; pointer-events: none }
svg .grid { stroke: var(--grid) }
svg .row { fill: var(--row) }
svg .ground { fill: var(--ground) }
)";

constexpr const char* kPageStyle = R"(
@page { size: A4 landscape; margin: 12mm }
body { margin: 0 auto; padding: 16px; max-width: 1400px;
       background: var(--ground); color: var(--ink);
       font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif }
h1 { font-size: 19px; line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere }
p { margin: 0; overflow-wrap: anywhere }
.legend { margin: 8px 0 }
.legend span { display: inline-block; margin-right: 16px; white-space: nowrap }
.legend svg { width: 16px; height: 14px; vertical-align: -2px; margin-right: 5px }
.picture { overflow-x: auto }
.picture svg { display: block; width: 100%; min-width: 1000px; height: auto }
rect.bar:hover { stroke: var(--ink); stroke-width: 2 }
#hover { position: fixed; display: none; padding: 6px 9px; max-width: 380px;
         white-space: pre-line; font-size: 13px; pointer-events: none;
         background: var(--ground); border: 1px solid var(--faint); border-radius: 4px }
@media print { body { padding: 0; max-width: none;
                      -webkit-print-color-adjust: exact; print-color-adjust: exact }
               .picture { overflow: visible } .picture svg { min-width: 0 }
               #hover { display: none !important } }
)";

constexpr const char* kScript = R"(
const box = document.getElementById('hover');
for (const bar of document.querySelectorAll('rect.bar')) {
  const title = bar.querySelector('title');
  if (!title) continue;
  bar.dataset.hover = title.textContent;
  title.remove();
}
document.addEventListener('pointermove', show);
document.addEventListener('pointerdown', show);
function show(event) {
  const text = event.target.dataset?.hover;
  box.style.display = text ? 'block' : 'none';
  if (!text) return;
  box.textContent = text;
  const right = document.documentElement.clientWidth - box.offsetWidth - 8;
  const below = window.innerHeight > event.clientY + 16 + box.offsetHeight;
  box.style.left = Math.max(0, Math.min(event.clientX + 12, right)) + 'px';
  box.style.top = (below ? event.clientY + 16 : event.clientY - box.offsetHeight - 8) + 'px';
}
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      // XML knows no other control characters.
      default: out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return out;
}

// Of UTF-8, whose further bytes are 10xxxxxx.
std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string shortened(std::string text) {
  if (characters(text) <= kLongestName) return text;
  while (characters(text) >= kLongestName) text.pop_back();
  while (!text.empty() && (text.back() & 0xC0) == 0x80) text.pop_back();
  return text + "...";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string paint(const Color& color, bool dashed) {
  const auto hsl = [&](int lightness) {
    return concat("hsl(", color.hue, ", ", color.saturation, "%, ", lightness, "%)");
  };
  std::string attributes = concat(" fill=\"", hsl(color.lightness), '"');
  if (dashed) attributes += concat(" stroke=\"", hsl(40), "\" stroke-dasharray=\"3 2\"");
  return attributes;
}

class Drawing {
 public:
  explicit Drawing(const Figure& figure) : figure_(figure), end_(figure.end()) {
    std::size_t longest = 0;
    for (const Panel& panel : figure.panels) {
      for (const Row& row : panel.rows) {
        longest = std::max(longest, characters(shortened(row.name)));
      }
    }
    left_ = kMargin + kCharacter * static_cast<double>(longest + 1);
  }

  std::string draw(bool with_head) {
    if (with_head) draw_head();
    for (const Panel& panel : figure_.panels) draw_panel(panel);
    const double height = y_ - kPanelGap, left = with_head ? 0 : kMargin;
    const std::string size = concat(" width=\"", kWidth - left, "\" height=\"", height, '"');
    return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"", left, " 0 ",
                  kWidth - left, ' ', height, '"', size, " role=\"img\">\n",
                  with_head ? concat("<style>", kStyle, "</style>\n<rect class=\"ground\"", size,
                                     " fill=\"#fff\"/>\n")
                            : "",
                  out_, "</svg>\n");
  }

 private:
  double at(double seconds) const { return left_ + seconds / end_ * (kWidth - left_ - kRight); }

  void text(double x, double y, const char* kind, const std::string& what) {
    if (what.empty()) return;
    out_ += concat("<text x=\"", number(x), "\" y=\"", number(y), "\" class=\"", kind, "\">",
                   escaped(what), "</text>\n");
  }

  void draw_head() {
    y_ = 26;
    text(kMargin, y_, "strong", figure_.title);
    for (const std::string& fact : figure_.facts) text(kMargin, y_ += kLine, "", fact);
    y_ += kLine;
    double x = kMargin;
    for (const Key& key : figure_.legend) {
      const double width = 24 + kCharacter * static_cast<double>(characters(key.name) + 2);
      if (x > kMargin && x + width > kWidth) x = kMargin, y_ += kLine;
      out_ += concat("<rect x=\"", x, "\" y=\"", y_ - 11, "\" width=\"16\" height=\"13\"",
                     paint(key.color, key.dashed), "/>\n");
      text(x + 22, y_, "", key.name);
      x += width;
    }
    y_ += 12;
  }

  void draw_panel(const Panel& panel) {
    text(kMargin, y_ + 18, "strong", panel.title);
    y_ += kPanelHead;
    const double bottom = y_ + kRowHeight * static_cast<double>(panel.rows.size());
    for (std::size_t r = 0; r < panel.rows.size(); ++r) {
      out_ += concat("<rect class=\"row\" fill=\"#f4f4f7\" x=\"", number(left_), "\" y=\"",
                     y_ + kRowHeight * static_cast<double>(r), "\" width=\"",
                     number(kWidth - left_ - kRight), "\" height=\"", kBarHeight, "\"/>\n");
    }
    for (const double tick : train::axis_ticks(0, end_ * 1e3, 10)) {
      const std::string x = number(at(tick / 1e3));
      out_ += concat("<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", y_, "\" y2=\"",
                     bottom, "\"/>\n");
      out_ += concat("<text x=\"", x, "\" y=\"", bottom + 12,
                     "\" class=\"faint\" text-anchor=\"middle\">", tick, "</text>\n");
    }
    text(at(end_) + 22, bottom + 12, "faint", "ms");
    for (const Row& row : panel.rows) {
      text(kMargin, y_ + 16, "", shortened(row.name));
      for (const Bar& bar : row.bars) draw_bar(bar);
      text(at(end_) + 6, y_ + 16, "faint", row.note);
      y_ += kRowHeight;
    }
    y_ = bottom + kAxisHeight + kPanelGap;
  }

  void draw_bar(const Bar& bar) {
    const double x = at(bar.begin), width = at(bar.end) - x;
    out_ += concat("<rect class=\"bar\" x=\"", number(x), "\" y=\"", y_, "\" width=\"",
                   number(width), "\" height=\"", kBarHeight, '"', paint(bar.color, bar.dashed),
                   "><title>", escaped(bar.hover), "</title></rect>\n");
    if (bar.text.empty() || kCharacter * static_cast<double>(characters(bar.text)) + 1 > width)
      return;
    out_ += concat("<text class=\"bar\" x=\"", number(x + width / 2), "\" y=\"", y_ + 16,
                   "\" style=\"fill: ", bar.color.lightness < 55 ? "#fff" : "#1c1c22", "\">",
                   escaped(bar.text), "</text>\n");
  }

  const Figure& figure_;
  const double end_;
  double left_ = 0, y_ = 0;
  std::string out_;
};

}  // namespace

double Figure::end() const {
  double last = 0;
  for (const Panel& panel : panels) {
    for (const Row& row : panel.rows) {
      for (const Bar& bar : row.bars) last = std::max(last, bar.end);
    }
  }
  return last;
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f ms",
                ms < 0.9995   ? 3
                : ms < 9.995  ? 2
                : ms < 999.95 ? 1
                              : 0,
                ms);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

std::string svg(const Figure& figure) { return Drawing(figure).draw(true); }

std::string html(const Figure& figure) {
  std::string facts, legend;
  for (const std::string& fact : figure.facts) facts += "<p>" + escaped(fact) + "</p>\n";
  for (const Key& key : figure.legend) {
    legend += concat("<span><svg><rect x=\"1\" y=\"1\" width=\"14\" height=\"12\"",
                     paint(key.color, key.dashed), "/></svg>", escaped(key.name), "</span>\n");
  }
  return concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
      escaped(figure.title), "</title>\n<style>", kStyle, kPageStyle,
      "</style>\n</head>\n<body>\n<h1>", escaped(figure.title), "</h1>\n", facts,
      "<div class=\"legend\">\n", legend, "</div>\n<div class=\"picture\">\n",
      Drawing(figure).draw(false), "</div>\n<div id=\"hover\"></div>\n<script>", kScript,
      "</script>\n</body>\n</html>\n");
}

}  // namespace weft::timeline
