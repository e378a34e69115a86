#include "weft/train/step.h"
#include "weft/autograd/ops.h"

#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/tests/core/expect_error.h"

namespace weft::train {
namespace {

Options with_graph(bool graph) {
  Options options;
  options.graph = graph;
  return options;
}

// The losses of steps with batches of these sizes.
std::vector<double> losses(bool graph, const std::vector<std::int64_t>& sizes) {
  manual_seed(1);
  nn::Linear model(6, 3);
  optim::Adam adam(model.parameters(), {.lr = 0.01});
  Step step(with_graph(graph), [&](const Tensor& x, const Tensor& label) {
    adam.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label);
    loss.backward();
    adam.step();
    return loss;
  });
  std::vector<double> values;
  for (const std::int64_t size : sizes) {
    const Tensor label = zeros({size}, DType::i64);
    label.fill_(size % 3);
    values.push_back(step(randn({size, 6}), label).item<double>());
  }
  return values;
}

TEST(Step, LossesAreThoseOfTheBody) {
  const std::vector<std::int64_t> sizes = {4, 4, 4, 1, 4, 4, 5, 5, 5, 4};
  const std::vector<double> plain = losses(false, sizes);
  EXPECT_EQ(losses(true, sizes), plain);
  EXPECT_NE(plain.front(), plain.back());
}

TEST(Step, TheLargestBatchIsCaptured) {
  std::vector<const Storage*> read;
  Step step(with_graph(true), [&](const Tensor& x) {
    read.push_back(x.storage().get());
    return relu(x);
  });
  std::vector<const Storage*> given;
  const auto run = [&](std::int64_t size) {
    const Tensor x = randn({size, 2});
    given.push_back(x.storage().get());
    EXPECT_EQ(step(x).to_vector<float>(), relu(x).to_vector<float>());
  };
  for (const std::int64_t size : {2, 3, 3, 1, 3}) run(size);
  ASSERT_EQ(read.size(), 5U);
  EXPECT_NE(read[0], given[0]);
  EXPECT_NE(read[1], read[0]);
  EXPECT_EQ(read[2], read[1]);
  EXPECT_EQ(read[3], given[3]);  // unchanged
  EXPECT_EQ(read[4], read[1]);
}

TEST(Step, OtherDtypesAreCapturedAnew) {
  std::vector<DType> read;
  Step step(with_graph(true), [&](const Tensor& x) {
    read.push_back(x.dtype());
    return x + x;
  });
  const auto run = [&](DType dtype, double value) {
    const Tensor y = step(full({2, 3}, value, dtype));
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(y.to(DType::f64).to_vector<double>(), std::vector<double>(6, 2 * value));
  };
  run(DType::f32, 0.5);
  run(DType::f64, 1e-300);  // 0 in f32
  run(DType::f64, 0.1);
  run(DType::i64, (std::int64_t{1} << 24) + 1);
  run(DType::f32, 0.25);
  EXPECT_EQ(read, (std::vector{DType::f32, DType::f64, DType::f64, DType::i64, DType::f32}));
}

TEST(Step, WhatCannotBeCapturedIsRefused) {
  const Tensor x = ones({1});
  for (const bool graph : {false, true}) {
    Step step(with_graph(graph), [](const Tensor& batch) {
      const Tensor y = relu(batch);
      y.item<float>();
      return y;
    });
    step(x);
    if (!graph) {
      step(x);
    } else {
      EXPECT_WEFT_ERROR(step(x), Unsupported, "[item] cannot be captured");
    }
  }
}

}  // namespace
}  // namespace weft::train
