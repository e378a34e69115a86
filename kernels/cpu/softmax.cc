// Softmax and its logarithm: rows are shared out over the team.
#include <algorithm>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/families.h"

namespace weft::cpu {
namespace {

/// f(first row's offset in bytes, number of rows) for each thread's rows of x.
template <class F>
void for_rows(const View& x, F&& f) {
  const std::int64_t n = x.shape[1];
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  const std::int64_t grain = std::max<std::int64_t>(kCostlyGrain / n, 1);
  parallel_for(x.shape[0], grain, [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) f(begin * n * bytes, end - begin);
  });
}

void forward(const Stream& stream, SoftmaxOp op, const View& x, const View& y) {
  if (!is_floating(x.dtype)) throw_unsupported("softmax", stream.device, x.dtype);
  const SoftmaxRows& rows = simd().of(x.dtype).softmax;
  const auto f = op == SoftmaxOp::softmax ? rows.softmax : rows.log_softmax;
  for_rows(x, [&](std::int64_t at, std::int64_t count) {
    f(count, x.shape[1], x.as<char>() + at, y.as<char>() + at);
  });
}

void backward(const Stream& stream, SoftmaxOp op, const View& grad_y, const View& y,
              const View& grad_x) {
  if (!is_floating(y.dtype)) throw_unsupported("softmax", stream.device, y.dtype);
  const SoftmaxRows& rows = simd().of(y.dtype).softmax;
  const auto f = op == SoftmaxOp::softmax ? rows.softmax_grad : rows.log_softmax_grad;
  for_rows(y, [&](std::int64_t at, std::int64_t count) {
    f(count, y.shape[1], grad_y.as<char>() + at, y.as<char>() + at, grad_x.as<char>() + at);
  });
}

}  // namespace
}  // namespace weft::cpu

namespace weft {

SoftmaxKernels cpu_softmax_kernels() {
  return {.forward = cpu::forward, .backward = cpu::backward};
}

}  // namespace weft
