// One process that takes the steps of two ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/optim/adam.h"
#include "weft/tensor/ops.h"

namespace weft::testing {

/// An optimiser that takes no step, and keeps half the gradients of the step instead.
struct Collector : optim::Adam {
  using Adam::Adam;
  void step() override {
    const std::vector<Tensor> params = parameters();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const Tensor half = raw::mul_(raw::clone(params[i].grad()), 0.5);
      if (means.size() <= i) {
        means.push_back(half);
      } else {
        raw::add_scaled_(means[i], 1, half);
      }
    }
  }
  /// Takes the step, with what was collected.
  void step_with_mean() {
    const std::vector<Tensor> params = parameters();
    for (std::size_t i = 0; i < params.size(); ++i) params[i].set_grad(means[i]);
    means.clear();
    Adam::step();
  }
  std::vector<Tensor> means;
};

}  // namespace weft::testing
