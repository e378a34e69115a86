#include "weft/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"

namespace weft::optim {

namespace {

constexpr double kPi = std::numbers::pi;
// f64, in which the rates are computed, is exact for all integers up to this one.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

Tensor to_tensor(std::int64_t value) { return from_vector(std::vector{value}, {}, Device()); }
Tensor to_tensor(double value) { return from_vector(std::vector{value}, {}, Device()); }
Tensor to_tensor(const std::vector<double>& values) {
  return from_vector(values, {static_cast<std::int64_t>(values.size())}, Device());
}

template <class T>
void from_tensor(const Tensor& x, T& value) {
  value = x.item<T>();
}
void from_tensor(const Tensor& x, std::vector<double>& values) { values = x.to_vector<double>(); }

}  // namespace

void LRScheduler::step() {
  graph::check_not_capturing("scheduler", "a replay does not run it; call it between the steps");
  ++last_epoch_;
  try {
    update();
  } catch (...) {
    --last_epoch_;
    throw;
  }
}

void LRScheduler::restart() {
  last_epoch_ = 0;
  update();
}

std::vector<LRScheduler::Entry> LRScheduler::state() { return {{"last_epoch", &last_epoch_}}; }

NamedTensors LRScheduler::state_dict() const {
  NamedTensors result;
  // The entries point to what load_state_dict writes; here they are only read.
  for (const Entry& entry : const_cast<LRScheduler*>(this)->state()) {
    result.emplace_back(entry.name,
                        std::visit([](auto* value) { return to_tensor(*value); }, entry.value));
  }
  return result;
}

void LRScheduler::load_state_dict(const NamedTensors& state) {
  const std::vector<Entry> entries = this->state();
  std::vector<Tensor> values;
  for (const Entry& entry : entries) {
    const auto found = std::ranges::find(state, entry.name, &NamedTensors::value_type::first);
    WEFT_CHECK(found != state.end(), InvalidArgument, "scheduler", "the state lacks ", entry.name);
    WEFT_CHECK(std::ranges::count(state, entry.name, &NamedTensors::value_type::first) == 1,
               InvalidArgument, "scheduler", "the state has ", entry.name, " twice");
    const Tensor like = std::visit([](auto* value) { return to_tensor(*value); }, entry.value);
    const Tensor& value = values.emplace_back(found->second);
    WEFT_CHECK(value.dtype() == like.dtype() && value.shape() == like.shape(), InvalidArgument,
               "scheduler", "the state's ", entry.name, " is ", value.dtype(), ' ', value.shape(),
               ", that of this scheduler and optimiser ", like.dtype(), ' ', like.shape());
    if (like.dtype() == DType::i64) {
      const auto count = value.item<std::int64_t>();
      WEFT_CHECK(count >= 0 && count <= kMostSteps, InvalidArgument, "scheduler", "the state's ",
                 entry.name, " is ", count, ", expected 0 to 2^53");
    }
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::visit([&](auto* value) { from_tensor(values[i], *value); }, entries[i].value);
  }
}

void FormulaLR::start() {
  for (std::size_t g = 0; g < optimizer().group_count(); ++g) {
    if (!optimizer().has_initial_lr(g)) optimizer().set_initial_lr(g, optimizer().lr(g));
    base_lrs_.push_back(optimizer().initial_lr(g));
  }
  update();
}

void FormulaLR::update() {
  std::vector<double> lrs;  // all of them before the first is set: a later one may be refused
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) {
    double lr = next_lr(g);
    // A recursive formula that should reach 0 may miss it by a rounding error.
    if (lr < 0 && lr > -rounding(g)) lr = 0;
    WEFT_CHECK(lr >= 0, InvalidArgument, "scheduler",
               "the learning rate must not be negative, got ", lr, " for group ", g);
    lrs.push_back(lr);
  }
  for (std::size_t g = 0; g < lrs.size(); ++g) optimizer().set_lr(g, lrs[g]);
}

void FormulaLR::restart() {
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) optimizer().set_lr(g, base_lrs_[g]);
  LRScheduler::restart();
}

