// WEFT_EMULATED_COUNT: GPU work is counted and not done.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/examples/cnn.h"
#include "weft/examples/resnet.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/emulator/kernels.h"
#include "weft/weft.h"

extern "C" const char* weft_emulated_take_counts();

namespace weft::testing {
namespace {

const Device kDevice("cuda:0");

// Before the first use of a device.
const bool is_set = [] {
  setenv("WEFT_EMULATED_COUNT", "1", 1);
  setenv("WEFT_EMULATED_MEMORY", "100000", 1);
  return true;
}();

class Counts : public ::testing::Test {
 protected:
  Counts() {
    thread_state().device = kDevice;
    thread_state().deterministic = true;
  }

  static nlohmann::json taken() {
    runtime(kDevice).synchronize_device(0);
    return nlohmann::json::parse(weft_emulated_take_counts());
  }
  static void expect(const nlohmann::json& count, long calls, long bytes) {
    EXPECT_EQ(count["calls"], calls);
    EXPECT_EQ(count["bytes"], bytes);
  }
};

TEST_F(Counts, KernelsNameTheRestsOfTheirBlocks) {
  const Tensor x = empty({100}), y = empty({50});
  float* const at = static_cast<float*>(x.raw_data()) + 10;
  float* const to = static_cast<float*>(y.raw_data());
  taken();
  const auto launch = [](const float* from, float* into) {
    void* arguments[] = {&from, &into};
    ASSERT_EQ(cudaLaunchKernel(increment(), 1, kThreads, arguments, 0, nullptr), cudaSuccess);
  };
  launch(at, to);
  launch(at, at + 20);  // one block, counted once
  const nlohmann::json counts = taken();
  expect(counts["kernels"], 2, 90 * 4 + 50 * 4 + 90 * 4);
  ASSERT_EQ(counts["by_kernel"].size(), 1u);
  EXPECT_NE(counts["by_kernel"][0]["name"].get<std::string>().find("increment_kernel"),
            std::string::npos);
  expect(counts["by_kernel"][0], 2, 90 * 4 + 50 * 4 + 90 * 4);
  expect(taken()["kernels"], 0, 0);
}

TEST_F(Counts, CopiesAndFills) {
  const Tensor x = empty({100}), host = empty({100}, Device());
  taken();
  raw::copy_(x, host);
  raw::copy_(host, x);
  EXPECT_EQ(host.to_vector<float>(), std::vector<float>(100, 0)) << "nothing to read but zeros";
  runtime(kDevice).copy(x.raw_data(), kDevice, static_cast<char*>(x.raw_data()) + 200, kDevice, 100,
                        current_stream(kDevice));
  runtime(kDevice).fill_zero(x.raw_data(), 400, current_stream(kDevice));
  const nlohmann::json counts = taken();
  expect(counts["copies"], 3, 400 + 400 + 2 * 100);
  expect(counts["fills"], 1, 400);
}

TEST_F(Counts, LibrariesNameTheirOperands) {
  const Tensor a = empty({30, 20}), b = empty({20, 10});
  raw::matmul(a, b);
  taken();
  raw::matmul(a, b);
  expect(taken()["cublaslt"], 1, (30 * 20 + 20 * 10 + 30 * 10) * 4);
  const Tensor x = empty({2, 8, 9, 9}), w = empty({5, 8, 3, 3});
  raw::conv2d(x, w, {}, {});
  taken();
  raw::conv2d(x, w, {}, {});
  expect(taken()["cudnn"], 1, (2 * 8 * 9 * 9 + 5 * 8 * 3 * 3 + 2 * 5 * 7 * 7) * 4);
}

// Heads between batch and time, as attention with the weights asked for has them.
TEST_F(Counts, ProductsOfHeadsAreOneCallWhateverTheBatch) {
  for (const std::int64_t batch : {2, 8}) {
    const Tensor heads = raw::transpose(empty({batch, 10, 4, 6}), 1, 2);
    const auto scores = [&] { return raw::matmul(heads, raw::transpose(heads, 2, 3)); };
    scores();
    taken();
    const Tensor weights = scores();
    EXPECT_EQ(taken()["cublaslt"]["calls"], 1);
    raw::matmul(weights, heads);
    EXPECT_EQ(taken()["cublaslt"]["calls"], 1);
  }
  // A copy of what is broadcast could be far larger than it is.
  const Tensor rows = empty({5, 1, 2, 3}), columns = empty({1, 4, 3, 2});
  raw::matmul(rows, columns);
  taken();
  raw::matmul(rows, columns);
  EXPECT_EQ(taken()["cublaslt"]["calls"], 5);
}

// A check would read its result from the device, where all memory reads as zero.
TEST_F(Counts, IndicesAreInBounds) {
  const Tensor x = empty({4, 3}), index = empty({4, 1}, DType::i64);
  taken();
  raw::gather(x, 1, index);
  EXPECT_EQ(taken()["kernels"]["calls"], 2);
}

TEST_F(Counts, ReplaysAreOneLaunch) {
  const Tensor x = empty({100});
  Tensor y;
  graph::Step step = graph::capture([&] { y = raw::add(raw::mul(x, 2), 1); });
  step();
  step();
  taken();
  step();
  const nlohmann::json counts = taken();
  EXPECT_EQ(counts["graph_launches"], 1);
  EXPECT_EQ(counts["replayed"], 2);
  expect(counts["kernels"], 2, 2 * 2 * 400);
}

/// How many operands a steady step of training copies into another layout.
template <class Model>
long conversions(Model model, const Shape& images, bool channels_last) {
  model.to(kDevice);
  optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  TensorOptions layout(kDevice);
  layout.channels_last = channels_last;
  const Tensor x = zeros(images, layout), label = zeros({images[0]}, {DType::i64, kDevice});
  const auto step = [&] {
    sgd.zero_grad();
    nn::cross_entropy(model(x), label).backward();
    sgd.step();
  };
  const auto taken = [] {
    runtime(kDevice).synchronize_device(0);
    return nlohmann::json::parse(weft_emulated_take_counts());
  };
  for (int i = 0; i < 2; ++i) step();
  taken();
  step();
  long count = 0;
  const nlohmann::json counts = taken();
  for (const nlohmann::json& kernel : counts["by_kernel"]) {
    const auto name = kernel["name"].get<std::string>();
    const bool converts = name.find("strided_kernel") != std::string::npos &&
                          name.find("Identity") != std::string::npos;
    if (converts) count += kernel["calls"].get<long>();
  }
  return count;
}

// The weights of convolutions have the format in which cuDNN takes them: else there were 17 copies
// more in the CNN and 50 in the ResNet. What is left: images that are not in channels last, for the
// first layer and for the gradient of its weight; in the CNN what flatten() makes a row of, and its
// gradient; in the ResNet the gradient of the pooling, whose one pixel has no format of its own.
TEST_F(Counts, ASteadyStepCopiesNoWeight) {
  EXPECT_EQ(conversions(examples::cnn({.width_scale = 1.0 / 16}), {8, 3, 32, 32}, true), 2);
  EXPECT_EQ(conversions(examples::cnn({.width_scale = 1.0 / 16}), {8, 3, 32, 32}, false), 4);
  EXPECT_EQ(conversions(examples::resnet50(), {8, 3, 224, 224}, true), 1);
  EXPECT_EQ(conversions(examples::resnet50(), {8, 3, 224, 224}, false), 3);
}

// More memory than this machine has.
TEST_F(Counts, MemoryIsNotTouched) {
  const Tensor x = zeros({8, 1 << 30}), y = raw::add(x, x);
  EXPECT_EQ(memory_stats(kDevice).in_use_bytes, std::int64_t{64} << 30);
  EXPECT_EQ(raw::slice(y, 1, 0, 1).to_vector<float>(), std::vector<float>(8, 0));
}

}  // namespace
}  // namespace weft::testing
