// One list of what the tape can do: each recorded operation with inputs to check its rule at.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::testing {

struct OpCase {
  std::string op;       ///< its name in tensor/ops.h
  std::string variant;  ///< which shapes and parameters
  /// On the thread's device, made anew. All are f64, to be differentiated together and one by one.
  std::function<std::vector<Tensor>()> inputs;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> f;
};

std::vector<OpCase> op_cases();

/// Operations whose results have no gradient: booleans, positions.
const std::set<std::string>& non_differentiable();
/// What tensor/ops.h declares besides operations to record: generic forms of named ones, what rules
/// are made of, writes without a tape, handles.
const std::set<std::string>& not_recorded();

}  // namespace weft::testing
