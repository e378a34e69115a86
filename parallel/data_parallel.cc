#include "weft/parallel/data_parallel.h"

#include <algorithm>
#include <cstdint>

#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/sequence.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace detail {
namespace {

// An upper bound of the tape nodes that one replica records in a forward.
constexpr std::uint64_t kNodesPerReplica = std::uint64_t{1} << 24;

// PyTorch's bound: below it the other devices wait for the slower one.
constexpr double kAlike = 0.75;

void warn_if_unlike(const char* what, std::span<const Device> devices,
                    std::span<const std::int64_t> values) {
  const auto [least, most] = std::ranges::minmax_element(values);
  if (*least <= 0 || static_cast<double>(*least) >= kAlike * static_cast<double>(*most)) return;
  log_warning(weft::detail::concat(
      "data_parallel: ", devices[static_cast<std::size_t>(least - values.begin())], " has ", *least,
      ' ', what, ", ", devices[static_cast<std::size_t>(most - values.begin())], " has ", *most,
      ": equal parts of a batch wait for the weaker one; leave it out (devices), or give it less "
      "(weights)"));
}

}  // namespace

void on_devices(const char* step, std::span<const Device> devices, std::size_t n,
                const std::function<void(std::size_t)>& body) {
  const std::uint64_t first = autograd::reserve_sequence(n * kNodesPerReplica);
  const auto job = [&](std::size_t i) {
    return [&, i] {
      const autograd::SequenceScope sequence(first + i * kNodesPerReplica);
      within([&] { return weft::detail::concat("replica ", i, " on ", devices[i]); },
             [&] {
               Span span("parallel", step, devices[i]);
               span.set_arg("replica", static_cast<std::int64_t>(i));
               body(i);
             });
    };
  };
  JobGroup jobs;
  for (std::size_t i = 1; i < n; ++i) jobs.submit(devices[i], job(i));
  if (n > 0) jobs.run_here(devices[0], job(0));
  jobs.wait();
}

DataParallelOptions complete(DataParallelOptions options, const nn::ModuleBase& module) {
  std::vector<Device>& devices = options.devices;
  if (devices.empty()) {
    const std::vector<Tensor> parameters = module.parameters();
    const DeviceType type = parameters.empty() ? DeviceType::cpu : parameters[0].device().type;
    for (int i = 0; i < device_count(type); ++i) devices.emplace_back(type, i);
  }
  std::vector<std::int64_t> memory, units;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceProperties properties = runtime(devices[i]).properties(devices[i].index);
    WEFT_CHECK(devices[i].type == devices[0].type, InvalidArgument, "data_parallel", devices[0],
               " and ", devices[i], " are devices of two kinds");
    WEFT_CHECK(std::ranges::count(devices, devices[i]) == 1, InvalidArgument, "data_parallel",
               devices[i], " is named twice; a device has one replica");
    const std::int64_t limit = memory_limit(devices[i]);
    memory.push_back(limit > 0 ? limit : properties.memory_bytes);
    units.push_back(properties.compute_units);
  }
  if (!options.output_device) options.output_device = devices[0];
  runtime(*options.output_device);                 // throws if the device does not exist
  part_sizes(0, devices.size(), options.weights);  // throws: bad weights
  if (options.weights.empty()) {
    warn_if_unlike("bytes of memory", devices, memory);
    warn_if_unlike("multiprocessors", devices, units);
  }
  return options;
}

std::vector<Tensor> tensors_of(const nn::ModuleBase& module) {
  std::vector<Tensor> tensors = module.parameters();
  for (auto& [name, tensor] : module.named_buffers()) tensors.push_back(std::move(tensor));
  return tensors;
}

void check_placed(const nn::ModuleBase& module, std::span<const Tensor> tensors, Device device) {
  const auto there = [&](const Tensor& tensor) { return tensor.device() == device; };
  if (std::ranges::all_of(tensors, there)) return;
  for (const nn::NamedTensors& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& [name, tensor] : tensors) {
      WEFT_CHECK(tensor.device() == device, Device, "data_parallel", "the module must be on ",
                 device, ", the first of the devices; its ", name, " is on ", tensor.device(),
                 ": module.to(\"", device, "\") before it is wrapped");
    }
  }
}

}  // namespace detail

std::vector<Tensor> scatter_gradients(const Tensor& gradient, std::span<const Tensor> outputs,
                                      int dim) {
  const Span span("parallel", "scatter_gradients");
  std::vector<Tensor> parts;
  const bool scalars = !outputs.empty() && outputs[0].dim() == 0;
  if (scalars) dim = 0;  // scalars were gathered to a vector
  std::int64_t begin = 0;
  for (const Tensor& output : outputs) {
    const std::int64_t rows = scalars ? 1 : output.shape(dim);
    const Tensor part = raw::to(raw::narrow(gradient, dim, begin, rows), output.device());
    parts.push_back(scalars ? raw::reshape(part, {}) : part);
    begin += rows;
  }
  WEFT_CHECK(begin == gradient.shape(dim), Shape, "scatter_gradients", "the gradient ",
             gradient.shape(), " has ", gradient.shape(dim), " rows, the outputs have ", begin);
  return parts;
}

void parallel_backward(std::span<const Tensor> outputs, std::span<const Tensor> gradients) {
  const Span span("parallel", "parallel_backward");
  autograd::backward(outputs, gradients);
}

void reduce_gradients(std::span<nn::ModuleBase* const> replicas) {
  WEFT_CHECK(!replicas.empty(), InvalidArgument, "reduce_gradients", "needs at least one replica");
  const Span span("parallel", "reduce_gradients");
  const std::vector<Tensor> into = replicas[0]->parameters();
  for (nn::ModuleBase* const replica : replicas.subspan(1)) {
    const std::vector<Tensor> from = replica->parameters();
    WEFT_CHECK(from.size() == into.size(), InvalidArgument, "reduce_gradients", "a replica has ",
               from.size(), " parameters, the first ", into.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Tensor grad = from[i].grad();
      if (!grad.defined()) continue;
      const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
      if (const Tensor sum = into[i].grad(); sum.defined()) {
        raw::add_from_afar_(sum, grad);
      } else {
        into[i].set_grad(raw::to(grad, into[i].device()));
      }
      autograd::zero_grad(from[i]);
    }
  }
}

}  // namespace weft::parallel
