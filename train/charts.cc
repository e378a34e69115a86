#include "weft/train/charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "weft/core/base/error.h"

namespace weft::train {
namespace {

using detail::concat;

constexpr const char* kInk = "#33333c";
constexpr const char* kFaint = "#6e6e78";
constexpr const char* kGrid = "#e8e8ec";
constexpr std::array<const char*, 6> kCurves = {"#1f5ab4", "#d66014", "#288c46",
                                                "#963c96", "#b8232f", "#1498a8"};

constexpr int kWidth = 720, kHeight = 420;
constexpr int kLeft = 72, kRight = 24, kTop = 66, kBottom = 58;
constexpr int kFontSize = 15;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// A coordinate, rounded to a tenth of a pixel.
std::string pixel(double value) { return number(std::round(value * 10) / 10); }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // XML allows no control characters
  }
  return out;
}

std::string text_at(double x, double y, const char* anchor, const char* color,
                    const std::string& text) {
  return concat("<text x=\"", pixel(x), "\" y=\"", pixel(y), "\" text-anchor=\"", anchor,
                "\" fill=\"", color, "\">", escaped(text), "</text>\n");
}

/// An SVG path element from `commands`; empty without commands.
std::string path(const std::string& commands, const char* color, double thickness,
                 double opacity = 1) {
  if (commands.empty()) return {};
  return concat("<path d=\"", commands, "\" stroke=\"", color, "\" stroke-width=\"", thickness,
                "\" stroke-opacity=\"", opacity, "\"/>\n");
}

std::string move_to(double x, double y) { return concat('M', pixel(x), ' ', pixel(y)); }

/// Whether a value is drawn. Sums of larger ones, and the length of an axis, may not fit f64.
bool is_drawn(double value) { return std::abs(value) <= 1e300; }

/// Maps values to places on an axis.
struct Axis {
  double low, high;
  bool logarithmic;
  double from, to;  // pixels

