// Activations, losses and initialisation compared with PyTorch in f64; dropout.
#include <gtest/gtest.h>
#include "weft/autograd/ops.h"
#include "weft/core/runtime/log.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/activation.h"
#include "weft/nn/dropout.h"
#include "weft/nn/init.h"
#include "weft/nn/instance_norm.h"
#include "weft/nn/loss.h"
#include "weft/nn/padding.h"
#include "weft/nn/pixel_shuffle.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/autograd/against_goldens.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::ramp;
using testing::values_of;

const testing::Goldens goldens("tests/nn/functional_goldens");

// f64, for functions that PyTorch computes by the same formulas, except for the order of a few
// steps.
constexpr double kTolerance = 1e-13;

using testing::Inputs;

void check(const std::string& name, const std::function<Tensor(Inputs)>& f,
           const std::vector<Tensor>& inputs) {
  testing::expect_goldens(goldens, name, f, inputs, kTolerance);
}

TEST(Images, LayersFollowPyTorch) {
  const auto layer = [](auto module) {
    return [module](Inputs x) mutable { return module(x[0]); };
  };
  const Tensor x = ramp({2, 8, 4, 6});
  check("pixel_shuffle", layer(nn::PixelShuffle(2)), {x});
  check("pixel_unshuffle", [](Inputs in) { return nn::pixel_unshuffle(in[0], 2); }, {x});
  check("instance_norm", layer(nn::InstanceNorm2d(8)), {x});
  check("zero_pad", layer(nn::ZeroPad2d({1, 2, 0, 3})), {x});
  check("reflection_pad", layer(nn::ReflectionPad2d({1, 2, 0, 3})), {x});
  EXPECT_EQ(values_of(nn::pixel_unshuffle(nn::pixel_shuffle(x, 2), 2)), values_of(x));
  EXPECT_EQ(nn::pixel_shuffle(zeros({0, 4, 1, 1}), 2).shape(), (Shape{0, 1, 2, 2}));
  EXPECT_EQ(nn::ReflectionPad2d(1)(zeros({1, 1, 2, 2})).shape(), (Shape{1, 1, 4, 4}));
  EXPECT_EQ(nn::PixelShuffle(3).to_string(), "PixelShuffle(upscale_factor=3)\n0 parameters");
  EXPECT_EQ(nn::ZeroPad2d(2).to_string(), "ZeroPad2d((2, 2, 2, 2))\n0 parameters");
  const nn::InstanceNorm2d norm(8);
  EXPECT_EQ(values_of(norm(x[0])), values_of(norm(x)[0]));
  EXPECT_HAS(nn::InstanceNorm2d(3, {.affine = true}).to_string(), "affine=True");
  const nn::InstanceNorm2d shifted(2, {.affine = true});
  raw::copy_(shifted.bias, tensor({3, -4}));
  EXPECT_EQ(values_of(shifted(ones({1, 2, 1, 1}))), (std::vector<double>{3, -4}));

  EXPECT_WEFT_ERROR(nn::pixel_shuffle(zeros({1, 6, 2, 2}), 2), Shape, "no multiple of 2^2");
  EXPECT_WEFT_ERROR(nn::pixel_unshuffle(zeros({1, 1, 4, 3}), 2), Shape, "no multiples of 2");
  EXPECT_WEFT_ERROR(nn::pixel_shuffle(zeros({2, 2}), 1), Shape, "input: got [2,2]");
  EXPECT_WEFT_ERROR(nn::pixel_shuffle(zeros({1, 1, 2, 2}), std::int64_t{1} << 62), InvalidArgument,
                    "factor");
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  EXPECT_WEFT_ERROR(nn::pixel_unshuffle(zeros({1, 3, 0, 0}), most), Shape, "[pixel_unshuffle]");
  EXPECT_WEFT_ERROR(nn::pixel_shuffle(zeros({1, 0, std::int64_t{1} << 40, 1}), most), Shape,
                    "[pixel_shuffle]");
  EXPECT_WEFT_ERROR(nn::PixelShuffle(0), InvalidArgument, "upscale_factor: got 0");
  EXPECT_WEFT_ERROR(nn::InstanceNorm2d(3)(x), Shape, "expected [N,3,H,W]");
  EXPECT_WEFT_ERROR(nn::ReflectionPad2d(4)(x), Shape,
                    "[pad] reflect: dimension 2 of [2,8,4,6] has too few elements for (4, 4)");
  EXPECT_WEFT_ERROR(pad(x, {1, 0}, "mirror"), InvalidArgument, "mode: got 'mirror'");
}

