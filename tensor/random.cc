// Random tensors. Values are drawn in row-major order for every layout, as PyTorch draws them for a
// contiguous tensor of the same shape.
#include <cmath>

#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft {
namespace raw {

using namespace internal;

namespace {

// A replay draws new numbers, and those of the recomputation would differ from those of the
// forward.
void check_not_recomputed_in_capture(const char* op) {
  if (thread_state().recomputing) {
    graph::check_not_capturing(op, "random numbers inside autograd::checkpoint");
  }
}

Generator& generator_for(Device device, Generator* given) {
  return given ? *given : default_generator(device);
}

// Calls draw(tensor) with y itself or, if the kernel cannot write y, with a row-major tensor of
// `dtype` that is then copied into y. Memory is allocated first, so that nothing has been drawn if
// there is none.
template <class Draw>
void draw_into(const Tensor& y, DType dtype, Draw draw) {
  const bool direct = y.is_contiguous() && y.dtype() == dtype;
  const Tensor target = direct ? y : allocate(y.shape(), dtype, y.device());
  if (direct) y.storage()->bump_version();
  draw(target);
  if (!direct) copy_(y, target);
}

void uniform_fill(const char* op, const Tensor& y, double from, double to, Generator* given) {
  check_floating(op, "the tensor", y);
  WEFT_CHECK(from <= to && std::isfinite(to - from), InvalidArgument, op,
             "needs from <= to, both finite, got ", from, " and ", to);
  check_holds(op, from, y.dtype());
  check_holds(op, to, y.dtype());
  check_writable(op, y);
  if (y.numel() == 0) return;
  check_not_recomputed_in_capture(op);
  const Span span("op", op);
  const DType dtype = y.dtype() == DType::bf16 ? DType::f32 : y.dtype();
  const Device device = y.device();
  Generator& generator = generator_for(device, given);
  const auto run = kernel(device, &KernelTable::random, &RandomKernels::uniform, op, dtype);
  draw_into(y, dtype, [&](const Tensor& target) {
    run(current_stream(device), generator, from, to, target.view_of());
  });
}

void normal_fill(const char* op, const Tensor& y, double mean, double std, Generator* given) {
  check_floating(op, "the tensor", y);
  WEFT_CHECK(std >= 0, InvalidArgument, op, "needs std >= 0, got ", std);
  check_writable(op, y);
  if (y.numel() == 0) return;
  check_not_recomputed_in_capture(op);
  const Span span("op", op);
  const DType dtype = y.dtype() == DType::bf16 ? DType::f32 : y.dtype();
  const Device device = y.device();
  Generator& generator = generator_for(device, given);
  const auto run = kernel(device, &KernelTable::random, &RandomKernels::normal, op, dtype);
  draw_into(y, dtype, [&](const Tensor& target) {
    run(current_stream(device), generator, mean, std, target.view_of());
  });
}

void bernoulli_fill(const char* op, const Tensor& y, double p, Generator* given) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, op, "needs a probability in [0, 1], got ", p);
  check_writable(op, y);
  if (y.numel() == 0) return;
  check_not_recomputed_in_capture(op);
  const Span span("op", op);
  const Device device = y.device();
  Generator& generator = generator_for(device, given);
  const auto run = kernel(device, &KernelTable::random, &RandomKernels::bernoulli, op, y.dtype());
  draw_into(y, y.dtype(), [&](const Tensor& target) {
    run(current_stream(device), generator, p, target.view_of());
  });
}

}  // namespace

const Tensor& uniform_(const Tensor& y, double from, double to) {
  uniform_fill("uniform_", y, from, to, nullptr);
  return y;
}

const Tensor& normal_(const Tensor& y, double mean, double std) {
  normal_fill("normal_", y, mean, std, nullptr);
  return y;
}

const Tensor& bernoulli_(const Tensor& y, double p) {
  bernoulli_fill("bernoulli_", y, p, nullptr);
  return y;
}

namespace {

void check_spread(const Tensor& std) {
  internal::check_floating("normal", "std", std);
  const bool negative = std.device().is_cpu() && std.numel() > 0 && any(lt(std, 0.0)).item<bool>();
  WEFT_CHECK(!negative, InvalidArgument, "normal",
             "std: an element is negative, expected 0 or more");
}

Tensor drawn(const Shape& shape, const Tensor& like, double std, Generator* generator) {
  Tensor y = empty(shape, {like.dtype(), like.device()});
  normal_fill("normal", y, 0, std, generator);
  return y;
}

}  // namespace

