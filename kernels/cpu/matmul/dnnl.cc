// Matrix products by oneDNN: the matmul primitive; the three inner products, which have kernels of
// their own (the same product as a layer's forward or one of its gradients); and sgemm.
#include <algorithm>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/dnnl/library.h"
#include "weft/kernels/cpu/dnnl/program.h"
#include "weft/kernels/cpu/matmul/matmul.h"

namespace weft::cpu {

namespace {

using dnnl::memory;
using dnnl::prop_kind;
constexpr const char* kOp = "matmul";
using PlanPtr = std::unique_ptr<MatmulPlan>;

/// The externals are a, b, y, bias, in this order.
class ProgramMatmul final : public MatmulPlan {
 public:
  ProgramMatmul(DnnlProgram program, bool bias) : program_(std::move(program)), bias_(bias) {
    workspace_bytes = program_.workspace_bytes();
  }
  void run(const MatmulArgs& args, void* workspace) const override {
    void* const data[] = {args.a.data, args.b.data, args.y.data, args.bias.data};
    program_.run(std::span(data, bias_ ? 4 : 3), workspace);
  }

 private:
  DnnlProgram program_;
  bool bias_;
};

dnnl_desc any_layout(const dnnl_desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_desc(desc.get_dims(), desc.get_data_type(), memory::format_tag::any);
#else
  return dnnl_desc(desc.dims(), desc.data_type(), memory::format_tag::any);
#endif
}

/// Whether the library may choose the layout of b, which is then reordered at each run.
enum class Pack { no, b };

PlanPtr matmul_primitive(const MatmulProblem& p, Pack pack) {
  const auto type = dnnl_type(p.dtype);
  const auto desc = [&](memory::data_type type, std::int64_t rows, std::int64_t cols,
                        std::int64_t batch_stride, std::int64_t row_stride,
                        std::int64_t col_stride) {
    if (p.batch == 1) return dnnl_desc({rows, cols}, type, {row_stride, col_stride});
    // A batch stride of 0 becomes a dimension of 1 with any stride, which oneDNN broadcasts.
    const std::int64_t batch = batch_stride == 0 ? 1 : p.batch;
    const std::int64_t stride =
        batch_stride == 0 ? std::max(rows * row_stride, cols * col_stride) : batch_stride;
    return dnnl_desc({batch, rows, cols}, type, {stride, row_stride, col_stride});
  };
  const dnnl_desc a = desc(type, p.m, p.k, p.a_batch, p.a_m, p.a_k);
  const dnnl_desc b = desc(type, p.k, p.n, p.b_batch, p.b_k, p.b_n);
  const dnnl_desc y = desc(dnnl_type(p.y_dtype), p.m, p.n, p.m * p.n, p.n, 1);
  const dnnl_desc bias = p.batch == 1 ? dnnl_desc({1, p.n}, type, {p.n, 1})
                                      : dnnl_desc({1, 1, p.n}, type, {p.n, p.n, 1});
  auto attributes = dnnl_attributes();
  if (p.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attributes.set_post_ops(ops);
  }
  const auto offered = dnnl_offer(kOp, "matmul::primitive_desc", p.text(), [&] {
    const dnnl_desc b_asked = pack == Pack::b ? any_layout(b) : b;
    return p.bias ? dnnl_forward<dnnl::matmul>(attributes, a, b_asked, bias, y)
                  : dnnl_forward<dnnl::matmul>(attributes, a, b_asked, y);
  });
  if (!offered) return nullptr;
  // The library kept b's layout, so this is the same plan as without packing.
  if (pack == Pack::b && offered->weights_desc() == b) return nullptr;

  DnnlProgram program(kOp, p.text(), num_threads());
  const int a_at = program.external(a), b_at = program.external(b), y_at = program.external(y);
  const int b_used = program.as_layout(b_at, offered->weights_desc());
  const dnnl::matmul primitive(*offered);
  if (p.bias) {
    const int bias_at = program.external(bias);
    program.step(primitive, offered->scratchpad_desc(),
                 {{DNNL_ARG_SRC, a_at},
                  {DNNL_ARG_WEIGHTS, b_used},
                  {DNNL_ARG_BIAS, bias_at},
                  {DNNL_ARG_DST, y_at}});
  } else {
    program.step(primitive, offered->scratchpad_desc(),
                 {{DNNL_ARG_SRC, a_at}, {DNNL_ARG_WEIGHTS, b_used}, {DNNL_ARG_DST, y_at}});
  }
  return std::make_unique<ProgramMatmul>(std::move(program), p.bias);
}

/// a, b and y as the operands of an inner product, rows first.
struct InnerProduct {
  dnnl_desc a, b, y;
};

InnerProduct inner_product(const MatmulProblem& p, prop_kind kind) {
  const auto type = dnnl_type(p.dtype);
  const dnnl_desc y({p.m, p.n}, dnnl_type(p.y_dtype), {p.n, 1});
  if (kind == prop_kind::forward_inference) {  // a = src, b = weights[n][k]
    return {dnnl_desc({p.m, p.k}, type, {p.a_m, p.a_k}),
            dnnl_desc({p.n, p.k}, type, {p.b_n, p.b_k}), y};
  }
  if (kind == prop_kind::backward_data) {  // a = diff_dst, b = weights[k][n], y = diff_src
    return {dnnl_desc({p.m, p.k}, type, {p.a_m, p.a_k}),
            dnnl_desc({p.k, p.n}, type, {p.b_k, p.b_n}), y};
  }
  // backward_weights: a = diff_dst[k][m], b = src[k][n], y = diff_weights[m][n]
  return {dnnl_desc({p.k, p.m}, type, {p.a_k, p.a_m}), dnnl_desc({p.k, p.n}, type, {p.b_k, p.b_n}),
          y};
}

/// False for known errors of oneDNN 2.6.3; //tests/kernels:random_shapes looks for more.
/// "brgemm_bwd_d" divides a sum of more than 1024 terms among the team, and then some sizes read
/// through a null pointer (f32, up to 32 columns) or add uninitialised values (bf16, k % 64 != 0).
bool is_sound(const MatmulProblem& p, const std::string& implementation) {
  return !(implementation.starts_with("brgemm_bwd_d") && p.k > 1024 && num_threads() > 1);
}

/// packed: the library chooses the layouts of a, b and y.
PlanPtr inner_product_primitive(const MatmulProblem& p, prop_kind kind, bool packed) {
  const InnerProduct plain = inner_product(p, kind);
  InnerProduct asked = plain;
  if (packed) asked = {any_layout(plain.a), any_layout(plain.b), any_layout(plain.y)};
  const auto attributes = dnnl_attributes();

  InnerProduct used;
  std::optional<dnnl::primitive> primitive;
  dnnl_desc scratchpad;
  int a_name = 0, b_name = 0, y_name = 0;
  const dnnl_desc bias({p.n}, dnnl_type(p.dtype), memory::dims{1});
  using Forward = dnnl::inner_product_forward;
  std::optional<Forward::primitive_desc> hint;
  const auto forward_hint = [&](const dnnl_desc& src, const dnnl_desc& weights,
                                const dnnl_desc& dst) -> const Forward::primitive_desc& {
    hint = dnnl_forward<Forward>(attributes, prop_kind::forward_training, src, weights, dst);
    return *hint;
  };
  const std::string shapes = p.text();
  const auto may_use = [&](const std::string& name) { return is_sound(p, name); };
  const auto keep = [&](const auto& offered) { scratchpad = offered.scratchpad_desc(); };
  if (kind == prop_kind::forward_inference) {
    const auto offered = dnnl_offer(kOp, "inner_product_forward::primitive_desc", shapes, [&] {
      return p.bias ? dnnl_forward<Forward>(attributes, kind, asked.a, asked.b, bias, asked.y)
                    : dnnl_forward<Forward>(attributes, kind, asked.a, asked.b, asked.y);
    });
    if (!offered) return nullptr;
    used = {offered->src_desc(), offered->weights_desc(), offered->dst_desc()};
    primitive = Forward(*offered);
    keep(*offered);
    a_name = DNNL_ARG_SRC, b_name = DNNL_ARG_WEIGHTS, y_name = DNNL_ARG_DST;
  } else if (kind == prop_kind::backward_data) {
    using Backward = dnnl::inner_product_backward_data;
    const auto offered = dnnl_offer(
        kOp, "inner_product_backward_data::primitive_desc", shapes,
        [&] {
          const auto& forward = forward_hint(asked.y, asked.b, asked.a);
          return dnnl_backward<Backward>(attributes, forward, asked.y, asked.b, asked.a);
        },
        may_use);
    if (!offered) return nullptr;
    used = {offered->diff_dst_desc(), offered->weights_desc(), offered->diff_src_desc()};
    primitive = Backward(*offered);
    keep(*offered);
    a_name = DNNL_ARG_DIFF_DST, b_name = DNNL_ARG_WEIGHTS, y_name = DNNL_ARG_DIFF_SRC;
  } else {
    using Backward = dnnl::inner_product_backward_weights;
    const auto offered =
        dnnl_offer(kOp, "inner_product_backward_weights::primitive_desc", shapes, [&] {
          const auto& forward = forward_hint(asked.b, asked.y, asked.a);
          return dnnl_backward<Backward>(attributes, forward, asked.b, asked.y, asked.a);
        });
    if (!offered) return nullptr;
    used = {offered->diff_dst_desc(), offered->src_desc(), offered->diff_weights_desc()};
    primitive = Backward(*offered);
    keep(*offered);
    a_name = DNNL_ARG_DIFF_DST, b_name = DNNL_ARG_SRC, y_name = DNNL_ARG_DIFF_WEIGHTS;
  }
  // All layouts are as given, so the unpacked candidate is the same plan.
  if (packed && used.a == plain.a && used.b == plain.b && used.y == plain.y) return nullptr;

  DnnlProgram program(kOp, shapes, num_threads());
  const int a_at = program.external(plain.a), b_at = program.external(plain.b);
  const int y_at = program.external(plain.y);
  const int a_used = program.as_layout(a_at, used.a), b_used = program.as_layout(b_at, used.b);
  const int y_used = program.output_layout(y_at, used.y);
  if (p.bias) {
    const int bias_at = program.external(bias);
    program.step(*primitive, scratchpad,
                 {{a_name, a_used}, {b_name, b_used}, {DNNL_ARG_BIAS, bias_at}, {y_name, y_used}});
  } else {
    program.step(*primitive, scratchpad, {{a_name, a_used}, {b_name, b_used}, {y_name, y_used}});
  }
  program.finish_output(y_used, y_at);
  return std::make_unique<ProgramMatmul>(std::move(program), p.bias);
}

/// How the team divides one product: in oneDNN's way, or with one serial sgemm per thread for a
/// part of the rows, columns or depth (with a sum at the end), or of the batch.
enum class Share { library, rows, columns, depth };

class Sgemm final : public MatmulPlan {
 public:
  Sgemm(const MatmulProblem& p, Share share) : p_(p), share_(share), team_(num_threads()) {
    if (share != Share::library) parts_ = std::clamp<std::int64_t>(length() / 16, 1, team_);
    // The first part sums into y, the others into the workspace.
    if (share == Share::depth) {
      workspace_bytes = std::size_t((parts_ - 1) * p_.batch * p_.m * p_.n) * sizeof(float);
    }
  }

