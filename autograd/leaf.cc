// Gradients of leaves: how they are summed, and the Tensor methods that return them.
#include "weft/autograd/autograd.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

namespace autograd {

namespace {

// The stride of a dimension of length 1 does not matter.
bool same_strides(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return false;
  for (int i = 0; i < a.dim(); ++i) {
    if (a.shape()[i] > 1 && a.strides()[i] != b.strides()[i]) return false;
  }
  return true;
}

// Whether grad's memory may become .grad() itself.
bool can_steal(const Tensor& leaf, const Tensor& grad) {
  return may_write(grad) && !grad.impl()->autograd &&
         (same_strides(leaf, grad) || !leaf.is_dense());
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

void LeafState::zero(const Tensor& leaf) {
  std::lock_guard lock(mutex_);
  if (supplied_) {
    content_ = Content::forgotten;
  } else {
    grad_ = Tensor();
  }
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
  const bool records = thread_state().create_graph;
  WEFT_CHECK(!records || !supplied_, Unsupported, "backward", "create_graph for a leaf (",
             leaf.shape(),
             ") whose gradient lives in memory that was given (set_grad_storage, as a bucket of "
             "DDP): use grad(), which leaves .grad() alone");
  if (records) {
    grad_ = grad_.defined() ? add(grad_, grad) : grad.clone();
  } else if (supplied_ && content_ != Content::gradient) {
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
  autograd::forget_plain_base(*this);
  // In the other order, another thread might find a leaf without a place for its gradient.
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

Tensor Tensor::detach() const {
  Tensor y = autograd::observed("detach", {}, raw::alias(*this), *this);
  if (autograd::meta_of(y)) autograd::mark_view(y, *this);
  return y;
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  autograd::backward({this, 1}, {&gradient, 1}, retain_graph, create_graph);
}

}  // namespace weft
