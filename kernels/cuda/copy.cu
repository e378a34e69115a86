// Comparisons, selection, copies and fills: operations that move or convert rather than compute.
#include <cstring>

#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::cuda {
namespace {

#define X(value, name, expression)               \
  struct Compare_##value {                       \
    template <class T>                           \
    __device__ bool operator()(T a, T b) const { \
      return expression;                         \
    }                                            \
  };
WEFT_COMPARE_OPS(X)
#undef X

// f32 is the common type, so bf16, f64 and the integers have no kernels of their own.
template <class F>
void compare_as(const char* name, const Stream& stream, const View& a, const View& b,
                const View& y) {
  if (a.dtype == DType::f32) {
    map<Raw<bool>, Typed<float>, Typed<float>>(name, stream, F{}, y, a, b);
  } else if (is_floating(a.dtype)) {
    map<Raw<bool>, AnyFloat, AnyFloat>(name, stream, F{}, y, a, b);
  } else {
    map<Raw<bool>, AnyInt, AnyInt>(name, stream, F{}, y, a, b);
  }
}

/// Calls f with the unsigned type that has as many bytes as an element.
template <class F>
void dispatch_bits(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    default: return f.template operator()<std::uint64_t>();
  }
}

struct Select {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

struct Identity {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

/// A value between two types. Integers stay integers: not all i64 fit in a double, and rounding
/// twice, i64 -> f64 -> f32, does not always give the nearest f32.
struct Number {
  bool floating;
  double real;
  std::int64_t integer;
};

/// Elements of any type, read as a Number and written from one.
struct AnyNumber {
  static constexpr int bytes = 0;
  void* data;
  DType dtype;

  __device__ AnyNumber(void* p, DType type) : data(p), dtype(type) {}

  __device__ Number load(std::int64_t i) const {
    if (is_floating(dtype)) return {true, AnyFloat(data, dtype).load(i), 0};
    return {false, 0, AnyInt(data, dtype).load(i)};
  }
  __device__ void store(std::int64_t i, Number v) const {
    if (!is_floating(dtype)) {
      v.floating ? AnyInt(data, dtype).store(i, v.real) : AnyInt(data, dtype).store(i, v.integer);
    } else if (v.floating) {
      AnyFloat(data, dtype).store(i, v.real);
    } else if (dtype == DType::f64) {
      static_cast<double*>(data)[i] = static_cast<double>(v.integer);
    } else {
      AnyFloat(data, dtype).store(i, static_cast<float>(v.integer));
    }
  }
};

__global__ void __launch_bounds__(kBlock)
    arange_kernel(double start, double step, std::int64_t n, std::int64_t stride, void* data,
                  DType dtype) {
  const AnyNumber y(data, dtype);
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kBlock) {
    y.store(i * stride, {true, start + static_cast<double>(i) * step, 0});
  }
}

}  // namespace

void compare(const Stream& stream, CompareOp op, const View& a, const View& b, const View& y) {
  switch (op) {
#define X(value, ...) \
  case CompareOp::value: return compare_as<Compare_##value>(#value, stream, a, b, y);
    WEFT_COMPARE_OPS(X)
#undef X
  }
}

void where(const Stream& stream, const View& condition, const View& a, const View& b,
           const View& y) {
  dispatch_bits(y.dtype, [&]<class T>() {
    map<Raw<T>, Raw<bool>, Raw<T>, Raw<T>>("where", stream, Select{}, y, condition, a, b);
  });
}

void copy(const Stream& stream, const View& x, const View& y) {
  if (x.dtype == y.dtype) {
    dispatch_bits(y.dtype,
                  [&]<class T>() { map<Raw<T>, Raw<T>>("copy", stream, Identity{}, y, x); });
  } else if (x.dtype == DType::f32 && y.dtype == DType::bf16) {
    map<Typed<bf16>, Typed<float>>("copy", stream, Identity{}, y, x);
  } else if (x.dtype == DType::bf16 && y.dtype == DType::f32) {
    map<Typed<float>, Typed<bf16>>("copy", stream, Identity{}, y, x);
  } else {
    map<AnyNumber, AnyNumber>("copy", stream, Identity{}, y, x);
  }
}

void copy_all(const Stream& stream, std::span<const CopyPair> pairs) {
  for (const CopyPair& pair : pairs) copy(stream, pair.x, pair.y);
}

void fill(const Stream& stream, double value, const View& y) {
  dispatch_bits(y.dtype, [&]<class Bits>() {
    Bits bits{};
    dispatch_all(y.dtype, [&]<class T>() {
      const T element = element_cast<T>(value);
      if constexpr (sizeof(T) == sizeof(Bits)) std::memcpy(&bits, &element, sizeof bits);
    });
    map<Raw<Bits>>("fill", stream, Constant<Bits>{bits}, y);
  });
}

void arange(const Stream& stream, double start, double step, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  launch("arange", stream, arange_kernel, grid_blocks(n), kBlock, start, step, n, y.strides[0],
         y.data, y.dtype);
}

}  // namespace weft::cuda
