// Learning rates compared with PyTorch, step by step.
#include "weft/optim/lr_scheduler.h"
#include "weft/core/runtime/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "weft/core/runtime/thread_state.h"
#include "weft/optim/adam.h"
#include "weft/optim/reduce_lr_on_plateau.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sequential_lr.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/goldens.h"

namespace weft {
namespace {

using Schedulers = std::vector<std::unique_ptr<optim::LRScheduler>>;

const testing::Goldens goldens("tests/optim/goldens");

std::vector<Tensor> one() { return {zeros({1}).set_requires_grad()}; }

optim::SGD make_sgd() {
  return optim::SGD(
      {{one(), {.lr = 0.1, .momentum = 0.9}}, {one(), {.lr = 0.03, .momentum = 0.9}}});
}

template <class Scheduler, class Options>
std::unique_ptr<optim::LRScheduler> make(optim::Optimizer& optimizer, const Options& options) {
  return std::make_unique<Scheduler>(optimizer, options);
}

// Rate and momentum of both groups, as in the goldens, before and after each call of step(t).
template <class Step>
std::vector<double> rates(const optim::Optimizer& optimizer, int steps, const Step& step) {
  std::vector<double> values;
  for (int t = 0; t <= steps; ++t) {
    for (std::size_t g = 0; g < 2; ++g) {
      values.push_back(optimizer.lr(g));
      values.push_back(optimizer.momentum(g));
    }
    if (t < steps) step(t);
  }
  return values;
}

std::vector<double> run(const optim::Optimizer& optimizer, const Schedulers& schedulers,
                        int steps) {
  return rates(optimizer, steps, [&](int) {
    for (const auto& s : schedulers) s->step();
  });
}

void expect_golden(const char* name, const std::vector<double>& values) {
  const std::vector<double> expected = goldens[name];
  ASSERT_EQ(values.size(), expected.size());
  // The same recurrences in f64; only libm's cosines may differ in the last place.
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], 1e-12) << name << ", step " << i / 4 << ", value " << i % 4;
  }
}

template <class Scheduler, class Options>
void check(const char* name, const Options& options) {
  optim::SGD sgd = make_sgd();
  Schedulers schedulers;
  schedulers.push_back(make<Scheduler>(sgd, options));
  expect_golden(name, run(sgd, schedulers, 50));
}

TEST(LRScheduler, FollowsPyTorch) {
  check<optim::StepLR, optim::StepLROptions>("step_lr", {.step_size = 7, .gamma = 0.5});
  check<optim::MultiStepLR, optim::MultiStepLROptions>(
      "multi_step_lr", {.milestones = {3, 20, 20, 41}, .gamma = 0.3});
  const auto cosine = check<optim::CosineAnnealingLR, optim::CosineAnnealingLROptions>;
  cosine("cosine_lr", {.T_max = 50});
  cosine("cosine_restarts_lr", {.T_max = 8, .eta_min = 0.001});
  const auto linear = check<optim::LinearLR, optim::LinearLROptions>;
  linear("linear_lr", {});
  linear("linear_down_lr", {.start_factor = 1, .end_factor = 0.1, .total_iters = 30});
  check<optim::OneCycleLR, optim::OneCycleLROptions>("one_cycle_lr",
                                                     {.max_lr = {0.5}, .total_steps = 50});
  check<optim::ExponentialLR, optim::ExponentialLROptions>("exponential_lr", {.gamma = 0.9});
  const auto restarts =
      check<optim::CosineAnnealingWarmRestarts, optim::CosineAnnealingWarmRestartsOptions>;
  restarts("warm_restarts_lr", {.T_0 = 7, .eta_min = 0.001});
  restarts("longer_warm_restarts_lr", {.T_0 = 3, .T_mult = 2});
}

TEST(LRScheduler, LambdaLRFollowsPyTorch) {
  using Lambda = optim::LambdaLR::Lambda;
  check<optim::LambdaLR>("lambda_lr", Lambda([](auto t) { return 1 / (1.0 + t); }));
  check<optim::LambdaLR>("lambdas_lr", std::vector<Lambda>{[](auto t) { return std::pow(0.95, t); },
                                                           [](auto t) { return t / 10; }});
}

