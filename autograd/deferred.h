// Deferred gradients of weights: a backward computes only the gradients of its inputs, and those of
// the weights are computed later, when a device is idle (zero bubble pipelines).
//
//   const auto weights = DeferredGradients::leaves(model.parameters());
//   DeferredGradients later;
//   {
//     const DeferredGradients::Scope putting_off(later, weights);
//     y.backward(grad);   // x.grad() is there
//   }
//   ...
//   later.run();          // now the weights have theirs
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// The work that the rules of matmul, linear and convolutions have deferred. It holds what this
/// work needs: the input of each layer and the gradient of its output. The gradients are equal, bit
/// for bit, to those of a backward that defers nothing, unless a weight is used more than once in
/// it, or the weight of a convolution, or on CUDA of a linear layer, is deferred and its bias is
/// not, or the reverse: then the contributions are added in another order. The hooks of such a leaf
/// run in the backward, before its gradient is there; run() calls no hooks.
class DeferredGradients {
 public:
  using Leaves = std::unordered_set<const TensorImpl*>;
  static Leaves leaves(std::span<const Tensor> weights) {
    Leaves all;
    for (const Tensor& weight : weights) all.insert(weight.impl());
    return all;
  }

  /// While it lives, backwards on this thread defer the gradients of `leaves`. `into` and `leaves`
  /// must outlive it. All other gradients are computed at once. The nodes of such a backward must
  /// be on one device.
  class Scope {
   public:
    Scope(DeferredGradients& into, const Leaves& leaves)
        : before_(std::exchange(*current_, {&into, &leaves})) {}
    ~Scope() { *current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::pair<DeferredGradients*, const Leaves*> before_;
  };

  /// Computes the deferred gradients, in the order in which the rules ran, and adds each to its
  /// .grad(). Throws the errors of the kernels; the remaining work is dropped then.
  void run();
  std::size_t size() const { return work_.size(); }

  /// For rules: whether set() leaves the gradient of `input` to run().
  static bool puts_off(const Node& node, int input) {
    const Current* const current = current_.get();
    if (!current || !current->first || thread_state().create_graph) [[likely]]
      return false;
    const Edge& edge = node.edges()[input];
    return edge.is_leaf() && current->second->contains(static_cast<TensorImpl*>(edge.target()));
  }

  /// For rules: calls gradient() now, or in run(), and makes the result the gradient of `input`. It
  /// is called once: what it moves out of its captures a leaf without a gradient takes uncopied.
  template <class F>
  static void set(Gradients& grads, const Node& node, int input, F gradient) {
    if (!puts_off(node, input)) return grads.set(input, gradient());
    current_->first->work_.push_back(
        [leaf = leaf_of(node, input), gradient = std::move(gradient)]() mutable {
          add(leaf, gradient());
        });
  }
  /// The same for `input` and the next one, of which puts_off() says the same. gradients() returns
  /// both as a pair.
  template <class F>
  static void set_both(Gradients& grads, const Node& node, int input, F gradients) {
    const int next = input + 1;
    if (!puts_off(node, input)) {
      auto [first, second] = gradients();
      grads.set(input, std::move(first));
      grads.set(next, std::move(second));
      return;
    }
    current_->first->work_.push_back([a = leaf_of(node, input), b = leaf_of(node, next),
                                      gradients = std::move(gradients)]() mutable {
      auto [first, second] = gradients();
      add(a, std::move(first));
      add(b, std::move(second));
    });
  }

 private:
  static Tensor leaf_of(const Node& node, int input) {
    return Tensor(
        intrusive_ptr<TensorImpl>(static_cast<TensorImpl*>(node.edges()[input].target())));
  }
  static void add(const Tensor& leaf, Tensor grad);

  using Current = std::pair<DeferredGradients*, const Leaves*>;
  static constinit ThreadLocal<Current> current_;
  std::vector<std::function<void()>> work_;
};

}  // namespace weft::autograd
