#include "weft/data/transforms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/data/resample.h"

namespace weft::data {
namespace {

void check_size(const char* op, int height, int width) {
  WEFT_CHECK(height >= 1 && width >= 1, InvalidArgument, op, "needs a size of at least 1 x 1, got ",
             height, " x ", width);
}

void check_padding(const char* op, int padding) {
  WEFT_CHECK(padding >= 0, InvalidArgument, op, "padding is ", padding, ", needs at least 0");
}

/// Checks the size of a picture before it is made.
void check_bytes(const char* op, const Picture& picture, std::int64_t height, std::int64_t width) {
  WEFT_CHECK(width <= kMostPictureBytes / picture.channels() / height, Shape, op, "a picture of ",
             height, " x ", width, " and ", picture.channels(), " channels takes more than ",
             kMostPictureBytes, " bytes");
}

/// torch.randint(0, n)
int draw_below(Generator& generator, int n) {
  return static_cast<int>(generator.random32() % static_cast<std::uint32_t>(n));
}

/// torch.empty(1).uniform_(low, high)
float draw_uniform(Generator& generator, double low, double high) {
  float value = 0;
  generator.uniform({&value, 1}, low, high);
  return value;
}

/// The window of height x width at (top, left); black outside the picture.
void crop(Picture& picture, int top, int left, int height, int width) {
  if (top == 0 && left == 0 && height == picture.height && width == picture.width) return;
  const auto depth = static_cast<std::size_t>(picture.depth);
  const std::size_t row_bytes = static_cast<std::size_t>(width) * depth;
  picture.spare.resize(row_bytes * static_cast<std::size_t>(height) *
                       static_cast<std::size_t>(picture.planes));
  const int begin = std::clamp(-left, 0, width);  // the columns inside the picture
  const int end = std::clamp(picture.width - left, begin, width);
  const std::size_t before = static_cast<std::size_t>(begin) * depth;
  const std::size_t inside = static_cast<std::size_t>(end - begin) * depth;
  std::uint8_t* out = picture.spare.data();
  for (int plane = 0; plane < picture.planes; ++plane) {
    const std::uint8_t* in =
        picture.pixels.data() + static_cast<std::size_t>(plane) * picture.plane_bytes();
    for (int y = top; y < top + height; ++y, out += row_bytes) {
      if (y < 0 || y >= picture.height || inside == 0) {
        std::memset(out, 0, row_bytes);
        continue;
      }
      std::memset(out, 0, before);
      std::memcpy(out + before,
                  in + static_cast<std::size_t>(y) * picture.row_bytes() +
                      static_cast<std::size_t>(left + begin) * depth,
                  inside);
      std::memset(out + before + inside, 0, row_bytes - before - inside);
    }
  }
  picture.take_spare(height, width);
}

void flip(Picture& picture) {
  const auto depth = static_cast<std::size_t>(picture.depth);
  const std::size_t row_bytes = picture.row_bytes();
  const std::size_t rows = static_cast<std::size_t>(picture.planes) * picture.height;
  for (std::size_t i = 0; i < rows; ++i) {
    std::uint8_t* row = picture.pixels.data() + i * row_bytes;
    if (depth == 1) {
      std::reverse(row, row + row_bytes);
      continue;
    }
    std::uint8_t* last = row + row_bytes - depth;
    for (std::uint8_t* first = row; first < last; first += depth, last -= depth) {
      std::swap_ranges(first, first + depth, last);
    }
  }
}

}  // namespace

void Compose::operator()(Picture& picture, Generator& generator) const {
  for (const Transform& transform : transforms_) transform(picture, generator);
}

RandomCrop::RandomCrop(int height, int width, int padding)
    : height_(height), width_(width), padding_(padding) {
  check_size("random_crop", height, width);
  check_padding("random_crop", padding);
}

void RandomCrop::operator()(Picture& picture, Generator& generator) const {
  // In 64 bits; after the check of the larger side they fit in 32.
  const std::int64_t border = 2 * std::int64_t{padding_};
  const std::int64_t spare_rows = picture.height + border - height_;
  const std::int64_t spare_columns = picture.width + border - width_;
  WEFT_CHECK(std::max(picture.height, picture.width) + border <= kMostPictureBytes, Shape,
             "random_crop", "padding ", padding_, " makes a side of more than ", kMostPictureBytes,
             " points");
  WEFT_CHECK(spare_rows >= 0 && spare_columns >= 0, Shape, "random_crop", "a picture of ",
             picture.height, " x ", picture.width, " with padding ", padding_, " has no window of ",
             height_, " x ", width_);
  check_bytes("random_crop", picture, height_, width_);
  // torchvision draws nothing if there is only one place.
  if (spare_rows == 0 && spare_columns == 0)
    return crop(picture, -padding_, -padding_, height_, width_);
  const int top = draw_below(generator, static_cast<int>(spare_rows) + 1);
  const int left = draw_below(generator, static_cast<int>(spare_columns) + 1);
  crop(picture, top - padding_, left - padding_, height_, width_);
}

Pad::Pad(int padding) : padding_(padding) { check_padding("pad", padding); }

void Pad::operator()(Picture& picture, Generator&) const {
  const std::int64_t border = 2 * std::int64_t{padding_};
  const std::int64_t height = picture.height + border, width = picture.width + border;
  check_bytes("pad", picture, height, width);
  crop(picture, -padding_, -padding_, static_cast<int>(height), static_cast<int>(width));
}

RandomHorizontalFlip::RandomHorizontalFlip(double p) : p_(p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, "random_horizontal_flip",
             "p is a probability, got ", p);
}

