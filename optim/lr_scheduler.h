// Learning rates that change from step to step, with torch/optim/lr_scheduler.py's numbers.
//
//   optim::CosineAnnealingLR scheduler(sgd, {.T_max = epochs});
//   for (...) { train(); scheduler.step(); }
//
// A scheduler sets the rate of every parameter group when it is made and at each step(). All but
// OneCycleLR compute the next rate from the present one, so that several on one optimiser multiply.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/optim/optimizer.h"

namespace weft::optim {

/// Refers to its optimiser, which must outlive it.
class LRScheduler {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;
  virtual ~LRScheduler() = default;

  void step();
  /// Steps so far.
  std::int64_t last_epoch() const { return last_epoch_; }

  /// "last_epoch" (i64) and "base_lrs" (f64 [groups]). The rates themselves are in the optimiser's
  /// state, the options in neither: make the scheduler with the same ones, then load both.
  NamedTensors state_dict() const;
  /// Throws InvalidArgument for state of another number of groups, before anything is changed.
  void load_state_dict(const NamedTensors& state);

 protected:
  explicit LRScheduler(Optimizer& optimizer);
  /// At the end of a subclass's constructor: the rates of step 0.
  void start();
  /// The group's rate at last_epoch(), from its rate until now.
  virtual double next_lr(std::size_t group) = 0;

  Optimizer& optimizer() { return optimizer_; }
  double base_lr(std::size_t group) const { return base_lrs_[group]; }

 private:
  void update();

  Optimizer& optimizer_;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = 0;
};

struct StepLROptions {
  std::int64_t step_size = 0;  ///< to be given
  double gamma = 0.1;
};
/// Times gamma every step_size steps. Throws InvalidArgument for step_size < 1.
class StepLR final : public LRScheduler {
 public:
  StepLR(Optimizer& optimizer, const StepLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones;  ///< one that stands there twice counts twice
  double gamma = 0.1;
};
/// Times gamma at each milestone.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(Optimizer& optimizer, MultiStepLROptions options);

 private:
  double next_lr(std::size_t group) override;
  MultiStepLROptions options_;
};

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;  ///< to be given: steps from the first rate to eta_min
  double eta_min = 0;
};
/// eta_min + (base - eta_min) (1 + cos(pi t / T_max)) / 2, and back up after T_max. Throws
/// InvalidArgument for T_max < 1.
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  CosineAnnealingLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_iters = 5;
};
/// The rate times a factor that goes from start_factor to end_factor in total_iters steps: a linear
/// warm-up. Throws InvalidArgument unless 0 < start_factor <= 1 and 0 <= end_factor <= 1.
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});

 private:
  double next_lr(std::size_t group) override;
  LinearLROptions options_;
};

struct OneCycleLROptions {
  std::vector<double> max_lr;    ///< to be given: one for all groups, or one each
  std::int64_t total_steps = 0;  ///< to be given
  double pct_start = 0.3;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
};
/// From max_lr / div_factor up to max_lr in the first pct_start of the steps, then down to
/// max_lr / div_factor / final_div_factor, both along a cosine; momentum (Adam: beta1) goes from
/// max_momentum to base_momentum and back at the same time. Throws InvalidArgument for options out
/// of range, for an optimiser without momentum unless cycle_momentum is off, and in step() beyond
/// total_steps.
class OneCycleLR final : public LRScheduler {
 public:
  OneCycleLR(Optimizer& optimizer, OneCycleLROptions options);

 private:
  double next_lr(std::size_t group) override;
  OneCycleLROptions options_;
};

}  // namespace weft::optim
