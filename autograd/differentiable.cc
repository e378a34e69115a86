#include "weft/autograd/differentiable.h"

#include "weft/tensor/ops.h"

namespace weft::autograd {

int Node::place_of(const Tensor& x) const {
  const Meta* const meta = meta_of(x);
  if (!meta || !meta->requires_grad) return 0;
  const RefCounted* target = x.impl();
  if (meta->producer) target = meta->producer.get();
  for (int i = 0; i < edge_count_; ++i) {
    if (edges_[i].target() == target && edges_[i].output() == meta->output) return 1 + i;
  }
  return 0;
}

Tensor SavedTensor::with_history(const Node& node) const {
  if (place_ == 0) return tensor_;
  const bool is_output = place_ < 0;
  if (!is_output && node.edges()[place_ - 1].empty()) return tensor_;
  // A leaf is its own history.
  if (!is_output && node.edges()[place_ - 1].is_leaf()) {
    auto* const leaf = static_cast<TensorImpl*>(node.edges()[place_ - 1].target());
    return Tensor(intrusive_ptr<TensorImpl>(leaf));
  }
  Tensor x = raw::alias(tensor_);
  Meta& meta = ensure_meta(x);
  if (is_output) {
    meta.producer = intrusive_ptr<Node>(const_cast<Node*>(&node));
    meta.output = -1 - place_;
  } else {
    const Edge& edge = node.edges()[place_ - 1];
    meta.producer = intrusive_ptr<Node>(static_cast<Node*>(edge.target()));
    meta.output = edge.output();
  }
  meta.requires_grad.store(true, std::memory_order_release);
  return x;
}

}  // namespace weft::autograd
