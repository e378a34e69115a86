// A random program over weft's public operations: some tensors, and operations on them whose
// operands mostly fit. What a program does depends on its seed alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/tests/core/draw.h"

namespace weft::testing {

class Program {
 public:
  explicit Program(std::uint64_t seed) : draw(seed) {}

  Draw draw;

  // --- Numbers: the right one, and sometimes one that no caller should give. ---------------------
  std::int64_t number(std::int64_t right);
  double real(double right);
  double real() { return real(double(draw.between(-6, 6)) / 2); }
  std::array<std::int64_t, 2> pair(std::int64_t first, std::int64_t last);
  bool coin() { return draw.one_in(2); }

  // --- Shapes ------------------------------------------------------------------------------------
  /// A size, small as a rule, sometimes 0.
  std::int64_t size();
  /// Of up to some ten thousand elements; rarely of some hundred thousand, for several threads.
  Shape shape(int dims);
  Shape shape() { return shape(int(draw.between(0, 4))); }
  /// A dimension of x, also counted from the end.
  std::int64_t dim(const Tensor& x);
  std::int64_t dim(int dims);
  /// Some of them, each once as a rule.
  Dims dims(const Tensor& x);

  // --- Tensors -----------------------------------------------------------------------------------
  DType dtype();
  DType floating_dtype() { return draw.of({DType::f32, DType::f32, DType::f64, DType::bf16}); }
  /// A new one: with the elements in any order or with gaps in memory, at an end of its storage, or
  /// expanded; of small numbers, rarely also of infinite ones and NaN; perhaps with a gradient.
  Tensor make(const Shape& shape, DType dtype);
  /// As make; rarely of another shape or dtype, or another tensor of the program.
  Tensor operand(const Shape& shape, DType dtype);
  Tensor like(const Tensor& x) { return operand(x.shape(), x.dtype()); }
  /// Something that broadcasts to x's shape, or makes x broadcast.
  Tensor broadcastable(const Tensor& x, DType dtype);
  /// i64 numbers from 0 to n - 1, rarely others.
  Tensor index(const Shape& shape, std::int64_t n);
  Tensor mask(const Tensor& x) { return broadcastable(x, DType::boolean); }
  /// A tensor of the program, or a new one.
  Tensor any();
  Tensor any_floating();
  /// With that many dimensions, floating.
  Tensor floating(int dims);
  Tensor images() { return floating(4); }
  /// New, with a gradient as a rule.
  Tensor leaf();
  /// Without a gradient, to be written in place.
  Tensor target() { return any().detach(); }
  /// Undefined in one of three cases.
  Tensor optional(const Shape& shape, DType dtype);

  /// Does one operation, checks its results, and keeps them. Returns whether the operation gave
  /// one; an Error is no result.
  bool step(const struct Operation& operation);
  /// Gradients of all that is there.
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

/// All of them, by kind.
std::span<const std::span<const Operation>> rooms();

}  // namespace weft::testing
