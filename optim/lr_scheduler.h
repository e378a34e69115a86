// Learning rates that change from step to step, with torch/optim/lr_scheduler.py's numbers.
//
//   optim::CosineAnnealingLR scheduler(sgd, {.T_max = epochs});
//   for (...) { train(); scheduler.step(); }
//
// A scheduler sets the rate of every parameter group when it is made and at each step(). Here are
// those whose rates follow from the number of steps. OneCycleLR, LambdaLR and
// CosineAnnealingWarmRestarts compute them from the first rate, the others from the present one, so
// that several on one optimiser multiply. One after the other: optim/sequential_lr.h; by what the
// training reaches: optim/reduce_lr_on_plateau.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "weft/optim/optimizer.h"

namespace weft::optim {

/// Refers to its optimiser, which must outlive it.
class LRScheduler {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;
  virtual ~LRScheduler() = default;

  virtual void step();
  /// Steps so far.
  std::int64_t last_epoch() const { return last_epoch_; }

  /// "last_epoch" (i64) and what else a scheduler counts by, by PyTorch's names: "base_lrs" (f64
  /// [groups]) for one. The rates themselves are in the optimiser's state, the options in neither:
  /// make the scheduler with the same ones, then load both.
  NamedTensors state_dict() const;
  /// Throws InvalidArgument for state that lacks something, or of another number of groups, before
  /// anything is changed.
  void load_state_dict(const NamedTensors& state);

 protected:
  /// One entry of the state: a number (i64, f64), or a list (f64).
  struct Entry {
    std::string name;
    std::variant<std::int64_t*, double*, std::vector<double>*> value;
  };

  explicit LRScheduler(Optimizer& optimizer) : optimizer_(optimizer) {}
  /// Gives the optimiser the rates of step last_epoch(); it still has those of the step before.
  virtual void update() = 0;
  /// Back to step 0, with the rates it begins with.
  virtual void restart();
  virtual std::vector<Entry> state();

  Optimizer& optimizer() const { return optimizer_; }

 private:
  friend class SequentialLR;  // steps and restarts others

  Optimizer& optimizer_;
  std::int64_t last_epoch_ = 0;
};

/// What those have in common that have a formula for each group.
class FormulaLR : public LRScheduler {
 protected:
  using LRScheduler::LRScheduler;
  /// At the end of a subclass's constructor: the rates of step 0.
  void start();
  /// The group's rate at last_epoch(), from its rate until now.
  virtual double next_lr(std::size_t group) = 0;

  void update() override;
  void restart() override;
  std::vector<Entry> state() override;
  double base_lr(std::size_t group) const { return base_lrs_[group]; }

 private:
  std::vector<double> base_lrs_;
};

struct StepLROptions {
  std::int64_t step_size = 0;  ///< to be given
  double gamma = 0.1;
};
/// Times gamma every step_size steps. Throws InvalidArgument for step_size < 1.
class StepLR final : public FormulaLR {
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
class MultiStepLR final : public FormulaLR {
 public:
  MultiStepLR(Optimizer& optimizer, MultiStepLROptions options);

 private:
  double next_lr(std::size_t group) override;
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0;  ///< to be given
};
/// Times gamma at each step. Throws InvalidArgument for gamma <= 0.
class ExponentialLR final : public FormulaLR {
 public:
  ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  ExponentialLROptions options_;
};

/// The group's first rate times lr_lambda(steps so far). What the functions count themselves is in
/// no state.
///   optim::LambdaLR scheduler(sgd, [](std::int64_t epoch) { return std::pow(0.95, epoch); });
class LambdaLR final : public FormulaLR {
 public:
  using Lambda = std::function<double(std::int64_t epoch)>;

  /// One for all groups.
  LambdaLR(Optimizer& optimizer, Lambda lr_lambda);
  /// One for each. Throws InvalidArgument for another number of them than of groups, and for one
  /// that is empty.
  LambdaLR(Optimizer& optimizer, std::vector<Lambda> lr_lambdas);

 private:
  double next_lr(std::size_t group) override;
  std::vector<Lambda> lr_lambdas_;
};

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;  ///< to be given: steps from the first rate to eta_min
  double eta_min = 0;
};
/// eta_min + (base - eta_min) (1 + cos(pi t / T_max)) / 2, and back up after T_max. Throws
/// InvalidArgument for T_max < 1.
class CosineAnnealingLR final : public FormulaLR {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  std::int64_t T_0 = 0;     ///< to be given: steps until the first restart
  std::int64_t T_mult = 1;  ///< each stretch between restarts is so many times the one before
  double eta_min = 0;
};
/// SGDR: eta_min + (base - eta_min) (1 + cos(pi T_cur / T_i)) / 2, T_cur being the steps since the
/// last restart and T_i those between it and the next one. Whole steps alone. Throws
/// InvalidArgument for T_0 < 1 and T_mult < 1.
class CosineAnnealingWarmRestarts final : public FormulaLR {
 public:
  CosineAnnealingWarmRestarts(Optimizer& optimizer,
                              const CosineAnnealingWarmRestartsOptions& options);

 private:
  double next_lr(std::size_t group) override;
  CosineAnnealingWarmRestartsOptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_iters = 5;
};
/// The rate times a factor that goes from start_factor to end_factor in total_iters steps: a linear
/// warm-up. Throws InvalidArgument unless 0 < start_factor <= 1 and 0 <= end_factor <= 1.
class LinearLR final : public FormulaLR {
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
class OneCycleLR final : public FormulaLR {
 public:
  OneCycleLR(Optimizer& optimizer, OneCycleLROptions options);

 private:
  double next_lr(std::size_t group) override;
  OneCycleLROptions options_;
};

}  // namespace weft::optim
