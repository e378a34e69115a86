#include "weft/tools/simulate/memory_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "weft/parallel/scatter_gather.h"
#include "weft/parallel/zero.h"
#include "weft/tools/simulate/cost_terms.h"

namespace weft::simulator {
namespace {

constexpr double kSmallBytes = 1 << 16;  // below, ZeRO-1 sends parameters together

// A tensor's memory as the allocator counts it.
double held(double bytes) { return std::ceil(bytes / 512) * 512; }

// One parameter, of which a rank may have a part.
struct Parameter {
  std::size_t layer;
  double bytes, rows;
  bool is_cut;
  // The bytes of the largest of n parts along dimension 0. fully_shard pads all parts to this size.
  double part(int n) const { return std::ceil(rows / n) * (bytes / rows); }
};

std::vector<Parameter> parameters_of(const Costs& costs) {
  std::vector<Parameter> all;
  for (std::size_t l = 0; l < costs.layers.size(); ++l) {
    const LayerCost& layer = costs.layers[l];
    for (std::size_t i = 0; i < layer.parameter_bytes.size(); ++i) {
      all.push_back({l, layer.parameter_bytes[i],
                     i < layer.parameter_rows.size() ? layer.parameter_rows[i] : 1,
                     i < layer.parameter_is_cut.size() && layer.parameter_is_cut[i]});
    }
  }
  return all;
}

double held_by(const std::vector<Parameter>& parameters) {
  double sum = 0;
  for (const Parameter& p : parameters) sum += held(p.bytes);
  return sum;
}

// What is held at one moment: the peak is the sum.
MemoryUse use(double parameters, double optimizer, double gradients, double whole, double messages,
              double activations) {
  return {parameters + optimizer + gradients + whole + messages + activations,
          {{"parameters", parameters},
           {"optimizer", optimizer},
           {"gradients", gradients},
           {"whole parameters", whole},
           {"communication", messages},
           {"activations", activations}}};
}

// The bytes of the buckets, which DistributedDataParallel keeps.
double buckets(const Costs& costs) {
  double sum = 0;
  const Exposed plan = exposed_all_reduce(costs.layers, std::vector<double>(costs.layers.size()),
                                          costs.all_reduce, true);
  for (const double bytes : plan.bucket_bytes) sum += held(bytes);
  return sum;
}

MemoryUse of_zero1(const Costs& costs, double rows) {
  const std::vector<Parameter> all = parameters_of(costs);
  std::vector<std::vector<std::int64_t>> bytes(1);
  for (const Parameter& p : all) bytes[0].push_back(static_cast<std::int64_t>(p.bytes));
  const std::vector<int> owners = parallel::deal_out(bytes, costs.devices)[0];
  std::vector<double> states(static_cast<std::size_t>(costs.devices)), together(states.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto owner = static_cast<std::size_t>(owners[i]);
    states[owner] += costs.state_copies * held(all[i].bytes);
    if (all[i].bytes < kSmallBytes) together[owner] += std::ceil(all[i].bytes / 64) * 64;
  }
  double messages = 0;
  for (const double each : together) messages += held(each);
  return use(held_by(all), std::ranges::max(states), buckets(costs), 0, messages,
             costs.further_bytes.at(rows));
}

double kept_by_all(const Costs& costs, double rows) {
  double kept = 0;
  for (const LayerCost& layer : costs.layers) kept += layer.kept.at(rows);
  return kept;
}

double largest_of(const Costs& costs) {
  double largest = 0;
  for (const Parameter& p : parameters_of(costs)) largest = std::max(largest, held(p.bytes));
  return largest;
}

// Walks through the step's schedule and counts what is held at each moment.
class FullyShardWalk {
 public:
  FullyShardWalk(const Costs& costs, double rows, bool reshard)
      : step_(fully_shard_step(costs, reshard)),
        // What a backward needs besides what is kept, without the gradient that it adds to another
        // one.
        passing_(std::max(
            0.0, costs.further_bytes.at(rows) - kept_by_all(costs, rows) - largest_of(costs))) {
    const int n = costs.devices;
    units_.resize(static_cast<std::size_t>(step_.schedule.units));
    kept_.resize(static_cast<std::size_t>(step_.visits));
    gradients_.resize(kept_.size());
    for (std::size_t l = 0; l < costs.layers.size(); ++l) {
      kept_[step_.visit_of_layer[l]] += costs.layers[l].kept.at(rows);
    }
    for (const Parameter& p : parameters_of(costs)) {
      Unit& unit = units_[static_cast<std::size_t>(step_.unit_of_layer[p.layer])];
      unit.chunk += p.part(n);
      unit.whole += held(p.bytes);
      states_ += costs.state_copies * held(p.part(n));
      gradients_[step_.visit_of_layer[p.layer]] += held(p.bytes);
    }
    for (Unit& unit : units_) {
      if (unit.chunk == 0) continue;  // no parameters, no messages
      parameters_ += held(unit.chunk);
      unit.part = held(unit.chunk);
      unit.gather = held(n * unit.chunk);
      unit.reduce = held(n * unit.chunk);
    }
  }

