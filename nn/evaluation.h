// Evaluation mode for a while.
#pragma once

#include <utility>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// Puts a model, or its parts, into evaluation mode; at the end each of their modules gets its own
/// mode back.
class EvaluationScope {
 public:
  explicit EvaluationScope(const ModuleBase& model) : EvaluationScope(std::vector{model}) {}
  explicit EvaluationScope(std::vector<ModuleBase> parts);  ///< which may share modules
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  std::vector<std::pair<ModuleBase, bool>> modes_;  // children first
};

}  // namespace weft::nn
