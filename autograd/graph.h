// The tape: the nodes of recorded operations, and the autograd data of a tensor.
//
//   y = mul(a, b)      y.impl()->autograd: Meta{producer -> MulNode}
//                      MulNode: edges to a's and b's producers (or the leaves a, b themselves),
//                               saved tensors, the rule apply()
// Edges own their targets. So an output keeps its whole history alive, and nothing else does.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "weft/autograd/hook_list.h"
#include "weft/core/base/lazy.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

class Node;
class Run;
class TapeObserver;
struct Description;

/// Where an operand's gradient goes: to an output of a node, or to a leaf. Empty if it needs none.
class Edge {
 public:
  Edge() = default;
  /// A view whose base was changed in place, on the tape, becomes a part of the changed base.
  explicit Edge(const Tensor& x);

  bool empty() const { return !target_; }
  bool is_leaf() const { return is_leaf_; }
  RefCounted* target() const { return target_.get(); }
  int output() const { return output_; }
  /// Returns the target and leaves the edge empty.
  intrusive_ptr<RefCounted> release() { return std::move(target_); }

 private:
  intrusive_ptr<RefCounted> target_;  // a Node, or the leaf's TensorImpl
  std::int32_t output_ = 0;
  bool is_leaf_ = false;
};

/// The target of an edge in a running backward. task -1: nobody needs that gradient.
struct Link {
  std::int32_t task = -1;
  std::int32_t output = 0;
};

/// The argument of a rule: the gradients of the outputs, and places for those of the inputs.
class Gradients {
 public:
  Gradients(std::span<Tensor> of_outputs, std::span<Tensor> of_inputs, std::span<const Link> links,
            bool accumulates, bool before_relu, Run& run)
      : of_outputs_(of_outputs),
        of_inputs_(of_inputs),
        links_(links),
        accumulates_(accumulates),
        before_relu_(before_relu),
        run_(run) {}

  /// dL/d(output). Undefined means zero; that happens only in nodes with several outputs.
  const Tensor& y(int output = 0) const { return of_outputs_[std::size_t(output)]; }
  /// Moves y() out. The rule may overwrite it if nobody else holds it.
  Tensor take(int output = 0) { return std::move(of_outputs_[std::size_t(output)]); }
  int outputs() const { return static_cast<int>(of_outputs_.size()); }
  int inputs() const { return static_cast<int>(of_inputs_.size()); }
  /// Whether dL/d(input) is needed.
  bool wants(int input) const { return links_[std::size_t(input)].task >= 0; }
  /// True in backward(), which adds to the .grad() of leaves; false in grad().
  bool accumulates() const { return accumulates_; }
  /// Sets dL/d(input). A gradient that is not set counts as zero.
  void set(int input, Tensor grad) { of_inputs_[std::size_t(input)] = std::move(grad); }
  /// relu_mask() of the node that made the input, if set_past_relu() may follow (hand_over.cc).
  Tensor relu_mask(int input) const;
  /// Sets dL/d(what the input was before the relu of its node), whose rule then gets that.
  void set_past_relu(int input, Tensor grad);
  bool before_relu() const { return before_relu_; }

 private:
  std::span<Tensor> of_outputs_;
  std::span<Tensor> of_inputs_;
  std::span<const Link> links_;
  bool accumulates_, before_relu_;
  Run& run_;
};

/// A tensor that a rule needs. It shares the memory of the tensor but has no history. So a node
/// that saves its own output makes no reference cycle, and later changes of the tensor's metadata
/// do no harm. Which input or output it is tells its history to a backward that is recorded.
class SavedTensor {
 public:
  SavedTensor() = default;

  bool defined() const { return tensor_.defined(); }
  void reset() { tensor_ = Tensor(); }
  /// Throws InvalidArgument if a backward freed it, or if it was changed in place since.
  Tensor get(const Node& node) const {
    if (!tensor_.defined() || tensor_.storage()->version() != version_) [[unlikely]]
      refuse(node);
    return thread_state().create_graph ? with_history(node) : tensor_;
  }

 private:
  friend class Node;
  SavedTensor(const Tensor& x, int place);
  [[noreturn]] void refuse(const Node& node) const;
  Tensor with_history(const Node& node) const;

  Tensor tensor_;
  std::uint32_t version_ = 0;
  std::int32_t place_ = 0;  // the node's input i: 1 + i; its output k: -1 - k; a constant: 0
};

