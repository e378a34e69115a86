// What the models of a step's time and memory share. Private to tools/simulate/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tools/simulate/cost_model.h"

namespace weft::simulator {

using weft::detail::concat;

inline constexpr const char* kOp = "simulate";

inline std::string number(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}
inline std::string ms(double seconds) { return number(seconds * 1e3, "%.3f") + " ms"; }
inline std::string mb(double bytes) { return number(bytes / 1e6, "%.2f") + " MB"; }
inline std::string times(double factor) { return number(factor, "%.3f"); }
inline std::string rows_of(std::int64_t rows) { return concat(rows, rows == 1 ? " row" : " rows"); }

/// Costs of layers [begin, end), or of all layers, for `rows` rows.
struct Sum {
  double forward = 0, backward_input = 0, backward_weight = 0, parameter_bytes = 0;
  double backward() const { return backward_input + backward_weight; }
};
inline Sum sum_of(const Costs& costs, double rows, std::size_t begin = 0,
                  std::size_t end = SIZE_MAX) {
  Sum sum;
  for (std::size_t i = begin; i < std::min(end, costs.layers.size()); ++i) {
    const LayerCost& layer = costs.layers[i];
    sum.forward += layer.forward.at(rows);
    sum.backward_input += layer.backward_input.at(rows);
    sum.backward_weight += layer.backward_weight.at(rows);
    for (const double bytes : layer.parameter_bytes) sum.parameter_bytes += bytes;
  }
  return sum;
}

inline void check_batch(const Costs& costs, std::int64_t batch) {
  WEFT_CHECK(batch >= 1, InvalidArgument, kOp, "batch: got ", batch, ", expected 1 or more");
  WEFT_CHECK(!costs.layers.empty(), InvalidArgument, kOp, "costs of no layer");
}

/// Rows of each rank if all ranks share the batch. Throws InvalidArgument if a rank gets none.
inline std::int64_t local_rows(const Costs& costs, std::int64_t batch) {
  check_batch(costs, batch);
  WEFT_CHECK(batch >= costs.devices, InvalidArgument, kOp, "a batch of ", batch, " for ",
             costs.devices, " ranks");
  return (batch + costs.devices - 1) / costs.devices;
}

/// Seconds of the optimiser for a part of the parameters, with all devices working at once.
inline double optimizer_of(const Costs& costs, double rows, double parameter_bytes) {
  const double all = costs.parameter_bytes();
  return all > 0 ? costs.optimizer_slowdown.within(rows) * costs.optimizer.within(rows) *
                       parameter_bytes / all
                 : 0;
}

/// Cuts the layers into parts that take about the same time for `rows` rows.
inline std::vector<std::size_t> ends_of(const Costs& costs, double rows, int parts) {
  std::vector<double> seconds;
  for (std::size_t i = 0; i < costs.layers.size(); ++i) {
    const Sum layer = sum_of(costs, rows, i, i + 1);
    seconds.push_back(layer.forward + layer.backward());
  }
  return balanced_ends(seconds, parts);
}

/// The step of fully_shard, and where each layer is in it.
struct FullyShardStep {
  parallel::StepSchedule schedule;
  std::vector<int> unit_of_layer;           ///< 0: what is left of the whole model
  std::vector<std::size_t> visit_of_layer;  ///< the number of its F in the schedule
  int visits = 0;
};
FullyShardStep fully_shard_step(const Costs& costs, bool reshard);

}  // namespace weft::simulator
