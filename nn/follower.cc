#include "weft/nn/follower.h"

#include <algorithm>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/nn/module_node.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

using detail::ModuleNode;

namespace {

void check_alike(const ModuleNode& from, const ModuleNode& to) {
  WEFT_CHECK(from.children.size() == to.children.size() && from.tensors.size() == to.tensors.size(),
             InvalidArgument, "follow", from.type_name, from.name.empty() ? "" : " ", from.name,
             " has ", from.children.size(), " children and ", from.tensors.size(),
             " tensors of its own, its replica ", to.children.size(), " and ", to.tensors.size(),
             "; make the replica after the module is complete");
}

}  // namespace

Follower::Follower(const ModuleBase& original, const ModuleBase& replica) {
  pair(original.node_, replica.node_);
}

void Follower::pair(const std::shared_ptr<ModuleNode>& from,
                    const std::shared_ptr<ModuleNode>& to) {
  const auto known = [&](const Modules& modules) { return modules.from == from; };
  if (std::ranges::any_of(modules_, known)) return;  // known by another name
  check_alike(*from, *to);
  modules_.push_back({from, to});
  for (std::size_t i = 0; i < from->tensors.size(); ++i) {
    const ModuleNode::Entry &a = from->tensors[i], &b = to->tensors[i];
    WEFT_CHECK(a.name == b.name && a.is_buffer == b.is_buffer, InvalidArgument, "follow",
               from->type_name, "'s ", a.name, " is the replica's ", b.name);
    const auto same = [&](const Tensors& tensors) { return tensors.from.same(a.tensor); };
    if (std::ranges::any_of(tensors_, same)) continue;
    b.tensor.set_requires_grad(false);
    tensors_.push_back({a.tensor, b.tensor, a.is_buffer, a.is_image_weight});
  }
  for (std::size_t i = 0; i < from->children.size(); ++i) {
    pair(from->children[i].node, to->children[i].node);
  }
}

void Follower::follow() {
  for (const Modules& modules : modules_) {
    check_alike(*modules.from, *modules.to);
    modules.to->training = modules.from->training;
    modules.to->hooks = modules.from->hooks;
    if (modules.from->shared_state.has_value()) {
      modules.to->shared_state = modules.from->shared_state;
    }
  }
  for (Tensors& tensors : tensors_) {
    copy(tensors);
    if (tensors.is_buffer) continue;
    // A checkpoint of an earlier forward may still recompute with the replica: keep its record.
    if (!thread_state().grad_enabled && tensors.from.requires_grad()) continue;
    autograd::record_copy("replicate", tensors.to, tensors.from);
  }
}

void Follower::copy_part(std::size_t i, std::size_t n) {
  const auto size = [](const Tensors& tensors) {
    return tensors.from.numel() * static_cast<std::int64_t>(size_of(tensors.from.dtype()));
  };
  std::int64_t all = 1, before = 0;
  for (const Tensors& tensors : tensors_) all += size(tensors);
  for (Tensors& tensors : tensors_) {
    const std::int64_t middle = before + size(tensors) / 2;
    before += size(tensors);
    const auto part = static_cast<std::size_t>(middle * static_cast<std::int64_t>(n) / all);
    if (part == i && !converted(tensors)) copy(tensors);
  }
}

bool Follower::converted(const Tensors& tensors) {
  const Tensor &from = tensors.from, &to = tensors.to;
  // On devices of two kinds the weights of convolutions may differ in their strides.
  const bool alike = from.strides() == to.strides() || from.device().type != to.device().type;
  return from.dtype() != to.dtype() || from.shape() != to.shape() || !alike;
}

void Follower::copy(Tensors& tensors) {
  const Tensor &from = tensors.from, &to = tensors.to;
  if (converted(tensors)) {
    const Scoped owner(&ThreadState::memory_owner, MemoryOwner::parameters);
    detail::set_data(to, detail::placed(tensors.is_image_weight, from, to.device()));
  } else if (!(tensors.storage == from.storage()) ||
             tensors.from_version != from.storage()->version() ||
             tensors.to_version != to.storage()->version()) {
    raw::copy_(to, from);
  }
  tensors.storage = from.storage();
  tensors.from_version = from.storage()->version();
  tensors.to_version = to.storage()->version();
}

}  // namespace weft::nn
