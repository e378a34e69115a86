// The tape as a list to read: what was recorded, what it keeps, and where the gradients go.
//
//   autograd::print(nn::mse_loss(model(x), x));
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// A recorded operation, or a leaf that requires a gradient.
struct TapeNode {
  std::string op;      ///< "leaf" for a leaf
  std::string module;  ///< path of the module that recorded it, "encoder.conv1"; may be empty
  Shape shape;         ///< of its result, the first one if it has several
  /// Of the tensors that it keeps for its backward rule, without leaves that require a gradient:
  /// weights are there anyway. If two operations keep the same tensor, both count it.
  std::int64_t saved_bytes = 0;
  bool freed = false;  ///< whether a backward has freed these tensors
  /// Where the gradients of its operands go: positions in tape()'s list. -1: none is needed.
  std::vector<int> operands;
  Tensor leaf;  ///< for a leaf the tensor itself, else undefined
};

/// All that a backward of y runs, each once: operations in the order in which it runs them on one
/// device, if one thread has recorded them, y's first, then the leaves in the order of their last
/// use. Throws InvalidArgument if y requires no gradient.
std::vector<TapeNode> tape(const Tensor& y);

/// Writes tape(y) to stdout, or to `out`, a line for each: number, operation, module, shape of the
/// result, what it keeps, and the numbers of those that its gradients go to ("-" for none):
///    2  relu    encoder        [32,8,26,26]  keeps 676.00 KiB  -> 3
///    3  conv2d  encoder.conv1  [32,8,26,26]  keeps 98.00 KiB   -> -, 4, 5
///    4  leaf                   [8,1,3,3]
void print(const Tensor& y);
void print(const Tensor& y, std::ostream& out);

}  // namespace weft::autograd
