#include "weft/nn/shard.h"

#include <unordered_set>

#include "weft/core/base/error.h"
#include "weft/nn/module_node.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

using detail::ModuleNode;

void detail::check_not_cut(const char* op, const ModuleNode& node) {
  for (const ModuleNode::Entry& entry : node.tensors) {
    WEFT_CHECK(!entry.shard, Unsupported, op, node.type_name, "'s ", entry.name,
               " is cut into parts, one on each rank (parallel::fully_shard, parallelize); do this "
               "before the module is cut");
  }
  for (const ModuleNode::Child& child : node.children) check_not_cut(op, *child.node);
}

std::int64_t ModuleNode::whole_numel(const Entry& entry) {
  return entry.shard ? numel(entry.shard->cut.parameter_shape()) : entry.tensor.numel();
}

void keep_part(const Tensor& parameter, const Cut& cut) {
  const Tensor part = empty(cut.part_shape(), {parameter.dtype(), parameter.device()});
  raw::copy_(part, cut.part_of(parameter));
  parameter.set_grad({});
  detail::set_data(parameter, part);
}

void convert_used(const Shard& shard, DType dtype) {
  detail::set_data(shard.used, raw::to(shard.used, dtype));
  if (shard.of) convert_used(*shard.of, dtype);  // a tensor of its own for some biases
}

NamedTensors uncut_parameters(const ModuleBase& module) {
  NamedTensors result;
  std::unordered_set<const TensorImpl*> seen;
  ModuleNode::of(module).visit("", [&](const std::string& name, ModuleNode::Entry& entry) {
    const bool cut = entry.shard && !entry.shard->group;
    if (!entry.is_buffer && !cut && seen.insert(entry.tensor.impl()).second) {
      result.emplace_back(name, entry.tensor);
    }
  });
  return result;
}

std::vector<Tensor> used_parameters(const ModuleBase& module) {
  std::vector<Tensor> result;
  ModuleNode::of(module).visit("", [&](const std::string&, ModuleNode::Entry& entry) {
    if (!entry.is_buffer) result.push_back(entry.shard ? entry.shard->used : entry.tensor);
  });
  return result;
}

std::shared_ptr<const Shard> put_in_place(const ModuleBase& module, Shard shard) {
  const auto made = std::make_shared<Shard>(std::move(shard));
  ModuleNode::of(module).visit("", [&](const std::string&, ModuleNode::Entry& entry) {
    if (!entry.tensor.same(made->used)) return;
    made->of = entry.shard;
    if (entry.shard) made->cut.of = std::make_shared<const Cut>(entry.shard->cut);
    entry.tensor = made->part;
    entry.shard = made;
  });
  return made;
}

NamedShards shards_of(const ModuleBase& module) {
  NamedShards result;
  ModuleNode::of(module).visit("", [&](const std::string& name, ModuleNode::Entry& entry) {
    if (entry.shard) result.emplace_back(name, entry.shard);
  });
  return result;
}

}  // namespace weft::nn