TEST(Images, InstanceNormTracksStatisticsAsPyTorch) {
  nn::InstanceNorm2d norm(8, {.momentum = 0.3, .affine = true, .track_running_stats = true});
  norm.to(DType::f64);
  raw::copy_(norm.weight, ramp({8}) + 2);
  raw::copy_(norm.bias, ramp({8}));
  const auto layer = [&](Inputs in) { return norm(in[0]); };
  const Tensor x = ramp({2, 8, 4, 6});
  check("instance_norm_training", layer, {x});
  raw::zero_(norm.running_mean);  // undoes the updates for other layouts
  raw::fill_(norm.running_var, 1);
  norm(x);
  norm(x * 2 + 1);
  EXPECT_TRUE(testing::near_values(norm.running_mean, goldens["instance_norm_mean"], kTolerance));
  EXPECT_TRUE(testing::near_values(norm.running_var, goldens["instance_norm_var"], kTolerance));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 0);
  norm.eval();
  check("instance_norm_evaluation", layer, {x});
  const std::vector<double> mean = values_of(norm.running_mean);
  norm(x);
  EXPECT_EQ(values_of(norm.running_mean), mean);

  std::vector<std::string> keys;
  for (const auto& [key, value] : norm.state_dict()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                            "num_batches_tracked"}));
  norm.train();
  EXPECT_WEFT_ERROR(norm(zeros({2, 8, 1, 1}, DType::f64)), Shape, "more than one pixel an image");
  norm(zeros({0, 8, 2, 2}, DType::f64));  // no image, so nothing to average
  EXPECT_EQ(values_of(norm.running_mean), mean);
  EXPECT_EQ(nn::InstanceNorm2d(3, {.momentum = {}, .track_running_stats = true}).to_string(),
            "InstanceNorm2d(3, eps=1e-05, momentum=None, affine=False, track_running_stats=True)\n"
            "0 parameters");
}

// The second forward of a checkpoint does not count the images again.
TEST(Images, InstanceNormCountsABatchOnce) {
  nn::InstanceNorm2d plain(2, {.track_running_stats = true}), recomputed = nn::clone(plain);
  const Tensor x = ramp({2, 2, 3, 3}).to(DType::f32).set_requires_grad();
  plain(x);
  autograd::checkpoint([&](const Tensor& t) { return recomputed(t); }, x).sum().backward();
  EXPECT_EQ(values_of(recomputed.running_var), values_of(plain.running_var));
}

TEST(Activations, FollowPyTorch) {
  const auto layer = [](auto module) {
    return [module](Inputs x) mutable { return module(x[0]); };
  };
  const Tensor x = ramp({3, 7}, 4), rows = ramp({2, 5, 3}, 4);
  check("leaky_relu", layer(nn::LeakyReLU(0.2)), {x});
  check("gelu", layer(nn::GELU()), {x});
  check("gelu_tanh", layer(nn::GELU("tanh")), {x});
  check("log_sigmoid", [](Inputs in) { return log_sigmoid(in[0]); }, {x});
  check("silu", layer(nn::SiLU()), {x});
  check("elu", layer(nn::ELU(0.5)), {x});
  check("softplus", layer(nn::Softplus(1.5, 3)), {x});
  const Tensor edges = cat({ramp({12}, 8), tensor({-3, 0, 3, 6}, DType::f64)});
  check("relu6", layer(nn::ReLU6()), {edges});
  check("hardsigmoid", layer(nn::Hardsigmoid()), {edges});
  check("hardswish", layer(nn::Hardswish()), {edges});
  const auto prelu = [](Inputs in) { return nn::prelu(in[0], in[1]); };
  check("prelu", prelu, {edges, tensor({0.3}, DType::f64)});
  check("prelu_channels", prelu, {ramp({2, 3, 4}), ramp({3})});
  check("softmax", layer(nn::Softmax(1)), {rows});
  check("log_softmax", layer(nn::LogSoftmax(-2)), {rows});
  EXPECT_EQ(values_of(nn::Tanh()(ramp({3}))), values_of(tanh(ramp({3}))));
}

