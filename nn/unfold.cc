#include "weft/nn/unfold.h"

#include <string>

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"

namespace weft::nn {
namespace {

UnfoldParams params_of(const char* op, Pair kernel, const UnfoldOptions& o) {
  const auto positive = [](Pair pair) { return pair.h > 0 && pair.w > 0; };
  WEFT_CHECK(positive(kernel) && positive(o.dilation) && positive(o.stride), InvalidArgument, op,
             "kernel, dilation and stride must be positive");
  WEFT_CHECK(o.padding.h >= 0 && o.padding.w >= 0, InvalidArgument, op,
             "padding must not be negative");
  return {.kernel = kernel, .dilation = o.dilation, .padding = o.padding, .stride = o.stride};
}

std::string describe(Pair kernel, const UnfoldOptions& o) {
  return "kernel_size=" + detail::repr(kernel) + ", dilation=" + detail::repr(o.dilation) +
         ", padding=" + detail::repr(o.padding) + ", stride=" + detail::repr(o.stride);
}

}  // namespace

Unfold::Unfold(Pair kernel, const UnfoldOptions& options)
    : params_(params_of("Unfold", kernel, options)) {
  set_description(describe(kernel, options));
}

Fold::Fold(Pair size, Pair kernel, const UnfoldOptions& options)
    : size_(size), params_(params_of("Fold", kernel, options)) {
  WEFT_CHECK(size.h > 0 && size.w > 0, InvalidArgument, "Fold", "size must be positive, got ",
             size.h, "x", size.w);
  set_description("output_size=" + detail::repr(size) + ", " + describe(kernel, options));
}

}  // namespace weft::nn
