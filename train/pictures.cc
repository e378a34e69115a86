#include "weft/train/pictures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "weft/core/base/error.h"
#include "weft/train/canvas.h"

namespace weft::train {
namespace {

constexpr Color kWhite{255, 255, 255};
constexpr Color kInk{51, 51, 60};
constexpr Color kFaint{140, 140, 150};
constexpr Color kGrid{232, 232, 236};
constexpr std::array<Color, 4> kCurves = {
    {{31, 90, 180}, {214, 96, 20}, {40, 140, 70}, {150, 60, 150}}};

/// Into [0, 1]; NaN, which a diverged model paints, is 0.
double unit(double value) { return value > 0 ? std::min(value, 1.0) : 0; }

Color grey(double value) {
  const auto level = static_cast<std::uint8_t>(std::lround(unit(value) * 255));
  return {level, level, level};
}

/// viridis, by its values at 0, 1/8, ... 1.
Color viridis(double value) {
  constexpr std::array<Color, 9> kStops = {{{68, 1, 84},
                                            {71, 44, 122},
                                            {59, 81, 139},
                                            {44, 113, 142},
                                            {33, 144, 141},
                                            {39, 173, 129},
                                            {92, 200, 99},
                                            {170, 220, 50},
                                            {253, 231, 37}}};
  const double at = unit(value) * (kStops.size() - 1);
  const auto i = std::min<std::size_t>(static_cast<std::size_t>(at), kStops.size() - 2);
  const double t = at - static_cast<double>(i);
  const auto mix = [t](int a, int b) {
    return static_cast<std::uint8_t>(std::lround(a + (b - a) * t));
  };
  const Color a = kStops[i], b = kStops[i + 1];
  return {mix(a.r, b.r), mix(a.g, b.g), mix(a.b, b.b)};
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// A value's place on an axis.
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
  // In a span of many decades, their starts alone; else 1, 2, 5.
  const bool sparse = high / low > 1e3;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double tick = decade * step;
      if (tick >= low * 0.999 && tick <= high * 1.001 && (!sparse || step == 1.0)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

Axis value_axis(std::span<const Curve> curves, double from, double to) {
  double low = INFINITY, high = -INFINITY;
  for (const Curve& curve : curves) {
    for (const double loss : curve.values) {
      if (!std::isfinite(loss)) continue;
      low = std::min(low, loss);
      high = std::max(high, loss);
    }
  }
  if (!(low <= high)) return {0, 1, false, from, to};  // nothing finite
  if (low > 0 && high / low > 20) return {low / 1.1, high * 1.1, true, from, to};
  if (low >= 0 && low < 0.5 * high) low = 0;
  if (low == high) high = low + std::max(std::abs(low), 1.0);
  const double margin = (high - low) * 0.05;
  return {low == 0 ? 0 : low - margin, high + margin, false, from, to};
}

/// Of values that are drawn faintly.
constexpr double kFaintly = 0.28;

/// How many steps on each side of one its mean is over: in all a fiftieth of the run. 0: a run so
/// short that its values are a line by themselves.
std::size_t mean_reach(std::size_t steps) { return steps / 100; }

/// One loss: every value faintly, the mean around each step on top.
void draw_curve(Canvas& canvas, std::span<const double> values, const Axis& x, const Axis& y,
                Color color) {
  const auto drawable = [&](double loss) {
    return std::isfinite(loss) && (!y.logarithmic || loss > 0);
  };
  // Every value: per column of pixels the range it has there, so that 100,000 steps are no slower
  // than 1,000.
  const int left = static_cast<int>(x.from), right = static_cast<int>(x.to);
  const double per_pixel = (x.high - x.low) / (x.to - x.from);
  const std::size_t reach = mean_reach(values.size());
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
    if (low <= high)
      canvas.line(column + 0.5, y.at(low), column + 0.5, y.at(high), 1, color, kFaintly);
  }
  // The mean around each step, so that it does not lag behind; at both ends of what there is.
  std::vector<double> sums = {0}, counts = {0};
  for (const double loss : values) {
    sums.push_back(sums.back() + (drawable(loss) ? loss : 0));
    counts.push_back(counts.back() + (drawable(loss) ? 1 : 0));
  }
  double before_x = 0, before_y = 0;
  bool drawing = false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i - std::min(i, reach), last = std::min(i + reach + 1, values.size());
    const double sum = sums[last] - sums[first], count = counts[last] - counts[first];
    if (count == 0) continue;
    const double at_x = x.at(static_cast<double>(i)), at_y = y.at(sum / count);
    if (drawing && at_x - before_x < 1) continue;
    if (drawing) canvas.line(before_x, before_y, at_x, at_y, 2, color);
    before_x = at_x;
    before_y = at_y;
    drawing = true;
  }
}

/// Two axes and what stands around them.
struct Plot {
  static constexpr int kWidth = 960, kHeight = 540;
  static constexpr int kLeft = 84, kRight = 28, kTop = 56, kBottom = 60;
  Axis x, y;