/// A recorded operation. A subclass adds saved tensors and the rule.
class Node : public RefCounted, public Pooled {
 public:
  /// Releases the history without recursion, so it may be of any length.
  ~Node() override;

  /// The backward rule: computes the gradients of the wanted inputs from those of the outputs. It
  /// runs with gradients disabled and under the module path of the recording.
  virtual void apply(Gradients& grads) = 0;

  const char* op() const { return op_; }
  /// Whether the rule may start a backward of its own.
  bool nests() const { return nests_; }
  /// Whether the rule may run in a backward that is recorded (differentiable.h).
  virtual bool differentiable() const { return false; }
  /// Where the relu at the operation's end let values pass, if known (raw::matmul_where).
  virtual Tensor relu_mask() const { return {}; }
  /// Says what the operation was, for an exporter.
  virtual void describe(Description&) const {}
  const PathNode* path() const { return path_; }
  Device device() const { return device_; }
  /// The stream of the recorded operation. The rule runs there, too.
  Stream stream() const { return {device_, stream_}; }
  int outputs() const { return outputs_; }
  /// Of the result, the first one if there are several.
  const Shape& shape() const { return shape_; }
  /// Of the tensors that the rule needs, also after a backward has freed them; without leaves that
  /// require a gradient.
  std::int64_t saved_bytes() const { return saved_bytes_; }
  std::span<const Edge> edges() const { return {edges_, static_cast<std::size_t>(edge_count_)}; }
  /// Grows with every node of a thread. The node recorded last runs first; this also fixes the
  /// order in which gradients are added.
  std::uint64_t sequence() const { return sequence_; }
  /// Whether the saved tensors are freed, so that the rule cannot run again.
  bool freed() const { return uses_.load(std::memory_order_acquire) == kEnded; }
  /// Throws InvalidArgument: "... pass retain_graph=true ...".
  [[noreturn]] void throw_freed() const;
  /// Id of the arrow in a trace that leads from this node's forward to its backward; 0: none.
  std::uint64_t trace_flow() const { return trace_flow_; }

  /// Null until the first hook is added.
  OutputHooks* hooks() const { return hooks_.get(); }
  const std::shared_ptr<OutputHooks>& ensure_hooks() { return hooks_.ensure(); }

 protected:
  /// `op` is a literal, or another string that lives as long as the process.
  explicit Node(const char* op, int outputs = 1);

  /// To be called once per input of the rule, in their order.
  void add_input(const Tensor& x) {
    push(Edge(x));
    if (observed_) [[unlikely]]
      tell_of_input(x);
  }
  /// Whether an input that was added needs a gradient. What a node saves depends on it.
  bool needs(int input) const { return !edges_[input].empty(); }
  /// An input that was added, or a constant.
  SavedTensor save(const Tensor& x) { return save_as(x, place_of(x)); }
  /// The value of an input that was added, in other memory.
  SavedTensor save_copy(const Tensor& x, int input) { return save_as(x, 1 + input); }
  SavedTensor save_output(const Tensor& y, int output = 0) { return save_as(y, -1 - output); }
  virtual void release_saved() {}
  void set_nests() { nests_ = true; }
  /// For nodes that learn the number of their outputs after construction.
  void set_outputs(int outputs) { outputs_ = outputs; }

 private:
  friend class NodeUse;
  friend void attach(const Tensor& y, intrusive_ptr<Node> node, int output);
  static constexpr std::uint32_t kEnded = 1u << 31;
  static constexpr int kInlineEdges = 4;
  int place_of(const Tensor& x) const;
  SavedTensor save_as(const Tensor& x, int place);
  void push(Edge edge);
  // To the observer of this thread, if it has one still (description.h).
  void tell_of_input(const Tensor& x) const;
  void tell_of_result(const Tensor& y, int output) const;
  void begin_use(bool last);
  void end_use();

  const char* op_;
  const PathNode* path_;  // interned; null outside any module
  Shape shape_;
  std::int64_t saved_bytes_ = 0;
  std::uint64_t sequence_;
  std::uint64_t trace_flow_ = 0;
  Device device_;
  void* stream_ = nullptr;
  std::int32_t outputs_;
  std::int32_t edge_count_ = 0;
  std::int32_t edge_capacity_ = kInlineEdges;
  bool saves_ = false;
  bool nests_ = false;
  bool observed_;
  std::atomic<std::uint32_t> uses_{0};  // running uses; with kEnded set no further one may begin
  std::array<Edge, kInlineEdges> inline_edges_;
  Edge* edges_ = inline_edges_.data();
  LazyHooks<OutputHook> hooks_;
  intrusive_ptr<Node> next_released_;  // next in the list of nodes to delete
};

