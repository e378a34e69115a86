// The table of all recorded operations, each with inputs: gradcheck_test checks their rules, and
// that none is missing, second_derivatives_test those of their gradients, every_op_test what else
// holds for every operation. tests/nn/second_derivatives_test.cc has the functions of nn/.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::testing {

struct OpCase {
  std::string op;       ///< its name in tensor/ops.h or autograd/ops.h
  std::string variant;  ///< the shapes and parameters
  /// New tensors on the thread's device. All are f64, to be differentiated together and one by one.
  std::function<std::vector<Tensor>()> inputs;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> f;
  /// How many of a dtype's tolerances its results may differ from those in f64; 0: not compared.
  double slack = 1;
};

std::vector<OpCase> op_cases();

/// Operations whose results have no gradient: booleans, positions.
const std::set<std::string>& non_differentiable();
/// Other functions of tensor/ops.h and autograd/ops.h: generic forms of named operations, parts of
/// rules, writes without a tape, handles.
const std::set<std::string>& not_recorded();

}  // namespace weft::testing
