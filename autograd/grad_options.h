// What a backward may be asked for, above all to be recorded, for a second derivative.
#pragma once

#include "weft/core/base/compiler.h"

namespace weft::autograd {

struct GradOptions {
  bool retain_graph = false;  ///< keep the saved tensors; create_graph keeps them, too
  /// Record the backward: its results can be differentiated again. Throws Unsupported for what has
  /// no second derivative (docs/from_pytorch.md has the list) and for nodes of several devices. In
  /// backward() a leaf then owns its gradient's history, which owns the leaf: zero_grad() ends
  /// that.
  bool create_graph = false;
  bool allow_unused = false;  ///< an input that L does not depend on has an undefined gradient
};

}  // namespace weft::autograd
