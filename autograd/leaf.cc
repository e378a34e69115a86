// Gradients of leaves: accumulation, owner-supplied memory, hooks, and the Tensor methods on them.
#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

namespace autograd {

namespace {

// The stride of a dimension of length 1 is never taken.
bool same_strides(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return false;
  for (int i = 0; i < a.dim(); ++i) {
    if (a.shape()[i] > 1 && a.strides()[i] != b.strides()[i]) return false;
  }
  return true;
}

// Whether grad's memory may become .grad() itself: nobody else can see it.
bool can_steal(const Tensor& leaf, const Tensor& grad) {
  return grad.impl()->use_count() == 1 && grad.storage()->use_count() == 1 &&
         grad.storage()->owned() && !grad.impl()->autograd && grad.is_dense() &&
         (same_strides(leaf, grad) || !leaf.is_dense());
}

void check_like(const char* op, const char* what, const Tensor& leaf, const Tensor& x) {
  WEFT_CHECK(x.shape() == leaf.shape(), Shape, op, what, ": got ", x.shape(), ", the tensor is ",
             leaf.shape());
  WEFT_CHECK(x.dtype() == leaf.dtype(), Dtype, op, what, ": got ", x.dtype(), ", the tensor is ",
             leaf.dtype());
  WEFT_CHECK(x.device() == leaf.device(), Device, op, what, " is on ", x.device(),
             ", the tensor on ", leaf.device(), "; move it there with to(device)");
}

}  // namespace

Tensor LeafState::grad() {
  std::lock_guard lock(mutex_);
  if (supplied_ && content_ == Content::forgotten) {
    raw::zero_(grad_);
    content_ = Content::zeros;
  }
  return grad_;
}

void LeafState::set_grad(const Tensor& leaf, const Tensor& grad) {
  if (!grad.defined()) return zero(leaf);
  check_like("set_grad", "gradient", leaf, grad);
  std::lock_guard lock(mutex_);
  if (supplied_) {
    raw::copy_(grad_, grad);
    content_ = Content::gradient;
  } else {
    grad_ = meta_of(grad) ? raw::alias(grad) : grad;
  }
  set_in_replays(leaf);
}

void LeafState::set_storage(const Tensor& leaf, const Tensor& memory) {
  if (memory.defined()) check_like("set_grad_storage", "memory", leaf, memory);
  std::lock_guard lock(mutex_);
  const bool holds = supplied_ ? content_ == Content::gradient : grad_.defined();
  if (!memory.defined()) {
    if (!supplied_) return;
    grad_ = holds ? raw::clone(grad_) : Tensor();
    supplied_ = false;
    return;
  }
  if (holds) raw::copy_(memory, grad_);
  grad_ = raw::alias(memory);
  supplied_ = true;
  content_ = holds ? Content::gradient : Content::forgotten;
}

void LeafState::zero(const Tensor& leaf) {
  std::lock_guard lock(mutex_);
  if (supplied_) {
    content_ = Content::forgotten;
  } else {
    grad_ = Tensor();
  }
  set_in_replays(leaf);
}

void LeafState::mark_written(const Tensor& leaf) {
  std::lock_guard lock(mutex_);
  WEFT_CHECK(grad_.defined(), InvalidArgument, "mark_grad_written", "the leaf (", leaf.shape(),
             ") has no gradient that could have been written; give it memory with "
             "set_grad_storage, or a gradient with set_grad");
  content_ = Content::gradient;
  set_in_replays(leaf);
}

std::int64_t LeafState::address() const {
  if (!grad_.defined() || (supplied_ && content_ != Content::gradient)) return 0;
  return reinterpret_cast<std::intptr_t>(grad_.storage()->data()) +
         grad_.offset() * static_cast<std::int64_t>(size_of(grad_.dtype()));
}

void LeafState::check_in_replays(const Tensor& leaf) {
  graph::Capture* const capture = thread_state().capture;
  if (!capture || set_in_ == capture->id()) return;
  capture->constant("backward", "the gradient it adds to",
                    [leaf] { return ensure_leaf_state(leaf).address(); });
}

void LeafState::set_in_replays(const Tensor& leaf) {
  graph::Capture* const capture = thread_state().capture;
  if (!capture) return;
  set_in_ = capture->id();
  capture->on_host_state(this, [leaf, grad = grad_, content = content_] {
    LeafState& state = ensure_leaf_state(leaf);
    std::lock_guard lock(state.mutex_);
    if (!state.supplied_) state.grad_ = grad;
    state.content_ = content;
  });
}

void LeafState::accumulate(const Tensor& leaf, Tensor grad) {
  std::lock_guard lock(mutex_);
  check_in_replays(leaf);
  if (supplied_ && content_ != Content::gradient) {
    raw::copy_(grad_, grad);
    content_ = Content::gradient;
  } else if (grad_.defined()) {
    raw::add_scaled_(grad_, 1, grad);
  } else if (can_steal(leaf, grad)) {
    grad_ = std::move(grad);
  } else {
    Tensor own = empty_like(leaf);
    raw::copy_(own, grad);
    grad_ = std::move(own);
  }
  set_in_replays(leaf);
}

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
  const auto& list =
      meta.producer ? meta.producer->ensure_hooks() : ensure_leaf_state(x).grad_hooks.ensure();
  return removable(list, list->add({meta.output, std::move(hook)}));
}

