// The tape: what a recorded operation leaves behind, and what autograd hangs on a tensor.
//
//   y = mul(a, b)      y.impl()->autograd: Meta{producer -> MulNode}
//                      MulNode: edges to a's and b's producers (or the leaves a, b themselves),
//                               saved tensors, the rule apply()
// Edges own what they point to, so an output keeps its whole history alive and nothing else does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "weft/core/lazy.h"
#include "weft/core/pool.h"
#include "weft/core/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

class Node;

/// Where the gradient of one operand goes: to an output of another node, or to a leaf. Empty when
/// the operand needs none.
class Edge {
 public:
  Edge() = default;
  /// Throws Unsupported when x is a view whose base got another history since it was taken.
  explicit Edge(const Tensor& x);

  bool empty() const { return !target_; }
  bool is_leaf() const { return is_leaf_; }
  RefCounted* target() const { return target_.get(); }
  int output() const { return output_; }
  /// Hands the target over; the edge is empty then.
  intrusive_ptr<RefCounted> release() { return std::move(target_); }

 private:
  intrusive_ptr<RefCounted> target_;  // a Node, or the leaf's TensorImpl
  std::int32_t output_ = 0;
  bool is_leaf_ = false;
};

/// Functions in the order of their addition; calls, additions and removals may overlap.
template <class F>
class HookList {
 public:
  std::uint64_t add(F f) {
    std::lock_guard lock(mutex_);
    entries_.push_back({++last_id_, std::make_shared<F>(std::move(f))});
    return last_id_;
  }
  void remove(std::uint64_t id) {
    std::shared_ptr<F> gone;  // ends without the lock: what it owns may remove others
    std::lock_guard lock(mutex_);
    const auto at = std::ranges::find(entries_, id, &Entry::id);
    if (at == entries_.end()) return;
    gone = std::move(at->f);
    entries_.erase(at);
  }
  /// call(f) for each; one that was removed meanwhile is left out.
  template <class Call>
  void for_each(Call&& call) {
    std::uint64_t done = 0;
    while (const std::shared_ptr<F> f = next(done)) call(*f);
  }

 private:
  struct Entry {
    std::uint64_t id;
    std::shared_ptr<F> f;
  };

