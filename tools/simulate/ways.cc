// The time of a step for each way of using several devices, and their ranking.
#include <algorithm>
#include <cstdio>

#include "weft/core/base/error.h"
#include "weft/parallel/gradient_buckets.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/parallel/simulate.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/memory_model.h"

namespace weft::simulator {
namespace {

/// Bytes per row of the output of layer `end - 1`.
double output_bytes(const Costs& costs, std::size_t end) {
  return costs.layers[end - 1].output_bytes;
}

/// The factor by which micro-batches of `rows` get slower if a device keeps `kept` of them, each
/// for one of `stages` parts of the model. They need as much memory as kept / stages micro-batches
/// of the whole model, so less of it is in the caches. The factor is the time per row of such a
/// large batch, divided by the time per row of `rows`.
double kept_slowdown(const Costs& costs, double rows, int kept, int stages) {
  const double as_many = rows * kept / stages;
  if (as_many <= rows) return 1;
  const Sum few = sum_of(costs, rows), many = sum_of(costs, as_many);
  return std::max(
      1.0, (many.forward + many.backward()) / as_many / ((few.forward + few.backward()) / rows));
}

std::string sizes_of(const std::vector<std::size_t>& ends) {
  std::string text;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    text += concat(i > 1 ? " | " : "", ends[i] - ends[i - 1]);
  }
  return text + " layers";
}

}  // namespace

Prediction one_device(const Costs& costs, std::int64_t batch) {
  check_batch(costs, batch);
  const auto rows = static_cast<double>(batch);
  const Sum sum = sum_of(costs, rows);
  const auto each = [&](double seconds) {
    return concat(rows_of(batch), " x ", ms(seconds / rows));
  };
  return {
      {"one_device", batch, 1},
      {{"forward", sum.forward, each(sum.forward)},
       {"loss", costs.loss.at(rows), "forward and backward"},
       {"backward", sum.backward(), each(sum.backward())},
       {"optimiser", costs.optimizer.within(rows), mb(sum.parameter_bytes) + " of parameters"}}};
}

Prediction undivided(const Costs& costs, std::int64_t batch) {
  check_batch(costs, batch);
  return {{"undivided", batch, costs.devices},
          {{"step", costs.undivided.at(static_cast<double>(batch)),
            "measured in one piece, for other numbers of rows"}}};
}

Prediction data_parallel(const Costs& costs, std::int64_t batch) {
  check_batch(costs, batch);
  const auto sizes = parallel::part_sizes(batch, static_cast<std::size_t>(costs.devices));
  Prediction result = one_device(costs, batch);
  result.way = {"data_parallel", batch, costs.devices};
  if (sizes.size() == 1) return result;  // the module itself is called
  const auto rows = static_cast<double>(batch), part = static_cast<double>(sizes[0]);
  const auto others = static_cast<double>(sizes.size() - 1);
  const Sum sum = sum_of(costs, part);
  const double slow = costs.slowdown.within(part), bytes = sum.parameter_bytes;
  const double out = output_bytes(costs, costs.layers.size());
  const std::string slowed =
      concat(" of ", rows_of(sizes[0]), ", x ", times(slow), " beside the others");
  result.terms = {
      {"scatter",
       others * costs.copy.latency + costs.copy.transfer((rows - part) * costs.input_bytes),
       concat(mb((rows - part) * costs.input_bytes), " to the other devices")},
      {"replicate", costs.handoff + costs.copy.seconds(bytes),
       concat(mb(bytes), " of parameters to each device")},
      {"parallel_apply", costs.handoff + slow * sum.forward, ms(sum.forward) + slowed},
      {"gather", costs.copy.seconds(rows * out), mb(rows * out) + " of outputs"},
      {"loss", costs.loss.at(rows), "of the whole batch, on the first device"},
      {"scatter gradients", costs.copy.seconds(rows * out), mb(rows * out)},
      {"backward", costs.handoff + slow * sum.backward(), ms(sum.backward()) + slowed},
      {"reduce", others * (costs.copy.seconds(bytes) + costs.add_per_byte * bytes),
       concat(others, " x ", mb(bytes), " copied and added")},
      {"optimiser", costs.optimizer.within(rows), "all parameters, on the first device"}};
  return result;
}

