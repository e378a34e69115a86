// Losses with class weights, bce_loss and kl_div: values and gradients compared with PyTorch's,
// rules with finite differences, dtypes, empty tensors, errors.
#include "weft/nn/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/loss_modules.h"
#include "weft/tests/autograd/against_goldens.h"
#include "weft/tests/autograd/with_gradients.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kFloating;
using testing::make;
using testing::near_values;
using testing::ramp;
using testing::values_of;

const testing::Goldens goldens("tests/nn/loss_goldens");

using nn::KlReduction;
using testing::Inputs;

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

class LossLayersTest : public testing::DeviceParam {
 protected:
  static Tensor target() { return make({2, -100, 0, 1, 2}, {5}, DType::i64); }
  static Tensor image() { return make({0, 2, 1, 2, -100, 1}, {2, 3}, DType::i64); }
  static Tensor weight() { return make({0.5, 2, 0.75}, {3}, DType::f64); }
  static Tensor image_weight() { return ramp({4}) + 1.5; }

  // Checks f's results and gradients for each reduction, in every layout of the inputs; the goldens
  // have them one after the other.
  template <class R>
  static void check(const char* name, std::span<const R> reductions,
                    const std::function<Tensor(Inputs, R)>& f, const std::vector<Tensor>& inputs) {
    const std::vector<std::vector<double>> want = goldens.list(name);
    const std::size_t each = inputs.size() + 1;
    ASSERT_EQ(want.size(), reductions.size() * each) << name;
    for (std::size_t i = 0; i < reductions.size(); ++i) {
      // A few roundings in f64, some of them in logarithms.
      testing::expect_goldens(
          name, [&](Inputs in) { return f(in, reductions[i]); }, inputs,
          std::span(want).subspan(i * each, each), 1e-13);
    }
  }
  static void check(const char* name, const std::function<Tensor(Inputs, Reduction)>& f,
                    const std::vector<Tensor>& inputs) {
    check<Reduction>(name, kReductions, f, inputs);
  }
};
WEFT_FOR_EACH_DEVICE(LossLayersTest);

TEST_P(LossLayersTest, CrossEntropyWithWeightsFollowsPyTorch) {
  const auto run = [](const char* name, double smoothing, const Tensor& x, const Tensor& label,
                      const Tensor& weights) {
    check(name,
          [=](Inputs in, Reduction r) {
            return nn::cross_entropy(
                in[0], label, {.weight = weights, .label_smoothing = smoothing, .reduction = r});
          },
          {x});
  };
  const Tensor rows = ramp({5, 3}, 3), pixels = ramp({2, 4, 3}, 3);
  run("cross_entropy_rows_plain", 0, rows, target(), weight());
  run("cross_entropy_rows_smooth", 0.3, rows, target(), weight());
  run("cross_entropy_pixels_plain", 0, pixels, image(), image_weight());
  run("cross_entropy_pixels_smooth", 0.3, pixels, image(), image_weight());
}

TEST_P(LossLayersTest, NllWithWeightsFollowsPyTorch) {
  const auto nll = [](const Tensor& label, const Tensor& weights) {
    return [=](Inputs in, Reduction r) { return nn::nll_loss(in[0], label, -100, r, weights); };
  };
  check("nll_rows", nll(target(), weight()), {ramp({5, 3}, 3)});
  check("nll_pixels", nll(image(), image_weight()), {ramp({2, 4, 3}, 3)});
}

TEST_P(LossLayersTest, CrossEntropyOfProbabilitiesFollowsPyTorch) {
  const auto run = [](const char* name, double smoothing, const Tensor& weights,
                      const std::vector<Tensor>& inputs) {
    check(
        name,
        [=](Inputs in, Reduction r) {
          return nn::cross_entropy(
              in[0], in[1], {.weight = weights, .label_smoothing = smoothing, .reduction = r});
        },
        inputs);
  };
  const std::vector<Tensor> rows{ramp({5, 3}, 3), softmax(ramp({5, 3}), 1)};
  const std::vector<Tensor> pixels{ramp({2, 4, 3}, 3), softmax(ramp({2, 4, 3}), 1)};
  run("cross_entropy_shares_plain", 0, weight(), rows);
  run("cross_entropy_shares_smooth", 0.3, weight(), rows);
  run("cross_entropy_pixel_shares_plain", 0, {}, pixels);
  run("cross_entropy_pixel_shares_smooth", 0.3, {}, pixels);
  const Tensor one = softmax(ramp({5, 3}), 1).select(0, 0);
  run("cross_entropy_single_shares", 0, {}, {ramp({3}), one});
}