TEST(Pooling, ReturnsWhereTheMaximaAre) {
  const Pool2dParams params{
      .kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true};
  const auto pool = [&](const Tensor& x) { return max_pool2d_with_indices(x, params); };
  check("max_pool_values", [&](Inputs in) { return pool(in[0]).values; }, {ramp({2, 3, 6, 5})});
  const ValuesAndIndices got = pool(ramp({2, 3, 6, 5}));
  EXPECT_EQ(got.indices.dtype(), DType::i64);
  EXPECT_EQ(values_of(got.indices), goldens["max_pool_indices"]);
  EXPECT_EQ(values_of(got.values), values_of(max_pool2d(ramp({2, 3, 6, 5}), params)));
  EXPECT_EQ(pool(zeros({0, 3, 6, 5})).indices.shape(), (Shape{0, 3, 4, 3}));
}

// By hand: windows of rows and columns 0 to 1 and 1 to 2, which share the pixel in the middle. An
// index counts in the whole image, not in its window.
TEST(Pooling, AdaptiveReturnsWhereTheMaximaAre) {
  const Tensor x = tensor({{1, 2, 0}, {3, 9, 4}, {8, 5, 7}}).unsqueeze(0).detach();
  x.set_requires_grad();
  const auto [y, indices] = adaptive_max_pool2d_with_indices(x, {2, 2});
  EXPECT_EQ(indices.dtype(), DType::i64);
  EXPECT_TENSOR(y, ({1, 2, 2}), {9, 9, 9, 9});
  EXPECT_TENSOR(indices, ({1, 2, 2}), {4, 4, 4, 4});
  y.backward(tensor({{1, 2}, {3, 4}}).unsqueeze(0));
  EXPECT_TENSOR(x.grad(), ({1, 3, 3}), {0, 0, 0, 0, 10, 0, 0, 0, 0});
  const Tensor image = tensor({{1, 2, 6}, {3, 0, 4}, {8, 5, 7}}).unsqueeze(0).unsqueeze(0);
  const auto of_batch = adaptive_max_pool2d_with_indices(image, {2, 1});
  EXPECT_TENSOR(of_batch.values, ({1, 1, 2, 1}), {6, 8});
  EXPECT_TENSOR(of_batch.indices, ({1, 1, 2, 1}), {2, 6});
}

TEST(Activations, LeakyReluWorksInPlaceOnATemporary) {
  const Tensor x = ramp({4}).set_requires_grad();
  Tensor y = x * 2.0;
  const void* memory = y.raw_data();
  const Tensor z = leaky_relu(std::move(y), 0.1);
  EXPECT_EQ(z.raw_data(), memory);
  const Tensor kept = x * 2.0;
  EXPECT_NE(nn::LeakyReLU(0.1)(kept).raw_data(), kept.raw_data());
  EXPECT_EQ(values_of(nn::LeakyReLU(0.1)(kept)), values_of(z));
}

TEST(Activations, KeepANanAndGiveItNoSlope) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({nan, -1, 2, 7}, DType::f64).set_requires_grad();
  const Tensor y = nn::relu6(x);
  EXPECT_TRUE(std::isnan(values_of(y)[0]));
  EXPECT_TENSOR(y.slice(0, 1, 4), ({3}), {0, 2, 6});
  (y + nn::hardsigmoid(x) * 6.0).sum().backward();
  EXPECT_TENSOR(x.grad(), ({4}), {0, 1, 2, 0});
}

TEST(Activations, PReLUTakesAWeightWithoutDimensions) {
  const Tensor x = tensor({-2, 3}).set_requires_grad(), w = scalar(0.5).set_requires_grad();
  const Tensor y = nn::prelu(x, w);
  EXPECT_TENSOR(y, ({2}), {-1, 3});
  y.sum().backward();
  EXPECT_TENSOR(w.grad(), ({}), {-2});
  EXPECT_TENSOR(nn::prelu(scalar(-4), w), ({}), {-2});
  EXPECT_WEFT_ERROR(nn::prelu(x, ones({1, 1})), Shape, "[prelu] weight: got [1,1]");
}

