// Optimisers compared with PyTorch in f64, and their groups and state.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/linear.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"

namespace weft {
namespace {

const testing::Goldens goldens("tests/optim/goldens");

class Optimizers : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(Optimizers);

// The same as in write_goldens.py.
double uphill(int t) { return (t + 1) / 4.0; }
double downhill(int t) { return (5 - t) / 4.0; }

struct Pair {
  Tensor a = from_vector(std::vector<double>{1, -2, 3}, {3}).set_requires_grad();
  Tensor b = from_vector(std::vector<double>{0.5, -0.25}, {2}).set_requires_grad();
  std::vector<Tensor> params() const { return {a, b}; }
  void set_grads(int t, double (*slope)(int) = uphill) const {
    for (const Tensor& p : {a, b}) p.set_grad(raw::add(raw::mul(p, slope(t)), 0.1));
  }
  std::vector<double> values() const {
    std::vector<double> all = a.to_vector<double>();
    for (double v : b.to_vector<double>()) all.push_back(v);
    return all;
  }
};

void run(optim::Optimizer& optimizer, const Pair& pair, int from, int to,
         double (*slope)(int) = uphill) {
  for (int t = from; t < to; ++t) {
    pair.set_grads(t, slope);
    optimizer.step();
  }
}

template <class Optimizer, class Options>
void expect_golden(const char* name, const Options& options, double (*slope)(int)) {
  Pair pair;
  Optimizer optimizer(pair.params(), options);
  run(optimizer, pair, 0, 5, slope);
  const auto values = pair.values(), expected = goldens[name];
  ASSERT_EQ(values.size(), expected.size());
  // Five updates in f64; another order in a formula may change each by some ulp.
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], 1e-13) << name << ' ' << i;
  }
}

TEST_P(Optimizers, FollowPyTorch) {
  const auto sgd = expect_golden<optim::SGD, optim::SGDOptions>;
  sgd("sgd", {.lr = 0.1}, uphill);
  sgd("sgd_momentum", {.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01}, uphill);
  sgd("sgd_nesterov", {.lr = 0.1, .momentum = 0.9, .nesterov = true}, uphill);
  sgd("sgd_maximize", {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .maximize = true}, uphill);
  const auto adam = expect_golden<optim::Adam, optim::AdamOptions>;
  adam("adam", {}, uphill);
  adam("adam_decay", {.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1},
       uphill);
  adam("adam_amsgrad", {.lr = 0.05, .beta2 = 0.5, .amsgrad = true}, downhill);
  adam("adam_amsgrad_maximize",
       {.lr = 0.05, .beta2 = 0.5, .weight_decay = 0.1, .amsgrad = true, .maximize = true},
       downhill);
  const auto adamw = expect_golden<optim::AdamW, optim::AdamWOptions>;
  adamw("adamw", {.lr = 0.05}, uphill);
  adamw("adamw_amsgrad", {.lr = 0.05, .beta2 = 0.5, .amsgrad = true}, downhill);
  adamw("adamw_maximize", {.lr = 0.05, .maximize = true}, uphill);
  const auto rmsprop = expect_golden<optim::RMSprop, optim::RMSpropOptions>;
  rmsprop("rmsprop", {}, uphill);
  rmsprop("rmsprop_momentum",
          {.lr = 0.02, .alpha = 0.9, .eps = 1e-6, .weight_decay = 0.1, .momentum = 0.8}, uphill);
  rmsprop("rmsprop_centered", {.lr = 0.02, .alpha = 0.9, .centered = true}, uphill);
  rmsprop("rmsprop_all",
          {.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8, .centered = true},
          uphill);
  rmsprop("rmsprop_maximize",
          {.lr = 0.02, .weight_decay = 0.1, .momentum = 0.8, .centered = true, .maximize = true},
          uphill);
}

