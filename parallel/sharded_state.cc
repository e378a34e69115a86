#include "weft/parallel/sharded_state.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
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
#include "weft/parallel/shard_engine.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

// Row-major host memory that is not counted for cpu:0: the whole state may exceed a device's memory
// limit.
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

// The whole tensor, of which this rank has `part` by that cut.
Tensor whole_of(comm::ProcessGroup& group, const nn::Cut& cut, const Tensor& part) {
  if (cut.dim < 0) return host_copy(part);
  const std::int64_t most = cut.rows_of(0).count, block = cut.whole[cut.dim] / cut.blocks;
  const TensorOptions options(part.dtype(), part.device());
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::communication);
  Shape padded = cut.whole;  // the same size on all ranks
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
  const auto unit = unit_of(shard);
  if (!unit || unit->group.get() == &group) return;
  const FsdpEngine* const engine = unit->engine.get();
  WEFT_CHECK(engine && (engine->gathers.get() == &group || engine->reductions.get() == &group),
             InvalidArgument, "parallelize", unit->name,
             ": fully_shard has cut the parts of this module: use the handle that it has returned");
}

// The whole tensor, of which `part` is the same part as the shard is of its parameter.
Tensor whole_of(comm::ProcessGroup& group, const nn::Shard& shard, const Tensor& part) {
  check_is_last(group, shard);
  const Tensor whole = whole_of(group, shard.cut, part);
  if (!shard.of) return whole;
  auto& ranks = *static_cast<comm::ProcessGroup*>(shard.of->group.get());
  return whole_of(ranks, shard.of->cut, raw::to(whole, part.device()));
}

nn::Cut uncut(const Shape& shape) { return {.whole = shape, .dim = -1}; }

// The shard to which an entry of a state belongs; null if there is none.
using ShardOfEntry = std::function<const nn::Shard*(const std::string& name)>;

// "state.3.exp_avg" belongs to the shard that is the optimiser's parameter 3.
ShardOfEntry shard_of(const nn::ModuleBase& module, const optim::Optimizer& optimizer) {
  return [shards = nn::shards_of(module),
          parameters = optimizer.parameters()](const std::string& name) -> const nn::Shard* {
    constexpr std::string_view kPrefix = "state.";
    if (!name.starts_with(kPrefix)) return nullptr;
    const auto number = static_cast<std::size_t>(std::atoll(name.c_str() + kPrefix.size()));
    if (number >= parameters.size()) return nullptr;
    const auto found = std::ranges::find_if(
        shards, [&](const auto& one) { return one.second->part.same(parameters[number]); });
    return found == shards.end() ? nullptr : found->second.get();
  };
}

// Averages have the names of the module's parameters.
ShardOfEntry shard_of(const nn::ModuleBase& module) {
  const nn::NamedShards shards = nn::shards_of(module);
  return [by_name = std::map(shards.begin(), shards.end())](const std::string& name) {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second.get();
  };
}

nn::StateParts parts_of(const nn::NamedTensors& state, const ShardOfEntry& shard_of_entry) {
  nn::StateParts parts;
  for (const auto& [name, x] : state) {
    const nn::Shard* const shard = shard_of_entry(name);
    // Other entries are numbers, such as an optimiser's step counts.
    const bool is_part = shard && x.shape() == shard->part.shape();
    parts.push_back({name, x, is_part ? shard->cut : uncut(x.shape())});
  }
  return parts;
}

// The state, with whole tensors in place of the parts.
nn::NamedTensors gathered(comm::ProcessGroup& group, nn::NamedTensors state,
                          const ShardOfEntry& shard_of_entry) {
  for (auto& [name, x] : state) {
    const nn::Shard* const shard = shard_of_entry(name);
    if (shard && x.shape() == shard->part.shape()) x = whole_of(group, *shard, x);
  }
  return state;
}

// The inverse of gathered(): this rank's parts of a saved state.
nn::NamedTensors own_parts(const nn::SavedState& saved, const ShardOfEntry& shard_of_entry) {
  nn::NamedTensors state;
  for (const auto& [name, dtype, shape] : saved.entries) {
    const nn::Shard* const shard = shard_of_entry(name);
    const bool is_cut = shard && shape == shard->cut.parameter_shape();
    const nn::Cut cut = is_cut ? shard->cut : uncut(shape);
    state.emplace_back(name, host_memory(cut.part_shape(), dtype));
    saved.read(name, cut, state.back().second);
  }
  return state;
}

