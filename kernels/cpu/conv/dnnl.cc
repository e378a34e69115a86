// Convolutions by oneDNN, direct algorithms only: each pass in plain nchw, in nhwc, and in the
// blocked layout that the library prefers, with reorders of inputs and outputs.
#include <algorithm>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/dnnl/library.h"
#include "weft/kernels/cpu/dnnl/program.h"

namespace weft::cpu {

namespace {

using dnnl::memory;
using dnnl::prop_kind;
constexpr const char* kOp = "conv2d";
// convolution_auto could choose Winograd, which is slower and less exact here.
constexpr auto kDirect = dnnl::algorithm::convolution_direct;

/// The layout in which the library computes.
enum class Layout { nchw, nhwc, any };

dnnl_desc image_desc(const memory::dims& dims, memory::data_type type, Layout layout) {
  switch (layout) {
    case Layout::nchw: return dnnl_desc(dims, type, memory::format_tag::nchw);
    case Layout::nhwc: return dnnl_desc(dims, type, memory::format_tag::nhwc);
    case Layout::any: break;
  }
  return dnnl_desc(dims, type, memory::format_tag::any);
}

/// The layout of the caller's image.
Layout layout_of(const View& view, Layout preferred) {
  const bool nchw = is_format(view, MemoryFormat::nchw), nhwc = is_format(view, MemoryFormat::nhwc);
  if (nchw && nhwc) return preferred;
  return nchw ? Layout::nchw : Layout::nhwc;
}

/// False for known errors of oneDNN 2.6.3; //tests/kernels:random_shapes looks for more.
bool is_sound(const ConvProblem& p, Layout layout, const std::string& implementation) {
  const bool pointwise = implementation.find("_1x1") != std::string::npos;
  const bool channels_last = layout == Layout::nhwc;
  const bool strided = p.stride[0] > 1 || p.stride[1] > 1;
  switch (p.pass) {
    case ConvPass::forward: return true;
    case ConvPass::backward_data:
      // The sums are wrong for an odd number of channels: these are computed in pairs.
      return !(pointwise && channels_last && p.dtype == DType::bf16 && p.k % 2 != 0);
    case ConvPass::backward_weights: break;
  }
  // "jit_bf16" sorts the columns by their position modulo the stride. It leaves the memory of a
  // position without columns as it is, and multiplies it by zero: NaN if NaN was there.
  const bool by_place = implementation.find("gemm") == std::string::npos;
  if (p.dtype == DType::bf16 && by_place && p.w < p.stride[1]) return false;
  // "jit_1x1" and "jit_bf16_1x1" (in 3.2, too) first copy the pixels that a strided window reads, a
  // few at a time. With channels last they allocate C values per pixel, but write the values from
  // pixel p on at p * block, where block is 8 (AVX2) or 16 (AVX-512). So with fewer channels one
  // thread's copies overwrite the next one's memory, and the last one's go past the end.
  constexpr std::int64_t kWidestBlock = 16;
  return !(pointwise && channels_last && strided && p.c < kWidestBlock);
}

/// oneDNN's offer for one pass: the primitive, and the layouts that it needs.
struct Offer {
  dnnl::primitive primitive;
  dnnl_desc big, weights, small, scratchpad;
};

std::optional<Offer> make_offer(const ConvProblem& p, Layout layout, const dnnl_desc& big,
                                const dnnl_desc& weights, const dnnl_desc& small,
                                const dnnl_desc& bias, bool with_bias) {
  const memory::dims stride{p.stride[0], p.stride[1]}, padding{p.padding[0], p.padding[1]};
  const memory::dims dilation{p.dilation[0] - 1, p.dilation[1] - 1};  // oneDNN counts from 0
  const auto attributes = dnnl_attributes();
  const std::string shapes = p.text();
  using Forward = dnnl::convolution_forward;
  const auto forward = [&](prop_kind kind) {
    return with_bias && kind == prop_kind::forward_inference
               ? dnnl_forward<Forward>(attributes, kind, kDirect, big, weights, bias, small, stride,
                                       dilation, padding, padding)
               : dnnl_forward<Forward>(attributes, kind, kDirect, big, weights, small, stride,
                                       dilation, padding, padding);
  };
  std::optional<Forward::primitive_desc> hint;
  const auto may_use = [&](const std::string& name) { return is_sound(p, layout, name); };
  switch (p.pass) {
    case ConvPass::forward: {
      const auto pd = dnnl_offer(
          kOp, "convolution_forward::primitive_desc", shapes,
          [&] { return forward(prop_kind::forward_inference); }, may_use);
      if (!pd) return std::nullopt;
      return Offer{Forward(*pd), pd->src_desc(), pd->weights_desc(), pd->dst_desc(),
                   pd->scratchpad_desc()};
    }
    case ConvPass::backward_data: {
      using Backward = dnnl::convolution_backward_data;
      const auto pd = dnnl_offer(
          kOp, "convolution_backward_data::primitive_desc", shapes,
          [&] {
            hint = forward(prop_kind::forward_training);
            return dnnl_backward<Backward>(attributes, *hint, kDirect, big, weights, small, stride,
                                           dilation, padding, padding);
          },
          may_use);
      if (!pd) return std::nullopt;
      return Offer{Backward(*pd), pd->diff_src_desc(), pd->weights_desc(), pd->diff_dst_desc(),
                   pd->scratchpad_desc()};
    }
    case ConvPass::backward_weights: break;
  }
  using Backward = dnnl::convolution_backward_weights;
  const auto pd = dnnl_offer(
      kOp, "convolution_backward_weights::primitive_desc", shapes,
      [&] {
        hint = forward(prop_kind::forward_training);
        return with_bias ? dnnl_backward<Backward>(attributes, *hint, kDirect, big, weights, bias,
                                                   small, stride, dilation, padding, padding)
                         : dnnl_backward<Backward>(attributes, *hint, kDirect, big, weights, small,
                                                   stride, dilation, padding, padding);
      },
      may_use);
  if (!pd) return std::nullopt;
  return Offer{Backward(*pd), pd->src_desc(), pd->diff_weights_desc(), pd->diff_dst_desc(),
               pd->scratchpad_desc()};
}

class DnnlConv final : public ConvPlan {
 public:
  /// Null if the library has nothing good in this layout.
  static std::unique_ptr<ConvPlan> make(const Conv2dArgs& args, Layout layout,
                                        MemoryFormat output) {
    const ConvProblem p(args);
    const auto type = dnnl_type(p.dtype);
    const memory::dims big_dims{p.images, p.c, p.h, p.w}, small_dims{p.images, p.k, p.ho, p.wo};
    // The primitive adds or sums the bias of the small image, but in a transposed convolution the
    // bias belongs to the big one.
    const bool own_bias = p.bias && p.transposed;
    const bool fused_bias = p.bias && !p.transposed;
    const dnnl_desc bias({fused_bias ? p.k : 1}, type, memory::format_tag::x);
    const memory::dims w_dims =
        p.groups == 1 ? memory::dims{p.k, p.c, p.r, p.s}
                      : memory::dims{p.groups, p.k / p.groups, p.c / p.groups, p.r, p.s};
    const auto offer = make_offer(p, layout, image_desc(big_dims, type, layout),
                                  dnnl_desc(w_dims, type, memory::format_tag::any),
                                  image_desc(small_dims, type, layout), bias, fused_bias);
    if (!offer) return nullptr;
    // The library has no blocks for these channels, so this is the plan in plain nchw.
    if (layout == Layout::any && offer->big == image_desc(big_dims, type, Layout::nchw) &&
        offer->small == image_desc(small_dims, type, Layout::nchw)) {
      return nullptr;
    }

    // The caller's layouts: inputs as they are, the output as this candidate chooses.
    const Layout out = output == MemoryFormat::nchw ? Layout::nchw : Layout::nhwc;
    const Layout big_layout = p.writes_big() ? out : layout_of(big_of(args), layout);
    const Layout small_layout = p.writes_small() ? out : layout_of(small_of(args), layout);
    DnnlProgram program(kOp, p.text(), num_threads());
    const dnnl_desc w_plain(w_dims, type,
                            p.groups == 1 ? memory::format_tag::oihw : memory::format_tag::goihw);
    const int big_at = program.external(image_desc(big_dims, type, resolve(big_layout)));
    const int w_at = program.external(w_plain);
    const int small_at = program.external(image_desc(small_dims, type, resolve(small_layout)));
    const int bias_at = fused_bias && !p.writes_big() ? program.external(bias) : -1;

    const int big = p.writes_big() ? program.output_layout(big_at, offer->big)
                                   : program.as_layout(big_at, offer->big);
    const int w = p.writes_weights() ? program.output_layout(w_at, offer->weights)
                                     : program.as_layout(w_at, offer->weights);
    const int small = p.writes_small() ? program.output_layout(small_at, offer->small)
                                       : program.as_layout(small_at, offer->small);
    switch (p.pass) {
      case ConvPass::forward:
        if (fused_bias) {
          program.step(offer->primitive, offer->scratchpad,
                       {{DNNL_ARG_SRC, big},
                        {DNNL_ARG_WEIGHTS, w},
                        {DNNL_ARG_BIAS, bias_at},
                        {DNNL_ARG_DST, small}});
        } else {
          program.step(offer->primitive, offer->scratchpad,
                       {{DNNL_ARG_SRC, big}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, small}});
        }
        program.finish_output(small, small_at);
        break;
      case ConvPass::backward_data:
        program.step(offer->primitive, offer->scratchpad,
                     {{DNNL_ARG_DIFF_SRC, big}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_DST, small}});
        program.finish_output(big, big_at);
        break;
      case ConvPass::backward_weights:
        if (fused_bias) {
          program.step(offer->primitive, offer->scratchpad,
                       {{DNNL_ARG_SRC, big},
                        {DNNL_ARG_DIFF_DST, small},
                        {DNNL_ARG_DIFF_WEIGHTS, w},
                        {DNNL_ARG_DIFF_BIAS, bias_at}});
        } else {
          program.step(
              offer->primitive, offer->scratchpad,
              {{DNNL_ARG_SRC, big}, {DNNL_ARG_DIFF_DST, small}, {DNNL_ARG_DIFF_WEIGHTS, w}});
        }
        program.finish_output(w, w_at);
    }
    auto plan = std::unique_ptr<DnnlConv>(new DnnlConv(std::move(program), p.pass, own_bias));
    plan->output_format = output;
    return plan;
  }

