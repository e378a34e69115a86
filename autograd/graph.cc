#include "weft/autograd/graph.h"

#include "weft/autograd/thread_tape.h"
#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

constinit ThreadLocal<ThreadTape> tape_of_thread;

Edge::Edge(const Tensor& x) {
  const Meta* meta = meta_of(x);
  if (!meta || !meta->requires_grad) return;
  if (meta->base) [[unlikely]]
    follow_base(x);
  if (meta->producer) {
    target_ = meta->producer;
    output_ = meta->output;
  } else {
    target_ = intrusive_ptr<TensorImpl>(x.impl());
    is_leaf_ = true;
  }
}

SavedTensor::SavedTensor(const Tensor& x, int place)
    : tensor_(raw::alias(x)), version_(x.storage()->version()), place_(place) {}

void SavedTensor::refuse(const Node& node) const {
  if (!tensor_.defined()) node.throw_freed();
  WEFT_THROW(InvalidArgument, node.op(), "a tensor saved for the backward of ", node.op(), " (",
             tensor_.shape(), ") was changed in place afterwards: it is at version ",
             tensor_.storage()->version(), ", expected ", version_,
             "; change a clone instead, or write after backward");
}

Node::Node(const char* op, int outputs) : op_(op), path_(interned_path()), outputs_(outputs) {
  ThreadTape& tape = *tape_of_thread;
  sequence_ = ++tape.last_sequence;
  observed_ = tape.observer != nullptr;
}

SavedTensor Node::save_as(const Tensor& x, int place) {
  saves_ = true;
  const Meta* meta = meta_of(x);
  const bool is_weight = meta && meta->requires_grad && !meta->producer;
  if (!is_weight) saved_bytes_ += x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
  return SavedTensor(x, place);
}

Node::~Node() {
  intrusive_ptr<Node>*& release_list = tape_of_thread->release_list;
  intrusive_ptr<Node> local;
  const bool outermost = !release_list;
  if (outermost) release_list = &local;
  for (Edge* edge = edges_; edge != edges_ + edge_count_; ++edge) {
    const bool is_node = !edge->empty() && !edge->is_leaf();
    intrusive_ptr<RefCounted> target = edge->release();
    // A node held only by this edge goes to the list; all other targets just lose a reference.
    if (!is_node || target->use_count() > 1) continue;
    intrusive_ptr<Node> node(static_cast<Node*>(target.get()));
    node->next_released_ = std::move(*release_list);
    *release_list = std::move(node);
  }
  if (edges_ != inline_edges_.data()) {
    for (Edge* edge = edges_; edge != edges_ + edge_count_; ++edge) edge->~Edge();
    pool_free(edges_, edge_capacity_ * sizeof(Edge));
  }
  if (!outermost) return;
  while (local) {
    intrusive_ptr<Node> node = std::move(local);
    local = std::move(node->next_released_);
  }
  release_list = nullptr;
}

void Node::push(Edge edge) {
  if (edge_count_ == edge_capacity_) {
    const int capacity = 2 * edge_capacity_;
    auto* grown = static_cast<Edge*>(pool_allocate(capacity * sizeof(Edge)));
    for (int i = 0; i < capacity; ++i) {
      ::new (grown + i) Edge(i < edge_count_ ? std::move(edges_[i]) : Edge());
    }
    if (edges_ != inline_edges_.data()) {
      for (int i = 0; i < edge_capacity_; ++i) edges_[i].~Edge();
      pool_free(edges_, edge_capacity_ * sizeof(Edge));
    }
    edges_ = grown;
    edge_capacity_ = capacity;
  }
  edges_[edge_count_++] = std::move(edge);
}

void Node::throw_freed() const {
  WEFT_THROW(InvalidArgument, op_,
             "an earlier backward freed what this part of the tape had saved; pass "
             "retain_graph=true to that backward, run the forward again, or detach() before that "
             "backward what it need not pass through");
}

void Node::begin_use(bool last) {
  std::uint32_t uses = uses_.load(std::memory_order_relaxed);
  do {
    if (uses & kEnded) throw_freed();
  } while (!uses_.compare_exchange_weak(uses, (uses + 1) | (last ? kEnded : 0),
                                        std::memory_order_acq_rel, std::memory_order_relaxed));
}

void Node::end_use() {
  // The only use, and no further one may begin: this usual case saves a second atomic change.
  if (uses_.load(std::memory_order_acquire) == (kEnded | 1)) {
    release_saved();
    uses_.store(kEnded, std::memory_order_release);
  } else if (uses_.fetch_sub(1, std::memory_order_acq_rel) == (kEnded | 1)) {
    release_saved();
  }
}

namespace {

Meta& ensure_meta(TensorImpl& impl) {
  return static_cast<Meta&>(impl.autograd.get_or_make([] { return std::make_unique<Meta>(); }));
}

}  // namespace

Meta& ensure_meta(const Tensor& x) {
  x.shape();  // throws when undefined
  return ensure_meta(*x.impl());
}

LeafState& ensure_leaf_state(const Tensor& x) {
  return ensure_meta(x).leaf.get_or_make([] { return std::make_unique<LeafState>(); });
}

bool recording_any(std::span<const Tensor> operands) {
  if (!thread_state().grad_enabled) return false;
  for (const Tensor& x : operands) {
    if (requires_grad(x)) return true;
  }
  return false;
}

void attach(const Tensor& y, intrusive_ptr<Node> node, int output) {
  node->device_ = y.device();
  if (output == 0) node->shape_ = y.shape();
  if (node->device_.is_cuda()) node->stream_ = current_stream(node->device_).handle;
  if (Tracer* tracer = thread_state().tracer) [[unlikely]] {
    if (!node->trace_flow_)
      node->trace_flow_ = tracer->add_result(node->op_, y.device(), y.shape());
  }
  if (node->observed_) [[unlikely]]
    node->tell_of_result(y, output);
  Meta& meta = ensure_meta(*y.impl());
  meta.output = output;
  meta.producer = std::move(node);
  meta.requires_grad.store(true, std::memory_order_release);
}

void mark_view(const Tensor& y, const Tensor& x) {
  if (!(y.storage() == x.storage())) return;
  Meta& view = *meta_of(y);
  const Meta* of = meta_of(x);
  view.base = of && of->base ? of->base : intrusive_ptr<TensorImpl>(x.impl());
  const Meta* base = meta_of(view.base.get());
  view.base_producer = base ? base->producer.get() : nullptr;
}

}  // namespace weft::autograd