  void draw(Canvas& canvas, const std::string& title, const std::string& x_name,
            const std::vector<double>& x_ticks) const {
    canvas.text(kLeft, 18, title, kInk);
    for (const double tick :
         y.logarithmic ? log_ticks(y.low, y.high) : axis_ticks(y.low, y.high, 6)) {
      const int at = static_cast<int>(std::lround(y.at(tick)));
      canvas.fill(kLeft, at, kWidth - kLeft - kRight, 1, kGrid);
      const std::string label = number(tick);
      canvas.text(kLeft - 10 - Canvas::text_width(label), at - Canvas::kTextHeight / 2, label,
                  kFaint);
    }
    for (const double tick : x_ticks) {
      const int at = static_cast<int>(std::lround(x.at(tick)));
      canvas.fill(at, kHeight - kBottom, 1, 6, kFaint);
      const std::string label = number(tick);
      canvas.text(at - Canvas::text_width(label) / 2, kHeight - kBottom + 10, label, kFaint);
    }
    canvas.fill(kLeft, kHeight - kBottom, kWidth - kLeft - kRight, 1, kFaint);
    canvas.text((kLeft + kWidth - kRight - Canvas::text_width(x_name)) / 2, kHeight - 26, x_name,
                kInk);
  }
};

struct LegendEntry {
  std::string name;
  Color color;
  double opacity = 1;
};

/// From the right; what has no name needs none.
void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries) {
  constexpr int kSwatch = 26, kSpace = 8;
  int end = Plot::kWidth - Plot::kRight;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->name.empty()) continue;
    end -= Canvas::text_width(entry->name);
    canvas.text(end, 18, entry->name, kInk);
    end -= kSpace;
    const double middle = 18 + Canvas::kTextHeight / 2.0;
    canvas.line(end - kSwatch, middle, end, middle, 3, entry->color, entry->opacity);
    end -= kSwatch + 3 * kSpace;
  }
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    ticks.push_back(i * step + 0.0);  // + 0: no "-0"
  }
  return ticks;
}

