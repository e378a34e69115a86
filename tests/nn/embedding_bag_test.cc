// nn::EmbeddingBag compared with PyTorch.
#include "weft/nn/embedding_bag.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/embedding.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::ramp;
using testing::values_of;

const testing::Goldens goldens("tests/nn/embedding_bag_goldens");

class EmbeddingBagTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(EmbeddingBagTest);

Tensor flat() { return make({4, 0, 3, 5, 3, 1, 5}, {7}, DType::i64); }
Tensor offsets() { return make({0, 2, 2, 6, 7}, {5}, DType::i64); }
Tensor table() { return make({4, 0, 3, 5, 3, 5, 5, 5, 5, 1, 1, 2}, {4, 3}, DType::i64); }

nn::EmbeddingBag bag_of(const nn::EmbeddingBagOptions& options) {
  nn::EmbeddingBag bag(6, 2, options);
  bag.to(DType::f64);
  raw::copy_(bag.weight, ramp({6, 2}));
  return bag;
}

void check(const std::string& name, const nn::EmbeddingBagOptions& options, const Tensor& index,
           const Tensor& offsets = {}, const Tensor& weights = {}) {
  SCOPED_TRACE(name);
  const nn::EmbeddingBag bag = bag_of(options);
  if (weights.defined()) weights.set_requires_grad();
  const Tensor y = bag(index, offsets, weights);
  y.backward(ramp(y.shape()));
  std::vector<Tensor> results{y, bag.weight.grad()};
  if (weights.defined()) results.push_back(weights.grad());
  const std::vector<std::vector<double>> want = goldens.list(name);
  ASSERT_EQ(results.size(), want.size());
  // f64 sums of up to four numbers below 1.
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(testing::near_values(results[i], want[i], 1e-15)) << "result " << i;
}

TEST_P(EmbeddingBagTest, FollowsPyTorch) {
  for (const std::string mode : {"sum", "mean", "max"}) {
    check(mode + "_offsets", {.mode = mode}, flat(), offsets());
    check(mode + "_table", {.mode = mode}, table());
    check(mode + "_offsets_padded", {.mode = mode, .padding_idx = 5}, flat(), offsets());
    check(mode + "_table_padded", {.mode = mode, .padding_idx = -1}, table());
  }
  check("last_offset", {.mode = "sum", .include_last_offset = true}, flat(),
        make({0, 2, 7}, {3}, DType::i64));
  check("weighted_offsets", {.mode = "sum", .padding_idx = 5}, flat(), offsets(), ramp({7}));
  check("weighted_table", {.mode = "sum"}, table(), {}, ramp({4, 3}));
}

TEST_P(EmbeddingBagTest, StartsAsEmbedding) {
  manual_seed(3);
  const nn::Embedding rows(10, 3, {.padding_idx = -2});
  manual_seed(3);
  const nn::EmbeddingBag bag(10, 3, {.mode = "sum", .padding_idx = -2});
  EXPECT_EQ(values_of(bag.weight), values_of(rows.weight));
  EXPECT_EQ(bag.state_dict()[0].first, "weight");
  EXPECT_EQ(bag.to_string(),
            "EmbeddingBag(10, 3, mode='sum', padding_idx=8)  # 30 parameters\n30 parameters");
  const nn::EmbeddingBag copy = nn::clone(bag);
  EXPECT_FALSE(copy.weight.same(bag.weight));
}

TEST_P(EmbeddingBagTest, Gradients) {
  for (const std::string mode : {"sum", "mean", "max"}) {
    const nn::EmbeddingBag bag = bag_of({.mode = mode, .padding_idx = 2});
    EXPECT_NO_THROW(autograd::gradcheck(
        "EmbeddingBag",
        [&](std::span<const Tensor>) {
          return std::vector<Tensor>{bag(flat(), offsets()), bag(table())};
        },
        std::vector<Tensor>{bag.weight}));
  }
}

// bf16 has 8 bits: 256 + 1 is 256 there. The sums and their gradients are exact in bf16, or 1 /
// 1000 rounded once.
TEST_P(EmbeddingBagTest, LongBagsOfBf16) {
  constexpr std::int64_t kLength = 1000;
  std::vector<double> values(kLength, 0);
  std::fill(values.begin() + kLength / 2, values.end(), 1);
  const Tensor index = arange(kLength, {DType::i64, device()});
  const auto check = [&](const std::string& mode, bool weighted, double want) {
    SCOPED_TRACE(mode + (weighted ? " with weights" : ""));
    nn::EmbeddingBag bag(kLength, 1, {.mode = mode});
    bag.to(DType::bf16);
    raw::copy_(bag.weight, make(values, {kLength, 1}, DType::bf16));
    const auto run = [&](const Tensor& at, const Tensor& offsets) {
      autograd::zero_grad(bag.weight);
      Tensor weights;
      if (weighted) weights = full(at.shape(), 2, {DType::bf16, device()}).set_requires_grad();
      const Tensor y = bag(at, offsets, weights);
      y.backward(ones({1, 1}, {DType::bf16, device()}));
      EXPECT_EQ(y.dtype(), DType::bf16);
      EXPECT_EQ(values_of(y), std::vector<double>{want});
      std::vector<std::vector<double>> grads{values_of(bag.weight.grad())};
      if (weighted) grads.push_back(values_of(weights.grad()));
      return grads;
    };
    EXPECT_EQ(run(index, zeros({1}, DType::i64)), run(index.unsqueeze(0), {}));
  };
  check("mean", false, 0.5);
  check("sum", false, 500);
  check("sum", true, 1000);
}

