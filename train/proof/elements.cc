#include "weft/train/proof/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

namespace weft::train::proof {
namespace {

template <class Bits, class Number>
double ulps(double x, double y) {
  // Maps floating-point numbers to integers in the same order.
  const auto place = [](double value) {
    const auto bits = std::bit_cast<Bits>(static_cast<Number>(value));
    return bits < 0
               ? static_cast<double>(std::numeric_limits<Bits>::min()) - static_cast<double>(bits)
               : static_cast<double>(bits);
  };
  return std::abs(place(x) - place(y));
}

}  // namespace

Elements elements(const Tensor& a, const Tensor& b) {
  constexpr std::size_t kShown = 5;
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  Elements result{.count = std::ssize(x)};
  const auto element = [&](std::size_t i) {
    Element found{.first = x[i], .second = y[i]};
    found.ulps = a.dtype() == DType::f64 ? ulps<std::int64_t, double>(x[i], y[i])
                                         : ulps<std::int32_t, float>(x[i], y[i]);
    if (a.dtype() == DType::bf16) found.ulps /= 1 << 16;  // the upper half of an f32
    auto rest = static_cast<std::int64_t>(i);
    for (int d = a.dim() - 1; d >= 0; --d) {
      found.place.insert(found.place.begin(), rest % a.shape(d));
      rest /= a.shape(d);
    }
    return found;
  };
  std::size_t worst = 0;
  double most = -1;
  std::vector<Element> first;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    ++result.unlike;
    double off = std::abs(x[i] - y[i]);
    if (std::isnan(off)) off = std::numeric_limits<double>::infinity();
    if (off > most) most = off, worst = i;
    if (first.size() < kShown) first.push_back(element(i));
  }
  if (result.unlike > 0) result.shown.push_back(element(worst));
  result.shown.insert(result.shown.end(), first.begin(), first.end());
  return result;
}

SumsApart sums_apart(const Tensor& a, const Tensor& b, const Tensor& magnitudes) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>(),
                            by = magnitudes.to_vector<double>();
  SumsApart apart;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(by[i])) apart.norm += by[i] * by[i];
    double off = std::abs(x[i] - y[i]);
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) off = 0;
    if (off < std::numeric_limits<float>::min()) continue;
    if (std::isnan(off)) off = std::numeric_limits<double>::infinity();
    apart.times = std::max(apart.times, std::isinf(off) ? off : off / by[i]);
    apart.l2 += off * off;
  }
  apart.l2 = std::sqrt(apart.l2);
  apart.norm = std::sqrt(apart.norm);
  return apart;
}

}  // namespace weft::train::proof
