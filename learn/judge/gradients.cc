#include "weft/learn/judge/gradients.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "weft/learn/judge/verdict.h"
#include "weft/tensor/creation.h"

namespace weft::learn {
namespace {

// Divisible by 1 to 4, so that every mean is exact, whether one divides before or after.
float gradient_at(int rank, std::size_t p, std::int64_t i) {
  return 12.0f * static_cast<float>((rank + 1) * (rank + 1) * (i + 1) + 100 * (p + 1));
}

float weight_at(std::size_t p, std::int64_t i) {
  return static_cast<float>(p + 1) + static_cast<float>(i) / 8;
}

std::string what_it_is(float got, int rank, int n, std::size_t p, std::int64_t i, float sum) {
  if (got == sum) return ": it is the sum; divide by the number of ranks";
  if (got == sum / static_cast<float>(n * n)) return ": it was divided twice";
  for (int r = 0; r < n; ++r) {
    const char* waited = r == rank ? "; has this rank called all_reduce on the gradient itself, "
                                     "not on a copy, and has its work been waited for?"
                                   : "";
    if (got == gradient_at(r, p, i)) {
      return detail::concat(": it is that of rank ", r, " alone", waited);
    }
    if (got == gradient_at(r, p, i) / static_cast<float>(n)) {
      return detail::concat(": it is that of rank ", r, " alone, divided", waited);
    }
  }
  const float mean = sum / static_cast<float>(n);
  return std::abs(got - mean) < 1e-3f * std::abs(mean)
             ? ": it is rounded, where the right steps are exact"
             : "";
}

}  // namespace

std::vector<Tensor> some_parameters() {
  std::vector<Tensor> parameters;
  for (const Shape& shape : {Shape{3, 4}, Shape{4}, Shape{2, 2}, Shape{1}}) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < numel(shape); ++i) {
      values.push_back(weight_at(parameters.size(), i));
    }
    parameters.push_back(from_vector(values, shape).set_requires_grad());
  }
  return parameters;
}

Tensor gradient_of(int rank, std::size_t p, const Tensor& parameter) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < parameter.numel(); ++i) values.push_back(gradient_at(rank, p, i));
  return from_vector(values, parameter.shape());
}

void check_means(int rank, int n, const std::vector<Tensor>& parameters,
                 bool (*unused)(int rank, std::size_t p)) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Tensor grad = parameters[p].grad();
    require(grad.defined(), "rank ", rank, " has no gradient of parameter ", p,
            unused(rank, p)
                ? ", which it has not used: there its gradient counts as zeros, and the "
                  "mean is that rank's too, or the ranks' weights drift apart"
                : ": where has it gone?");
    require(grad.shape() == parameters[p].shape(), "rank ", rank, "'s gradient of parameter ", p,
            " has another shape than the parameter");
    const std::vector<float> got = grad.to_vector<float>(),
                             weights = parameters[p].detach().to_vector<float>();
    for (std::int64_t i = 0; i < std::ssize(got); ++i) {
      require(weights[i] == weight_at(p, i), "rank ", rank, "'s parameter ", p,
              " itself was changed: only parameter.grad() is to be averaged");
      float sum = 0;
      for (int r = 0; r < n; ++r) sum += unused(r, p) ? 0 : gradient_at(r, p, i);
      const float mean = sum / static_cast<float>(n);
      require(got[i] == mean, "rank ", rank, "'s gradient of parameter ", p, " is ", digits(got[i]),
              " at number ", i, ", the mean of the ranks is ", digits(mean),
              what_it_is(got[i], rank, n, p, i, sum));
    }
  }
}

}  // namespace weft::learn