io::Image compare_picture(const Tensor& inputs, const Tensor& codes, const Tensor& outputs,
                          int count) {
  WEFT_CHECK(inputs.dim() == 4 && inputs.shape(1) == 1 && outputs.shape() == inputs.shape() &&
                 codes.dim() == 2 && codes.shape(0) == inputs.shape(0) && codes.shape(1) > 0 &&
                 inputs.numel() > 0,
             Shape, "compare_picture", "needs inputs and outputs [N,1,H,W] and codes [N,C], got ",
             inputs.shape(), ", ", outputs.shape(), ", ", codes.shape());
  const int shown = std::min(count, static_cast<int>(inputs.shape(0)));
  const int height = static_cast<int>(inputs.shape(2)), width = static_cast<int>(inputs.shape(3));
  const int cells = static_cast<int>(codes.shape(1));
  const std::vector<double> input = inputs.to_vector<double>(),
                            output = outputs.to_vector<double>();
  const std::vector<double> code = codes.to_vector<double>();

  // 28 pixels times 8 and 32 cells times 7 are both 224.
  const int scale = std::max(224 / width, 1), cell = std::max(width * scale / cells, 1);
  const int column = std::max(width * scale, cells * cell), row = height * scale, strip = 42;
  constexpr int kGap = 22, kEdge = 28, kRowGap = 20;
  const std::array<std::string, 3> labels = {"input", "code (" + std::to_string(cells) + ")",
                                             "reconstruction"};
  int label_width = 0;
  for (const std::string& label : labels) {
    label_width = std::max(label_width, Canvas::text_width(label));
  }
  const int left = kEdge + label_width + kGap;
  const int tops[3] = {kEdge, kEdge + row + kRowGap, kEdge + row + strip + 2 * kRowGap};
  const int heights[3] = {row, strip, row};
  Canvas canvas(left + shown * column + (shown - 1) * kGap + kEdge, tops[2] + row + kEdge, kWhite);
  for (int r = 0; r < 3; ++r) {
    canvas.text(kEdge, tops[r] + (heights[r] - Canvas::kTextHeight) / 2,
                labels[static_cast<std::size_t>(r)], kInk);
  }

  const auto code_end = code.begin() + static_cast<std::ptrdiff_t>(shown) * cells;
  const auto [low, high] = std::minmax_element(code.begin(), code_end);
  const double range = std::max(*high - *low, 1e-30);
  for (int i = 0; i < shown; ++i) {
    const int x = left + i * (column + kGap);
    const auto picture = [&](const std::vector<double>& pixels, int top) {
      const double* pixel = pixels.data() + static_cast<std::ptrdiff_t>(i) * height * width;
      for (int h = 0; h < height; ++h) {
        for (int w = 0; w < width; ++w) {
          canvas.fill(x + w * scale, top + h * scale, scale, scale, grey(*pixel++));
        }
      }
      canvas.frame(x, top, width * scale, row, kGrid);
    };
    picture(input, tops[0]);
    picture(output, tops[2]);
    for (int c = 0; c < cells; ++c) {
      const double value = code[static_cast<std::size_t>(i) * cells + c];
      canvas.fill(x + c * cell, tops[1], cell, strip, viridis((value - *low) / range));
    }
    canvas.frame(x, tops[1], cells * cell, strip, kGrid);
  }
  return canvas.image();
}

io::Image image_grid(const Tensor& images, int columns, const std::string& caption) {
  WEFT_CHECK(
      images.dim() == 4 && (images.shape(1) == 1 || images.shape(1) == 3) && images.numel() > 0,
      Shape, "image_grid", "needs images [N,1,H,W] or [N,3,H,W], got ", images.shape());
  WEFT_CHECK(columns >= 1, InvalidArgument, "image_grid", "needs at least 1 column, got ", columns);
  const int count = static_cast<int>(images.shape(0)), channels = static_cast<int>(images.shape(1));
  const int height = static_cast<int>(images.shape(2)), width = static_cast<int>(images.shape(3));
  constexpr int kGap = 4, kWanted = 96;  // pixels
  const int scale = std::max(kWanted / std::max(height, width), 1);
  const int across = std::min(columns, count), down = (count + columns - 1) / columns;
  const int above = caption.empty() ? 0 : Canvas::kTextHeight + 2 * kGap;
  Canvas canvas(across * (width * scale + kGap) + kGap,
                above + down * (height * scale + kGap) + kGap, kWhite);
  canvas.text(kGap, kGap, caption, kInk);
  const std::vector<double> values = images.to_vector<double>();
  const std::size_t plane = static_cast<std::size_t>(height) * width;
  const auto level = [&](const double* value) { return grey(*value).r; };
  for (int i = 0; i < count; ++i) {
    const int left = kGap + i % columns * (width * scale + kGap);
    const int top = above + kGap + i / columns * (height * scale + kGap);
    const double* value = values.data() + static_cast<std::size_t>(i * channels) * plane;
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x, ++value) {
        const Color color =
            channels == 1 ? grey(*value)
                          : Color{level(value), level(value + plane), level(value + 2 * plane)};
        canvas.fill(left + x * scale, top + y * scale, scale, scale, color);
      }
    }
  }
  return canvas.image();
}

