// Recorded writes through views.
//
//   y = x * 2;  v = y[0];  v.mul_(w)      before: y <- mul <- x,  v <- select <- mul
//
// The write gives v a new history, mul_ <- select. Then y becomes what it was, with v's elements in
// place of its own: y <- write <- (mul, mul_), and v a part of this y. Another view of y, taken
// earlier, becomes a part of the new y when it is used next. As PyTorch's CopySlices.
#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {
namespace {

// Where the elements of a view are among those of its base.
class Place {
 public:
  Place(const Tensor& view, const Tensor& base)
      : base_shape_(base.shape()),
        base_strides_(base.strides()),
        shape_(view.shape()),
        strides_(view.strides()),
        offset_(view.offset() - base.offset()) {}

  // Linear maps, on the tape: the base that has g in the view and zeros elsewhere; the view of the
  // base g, in memory of its own; the base g with zeros in the view.
  Tensor put(const Tensor& g) const {
    const auto [base, view] = blank(g);
    raw::copy_(view, g);
    return record_linear("view_backward", base, g, [*this](const Tensor& h) { return take(h); });
  }
  Tensor take(const Tensor& g) const {
    const auto [base, view] = blank(g);
    raw::copy_(base, g);
    return record_linear("view", raw::clone(view), g, [*this](const Tensor& h) { return put(h); });
  }
  Tensor clear(const Tensor& g) const {
    const auto [base, view] = blank(g);
    raw::copy_(base, g);
    raw::zero_(view);
    return record_linear("write_backward", base, g, [*this](const Tensor& h) { return clear(h); });
  }

 private:
  struct Pair {
    Tensor base, view;
  };
  // Zeros in the layout of the base, and the view in them.
  Pair blank(const Tensor& like) const {
    const std::int64_t elements =
        numel(base_shape_) == 0 ? 0 : last(base_shape_, base_strides_) + 1;
    const Tensor memory = zeros({elements}, {like.dtype(), like.device()});
    const auto part = [&](const Shape& shape, const Strides& strides, std::int64_t offset) {
      return as_strided(memory.storage(), memory.dtype(), shape, strides, offset);
    };
    const std::int64_t offset = numel(shape_) == 0 ? 0 : offset_;
    return {part(base_shape_, base_strides_, 0), part(shape_, strides_, offset)};
  }

  static std::int64_t last(const Shape& shape, const Strides& strides) {
    std::int64_t at = 0;
    for (int i = 0; i < shape.size(); ++i) at += (shape[i] - 1) * strides[i];
    return at;
  }

  Shape base_shape_, base_strides_, shape_, strides_;
  std::int64_t offset_;
};

// A view of the base as it is now.
class PartNode final : public DifferentiableNode {
 public:
  PartNode(const Tensor& view, const Tensor& base)
      : DifferentiableNode("view"), place_(view, base) {
    add_input(base);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, place_.put(grads.y()));
  }
  void describe(Description& d) const override { d.op.clear(); }

 private:
  Place place_;
};

// The base with the elements of the view in place of its own.
class WriteNode final : public DifferentiableNode {
 public:
  WriteNode(const Tensor& base, const Tensor& view)
      : DifferentiableNode("write to a view"), place_(view, base) {
    add_input(base);
    add_input(view);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, place_.clear(grads.y()));
    if (grads.wants(1)) grads.set(1, place_.take(grads.y()));
  }

 private:
  Place place_;
};

// Whether several elements may be one address.
bool may_overlap(const Tensor& x) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, length
  for (int i = 0; i < x.dim(); ++i) {
    if (x.shape()[i] > 1) dims.emplace_back(x.strides()[i], x.shape()[i]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;
  for (const auto& [stride, length] : dims) {
    if (stride <= reach) return true;
    reach += (length - 1) * stride;
  }
  return false;
}

void make_part_of(const Tensor& view, const Tensor& base) {
  attach(view, make_intrusive<PartNode>(view, base));
  meta_of(view)->base_producer.store(meta_of(base)->producer.get(), std::memory_order_release);
}

// Several threads may use a view that does not know of a write: one of them changes its history.
std::mutex& following() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

void follow_base(const Tensor& view) {
  const Meta& meta = *meta_of(view);
  const Tensor base(meta.base);
  const Meta* of = meta_of(base);
  const Node* now = of ? of->producer.get() : nullptr;
  const auto knows = [&] { return meta.base_producer.load(std::memory_order_acquire) == now; };
  if (knows()) [[likely]]
    return;
  const std::lock_guard lock(following());
  if (knows() || !meta.producer) return;
  WEFT_CHECK(now && !may_overlap(view), Unsupported, meta.producer ? meta.producer->op() : "view",
             "this view was taken before its base was changed in place, and elements of it share "
             "memory; take the view again, after the change (view ",
             view.shape(), " with strides ", view.strides(), ")");
  make_part_of(view, base);
}

void forget_plain_base(const Tensor& x) {
  Meta* const meta = meta_of(x);
  if (meta && meta->base && !requires_grad(Tensor(meta->base))) meta->base.reset();
}

void record_into_base(const Tensor& view) {
  const Meta& meta = *meta_of(view);
  if (!meta.base) return;
  const Tensor base(meta.base);
  attach(base, make_intrusive<WriteNode>(base, view));
  make_part_of(view, base);
}

void link_plain_view(const Tensor& view, const Tensor& x) {
  if (!thread_state().grad_enabled || !is_floating(x.dtype()) || !(view.storage() == x.storage())) {
    return;
  }
  const Meta* of = meta_of(x);
  ensure_meta(view).base = of && of->base ? of->base : intrusive_ptr<TensorImpl>(x.impl());
}

}  // namespace weft::autograd