  double at(double value) const {
    const auto f = [this](double v) { return logarithmic ? std::log(v) : v; };
    return from + (f(value) - f(low)) / (f(high) - f(low)) * (to - from);
  }
};

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  // On a span of many decades, ticks only at powers of ten, or at every second one, third one ...;
  // else at 1, 2 and 5 times these. The axis has room for about 12.
  const double decades = std::log10(high) - std::log10(low);
  const bool sparse = decades > 3;
  const int apart = 1 + static_cast<int>(decades / 12);
  // By their exponents, since the decade of the least numbers of f64 is 0 there.
  for (int decade = static_cast<int>(std::floor(std::log10(low))); std::pow(10, decade) <= high;
       ++decade) {
    if (decade % apart != 0) continue;
    for (const double step : {1.0, 2.0, 5.0}) {
      const double tick = std::pow(10, decade) * step;
      if (tick >= low * 0.999 && tick <= high * 1.001 && (!sparse || step == 1.0)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks.size() < 3 ? axis_ticks(low, high, 4) : ticks;  // too short for such steps
}

Axis value_axis(std::span<const Curve> curves, double from, double to) {
  double low = INFINITY, high = -INFINITY;
  for (const Curve& curve : curves) {
    for (const double loss : curve.values) {
      if (!is_drawn(loss)) continue;
      low = std::min(low, loss);
      high = std::max(high, loss);
    }
  }
  if (!(low <= high)) return {0, 1, false, from, to};  // nothing to draw
  if (low > 0 && high / low > 20) return {low / 1.1, high * 1.1, true, from, to};
  if (low >= 0 && low < 0.5 * high) low = 0;
  // Values that differ in their last bits are drawn like equal ones.
  const double most = std::max(std::abs(low), std::abs(high));
  if (high - low <= 1e-12 * most) high = low + std::max(std::abs(low), 1.0);
  const double margin = (high - low) * 0.05;
  return {low == 0 ? 0 : low - margin, high + margin, false, from, to};
}

/// The opacity of values that are drawn faintly.
constexpr double kFaintly = 0.28;

/// The number of steps on each side over which the mean at a step is taken: together a fiftieth of
/// the run. 0: the run is so short that the values themselves make a line.
std::size_t mean_reach(std::size_t steps) { return steps / 100; }

/// A line through the added points, with gaps where leave_gap() is called.
class Line {
 public:
  void add(double x, double y) {
    // Begins with a line to the point itself: so a point between two gaps is a dot.
    if (!drawing_) commands_ += move_to(x, y);
    commands_ += concat('L', pixel(x), ' ', pixel(y));
    drawing_ = true;
  }
  void leave_gap() { drawing_ = false; }
  const std::string& commands() const { return commands_; }

 private:
  std::string commands_;
  bool drawing_ = false;
};

/// One loss: every value faintly, and the mean around each step on top.
std::string curve(std::span<const double> values, const Axis& x, const Axis& y, const char* color) {
  const auto drawable = [&](double loss) { return is_drawn(loss) && (!y.logarithmic || loss > 0); };
  // Every value: draws the range of the values in each column of pixels, so that 100,000 steps need
  // no more text than 1,000.
  const int left = static_cast<int>(x.from), right = static_cast<int>(x.to);
  const double per_pixel = (x.high - x.low) / (x.to - x.from);
  const std::size_t reach = mean_reach(values.size());
  std::string ranges;
  for (int column = left; reach > 0 && column < right; ++column) {
    const auto first = static_cast<std::size_t>((column - left) * per_pixel);
    const auto last =
        std::min(static_cast<std::size_t>((column + 1 - left) * per_pixel) + 1, values.size());
    double low = INFINITY, high = -INFINITY;
    for (std::size_t i = first; i < last; ++i) {
      if (!drawable(values[i])) continue;
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
    }
    if (low <= high) ranges += move_to(column + 0.5, y.at(low)) + 'V' + pixel(y.at(high));
  }
  // The mean of the steps on both sides, so that it does not lag behind; fewer near the ends.
  std::vector<double> counts = {0};
  for (const double loss : values) counts.push_back(counts.back() + (drawable(loss) ? 1 : 0));
  // Not a difference of two sums from the beginning: after one huge loss these have no other
  // digits.
  const auto sum_of = [&](std::size_t first, std::size_t last) {
    double sum = 0;
    for (; first < last; ++first) sum += drawable(values[first]) ? values[first] : 0;
    return sum;
  };
  Line means;
  double before_x = -INFINITY;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i - std::min(i, reach), last = std::min(i + reach + 1, values.size());
    const double count = counts[last] - counts[first];
    const double at_x = x.at(static_cast<double>(i));
    if (count == 0) {
      means.leave_gap();
    } else if (at_x - before_x >= 1) {
      means.add(at_x, y.at(sum_of(first, last) / count));
      before_x = at_x;
    }
  }
  return path(ranges, color, 1, kFaintly) + path(means.commands(), color, 2);
}

Axis x_axis(double low, double high, bool logarithmic) {
  return {low, high, logarithmic, kLeft, kWidth - kRight};
}

/// Two axes with numbers and names.
std::string frame(const Axis& x, const Axis& y, const std::vector<double>& x_ticks,
                  const std::string& title, const std::string& x_name) {
  constexpr double kBase = kHeight - kBottom;
  std::string out = text_at(kLeft, 24, "start", kInk, title);
  for (const double tick :
       y.logarithmic ? log_ticks(y.low, y.high) : axis_ticks(y.low, y.high, 6)) {
    out += path(concat(move_to(kLeft, y.at(tick)), 'H', kWidth - kRight), kGrid, 1);
    out += text_at(kLeft - 10, y.at(tick) + kFontSize / 3.0, "end", kFaint, number(tick));
  }
  for (const double tick : x_ticks) {
    out += path(move_to(x.at(tick), kBase) + "v6", kFaint, 1);
    out += text_at(x.at(tick), kBase + 22, "middle", kFaint, number(tick));
  }
  out += path(concat(move_to(kLeft, kBase), 'H', kWidth - kRight), kFaint, 1);
  return out + text_at((kLeft + kWidth - kRight) / 2.0, kHeight - 12, "middle", kInk, x_name);
}

struct LegendEntry {
  std::string name;
  const char* color;
  double opacity = 1;
};

/// Curves without names get no legend.
std::string legend(const std::vector<LegendEntry>& entries) {
  constexpr double kY = 48, kSwatch = 24, kSpace = 8;
  constexpr double kCharacter = 0.6 * kFontSize;  // in a wide font
  std::string out;
  double x = kLeft;
  for (const LegendEntry& entry : entries) {
    if (entry.name.empty()) continue;
    out +=
        path(concat(move_to(x, kY - kFontSize / 3.0), 'h', kSwatch), entry.color, 3, entry.opacity);
    x += kSwatch + kSpace;
    out += text_at(x, kY, "start", kInk, entry.name);
    x += kCharacter * static_cast<double>(entry.name.size()) + 2 * kSpace;
  }
  return out;
}

/// A complete SVG file.
std::string svg(int height, const std::string& drawing) {
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, ' ', height,
                "\" width=\"", kWidth, "\" height=\"", height, "\" font-size=\"", kFontSize,
                "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" fill=\"none\" "
                "stroke-linecap=\"round\" stroke-linejoin=\"round\">\n"
                "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                drawing, "</svg>\n");
}

std::string drawn(const LogLogChart& chart) {
  WEFT_CHECK(!chart.curves.empty(), InvalidArgument, "log_log_picture", "no curve to draw");
  const auto drawable = [](const std::pair<double, double>& p) {
    return p.first > 0 && p.second > 0 && is_drawn(p.first) && is_drawn(p.second);
  };
  std::set<double> xs;
  double low = INFINITY, high = 0;
  for (const PointCurve& curve : chart.curves) {
    for (const auto& point : curve.points) {
      if (!drawable(point)) continue;
      xs.insert(point.first);
      low = std::min(low, point.second);
      high = std::max(high, point.second);
    }
  }
  if (xs.empty()) xs.insert(low = high = 1);
  constexpr double kMargin = 1.15;
  const Axis x = x_axis(*xs.begin() / kMargin, *xs.rbegin() * kMargin, true);
  const Axis y = {low / kMargin, high * kMargin, true, kHeight - kBottom, kTop};
  std::string out =
      frame(x, y, {xs.begin(), xs.end()}, chart.title, chart.x_name + ", logarithmic");
  constexpr int kNameX = 16, kMiddle = (kTop + kHeight - kBottom) / 2;
  out += concat("<g transform=\"rotate(-90 ", kNameX, ' ', kMiddle, ")\">",
                text_at(kNameX, kMiddle, "middle", kInk, chart.y_name + ", logarithmic"), "</g>\n");
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.curves.size(); ++i) {
    const char* const color = kCurves[i % kCurves.size()];
    Line line, dots;
    for (const auto& point : chart.curves[i].points) {
      if (!drawable(point)) continue;
      line.add(x.at(point.first), y.at(point.second));
      dots.add(x.at(point.first), y.at(point.second));
      dots.leave_gap();
    }
    out += path(line.commands(), color, 2) + path(dots.commands(), color, 7);
    entries.push_back({chart.curves[i].name, color});
  }
  return out + legend(entries);
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    const double tick = i * step + 0.0;                 // + 0: no "-0"
    if (!ticks.empty() && tick <= ticks.back()) break;  // from 2^53 on i + 1 may be i
    ticks.push_back(tick);
  }
  return ticks;
}

