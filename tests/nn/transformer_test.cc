// nn::TransformerEncoder and its layer compared with PyTorch.
#include "weft/nn/transformer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
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

const testing::Goldens goldens("tests/nn/transformer_goldens");

class Transformer : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(Transformer);

nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions options = {}) {
  options.dim_feedforward = 6, options.dropout = 0;
  return nn::TransformerEncoderLayer(4, 2, options);
}

// Gives the parameters the values of write_transformer_goldens.py.
template <class M>
M filled(M module) {
  module.to(DType::f64);
  double scale = 0.5;
  for (const Tensor& p : module.parameters()) {
    raw::copy_(p, ramp(p.shape(), scale));
    scale += 0.03;
  }
  return module;
}

template <class M>
void check(const std::string& name, M made, const Shape& shape, const nn::AttentionCall& call) {
  SCOPED_TRACE(name);
  const M module = filled(std::move(made));
  const Tensor x = ramp(shape).set_requires_grad(), y = module(x, call);
  y.backward(ramp(shape));
  std::vector<Tensor> results{y, x.grad()};
  for (const Tensor& p : module.parameters()) results.push_back(p.grad());
  const std::vector<std::vector<double>> want = goldens.list(name);
  ASSERT_EQ(results.size(), want.size());
  // f64: a dozen operations in succession with sums of up to ten products; the normalisations
  // divide by deviations not far below 1.
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(testing::near_values(results[i], want[i], 1e-12)) << "result " << i;
}

Tensor padding() { return make({0, 0, 1, 0, 0, 0}, {2, 3}, DType::boolean); }

TEST_P(Transformer, FollowsPyTorch) {
  check("layer", layer(), {3, 2, 4}, {});
  check(
      "layer_norm_first",
      layer(
          {.activation = "gelu", .layer_norm_eps = 1e-3, .batch_first = true, .norm_first = true}),
      {2, 3, 4}, {.key_padding_mask = padding()});
  check("layer_without_bias", layer({.bias = false}), {3, 4}, {});
  nn::TransformerEncoderLayer evaluated = layer({.batch_first = true});
  evaluated.eval();
  check("layer_causal", evaluated, {2, 3, 4}, {.is_causal = true});
  check("encoder", nn::TransformerEncoder(layer(), 2, nn::LayerNorm(4)), {3, 2, 4},
        {.key_padding_mask = padding(), .attn_mask = ramp({3, 3})});
}

TEST_P(Transformer, StartsWithPyTorchsBitsAndNames) {
  if (!on_cpu()) GTEST_SKIP() << "a GPU draws other numbers";
  for (const std::string seed : {"0", "7"}) {
    manual_seed(std::stoull(seed));
    const nn::TransformerEncoder encoder(nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = 6}),
                                         2);
    std::vector<double> values;
    for (const Tensor& p : encoder.parameters()) {
      const std::vector<double> more = values_of(p);
      values.insert(values.end(), more.begin(), more.end());
    }
    EXPECT_EQ(values, goldens["encoder_init_" + seed]);
  }
  std::string names;
  const nn::TransformerEncoder encoder(layer(), 1, nn::LayerNorm(4));
  for (const auto& [name, tensor] : encoder.state_dict()) names += name + " ";
  EXPECT_EQ(names,
            "layers.0.self_attn.in_proj_weight layers.0.self_attn.in_proj_bias "
            "layers.0.self_attn.out_proj.weight layers.0.self_attn.out_proj.bias "
            "layers.0.linear1.weight layers.0.linear1.bias layers.0.linear2.weight "
            "layers.0.linear2.bias layers.0.norm1.weight layers.0.norm1.bias "
            "layers.0.norm2.weight layers.0.norm2.bias norm.weight norm.bias ");
}

TEST_P(Transformer, ClonesHaveTheirOwnWeights) {
  const nn::TransformerEncoder encoder(layer(), 2, nn::LayerNorm(4));
  const Tensor x = ones({3, 2, 4});
  EXPECT_FALSE(encoder.layers[0].linear1.weight.same(encoder.layers[1].linear1.weight));
  const nn::TransformerEncoder copy = nn::clone(encoder);
  const std::vector<double> want = values_of(copy(x));
  for (const Tensor& p : encoder.parameters()) raw::zero_(p);
  EXPECT_EQ(values_of(copy(x)), want);
}

TEST_P(Transformer, DropsInTraining) {
  nn::TransformerEncoderLayer noisy(4, 2, {.dim_feedforward = 6, .dropout = 0.5});
  const Tensor x = ramp({3, 2, 4}).to(DType::f32);
  EXPECT_NE(values_of(noisy(x)), values_of(noisy(x)));
  noisy.eval();
  EXPECT_EQ(values_of(noisy(x)), values_of(noisy(x)));
}

TEST_P(Transformer, Gradients) {
  const nn::TransformerEncoderLayer net = filled(layer({.activation = "gelu"}));
  std::vector<Tensor> inputs{ramp({3, 2, 4}).set_requires_grad()};
  for (const Tensor& p : net.parameters()) inputs.push_back(p);
  EXPECT_NO_THROW(autograd::gradcheck(
      "TransformerEncoderLayer",
      [&](std::span<const Tensor> x) { return std::vector<Tensor>{net(x[0])}; }, inputs));
}

TEST_P(Transformer, OfNothingAndWhatItRefuses) {
  EXPECT_EQ(layer()(zeros({3, 0, 4})).shape(), (Shape{3, 0, 4}));
  EXPECT_WEFT_ERROR(layer({.activation = "elu"}), InvalidArgument,
                    "[TransformerEncoderLayer] activation: got 'elu', expected 'relu' or 'gelu'");
  EXPECT_WEFT_ERROR(nn::TransformerEncoderLayer(5, 2), InvalidArgument, "multiple of heads 2");
  EXPECT_WEFT_ERROR(nn::TransformerEncoder(layer(), 0), InvalidArgument,
                    "[TransformerEncoder] num_layers: got 0, expected 1 to 1024");
  EXPECT_WEFT_ERROR(layer()(ones({3, 2, 5})), Shape, "in self_attn at");
}

}  // namespace
}  // namespace weft