Exposed exposed_all_reduce(const std::vector<LayerCost>& layers,
                           const std::vector<double>& backward, const Link& all_reduce,
                           bool all_reduce_computes) {
  // Gradients in the order in which backward makes them; DDP's buckets have this order from the
  // second step on.
  std::vector<parallel::GradientSize> gradients;
  std::vector<std::size_t> layer_of, order;
  for (std::size_t i = layers.size(); i-- > 0;) {
    for (const double bytes : layers[i].parameter_bytes) {
      order.push_back(gradients.size());
      gradients.push_back({.bytes = static_cast<std::int64_t>(bytes)});
      layer_of.push_back(i);
    }
  }
  const std::int64_t limits[] = {parallel::kFirstBucketBytes, parallel::kDefaultBucketMb << 20};
  const parallel::BucketPlan plan = parallel::plan_buckets(gradients, limits, order);
  // The first bucket has the last unit of DDP's step. Unit 0 has no gradients: it is what backward
  // computes behind the last bucket.
  const std::vector<double> zeros(plan.size() + 1);
  parallel::StepCosts times_of{.forward = zeros, .backward = zeros, .reduce = zeros};
  Exposed result;
  std::size_t layer = layers.size();
  for (std::size_t b = 0; b < plan.size(); ++b) {
    const std::size_t unit = plan.size() - b;
    while (layer > layer_of[plan[b].back()]) times_of.backward[unit] += backward[--layer];
    double bytes = 0;
    for (const std::size_t member : plan[b]) bytes += static_cast<double>(gradients[member].bytes);
    times_of.reduce[unit] = all_reduce.seconds(bytes);
    result.seconds += times_of.reduce[unit];
    result.bucket_bytes.push_back(bytes);
  }
  while (layer > 0) times_of.backward[0] += backward[--layer];
  if (all_reduce_computes) return result;  // nothing runs beside it
  const parallel::StepSchedule step = parallel::ddp_step(static_cast<int>(zeros.size()), 1);
  result.seconds = parallel::simulate(step, times_of).waiting[0];
  return result;
}

Prediction distributed_data_parallel(const Costs& costs, std::int64_t batch) {
  const std::int64_t local = local_rows(costs, batch);
  const auto rows = static_cast<double>(local);
  const Sum sum = sum_of(costs, rows);
  const double slow = costs.slowdown.within(rows), bytes = sum.parameter_bytes;
  const std::string slowed = concat(" of ", rows_of(local), ", x ", times(slow));
  std::vector<double> backward;
  for (std::size_t i = 0; i < costs.layers.size(); ++i) {
    backward.push_back(slow * sum_of(costs, rows, i, i + 1).backward());
  }
  const Exposed exposed =
      exposed_all_reduce(costs.layers, backward, costs.all_reduce, costs.all_reduce_computes);
  std::string buckets;
  for (const double each : exposed.bucket_bytes)
    buckets += (buckets.empty() ? "" : " + ") + mb(each);
  return {
      {"ddp", batch, costs.devices},
      {{"forward", slow * sum.forward, ms(sum.forward) + slowed},
       {"loss", slow * costs.loss.at(rows), "of each rank's rows"},
       {"backward", slow * sum.backward(), ms(sum.backward()) + slowed},
       {"into buckets", slow * (costs.add_per_byte + costs.scale_per_byte) * bytes,
        mb(bytes) + " copied and divided"},
       {"all-reduce", exposed.seconds,
        concat("buckets of ", buckets,
               costs.all_reduce_computes ? ", moved by the cores that compute"
                                         : ", what backward does not hide")},
       {"optimiser", optimizer_of(costs, rows, bytes),
        concat("all parameters on every rank, x ", times(costs.optimizer_slowdown.within(rows)))}}};
}

