// Batched matrix products.
#include "weft/kernels/matmul.h"

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/activation.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// T: the dtype of a, b and bias; Y: that of y.
template <class T, class Y>
void run_as(const MatmulArgs& args) {
  const Elements<T> a(args.a), b(args.b), bias(args.bias);
  const Elements<Y> y(args.y);
  for_each_position(args.y.shape, [&](const Dims& at) {
    const std::int64_t i = at[0], m = at[1], n = at[2];
    double sum = 0;
    for (std::int64_t k = 0; k < args.a.shape[2]; ++k) sum += a(i, m, k) * b(i, k, n);
    if (bias) sum += bias(n);
    if (args.accumulate) sum += y(at);
    y.set(activated(args.then, sum), at);
  });
}

// One plan serves all shapes and is never freed.
PlanRef<MatmulPlan> plan(const MatmulArgs&) {
  static const MatmulPlan all;
  return {&all, nullptr};
}

void run(const Stream& stream, const MatmulPlan&, const MatmulArgs& args, void*) {
  for_floating("matmul", stream, args.a.dtype, [&]<class T>() {
    if (args.y.dtype == args.a.dtype)
      run_as<T, T>(args);
    else
      run_as<T, float>(args);
  });
}

}  // namespace

MatmulKernels matmul_kernels() { return {.plan = plan, .run = run}; }

}  // namespace weft::reference
