// Second derivatives: rules that may run in a backward that is itself recorded, which is what
// GradOptions::create_graph asks for.
#pragma once

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

/// `value`, whose gradient goes to x: where x has changed since, or is to count as independent.
Tensor in_place_of(const Tensor& x, const Tensor& value);

}  // namespace weft::autograd
