// Softmax and its logarithm: the team shares the rows.
#include <algorithm>

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/softmax.h"

namespace weft::cpu {
namespace {

/// Calls f(offset of the first row in bytes, number of rows) for each thread's rows of x.
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
  const SoftmaxLoops& rows = softmax_loops().of(x.dtype);
  const auto f = op == SoftmaxOp::softmax ? rows.softmax : rows.log_softmax;
  for_rows(x, [&](std::int64_t at, std::int64_t count) {
    f(count, x.shape[1], x.as<char>() + at, y.as<char>() + at);
  });
}

void backward(const Stream& stream, SoftmaxOp op, const View& grad_y, const View& y,
              const View& grad_x) {
  if (!is_floating(y.dtype)) throw_unsupported("softmax", stream.device, y.dtype);
  const SoftmaxLoops& rows = softmax_loops().of(y.dtype);
  const auto f = op == SoftmaxOp::softmax ? rows.softmax_grad : rows.log_softmax_grad;
  for_rows(y, [&](std::int64_t at, std::int64_t count) {
    f(count, y.shape[1], grad_y.as<char>() + at, y.as<char>() + at, grad_x.as<char>() + at);
  });
}

}  // namespace

SoftmaxKernels softmax_kernels() { return {.forward = forward, .backward = backward}; }

}  // namespace weft::cpu
