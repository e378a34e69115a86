// Optimiser updates: the slots of all parameters count as one long array, which the team shares
// equally.
#include <algorithm>
#include <array>
#include <cmath>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/loops/optim.h"
#include "weft/kernels/cpu/loops/reduce.h"

namespace weft::cpu {
namespace {

/// Small: an update uses several arrays per element and computes roots and quotients.
constexpr std::int64_t kOptimGrain = 8192;

std::int64_t total_elements(std::span<const OptimSlot> slots) {
  std::int64_t n = 0;
  for (const OptimSlot& slot : slots) n += slot.n;
  return n;
}

void* advance(void* p, std::int64_t elements, std::size_t size) {
  return p ? static_cast<char*>(p) + elements * static_cast<std::int64_t>(size) : nullptr;
}

/// Calls f(part) for the parts of the slots that are in [begin, end) of the long array.
template <class F>
void for_each_part(DType dtype, std::span<const OptimSlot> slots, std::int64_t begin,
                   std::int64_t end, F&& f) {
  const std::size_t size = size_of(dtype);
  for (const OptimSlot& slot : slots) {
    if (end <= 0) return;
    const std::int64_t from = std::max<std::int64_t>(begin, 0), to = std::min(end, slot.n);
    if (from < to) {
      f(OptimSlot{advance(slot.param, from, size),
                  advance(const_cast<void*>(slot.grad), from, size),
                  advance(slot.state1, from, size), advance(slot.state2, from, size),
                  advance(slot.state3, from, size), to - from});
    }
    begin -= slot.n;
    end -= slot.n;
  }
}

template <class F>
void for_all(DType dtype, std::span<const OptimSlot> slots, F&& f) {
  parallel_for(total_elements(slots), kOptimGrain, [&](std::int64_t begin, std::int64_t end) {
    for_each_part(dtype, slots, begin, end, f);
  });
}

void require_floating(const char* op, const Stream& stream, DType dtype) {
  if (!is_floating(dtype)) throw_unsupported(op, stream.device, dtype);
}

void sgd(const Stream& stream, DType dtype, const SgdParams& p, std::span<const OptimSlot> slots) {
  require_floating("sgd", stream, dtype);
  const SgdScalars scalars{.lr = *p.lr,
                           .weight_decay = p.weight_decay,
                           .momentum = p.momentum,
                           .dampening = p.dampening,
                           .nesterov = p.nesterov,
                           .first = *p.step == 1,
                           .maximize = p.maximize};
  const auto f = optim_loops().of(dtype).sgd;
  for_all(dtype, slots, [&](const OptimSlot& s) { f(s.n, s.param, s.grad, s.state1, scalars); });
}

void adam(const Stream& stream, DType dtype, const AdamParams& p,
          std::span<const OptimSlot> slots) {
  require_floating("adam", stream, dtype);
  const auto t = static_cast<double>(*p.step);
  const AdamScalars scalars{
      .beta1 = p.beta1,
      .beta2 = p.beta2,
      .step_size = *p.lr / (1 - std::pow(p.beta1, t)),
      .inverse_correction2 = 1 / std::sqrt(1 - std::pow(p.beta2, t)),
      .eps = p.eps,
      .weight_decay = p.decoupled ? 0 : p.weight_decay,
      .decay = p.decoupled ? 1 - *p.lr * p.weight_decay : 1,
      .amsgrad = p.amsgrad,
      .maximize = p.maximize,
  };
  const auto f = optim_loops().of(dtype).adam;
  for_all(dtype, slots, [&](const OptimSlot& s) {
    f(s.n, s.param, s.grad, s.state1, s.state2, s.state3, scalars);
  });
}

void rmsprop(const Stream& stream, DType dtype, const RmspropParams& p,
             std::span<const OptimSlot> slots) {
  require_floating("rmsprop", stream, dtype);
  const RmspropScalars scalars{.lr = *p.lr,
                               .alpha = p.alpha,
                               .eps = p.eps,
                               .weight_decay = p.weight_decay,
                               .momentum = p.momentum,
                               .centered = p.centered,
                               .maximize = p.maximize};
  const auto f = optim_loops().of(dtype).rmsprop;
  for_all(dtype, slots, [&](const OptimSlot& s) {
    f(s.n, s.param, s.grad, s.state1, s.state2, s.state3, scalars);
  });
}

void adadelta(const Stream& stream, DType dtype, const AdadeltaParams& p,
              std::span<const OptimSlot> slots) {
  require_floating("adadelta", stream, dtype);
  const AdadeltaScalars scalars{.lr = *p.lr,
                                .rho = p.rho,
                                .eps = p.eps,
                                .weight_decay = p.weight_decay,
                                .maximize = p.maximize};
  const auto f = optim_loops().of(dtype).adadelta;
  for_all(dtype, slots,
          [&](const OptimSlot& s) { f(s.n, s.param, s.grad, s.state1, s.state2, scalars); });
}

void sum_of_squares(const Stream& stream, DType dtype, std::span<const OptimSlot> slots,
                    double* out) {
  require_floating("sum_of_squares", stream, dtype);
  const auto f = reduce_loops().of(dtype).sum_of_squares;
  // The number of chunks depends only on the length, so every team size gives the same sum.
  constexpr std::int64_t kMaxChunks = 64;
  const std::int64_t n = total_elements(slots);
  const std::int64_t chunks = std::clamp<std::int64_t>(n / kOptimGrain, 1, kMaxChunks);
  std::array<double, kMaxChunks> partial{};
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      double sum = 0;
      for_each_part(dtype, slots, n * c / chunks, n * (c + 1) / chunks,
                    [&](const OptimSlot& s) { f(s.n, s.grad, &sum); });
      partial[static_cast<std::size_t>(c)] = sum;
    }
  });
  *out = 0;
  for (const double sum : partial) *out += sum;
}

void scale_grads(const Stream& stream, DType dtype, const double* factor,
                 std::span<const OptimSlot> slots) {
  require_floating("scale_grads", stream, dtype);
  const auto f = optim_loops().of(dtype).scale;
  for_all(dtype, slots, [&](const OptimSlot& s) { f(s.n, const_cast<void*>(s.grad), *factor); });
}

void clamp_grads(const Stream& stream, DType dtype, double most, std::span<const OptimSlot> slots) {
  require_floating("clamp_grads", stream, dtype);
  const auto f = optim_loops().of(dtype).clamp;
  for_all(dtype, slots, [&](const OptimSlot& s) { f(s.n, const_cast<void*>(s.grad), most); });
}

}  // namespace

OptimKernels optim_kernels() {
  return {.sgd = sgd,
          .adam = adam,
          .rmsprop = rmsprop,
          .adadelta = adadelta,
          .sum_of_squares = sum_of_squares,
          .scale_grads = scale_grads,
          .clamp_grads = clamp_grads};
}

}  // namespace weft::cpu
