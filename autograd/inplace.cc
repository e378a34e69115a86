// In-place methods: the tensor's history becomes that of the new value.
#include <optional>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::creates_graph;
using autograd::Description;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::Node;
using autograd::Operand;
using autograd::SavedTensor;

const Tensor& MoreMethods::self() const { return static_cast<const Tensor&>(*this); }

namespace {

bool share_memory(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

// A write into a view changes its base, which must be a result with each element at an address of
// its own.
void check_base(const char* op, const Tensor& y, const Tensor& base) {
  const bool is_leaf = autograd::requires_grad(base) && !autograd::meta_of(base)->producer;
  WEFT_CHECK(!is_leaf, InvalidArgument, op,
             "writes into a view of a leaf that requires a gradient (view ", y.shape(), " of ",
             base.shape(),
             "); do it under NoGrad to change its value, or on a clone() of the leaf");
  WEFT_CHECK(base.is_dense(), Unsupported, op, "writes through a view of a tensor with gaps (view ",
             y.shape(), " of ", base.shape(), " with strides ", base.strides(),
             "); write into a clone() of it");
}

// Whether the tape records a write to y. Throws if the tape cannot record it.
bool record_write(const char* op, const Tensor& y, const Tensor* operand = nullptr) {
  if (!thread_state().grad_enabled) return false;
  const bool on_tape = autograd::requires_grad(y);
  if (!on_tape && !(operand && autograd::requires_grad(*operand) && is_floating(y.dtype()))) {
    return false;
  }
  const autograd::Meta* meta = autograd::meta_of(y);
  const bool is_view = meta && meta->base;
  if (is_view) check_base(op, y, Tensor(meta->base));
  WEFT_CHECK(!on_tape || meta->producer, InvalidArgument, op,
             "writes into a leaf that requires a gradient (", y.shape(),
             "); do it under NoGrad to change its value, or on a clone() to compute with it");
  if (is_view && on_tape) autograd::follow_base(y);
  // A tensor without history joins the tape, with its base. Other views of the base would not know.
  WEFT_CHECK(on_tape || y.storage()->use_count() == (is_view ? 2u : 1u), Unsupported, op,
             "writes a tensor that requires a gradient into memory that other tensors share (",
             y.shape(),
             "), whose history could not follow; write into a tensor of its own, or use ",
             "cat, stack or where");
  return true;
}

// y, which was written to, gets a new node, and so does the tensor that it is a view of.
void attach_write(const Tensor& y, intrusive_ptr<Node> node, int output = 0) {
  autograd::attach(y, std::move(node), output);
  autograd::record_into_base(y);
}
// write() changes y. Its node is made before, so that an observer finds the operands as they were;
// it is dropped if the write throws.
template <class Rule, class Write, class... Args>
void write_in_place(bool records, const Tensor& y, Write write, Args&&... args) {
  intrusive_ptr<Node> node;
  if (records) node = make_intrusive<Rule>(std::forward<Args>(args)...);
  write();
  if (node) attach_write(y, std::move(node));
}

// y += alpha b
class AddInPlaceNode final : public DifferentiableNode {
 public:
  AddInPlaceNode(const char* name, double alpha, const Tensor& y, const Tensor& b)
      : DifferentiableNode(name), alpha_(alpha), b_(b) {
    add_input(y);
    add_input(b);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, grads.y());
    if (!grads.wants(1)) return;
    const Tensor grad = b_.fit(grads.y());
    grads.set(1, alpha_ == 1 ? grad : mul(grad, alpha_));
  }
  void describe(Description& d) const override {
    d.op = "add_scaled_";
    d.numbers["alpha"] = alpha_;
  }

 private:
  double alpha_;
  Operand b_;
};

// y *= b, y /= b
class MulInPlaceNode final : public DifferentiableNode {
 public:
  // `before`: y's value before the write, or undefined when b needs no gradient.
  MulInPlaceNode(const char* name, BinaryOp op, const Tensor& y, const Tensor& b,
                 const Tensor& before)
      : DifferentiableNode(name), op_(op), b_info_(b) {
    add_input(y);
    add_input(b);
    const bool same = share_memory(y, b);
    if (needs(0) || op == BinaryOp::div) b_ = same ? save_copy(raw::clone(b), 1) : save(b);
    if (before.defined()) before_ = save_copy(before, 0);
  }
  void apply(Gradients& grads) override {
    const bool divides = op_ == BinaryOp::div;
    if (grads.wants(0)) {
      const Tensor b = b_.get(*this);
      grads.set(0, divides ? div(grads.y(), b) : mul(grads.y(), b));
    }
    if (!grads.wants(1)) return;
    const Tensor before = before_.get(*this);
    if (!divides) return grads.set(1, b_info_.fit(mul(grads.y(), before)));
    const auto rule = creates_graph() ? autograd::binary_gradient : raw::binary_backward;
    grads.set(1, b_info_.fit(rule(op_, true, grads.y(), before, b_.get(*this))));
  }

