// Functions of two tensors, in one pass: forward reads a and b and writes y; backward, for each
// gradient, reads grad_y and, unless the gradient is passed on as it is, a and b.
#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

template <class Functor>
struct Forward {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return Functor{}.fwd(a, b);
  }
};

template <class Functor, bool of_b>
struct Backward {
  template <class T>
  __device__ T operator()(T g, T a, T b) const {
    return of_b ? Functor{}.bwd_b(g, a, b) : Functor{}.bwd_a(g, a, b);
  }
  // For operations that pass the gradient on; a and b are not saved then.
  template <class T>
  __device__ T operator()(T g) const {
    return (*this)(g, T(0), T(0));
  }
};

// Compute is float for f32 and bf16, double for f64.
template <class Compute>
struct AddScaled {
  Compute alpha;
  __device__ Compute operator()(Compute y, Compute x) const { return y + alpha * x; }
};

template <class Functor, bool integers>
void forward(const char* name, const Stream& stream, const View& a, const View& b, const View& y) {
  const Forward<Functor> f;
  for_access<integers>(name, stream, y.dtype,
                       [&]<class A>() { map<A, A, A>(name, stream, f, y, a, b); });
}

template <class Functor, bool of_b>
void backward(const char* name, const Stream& stream, const View& grad_y, const View& a,
              const View& b, const View& grad) {
  const Backward<Functor, of_b> f;
  for_floating(name, stream, grad.dtype, [&]<class T>() {
    if constexpr (Functor::passes_grad) {
      map<Typed<T>, Typed<T>>(name, stream, f, grad, grad_y);
    } else {
      map<Typed<T>, Typed<T>, Typed<T>, Typed<T>>(name, stream, f, grad, grad_y, a, b);
    }
  });
}

}  // namespace

void binary(const Stream& stream, BinaryOp op, const View& a, const View& b, const View& y) {
  switch (op) {
#define X(value, name, Functor, integers, ...) \
  case BinaryOp::value: return forward<functor::Functor, integers>(#value, stream, a, b, y);
    WEFT_BINARY_OPS(X)
#undef X
  }
}

void binary_backward(const Stream& stream, BinaryOp op, bool of_b, const View& grad_y,
                     const View& a, const View& b, const View& grad) {
  switch (op) {
#define X(value, name, Functor, ...)                                                               \
  case BinaryOp::value:                                                                            \
    return of_b ? backward<functor::Functor, true>(#value "_backward", stream, grad_y, a, b, grad) \
                : backward<functor::Functor, false>(#value "_backward", stream, grad_y, a, b,      \
                                                    grad);
    WEFT_BINARY_OPS(X)
#undef X
  }
}

void add_scaled(const Stream& stream, double alpha, const View& x, const View& y) {
  for_floating("add_scaled", stream, y.dtype, [&]<class T>() {
    const AddScaled<accumulate_t<T>> f{static_cast<accumulate_t<T>>(alpha)};
    map<Typed<T>, Typed<T>, Typed<T>>("add_scaled", stream, f, y, y, x);
  });
}

}  // namespace weft::cuda
