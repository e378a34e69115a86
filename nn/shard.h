// Shards: parts of parameters, which a module lists in the parameters' places. An engine such as
// parallel::fully_shard makes them: each rank keeps some rows of each parameter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

struct Shard {
  /// [rows, ...], what forward uses; named_parameters() and state_dict() do not list it.
  Tensor whole;
  /// [this rank's rows, ...], those from first_row on, a leaf; they list this one.
  Tensor part;
  std::int64_t first_row = 0;
  std::weak_ptr<void> unit;  ///< the engine's own, the same for parameters that go together
};
using NamedShards = std::vector<std::pair<std::string, std::shared_ptr<const Shard>>>;

/// The module's parameters that have not been cut, each once, under its first name.
NamedTensors uncut_parameters(const ModuleBase& module);
/// Lists shard.part wherever the module lists shard.whole. From now on clone(), replicate() and
/// to() throw Unsupported for this module, and for those that contain it. parameter_count() and
/// to_string() count the whole ones.
void put_in_place(const ModuleBase& module, std::shared_ptr<const Shard> shard);
/// Those of the module, under each of their names.
NamedShards shards_of(const ModuleBase& module);

}  // namespace weft::nn
