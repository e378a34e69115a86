#include "weft/tools/simulate/measure.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
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

/// Training steps with one number of rows: on the first device alone, on the first device with all
/// cores, on all devices at once, and with a part of the model on each device.
class Steps {
 public:
  Steps(std::vector<StepOf>& models, std::int64_t rows) : models_(models) {
    for (const StepOf& model : models) batches_.push_back(model.batch(rows));
  }
  /// Sets the parts of the model for the last of these, one per device.
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
  /// The median over steps of the time of the slowest device in a step.
  template <class TimeOf>
  static double slowest(const std::vector<StepTimes>& devices, const TimeOf& time_of) {
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

  std::vector<StepOf>& models_;
  std::vector<std::pair<Tensor, Tensor>> batches_;  // per device
  std::vector<StepOf>* parts_ = nullptr;
  std::vector<std::pair<Tensor, Tensor>> inputs_;  // per part
  StepTimes alone_;
  Times undivided_;
  Times compute_, optimizer_, further_forward_, further_backward_;  // ratios, one per round
};

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
      all_reduce(kFew, 10, reduce_small_);
      all_reduce(many_, 5, reduce_large_);
    }
  }
  void forget() {
    for (Times* times :
         {&copy_small_, &copy_large_, &add_, &scale_, &handoff_, &reduce_small_, &reduce_large_}) {
      times->clear();
    }
  }
  void put_into(Costs& costs) const {
    const double bytes = static_cast<double>(many_) * sizeof(float);
    costs.add_per_byte = median(add_) / bytes;
    costs.scale_per_byte = median(scale_) / bytes;
    costs.handoff = median(handoff_);
    costs.copy = link(copy_small_, copy_large_);
    if (devices_ > 1) costs.all_reduce = link(reduce_small_, reduce_large_);
  }

 private:
  Link link(const Times& small, const Times& large) const {
    const double few = kFew * sizeof(float), bytes = static_cast<double>(many_) * sizeof(float);
    const double latency = median(small), rest = median(large) - latency;
    return {latency, rest > 0 ? (bytes - few) / rest : 0};
  }
  /// An all-reduce through shared memory, as between the ranks of one host; here the ranks are
  /// threads. Measures the slowest of them.
  void all_reduce(std::int64_t floats, int calls, Times& into) {
    std::vector<Times> ranks(static_cast<std::size_t>(devices_));
    comm::run_ranks(devices_, [&](comm::ProcessGroup& threads) {
      comm::ProcessGroup group(comm::shm_backend(),
                               std::make_shared<comm::PrefixStore>("shm", threads.store()),
                               threads.rank(), devices_);
      const Tensor x = group.empty({floats});
      raw::fill_(x, 0);
      for (int i = -1; i < calls; ++i) {  // i = -1: connects
        group.barrier().wait();
        const double took = seconds_of([&] { group.all_reduce(x).wait(); });
        if (i >= 0) ranks[static_cast<std::size_t>(group.rank())].push_back(took);
      }
    });
    for (int i = 0; i < calls; ++i) {
      double most = 0;
      for (const Times& times : ranks) most = std::max(most, times[static_cast<std::size_t>(i)]);
      into.push_back(most);
    }
  }

  const int devices_;
  const std::int64_t many_;
  const Device own_{DeviceType::cpu, 0}, other_{DeviceType::cpu, devices_ > 1 ? 1 : 0};
  Tensor small_ = rand({kFew}), large_ = rand({many_}), sum_ = rand({many_});
  Tensor small_there_, large_there_;
  Times copy_small_, copy_large_, add_, scale_, handoff_, reduce_small_, reduce_large_;
};

}  // namespace

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

  // The parts of a pipeline by their ends.
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

  Costs costs{.program = program.name, .devices = n, .first_part = program.first_part};
  Tensor x = program.batch(1).first;
  costs.input_bytes = bytes_of(x);
  costs.target_bytes = bytes_of(program.batch(1).second);
  for (const nn::AnyModule& module : program.layers) {
    LayerCost& layer = costs.layers.emplace_back(LayerCost{.name = module.type_name()});
    for (const Tensor& p : module.parameters()) layer.parameter_bytes.push_back(bytes_of(p));
    const NoGrad no_grad;
    x = module(x);
    layer.output_bytes = bytes_of(x);
  }
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
  return costs;
}

}  // namespace weft::simulator
