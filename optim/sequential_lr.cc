#include "weft/optim/sequential_lr.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/optim/reduce_lr_on_plateau.h"

namespace weft::optim {

namespace {

constexpr const char* kOp = "SequentialLR";

}  // namespace

SequentialLR::SequentialLR(Optimizer& optimizer, SequentialLROptions options)
    : LRScheduler(optimizer), options_(std::move(options)) {
  const auto& [schedulers, milestones] = options_;
  WEFT_CHECK(!schedulers.empty(), InvalidArgument, kOp, "got no scheduler");
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    WEFT_CHECK(schedulers[i], InvalidArgument, kOp, "scheduler ", i, " is null");
    WEFT_CHECK(!dynamic_cast<const ReduceLROnPlateau*>(schedulers[i].get()), InvalidArgument, kOp,
               "scheduler ", i, " is a ReduceLROnPlateau, whose steps need a metric");
    WEFT_CHECK(&schedulers[i]->optimizer() == &optimizer, InvalidArgument, kOp, "scheduler ", i,
               " is of another optimiser");
  }
  WEFT_CHECK(milestones.size() + 1 == schedulers.size(), InvalidArgument, kOp, "got ",
             milestones.size(), " milestones for ", schedulers.size(), " schedulers");
  WEFT_CHECK(std::ranges::is_sorted(milestones) && (milestones.empty() || milestones[0] > 0),
             InvalidArgument, kOp, "milestones must be positive and in ascending order");
  // The constructors of the schedulers have changed the rates.
  for (std::size_t g = 0; g < optimizer.group_count(); ++g) {
    optimizer.set_lr(g, optimizer.initial_lr(g));
  }
  schedulers[0]->update();
}

void SequentialLR::update() {
  const auto& [schedulers, milestones] = options_;
  const auto next = std::ranges::upper_bound(milestones, last_epoch());
  LRScheduler& scheduler = *schedulers[static_cast<std::size_t>(next - milestones.begin())];
  const bool begins = next == milestones.begin() ? last_epoch() == 0 : next[-1] == last_epoch();
  begins ? scheduler.restart() : scheduler.step();
}

std::vector<LRScheduler::Entry> SequentialLR::state() {
  std::vector<Entry> entries = LRScheduler::state();
  for (std::size_t i = 0; i < options_.schedulers.size(); ++i) {
    for (Entry& entry : options_.schedulers[i]->state()) {
      entry.name = "schedulers." + std::to_string(i) + "." + entry.name;
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace weft::optim
