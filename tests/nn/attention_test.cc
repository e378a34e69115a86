// nn::MultiheadAttention compared with PyTorch, and training it.
#include "weft/nn/attention.h"
#include "weft/autograd/ops.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/gradcheck.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::near_values;
using testing::ramp;
using testing::values_of;

const testing::Goldens goldens("tests/nn/attention_goldens");

class AttentionTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(AttentionTest);

nn::MultiheadAttention layer(const nn::MultiheadAttentionOptions& options = {}) {
  nn::MultiheadAttention attention(4, 2, options);
  attention.to(DType::f64);
  for (const Tensor& p : attention.parameters()) raw::copy_(p, ramp(p.shape()));
  return attention;
}

// Checks the results and gradients in the order of write_attention_goldens.py. A single shape means
// self-attention.
void check(const char* name, const std::vector<Shape>& shapes,
           const nn::MultiheadAttentionOptions& options, const nn::AttentionCall& call,
           const std::vector<std::vector<double>>& want) {
  SCOPED_TRACE(name);
  nn::MultiheadAttention attention = layer(options);
  std::vector<Tensor> in;
  for (const Shape& shape : shapes) {
    in.push_back(ramp(shape, 1 + 0.3 * static_cast<double>(in.size())).set_requires_grad());
  }
  const auto [y, weights] =
      in.size() == 1 ? attention(in[0], in[0], in[0], call) : attention(in[0], in[1], in[2], call);
  std::vector<Tensor> results{y}, gradients{ramp(y.shape())};
  EXPECT_EQ(weights.defined(), call.need_weights);
  if (weights.defined()) {
    results.push_back(weights);
    gradients.push_back(ramp(weights.shape()));
  }
  autograd::backward(results, gradients);
  for (const Tensor& x : in) results.push_back(x.grad());
  for (const Tensor& p : attention.parameters()) results.push_back(p.grad());
  ASSERT_EQ(results.size(), want.size());
  // f64 sums of at most about ten products, several in succession, in another order than PyTorch's.
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(near_values(results[i], want[i], 1e-13)) << "result " << i;
  }
}

Tensor padding() { return make({0, 1, 0, 0, 1, 1, 0, 0, 0, 0}, {2, 5}, DType::boolean); }

TEST_P(AttentionTest, FollowsPyTorch) {
  const std::vector<Shape> three{{3, 2, 4}, {5, 2, 4}, {5, 2, 4}};
  const std::vector<Shape> batch_first{{2, 3, 4}, {2, 5, 4}, {2, 5, 4}};
  const Tensor causal = raw::logical_not(tril(ones({3, 3}, DType::boolean)));
  check("self", {{3, 2, 4}}, {}, {}, goldens.list("self_attention"));
  check("cross", three, {}, {.average_attn_weights = false}, goldens.list("cross_attention"));
  check("padded", batch_first, {.batch_first = true}, {.key_padding_mask = padding()},
        goldens.list("cross_attention_padded"));
  check("causal", {{2, 3, 4}}, {.batch_first = true}, {.is_causal = true, .need_weights = false},
        goldens.list("causal_attention"));
  check("causal, with the mask", {{2, 3, 4}}, {.batch_first = true},
        {.attn_mask = causal, .is_causal = true, .need_weights = false},
        goldens.list("causal_attention"));
  check("masked", three, {}, {.attn_mask = ramp({4, 3, 5}, 3), .need_weights = false},
        goldens.list("masked_attention"));
  check("masked twice", batch_first, {.batch_first = true},
        {.key_padding_mask = padding(), .attn_mask = ramp({3, 5})},
        goldens.list("attention_masked_twice"));
  const Tensor nothing = make({0, 1, 0, 0, 1, 1, 1, 1, 1, 1}, {2, 5}, DType::boolean);
  check("to nothing", batch_first, {.batch_first = true},
        {.key_padding_mask = nothing, .need_weights = false}, goldens.list("attention_to_nothing"));
  check("unbatched", {{3, 4}, {5, 4}, {5, 4}}, {.bias = false}, {.key_padding_mask = padding()[0]},
        goldens.list("unbatched_attention"));
}