TEST(Activations, PReLUGivesItsWeightNoGradientOfInfiniteInputs) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = tensor({inf, -2}).set_requires_grad(), w = tensor({0.5}).set_requires_grad();
  nn::prelu(x, w).sum().backward();
  EXPECT_TENSOR(x.grad(), ({2}), {1, 0.5});
  EXPECT_TENSOR(w.grad(), ({1}), {-2});
}

TEST(Activations, SayWhatTheyAre) {
  EXPECT_EQ(nn::LeakyReLU(0.25).to_string(), "LeakyReLU(negative_slope=0.25)\n0 parameters");
  EXPECT_EQ(nn::GELU().to_string(), "GELU(approximate='none')\n0 parameters");
  EXPECT_EQ(nn::PReLU(3).to_string(), "PReLU(num_parameters=3)  # 3 parameters\n3 parameters");
  EXPECT_EQ(values_of(nn::PReLU().weight), std::vector<double>{0.25});
  EXPECT_EQ(values_of(nn::PReLU(1, 0.5)(tensor({-2, 3}))), (std::vector<double>{-1, 3}));
  EXPECT_EQ(nn::PReLU(2)(zeros({0, 2})).shape(), (Shape{0, 2}));
  EXPECT_WEFT_ERROR(nn::PReLU(0), InvalidArgument, "[PReLU] num_parameters: got 0");
  EXPECT_WEFT_ERROR(nn::PReLU(3)(ones({3})), Shape, "[prelu] weight: got [3], expected [1]");
  EXPECT_WEFT_ERROR(nn::PReLU(3)(ones({3, 2})), Shape, "one number for each channel");
  EXPECT_EQ(nn::Hardswish()(ones({2}, DType::bf16)).dtype(), DType::bf16);
  EXPECT_EQ(nn::SiLU().to_string(), "SiLU()\n0 parameters");
  EXPECT_EQ(nn::ELU().to_string(), "ELU(alpha=1.0)\n0 parameters");
  EXPECT_EQ(nn::Softplus().to_string(), "Softplus(beta=1.0, threshold=20.0)\n0 parameters");
  EXPECT_WEFT_ERROR(nn::Softplus(0), InvalidArgument, "[Softplus] beta: got 0");
  EXPECT_EQ(nn::Softmax(-1).to_string(), "Softmax(dim=-1)\n0 parameters");
  EXPECT_WEFT_ERROR(nn::GELU("fast"), InvalidArgument, "[GELU] approximate: got 'fast'");
  EXPECT_WEFT_ERROR(nn::LeakyReLU(-1), InvalidArgument, "[LeakyReLU] negative_slope: got -1");
}

constexpr Reduction kNone = Reduction::none, kMean = Reduction::mean;

// The end of the goldens' names.
const std::pair<Reduction, std::string> kReductions[] = {
    {Reduction::none, "_none"}, {Reduction::mean, "_mean"}, {Reduction::sum, "_sum"}};

TEST(Losses, NllFollowsPyTorch) {
  const Tensor target = from_vector(std::vector<std::int64_t>{2, -100, 0, 1}, {4});
  const Tensor image = from_vector(std::vector<std::int64_t>{0, 2, 1, 2, -100, 1}, {2, 3});
  for (const auto& [r, end] : kReductions) {
    const auto nll = [r = r](const Tensor& labels) {
      return [=](Inputs x) { return nn::nll_loss(x[0], labels, -100, r); };
    };
    check("nll" + end, nll(target), {ramp({4, 3})});
    check("nll_image" + end, nll(image), {ramp({2, 4, 3})});
  }
}

TEST(Losses, NllOfLogSoftmaxIsCrossEntropy) {
  const Tensor x = ramp({4, 3}, 3);
  const Tensor target = from_vector(std::vector<std::int64_t>{2, 1, 0, 1}, {4});
  EXPECT_NEAR(nn::nll_loss(log_softmax(x, 1), target, 1).item<double>(),
              nn::cross_entropy(x, target, {.ignore_index = 1}).item<double>(), 1e-15);
  const Tensor ignored = from_vector(std::vector<std::int64_t>(4, -100), {4});
  EXPECT_TRUE(std::isnan(nn::nll_loss(x, ignored).item<double>()));
}