  void run(const MatmulArgs& args, void* workspace) const override {
    const DnnlTeam team(team_);
    float* const y = args.y.as<float>();
    if (const float* bias = args.bias.as<const float>()) {
      for (std::int64_t row = 0; row < p_.batch * p_.m; ++row) {
        std::copy_n(bias, p_.n, y + row * p_.n);
      }
    }
    if (share_ == Share::library) {
      for (std::int64_t i = 0; i < p_.batch; ++i) part(args, i, 0, nullptr);
      return;
    }
    float* const beside = static_cast<float*>(workspace);
    parallel_for(p_.batch * parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        part(args, task / parts_, task % parts_, beside);
      }
    });
    if (share_ != Share::depth || parts_ == 1) return;
    const std::int64_t size = p_.batch * p_.m * p_.n;
    parallel_for(size, 16384, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t other = 0; other + 1 < parts_; ++other) {
        const float* const more = beside + other * size;
        for (std::int64_t i = begin; i < end; ++i) y[i] += more[i];
      }
    });
  }

 private:
  std::int64_t length() const {
    return share_ == Share::rows ? p_.m : share_ == Share::columns ? p_.n : p_.k;
  }

  void part(const MatmulArgs& args, std::int64_t i, std::int64_t index, float* beside) const {
    const std::int64_t begin = length() * index / parts_, end = length() * (index + 1) / parts_;
    const float* a = args.a.as<const float>() + i * p_.a_batch;
    const float* b = args.b.as<const float>() + i * p_.b_batch;
    float* y = args.y.as<float>() + i * p_.m * p_.n;
    float beta = p_.bias || p_.accumulate ? 1.0f : 0.0f;
    std::int64_t m = p_.m, n = p_.n, k = p_.k;
    switch (share_) {
      case Share::library: break;
      case Share::rows:
        m = end - begin;
        a += begin * p_.a_m;
        y += begin * p_.n;
        break;
      case Share::columns:
        n = end - begin;
        b += begin * p_.b_n;
        y += begin;
        break;
      case Share::depth:
        k = end - begin;
        a += begin * p_.a_k;
        b += begin * p_.b_k;
        if (index > 0) {
          y = beside + ((index - 1) * p_.batch + i) * p_.m * p_.n;
          beta = 0.0f;
        }
    }
    const bool a_across = p_.a_k != 1, b_across = p_.b_n != 1;
    const dnnl_status_t status =
        dnnl_sgemm(a_across ? 'T' : 'N', b_across ? 'T' : 'N', m, n, k, 1.0f, a,
                   a_across ? p_.a_k : p_.a_m, b, b_across ? p_.b_n : p_.b_k, beta, y, p_.n);
    if (status != dnnl_success) throw_dnnl(kOp, "dnnl_sgemm", status, p_.text());
  }

  MatmulProblem p_;
  Share share_;
  int team_;
  std::int64_t parts_ = 1;
};

}  // namespace

