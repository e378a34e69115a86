#include "weft/tools/simulate/measure.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/comm/store/store.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/vocab_loss.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tools/simulate/clock.h"
#include "weft/tools/simulate/layer_times.h"

namespace weft::simulator {
namespace {

constexpr int kRounds = 5;
constexpr int kMicroBatches = 4;    // in a step of a part
constexpr std::int64_t kFew = 256;  // floats in a small message

double bytes_of(const Tensor& x) {
  return static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype()));
}

/// Runs f() on the worker of a device.
void on_device(Device device, const std::function<void()>& f) {
  JobGroup jobs;
  jobs.submit(device, [&f] { f(); });
  jobs.wait();
}

/// Runs f(i) on the worker of each device, all at once.
void on_devices(int devices, const std::function<void(int)>& f) {
  JobGroup jobs;
  for (int i = 0; i < devices; ++i) {
    jobs.submit(Device(DeviceType::cpu, i), [&f, i] { f(i); });
  }
  jobs.wait();
}

/// Runs f() at least once, and again until `seconds` have passed.
template <class F>
void repeat(double seconds, const F& f) {
  const Stopwatch watch;
  do {
    f();
  } while (watch.seconds() < seconds);
}

/// The median over steps of the time of the slowest device in a step.
template <class TimeOf>
double slowest(const std::vector<StepTimes>& devices, const TimeOf& time_of) {
  std::size_t steps = devices[0].forward.size();
  for (const StepTimes& each : devices) steps = std::min(steps, each.forward.size());
  Times times(steps, 0);
  for (std::size_t step = 0; step < steps; ++step) {
    for (const StepTimes& each : devices) {
      times[step] = std::max(times[step], time_of(each, step));
    }
  }
  return median(std::move(times));
}

/// Runs f(group) as ranks that talk through shared memory, as those of one host do; here they are
/// threads.
void run_shm_ranks(int ranks, const std::function<void(comm::ProcessGroup& group)>& f) {
  comm::run_ranks(ranks, [&](comm::ProcessGroup& threads) {
    comm::ProcessGroup group(comm::shm_backend(),
                             std::make_shared<comm::PrefixStore>("shm", threads.store()),
                             threads.rank(), ranks);
    f(group);
  });
}

/// Training steps with one number of rows: on the first device alone, on the first device with all
/// cores, on all devices at once, and with a part of the model on each device.
class Steps {
 public:
  Steps(std::vector<StepOf>& models, std::int64_t rows) : models_(models) {
    for (const StepOf& model : models) batches_.push_back(model.batch(rows));
  }
  /// Sets the parts of the model, one per device, for the last of these ways.
  void set_parts(std::vector<StepOf>& parts, std::int64_t rows) {
    parts_ = &parts;
    inputs_.clear();
    for (const StepOf& part : parts) inputs_.push_back(part.batch(rows));
  }
  /// Runs each way for `seconds`.
  void run(double seconds) {
    StepTimes alone, with_all_cores;
    repeat(seconds, [&] { models_[0].run(batches_[0], alone); });
    set_num_threads(static_cast<int>(models_.size()));
    repeat(seconds, [&] {
      // Measured by the clock: a team is as fast as its slowest thread.
      undivided_.push_back(seconds_of([&] { models_[0].run(batches_[0], with_all_cores); }));
    });
    set_num_threads(1);
    std::vector<StepTimes> together(models_.size());
    on_devices(static_cast<int>(models_.size()), [&](int device) {
      const auto i = static_cast<std::size_t>(device);
      repeat(seconds, [&] { models_[i].run(batches_[i], together[i]); });
    });
    if (parts_) run_parts(seconds, alone);
    for (const auto what : {&StepTimes::forward, &StepTimes::backward, &StepTimes::optimizer}) {
      append(alone_.*what, alone.*what);
    }
    const auto computing = [](const StepTimes& times, std::size_t step) {
      return times.forward[step] + times.backward[step];
    };
    const auto updating = [](const StepTimes& times, std::size_t step) {
      return times.optimizer[step];
    };
    compute_.push_back(slowest(together, computing) / slowest({alone}, computing));
    optimizer_.push_back(slowest(together, updating) / slowest({alone}, updating));
  }
  void forget() {
    for (Times* times :
         {&undivided_, &compute_, &optimizer_, &further_forward_, &further_backward_}) {
      times->clear();
    }
    alone_ = {};
  }