TEST_P(AttentionTest, ToItself) {
  nn::MultiheadAttention attention = layer({.batch_first = true});
  const Tensor x = ramp({2, 3, 4});
  const auto expect_same = [&](const nn::AttentionCall& call) {
    const Tensor y = attention(x, call);
    // Three tensors with the same values use three products.
    EXPECT_TRUE(near_values(y, values_of(attention(x, x.clone(), x.clone(), call).output), 1e-13));
  };
  expect_same({});
  expect_same({.is_causal = true});
  expect_same({.key_padding_mask = padding().narrow(1, 0, 3), .is_causal = true});
  EXPECT_EQ(values_of(attention(x, {.is_causal = true})),
            values_of(attention(x, x, x, {.is_causal = true, .need_weights = false}).output));
  nn::Sequential chain{attention, nn::Linear(4, 1)};
  chain.to(DType::f64);
  EXPECT_EQ(chain(x).shape(), (Shape{2, 3, 1}));
}

TEST_P(AttentionTest, StateHasPyTorchsNames) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : nn::MultiheadAttention(4, 2).state_dict())
    names.push_back(name + " " + to_string(tensor.shape()));
  EXPECT_EQ(names, (std::vector<std::string>{"in_proj_weight [12,4]", "in_proj_bias [12]",
                                             "out_proj.weight [4,4]", "out_proj.bias [4]"}));
  EXPECT_EQ(nn::MultiheadAttention(4, 2, {.bias = false}).parameter_count(), 64);
  nn::MultiheadAttention attention = layer();
  const nn::MultiheadAttention copy = nn::clone(attention);
  raw::zero_(attention.in_proj_weight);
  EXPECT_EQ(values_of(copy.in_proj_weight), values_of(ramp({12, 4})));
}

TEST_P(AttentionTest, DropsWeightsInTraining) {
  nn::MultiheadAttention attention = layer({.dropout = 0.5});
  const Tensor x = ramp({4, 3, 4});
  manual_seed(1);
  const auto [y, weights] = attention(x, x, x);
  EXPECT_NE(values_of(attention(x, x, x).output), values_of(y));
  manual_seed(1);
  EXPECT_EQ(values_of(attention(x, x, x).output), values_of(y));
  attention.eval();
  EXPECT_EQ(values_of(attention(x, x, x).output), values_of(layer()(x, x, x).output));
}

TEST_P(AttentionTest, Gradients) {
  nn::MultiheadAttention attention = layer();
  std::vector<Tensor> inputs{ramp({3, 2, 4}).set_requires_grad()};
  for (const Tensor& p : attention.parameters()) inputs.push_back(p);
  EXPECT_NO_THROW(autograd::gradcheck(
      "MultiheadAttention",
      [&](std::span<const Tensor> x) {
        return std::vector<Tensor>{attention(x[0], {.is_causal = true})};
      },
      inputs));
}

