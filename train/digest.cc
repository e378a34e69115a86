#include "weft/train/digest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "weft/tensor/ops.h"

namespace weft::train {
namespace {

// The last step of splitmix64 (Steele, Lea and Flood, 2014): all bits of the result depend on all
// bits of x.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// -0 becomes +0: they are equal, and a sum that begins with nothing may be either.
Tensor on_host(const Tensor& x) {
  const Tensor host = raw::contiguous(raw::to(x, Device()));
  return is_floating(x.dtype()) ? raw::add_(raw::clone(host), 0) : host;
}

std::uint64_t hash_of_host(const Tensor& x) {
  const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  const std::span data(static_cast<const std::byte*>(bytes ? x.raw_data() : nullptr), bytes);
  return hash_of(data, static_cast<std::uint64_t>(x.dtype()));
}

}  // namespace

std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t before) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  std::uint64_t hash = mixed(before + kGolden + bytes.size());
  for (std::size_t i = 0; i < bytes.size(); i += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
    hash = mixed((hash + kGolden) ^ word);
  }
  return hash;
}

std::uint64_t hash_of(const Tensor& x) { return hash_of_host(on_host(x)); }

Digest digest(const Tensor& x) {
  const Tensor host = on_host(x);
  Digest result{.hash = hash_of_host(host)};
  double squares = 0;
  std::uint64_t index = 0, bits = 0;
  for (const double value : host.to_vector<double>()) {
    // 64 bits are the signs of 16 elements.
    if (index % 16 == 0) bits = mixed(index + 1);
    ++index;
    if (!std::isfinite(value)) {
      const std::uint64_t kind = std::isnan(value) ? 1 : value > 0 ? 2 : 3;
      result.not_finite = mixed(result.not_finite + 4 * index + kind);
      bits >>= result.signs.size();
      result.max = std::isnan(value) || std::isnan(result.max) ? NAN : INFINITY;
      continue;
    }
    for (double& sum : result.signs) {
      sum += bits & 1 ? value : -value;
      bits >>= 1;
    }
    result.sum += value;
    squares += value * value;
    if (std::abs(value) > result.max) result.max = std::abs(value);
  }
  result.l2 = std::sqrt(squares);
  return result;
}

}  // namespace weft::train
