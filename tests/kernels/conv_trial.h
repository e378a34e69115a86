// A convolution with the result of the definition, for the tests of every way to convolve.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/tests/kernels/device_buffers.h"

namespace weft::testing {

/// The sizes of a convolution: x [n,c,h,w], k channels in y, a window of r x s.
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

// Winograd's and Fourier's algorithms spread rounding errors over a tile or an image, so their
// bound depends on the largest output. This many roundoffs cover the constants of F(4x4, 3x3) and
// of FFTs of all sizes here; with integers a wrong index is still detected, as a difference of 1.
inline constexpr double kTransformRoundoffs = 256;

/// One pass of a case on a device, with the expected output.
struct ConvTrial {
  Conv2dArgs args;
  DType dtype;
  Device device;
  std::unique_ptr<Buffer> x, w, y, bias;
  // The expected output: values, magnitudes and numbers of terms of its sums.
  std::vector<double> expected, magnitude, terms;
  std::vector<double> bias_expected, bias_magnitude, bias_terms;

  ConvTrial(Device on, DType type, const ConvCase& c, ConvPass pass, MemoryFormat xf,
            MemoryFormat yf, bool with_bias,
            const std::function<std::vector<double>(std::int64_t, std::uint64_t)>& values,
            MemoryFormat wf = MemoryFormat::nchw)
      : dtype(type), device(on) {
    const Shape ys = c.y_shape();
    const auto xv = rounded(type, values(numel(c.x_shape()), 1));
    const auto wv = rounded(type, values(numel(c.w_shape()), 2));
    const auto yv = rounded(type, values(numel(ys), 3));
    const auto bv = rounded(type, values(c.k, 4));
    args.pass = pass;
    args.params = c.params;
    x = std::make_unique<Buffer>(on, type, c.x_shape(), format_strides(c.x_shape(), xf));
    w = std::make_unique<Buffer>(on, type, c.w_shape(), format_strides(c.w_shape(), wf));
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
    const auto all = [](auto f, const std::vector<double>& values) {
      std::vector<double> made(values.size());
      std::transform(values.begin(), values.end(), made.begin(), f);
      return made;
    };
    const auto defined = [&](auto f) {
      return by_definition(c, all(f, xv), all(f, wv), all(f, yv), all(f, bv));
    };
    // Tests try the same numbers in one layout after the other.
    static std::optional<Definition> last;
    Definition key{c.params, pass, with_bias, c.x_shape(), c.w_shape(), ys, {xv, wv, yv, bv}, {}};
    if (!last || !last->is_of(key)) {
      key.results = {defined([](double v) { return v; }),
                     defined([](double v) { return std::abs(v); }),
                     defined([](double) { return 1.0; })};
      last = std::move(key);
    }
    std::tie(expected, bias_expected) = last->results[0];
    std::tie(magnitude, bias_magnitude) = last->results[1];
    std::tie(terms, bias_terms) = last->results[2];
  }

  /// Expects what run() returned to be exact, or else within the bound of rounding sums; the image
  /// or weights also within `spread`.
  void expect(const std::vector<std::vector<double>>& got, bool exact, double spread = 0) const {
    const auto within = [&](const std::vector<double>& values, const std::vector<double>& want,
                            const std::vector<double>& sizes, const std::vector<double>& counts,
                            double more) {
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double bound = exact ? 0 : sum_bound(dtype, counts[i], sizes[i], want[i]);
        ASSERT_NEAR(values[i], want[i], bound + more) << "element " << i;
      }
    };
    within(got[0], expected, magnitude, terms, spread);
    if (bias_expected.empty()) return;
    SCOPED_TRACE("the bias gradient");
    within(got[1], bias_expected, bias_magnitude, bias_terms, 0);
  }
  /// The bound of transforming algorithms, for which one output's error depends on all.
  double transform_bound() const {
    const double largest =
        magnitude.empty() ? 0 : *std::max_element(magnitude.begin(), magnitude.end());
    return kTransformRoundoffs * sum_roundoff(dtype) * largest;
  }

  /// Whether the output's view has this format.
  bool asked_for(MemoryFormat f) const {
    const View& output = args.pass == ConvPass::forward ? args.y : args.x;
    const bool both = output.shape[1] == 1 || output.shape[2] * output.shape[3] == 1;
    return both || output.strides == format_strides(output.shape, f);
  }

  /// What a problem's definition gives, and what it depends on.
  struct Definition {
    Conv2dParams params;
    ConvPass pass;
    bool with_bias;
    Shape x, w, y;
    std::array<std::vector<double>, 4> values;  // of x, w, y and the bias
    std::array<std::pair<std::vector<double>, std::vector<double>>, 3> results;

    bool is_of(const Definition& other) const {
      const auto numbers = [](const Conv2dParams& p) {
        return std::tie(p.stride, p.padding, p.dilation, p.output_padding, p.groups, p.transposed);
      };
      return numbers(params) == numbers(other.params) &&
             std::tie(pass, with_bias, x, w, y, values) ==
                 std::tie(other.pass, other.with_bias, other.x, other.w, other.y, other.values);
    }
  };

  /// The pass in f64: the image or weights that it writes, and the gradient of the bias.
  std::pair<std::vector<double>, std::vector<double>> by_definition(
      const ConvCase& c, const std::vector<double>& x_values, const std::vector<double>& w_values,
      const std::vector<double>& y_values, const std::vector<double>& bias_values) const {
    const Device host;
    const Buffer of_x(host, DType::f64, c.x_shape(), x_values),
        of_w(host, DType::f64, c.w_shape(), w_values),
        of_y(host, DType::f64, c.y_shape(), y_values),
        of_bias(host, DType::f64, Shape{c.k}, bias_values);
    const Conv2dArgs same{
        args.pass,  args.params, of_x.view(), of_w.view(), args.bias ? of_bias.view() : View(),
        of_y.view()};
    const Conv2dKernels& kernels = reference_kernels().conv;
    kernels.run(backend(host).runtime->default_stream(0), *kernels.plan(same), same, nullptr);
    const Buffer& written = args.pass == ConvPass::forward         ? of_y
                            : args.pass == ConvPass::backward_data ? of_x
                                                                   : of_w;
    const bool of_gradient = args.pass == ConvPass::backward_weights && args.bias;
    return {written.values(), of_gradient ? of_bias.values() : std::vector<double>()};
  }

  /// Runs into new outputs and returns them: the image or weights, then the bias gradient.
  std::vector<std::vector<double>> run(const Stream& stream, const Conv2dKernels& kernels,
                                       const Conv2dPlan& plan) const {
    Conv2dArgs now = args;
    View& target = args.pass == ConvPass::forward         ? now.y
                   : args.pass == ConvPass::backward_data ? now.x
                                                          : now.w;
    const Buffer out(device, dtype, target.shape,
                     args.pass == ConvPass::backward_weights
                         ? target.strides
                         : format_strides(target.shape, plan.output_format));
    target = out.view();
    std::unique_ptr<Buffer> bias_out;
    if (args.pass == ConvPass::backward_weights && bias) {
      bias_out = std::make_unique<Buffer>(device, dtype, args.bias.shape);
      now.bias = bias_out->view();
    }
    const DeviceBytes workspace(device, plan.workspace_bytes);
    // The workspace has no usable content: NaN in every dtype.
    if (device.is_cpu()) std::memset(workspace.data(), 0xff, plan.workspace_bytes);
    kernels.run(stream, plan, now, workspace.data());
    std::vector<std::vector<double>> all{out.values()};
    if (bias_out) all.push_back(bias_out->values());
    return all;
  }
};

}  // namespace weft::testing
