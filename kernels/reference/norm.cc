// Batch norm over the channels of images, layer norm over rows.
#include "weft/kernels/norm.h"

#include <cmath>

#include "weft/kernels/backend.h"
#include "weft/kernels/functors.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

template <class T>
double rounded(double value) {
  return element_cast<double>(element_cast<T>(value));
}

// --- Batch norm ----------------------------------------------------------------------------------

/// Calls f(coordinates) for all elements of channel c.
template <class F>
void for_channel(const Shape& x, std::int64_t c, F&& f) {
  for_each_position({x[0], 1, x[2], x[3]}, [&](Dims at) {
    at[1] = c;
    f(at);
  });
}

/// (x - mean) invstd weight + bias for the elements of x.
template <class T>
struct Normalisation {
  Elements<T> x, weight, bias;
  Elements<accumulate_t<T>> mean, invstd;

  double operator()(const Dims& at) const {
    const std::int64_t c = at[1];
    const double scale = invstd(c) * (weight ? weight(c) : 1);
    return rounded<T>((x(at) - mean(c)) * scale + (bias ? bias(c) : 0));
  }
};

template <class T>
double activated(double slope, double value) {
  const UnaryParams params{.a = slope};
  return rounded<T>(slope == 0 ? functor::Relu{params}.fwd(value)
                               : functor::LeakyRelu{params}.fwd(value));
}
/// Of `y`, the result of the activation, only the sign is needed.
template <class T>
double activated_backward(double slope, double grad, double y) {
  const UnaryParams params{.a = slope};
  return rounded<T>(slope == 0 ? functor::Relu{params}.bwd(grad, y)
                               : functor::LeakyRelu{params}.bwd(grad, y));
}

template <class T>
void find_statistics(const BatchNormParams& p, const BatchNormArgs& args) {
  const Elements<T> x(args.x), running_mean(args.running_mean), running_var(args.running_var);
  const Elements<accumulate_t<T>> mean(args.mean), invstd(args.invstd);
  const Elements<std::int64_t> num_batches(args.num_batches);
  double momentum = p.momentum;
  if (p.training && num_batches) {
    num_batches.add(1);
    if (p.cumulative) momentum = 1 / static_cast<double>(num_batches());
  }
  const auto update = [&](const Elements<T>& running, double value, std::int64_t c) {
    if (running) running.set((1 - momentum) * running(c) + momentum * value, c);
  };
  for (std::int64_t c = 0; c < args.x.shape[1]; ++c) {
    double mean_of_c = running_mean ? running_mean(c) : 0, var = running_var ? running_var(c) : 1;
    if (p.training) {
      const Moments batch(
          [&](auto&& f) { for_channel(args.x.shape, c, [&](const Dims& at) { f(x(at)); }); });
      mean_of_c = batch.mean;
      var = batch.squares / batch.n;
      update(running_mean, batch.mean, c);
      update(running_var, batch.squares / (batch.n - 1), c);
    }
    mean.set(mean_of_c, c);
    invstd.set(1 / std::sqrt(var + p.eps), c);
  }
}

std::size_t batch_norm_workspace_bytes(const View&) { return 0; }

void batch_norm(const Stream& stream, const BatchNormParams& p, const BatchNormArgs& args, void*) {
  for_floating("batch_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    find_statistics<T>(p, args);
    const Normalisation<T> normal{Elements<T>(args.x), Elements<T>(args.weight),
                                  Elements<T>(args.bias), Elements<C>(args.mean),
                                  Elements<C>(args.invstd)};
    const Elements<T> y(args.y), addend(args.addend);
    for_each_position(args.y.shape, [&](const Dims& at) {
      double value = normal(at);
      if (addend) value = rounded<T>(value + addend(at));
      if (p.negative_slope) value = activated<T>(*p.negative_slope, value);
      y.set(value, at);
    });
  });
}

