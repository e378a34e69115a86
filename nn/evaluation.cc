#include "weft/nn/evaluation.h"

namespace weft::nn {

EvaluationScope::EvaluationScope(std::vector<ModuleBase> parts) {
  for (ModuleBase& part : parts) {
    part.apply([this](ModuleBase& m) { modes_.emplace_back(m, m.is_training()); });
  }
  for (ModuleBase& part : parts) part.eval();
}

EvaluationScope::~EvaluationScope() {
  // Parents first: train() also sets the modules below.
  for (auto mode = modes_.rbegin(); mode != modes_.rend(); ++mode) mode->first.train(mode->second);
}

}  // namespace weft::nn
