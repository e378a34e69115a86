// One convolution with its reference, for the tests that run every way to convolve.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "weft/tests/kernels/device_buffers.h"

namespace weft::testing {

/// A convolution by its sizes: x [n,c,h,w], k channels in y, a window of r x s.
struct ConvCase {
  const char* what;
  std::int64_t n, c, h, w, k, r, s;
  Conv2dParams params{};

  Shape x_shape() const { return {n, c, h, w}; }
  Shape w_shape() const {
    return params.transposed ? Shape{c, k / params.groups, r, s}
                             : Shape{k, c / params.groups, r, s};
  }
  Shape y_shape() const {
    const auto along = [&](int axis, std::int64_t size, std::int64_t taps) {
      const std::int64_t reach = params.dilation[axis] * (taps - 1);
      if (params.transposed) {
        return (size - 1) * params.stride[axis] - 2 * params.padding[axis] + reach +
               params.output_padding[axis] + 1;
      }
      return (size + 2 * params.padding[axis] - reach - 1) / params.stride[axis] + 1;
    };
    return {n, k, along(0, h, r), along(1, w, s)};
  }
};

// Winograd's algorithm and Fourier's spread rounding errors over a tile or an image: their bound is
// one of the largest output. This many roundoffs cover the constants of F(4x4, 3x3) and of FFTs of
// any size here; a wrong index among whole numbers still shows, as a difference of 1.
inline constexpr double kTransformRoundoffs = 256;

/// The definition: f(x index, w index, y index) for every product of the convolution, indices in
/// row-major order. The three passes sum the same products into y, x or w.
template <class F>
void for_each_product(const ConvCase& c, const F& f) {
  const Shape ys = c.y_shape();
  const Conv2dParams& p = c.params;
  const std::int64_t cg = c.c / p.groups, kg = c.k / p.groups;
  for (std::int64_t n = 0; n < c.n; ++n)
    for (std::int64_t g = 0; g < p.groups; ++g)
      for (std::int64_t i = 0; i < cg; ++i)
        for (std::int64_t o = 0; o < kg; ++o)
          for (std::int64_t r = 0; r < c.r; ++r)
            for (std::int64_t s = 0; s < c.s; ++s) {
              const std::int64_t wi = p.transposed ? (((g * cg + i) * kg + o) * c.r + r) * c.s + s
                                                   : (((g * kg + o) * cg + i) * c.r + r) * c.s + s;
              // (u, v) walks the side without gaps; the other side is where its taps land.
              const std::int64_t us = p.transposed ? c.h : ys[2], vs = p.transposed ? c.w : ys[3];
              const std::int64_t oh = p.transposed ? ys[2] : c.h, ow = p.transposed ? ys[3] : c.w;
              for (std::int64_t u = 0; u < us; ++u)
                for (std::int64_t v = 0; v < vs; ++v) {
                  const std::int64_t a = u * p.stride[0] - p.padding[0] + r * p.dilation[0];
                  const std::int64_t b = v * p.stride[1] - p.padding[1] + s * p.dilation[1];
                  if (a < 0 || a >= oh || b < 0 || b >= ow) continue;
                  const std::int64_t xh = p.transposed ? u : a, xw = p.transposed ? v : b;
                  const std::int64_t yh = p.transposed ? a : u, yw = p.transposed ? b : v;
                  f(((n * c.c + g * cg + i) * c.h + xh) * c.w + xw, wi,
                    ((n * c.k + g * kg + o) * ys[2] + yh) * ys[3] + yw);
                }
            }
}

inline Strides format_strides(const Shape& shape, MemoryFormat f) {
  return f == MemoryFormat::nchw ? contiguous_strides(shape) : channels_last_strides(shape);
}

/// One pass of a case on a device, with the reference of what it writes.
struct ConvTrial {
  Conv2dArgs args;
  DType dtype;
  Device device;
  std::unique_ptr<Buffer> x, w, y, bias;
  // What the pass writes: values, magnitudes and numbers of terms of its sums.
  std::vector<double> expected, magnitude, terms;
  std::vector<double> bias_expected, bias_magnitude;
  double bias_terms = 0;

