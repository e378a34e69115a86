#include "weft/comm/backend/reduce.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "weft/comm/backend/collectives.h"
#include "weft/core/runtime/thread_local.h"

namespace weft::comm {
namespace {

constinit ThreadLocal<std::vector<std::byte>> scratch_memory;

template <class T>
struct ComputeIn {
  using type = T;
};
template <>
struct ComputeIn<bf16> {
  using type = float;
};
template <class T>
using compute_t = typename ComputeIn<T>::type;

// Integers wrap around: computed unsigned, because signed overflow is undefined.
template <class T>
auto wrapping(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) + wrapping(b));
  }
  bool operator()(bool a, bool b) const { return a | b; }
};

struct Product {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) * wrapping(b));
  }
  bool operator()(bool a, bool b) const { return a & b; }
};

struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};

template <class T>
void store(T& x, compute_t<T> value) {
  x = value;
}
// Writes only the bits: the compiler does not vectorise a loop that copies a class.
void store(bf16& x, float value) { x.bits = bf16(value).bits; }

template <class F>
void for_all(const Buffer& into, const void* from, F f) {
  dispatch_all(into.dtype, [&]<class T>() {
    using Compute = compute_t<T>;
    T* __restrict x = static_cast<T*>(into.data);
    const T* __restrict y = static_cast<const T*>(from);
#pragma omp simd
    for (std::int64_t i = 0; i < into.count; ++i) {
      store(x[i], f(static_cast<Compute>(x[i]), static_cast<Compute>(y[i])));
    }
  });
}

}  // namespace

void reduce_into(const Buffer& into, const void* from, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return for_all(into, from, Sum());
    case ReduceOp::product: return for_all(into, from, Product());
    case ReduceOp::min: return for_all(into, from, Min());
    case ReduceOp::max: return for_all(into, from, Max());
  }
}

void finish_reduce(const Buffer& x, ReduceOp op, int ranks) {
  if (op != ReduceOp::avg) return;
  dispatch_floating(x.dtype, "avg", [&]<class T>() {
    using Compute = compute_t<T>;
    T* y = static_cast<T*>(x.data);
#pragma omp simd
    for (std::int64_t i = 0; i < x.count; ++i) {
      store(y[i], static_cast<Compute>(y[i]) / static_cast<Compute>(ranks));
    }
  });
}

std::size_t Arithmetic::chunk_bytes() const { return kChunkBytes; }

// One buffer per thread, so it is allocated once.
std::byte* Arithmetic::scratch(std::size_t bytes) {
  std::vector<std::byte>& memory = *scratch_memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

void Arithmetic::copy(const Buffer& to, const Buffer& from) {
  if (to.data != from.data && from.count > 0) std::memcpy(to.data, from.data, from.bytes());
}

void Arithmetic::reduce_into(const Buffer& into, const void* from, ReduceOp op) {
  comm::reduce_into(into, from, op);
}

void Arithmetic::finish_reduce(const Buffer& x, ReduceOp op, int ranks) {
  comm::finish_reduce(x, op, ranks);
}

}  // namespace weft::comm