// A state in memory. `values` must outlive it.
nn::SavedState saved_of(const nn::NamedTensors& values) {
  nn::SavedState saved;
  for (const auto& [name, x] : values) saved.entries.push_back({name, x.dtype(), x.shape()});
  saved.read = [by_name = std::map(values.begin(), values.end())](
                   const std::string& name, const nn::Cut& cut, const Tensor& part) {
    raw::copy_(part, cut.part_of(by_name.at(name)));
  };
  return saved;
}

}  // namespace

nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module) {
  std::map<const nn::Shard*, Tensor> gathered;
  std::map<std::string, Tensor> by_name;
  for (const auto& [name, shard] : nn::shards_of(module)) {
    Tensor& whole = gathered[shard.get()];  // tied parameters are gathered once
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

nn::StateParts state_parts(const nn::ModuleBase& module) {
  return parts_of(module.state_dict(), shard_of(module));
}

void load_parts(const nn::ModuleBase& module, const nn::SavedState& saved) {
  std::map<std::string, Shape> given;
  for (const auto& [name, dtype, shape] : saved.entries) given[name] = shape;
  std::vector<std::string> wrong;
  std::map<std::string, nn::StatePart> own;
  for (const nn::StatePart& part : state_parts(module)) own.emplace(part.name, part);
  for (const auto& [name, part] : own) {
    const auto value = given.find(name);
    if (value == given.end()) {
      wrong.push_back(name + " is missing");
    } else if (const Shape& whole = part.cut.parameter_shape(); !(value->second == whole)) {
      wrong.push_back(detail::concat(name, " is ", value->second, ", expected ", whole));
    }
  }
  for (const auto& [name, shape] : given) {
    if (!own.contains(name)) wrong.push_back(name + " is unknown");
  }
  if (given.size() != saved.entries.size()) wrong.push_back("a name is given twice");
  WEFT_CHECK(wrong.empty(), InvalidArgument, "load_state_dict",
             "these values are of another model than ", module.type_name(), ": ",
             nn::detail::first_few(wrong));
  for (const auto& [name, part] : own) saved.read(name, part.cut, part.tensor);
}

void load_whole_state(const nn::ModuleBase& module, const nn::NamedTensors& values) {
  load_parts(module, saved_of(values));
}

nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const optim::Optimizer& optimizer) {
  return gathered(group, optimizer.state_dict(), shard_of(module, optimizer));
}
nn::StateParts state_parts(const nn::ModuleBase& module, const optim::Optimizer& optimizer) {
  return parts_of(optimizer.state_dict(), shard_of(module, optimizer));
}
void load_parts(const nn::ModuleBase& module, optim::Optimizer& optimizer,
                const nn::SavedState& saved) {
  optimizer.load_state_dict(own_parts(saved, shard_of(module, optimizer)));
}
void load_whole_state(const nn::ModuleBase& module, optim::Optimizer& optimizer,
                      const nn::NamedTensors& state) {
  load_parts(module, optimizer, saved_of(state));
}

nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const nn::ExponentialMovingAverage& averages) {
  return gathered(group, averages.state_dict(), shard_of(module));
}
nn::StateParts state_parts(const nn::ModuleBase& module,
                           const nn::ExponentialMovingAverage& averages) {
  return parts_of(averages.state_dict(), shard_of(module));
}
void load_parts(const nn::ModuleBase& module, nn::ExponentialMovingAverage& averages,
                const nn::SavedState& saved) {
  averages.load_state_dict(own_parts(saved, shard_of(module)));
}
void load_whole_state(const nn::ModuleBase& module, nn::ExponentialMovingAverage& averages,
                      const nn::NamedTensors& state) {
  load_parts(module, averages, saved_of(state));
}

Tensor squared_grad_norm(comm::ProcessGroup& group, const nn::ModuleBase& module,
                         const std::vector<Tensor>& parameters) {
  // First index: whether fully_shard has cut the parameter; second: whether parallelize has.
  std::array<std::array<std::vector<Tensor>, 2>, 2> lists;
  comm::ProcessGroup* tensor_ranks = nullptr;
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
    // To the parameters' device: the norm is on the CPU if this rank has no gradient.
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
  const std::vector<Tensor> parameters = module.parameters();
  const Tensor norm = raw::sqrt(squared_grad_norm(group, module, parameters));
  optim::clip_grads_with_norm(parameters, max_norm, norm);
  return norm;
}

}  // namespace weft::parallel