  MemoryUse peak() {
    using Kind = parallel::StepAction::Kind;
    using Phase = parallel::StepAction::Phase;
    for (const auto& [action, rank, visit, message] : parallel::check(step_.schedule).order) {
      if (rank != 0) continue;
      const Unit& unit = units_[static_cast<std::size_t>(action.unit)];
      const bool starts = action.phase == Phase::start;
      switch (action.kind) {
        case Kind::unshard:
          (starts ? messages_ : whole_) += starts ? unit.gather : unit.whole;
          look();
          if (!starts) messages_ -= unit.gather;
          break;
        case Kind::reshard: whole_ -= unit.whole; break;
        case Kind::forward:
          activations_ += kept_[static_cast<std::size_t>(visit)];
          look();
          break;
        case Kind::backward:
          of_backward_ += gradients_[static_cast<std::size_t>(visit)];
          activations_ += passing_;
          look();
          activations_ -= passing_ + kept_[static_cast<std::size_t>(visit)];
          break;
        case Kind::reduce:
          messages_ += starts ? unit.reduce : -unit.reduce;
          look();
          if (starts) of_backward_ += unit.part - unit.whole;
          break;
        default: break;
      }
    }
    return peak_;
  }

 private:
  struct Unit {
    double chunk = 0, whole = 0, part = 0, gather = 0, reduce = 0;
  };
  void look() {
    const MemoryUse now = use(parameters_, states_, of_backward_, whole_, messages_, activations_);
    if (peak_.most.empty()) peak_ = now;
    peak_.peak = std::max(peak_.peak, now.peak);
    for (std::size_t i = 0; i < now.most.size(); ++i) {
      peak_.most[i].second = std::max(peak_.most[i].second, now.most[i].second);
    }
  }

  const FullyShardStep step_;
  const double passing_;
  std::vector<Unit> units_;
  std::vector<double> kept_, gradients_;  // one for each visit
  double parameters_ = 0, states_ = 0;
  double whole_ = 0, messages_ = 0, activations_ = 0, of_backward_ = 0;
  MemoryUse peak_;
};

// What a device keeps for a layer's backward is cut with the layer, except between the cut pairs:
// of the 16 numbers per token and column that a block keeps, the inputs of both pairs and of their
// normalisations stay whole (Korthikanti et al. 2022, table 2).
MemoryUse of_tensor_parallel(const Costs& costs, double rows) {
  constexpr double kWhole = 4.0 / 16;
  double parameters = 0, kept = 0, cut = 0;
  for (const Parameter& p : parameters_of(costs)) {
    parameters += held(p.is_cut ? p.part(costs.devices) : p.bytes);
  }
  for (const LayerCost& layer : costs.layers) {
    const bool is_cut = std::ranges::count(layer.parameter_is_cut, true) > 0;
    kept += layer.kept.at(rows);
    cut += layer.kept.at(rows) * (is_cut ? kWhole + (1 - kWhole) / costs.devices : 1);
  }
  return use(parameters, costs.state_copies * parameters, parameters, 0, 0,
             (kept > 0 ? cut / kept : 1) * costs.further_bytes.at(rows));
}

// The most bytes that the stages of a device keep at one time, if it runs these actions. A
// micro-batch holds `kept` of its stage from F to B or W. One that is recomputed holds `input` from
// F on, and `kept` from R on.
double most_kept(const std::vector<parallel::Action>& actions, const std::vector<double>& kept,
                 const std::vector<double>& input) {
  using Kind = parallel::Action::Kind;
  std::set<std::pair<int, int>> again;
  for (const auto& [kind, stage, micro_batch] : actions) {
    if (kind == Kind::recompute) again.emplace(stage, micro_batch);
  }
  double now = 0, most = 0;
  for (const auto& [kind, stage, micro_batch] : actions) {
    const auto s = static_cast<std::size_t>(stage);
    const bool recomputed = again.contains({stage, micro_batch});
    if (kind == Kind::forward) now += recomputed ? input[s] : kept[s];
    if (kind == Kind::recompute) now += kept[s];
    most = std::max(most, now);
    if (kind == Kind::backward || kind == Kind::backward_weight) {
      now -= kept[s] + (recomputed ? input[s] : 0);
    }
  }
  return most;
}

MemoryUse of_pipeline(const Costs& costs, const Way& way) {
  const auto micro_batches = static_cast<int>(
      parallel::part_sizes(way.batch, static_cast<std::size_t>(way.chunks)).size());
  const double rows = static_cast<double>(way.batch) / micro_batches;
  const int count = costs.devices * parallel::stages_per_device(way.schedule);
  const std::vector<std::size_t> ends = ends_of(costs, rows, count);
  const parallel::Schedule schedule = parallel::make_schedule(
      way.schedule, count, micro_batches, parallel::parse_recompute(way.checkpoint), costs.devices);
  const std::vector<int> device_of = parallel::check(schedule).device_of_stage;
  std::vector<double> parameters(schedule.devices.size()), kept, input;
  for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
    for (const Parameter& p : parameters_of(costs)) {
      const bool is_here = ends[s] <= p.layer && p.layer < ends[s + 1];
      if (is_here) parameters[static_cast<std::size_t>(device_of[s])] += held(p.bytes);
    }
    kept.push_back(0);
    for (std::size_t l = ends[s]; l < ends[s + 1]; ++l) kept[s] += costs.layers[l].kept.at(rows);
    input.push_back(rows * (s == 0 ? costs.input_bytes : costs.layers[ends[s] - 1].output_bytes));
  }
  const double passing = std::max(0.0, costs.further_bytes.at(rows) - kept_by_all(costs, rows));
  MemoryUse most;
  for (std::size_t d = 0; d < parameters.size(); ++d) {
    MemoryUse device = use(parameters[d], costs.state_copies * parameters[d], parameters[d], 0, 0,
                           most_kept(schedule.devices[d], kept, input) + passing);
    if (device.peak > most.peak) most = std::move(device);
  }
  return most;
}

std::string mib(double bytes) { return number(bytes / (1 << 20), "%.2f"); }

}  // namespace

