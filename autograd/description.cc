#include "weft/autograd/description.h"

#include <utility>

#include "weft/autograd/graph.h"
#include "weft/autograd/thread_tape.h"
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

ObserverScope::ObserverScope(TapeObserver* observer)
    : before_(std::exchange(tape_of_thread->observer, observer)) {}
ObserverScope::~ObserverScope() { tape_of_thread->observer = before_; }

void Node::tell_of_input(const Tensor& x) const {
  const int input = edge_count_ - 1;
  TapeObserver* const observer = tape_of_thread->observer;
  if (edges_[input].empty() && observer) observer->operand(*this, input, x);
}

void Node::tell_of_result(const Tensor& y, int output) const {
  TapeObserver* const observer = tape_of_thread->observer;
  if (observer) observer->result(*this, output, y);
}

}  // namespace weft::autograd
