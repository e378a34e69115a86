// Layers that change only the shape.
#pragma once

#include <utility>

#include "weft/autograd/views.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Joins the dimensions start_dim to end_dim (inclusive): [N,C,H,W] -> [N,C*H*W] by default. Throws
/// Shape.
class Flatten : public Module<Flatten> {
 public:
  explicit Flatten(std::int64_t start_dim = 1, std::int64_t end_dim = -1)
      : start_dim_(start_dim), end_dim_(end_dim) {
    set_description(weft::detail::concat("start_dim=", start_dim, ", end_dim=", end_dim));
  }
  Tensor forward(Tensor x) const { return std::move(x).flatten(start_dim_, end_dim_); }

 private:
  std::int64_t start_dim_, end_dim_;
};

/// Splits dimension `dim` into `sizes` (one entry may be -1): Unflatten(1, {64, 24, 24}). Throws
/// Shape.
class Unflatten : public Module<Unflatten> {
 public:
  Unflatten(std::int64_t dim, const Shape& sizes) : dim_(dim), sizes_(sizes) {
    set_description(weft::detail::concat("dim=", dim, ", unflattened_size=", sizes));
  }
  Tensor forward(Tensor x) const { return std::move(x).unflatten(dim_, sizes_); }

 private:
  std::int64_t dim_;
  Shape sizes_;
};

}  // namespace weft::nn
