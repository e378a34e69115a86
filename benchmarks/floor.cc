#include "weft/benchmarks/floor.h"

#include <algorithm>
#include <functional>

#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/cnn.h"
#include "weft/examples/dcgan.h"
#include "weft/examples/mlp.h"
#include "weft/examples/resnet.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::bench {

namespace {

// Fills the caches with something else.
void clear_caches() {
  static std::vector<char> other(std::size_t{64} << 20);
  for (std::size_t i = 0; i < other.size(); i += 64) ++other[i];
}

FloorTimes median_ms(const std::function<void()>& f) {
  for (int i = 0; i < 5; ++i) f();
  std::vector<double> warm, cold;
  for (int i = 0; i < 15; ++i) warm.push_back(time_ms(f));
  for (int i = 0; i < 7; ++i) {
    clear_caches();
    cold.push_back(time_ms(f));
  }
  return {quartiles(warm).median, quartiles(cold).median};
}

// The times with the faster layout of the input.
FloorTimes best_of_layouts(const Tensor& x, const std::function<void(const Tensor&)>& f) {
  const Tensor nchw = raw::contiguous(x, MemoryFormat::nchw);
  const Tensor nhwc = raw::contiguous(x, MemoryFormat::nhwc);
  const FloorTimes a = median_ms([&] { f(nchw); }), b = median_ms([&] { f(nhwc); });
  return {std::min(a.warm, b.warm), std::min(a.cold, b.cold)};
}

FloorTimes operator*(const FloorTimes& times, double count) {
  return {times.warm * count, times.cold * count};
}

/// A convolution that a work has `count` times, and the batch norm with an activation after it.
struct ConvLayer {
  std::string name;
  Shape x, w;
  Conv2dParams params = {};
  bool bias = true;
  bool needs_grad_x = true;
  bool normed = false;
  int count = 1;
};

void add_conv(std::vector<FloorRow>& rows, const ConvLayer& layer) {
  const Conv2dParams& params = layer.params;
  const Tensor x = rand(layer.x), w = rand(layer.w);
  const Tensor bias = layer.bias ? rand({layer.w[params.transposed ? 1 : 0]}) : Tensor();
  const Tensor g = rand(raw::conv2d(x, w, bias, params).shape());
  const std::string name =
      layer.name + (layer.count > 1 ? " x" + std::to_string(layer.count) : std::string());
  const auto add = [&](const char* pass, const FloorTimes& ms) {
    rows.push_back({name + " " + pass, ms * layer.count});
  };
  add("forward", best_of_layouts(x, [&](const Tensor& in) { raw::conv2d(in, w, bias, params); }));
  if (layer.needs_grad_x) {
    add("grad_x", best_of_layouts(g, [&](const Tensor& in) {
          raw::conv2d_backward_data(in, w, layer.x, params,
                                    in.is_contiguous() ? MemoryFormat::nchw : MemoryFormat::nhwc);
        }));
  }
  const Tensor x_nhwc = raw::contiguous(x, MemoryFormat::nhwc);
  add("grad_w", best_of_layouts(g, [&](const Tensor& in) {
        raw::conv2d_backward_weights(in.is_contiguous() ? x : x_nhwc, in, layer.w, layer.bias,
                                     params);
      }));
  if (!layer.normed) return;
  const Tensor ones_of = ones({g.shape(1)}), zeros_of = zeros({g.shape(1)});
  const RunningStats running{zeros({g.shape(1)}), ones({g.shape(1)})};
  const BatchNormParams norm{.negative_slope = 0};
  const auto normed = [&](const Tensor& in) {
    return raw::batch_norm(in, ones_of, zeros_of, running, norm);
  };
  add("norm forward", best_of_layouts(g, normed));
  const raw::NormResult of[] = {normed(g), normed(raw::contiguous(g, MemoryFormat::nhwc))};
  add("norm backward", best_of_layouts(g, [&](const Tensor& in) {
        const auto& [y, mean, invstd] = of[in.is_contiguous() ? 0 : 1];
        raw::batch_norm_backward(in, y, ones_of, mean, invstd, true, {},
                                 {.negative_slope = 0, .bias = zeros_of});
      }));
}

void add_linear(std::vector<FloorRow>& rows, const std::string& name, std::int64_t batch,
                std::int64_t in, std::int64_t out, bool needs_grad_x) {
  const Tensor x = rand({batch, in}), w = rand({out, in}), bias = rand({out}),
               g = rand({batch, out});
  rows.push_back({name + " forward", median_ms([&] { raw::linear(x, w, bias); })});
  if (needs_grad_x) rows.push_back({name + " grad_x", median_ms([&] { raw::matmul(g, w); })});
  rows.push_back({name + " grad_w", median_ms([&] { raw::matmul(raw::transpose(g, 0, 1), x); })});
}

template <class Optimizer, class... Options>
FloorTimes optimizer_ms(const std::vector<Tensor>& params, const Options&... options) {
  for (const Tensor& p : params) p.set_grad(rand(p.shape()));
  Optimizer optimizer(params, options...);
  return median_ms([&] { optimizer.step(); });
}

void add_cnn(std::vector<FloorRow>& rows) {
  const Conv2dParams params = {.padding = {2, 2}};
  const auto conv = [&](std::int64_t in, std::int64_t out, std::int64_t size) {
    add_conv(rows, {.name = detail::concat("conv ", in, "-", out, " ", size, "x", size),
                    .x = {64, in, size, size},
                    .w = {out, in, 5, 5},
                    .params = params,
                    .needs_grad_x = in != 3});
  };
  conv(3, 2, 32);
  conv(2, 4, 32);
  conv(4, 32, 32);
  conv(32, 64, 16);
  conv(64, 128, 8);
  conv(128, 256, 8);
  add_linear(rows, "fc 4096-500", 64, 4096, 500, true);
  add_linear(rows, "fc 500-64", 64, 500, 64, true);
  rows.push_back(
      {"SGD", optimizer_ms<optim::SGD>(examples::cnn({.width_scale = 1.0 / 16}).parameters())});
}

// 4 layers of 3, 4, 6 and 3 bottleneck blocks. The first block of a layer halves the image (except
// in the first layer) and widens the shortcut.
void add_resnet50(std::vector<FloorRow>& rows) {
  const auto conv = [&](std::int64_t in, std::int64_t out, std::int64_t size, int kernel,
                        int stride, int count) {
    add_conv(rows, {.name = detail::concat("conv ", in, "-", out, " ", size, "x", size, " k",
                                           kernel, stride > 1 ? " s2" : ""),
                    .x = {8, in, size, size},
                    .w = {out, in, kernel, kernel},
                    .params = {.stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}},
                    .bias = false,
                    .needs_grad_x = in != 3,
                    .normed = true,
                    .count = count});
  };
  conv(3, 64, 224, 7, 2, 1);
  const int blocks[] = {3, 4, 6, 3};
  std::int64_t in = 64, size = 56, width = 64;
  for (int layer = 0; layer < 4; ++layer, width *= 2) {
    const int stride = layer == 0 ? 1 : 2;
    conv(in, width, size, 1, 1, 1);
    conv(width, width, size, 3, stride, 1);
    conv(in, 4 * width, size, 1, stride, 1);
    size /= stride;
    in = 4 * width;
    conv(width, in, size, 1, 1, blocks[layer]);
    conv(in, width, size, 1, 1, blocks[layer] - 1);
    conv(width, width, size, 3, 1, blocks[layer] - 1);
  }
  add_linear(rows, "fc 2048-1000", 8, 2048, 1000, true);
  rows.push_back({"SGD", optimizer_ms<optim::SGD>(examples::resnet50().parameters(),
                                                  optim::SGDOptions{.lr = 0.1, .momentum = 0.9})});
}

