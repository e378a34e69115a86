// ReduceLROnPlateau: a lower learning rate when a metric stops improving.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/optim/lr_scheduler.h"

namespace weft::optim {

enum class PlateauMode { min, max };       ///< whether the metric is to fall or to rise
enum class PlateauThreshold { rel, abs };  ///< a fraction of the best metric, or an amount

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;
  std::int64_t patience = 10;  ///< steps without improvement that are let pass
  double threshold = 1e-4;     ///< improvements up to this count as none
  PlateauThreshold threshold_mode = PlateauThreshold::rel;
  std::int64_t cooldown = 0;         ///< steps after a reduction whose metrics count neither way
  std::vector<double> min_lr = {0};  ///< one for all groups, or one each
  double eps = 1e-8;                 ///< reductions up to this are left out
};

/// torch.optim.lr_scheduler.ReduceLROnPlateau: after more than `patience` steps without a metric
/// better than the best one so far, all rates times factor, but not below min_lr. A metric that is
/// NaN is no better one.
///   for (...) { train(); scheduler.step(test_loss); }
class ReduceLROnPlateau final : public LRScheduler {
 public:
  /// Throws InvalidArgument for a factor outside [0, 1), negative patience or cooldown, and another
  /// number of min_lr.
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});

  void step(double metric);

 private:
  /// Throws InvalidArgument: there is no metric.
  void step() override;
  void update() override;
  std::vector<Entry> state() override;
  bool is_better(double metric) const;

  ReduceLROnPlateauOptions options_;
  double best_;
  std::int64_t cooldown_counter_ = 0;  // steps of it that are left
  std::int64_t num_bad_epochs_ = 0;
};

}  // namespace weft::optim
