#include "weft/benchmarks/ops_rows.h"

#include <cstdint>
#include <memory>

#include "weft/examples/resnet.h"
#include "weft/weft.h"

namespace weft::bench {
namespace {

using Prepare = std::function<OpsStep()>;
using Tensors = std::vector<Tensor>;

enum class Back { no, yes };

// --- How a workload runs -------------------------------------------------------------------------

OpsStep infer(const OpsStep& f) {
  return [=] {
    const NoGrad none;
    return f();
  };
}

/// Forward, and backward from a gradient of ones to the leaves.
OpsStep train(const OpsStep& f, const Tensors& leaves) {
  for (const Tensor& leaf : leaves) leaf.set_requires_grad();
  return [=, ones = Tensor()]() mutable {
    for (const Tensor& leaf : leaves) leaf.set_grad(Tensor());
    const Tensor y = f();
    if (!ones.defined()) ones = ones_like(y);
    y.backward(ones);
    return leaves[0].grad();
  };
}

Tensors rands(int count, const Shape& shape, DType dtype = DType::f32) {
  Tensors all;
  for (int i = 0; i < count; ++i) all.push_back(rand(shape, dtype));
  return all;
}

template <class F>
Prepare one(const Shape& shape, F f, DType dtype = DType::f32) {
  return [=] {
    const Tensor x = rand(shape, dtype);
    return infer([=] { return f(x); });
  };
}

template <class F>
Prepare two(const Shape& a, const Shape& b, F f, DType dtype = DType::f32) {
  return [=] {
    const Tensor x = rand(a, dtype), y = rand(b, dtype);
    return infer([=] { return f(x, y); });
  };
}

/// f(list), a list of `count` tensors of one shape.
template <class F>
Prepare many(int count, const Shape& shape, F f) {
  return [=] {
    const Tensors all = rands(count, shape);
    return infer([=] { return f(all); });
  };
}

template <class F>
Prepare integers(int count, std::int64_t bound, DType dtype, F f) {
  return [=] {
    Tensors all;
    for (int i = 0; i < count; ++i) all.push_back(randint(0, bound, {1024, 1024}, dtype));
    return infer([=] { return f(all); });
  };
}

/// f(x, index), the index below `bound`.
template <class F>
Prepare indexed(const Shape& shape, std::int64_t bound, const Shape& index_shape, F f,
                Back back = Back::no) {
  return [=] {
    const Tensor x = rand(shape), index = randint(0, bound, index_shape);
    const OpsStep step = [=] { return f(x, index); };
    return back == Back::yes ? train(step, {x}) : infer(step);
  };
}

/// f(x, y, mask), the mask true for half of the elements.
template <class F>
Prepare masked(F f) {
  return [=] {
    const Tensor x = rand({1024, 1024}), y = rand({1024, 1024});
    const Tensor mask = rand({1024, 1024}).lt(0.5);
    return infer([=] { return f(x, y, mask); });
  };
}

/// The layer that make() returns, with an input of this shape.
template <class Make>
Prepare layer(const Shape& shape, Make make, Back back) {
  return [=]() -> OpsStep {
    auto model = make();
    const Tensor x = rand(shape);
    const OpsStep step = [=]() mutable { return model(x); };
    if (back == Back::no) return infer(step);
    Tensors leaves = model.parameters();
    leaves.insert(leaves.begin(), x);
    return train(step, leaves);
  };
}

template <class Module>
Module in_eval(Module module) {
  module.eval();
  return module;
}

Prepare embedding_of_words(Back back) {
  return [=]() -> OpsStep {
    nn::Embedding words(32000, 256);
    const Tensor index = randint(0, 32000, {1024});
    const OpsStep step = [=]() mutable { return words(index); };
    return back == Back::yes ? train(step, {words.weight}) : infer(step);
  };
}

/// Steps of AdamW on the mean square of the output, with learning rate 0 so that all are alike.
template <class Make>
Prepare training(const Shape& shape, Make make) {
  return [=]() -> OpsStep {
    auto model = make();
    const Tensor x = rand(shape);
    const auto adam =
        std::make_shared<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = 0});
    return [=]() mutable {
      adam->zero_grad();
      const Tensor loss = model(x).square().mean();
      loss.backward();
      adam->step();
      return loss.detach();
    };
  };
}

