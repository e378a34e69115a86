// A random program of weft's public operations: some tensors, and operations on them whose operands
// mostly fit. The program depends only on the seed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/tests/core/draw.h"

namespace weft::testing {

class Program {
 public:
  explicit Program(std::uint64_t seed) : draw(seed) {}

  Draw draw;

  // --- Numbers: the right one, and sometimes one that no caller should pass ----------------------
  std::int64_t number(std::int64_t right);
  double real(double right);
  double real() { return real(double(draw.between(-6, 6)) / 2); }
  std::array<std::int64_t, 2> pair(std::int64_t first, std::int64_t last);
  bool coin() { return draw.one_in(2); }

  // --- Shapes ------------------------------------------------------------------------------------
  /// A size: usually small, sometimes 0.
  std::int64_t size();
  /// Up to about ten thousand elements; rarely some hundred thousand, for several threads.
  Shape shape(int dims);
  Shape shape() { return shape(int(draw.between(0, 4))); }
  /// A dimension of x, possibly counted from the end.
  std::int64_t dim(const Tensor& x);
  std::int64_t dim(int dims);
  /// Some dimensions of x, usually each only once.
  Dims dims(const Tensor& x);

  // --- Tensors -----------------------------------------------------------------------------------
  DType dtype();
  DType floating_dtype() { return draw.of({DType::f32, DType::f32, DType::f64, DType::bf16}); }
  /// A new tensor: with its elements in any order or with gaps in memory, at an end of its storage,
  /// or expanded. Its numbers are small, rarely infinite or NaN. It may require a gradient.
  Tensor make(const Shape& shape, DType dtype);
  /// Like make(); rarely with another shape or dtype, or another tensor of the program.
  Tensor operand(const Shape& shape, DType dtype);
  Tensor like(const Tensor& x) { return operand(x.shape(), x.dtype()); }
  /// A tensor that broadcasts to x's shape, or to which x broadcasts.
  Tensor broadcastable(const Tensor& x, DType dtype);
  /// i64 numbers from 0 to n - 1, rarely others.
  Tensor index(const Shape& shape, std::int64_t n);
  Tensor mask(const Tensor& x) { return broadcastable(x, DType::boolean); }
  /// A tensor of the program, or a new one.
  Tensor any();
  Tensor any_floating();
  /// A floating tensor with that many dimensions.
  Tensor floating(int dims);
  Tensor images() { return floating(4); }
  /// A new tensor, which usually requires a gradient.
  Tensor leaf();
  /// A tensor without a gradient, to be written in place.
  Tensor target() { return any().detach(); }
  /// Undefined in one of three cases.
  Tensor optional(const Shape& shape, DType dtype);

  /// Runs one operation, checks its results and keeps them. Returns whether the operation had a
  /// result; an Error is not one.
  bool step(const struct Operation& operation);
  /// Computes the gradients of everything.
  void finish();

 private:
  void fill(const Tensor& x);
  void keep(const Tensor& x);
  void perhaps_backward(const Tensor& x);

  std::vector<Tensor> tensors_;
};

struct Operation {
  const char* name;
  std::vector<Tensor> (*call)(Program& p);
};

/// All operations, by kind.
std::span<const std::span<const Operation>> rooms();

}  // namespace weft::testing
