// The time of a step of ZeRO-1, FSDP and tensor parallelism.
#include <algorithm>
#include <set>

#include "weft/parallel/step_schedule.h"
#include "weft/parallel/zero.h"
#include "weft/tools/simulate/cost_terms.h"

namespace weft::simulator {
namespace {

// A gather or a reduce-scatter is half of an all-reduce.
double half_reduce(const Costs& costs, double bytes) {
  return costs.all_reduce.latency + costs.all_reduce.transfer(bytes) / 2;
}

}  // namespace

Prediction zero1(const Costs& costs, std::int64_t batch) {
  const auto rows = static_cast<double>(local_rows(costs, batch));
  Prediction result = distributed_data_parallel(costs, batch);
  result.way.engine = "zero1";
  std::vector<std::vector<std::int64_t>> bytes(1);
  for (const LayerCost& layer : costs.layers) {
    bytes[0].insert(bytes[0].end(), layer.parameter_bytes.begin(), layer.parameter_bytes.end());
  }
  const std::vector<int> owners = parallel::deal_out(bytes, costs.devices)[0];
  std::vector<double> own(static_cast<std::size_t>(costs.devices));
  double all = 0, messages = 0;
  std::set<int> together;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const auto size = static_cast<double>(bytes[0][i]);
    own[static_cast<std::size_t>(owners[i])] += size;
    all += size;
    if (size >= 1 << 16) {
      ++messages;
    } else {
      together.insert(owners[i]);
    }
  }
  messages += static_cast<double>(together.size());
  const double most = std::ranges::max(own);
  result.terms.back() = {"optimiser", optimizer_of(costs, rows, most),
                         concat(mb(most), " of the rank that has most, x ",
                                times(costs.optimizer_slowdown.within(rows)))};
  result.terms.push_back({"broadcasts",
                          messages * costs.broadcast.latency + costs.broadcast.transfer(all),
                          concat(messages, " messages, ", mb(all), " of new parameters")});
  return result;
}

// Layers without a unit of their own belong to the one before, or to what is left of the model,
// which comes before the first unit and behind the last one.
FullyShardStep fully_shard_step(const Costs& costs, bool reshard) {
  FullyShardStep step;
  int units = 1;
  for (const LayerCost& layer : costs.layers) {
    step.unit_of_layer.push_back(layer.own_unit ? units++ : 0);
  }
  step.schedule = parallel::fsdp_step(units, costs.devices, reshard);
  step.visits = units > 1 ? units + 1 : 1;
  int visit = 0;
  for (const int unit : step.unit_of_layer) {
    if (unit > 0) {
      visit = unit;
    } else if (units > 1 && visit == units - 1) {
      visit = units;
    }
    step.visit_of_layer.push_back(static_cast<std::size_t>(visit));
  }
  return step;
}

Prediction fully_sharded(const Costs& costs, std::int64_t batch, bool reshard) {
  const std::int64_t local = local_rows(costs, batch);
  const auto rows = static_cast<double>(local);
  const double slow = costs.slowdown.within(rows);
  const FullyShardStep step = fully_shard_step(costs, reshard);
  const auto units = static_cast<std::size_t>(step.schedule.units),
             visits = static_cast<std::size_t>(step.visits);
  parallel::StepCosts times_of{.forward = std::vector<double>(visits),
                               .backward = std::vector<double>(visits),
                               .unshard = std::vector<double>(units),
                               .reduce = std::vector<double>(units)};
  std::vector<double> bytes(units);
  for (std::size_t i = 0; i < costs.layers.size(); ++i) {
    const Sum layer = sum_of(costs, rows, i, i + 1);
    times_of.forward[step.visit_of_layer[i]] += slow * layer.forward;
    times_of.backward[step.visit_of_layer[i]] += slow * layer.backward();
    bytes[static_cast<std::size_t>(step.unit_of_layer[i])] += layer.parameter_bytes;
  }
  times_of.forward.back() += slow * costs.loss.at(rows);
  double moving = 0, copying = 0, all = 0;
  for (std::size_t u = 0; u < bytes.size(); ++u) {
    all += bytes[u];
    if (bytes[u] == 0) continue;
    times_of.unshard[u] = times_of.reduce[u] = half_reduce(costs, bytes[u]);
    const int gathers = reshard && u > 0 ? 2 : 1;
    moving += (gathers + 1) * half_reduce(costs, bytes[u]);
    copying += slow * ((gathers + 1) * costs.add_per_byte + costs.scale_per_byte) * bytes[u];
  }
  const double exposed =
      costs.all_reduce_computes ? moving : parallel::simulate(step.schedule, times_of).waiting[0];
  const Sum sum = sum_of(costs, rows);
  const std::string slowed = concat(" of ", rows_of(local), ", x ", times(slow));
  return {{reshard ? "fsdp" : "zero2", batch, costs.devices},
          {{"forward", slow * sum.forward, ms(sum.forward) + slowed},
           {"loss", slow * costs.loss.at(rows), "of each rank's rows"},
           {"backward", slow * sum.backward(), ms(sum.backward()) + slowed},
           {"copies", copying, "of gathered parameters, and of gradients into messages"},
           {"messages", exposed,
            concat(reshard ? "two gathers" : "a gather", " and a reduce-scatter for each of ",
                   units - static_cast<std::size_t>(bytes[0] == 0), " units, ", mb(all),
                   costs.all_reduce_computes ? ", moved by the cores that compute"
                                             : ", what computing does not hide")},
           {"optimiser", optimizer_of(costs, rows, all / costs.devices),
            concat("of each rank's part, x ", times(costs.optimizer_slowdown.within(rows)))}}};
}

bool cuts_layers(const Costs& costs) { return !costs.cut_forward.points.empty(); }

Prediction tensor_parallel(const Costs& costs, std::int64_t batch) {
  check_batch(costs, batch);
  const auto rows = static_cast<double>(batch);
  double sums = 0, sum_bytes = 0, own = 0;
  for (const LayerCost& layer : costs.layers) {
    const int count = layer.sums_forward + layer.sums_backward;
    sums += count;
    sum_bytes += count * rows * layer.sum_bytes;
    for (std::size_t p = 0; p < layer.parameter_bytes.size(); ++p) {
      const bool cut = p < layer.parameter_is_cut.size() && layer.parameter_is_cut[p];
      own += layer.parameter_bytes[p] / (cut ? costs.devices : 1);
    }
  }
  for (const double bytes : costs.loss_sums) {
    ++sums;
    sum_bytes += rows * bytes;
  }
  const std::string measured = concat(rows_of(batch), ", as measured with all ranks at work");
  return {{"tp", batch, costs.devices},
          {{"forward and loss", costs.cut_forward.at(rows), measured},
           {"backward", costs.cut_backward.at(rows), measured},
           {"sums", sums * costs.sum.latency + costs.sum.transfer(sum_bytes),
            concat(sums, " all-reduces, ", mb(sum_bytes), ", which the layers wait for")},
           {"optimiser", optimizer_of(costs, rows, own),
            concat(mb(own), " of each rank's parts, x ",
                   times(costs.optimizer_slowdown.within(rows)))}}};
}

}  // namespace weft::simulator
