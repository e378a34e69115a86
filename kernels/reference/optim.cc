// Optimiser updates, in the order of operations of PyTorch.
#include "weft/kernels/optim.h"

#include <algorithm>
#include <cmath>

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// One array of a slot. Converts to false for a null address.
template <class T>
Elements<T> elements(const void* data, std::int64_t n) {
  return Elements<T>({const_cast<void*>(data), dtype_of<T>, {n}, {1}});
}

/// Calls f(slot's param, grad, state1, state2, state3, i) for each element of each slot.
template <class F>
void for_each_element(const char* op, const Stream& stream, DType dtype,
                      std::span<const OptimSlot> slots, F&& f) {
  for_floating(op, stream, dtype, [&]<class T>() {
    for (const OptimSlot& slot : slots) {
      const auto param = elements<T>(slot.param, slot.n), grad = elements<T>(slot.grad, slot.n),
                 state1 = elements<T>(slot.state1, slot.n),
                 state2 = elements<T>(slot.state2, slot.n),
                 state3 = elements<T>(slot.state3, slot.n);
      for (std::int64_t i = 0; i < slot.n; ++i) f(param, grad, state1, state2, state3, i);
    }
  });
}

void sgd(const Stream& stream, DType dtype, const SgdParams& p, std::span<const OptimSlot> slots) {
  for_each_element("sgd", stream, dtype, slots,
                   [&](auto param, auto grad, auto momentum, auto, auto, std::int64_t i) {
                     double g = (p.maximize ? -grad(i) : grad(i));
                     if (p.weight_decay != 0) g += p.weight_decay * param(i);
                     if (p.momentum != 0) {
                       // Before the first step the buffer is not initialised.
                       const double m =
                           *p.step == 1 ? g : p.momentum * momentum(i) + (1 - p.dampening) * g;
                       momentum.set(m, i);
                       g = p.nesterov ? g + p.momentum * m : m;
                     }
                     param.set(param(i) - *p.lr * g, i);
                   });
}

void adam(const Stream& stream, DType dtype, const AdamParams& p,
          std::span<const OptimSlot> slots) {
  require_floating("adam", stream, dtype);
  const auto t = static_cast<double>(*p.step);
  const double correction1 = 1 - std::pow(p.beta1, t), correction2 = 1 - std::pow(p.beta2, t);
  for_each_element(
      "adam", stream, dtype, slots,
      [&](auto param, auto grad, auto mean, auto square, auto largest, std::int64_t i) {
        double g = p.maximize ? -grad(i) : grad(i);
        double value = param(i);
        if (p.decoupled)
          value *= 1 - *p.lr * p.weight_decay;
        else if (p.weight_decay != 0)
          g += p.weight_decay * value;
        const double m = std::lerp(g, mean(i), p.beta1);
        double v = p.beta2 * square(i) + (1 - p.beta2) * g * g;
        mean.set(m, i);
        square.set(v, i);
        if (p.amsgrad) {
          const double before = largest(i);
          if (before >= v || std::isnan(before)) v = before;
          largest.set(v, i);
        }
        const double root = std::sqrt(v) / std::sqrt(correction2);
        param.set(value - *p.lr / correction1 * m / (root + p.eps), i);
      });
}

void rmsprop(const Stream& stream, DType dtype, const RmspropParams& p,
             std::span<const OptimSlot> slots) {
  for_each_element(
      "rmsprop", stream, dtype, slots,
      [&](auto param, auto grad, auto square, auto momentum, auto mean, std::int64_t i) {
        double g = p.maximize ? -grad(i) : grad(i);
        if (p.weight_decay != 0) g += p.weight_decay * param(i);
        double spread = p.alpha * square(i) + (1 - p.alpha) * g * g;
        square.set(spread, i);
        if (p.centered) {
          const double m = std::lerp(g, mean(i), p.alpha);
          mean.set(m, i);
          spread = std::max(spread - m * m, 0.0);
        }
        double update = g / (std::sqrt(spread) + p.eps);
        if (p.momentum != 0) {
          update += p.momentum * momentum(i);
          momentum.set(update, i);
        }
        param.set(param(i) - *p.lr * update, i);
      });
}

void adadelta(const Stream& stream, DType dtype, const AdadeltaParams& p,
              std::span<const OptimSlot> slots) {
  for_each_element("adadelta", stream, dtype, slots,
                   [&](auto param, auto grad, auto square, auto updates, auto, std::int64_t i) {
                     double g = p.maximize ? -grad(i) : grad(i);
                     if (p.weight_decay != 0) g += p.weight_decay * param(i);
                     const double sq = p.rho * square(i) + (1 - p.rho) * g * g;
                     square.set(sq, i);
                     const double delta = std::sqrt(updates(i) + p.eps) / std::sqrt(sq + p.eps) * g;
                     updates.set(p.rho * updates(i) + (1 - p.rho) * delta * delta, i);
                     param.set(param(i) - *p.lr * delta, i);
                   });
}

void sum_of_squares(const Stream& stream, DType dtype, std::span<const OptimSlot> slots,
                    double* out) {
  double sum = 0;
  for_each_element(
      "sum_of_squares", stream, dtype, slots,
      [&](auto, auto grad, auto, auto, auto, std::int64_t i) { sum += grad(i) * grad(i); });
  *out = sum;
}

void scale_grads(const Stream& stream, DType dtype, const double* factor,
                 std::span<const OptimSlot> slots) {
  for_each_element(
      "scale_grads", stream, dtype, slots,
      [&](auto, auto grad, auto, auto, auto, std::int64_t i) { grad.set(grad(i) * *factor, i); });
}

void clamp_grads(const Stream& stream, DType dtype, double most, std::span<const OptimSlot> slots) {
  for_each_element("clamp_grads", stream, dtype, slots,
                   [&](auto, auto grad, auto, auto, auto, std::int64_t i) {
                     const double below = grad(i) > most ? most : grad(i);
                     grad.set(below < -most ? -most : below, i);
                   });
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

}  // namespace weft::reference
