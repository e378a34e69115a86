// Transforms that change pictures on their way into a batch: torchvision's, on bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/data/picture.h"

namespace weft::data {

/// Changes a picture; random numbers come from the generator. Transforms of this file throw Shape
/// if the picture would have more than kMostPictureBytes. A data set seeds the generator for every
/// sample with the epoch's seed + the sample's index (ImageFormat), so the result depends neither
/// on the number of workers nor on the batch size.
using Transform = std::function<void(Picture&, Generator&)>;

/// Applies transforms one after the other.
class Compose {
 public:
  explicit Compose(std::vector<Transform> transforms) : transforms_(std::move(transforms)) {}
  void operator()(Picture& picture, Generator& generator) const;

 private:
  std::vector<Transform> transforms_;
};

/// Adds `padding` black points on each side of the picture and takes a window of height x width at
/// a random place. The same as torchvision's for the same generator. Throws Shape for a picture
/// that is too small even with the padding, InvalidArgument for a size below 1 or a padding below
/// 0.
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

/// Mirrors the picture left to right with probability p. The same as torchvision's for the same
/// generator. Throws InvalidArgument for p outside [0, 1].
class RandomHorizontalFlip {
 public:
  explicit RandomHorizontalFlip(double p = 0.5);
  void operator()(Picture& picture, Generator& generator) const;

 private:
  double p_;
};

/// Resizes the picture to height x width; with one `size`, the shorter side gets it and the other
/// follows in proportion (rounded down). Uses Pillow's bilinear filter, which averages when it
/// shrinks, in Pillow's fixed-point arithmetic: the result is bit for bit the same. Throws
/// InvalidArgument for a size below 1.
class Resize {
 public:
  Resize(int height, int width);
  explicit Resize(int size);
  void operator()(Picture& picture, Generator& generator) const;

 private:
  int height_, width_;  // width_ 0: height_ is the length of the shorter side
};

/// Takes the central height x width of the picture. Throws Shape for a smaller picture,
/// InvalidArgument for a size below 1.
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

/// Takes a random part of the picture and resizes it to height x width like Resize. The part has a
/// fraction of the area from the range `scale` and a width / height from `ratio` (log-uniform). The
/// same as torchvision's for the same generator: after ten parts that do not fit, it takes the
/// largest central part with an allowed ratio. Throws InvalidArgument for a size below 1 and for
/// ranges that are empty or not positive.
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

/// (x - mean) / std for every channel, where x is 0 to 1. Applied last, when the bytes become
/// floats. Without values x is not changed.
struct Normalize {
  std::vector<float> mean = {};
  std::vector<float> std = {};
};

}  // namespace weft::data