void RandomHorizontalFlip::operator()(Picture& picture, Generator& generator) const {
  // PyTorch compares in f32, too.
  if (draw_uniform(generator, 0, 1) < static_cast<float>(p_)) flip(picture);
}

Resize::Resize(int height, int width) : height_(height), width_(width) {
  check_size("resize", height, width);
}

Resize::Resize(int size) : height_(size), width_(0) { check_size("resize", size, size); }

void Resize::operator()(Picture& picture, Generator&) const {
  std::int64_t height = height_, width = width_;
  if (width == 0) {
    const auto in_proportion = [&](int longer, int shorter) {
      return std::int64_t{height_} * longer / shorter;
    };
    width = height_;
    if (picture.width < picture.height) {
      height = in_proportion(picture.height, picture.width);
    } else {
      width = in_proportion(picture.width, picture.height);
    }
  }
  check_bytes("resize", picture, height, width);
  resample(picture, static_cast<int>(height), static_cast<int>(width));
}

CenterCrop::CenterCrop(int height, int width) : height_(height), width_(width) {
  check_size("center_crop", height, width);
}

void CenterCrop::operator()(Picture& picture, Generator&) const {
  WEFT_CHECK(picture.height >= height_ && picture.width >= width_, Shape, "center_crop",
             "a picture of ", picture.height, " x ", picture.width, " has no window of ", height_,
             " x ", width_, "; Resize it first");
  // Halves are rounded to even, as by Python's round().
  const auto middle = [](int n) { return static_cast<int>(std::nearbyint(n / 2.0)); };
  crop(picture, middle(picture.height - height_), middle(picture.width - width_), height_, width_);
}

RandomResizedCrop::RandomResizedCrop(int height, int width, Range scale, Range ratio)
    : height_(height), width_(width), scale_(scale), ratio_(ratio) {
  constexpr const char* kOp = "random_resized_crop";
  check_size(kOp, height, width);
  const auto valid = [](const Range& range) { return range.low > 0 && range.low <= range.high; };
  WEFT_CHECK(valid(scale), InvalidArgument, kOp, "scale needs 0 < low <= high, got ", scale.low,
             " to ", scale.high);
  WEFT_CHECK(valid(ratio), InvalidArgument, kOp, "ratio needs 0 < low <= high, got ", ratio.low,
             " to ", ratio.high);
}

void RandomResizedCrop::operator()(Picture& picture, Generator& generator) const {
  check_bytes("random_resized_crop", picture, height_, width_);
  const double area = static_cast<double>(picture.height) * picture.width;
  // torchvision computes logarithms and exponentials in f32.
  const float log_low = std::log(static_cast<float>(ratio_.low));
  const float log_high = std::log(static_cast<float>(ratio_.high));
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * draw_uniform(generator, scale_.low, scale_.high);
    const double ratio = std::exp(draw_uniform(generator, log_low, log_high));
    const double width = std::nearbyint(std::sqrt(wanted * ratio));
    const double height = std::nearbyint(std::sqrt(wanted / ratio));
    if (width < 1 || width > picture.width || height < 1 || height > picture.height) continue;
    const int w = static_cast<int>(width), h = static_cast<int>(height);
    const int top = draw_below(generator, picture.height - h + 1);
    const int left = draw_below(generator, picture.width - w + 1);
    crop(picture, top, left, h, w);
    return resample(picture, height_, width_);
  }
  int w = picture.width, h = picture.height;
  const double ratio = static_cast<double>(w) / h;
  if (ratio < ratio_.low) {
    h = std::max(1, static_cast<int>(std::nearbyint(w / ratio_.low)));
  } else if (ratio > ratio_.high) {
    w = std::max(1, static_cast<int>(std::nearbyint(h * ratio_.high)));
  }
  crop(picture, (picture.height - h) / 2, (picture.width - w) / 2, h, w);
  resample(picture, height_, width_);
}

}  // namespace weft::data