TEST_P(Optimizers, AdadeltaFollowsPyTorch) {
  const auto adadelta = expect_golden<optim::Adadelta, optim::AdadeltaOptions>;
  adadelta("adadelta", {}, uphill);
  adadelta("adadelta_maximize",
           {.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1, .maximize = true}, uphill);
  Pair straight, resumed;
  optim::Adadelta one(straight.params());
  run(one, straight, 0, 5);
  optim::Adadelta first(resumed.params());
  run(first, resumed, 0, 2);
  const auto state = first.state_dict();
  EXPECT_EQ(state.back().first, "state.1.acc_delta");
  optim::Adadelta second(resumed.params());
  second.load_state_dict(state);
  run(second, resumed, 2, 5);
  EXPECT_EQ(resumed.values(), straight.values());
  EXPECT_WEFT_ERROR(optim::Adadelta(resumed.params(), {.rho = 1.5}), InvalidArgument,
                    "[Adadelta] rho: got 1.5, expected 0 to 1");
  EXPECT_WEFT_ERROR(optim::Adadelta(resumed.params(), {.eps = -1}), InvalidArgument,
                    "eps and weight_decay must not be negative");
}

TEST_P(Optimizers, AmsgradResumesFromItsState) {
  const optim::AdamWOptions options{.lr = 0.05, .beta2 = 0.5, .amsgrad = true};
  Pair straight, resumed;
  optim::AdamW one(straight.params(), options);
  run(one, straight, 0, 5, downhill);
  optim::AdamW first(resumed.params(), options);
  run(first, resumed, 0, 2, downhill);
  const auto state = first.state_dict();
  EXPECT_EQ(state.back().first, "state.1.max_exp_avg_sq");
  optim::AdamW second(resumed.params(), options);
  second.load_state_dict(state);
  run(second, resumed, 2, 5, downhill);
  EXPECT_EQ(resumed.values(), straight.values());

  optim::AdamW plain(resumed.params());
  EXPECT_WEFT_ERROR(plain.load_state_dict(state), InvalidArgument,
                    "unexpected state.0.max_exp_avg_sq");
}

// Groups can have different options.
TEST_P(Optimizers, GroupsHaveTheirOwnAmsgradAndMaximize) {
  const Tensor a = zeros({1}, DType::f64).set_requires_grad();
  const Tensor b = zeros({1}, DType::f64).set_requires_grad();
  optim::Adam adam({{{a}, {.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 0, .amsgrad = true}},
                    {{b}, {.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 0, .maximize = true}}});
  for (const double g : {4.0, 1.0}) {
    for (const Tensor& p : {a, b}) p.set_grad(full({1}, g, DType::f64));
    adam.step();
  }
  EXPECT_EQ(a.item<double>(), -1 - 1 / 4.0);
  EXPECT_EQ(b.item<double>(), 1 + 1);
}

TEST_P(Optimizers, ResumesFromItsState) {
  Pair straight, resumed;
  optim::Adam one(straight.params());
  run(one, straight, 0, 5);

  optim::NamedTensors state;
  {
    optim::Adam first(resumed.params());
    run(first, resumed, 0, 2);
    state = first.state_dict();
  }
  optim::Adam second(resumed.params(), {.lr = 7});
  second.load_state_dict(state);
  EXPECT_EQ(second.lr(), 1e-3);
  run(second, resumed, 2, 5);
  EXPECT_EQ(resumed.values(), straight.values());
}

// Its buffers depend on the options: unused ones have no entry in the state.
TEST_P(Optimizers, RMSpropResumesFromItsState) {
  for (const double momentum : {0.0, 0.8}) {
    for (const bool centered : {false, true}) {
      const optim::RMSpropOptions options{.momentum = momentum, .centered = centered};
      Pair straight, resumed;
      optim::RMSprop one(straight.params(), options);
      run(one, straight, 0, 5);
      optim::RMSprop first(resumed.params(), options);
      run(first, resumed, 0, 2);
      const auto state = first.state_dict();
      EXPECT_EQ(state.size(), 1u + (momentum != 0) + 2 * (2 + (momentum != 0) + centered));
      optim::RMSprop second(resumed.params(), options);
      second.load_state_dict(state);
      run(second, resumed, 2, 5);
      EXPECT_EQ(resumed.values(), straight.values());
    }
  }
}

// Rounding may make the mean of g^2 smaller than the square of the mean.
TEST_P(Optimizers, CenteredRMSpropNeverTakesTheRootOfANegative) {
  const Tensor p = full({64}, 1).set_requires_grad();
  optim::RMSprop rmsprop({p}, {.alpha = 0, .centered = true});
  for (int t = 0; t < 20; ++t) {
    p.set_grad(full({64}, 0.1 + 0.01 * t));
    rmsprop.step();
  }
  for (const float v : p.to_vector<float>()) EXPECT_TRUE(std::isfinite(v));
}

