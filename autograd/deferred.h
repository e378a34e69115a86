// Gradients of weights, put off: a backward that hands on the gradients of its inputs first, and
// those of its weights when there is time (zero bubble pipelines).
//
//   const auto weights = DeferredGradients::leaves(model.parameters());
//   DeferredGradients later;
//   {
//     const DeferredGradients::Scope putting_off(later, weights);
//     y.backward(grad);   // x.grad() is there
//   }
//   ...
//   later.run();          // and now the weights'
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// What the rules of matrix products and convolutions have left to do for weights.
/// Holds what they need: the layer's input and its output's gradient. The values are, to the bit,
/// those of a backward that puts nothing off, unless a weight is used more than once in it: then
/// its parts are added one by one. Hooks of such leaves see the backward end without them.
class DeferredGradients {
 public:
  using Leaves = std::unordered_set<const TensorImpl*>;
  static Leaves leaves(std::span<const Tensor> weights) {
    Leaves all;
    for (const Tensor& weight : weights) all.insert(weight.impl());
    return all;
  }

  /// For its length backwards on this thread, of nodes of one device, put the gradients of these
  /// leaves off, which must outlive it; those of others, a part's inputs, are needed at once.
  class Scope {
   public:
    Scope(DeferredGradients& into, const Leaves& leaves)
        : before_(std::exchange(current_, {&into, &leaves})) {}
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::pair<DeferredGradients*, const Leaves*> before_;
  };

  /// Computes them, in the order of their rules, and adds each to its .grad(). Throws what the
  /// kernels throw; nothing is left to do then.
  void run();
  std::size_t size() const { return work_.size(); }

  /// For rules: sets the gradient of an input to gradient(), now or when run() is called.
  template <class F>
  static void set(Gradients& grads, const Node& node, int input, F gradient) {
    if (!puts_off(node, input)) return grads.set(input, gradient());
    current_.first->work_.push_back(
        [leaf = leaf_of(node, input), gradient = std::move(gradient)] { add(leaf, gradient()); });
  }
  /// The same of this input and the next, by a function that computes both.
  template <class F>
  static void set_both(Gradients& grads, const Node& node, int input, F gradients) {
    const int next = input + 1;
    if (!puts_off(node, input) || !puts_off(node, next)) {
      auto [first, second] = gradients();
      grads.set(input, std::move(first));
      grads.set(next, std::move(second));
      return;
    }
    current_.first->work_.push_back(
        [a = leaf_of(node, input), b = leaf_of(node, next), gradients = std::move(gradients)] {
          auto [first, second] = gradients();
          add(a, std::move(first));
          add(b, std::move(second));
        });
  }

 private:
  static bool puts_off(const Node& node, int input) {
    if (!current_.first) [[likely]]
      return false;
    const Edge& edge = node.edges()[input];
    return edge.is_leaf() && current_.second->contains(static_cast<TensorImpl*>(edge.target()));
  }
  static Tensor leaf_of(const Node& node, int input) {
    return Tensor(
        intrusive_ptr<TensorImpl>(static_cast<TensorImpl*>(node.edges()[input].target())));
  }
  static void add(const Tensor& leaf, Tensor grad);

  static thread_local constinit std::pair<DeferredGradients*, const Leaves*> current_;
  std::vector<std::function<void()>> work_;
};

}  // namespace weft::autograd
