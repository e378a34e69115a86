// Activation checkpointing: less memory for more time. The intermediate tensors of a part of the
// model are dropped after the forward. Backward computes them again when it comes to that part.
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
#include "weft/core/runtime/rng.h"
#include "weft/tensor/tree.h"

namespace weft::autograd {

/// Whether the current forward is the recomputation of a checkpoint. A layer that updates a state
/// in its forward, like the running statistics of BatchNorm, must not update it then.
inline bool recomputing() { return thread_state().recomputing; }
/// Whether it is the first forward of a checkpoint, which is not recorded but will be recomputed.
bool in_first_forward();

/// The node of a checkpoint. The subclass can call the function again.
class CheckpointNode : public Node {
 public:
  void apply(Gradients& grads) override;
  /// Runs the second forward now; see Recomputation. apply() then runs only the backward of it.
  void recompute_now();
  /// Whether recompute_now() left a forward that no backward has used.
  bool recomputed();

 protected:
  /// While the function runs for the first time.
  class FirstForward {
   public:
    explicit FirstForward(GeneratorSnapshot& snapshot);
    ~FirstForward();

   private:
    const Scoped<bool> no_grad_{&ThreadState::grad_enabled, false};
    const RecordGenerators drawing_;
    const bool before_;
  };

  /// Called before the function runs for the first time: stores the settings of the thread.
  explicit CheckpointNode(std::span<const Tensor> inputs);
  /// Puts the results on the tape.
  void finish(std::span<Tensor> outputs, std::span<const Tensor> inputs);

  using Tensors = std::vector<Tensor, PoolAllocator<Tensor>>;
  virtual Tensors call_again(std::span<const Tensor> inputs) = 0;

  GeneratorSnapshot generators_;  // states of the generators that the forward used

 private:
  // The second forward: its inputs, which are leaves, and its results with their tape.
  struct Second {
    Tensors inputs, outputs;
  };

  void release_saved() override;
  Second run_again();
  // The forward that recompute_now() left, or nothing.
  std::optional<Second> take_second();

  // The settings that influence the values of the function. Log, tracer, counters and capture are
  // those of the thread that recomputes: the thread of the forward may have ended.
  struct Settings {
    explicit Settings(const ThreadState& state);
    void put_into(ThreadState& state) const;

    bool deterministic, benchmark;
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
      const FirstForward first(generators_);
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
  // Without their tensors: the node holds those, where the tape checks and frees them.
  std::tuple<decltype(without_tensors(std::declval<const Inputs&>()))...> inputs_;
};

}  // namespace detail

/// Returns f(inputs...). As torch.utils.checkpoint: the tape keeps only the inputs. Backward calls
/// f again, with recording, and then runs the backward of this second call.
///
/// Inputs and result are tensors, or structures all of whose tensors tensor/tree.h can find. f
/// takes its inputs by const reference; the second call gets a std::vector in place of a span or C
/// array. f is copied. It must give the same results again, so the objects that it refers to must
/// live unchanged until backward. The second call sees the same random numbers (dropout draws the
/// same mask), thread settings and module path, and recomputing() is true in it.
///
/// A nested backward accumulates the gradients of the parameters that f uses. So
///  - their leaf hooks run once per checkpoint that uses them; their final hooks
///    (add_final_leaf_hook) run when the last of these checkpoints has added its part;
///  - reachable_leaves() of a result finds the inputs, not the parameters;
///  - autograd::grad() gives only gradients of tensors before the checkpoint.
/// While gradients are disabled, the call is just f(inputs...). Backward throws InvalidArgument if
/// the second call gives another number of results.
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

/// Runs the second forward of a checkpoint before the backward that needs it. A pipeline uses this
/// to recompute while it waits for a gradient.
///
///   Tensor y = autograd::checkpoint(stage, x);
///   const autograd::Recomputation again(y);
///   ...
///   again.recompute();     // while the gradient of y is on its way
///   y.backward(gradient);  // finds the tape that recompute() made
///
/// The gradients are equal, bit for bit, to those of a backward that recomputes by itself. Nested
/// checkpoints still recompute during the backward.
class Recomputation {
 public:
  /// Of the checkpoint that returned y. Throws InvalidArgument if y is no recorded result of one.
  explicit Recomputation(const Tensor& y);

  /// Calls the function again on this thread and keeps the forward until a backward uses it or
  /// frees the tape. Does nothing if such a forward is already there. Each backward over a retained
  /// tape needs a forward of its own; without one, it recomputes by itself. Throws InvalidArgument
  /// if the tape was freed or an input was changed in place, and also the errors of the function;
  /// then the backward recomputes.
  void recompute() const { node_->recompute_now(); }
  /// Whether a recomputed forward is ready for the next backward.
  bool recomputed() const { return node_->recomputed(); }

 private:
  intrusive_ptr<CheckpointNode> node_;
};

}  // namespace weft::autograd
