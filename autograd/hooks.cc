// How hooks get to the lists of leaves and nodes.
#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"

namespace weft::autograd {

namespace {

void check_leaf(const char* op, const Tensor& leaf) {
  WEFT_CHECK(leaf.requires_grad() && leaf.is_leaf(), InvalidArgument, op,
             "needs a leaf that requires a gradient; for any other tensor there is add_grad_hook");
}

template <class List>
HookHandle removable(const std::shared_ptr<List>& list, std::uint64_t id) {
  return HookHandle([weak = std::weak_ptr(list), id] {
    if (const auto alive = weak.lock()) alive->remove(id);
  });
}

}  // namespace

HookHandle add_leaf_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook) {
  check_leaf("add_leaf_hook", leaf);
  WEFT_CHECK(hook, InvalidArgument, "add_leaf_hook", "the hook is empty");
  const auto& list = ensure_leaf_state(leaf).leaf_hooks.ensure();
  return removable(list, list->add(std::move(hook)));
}

HookHandle add_final_leaf_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook) {
  check_leaf("add_final_leaf_hook", leaf);
  WEFT_CHECK(hook, InvalidArgument, "add_final_leaf_hook", "the hook is empty");
  const auto& list = ensure_leaf_state(leaf).final_hooks.ensure();
  return removable(list, list->add(std::move(hook)));
}

HookHandle add_grad_hook(const Tensor& x, std::function<Tensor(const Tensor& grad)> hook) {
  WEFT_CHECK(x.requires_grad(), InvalidArgument, "add_grad_hook",
             "needs a tensor that requires a gradient");
  WEFT_CHECK(hook, InvalidArgument, "add_grad_hook", "the hook is empty");
  const Meta& meta = *meta_of(x);
  if (meta.base) follow_base(x);  // a backward reaches the view as a part of the base as it is now
  const auto& list =
      meta.producer ? meta.producer->ensure_hooks() : ensure_leaf_state(x).grad_hooks.ensure();
  return removable(list, list->add({meta.output, std::move(hook)}));
}

}  // namespace weft::autograd
