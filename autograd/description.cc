#include "weft/autograd/description.h"

#include "weft/autograd/graph.h"
#include "weft/kernels/conv.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::autograd {

void Description::set(UnaryOp unary, const UnaryParams& params) {
  static constexpr const char* names[] = {
#define X(value, ...) #value,
      WEFT_UNARY_OPS(X) WEFT_SCALAR_OPS(X)
#undef X
  };
  op = names[static_cast<int>(unary)];
  numbers = {{"a", params.a}, {"b", params.b}};
}

void Description::set(const Conv2dParams& p) {
  ints = {{"stride", Ints(p.stride.begin(), p.stride.end())},
          {"padding", Ints(p.padding.begin(), p.padding.end())},
          {"dilation", Ints(p.dilation.begin(), p.dilation.end())},
          {"output_padding", Ints(p.output_padding.begin(), p.output_padding.end())},
          {"groups", {p.groups}}};
}

void Description::set(const char* name, const Node& node, const SavedTensor& saved) {
  if (saved.defined()) tensors[name] = saved.get(node);
}

}  // namespace weft::autograd
