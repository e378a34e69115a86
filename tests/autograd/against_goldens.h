// Functions of several tensors against what PyTorch computes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft::testing {

using Inputs = std::span<const Tensor>;

/// f's value and gradients in every layout of the inputs; goldens: those, in that order, with the
/// gradients of f's result weighted by a ramp.
inline void expect_goldens(const char* name, const std::function<Tensor(Inputs)>& f,
                           const std::vector<Tensor>& inputs,
                           const std::vector<std::vector<double>>& goldens, double tolerance) {
  ASSERT_EQ(goldens.size(), inputs.size() + 1) << name;
  for (const int layout : {0, 1, 2}) {
    SCOPED_TRACE(std::string(name) + ", layout " + std::to_string(layout));
    std::vector<Tensor> laid;
    for (const Tensor& x : inputs) laid.push_back(layouts(x)[layout].detach().set_requires_grad());
    const Tensor y = f(laid);
    EXPECT_TRUE(near_values(y, goldens[0], tolerance));
    y.backward(y.dim() == 0 ? Tensor() : ramp(y.shape()));
    for (std::size_t i = 0; i < laid.size(); ++i) {
      EXPECT_TRUE(near_values(laid[i].grad(), goldens[i + 1], tolerance)) << "gradient " << i;
    }
  }
}

}  // namespace weft::testing
