// Holds a backward rule against finite differences.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::autograd {

struct GradcheckOptions {
  double eps = 1e-6;
  double atol = 1e-5;
  double rtol = 1e-3;
};

/// Compares the Jacobian that backward gives, for every input that requires a gradient, with
/// central differences (f(x + eps) - f(x - eps)) / 2 eps; then a backward with a gradient in an
/// unusual memory layout with that of the same gradient laid out plainly. Inputs are f64, and
/// unchanged afterwards; f must be smooth within eps of them. Throws InvalidArgument whose op is
/// `name`, naming input, element, output element, and both values.
void gradcheck(const std::string& name,
               const std::function<std::vector<Tensor>(std::span<const Tensor>)>& f,
               std::span<const Tensor> inputs, const GradcheckOptions& options = {});

/// For one result: gradcheck("exp", [](auto x) { return exp(x[0]); }, {x})
void gradcheck(const std::string& name, const std::function<Tensor(std::span<const Tensor>)>& f,
               std::initializer_list<Tensor> inputs, const GradcheckOptions& options = {});

}  // namespace weft::autograd