optim::SequentialLROptions four_in_turn(optim::Optimizer& optimizer) {
  return {
      .schedulers = {make<optim::LinearLR>(
                         optimizer, optim::LinearLROptions{.start_factor = 0.1, .total_iters = 4}),
                     make<optim::CosineAnnealingLR>(
                         optimizer, optim::CosineAnnealingLROptions{.T_max = 12, .eta_min = 0.001}),
                     make<optim::MultiStepLR>(
                         optimizer, optim::MultiStepLROptions{.milestones = {3, 8}, .gamma = 0.5}),
                     make<optim::CosineAnnealingWarmRestarts>(
                         optimizer, optim::CosineAnnealingWarmRestartsOptions{.T_0 = 5})},
      .milestones = {5, 20, 35}};
}

TEST(LRScheduler, SequentialLRFollowsPyTorch) {
  optim::SGD sgd = make_sgd();
  optim::SequentialLR scheduler(sgd, four_in_turn(sgd));
  expect_golden("sequential_lr", rates(sgd, 50, [&](int) { scheduler.step(); }));
  EXPECT_EQ(scheduler.last_epoch(), 50);

  // OneCycleLR gives all of them its own first rate, and changes the momentum from the start.
  optim::SGD cycled = make_sgd();
  optim::SequentialLR cycle(
      cycled,
      {.schedulers = {make<optim::ExponentialLR>(cycled, optim::ExponentialLROptions{.gamma = 0.9}),
                      make<optim::OneCycleLR>(
                          cycled, optim::OneCycleLROptions{.max_lr = {0.5}, .total_steps = 60})},
       .milestones = {10}});
  expect_golden("sequential_cycle_lr", rates(cycled, 50, [&](int) { cycle.step(); }));
}

// The inner one counts from its beginning.
TEST(LRScheduler, SequentialLRWithinAnother) {
  const auto pair = [](optim::Optimizer& optimizer) {
    return optim::SequentialLROptions{
        .schedulers = {make<optim::ExponentialLR>(optimizer,
                                                  optim::ExponentialLROptions{.gamma = 0.5}),
                       make<optim::ExponentialLR>(optimizer,
                                                  optim::ExponentialLROptions{.gamma = 0.9})},
        .milestones = {2}};
  };
  optim::SGD sgd(one(), {.lr = 1});
  const auto inner = std::make_shared<optim::SequentialLR>(sgd, pair(sgd));
  const auto last = std::make_shared<optim::SequentialLR>(sgd, pair(sgd));
  optim::SequentialLR scheduler(sgd, {.schedulers = {inner, last}, .milestones = {3}});
  std::vector<double> values;
  for (int t = 0; t < 7; ++t) {
    values.push_back(sgd.lr());
    scheduler.step();
  }
  EXPECT_EQ(values, (std::vector<double>{1, 0.5, 1, 1, 0.5, 1, 0.9}));
}

// The same as in write_goldens.py.
double metric(int t) { return std::max(0, 10 - t) / 8.0 + t * 29 % 37 / 37.0; }

void check_plateau(const char* name, const optim::ReduceLROnPlateauOptions& options) {
  optim::SGD sgd = make_sgd();
  optim::ReduceLROnPlateau scheduler(sgd, options);
  expect_golden(name, rates(sgd, 50, [&](int t) { scheduler.step(metric(t)); }));
}

TEST(LRScheduler, ReduceLROnPlateauFollowsPyTorch) {
  using enum optim::PlateauMode;
  using enum optim::PlateauThreshold;
  check_plateau("plateau_lr", {.patience = 2});
  check_plateau("plateau_max_lr", {.mode = max,
                                   .factor = 0.5,
                                   .patience = 3,
                                   .threshold = 0.1,
                                   .threshold_mode = abs,
                                   .cooldown = 4});
  check_plateau("plateau_abs_lr", {.factor = 0.6,
                                   .patience = 0,
                                   .threshold = 0.05,
                                   .threshold_mode = abs,
                                   .cooldown = 2,
                                   .min_lr = {0.01, 1e-3}});
  check_plateau(
      "plateau_rel_lr",
      {.mode = max, .factor = 0.3, .patience = 1, .threshold = 0.2, .min_lr = {1e-4}, .eps = 1e-3});
}