 private:
  void release_saved() override {
    b_.reset();
    before_.reset();
  }

  BinaryOp op_;
  Operand b_info_;
  SavedTensor b_, before_;
};

// y = factor y + addend
class ScaleInPlaceNode final : public DifferentiableNode {
 public:
  /// `divisor`: 0, or the number by which y is divided, of which the factor is the inverse.
  ScaleInPlaceNode(const char* name, double factor, double addend, const Tensor& y,
                   double divisor = 0)
      : DifferentiableNode(name), factor_(factor), addend_(addend), divisor_(divisor) {
    add_input(y);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, factor_ == 1 ? grads.y() : mul(grads.y(), factor_));
  }
  void describe(Description& d) const override {
    d.op = "scale_";
    d.numbers = {{"factor", factor_}, {"addend", addend_}, {"divisor", divisor_}};
  }

 private:
  double factor_, addend_, divisor_;
};

// y = b, or a constant: the result does not depend on y's earlier value, so that gradient is zero.
class OverwriteNode final : public DifferentiableNode {
 public:
  OverwriteNode(const char* name, const Tensor& y, double value)
      : DifferentiableNode(name), value_(value) {
    add_input(y);
  }
  OverwriteNode(const char* name, const Tensor& y, const Tensor& b)
      : DifferentiableNode(name), b_(b), b_device_(b.device()) {
    add_input(y);
    add_input(b);
  }
  void apply(Gradients& grads) override {
    if (grads.inputs() > 1 && grads.wants(1)) grads.set(1, b_->fit(grads.y()).to(b_device_));
  }
  void describe(Description& d) const override {
    d.op = "overwrite_";
    d.numbers["value"] = value_;
  }

 private:
  std::optional<Operand> b_;
  Device b_device_;
  double value_ = 0;
};

void multiply_in_place(const char* name, BinaryOp op, const Tensor& y, const Tensor& b) {
  if (!record_write(name, y, &b)) {
    raw::binary_(op, y, b);
    return;
  }
  const Tensor before = autograd::requires_grad(b) ? raw::clone(y) : Tensor();
  // Made before the write, which may change b's memory too. It is dropped if the write throws.
  auto node = make_intrusive<MulInPlaceNode>(name, op, y, b, before);
  raw::binary_(op, y, b);
  attach_write(y, std::move(node));
}

}  // namespace

const Tensor& MoreMethods::add_(const Tensor& other, double alpha) const {
  const bool records = record_write("add_", self(), &other);
  const auto write = [&] { raw::add_scaled_(self(), alpha, other); };
  write_in_place<AddInPlaceNode>(records, self(), write, "add_", alpha, self(), other);
  return self();
}

const Tensor& MoreMethods::sub_(const Tensor& other, double alpha) const {
  const bool records = record_write("sub_", self(), &other);
  const auto write = [&] {
    alpha == 1 ? raw::binary_(BinaryOp::sub, self(), other)
               : raw::add_scaled_(self(), -alpha, other);
  };
  write_in_place<AddInPlaceNode>(records, self(), write, "sub_", -alpha, self(), other);
  return self();
}

const Tensor& MoreMethods::add_(double value) const {
  const bool records = record_write("add_", self());
  const auto write = [&] { raw::add_(self(), value); };
  write_in_place<ScaleInPlaceNode>(records, self(), write, "add_", 1, value, self());
  return self();
}

const Tensor& MoreMethods::sub_(double value) const {
  const bool records = record_write("sub_", self());
  const auto write = [&] { raw::sub_(self(), value); };
  write_in_place<ScaleInPlaceNode>(records, self(), write, "sub_", 1, -value, self());
  return self();
}

const Tensor& MoreMethods::mul_(const Tensor& other) const {
  multiply_in_place("mul_", BinaryOp::mul, self(), other);
  return self();
}

const Tensor& MoreMethods::div_(const Tensor& other) const {
  multiply_in_place("div_", BinaryOp::div, self(), other);
  return self();
}

