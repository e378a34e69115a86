#include "weft/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/core/error.h"
#include "weft/tensor/creation.h"

namespace weft::optim {

namespace {

constexpr double kPi = std::numbers::pi;

}  // namespace

LRScheduler::LRScheduler(Optimizer& optimizer) : optimizer_(optimizer) {}

void LRScheduler::start() {
  for (std::size_t g = 0; g < optimizer_.group_count(); ++g) {
    if (!optimizer_.has_initial_lr(g)) optimizer_.set_initial_lr(g, optimizer_.lr(g));
    base_lrs_.push_back(optimizer_.initial_lr(g));
  }
  update();
}

void LRScheduler::update() {
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) {
    double lr = next_lr(g);
    // A recursive formula that ends at 0 may miss it by a rounding.
    if (lr < 0 && lr > -1e-12 * base_lrs_[g]) lr = 0;
    optimizer_.set_lr(g, lr);
  }
}

void LRScheduler::step() {
  ++last_epoch_;
  update();
}

NamedTensors LRScheduler::state_dict() const {
  const auto groups = static_cast<std::int64_t>(base_lrs_.size());
  return {{"last_epoch", scalar(static_cast<double>(last_epoch_), {DType::i64, Device()})},
          {"base_lrs", from_vector(base_lrs_, {groups}, Device())}};
}

void LRScheduler::load_state_dict(const NamedTensors& state) {
  const auto find = [&](const char* name) {
    const auto found = std::find_if(state.begin(), state.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    WEFT_CHECK(found != state.end(), InvalidArgument, "scheduler", "the state lacks ", name);
    return found->second;
  };
  const Tensor epoch = find("last_epoch"), rates = find("base_lrs");
  WEFT_CHECK(rates.numel() == static_cast<std::int64_t>(base_lrs_.size()), InvalidArgument,
             "scheduler", "the state is of ", rates.numel(), " groups, the optimiser has ",
             base_lrs_.size());
  last_epoch_ = epoch.item<std::int64_t>();
  base_lrs_ = rates.to_vector<double>();
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  WEFT_CHECK(options.step_size > 0, InvalidArgument, "StepLR", "step_size must be positive, got ",
             options.step_size);
  start();
}

double StepLR::next_lr(std::size_t group) {
  const double lr = optimizer().lr(group);
  return last_epoch() == 0 || last_epoch() % options_.step_size != 0 ? lr : lr * options_.gamma;
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, MultiStepLROptions options)
    : LRScheduler(optimizer), options_(std::move(options)) {
  start();
}

double MultiStepLR::next_lr(std::size_t group) {
  const auto& milestones = options_.milestones;
  const auto times = std::count(milestones.begin(), milestones.end(), last_epoch());
  return optimizer().lr(group) * std::pow(options_.gamma, static_cast<double>(times));
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : LRScheduler(optimizer), options_(options) {
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
  // Where the last height was 0 the ratio says nothing: up again from the bottom.
  if ((t - 1 - period) % (2 * period) == 0) {
    return lr + (base_lr(group) - lowest) * (1 - std::cos(kPi / static_cast<double>(period))) / 2;
  }
  return height(t) / height(t - 1) * (lr - lowest) + lowest;
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : LRScheduler(optimizer), options_(options) {
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
    : LRScheduler(optimizer), options_(std::move(options)) {
  const OneCycleLROptions& o = options_;
  const std::size_t groups = optimizer.group_count();
  WEFT_CHECK(o.total_steps > 0, InvalidArgument, "OneCycleLR", "total_steps must be positive, got ",
             o.total_steps);
  WEFT_CHECK(o.pct_start >= 0 && o.pct_start <= 1, InvalidArgument, "OneCycleLR",
             "pct_start must be in [0, 1], got ", o.pct_start);
  WEFT_CHECK(o.max_lr.size() == 1 || o.max_lr.size() == groups, InvalidArgument, "OneCycleLR",
             "max_lr: got ", o.max_lr.size(), " rates for ", groups, " groups");
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