TEST_P(LossLayersTest, ProbabilitiesInEveryDtypeAndOfNothing) {
  for (const DType dtype : kFloating) {
    const auto loss = [&](const DType d) {
      return nn::cross_entropy(ramp({5, 3}, 3).to(d), softmax(ramp({5, 3}), 1).to(d),
                               {.weight = weight().to(d), .label_smoothing = 0.1});
    };
    EXPECT_EQ(loss(dtype).dtype(), dtype);
    EXPECT_TRUE(near_values(loss(dtype), values_of(loss(DType::f64)), testing::tolerance(dtype)));
  }
  EXPECT_TRUE(std::isnan(nn::cross_entropy(zeros({0, 3}), zeros({0, 3})).item<double>()));
  EXPECT_EQ(
      nn::cross_entropy(zeros({0, 3}), zeros({0, 3}), {.reduction = Reduction::sum}).item<double>(),
      0);
  const auto of_no_class = [](Reduction r) {
    return nn::cross_entropy(zeros({2, 0}), zeros({2, 0}), {.reduction = r});
  };
  EXPECT_TRUE(std::isnan(of_no_class(Reduction::mean).item<double>()));
  EXPECT_EQ(of_no_class(Reduction::sum).item<double>(), 0);
  EXPECT_EQ(values_of(of_no_class(Reduction::none)), (std::vector<double>{0, 0}));
  EXPECT_WEFT_ERROR(nn::cross_entropy(zeros({2, 3}), zeros({2})), Dtype,
                    "[cross_entropy] target: got f32 [2], expected i64 class numbers, or "
                    "probabilities in the shape of logits [2,3]");
  EXPECT_WEFT_ERROR(nn::cross_entropy(zeros({2, 3}), zeros({2, 3}, DType::f64)), Dtype,
                    "[cross_entropy] target: got f64, x is f32");
  EXPECT_WEFT_ERROR(nn::cross_entropy(zeros({2, 3}), zeros({2, 3}), {.weight = ones({2})}), Shape,
                    "[cross_entropy] weight: got [2], expected [3]");
  EXPECT_WEFT_ERROR(nn::cross_entropy(zeros({2, 3}), zeros({2, 3}), {.label_smoothing = 2}),
                    InvalidArgument, "label_smoothing: got 2");
}

TEST_P(LossLayersTest, SamplesWithoutABatchFollowPyTorch) {
  const Tensor label = make({2}, {}, DType::i64);
  check("cross_entropy_single",
        [=](Inputs in, Reduction r) {
          return nn::cross_entropy(in[0], label, {.weight = weight(), .reduction = r});
        },
        {ramp({3})});
  check("nll_single",
        [=](Inputs in, Reduction r) { return nn::nll_loss(in[0], label, -100, r, weight()); },
        {ramp({3})});
}

TEST_P(LossLayersTest, OperandsOfDifferentShapesAreBroadcast) {
  const Scoped silent(&ThreadState::log, silent_log());
  const std::vector<Tensor> inputs{ramp({2, 3}, 2), ramp({4, 1, 3})};
  check(
      "mse_broadcast", [](Inputs in, Reduction r) { return nn::mse_loss(in[0], in[1], r); },
      inputs);
  check(
      "l1_broadcast", [](Inputs in, Reduction r) { return nn::l1_loss(in[0], in[1], r); }, inputs);
  check(
      "smooth_l1_broadcast",
      [](Inputs in, Reduction r) { return nn::smooth_l1_loss(in[0], in[1], r); }, inputs);
  check(
      "huber_broadcast", [](Inputs in, Reduction r) { return nn::huber_loss(in[0], in[1], r); },
      inputs);
  EXPECT_WEFT_ERROR(nn::mse_loss(ones({2}), ones({3})), Shape, "[mse_loss]");
  EXPECT_WEFT_ERROR(nn::l1_loss(ones({2}), ones({3})), Shape, "[l1_loss]");
}

