// Cross-entropy and mean squared error. Sums over the batch run in f64 over chunks whose number
// depends only on the shape.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/loss.h"
#include "weft/kernels/cpu/loops/softmax.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kMaxChunks = 64;

/// The sum of f(begin, end) over chunks of [0, n) with at least `grain` elements each.
template <class F>
double chunked_sum(std::int64_t n, std::int64_t grain, F&& f) {
  const std::int64_t chunks = std::clamp<std::int64_t>(n / grain, 1, kMaxChunks);
  std::array<double, kMaxChunks> partial{};
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      partial[static_cast<std::size_t>(c)] = f(n * c / chunks, n * (c + 1) / chunks);
    }
  });
  double total = 0;
  for (const double sum : partial) total += sum;
  return total;
}

void require_floating(const char* op, const Stream& stream, DType dtype) {
  if (!is_floating(dtype)) throw_unsupported(op, stream.device, dtype);
}

template <class T>
void cross_entropy_as(const CrossEntropyParams& p, const View& logits, const View& target,
                      const View& log_probs, const View& loss, const View& count) {
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];
  const auto log_softmax = softmax_loops().of(logits.dtype).log_softmax;
  const auto target_of = [&](std::int64_t r) {
    return target.as<std::int64_t>()[r * target.strides[0]];
  };
  const T* x = logits.as<T>();
  T* log_prob = log_probs.as<T>();

  const auto row_loss = [&](std::int64_t r) {
    const T* row = log_prob + r * classes;
    const double nll = -static_cast<double>(load(row[target_of(r)]));
    if (p.label_smoothing == 0) return nll;
    double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum -= static_cast<double>(load(row[c]));
    return (1 - p.label_smoothing) * nll + p.label_smoothing / static_cast<double>(classes) * sum;
  };

  std::int64_t counted = 0;
  for (std::int64_t r = 0; r < rows; ++r) counted += target_of(r) != p.ignore_index;
  *count.as<double>() = static_cast<double>(counted);

  const std::int64_t grain =
      std::max<std::int64_t>(kCostlyGrain / std::max<std::int64_t>(classes, 1), 1);
  const double total = chunked_sum(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    if (begin == end || classes == 0) return 0.0;
    log_softmax(end - begin, classes, x + begin * classes, log_prob + begin * classes);
    double sum = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      const double value = target_of(r) == p.ignore_index ? 0 : row_loss(r);
      if (p.reduction == Reduction::none) loss.as<T>()[r * loss.strides[0]] = store<T>(value);
      sum += value;
    }
    return sum;
  });
  if (p.reduction == Reduction::sum) *loss.as<T>() = store<T>(total);
  if (p.reduction == Reduction::mean) {
    *loss.as<T>() = store<T>(counted == 0 ? std::numeric_limits<double>::quiet_NaN()
                                          : total / static_cast<double>(counted));
  }
}

void cross_entropy(const Stream& stream, const CrossEntropyParams& p, const View& logits,
                   const View& target, const View& log_probs, const View& loss, const View& count,
                   void*) {
  require_floating("cross_entropy", stream, logits.dtype);
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>() {
    cross_entropy_as<T>(p, logits, target, log_probs, loss, count);
  });
}

