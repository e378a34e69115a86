// The figures of a run's epochs and tests, and all data for TensorBoard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/train/losses.h"
#include "weft/train/metrics.h"
#include "weft/train/tensorboard.h"

namespace weft::train {

class Figures {
 public:
  /// Continues after these epochs.
  explicit Figures(std::vector<EpochMetrics> epochs = {});

  /// From now on also writes event files in the folder, unless it does so already. Throws Io.
  void follow(const std::string& folder, std::int64_t first_step);
  /// Writes the losses that are means over the ranks to the event file; does nothing without one.
  void show(const LossRecord& losses);
  void end_epoch(const EpochMetrics& epoch, std::int64_t last_step);
  /// Keeps and prints a figure of a test after an epoch. If `complete`, it becomes part of the last
  /// epoch.
  void test(const std::string& name, double value, std::int64_t epoch, bool complete,
            std::int64_t last_step);

  const std::vector<EpochMetrics>& epochs() const { return epochs_; }
  const TestFigures& last_test() const { return test_; }
  /// Of this epoch; empty if the last test was after another one.
  TestFigures test_of(std::int64_t epoch) const {
    return epoch == test_epoch_ ? test_ : TestFigures();
  }

 private:
  void show(const std::string& tag, double value, std::int64_t step);

  std::vector<EpochMetrics> epochs_;
  TestFigures test_;              // the last figures
  std::int64_t test_epoch_ = -1;  // the epoch of test_
  std::unique_ptr<EventFile> events_;
  std::size_t shown_ = 0;  // the number of losses in this event file and earlier ones
};

}  // namespace weft::train