TEST_P(LossLayersTest, WeightsOfOneAreNoWeights) {
  const Tensor x = ramp({5, 3}, 3), one = ones({3}, DType::f64);
  for (const Reduction r : kReductions) {
    for (const double smoothing : {0.0, 0.2}) {
      EXPECT_TRUE(near_values(
          nn::cross_entropy(x, target(),
                            {.weight = one, .label_smoothing = smoothing, .reduction = r}),
          values_of(nn::cross_entropy(x, target(), {.label_smoothing = smoothing, .reduction = r})),
          1e-14));
    }
    EXPECT_EQ(values_of(nn::nll_loss(x, target(), -100, r, one)),
              values_of(nn::nll_loss(x, target(), -100, r)));
  }
  // Another class is ignored, and no other is present.
  const Tensor ignored = full({5}, 1, DType::i64);
  EXPECT_TRUE(std::isnan(
      nn::cross_entropy(x, ignored, {.weight = weight(), .ignore_index = 1}).item<double>()));
  EXPECT_EQ(values_of(nn::cross_entropy(
                x, ignored, {.weight = weight(), .ignore_index = 1, .reduction = Reduction::none})),
            std::vector<double>(5, 0));
}

TEST_P(LossLayersTest, WeightsInEveryDtype) {
  for (const DType dtype : kFloating) {
    const auto loss = [&](const DType d) {
      return nn::cross_entropy(ramp({5, 3}, 3).to(d), target(),
                               {.weight = weight().to(d), .label_smoothing = 0.1});
    };
    EXPECT_EQ(loss(dtype).dtype(), dtype);
    EXPECT_TRUE(near_values(loss(dtype), values_of(loss(DType::f64)), testing::tolerance(dtype)));
  }
  const autograd::Autocast autocast(device().type);
  const Tensor x = ramp({5, 3}).to(DType::bf16), w = weight().to(DType::f32);
  EXPECT_EQ(nn::cross_entropy(x, target(), {.weight = w}).dtype(), DType::f32);
  EXPECT_EQ(nn::nll_loss(x, target(), -100, Reduction::mean, w).dtype(), DType::f32);
  const Tensor p = sigmoid(x);
  EXPECT_EQ(nn::bce_loss(p, p).dtype(), DType::f32);
  EXPECT_EQ(nn::kl_div(x, x).dtype(), DType::f32);
}

TEST_P(LossLayersTest, IgnoredRowsHaveNoGradientWhateverTheyHold) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor classes = make({1, -100, -100}, {3}, DType::i64);
  for (const double smoothing : {0.0, 0.1}) {
    const Tensor x = make({1, 2, kNone, 3, kInfinity, 4}, {3, 2}, DType::f64).set_requires_grad();
    const Tensor weights = make({0.5, 2}, {2}, DType::f64);
    nn::cross_entropy(x, classes, {.weight = weights, .label_smoothing = smoothing}).backward();
    const std::vector<double> slopes = values_of(x.grad());
    EXPECT_LT(slopes[1], 0);
    for (std::size_t i = 2; i < slopes.size(); ++i) EXPECT_EQ(slopes[i], 0) << i;
  }
}

TEST_P(LossLayersTest, WeightsThatDoNotFitAreRefused) {
  const Tensor x = ramp({5, 3});
  EXPECT_WEFT_ERROR(nn::cross_entropy(x, target(), {.weight = ones({2}, DType::f64)}), Shape,
                    "[cross_entropy] weight: got [2], expected [3], one for each class");
  EXPECT_WEFT_ERROR(nn::cross_entropy(x, target(), {.weight = ones({3})}), Dtype,
                    "[cross_entropy] weight: got f32, needs f64");
  EXPECT_WEFT_ERROR(nn::cross_entropy(x, target(), {.weight = weight(), .label_smoothing = 2}),
                    InvalidArgument, "label_smoothing: got 2");
  EXPECT_WEFT_ERROR(nn::nll_loss(x, target(), -100, Reduction::mean, ones({3, 1}, DType::f64)),
                    Shape, "[nll_loss] weight: got [3,1], expected [3]");
  if (!on_cpu()) {
    const Tensor host = ones({3}, {DType::f64, Device()});
    EXPECT_WEFT_ERROR(nn::cross_entropy(x, target(), {.weight = host}), Device,
                      "[cross_entropy] weight is on cpu:0, the classes on cuda:0");
  }
  const Tensor wrong = full({5}, 3, DType::i64);
  EXPECT_WEFT_ERROR(nn::cross_entropy(x, wrong, {.weight = weight()}).item<double>(),
                    InvalidArgument, "[cross_entropy] target 3 at position [0]");
}

