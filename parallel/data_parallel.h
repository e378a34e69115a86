// DataParallel: one process, several devices, with a part of every batch on each device.
//
//   Net model;
//   model.to("cuda:0");
//   parallel::DataParallel dp(model);     // over all GPUs
//   optim::SGD sgd(model.parameters(), {.lr = 0.01});
//   ...
//   sgd.zero_grad();
//   auto loss = nn::cross_entropy(dp(x), label);
//   loss.backward();  // the gradients are model's, on cuda:0
//   sgd.step();
//
// A forward is four steps, and a backward another four:
//   scatter         the batch, over the devices        loss gradient   on the output device
//   replicate       the module, onto the devices       scatter         the gradient of the outputs
//   parallel_apply  every replica to its part          backward        of every replica
//   gather          the outputs, on the first device   reduce          the gradients of the weights
// Each step is also a function of its own here (docs/data_parallel.md).
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/follower.h"
#include "weft/nn/module.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tensor/tree.h"

namespace weft::parallel {

struct DataParallelOptions {
  std::vector<Device> devices = {};          ///< empty: all devices of the module's kind
  std::optional<Device> output_device = {};  ///< where results go; default: the first device
  int dim = 0;                               ///< dimension to cut batches and join results along
  std::vector<double> weights = {};          ///< of the devices' parts; empty: equal ones
};

namespace detail {

/// Calls body(i) for all i < n at the same time: body(0) in the calling thread, the others on the
/// workers of their devices; `step` is the name in traces. The recorded nodes are ordered by i and
/// not by time. When all have ended, rethrows the first error with its replica and device.
void on_devices(const char* step, std::span<const Device> devices, std::size_t n,
                const std::function<void(std::size_t)>& body);

/// The options, checked and with defaults filled in. Throws Device for a device that does not
/// exist, InvalidArgument for one that is named twice, for devices of two kinds and for bad
/// weights. Warns of devices that are very different.
DataParallelOptions complete(DataParallelOptions options, const nn::ModuleBase& module);
/// Parameters and buffers of a module, for check_placed().
std::vector<Tensor> tensors_of(const nn::ModuleBase& module);
/// Throws Device unless all of them are on `device`, naming one that is not.
void check_placed(const nn::ModuleBase& module, std::span<const Tensor> tensors, Device device);

template <class M, class Inputs>
using ResultOf =
    std::remove_cvref_t<decltype(std::apply(std::declval<M&>(), std::declval<Inputs>()))>;

}  // namespace detail

// --- The steps, one by one -----------------------------------------------------------------------

/// The module itself, which must be on devices[0], and deep copies of it on the other devices. Each
/// copy has its own gradients; reduce_gradients() adds them up. Throws as DataParallel does.
template <std::derived_from<nn::ModuleBase> M>
std::vector<M> replicate(const M& module, std::span<const Device> devices) {
  WEFT_CHECK(!devices.empty(), InvalidArgument, "replicate", "needs at least one device");
  detail::check_placed(module, detail::tensors_of(module), devices[0]);
  const Span span("parallel", "replicate");
  std::vector<M> replicas = {module};
  for (const Device device : devices.subspan(1)) {
    replicas.push_back(nn::replicate(module, device));
  }
  return replicas;
}

/// Calls replicas[i](inputs[i]...) for all i at the same time, the first in the calling thread and
/// the others on the workers of their devices; returns the results in order. inputs[i] is one
/// argument or a tuple of arguments, and is moved from. There may be fewer inputs than replicas. If
/// some throw, the first error is rethrown after all have ended, with its device in its text.
template <class M, class Inputs>
auto parallel_apply(std::span<M> replicas, std::vector<Inputs> inputs,
                    std::span<const Device> devices) {
  if constexpr (!requires { std::tuple_size<Inputs>::value; }) {
    std::vector<std::tuple<Inputs>> tuples;
    for (Inputs& x : inputs) tuples.emplace_back(std::move(x));
    return parallel_apply(replicas, std::move(tuples), devices);
  } else {
    WEFT_CHECK(inputs.size() <= replicas.size() && inputs.size() <= devices.size(), InvalidArgument,
               "parallel_apply", inputs.size(), " inputs for ", replicas.size(), " replicas on ",
               devices.size(), " devices");
    const Span span("parallel", "parallel_apply");
    using Result = detail::ResultOf<M, Inputs>;
    const auto call = [&](std::size_t i) -> decltype(auto) {
      return std::apply(replicas[i], std::move(inputs[i]));
    };
    if constexpr (std::is_void_v<Result>) {
      detail::on_devices("parallel_apply", devices, inputs.size(), call);
    } else {
      std::vector<std::optional<Result>> results(inputs.size());
      detail::on_devices("parallel_apply", devices, inputs.size(),
                         [&](std::size_t i) { results[i].emplace(call(i)); });
      std::vector<Result> all;
      for (std::optional<Result>& result : results) all.push_back(*std::move(result));
      return all;
    }
  }
}

/// dL/doutput of each replica, on its device, one tensor per replica: the parts of `gradient`,
/// which is dL/d(gathered outputs).
std::vector<Tensor> scatter_gradients(const Tensor& gradient, std::span<const Tensor> outputs,
                                      int dim = 0);

/// Runs the backwards of all replicas at the same time, from each output and its gradient.
void parallel_backward(std::span<const Tensor> outputs, std::span<const Tensor> gradients);

/// Adds the gradients of replicas[1], [2] ... to those of replicas[0], on its device, in that
/// order, and drops theirs. A parameter that no replica used stays without a gradient.
void reduce_gradients(std::span<nn::ModuleBase* const> replicas);
template <std::derived_from<nn::ModuleBase> M>
void reduce_gradients(std::vector<M>& replicas) {
  std::vector<nn::ModuleBase*> all;
  for (M& replica : replicas) all.push_back(&replica);
  reduce_gradients(std::span<nn::ModuleBase* const>(all));
}

// --- All of them ---------------------------------------------------------------------------------

/// Calls a module but is not one itself: names, state dict, printing and saving stay the module's.
/// PyTorch's torch.nn.DataParallel (data_parallel.py) with these differences:
///  - replicas are made once and keep their memory; before each forward they copy the tensors that
///    have been written to since (nn::Follower);
///  - a tensor argument without dimensions goes to every replica;
///  - weights can cut batches in other proportions.
///
/// As in PyTorch, the module is on the first device and is replica 0: what its forward writes to
/// buffers (the statistics of batch norms) is kept; what the other replicas write is lost.
/// Gradients are summed; a batch with few rows leaves devices out; with one device the module
/// itself is called. Random numbers come from a generator per device (core/runtime/rng.h): the same
/// in every run.
///
/// From one thread at a time. Unsupported in graph::capture.
template <std::derived_from<nn::ModuleBase> M>
class DataParallel {
 public:
  /// Keeps `module`, which is a handle. Throws Device when a device does not exist, or when the
  /// module is not on the first one; InvalidArgument for a device named twice, devices of two
  /// kinds, bad weights, and for a module that cannot be copied (nn::clone).
  explicit DataParallel(M module, DataParallelOptions options = {})
      : options_(detail::complete(std::move(options), module)),
        tensors_(detail::tensors_of(module)) {
    detail::check_placed(module, tensors_, options_.devices[0]);
    replicas_.push_back(std::move(module));
    for (std::size_t i = 1; i < options_.devices.size(); ++i) {
      replicas_.push_back(nn::replicate(replicas_[0], options_.devices[i]));
      followers_.emplace_back(replicas_[0], replicas_.back());
    }
  }

