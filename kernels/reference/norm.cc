// Batch norm over the channels of images, group norm over groups of them.
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
  Elements<T> x;
  Elements<accumulate_t<T>> weight, bias, mean, invstd;

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
  using C = accumulate_t<T>;
  const Elements<T> x(args.x);
  const Elements<C> running_mean(args.running_mean), running_var(args.running_var), mean(args.mean),
      invstd(args.invstd);
  const Elements<std::int64_t> num_batches(args.num_batches);
  double momentum = p.momentum;
  if (p.training && num_batches) {
    num_batches.add(1);
    if (p.cumulative) momentum = 1 / static_cast<double>(num_batches());
  }
  const auto update = [&](const Elements<C>& running, double value, std::int64_t c) {
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
    const Normalisation<T> normal{Elements<T>(args.x), Elements<C>(args.weight),
                                  Elements<C>(args.bias), Elements<C>(args.mean),
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
    const Elements<T> grad_y(args.grad_y), x(args.x), y(args.y), grad_x(args.grad_x),
        grad_addend(args.grad_addend);
    const Elements<C> weight(args.weight), mean(args.mean), invstd(args.invstd),
        grad_weight(args.grad_weight), grad_bias(args.grad_bias);
    const Normalisation<T> normal{x, weight, Elements<C>(args.bias), mean, invstd};
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

// --- Group norm ----------------------------------------------------------------------------------

/// Calls f(image, channel, position) for all elements of group g of the N groups.
template <class F>
void for_group(const Shape& x, std::int64_t groups, std::int64_t g, F&& f) {
  const std::int64_t channels = x[1] / groups, first = g % groups * channels;
  for (std::int64_t c = first; c < first + channels; ++c) {
    for (std::int64_t i = 0; i < x[2]; ++i) f(g / groups, c, i);
  }
}

void group_norm(const Stream& stream, const GroupNormArgs& args) {
  const Shape& shape = args.x.shape;
  for_floating("group_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const Elements<T> x(args.x), weight(args.weight), bias(args.bias), y(args.y);
    const Elements<C> mean(args.mean), invstd(args.invstd);
    for (std::int64_t g = 0; g < shape[0] * args.groups; ++g) {
      const std::int64_t image = g / args.groups, group = g % args.groups;
      const Moments moments(
          [&](auto&& f) { for_group(shape, args.groups, g, [&](auto... at) { f(x(at...)); }); });
      const double scale = 1 / std::sqrt(moments.squares / moments.n + args.eps);
      mean.set(moments.mean, image, group);
      invstd.set(scale, image, group);
      for_group(shape, args.groups, g, [&](std::int64_t n, std::int64_t c, std::int64_t i) {
        const double normal = (x(n, c, i) - moments.mean) * scale;
        y.set(normal * (weight ? weight(c) : 1) + (bias ? bias(c) : 0), n, c, i);
      });
    }
  });
}

std::size_t group_norm_backward_workspace_bytes(const View&) { return 0; }

void group_norm_backward(const Stream& stream, const GroupNormGradArgs& args, void*) {
  const Shape& shape = args.x.shape;
  for_floating("group_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const Elements<T> grad_y(args.grad_y), x(args.x), weight(args.weight), grad_x(args.grad_x),
        grad_weight(args.grad_weight), grad_bias(args.grad_bias);
    const Elements<C> means(args.mean), invstds(args.invstd);
    Sums of_weight(Shape{shape[1]}), of_bias(Shape{shape[1]});
    for (std::int64_t g = 0; g < shape[0] * args.groups; ++g) {
      const double mean = means(g / args.groups, g % args.groups);
      const double invstd = invstds(g / args.groups, g % args.groups);
      const auto factor = [&](std::int64_t c) { return weight ? weight(c) : 1; };
      double count = 0, sum = 0, product = 0;
      for_group(shape, args.groups, g, [&](std::int64_t n, std::int64_t c, std::int64_t i) {
        const double d = x(n, c, i) - mean;
        ++count;
        sum += grad_y(n, c, i) * factor(c);
        product += grad_y(n, c, i) * factor(c) * d;
        of_weight.add(grad_y(n, c, i) * d * invstd, c);
        of_bias.add(grad_y(n, c, i), c);
      });
      if (!grad_x) continue;
      for_group(shape, args.groups, g, [&](std::int64_t n, std::int64_t c, std::int64_t i) {
        const double d = x(n, c, i) - mean;
        const double of_invstd = d * invstd * invstd * product / count;
        grad_x.set(invstd * (grad_y(n, c, i) * factor(c) - sum / count - of_invstd), n, c, i);
      });
    }
    for (std::int64_t c = 0; c < shape[1]; ++c) {
      if (grad_weight) grad_weight.set(of_weight(c), c);
      if (grad_bias) grad_bias.set(of_bias(c), c);
    }
  });
}

}  // namespace

NormKernels norm_kernels() {
  return {.batch_norm_workspace_bytes = batch_norm_workspace_bytes,
          .batch_norm = batch_norm,
          .batch_norm_backward = batch_norm_backward,
          .group_norm = group_norm,
          .group_norm_backward_workspace_bytes = group_norm_backward_workspace_bytes,
          .group_norm_backward = group_norm_backward};
}

}  // namespace weft::reference
