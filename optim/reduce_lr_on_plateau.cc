#include "weft/optim/reduce_lr_on_plateau.h"

#include <algorithm>
#include <limits>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::optim {

namespace {

constexpr const char* kOp = "ReduceLROnPlateau";

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : LRScheduler(optimizer),
      options_(std::move(options)),
      best_(options_.mode == PlateauMode::min ? std::numeric_limits<double>::infinity()
                                              : -std::numeric_limits<double>::infinity()) {
  const ReduceLROnPlateauOptions& o = options_;
  const std::size_t groups = optimizer.group_count();
  WEFT_CHECK(o.factor >= 0 && o.factor < 1, InvalidArgument, kOp, "factor must be in [0, 1), got ",
             o.factor);
  WEFT_CHECK(o.patience >= 0 && o.cooldown >= 0, InvalidArgument, kOp,
             "patience and cooldown must not be negative, got ", o.patience, " and ", o.cooldown);
  WEFT_CHECK(o.min_lr.size() == 1 || o.min_lr.size() == groups, InvalidArgument, kOp,
             "min_lr: got ", o.min_lr.size(), " rates for ", groups, " groups");
  options_.min_lr.resize(groups, o.min_lr[0]);
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double t = options_.threshold;
  const bool relative = options_.threshold_mode == PlateauThreshold::rel;
  if (options_.mode == PlateauMode::min) return metric < (relative ? best_ * (1 - t) : best_ - t);
  return metric > (relative ? best_ * (1 + t) : best_ + t);
}

void ReduceLROnPlateau::step() {
  WEFT_THROW(InvalidArgument, kOp, "a step needs the metric: step(metric)");
}

void ReduceLROnPlateau::step(double metric) {
  graph::check_not_capturing(kOp, "a replay does not run it; call it between the steps");
  const bool better = is_better(metric);
  if (better) best_ = metric;
  num_bad_epochs_ = better ? 0 : num_bad_epochs_ + 1;
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  LRScheduler::step();
}

void ReduceLROnPlateau::update() {
  if (num_bad_epochs_ <= options_.patience) return;
  cooldown_counter_ = options_.cooldown;
  num_bad_epochs_ = 0;
  for (std::size_t g = 0; g < optimizer().group_count(); ++g) {
    const double old = optimizer().lr(g);
    const double lr = std::max(old * options_.factor, options_.min_lr[g]);
    if (old - lr > options_.eps) optimizer().set_lr(g, lr);
  }
}

std::vector<LRScheduler::Entry> ReduceLROnPlateau::state() {
  std::vector<Entry> entries = LRScheduler::state();
  entries.push_back({"best", &best_});
  entries.push_back({"cooldown_counter", &cooldown_counter_});
  entries.push_back({"num_bad_epochs", &num_bad_epochs_});
  return entries;
}

}  // namespace weft::optim
