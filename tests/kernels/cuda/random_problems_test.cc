// Random convolutions, of which each pass has a plan: asked of the real cuDNN for an H100, an H200
// and an A100 in turn, which need not be there, and of the emulated one. So the emulator neither
// promises a plan that the library does not have, nor hides one. WEFT_CASES gives the number, 500
// without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/cuda/conv_graph.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/tests/kernels/cuda/absent_gpu.h"

namespace weft::cuda {
namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  /// A whole number of [low, high]; the same with every standard library.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  template <class T, std::size_t N>
  T one_of(const T (&values)[N]) {
    return values[between(0, N - 1)];
  }

 private:
  std::mt19937 random_;
};

struct RandomProblem {
  Conv2dArgs args;
  MemoryFormat format;
  bool tf32, deterministic;

  explicit RandomProblem(unsigned seed) {
    Draw draw(seed);
    constexpr std::int64_t kChannels[] = {1, 2, 3, 4, 5, 7, 8, 16, 24, 33};
    constexpr std::int64_t kGroups[] = {1, 1, 1, 2, 3, 8};
    constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f64};
    const DType dtype = draw.one_of(kDTypes);
    format = draw.between(0, 1) ? MemoryFormat::nhwc : MemoryFormat::nchw;
    tf32 = draw.between(0, 1);
    deterministic = draw.between(0, 1);
    Conv2dParams& p = args.params;
    p.groups = draw.one_of(kGroups);
    const std::int64_t c = draw.one_of(kChannels), k = draw.one_of(kChannels);
    const std::int64_t n = draw.between(1, 8);
    std::int64_t window[2], big[2], small[2];
    for (int i = 0; i < 2; ++i) {
      window[i] = draw.between(1, 5);
      p.stride[i] = draw.between(1, 3);
      p.dilation[i] = draw.between(1, 3);
      p.padding[i] = draw.between(0, window[i]);
      const std::int64_t reach = p.dilation[i] * (window[i] - 1) + 1;
      big[i] = draw.between(std::max<std::int64_t>(1, reach - 2 * p.padding[i]), 40);
      small[i] = (big[i] + 2 * p.padding[i] - reach) / p.stride[i] + 1;
    }
    const auto view = [&](const Shape& shape) {
      return View{nullptr, dtype, shape, format_strides(shape, format)};
    };
    args.x = view({n, c * p.groups, big[0], big[1]});
    args.w = view({k * p.groups, c, window[0], window[1]});
    args.y = view({n, k * p.groups, small[0], small[1]});
  }
};

class RandomConvolutions : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef WEFT_EMULATED_CUDA
    if (!cudnn_library().error().empty()) GTEST_SKIP() << cudnn_library().error();
#endif
    if (device_count(DeviceType::cuda) > 0) {
      devices_ = {{.handle = cudnn_handle(0)}};
      return;
    }
    for (const char* const name : {"h100", "h200", "a100"}) absent_.push_back(absent_gpu(name));
    for (const BackendDescriptor& gpu : absent_) devices_.push_back({.properties = &gpu});
  }

  static bool has_plan(const RandomProblem& problem, const ConvEpilogue& epilogue,
                       const PlanDevice& device) {
    const CudnnProblem p(problem.args);
    const ConvGraph graph(p, problem.format, epilogue, device);
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      for (const EngineConfig& config : graph.offered(mode)) {
        if (admissible(config, p.dtype, problem.tf32, problem.deterministic) &&
            EnginePlan::make(config, device)) {
          return true;
        }
      }
    }
    return false;
  }

  std::vector<BackendDescriptor> absent_;
  std::vector<PlanDevice> devices_;
};

TEST_F(RandomConvolutions, HaveAPlanForEachPass) {
  const char* const given = std::getenv("WEFT_CASES");
  const auto cases = static_cast<unsigned>(given ? std::atoi(given) : 500);
  for (unsigned seed = 0; seed < cases; ++seed) {
    RandomProblem problem(seed);
    const std::size_t device = seed % devices_.size();
    const auto expect_plan = [&](ConvPass pass, const ConvEpilogue& epilogue, bool expected) {
      problem.args.pass = pass;
      EXPECT_EQ(has_plan(problem, epilogue, devices_[device]), expected)
          << "seed " << seed << ", GPU " << device << ": " << CudnnProblem(problem.args).text()
          << (problem.format == MemoryFormat::nhwc ? ", nhwc" : ", nchw")
          << (problem.tf32 ? ", tf32" : "") << (problem.deterministic ? ", deterministic" : "")
          << (epilogue.bias ? ", bias" : "") << (epilogue.relu ? ", relu" : "");
    };
    for (const ConvPass pass :
         {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
      expect_plan(pass, {}, true);
    }
    expect_plan(ConvPass::forward, {.bias = true}, true);
    expect_plan(ConvPass::forward, {.bias = true, .relu = true}, true);
    expect_plan(ConvPass::backward_data, {.bias = true}, false);
  }
}

}  // namespace
}  // namespace weft::cuda
