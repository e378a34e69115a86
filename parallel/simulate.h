// When the actions of a schedule would run, given their costs.
#pragma once

#include <string>
#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::parallel {

/// Seconds per micro-batch, by stage. B takes backward_input + backward_weight, R a forward.
struct StageCosts {
  std::vector<double> forward{};
  std::vector<double> backward_input{};
  std::vector<double> backward_weight{};
  /// The time from the end of an action until another device can use its result. Neither device is
  /// busy meanwhile, and transfers do not slow each other down.
  double transfer = 0;
  /// By stage: how long a message from it to the next stage, on another device, occupies the link
  /// between them, and as long for a message back. Messages in one direction go one after the
  /// other. Empty: no time.
  std::vector<double> link{};
  /// By device: the time at which it may begin. Empty: 0.
  std::vector<double> begin{};
  /// By micro-batch: its costs in each stage, in place of the first three lists. Empty: these
  /// lists.
  struct MicroBatch {
    std::vector<double> forward{}, backward_input{}, backward_weight{};
  };
  std::vector<MicroBatch> micro_batches{};
};

/// The same costs for every stage. Throws InvalidArgument unless there are 1 to kMostStages.
StageCosts equal_costs(int stages, double forward, double backward_input, double backward_weight,
                       double transfer = 0);

/// A send lasts from its call to the arrival of the data, a receive takes no time.
struct TimedAction {
  Action action;
  int device = 0;
  double begin = 0;  ///< seconds
  double end = 0;
};

struct Timeline {
  std::vector<TimedAction> actions;  ///< in order per device; each after those it needs
  double end = 0;
  std::vector<double> busy;  ///< seconds, by device

  /// The idle share of all devices until the end: 1 - sum(busy) / (n end).
  double bubble() const;
};

/// Runs each action as soon as its device and the results it needs are ready. Throws
/// InvalidArgument for a schedule that check() refuses, and for costs that are negative, not
/// finite, or not one per stage or device.
Timeline simulate(const Schedule& schedule, const StageCosts& costs);

/// A row per device, two characters per `unit` seconds: an action's letter and the last digit of
/// its micro-batch (0-9, a-z, from the start again), then -- while it lasts; " ." is idle. Sends
/// and receives are not drawn. What does not fit into `columns` is cut off, and a last line says
/// so. Throws InvalidArgument for a unit that is not positive, and for an action on a device that
/// the timeline does not have.
std::string draw(const Timeline& timeline, double unit = 1, int columns = 80);

}  // namespace weft::parallel