  /// The time of a whole step on the first device with all cores.
  double undivided() const { return median(undivided_); }
  double alone(Times StepTimes::* what) const { return median(alone_.*what); }
  /// The time of the slowest of all devices at once, for which the others wait, divided by the time
  /// of one device alone; for forward plus backward, and for the optimiser. The median of the
  /// rounds' ratios, because a machine's speed may change between two rounds. Noise may make a
  /// ratio smaller than 1, but no device gets faster because others work, so it is at least 1.
  double slowdown() const { return std::max(1.0, median(compute_)); }
  double optimizer_slowdown() const { return std::max(1.0, median(optimizer_)); }
  /// The time of the parts, all at once, divided by the time of all layers on one device alone, for
  /// the second and later micro-batches of a step.
  double further_forward() const { return median(further_forward_); }
  double further_backward() const { return median(further_backward_); }

 private:
  void run_parts(double seconds, const StepTimes& alone) {
    std::vector<StepTimes> parts(parts_->size());
    on_devices(static_cast<int>(parts.size()), [&](int device) {
      const auto i = static_cast<std::size_t>(device);
      repeat(seconds, [&] { (*parts_)[i].run(inputs_[i], parts[i], kMicroBatches); });
    });
    double forward = 0, backward = 0;
    for (const StepTimes& each : parts) {
      forward += median(each.further_forward);
      backward += median(each.further_backward);
    }
    further_forward_.push_back(forward / median(alone.forward));
    further_backward_.push_back(backward / median(alone.backward));
  }
  static void append(Times& to, const Times& times) {
    to.insert(to.end(), times.begin(), times.end());
  }

  std::vector<StepOf>& models_;
  std::vector<std::pair<Tensor, Tensor>> batches_;  // per device
  std::vector<StepOf>* parts_ = nullptr;
  std::vector<std::pair<Tensor, Tensor>> inputs_;  // per part
  StepTimes alone_;
  Times undivided_;
  Times compute_, optimizer_, further_forward_, further_backward_;  // ratios, one per round
};

/// Steps of tensor parallelism for each number of rows, on all ranks at once. A rank that waits for
/// others or for a sum sleeps, and only computing is timed.
void measure_cut_steps(const Program& program, double seconds, Costs& costs) {
  std::vector<std::pair<Tensor, Tensor>> batches;
  for (const std::int64_t rows : program.sizes) batches.push_back(program.batch(rows));
  const auto ranks = static_cast<std::size_t>(costs.devices);
  std::vector<std::vector<StepTimes>> times(batches.size(), std::vector<StepTimes>(ranks));
  run_shm_ranks(costs.devices, [&](comm::ProcessGroup& group) {
    nn::Sequential model = nn::replicate(program.layers, thread_state().device);
    const auto tp = parallel::parallelize(model, group, program.plan);
    const auto optimizer = program.make_optimizer(model.parameters());
    for (std::size_t s = 0; s < batches.size(); ++s) {
      const auto& [x, target] = batches[s];
      StepTimes& into = times[s][static_cast<std::size_t>(group.rank())];
      // All ranks take as many steps; the first ones choose kernels and compare what they got.
      const double one = one_device(costs, program.sizes[s]).seconds();
      const int steps = std::max(3, static_cast<int>(seconds / one));
      for (int i = -3; i < steps; ++i) {
        if (i == 0) into = {};
        optimizer->zero_grad();
        Tensor loss;
        into.forward.push_back(computing_seconds_of([&] {
          loss = parallel::cross_entropy(tp.ranks(), model(x).flatten(0, 1), target.flatten(),
                                         program.characters);
        }));
        into.backward.push_back(computing_seconds_of([&] { loss.backward(); }));
        optimizer->step();
      }
    }
  });
  for (std::size_t s = 0; s < batches.size(); ++s) {
    const auto put = [&](Curve& curve, Times StepTimes::* what) {
      curve.points.emplace_back(static_cast<double>(program.sizes[s]),
                                slowest(times[s], [&](const StepTimes& each, std::size_t step) {
                                  return (each.*what)[step];
                                }));
    };
    put(costs.cut_forward, &StepTimes::forward);
    put(costs.cut_backward, &StepTimes::backward);
  }
}

