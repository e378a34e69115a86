// Values that PyTorch's scripts compute, too.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/tests/tensor/tensor_util.h"

namespace weft::testing {

/// f64, from -1 to 1 times scale: the formula of tests/nn/golden_arrays.py.
inline Tensor ramp(const Shape& shape, double scale = 1) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    values.push_back((static_cast<double>(i * 7919 % 1009) / 504.5 - 1) * scale);
  }
  return make(values, shape, DType::f64);
}

}  // namespace weft::testing