TEST_P(Optimizers, PassesOverParametersWithoutGradient) {
  Pair pair;
  optim::Adam adam(pair.params());
  pair.set_grads(0);
  autograd::zero_grad(pair.b);
  const auto before = pair.b.to_vector<double>();
  adam.step();
  EXPECT_EQ(pair.b.to_vector<double>(), before);
  // b counts its steps from its first gradient: its first update is lr * sign(g).
  pair.set_grads(1);
  adam.step();
  EXPECT_NEAR(pair.b.to_vector<double>()[0], before[0] - 1e-3, 1e-9);
}

TEST_P(Optimizers, AStepWithoutAnyGradientWarnsOnce) {
  const testing::CollectedLog log;
  Pair pair;
  optim::Adam adam(pair.params());
  pair.set_grads(0);
  autograd::zero_grad(pair.b);
  adam.step();
  EXPECT_EQ(log.text, "");
  autograd::zero_grad(pair.a);
  const auto before = pair.a.to_vector<double>();
  for (int i = 0; i < 3; ++i) adam.step();
  EXPECT_EQ(pair.a.to_vector<double>(), before);
  EXPECT_EQ(log.text,
            "warning: optimizer: step() changes nothing, for none of the 2 parameters has a "
            "gradient: no backward has reached them since zero_grad(). Was their forward run under "
            "NoGrad, or its result detached?\n");
}

TEST_P(Optimizers, GroupsHaveTheirOwnOptions) {
  Pair pair;
  optim::SGD sgd({{{pair.a}, {.lr = 0.1}}, {{pair.b}, {.lr = 0}}});
  const auto before = pair.b.to_vector<double>();
  run(sgd, pair, 0, 1);
  EXPECT_EQ(pair.b.to_vector<double>(), before);
  EXPECT_NE(pair.a.to_vector<double>()[0], 1);
  sgd.set_lr(1, 0.5);
  run(sgd, pair, 0, 1);
  EXPECT_NE(pair.b.to_vector<double>(), before);
}

TEST_P(Optimizers, RefusesGroupsThereAreNotAndRatesBelowZero) {
  Pair pair;
  optim::SGD sgd({{{pair.a}, {.momentum = 0.9}}, {{pair.b}, {.momentum = 0.9}}});
  optim::Adam adam(pair.params());
  optim::RMSprop rmsprop(pair.params(), {.momentum = 0.9});
  for (optim::Optimizer* optimizer :
       std::initializer_list<optim::Optimizer*>{&sgd, &adam, &rmsprop}) {
    EXPECT_WEFT_ERROR(optimizer->lr(9), InvalidArgument,
                      "there is no group 9: this optimiser has ");
    EXPECT_WEFT_ERROR(optimizer->set_lr(9, 0.1), InvalidArgument, "there is no group 9");
    EXPECT_WEFT_ERROR(optimizer->initial_lr(9), InvalidArgument, "there is no group 9");
    EXPECT_WEFT_ERROR(optimizer->has_initial_lr(9), InvalidArgument, "there is no group 9");
    EXPECT_WEFT_ERROR(optimizer->set_initial_lr(9, 0.1), InvalidArgument, "there is no group 9");
    EXPECT_WEFT_ERROR(optimizer->momentum(9), InvalidArgument, "there is no group 9");
    EXPECT_WEFT_ERROR(optimizer->set_momentum(9, 0.1), InvalidArgument, "there is no group 9");
    const double lr = optimizer->lr(), momentum = optimizer->momentum(0);
    for (const double bad : {-1.0, std::nan("")}) {
      EXPECT_WEFT_ERROR(optimizer->set_lr(bad), InvalidArgument,
                        "[set_lr] learning rate must not be negative, got ");
      EXPECT_WEFT_ERROR(optimizer->set_momentum(0, bad), InvalidArgument, "must ");
    }
    EXPECT_EQ(optimizer->lr(), lr);
    EXPECT_EQ(optimizer->momentum(0), momentum);
    optimizer->set_lr(0);
  }
  EXPECT_WEFT_ERROR(adam.set_momentum(0, 1), InvalidArgument, "beta1 must be in [0, 1), got 1");
}