void batch_norm_backward(const Stream& stream, const BatchNormParams& p,
                         const BatchNormGradArgs& args, void*) {
  for_floating("batch_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const Elements<T> grad_y(args.grad_y), x(args.x), y(args.y), weight(args.weight),
        grad_x(args.grad_x), grad_weight(args.grad_weight), grad_bias(args.grad_bias),
        grad_addend(args.grad_addend);
    const Elements<C> mean(args.mean), invstd(args.invstd);
    const Normalisation<T> normal{x, weight, Elements<T>(args.bias), mean, invstd};
    const auto before_activation = [&](const Dims& at) {
      if (!p.negative_slope) return grad_y(at);
      return activated_backward<T>(*p.negative_slope, grad_y(at), y ? y(at) : normal(at));
    };
    for (std::int64_t c = 0; c < args.x.shape[1]; ++c) {
      double n = 0, sum = 0, product = 0;
      for_channel(args.x.shape, c, [&](const Dims& at) {
        const double g = before_activation(at);
        ++n;
        sum += g;
        product += g * (x(at) - mean(c));
        if (grad_addend) grad_addend.set(g, at);
      });
      if (grad_weight) grad_weight.set(product * invstd(c), c);
      if (grad_bias) grad_bias.set(sum, c);
      if (!grad_x) continue;
      const double scale = invstd(c) * (weight ? weight(c) : 1);
      for_channel(args.x.shape, c, [&](const Dims& at) {
        double g = grad_addend ? grad_addend(at) : before_activation(at);
        // In evaluation mean and invstd do not depend on x.
        if (p.training) {
          g -= sum / n + (x(at) - mean(c)) * invstd(c) * invstd(c) * product / n;
        }
        grad_x.set(scale * g, at);
      });
    }
  });
}

// --- Layer norm ----------------------------------------------------------------------------------

void layer_norm(const Stream& stream, const LayerNormArgs& args) {
  const std::int64_t n = args.x.shape[1];
  for_floating("layer_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const Elements<T> x(args.x), weight(args.weight), bias(args.bias), y(args.y);
    const Elements<C> mean(args.mean), invstd(args.invstd);
    for (std::int64_t r = 0; r < args.x.shape[0]; ++r) {
      const Moments row([&](auto&& f) {
        for (std::int64_t i = 0; i < n; ++i) f(x(r, i));
      });
      const double scale = 1 / std::sqrt(row.squares / row.n + args.eps);
      mean.set(row.mean, r);
      invstd.set(scale, r);
      for (std::int64_t i = 0; i < n; ++i) {
        y.set((x(r, i) - row.mean) * scale * (weight ? weight(i) : 1) + (bias ? bias(i) : 0), r, i);
      }
    }
  });
}

std::size_t layer_norm_backward_workspace_bytes(const View&) { return 0; }

void layer_norm_backward(const Stream& stream, const LayerNormGradArgs& args, void*) {
  const std::int64_t rows = args.x.shape[0], n = args.x.shape[1];
  for_floating("layer_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const Elements<T> grad_y(args.grad_y), x(args.x), weight(args.weight), grad_x(args.grad_x),
        grad_weight(args.grad_weight), grad_bias(args.grad_bias);
    const Elements<C> mean(args.mean), invstd(args.invstd);
    Sums of_weight({n}), of_bias({n});
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto g = [&](std::int64_t i) { return grad_y(r, i) * (weight ? weight(i) : 1); };
      double sum = 0, product = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double d = x(r, i) - mean(r);
        sum += g(i);
        product += g(i) * d;
        of_weight.add(grad_y(r, i) * d * invstd(r), i);
        of_bias.add(grad_y(r, i), i);
      }
      if (!grad_x) continue;
      const auto count = static_cast<double>(n);
      for (std::int64_t i = 0; i < n; ++i) {
        const double d = x(r, i) - mean(r);
        const double of_invstd = d * invstd(r) * invstd(r) * product / count;
        grad_x.set(invstd(r) * (g(i) - sum / count - of_invstd), r, i);
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      if (grad_weight) grad_weight.set(of_weight(i), i);
      if (grad_bias) grad_bias.set(of_bias(i), i);
    }
  });
}

}  // namespace

NormKernels norm_kernels() {
  return {.batch_norm_workspace_bytes = batch_norm_workspace_bytes,
          .batch_norm = batch_norm,
          .batch_norm_backward = batch_norm_backward,
          .layer_norm = layer_norm,
          .layer_norm_backward_workspace_bytes = layer_norm_backward_workspace_bytes,
          .layer_norm_backward = layer_norm_backward};
}

}  // namespace weft::reference
