// Learning rates that change from step to step, with torch/optim/lr_scheduler.py's numbers.
//
//   optim::CosineAnnealingLR scheduler(sgd, {.T_max = epochs});
//   for (...) { train(); scheduler.step(); }
//
// A scheduler sets the learning rate of every parameter group when it is made and at each step().
// In this file the rates depend on the number of steps alone. OneCycleLR, LambdaLR and
// CosineAnnealingWarmRestarts compute the rate from the initial one. The others compute it from the
// present one, so several of them on one optimiser multiply their factors.
// SequentialLR (optim/sequential_lr.h) runs schedulers one after the other. ReduceLROnPlateau
// (optim/reduce_lr_on_plateau.h) follows a metric of the training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "weft/optim/optimizer.h"

namespace weft::optim {

/// Base of all schedulers. Refers to its optimiser, which must outlive it.
class LRScheduler {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;
  virtual ~LRScheduler() = default;

  /// Goes to the next step and sets its rates. Throws Unsupported inside graph::capture.
  virtual void step();
  /// The number of steps so far.
  std::int64_t last_epoch() const { return last_epoch_; }

  /// "last_epoch" (i64) and the scheduler's other counters by PyTorch's names, such as "base_lrs"
  /// (f64 [groups]). The present rates and momenta are in the optimiser's state dict. The options
  /// are in neither: make the scheduler with the same options, then load both state dicts.
  NamedTensors state_dict() const;
  /// Throws InvalidArgument for a state that lacks an entry or has one twice, or has one of another
  /// dtype or shape (another number of groups) or a counter outside [0, 2^53], before anything is
  /// changed.
  void load_state_dict(const NamedTensors& state);

 protected:
  /// One entry of the state dict: a number (i64 or f64) or a list (f64).
  struct Entry {
    std::string name;
    std::variant<std::int64_t*, double*, std::vector<double>*> value;
  };

  explicit LRScheduler(Optimizer& optimizer) : optimizer_(optimizer) {}
  /// Sets the optimiser's rates for step last_epoch(); until then it has those of the step before.
  virtual void update() = 0;
  /// Goes back to step 0 and its rates.
  virtual void restart();
  /// The entries that state_dict() reads and load_state_dict() writes.
  virtual std::vector<Entry> state();

  Optimizer& optimizer() const { return optimizer_; }

 private:
  friend class SequentialLR;  // steps and restarts others

  Optimizer& optimizer_;
  std::int64_t last_epoch_ = 0;
};

/// Base of the schedulers that have a formula for each group's rate.
class FormulaLR : public LRScheduler {
 protected:
  using LRScheduler::LRScheduler;
  /// Sets the rates of step 0. A subclass calls it at the end of its constructor.
  void start();
  /// The group's rate at last_epoch(). optimizer().lr(group) still has the rate of the step before.
  virtual double next_lr(std::size_t group) = 0;
  /// How far below 0 a rounding may bring next_lr; such a rate becomes 0.
  virtual double rounding(std::size_t group) const { return 1e-12 * base_lr(group); }

  void update() override;
  void restart() override;
  std::vector<Entry> state() override;
  /// The group's initial rate (Optimizer::initial_lr).
  double base_lr(std::size_t group) const { return base_lrs_[group]; }

 private:
  std::vector<double> base_lrs_;
};

struct StepLROptions {
  std::int64_t step_size = 0;  ///< required
  double gamma = 0.1;
};
/// Multiplies the rate by gamma every step_size steps. Throws InvalidArgument for step_size < 1.
class StepLR final : public FormulaLR {
 public:
  StepLR(Optimizer& optimizer, const StepLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones{};  ///< steps; one listed twice counts twice
  double gamma = 0.1;
};
/// Multiplies the rate by gamma at each milestone.
class MultiStepLR final : public FormulaLR {
 public:
  MultiStepLR(Optimizer& optimizer, MultiStepLROptions options);

 private:
  double next_lr(std::size_t group) override;
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0;  ///< required
};
/// Multiplies the rate by gamma at each step. Throws InvalidArgument for gamma <= 0.
class ExponentialLR final : public FormulaLR {
 public:
  ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  ExponentialLROptions options_;
};

/// The group's initial rate times lr_lambda(number of steps so far). The state dict contains
/// nothing about the functions: a counter inside one is not saved.
///   optim::LambdaLR scheduler(sgd, [](std::int64_t epoch) { return std::pow(0.95, epoch); });
class LambdaLR final : public FormulaLR {
 public:
  using Lambda = std::function<double(std::int64_t epoch)>;

  /// One function for all groups. Throws InvalidArgument for an empty function.
  LambdaLR(Optimizer& optimizer, Lambda lr_lambda);
  /// One function for each group. Throws InvalidArgument unless there are as many functions as
  /// groups, and for an empty one.
  LambdaLR(Optimizer& optimizer, std::vector<Lambda> lr_lambdas);

 private:
  double next_lr(std::size_t group) override;
  std::vector<Lambda> lr_lambdas_;
};

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;  ///< required: steps from the initial rate to eta_min
  double eta_min = 0;
};
/// eta_min + (base - eta_min) (1 + cos(pi t / T_max)) / 2, where base is the initial rate and t the
/// number of steps: down to eta_min at T_max, then up again. Throws InvalidArgument for T_max < 1.
class CosineAnnealingLR final : public FormulaLR {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  double next_lr(std::size_t group) override;
  double rounding(std::size_t group) const override;
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  std::int64_t T_0 = 0;     ///< required: steps until the first restart
  std::int64_t T_mult = 1;  ///< each period is T_mult times as long as the one before
  double eta_min = 0;
};
/// SGDR: eta_min + (base - eta_min) (1 + cos(pi T_cur / T_i)) / 2, where base is the initial rate,
/// T_cur the number of steps since the last restart and T_i the number from that restart to the
/// next. step() takes no fraction of an epoch. Throws InvalidArgument for T_0 < 1 or T_mult < 1.
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
/// The rate times a factor that goes linearly from start_factor to end_factor in total_iters steps:
/// a linear warm-up. Throws InvalidArgument unless 0 < start_factor <= 1 and 0 <= end_factor <= 1.
class LinearLR final : public FormulaLR {
 public:
  explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});

 private:
  double next_lr(std::size_t group) override;
  LinearLROptions options_;
};

struct OneCycleLROptions {
  std::vector<double> max_lr{};  ///< required: one for all groups, or one for each
  std::int64_t total_steps = 0;  ///< required
  double pct_start = 0.3;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
};
/// The rate goes from max_lr / div_factor up to max_lr in the first pct_start of the steps, then
/// down to max_lr / div_factor / final_div_factor, both along a cosine. With cycle_momentum the
/// momentum (Adam: beta1) goes from max_momentum to base_momentum and back at the same time. The
/// initial rate becomes max_lr / div_factor. Throws InvalidArgument for total_steps < 1, for
/// pct_start outside [0, 1], for another number of max_lr or a negative one, for a factor that is
/// not positive, for cycle_momentum with an optimiser without momentum, and in a step() beyond
/// total_steps.
class OneCycleLR final : public FormulaLR {
 public:
  OneCycleLR(Optimizer& optimizer, OneCycleLROptions options);

 private:
  double next_lr(std::size_t group) override;
  OneCycleLROptions options_;
};

}  // namespace weft::optim