TEST_P(Optimizers, TakesGradientsOfAnotherLayout) {
  const Tensor p = zeros({2, 3}).set_requires_grad();
  const std::vector<float> g = {1, 2, 3, 4, 5, 6};
  p.set_grad(raw::transpose(from_vector(std::vector<float>{1, 4, 2, 5, 3, 6}, {3, 2}), 0, 1));
  optim::SGD sgd({p}, {.lr = 1});
  sgd.step();
  std::vector<float> expected;
  for (float v : g) expected.push_back(-v);
  EXPECT_EQ(p.to_vector<float>(), expected);
}

TEST_P(Optimizers, MixesDtypes) {
  const Tensor f = ones({2}).set_requires_grad();
  const Tensor d = ones({2}, DType::f64).set_requires_grad();
  f.set_grad(ones({2}));
  d.set_grad(ones({2}, DType::f64));
  optim::SGD sgd({f, d}, {.lr = 0.25});
  sgd.step();
  EXPECT_EQ(f.to_vector<float>(), (std::vector<float>{0.75f, 0.75f}));
  EXPECT_EQ(d.to_vector<double>(), (std::vector<double>{0.75, 0.75}));
}

// The kernel would read and write an f32 state as f64, past its end.
TEST_P(Optimizers, RefusesAStateOfAnotherDtypeThanItsParameter) {
  for (const DType dtype : {DType::f64, DType::bf16}) {
    nn::Linear model(4, 3);
    optim::Adam adam(model.parameters());
    const auto step = [&] {
      model(ones({2, 4}, model.weight.dtype())).sum().backward();
      adam.step();
      adam.zero_grad();
    };
    step();
    model.to(dtype);
    const std::string text = detail::concat("[optimizer] parameter 0 is ", dtype,
                                            " [3,4] with strides [4,1], its state f32 [3,4]");
    EXPECT_WEFT_ERROR(step(), Dtype, text);
    adam.load_state_dict(adam.state_dict());
    step();
    EXPECT_EQ(adam.state_dict().back().first, "state.1.exp_avg_sq");
    EXPECT_EQ(adam.state_dict().back().second.dtype(), dtype);
  }
}

TEST_P(Optimizers, AStepInvalidatesWhatTheTapeSaved) {
  const Tensor p = ones({2}).set_requires_grad();
  const Tensor y = (p * p).sum();
  p.set_grad(ones({2}));
  optim::SGD sgd({p});
  sgd.step();
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "was changed in place afterwards");
}

TEST_P(Optimizers, ClipsTheJointNorm) {
  Pair pair;
  pair.a.set_grad(from_vector(std::vector<double>{3, 0, 0}, {3}));
  pair.b.set_grad(from_vector(std::vector<double>{0, 4}, {2}));
  EXPECT_DOUBLE_EQ(optim::clip_grad_norm(pair.params(), 1).item<double>(), 5);
  const double factor = 1 / (5 + 1e-6);
  EXPECT_DOUBLE_EQ(pair.a.grad().to_vector<double>()[0], 3 * factor);
  EXPECT_DOUBLE_EQ(pair.b.grad().to_vector<double>()[1], 4 * factor);
  const auto before = pair.a.grad().to_vector<double>();
  optim::clip_grad_norm(pair.params(), 100);
  EXPECT_EQ(pair.a.grad().to_vector<double>(), before);
}

// As if other processes had the rest of the gradients.
TEST_P(Optimizers, ClipsWithANormThatIsGiven) {
  Pair pair;
  pair.a.set_grad(from_vector(std::vector<double>{3, 0, 0}, {3}));
  pair.b.set_grad(from_vector(std::vector<double>{0, 4}, {2}));
  EXPECT_DOUBLE_EQ(optim::total_grad_norm(pair.params()).item<double>(), 5);
  EXPECT_EQ(pair.a.grad().to_vector<double>(), (std::vector<double>{3, 0, 0}));
  optim::clip_grads_with_norm(pair.params(), 1, from_vector(std::vector<double>{10}, {}));
  EXPECT_DOUBLE_EQ(pair.a.grad().to_vector<double>()[0], 3 / (10 + 1e-6));
  EXPECT_DOUBLE_EQ(pair.b.grad().to_vector<double>()[1], 4 / (10 + 1e-6));
  const std::vector<Tensor> none;
  EXPECT_EQ(optim::total_grad_norm(none).item<double>(), 0);
  EXPECT_WEFT_ERROR(optim::clip_grads_with_norm(pair.params(), -1, ones({}, DType::f64)),
                    InvalidArgument, "max_norm must not be negative, got -1");
  EXPECT_WEFT_ERROR(optim::clip_grads_with_norm(pair.params(), 1, ones({}, DType::f32)),
                    InvalidArgument, "expected one f64 element");
}