/// Copies, sums and messages: small ones, and ones as large as all parameters.
class Links {
 public:
  Links(int devices, std::int64_t floats)
      : devices_(devices), many_(std::max<std::int64_t>(floats, 1 << 18)) {
    small_there_ = raw::clone(raw::to(small_, other_));
    large_there_ = raw::clone(raw::to(large_, other_));
  }
  void run() {
    for (int i = 0; i < 5; ++i) {
      // This device's core writes the data, so the copy to the other device reads it from that
      // core's caches.
      on_device(own_, [&] {
        add_.push_back(computing_seconds_of([&] { raw::add_scaled_(large_, 1e-3, sum_); }));
        scale_.push_back(computing_seconds_of([&] { raw::mul_(large_, 0.5); }));
        raw::mul_(small_, 0.5);
      });
      on_device(other_, [&] {
        copy_small_.push_back(computing_seconds_of([&] { raw::copy_(small_there_, small_); }));
        copy_large_.push_back(computing_seconds_of([&] { raw::copy_(large_there_, large_); }));
      });
      handoff_.push_back(seconds_of([&] { on_devices(devices_, [](int) {}); }));
    }
    if (devices_ > 1) {
      messages(kFew, 10, small_messages_);
      messages(many_, 5, large_messages_);
    }
  }
  void forget() {
    for (Times* times : {&copy_small_, &copy_large_, &add_, &scale_, &handoff_}) times->clear();
    small_messages_ = large_messages_ = {};
  }
  void put_into(Costs& costs) const {
    const double bytes = static_cast<double>(many_) * sizeof(float);
    costs.add_per_byte = median(add_) / bytes;
    costs.scale_per_byte = median(scale_) / bytes;
    costs.handoff = median(handoff_);
    costs.copy = link(copy_small_, copy_large_);
    if (devices_ > 1) {
      costs.all_reduce = link(small_messages_[0], large_messages_[0]);
      costs.sum = link(small_messages_[1], large_messages_[1]);
      costs.broadcast = link(small_messages_[2], large_messages_[2]);
    }
  }

 private:
  /// The times of an all-reduce in shared memory, of one in the ranks' own memory, and of a
  /// broadcast.
  using Messages = std::array<Times, 3>;

  Link link(const Times& small, const Times& large) const {
    const double few = kFew * sizeof(float), bytes = static_cast<double>(many_) * sizeof(float);
    const double latency = median(small), rest = median(large) - latency;
    return {latency, rest > 0 ? (bytes - few) / rest : 0};
  }
  /// Measures the slowest rank in each call.
  void messages(std::int64_t floats, int calls, Messages& into) {
    std::vector<Messages> ranks(static_cast<std::size_t>(devices_));
    run_shm_ranks(devices_, [&](comm::ProcessGroup& group) {
      const Tensor shared = group.empty({floats}), own = zeros({floats});
      raw::fill_(shared, 0);
      for (int i = -1; i < calls; ++i) {  // i = -1: connects
        std::size_t kind = 0;
        const auto time = [&](const auto& start) {
          group.barrier().wait();
          const double took = seconds_of([&] { start().wait(); });
          if (i >= 0) ranks[static_cast<std::size_t>(group.rank())][kind++].push_back(took);
        };
        time([&] { return group.all_reduce(shared); });
        time([&] { return group.all_reduce(own); });
        time([&] { return group.broadcast(own, 0); });
      }
    });
    for (std::size_t kind = 0; kind < into.size(); ++kind) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(calls); ++i) {
        double most = 0;
        for (const Messages& rank : ranks) most = std::max(most, rank[kind][i]);
        into[kind].push_back(most);
      }
    }
  }

  const int devices_;
  const std::int64_t many_;
  const Device own_{DeviceType::cpu, 0}, other_{DeviceType::cpu, devices_ > 1 ? 1 : 0};
  Tensor small_ = rand({kFew}), large_ = rand({many_}), sum_ = rand({many_});
  Tensor small_there_, large_there_;
  Times copy_small_, copy_large_, add_, scale_, handoff_;
  Messages small_messages_, large_messages_;
};

}  // namespace

Costs sizes_of(const Program& program, int devices) {
  const EnableGrad recording;
  Costs costs{.program = program.name, .devices = devices, .first_part = program.first_part};
  Tensor x = program.batch(1).first;
  costs.input_bytes = bytes_of(x);
  costs.target_bytes = bytes_of(program.batch(1).second);
  for (const nn::AnyModule& module : program.layers) {
    LayerCost& layer = costs.layers.emplace_back(LayerCost{.name = module.type_name()});
    const std::size_t number = costs.layers.size() - 1;
    for (const auto& [name, p] : module.named_parameters()) {
      layer.parameter_bytes.push_back(bytes_of(p));
      layer.parameter_rows.push_back(static_cast<double>(p.dim() > 0 ? p.shape(0) : 1));
      layer.parameter_is_cut.push_back(program.is_cut && program.is_cut(number, name));
    }
    layer.own_unit = !layer.parameter_bytes.empty() && program.own_unit(number);
    if (program.sums) {
      std::tie(layer.sums_forward, layer.sums_backward) = program.sums(number);
    }
    const NoGrad no_grad;
    x = module(x);
    layer.output_bytes = bytes_of(x);
    // In backward a head sums the gradients of its inputs.
    layer.sum_bytes = number + 1 < program.layers.size() || number == 0
                          ? layer.output_bytes
                          : costs.layers[number - 1].output_bytes;
  }
  if (!program.plan.empty()) {  // for each character a maximum, then two sums
    const double floats = static_cast<double>(numel(program.row)) * sizeof(float);
    costs.loss_sums = {floats, 2 * floats};
  }
  for (const std::int64_t rows : program.sizes) {
    const StepMemory memory = memory_of_steps(program, rows);
    const auto count = static_cast<double>(rows);
    costs.state_copies = memory.parameters > 0 ? memory.state / memory.parameters : 0;
    costs.step_bytes.points.emplace_back(count, memory.plain);
    costs.further_bytes.points.emplace_back(count, memory.further);
    for (std::size_t i = 0; i < costs.layers.size(); ++i) {
      costs.layers[i].kept.points.emplace_back(count, memory.kept[i]);
    }
  }
  return costs;
}

