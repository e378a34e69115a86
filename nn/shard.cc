#include "weft/nn/shard.h"

#include <unordered_set>

#include "weft/core/base/error.h"
#include "weft/nn/module_node.h"

namespace weft::nn {

using detail::ModuleNode;

void detail::check_not_cut(const char* op, const ModuleNode& node) {
  for (const ModuleNode::Entry& entry : node.tensors) {
    WEFT_CHECK(!entry.shard, Unsupported, op, node.type_name, "'s ", entry.name,
               " is cut into parts, one on each rank (parallel::fully_shard); do this before the "
               "module is cut");
  }
  for (const ModuleNode::Child& child : node.children) check_not_cut(op, *child.node);
}

std::int64_t ModuleNode::whole_numel(const Entry& entry) {
  return entry.shard ? entry.shard->whole.numel() : entry.tensor.numel();
}

NamedTensors uncut_parameters(const ModuleBase& module) {
  NamedTensors result;
  std::unordered_set<const TensorImpl*> seen;
  ModuleNode::of(module).visit("", [&](const std::string& name, ModuleNode::Entry& entry) {
    if (!entry.is_buffer && !entry.shard && seen.insert(entry.tensor.impl()).second) {
      result.emplace_back(name, entry.tensor);
    }
  });
  return result;
}

void put_in_place(const ModuleBase& module, std::shared_ptr<const Shard> shard) {
  ModuleNode::of(module).visit("", [&](const std::string&, ModuleNode::Entry& entry) {
    if (!entry.tensor.same(shard->whole)) return;
    entry.tensor = shard->part;
    entry.shard = shard;
  });
}

NamedShards shards_of(const ModuleBase& module) {
  NamedShards result;
  ModuleNode::of(module).visit("", [&](const std::string& name, ModuleNode::Entry& entry) {
    if (entry.shard) result.emplace_back(name, entry.shard);
  });
  return result;
}

}  // namespace weft::nn
