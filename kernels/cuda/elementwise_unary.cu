// Functions of one tensor, in one pass: forward reads x and writes y; backward reads grad_y and, if
// the function saves it, x or y, and writes grad_x.
#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

template <class Functor>
struct Forward {
  Functor functor;
  template <class T>
  __device__ T operator()(T x) const {
    return functor.fwd(x);
  }
};

template <class Functor>
struct Backward {
  Functor functor;
  template <class T>
  __device__ T operator()(T g, T saved) const {
    return functor.bwd(g, saved);
  }
  // For operations that need only the gradient.
  template <class T>
  __device__ T operator()(T g) const {
    return functor.bwd(g, T(0));
  }
};

template <class Functor, bool integers>
void forward(const char* name, const Stream& stream, const Functor& functor, const View& x,
             const View& y) {
  const Forward<Functor> f{functor};
  for_access<integers>(name, stream, y.dtype, [&]<class A>() { map<A, A>(name, stream, f, y, x); });
}

template <class Functor>
void backward(const char* name, const Stream& stream, const Functor& functor, const View& grad_y,
              const View& saved, const View& grad_x) {
  const Backward<Functor> f{functor};
  for_floating(name, stream, grad_x.dtype, [&]<class T>() {
    if constexpr (Functor::saves == Saves::nothing) {
      map<Typed<T>, Typed<T>>(name, stream, f, grad_x, grad_y);
    } else {
      map<Typed<T>, Typed<T>, Typed<T>>(name, stream, f, grad_x, grad_y, saved);
    }
  });
}

}  // namespace

void unary(const Stream& stream, UnaryOp op, UnaryParams params, const View& x, const View& y) {
  switch (op) {
#define X(value, name, Functor, integers, ...) \
  case UnaryOp::value: return forward<functor::Functor, integers>(#value, stream, {params}, x, y);
    WEFT_UNARY_OPS(X)
#undef X
#define X(value, Functor, integers) \
  case UnaryOp::value: return forward<functor::Functor, integers>(#value, stream, {params}, x, y);
    WEFT_SCALAR_OPS(X)
#undef X
  }
}

void unary_backward(const Stream& stream, UnaryOp op, UnaryParams params, const View& grad_y,
                    const View& saved, const View& grad_x) {
  switch (op) {
#define X(value, name, Functor, ...) \
  case UnaryOp::value:               \
    return backward<functor::Functor>(#value "_backward", stream, {params}, grad_y, saved, grad_x);
    WEFT_UNARY_OPS(X)
#undef X
#define X(value, Functor, integers) \
  case UnaryOp::value:              \
    return backward<functor::Functor>(#value "_backward", stream, {params}, grad_y, saved, grad_x);
    WEFT_SCALAR_OPS(X)
#undef X
  }
}

}  // namespace weft::cuda