TEST(Losses, NllRefusesWhatDoesNotFit) {
  const Tensor x = ramp({4, 3});
  EXPECT_WEFT_ERROR(nn::nll_loss(x, zeros({3}, DType::i64)), Shape,
                    "[nll_loss] target: got [3], log_probs [4,3] need [4]");
  EXPECT_WEFT_ERROR(nn::nll_loss(x, zeros({4})), Dtype, "[nll_loss] target: got f32");
  EXPECT_WEFT_ERROR(nn::nll_loss(ramp({}), zeros({}, DType::i64)), Shape, "expected [N,C]");
  EXPECT_WEFT_ERROR(nn::nll_loss(x, full({4}, 3, DType::i64)), InvalidArgument, "3");
}

TEST(Losses, BceWithLogitsFollowsPyTorch) {
  const std::vector<Tensor> inputs{ramp({3, 4}, 20), raw::abs(raw::reshape(ramp({4, 3}), {3, 4}))};
  const Tensor weight = raw::add(ramp({4}), 2);
  for (const auto& [r, end] : kReductions) {
    const auto bce = [r = r](const Tensor& weights) {
      return [=](Inputs x) { return nn::bce_with_logits(x[0], x[1], r, weights); };
    };
    check("bce" + end, bce({}), inputs);
    check("bce_weight" + end, bce(weight), inputs);
  }
}

TEST(Losses, BceWithLogitsIsStable) {
  const Tensor x = tensor({200, -200, 200, -200}), t = tensor({1, 0, 0, 1});
  EXPECT_TENSOR(nn::bce_with_logits(x, t, kNone), ({4}), {0, 0, 200, 200});
  EXPECT_WEFT_ERROR(nn::bce_with_logits(x, tensor({1, 2})), Shape,
                    "[bce_with_logits] target: got [2], x is [4]");
  EXPECT_WEFT_ERROR(nn::bce_with_logits(x, t, kMean, ones({2, 4})), Shape,
                    "[bce_with_logits] pos_weight: got [2,4], which does not broadcast to x [4]");
}

TEST(Losses, L1AndSmoothL1FollowPyTorch) {
  const std::vector<Tensor> inputs{ramp({2, 3}, 2), ramp({2, 3})};
  for (const auto& [r, end] : kReductions) {
    check("l1" + end, [r = r](Inputs x) { return nn::l1_loss(x[0], x[1], r); },
          {ramp({2, 3}), ramp({2, 3}, 0.5)});
    check(
        "smooth_l1" + end, [r = r](Inputs x) { return nn::smooth_l1_loss(x[0], x[1], r, 0.4); },
        inputs);
  }
  check(
      "smooth_l1_zero", [](Inputs x) { return nn::smooth_l1_loss(x[0], x[1], kMean, 0); }, inputs);
  EXPECT_WEFT_ERROR(nn::l1_loss(ramp({2}), ramp({3})), Shape, "[l1_loss]");
  EXPECT_WEFT_ERROR(nn::smooth_l1_loss(ramp({2}), ones({2})), Dtype,
                    "[smooth_l1_loss] target: got f32, x is f64");
}

TEST(Dropout, ScalesWhatItKeeps) {
  manual_seed(1);
  nn::Dropout dropout(0.25);
  const Tensor x = ones({100, 100}).set_requires_grad();
  const Tensor y = dropout(x);
  double kept = 0;
  for (const double v : values_of(y)) {
    EXPECT_TRUE(v == 0 || v == static_cast<float>(1 / 0.75)) << v;
    kept += v != 0;
  }
  // 10000 draws with probability 0.75: the standard deviation is 43; allow five of them.
  EXPECT_NEAR(kept, 7500, 217);
  y.sum().backward();
  EXPECT_EQ(values_of(x.grad()), values_of(y));
  EXPECT_NE(values_of(dropout(x)), values_of(y));
  manual_seed(1);
  EXPECT_EQ(values_of(dropout(x)), values_of(y));
}

