// Gradients of leaves that are written by other code, or whose memory other code owns.
#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft {

namespace autograd {

namespace {

void check_like(const char* op, const char* what, const Tensor& leaf, const Tensor& x) {
  WEFT_CHECK(x.shape() == leaf.shape(), Shape, op, what, ": got ", x.shape(), ", the tensor is ",
             leaf.shape());
  WEFT_CHECK(x.dtype() == leaf.dtype(), Dtype, op, what, ": got ", x.dtype(), ", the tensor is ",
             leaf.dtype());
  WEFT_CHECK(x.device() == leaf.device(), Device, op, what, " is on ", x.device(),
             ", the tensor on ", leaf.device(), "; move it there with to(device)");
}

}  // namespace

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

void LeafState::mark_written(const Tensor& leaf) {
  std::lock_guard lock(mutex_);
  WEFT_CHECK(grad_.defined(), InvalidArgument, "mark_grad_written", "the leaf (", leaf.shape(),
             ") has no gradient that could have been written; give it memory with "
             "set_grad_storage, or a gradient with set_grad");
  content_ = Content::gradient;
  set_in_replays(leaf);
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

}  // namespace autograd

void Tensor::set_grad(const Tensor& grad) const {
  WEFT_CHECK(is_leaf(), InvalidArgument, "set_grad",
             "only leaves have a gradient; this tensor is the result of an operation");
  autograd::ensure_leaf_state(*this).set_grad(*this, grad);
}

}  // namespace weft
