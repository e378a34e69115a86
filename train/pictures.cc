#include "weft/train/pictures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "weft/core/base/error.h"

namespace weft::train {
namespace {

struct Color {
  std::uint8_t r = 0, g = 0, b = 0;
};
constexpr Color kFrame{232, 232, 236};

/// Limits to [0, 1]; NaN, the output of a diverged model, becomes 0.
double unit(double value) { return value > 0 ? std::min(value, 1.0) : 0; }

Color grey(double value) {
  const auto level = static_cast<std::uint8_t>(std::lround(unit(value) * 255));
  return {level, level, level};
}

/// The viridis colours, interpolated between their values at 0, 1/8, ... 1.
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

io::Image white(int width, int height) {
  return {width, height, 3,
          std::vector<std::uint8_t>(static_cast<std::size_t>(width) * height * 3, 255)};
}

void fill(io::Image& image, int left, int top, int width, int height, Color color) {
  for (int y = top; y < top + height; ++y) {
    std::uint8_t* pixel = &image.pixels[(static_cast<std::size_t>(y) * image.width + left) * 3];
    for (int x = 0; x < width; ++x) {
      *pixel++ = color.r;
      *pixel++ = color.g;
      *pixel++ = color.b;
    }
  }
}

}  // namespace

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

  // With 28 pixels and 32 cells the scales are 8 and 7, and both rows have 224 pixels.
  const int scale = std::max(224 / width, 1), cell = std::max(width * scale / cells, 1);
  const int column = std::max(width * scale, cells * cell), row = height * scale, strip = 42;
  constexpr int kGap = 22, kEdge = 28, kRowGap = 20;
  const int tops[3] = {kEdge, kEdge + row + kRowGap, kEdge + row + strip + 2 * kRowGap};
  io::Image all = white(kEdge + shown * column + (shown - 1) * kGap + kEdge, tops[2] + row + kEdge);

  const auto code_end = code.begin() + static_cast<std::ptrdiff_t>(shown) * cells;
  const auto [low, high] = std::minmax_element(code.begin(), code_end);
  const double range = std::max(*high - *low, 1e-30);
  for (int i = 0; i < shown; ++i) {
    const int x = kEdge + i * (column + kGap);
    // Draws an edge, since an image may be as white as the background.
    const auto frame = [&](int top, int width, int height) {
      fill(all, x - 1, top - 1, width + 2, height + 2, kFrame);
    };
    const auto picture = [&](const std::vector<double>& pixels, int top) {
      frame(top, width * scale, row);
      const double* pixel = pixels.data() + static_cast<std::ptrdiff_t>(i) * height * width;
      for (int h = 0; h < height; ++h) {
        for (int w = 0; w < width; ++w) {
          fill(all, x + w * scale, top + h * scale, scale, scale, grey(*pixel++));
        }
      }
    };
    picture(input, tops[0]);
    picture(output, tops[2]);
    frame(tops[1], cells * cell, strip);
    for (int c = 0; c < cells; ++c) {
      const double value = code[static_cast<std::size_t>(i) * cells + c];
      fill(all, x + c * cell, tops[1], cell, strip, viridis((value - *low) / range));
    }
  }
  return all;
}

io::Image image_grid(const Tensor& images, int columns) {
  WEFT_CHECK(
      images.dim() == 4 && (images.shape(1) == 1 || images.shape(1) == 3) && images.numel() > 0,
      Shape, "image_grid", "needs images [N,1,H,W] or [N,3,H,W], got ", images.shape());
  WEFT_CHECK(columns >= 1, InvalidArgument, "image_grid", "needs at least 1 column, got ", columns);
  const int count = static_cast<int>(images.shape(0)), channels = static_cast<int>(images.shape(1));
  const int height = static_cast<int>(images.shape(2)), width = static_cast<int>(images.shape(3));
  constexpr int kGap = 4, kWanted = 96;  // pixels
  const int scale = std::max(kWanted / std::max(height, width), 1);
  const int across = std::min(columns, count), down = (count + columns - 1) / columns;
  io::Image grid =
      white(across * (width * scale + kGap) + kGap, down * (height * scale + kGap) + kGap);
  const std::vector<double> values = images.to_vector<double>();
  const std::size_t plane = static_cast<std::size_t>(height) * width;
  const auto level = [&](const double* value) { return grey(*value).r; };
  for (int i = 0; i < count; ++i) {
    const int left = kGap + i % columns * (width * scale + kGap);
    const int top = kGap + i / columns * (height * scale + kGap);
    const double* value = values.data() + static_cast<std::size_t>(i * channels) * plane;
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x, ++value) {
        const Color color =
            channels == 1 ? grey(*value)
                          : Color{level(value), level(value + plane), level(value + 2 * plane)};
        fill(grid, left + x * scale, top + y * scale, scale, scale, color);
      }
    }
  }
  return grid;
}

}  // namespace weft::train
