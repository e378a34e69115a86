// Evaluation mode for a while.
#pragma once

#include <utility>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// Puts a model into evaluation mode; at the end each of its modules gets its own mode back.
class EvaluationScope {
 public:
  explicit EvaluationScope(const ModuleBase& model);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  std::vector<std::pair<ModuleBase, bool>> modes_;  // children first
};

}  // namespace weft::nn
