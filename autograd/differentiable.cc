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

namespace {

class InPlaceOfNode final : public DifferentiableNode {
 public:
  explicit InPlaceOfNode(const Tensor& x) : DifferentiableNode("alias") { add_input(x); }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, grads.y());
  }
};

// Whether the leaf still is what was saved: its value may have been replaced or converted since.
bool is_same(const Tensor& leaf, const Tensor& saved) {
  return leaf.storage() == saved.storage() && leaf.offset() == saved.offset() &&
         leaf.dtype() == saved.dtype() && leaf.shape() == saved.shape();
}

}  // namespace

Tensor in_place_of(const Tensor& x, const Tensor& value) {
  return record<InPlaceOfNode>(raw::alias(value), x);
}

Tensor SavedTensor::with_history(const Node& node) const {
  if (place_ == 0) return tensor_;
  const bool is_output = place_ < 0;
  if (!is_output && node.edges()[place_ - 1].empty()) return tensor_;
  if (!is_output && node.edges()[place_ - 1].is_leaf()) {
    auto* const impl = static_cast<TensorImpl*>(node.edges()[place_ - 1].target());
    const Tensor leaf{intrusive_ptr<TensorImpl>(impl)};
    return is_same(leaf, tensor_) ? leaf : in_place_of(leaf, tensor_);
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
