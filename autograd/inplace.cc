// In-place methods: the tensor's history becomes that of the new value.
#include <optional>

#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::creates_graph;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::Operand;
using autograd::record;
using autograd::SavedTensor;

namespace {

bool share_memory(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

// Whether the tape records a write to y. Throws if the tape cannot record it.
bool record_write(const char* op, const Tensor& y, const Tensor* operand = nullptr) {
  if (!thread_state().grad_enabled) return false;
  const bool on_tape = autograd::requires_grad(y);
  if (!on_tape && !(operand && autograd::requires_grad(*operand) && is_floating(y.dtype()))) {
    return false;
  }
  const autograd::Meta* meta = autograd::meta_of(y);
  WEFT_CHECK(!on_tape || meta->producer, InvalidArgument, op,
             "writes into a leaf that requires a gradient (", y.shape(),
             "); do it under NoGrad to change its value, or on a clone() to compute with it");
  WEFT_CHECK(!(meta && meta->base), Unsupported, op,
             "writes through a view of a tensor on the tape ", "(view ", y.shape(),
             "); compute the whole tensor with where, cat or stack, or write ",
             "into a clone() of the view");
  WEFT_CHECK(on_tape || y.storage()->use_count() == 1, Unsupported, op,
             "writes a tensor that requires a gradient into memory that other tensors share (",
             y.shape(),
             "), whose history could not follow; write into a tensor of its own, or use ",
             "cat, stack or where");
  return true;
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

class ScaleInPlaceNode final : public DifferentiableNode {
 public:
  ScaleInPlaceNode(double factor, const Tensor& y) : DifferentiableNode("mul_"), factor_(factor) {
    add_input(y);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, mul(grads.y(), factor_));
  }

 private:
  double factor_;
};

// y = b, or a constant: the result does not depend on y's earlier value, so that gradient is zero.
class OverwriteNode final : public DifferentiableNode {
 public:
  OverwriteNode(const char* name, const Tensor& y) : DifferentiableNode(name) { add_input(y); }
  OverwriteNode(const char* name, const Tensor& y, const Tensor& b)
      : DifferentiableNode(name), b_(b), b_device_(b.device()) {
    add_input(y);
    add_input(b);
  }
  void apply(Gradients& grads) override {
    if (grads.inputs() > 1 && grads.wants(1)) grads.set(1, b_->fit(grads.y()).to(b_device_));
  }

 private:
  std::optional<Operand> b_;
  Device b_device_;
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
  autograd::attach(y, std::move(node));
}

}  // namespace

const Tensor& Tensor::add_(const Tensor& other, double alpha) const {
  const bool records = record_write("add_", *this, &other);
  raw::add_scaled_(*this, alpha, other);
  if (records) record<AddInPlaceNode>(*this, "add_", alpha, *this, other);
  return *this;
}

const Tensor& Tensor::sub_(const Tensor& other) const {
  const bool records = record_write("sub_", *this, &other);
  raw::binary_(BinaryOp::sub, *this, other);
  if (records) record<AddInPlaceNode>(*this, "sub_", -1, *this, other);
  return *this;
}

const Tensor& Tensor::mul_(const Tensor& other) const {
  multiply_in_place("mul_", BinaryOp::mul, *this, other);
  return *this;
}

const Tensor& Tensor::div_(const Tensor& other) const {
  multiply_in_place("div_", BinaryOp::div, *this, other);
  return *this;
}

const Tensor& Tensor::mul_(double value) const {
  const bool records = record_write("mul_", *this);
  raw::mul_(*this, value);
  if (records) record<ScaleInPlaceNode>(*this, value, *this);
  return *this;
}

const Tensor& Tensor::copy_(const Tensor& other) const {
  const bool records = record_write("copy_", *this, &other);
  raw::copy_(*this, other);
  if (records) record<OverwriteNode>(*this, "copy_", *this, other);
  return *this;
}

const Tensor& Tensor::fill_(double value) const {
  const bool records = record_write("fill_", *this);
  raw::fill_(*this, value);
  if (records) record<OverwriteNode>(*this, "fill_", *this);
  return *this;
}

const Tensor& Tensor::zero_() const {
  const bool records = record_write("zero_", *this);
  raw::zero_(*this);
  if (records) record<OverwriteNode>(*this, "zero_", *this);
  return *this;
}

namespace {

// Whether scatter_ checks its index, as raw::scatter does: on CUDA that would wait.
bool checks_index(const Tensor& y) { return !y.defined() || y.device().is_cpu(); }

}  // namespace

const Tensor& Tensor::scatter_(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  const bool records = record_write("scatter_", *this, &source);
  raw::scatter_(*this, dim, index, source, checks_index(*this));
  if (records) autograd::record_scatter("scatter_", *this, *this, dim, index, source);
  return *this;
}

const Tensor& Tensor::scatter_(std::int64_t dim, const Tensor& index, double value) const {
  const bool records = record_write("scatter_", *this);
  raw::scatter_(*this, dim, index, value, checks_index(*this));
  if (records) autograd::record_scatter("scatter_", *this, *this, dim, index, {});
  return *this;
}

}  // namespace weft