TEST_P(Optimizers, ClipsEachValue) {
  Pair pair;
  pair.a.set_grad(from_vector(std::vector<double>{3, -0.5, -7}, {3}));
  const Tensor f = zeros({2, 3}).set_requires_grad(), bare = ones({1}).set_requires_grad();
  f.set_grad(raw::transpose(from_vector(std::vector<float>{9, 0, 1, -9, 0.5, -1}, {3, 2}), 0, 1));
  const Tensor none = zeros({0}).set_requires_grad();
  none.set_grad(zeros({0}));
  const Tensor grad = f.grad();
  optim::clip_grad_value(std::vector{pair.a, bare, none, f}, 0.75);
  EXPECT_EQ(pair.a.grad().to_vector<double>(), (std::vector<double>{0.75, -0.5, -0.75}));
  EXPECT_EQ(grad.to_vector<float>(), (std::vector<float>{0.75f, 0.75f, 0.5f, 0, -0.75f, -0.75f}));
  EXPECT_FALSE(bare.grad().defined());
  optim::clip_grad_value(pair.params(), 0);
  EXPECT_EQ(pair.a.grad().to_vector<double>(), (std::vector<double>{0, 0, 0}));
  optim::clip_grad_value({}, 1);
}

TEST_P(Optimizers, ClippingRefusesBadArguments) {
  Pair pair;
  for (const double bad : {-1.0, std::nan("")}) {
    EXPECT_WEFT_ERROR(optim::clip_grad_value(pair.params(), bad), InvalidArgument,
                      "[clip_grad_value] clip_value must not be negative, got ");
  }
  pair.a.set_grad(from_vector(std::vector<double>{1, 2, 3, 4, 5, 6}, {6}).slice(0, 0, 6, 2));
  EXPECT_WEFT_ERROR(optim::clip_grad_value(pair.params(), 1), InvalidArgument,
                    "[clip_grad_value] gradient [3] has gaps in memory");
}

TEST_P(Optimizers, RefusesBadArguments) {
  Pair pair;
  EXPECT_WEFT_ERROR(optim::SGD({pair.a, pair.a}), InvalidArgument,
                    "parameter 1 [3] is given twice");
  EXPECT_WEFT_ERROR(optim::SGD(std::vector<Tensor>{}), InvalidArgument, "without parameters");
  EXPECT_WEFT_ERROR(optim::SGD({pair.a}, {.lr = -1}), InvalidArgument, "got -1");
  EXPECT_WEFT_ERROR(optim::SGD({pair.a}, {.nesterov = true}), InvalidArgument, "nesterov needs");
  EXPECT_WEFT_ERROR(optim::Adam({pair.a}, {.beta1 = 1}), InvalidArgument,
                    "betas must be in [0, 1)");
  EXPECT_WEFT_ERROR(optim::RMSprop({pair.a}, {.alpha = -1}), InvalidArgument, "got -1");
  EXPECT_WEFT_ERROR(optim::SGD({pair.a * 2.0}), InvalidArgument, "not a floating leaf");

  optim::Adam adam(pair.params());
  run(adam, pair, 0, 1);
  auto state = adam.state_dict();
  state.back().second = zeros({5}, DType::f64);
  EXPECT_WEFT_ERROR(adam.load_state_dict(state), InvalidArgument,
                    "state.1.exp_avg_sq is [5], expected [2]");
  auto twice = adam.state_dict();
  twice.emplace_back("state.0.exp_avg", zeros({3}, DType::f64));
  EXPECT_WEFT_ERROR(adam.load_state_dict(twice), InvalidArgument, "state.0.exp_avg is given twice");

  optim::SGD sgd(pair.params());
  std::string unexpected;  // in the order of the file
  for (const auto& [name, value] : state) {
    const bool both = name.ends_with(".lr") || name.ends_with(".step");
    if (!both) unexpected += "   unexpected " + name;
  }
  EXPECT_WEFT_ERROR(sgd.load_state_dict(state), InvalidArgument, unexpected);
}