TEST_P(AttentionTest, OfNothing) {
  nn::MultiheadAttention attention(4, 2, {.batch_first = true});
  EXPECT_EQ(attention(zeros({0, 3, 4})).shape(), (Shape{0, 3, 4}));
  EXPECT_EQ(attention(zeros({2, 0, 4})).shape(), (Shape{2, 0, 4}));
  EXPECT_EQ(attention(zeros({1, 4})).shape(), (Shape{1, 4}));
  const auto [y, weights] = attention(zeros({2, 1, 4}), zeros({2, 0, 4}), zeros({2, 0, 4}));
  EXPECT_TENSOR(y, ({2, 1, 4}), {0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(weights.shape(), (Shape{2, 1, 0}));
}

TEST_P(AttentionTest, RefusesWhatDoesNotFit) {
  EXPECT_WEFT_ERROR(nn::MultiheadAttention(5, 2), InvalidArgument,
                    "[MultiheadAttention] embed_dim 5 must be a positive multiple of heads 2");
  EXPECT_WEFT_ERROR(nn::MultiheadAttention(4, 0), InvalidArgument, "multiple of heads 0");
  EXPECT_WEFT_ERROR(nn::MultiheadAttention(-4, 2), InvalidArgument, "embed_dim -4 must be");
  EXPECT_WEFT_ERROR(nn::MultiheadAttention(std::int64_t{1} << 62, 2), Shape,
                    "[MultiheadAttention] 3 * 4611686018427387904 does not fit in 64 bits");
  EXPECT_WEFT_ERROR(nn::MultiheadAttention(4, 2, {.dropout = 1.5}), InvalidArgument,
                    "dropout: got 1.5, expected 0 to 1");
  nn::MultiheadAttention attention(4, 2);
  const Tensor x = ones({3, 2, 4});
  EXPECT_WEFT_ERROR(attention(ones({3, 2, 5})), Shape, "the last of 4");
  EXPECT_WEFT_ERROR(attention(ones({4})), Shape, "expected three dimensions each, or two");
  EXPECT_WEFT_ERROR(attention(x, ones({3, 4}), x), Shape, "[MultiheadAttention] got query [3,2,4]");
  EXPECT_WEFT_ERROR(attention(x, ones({3, 1, 4}), x), Shape, "need one batch");
  EXPECT_WEFT_ERROR(attention(x, x, ones({2, 2, 4})), Shape, "key and value one length");
  EXPECT_WEFT_ERROR(attention(x, {.key_padding_mask = ones({3, 2})}), Shape,
                    "key_padding_mask: got [3,2], expected [2,3]");
  EXPECT_WEFT_ERROR(attention(x, {.attn_mask = ones({2, 3, 3})}), Shape,
                    "attn_mask: got [2,3,3], expected [4,3,3]");
  EXPECT_WEFT_ERROR(attention(x, {.attn_mask = ones({3, 3}, DType::i64)}), Dtype,
                    "attn_mask: got i64, expected bool or a floating dtype");
}

// A language model of one layer: the captured step must compute the same as the plain step, and
// learn.
TEST_P(AttentionTest, TrainsInACapturedStep) {
  thread_state().deterministic = true;
  struct Model : nn::Module<Model> {
    nn::Embedding embedding = child("embedding", nn::Embedding(6, 8, {.padding_idx = 5}));
    nn::MultiheadAttention attention =
        child("attention", nn::MultiheadAttention(8, 2, {.batch_first = true}));
    nn::Linear head = child("head", nn::Linear(8, 6));
    Tensor forward(const Tensor& tokens) {
      const Tensor x = embedding(tokens);
      return head(x + attention(x, {.is_causal = true}));
    }
  };
  const Tensor tokens = make({0, 1, 2, 3, 4, 4, 3, 2, 1, 5}, {2, 5}, DType::i64);
  const auto losses = [&](bool captured) {
    manual_seed(4);
    Model model;
    model.to(device());
    optim::SGD sgd(model.parameters(), {.lr = 0.5});
    Tensor loss;
    const auto body = [&] {
      sgd.zero_grad();
      const Tensor next = model(tokens.narrow(1, 0, 4)).flatten(0, 1);
      loss = nn::cross_entropy(next, tokens.narrow(1, 1, 4).reshape({8}));
      loss.backward();
      sgd.step();
    };
    graph::Step step = graph::capture(body);
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      if (captured) {
        step();
      } else {
        body();
      }
      values.push_back(loss.item<double>());
    }
    EXPECT_EQ(values_of(model.embedding.weight[5]), std::vector<double>(8, 0));
    return values;
  };
  const std::vector<double> plain = losses(false);
  EXPECT_EQ(losses(true), plain);
  EXPECT_LT(plain.back(), 0.5 * plain.front());
}

}  // namespace
}  // namespace weft