TEST(LRScheduler, ReduceLROnPlateauTakesNoNaNForBetter) {
  optim::SGD sgd = make_sgd();
  optim::ReduceLROnPlateau scheduler(sgd, {.patience = 0});
  scheduler.step(1);
  scheduler.step(std::nan(""));
  EXPECT_EQ(sgd.lr(), 0.1 * 0.1);
  scheduler.step(0.5);
  EXPECT_EQ(sgd.lr(), 0.1 * 0.1);
}

TEST(LRScheduler, OneCycleMovesAdamsBeta) {
  optim::Adam adam({{one(), {.lr = 0.1}}, {one(), {.lr = 0.03}}});
  Schedulers schedulers;
  schedulers.push_back(
      make<optim::OneCycleLR>(adam, optim::OneCycleLROptions{.max_lr = {0.5, 0.2},
                                                             .total_steps = 60,
                                                             .pct_start = 0.4,
                                                             .base_momentum = 0.8,
                                                             .max_momentum = 0.9,
                                                             .div_factor = 10,
                                                             .final_div_factor = 100}));
  expect_golden("one_cycle_adam_lr", run(adam, schedulers, 50));
}

TEST(LRScheduler, SeveralOnOneOptimiserMultiply) {
  optim::SGD sgd = make_sgd();
  Schedulers schedulers;
  schedulers.push_back(
      make<optim::LinearLR>(sgd, optim::LinearLROptions{.start_factor = 0.1, .total_iters = 4}));
  schedulers.push_back(make<optim::StepLR>(sgd, optim::StepLROptions{.step_size = 9}));
  schedulers.push_back(
      make<optim::CosineAnnealingLR>(sgd, optim::CosineAnnealingLROptions{.T_max = 20}));
  expect_golden("chained_lr", run(sgd, schedulers, 50));
}

TEST(LRScheduler, ResumesFromItsState) {
  optim::SGD straight = make_sgd();
  Schedulers whole;
  whole.push_back(
      make<optim::CosineAnnealingLR>(straight, optim::CosineAnnealingLROptions{.T_max = 8}));
  run(straight, whole, 9);

  optim::SGD first = make_sgd();
  Schedulers begun;
  begun.push_back(
      make<optim::CosineAnnealingLR>(first, optim::CosineAnnealingLROptions{.T_max = 8}));
  run(first, begun, 9);
  optim::SGD second({{one(), {.lr = 7, .momentum = 0.9}}, {one(), {.lr = 7, .momentum = 0.9}}});
  Schedulers resumed;
  resumed.push_back(
      make<optim::CosineAnnealingLR>(second, optim::CosineAnnealingLROptions{.T_max = 8}));
  second.load_state_dict(first.state_dict());
  resumed[0]->load_state_dict(begun[0]->state_dict());
  EXPECT_EQ(resumed[0]->last_epoch(), 9);
  EXPECT_EQ(run(second, resumed, 20), run(straight, whole, 20));

  optim::SGD single(one());
  optim::StepLR other(single, {.step_size = 1});
  EXPECT_WEFT_ERROR(other.load_state_dict(begun[0]->state_dict()), InvalidArgument,
                    "[scheduler] the state's base_lrs is f64 [2], that of this scheduler and "
                    "optimiser f64 [1]");
  EXPECT_WEFT_ERROR(other.load_state_dict({}), InvalidArgument, "the state lacks last_epoch");
  auto twice = optim::StepLR(single, {.step_size = 1}).state_dict();
  twice.push_back(twice[0]);
  EXPECT_WEFT_ERROR(other.load_state_dict(twice), InvalidArgument,
                    "the state has last_epoch twice");
  EXPECT_EQ(other.last_epoch(), 0);
}

