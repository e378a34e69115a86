// Filling tensors with random numbers.
#include "weft/kernels/random.h"

#include <span>
#include <vector>

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

template <class T>
std::span<T> all(const View& y) {
  return {y.as<T>(), static_cast<std::size_t>(y.numel())};
}

void uniform(const Stream& stream, Generator& generator, double from, double to, const View& y) {
  switch (y.dtype) {
    case DType::f32: return generator.uniform(all<float>(y), from, to);
    case DType::f64: return generator.uniform(all<double>(y), from, to);
    default: throw_unsupported("uniform", stream.device, y.dtype);
  }
}

void normal(const Stream& stream, Generator& generator, double mean, double std, const View& y) {
  switch (y.dtype) {
    case DType::f32: return generator.normal(all<float>(y), mean, std);
    case DType::f64: return generator.normal(all<double>(y), mean, std);
    default: throw_unsupported("normal", stream.device, y.dtype);
  }
}

void bernoulli(const Stream&, Generator& generator, double p, const View& y) {
  std::vector<std::uint8_t> ones(static_cast<std::size_t>(y.numel()));
  generator.bernoulli(ones, p);
  dispatch_all(y.dtype, [&]<class T>() {
    for (std::size_t i = 0; i < ones.size(); ++i) y.as<T>()[i] = element_cast<T>(ones[i]);
  });
}

}  // namespace

RandomKernels random_kernels() {
  return {.uniform = uniform, .normal = normal, .bernoulli = bernoulli};
}

}  // namespace weft::reference
