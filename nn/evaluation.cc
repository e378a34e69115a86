#include "weft/nn/evaluation.h"

namespace weft::nn {

EvaluationScope::EvaluationScope(const ModuleBase& model) {
  ModuleBase root = model;
  root.apply([this](ModuleBase& m) { modes_.emplace_back(m, m.is_training()); });
  root.eval();
}

EvaluationScope::~EvaluationScope() {
  // Parents first: train() also sets the modules below.
  for (auto mode = modes_.rbegin(); mode != modes_.rend(); ++mode) mode->first.train(mode->second);
}

}  // namespace weft::nn