TEST_P(LossLayersTest, BceFollowsPyTorch) {
  Tensor p = (ramp({3, 4}) + 1) / 2;  // the first is 0
  p[2][3].fill_(1);
  const Tensor t = (ramp({3, 4}) * 0.5 + 0.5).roll(5);
  check("bce", [](Inputs in, Reduction r) { return nn::bce_loss(in[0], in[1], r); }, {p, t});
  const Tensor each = ramp({4}) + 1.5;
  check("bce_weighted", [&](Inputs in, Reduction r) { return nn::bce_loss(in[0], in[1], r, each); },
        {p, t});
  check(
      "bce_with_logits_weighted",
      [&](Inputs in, Reduction r) { return nn::bce_with_logits(in[0], in[1], r, each * 2, each); },
      {ramp({3, 4}, 4), t});
  EXPECT_WEFT_ERROR(nn::bce_loss(p, t, Reduction::mean, ones({2, 3, 4})), Shape,
                    "[bce_loss] weight: got [2,3,4], which does not broadcast to x [3,4]");
}

TEST_P(LossLayersTest, HuberFollowsPyTorch) {
  const Tensor t = (ramp({3, 4}) * 0.5 + 0.5).roll(5);
  check("huber", [](Inputs in, Reduction r) { return nn::huber_loss(in[0], in[1], r, 0.7); },
        {ramp({3, 4}, 4), t});
  EXPECT_WEFT_ERROR(nn::huber_loss(t, t, Reduction::mean, 0), InvalidArgument,
                    "[huber_loss] delta: got 0, expected more than 0");
}

TEST_P(LossLayersTest, HuberOfALargeDelta) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto run = [&](const std::vector<double>& of, double delta, DType dtype) {
    const Tensor x = make(of, {std::ssize(of)}, dtype).set_requires_grad();
    const Tensor losses = nn::huber_loss(x, zeros_like(x.detach()), Reduction::none, delta);
    losses.sum().backward();
    return std::pair(values_of(losses), values_of(x.grad()));
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double delta : {1e20, 1e30, 1e300, kInfinity}) {
      SCOPED_TRACE(weft::detail::concat(dtype, ' ', delta));
      const std::vector<double> of{1e-13, -3, 0, 1e10};
      const auto [losses, slopes] = run(of, delta, dtype);
      for (std::size_t i = 0; i < of.size(); ++i) {
        // Of 1e-13 in f32, and of its square: three roundings.
        EXPECT_NEAR(losses[i], of[i] * of[i] / 2, 0x1p-22 * of[i] * of[i]);
        EXPECT_NEAR(slopes[i], of[i], 0x1p-22 * std::abs(of[i]));
      }
    }
    for (const double delta : {2.0, kInfinity}) {
      const auto [losses, slopes] = run({kInfinity, -kInfinity}, delta, dtype);
      EXPECT_EQ(losses, (std::vector<double>{kInfinity, kInfinity}));
      EXPECT_EQ(slopes, (std::vector<double>{delta, -delta}));
    }
  }
}

TEST_P(LossLayersTest, ModulesComputeTheFunctions) {
  const Tensor x = ramp({5, 3}, 3), t = ramp({5, 3}), p = sigmoid(x), q = sigmoid(t);
  const Tensor classes = make({2, 1, 0, 1, 2}, {5}, DType::i64);
  const auto expect_same = [](const Tensor& got, const Tensor& want) {
    EXPECT_EQ(values_of(got), values_of(want));
  };
  for (const Reduction r : kReductions) {
    const nn::CrossEntropyOptions options{
        .weight = weight(), .ignore_index = 1, .label_smoothing = 0.1, .reduction = r};
    expect_same(nn::CrossEntropyLoss(options)(x, classes), nn::cross_entropy(x, classes, options));
    expect_same(nn::NLLLoss(weight(), 1, r)(x, classes), nn::nll_loss(x, classes, 1, r, weight()));
    expect_same(nn::MSELoss(r)(x, t), nn::mse_loss(x, t, r));
    expect_same(nn::L1Loss(r)(x, t), nn::l1_loss(x, t, r));
    expect_same(nn::SmoothL1Loss(r, 0.4)(x, t), nn::smooth_l1_loss(x, t, r, 0.4));
    expect_same(nn::HuberLoss(r, 0.4)(x, t), nn::huber_loss(x, t, r, 0.4));
    expect_same(nn::BCELoss(weight(), r)(p, q), nn::bce_loss(p, q, r, weight()));
    expect_same(nn::BCEWithLogitsLoss(weight(), r, weight() * 2)(x, q),
                nn::bce_with_logits(x, q, r, weight() * 2, weight()));
  }
  expect_same(nn::KLDivLoss(KlReduction::sum, true)(x, t),
              nn::kl_div(x, t, KlReduction::sum, true));
}