std::string loss_picture(std::span<const double> losses, const std::string& title) {
  const Curve only{"", losses};
  return loss_picture(std::span(&only, 1), title);
}

std::string loss_picture(std::span<const Curve> curves, const std::string& title) {
  WEFT_CHECK(!curves.empty(), InvalidArgument, "loss_picture", "no curve to draw");
  std::size_t steps = 0;
  for (const Curve& curve : curves) steps = std::max(steps, curve.values.size());
  const Axis x = x_axis(0, std::max(static_cast<double>(steps) - 1, 1.0), false);
  const Axis y = value_axis(curves, kHeight - kBottom, kTop);
  std::vector<double> ticks = axis_ticks(x.low, x.high, 8);
  std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });  // no half steps
  std::string out = frame(x, y, ticks, title, "step");
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const char* const color = kCurves[i % kCurves.size()];
    out += curve(curves[i].values, x, y, color);
    entries.push_back({curves[i].name, color});
  }
  if (const std::size_t reach = mean_reach(steps); reach > 0) {
    if (curves.size() == 1 && curves[0].name.empty()) {
      entries[0].name = concat("mean of ", 2 * reach + 1, " steps");
    }
    entries.push_back({"each step", kCurves[0], kFaintly});
  }
  return svg(kHeight, out + legend(entries));
}

std::string log_log_picture(std::span<const LogLogChart> charts) {
  std::string out;
  int height = 0;
  for (const LogLogChart& chart : charts) {
    out += concat("<g transform=\"translate(0 ", height, ")\">\n", drawn(chart), "</g>\n");
    height += kHeight;
  }
  return svg(height, out);
}

}  // namespace weft::train