// Saves after any number of steps, and loads into new objects.
template <class MakeScheduler, class Step>
void expect_resumes(const MakeScheduler& make_scheduler, const Step& step) {
  optim::SGD straight = make_sgd();
  const auto whole = make_scheduler(straight);
  const std::vector<double> expected = rates(straight, 50, [&](int t) { step(*whole, t); });
  for (int stop = 0; stop <= 50; ++stop) {
    optim::SGD first = make_sgd(), second = make_sgd();
    const auto begun = make_scheduler(first), resumed = make_scheduler(second);
    for (int t = 0; t < stop; ++t) step(*begun, t);
    second.load_state_dict(first.state_dict());
    resumed->load_state_dict(begun->state_dict());
    EXPECT_EQ(resumed->last_epoch(), stop);
    const auto rest = rates(second, 50 - stop, [&](int t) { step(*resumed, stop + t); });
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.end() - std::ssize(rest))) << stop;
  }
}

TEST(LRScheduler, SequentialLRResumesFromItsState) {
  const auto make_scheduler = [](optim::Optimizer& optimizer) {
    return make<optim::SequentialLR>(optimizer, four_in_turn(optimizer));
  };
  expect_resumes(make_scheduler, [](optim::LRScheduler& s, int) { s.step(); });

  optim::SGD sgd = make_sgd();
  const auto scheduler = make_scheduler(sgd);
  auto state = scheduler->state_dict();
  ASSERT_EQ(state.back().first, "schedulers.3.base_lrs");
  state.pop_back();
  scheduler->step();
  EXPECT_WEFT_ERROR(scheduler->load_state_dict(state), InvalidArgument,
                    "the state lacks schedulers.3.base_lrs");
  EXPECT_EQ(scheduler->last_epoch(), 1) << "nothing was changed";
}

TEST(LRScheduler, ReduceLROnPlateauResumesFromItsState) {
  expect_resumes(
      [](optim::Optimizer& optimizer) {
        return std::make_unique<optim::ReduceLROnPlateau>(
            optimizer,
            optim::ReduceLROnPlateauOptions{.factor = 0.9, .patience = 2, .cooldown = 2});
      },
      [](optim::ReduceLROnPlateau& s, int t) { s.step(metric(t)); });
}

// On the way from eta_min back to 0 the rounding error is relative to eta_min, and grows with the
// period.
TEST(LRScheduler, CosineAnnealingComesBackToZero) {
  for (const std::int64_t period : {2, 3, 5, 7, 10, 33, 100, 500, 2000}) {
    for (const double base : {0.0, 1e-17, 1e-9}) {
      SCOPED_TRACE(::testing::Message() << "T_max " << period << ", base " << base);
      optim::SGD sgd(one(), {.lr = base});
      optim::CosineAnnealingLR schedule(sgd, {.T_max = period, .eta_min = 1});
      for (std::int64_t i = 0; i < 2 * period; ++i) ASSERT_NO_THROW(schedule.step());
      // 4 T_max^2 / pi^2 roundings of 1, and some more on the way.
      EXPECT_NEAR(sgd.lr(), base, 0x1p-52 * static_cast<double>(period * period + 10));
    }
  }
}

struct Log final : LogSink {
  void write(Level level, std::string_view message) override {
    if (level == Level::warning) text += std::string(message) + '\n';
  }
  std::string text;
};

// From a version that did not save the momentum.
TEST(LRScheduler, AStateWithoutMomentumIsTakenAndSaidSoWhereOneIsSet) {
  Log log;
  const Scoped<LogSink*> logging(&ThreadState::log, &log);
  const optim::OneCycleLROptions options{.max_lr = {0.5}, .total_steps = 50};
  optim::SGD first = make_sgd();
  optim::OneCycleLR cycle(first, options);
  for (int t = 0; t < 5; ++t) cycle.step();
  optim::NamedTensors state = first.state_dict();
  EXPECT_EQ(std::erase_if(state, [](const auto& e) { return e.first.ends_with("momentum"); }), 2U);

  optim::SGD plain = make_sgd();
  plain.load_state_dict(state);
  EXPECT_EQ(plain.lr(0), first.lr(0));
  EXPECT_EQ(plain.momentum(0), 0.9);
  EXPECT_EQ(log.text, "");  // nothing sets the momentum

  optim::SGD second = make_sgd();
  const optim::OneCycleLR resumed(second, options);
  second.load_state_dict(state);
  EXPECT_EQ(second.momentum(1), 0.95);  // from the scheduler's constructor
  EXPECT_EQ(log.text.find("optimizer: this state was saved without the momentum, which"), 0U)
      << log.text;
  EXPECT_EQ(std::ranges::count(log.text, '\n'), 1);

  state = first.state_dict();
  for (auto& [name, value] : state) {
    if (name == "group.1.momentum") value = scalar(-1, DType::f64);
  }
  EXPECT_WEFT_ERROR(second.load_state_dict(state), InvalidArgument,
                    "momentum must not be negative, got -1");
  EXPECT_EQ(second.momentum(0), 0.95) << "nothing was changed";
}

