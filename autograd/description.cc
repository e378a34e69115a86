#include "weft/autograd/description.h"

#include <utility>

#include "weft/autograd/graph.h"
#include "weft/autograd/thread_tape.h"
#include "weft/core/base/shape.h"
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

bool is_observed() { return tape_of_thread->observer != nullptr; }

namespace {

// An operation without a gradient: a comparison, a conversion to integers.
class PlainNode final : public Node {
 public:
  PlainNode(const char* name, std::span<const Tensor* const> operands, const PlainDetail& detail)
      : Node(name), number_(detail.number) {
    for (const Tensor* x : operands) add_input(*x);
    if (!detail.dims) return;
    const int rank = operands[0]->dim();
    for (const std::int64_t d : *detail.dims) dims_.push_back(normalize_dim(d, rank, name));
    for (int d = 0; detail.dims->empty() && d < rank; ++d) dims_.push_back(d);
  }
  void apply(Gradients&) override {}
  void describe(Description& d) const override {
    if (number_) d.numbers["a"] = *number_;
    d.ints["dims"] = dims_;
  }

 private:
  std::optional<double> number_;
  Description::Ints dims_;
};

}  // namespace

void tell_of_operation(const char* name, const Tensor& y, std::span<const Tensor* const> operands,
                       const PlainDetail& detail) {
  attach(y, make_intrusive<PlainNode>(name, operands, detail));
}

void Node::tell_of_input(const Tensor& x) const {
  TapeObserver* const observer = tape_of_thread->observer;
  if (observer) observer->operand(*this, edge_count_ - 1, x);
}

void Node::tell_of_result(const Tensor& y, int output) const {
  TapeObserver* const observer = tape_of_thread->observer;
  if (observer) observer->result(*this, output, y);
}

}  // namespace weft::autograd