  /// The module's result for the whole batch, on the output device (gather()). Arguments and result
  /// may be anything whose tensors tensor/tree.h finds, else InvalidArgument. Throws Device if the
  /// module was moved away from the first device, and a replica's error, with its device.
  template <class... Args>
  auto operator()(const Args&... args) {
    check_walkable<Args...>("data_parallel");
    return forward(
        std::tuple<detail::Mapped<const Args&>...>(map_tensors(args, detail::Same())...));
  }

  M& module() { return replicas_[0]; }
  std::span<const Device> devices() const { return options_.devices; }
  /// The module (0) or one of its copies, for inspection. Throws InvalidArgument if i is too large.
  const M& replica(std::size_t i) const {
    WEFT_CHECK(i < replicas_.size(), InvalidArgument, "data_parallel", "replica ", i, " of ",
               replicas_.size());
    return replicas_[i];
  }

 private:
  template <class Inputs>
  detail::ResultOf<M, Inputs> forward(const Inputs& whole) {
    using Result = detail::ResultOf<M, Inputs>;
    if constexpr (!std::is_void_v<Result>) check_walkable<Result>("data_parallel");
    detail::check_placed(module(), tensors_, options_.devices[0]);
    std::vector<Inputs> inputs =
        scatter(whole, devices(), {.dim = options_.dim, .weights = options_.weights});
    if (devices().size() == 1) {
      if constexpr (std::is_void_v<Result>) {
        return std::apply(module(), std::move(inputs[0]));
      } else {
        return map_tensors(std::apply(module(), std::move(inputs[0])), [&](const Tensor& y) {
          return y.defined() ? y.to(*options_.output_device) : y;
        });
      }
    }
    replicate(inputs.size());
    if constexpr (std::is_void_v<Result>) {
      parallel_apply(std::span(replicas_), std::move(inputs), devices());
    } else {
      return gather(parallel_apply(std::span(replicas_), std::move(inputs), devices()),
                    *options_.output_device, options_.dim);
    }
  }
  /// Copies the module's present state to the first `n` replicas.
  void replicate(std::size_t n) {
    const Span span("parallel", "replicate");
    if (devices()[0].is_cpu()) {  // one memory: the first device's worker helps to copy
      detail::on_devices("replicate", devices(), n, [&](std::size_t i) {
        for (std::size_t k = 1; k < n; ++k) followers_[k - 1].copy_part(i, n);
      });
    }
    detail::on_devices("replicate", devices(), n, [&](std::size_t i) {
      if (i > 0) followers_[i - 1].follow();
    });
  }

  DataParallelOptions options_;
  const std::vector<Tensor> tensors_;  // the module's
  std::vector<M> replicas_;
  std::vector<nn::Follower> followers_;  // of replicas 1, 2, ...
};

}  // namespace weft::parallel
