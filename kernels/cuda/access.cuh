// How kernels read and write elements: with a type fixed at compile time (and 16-byte packs), or
// with a dtype known only at run time, for combinations that are too rare for a kernel of their
// own.
#pragma once

#include <cstdint>
#include <cstring>

#include "weft/core/base/dtype.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

/// Calls f(i) for this thread's share of i = 0, 1, ... n-1. The grid has blocks of kBlock threads.
template <class F>
__device__ void for_each_of_grid(std::int64_t n, const F& f) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kBlock) {
    f(i);
  }
}

/// Calls f.operator()<Bits>() with the unsigned type of so many bytes.
template <class F>
auto dispatch_bytes(std::size_t bytes, const F& f) {
  switch (bytes) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    default: return f.template operator()<std::uint64_t>();
  }
}

/// The same, with the type that has as many bytes as an element of `dtype`.
template <class F>
void dispatch_bits(DType dtype, const F& f) {
  dispatch_bytes(size_of(dtype), f);
}

/// The bits of `value` as an element, which has the size of Bits.
template <class Bits>
Bits bits_of(DType dtype, double value) {
  Bits bits{};
  dispatch_all(dtype, [&]<class T>() {
    const T element = element_cast<T>(value);
    if constexpr (sizeof(T) == sizeof(Bits)) std::memcpy(&bits, &element, sizeof bits);
  });
  return bits;
}

/// An element of an array, or `otherwise` if there is none.
template <class C, class T>
__device__ C value_or(const T* values, std::int64_t i, C otherwise) {
  return values ? static_cast<C>(values[i]) : otherwise;
}

/// W neighbouring elements, loaded or stored at once.
template <class T, class Compute, int W>
struct alignas(sizeof(T) * W) Pack {
  T v[W];
  __device__ Compute get(int k) const { return static_cast<Compute>(v[k]); }
  __device__ void set(int k, Compute value) { v[k] = static_cast<T>(value); }
};

/// Elements of type T, computed in type Compute.
template <class T, class Compute>
struct Access {
  static constexpr int bytes = sizeof(T);
  template <int W>
  using pack = Pack<T, Compute, W>;
  T* data;

  __device__ Access(void* p, DType) : data(static_cast<T*>(p)) {}

  __device__ Compute load(std::int64_t i) const { return static_cast<Compute>(data[i]); }
  __device__ void store(std::int64_t i, Compute value) const { data[i] = static_cast<T>(value); }

  /// Pack i, or with `repeats` a pack of nothing but element i.
  template <int W>
  __device__ pack<W> load_pack(std::int64_t i, bool repeats) const {
    if (!repeats) return reinterpret_cast<const pack<W>*>(data)[i];
    pack<W> p;
    for (int k = 0; k < W; ++k) p.v[k] = data[i];
    return p;
  }
  template <int W>
  __device__ void store_pack(std::int64_t i, const pack<W>& p) const {
    reinterpret_cast<pack<W>*>(data)[i] = p;
  }
};

/// The usual case: computed in accumulate_t<T>, so bf16 in f32.
template <class T>
using Typed = Access<T, accumulate_t<T>>;
/// Without conversion: to move elements, or to read and write bool as bool.
template <class T>
using Raw = Access<T, T>;

/// Elements of an integer dtype or bool, all computed as std::int64_t.
struct AnyInt {
  static constexpr int bytes = 0;  // not fixed, so there are no packs
  void* data;
  DType dtype;

  __device__ AnyInt(void* p, DType type) : data(p), dtype(type) {}

  __device__ std::int64_t load(std::int64_t i) const {
    switch (dtype) {
      case DType::i64: return static_cast<const std::int64_t*>(data)[i];
      case DType::i32: return static_cast<const std::int32_t*>(data)[i];
      case DType::u8: return static_cast<const std::uint8_t*>(data)[i];
      default: return static_cast<const bool*>(data)[i];
    }
  }
  /// Also stores a floating value, which saturates.
  template <class Value>
  __device__ void store(std::int64_t i, Value value) const {
    switch (dtype) {
      case DType::i64: put<std::int64_t>(i, value); break;
      case DType::i32: put<std::int32_t>(i, value); break;
      case DType::u8: put<std::uint8_t>(i, value); break;
      default: put<bool>(i, value);
    }
  }

 private:
  template <class T, class Value>
  __device__ void put(std::int64_t i, Value value) const {
    static_cast<T*>(data)[i] = element_cast<T>(value);
  }
};

/// Elements of f32, f64 or bf16, all computed as double; every f32 and bf16 value is exact there.
struct AnyFloat {
  static constexpr int bytes = 0;
  void* data;
  DType dtype;

  __device__ AnyFloat(void* p, DType type) : data(p), dtype(type) {}

  __device__ double load(std::int64_t i) const {
    switch (dtype) {
      case DType::f32: return static_cast<const float*>(data)[i];
      case DType::f64: return static_cast<const double*>(data)[i];
      default: return static_cast<float>(static_cast<const bf16*>(data)[i]);
    }
  }
  __device__ void store(std::int64_t i, double value) const {
    switch (dtype) {
      case DType::f32: static_cast<float*>(data)[i] = static_cast<float>(value); break;
      case DType::f64: static_cast<double*>(data)[i] = value; break;
      default: static_cast<bf16*>(data)[i] = bf16(static_cast<float>(value));
    }
  }
};

/// Calls f.operator()<Access>() with the access to a dtype's elements. Without `integers` it throws
/// Unsupported, for `op`, for dtypes that are not floating.
template <bool integers, class F>
void for_access(const char* op, const Stream& stream, DType dtype, const F& f) {
  if constexpr (integers) {
    if (!is_floating(dtype)) return f.template operator()<AnyInt>();
  }
  for_floating(op, stream, dtype, [&]<class T>() { f.template operator()<Typed<T>>(); });
}

}  // namespace weft::cuda