TEST_P(Optimizers, AStateWithARateThatSetLrRefusesIsNotLoaded) {
  Pair pair;
  optim::SGD sgd(pair.params(), {.lr = 0.5});
  for (const double lr : {-1.0, std::nan("")}) {
    const Tensor value = scalar(lr, {DType::f64, Device()});
    EXPECT_WEFT_ERROR(sgd.load_state_dict({{"group.0.lr", value}}), InvalidArgument,
                      "[optimizer] learning rate must not be negative, got ");
    EXPECT_EQ(sgd.lr(), 0.5);
  }
}

class Watch final : public optim::UpdateWatch {
 public:
  explicit Watch(bool lets) : lets_(lets) {}
  bool before_step(optim::Optimizer& optimizer) override {
    seen.push_back("before " + std::to_string(optimizer.parameters().size()));
    return lets_;
  }
  void after_step(optim::Optimizer&) override { seen.push_back("after"); }
  void before_clipping(std::span<const Tensor> params) override {
    seen.push_back("clip " + std::to_string(params.size()));
  }
  std::vector<std::string> seen;

 private:
  const bool lets_;
};

TEST(OptimizerOptions, AreToldByName) {
  const std::vector<Tensor> a{Pair().a}, b{Pair().b};
  using Numbers = optim::NamedNumbers;
  optim::SGD sgd({{a, {.momentum = 0.5, .weight_decay = 0.1, .nesterov = true}}, {b, {}}});
  EXPECT_EQ(sgd.options(0),
            (Numbers{{"dampening", 0}, {"weight_decay", 0.1}, {"nesterov", 1}, {"maximize", 0}}));
  EXPECT_EQ(sgd.options(1)[1].second, 0);
  EXPECT_WEFT_ERROR(sgd.options(2), InvalidArgument, "there is no group 2");
  optim::AdamW adam(a, {.beta2 = 0.95, .eps = 1e-6, .amsgrad = true});
  EXPECT_EQ(adam.options(0), (Numbers{{"beta2", 0.95},
                                      {"eps", 1e-6},
                                      {"weight_decay", 1e-2},
                                      {"decoupled_weight_decay", 1},
                                      {"amsgrad", 1},
                                      {"maximize", 0}}));
  EXPECT_EQ(
      optim::RMSprop(a, {.alpha = 0.9, .centered = true}).options(0),
      (Numbers{
          {"alpha", 0.9}, {"eps", 1e-8}, {"weight_decay", 0}, {"centered", 1}, {"maximize", 0}}));
  EXPECT_EQ(optim::Adadelta(a, {.rho = 0.8}).options(0),
            (Numbers{{"rho", 0.8}, {"eps", 1e-6}, {"weight_decay", 0}, {"maximize", 0}}));
}

TEST(UpdateWatch, SeesUpdatesAndSkipsThem) {
  using Seen = std::vector<std::string>;
  Pair pair;
  optim::SGD sgd(pair.params(), {.lr = 0.5});
  pair.set_grads(0);
  const auto before = pair.values();
  Watch lets(true), skips(false);
  {
    const optim::UpdateWatchScope outer(lets);
    {
      const optim::UpdateWatchScope inner(skips);
      sgd.step();
      EXPECT_EQ(pair.values(), before);
      EXPECT_EQ(skips.seen, (Seen{"before 2"}));
      optim::clip_grad_value(pair.params(), 1e9);
      EXPECT_EQ(skips.seen, (Seen{"before 2", "clip 2"}));
    }
    EXPECT_EQ(lets.seen, Seen());
    sgd.step();
    EXPECT_EQ(lets.seen, (Seen{"before 2", "after"}));
    EXPECT_NE(pair.values(), before);
    std::thread([&] { sgd.step(); }).join();  // the watch is of another thread
    optim::total_grad_norm(std::vector<Tensor>{pair.a});
    EXPECT_EQ(lets.seen, (Seen{"before 2", "after", "clip 1"}));
  }
  sgd.step();
  EXPECT_EQ(lets.seen.size(), 3U);
}

}  // namespace
}  // namespace weft
