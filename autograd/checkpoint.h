// Recomputation: memory for time. What a part of the model computes on the way is dropped after the
// forward and computed again when backward comes to it.
//
//   Tensor y = autograd::checkpoint([&](const Tensor& x) { return block(x); }, x);
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/core/rng.h"
#include "weft/tensor/tree.h"

namespace weft::autograd {

/// Whether the running forward is a checkpoint's second one. A layer that counts something in its
/// forward (BatchNorm's running statistics) leaves it alone then.
inline bool recomputing() { return thread_state().recomputing; }

/// The recorded call of a checkpoint; a subclass knows how to call the function again.
class CheckpointNode : public Node {
 public:
  void apply(Gradients& grads) override;
  /// The first half of apply(), which finds this forward then and runs its backward alone.
  void recompute_now();
  bool recomputed();

 protected:
  /// Right before the function runs for the first time: notes what surrounds it.
  explicit CheckpointNode(std::span<const Tensor> inputs);
  /// Puts the results on the tape.
  void finish(std::span<Tensor> outputs, std::span<const Tensor> inputs);

  using Tensors = std::vector<Tensor, PoolAllocator<Tensor>>;
  virtual Tensors call_again(std::span<const Tensor> inputs) = 0;

  GeneratorSnapshot generators_;  // of those the forward drew on

 private:
  // The second forward: leaves in place of the inputs, and the tape behind the results.
  struct Second {
    Tensors inputs, outputs;
  };

  void release_saved() override;
  Second run_again();
  // What recompute_now() left, or nothing.
  std::optional<Second> take_second();

  // What decides about the values of the function. Whom its work is told to (log, tracer, counters,
  // capture) is the business of the thread that runs it: that of the forward may be gone.
  struct Settings {
    explicit Settings(const ThreadState& state);
    void put_into(ThreadState& state) const;

    bool deterministic;
    ThreadState::AutocastTypes autocast;
    bool allow_tf32_conv, allow_tf32_matmul;
    int num_threads;
    Device device;
  };

  const Settings settings_;
  std::vector<SavedTensor, PoolAllocator<SavedTensor>> inputs_;
  std::mutex mutex_;
  std::optional<Second> second_;
};

namespace detail {

template <class F, class... Inputs>
class CheckpointOf final : public CheckpointNode {
 public:
  CheckpointOf(F f, std::span<const Tensor> list, const Inputs&... inputs)
      : CheckpointNode(list), f_(std::move(f)), inputs_(without_tensors(inputs)...) {}

  auto forward(std::span<const Tensor> list, const Inputs&... inputs) {
    auto result = [&] {
      const Scoped no_grad(&ThreadState::grad_enabled, false);
      const RecordGenerators drawing(generators_);
      return f_(inputs...);
    }();
    Tensors outputs = take_tensors(result);
    finish(outputs, list);
    for_each_tensor(result, [at = outputs.begin()](Tensor& y) mutable { y = std::move(*at++); });
    return result;
  }

 private:
  template <class T>
  static auto without_tensors(const T& value) {
    return map_tensors(value, [](const Tensor&) { return Tensor(); });
  }
  template <class Result>
  static Tensors take_tensors(Result& result) {
    Tensors list;
    for_each_tensor(result, [&](Tensor& x) { list.push_back(std::move(x)); });
    return list;
  }

  Tensors call_again(std::span<const Tensor> list) override {
    auto inputs = inputs_;
    for_each_tensor(inputs, [at = list.begin()](Tensor& x) mutable { x = *at++; });
    auto result = std::apply([&](const auto&... args) { return f_(args...); }, inputs);
    return take_tensors(result);
  }

  F f_;
  // The tensors are the node's, where the tape watches and frees them.
  std::tuple<decltype(without_tensors(std::declval<const Inputs&>()))...> inputs_;
};

}  // namespace detail

/// f(inputs...), of which the tape keeps the inputs alone: backward runs f once more, recording,
/// and then f's own backward. Inputs and result are tensors or any structure that tensor/tree.h
/// walks, all of it known to it. The second run sees the same random numbers (dropout draws the
/// same mask), thread settings and module path, and recomputing() is true in it. f takes its inputs
/// by const reference (a span's or C array's as a std::vector the second time), is copied, and must
/// give the same results again: what it refers to must live until backward, and not change before
/// it. Gradients of parameters that f uses are accumulated by the backward inside, so
///  - their leaf hooks run in it, once per checkpoint that uses them; their final hooks
///    (add_final_leaf_hook) when the last of these has added its part;
///  - reachable_leaves() of a result has the inputs, not the parameters;
///  - autograd::grad() gives the gradients of what lies before the checkpoint alone.
/// Without gradients enabled this is f(inputs...).
template <class F, class... Inputs>
auto checkpoint(F f, const Inputs&... inputs) {
  static_assert((walkable<Inputs> && ...),
                "an input of a checkpoint may hold tensors that nothing can find: give its type a "
                "tensors() (tensor/tree.h)");
  static_assert(walkable<std::invoke_result_t<F&, const Inputs&...>>,
                "the result of a checkpoint may hold tensors that nothing can find: give its type "
                "a tensors() (tensor/tree.h)");
  if (!thread_state().grad_enabled) return f(inputs...);
  std::vector<Tensor, PoolAllocator<Tensor>> list;
  (for_each_tensor(inputs, [&](const Tensor& x) { list.push_back(x); }), ...);
  return make_intrusive<detail::CheckpointOf<F, Inputs...>>(std::move(f), list, inputs...)
      ->forward(list, inputs...);
}

/// A checkpoint's second forward, to be run before the backward that needs it: a pipeline schedules
/// the two apart, and hides this one behind a wait.
///
///   Tensor y = autograd::checkpoint(stage, x);
///   const autograd::Recomputation again(y);
///   ...
///   again.recompute();     // as long as the gradient of y is on its way
///   y.backward(gradient);  // finds the tape that recompute() made
///
/// The gradients are, to the bit, those of a backward that recomputes by itself. Checkpoints inside
/// of this one recompute within the backward, as ever.
class Recomputation {
 public:
  /// Of the checkpoint that gave y. Throws InvalidArgument where none did, or it was not recorded.
  explicit Recomputation(const Tensor& y);

  /// Runs the function again, now and on this thread, and keeps what its backward needs, until a
  /// backward has used it or freed the tape. With a retained tape each backward needs another one,
  /// and recomputes by itself where it is missing. Does nothing when it is there. Throws
  /// InvalidArgument once the tape was freed, and what the function throws; a backward tries again
  /// then.
  void recompute() const { node_->recompute_now(); }
  /// Whether the next backward will find it.
  bool recomputed() const { return node_->recomputed(); }

 private:
  intrusive_ptr<CheckpointNode> node_;
};

}  // namespace weft::autograd
