// Attention, one query after the other.
#include "weft/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t no_workspace(const AttentionArgs&) { return 0; }

/// What the mask adds to a score.
double bias(const View& mask, const Dims& at) {
  if (mask.dtype == DType::boolean) return Elements<bool>(mask)[at] ? 0 : -kInfinity;
  return mask.dtype == DType::f64 ? Elements<double>(mask)[at] : Elements<float>(mask)[at];
}

/// The scores of query i of (a, b), without those that causal hides; empty if it sees no key.
template <class T>
std::vector<double> scores_of(const AttentionArgs& args, std::int64_t a, std::int64_t b,
                              std::int64_t i) {
  const std::int64_t features = args.q.shape[3], keys = args.k.shape[2];
  const Elements<T> q(args.q), k(args.k);
  std::vector<double> scores;
  bool sees = false;
  for (std::int64_t j = 0; j < (args.causal ? std::min(i + 1, keys) : keys); ++j) {
    double product = 0;
    for (std::int64_t e = 0; e < features; ++e) product += q(a, b, i, e) * k(a, b, j, e);
    const double added = args.mask ? bias(args.mask, {a, b, i, j}) : 0;
    scores.push_back(args.scale * product + added);
    sees |= added != -kInfinity;
  }
  if (!sees) scores.clear();
  return scores;
}

/// What dropout multiplies a weight by.
double dropout(const AttentionArgs& args, const Dims& at) {
  if (!args.kept) return 1;
  return Elements<bool>(args.kept)[at] ? args.keep_scale : 0;
}

template <class F>
void for_each_query(const AttentionArgs& args, F&& f) {
  for (std::int64_t a = 0; a < args.q.shape[0]; ++a) {
    for (std::int64_t b = 0; b < args.q.shape[1]; ++b) {
      for (std::int64_t i = 0; i < args.q.shape[2]; ++i) f(a, b, i);
    }
  }
}

void forward(const Stream& stream, const AttentionArgs& args, const View& y_view,
             const View& log_sums_view, void*) {
  const std::int64_t values = args.v.shape[3];
  for_floating("attention", stream, args.q.dtype, [&]<class T>() {
    const Elements<T> v(args.v), y(y_view);
    const Elements<accumulate_t<T>> log_sums(log_sums_view);
    for_each_query(args, [&](std::int64_t a, std::int64_t b, std::int64_t i) {
      const std::vector<double> scores = scores_of<T>(args, a, b, i);
      double most = -kInfinity, sum = 0;
      for (const double s : scores) most = std::isnan(s) ? s : std::max(most, s);
      for (const double s : scores) sum += std::exp(s - most);
      for (std::int64_t e = 0; e < values; ++e) {
        double total = 0;
        for (std::int64_t j = 0; j < std::ssize(scores); ++j) {
          const double weight = std::exp(scores[std::size_t(j)] - most) / sum;
          total += weight * dropout(args, {a, b, i, j}) * v(a, b, j, e);
        }
        y.set(total, a, b, i, e);
      }
      log_sums.set(scores.empty() ? kInfinity : most + std::log(sum), a, b, i);
    });
  });
}

void backward(const Stream& stream, const AttentionArgs& args, const AttentionGradArgs& grads,
              void*) {
  const std::int64_t features = args.q.shape[3], values = args.v.shape[3];
  for_floating("attention_backward", stream, args.q.dtype, [&]<class T>() {
    const Elements<T> q(args.q), k(args.k), v(args.v), grad_y(grads.grad_y), y(grads.y);
    const Elements<accumulate_t<T>> log_sums(grads.log_sums);
    Sums grad_q(args.q.shape), grad_k(args.k.shape), grad_v(args.v.shape);
    for_each_query(args, [&](std::int64_t a, std::int64_t b, std::int64_t i) {
      const std::vector<double> scores = scores_of<T>(args, a, b, i);
      double common = 0;
      for (std::int64_t e = 0; e < values; ++e) common += grad_y(a, b, i, e) * y(a, b, i, e);
      for (std::int64_t j = 0; j < std::ssize(scores); ++j) {
        const double weight = std::exp(scores[std::size_t(j)] - log_sums(a, b, i));
        const double factor = dropout(args, {a, b, i, j});
        double grad = 0;
        for (std::int64_t e = 0; e < values; ++e) {
          grad += grad_y(a, b, i, e) * v(a, b, j, e);
          grad_v.add(weight * factor * grad_y(a, b, i, e), a, b, j, e);
        }
        const double grad_score = args.scale * weight * (factor * grad - common);
        for (std::int64_t e = 0; e < features; ++e) {
          grad_q.add(grad_score * k(a, b, j, e), a, b, i, e);
          grad_k.add(grad_score * q(a, b, i, e), a, b, j, e);
        }
      }
    });
    const auto write = [](const Sums& sums, const View& to) {
      if (!to) return;
      for_each_position(to.shape, [&](const Dims& at) { Elements<T>(to).set(sums(at), at); });
    };
    write(grad_q, grads.grad_q);
    write(grad_k, grads.grad_k);
    write(grad_v, grads.grad_v);
  });
}

}  // namespace

AttentionKernels attention_kernels() {
  return {.workspace_bytes = no_workspace,
          .forward = forward,
          .backward_workspace_bytes = no_workspace,
          .backward = backward};
}

}  // namespace weft::reference
