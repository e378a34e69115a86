// Attention. The kernel takes two leading dimensions of any strides: the others are merged into
// these where the strides of all operands allow it, else this file loops over them.
#include <array>
#include <span>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

constexpr const char* kOp = "scaled_dot_product_attention";

DType type_of_sums(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

Shape leading(const Tensor& x) {
  return Dims(std::span<const std::int64_t>(x.shape()).first(std::size_t(x.dim() - 2)));
}

Shape with(Shape leading, std::initializer_list<std::int64_t> last) {
  for (const std::int64_t size : last) leading.push_back(size);
  return leading;
}

/// x with `lead` before its last two dimensions, which are dense within a row.
Tensor expanded(const Tensor& x, const Shape& lead) {
  const bool rows = x.shape(-1) <= 1 || x.strides()[x.dim() - 1] == 1;
  const Tensor dense = rows ? x : contiguous(x);
  const Shape shape = with(lead, {x.shape(-2), x.shape(-1)});
  return dense.shape() == shape ? dense : expand(dense, shape);
}

/// x without the repetition along dimensions that were expanded.
Tensor without_repeats(Tensor x) {
  for (int d = 0; d < x.dim(); ++d) {
    if (x.shape(d) > 1 && x.strides()[d] == 0) x = narrow(x, d, 0, 1);
  }
  return x;
}

/// An operand that is not there; an empty tensor may have no memory, too.
bool is_none(const View& view) { return view.shape.empty(); }

/// Views of operands and results with the same leading dimensions, as calls of a kernel.
template <int N>
class Calls {
 public:
  /// All views but those that are none begin with the dimensions `lead`.
  Calls(const std::array<View, N>& views, const Shape& lead) : views_(views) {
    for (int d = lead.size() - 1; d >= 0; --d) add_outer(d, lead[d]);
    while (sizes_.size() < 2) push(1, {});
    for (View& view : views_) {
      if (is_none(view)) continue;
      const auto rest = std::size_t(lead.size());
      const Shape shape = view.shape;
      const Strides strides = view.strides;
      const std::size_t i = std::size_t(&view - views_.data());
      view.shape = {sizes_[1], sizes_[0]};
      view.strides = {strides_[1][i], strides_[0][i]};
      for (std::size_t d = rest; d < std::size_t(shape.size()); ++d) {
        view.shape.push_back(shape[std::int64_t(d)]);
        view.strides.push_back(strides[std::int64_t(d)]);
      }
    }
  }

  /// Calls f(views), each [A,B,..], once for each index of the dimensions that are left.
  template <class F>
  void for_each(const F& f) const {
    std::int64_t count = 1;
    for (int d = 2; d < sizes_.size(); ++d) count *= sizes_[d];
    for (std::int64_t call = 0; call < count; ++call) {
      std::array<View, N> views = views_;
      std::int64_t rest = call;
      for (int d = 2; d < sizes_.size(); ++d) {
        const std::int64_t at = rest % sizes_[d];
        rest /= sizes_[d];
        for (std::size_t i = 0; i < N; ++i) {
          if (is_none(views[i])) continue;
          const auto bytes = static_cast<std::int64_t>(size_of(views[i].dtype));
          views[i].data = views[i].template as<char>() + at * strides_[std::size_t(d)][i] * bytes;
        }
      }
      f(views);
    }
  }

  const std::array<View, N>& first() const { return views_; }

 private:
  using Steps = std::array<std::int64_t, N>;

  void add_outer(int d, std::int64_t size) {
    if (size == 1) return;
    Steps steps{};
    for (std::size_t i = 0; i < N; ++i) steps[i] = is_none(views_[i]) ? 0 : views_[i].strides[d];
    const int last = sizes_.size() - 1;
    bool joins = last >= 0;
    for (std::size_t i = 0; i < N && joins; ++i) {
      joins = steps[i] == strides_[std::size_t(last)][i] * sizes_[last];
    }
    if (joins) {
      sizes_[last] *= size;
    } else {
      push(size, steps);
    }
  }
  void push(std::int64_t size, const Steps& steps) {
    strides_[std::size_t(sizes_.size())] = steps;
    sizes_.push_back(size);
  }

  std::array<View, N> views_;
  Dims sizes_;  // innermost first
  std::array<Steps, kMaxDims> strides_{};
};

/// What both passes give to the kernel, with all leading dimensions.
struct Prepared {
  Shape lead;
  Tensor q, k, v, mask, kept;

  explicit Prepared(const AttentionInputs& in) {
    const Shape scores = check_attention(in.q, in.k, in.v, in.mask, in.causal);
    const Shape of_scores = Dims(std::span(scores).first(std::size_t(scores.size() - 2)));
    lead = broadcast_shapes(of_scores, leading(in.v), kOp);
    check_rank(kOp, in.q.shape(), lead.size() + 2);
    q = expanded(in.q, lead);
    k = expanded(in.k, lead);
    v = expanded(in.v, lead);
    const Shape all = with(lead, {scores[scores.size() - 2], scores.back()});
    if (in.mask.defined()) {
      const DType dtype =
          in.mask.dtype() == DType::boolean ? DType::boolean : type_of_sums(in.q.dtype());
      mask = expand(cast(without_repeats(in.mask), dtype), all);
    }
    if (!in.kept.defined()) return;
    check_same_device(kOp, "q", in.q, "kept", in.kept);
    const bool fits = in.kept.dim() >= 2 && in.kept.shape(-2) == scores[scores.size() - 2] &&
                      in.kept.shape(-1) == scores.back() &&
                      broadcast_shapes(lead, leading(in.kept), kOp) == lead;
    WEFT_CHECK(in.kept.dtype() == DType::boolean && fits, InvalidArgument, kOp, "kept: got ",
               in.kept.dtype(), " ", in.kept.shape(), ", expected bool ", scores);
    kept = expanded(in.kept, lead);
  }

  std::array<View, 5> views() const {
    const auto optional = [](const Tensor& x) { return x.defined() ? x.view_of() : View{}; };
    return {q.view_of(), k.view_of(), v.view_of(), optional(mask), optional(kept)};
  }
};

AttentionArgs arguments(const AttentionInputs& in, std::span<const View> views) {
  AttentionArgs args{views[0], views[1], views[2], views[3], views[4]};
  args.causal = in.causal;
  args.scale = in.scale;
  args.keep_scale = in.keep_scale;
  return args;
}

template <class Entry>
Entry entry(const Tensor& q, Entry AttentionKernels::* which) {
  return kernel(q.device(), &KernelTable::attention, which, kOp, q.dtype());
}

}  // namespace