TEST(Dropout, PassesOnInEval) {
  nn::Dropout dropout(0.5);
  dropout.eval();
  const Tensor x = ones({10});
  EXPECT_TRUE(dropout(x).same(x));
  EXPECT_TRUE(nn::Dropout(0)(x).same(x));
  EXPECT_EQ(values_of(nn::Dropout(1)(x)), std::vector<double>(10, 0));
  EXPECT_EQ(values_of(nn::Dropout(0.5)(zeros({3}, DType::bf16))), std::vector<double>(3, 0));
  EXPECT_WEFT_ERROR(nn::Dropout(1.5), InvalidArgument, "[Dropout] p: got 1.5, expected 0 to 1");
}

void expect_init(const std::function<void(const Tensor&)>& f, const Shape& shape,
                 const std::vector<double>& seed0, const std::vector<double>& seed7, double bound) {
  for (const auto& [seed, expected] : {std::pair(0, &seed0), std::pair(7, &seed7)}) {
    const Tensor w = empty(shape).set_requires_grad();
    manual_seed(static_cast<std::uint64_t>(seed));
    f(w);
    EXPECT_TRUE(w.is_leaf());
    const std::vector<float> values = w.to_vector<float>();
    ASSERT_EQ(values.size(), expected->size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], (*expected)[i], bound) << "seed " << seed << ", element " << i;
    }
  }
}

#define SEEDS(name) goldens["init_" #name "_0"], goldens["init_" #name "_7"]

TEST(Init, FollowsPyTorch) {
  using namespace nn::init;
  const auto out = FanMode::fan_out;
  const Shape square{5, 7}, kernel{3, 4, 2, 3}, matrix{6, 5};
  expect_init([](auto& w) { uniform_(w, -0.3, 1.2); }, square, SEEDS(uniform), 0);
  expect_init([](auto& w) { xavier_uniform_(w, 1.5); }, kernel, SEEDS(xavier_uniform), 0);
  expect_init([](auto& w) { kaiming_uniform_(w); }, matrix, SEEDS(kaiming_uniform), 0);
  expect_init([&](auto& w) { kaiming_uniform_(w, 0, out, Nonlinearity::relu); }, kernel,
              SEEDS(kaiming_uniform_out), 0);
  // PyTorch's own CPU levels differ by up to 1.8e-6 of the standard deviation.
  expect_init([](auto& w) { normal_(w, 0.5, 2); }, square, SEEDS(normal), 4e-6);
  expect_init([](auto& w) { xavier_normal_(w); }, kernel, SEEDS(xavier_normal), 2e-6);
  expect_init([](auto& w) { kaiming_normal_(w, 0.2); }, matrix, SEEDS(kaiming_normal), 2e-6);
  expect_init([&](auto& w) { kaiming_normal_(w, 0, out, Nonlinearity::tanh); }, kernel,
              SEEDS(kaiming_normal_tanh), 2e-6);
  // The same draws; PyTorch computes the inverse in f32.
  expect_init([](auto& w) { trunc_normal_(w); }, square, SEEDS(trunc_normal), 2e-6);
  expect_init([](auto& w) { trunc_normal_(w, 0.1, 0.02, 0.08, 0.3); }, {40},
              SEEDS(trunc_normal_narrow), 2e-6);
}

// PyTorch decomposes in f32: its Q has an error of some roundings times the condition number of the
// draws, at most 10 here; and the draws may differ by 1.8e-6 as above.
TEST(Init, OrthogonalFollowsPyTorch) {
  using nn::init::orthogonal_;
  expect_init([](auto& w) { orthogonal_(w); }, {9, 4}, SEEDS(orthogonal_tall), 2e-6);
  expect_init([](auto& w) { orthogonal_(w, 1.5); }, {3, 4, 2, 3}, SEEDS(orthogonal_wide), 2e-6);
  expect_init([](auto& w) { orthogonal_(w); }, {5, 5}, SEEDS(orthogonal_square), 2e-6);
}

// Several blocks of work for threads, for tall and wide matrices. In f64 the products have an error
// of at most some hundred roundings.
TEST(Init, OrthogonalIsOrthonormal) {
  for (const Shape& shape : {Shape{300, 200}, Shape{200, 300}, Shape{1, 7}, Shape{7, 1}}) {
    const Tensor w = empty(shape, DType::f64);
    nn::init::orthogonal_(w, 2);
    const Tensor product = shape[0] > shape[1] ? matmul(w.t(), w) : matmul(w, w.t());
    const Tensor eye = empty(product.shape(), DType::f64);
    nn::init::eye_(eye);
    EXPECT_LT(norm(product - 4 * eye).item<double>(), 1e-12) << shape;
  }
  nn::init::orthogonal_(empty({0, 3}));
}

