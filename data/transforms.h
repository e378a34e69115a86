// Changing pictures on their way into a batch: torchvision's transforms, on bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "weft/core/rng.h"
#include "weft/io/image.h"

namespace weft::data {

/// A picture in the making: `planes` planes of height x width points of `depth` bytes each. Decoded
/// files are one plane of 3 bytes per point, CIFAR's images three planes of one.
struct Picture {
  int height = 0;
  int width = 0;
  int planes = 1;
  int depth = 3;
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t>
      spare;  ///< for the next version of the pixels, so that none is allocated

  int channels() const { return planes * depth; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(width) * depth; }
  std::size_t plane_bytes() const { return row_bytes() * static_cast<std::size_t>(height); }

  /// Takes over an image's pixels and gives it this picture's old ones.
  void swap(io::Image& image);
  /// `spare` becomes the pixels, of this size.
  void take_spare(int new_height, int new_width);
};

/// Changes a picture; what is random comes from the generator. A data set seeds it for every sample
/// with the epoch's seed + the sample's index (ImageFormat), so that the result depends neither on
/// the number of workers nor on the batch size.
using Transform = std::function<void(Picture&, Generator&)>;

/// One after the other.
class Compose {
 public:
  explicit Compose(std::vector<Transform> transforms) : transforms_(std::move(transforms)) {}
  void operator()(Picture& picture, Generator& generator) const;

 private:
  std::vector<Transform> transforms_;
};

/// A window of height x width at a random place of the picture, around which `padding` black points
/// have been put on each side. As torchvision's for the same generator. Throws Shape for a picture
/// that is too small even so, InvalidArgument for a size below 1 and a padding below 0.
class RandomCrop {
 public:
  RandomCrop(int height, int width, int padding);
  explicit RandomCrop(int size, int padding = 0) : RandomCrop(size, size, padding) {}
  void operator()(Picture& picture, Generator& generator) const;

 private:
  int height_, width_, padding_;
};

/// Adds `padding` black points on each side. Throws InvalidArgument for a padding below 0.
class Pad {
 public:
  explicit Pad(int padding);
  void operator()(Picture& picture, Generator& generator) const;

 private:
  int padding_;
};

/// Left becomes right with probability p. As torchvision's for the same generator. Throws
/// InvalidArgument for p outside 0 to 1.
class RandomHorizontalFlip {
 public:
  explicit RandomHorizontalFlip(double p = 0.5);
  void operator()(Picture& picture, Generator& generator) const;

 private:
  double p_;
};

/// height x width, or the shorter side `size` and the other in proportion (rounded down): Pillow's
/// bilinear filter, which averages when it shrinks, in Pillow's fixed-point arithmetic and so bit
/// for bit. Throws InvalidArgument for a size below 1.
class Resize {
 public:
  Resize(int height, int width);
  explicit Resize(int size);
  void operator()(Picture& picture, Generator& generator) const;

 private:
  int height_, width_;  // width_ 0: height_ is that of the shorter side
};

/// The middle height x width of the picture, which must be that large (Shape).
class CenterCrop {
 public:
  CenterCrop(int height, int width);
  explicit CenterCrop(int size) : CenterCrop(size, size) {}
  void operator()(Picture& picture, Generator& generator) const;

 private:
  int height_, width_;
};

struct Range {
  double low, high;
};

/// A random part of the picture, `scale` of its area and with width / height in `ratio`
/// (log-uniform), resized to height x width as Resize does. As torchvision's for the same
/// generator: after ten parts that do not fit, the largest in the middle whose ratio is allowed.
/// Throws InvalidArgument for a size below 1 and for ranges that are empty or not positive.
class RandomResizedCrop {
 public:
  RandomResizedCrop(int height, int width, Range scale = {0.08, 1.0},
                    Range ratio = {3.0 / 4.0, 4.0 / 3.0});
  explicit RandomResizedCrop(int size, Range scale = {0.08, 1.0},
                             Range ratio = {3.0 / 4.0, 4.0 / 3.0})
      : RandomResizedCrop(size, size, scale, ratio) {}
  void operator()(Picture& picture, Generator& generator) const;

 private:
  int height_, width_;
  Range scale_, ratio_;
};

/// (x - mean) / std for every channel, x being 0 to 1; done last, when the bytes become floats.
/// None given: x itself.
struct Normalize {
  std::vector<float> mean = {};
  std::vector<float> std = {};
};

}  // namespace weft::data