TEST_P(LossLayersTest, WeightsOfModulesAreBuffers) {
  nn::BCEWithLogitsLoss loss(weight(), Reduction::mean, weight() * 2);
  EXPECT_EQ(loss.state_dict().size(), 2u);
  EXPECT_EQ(loss.state_dict()[0].first, "weight");
  EXPECT_EQ(loss.state_dict()[1].first, "pos_weight");
  EXPECT_TRUE(loss.parameters().empty());
  EXPECT_TRUE(nn::CrossEntropyLoss().state_dict().empty());
  nn::CrossEntropyLoss classes({.weight = weight()});
  classes.to(DType::f32);
  EXPECT_EQ(classes(ramp({5, 3}).to(DType::f32), target()).dtype(), DType::f32);
  nn::CrossEntropyLoss other = nn::clone(classes);
  other.load_state_dict({{"weight", ones({3})}});
  EXPECT_EQ(values_of(classes.weight), (std::vector<double>{0.5, 2, 0.75}));
  EXPECT_EQ(values_of(other.weight), (std::vector<double>{1, 1, 1}));
}

TEST_P(LossLayersTest, ModulesLeaveTheCallersWeightAsItIs) {
  const Tensor shared = weight();
  nn::CrossEntropyLoss entropy({.weight = shared});
  nn::NLLLoss nll(shared);
  nn::BCELoss bce(shared);
  nn::BCEWithLogitsLoss logits(shared, Reduction::mean, shared);
  const nn::CrossEntropyLoss untouched({.weight = shared});
  entropy.to(DType::f32);
  nll.to(DType::f32);
  bce.to(DType::f32);
  logits.to(DType::f32);
  EXPECT_EQ(logits.pos_weight.dtype(), DType::f32);
  EXPECT_EQ(shared.dtype(), DType::f64);
  EXPECT_EQ(untouched.weight.dtype(), DType::f64);
  const Tensor learned = weight().set_requires_grad();
  EXPECT_TRUE(nn::BCELoss(learned).weight.same(learned));
}

TEST_P(LossLayersTest, BceAtItsEnds) {
  for (const DType dtype : kFloating) {
    const Tensor x = make({0, 1, 0, 1}, {4}, dtype), t = make({0, 1, 1, 0}, {4}, dtype);
    EXPECT_TENSOR(nn::bce_loss(x, t, Reduction::none), ({4}), {0, 0, 100, 100});
    EXPECT_EQ(nn::bce_loss(x, t).dtype(), dtype);
  }
  EXPECT_EQ(nn::bce_loss(zeros({0}), zeros({0}), Reduction::none).shape(), Shape{0});
  EXPECT_WEFT_ERROR(nn::bce_loss(ones({2}), ones({3})), Shape,
                    "[bce_loss] target: got [3], x is [2]");
  EXPECT_WEFT_ERROR(nn::bce_loss(ones({2}), ones({2}, DType::f64)), Dtype, "[bce_loss] target");
}

