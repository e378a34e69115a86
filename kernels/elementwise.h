// Kernels of the element-wise operations.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// The scalar operands of an operation, for example the two bounds of clamp.
struct UnaryParams {
  double a = 0;
  double b = 0;
};

/// A tensor, or a part of one, and where it is copied to.
struct CopyPair {
  View x, y;
};

// Their values are in kernels/elementwise_list.h.
enum class UnaryOp : std::uint8_t;
enum class BinaryOp : std::uint8_t;
enum class CompareOp : std::uint8_t;

/// All views of a call have the same shape and any strides; a broadcast operand has stride 0. They
/// have one dtype, except in copy, in compare, whose y is boolean, and for the condition of where.
/// An output may be the same view as an input (in place), but must not overlap it in any other way.
struct ElementwiseKernels {
  void (*unary)(const Stream&, UnaryOp, UnaryParams, const View& x, const View& y);
  /// saved: x or y, according to the functor's `saves`; empty for Saves::nothing.
  void (*unary_backward)(const Stream&, UnaryOp, UnaryParams, const View& grad_y, const View& saved,
                         const View& grad_x);
  void (*binary)(const Stream&, BinaryOp, const View& a, const View& b, const View& y);
  /// grad = dL/da, or dL/db if of_b, in y's shape. The caller sums over broadcast dimensions.
  void (*binary_backward)(const Stream&, BinaryOp, bool of_b, const View& grad_y, const View& a,
                          const View& b, const View& grad);
  void (*compare)(const Stream&, CompareOp, const View& a, const View& b, const View& y);
  /// y = condition ? a : b; condition is boolean.
  void (*where)(const Stream&, const View& condition, const View& a, const View& b, const View& y);
  /// y = x, converted to y's dtype as by element_cast (core/base/dtype.h). x may also have negative
  /// strides.
  void (*copy)(const Stream&, const View& x, const View& y);
  /// The same for each of the pairs, none of which writes what another one reads or writes. The
  /// shapes and dtypes of the pairs may differ.
  void (*copy_all)(const Stream&, std::span<const CopyPair> pairs);
  /// y = value, converted in the same way.
  void (*fill)(const Stream&, double value, const View& y);
  /// y += alpha * x, floating dtypes only. Gradients are added with it.
  void (*add_scaled)(const Stream&, double alpha, const View& x, const View& y);
  /// y[i] = start + i * step, y 1-D.
  void (*arange)(const Stream&, double start, double step, const View& y);
};

}  // namespace weft