template <class T>
void cross_entropy_backward_as(const CrossEntropyParams& p, const View& grad_loss,
                               const View& log_probs, const View& target, const View& count,
                               const View& grad_logits) {
  const std::int64_t rows = log_probs.shape[0], classes = log_probs.shape[1];
  const auto softmax_grad = loss_loops().of(log_probs.dtype).softmax_grad;
  const bool per_row = p.reduction == Reduction::none;
  const T* g = grad_loss.as<T>();
  const T* log_prob = log_probs.as<T>();
  T* grad = grad_logits.as<T>();
  const double smooth = p.label_smoothing / static_cast<double>(classes);
  const double scale = p.reduction == Reduction::mean ? 1 / *count.as<double>() : 1;
  const std::int64_t grain =
      std::max<std::int64_t>(kCostlyGrain / std::max<std::int64_t>(classes, 1), 1);
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    // The gradient is softmax - the target distribution, which is (1 - e) at the target plus e / C
    // for all classes. First subtracts e / C, in one call if all rows have the same factor.
    const auto factor = [&](std::int64_t r) {
      return scale * static_cast<double>(load(per_row ? g[r * grad_loss.strides[0]] : *g));
    };
    const std::int64_t block = per_row ? 1 : end - begin;
    for (std::int64_t r = begin; r < end; r += block) {
      softmax_grad(block * classes, log_prob + r * classes, factor(r), -factor(r) * smooth,
                   grad + r * classes);
    }
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t hit = target.as<std::int64_t>()[r * target.strides[0]];
      T* row = grad + r * classes;
      if (hit == p.ignore_index) {
        std::fill_n(row, classes, store<T>(0.0));
        continue;
      }
      // Computes the target's term from the log-probability: row[hit] is already rounded, and in
      // bf16 a confident prediction would lose its small gradient.
      using C = accumulate_t<T>;
      const C softmax = std::exp(load(log_prob[r * classes + hit]));
      row[hit] = store<T>(static_cast<C>(factor(r)) *
                          (softmax - static_cast<C>(smooth + 1 - p.label_smoothing)));
    }
  });
}

void cross_entropy_backward(const Stream& stream, const CrossEntropyParams& p,
                            const View& grad_loss, const View& log_probs, const View& target,
                            const View& count, const View& grad_logits) {
  require_floating("cross_entropy", stream, log_probs.dtype);
  dispatch_floating(log_probs.dtype, "cross_entropy", [&]<class T>() {
    cross_entropy_backward_as<T>(p, grad_loss, log_probs, target, count, grad_logits);
  });
}

std::size_t cross_entropy_workspace_bytes(const CrossEntropyParams&, const View&) { return 0; }
std::size_t mse_workspace_bytes(const View&) { return 0; }

void mse(const Stream& stream, Reduction reduction, const View& x, const View& target,
         const View& loss, void*) {
  require_floating("mse", stream, x.dtype);
  const auto f = loss_loops().of(x.dtype).squared_error;
  const std::int64_t n = x.numel();
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  double total = chunked_sum(n, kCheapGrain / 2, [&](std::int64_t begin, std::int64_t end) {
    double sum = 0;
    f(end - begin, x.as<char>() + begin * bytes, target.as<char>() + begin * bytes, &sum);
    return sum;
  });
  if (reduction == Reduction::mean) {
    total = n == 0 ? std::numeric_limits<double>::quiet_NaN() : total / static_cast<double>(n);
  }
  dispatch_floating(x.dtype, "mse", [&]<class T>() { *loss.as<T>() = store<T>(total); });
}

void mse_backward(const Stream& stream, Reduction reduction, const View& grad_loss, const View& x,
                  const View& target, const View& grad_x) {
  require_floating("mse", stream, x.dtype);
  const double n = static_cast<double>(x.numel());
  const double grad = dispatch_floating(
      x.dtype, "mse", [&]<class T>() { return static_cast<double>(load(*grad_loss.as<T>())); });
  const double params[2] = {reduction == Reduction::mean ? 2 / n : 2, grad};
  run_loop<3>({&grad_x, &x, &target}, kCheapGrain, loss_loops().of(x.dtype).squared_error_grad,
              params);
}

}  // namespace

LossKernels loss_kernels() {
  return {.cross_entropy = cross_entropy,
          .cross_entropy_workspace_bytes = cross_entropy_workspace_bytes,
          .cross_entropy_backward = cross_entropy_backward,
          .mse = mse,
          .mse_workspace_bytes = mse_workspace_bytes,
          .mse_backward = mse_backward};
}

}  // namespace weft::cpu
