#include "weft/parallel/balance.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "weft/autograd/autograd.h"
#include "weft/autograd/deferred.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

/// Calls f(layer, input), which returns the output, for a copy of each layer on the sample's
/// device; the first input is the sample.
template <class F>
void for_each_layer(const nn::Sequential& layers, const Tensor& sample, const F& f) {
  const EnableGrad recording;
  GeneratorSet generators;  // timing decides how often layers run: do not use the caller's
  const Scoped drawing(&ThreadState::generators, &generators);
  Tensor x = raw::alias(sample);
  for (const nn::AnyModule& layer : layers) {
    const nn::AnyModule copy = nn::replicate(layer, sample.device());
    x = raw::alias(f(copy, x));
  }
}

Tensor leaf_of(const Tensor& x) {
  const Tensor leaf = raw::alias(x);
  if (is_floating(leaf.dtype())) leaf.set_requires_grad();
  return leaf;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::vector<std::size_t> balanced(std::span<const double> costs, std::size_t parts) {
  const std::size_t n = costs.size();
  WEFT_CHECK(parts >= 1 && parts <= n, InvalidArgument, "balance", "cannot make ", parts,
             " stages of ", n, " layers");
  WEFT_CHECK(std::ranges::all_of(costs, [](double c) { return std::isfinite(c) && c >= 0; }),
             InvalidArgument, "balance", "a cost is below 0 or no number");
  std::vector<double> sums(n + 1);
  std::inclusive_scan(costs.begin(), costs.end(), sums.begin() + 1);
  WEFT_CHECK(std::isfinite(sums[n]), InvalidArgument, "balance",
             "the sum of the costs is infinite");
  // least[p][i]: the most expensive stage's cost, if p stages share the first i layers best.
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(parts + 1, std::vector<double>(n + 1, none));
  std::vector<std::vector<std::size_t>> last(parts + 1, std::vector<std::size_t>(n + 1));
  least[0][0] = 0;
  for (std::size_t p = 1; p <= parts; ++p) {
    for (std::size_t i = p; i <= n; ++i) {
      for (std::size_t j = p - 1; j < i; ++j) {
        const double dearest = std::max(least[p - 1][j], sums[i] - sums[j]);
        if (dearest >= least[p][i]) continue;
        least[p][i] = dearest;
        last[p][i] = j;
      }
    }
  }
  std::vector<std::size_t> sizes(parts);
  for (std::size_t p = parts, i = n; p > 0; --p) {
    sizes[p - 1] = i - last[p][i];
    i = last[p][i];
  }
  return sizes;
}

std::vector<double> layer_seconds(const nn::Sequential& layers, const Tensor& sample,
                                  double seconds) {
  std::vector<std::vector<double>> passes(layers.size());
  const auto begin = std::chrono::steady_clock::now();
  // The first pass chooses kernels and allocates memory.
  for (int pass = -1; pass < 3 || seconds_since(begin) < seconds; ++pass) {
    std::size_t index = 0;
    for_each_layer(layers, sample, [&](const nn::AnyModule& layer, const Tensor& input) {
      const Tensor x = leaf_of(input);
      Runtime& runtime_of = runtime(x.device());
      runtime_of.synchronize(current_stream(x.device()));
      const auto start = std::chrono::steady_clock::now();
      const Tensor y = layer(x);
      if (y.requires_grad()) y.backward(raw::alias(y));
      runtime_of.synchronize(current_stream(x.device()));
      if (pass >= 0) passes[index].push_back(seconds_since(start));
      ++index;
      return y;
    });
  }
  std::vector<double> medians;
  for (std::vector<double>& times : passes) {
    std::ranges::nth_element(times, times.begin() + times.size() / 2);
    medians.push_back(times[times.size() / 2]);
  }
  return medians;
}

std::vector<double> layer_bytes(const nn::Sequential& layers, const Tensor& sample,
                                int micro_batches, double param_scale) {
  std::vector<double> all;
  const Device device = sample.device();
  const auto held = [&] {
    return memory_stats(device).in_use_by_owner[static_cast<int>(MemoryOwner::activations)];
  };
  for_each_layer(layers, sample, [&](const nn::AnyModule& layer, const Tensor& input) {
    const std::int64_t before = held();
    const Tensor y = layer(leaf_of(input));
    const auto activations = static_cast<double>(held() - before);
    double parameters = 0;
    for (const Tensor& p : layer.parameters()) {
      parameters += static_cast<double>(p.numel()) * static_cast<double>(size_of(p.dtype()));
    }
    all.push_back(std::max(activations, 0.0) * micro_batches + parameters * param_scale);
    return y;
  });
  return all;
}

StageCosts stage_costs(const Pipeline& pipeline, std::span<const Tensor> inputs, double seconds) {
  const std::size_t count = pipeline.stages().size();
  const EnableGrad recording;
  GeneratorSet generators;
  const Scoped drawing(&ThreadState::generators, &generators);
  std::vector<nn::AnyModule> stages;
  std::vector<autograd::DeferredGradients::Leaves> weights;
  std::vector<std::vector<Tensor>> inputs_of;
  std::vector<Tensor> x(inputs.begin(), inputs.end());
  for (std::size_t s = 0; s < count; ++s) {
    const Device device = pipeline.devices()[s];
    stages.push_back(nn::replicate(pipeline.stages()[s], device));
    weights.push_back(autograd::DeferredGradients::leaves(stages[s].parameters()));
    for (Tensor& each : x) each = raw::alias(raw::to(each, device));
    inputs_of.push_back(x);
    const NoGrad no_grad;
    x = stages[s](x);
  }
  enum { kForward, kInput, kWeight };
  std::vector<std::array<std::vector<double>, 3>> passes(count);
  const auto start = std::chrono::steady_clock::now();
  const auto pass = [&](std::size_t s) {
    const Device device = pipeline.devices()[s];
    const auto timed = [&](int what, const auto& f) {
      const auto begin = std::chrono::steady_clock::now();
      f();
      runtime(device).synchronize(current_stream(device));
      passes[s][static_cast<std::size_t>(what)].push_back(seconds_since(begin));
    };
    std::vector<Tensor> leaves, outputs;
    for (const Tensor& input : inputs_of[s]) leaves.push_back(s > 0 ? leaf_of(input) : input);
    autograd::DeferredGradients of_weights;
    timed(kForward, [&] { outputs = stages[s](leaves); });
    std::erase_if(outputs, [](const Tensor& y) { return !y.defined() || !y.requires_grad(); });
    timed(kInput, [&] {
      const autograd::DeferredGradients::Scope putting_off(of_weights, weights[s]);
      if (!outputs.empty()) autograd::backward(outputs, std::vector<Tensor>(outputs));
    });
    timed(kWeight, [&] { of_weights.run(); });
  };
  // The first pass chooses kernels and allocates memory, and is not counted.
  JobGroup jobs;
  std::vector<Device> seen;
  for (const Device device : pipeline.devices()) {
    if (std::ranges::count(seen, device)) continue;
    seen.push_back(device);
    jobs.submit(device, [&, device] {
      for (int i = 0; i < 6 || seconds_since(start) < seconds; ++i) {
        for (std::size_t s = 0; s < count; ++s) {
          if (pipeline.devices()[s] == device) pass(s);
        }
      }
    });
  }
  jobs.wait();
  StageCosts costs;
  for (auto& of_stage : passes) {
    const auto median = [&](int what) {
      std::vector<double>& times = of_stage[static_cast<std::size_t>(what)];
      times.erase(times.begin());
      std::ranges::nth_element(times,
                               times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
      return times[times.size() / 2];
    };
    costs.forward.push_back(median(kForward));
    costs.backward_input.push_back(median(kInput));
    costs.backward_weight.push_back(median(kWeight));
  }
  return costs;
}

std::vector<nn::AnyModule> cut(const nn::Sequential& layers, std::span<const std::size_t> sizes) {
  const std::size_t sum = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  WEFT_CHECK(sum == layers.size() && std::ranges::count(sizes, 0u) == 0, InvalidArgument, "cut",
             "stages of ", sum, " layers together, or one without any: the chain has ",
             layers.size());
  std::vector<nn::AnyModule> stages;
  std::size_t begin = 0;
  for (const std::size_t size : sizes) {
    stages.push_back(layers.slice(begin, begin + size));
    begin += size;
  }
  return stages;
}

}  // namespace weft::parallel