  void run(const Conv2dArgs& args, void* workspace) const override {
    void* const data[] = {big_of(args).data, args.w.data, small_of(args).data, args.bias.data};
    program_.run(data, workspace);
    if (!own_bias_) return;
    if (pass_ == ConvPass::backward_data)
      add_channel_bias(args.y, args.bias);
    else
      sum_channels(args.y, args.bias);
  }

 private:
  DnnlConv(DnnlProgram program, ConvPass pass, bool own_bias)
      : program_(std::move(program)), pass_(pass), own_bias_(own_bias) {
    workspace_bytes = program_.workspace_bytes();
  }

  // Both layouts are the same memory, so either name is right.
  static Layout resolve(Layout layout) { return layout == Layout::any ? Layout::nchw : layout; }

  DnnlProgram program_;
  ConvPass pass_;
  bool own_bias_;
};

}  // namespace

void add_dnnl_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to) {
  const ConvProblem p(args);
  if (dnnl_ended() || (p.dtype != DType::f32 && p.dtype != DType::bf16)) return;
  const MemoryFormat output = wanted_format(args);
  const auto add = [&](const char* name, Layout layout) {
    to.push_back({name, [args, p, layout, output]() -> std::unique_ptr<ConvPlan> {
                    const DnnlTeam team(num_threads());
                    return dnnl_guard(kOp, p.text(),
                                      [&] { return DnnlConv::make(args, layout, output); });
                  }});
  };
  // The order is the fixed rule: nhwc first if channels fill whole vectors. But if groups of nchw
  // images have their channels in blocks, these cost less to reorder than whole pixels.
  const bool channels_fill = p.writes_weights() || p.c % 8 == 0 || p.k % 8 == 0;
  const bool blocks_first = p.groups > 1 && is_format(args.x, MemoryFormat::nchw) &&
                            is_format(args.y, MemoryFormat::nchw);
  if (blocks_first) add("dnnl.blocked", Layout::any);
  if (channels_fill) add("dnnl.nhwc", Layout::nhwc);
  if (!blocks_first) add("dnnl.blocked", Layout::any);
  add("dnnl.nchw", Layout::nchw);
  if (!channels_fill) add("dnnl.nhwc", Layout::nhwc);
}

}  // namespace weft::cpu
