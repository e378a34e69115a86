// Second derivatives: rules that may run in a backward that is itself recorded, which is what
// GradOptions::create_graph asks for.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "weft/autograd/graph.h"

namespace weft::autograd {

/// Whether the rule that is running is being recorded. A rule of a fused kernel then takes the way
/// of single operations, which the tape knows.
inline bool creates_graph() { return thread_state().create_graph; }

/// A node whose rule computes with recorded operations, at least where creates_graph(): so its
/// gradients may be differentiated again. Each tensor that it saves and that is no constant is an
/// input (save, save_copy) or its output (save_output).
class DifferentiableNode : public Node {
 public:
  using Node::Node;
  bool differentiable() const final { return true; }
};

/// dL/d(inputs[i]) from dL/dy, recorded, where y = f(inputs) and f is composed of recorded
/// operations. An undefined result where `wants` is false or the input is undefined. For fused
/// rules: f says once more, in single operations, what the fused kernel computes. The inputs count
/// as independent of each other, whatever their histories are.
std::vector<Tensor> gradients_by_parts(const Gradients& grads, std::span<const Tensor> inputs,
                                       const std::function<Tensor(std::span<const Tensor>)>& f);

}  // namespace weft::autograd