Tensor normal(const Tensor& mean, const Tensor& std, Generator* generator) {
  internal::check_same_device("normal", "mean", mean, "std", std);
  internal::check_floating("normal", "mean", mean);
  check_spread(std);
  const Tensor y = drawn(broadcast_shapes(mean.shape(), std.shape(), "normal"), mean, 1, generator);
  binary_(BinaryOp::mul, y, std);
  return binary_(BinaryOp::add, y, mean);
}

Tensor normal(const Tensor& mean, double std, Generator* generator) {
  internal::check_floating("normal", "mean", mean);
  return binary_(BinaryOp::add, drawn(mean.shape(), mean, std, generator), mean);
}

Tensor normal(double mean, const Tensor& std, Generator* generator) {
  internal::check_defined("normal", "std", std);
  check_spread(std);
  const Tensor y = drawn(std.shape(), std, 1, generator);
  binary_(BinaryOp::mul, y, std);
  return add_(y, mean);
}

}  // namespace raw

Tensor rand(const Shape& shape, const TensorOptions& options, Generator* generator) {
  Tensor y = empty(shape, options);
  raw::uniform_fill("rand", y, 0, 1, generator);
  return y;
}

Tensor randn(const Shape& shape, const TensorOptions& options, Generator* generator) {
  Tensor y = empty(shape, options);
  raw::normal_fill("randn", y, 0, 1, generator);
  return y;
}

Tensor normal(double mean, double std, const Shape& shape, const TensorOptions& options,
              Generator* generator) {
  Tensor y = empty(shape, options);
  raw::normal_fill("normal", y, mean, std, generator);
  return y;
}

Tensor uniform(const Shape& shape, double from, double to, const TensorOptions& options,
               Generator* generator) {
  Tensor y = empty(shape, options);
  raw::uniform_fill("uniform", y, from, to, generator);
  return y;
}

Tensor bernoulli(const Shape& shape, double p, const TensorOptions& options, Generator* generator) {
  Tensor y = empty(shape, options);
  raw::bernoulli_fill("bernoulli", y, p, generator);
  return y;
}

Tensor rand_like(const Tensor& x, Generator* generator) {
  Tensor y = empty_like(x);
  raw::uniform_fill("rand_like", y, 0, 1, generator);
  return y;
}

Tensor randn_like(const Tensor& x, Generator* generator) {
  Tensor y = empty_like(x);
  raw::normal_fill("randn_like", y, 0, 1, generator);
  return y;
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape,
               const TensorOptions& options, Generator* generator) {
  WEFT_CHECK(low < high, InvalidArgument, "randint", "needs low < high, got ", low, " and ", high);
  const DType dtype = options.dtype.value_or(DType::i64);
  const auto holds = [&](std::int64_t value) {
    switch (dtype) {
      case DType::u8: return value >= 0 && value <= 255;
      case DType::i32: return value == static_cast<std::int32_t>(value);
      case DType::boolean: return value == 0 || value == 1;
      default: return true;
    }
  };
  WEFT_CHECK(holds(low) && holds(high - 1), InvalidArgument, "randint", "a tensor of ", dtype,
             " does not hold all of ", low, " to ", high - 1);
  Tensor y = empty(shape, options.or_dtype(dtype));
  if (y.numel() == 0) return y;
  raw::check_not_recomputed_in_capture("randint");
  Generator& from = raw::generator_for(y.device(), generator);
  // PyTorch's random_from_to: from 2^28 on one draw of 32 bits would not be uniform enough, since
  // the range does not divide 2^32.
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  std::vector<std::int64_t> values(static_cast<std::size_t>(y.numel()));
  for (std::int64_t& v : values) {
    const std::uint64_t drawn = range >= (1u << 28) ? from.random64() : from.random32();
    v = static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + drawn % range);
  }
  raw::copy_(y, from_vector(values, shape, Device()));
  return y;
}

Tensor randperm(std::int64_t n, const TensorOptions& options, Generator* generator) {
  WEFT_CHECK(n >= 0, InvalidArgument, "randperm", "negative length ", n);
  Tensor y = empty({n}, options.or_dtype(DType::i64));
  if (n > 0) raw::check_holds("randperm", static_cast<double>(n - 1), y.dtype());
  const Device device = y.device();
  if (!device.is_cpu() && generator == &default_generator(device)) {
    // Two of n keys of 53 bits are equal with a probability of n^2 / 2^54; they keep their order.
    return raw::copy_(y, raw::argsort(rand({n}, {DType::f64, device}, generator)));
  }
  raw::copy_(
      y, from_vector((generator ? *generator : default_generator()).randperm(n), {n}, Device()));
  return y;
}

}  // namespace weft
