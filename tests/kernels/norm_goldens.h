// Written by write_norm_goldens.py with PyTorch 2.11.0. Do not edit.
#pragma once

#include "weft/core/base/dtype.h"

namespace weft::testing {

/// The largest errors of PyTorch's batch norm of images of that mean in channels last or not.
struct BatchNormErrors {
  DType dtype;
  bool channels_last;
  double mean;
  double y, grad_x, grad_weight, grad_bias, running_mean, running_var;
};

inline constexpr BatchNormErrors kBatchNormErrors[] = {
    {DType::f32, false, 100000, 0.00964, 0.000332, 0.461, 2.7e-05, 0.00328, 1.07e-05},
    {DType::f32, true, 100000, 0.0226, 0.00215, 1.96, 0.000176, 0.0189, 0.000341},
    {DType::bf16, false, 100, 0.0153, 0.0155, 0.000418, 7.87e-06, 3.39e-06, 4.86e-06},
    {DType::bf16, true, 100, 0.0153, 0.0155, 0.00028, 8.58e-06, 3.39e-06, 1.05e-05},
};

}  // namespace weft::testing