Shape check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                      bool causal) {
  check_defined(kOp, "q", q);
  check_defined(kOp, "k", k);
  check_defined(kOp, "v", v);
  WEFT_CHECK(is_floating(q.dtype()), Dtype, kOp, "q: got ", q.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(k.dtype() == q.dtype() && v.dtype() == q.dtype(), Dtype, kOp, "dtypes: q is ",
             q.dtype(), ", k ", k.dtype(), ", v ", v.dtype());
  check_same_device(kOp, "q", q, "k", k);
  check_same_device(kOp, "q", q, "v", v);
  WEFT_CHECK(q.dim() >= 2 && k.dim() >= 2 && v.dim() >= 2, Shape, kOp,
             "needs q [..,L,E], k [..,S,E], v [..,S,Ev], got ", q.shape(), ", ", k.shape(), ", ",
             v.shape());
  WEFT_CHECK(q.shape(-1) == k.shape(-1) && k.shape(-2) == v.shape(-2), Shape, kOp, "q ", q.shape(),
             " and k ", k.shape(), " need one last dimension, k and v ", v.shape(),
             " one before it");
  const Shape scores =
      with(broadcast_shapes(leading(q), leading(k), kOp), {q.shape(-2), k.shape(-2)});
  broadcast_shapes(leading(v), Dims(std::span(scores).first(std::size_t(scores.size() - 2))), kOp);
  if (!mask.defined()) return scores;
  WEFT_CHECK(!causal, InvalidArgument, kOp,
             "is_causal is a mask of its own: give either that or attn_mask");
  WEFT_CHECK(mask.dtype() == DType::boolean || is_floating(mask.dtype()), Dtype, kOp,
             "attn_mask: got ", mask.dtype(), ", expected bool or a floating dtype");
  check_same_device(kOp, "q", q, "attn_mask", mask);
  WEFT_CHECK(broadcast_shapes(scores, mask.shape(), kOp) == scores, Shape, kOp, "attn_mask: got ",
             mask.shape(), ", which does not broadcast to ", scores);
  return scores;
}

AttentionOutputs scaled_dot_product_attention(const AttentionInputs& in) {
  const Span span("op", kOp);
  const Prepared all(in);
  const Device device = in.q.device();
  const std::int64_t queries = in.q.shape(-2), values = in.v.shape(-1);
  const DType sums = type_of_sums(in.q.dtype());
  AttentionOutputs out{allocate(with(all.lead, {queries, values}), in.q.dtype(), device),
                       allocate(with(all.lead, {queries}), sums, device)};
  const auto run = entry(in.q, &AttentionKernels::forward);
  const auto workspace_bytes = entry(in.q, &AttentionKernels::workspace_bytes);
  if (out.y.numel() == 0) {
    zero_(out.log_sums);  // no gradient will need them
    return out;
  }
  if (std::int64_t* count = thread_state().multiply_adds) {
    *count += out.log_sums.numel() * in.k.shape(-2) * (in.q.shape(-1) + values);
  }
  const auto [q, k, v, mask, kept] = all.views();
  const Calls<7> calls({q, k, v, mask, kept, out.y.view_of(), out.log_sums.view_of()}, all.lead);
  const Workspace workspace(device, workspace_bytes(arguments(in, calls.first())));
  calls.for_each([&](std::span<const View> views) {
    run(current_stream(device), arguments(in, views), views[5], views[6], workspace.data());
  });
  return out;
}

AttentionGradients scaled_dot_product_attention_backward(const Tensor& grad_y,
                                                         const AttentionInputs& in,
                                                         const AttentionOutputs& out,
                                                         const AttentionWants& wants) {
  const Span span("op", kOp);
  const Prepared all(in);
  const Device device = in.q.device();
  const Shape of_y = with(all.lead, {in.q.shape(-2), in.v.shape(-1)});
  check_same_kind(kOp, "gradient", grad_y, "q", in.q);
  check_same_kind(kOp, "y", out.y, "q", in.q);
  check_same_device(kOp, "log_sums", out.log_sums, "q", in.q);
  WEFT_CHECK(grad_y.shape() == of_y, Shape, kOp, "gradient: got ", grad_y.shape(),
             ", the output is ", of_y);
  WEFT_CHECK(out.y.shape() == of_y && out.y.is_contiguous() && out.log_sums.is_contiguous() &&
                 out.log_sums.shape() == with(all.lead, {in.q.shape(-2)}) &&
                 out.log_sums.dtype() == type_of_sums(in.q.dtype()),
             InvalidArgument, kOp, "y and log_sums: got ", out.y.shape(), ", ",
             out.log_sums.dtype(), " ", out.log_sums.shape(), ", expected what forward returned");
  const auto like = [&](bool wanted, const Tensor& x) {
    return wanted ? allocate(x.shape(), x.dtype(), device) : Tensor();
  };
  AttentionGradients grads{like(wants.q, all.q), like(wants.k, all.k), like(wants.v, all.v)};
  const auto run = entry(in.q, &AttentionKernels::backward);
  const auto workspace_bytes = entry(in.q, &AttentionKernels::backward_workspace_bytes);
  if (out.y.numel() == 0 || in.k.shape(-2) == 0) {
    for (const Tensor& grad : {grads.q, grads.k, grads.v}) {
      if (grad.defined()) zero_(grad);
    }
    return grads;
  }
  const Tensor gradient = contiguous(grad_y);
  const auto optional = [](const Tensor& x) { return x.defined() ? x.view_of() : View{}; };
  const auto [q, k, v, mask, kept] = all.views();
  const Calls<11> calls(
      {q, k, v, mask, kept, gradient.view_of(), out.y.view_of(), out.log_sums.view_of(),
       optional(grads.q), optional(grads.k), optional(grads.v)},
      all.lead);
  const Workspace workspace(device, workspace_bytes(arguments(in, calls.first())));
  calls.for_each([&](std::span<const View> views) {
    run(current_stream(device), arguments(in, views),
        {views[5], views[6], views[7], views[8], views[9], views[10]}, workspace.data());
  });
  return grads;
}

}  // namespace weft::raw
