#include "weft/benchmarks/floor.h"

#include <algorithm>
#include <functional>

#include "weft/benchmarks/timing.h"
#include "weft/core/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/mlp.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::bench {

namespace {

double median_ms(const std::function<void()>& f) {
  for (int i = 0; i < 5; ++i) f();
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) times.push_back(time_ms(f));
  return quartiles(times).median;
}

// Over the layouts of the inputs the faster one.
double best_of_layouts(const Tensor& x, const std::function<void(const Tensor&)>& f) {
  const Tensor nchw = raw::contiguous(x, MemoryFormat::nchw);
  const Tensor nhwc = raw::contiguous(x, MemoryFormat::nhwc);
  return std::min(median_ms([&] { f(nchw); }), median_ms([&] { f(nhwc); }));
}

void add_conv(std::vector<FloorRow>& rows, const std::string& name, const Shape& x_shape,
              const Shape& w_shape, bool transposed, bool needs_grad_x) {
  Conv2dParams params;
  params.transposed = transposed;
  const Tensor x = rand(x_shape), w = rand(w_shape);
  const Tensor bias = rand({w_shape[transposed ? 1 : 0]});
  const Tensor g = rand(raw::conv2d(x, w, bias, params).shape());
  rows.push_back({name + " forward",
                  best_of_layouts(x, [&](const Tensor& in) { raw::conv2d(in, w, bias, params); })});
  if (needs_grad_x) {
    rows.push_back({name + " grad_x", best_of_layouts(g, [&](const Tensor& in) {
                      raw::conv2d_backward_data(in, w, x_shape, params);
                    })});
  }
  const Tensor x_nhwc = raw::contiguous(x, MemoryFormat::nhwc);
  rows.push_back({name + " grad_w", best_of_layouts(g, [&](const Tensor& in) {
                    raw::conv2d_backward_weights(in.is_contiguous() ? x : x_nhwc, in, w_shape, true,
                                                 params);
                  })});
}

void add_linear(std::vector<FloorRow>& rows, const std::string& name, std::int64_t batch,
                std::int64_t in, std::int64_t out, bool needs_grad_x) {
  const Tensor x = rand({batch, in}), w = rand({out, in}), bias = rand({out}),
               g = rand({batch, out});
  rows.push_back({name + " forward", median_ms([&] { raw::linear(x, w, bias); })});
  if (needs_grad_x) rows.push_back({name + " grad_x", median_ms([&] { raw::matmul(g, w); })});
  rows.push_back({name + " grad_w", median_ms([&] { raw::matmul(raw::transpose(g, 0, 1), x); })});
}

template <class Optimizer>
double optimizer_ms(const std::vector<Tensor>& params) {
  for (const Tensor& p : params) p.set_grad(rand(p.shape()));
  Optimizer optimizer(params);
  return median_ms([&] { optimizer.step(); });
}

}  // namespace

std::vector<FloorRow> measure_floor(const std::string& work) {
  std::vector<FloorRow> rows;
  if (work == "autoencoder") {
    add_conv(rows, "conv1 1-8", {32, 1, 28, 28}, {8, 1, 3, 3}, false, false);
    add_conv(rows, "conv2 8-64", {32, 8, 26, 26}, {64, 8, 3, 3}, false, true);
    add_linear(rows, "fc 36864-32", 32, 36864, 32, true);
    add_linear(rows, "fc 32-36864", 32, 32, 36864, true);
    add_conv(rows, "convT 64-8", {32, 64, 24, 24}, {64, 8, 3, 3}, true, true);
    add_conv(rows, "convT 8-1", {32, 8, 26, 26}, {8, 1, 3, 3}, true, true);
    rows.push_back({"Adam", optimizer_ms<optim::Adam>(examples::Autoencoder().parameters())});
  } else if (work == "mlp") {
    add_linear(rows, "fc 784-128", 64, 784, 128, false);
    add_linear(rows, "fc 128-10", 64, 128, 10, true);
    rows.push_back({"SGD", optimizer_ms<optim::SGD>(examples::mlp().parameters())});
  } else {
    WEFT_THROW(InvalidArgument, "bench", "no floor for '", work, "'");
  }
  return rows;
}

}  // namespace weft::bench