Tensors parameters_with_gradients(int count, std::int64_t side) {
  Tensors all;
  for (int i = 0; i < count; ++i) {
    all.push_back(rand({side, side}));
    all.back().set_requires_grad();
    all.back().set_grad(rand({side, side}));
  }
  return all;
}

/// Steps of an optimiser for `count` parameters.
template <class Optimizer, class Options>
Prepare optimiser(int count, std::int64_t side, const Options& options) {
  return [=]() -> OpsStep {
    const Tensors parameters = parameters_with_gradients(count, side);
    const auto steps = std::make_shared<Optimizer>(parameters, options);
    return [=] {
      steps->step();
      return parameters[0].detach();
    };
  };
}

Prepare attention(const Shape& q_shape, const Shape& kv_shape, bool causal, Back back) {
  return [=] {
    const Tensor q = rand(q_shape), k = rand(kv_shape), v = rand(kv_shape);
    const OpsStep step = [=] {
      return scaled_dot_product_attention(q, k, v, {.is_causal = causal});
    };
    return back == Back::yes ? train(step, {q, k, v}) : infer(step);
  };
}

struct TransformerBlock : nn::Module<TransformerBlock> {
  nn::LayerNorm norm1 = child("norm1", nn::LayerNorm(256));
  nn::Linear qkv = child("qkv", nn::Linear(256, 768));
  nn::Linear proj = child("proj", nn::Linear(256, 256));
  nn::LayerNorm norm2 = child("norm2", nn::LayerNorm(256));
  nn::Linear up = child("up", nn::Linear(256, 1024)), down = child("down", nn::Linear(1024, 256));

  /// x [n,t,256], returns the same
  Tensor forward(const Tensor& x) {
    const std::int64_t n = x.shape(0), t = x.shape(1);
    const Tensor heads = qkv(norm1(x)).reshape({n, t, 3, 4, 64}).permute({2, 0, 3, 1, 4});
    const Tensor a = scaled_dot_product_attention(heads.select(0, 0), heads.select(0, 1),
                                                  heads.select(0, 2), {.is_causal = true});
    const Tensor y = x + proj(a.transpose(1, 2).reshape({n, t, 256}));
    return y + down(gelu(up(norm2(y))));
  }
};

// --- The workloads -------------------------------------------------------------------------------

struct Conv {
  const char* name;
  std::int64_t n, in, side, out, kernel, stride, padding, dilation, groups;
};
constexpr Conv kConvs[] = {
    {"conv3x3_8x64x56", 8, 64, 56, 64, 3, 1, 1, 1, 1},
    {"conv1x1_8x256x28", 8, 256, 28, 64, 1, 1, 0, 1, 1},
    {"conv7x7s2_4x3x224", 4, 3, 224, 64, 7, 2, 3, 1, 1},
    {"conv_dw3x3_8x128x56", 8, 128, 56, 128, 3, 1, 1, 1, 128},
    {"conv_dw3x3s2_8x128x56", 8, 128, 56, 128, 3, 2, 1, 1, 128},
    {"conv_dw7x7_4x96x56", 4, 96, 56, 96, 7, 1, 3, 1, 96},
    {"conv_dw31x31_1x64x56", 1, 64, 56, 64, 31, 1, 15, 1, 64},
    {"conv_g32_8x256x28", 8, 256, 28, 256, 3, 1, 1, 1, 32},
    {"conv_dil2_4x64x56", 4, 64, 56, 64, 3, 1, 2, 2, 1},
    {"conv3x3s2_8x64x56", 8, 64, 56, 128, 3, 2, 1, 1, 1},
    {"conv15x15_1x16x64", 1, 16, 64, 16, 15, 1, 7, 1, 1},
    {"conv3x3_1x3x32_small", 1, 3, 32, 16, 3, 1, 1, 1, 1},
};
constexpr Conv kConvs1d[] = {
    {"conv1d_k9_8x64x2048", 8, 64, 2048, 64, 9, 1, 4, 1, 1},
    {"conv1d_audio_k80s4_8x1x16000", 8, 1, 16000, 32, 80, 4, 0, 1, 1},
    {"conv1d_dil8_4x64x2048", 4, 64, 2048, 64, 3, 1, 8, 8, 1},
    {"conv1d_dw_k4_4x256x1024", 4, 256, 1024, 256, 4, 1, 3, 1, 256},
};

