#include "weft/autograd/gradcheck.h"

#include <cmath>

#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

using Values = std::vector<double>;
using Function = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
using FunctionOfOne = std::function<Tensor(std::span<const Tensor>)>;

Function with_list(const FunctionOfOne& f) {
  if (!f) return {};
  return [&f](std::span<const Tensor> x) { return std::vector<Tensor>{f(x)}; };
}

std::vector<Values> evaluate(const Function& f, std::span<const Tensor> inputs) {
  const NoGrad no_grad;
  std::vector<Values> results;
  for (const Tensor& y : f(inputs)) results.push_back(y.to_vector<double>());
  return results;
}

void write(const Tensor& x, const Values& values) {
  raw::copy_(x, raw::to(from_vector(values, x.shape()), x.device()));
}

// Restores the values of an input, also after an exception.
class Restore {
 public:
  explicit Restore(const Tensor& x) : x_(x), values_(x.to_vector<double>()) {}
  ~Restore() { write(x_, values_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  const Values& values() const { return values_; }

 private:
  const Tensor& x_;
  const Values values_;
};

// d(output o, element i)/d(input, element j), numeric[o][i][j].
std::vector<std::vector<Values>> numeric_jacobian(const Function& f, std::span<const Tensor> inputs,
                                                  const Tensor& input, double eps) {
  const Restore restore(input);
  std::vector<std::vector<Values>> jacobian;
  for (std::size_t j = 0; j < restore.values().size(); ++j) {
    Values values = restore.values();
    values[j] = restore.values()[j] + eps;
    write(input, values);
    const auto above = evaluate(f, inputs);
    values[j] = restore.values()[j] - eps;
    write(input, values);
    const auto below = evaluate(f, inputs);
    jacobian.resize(above.size());
    for (std::size_t o = 0; o < above.size(); ++o) {
      jacobian[o].resize(above[o].size());
      for (std::size_t i = 0; i < above[o].size(); ++i) {
        jacobian[o][i].push_back((above[o][i] - below[o][i]) / (2 * eps));
      }
    }
  }
  return jacobian;
}

bool close(double a, double b, const GradcheckOptions& options) {
  return std::abs(a - b) <= options.atol + options.rtol * std::abs(b);
}

// The same values, strides in reverse order and with gaps.
Tensor oddly_laid_out(const Tensor& x) {
  Shape shape = x.shape();
  Dims reversed;
  for (int i = x.dim() - 1; i >= 0; --i) reversed.push_back(shape[i]);
  reversed.push_back(2);
  Tensor y = raw::select(zeros(reversed, {x.dtype(), x.device()}), x.dim(), 1);
  Dims order;
  for (int i = x.dim() - 1; i >= 0; --i) order.push_back(i);
  y = raw::permute(y, order);
  raw::copy_(y, x);
  return y;
}

}  // namespace

void gradcheck(const std::string& name, const Function& f, std::span<const Tensor> inputs,
               const GradcheckOptions& options) {
  WEFT_CHECK(f, InvalidArgument, name, "gradcheck: the function is empty");
  std::vector<Tensor> leaves;
  std::vector<std::size_t> positions;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].defined() || !inputs[k].requires_grad()) continue;
    WEFT_CHECK(inputs[k].dtype() == DType::f64, Dtype, name, "gradcheck: input ", k, " is ",
               inputs[k].dtype(), "; finite differences need f64");
    WEFT_CHECK(inputs[k].is_leaf(), InvalidArgument, name, "gradcheck: input ", k, " is no leaf");
    leaves.push_back(inputs[k]);
    positions.push_back(k);
  }
  WEFT_CHECK(!leaves.empty(), InvalidArgument, name, "gradcheck: no input requires a gradient");

  const std::vector<Tensor> outputs = f(inputs);
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    const auto numeric = numeric_jacobian(f, inputs, leaves[k], options.eps);
    const std::int64_t n = leaves[k].numel();
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const Tensor& y = outputs[o];
      WEFT_CHECK(y.numel() == 0 || !is_floating(y.dtype()) || y.requires_grad(), InvalidArgument,
                 name, "gradcheck: output ", o, " does not require a gradient");
      if (!y.requires_grad() || n == 0) continue;
      // The call of f at the top cannot be used: since then the leaves were written, which counts
      // as a change of saved tensors. So f is called again; the graph of this call serves all rows.
      const std::vector<Tensor> again = f(inputs);
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        Values one_hot(y.numel(), 0);
        one_hot[i] = 1;
        const Tensor v = raw::to(from_vector(one_hot, y.shape()), y.device());
        const Tensor g = grad({&again[o], 1}, {&leaves[k], 1}, {&v, 1},
                              {.retain_graph = true, .allow_unused = true})[0];
        const Values analytic = g.defined() ? g.to_vector<double>() : Values(n, 0);
        WEFT_CHECK(!g.defined() || g.shape() == leaves[k].shape(), Shape, name,
                   "gradcheck: the gradient of input ", positions[k], " is ", g.shape(),
                   ", the input ", leaves[k].shape());
        for (std::int64_t j = 0; j < n; ++j) {
          WEFT_CHECK(close(analytic[j], numeric[o][i][j], options), InvalidArgument, name,
                     "gradcheck: d(output ", o, ", element ", i, ")/d(input ", positions[k],
                     ", element ", j, "): backward gives ", analytic[j], ", differences give ",
                     numeric[o][i][j]);
        }
      }
    }
  }

  const std::vector<Tensor> again = f(inputs);
  for (std::size_t o = 0; o < again.size(); ++o) {
    const Tensor& y = again[o];
    if (!y.requires_grad() || y.dim() == kMaxDims) continue;
    Values values;
    for (std::int64_t i = 0; i < y.numel(); ++i) values.push_back(std::cos(1.0 + 3.0 * i));
    const Tensor plain = raw::to(from_vector(values, y.shape()), y.device());
    const Tensor odd = oddly_laid_out(plain);
    const auto expected =
        grad({&y, 1}, leaves, {&plain, 1}, {.retain_graph = true, .allow_unused = true});
    const auto got = grad({&y, 1}, leaves, {&odd, 1}, {.retain_graph = true, .allow_unused = true});
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      if (!expected[k].defined()) continue;
      const Values a = got[k].to_vector<double>();
      const Values b = expected[k].to_vector<double>();
      for (std::size_t j = 0; j < a.size(); ++j) {
        const bool both_nan = std::isnan(a[j]) && std::isnan(b[j]);
        WEFT_CHECK(both_nan || std::abs(a[j] - b[j]) <= 1e-12 * (1 + std::abs(b[j])),
                   InvalidArgument, name, "gradcheck: dL/d(input ", positions[k], ", element ", j,
                   ") is ", b[j], ", but ", a[j], " when dL/d(output ", o,
                   ") comes in other strides");
      }
    }
  }
}

