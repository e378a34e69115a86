// tests/peers/onnx_test.cc compares what the files compute.
#include "weft/onnx/export.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/onnx/model_file.h"

namespace weft::onnx {
namespace {

using testing::ModelFile;
using Texts = std::vector<std::string>;

// A module that computes f.
template <class F>
struct Computes : nn::Module<Computes<F>> {
  explicit Computes(F function) : f(std::move(function)) {}
  auto forward(const Tensor& x) const { return f(x); }
  F f;
};

class OnnxTest : public ::testing::Test {
 protected:
  template <class Model>
  ModelFile saved(const Model& model, const std::vector<Tensor>& inputs,
                  const ExportOptions& options = {}) {
    save(model, inputs, path(), options);
    return ModelFile(path());
  }
  template <class F>
  Texts nodes(F f, const Tensor& x) {
    return saved(Computes(f), {x}).nodes;
  }
  // Those of a constant, f32.
  static std::vector<float> numbers(const ModelFile& file, const std::string& name) {
    const std::string& bytes = file.tensors.at(name);
    std::vector<float> result(bytes.size() / sizeof(float));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  std::string path() const { return folder_.path("model.onnx"); }

 private:
  testing::TempFolder folder_;
};

Tensor ramp(const Shape& shape) {
  return raw::reshape(arange(0, static_cast<double>(numel(shape)), 1, DType::f32), shape);
}

TEST_F(OnnxTest, AModelIsItsOperationsAndItsStateDict) {
  nn::Sequential model{nn::Linear(4, 3), nn::ReLU(), nn::Linear(3, 2)};
  const ModelFile file = saved(model, {ramp({2, 4})});
  EXPECT_EQ(file.ir_version, 8);
  EXPECT_EQ(file.opset, 17);
  EXPECT_EQ(file.inputs, Texts{"input 1 [batch,4]"});
  EXPECT_EQ(file.outputs, Texts{"output 1 [batch,2]"});
  EXPECT_EQ(file.nodes, (Texts{"Gemm(input, 0.weight, 0.bias) transB=1", "Relu(%0)",
                               "Gemm(%1, 2.weight, 2.bias) transB=1", "Identity(%2)"}));
  ASSERT_EQ(file.tensors.size(), 4u);
  for (const auto& [name, x] : model.state_dict()) {
    EXPECT_EQ(file.tensors.at(name), std::string(static_cast<const char*>(x.raw_data()),
                                                 static_cast<std::size_t>(x.numel()) * 4));
  }
}

// The operation of a convolution with the relu after it, which nn::Sequential makes.
TEST_F(OnnxTest, AFusedReluIsANode) {
  nn::Sequential model{nn::Conv2d(1, 2, 3), nn::ReLU(), nn::ConvTranspose2d(2, 1, 3), nn::ReLU()};
  std::string types;
  for (const std::string& node : saved(model, {ramp({2, 1, 5, 5})}).nodes) {
    types += node.substr(0, node.find('(')) + " ";
  }
  EXPECT_EQ(types, "Conv Relu ConvTranspose Relu Identity ");
}

TEST_F(OnnxTest, NamesAndFixedSizes) {
  const nn::Linear layer(4, 3);
  const ModelFile file = saved(
      layer, {ramp({2, 4})}, {.input_names = {"x"}, .output_names = {"y"}, .dynamic_batch = false});
  EXPECT_EQ(file.inputs, Texts{"x 1 [2,4]"});
  EXPECT_EQ(file.outputs, Texts{"y 1 [2,3]"});
  EXPECT_WEFT_ERROR(saved(layer, {ramp({2, 4})}, {.input_names = {"x", "y"}}), InvalidArgument,
                    "input_names: got 2, the model has 1 inputs");
  EXPECT_WEFT_ERROR(saved(layer, {ramp({2, 4})}, {.input_names = {"bias"}}), InvalidArgument,
                    "\"bias\" is taken");
  EXPECT_WEFT_ERROR(saved(layer, {ramp({2, 4})}, {.output_names = {"input"}}), InvalidArgument,
                    "\"input\" is taken");
  EXPECT_WEFT_ERROR(saved(layer, {ramp({2, 4})}, {.input_names = {""}}), InvalidArgument,
                    "input_names: one is empty");
}

// A user's own module: a frozen parameter, a constant, two results.
struct Own : nn::Module<Own> {
  nn::Linear fc = child("fc", nn::Linear(4, 4));
  nn::Parameter gain = parameter("gain", ones({4}));
  nn::Parameter shift = buffer("shift", ones({4}));
  Tensor plain = full({4}, 2);  // belongs to no module
  std::pair<Tensor, Tensor> forward(const Tensor& x) const {
    const Tensor y = fc(x) * gain + shift;
    return {cat({y, x}, 1), y * plain};
  }
};

TEST_F(OnnxTest, AUsersModule) {
  Own model;
  model.gain.set_requires_grad(false);
  const ModelFile file = saved(model, {ramp({3, 4})});
  EXPECT_EQ(file.nodes, (Texts{"Gemm(input, fc.weight, fc.bias) transB=1", "Mul(%0, gain)",
                               "Add(%1, shift)", "Concat(%2, input) axis=1", "Mul(%2, /constant)",
                               "Identity(%3)", "Identity(%4)"}));
  EXPECT_EQ(file.outputs, (Texts{"output_0 1 [batch,8]", "output_1 1 [batch,4]"}));
}

TEST_F(OnnxTest, TheBatchIsASymbolInShapes) {
  const auto joined = [](const Tensor& x) { return x.reshape({x.shape(0) * 2, 2}) * 1.0; };
  EXPECT_EQ(saved(Computes(joined), {ramp({3, 4})}).outputs, Texts{"output 1 [2*batch,2]"});
  const auto ids_of = [](const Tensor& x) { return x + ones({1, 4}).expand({x.shape(0), 4}); };
  EXPECT_EQ(nodes(ids_of, ramp({3, 4})),
            (Texts{"Shape(input) start=0 end=1", "Concat(%0, /constant_2) axis=0",
                   "Expand(/constant, %1)", "Add(input, %2)", "Identity(%3)"}));
}

TEST_F(OnnxTest, IntegersAreInputs) {
  const nn::Embedding table(10, 3);
  const Tensor ids = tensor({1, 2, 3}, DType::i64).reshape({3, 1});
  const ModelFile file = saved(table, {ids});
  EXPECT_EQ(file.inputs, Texts{"input 7 [batch,1]"});
  EXPECT_EQ(file.nodes, (Texts{"Gather(weight, input)", "Identity(%0)"}));
  // Also in another shape.
  const auto flat = [&](const Tensor& x) { return embedding(x.flatten(), table.weight); };
  EXPECT_EQ(nodes(flat, ids),
            (Texts{"Reshape(input, /constant)", "Gather(/constant_2, %0)", "Identity(%1)"}));
  EXPECT_WEFT_ERROR(saved(table, {zeros({3, 1}, DType::i64)}), InvalidArgument,
                    "input 0 (i64 [3,1]) holds one value only");
}

// As in weft, whose parameters are f32 also beside bf16 images.
TEST_F(OnnxTest, BatchNormOfBf16IsComputedInF32) {
  const Tensor x = ramp({2, 2, 3, 3}).to(DType::bf16);
  const auto of = [&](nn::BatchNorm2d norm) { return Texts(saved(norm, {x}).nodes); };
  EXPECT_EQ(of(nn::BatchNorm2d(2)),
            (Texts{"Cast(input) to=1",
                   "BatchNormalization(%0, weight, bias, running_mean, running_var) "
                   "epsilon=0.000010",
                   "Cast(%1) to=16", "Identity(%2)"}));
  const Texts own = of(nn::BatchNorm2d(2, {.track_running_stats = false}));
  EXPECT_EQ(own.front(), "Cast(input) to=1");
  EXPECT_EQ(std::ranges::count_if(own, [](const auto& n) { return n.starts_with("Cast"); }), 2);
}

TEST_F(OnnxTest, EvaluationModeAndEverythingElseIsRestored) {
  nn::Sequential model{nn::Linear(4, 3), nn::BatchNorm1d(3), nn::Dropout(0.5)};
  auto* norm = model[1].as<nn::BatchNorm1d>();
  norm->eval();
  manual_seed(3);
  const std::string before = default_generators().state();
  const Tensor x = ramp({2, 4});
  const NoGrad no_grad;
  const ModelFile file = saved(model, {x});
  ASSERT_EQ(file.nodes.size(), 5u);
  EXPECT_EQ(file.nodes[2],
            "BatchNormalization(%1, 1.weight, 1.bias, 1.running_mean, 1.running_var) "
            "epsilon=0.000010");
  EXPECT_EQ(default_generators().state(), before);
  EXPECT_TRUE(model.is_training());
  EXPECT_FALSE(norm->is_training());
  EXPECT_FALSE(thread_state().grad_enabled);
  EXPECT_FALSE(x.requires_grad());
  for (const Tensor& p : model.parameters()) {
    EXPECT_TRUE(p.requires_grad() && p.is_leaf());
    EXPECT_FALSE(p.grad().defined());
  }
  // Also after an error.
  const auto fails = [](const Tensor& y) { return y.unfold(1, 2, 1); };
  Computes failing(fails);
  EXPECT_WEFT_ERROR(saved(failing, {x}), Unsupported, "[unfold]");
  EXPECT_TRUE(failing.is_training());
  EXPECT_FALSE(thread_state().grad_enabled);
}

TEST_F(OnnxTest, TheInputStaysAsItIs) {
  const Tensor x = ramp({2, 2});
  const auto writes = [](const Tensor& y) {
    y.mul_(2);
    y.add_(3);
    return y.relu();
  };
  EXPECT_EQ(nodes(writes, x),
            (Texts{"Mul(input, /constant)", "Add(%0, /constant_2)", "Relu(%1)", "Identity(%2)"}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 1, 2, 3}));
}

struct Cube : autograd::Function<Cube> {
  static Tensor forward(autograd::Context& ctx, const Tensor& x) {
    ctx.save_for_backward({x});
    return x * x * x;
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const Tensor x = ctx.saved(0);
    return {grads[0] * x * x * 3};
  }
};

// inner.middle computes f.
template <class F>
struct Nested : nn::Module<Nested<F>> {
  explicit Nested(F f) : inner(this->child("inner", Computes(std::move(f)))) {}
  auto forward(const Tensor& x) { return inner(x); }
  Computes<F> inner;
};

TEST_F(OnnxTest, WhatCannotBeSaidNamesOperationAndModule) {
  const auto fails = [&](auto f, const std::string& text) {
    EXPECT_WEFT_ERROR(saved(Nested(f), {ramp({2, 4})}), Unsupported, text);
    EXPECT_WEFT_ERROR(saved(Nested(f), {ramp({2, 4})}), Unsupported, " in inner at ");
  };
  fails([](const Tensor& x) { return cumprod(x, 1); }, "[cumprod] cannot be said in ONNX");
  fails([](const Tensor& x) { return Cube::apply(x); }, "Cube] cannot be said in ONNX");
  fails([](const Tensor& x) { return x * raw::exp(x); }, "[mul] cannot be said in ONNX");
  fails([](const Tensor& x) { return x * argmax(x, 1, true); }, "[argmax] cannot be said in ONNX");
  fails([](const Tensor& x) { return x * x.mean().item<double>(); }, "its numbers differ");
  fails([](const Tensor& x) { return x.shape(0) == 2 ? x.exp() : x.log(); },
        "the model runs log in its place");
  fails([](const Tensor& x) { return x.slice(0, 1, x.shape(0) - 1); },
        "its end depends on the batch");
  fails([](const Tensor& x) { return split(x, x.shape(0), 0)[0] * 1.0; }, "its numbers differ");
}

// A constant is what the operation read, whatever is written to it later.
TEST_F(OnnxTest, ConstantsAreWhatOperationsRead) {
  const auto adds = [](const Tensor& x) {
    const Tensor shift = full({4}, 3);
    const Tensor y = x + shift;
    shift.fill_(1);
    return y;
  };
  const ModelFile file = saved(Computes(adds), {ramp({2, 4})});
  EXPECT_EQ(file.nodes, (Texts{"Add(input, /constant)", "Identity(%0)"}));
  EXPECT_EQ(numbers(file, "/constant"), (std::vector<float>{3, 3, 3, 3}));
}

// In-place methods read a plain tensor before they write.
TEST_F(OnnxTest, PlainTensorsJoinTheModel) {
  struct Scaled : nn::Module<Scaled> {
    nn::Parameter gain = parameter("gain", full({4}, 5));
    Tensor forward(const Tensor& x) const {
      Tensor scale = full({4}, 0.5), sum = zeros({4});
      scale.mul_(gain);
      sum.add_(gain);
      Tensor rows = zeros_like(x);
      rows += x;
      return x * scale + sum + rows;
    }
  };
  const ModelFile file = saved(Scaled(), {ramp({2, 4})});
  EXPECT_EQ(file.nodes,
            (Texts{"Mul(/constant, gain)", "Add(/constant_2, gain)", "Shape(input) start=0 end=1",
                   "Concat(%2, /constant_4) axis=0", "Expand(/constant_3, %3)", "Add(%4, input)",
                   "Mul(input, %0)", "Add(%6, %1)", "Add(%7, %5)", "Identity(%8)"}));
  EXPECT_EQ(numbers(file, "/constant"), (std::vector<float>{0.5, 0.5, 0.5, 0.5}));
  EXPECT_EQ(numbers(file, "/constant_2"), (std::vector<float>{0, 0, 0, 0}));
}

TEST_F(OnnxTest, WritesThatTheTapeDoesNotKnowAreRefused) {
  const auto fails = [&](auto f) {
    EXPECT_WEFT_ERROR(saved(Nested(f), {ramp({2, 4})}), Unsupported, "cannot be said in ONNX");
  };
  fails([](const Tensor& x) {
    const Tensor y = x * 2.0;
    const NoGrad no_grad;
    y.clamp_(0, 6);
    return y;
  });
  fails([](const Tensor& x) {
    const Tensor y = x * 2.0;
    raw::clamp_(y, 0, 6);
    return y + 1.0;
  });
  fails([](const Tensor& x) {
    const Tensor y = x * 2.0;
    y.detach().mul_(2);
    return y + 1.0;
  });
  fails([](const Tensor& x) {
    const Tensor y = x * 2.0;
    raw::clamp_(y.detach(), 0, 6);
    y.mul_(2);
    return y;
  });
}

// Also where all masks of the example are the same.
TEST_F(OnnxTest, ComparisonsAreNodes) {
  const nn::Embedding table(10, 3);
  const Tensor ids = tensor({1, 2, 3}, DType::i64).reshape({3, 1});
  const auto padded = [&](const Tensor& x) {
    const Tensor padding = (x == 0.0).unsqueeze(2);
    return masked_fill(embedding(x, table.weight), padding, 0);
  };
  EXPECT_EQ(nodes(padded, ids),
            (Texts{"Equal(input, /constant)", "Reshape(%0, /constant_2)",
                   "Gather(/constant_3, input)", "Where(%1, /constant_4, %2)", "Identity(%3)"}));
  const auto pooled = [](const Tensor& x) { return (x != 0.0).to(DType::f32).mean({1}); };
  EXPECT_EQ(nodes(pooled, ids), (Texts{"Equal(input, /constant)", "Not(%0)", "Cast(%1) to=1",
                                       "Reshape(%2, /constant_2)", "Identity(%3)"}));
  const auto finite = [](const Tensor& x) { return where(isnan(x), zeros_like(x), x); };
  EXPECT_EQ(nodes(finite, ramp({2, 4})),
            (Texts{"IsNaN(input)", "Shape(input) start=0 end=1", "Concat(%1, /constant_2) axis=0",
                   "Expand(/constant, %2)", "Where(%0, %3, input)", "Identity(%4)"}));
  const auto both = [](const Tensor& x) {
    const Tensor other = ~(x <= x.detach());
    return where((x > 1.0) & other, x, 2.0);
  };
  EXPECT_EQ(nodes(both, ramp({2, 4})),
            (Texts{"LessOrEqual(input, input)", "Not(%0)", "Greater(input, /constant)",
                   "And(%2, %1)", "Where(%3, input, /constant_2)", "Identity(%4)"}));
}

// 1 / 0.1 is rounded up to 10, but 0.1 is a little more than a tenth: the quotient is 9.
TEST_F(OnnxTest, AFloorOfAQuotientIsNotThatOfARoundedOne) {
  const auto quotients = [](const Tensor& x) { return floor_divide(x, x.sum({1}, true)); };
  std::string types;
  for (const std::string& node : nodes(quotients, ramp({2, 4}))) {
    types += node.substr(0, node.find('(')) + " ";
  }
  EXPECT_EQ(types,
            "ReduceSum Mod Less Less Xor Equal Not And Sub Div Sub Where Floor Sub Greater Add "
            "Where Equal Div Where Identity ");
}

// ONNX's nodes take neither bool nor u8 there.
TEST_F(OnnxTest, BytesAndTruthValuesAreComputedAsIntegers) {
  const Tensor bytes = ramp({2, 2, 2}).to(DType::u8);
  EXPECT_EQ(nodes([](const Tensor& x) { return matmul(x, x); }, bytes),
            (Texts{"Cast(input) to=6", "Cast(input) to=6", "MatMul(%0, %1)", "Cast(%2) to=2",
                   "Identity(%3)"}));
  EXPECT_EQ(nodes([](const Tensor& x) { return relu(x); }, bytes),
            (Texts{"Cast(input) to=6", "Max(%0, /constant)", "Cast(%1) to=2", "Identity(%2)"}));
  const auto any_above = [](const Tensor& x) { return max(x > 2.0, {1}); };
  EXPECT_EQ(nodes(any_above, ramp({2, 4})),
            (Texts{"Greater(input, /constant)", "Cast(%0) to=6", "ReduceMax(%1) axes=1, keepdims=1",
                   "Reshape(%2, /constant_2)", "Cast(%3) to=9", "Identity(%4)"}));
}

// Only an observer of the tape sees operations of integers.
TEST_F(OnnxTest, AFractionMakesIntegersFloating) {
  const Tensor ids = tensor({1, 2, 3, 4}, DType::i64).reshape({2, 2});
  EXPECT_EQ(saved(Computes([](const Tensor& x) { return maximum(x, 2.5); }), {ids}).outputs,
            Texts{"output 1 [batch,2]"});
  EXPECT_EQ(nodes([](const Tensor& x) { return maximum(x, 2.0); }, ids),
            (Texts{"Max(input, /constant)", "Identity(%0)"}));
  EXPECT_EQ(saved(Computes([](const Tensor& x) { return (x > 2.0) % 2.0; }), {ids}).outputs,
            Texts{"output 7 [batch,2]"});
  EXPECT_EQ(saved(Computes([](const Tensor& x) { return floor_divide(x, 1.5); }), {ids}).outputs,
            Texts{"output 1 [batch,2]"});
}

// 41 times the f32 next to 1 / 41 is less than 1, and its floor 0.
TEST_F(OnnxTest, AQuotientIsNoProductWithTheInverse) {
  const Texts divided{"Div(input, /constant)", "Floor(%0)", "Identity(%1)"};
  EXPECT_EQ(nodes([](const Tensor& x) { return floor(x / 41.0); }, ramp({2, 4})), divided);
  const auto in_place = [](Tensor x) { return floor(x.div_(41.0)); };
  EXPECT_EQ(nodes(in_place, ramp({2, 4})), divided);
}

TEST_F(OnnxTest, ActivationsOfComparisons) {
  nn::Sequential model{nn::ReLU6(), nn::Hardswish(), nn::Hardsigmoid(), nn::PReLU(4)};
  EXPECT_GT(saved(model, {ramp({2, 4})}).nodes.size(), 10u);
}

TEST_F(OnnxTest, ASliceOfMoreThanTheExampleEndsWhereItSays) {
  const auto three = [](const Tensor& x) { return x.slice(0, 0, 4) * 1.0; };
  const ModelFile file = saved(Computes(three), {ramp({2, 4})});
  EXPECT_EQ(file.tensors.at("/constant_2"),
            std::string(reinterpret_cast<const char*>(std::array<std::int64_t, 1>{4}.data()), 8));
}

// A shift that both batches of the trace leave the same may be another one in a third.
TEST_F(OnnxTest, ARollAlongTheBatchIsByOneAtMost) {
  const auto by = [](std::int64_t shift, std::optional<std::int64_t> dim) {
    return [=](const Tensor& x) { return roll(x, shift, dim); };
  };
  for (const std::int64_t shift : {3, -3, 5, 8}) {
    const std::string text = "[roll] cannot be said in ONNX: by more than one along the batch";
    EXPECT_WEFT_ERROR(nodes(by(shift, 0), ramp({4, 2})), Unsupported, text);
    EXPECT_WEFT_ERROR(nodes(by(shift, {}), ramp({4, 2})), Unsupported, text);
  }
  for (const std::int64_t shift : {1, -1}) {
    const Texts rolled = nodes(by(shift, 0), ramp({4, 2}));
    ASSERT_EQ(rolled.size(), 4u);
    EXPECT_EQ(rolled[2], "Concat(%0, %1) axis=0");
  }
  // The size of a row is known: 9 of 4 is 1.
  EXPECT_EQ(nodes(by(9, 1), ramp({2, 4})), nodes(by(1, 1), ramp({2, 4})));
  EXPECT_EQ(nodes(by(8, 1), ramp({2, 4})), Texts{"Identity(input)"});
}

TEST_F(OnnxTest, AHalfOfTheBatchIsNoConstant) {
  const auto half = [](const Tensor& x) { return x.narrow(0, 0, x.shape(0) / 2) * 1.0; };
  EXPECT_WEFT_ERROR(nodes(half, ramp({2, 4})), Unsupported, "its end depends on the batch");
}

// Nothing of it requires a gradient.
TEST_F(OnnxTest, AFrozenEmbedding) {
  nn::Embedding table(10, 3);
  table.weight.set_requires_grad(false);
  const auto next = [&](const Tensor& x) {
    return embedding(x.slice(1, 1, 3) + 1.0, table.weight);
  };
  EXPECT_EQ(nodes(next, tensor({1, 2, 3, 4, 5, 6}, DType::i64).reshape({2, 3})),
            (Texts{"Slice(input, /constant, /constant_2, /constant, /constant)",
                   "Add(%0, /constant_3)", "Gather(/constant_4, %1)", "Identity(%2)"}));
}

// A query that sees no key gets 0. A NaN of its scores stays.
TEST_F(OnnxTest, OnlyAMaskHidesKeys) {
  const Tensor mask = full({1, 5, 5}, -std::numeric_limits<double>::infinity());
  const auto attends = [&](const Tensor& x) {
    return scaled_dot_product_attention(x, x, x, {.attn_mask = mask});
  };
  std::string types;
  for (const std::string& node : nodes(attends, ramp({2, 5, 4}))) {
    types += node.substr(0, node.find('(')) + " ";
  }
  EXPECT_EQ(types, "Mul Transpose MatMul ReduceMax Equal Add Softmax Where MatMul Identity ");
}

TEST_F(OnnxTest, AHistoryFromBeforeIsRefused) {
  nn::Linear layer(4, 4);
  const Tensor before = layer(ramp({1, 4}));
  EXPECT_WEFT_ERROR(nodes([&](const Tensor& x) { return x + before; }, ramp({2, 4})), Unsupported,
                    "[linear] cannot be said in ONNX: it ran before the model did");
}

TEST_F(OnnxTest, TheBatchMustBeOne) {
  struct Two : nn::Module<Two> {
    Tensor forward(const Tensor& a, const Tensor& b) { return a + b.sum(); }
  };
  EXPECT_WEFT_ERROR(saved(Two(), {ramp({2, 4}), ramp({3, 4})}), InvalidArgument,
                    "must be one batch, got [3,4] beside [2,4]");
  EXPECT_WEFT_ERROR(saved(Two(), {ramp({2, 4}), scalar(1)}), InvalidArgument, "dynamic_batch");
  EXPECT_WEFT_ERROR(saved(Two(), {}), InvalidArgument, "needs an example");
  EXPECT_EQ(saved(Two(), {ramp({2, 4}), scalar(1)}, {.dynamic_batch = false}).inputs,
            (Texts{"input_0 1 [2,4]", "input_1 1 []"}));
}

}  // namespace
}  // namespace weft::onnx