// CUDA cannot check this without waiting.
TEST_P(LossLayersTest, BceOfWhatIsNoProbability) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor half = full({2, 2}, 0.5);
  for (const double bad : {-0.5, 1.0 + 0x1p-23, nan}) {
    const Tensor outside = make({0.5, 0.5, bad, 0.5}, {2, 2});
    if (on_cpu()) {
      const std::string got = weft::detail::concat(": got ", bad, " at position ");
      EXPECT_WEFT_ERROR(nn::bce_loss(outside, half), InvalidArgument, "[bce_loss] x" + got + "2");
      EXPECT_WEFT_ERROR(nn::bce_loss(outside.t(), half), InvalidArgument, "x" + got + "1");
      EXPECT_WEFT_ERROR(nn::bce_loss(half, outside), InvalidArgument, "target" + got + "2");
    } else {
      const Tensor losses = nn::bce_loss(outside, half, Reduction::none);
      EXPECT_TRUE(std::isnan(losses[1][0].item<double>()));
      EXPECT_FALSE(std::isnan(losses[0][1].item<double>()));
    }
  }
}

TEST_P(LossLayersTest, KlDivFollowsPyTorch) {
  constexpr KlReduction reductions[] = {KlReduction::none, KlReduction::mean, KlReduction::sum,
                                        KlReduction::batchmean};
  const Tensor log_p = log_softmax(ramp({3, 4}), 1), q = softmax(ramp({3, 4}, 2), 1);
  const auto run = [&](const char* name, bool log_target, const Tensor& t) {
    check<KlReduction>(
        name, reductions,
        [=](Inputs in, KlReduction r) { return nn::kl_div(in[0], in[1], r, log_target); },
        {log_p, t});
  };
  run("kl_div", false, q);
  run("kl_div_log", true, log(q));
}

TEST_P(LossLayersTest, KlDivOfNothing) {
  const Tensor x = make({-1, -2}, {2}, DType::f64), t = make({0, 1}, {2}, DType::f64);
  x.set_requires_grad(), t.set_requires_grad();
  const Tensor loss = nn::kl_div(x, t, KlReduction::none);
  EXPECT_TENSOR(loss, ({2}), {0, 2});
  loss.sum().backward();
  EXPECT_TENSOR(x.grad(), ({2}), {0, -1});
  EXPECT_TENSOR(t.grad(), ({2}), {1, 3});
  EXPECT_EQ(nn::kl_div(zeros({0, 2}), zeros({0, 2}), KlReduction::none).shape(), (Shape{0, 2}));
  EXPECT_EQ(nn::kl_div(scalar(-1), scalar(1), KlReduction::batchmean).item<double>(), 1);
  for (const DType dtype : kFloating) {
    EXPECT_EQ(nn::kl_div(x.to(dtype), t.to(dtype)).dtype(), dtype);
  }
  EXPECT_WEFT_ERROR(nn::kl_div(ones({2}), ones({3})), Shape, "[kl_div] target: got [3], x is [2]");
  EXPECT_WEFT_ERROR(nn::kl_div(ones({2}, DType::i64), ones({2})), Dtype, "[kl_div] x: got i64");
}

// Losses are computed in f32 and rounded to bf16 once. Where digits cancel, the error is f32's for
// numbers up to `size`.
TEST_P(LossLayersTest, Bf16RoundsOnce) {
  const auto check_bf16 = [](const char* name, double size, const std::vector<Tensor>& inputs,
                             const std::function<Tensor(Inputs, Reduction)>& f) {
    for (const Reduction r : {Reduction::none, Reduction::mean}) {
      const std::function<Tensor(Inputs)> loss = [&](Inputs in) { return f(in, r); };
      const auto one = [](const Shape& shape) { return ones(shape); };
      const auto got = testing::with_gradients(loss, inputs, DType::bf16, one);
      const auto want = testing::with_gradients(loss, inputs, DType::f64, one);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].dtype(), DType::bf16);
        const std::vector<double> a = values_of(got[i]), b = values_of(want[i]);
        for (std::size_t k = 0; k < b.size(); ++k) {
          EXPECT_NEAR(a[k], b[k], 1.01 * 0x1p-8 * std::abs(b[k]) + 16 * 0x1p-24 * size)
              << name << ", result " << i << ", element " << k;
        }
      }
    }
  };
  const auto bf16s = [](const Tensor& x) { return x.to(DType::bf16); };
  const Tensor logits = bf16s(ramp({40}) * 20), p = bf16s(ramp({40}).roll(3) * 0.4 + 0.5);
  const Tensor t = bf16s(ramp({40}).roll(7) * 0.4 + 0.5);
  check_bf16("bce_with_logits", 20, {logits, t},
             [](Inputs in, Reduction r) { return nn::bce_with_logits(in[0], in[1], r); });
  check_bf16("bce_with_logits, pos_weight", 40, {logits, t, bf16s(ramp({40}).roll(2) + 1.5)},
             [](Inputs in, Reduction r) { return nn::bce_with_logits(in[0], in[1], r, in[2]); });
  check_bf16("bce_loss", 4, {p, t},
             [](Inputs in, Reduction r) { return nn::bce_loss(in[0], in[1], r); });
  check_bf16("kl_div", 4, {bf16s(log(p)), t}, [](Inputs in, Reduction r) {
    return nn::kl_div(in[0], in[1], r == Reduction::none ? KlReduction::none : KlReduction::mean);
  });
  // 1000 targets: bf16 could not count that far.
  const Tensor label = raw::remainder(arange(0, 1000, 1, DType::i64), 3);
  check_bf16("nll_loss", 1, {bf16s(ramp({1000, 3}))}, [&](Inputs in, Reduction r) {
    return r == Reduction::none ? in[0].mean() : nn::nll_loss(in[0], label, -100, r);
  });
}

