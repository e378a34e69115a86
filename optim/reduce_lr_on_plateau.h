// ReduceLROnPlateau: a lower learning rate when a metric stops improving.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/optim/lr_scheduler.h"

namespace weft::optim {

enum class PlateauMode { min, max };       ///< whether a lower or a higher metric is better
enum class PlateauThreshold { rel, abs };  ///< fraction of the best metric, or amount

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;
  std::int64_t patience = 10;  ///< steps in a row that may pass without improvement
  double threshold = 1e-4;     ///< an improvement must be larger
  PlateauThreshold threshold_mode = PlateauThreshold::rel;
  std::int64_t cooldown = 0;         ///< steps after a reduction in which bad metrics do not count
  std::vector<double> min_lr = {0};  ///< one for all groups, or one for each
  double eps = 1e-8;                 ///< a reduction must be larger
};

/// torch.optim.lr_scheduler.ReduceLROnPlateau: after more than `patience` steps in a row without a
/// metric better than the best one so far, multiplies all rates by factor, but not below min_lr. A
/// NaN metric never counts as better.
///   for (...) { train(); scheduler.step(test_loss); }
class ReduceLROnPlateau final : public LRScheduler {
 public:
  /// Throws InvalidArgument for a factor outside [0, 1), for a negative patience or cooldown, and
  /// for a number of min_lr that is neither 1 nor the number of groups.
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});

  /// Goes to the next step; `metric` belongs to the last one.
  void step(double metric);

 private:
  /// Throws InvalidArgument: a step needs the metric.
  void step() override;
  void update() override;
  std::vector<Entry> state() override;
  bool is_better(double metric) const;

  ReduceLROnPlateauOptions options_;
  double best_;
  std::int64_t cooldown_counter_ = 0;  // steps of the cooldown that are left
  std::int64_t num_bad_epochs_ = 0;
};

}  // namespace weft::optim
