#include "weft/kernels/cpu/activation.h"

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/elementwise.h"

namespace weft::cpu {

void activate(Activation then, DType dtype, std::int64_t n, void* values) {
  if (then == Activation::none) return;
  char* const data[] = {static_cast<char*>(values), static_cast<char*>(values)};
  const UnaryParams params{};
  elementwise_loops().of(dtype).unary[int(UnaryOp::relu)](n, data, &params);
}

void activate(Activation then, const View& y) {
  if (then == Activation::none) return;
  parallel_for(y.numel(), kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
    char* const from = y.as<char>() + begin * std::int64_t(size_of(y.dtype));
    activate(then, y.dtype, end - begin, from);
  });
}

}  // namespace weft::cpu
