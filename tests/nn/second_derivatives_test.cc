// Second derivatives of losses and layers that have rules, or compositions, of their own.
// tests/autograd/second_derivatives_test.cc has those of the operations.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "weft/autograd/autocast.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/nn/activation.h"
#include "weft/nn/embedding_bag.h"
#include "weft/nn/loss.h"
#include "weft/nn/pixel_shuffle.h"
#include "weft/nn/pooling.h"
#include "weft/nn/recurrent.h"
#include "weft/tensor/creation.h"
#include "weft/tests/declared.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using Tensors = std::vector<Tensor>;

Tensor leaf(const Shape& shape, double low, double high, int seed) {
  return testing::some(shape, DType::f64, low, high, seed).set_requires_grad();
}

struct Case {
  std::string name;
  Tensors inputs;
  std::function<Tensor(std::span<const Tensor>)> f;
};

void check(const Case& c) {
  const auto all = [&](std::span<const Tensor> in) { return Tensors{c.f(in)}; };
  SCOPED_TRACE(c.name);
  try {
    autograd::gradgradcheck(c.name, all, c.inputs);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

std::vector<Case> losses() {
  const Tensor x = leaf({3, 4}, -2, 2, 1), p = leaf({3, 4}, 0.1, 0.9, 2),
               q = leaf({3, 4}, 0.1, 0.9, 3);
  const Tensor weight = testing::some({4}, DType::f64, 0.5, 2, 4);
  const Tensor target = tensor({1.0, -100.0, 3.0}, DType::i64);
  std::vector<Case> all;
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    all.push_back(
        {"nll_loss", {x}, [=](auto in) { return nn::nll_loss(in[0], target, -100, r, weight); }});
    all.push_back(
        {"bce_loss", {p, q}, [=](auto in) { return nn::bce_loss(in[0], in[1], r, weight); }});
    all.push_back({"bce_with_logits", {x, q}, [=](auto in) {
                     return nn::bce_with_logits(in[0], in[1], r, weight, weight);
                   }});
    all.push_back({"l1_loss", {x, q}, [=](auto in) { return nn::l1_loss(in[0], in[1], r); }});
    all.push_back({"smooth_l1_loss", {x, q}, [=](auto in) {
                     return nn::smooth_l1_loss(in[0], in[1], r, 0.7);
                   }});
    all.push_back(
        {"huber_loss", {x, q}, [=](auto in) { return nn::huber_loss(in[0], in[1], r, 0.7); }});
    const nn::CrossEntropyOptions options{.weight = weight, .label_smoothing = 0.1, .reduction = r};
    all.push_back(
        {"cross_entropy", {x}, [=](auto in) { return nn::cross_entropy(in[0], target, options); }});
    // The targets are probabilities.
    all.push_back({"cross_entropy", {x, q}, [=](auto in) {
                     return nn::cross_entropy(in[0], in[1], options);
                   }});
  }
  for (const bool log_target : {false, true}) {
    all.push_back({"kl_div", {x, q}, [=](auto in) {
                     return nn::kl_div(in[0], in[1], nn::KlReduction::batchmean, log_target);
                   }});
  }
  return all;
}

std::vector<Case> activations_and_arrangements() {
  std::vector<Case> all;
  // Far from -3, 0, 3 and 6, where these three have kinks. Times x, so that the slope has a slope.
  const Tensor apart =
      tensor({-5.0, -2.0, -1.0, 0.5, 2.0, 4.0, 5.0, 7.0}, DType::f64).set_requires_grad();
  all.push_back({"relu6", {apart}, [](auto in) { return nn::relu6(in[0]) * in[0]; }});
  all.push_back({"hardsigmoid", {apart}, [](auto in) { return nn::hardsigmoid(in[0]) * in[0]; }});
  all.push_back({"hardswish", {apart}, [](auto in) { return nn::hardswish(in[0]) * in[0]; }});
  all.push_back({"prelu", {leaf({2, 3, 2}, -2, 2, 1), leaf({3}, 0.1, 0.5, 2)}, [](auto in) {
                   return nn::prelu(in[0], in[1]) * in[0];
                 }});
  all.push_back({"pixel_shuffle", {leaf({2, 4, 2, 3}, -1, 1, 1)}, [](auto in) {
                   return nn::pixel_shuffle(in[0] * in[0], 2);
                 }});
  all.push_back({"pixel_unshuffle", {leaf({2, 1, 4, 6}, -1, 1, 1)}, [](auto in) {
                   return nn::pixel_unshuffle(in[0] * in[0], 2);
                 }});
  all.push_back({"max_unpool2d", {leaf({2, 2, 4, 4}, -1, 1, 1)}, [](auto in) {
                   const Pool2dParams params{.kernel = {2, 2}, .stride = {2, 2}};
                   const auto [y, indices] = max_pool2d_with_indices(in[0], params);
                   return nn::max_unpool2d(y * y, indices, {4, 4});
                 }});
  return all;
}

TEST(SecondDerivativesTest, OfLosses) {
  for (const Case& c : losses()) check(c);
}

TEST(SecondDerivativesTest, OfActivationsAndArrangements) {
  for (const Case& c : activations_and_arrangements()) check(c);
}

// Functions of these headers that are no operations.
const std::set<std::string> kOthers{
    "hold",             // keeps an argument alive for a hook
    "list_of",          // a result as a list
    "run_cell",         // a part of the cells: OfAStepOfAnLstm
    "then_add_relu",    // an option of batch_norm
    "used_parameters",  // a module's
};

TEST(SecondDerivativesTest, EachFunctionOfTheHeadersHasOne) {
  std::set<std::string> declared, checked;
  for (const auto& file : std::filesystem::directory_iterator("nn")) {
    if (file.path().extension() == ".h") declared.merge(testing::tensor_functions(file.path()));
  }
  ASSERT_GT(declared.size(), 10u) << "the headers of nn/ were not read";
  for (const auto& cases : {losses(), activations_and_arrangements()}) {
    for (const Case& c : cases) checked.insert(c.name);
  }
  for (const std::string& name : declared) {
    EXPECT_NE(checked.contains(name), kOthers.contains(name))
        << name << " of nn/: give it a case above, or list it in kOthers";
  }
  for (const auto& names : {checked, kOthers}) {
    for (const std::string& name : names) {
      EXPECT_TRUE(declared.contains(name)) << name << " is listed, and no header declares it";
    }
  }
}

TEST(SecondDerivativesTest, OfEmbeddingBags) {
  const Tensor index = tensor({{0.0, 2.0, 2.0}, {1.0, 4.0, 3.0}}, DType::i64);
  for (const char* mode : {"sum", "mean", "max"}) {
    nn::EmbeddingBag bag(5, 3, {.mode = mode});
    bag.to(DType::f64);
    check({"EmbeddingBag", {bag.weight}, [&](auto) { return square(bag(index)); }});
  }
  nn::EmbeddingBag bag(5, 3, {.mode = "sum"});
  bag.to(DType::f64);
  check({"EmbeddingBag", {bag.weight, leaf({2, 3}, -1, 1, 5)}, [&](auto in) {
           return bag(index, {}, in[1]);
         }});
}

TEST(SecondDerivativesTest, OfAStepOfAnLstm) {
  nn::LSTMCell cell(2, 3);
  cell.to(DType::f64);
  Tensors inputs{leaf({2, 2}, -1, 1, 1), leaf({2, 3}, -1, 1, 2), leaf({2, 3}, -1, 1, 3)};
  for (const Tensor& p : cell.parameters()) inputs.push_back(p);
  ASSERT_EQ(inputs.size(), 7u);
  const auto step = [&](std::span<const Tensor> in) {
    const auto [h, c] = cell(in[0], {in[1], in[2]});
    return Tensors{h, c};
  };
  autograd::gradgradcheck("LSTMCell", step, inputs);
}

// The conversions are on the tape. Backward, recorded or not, computes in the dtypes of the
// forward.
TEST(SecondDerivativesTest, UnderAutocast) {
  const Tensor x = testing::some({4, 6}, DType::f32, -1, 1, 1).set_requires_grad();
  const Tensor w = testing::some({5, 6}, DType::f32, -1, 1, 2).set_requires_grad();
  const auto penalty = [&](bool enabled) {
    const autograd::Autocast scope(DeviceType::cpu, {.enabled = enabled});
    const Tensor y = tanh(linear(x, w));
    EXPECT_EQ(y.dtype(), enabled ? DType::bf16 : DType::f32);
    const Tensor slope = autograd::grad(sum(square(y)), x, {.create_graph = true});
    EXPECT_EQ(slope.dtype(), DType::f32);
    return autograd::grad(sum(square(slope)), w);
  };
  const Tensor got = penalty(true), want = penalty(false);
  ASSERT_EQ(got.dtype(), DType::f32);
  EXPECT_NE(testing::values_of(got), testing::values_of(want));
  // A dozen roundings of 2^-9, one after the other, of numbers that are at most the largest.
  const double largest = max(abs(want)).item<double>();
  EXPECT_TRUE(testing::near_values(got, testing::values_of(want), 12 * 0x1p-9 * largest));
}

}  // namespace
}  // namespace weft