TEST_P(LossLayersTest, BceWithLogitsTakesAWeightOfAnyDtype) {
  const Tensor x = ramp({2, 3}).to(DType::f32).set_requires_grad();
  const Tensor target = zeros({2, 3}, DType::f32) + 0.25;
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const Tensor weight = full({3}, 2, dtype).set_requires_grad();
    x.set_grad({});
    nn::bce_with_logits(x, target, Reduction::sum, weight).backward();
    EXPECT_EQ(x.grad().dtype(), DType::f32);
    EXPECT_EQ(weight.grad().dtype(), dtype);
    // (1 - t) sigmoid(x) - w t sigmoid(-x)
    const Tensor p = sigmoid(x.detach());
    EXPECT_LT(max(abs(x.grad() - (p * 0.75 - (1 - p) * 0.5))).item<double>(), 1e-6);
  }
}

// sigmoid(x) - t would be 0 where both are near 1, and elsewhere wrong by 1e-7.
TEST_P(LossLayersTest, BceWithLogitsKeepsSmallSlopes) {
  const Tensor x = make({20, 80, -20, -80, 3}, {5}).set_requires_grad();
  nn::bce_with_logits(x, make({1, 1, 0, 0, 1}, {5}), Reduction::sum).backward();
  const auto slope = [](double z) { return 1 / (1 + std::exp(-z)); };
  const std::vector<double> want{-slope(-20), -slope(-80), slope(-20), slope(-80), -slope(-3)};
  const std::vector<double> got = values_of(x.grad());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 8 * 0x1p-24 * std::abs(want[i])) << i;  // an exponential in f32
  }
}

TEST_P(LossLayersTest, Gradients) {
  const auto check_rule = [](const char* name, std::vector<Tensor> inputs, auto f) {
    for (Tensor& x : inputs) x = raw::clone(x).set_requires_grad();
    autograd::gradcheck(name, [=](Inputs x) { return std::vector<Tensor>{f(x)}; }, inputs);
  };
  const Tensor p = (ramp({2, 3}) + 1.5) / 3;
  for (const Reduction r : kReductions) {
    for (const double smoothing : {0.0, 0.1}) {
      check_rule("cross_entropy", {ramp({5, 3})}, [=](Inputs x) {
        return nn::cross_entropy(
            x[0], target(), {.weight = weight(), .label_smoothing = smoothing, .reduction = r});
      });
    }
    check_rule("nll_loss", {ramp({2, 4, 3})},
               [=](Inputs x) { return nn::nll_loss(x[0], image(), -100, r, image_weight()); });
    check_rule("bce_with_logits", {ramp({2, 3}), ramp({2, 3}, 2), ramp({3}) + 1.5},
               [=](Inputs x) { return nn::bce_with_logits(x[0], x[1], r, x[2]); });
    check_rule("bce_loss", {p, p}, [=](Inputs x) { return nn::bce_loss(x[0], x[1], r); });
  }
  for (const bool log_target : {false, true}) {
    check_rule("kl_div", {ramp({2, 3}), ramp({2, 3}) + 1.5}, [=](Inputs x) {
      return nn::kl_div(x[0], x[1], KlReduction::batchmean, log_target);
    });
  }
}

}  // namespace
}  // namespace weft