Costs measure(const Program& program, const MeasureOptions& options) {
  const int n = options.devices;
  WEFT_CHECK(n >= 1, InvalidArgument, "simulate", "devices: got ", n, ", expected 1 or more");
  const std::vector<std::int64_t>& sizes = program.sizes;
  const EnableGrad recording;
  std::vector<StepOf> models;
  for (int i = 0; i < n; ++i) models.emplace_back(program, Device(DeviceType::cpu, i));
  std::vector<LayerTimes> layers;
  std::vector<Steps> steps;
  for (const std::int64_t rows : sizes) {
    layers.emplace_back(program, rows);
    steps.emplace_back(models, rows);
  }
  std::int64_t floats = 0;
  for (const Tensor& p : program.layers.parameters()) floats += p.numel();
  Links links(n, floats);

  // The parts of a pipeline, by the numbers of the layers where they end.
  std::map<std::vector<std::size_t>, std::vector<StepOf>> parts;
  const double block = options.seconds / static_cast<double>(kRounds * 5 * sizes.size());
  for (int round = -1; round < kRounds; ++round) {
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      repeat(round < 0 ? 0 : block, [&] { layers[s].pass(); });
      steps[s].run(round < 0 ? 0 : block);
    }
    links.run();
    if (round >= 0) continue;  // the first round only chooses kernels and allocates memory
    for (std::size_t s = 0; s < sizes.size() && std::ssize(program.layers) >= n; ++s) {
      const std::vector<std::size_t> ends = balanced_ends(layers[s].seconds(), n);
      std::vector<StepOf>& cut = parts[ends];
      for (std::size_t i = cut.size(); i + 1 < ends.size(); ++i) {
        cut.emplace_back(program, Device(DeviceType::cpu, static_cast<int>(i)), ends[i],
                         ends[i + 1]);
      }
      steps[s].set_parts(cut, sizes[s]);
      steps[s].run(0);
    }
    for (LayerTimes& each : layers) each.forget();
    for (Steps& each : steps) each.forget();
    links.forget();
  }

  Costs costs = sizes_of(program, n);
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const auto rows = static_cast<double>(sizes[s]);
    const LayerTimes& times = layers[s];
    const auto put = [&](Curve& curve, double value) { curve.points.emplace_back(rows, value); };
    // Scales the times of single layers so that their sum is the time of the whole model.
    double forward = 0, backward = 0;
    for (std::size_t i = 0; i < costs.layers.size(); ++i) {
      forward += times.forward(i);
      backward += times.backward_input(i) + times.backward_weight(i);
    }
    const double whole_forward = steps[s].alone(&StepTimes::forward),
                 whole_backward = steps[s].alone(&StepTimes::backward);
    const double of_forward = whole_forward / forward,
                 of_backward = std::max(0.0, whole_backward - times.loss()) / backward;
    for (std::size_t i = 0; i < costs.layers.size(); ++i) {
      put(costs.layers[i].forward, of_forward * times.forward(i));
      put(costs.layers[i].backward_input, of_backward * times.backward_input(i));
      put(costs.layers[i].backward_weight, of_backward * times.backward_weight(i));
    }
    put(costs.loss, times.loss());
    put(costs.optimizer, steps[s].alone(&StepTimes::optimizer));
    if (n > 1) put(costs.undivided, steps[s].undivided());
    put(costs.slowdown, steps[s].slowdown());
    put(costs.optimizer_slowdown, steps[s].optimizer_slowdown());
    if (parts.empty()) continue;
    put(costs.further_forward, steps[s].further_forward());
    put(costs.further_backward, steps[s].further_backward());
  }
  links.put_into(costs);
  if (n > 1 && !program.plan.empty() && program.heads % n == 0) {
    measure_cut_steps(program, kRounds * block, costs);
  }
  return costs;
}

}  // namespace weft::simulator
