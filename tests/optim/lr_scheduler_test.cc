// Learning rates step by step against PyTorch.
#include "weft/optim/lr_scheduler.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "weft/optim/adam.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/optim/goldens.h"

namespace weft {
namespace {

using Schedulers = std::vector<std::unique_ptr<optim::LRScheduler>>;

std::vector<Tensor> one() { return {zeros({1}).set_requires_grad()}; }

optim::SGD make_sgd() {
  return optim::SGD(
      {{one(), {.lr = 0.1, .momentum = 0.9}}, {one(), {.lr = 0.03, .momentum = 0.9}}});
}

template <class Scheduler, class Options>
std::unique_ptr<optim::LRScheduler> make(optim::Optimizer& optimizer, const Options& options) {
  return std::make_unique<Scheduler>(optimizer, options);
}

// Both groups' rate and momentum, as the goldens list them, from `first` steps on.
std::vector<double> run(optim::Optimizer& optimizer, const Schedulers& schedulers, int steps) {
  std::vector<double> values;
  for (int t = 0; t <= steps; ++t) {
    for (std::size_t g = 0; g < 2; ++g) {
      values.push_back(optimizer.lr(g));
      values.push_back(optimizer.momentum(g));
    }
    if (t == steps) break;
    for (const auto& s : schedulers) s->step();
  }
  return values;
}

void expect_golden(const char* name, optim::Optimizer& optimizer, const Schedulers& schedulers,
                   const std::vector<double>& expected) {
  const std::vector<double> values = run(optimizer, schedulers, 50);
  ASSERT_EQ(values.size(), expected.size());
  // The same recurrences in f64; only libm's cosines may differ in the last place.
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], 1e-12) << name << ", step " << i / 4 << ", value " << i % 4;
  }
}

template <class Scheduler, class Options>
void check(const char* name, const Options& options, const std::vector<double>& expected) {
  optim::SGD sgd = make_sgd();
  Schedulers schedulers;
  schedulers.push_back(make<Scheduler>(sgd, options));
  expect_golden(name, sgd, schedulers, expected);
}

TEST(LRScheduler, FollowsPyTorch) {
  check<optim::StepLR>("step", optim::StepLROptions{.step_size = 7, .gamma = 0.5},
                       goldens::step_lr);
  check<optim::MultiStepLR>("multi-step",
                            optim::MultiStepLROptions{.milestones = {3, 20, 20, 41}, .gamma = 0.3},
                            goldens::multi_step_lr);
  check<optim::CosineAnnealingLR>("cosine", optim::CosineAnnealingLROptions{.T_max = 50},
                                  goldens::cosine_lr);
  check<optim::CosineAnnealingLR>("cosine, up and down",
                                  optim::CosineAnnealingLROptions{.T_max = 8, .eta_min = 0.001},
                                  goldens::cosine_restarts_lr);
  check<optim::LinearLR>("linear", optim::LinearLROptions{}, goldens::linear_lr);
  check<optim::LinearLR>(
      "linear, down",
      optim::LinearLROptions{.start_factor = 1, .end_factor = 0.1, .total_iters = 30},
      goldens::linear_down_lr);
  check<optim::OneCycleLR>("one cycle",
                           optim::OneCycleLROptions{.max_lr = {0.5}, .total_steps = 50},
                           goldens::one_cycle_lr);
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
  expect_golden("one cycle", adam, schedulers, goldens::one_cycle_adam_lr);
}

TEST(LRScheduler, SeveralOnOneOptimiserMultiply) {
  optim::SGD sgd = make_sgd();
  Schedulers schedulers;
  schedulers.push_back(
      make<optim::LinearLR>(sgd, optim::LinearLROptions{.start_factor = 0.1, .total_iters = 4}));
  schedulers.push_back(make<optim::StepLR>(sgd, optim::StepLROptions{.step_size = 9}));
  schedulers.push_back(
      make<optim::CosineAnnealingLR>(sgd, optim::CosineAnnealingLROptions{.T_max = 20}));
  expect_golden("chained", sgd, schedulers, goldens::chained_lr);
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
                    "[scheduler] the state is of 2 groups, the optimiser has 1");
  EXPECT_WEFT_ERROR(other.load_state_dict({}), InvalidArgument, "the state lacks last_epoch");
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
  EXPECT_WEFT_ERROR(optim::OneCycleLR(plain, {.max_lr = {1}, .total_steps = 5}), InvalidArgument,
                    "[SGD] made without momentum, which 0.95 would need");
  EXPECT_WEFT_ERROR(optim::OneCycleLR(rmsprop, {.max_lr = {1}, .total_steps = 5}), InvalidArgument,
                    "[RMSprop] made without momentum");
  optim::OneCycleLR short_cycle(
      plain, {.max_lr = {1}, .total_steps = 1, .pct_start = 1, .cycle_momentum = false});
  short_cycle.step();
  EXPECT_WEFT_ERROR(short_cycle.step(), InvalidArgument, "step 2 of a schedule of 1 steps");
}

}  // namespace
}  // namespace weft