void gradgradcheck(const std::string& name, const Function& f, std::span<const Tensor> inputs,
                   const GradcheckOptions& options) {
  WEFT_CHECK(f, InvalidArgument, name, "gradgradcheck: the function is empty");
  const auto differentiable = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  std::vector<Tensor> all(inputs.begin(), inputs.end());
  for (const Tensor& y : f(inputs)) {
    if (!differentiable(y)) continue;
    Values values;
    for (std::int64_t i = 0; i < y.numel(); ++i) values.push_back(std::sin(1.0 + 2.0 * i));
    const Tensor v = raw::to(from_vector(values, y.shape()), y.device());
    all.push_back(v.set_requires_grad());
  }
  const auto first_gradients = [&](std::span<const Tensor> x) {
    const EnableGrad enable;
    const auto own = x.first(inputs.size());
    std::vector<Tensor> outputs, leaves, gradients;
    for (const Tensor& y : f(own)) {
      if (differentiable(y)) outputs.push_back(y);
    }
    for (const Tensor& leaf : own) {
      if (differentiable(leaf)) leaves.push_back(leaf);
    }
    const GradOptions recorded{.create_graph = true, .allow_unused = true};
    for (Tensor& g : grad(outputs, leaves, x.subspan(inputs.size()), recorded)) {
      if (differentiable(g)) gradients.push_back(std::move(g));  // else it is constant
    }
    return gradients;
  };
  gradcheck(name, first_gradients, all, options);
}

void gradcheck(const std::string& name, const FunctionOfOne& f,
               std::initializer_list<Tensor> inputs, const GradcheckOptions& options) {
  gradcheck(name, with_list(f), std::span(inputs.begin(), inputs.size()), options);
}

void gradgradcheck(const std::string& name, const FunctionOfOne& f,
                   std::initializer_list<Tensor> inputs, const GradcheckOptions& options) {
  gradgradcheck(name, with_list(f), std::span(inputs.begin(), inputs.size()), options);
}

}  // namespace weft::autograd
