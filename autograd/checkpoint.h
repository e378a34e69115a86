// Recomputation: memory for time. What a part of the model computes on the way is dropped after the
// forward and computed again when backward comes to it.
//
//   Tensor y = autograd::checkpoint([&](const Tensor& x) { return block(x); }, x);
#pragma once

#include <array>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"

namespace weft::autograd {

/// Whether the running forward is a checkpoint's second one. A layer that counts something in its
/// forward (BatchNorm's running statistics) leaves it alone then.
inline bool recomputing() { return thread_state().recomputing; }

/// The recorded call of a checkpoint; a subclass knows how to call the function again.
class CheckpointNode : public Node {
 public:
  void apply(Gradients& grads) override;

 protected:
  /// Right before the function runs for the first time: notes what surrounds it.
  explicit CheckpointNode(std::span<const Tensor> inputs);
  /// Puts the results on the tape.
  void finish(std::span<Tensor> outputs, std::span<const Tensor> inputs);

  using Tensors = std::vector<Tensor, PoolAllocator<Tensor>>;
  virtual Tensors recompute(std::span<const Tensor> inputs) = 0;

  template <class Result>
  static std::span<Tensor> span_of(Result& result) {
    if constexpr (std::is_base_of_v<Tensor, Result>) {
      return {&result, 1};
    } else {
      return std::span<Tensor>(result);
    }
  }

 private:
  void release_saved() override { inputs_.clear(); }

  ThreadState state_;
  Tensor generator_;  // the generator's bytes: too many for the pool of small blocks
  std::vector<SavedTensor, PoolAllocator<SavedTensor>> inputs_;
};

namespace detail {

template <class F, std::size_t N>
class CheckpointOf final : public CheckpointNode {
 public:
  CheckpointOf(F f, std::span<const Tensor> inputs) : CheckpointNode(inputs), f_(std::move(f)) {}

  auto forward(std::span<const Tensor> inputs) {
    auto result = [&] {
      const Scoped no_grad(&ThreadState::grad_enabled, false);
      return call(inputs, std::make_index_sequence<N>());
    }();
    finish(span_of(result), inputs);
    return result;
  }

 private:
  template <std::size_t... I>
  auto call(std::span<const Tensor> inputs, std::index_sequence<I...>) {
    return f_(inputs[I]...);
  }
  Tensors recompute(std::span<const Tensor> inputs) override {
    auto result = call(inputs, std::make_index_sequence<N>());
    const std::span<Tensor> outputs = span_of(result);
    return Tensors(outputs.begin(), outputs.end());
  }

  F f_;
};

}  // namespace detail

/// f(inputs...), a Tensor or a std::vector<Tensor>, of which the tape keeps the inputs alone:
/// backward runs f once more, recording, and then f's own backward. The second run sees the same
/// random numbers (dropout draws the same mask), thread settings and module path, and
/// recomputing() is true in it. f takes const Tensor&, is copied, and must give the same results
/// again: what it refers to must live until backward, and not change before it. Gradients of
/// parameters that f uses are accumulated by the backward inside, so
///  - their leaf hooks fire when that ends, once per checkpoint that uses them;
///  - reachable_leaves() of a result has the inputs, not the parameters;
///  - autograd::grad() gives the gradients of what lies before the checkpoint alone.
/// Without gradients enabled this is f(inputs...).
template <class F, class... Inputs>
auto checkpoint(F f, const Inputs&... inputs) {
  static_assert((std::is_base_of_v<Tensor, Inputs> && ...),
                "the inputs of a checkpoint are tensors");
  if (!thread_state().grad_enabled) return f(static_cast<const Tensor&>(inputs)...);
  const std::array<Tensor, sizeof...(Inputs)> list{inputs...};
  return make_intrusive<detail::CheckpointOf<F, sizeof...(Inputs)>>(std::move(f), list)
      ->forward(list);
}

}  // namespace weft::autograd