TEST(LRScheduler, RefusesBadArguments) {
  optim::SGD sgd = make_sgd(), plain(one());
  optim::RMSprop rmsprop(one());
  EXPECT_WEFT_ERROR(optim::StepLR(sgd, {}), InvalidArgument, "[StepLR] step_size must be positive");
  EXPECT_WEFT_ERROR(optim::CosineAnnealingLR(sgd, {}), InvalidArgument, "T_max must be positive");
  EXPECT_WEFT_ERROR(optim::LinearLR(sgd, {.start_factor = 0}), InvalidArgument, "got 0 and 1");
  EXPECT_WEFT_ERROR(optim::OneCycleLR(sgd, {.max_lr = {1}}), InvalidArgument,
                    "total_steps must be positive");
  EXPECT_WEFT_ERROR(optim::OneCycleLR(sgd, {.max_lr = {1, 2, 3}, .total_steps = 5}),
                    InvalidArgument, "max_lr: got 3 rates for 2 groups");
  EXPECT_WEFT_ERROR(optim::OneCycleLR(sgd, {.max_lr = {1, -2}, .total_steps = 5}), InvalidArgument,
                    "[OneCycleLR] max_lr must not be negative, got -2");
  EXPECT_WEFT_ERROR(optim::OneCycleLR(sgd, {.max_lr = {1}, .total_steps = 5, .div_factor = 0}),
                    InvalidArgument, "must be positive, got 0 and 10000");
  EXPECT_WEFT_ERROR(
      optim::OneCycleLR(sgd, {.max_lr = {1}, .total_steps = 5, .final_div_factor = 0}),
      InvalidArgument, "must be positive, got 25 and 0");
  EXPECT_FALSE(sgd.has_initial_lr(0));  // none of them has changed the optimiser
  EXPECT_WEFT_ERROR(optim::OneCycleLR(plain, {.max_lr = {1}, .total_steps = 5}), InvalidArgument,
                    "made without momentum, which 0.95 would need");
  EXPECT_WEFT_ERROR(optim::OneCycleLR(rmsprop, {.max_lr = {1}, .total_steps = 5}), InvalidArgument,
                    "made without momentum");
  EXPECT_WEFT_ERROR(optim::ExponentialLR(sgd, {}), InvalidArgument,
                    "[ExponentialLR] gamma must be positive, got 0");
  EXPECT_WEFT_ERROR(optim::CosineAnnealingWarmRestarts(sgd, {}), InvalidArgument,
                    "T_0 and T_mult must be positive, got 0 and 1");
  EXPECT_WEFT_ERROR(optim::CosineAnnealingWarmRestarts(sgd, {.T_0 = 1, .T_mult = 0}),
                    InvalidArgument, "got 1 and 0");
  EXPECT_WEFT_ERROR(optim::LambdaLR(sgd, optim::LambdaLR::Lambda()), InvalidArgument,
                    "[LambdaLR] got an empty function");
  EXPECT_WEFT_ERROR(optim::LambdaLR(sgd, std::vector<optim::LambdaLR::Lambda>(3)), InvalidArgument,
                    "got 3 functions for 2 groups");
  optim::OneCycleLR short_cycle(
      plain, {.max_lr = {1}, .total_steps = 1, .pct_start = 1, .cycle_momentum = false});
  short_cycle.step();
  EXPECT_WEFT_ERROR(short_cycle.step(), InvalidArgument, "step 2 of a schedule of 1 steps");
}

