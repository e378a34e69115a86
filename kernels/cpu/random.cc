// Random filling: the generator is sequential, so one thread draws all numbers, in memory order.
#include <algorithm>
#include <array>
#include <span>
#include <type_traits>

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/random.h"

namespace weft::cpu {
namespace {

template <class F>
void fill_floating(const char* op, const Stream& stream, const View& y, F&& f) {
  const auto n = static_cast<std::size_t>(y.numel());
  if (y.dtype == DType::f32)
    f(std::span(y.as<float>(), n));
  else if (y.dtype == DType::f64)
    f(std::span(y.as<double>(), n));
  else
    throw_unsupported(op, stream.device, y.dtype);
}

void uniform(const Stream& stream, Generator& generator, double from, double to, const View& y) {
  fill_floating("uniform", stream, y, [&](auto out) { generator.uniform(out, from, to); });
}

void normal(const Stream& stream, Generator& generator, double mean, double std, const View& y) {
  fill_floating("normal", stream, y, [&]<class T>(std::span<T> out) {
    if constexpr (std::is_same_v<T, float>)
      generator.normal(out, mean, std, random_loops().box_muller);
    else
      generator.normal(out, mean, std);
  });
}

void bernoulli(const Stream&, Generator& generator, double p, const View& y) {
  std::array<std::uint8_t, 1024> bits;
  const std::int64_t n = y.numel();
  dispatch_all(y.dtype, [&]<class T>() {
    T* out = y.as<T>();
    for (std::int64_t i = 0; i < n; i += std::ssize(bits)) {
      const std::int64_t here = std::min<std::int64_t>(std::ssize(bits), n - i);
      generator.bernoulli(std::span(bits).first(static_cast<std::size_t>(here)), p);
      for (std::int64_t k = 0; k < here; ++k) {
        out[i + k] = store<T>(load(bits[static_cast<std::size_t>(k)]));
      }
    }
  });
}

}  // namespace

RandomKernels random_kernels() {
  return {.uniform = uniform, .normal = normal, .bernoulli = bernoulli};
}

}  // namespace weft::cpu