void add_dnnl_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to) {
  const MatmulProblem p = folded(args);
  if (dnnl_ended() || (p.dtype != DType::f32 && p.dtype != DType::bf16)) return;
  const auto add = [&](const char* name, auto make) {
    to.push_back({name, [p, make] {
                    const DnnlTeam team(num_threads());
                    return dnnl_guard(kOp, p.text(), [&]() -> PlanPtr { return make(p); });
                  }});
  };
  const auto add_sgemm = [&](const char* name, Share share) {
    if (p.dtype != DType::f32) return;
    add(name, [share](const MatmulProblem& q) { return std::make_unique<Sgemm>(q, share); });
  };
  // sgemm comes first for a single product: it is as fast as the primitive, twice as fast for few
  // rows, and needs no plan. In a batch of small products the calls cost more than the products,
  // unless these are with vectors, and a team divides them badly.
  const bool sgemm_first = p.batch == 1 || (p.n == 1 && num_threads() == 1);
  if (sgemm_first) add_sgemm("dnnl.sgemm", Share::library);
  add("dnnl.matmul", [](const MatmulProblem& q) { return matmul_primitive(q, Pack::no); });
  add("dnnl.matmul.packed", [](const MatmulProblem& q) { return matmul_primitive(q, Pack::b); });
  if (p.batch == 1 && !p.accumulate) {
    const auto add_inner = [&](const char* name, prop_kind kind, bool packed) {
      add(name, [kind, packed](const MatmulProblem& q) {
        return inner_product_primitive(q, kind, packed);
      });
    };
    add_inner("dnnl.ip.forward", prop_kind::forward_inference, false);
    add_inner("dnnl.ip.forward.packed", prop_kind::forward_inference, true);
    if (!p.bias) {
      add_inner("dnnl.ip.data", prop_kind::backward_data, false);
      add_inner("dnnl.ip.data.packed", prop_kind::backward_data, true);
      add_inner("dnnl.ip.weights", prop_kind::backward_weights, false);
      add_inner("dnnl.ip.weights.packed", prop_kind::backward_weights, true);
    }
  }
  if (!sgemm_first) add_sgemm("dnnl.sgemm", Share::library);
  if (num_threads() == 1) return;
  add_sgemm("dnnl.sgemm.rows", Share::rows);
  add_sgemm("dnnl.sgemm.columns", Share::columns);
  add_sgemm("dnnl.sgemm.depth", Share::depth);
}

}  // namespace weft::cpu
