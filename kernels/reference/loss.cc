// Losses in one pass.
#include "weft/kernels/loss.h"

#include <cmath>

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// The weight of class c in the target distribution of a row.
double wanted(const CrossEntropyParams& p, std::int64_t c, std::int64_t target,
              std::int64_t classes) {
  const double smooth = p.label_smoothing / static_cast<double>(classes);
  return (c == target ? 1 - p.label_smoothing : 0) + smooth;
}

void cross_entropy(const Stream& stream, const CrossEntropyParams& p, const View& logits_view,
                   const View& target_view, const View& log_probs_view, const View& loss_view,
                   const View& count, void*) {
  const std::int64_t rows = logits_view.shape[0], classes = logits_view.shape[1];
  for_floating("cross_entropy", stream, logits_view.dtype, [&]<class T>() {
    if (rows > 0 && classes > 0) {
      softmax_kernels().forward(stream, SoftmaxOp::log_softmax, logits_view, log_probs_view);
    }
    const Elements<T> log_probs(log_probs_view), loss(loss_view);
    const Elements<std::int64_t> target(target_view);
    double total = 0, counted = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      double row = 0;
      if (target(r) != p.ignore_index) {
        ++counted;
        // Without smoothing the other classes add nothing, even if their probability is 0.
        row = -(1 - p.label_smoothing) * log_probs(r, target(r));
        for (std::int64_t c = 0; p.label_smoothing > 0 && c < classes; ++c) {
          row -= p.label_smoothing / static_cast<double>(classes) * log_probs(r, c);
        }
      }
      if (p.reduction == Reduction::none) loss.set(row, r);
      total += row;
    }
    if (p.reduction == Reduction::sum) loss.set(total);
    if (p.reduction == Reduction::mean) loss.set(total / counted);
    Elements<double>(count).set(counted);
  });
}

void cross_entropy_backward(const Stream& stream, const CrossEntropyParams& p,
                            const View& grad_loss_view, const View& log_probs_view,
                            const View& target_view, const View& count,
                            const View& grad_logits_view) {
  const std::int64_t rows = log_probs_view.shape[0], classes = log_probs_view.shape[1];
  const double scale = p.reduction == Reduction::mean ? 1 / Elements<double>(count)() : 1;
  for_floating("cross_entropy", stream, log_probs_view.dtype, [&]<class T>() {
    const Elements<T> log_probs(log_probs_view), grad_loss(grad_loss_view),
        grad_logits(grad_logits_view);
    const Elements<std::int64_t> target(target_view);
    for (std::int64_t r = 0; r < rows; ++r) {
      const double grad = scale * (p.reduction == Reduction::none ? grad_loss(r) : grad_loss());
      for (std::int64_t c = 0; c < classes; ++c) {
        const bool ignored = target(r) == p.ignore_index;
        const double above = std::exp(log_probs(r, c)) - wanted(p, c, target(r), classes);
        grad_logits.set(ignored ? 0 : grad * above, r, c);
      }
    }
  });
}

void mse(const Stream& stream, Reduction reduction, const View& x_view, const View& target_view,
         const View& loss, void*) {
  for_floating("mse", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), target(target_view);
    double sum = 0;
    for_each_position(x_view.shape, [&](const Dims& at) {
      const double d = x(at) - target(at);
      sum += d * d;
    });
    const auto n = static_cast<double>(x_view.numel());
    Elements<T>(loss).set(reduction == Reduction::mean ? sum / n : sum);
  });
}

std::size_t cross_entropy_workspace_bytes(const CrossEntropyParams&, const View&) { return 0; }
std::size_t mse_workspace_bytes(const View&) { return 0; }

void mse_backward(const Stream& stream, Reduction reduction, const View& grad_loss,
                  const View& x_view, const View& target_view, const View& grad_x_view) {
  const double n = reduction == Reduction::mean ? static_cast<double>(x_view.numel()) : 1;
  for_floating("mse", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), target(target_view), grad_x(grad_x_view);
    const double grad = Elements<T>(grad_loss)();
    for_each_position(x_view.shape,
                      [&](const Dims& at) { grad_x.set(2 * (x(at) - target(at)) * grad / n, at); });
  });
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

}  // namespace weft::reference
