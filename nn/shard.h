// Shards: parts of parameters, which a module lists in place of the parameters. The engines that
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
  Tensor used;  ///< what forward uses; not listed by named_parameters() and state_dict()
  Tensor part;  ///< a leaf; this one is listed
  Cut cut;
  std::weak_ptr<void> unit = {};     ///< of fully_shard: one for parameters that go together
  std::shared_ptr<void> group = {};  ///< of parallelize: the comm::ProcessGroup of the ranks
  /// If fully_shard has cut a part that parallelize made: that part's shard. cut.of is its cut.
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
/// The module's shards, under each of their names.
NamedShards shards_of(const ModuleBase& module);
/// Replaces a parameter by this rank's part. Its handles, its role as a leaf and its hooks stay.
void keep_part(const Tensor& parameter, const Cut& cut);
/// Converts the tensor that forward uses. Its handles stay.
void convert_used(const Shard& shard, DType dtype);

}  // namespace weft::nn