const Tensor& MoreMethods::mul_(double value) const {
  const bool records = record_write("mul_", self());
  const auto write = [&] { raw::mul_(self(), value); };
  write_in_place<ScaleInPlaceNode>(records, self(), write, "mul_", value, 0, self());
  return self();
}

const Tensor& MoreMethods::div_(double value) const {
  if (autograd::divides_gradient(self(), value)) {
    return div_(scalar(value, {self().dtype(), self().device()}));
  }
  const bool records = record_write("div_", self());
  const auto write = [&] { raw::div_(self(), value); };
  write_in_place<ScaleInPlaceNode>(records, self(), write, "div_", 1 / value, 0, self(), value);
  return self();
}

const Tensor& MoreMethods::copy_(const Tensor& other) const {
  const bool records = record_write("copy_", self(), &other);
  const auto write = [&] { raw::copy_(self(), other); };
  write_in_place<OverwriteNode>(records, self(), write, "copy_", self(), other);
  return self();
}

const Tensor& MoreMethods::fill_(double value) const {
  const bool records = record_write("fill_", self());
  const auto write = [&] { raw::fill_(self(), value); };
  write_in_place<OverwriteNode>(records, self(), write, "fill_", self(), value);
  return self();
}

const Tensor& MoreMethods::zero_() const {
  const bool records = record_write("zero_", self());
  const auto write = [&] { raw::zero_(self()); };
  write_in_place<OverwriteNode>(records, self(), write, "zero_", self(), 0);
  return self();
}

namespace {

// x[0] = y writes into x. Writing into a new tensor, such as x[mask], would have no effect.
void check_seen(const Tensor& x) {
  WEFT_CHECK(
      !x.defined() || !autograd::is_alone(x) || !x.storage()->owned(), InvalidArgument, "=",
      "assigns to a temporary (", x.shape(),
      ") that nobody else holds, so the value would be lost: x[mask] and other copies are new "
      "tensors; use masked_fill_, where or scatter_");
}

}  // namespace

const Tensor& MoreMethods::scatter_(std::int64_t dim, const Tensor& index,
                                    const Tensor& source) const {
  const bool records = record_write("scatter_", self(), &source);
  raw::scatter_(self(), dim, index, source);
  if (records) {
    autograd::record_scatter("scatter_", self(), self(), dim, index, source);
    autograd::record_into_base(self());
  }
  return self();
}

const Tensor& MoreMethods::scatter_(std::int64_t dim, const Tensor& index, double value) const {
  const bool records = record_write("scatter_", self());
  raw::scatter_(self(), dim, index, value);
  if (records) {
    autograd::record_scatter("scatter_", self(), self(), dim, index, {});
    autograd::record_into_base(self());
  }
  return self();
}

namespace {

// y = f(y). The tape records f of a copy, since f may save its operand, whose memory changes here.
template <class F>
void rewrite(const Tensor& y, F f) {
  const Tensor result = f(y.clone()).to(y.dtype());
  raw::copy_(y, result);
  const autograd::Meta& meta = *autograd::meta_of(result);
  attach_write(y, meta.producer, meta.output);
}

}  // namespace

#define X(name)                                                                 \
  const Tensor& MoreMethods::name##_() const {                                  \
    if (record_write(#name "_", self())) {                                      \
      rewrite(self(), [](const Tensor& before) { return weft::name(before); }); \
    } else {                                                                    \
      raw::unary_(UnaryOp::name, self());                                       \
    }                                                                           \
    return self();                                                              \
  }
WEFT_IN_PLACE_METHODS(X)
#undef X

const Tensor& MoreMethods::clamp_(std::optional<double> min, std::optional<double> max) const {
  if (record_write("clamp_", self())) {
    rewrite(self(), [&](const Tensor& before) { return weft::clamp(before, min, max); });
  } else {
    raw::clamp_(self(), min, max);
  }
  return self();
}
const Tensor& MoreMethods::clamp_min_(double min) const { return clamp_(min); }
const Tensor& MoreMethods::clamp_max_(double max) const { return clamp_({}, max); }

