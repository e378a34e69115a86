// 2-D convolution and transposed convolution.
#include "weft/kernels/conv.h"

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/activation.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

// A convolution multiplies the pixels of a big image [N,C,H,W] with those of a small one
// [N,K,Ho,Wo] and with weights [K,C/groups,R,S]: the pixel (u, v) of the small image and the weight
// (r, s) belong to the pixel (u stride - padding + r dilation, v ...) of the big one. x is the big
// image and y the small one; in a transposed convolution it is the other way around. Each pass adds
// the products of two of the three to the third.

/// Calls f(n, c, a, b, k, u, v, j, r, s) for each product of big(n, c, a, b), small(n, k, u, v) and
/// w(k, j, r, s).
template <class F>
void for_each_product(const Conv2dParams& p, const Shape& big, const Shape& small, const Shape& w,
                      F&& f) {
  const std::int64_t in_group = big[1] / p.groups, small_in_group = small[1] / p.groups;
  for_each_position(small, [&](const Dims& at) {
    const std::int64_t n = at[0], k = at[1], u = at[2], v = at[3];
    for (std::int64_t j = 0; j < in_group; ++j) {
      const std::int64_t c = k / small_in_group * in_group + j;
      for (std::int64_t r = 0; r < w[2]; ++r) {
        const std::int64_t a = u * p.stride[0] - p.padding[0] + r * p.dilation[0];
        if (a < 0 || a >= big[2]) continue;
        for (std::int64_t s = 0; s < w[3]; ++s) {
          const std::int64_t b = v * p.stride[1] - p.padding[1] + s * p.dilation[1];
          if (b < 0 || b >= big[3]) continue;
          f(n, c, a, b, k, u, v, j, r, s);
        }
      }
    }
  });
}

template <class T>
void run_as(const Conv2dArgs& args) {
  const Conv2dParams& p = args.params;
  const View& big_view = p.transposed ? args.y : args.x;
  const View& small_view = p.transposed ? args.x : args.y;
  const bool forward = args.pass == ConvPass::forward;
  const bool of_weights = args.pass == ConvPass::backward_weights;
  const View& out_view = of_weights ? args.w : forward ? args.y : args.x;
  const Elements<T> big(big_view), small(small_view), w(args.w), y(args.y), bias(args.bias);

  Sums sum(out_view.shape);
  for_each_product(
      p, big_view.shape, small_view.shape, args.w.shape,
      [&](auto n, auto c, auto a, auto b, auto k, auto u, auto v, auto j, auto r, auto s) {
        if (of_weights)
          sum.add(big(n, c, a, b) * small(n, k, u, v), k, j, r, s);
        else if (forward == p.transposed)
          sum.add(small(n, k, u, v) * w(k, j, r, s), n, c, a, b);
        else
          sum.add(big(n, c, a, b) * w(k, j, r, s), n, k, u, v);
      });
  const Elements<T> out(out_view);
  for_each_position(out_view.shape, [&](const Dims& at) {
    out.set(activated(args.then, sum(at) + (forward && bias ? bias(at[1]) : 0)), at);
  });

  if (!of_weights || !bias) return;
  Sums channel(Shape{args.y.shape[1]});
  for_each_position(args.y.shape, [&](const Dims& at) { channel.add(y(at), at[1]); });
  for (std::int64_t k = 0; k < args.y.shape[1]; ++k) bias.set(channel(k), k);
}

/// The format of an image; nchw if it is dense in both formats.
MemoryFormat format_of(const View& image) {
  const bool both = image.shape[1] == 1 || image.shape[2] * image.shape[3] == 1;
  return !both && image.strides[1] == 1 ? MemoryFormat::nhwc : MemoryFormat::nchw;
}

// One plan per layout serves all shapes and is never freed.
PlanRef<Conv2dPlan> plan(const Conv2dArgs& args) {
  static const auto writing = [](MemoryFormat format) {
    Conv2dPlan made;
    made.output_format = format;
    return made;
  };
  static const Conv2dPlan nchw = writing(MemoryFormat::nchw), nhwc = writing(MemoryFormat::nhwc);
  const View& output = args.pass == ConvPass::forward ? args.y : args.x;
  return {format_of(output) == MemoryFormat::nchw ? &nchw : &nhwc, nullptr};
}

void run(const Stream& stream, const Conv2dPlan&, const Conv2dArgs& args, void*) {
  for_floating("conv2d", stream, args.x.dtype, [&]<class T>() { run_as<T>(args); });
}

}  // namespace

void relu_backward(const Stream& stream, const ReluBackwardArgs& args, void*);  // conv_relu.cc

Conv2dKernels conv_kernels() {
  return {.plan = plan,
          .run = run,
          .relu_backward_workspace_bytes = [](const ReluBackwardArgs&) { return std::size_t{0}; },
          .relu_backward = relu_backward};
}

}  // namespace weft::reference