TEST(LRScheduler, AStepThatThrowsChangesNothing) {
  using Lambda = optim::LambdaLR::Lambda;
  optim::SGD sgd = make_sgd();
  double factor = -1;
  optim::LambdaLR lambdas(sgd, std::vector<Lambda>{[](auto t) { return t == 0 ? 1 : 0.5; },
                                                   [&](auto t) { return t == 0 ? 1 : factor; }});
  optim::SequentialLR outer(
      sgd, {.schedulers = {std::shared_ptr<optim::LRScheduler>(&lambdas, [](auto*) {})},
            .milestones = {}});
  EXPECT_WEFT_ERROR(outer.step(), InvalidArgument,
                    "[scheduler] the learning rate must not be negative, got -0.03 for group 1");
  EXPECT_EQ(sgd.lr(0), 0.1);
  EXPECT_EQ(lambdas.last_epoch(), 0);
  EXPECT_EQ(outer.last_epoch(), 0);
  factor = 2;
  outer.step();
  EXPECT_EQ(sgd.lr(0), 0.05);
  EXPECT_EQ(sgd.lr(1), 0.06);
}

TEST(LRScheduler, RefusesCountersThatNoTrainingHas) {
  optim::SGD sgd = make_sgd();
  optim::StepLR scheduler(sgd, {.step_size = 2});
  const optim::NamedTensors before = scheduler.state_dict();
  for (const std::int64_t steps : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    optim::NamedTensors state = before;
    state[0].second = from_vector(std::vector{steps}, {});
    EXPECT_WEFT_ERROR(scheduler.load_state_dict(state), InvalidArgument, "expected 0 to 2^53");
  }
  EXPECT_EQ(scheduler.last_epoch(), 0);
}

TEST(LRScheduler, ReduceLROnPlateauRefusesBadArguments) {
  optim::SGD sgd = make_sgd();
  EXPECT_WEFT_ERROR(optim::ReduceLROnPlateau(sgd, {.factor = 1}), InvalidArgument,
                    "[ReduceLROnPlateau] factor must be in [0, 1), got 1");
  EXPECT_WEFT_ERROR(optim::ReduceLROnPlateau(sgd, {.patience = -1}), InvalidArgument,
                    "patience and cooldown must not be negative, got -1 and 0");
  EXPECT_WEFT_ERROR(optim::ReduceLROnPlateau(sgd, {.min_lr = {}}), InvalidArgument,
                    "min_lr: got 0 rates for 2 groups");
  optim::ReduceLROnPlateau plateau(sgd);
  EXPECT_WEFT_ERROR(static_cast<optim::LRScheduler&>(plateau).step(), InvalidArgument,
                    "a step needs the metric");
}

TEST(LRScheduler, SequentialLRRefusesBadArguments) {
  optim::SGD sgd = make_sgd(), other = make_sgd();
  const auto step = [](optim::Optimizer& optimizer) {
    return std::make_shared<optim::StepLR>(optimizer, optim::StepLROptions{.step_size = 1});
  };
  const auto refuses = [&](std::vector<std::shared_ptr<optim::LRScheduler>> schedulers,
                           std::vector<std::int64_t> milestones, const char* text) {
    EXPECT_WEFT_ERROR(
        optim::SequentialLR(sgd, {.schedulers = schedulers, .milestones = milestones}),
        InvalidArgument, text);
  };
  refuses({}, {}, "[SequentialLR] got no scheduler");
  refuses({step(sgd), nullptr}, {1}, "scheduler 1 is null");
  refuses({step(sgd), step(other)}, {1}, "scheduler 1 is of another optimiser");
  refuses({std::make_shared<optim::ReduceLROnPlateau>(sgd)}, {},
          "scheduler 0 is a ReduceLROnPlateau");
  refuses({step(sgd), step(sgd)}, {}, "got 0 milestones for 2 schedulers");
  refuses({step(sgd), step(sgd)}, {0}, "milestones must be positive and in ascending order");
  refuses({step(sgd), step(sgd), step(sgd)}, {5, 4}, "in ascending order");
}

}  // namespace
}  // namespace weft