io::Image loss_picture(std::span<const double> losses, const std::string& title) {
  const Curve only{"", losses};
  return loss_picture(std::span(&only, 1), title);
}

io::Image loss_picture(std::span<const Curve> curves, const std::string& title) {
  WEFT_CHECK(!curves.empty(), InvalidArgument, "loss_picture", "no curve to draw");
  Canvas canvas(Plot::kWidth, Plot::kHeight, kWhite);
  std::size_t steps = 0;
  for (const Curve& curve : curves) steps = std::max(steps, curve.values.size());
  const Plot plot{{0, std::max(static_cast<double>(steps) - 1, 1.0), false, Plot::kLeft,
                   Plot::kWidth - Plot::kRight},
                  value_axis(curves, Plot::kHeight - Plot::kBottom, Plot::kTop)};
  std::vector<double> ticks = axis_ticks(plot.x.low, plot.x.high, 8);
  std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });  // no half steps
  plot.draw(canvas, title, "step", ticks);
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const Color color = kCurves[i % kCurves.size()];
    draw_curve(canvas, curves[i].values, plot.x, plot.y, color);
    legend.push_back({curves[i].name, color});
  }
  if (const std::size_t reach = mean_reach(steps); reach > 0) {
    if (curves.size() == 1 && curves[0].name.empty()) {
      legend[0].name = detail::concat("mean of ", 2 * reach + 1, " steps");
    }
    legend.push_back({"each step", kCurves[0], kFaintly});
  }
  draw_legend(canvas, legend);
  return canvas.image();
}

io::Image log_log_picture(std::span<const PointCurve> curves, const std::string& title,
                          const std::string& x_name) {
  WEFT_CHECK(!curves.empty(), InvalidArgument, "log_log_picture", "no curve to draw");
  const auto drawable = [](const std::pair<double, double>& p) {
    return p.first > 0 && p.second > 0 && std::isfinite(p.first) && std::isfinite(p.second);
  };
  Canvas canvas(Plot::kWidth, Plot::kHeight, kWhite);
  std::set<double> xs;
  double low = INFINITY, high = 0;
  for (const PointCurve& curve : curves) {
    for (const auto& point : curve.points) {
      if (!drawable(point)) continue;
      xs.insert(point.first);
      low = std::min(low, point.second);
      high = std::max(high, point.second);
    }
  }
  if (xs.empty()) xs.insert(low = high = 1);
  constexpr double kMargin = 1.15;
  const Plot plot{{*xs.begin() / kMargin, *xs.rbegin() * kMargin, true, Plot::kLeft,
                   Plot::kWidth - Plot::kRight},
                  {low / kMargin, high * kMargin, true, Plot::kHeight - Plot::kBottom, Plot::kTop}};
  plot.draw(canvas, title, x_name, {xs.begin(), xs.end()});
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const Color color = kCurves[i % kCurves.size()];
    const std::pair<double, double>* before = nullptr;
    for (const auto& point : curves[i].points) {
      if (!drawable(point)) continue;
      const double x = plot.x.at(point.first), y = plot.y.at(point.second);
      if (before) canvas.line(plot.x.at(before->first), plot.y.at(before->second), x, y, 2, color);
      canvas.line(x, y, x, y, 7, color);  // a dot
      before = &point;
    }
    legend.push_back({curves[i].name, color});
  }
  draw_legend(canvas, legend);
  return canvas.image();
}

io::Image stacked(std::span<const io::Image> pictures) {
  WEFT_CHECK(!pictures.empty(), Shape, "stacked", "there is no picture");
  io::Image all{pictures[0].width, 0, pictures[0].channels, {}};
  for (const io::Image& picture : pictures) {
    WEFT_CHECK(picture.width == all.width && picture.channels == all.channels, Shape, "stacked",
               "a picture is ", picture.width, " wide and has ", picture.channels,
               " channels, the first ", all.width, " and ", all.channels);
    all.height += picture.height;
    all.pixels.insert(all.pixels.end(), picture.pixels.begin(), picture.pixels.end());
  }
  return all;
}

}  // namespace weft::train
