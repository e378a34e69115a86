#include "weft/parallel/sharded_state.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/repr.h"
#include "weft/nn/shard.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

// Row-major, on the host, outside of the account of cpu:0: the state of a whole model need not fit
// on a device.
Tensor host_memory(const Shape& shape, DType dtype) {
  const auto count = static_cast<std::size_t>(numel(shape)) * size_of(dtype);
  const auto bytes = std::make_shared<std::vector<std::uint8_t>>(count);
  const Tensor memory = borrow(std::span(*bytes), {std::ssize(*bytes)}, {1}, [bytes] {});
  return as_strided(memory.storage(), dtype, shape, contiguous_strides(shape), 0);
}
Tensor host_copy(const Tensor& x) {
  const Tensor y = host_memory(x.shape(), x.dtype());
  raw::copy_(y, x);
  return y;
}

// The whole of which each rank has such a part.
Tensor whole_of(comm::ProcessGroup& group, const nn::Cut& cut, const Tensor& part) {
  if (cut.dim < 0) return host_copy(part);
  const std::int64_t most = cut.rows_of(0).count, block = cut.whole[cut.dim] / cut.blocks;
  const TensorOptions options(part.dtype(), part.device());
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::communication);
  Shape padded = cut.whole;  // equally long on all ranks
  padded[cut.dim] = cut.blocks * most;
  const Tensor own = zeros(padded, options);
  const std::int64_t have = part.shape(cut.dim) / cut.blocks;
  for (std::int64_t b = 0; b < cut.blocks; ++b) {
    raw::copy_(raw::narrow(own, cut.dim, b * most, have),
               raw::narrow(part, cut.dim, b * have, have));
  }
  padded.insert(0, group.size());
  const Tensor gathered = empty(padded, options);
  group.all_gather(gathered, own).wait();
  const Tensor from = host_copy(gathered), whole = host_memory(cut.whole, part.dtype());
  for (int r = 0; r < group.size(); ++r) {
    const auto [first, count] = cut.rows_of(r);
    for (std::int64_t b = 0; b < cut.blocks; ++b) {
      raw::copy_(raw::narrow(whole, cut.dim, b * block + first, count),
                 raw::narrow(raw::select(from, 0, r), cut.dim, b * most, count));
    }
  }
  return whole;
}

void check_is_last(const comm::ProcessGroup& group, const nn::Shard& shard) {
  WEFT_CHECK(!shard.of || shard.of->group.get() != &group, InvalidArgument, "parallelize",
             "fully_shard has cut the parts of this module: use the handle that it has returned");
}

// The whole of which this rank has such a part as the shard is of its parameter.
Tensor whole_of(comm::ProcessGroup& group, const nn::Shard& shard, const Tensor& part) {
  check_is_last(group, shard);
  const Tensor whole = whole_of(group, shard.cut, part);
  if (!shard.of) return whole;
  auto& ranks = *static_cast<comm::ProcessGroup*>(shard.of->group.get());
  return whole_of(ranks, shard.of->cut, raw::to(whole, part.device()));
}

// Of "state.3.exp_avg", the shard of the optimiser's parameter 3; null if that is not cut.
using ShardOfName = std::map<std::string, const nn::Shard*>;
ShardOfName shards_of_entries(const nn::ModuleBase& module, const optim::Optimizer& optimizer,
                              const nn::NamedTensors& state) {
  constexpr std::string_view kPrefix = "state.";
  const nn::NamedShards shards = nn::shards_of(module);
  const std::vector<Tensor> parameters = optimizer.parameters();
  ShardOfName result;
  for (const auto& [name, x] : state) {
    if (!name.starts_with(kPrefix)) continue;
    const auto number = static_cast<std::size_t>(std::atoll(name.c_str() + kPrefix.size()));
    if (number >= parameters.size()) continue;
    for (const auto& [of_module, shard] : shards) {
      if (shard->part.same(parameters[number])) result[name] = shard.get();
    }
  }
  return result;
}

// Averages have the names of the module's parameters.
ShardOfName shards_by_name(const nn::NamedShards& shards) {
  ShardOfName result;
  for (const auto& [name, shard] : shards) result[name] = shard.get();
  return result;
}

// The tensors that have the shape of a part, whole.
nn::NamedTensors gathered(comm::ProcessGroup& group, nn::NamedTensors state,
                          const ShardOfName& shards) {
  for (auto& [name, x] : state) {
    const auto shard = shards.find(name);
    // Others are numbers, such as an optimiser's steps.
    if (shard != shards.end() && x.shape() == shard->second->part.shape()) {
      x = whole_of(group, *shard->second, x);
    }
  }
  return state;
}

// The reverse.
nn::NamedTensors own_rows(nn::NamedTensors state, const ShardOfName& shards) {
  for (auto& [name, x] : state) {
    const auto shard = shards.find(name);
    if (shard != shards.end() && x.shape() == shard->second->cut.parameter_shape()) {
      x = shard->second->cut.part_of(x);
    }
  }
  return state;
}

}  // namespace

nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module) {
  std::map<const nn::Shard*, Tensor> gathered;
  std::map<std::string, Tensor> by_name;
  for (const auto& [name, shard] : nn::shards_of(module)) {
    Tensor& whole = gathered[shard.get()];  // of tied parameters once
    if (!whole.defined()) whole = whole_of(group, *shard, shard->part);
    by_name[name] = whole;
  }
  nn::NamedTensors state = module.state_dict();
  for (auto& [name, x] : state) {
    const auto whole = by_name.find(name);
    x = whole == by_name.end() ? host_copy(x) : whole->second;
  }
  return state;
}

void load_whole_state(const nn::ModuleBase& module, const nn::NamedTensors& values) {
  const std::map<std::string, Tensor> given(values.begin(), values.end());
  const nn::NamedShards shards = nn::shards_of(module);
  std::map<std::string, Tensor> own;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, x] : module.state_dict()) {
    own.emplace(name, x);
    shapes.emplace(name, x.shape());
  }
  for (const auto& [name, shard] : shards) shapes[name] = shard->cut.parameter_shape();
  std::vector<std::string> wrong;
  for (const auto& [name, shape] : shapes) {
    const auto value = given.find(name);
    if (value == given.end()) {
      wrong.push_back(name + " is missing");
    } else if (!(value->second.shape() == shape)) {
      wrong.push_back(detail::concat(name, " is ", value->second.shape(), ", expected ", shape));
    }
  }
  for (const auto& [name, x] : given) {
    if (!own.contains(name)) wrong.push_back(name + " is unknown");
  }
  if (given.size() != values.size()) wrong.push_back("a name is given twice");
  WEFT_CHECK(wrong.empty(), InvalidArgument, "load_state_dict",
             "these values are of another model than ", module.type_name(), ": ",
             nn::detail::first_few(wrong));
  for (const auto& [name, shard] : shards) {
    raw::copy_(shard->part, shard->cut.part_of(given.at(name)));
    own.erase(name);
  }
  for (const auto& [name, buffer] : own) raw::copy_(buffer, given.at(name));
}

nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const optim::Optimizer& optimizer) {
  const nn::NamedTensors state = optimizer.state_dict();
  return gathered(group, state, shards_of_entries(module, optimizer, state));
}
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const nn::ExponentialMovingAverage& averages) {
  const nn::NamedShards shards = nn::shards_of(module);
  return gathered(group, averages.state_dict(), shards_by_name(shards));
}

void load_whole_state(const nn::ModuleBase& module, optim::Optimizer& optimizer,
                      const nn::NamedTensors& state) {
  optimizer.load_state_dict(own_rows(state, shards_of_entries(module, optimizer, state)));
}
void load_whole_state(const nn::ModuleBase& module, nn::ExponentialMovingAverage& averages,
                      const nn::NamedTensors& state) {
  const nn::NamedShards shards = nn::shards_of(module);
  averages.load_state_dict(own_rows(state, shards_by_name(shards)));
}

Tensor squared_grad_norm(comm::ProcessGroup& group, const nn::ModuleBase& module) {
  // By whether fully_shard has cut them, and parallelize.
  std::array<std::array<std::vector<Tensor>, 2>, 2> lists;
  comm::ProcessGroup* tensor_ranks = nullptr;
  const std::vector<Tensor> parameters = module.parameters();
  const nn::NamedShards shards = nn::shards_of(module);
  for (const Tensor& x : parameters) {
    bool rows = false, computed = false;
    for (const auto& [name, shard] : shards) {
      if (!shard->part.same(x)) continue;
      check_is_last(group, *shard);
      rows = !shard->group;
      const nn::Shard& by_layer = rows && shard->of ? *shard->of : *shard;
      computed = by_layer.group && by_layer.cut.dim >= 0;
      if (computed) tensor_ranks = static_cast<comm::ProcessGroup*>(by_layer.group.get());
      break;
    }
    lists[rows][computed].push_back(x);
  }
  const Device device = parameters.empty() ? Device() : parameters[0].device();
  const auto square = [&](const std::vector<Tensor>& parts) {
    const Tensor norm = optim::total_grad_norm(parts);
    // On the device of the parameters, where it is not if this rank has no gradient.
    return raw::to(raw::mul(norm, norm), device);
  };
  const auto sum = [&](bool computed) {
    const Tensor total = square(lists[1][computed]);
    if (!lists[1][computed].empty()) group.all_reduce(total).wait();
    raw::add_scaled_(total, 1, square(lists[0][computed]));
    return total;
  };
  const Tensor whole = sum(false), parts = sum(true);
  if (tensor_ranks) tensor_ranks->all_reduce(parts).wait();
  raw::add_scaled_(whole, 1, parts);
  return whole;
}

Tensor clip_grad_norm(comm::ProcessGroup& group, const nn::ModuleBase& module, double max_norm) {
  WEFT_CHECK(max_norm >= 0, InvalidArgument, "clip_grad_norm", "max_norm is ", max_norm,
             ", needs 0 or more");
  const Tensor norm = raw::sqrt(squared_grad_norm(group, module));
  optim::clip_grads_with_norm(module.parameters(), max_norm, norm);
  return norm;
}

}  // namespace weft::parallel