TEST(Init, FixedValues) {
  using namespace nn::init;
  const Tensor x = empty({2, 3});
  eye_(x);
  EXPECT_EQ(values_of(x), goldens["init_eye"]);
  constant_(x, 2.5);
  EXPECT_EQ(values_of(x), std::vector<double>(6, 2.5));
  zeros_(x);
  EXPECT_EQ(values_of(x), std::vector<double>(6, 0));
  ones_(x);
  EXPECT_EQ(values_of(x), std::vector<double>(6, 1));
  const Tensor kernel = empty({4, 3, 3, 2}), volume = empty({2, 1, 2, 3, 4});
  dirac_(kernel, 2);
  EXPECT_EQ(values_of(kernel), goldens["init_dirac"]);
  dirac_(volume);
  EXPECT_EQ(values_of(volume), goldens["init_dirac_volume"]);
  EXPECT_EQ(calculate_gain(Nonlinearity::tanh), 5.0 / 3);
  EXPECT_EQ(calculate_gain(Nonlinearity::selu), 0.75);
}

// PyTorch warns and returns without a change.
TEST(Init, WithoutElementsNothingHappens) {
  using namespace nn::init;
  struct Sink : LogSink {
    std::vector<std::string> lines;
    void write(Level, std::string_view message) override { lines.emplace_back(message); }
  } sink;
  const Scoped log(&ThreadState::log, static_cast<LogSink*>(&sink));
  const Tensor none = empty({3, 0});
  kaiming_uniform_(none);
  kaiming_normal_(none);
  xavier_uniform_(empty({0, 0}));
  xavier_normal_(empty({0, 0}));
  EXPECT_EQ(sink.lines.size(), 4u);
  EXPECT_EQ(sink.lines[0], "kaiming_uniform_: a tensor [3,0] has no elements to initialise");
}

TEST(Init, ErrorsNameWhatWasCalled) {
  using namespace nn::init;
  const Tensor w = zeros({3, 2});
  EXPECT_WEFT_ERROR(kaiming_uniform_(w, NAN), InvalidArgument,
                    "[kaiming_uniform_] a must be finite, got nan");
  EXPECT_WEFT_ERROR(kaiming_normal_(w, NAN), InvalidArgument, "[kaiming_normal_] a must be finite");
  EXPECT_WEFT_ERROR(xavier_uniform_(w, -1), InvalidArgument,
                    "[xavier_uniform_] gain must be finite and not negative, got -1");
  EXPECT_WEFT_ERROR(xavier_normal_(w, HUGE_VAL), InvalidArgument, "[xavier_normal_] gain must be");
  EXPECT_WEFT_ERROR(trunc_normal_(w, NAN), InvalidArgument, "[trunc_normal_] needs a finite mean");
  EXPECT_WEFT_ERROR(kaiming_uniform_(zeros({3})), Shape,
                    "[kaiming_uniform_] fan_in needs at least 2 dimensions, got [3]");
  EXPECT_EQ(values_of(w), std::vector<double>(6, 0.0));
}

TEST(Init, RefusesWhatDoesNotFit) {
  using namespace nn::init;
  EXPECT_WEFT_ERROR(eye_(empty({2})), Shape, "[eye_] needs 2 dimensions, got [2]");
  EXPECT_WEFT_ERROR(dirac_(empty({3, 2, 1}), 2), Shape, "divisible by groups 2, got [3,2,1]");
  dirac_(empty({0, 2, 1}), std::int64_t{1} << 62);  // valid for any number of groups
  EXPECT_WEFT_ERROR(xavier_normal_(empty({3})), Shape, "at least 2 dimensions, got [3]");
  EXPECT_WEFT_ERROR(orthogonal_(empty({3})), Shape, "at least 2 dimensions, got [3]");
  EXPECT_WEFT_ERROR(trunc_normal_(empty({3}), 0, 1, 2, 1), InvalidArgument, "low < high");
}

}  // namespace
}  // namespace weft