// The generator runs forward and backward once. The discriminator runs forward three times (real
// images, generated ones, and these again for the generator), backward three times, twice for w.
void add_dcgan(std::vector<FloorRow>& rows) {
  Conv2dParams halve = {.stride = {2, 2}, .padding = {1, 1}}, twice = halve, whole = {},
               spread = {};
  twice.transposed = spread.transposed = true;
  const auto layer = [&](const char* net, std::int64_t in, std::int64_t out, std::int64_t size,
                         const Conv2dParams& params, bool needs_grad_x, bool normed) {
    return ConvLayer{.name = detail::concat(net, " ", in, "-", out, " ", size, "x", size),
                     .x = {64, in, size, size},
                     .w = params.transposed ? Shape{in, out, 4, 4} : Shape{out, in, 4, 4},
                     .params = params,
                     .bias = false,
                     .needs_grad_x = needs_grad_x,
                     .normed = normed};
  };
  add_conv(rows, layer("G", 100, 512, 1, spread, false, true));
  for (std::int64_t in = 512, size = 4; in >= 64; in /= 2, size *= 2)
    add_conv(rows, layer("G", in, in > 64 ? in / 2 : 1, size, twice, true, in > 64));
  std::vector<FloorRow> once;
  add_conv(once, layer("D", 1, 64, 64, halve, true, false));
  for (std::int64_t in = 64, size = 32; in < 512; in *= 2, size /= 2)
    add_conv(once, layer("D", in, 2 * in, size, halve, true, true));
  add_conv(once, layer("D", 512, 1, 4, whole, true, false));
  for (FloorRow& row : once) {
    // Only the generator needs grad_x of the discriminator's first layer.
    const bool forward = row.kernel.ends_with("forward"), first = row.kernel.starts_with("D 1-64");
    const int count = forward ? 3 : row.kernel.ends_with("grad_w") ? 2 : first ? 1 : 3;
    if (count > 1) row.kernel += " x" + std::to_string(count);
    rows.push_back({row.kernel, row.ms * count});
  }
  examples::Gan gan(64, 64, 100);
  rows.push_back({"Adam", optimizer_ms<optim::Adam>(gan.parameters())});
}

}  // namespace

