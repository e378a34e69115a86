#include "weft/train/figures.h"

#include <algorithm>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"

namespace weft::train {

Figures::Figures(std::vector<EpochMetrics> epochs) : epochs_(std::move(epochs)) {
  if (!epochs_.empty()) test_ = epochs_.back().test;
}

void Figures::follow(const std::string& folder, std::int64_t first_step) {
  if (events_) return;
  events_ = std::make_unique<EventFile>(folder, first_step);
  shown_ = static_cast<std::size_t>(first_step);
}

void Figures::show(const LossRecord& losses) {
  if (!events_) return;
  const auto tag = [](const std::string& name) { return name.empty() ? "loss" : "loss/" + name; };
  for (; shown_ < losses.averaged; ++shown_) {
    const auto step = static_cast<std::int64_t>(shown_);
    events_->scalar(tag(losses.name), losses.values[shown_], step);
    for (const auto& [name, values] : losses.more) events_->scalar(tag(name), values[shown_], step);
  }
  events_->flush();
}

void Figures::show(const std::string& tag, double value, std::int64_t step) {
  if (!events_) return;
  events_->scalar(tag, value, step);
  events_->flush();
}

void Figures::end_epoch(const EpochMetrics& epoch, std::int64_t last_step) {
  epochs_.push_back(epoch);
  show("images_per_second", epoch.images_per_second, last_step);
}

void Figures::test(const std::string& name, double value, std::int64_t epoch, bool complete,
                   std::int64_t last_step) {
  // Figures of one epoch are kept together; the first figure of the next epoch replaces them.
  if (test_epoch_ != epoch) test_.clear();
  test_epoch_ = epoch;
  test_.emplace_back(name, value);
  if (complete && !epochs_.empty()) epochs_.back().test = test_;
  log_info(detail::concat(epoch < 0 ? "before training" : detail::concat("epoch ", epoch),
                          ": test ", name, ' ', value));
  show("test/" + name, value, std::max<std::int64_t>(last_step, 0));
}

}  // namespace weft::train
