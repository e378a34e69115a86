// Random fills, in one pass that writes y and reads nothing but the key. Element i depends only on
// the key and i.
#include <cmath>

#include "weft/core/runtime/capture.h"
#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/philox.h"

namespace weft::cuda {
namespace {

/// The key of a fill's numbers, drawn from the generator on the host. A captured fill reads it from
/// memory, where each replay has a new one.
struct Key {
  std::uint64_t value;
  const std::uint64_t* at;  // null: use the value
  __device__ std::uint64_t get() const { return at ? *at : value; }
};

Key next_key(Generator& generator) {
  if (graph::Capture* capture = thread_state().capture) return {0, capture->random64(generator)};
  return {generator.random64(), nullptr};
}

// A Philox block gives four f32 or two f64.
template <class T>
constexpr int kPerBlock = sizeof(T) == 8 ? 2 : 4;

template <class T>
__device__ T unit(const PhiloxWords& words, int k) {
  if constexpr (sizeof(T) == 8) {
    return unit_f64(words.w[2 * k], words.w[2 * k + 1]);
  } else {
    return unit_f32(words.w[k]);
  }
}

template <class T>
struct Uniform {
  T from, range;
  __device__ void operator()(const PhiloxWords& words, T* out) const {
    for (int k = 0; k < kPerBlock<T>; ++k) out[k] = std::fma(unit<T>(words, k), range, from);
  }
};

/// Box and Muller: two uniform values give two normal ones.
template <class T>
struct Normal {
  T mean, deviation;
  __device__ void operator()(const PhiloxWords& words, T* out) const {
    for (int k = 0; k < kPerBlock<T>; k += 2) {
      const T u = T(1) - unit<T>(words, k);  // in (0, 1]: its logarithm is finite
      const T radius = std::sqrt(T(-2) * std::log(u));
      const T angle = T(6.283185307179586) * unit<T>(words, k + 1);
      out[k] = radius * std::cos(angle) * deviation + mean;
      out[k + 1] = radius * std::sin(angle) * deviation + mean;
    }
  }
};

/// The elements of the dense y, in memory order, are elements 0, 1, ... of the sequence.
template <class T, class Distribution>
__global__ void __launch_bounds__(kBlock)
    fill_random_kernel(std::int64_t n, Key key, Distribution distribution, T* y) {
  constexpr int kEach = kPerBlock<T>;
  const std::uint64_t seed = key.get();
  const std::int64_t blocks = n / kEach + (n % kEach != 0);
  for_each_of_grid(blocks, [&](std::int64_t b) {
    T values[kEach];
    distribution(philox(seed, static_cast<std::uint64_t>(b)), values);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (b * kEach + k < n) y[b * kEach + k] = values[k];
    }
  });
}

/// An element of y is `one` where its 32 random bits are a number less than `below`, else 0.
template <class T>
__global__ void __launch_bounds__(kBlock)
    bernoulli_kernel(std::int64_t n, Key key, std::uint64_t below, T one, T* y) {
  const std::uint64_t seed = key.get();
  const std::int64_t blocks = n / 4 + (n % 4 != 0);
  for_each_of_grid(blocks, [&](std::int64_t b) {
    const PhiloxWords words = philox(seed, static_cast<std::uint64_t>(b));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (b * 4 + k < n) y[b * 4 + k] = words.w[k] < below ? one : T{};
    }
  });
}

template <template <class> class Distribution>
void fill_random(const char* name, const Stream& stream, Generator& generator, double a, double b,
                 const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  const auto run = [&]<class T>() {
    const Distribution<T> distribution{static_cast<T>(a), static_cast<T>(b)};
    launch(name, stream, fill_random_kernel<T, Distribution<T>>, grid_blocks(n / kPerBlock<T> + 1),
           kBlock, n, next_key(generator), distribution, y.as<T>());
  };
  switch (y.dtype) {
    case DType::f32: return run.template operator()<float>();
    case DType::f64: return run.template operator()<double>();
    default: throw_unsupported(name, stream.device, y.dtype);
  }
}

void uniform(const Stream& stream, Generator& generator, double from, double to, const View& y) {
  fill_random<Uniform>("uniform", stream, generator, from, to - from, y);
}

void normal(const Stream& stream, Generator& generator, double mean, double std, const View& y) {
  fill_random<Normal>("normal", stream, generator, mean, std, y);
}

void bernoulli(const Stream& stream, Generator& generator, double p, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  const auto below = static_cast<std::uint64_t>(std::ceil(p * 0x1p32));  // 0: none; 2^32: all
  dispatch_all(y.dtype, [&]<class T>() {
    launch("bernoulli", stream, bernoulli_kernel<T>, grid_blocks(n / 4 + 1), kBlock, n,
           next_key(generator), below, static_cast<T>(1.0f), y.as<T>());
  });
}

}  // namespace

RandomKernels random_kernels() {
  return {.uniform = uniform, .normal = normal, .bernoulli = bernoulli};
}

}  // namespace weft::cuda