std::vector<FloorRow> measure_floor(const std::string& work) {
  std::vector<FloorRow> rows;
  Conv2dParams transposed;
  transposed.transposed = true;
  if (work == "autoencoder") {
    add_conv(rows,
             {.name = "conv1 1-8", .x = {32, 1, 28, 28}, .w = {8, 1, 3, 3}, .needs_grad_x = false});
    add_conv(rows, {.name = "conv2 8-64", .x = {32, 8, 26, 26}, .w = {64, 8, 3, 3}});
    add_linear(rows, "fc 36864-32", 32, 36864, 32, true);
    add_linear(rows, "fc 32-36864", 32, 32, 36864, true);
    add_conv(
        rows,
        {.name = "convT 64-8", .x = {32, 64, 24, 24}, .w = {64, 8, 3, 3}, .params = transposed});
    add_conv(rows,
             {.name = "convT 8-1", .x = {32, 8, 26, 26}, .w = {8, 1, 3, 3}, .params = transposed});
    rows.push_back({"Adam", optimizer_ms<optim::Adam>(examples::Autoencoder().parameters())});
  } else if (work == "mlp") {
    add_linear(rows, "fc 784-128", 64, 784, 128, false);
    add_linear(rows, "fc 128-10", 64, 128, 10, true);
    rows.push_back({"SGD", optimizer_ms<optim::SGD>(examples::mlp().parameters())});
  } else if (work == "cnn") {
    add_cnn(rows);
  } else if (work == "resnet50") {
    add_resnet50(rows);
  } else if (work == "dcgan") {
    add_dcgan(rows);
  }
  return rows;
}

}  // namespace weft::bench