std::vector<OpsRow> all_rows() {
  using T = const Tensor&;
  using Ts = const Tensors&;
  const auto product = [](T a, T b) { return matmul(a, b); };
  const auto sdpa = attention;
  const Shape m{1024, 1024}, h{512, 512};
  const auto f64 = DType::f64;
  std::vector<OpsRow> rows{
      {"mm_16", two({16, 16}, {16, 16}, product)},
      {"mm_64", two({64, 64}, {64, 64}, product)},
      {"mm_256", two({256, 256}, {256, 256}, product)},
      {"mm_1024", two(m, m, product)},
      {"mm_4096x64x64", two({4096, 64}, {64, 64}, product)},
      {"mm_64x4096x64", two({64, 4096}, {4096, 64}, product)},
      {"mv_1x1024x1024", two({1, 1024}, m, product)},
      {"mm_bt_512", two(h, h, [](T a, T b) { return matmul(a, b.t()); })},
      {"mm_f64_384", two({384, 384}, {384, 384}, product, f64)},
      {"mm_bf16_512", [=] {
         const Tensor a = rand(h).to(DType::bf16), b = rand(h).to(DType::bf16);
         return infer([=] { return matmul(a, b); });
       }},
      {"bmm_64x128x64x128", two({64, 128, 64}, {64, 64, 128}, product)},
      {"bmm_512x16x16x16", two({512, 16, 16}, {512, 16, 16}, product)},

      {"linear_b1_1024", layer({1, 1024}, [] { return nn::Linear(1024, 1024); }, Back::no)},
      {"linear_b8_256_fb", layer({8, 256}, [] { return nn::Linear(256, 256); }, Back::yes)},
      {"layer_norm_512x768", layer({512, 768}, [] { return nn::LayerNorm(768); }, Back::no)},
      {"layer_norm_512x768_fb", layer({512, 768}, [] { return nn::LayerNorm(768); }, Back::yes)},
      {"batch_norm_eval_8x64x56",
       layer({8, 64, 56, 56}, [] { return in_eval(nn::BatchNorm2d(64)); }, Back::no)},
      {"batch_norm_train_8x64x56_fb",
       layer({8, 64, 56, 56}, [] { return nn::BatchNorm2d(64); }, Back::yes)},
      {"batch_norm1d_train_256x512_fb",
       layer({256, 512}, [] { return nn::BatchNorm1d(512); }, Back::yes)},
      {"group_norm_8x64x32",
       layer({8, 64, 32, 32}, [] { return nn::GroupNorm(8, 64); }, Back::no)},
      {"group_norm_8x64x32_fb",
       layer({8, 64, 32, 32}, [] { return nn::GroupNorm(8, 64); }, Back::yes)},
      {"conv_transpose4x4s2_8x64x32_fb",
       layer({8, 64, 32, 32},
             [] { return nn::ConvTranspose2d(64, 32, 4, {.stride = 2, .padding = 1}); },
             Back::yes)},
      {"maxpool3s2_8x64x112_fb",
       layer({8, 64, 112, 112}, [] { return nn::MaxPool2d(3, {.stride = 2, .padding = 1}); },
             Back::yes)},
      {"avgpool2_8x64x56_fb", layer({8, 64, 56, 56}, [] { return nn::AvgPool2d(2); }, Back::yes)},
      {"upsample_bilinear2_4x32x56", one({4, 32, 56, 56}, [](T x) {
         return interpolate(x, {.scale_factor = {2, 2}, .mode = "bilinear"});
       })},
      {"upsample_nearest2_4x32x56_fb", [] {
         const Tensor x = rand({4, 32, 56, 56});
         return train([=] { return interpolate(x, {.scale_factor = {2, 2}}); }, {x});
       }},
      {"mlp_b1_infer", layer({1, 128}, [] {
         return nn::Sequential{nn::Linear(128, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(),
                               nn::Linear(256, 10)};
       }, Back::no)},
      {"gelu_mlp_128x512x2048_train", training({128, 512}, [] {
         return nn::Sequential{nn::Linear(512, 2048), nn::GELU(), nn::Linear(2048, 512)};
       })},
      {"transformer_block_b8_t128_infer",
       layer({8, 128, 256}, [] { return TransformerBlock(); }, Back::no)},
      {"transformer_block_b1_t16_infer",
       layer({1, 16, 256}, [] { return TransformerBlock(); }, Back::no)},
      {"transformer_block_b8_t128_train", training({8, 128, 256}, [] { return TransformerBlock(); })},
      {"resnet18_b1_infer",
       layer({1, 3, 224, 224}, [] { return in_eval(examples::resnet18()); }, Back::no)},
      {"sdpa_4x8x256x64", sdpa({4, 8, 256, 64}, {4, 8, 256, 64}, false, Back::no)},
      {"sdpa_causal_4x8x256x64_fb", sdpa({4, 8, 256, 64}, {4, 8, 256, 64}, true, Back::yes)},
      {"sdpa_long_1x8x2048x64", sdpa({1, 8, 2048, 64}, {1, 8, 2048, 64}, false, Back::no)},
      {"sdpa_decode_1x8x1x64_kv512", sdpa({1, 8, 1, 64}, {1, 8, 512, 64}, false, Back::no)},

      {"softmax_512x1024", one({512, 1024}, [](T x) { return softmax(x, -1); })},
      {"softmax_dim0_1024x512", one({1024, 512}, [](T x) { return softmax(x, 0); })},
      {"softmax_mid_32x256x64", one({32, 256, 64}, [](T x) { return softmax(x, 1); })},
      {"log_softmax_64x32000", one({64, 32000}, [](T x) { return log_softmax(x, -1); })},
      {"cross_entropy_256x10000_fb",
       indexed({256, 10000}, 10000, {256}, [](T x, T i) { return nn::cross_entropy(x, i); },
               Back::yes)},
      {"embedding_1024_of_32000x256", embedding_of_words(Back::no)},
      {"embedding_1024_of_32000x256_fb", embedding_of_words(Back::yes)},

      {"adam_500x32x32", optimiser<optim::Adam>(500, 32, optim::AdamOptions{.lr = 0})},
      {"adam_2000x4x4", optimiser<optim::Adam>(2000, 4, optim::AdamOptions{.lr = 0})},
      {"adamw_1x2048x2048", optimiser<optim::AdamW>(1, 2048, optim::AdamWOptions{.lr = 0})},
      {"sgd_momentum_500x32x32",
       optimiser<optim::SGD>(500, 32, optim::SGDOptions{.lr = 0, .momentum = 0.9})},
      {"clip_grad_norm_500x32x32", [] {
         const Tensors all = parameters_with_gradients(500, 32);
         return [=] { return optim::clip_grad_norm(all, 1e9); };
       }},

      {"sum_all_1M", one(m, [](T x) { return x.sum(); })},
      {"sum_dim0_4096x512", one({4096, 512}, [](T x) { return x.sum({0}); })},
      {"sum_dim1_4096x512", one({4096, 512}, [](T x) { return x.sum({1}); })},
      {"sum_mid_64x256x64", one({64, 256, 64}, [](T x) { return x.sum({1}); })},
      {"sum_0_2_of_64x64x256", one({64, 64, 256}, [](T x) { return x.sum({0, 2}); })},
      {"sum_of_transposed_1024", one(m, [](T x) { return x.t().sum({1}); })},
      {"sum_i64_1M", integers(1, 100, DType::i64, [](Ts x) { return x[0].sum(); })},
      {"mean_hw_32x256x7", one({32, 256, 7, 7}, [](T x) { return x.mean({2, 3}); })},
      {"var_dim0_2048x256", one({2048, 256}, [](T x) { return x.var({0}); })},
      {"var_dim1_2048x256", one({2048, 256}, [](T x) { return x.var({1}); })},
      {"max_dim1_1024x1000", one({1024, 1000}, [](T x) { return x.max(1).values; })},
      {"max_dim0_1024x1000", one({1024, 1000}, [](T x) { return x.max(0).values; })},
      {"argmax_1024x1000", one({1024, 1000}, [](T x) { return argmax(x, 1); })},
      {"amax_all_1M", one(m, [](T x) { return x.max(); })},
      {"prod_dim1_1024x256", one({1024, 256}, [](T x) { return x.prod({1}); })},
      {"logsumexp_512x1000", one({512, 1000}, [](T x) { return x.logsumexp({1}); })},
      {"norm_dim1_1024x512", one({1024, 512}, [](T x) { return x.norm({1}); })},

      {"transpose_copy_2048", one({2048, 2048}, [](T x) { return x.t().contiguous(); })},
      {"nchw_to_nhwc_16x64x56",
       one({16, 64, 56, 56}, [](T x) { return x.permute({0, 2, 3, 1}).contiguous(); })},
      {"nhwc_to_nchw_16x224x3",
       one({16, 224, 224, 3}, [](T x) { return x.permute({0, 3, 1, 2}).contiguous(); })},
      {"heads_copy_8x128x8x64",
       one({8, 128, 8, 64}, [](T x) { return x.permute({0, 2, 1, 3}).contiguous(); })},
      {"slice_step2_copy_1024x2048",
       one({1024, 2048}, [](T x) { return x.slice(1, 0, 2048, 2).contiguous(); })},
      {"flip_1024", one(m, [](T x) { return x.flip({1}); })},
      {"roll_1024", one(m, [](T x) { return x.roll(3, 1); })},
      {"pad_16x64x32", one({16, 64, 32, 32}, [](T x) { return pad(x, {1, 1, 1, 1}); })},
      {"repeat_256x256x4", one({256, 256}, [](T x) { return x.repeat({4, 4}); })},
      {"tril_1024", one(m, [](T x) { return x.tril(); })},
      {"cat_dim1_16x256x64", many(16, {256, 64}, [](Ts all) { return cat(all, 1); })},
      {"cat_dim0_64x16x256", many(64, {16, 256}, [](Ts all) { return cat(all, 0); })},
      {"stack_dim2_8x256x256", many(8, {256, 256}, [](Ts all) { return stack(all, 2); })},
      {"cat_channels_8x64x28_fb", [] {
         const Tensor a = rand({8, 64, 28, 28}), b = rand({8, 32, 28, 28});
         return train([=] { return cat({a, b}, 1); }, {a, b});
       }},
      {"index_select_rows_4096_of_10000x128",
       indexed({10000, 128}, 10000, {4096}, [](T x, T i) { return x.index_select(0, i); })},
      {"index_select_cols_512_of_1024x1024",
       indexed(m, 1024, {512}, [](T x, T i) { return x.index_select(1, i); })},
      {"gather_dim1_1024x256_of_1000",
       indexed({1024, 1000}, 1000, {1024, 256}, [](T x, T i) { return gather(x, 1, i); })},
      {"gather_dim1_1024x1_of_1000_fb",
       indexed({1024, 1000}, 1000, {1024, 1}, [](T x, T i) { return gather(x, 1, i); }, Back::yes)},
      {"masked_select_1M", masked([](T x, T, T mask) { return masked_select(x, mask); })},
      {"masked_fill_1M", masked([](T x, T, T mask) { return masked_fill(x, mask, 0); })},
      {"where_1M", masked([](T x, T y, T mask) { return where(mask, x, y); })},

      {"add_1M", two(m, m, [](T x, T y) { return x + y; })},
      {"add_f64_1M", two(m, m, [](T x, T y) { return x + y; }, f64)},
      {"add_i64_1M", integers(2, 100, DType::i64, [](Ts x) { return x[0] + x[1]; })},
      {"add_row_1M", two(m, {1024}, [](T x, T y) { return x + y; })},
      {"add_col_1M", two(m, {1024, 1}, [](T x, T y) { return x + y; })},
      {"add_transposed_1024", two(m, m, [](T x, T y) { return x + y.t(); })},
      {"add_small_64", two({64}, {64}, [](T x, T y) { return x + y; })},
      {"mul_channel_8x64x56",
       two({8, 64, 56, 56}, {1, 64, 1, 1}, [](T x, T y) { return x * y; })},
      {"outer_1024", two({1024, 1}, {1, 1024}, [](T x, T y) { return x * y; })},
      {"compare_1M", two(m, m, [](T x, T y) { return x.lt(y); })},
      {"div_1M", two(m, m, [](T x, T y) { return x / y; })},
      {"maximum_1M", two(m, m, [](T x, T y) { return maximum(x, y); })},
      {"pow_tensor_256k", two(h, h, [](T x, T y) { return pow(x, y); })},
      {"exp_1M", one(m, [](T x) { return x.exp(); })},
      {"exp_f64_256k", one(h, [](T x) { return x.exp(); }, f64)},
      {"log_1M", one(m, [](T x) { return x.log(); })},
      {"tanh_1M", one(m, [](T x) { return x.tanh(); })},
      {"sigmoid_1M", one(m, [](T x) { return x.sigmoid(); })},
      {"gelu_1M", one(m, [](T x) { return gelu(x); })},
      {"silu_1M", one(m, [](T x) { return silu(x); })},
      {"erf_1M", one(m, [](T x) { return x.erf(); })},
      {"sin_1M", one(m, [](T x) { return x.sin(); })},
      {"pow2_1M", one(m, [](T x) { return pow(x, 2); })},
      {"pow_2.5_256k", one(h, [](T x) { return pow(x, 2.5); })},
      {"sqrt_1M", one(m, [](T x) { return x.sqrt(); })},
      {"clamp_1M", one(m, [](T x) { return clamp(x, 0.2, 0.8); })},
      {"softplus_1M", one(m, [](T x) { return softplus(x); })},
      {"dropout_1M", one(m, [](T x) { return dropout(x, 0.5, true); })},
      {"chain5_64k",
       one({256, 256}, [](T x) { return ((x * 2 + 1).tanh() * x - x).square(); })},
      {"tape_chain100_small", [] {
         const Tensor x = rand({8, 8});
         return train([=] {
           Tensor y = x;
           for (int i = 0; i < 100; ++i) y = y * 1.01 + 0.01;
           return y;
         }, {x});
       }},
      {"u8_to_f32_div_1M",
       integers(1, 255, DType::u8, [](Ts x) { return x[0].to(DType::f32) / 255; })},
      {"f32_to_bf16_1M", one(m, [](T x) { return x.to(DType::bf16); })},
      {"u8_hwc_to_f32_chw_norm_224", [] {
         const Tensor x = randint(0, 255, {224, 224, 3}, DType::u8);
         const Tensor mean = tensor({0.485, 0.456, 0.406}).reshape({3, 1, 1});
         const Tensor deviation = tensor({0.229, 0.224, 0.225}).reshape({3, 1, 1});
         return infer([=] {
           const Tensor chw = x.permute({2, 0, 1}).to(DType::f32) / 255;
           return ((chw - mean) / deviation).contiguous();
         });
       }},
      {"randn_1M", [] { return infer([] { return randn({1024, 1024}); }); }},
      {"randperm_100k", [] { return infer([] { return randperm(100000); }); }},
  };
  for (const Conv& c : kConvs) {
    const auto make = [=] {
      return nn::Conv2d(
          c.in, c.out, c.kernel,
          {.stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups});
    };
    const Shape shape{c.n, c.in, c.side, c.side};
    rows.push_back({c.name, layer(shape, make, Back::no)});
    rows.push_back({std::string(c.name) + "_fb", layer(shape, make, Back::yes)});
  }
  for (const Conv& c : kConvs1d) {
    const auto make = [=] {
      return nn::Conv1d(
          c.in, c.out, c.kernel,
          {.stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups});
    };
    const Shape shape{c.n, c.in, c.side};
    rows.push_back({c.name, layer(shape, make, Back::no)});
    rows.push_back({std::string(c.name) + "_fb", layer(shape, make, Back::yes)});
  }
  return rows;
}

}  // namespace

const std::vector<OpsRow>& ops_rows() {
  static const std::vector<OpsRow> rows = all_rows();
  return rows;
}

}  // namespace weft::bench
