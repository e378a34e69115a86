// The bias and the relu after a convolution on emulated GPUs: cuDNN computes both, or one kernel,
// and one kernel their gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "weft/weft.h"

extern "C" const char* weft_emulated_take_counts();

namespace weft {
namespace {

const Device kDevice("cuda:0");

class ConvRelu : public ::testing::Test {
 protected:
  static nlohmann::json taken() {
    runtime(kDevice).synchronize_device(0);
    return nlohmann::json::parse(weft_emulated_take_counts());
  }
  /// How many kernels a convolution launches beside cuDNN's call.
  static long kernels(const Tensor& x, const Tensor& w, const Tensor& bias, Activation then) {
    conv2d(x, w, bias, {}, then);  // makes the plan
    taken();
    conv2d(x, w, bias, {}, then);
    const nlohmann::json counts = taken();
    EXPECT_EQ(counts["cudnn"]["calls"], 1);
    return counts["kernels"]["calls"];
  }
  static std::vector<float> values(const Tensor& x) {
    return x.to(Device()).contiguous().to_vector<float>();
  }

  static Tensor on_gpu(const Shape& shape, std::uint64_t seed) {
    Generator generator(seed);
    TensorOptions layout(kDevice);
    layout.channels_last = true;
    const Tensor x = empty(shape, layout);
    raw::copy_(x, uniform(shape, -1, 1, DType::f32, &generator));
    return x;
  }
  const Tensor x = on_gpu({2, 8, 9, 9}, 1), w = on_gpu({16, 8, 3, 3}, 2);
  const Tensor bias = uniform({16}, -1, 1).to(kDevice);
  const Scoped<bool> timed{&ThreadState::benchmark, true};
};

// If the fastest plan adds the bias, it also applies the relu; else one kernel does both
// afterwards.
TEST_F(ConvRelu, IsOneCallWithTheBias) {
  int fused = 0;
  for (const std::int64_t channels : {8, 12, 16, 20, 24, 28, 32, 36}) {
    const Tensor weight = on_gpu({channels, 8, 3, 3}, 2);
    const Tensor b = uniform({channels}, -1, 1).to(kDevice);
    EXPECT_EQ(values(conv2d(x, weight, b, {}, Activation::relu)),
              values(relu(conv2d(x, weight, b, {}))));
    const long after_bias = kernels(x, weight, b, Activation::none);
    EXPECT_EQ(kernels(x, weight, b, Activation::relu), after_bias);
    fused += after_bias == 0;
    EXPECT_EQ(kernels(x, weight, {}, Activation::relu),
              1 + kernels(x, weight, {}, Activation::none))
        << "nothing joins it without a bias";
    const Scoped fixed(&ThreadState::deterministic, true);
    EXPECT_EQ(kernels(x, weight, b, Activation::relu), 1) << "the fixed rule";
  }
  EXPECT_GT(fused, 0);
}

/// All memory of the device that can be had, of the 256 MiB that this test's target gives it.
class AllMemory {
 public:
  AllMemory() {
    for (std::size_t bytes = std::size_t{1} << 30; bytes >= 4096; bytes /= 2) {
      while (void* const p = runtime(kDevice).allocate(0, bytes)) taken_.emplace_back(p, bytes);
    }
  }
  ~AllMemory() {
    for (const auto& [p, bytes] : taken_) runtime(kDevice).free(0, p, bytes);
  }
  AllMemory(const AllMemory&) = delete;
  AllMemory& operator=(const AllMemory&) = delete;

 private:
  std::vector<std::pair<void*, std::size_t>> taken_;
};

/// A convolution whose fastest plan adds the bias. It is tried with a relu before that is used,
/// which takes memory.
class ConvReluTrial : public ConvRelu {
 protected:
  /// From so many channels on.
  void make(std::int64_t channels) {
    const std::int64_t end = channels + 200;
    do {
      channels += 4;
      weight = on_gpu({channels, 8, 3, 3}, 2);
      b = uniform({channels}, -1, 1).to(kDevice);
      ASSERT_LT(channels, end) << "no plan that adds the bias was the fastest";
    } while (kernels(x, weight, b, Activation::none) > 0);
    release_cached_memory(kDevice);
  }
  /// How many kernels apply the relu.
  long after_bias() const { return kernels(x, weight, b, Activation::relu); }