// 128 / 257 is 0.498; of numbers that are rounded to bf16 first it would be 128 / 256.
TEST_P(EmbeddingBagTest, MeansOfBf16AreRoundedOnce) {
  std::vector<double> values(257, 0);
  std::fill(values.begin(), values.begin() + 128, 1);
  nn::EmbeddingBag bag(257, 1);
  bag.to(DType::bf16);
  raw::copy_(bag.weight, make(values, {257, 1}, DType::bf16));
  const Tensor index = arange(257, {DType::i64, device()});
  const std::vector<double> want = values_of(raw::to(make({128.0 / 257}, {1}), DType::bf16));
  EXPECT_EQ(values_of(bag(index, zeros({1}, DType::i64))), want);
  EXPECT_EQ(values_of(bag(index.unsqueeze(0))), want);
}

TEST_P(EmbeddingBagTest, OfNothing) {
  const Tensor none = zeros({0}, DType::i64), three = zeros({3}, DType::i64);
  for (const std::string mode : {"sum", "mean", "max"}) {
    const nn::EmbeddingBag bag = bag_of({.mode = mode});
    EXPECT_EQ(bag(none, none).shape(), (Shape{0, 2}));
    EXPECT_EQ(values_of(bag(none, three)), std::vector<double>(6, 0));
    EXPECT_EQ(values_of(bag(zeros({2, 0}, DType::i64))), std::vector<double>(4, 0));
    EXPECT_EQ(bag(zeros({0, 2}, DType::i64)).shape(), (Shape{0, 2}));
    for (const auto& [index, offsets] :
         {std::pair(none, none), std::pair(none, three), std::pair(three, none),
          std::pair(zeros({2, 0}, DType::i64), Tensor()),
          std::pair(zeros({0, 2}, DType::i64), Tensor())}) {
      autograd::zero_grad(bag.weight);
      Tensor weights;
      if (mode == "sum") weights = ones(index.shape(), DType::f64).set_requires_grad();
      bag(index, offsets, weights).sum().backward();
      EXPECT_EQ(values_of(bag.weight.grad()), std::vector<double>(12, 0));
      if (weights.defined()) {
        EXPECT_EQ(values_of(weights.grad()),
                  std::vector<double>(static_cast<std::size_t>(index.numel()), 0));
      }
    }
  }
}

TEST_P(EmbeddingBagTest, RefusesWhatDoesNotFit) {
  EXPECT_WEFT_ERROR(nn::EmbeddingBag(6, 2, {.mode = "min"}), InvalidArgument,
                    "[EmbeddingBag] mode: got 'min', expected 'sum', 'mean' or 'max'");
  EXPECT_WEFT_ERROR(nn::EmbeddingBag(6, 2, {.padding_idx = 6}), InvalidArgument,
                    "padding_idx 6 is no row of 6");
  const nn::EmbeddingBag bag = bag_of({});
  EXPECT_WEFT_ERROR(bag(flat()), Shape, "index: got [7], expected [bags,n], or [n] with offsets");
  EXPECT_WEFT_ERROR(bag(table(), offsets()), Shape, "index: got [4,3]");
  EXPECT_WEFT_ERROR(bag(flat(), offsets(), ramp({7})), InvalidArgument, "only for the mode 'sum'");
  EXPECT_WEFT_ERROR(bag_of({.mode = "sum"})(flat(), offsets(), ramp({6})), Shape,
                    "per_sample_weights: got [6], expected [7]");
  EXPECT_WEFT_ERROR(bag(flat(), ramp({2})), Dtype, "offsets: got f64, expected i64");
  EXPECT_WEFT_ERROR(bag_of({.include_last_offset = true})(flat(), zeros({0}, DType::i64)), Shape,
                    "expected [bags] and one more");
  if (device().type != DeviceType::cpu) return;
  for (const std::vector<double>& wrong :
       std::vector<std::vector<double>>{{1, 2}, {0, 8}, {0, 3, 2}}) {
    const auto n = static_cast<std::int64_t>(wrong.size());
    EXPECT_WEFT_ERROR(bag(flat(), make(wrong, {n}, DType::i64)), InvalidArgument,
                      "offsets must begin with 0, ascend and end at most with 7");
  }
  EXPECT_WEFT_ERROR(bag_of({.include_last_offset = true})(flat(), offsets().narrow(0, 0, 4)),
                    InvalidArgument, "ascend and end with 7");
}

}  // namespace
}  // namespace weft