/// One use of a node's rule; uses in several threads may overlap. The first use that does not
/// retain the tape ends the node: every use that begins later gets the error of throw_freed(). The
/// use that finishes last frees the saved tensors.
class NodeUse {
 public:
  NodeUse(Node& node, bool retain) : node_(node), counts_(node.saves_), last_(!retain) {
    if (counts_) node_.begin_use(last_);
  }
  /// If finish() was not called, the rule failed, and the node stays usable.
  ~NodeUse() {
    if (!counts_) return;
    if (last_ && !finished_) node_.uses_.fetch_sub(Node::kEnded, std::memory_order_acq_rel);
    node_.end_use();
  }
  NodeUse(const NodeUse&) = delete;
  NodeUse& operator=(const NodeUse&) = delete;
  /// To be called when the rule has run.
  void finish() { finished_ = true; }

 private:
  Node& node_;
  const bool counts_, last_;
  bool finished_ = false;
};

/// The gradient of a leaf, the owner of its memory, and the hooks of the leaf.
class LeafState : public Pooled {
 public:
  Tensor grad();
  void set_grad(const Tensor& leaf, const Tensor& grad);
  void set_storage(const Tensor& leaf, const Tensor& memory);
  void zero(const Tensor& leaf);
  void mark_written(const Tensor& leaf);
  /// Adds a contribution. Several threads may call it at once.
  void accumulate(const Tensor& leaf, Tensor grad);

  LazyHooks<LeafHook> leaf_hooks;
  LazyHooks<LeafHook> final_hooks;
  LazyHooks<OutputHook> grad_hooks;

 private:
  // Content of supplied memory: old bytes that count as zero, zeros, or a gradient.
  enum class Content : std::uint8_t { forgotten, zeros, gradient };

  // For graph::capture. Before a contribution: registers that replays must find the gradient at the
  // same address. After a change: registers that replays make it, too.
  void check_in_replays(const Tensor& leaf);
  void set_in_replays(const Tensor& leaf);
  // The address of the gradient, or 0 if there is none.
  std::int64_t address() const;

  std::mutex mutex_;
  Tensor grad_;  // the supplied memory, where there is one
  bool supplied_ = false;
  Content content_ = Content::forgotten;
  std::uint64_t set_in_ = 0;  // id of the last capture whose body changed the gradient
};

/// The autograd data of a tensor.
class Meta final : public AutogradMeta {
 public:
  std::atomic<bool> requires_grad = false;
  std::int32_t output = 0;
  intrusive_ptr<Node> producer;  // null: a leaf
  Lazy<LeafState> leaf;
  /// Of a view: its base, and the producer of the base when the view was taken.
  intrusive_ptr<TensorImpl> base;
  std::atomic<const Node*> base_producer = nullptr;
};

inline Meta* meta_of(const TensorImpl* impl) {
  return impl ? static_cast<Meta*>(impl->autograd.get()) : nullptr;
}
inline Meta* meta_of(const Tensor& x) { return meta_of(x.impl()); }
Meta& ensure_meta(const Tensor& x);
LeafState& ensure_leaf_state(const Tensor& x);

inline bool requires_grad(const Tensor& x) {
  const Meta* meta = meta_of(x);
  return meta && meta->requires_grad.load(std::memory_order_acquire);
}

/// Whether an operation on these operands is recorded.
template <class... Operands>
bool recording(const Operands&... operands) {
  return thread_state().grad_enabled && (requires_grad(operands) || ...);
}
bool recording_any(std::span<const Tensor> operands);

/// Makes y the given output of the node. An earlier history of y lives on only in the node's edges.
void attach(const Tensor& y, intrusive_ptr<Node> node, int output = 0);
/// If y shares x's memory, remembers x as y's base, whose history a recorded write to y changes.
void mark_view(const Tensor& y, const Tensor& x);
/// Called where the history of a view is needed: if its base was written to since, the view becomes
/// a part of the base as it is now. Throws Unsupported if elements of the view share memory.
void follow_base(const Tensor& view);

/// Puts y on the tape with a new node Rule(args...).
template <class Rule, class... Args>
Tensor record(Tensor y, Args&&... args) {
  attach(y, make_intrusive<Rule>(std::forward<Args>(args)...));
  return y;
}

}  // namespace weft::autograd
