// Compares functions of several tensors with PyTorch's results.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft::testing {

using Inputs = std::span<const Tensor>;

/// Checks f's value and gradients, those of its result weighted by a ramp, in every layout of the
/// inputs. `want` are the value and the gradients in this order.
inline void expect_goldens(const std::string& name, const std::function<Tensor(Inputs)>& f,
                           const std::vector<Tensor>& inputs,
                           std::span<const std::vector<double>> want, double tolerance) {
  ASSERT_EQ(want.size(), inputs.size() + 1) << name;
  for (std::size_t layout = 0; layout < 4; ++layout) {
    SCOPED_TRACE(name + ", layout " + std::to_string(layout));
    std::vector<Tensor> laid;
    for (const Tensor& x : inputs) {
      const std::vector<Tensor> all = image_layouts(x);
      laid.push_back(all[layout % all.size()].detach().set_requires_grad());
    }
    const Tensor y = f(laid);
    EXPECT_TRUE(near_values(y, want[0], tolerance));
    y.backward(y.dim() == 0 ? Tensor() : ramp(y.shape()));
    for (std::size_t i = 0; i < laid.size(); ++i) {
      EXPECT_TRUE(near_values(laid[i].grad(), want[i + 1], tolerance)) << "gradient " << i;
    }
  }
}

/// The same with what `goldens` has as NAME_y, NAME_grad0, NAME_grad1, ... or NAME.0, NAME.1, ...
inline void expect_goldens(const Goldens& goldens, const std::string& name,
                           const std::function<Tensor(Inputs)>& f,
                           const std::vector<Tensor>& inputs, double tolerance) {
  if (!goldens.tensors().contains(name + "_y")) {
    return expect_goldens(name, f, inputs, goldens.list(name), tolerance);
  }
  std::vector<std::vector<double>> want{goldens[name + "_y"]};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    want.push_back(goldens[name + "_grad" + std::to_string(i)]);
  }
  expect_goldens(name, f, inputs, want, tolerance);
}

}  // namespace weft::testing
