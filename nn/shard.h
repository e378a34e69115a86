// Shards: parts of parameters, which a module lists in the parameters' places. The engines that
// make them are parallel::fully_shard, by which a rank keeps some rows of each parameter, and
// parallel::parallelize, by which it keeps rows or columns and computes with them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/nn/cut.h"
#include "weft/nn/module.h"

namespace weft::nn {

struct Shard {
  Tensor used;  ///< by forward; named_parameters() and state_dict() do not list it
  Tensor part;  ///< a leaf; they list this one
  Cut cut;
  std::weak_ptr<void> unit = {};     ///< of fully_shard: the same for parameters that go together
  std::shared_ptr<void> group = {};  ///< of parallelize: the comm::ProcessGroup of the ranks
  /// If fully_shard has cut what parallelize had cut before: that shard. cut.of is its cut.
  std::shared_ptr<const Shard> of = {};
};
using NamedShards = std::vector<std::pair<std::string, std::shared_ptr<const Shard>>>;

/// The module's parameters that fully_shard has not cut, each once, under its first name.
NamedTensors uncut_parameters(const ModuleBase& module);
/// The parameters as forward uses them, whole where fully_shard has cut them.
std::vector<Tensor> used_parameters(const ModuleBase& module);
/// Lists shard.part wherever the module lists shard.used. From now on clone(), replicate() and
/// to() throw Unsupported for this module, and for those that contain it. parameter_count() and
/// to_string() count the whole ones. Sets .of, and returns the shard.
std::shared_ptr<const Shard> put_in_place(const ModuleBase& module, Shard shard);
/// Those of the module, under each of their names.
NamedShards shards_of(const ModuleBase& module);
/// Leaves of a parameter this rank's part. Its handles, its role as a leaf and its hooks stay.
void keep_part(const Tensor& parameter, const Cut& cut);
/// Converts what forward uses. Its handles stay.
void convert_used(const Shard& shard, DType dtype);

}  // namespace weft::nn