std::vector<LRScheduler::Entry> FormulaLR::state() {
  std::vector<Entry> entries = LRScheduler::state();
  entries.push_back({"base_lrs", &base_lrs_});
  return entries;
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options)
    : FormulaLR(optimizer), options_(options) {
  WEFT_CHECK(options.step_size > 0, InvalidArgument, "StepLR", "step_size must be positive, got ",
             options.step_size);
  start();
}

double StepLR::next_lr(std::size_t group) {
  const double lr = optimizer().lr(group);
  return last_epoch() == 0 || last_epoch() % options_.step_size != 0 ? lr : lr * options_.gamma;
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, MultiStepLROptions options)
    : FormulaLR(optimizer), options_(std::move(options)) {
  start();
}

double MultiStepLR::next_lr(std::size_t group) {
  const auto& milestones = options_.milestones;
  const auto times = std::count(milestones.begin(), milestones.end(), last_epoch());
  return optimizer().lr(group) * std::pow(options_.gamma, static_cast<double>(times));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options)
    : FormulaLR(optimizer), options_(options) {
  WEFT_CHECK(options.gamma > 0, InvalidArgument, "ExponentialLR", "gamma must be positive, got ",
             options.gamma);
  start();
}

double ExponentialLR::next_lr(std::size_t group) {
  const double lr = optimizer().lr(group);
  return last_epoch() == 0 ? lr : lr * options_.gamma;
}

LambdaLR::LambdaLR(Optimizer& optimizer, Lambda lr_lambda)
    : LambdaLR(optimizer, std::vector<Lambda>(optimizer.group_count(), std::move(lr_lambda))) {}

LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<Lambda> lr_lambdas)
    : FormulaLR(optimizer), lr_lambdas_(std::move(lr_lambdas)) {
  WEFT_CHECK(lr_lambdas_.size() == optimizer.group_count(), InvalidArgument, "LambdaLR", "got ",
             lr_lambdas_.size(), " functions for ", optimizer.group_count(), " groups");
  for (const Lambda& f : lr_lambdas_) {
    WEFT_CHECK(f, InvalidArgument, "LambdaLR", "got an empty function");
  }
  start();
}