  ConvTrial(Device on, DType type, const ConvCase& c, ConvPass pass, MemoryFormat xf,
            MemoryFormat yf, bool with_bias,
            const std::function<std::vector<double>(std::int64_t, std::uint64_t)>& values)
      : dtype(type), device(on) {
    const Shape ys = c.y_shape();
    const auto xv = rounded(type, values(numel(c.x_shape()), 1));
    const auto wv = rounded(type, values(numel(c.w_shape()), 2));
    const auto yv = rounded(type, values(numel(ys), 3));
    const auto bv = rounded(type, values(c.k, 4));
    args.pass = pass;
    args.params = c.params;
    x = std::make_unique<Buffer>(on, type, c.x_shape(), format_strides(c.x_shape(), xf));
    w = std::make_unique<Buffer>(on, type, c.w_shape());
    y = std::make_unique<Buffer>(on, type, ys, format_strides(ys, yf));
    if (pass != ConvPass::backward_data) x->set(xv);
    if (pass != ConvPass::backward_weights) w->set(wv);
    if (pass != ConvPass::forward) y->set(yv);
    args.x = x->view();
    args.w = w->view();
    args.y = y->view();
    if (with_bias) {
      bias = std::make_unique<Buffer>(on, type, Shape{c.k});
      if (pass == ConvPass::forward) bias->set(bv);
      args.bias = bias->view();
    }
    const std::int64_t outputs = numel(pass == ConvPass::forward         ? ys
                                       : pass == ConvPass::backward_data ? c.x_shape()
                                                                         : c.w_shape());
    expected.assign(outputs, 0);
    magnitude.assign(outputs, 0);
    terms.assign(outputs, 0);
    const auto add = [&](std::int64_t at, double value) {
      expected[at] += value;
      magnitude[at] += std::abs(value);
      terms[at] += 1;
    };
    const std::int64_t plane = ys[2] * ys[3];
    if (pass == ConvPass::forward && with_bias) {
      for (std::int64_t i = 0; i < outputs; ++i) add(i, bv[i / plane % c.k]);
    }
    for_each_product(c, [&](std::int64_t xi, std::int64_t wi, std::int64_t yi) {
      switch (pass) {
        case ConvPass::forward: return add(yi, xv[xi] * wv[wi]);
        case ConvPass::backward_data: return add(xi, yv[yi] * wv[wi]);
        case ConvPass::backward_weights: return add(wi, yv[yi] * xv[xi]);
      }
    });
    if (pass == ConvPass::backward_weights && with_bias) {
      bias_expected.assign(c.k, 0);
      bias_magnitude.assign(c.k, 0);
      bias_terms = double(c.n * plane);
      for (std::int64_t i = 0; i < numel(ys); ++i) {
        bias_expected[i / plane % c.k] += yv[i];
        bias_magnitude[i / plane % c.k] += std::abs(yv[i]);
      }
    }
  }

  /// Whether the output's view has this format.
  bool asked_for(MemoryFormat f) const {
    const View& output = args.pass == ConvPass::forward ? args.y : args.x;
    const bool both = output.shape[1] == 1 || output.shape[2] * output.shape[3] == 1;
    return both || output.strides == format_strides(output.shape, f);
  }

  /// Runs into fresh outputs and returns them: the image or weights, then the bias gradient.
  std::vector<std::vector<double>> run(const Stream& stream, const Conv2dKernels& kernels,
                                       const Conv2dPlan& plan) const {
    Conv2dArgs now = args;
    View& target = args.pass == ConvPass::forward         ? now.y
                   : args.pass == ConvPass::backward_data ? now.x
                                                          : now.w;
    const Buffer out(device, dtype, target.shape,
                     args.pass == ConvPass::backward_weights
                         ? contiguous_strides(target.shape)
                         : format_strides(target.shape, plan.output_format));
    target = out.view();
    std::unique_ptr<Buffer> bias_out;
    if (args.pass == ConvPass::backward_weights && bias) {
      bias_out = std::make_unique<Buffer>(device, dtype, args.bias.shape);
      now.bias = bias_out->view();
    }
    const DeviceBytes workspace(device, plan.workspace_bytes);
    // Nothing there to rely on: NaN in every dtype.
    if (device.is_cpu()) std::memset(workspace.data(), 0xff, plan.workspace_bytes);
    kernels.run(stream, plan, now, workspace.data());
    std::vector<std::vector<double>> all{out.values()};
    if (bias_out) all.push_back(bias_out->values());
    return all;
  }
};

}  // namespace weft::testing
