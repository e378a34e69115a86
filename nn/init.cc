#include "weft/nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn::init {

namespace {

struct Fans {
  double in, out;
};

Fans fans_of(const char* op, const Tensor& w) {
  WEFT_CHECK(w.dim() >= 2, Shape, op, "fan_in needs at least 2 dimensions, got ", w.shape());
  std::int64_t area = 1;
  for (int d = 2; d < w.dim(); ++d) area *= w.shape(d);
  return {static_cast<double>(w.shape(1) * area), static_cast<double>(w.shape(0) * area)};
}

double kaiming_std(const char* op, const Tensor& w, double a, FanMode mode,
                   Nonlinearity nonlinearity) {
  const double gain = calculate_gain(nonlinearity, a);
  WEFT_CHECK(std::isfinite(gain), InvalidArgument, op, "a must be finite, got ", a);
  const Fans fans = fans_of(op, w);
  return gain / std::sqrt(mode == FanMode::fan_in ? fans.in : fans.out);
}

double xavier_std(const char* op, const Tensor& w, double gain) {
  WEFT_CHECK(gain >= 0 && std::isfinite(gain), InvalidArgument, op,
             "gain must be finite and not negative, got ", gain);
  const Fans fans = fans_of(op, w);
  return gain * std::sqrt(2 / (fans.in + fans.out));
}

// Handled as in PyTorch; the fans of such a tensor may be 0.
bool nothing_to_do(const char* op, const Tensor& w) {
  w.shape();  // throws when undefined
  if (w.numel() > 0) return false;
  log_warning(weft::detail::concat(op, ": a tensor ", w.shape(), " has no elements to initialise"));
  return true;
}

double normal_cdf(double x) { return (1 + std::erf(x / std::numbers::sqrt2)) / 2; }

// The x with erf(x) = y: M. Giles' approximation, refined by Newton's method.
double inverse_erf(double y) {
  if (std::abs(y) >= 1) return std::copysign(HUGE_VAL, y);
  const double w = -std::log((1 - y) * (1 + y));
  double x = 0;
  if (w < 5) {
    const double v = w - 2.5;
    x = 2.81022636e-08;
    for (const double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                           -0.00125372503, -0.00417768164, 0.246640727, 1.50140941}) {
      x = c + x * v;
    }
  } else {
    const double v = std::sqrt(w) - 3;
    x = -0.000200214257;
    for (const double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                           -0.0076224613, 0.00943887047, 1.00167406, 2.83297682}) {
      x = c + x * v;
    }
  }
  x *= y;
  for (int i = 0; i < 2; ++i) {
    x -= (std::erf(x) - y) / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
  }
  return x;
}

// Replaces the `columns` <= `rows` columns of a, stored one after the other, by those of Q in a = Q
// R, where the diagonal of R is positive. Uses Householder's reflections, like LAPACK's geqrf and
// orgqr.
void orthonormalize(std::vector<double>& a, std::int64_t rows, std::int64_t columns) {
  const auto column = [&](std::vector<double>& matrix, std::int64_t j) {
    return matrix.data() + j * rows;
  };
  // Applies (I - 2 v v^T / |v|^2) to columns [first, columns); v is zero above its row k.
  const auto reflect = [&](std::vector<double>& matrix, std::int64_t first, const double* v,
                           std::int64_t k) {
    const double norm = std::inner_product(v + k, v + rows, v + k, 0.0);
    if (norm == 0) return;
    constexpr std::int64_t kGrain = 1 << 14;  // multiplications
    parallel_for(columns - first, std::max<std::int64_t>(1, kGrain / rows),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t j = first + begin; j < first + end; ++j) {
                     double* c = column(matrix, j);
                     const double scale =
                         2 * std::inner_product(v + k, v + rows, c + k, 0.0) / norm;
                     for (std::int64_t i = k; i < rows; ++i) c[i] -= scale * v[i];
                   }
                 });
  };

  std::vector<double> sign(static_cast<std::size_t>(columns));
  for (std::int64_t k = 0; k < columns; ++k) {
    double* v = column(a, k);  // the part below R's diagonal becomes the reflection's vector
    const double length = std::sqrt(std::inner_product(v + k, v + rows, v + k, 0.0));
    const double r = std::copysign(length, -v[k]);  // no cancellation in v[k] - r
    sign[static_cast<std::size_t>(k)] = r < 0 ? -1 : 1;
    v[k] -= r;
    reflect(a, k + 1, v, k);
  }
  std::vector<double> q(a.size(), 0);
  for (std::int64_t k = 0; k < columns; ++k) column(q, k)[k] = sign[static_cast<std::size_t>(k)];
  for (std::int64_t k = columns; k-- > 0;) reflect(q, k, column(a, k), k);
  a = std::move(q);
}

}  // namespace

double calculate_gain(Nonlinearity nonlinearity, double slope) {
  switch (nonlinearity) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid: return 1;
    case Nonlinearity::tanh: return 5.0 / 3;
    case Nonlinearity::relu: return std::sqrt(2.0);
    case Nonlinearity::leaky_relu: return std::sqrt(2.0 / (1 + slope * slope));
    case Nonlinearity::selu: break;
  }
  return 0.75;
}