void set_grad_storage(const Tensor& leaf, const Tensor& memory) {
  WEFT_CHECK(leaf.is_leaf(), InvalidArgument, "set_grad_storage",
             "only leaves have a gradient to store; this tensor is the result of an operation");
  ensure_leaf_state(leaf).set_storage(leaf, memory);
}

void mark_grad_written(const Tensor& leaf) {
  WEFT_CHECK(leaf.is_leaf(), InvalidArgument, "mark_grad_written",
             "only leaves have a gradient; this tensor is the result of an operation");
  ensure_leaf_state(leaf).mark_written(leaf);
}

void zero_grad(const Tensor& leaf) {
  leaf.shape();  // throws when undefined
  if (const Meta* meta = meta_of(leaf); meta && meta->leaf) meta->leaf->zero(leaf);
}

}  // namespace autograd

bool Tensor::requires_grad() const {
  get();
  return autograd::requires_grad(*this);
}

const Tensor& Tensor::set_requires_grad(bool requires_grad) const {
  WEFT_CHECK(is_leaf(), InvalidArgument, "set_requires_grad",
             "only a leaf can be told; this tensor is the result of an operation (detach() gives a "
             "leaf)");
  WEFT_CHECK(!requires_grad || is_floating(dtype()), Dtype, "set_requires_grad",
             "only floating tensors have gradients, this one is ", dtype());
  if (!requires_grad && !autograd::meta_of(*this)) return *this;
  // The other way round, another thread might find a leaf without a place for its gradient.
  autograd::ensure_leaf_state(*this);
  autograd::ensure_meta(*this).requires_grad.store(requires_grad, std::memory_order_release);
  return *this;
}

bool Tensor::is_leaf() const {
  get();
  const autograd::Meta* meta = autograd::meta_of(*this);
  return !meta || !meta->producer;
}

Tensor Tensor::grad() const {
  get();
  const autograd::Meta* meta = autograd::meta_of(*this);
  return meta && meta->leaf ? meta->leaf->grad() : Tensor();
}

void Tensor::set_grad(const Tensor& grad) const {
  WEFT_CHECK(is_leaf(), InvalidArgument, "set_grad",
             "only leaves have a gradient; this tensor is the result of an operation");
  autograd::ensure_leaf_state(*this).set_grad(*this, grad);
}

Tensor Tensor::detach() const { return raw::alias(*this); }

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  autograd::backward({this, 1}, {&gradient, 1}, retain_graph);
}

}  // namespace weft