MemoryUse memory_of(const Costs& costs, const Way& way) {
  if (costs.step_bytes.points.empty()) return {};
  const auto all_rows = static_cast<double>(way.batch);
  const double rows = std::ceil(all_rows / costs.devices);
  const double parameters = held_by(parameters_of(costs)), states = costs.state_copies * parameters;
  if (way.engine == "one_device") {
    return use(parameters, states, 0, 0, 0, costs.step_bytes.at(all_rows));
  }
  if (way.engine == "ddp") {
    return use(parameters, states, buckets(costs), 0, 0, costs.further_bytes.at(rows));
  }
  if (way.engine == "zero1") return of_zero1(costs, rows);
  if (way.engine == "zero2" || way.engine == "fsdp") {
    return FullyShardWalk(costs, rows, way.engine == "fsdp").peak();
  }
  if (way.engine == "tp") return of_tensor_parallel(costs, all_rows);
  if (way.engine == "pipeline") return of_pipeline(costs, way);
  return {};
}

std::string to_text(const MemoryUse& memory) {
  std::string text = mib(memory.peak) + " MiB at once";
  const char* between = "; at most ";
  for (const auto& [owner, bytes] : memory.most) {
    if (bytes == 0) continue;
    text += between + owner + ' ' + mib(bytes);
    between = ", ";
  }
  return text;
}

std::string which_fit(const std::vector<Prediction>& predictions, std::int64_t limit) {
  std::vector<std::string> fit, unknown;
  std::set<int> chunks;  // 0 of other ways
  for (const Prediction& each : predictions) chunks.insert(each.way.chunks);
  chunks.erase(0);
  for (const Prediction& each : predictions) {
    const Way& way = each.way;
    std::string name = way.engine;
    if (way.engine == "pipeline") {
      name = concat("pipeline ", way.schedule, ' ', way.checkpoint);
      if (chunks.size() > 1) name += concat(' ', way.chunks, " chunks");
    }
    std::vector<std::string>& names = each.memory.peak > 0 ? fit : unknown;
    if (each.memory.peak > static_cast<double>(limit)) continue;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  const auto listed = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "nothing" : text;
  };
  std::string text = concat("fits in ", number(static_cast<double>(limit) / (1 << 20), "%g"),
                            " MiB: ", listed(fit), '\n');
  if (!unknown.empty()) text += "memory not predicted: " + listed(unknown) + '\n';
  return text;
}

}  // namespace weft::simulator