Prediction model_parallel(const Costs& costs, std::int64_t batch) {
  check_batch(costs, batch);
  const auto rows = static_cast<double>(batch);
  std::vector<std::size_t> ends = {0, costs.first_part, costs.layers.size()};
  if (costs.devices != 2 || costs.first_part == 0) {
    ends = ends_of(costs, rows, costs.devices);
  }
  double across = 0, dearest = 0;
  for (std::size_t part = 1; part < ends.size(); ++part) {
    if (part + 1 < ends.size()) across += output_bytes(costs, ends[part]);
    dearest = std::max(dearest, sum_of(costs, 0, ends[part - 1], ends[part]).parameter_bytes);
  }
  const auto borders = static_cast<double>(ends.size() - 2);
  const Sum sum = sum_of(costs, rows);
  const double moving = (2 * borders + 1) * costs.copy.latency +
                        costs.copy.transfer(rows * (2 * across + costs.target_bytes));
  return {{"model_parallel", batch, costs.devices},
          {{"forward", sum.forward, "one part after the other, " + sizes_of(ends)},
           {"loss", costs.loss.at(rows), "on the last device"},
           {"backward", sum.backward(), "one part after the other"},
           {"moves", moving,
            concat("2 x ", mb(rows * across), " between the parts, ", mb(rows * costs.target_bytes),
                   " of targets")},
           {"optimiser", optimizer_of(costs, rows, dearest),
            concat(mb(dearest), " of the largest part, all at once, x ",
                   times(costs.optimizer_slowdown.within(rows)))}}};
}

Prediction pipeline(const Costs& costs, std::int64_t batch, const std::string& schedule,
                    parallel::Recompute checkpoint, int chunks) {
  check_batch(costs, batch);
  WEFT_CHECK(chunks >= 1, InvalidArgument, kOp, "chunks: got ", chunks, ", expected 1 or more");
  const auto micro_batches =
      static_cast<int>(parallel::part_sizes(batch, static_cast<std::size_t>(chunks)).size());
  // The last micro-batch may be smaller; here all have the same size.
  const double rows = static_cast<double>(batch) / micro_batches;
  const int count = costs.devices * parallel::stages_per_device(schedule);
  const std::vector<std::size_t> ends = ends_of(costs, rows, count);
  const parallel::Schedule actions =
      parallel::make_schedule(schedule, count, micro_batches, checkpoint, costs.devices);
  const parallel::ScheduleCheck checked = parallel::check(actions);
  const auto device_of = [&](std::size_t stage) {
    return static_cast<std::size_t>(checked.device_of_stage[stage]);
  };
  // Average over the micro-batches of a step, while all devices compute.
  const auto slowdown = [&](const Curve& further) {
    return (costs.slowdown.within(rows) + (micro_batches - 1) * further.within(rows)) /
           micro_batches;
  };
  const double slow_forward = slowdown(costs.further_forward),
               slow_backward = slowdown(costs.further_backward);
  parallel::StageCosts stages{.transfer = costs.copy.latency};
  std::string forward, backward, factors;
  std::vector<double> parameters(static_cast<std::size_t>(costs.devices));
  for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
    const bool last = s + 2 == ends.size();
    const std::size_t here = device_of(s);
    const double slow = kept_slowdown(costs, rows, checked.peak_device_activations[here], count);
    const Sum sum = sum_of(costs, rows, ends[s], ends[s + 1]);
    // The device that made the data copies it. The targets come from the first device.
    const auto moved = [&](std::size_t other, double bytes) {
      return other == here ? 0 : costs.copy.transfer(rows * bytes);
    };
    // Half of the loss counts as forward, half as backward; only the last stage has it.
    const double loss = last ? costs.loss.at(rows) / 2 : 0;
    stages.forward.push_back(slow * slow_forward *
                             (sum.forward + loss +
                              (last ? moved(0, costs.target_bytes)
                                    : moved(device_of(s + 1), output_bytes(costs, ends[s + 1])))));
    stages.backward_input.push_back(
        slow * slow_backward *
        (sum.backward_input + loss +
         (s > 0 ? moved(device_of(s - 1), output_bytes(costs, ends[s])) : 0)));
    stages.backward_weight.push_back(slow * slow_backward * sum.backward_weight);
    parameters[here] += sum.parameter_bytes;
    factors +=
        concat(s ? " | " : "", times(slow * slow_forward), " and ", times(slow * slow_backward));
    forward += (s ? " | " : "") + number(stages.forward[s] * 1e3, "%.3f");
    backward += (s ? " | " : "") +
                number((stages.backward_input[s] + stages.backward_weight[s]) * 1e3, "%.3f");
  }
  const double dearest = std::ranges::max(parameters);
  const parallel::Timeline timeline = parallel::simulate(actions, stages);
  return {{"pipeline", batch, costs.devices, schedule, parallel::to_string(checkpoint), chunks},
          {{"schedule", timeline.end,
            concat(micro_batches, " micro-batches of ", number(rows, "%g"), ", ", sizes_of(ends),
                   "; forward ", forward, " ms, backward ", backward, " ms, x ", factors,
                   " included; bubble ", number(100 * timeline.bubble(), "%.1f"), " %")},
           {"optimiser", optimizer_of(costs, static_cast<double>(batch), dearest),
            concat(mb(dearest), " of the device that has most, all at once, x ",
                   times(costs.optimizer_slowdown.within(static_cast<double>(batch))))}}};
}