double LambdaLR::next_lr(std::size_t group) {
  return base_lr(group) * lr_lambdas_[group](last_epoch());
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : FormulaLR(optimizer), options_(options) {
  WEFT_CHECK(options.T_max > 0, InvalidArgument, "CosineAnnealingLR",
             "T_max must be positive, got ", options.T_max);
  start();
}

double CosineAnnealingLR::next_lr(std::size_t group) {
  const double lr = optimizer().lr(group), lowest = options_.eta_min;
  const std::int64_t t = last_epoch(), period = options_.T_max;
  if (t == 0) return lr;
  const auto height = [&](std::int64_t step) {
    return 1 + std::cos(kPi * static_cast<double>(step) / static_cast<double>(period));
  };
  // If the last height was 0, the ratio cannot be computed: the rate goes up again from the bottom.
  const std::int64_t before = t - 1;
  if (before % period == 0 && before / period % 2 == 1) {
    return lr + (base_lr(group) - lowest) * (1 - std::cos(kPi / static_cast<double>(period))) / 2;
  }
  return height(t) / height(t - 1) * (lr - lowest) + lowest;
}

double CosineAnnealingLR::rounding(std::size_t group) const {
  // On the way up from eta_min, the distance from it grows by 4 T_max^2 / pi^2, and the rounding
  // error at the bottom grows with it.
  const auto period = static_cast<double>(options_.T_max);
  return std::max(base_lr(group), options_.eta_min) * (1e-12 + 0x1p-52 * period * period);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(
    Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options)
    : FormulaLR(optimizer), options_(options) {
  WEFT_CHECK(options.T_0 > 0 && options.T_mult > 0, InvalidArgument, "CosineAnnealingWarmRestarts",
             "T_0 and T_mult must be positive, got ", options.T_0, " and ", options.T_mult);
  start();
}

double CosineAnnealingWarmRestarts::next_lr(std::size_t group) {
  // In f64: integers of this size are exact, and a long period does not overflow.
  double since = static_cast<double>(last_epoch()), stretch = static_cast<double>(options_.T_0);
  if (options_.T_mult == 1) since = std::fmod(since, stretch);
  while (since >= stretch) {
    since -= stretch;
    stretch *= static_cast<double>(options_.T_mult);
  }
  const double lowest = options_.eta_min;
  return lowest + (base_lr(group) - lowest) * (1 + std::cos(kPi * since / stretch)) / 2;
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : FormulaLR(optimizer), options_(options) {
  WEFT_CHECK(options.start_factor > 0 && options.start_factor <= 1 && options.end_factor >= 0 &&
                 options.end_factor <= 1,
             InvalidArgument, "LinearLR", "start_factor must be in (0, 1] and end_factor in [0, 1]",
             ", got ", options.start_factor, " and ", options.end_factor);
  start();
}

double LinearLR::next_lr(std::size_t group) {
  const double lr = optimizer().lr(group);
  const double first = options_.start_factor, rise = options_.end_factor - first;
  if (last_epoch() == 0) return lr * first;
  if (last_epoch() > options_.total_iters) return lr;
  const double before = static_cast<double>(options_.total_iters) * first +
                        static_cast<double>(last_epoch() - 1) * rise;
  return lr * (1 + rise / before);
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, OneCycleLROptions options)
    : FormulaLR(optimizer), options_(std::move(options)) {
  const OneCycleLROptions& o = options_;
  const std::size_t groups = optimizer.group_count();
  WEFT_CHECK(o.total_steps > 0, InvalidArgument, "OneCycleLR", "total_steps must be positive, got ",
             o.total_steps);
  WEFT_CHECK(o.pct_start >= 0 && o.pct_start <= 1, InvalidArgument, "OneCycleLR",
             "pct_start must be in [0, 1], got ", o.pct_start);
  WEFT_CHECK(o.max_lr.size() == 1 || o.max_lr.size() == groups, InvalidArgument, "OneCycleLR",
             "max_lr: got ", o.max_lr.size(), " rates for ", groups, " groups");
  for (const double lr : o.max_lr) {
    WEFT_CHECK(lr >= 0, InvalidArgument, "OneCycleLR", "max_lr must not be negative, got ", lr);
  }
  WEFT_CHECK(o.div_factor > 0 && o.final_div_factor > 0, InvalidArgument, "OneCycleLR",
             "div_factor and final_div_factor must be positive, got ", o.div_factor, " and ",
             o.final_div_factor);
  options_.max_lr.resize(groups, o.max_lr[0]);
  for (std::size_t g = 0; o.cycle_momentum && g < groups; ++g) {
    optimizer.set_momentum(g, o.max_momentum);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    optimizer.set_initial_lr(g, options_.max_lr[g] / o.div_factor);
  }
  start();
}

double OneCycleLR::next_lr(std::size_t group) {
  const OneCycleLROptions& o = options_;
  WEFT_CHECK(last_epoch() <= o.total_steps, InvalidArgument, "OneCycleLR", "step ", last_epoch(),
             " of a schedule of ", o.total_steps, " steps");
  const double now = static_cast<double>(last_epoch());
  const double top = o.pct_start * static_cast<double>(o.total_steps) - 1;
  const double last = static_cast<double>(o.total_steps - 1);
  const bool rising = now <= top;
  const double length = rising ? top : last - top;
  const double done = length > 0 ? (rising ? now : now - top) / length : 1;
  const auto anneal = [&](double from, double to) {
    return to + (from - to) / 2 * (std::cos(kPi * done) + 1);
  };
  const double first = base_lr(group), most = o.max_lr[group];
  if (o.cycle_momentum) {
    optimizer().set_momentum(group, rising ? anneal(o.max_momentum, o.base_momentum)
                                           : anneal(o.base_momentum, o.max_momentum));
  }
  return rising ? anneal(first, most) : anneal(most, first / o.final_div_factor);
}

}  // namespace weft::optim
