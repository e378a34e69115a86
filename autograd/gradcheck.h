// Checks a backward rule against finite differences, as torch.autograd.gradcheck.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// eps: the step of the differences. Values agree if |backward - difference| <= atol + rtol
/// |difference|.
struct GradcheckOptions {
  double eps = 1e-6;
  double atol = 1e-5;
  double rtol = 1e-3;
};

/// For every input that requires a gradient, compares the Jacobian from backward with central
/// differences (f(x + eps) - f(x - eps)) / (2 eps). Then checks that a gradient with unusual
/// strides gives the same result as a contiguous one. Inputs that require a gradient must be f64
/// (else Dtype) and leaves (else InvalidArgument); they have their old values afterwards. f must be
/// smooth within eps of them. On a difference it throws InvalidArgument with `name` as its op; the
/// message names the input, both elements and both values.
void gradcheck(const std::string& name,
               const std::function<std::vector<Tensor>(std::span<const Tensor>)>& f,
               std::span<const Tensor> inputs, const GradcheckOptions& options = {});

/// For an f with one result: gradcheck("exp", [](auto x) { return exp(x[0]); }, {x})
void gradcheck(const std::string& name, const std::function<Tensor(std::span<const Tensor>)>& f,
               std::initializer_list<Tensor> inputs, const GradcheckOptions& options = {});

/// Checks second derivatives, as torch.autograd.gradgradcheck: gradcheck of the function that gives
/// dL/d(inputs) with L = sum_i <f_i(inputs), v_i>, by its inputs and v. Throws Unsupported, too,
/// where a rule has no second derivative.
void gradgradcheck(const std::string& name,
                   const std::function<std::vector<Tensor>(std::span<const Tensor>)>& f,
                   std::span<const Tensor> inputs, const GradcheckOptions& options = {});

/// For an f with one result.
void gradgradcheck(const std::string& name, const std::function<Tensor(std::span<const Tensor>)>& f,
                   std::initializer_list<Tensor> inputs, const GradcheckOptions& options = {});

}  // namespace weft::autograd
