#include "weft/parallel/sharded_state.h"

#include <algorithm>
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
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

// A row-major copy on the host, outside of the account of cpu:0: the state of a whole model need
// not fit on a device.
Tensor host_copy(const Tensor& x) {
  const auto count = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  const auto bytes = std::make_shared<std::vector<std::uint8_t>>(count);
  const Tensor memory = borrow(std::span(*bytes), {std::ssize(*bytes)}, {1}, [bytes] {});
  const Tensor y =
      as_strided(memory.storage(), x.dtype(), x.shape(), contiguous_strides(x.shape()), 0);
  raw::copy_(y, x);
  return y;
}

// The whole of which each rank has the rows that the shard has of its parameter.
Tensor whole_of(comm::ProcessGroup& group, const nn::Shard& shard, const Tensor& rows) {
  const std::int64_t all = shard.whole.shape()[0];
  Shape chunk = rows.shape();
  chunk[0] = (all + group.size() - 1) / group.size();
  const TensorOptions options(rows.dtype(), rows.device());
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::communication);
  const Tensor own = zeros(chunk, options);  // equally long on all ranks
  raw::copy_(raw::narrow(own, 0, 0, rows.shape()[0]), rows);
  Shape chunks = chunk;
  chunks.insert(0, group.size());
  const Tensor gathered = empty(chunks, options);
  group.all_gather(gathered, own).wait();
  return host_copy(raw::narrow(raw::flatten(gathered, 0, 1), 0, 0, all));
}

Tensor rows_of(const nn::Shard& shard, const Tensor& whole) {
  return raw::narrow(whole, 0, shard.first_row, shard.part.shape()[0]);
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
    if (shard != shards.end() && x.shape() == shard->second->whole.shape()) {
      x = rows_of(*shard->second, x);
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
  for (const auto& [name, x] : module.state_dict()) own.emplace(name, x);
  for (const auto& [name, shard] : shards) own[name] = shard->whole;
  std::vector<std::string> wrong;
  for (const auto& [name, x] : own) {
    const auto value = given.find(name);
    if (value == given.end()) {
      wrong.push_back(name + " is missing");
    } else if (!(value->second.shape() == x.shape())) {
      wrong.push_back(
          detail::concat(name, " is ", value->second.shape(), ", expected ", x.shape()));
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
    raw::copy_(shard->part, rows_of(*shard, given.at(name)));
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

}  // namespace weft::parallel