  std::shared_ptr<F> next(std::uint64_t& done) {
    std::lock_guard lock(mutex_);
    for (const Entry& e : entries_) {
      if (e.id <= done) continue;
      done = e.id;
      return e.f;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::uint64_t last_id_ = 0;
  std::vector<Entry> entries_;  // ascending ids
};

/// A list made when the first function comes; the handles of its functions do not keep it alive.
template <class F>
class LazyHooks {
 public:
  /// Null while nobody added one.
  HookList<F>* get() const {
    const std::shared_ptr<HookList<F>>* list = list_.get();
    return list ? list->get() : nullptr;
  }
  const std::shared_ptr<HookList<F>>& ensure() {
    return list_.get_or_make([] {
      return std::make_unique<std::shared_ptr<HookList<F>>>(std::make_shared<HookList<F>>());
    });
  }

 private:
  Lazy<std::shared_ptr<HookList<F>>> list_;
};

struct OutputHook {
  int output;
  std::function<Tensor(const Tensor&)> hook;
};
using OutputHooks = HookList<OutputHook>;

/// Where a link of the running backward leads; task -1: nobody wants that gradient.
struct Link {
  std::int32_t task = -1;
  std::int32_t output = 0;
};

/// What a rule is given and what it fills in.
class Gradients {
 public:
  Gradients(std::span<Tensor> of_outputs, std::span<Tensor> of_inputs, std::span<const Link> links,
            bool accumulates)
      : of_outputs_(of_outputs), of_inputs_(of_inputs), links_(links), accumulates_(accumulates) {}

  /// dL/d(output); undefined, meaning zero, only in nodes of several outputs.
  const Tensor& y(int output = 0) const { return of_outputs_[output]; }
  /// y(), given away: what nobody else holds the rule may write over.
  Tensor take(int output = 0) { return std::move(of_outputs_[output]); }
  int outputs() const { return static_cast<int>(of_outputs_.size()); }
  int inputs() const { return static_cast<int>(of_inputs_.size()); }
  bool wants(int input) const { return links_[input].task >= 0; }
  /// Whether leaves get their gradients (backward), and not only the inputs of a grad().
  bool accumulates() const { return accumulates_; }
  /// dL/d(input); what is left undefined counts as zero.
  void set(int input, Tensor grad) { of_inputs_[input] = std::move(grad); }

 private:
  std::span<Tensor> of_outputs_;
  std::span<Tensor> of_inputs_;
  std::span<const Link> links_;
  bool accumulates_;
};

/// A tensor a rule needs. Holds the memory, not the tensor: no history, so no cycle through the
/// node's own output, and a later change of the handle's metadata does no harm.
class SavedTensor {
 public:
  SavedTensor() = default;

  bool defined() const { return tensor_.defined(); }
  void reset() { tensor_ = Tensor(); }
  /// Throws InvalidArgument when a backward freed it, or when it was changed in place since.
  const Tensor& get(const Node& node) const {
    if (!tensor_.defined() || tensor_.storage()->version() != version_) [[unlikely]]
      refuse(node);
    return tensor_;
  }

 private:
  friend class Node;
  explicit SavedTensor(const Tensor& x);
  [[noreturn]] void refuse(const Node& node) const;

  Tensor tensor_;
  std::uint32_t version_ = 0;
};

/// A recorded operation. A subclass adds saved tensors and the rule.
class Node : public RefCounted, public Pooled {
 public:
  /// Releases the history without recursion, however long it is.
  ~Node() override;

  /// The rule: gradients of the wanted inputs from those of the outputs. Gradients are off, and the
  /// thread's module path is that of the recording.
  virtual void apply(Gradients& grads) = 0;

  const char* op() const { return op_; }
  /// Whether the rule may start a backward of its own.
  bool nests() const { return nests_; }
  const PathNode* path() const { return path_; }
  Device device() const { return device_; }
  /// Where the recorded operation ran; its rule runs there too.
  Stream stream() const { return {device_, stream_}; }
  int outputs() const { return outputs_; }
  std::span<const Edge> edges() const { return {edges_, static_cast<std::size_t>(edge_count_)}; }
  /// Grows with every node of a thread: what was recorded last runs first, and the order of
  /// sums follows from it.
  std::uint64_t sequence() const { return sequence_; }
  /// The saved tensors are gone: the rule cannot run again.
  bool freed() const { return uses_.load(std::memory_order_acquire) == kEnded; }
  [[noreturn]] void throw_freed() const;
  /// Where a trace's arrow to this node's backward starts; 0: nowhere.
  std::uint64_t trace_flow() const { return trace_flow_; }

  /// Null while nobody added a hook.
  OutputHooks* hooks() const { return hooks_.get(); }
  const std::shared_ptr<OutputHooks>& ensure_hooks() { return hooks_.ensure(); }

 protected:
  /// `op` is a literal or lives as long as the process.
  explicit Node(const char* op, int outputs = 1);

  /// In the order of the rule's inputs.
  void add_input(const Tensor& x) { push(Edge(x)); }
  /// Whether an input added before needs a gradient: what to save depends on it.
  bool needs(int input) const { return !edges_[input].empty(); }
  SavedTensor save(const Tensor& x) {
    saves_ = true;
    return SavedTensor(x);
  }
  virtual void release_saved() {}
  void set_nests() { nests_ = true; }
  /// For nodes that learn it after their making.
  void set_outputs(int outputs) { outputs_ = outputs; }

 private:
  friend class NodeUse;
  friend void attach(const Tensor& y, intrusive_ptr<Node> node, int output);
  static constexpr std::uint32_t kEnded = 1u << 31;
  static constexpr int kInlineEdges = 4;
  void push(Edge edge);
  void begin_use(bool last);
  void end_use();

  const char* op_;
  const PathNode* path_;  // interned; null outside any module
  std::uint64_t sequence_;
  std::uint64_t trace_flow_ = 0;
  Device device_;
  void* stream_ = nullptr;
  std::int32_t outputs_;
  std::int32_t edge_count_ = 0;
  std::int32_t edge_capacity_ = kInlineEdges;
  bool saves_ = false;
  bool nests_ = false;
  std::atomic<std::uint32_t> uses_{0};  // runs of the rule in progress, and kEnded: no more of them
  std::array<Edge, kInlineEdges> inline_edges_;
  Edge* edges_ = inline_edges_.data();
  LazyHooks<OutputHook> hooks_;
  intrusive_ptr<Node> next_released_;  // links nodes whose turn to be deleted comes
};

/// A run of a node's rule. The first that does not retain the tape is the last one: whoever comes
/// after its begin gets throw_freed()'s error, and who leaves last frees the saved tensors. Runs in
/// several threads may overlap.
class NodeUse {
 public:
  NodeUse(Node& node, bool retain) : node_(node), counts_(node.saves_), last_(!retain) {
    if (counts_) node_.begin_use(last_);
  }
  /// A last use that was not finished leaves the node usable, as if it had not been.
  ~NodeUse() {
    if (!counts_) return;
    if (last_ && !finished_) node_.uses_.fetch_sub(Node::kEnded, std::memory_order_acq_rel);
    node_.end_use();
  }
  NodeUse(const NodeUse&) = delete;
  NodeUse& operator=(const NodeUse&) = delete;
  /// The rule has run.
  void finish() { finished_ = true; }

 private:
  Node& node_;
  const bool counts_, last_;
  bool finished_ = false;
};

/// The first of `count` numbers that the calling thread's nodes leave out: those recorded before
/// have smaller ones, those recorded later larger ones.
std::uint64_t reserve_sequence(std::uint64_t count);

/// For its length the calling thread's nodes are numbered from `first` on. What several threads
/// record for one graph sums in an order that does not depend on the threads when each of them has
/// its share of the numbers that their caller reserved.
class SequenceScope {
 public:
  explicit SequenceScope(std::uint64_t first);
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

 private:
  std::uint64_t before_;
};

using LeafHook = std::function<void(const Tensor& leaf)>;

/// The gradient of a leaf and who owns its memory.
class LeafState : public Pooled {
 public:
  Tensor grad();
  void set_grad(const Tensor& leaf, const Tensor& grad);
  void set_storage(const Tensor& leaf, const Tensor& memory);
  void zero(const Tensor& leaf);
  void mark_written(const Tensor& leaf);
  /// Adds a contribution. Backwards of several threads may meet here.
  void accumulate(const Tensor& leaf, Tensor grad);

  LazyHooks<LeafHook> leaf_hooks;
  LazyHooks<LeafHook> final_hooks;
  LazyHooks<OutputHook> grad_hooks;

 private:
  // What supplied memory holds: bytes that mean zero, real zeros, or a gradient.
  enum class Content : std::uint8_t { forgotten, zeros, gradient };

  // Inside graph::capture. Before a contribution: what it adds to has to be the same in a replay.
  // After a change: a replay makes it, too.
  void check_in_replays(const Tensor& leaf);
  void set_in_replays(const Tensor& leaf);
  // The gradient's address; 0: none.
  std::int64_t address() const;

  std::mutex mutex_;
  Tensor grad_;  // the supplied memory, where there is one
  bool supplied_ = false;
  Content content_ = Content::forgotten;
  std::uint64_t set_in_ = 0;  // id of the last capture whose body set it
};

class Meta final : public AutogradMeta {
 public:
  std::atomic<bool> requires_grad = false;
  std::int32_t output = 0;
  intrusive_ptr<Node> producer;  // null: a leaf
  Lazy<LeafState> leaf;
  /// Of a view: the tensor whose memory it shows, and that tensor's producer when it was taken.
  intrusive_ptr<TensorImpl> base;
  const Node* base_producer = nullptr;
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

/// Whether an operation on these operands goes on the tape.
template <class... Operands>
bool recording(const Operands&... operands) {
  return thread_state().grad_enabled && (requires_grad(operands) || ...);
}
bool recording_any(std::span<const Tensor> operands);

/// Makes y the node's output; y's earlier history, if any, lives on in the node's edges.
void attach(const Tensor& y, intrusive_ptr<Node> node, int output = 0);
/// Remembers that y shows x's memory, if it does: writes through it would bypass x's history.
void mark_view(const Tensor& y, const Tensor& x);

/// Records y = Rule(args...)'s operation.
template <class Rule, class... Args>
Tensor record(Tensor y, Args&&... args) {
  attach(y, make_intrusive<Rule>(std::forward<Args>(args)...));
  return y;
}

/// Shape and dtype of an operand, to bring its gradient back from broadcasting and promotion.
class Operand {
 public:
  explicit Operand(const Tensor& x) : shape_(x.shape()), dtype_(x.dtype()) {}
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Tensor fit(Tensor grad) const {
    if (grad.dtype() == dtype_ && grad.shape() == shape_) [[likely]]
      return grad;
    return reduce(std::move(grad));
  }

 private:
  Tensor reduce(Tensor grad) const;

  Shape shape_;
  DType dtype_;
};

}  // namespace weft::autograd