  Tensor weight, b;
};

TEST_F(ConvReluTrial, ComesAgainWhenThereIsMemory) {
  make(40);
  {
    const AllMemory taken_away;
    EXPECT_EQ(after_bias(), 1) << "no memory for two trials";
  }
  EXPECT_EQ(after_bias(), 0);
}

TEST_F(ConvReluTrial, DoesNotComeForEver) {
  make(240);
  {
    const AllMemory taken_away;
    EXPECT_EQ(after_bias() + after_bias(), 2);
  }
  EXPECT_EQ(after_bias(), 1);
}

TEST_F(ConvReluTrial, TakesMemoryThatTheAllocatorKeeps) {
  make(440);
  Tensor kept = empty({std::int64_t{1} << 24}, kDevice);
  const AllMemory taken_away;
  kept = Tensor();
  EXPECT_EQ(after_bias(), 0);
}

TEST_F(ConvRelu, LeavesANaN) {
  const Tensor with_nan = bias.clone();
  with_nan.slice(0, 3, 4).fill_(std::numeric_limits<double>::quiet_NaN());
  const std::vector<float> y = values(conv2d(x, w, with_nan, {}, Activation::relu));
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(std::isnan(y[i]), i / 49 % 16 == 3) << i;
    EXPECT_FALSE(y[i] < 0);
  }
}

/// The gradients of x, w and bias, and how many kernels a backward launched besides cuDNN's calls.
struct Backward {
  std::vector<std::vector<float>> gradients;
  long kernels;
};

class ConvReluBackward : public ConvRelu {
 protected:
  Backward backward(bool fused, const Tensor& grad, const Tensor& image,
                    bool of_image = true) const {
    const Scoped fixed(&ThreadState::deterministic, true);
    Backward result;
    for (int i = 0; i < 2; ++i) {  // the first one makes the plans
      const Tensor leaves[] = {image.detach().set_requires_grad(of_image),
                               w.detach().set_requires_grad(), bias.detach().set_requires_grad()};
      const auto& [a, b, c] = leaves;
      const Tensor y = fused ? conv2d(a, b, c, {}, Activation::relu) : relu(conv2d(a, b, c));
      taken();
      y.backward(grad);
      result.kernels = taken()["kernels"]["calls"];
      result.gradients.clear();
      for (const Tensor& leaf : leaves) {
        if (leaf.requires_grad()) result.gradients.push_back(values(leaf.grad()));
      }
    }
    return result;
  }
  const Tensor grad = on_gpu({2, 16, 7, 7}, 3);
};

// From both layouts. The sums of 98 numbers below 1 may be rounded in another order.
TEST_F(ConvReluBackward, IsOneKernelWithTheSums) {
  for (const Tensor& g : {grad, raw::contiguous(grad)}) {
    const Backward fused = backward(true, g, x), separate = backward(false, g, x);
    EXPECT_EQ(fused.kernels, 1);
    EXPECT_EQ(separate.kernels, 2) << "relu and the sums";
    EXPECT_EQ(fused.gradients[0], separate.gradients[0]);
    EXPECT_EQ(fused.gradients[1], separate.gradients[1]);
    for (std::size_t k = 0; k < 16; ++k) {
      EXPECT_NEAR(fused.gradients[2][k], separate.gradients[2][k], 1e-5) << k;
    }
  }
}

// Beside a weight in channels last, for the forward pass and for the weight's gradient.
TEST_F(ConvReluBackward, ARowMajorImageIsConvertedOnce) {
  const Tensor row_major = raw::contiguous(x);
  const Backward from_rows = backward(true, grad, row_major, false);
  const Backward from_pixels = backward(true, grad, x, false);
  EXPECT_EQ(from_rows.kernels, from_pixels.kernels);
  EXPECT_EQ(from_rows.gradients, from_pixels.gradients);
}

// The gradient of the caller stays.
TEST_F(ConvReluBackward, LeavesTheGradientItWasGiven) {
  const std::vector<float> before = values(grad);
  backward(true, grad, x);
  EXPECT_EQ(values(grad), before);
}

}  // namespace
}  // namespace weft