void uniform_(const Tensor& x, double from, double to) { raw::uniform_(x, from, to); }

void normal_(const Tensor& x, double mean, double std) { raw::normal_(x, mean, std); }

void trunc_normal_(const Tensor& x, double mean, double std, double low, double high) {
  WEFT_CHECK(std > 0 && low < high && std::isfinite(mean), InvalidArgument, "trunc_normal_",
             "needs a finite mean, std > 0 and low < high, got ", mean, ", ", std, ", ", low,
             " and ", high);
  raw::uniform_(x, 2 * normal_cdf((low - mean) / std) - 1, 2 * normal_cdf((high - mean) / std) - 1);
  // Runs once per parameter, so there is no kernel for it.
  std::vector<double> values = x.to_vector<double>();
  for (double& v : values) {
    v = std::clamp(inverse_erf(v) * (std * std::numbers::sqrt2) + mean, low, high);
  }
  raw::copy_(x, from_vector(values, x.shape(), Device()));
}

void constant_(const Tensor& x, double value) { raw::fill_(x, value); }
void zeros_(const Tensor& x) { raw::zero_(x); }
void ones_(const Tensor& x) { raw::fill_(x, 1); }

void eye_(const Tensor& x) {
  WEFT_CHECK(x.dim() == 2, Shape, "eye_", "needs 2 dimensions, got ", x.shape());
  raw::zero_(x);
  for (std::int64_t i = 0; i < std::min(x.shape(0), x.shape(1)); ++i) {
    raw::fill_(raw::select(raw::select(x, 0, i), 0, i), 1);
  }
}

void dirac_(const Tensor& x, std::int64_t groups) {
  WEFT_CHECK(x.dim() >= 3 && x.dim() <= 5 && groups > 0 && x.shape(0) % groups == 0, Shape,
             "dirac_", "needs 3 to 5 dimensions, the first divisible by groups ", groups, ", got ",
             x.shape());
  if (x.numel() == 0) return;  // allowed for any number of groups
  raw::zero_(x);
  const std::int64_t out = x.shape(0) / groups;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t c = 0; c < std::min(out, x.shape(1)); ++c) {
      Tensor at = raw::select(raw::select(x, 0, g * out + c), 0, c);
      while (at.dim() > 0) at = raw::select(at, 0, at.shape(0) / 2);
      raw::fill_(at, 1);
    }
  }
}

void orthogonal_(const Tensor& x, double gain) {
  WEFT_CHECK(x.dim() >= 2, Shape, "orthogonal_", "needs at least 2 dimensions, got ", x.shape());
  if (x.numel() == 0) return;
  raw::normal_(x);
  const std::int64_t rows = x.shape(0), columns = x.numel() / rows;
  // orthonormalize needs columns one after the other along the longer side; the rows of a wide
  // matrix are stored so.
  const bool tall = rows >= columns;
  Tensor matrix = raw::reshape(raw::to(raw::to(x, Device()), DType::f64), {rows, columns});
  if (tall) matrix = raw::transpose(matrix, 0, 1);
  std::vector<double> values = matrix.to_vector<double>();
  orthonormalize(values, std::max(rows, columns), std::min(rows, columns));
  for (double& v : values) v *= gain;
  Tensor q = from_vector(values, matrix.shape(), Device());
  if (tall) q = raw::transpose(q, 0, 1);
  raw::copy_(x, raw::reshape(q, x.shape()));
}

void xavier_uniform_(const Tensor& w, double gain) {
  if (nothing_to_do("xavier_uniform_", w)) return;
  const double bound = std::sqrt(3.0) * xavier_std("xavier_uniform_", w, gain);
  uniform_(w, -bound, bound);
}

void xavier_normal_(const Tensor& w, double gain) {
  if (nothing_to_do("xavier_normal_", w)) return;
  normal_(w, 0, xavier_std("xavier_normal_", w, gain));
}

void kaiming_uniform_(const Tensor& w, double a, FanMode mode, Nonlinearity nonlinearity) {
  if (nothing_to_do("kaiming_uniform_", w)) return;
  const double bound = std::sqrt(3.0) * kaiming_std("kaiming_uniform_", w, a, mode, nonlinearity);
  uniform_(w, -bound, bound);
}

void kaiming_normal_(const Tensor& w, double a, FanMode mode, Nonlinearity nonlinearity) {
  if (nothing_to_do("kaiming_normal_", w)) return;
  normal_(w, 0, kaiming_std("kaiming_normal_", w, a, mode, nonlinearity));
}

void default_weight_and_bias(const Tensor& w, const Tensor& bias) {
  kaiming_uniform_(w, std::sqrt(5.0));
  if (!bias.defined()) return;
  const double fan_in = fans_of("init", w).in;
  const double bound = fan_in > 0 ? 1 / std::sqrt(fan_in) : 0;
  uniform_(bias, -bound, bound);
}

}  // namespace weft::nn::init