namespace {

// A V needs two stages per device, and DualPipeV two micro-batches per device.
bool has_schedule(const Costs& costs, std::int64_t batch, const std::string& name, int chunks) {
  const auto devices = static_cast<std::size_t>(costs.devices);
  const auto each = static_cast<std::size_t>(parallel::stages_per_device(name));
  return costs.layers.size() >= devices * each &&
         (name != "dualpipev" ||
          parallel::part_sizes(batch, static_cast<std::size_t>(chunks)).size() >= 2 * devices);
}

}  // namespace

std::vector<Prediction> ranking(const Costs& costs, std::int64_t batch,
                                const std::vector<int>& chunks) {
  std::vector<Prediction> all = {one_device(costs, batch)};
  const auto devices = static_cast<std::size_t>(costs.devices);
  if (costs.devices > 1) {
    if (!costs.undivided.points.empty()) all.push_back(undivided(costs, batch));
    all.push_back(data_parallel(costs, batch));
    if (batch >= costs.devices) {
      all.push_back(distributed_data_parallel(costs, batch));
      all.push_back(zero1(costs, batch));
      all.push_back(fully_sharded(costs, batch, false));
      all.push_back(fully_sharded(costs, batch, true));
    }
    if (cuts_layers(costs)) all.push_back(tensor_parallel(costs, batch));
    if (costs.layers.size() >= devices) {
      all.push_back(model_parallel(costs, batch));
      for (const int m : chunks) {
        for (const std::string name : {"gpipe", "1f1b", "zb-h1", "zb-v", "dualpipev"}) {
          if (!has_schedule(costs, batch, name, m)) continue;
          using enum parallel::Recompute;
          for (const parallel::Recompute checkpoint : {never, except_last, always}) {
            all.push_back(pipeline(costs, batch, name, checkpoint, m));
          }
        }
      }
    }
  }
  for (Prediction& each : all) each.memory = memory_of(costs, each.way);
  std::ranges::sort(all, {}, &Prediction::seconds);
  return all;
}

std::string to_text(const Costs& costs, const std::vector<Prediction>& ranked, std::int64_t limit) {
  if (ranked.empty()) return {};
  double single = 0;
  for (const Prediction& each : ranked) {
    if (each.way.engine == "one_device") single = each.seconds();
  }
  std::string text = concat(costs.program, ", batch ", ranked[0].way.batch, " on ", costs.devices,
                            " devices: a step as predicted, fastest first\n");
  int place = 0;
  for (const Prediction& each : ranked) {
    char line[160];
    const std::string name =
        each.way.engine == "one_device" ? "one_device: stay on one device" : to_string(each.way);
    std::snprintf(line, sizeof line, "%3d. %-48s %10.3f ms %7.2fx one device\n", ++place,
                  name.c_str(), each.seconds() * 1e3, single / each.seconds());
    text += line;
    for (const Term& term : each.terms) {
      std::snprintf(line, sizeof line, "     %12.3f ms  %-18s", term.seconds * 1e3,
                    term.name.c_str());
      text += line + term.how + '\n';
    }
    if (each.memory.peak > 0)
      text += "                      memory: " + to_text(each.memory) + '\n';
  }
  return limit > 0 ? text + which_fit(ranked, limit) : text;
}

}  // namespace weft::simulator
