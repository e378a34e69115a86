// Layers that put elements around images.
#pragma once

#include <cstdint>

#include "weft/autograd/copies.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// The numbers of elements to add at each side of an image; one number stands for all four. A
/// negative one takes elements away.
struct Padding2d {
  Padding2d(std::int64_t all) : left(all), right(all), top(all), bottom(all) {}
  Padding2d(std::int64_t l, std::int64_t r, std::int64_t t, std::int64_t b)
      : left(l), right(r), top(t), bottom(b) {}
  std::int64_t left, right, top, bottom;
};

/// x [N,C,H,W] -> [N,C,top+H+bottom,left+W+right] with zeros around x. Throws as weft::pad.
class ZeroPad2d : public Module<ZeroPad2d> {
 public:
  explicit ZeroPad2d(const Padding2d& padding);
  Tensor forward(const Tensor& x) const;

 private:
  Padding2d padding_;
};

/// The same with x mirrored at its edges, which are not repeated.
class ReflectionPad2d : public Module<ReflectionPad2d> {
 public:
  explicit ReflectionPad2d(const Padding2d& padding);
  Tensor forward(const Tensor& x) const;

 private:
  Padding2d padding_;
};

}  // namespace weft::nn