namespace {

// Whether `operand`, called `name`, keeps the shape of the written y.
void check_keeps_shape(const char* op, const Tensor& y, const char* name, const Tensor& operand) {
  autograd::check_defined(op, name, operand);
  WEFT_CHECK(broadcast_shapes(y.shape(), operand.shape(), op) == y.shape(), Shape, op, name,
             ": got ", operand.shape(), ", which does not broadcast to the written tensor's ",
             y.shape());
}

const Tensor& clamp_by_tensors(const char* op, const Tensor& y, const Tensor& min,
                               const Tensor& max) {
  autograd::check_defined(op, "the written tensor", y);
  const auto check = [&](const char* name, const Tensor& bound) {
    check_keeps_shape(op, y, name, bound);
    WEFT_CHECK(y.dtype() == bound.dtype() || is_floating(y.dtype()) ||
                   (!is_floating(bound.dtype()) && y.dtype() != DType::boolean),
               Dtype, op, name, ": got ", bound.dtype(), ", which a tensor of ", y.dtype(),
               " cannot hold");
  };
  if (min.defined()) check("min", min);
  if (max.defined()) check("max", max);
  const auto clamped = [&](const Tensor& before) { return weft::clamp(before, min, max); };
  if (record_write(op, y, autograd::requires_grad(min) ? &min : &max)) {
    rewrite(y, clamped);
  } else {
    raw::copy_(y, clamped(y.detach()));
  }
  return y;
}

}  // namespace

const Tensor& MoreMethods::clamp_(const Tensor& min, const Tensor& max) const {
  return clamp_by_tensors("clamp_", self(), min, max);
}
const Tensor& MoreMethods::clamp_min_(const Tensor& min) const {
  autograd::check_defined("clamp_min_", "min", min);
  return clamp_by_tensors("clamp_min_", self(), min, {});
}
const Tensor& MoreMethods::clamp_max_(const Tensor& max) const {
  autograd::check_defined("clamp_max_", "max", max);
  return clamp_by_tensors("clamp_max_", self(), {}, max);
}

namespace {

// `value` is a number, of which the tape has no `operand`, or a tensor, which is the operand.
template <class Value>
const Tensor& fill_masked(const Tensor& y, const Tensor& mask, const Value& value,
                          const Tensor* operand) {
  autograd::check_defined("masked_fill_", "the written tensor", y);
  check_keeps_shape("masked_fill_", y, "mask", mask);
  if (record_write("masked_fill_", y, operand)) {
    rewrite(y, [&](const Tensor& before) { return weft::masked_fill(before, mask, value); });
  } else {
    raw::copy_(y, weft::masked_fill(y.detach(), mask, value));
  }
  return y;
}

}  // namespace

const Tensor& MoreMethods::masked_fill_(const Tensor& mask, double value) const {
  return fill_masked(self(), mask, value, nullptr);
}
const Tensor& MoreMethods::masked_fill_(const Tensor& mask, const Tensor& value) const {
  autograd::check_defined("masked_fill_", "value", value);
  return fill_masked(self(), mask, value, &value);
}

namespace {

// y += value f(a, b). bf16 is rounded once, at the end, as in addcmul.
template <class F>
const Tensor& add_result(const char* op, const Tensor& y, const Tensor& a, const Tensor& b,
                         double value, F f) {
  autograd::check_defined(op, "the written tensor", y);
  autograd::check_defined(op, "a", a);
  autograd::check_defined(op, "b", b);
  const auto is_bf16 = [](const Tensor& t) { return t.dtype() == DType::bf16; };
  if (!is_bf16(y) || !is_bf16(a) || !is_bf16(b)) return y.add_(f(a, b), value);
  const Tensor wide = f(a.to(DType::f32), b.to(DType::f32));
  // Without dimensions it would be rounded to y's dtype before the sum.
  return y.add_(wide.dim() == 0 ? wide.expand(y.shape()) : wide, value);
}

}  // namespace

const Tensor& MoreMethods::addcmul_(const Tensor& a, const Tensor& b, double value) const {
  return add_result("addcmul_", self(), a, b, value,
                    [](const Tensor& s, const Tensor& t) { return weft::mul(s, t); });
}
const Tensor& MoreMethods::addcdiv_(const Tensor& a, const Tensor& b, double value) const {
  return add_result("addcdiv_", self(), a, b, value, [](const Tensor& s, const Tensor& t) {
    return autograd::addcdiv_quotient("addcdiv_", s, t);
  });
}

const Tensor& MoreMethods::target() const {
  check_seen(self());
  return self();
}
const Tensor& MoreMethods::assign(const Tensor& y) const { return target().copy_(y); }
const Tensor& MoreMethods::assign(double y) const { return target().fill_(y); }

}  // namespace weft
