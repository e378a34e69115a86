// Operations of neural networks that are composed of others: values and gradients against
// PyTorch's, special values, errors.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/tests/autograd/against_goldens.h"
#include "weft/tests/autograd/with_gradients.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::Inputs;
using testing::kFloating;
using testing::make;
using testing::near_values;
using testing::ramp;
using testing::some;
using testing::values_of;
using testing::with_gradients;

const testing::Goldens goldens("tests/autograd/composed_nn_goldens");

using F = std::function<Tensor(Inputs)>;

constexpr double kInf = std::numeric_limits<double>::infinity();

class ComposedNnTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ComposedNnTest);

// Sums of about ten products in f64, in another order than PyTorch's.
constexpr double kTolerance = 1e-14;

void check(const char* name, const F& f, const std::vector<Tensor>& inputs) {
  testing::expect_goldens(goldens, name, f, inputs, kTolerance);
}

Tensor attend(Inputs in, const AttentionOptions& options = {}) {
  return scaled_dot_product_attention(in[0], in[1], in[2], options);
}

Tensor seen() {
  return make({1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, {3, 5}, DType::boolean);
}

TEST_P(ComposedNnTest, AttentionFollowsPyTorch) {
  const Tensor q = ramp({2, 2, 3, 4}) * 2, k = ramp({2, 2, 5, 4}) * 3, v = ramp({2, 2, 5, 3});
  const auto run = [&](const char* name, const AttentionOptions& options) {
    check(name, [=](Inputs in) { return attend(in, options); }, {q, k, v});
  };
  run("attention", {});
  run("attention_scaled", {.scale = 0.3});
  run("attention_causal", {.is_causal = true});
  run("attention_bool", {.attn_mask = seen()});
  run("attention_added_blind",
      {.attn_mask = where(seen(), scalar(0.5, DType::f64), scalar(-kInf, DType::f64))});
  const auto causal = [](Inputs in) { return attend(in, {.is_causal = true}); };
  check("attention_causal_long", causal, {k, q, v.narrow(2, 0, 3)});
  const auto added = [](Inputs in) { return attend(in, {.attn_mask = in[3]}); };
  check("attention_added", added, {q, k, v, ramp({2, 1, 3, 5})});
  const auto broadcast = [](Inputs in) { return attend(in, {.attn_mask = seen()[0]}); };
  check("attention_broadcast", broadcast, {q.narrow(1, 0, 1), k, v.narrow(0, 0, 1)});
}

// Scores of up to some hundreds, from numbers that bf16 represents exactly: if a score were rounded
// to bf16, a weight would be wrong by a factor of up to e.
TEST_P(ComposedNnTest, AttentionInBf16KeepsLargeScores) {
  const auto bf16s = [](const Shape& shape, double size, std::uint64_t seed) {
    return some(shape, DType::bf16, -size, size, seed);
  };
  for (const std::int64_t features : {32, 64}) {  // scaled by a power of two, and not
    const std::vector<Tensor> inputs{bf16s({2, 7, features}, 10, 1), bf16s({2, 9, features}, 10, 2),
                                     bf16s({2, 9, 5}, 3, 3)};
    const F f = [](Inputs in) { return attend(in); };
    const auto got = with_gradients(f, inputs, DType::bf16);
    const auto want = with_gradients(f, inputs, DType::f64);
    // These are rounded to bf16, with an error of at most u = 2^-8 of their size: the weights,
    // whose sum is 1, before they multiply values of up to 3, or gradients of up to 1 for seven
    // queries; and the results. In backward also the gradients of the weights, which are at most 5
    // 3 1 = 15, and those of the scores: w (dw - sum w dw) scale. So over the keys, the sum of the
    // latter is at most 30 scale and the sum of their errors at most 60 u scale. They are
    // multiplied by q or k, which are at most 10.
    const double scores = (60 + 30) * 10 / std::sqrt(static_cast<double>(features));
    const double bounds[] = {2 * 3, scores, 7 * scores, 7 * 2};
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].dtype(), DType::bf16);
      const std::vector<double> a = values_of(got[i]), b = values_of(want[i]);
      for (std::size_t k = 0; k < b.size(); ++k) {
        EXPECT_NEAR(a[k], b[k], 0x1p-8 * bounds[i])
            << features << " features, result " << i << ", element " << k;
      }
    }
  }
}

// A query without a visible key, with every kind of mask, and without any keys.
TEST_P(ComposedNnTest, AttentionToNothingIsZero) {
  const Tensor q = ramp({2, 4}).set_requires_grad(), k = ramp({3, 4}).set_requires_grad();
  const Tensor v = ramp({3, 2}).set_requires_grad();
  for (const Tensor& mask :
       {zeros({2, 3}, DType::boolean), zeros({3}, DType::boolean), zeros({}, DType::boolean),
        full({2, 3}, -kInf, DType::f64), full({2, 1}, -kInf, DType::f64)}) {
    const auto [y, weights] = attention_with_weights(q, k, v, {.attn_mask = mask});
    EXPECT_TENSOR(y, ({2, 2}), {0, 0, 0, 0});
    EXPECT_TENSOR(weights, ({2, 3}), {0, 0, 0, 0, 0, 0});
    (y.sum() + weights.sum()).backward();
    const Tensor same = scaled_dot_product_attention(q, k, v, {.attn_mask = mask});
    EXPECT_TENSOR(same, ({2, 2}), {0, 0, 0, 0});
    same.sum().backward();
  }
  for (const Tensor& x : {q, k, v}) {
    EXPECT_EQ(values_of(x.grad()), std::vector<double>(static_cast<std::size_t>(x.numel()), 0));
  }
  EXPECT_TENSOR(scaled_dot_product_attention(q, k.slice(0, 0, 0), v.slice(0, 0, 0)), ({2, 2}),
                {0, 0, 0, 0});
  EXPECT_EQ(scaled_dot_product_attention(q.slice(0, 0, 0), k, v, {.is_causal = true}).shape(),
            (Shape{0, 2}));
  EXPECT_EQ(scaled_dot_product_attention(zeros({0, 2, 4}), zeros({0, 3, 4}), zeros({0, 3, 2}),
                                         {.attn_mask = ones({2, 3}, DType::boolean)})
                .shape(),
            (Shape{0, 2, 2}));
}

TEST_P(ComposedNnTest, AttentionGivesItsWeights) {
  const Tensor q = ramp({2, 3, 4}), k = ramp({2, 5, 4}) * 2, v = ramp({2, 5, 3});
  const auto [y, weights] = attention_with_weights(q, k, v, {.attn_mask = seen()});
  const Tensor same = scaled_dot_product_attention(q, k, v, {.attn_mask = seen()});
  EXPECT_TRUE(near_values(same, values_of(y), kTolerance));
  EXPECT_TRUE(near_values(matmul(weights, v), values_of(y), kTolerance));
  EXPECT_TRUE(near_values(weights.sum({-1}), {1, 0, 1, 1, 0, 1}, kTolerance));
}

// With v = 1 each result is the sum of the weights that dropout has kept.
TEST_P(ComposedNnTest, AttentionDropsWeights) {
  manual_seed(2);
  const Tensor x = zeros({1, 100, 4}), v = ones({1, 100, 1});
  const auto [y, weights] = attention_with_weights(x, x, v, {.dropout_p = 0.25});
  int kept = 0;
  for (const double w : values_of(weights)) {
    kept += w != 0;
    EXPECT_TRUE(w == 0 || std::abs(w - 0.01 / 0.75) < 1e-8) << w;
  }
  // 10000 draws with probability 0.75: the standard deviation is 43; allow five of them.
  EXPECT_NEAR(kept, 7500, 217);
  EXPECT_TRUE(near_values(y.flatten(), values_of(weights.sum({2}).flatten()), 1e-5));
}

// The same draws with and without the weights, also where they are shared by several v.
TEST_P(ComposedNnTest, AttentionDropsTheSameWeights) {
  for (const auto& [name, options] : {std::pair("all", AttentionOptions{.dropout_p = 0.3}),
                                      std::pair("bool", AttentionOptions{seen(), 0.3}),
                                      std::pair("nothing is kept", AttentionOptions{seen(), 1})}) {
    SCOPED_TRACE(name);
    const std::vector<Tensor> inputs{ramp({2, 1, 3, 4}), ramp({1, 3, 5, 4}), ramp({4, 1, 1, 5, 2})};
    const auto run = [&](const F& f) {
      manual_seed(9);
      return with_gradients(f, inputs, DType::f64);
    };
    const std::vector<Tensor> want =
        run([&](Inputs in) { return attention_with_weights(in[0], in[1], in[2], options).output; });
    const std::vector<Tensor> got = run([&](Inputs in) { return attend(in, options); });
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Gradients add up to twelve of these sums.
      EXPECT_TRUE(near_values(got[i], values_of(want[i]), 12 * kTolerance)) << "result " << i;
    }
  }
}

// The weights alone would take 256 MiB.
TEST_P(ComposedNnTest, AttentionsMemoryIsLinear) {
  if (!device().is_cpu()) GTEST_SKIP() << "too slow on emulated devices";
  const auto leaf = [](std::uint64_t seed) {
    return some({8192, 8}, DType::f32, -1, 1, seed).set_requires_grad();
  };
  const Tensor q = leaf(1), k = leaf(2), v = leaf(3);
  reset_peak_memory(device());
  const std::int64_t before = memory_stats(device()).in_use_bytes;
  attend(std::vector{q, k, v}, {.is_causal = true}).sum().backward();
  // Each of y, three gradients and what they are summed in is 256 KiB; 4 MiB allow 16 of these.
  EXPECT_LT(memory_stats(device()).peak_in_use_bytes - before, 4 << 20);
}

TEST_P(ComposedNnTest, AttentionRefusesWhatDoesNotFit) {
  const Tensor q = ones({3, 4}), k = ones({5, 4}), v = ones({5, 2}), u;
  const auto run = [](const Tensor& a, const Tensor& b, const Tensor& c,
                      const AttentionOptions& options = {}) {
    scaled_dot_product_attention(a, b, c, options);
  };
  EXPECT_WEFT_ERROR(run(u, k, v), InvalidArgument,
                    "[scaled_dot_product_attention] q is an undefined tensor");
  EXPECT_WEFT_ERROR(run(q, u, v), InvalidArgument, "k is an undefined tensor");
  EXPECT_WEFT_ERROR(run(q, k, u), InvalidArgument, "v is an undefined tensor");
  EXPECT_WEFT_ERROR(run(ones({4}), k, v), Shape, "needs q [..,L,E], k [..,S,E], v [..,S,Ev]");
  EXPECT_WEFT_ERROR(run(ones({3, 5}), k, v), Shape, "q [3,5] and k [5,4] need one last dimension");
  EXPECT_WEFT_ERROR(run(q, k, ones({4, 2})), Shape, "k and v [4,2] one before it");
  EXPECT_WEFT_ERROR(run(ones({2, 3, 4}), ones({3, 5, 4}), v), Shape, "do not broadcast");
  EXPECT_WEFT_ERROR(run(q, k.to(DType::f64), v), Dtype, "dtypes: q is f32, k f64, v f32");
  EXPECT_WEFT_ERROR(run(ones({3, 4}, DType::i64), k, v), Dtype, "q: got i64");
  EXPECT_WEFT_ERROR(run(q, k, v, {.attn_mask = seen(), .is_causal = true}), InvalidArgument,
                    "give either that or attn_mask");
  EXPECT_WEFT_ERROR(run(q, k, v, {.attn_mask = ones({3, 5}, DType::i64)}), Dtype,
                    "attn_mask: got i64, expected bool or a floating dtype");
  EXPECT_WEFT_ERROR(run(q, k, v, {.attn_mask = ones({2, 3, 5})}), Shape,
                    "attn_mask: got [2,3,5], which does not broadcast to [3,5]");
  EXPECT_WEFT_ERROR(run(q, k, v, {.attn_mask = ones({4, 5})}), Shape, "do not broadcast");
  EXPECT_WEFT_ERROR(run(q, k, v, {.dropout_p = 2}), InvalidArgument, "[dropout] p: got 2");
}

TEST_P(ComposedNnTest, Dropout) {
  manual_seed(3);
  const Tensor x = ones({50}).set_requires_grad();
  const Tensor y = dropout(x, 0.2);
  y.sum().backward();
  EXPECT_EQ(values_of(x.grad()), values_of(y));
  EXPECT_TRUE(dropout(x, 0.2, false).same(x));
  EXPECT_TRUE(dropout(x, 0).same(x));
  EXPECT_WEFT_ERROR(dropout(x, -0.1), InvalidArgument, "[dropout] p: got -0.1, expected 0 to 1");
  EXPECT_WEFT_ERROR(dropout(Tensor()), InvalidArgument, "[dropout] x is an undefined tensor");
}

TEST_P(ComposedNnTest, Dropout2dDropsChannels) {
  manual_seed(5);
  const Tensor x = ones({40, 50, 2, 3}).set_requires_grad();
  const Tensor y = dropout2d(x, 0.25);
  y.sum().backward();
  EXPECT_EQ(values_of(x.grad()), values_of(y));
  int kept = 0;
  const std::vector<double> values = values_of(y);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], values[i / 6 * 6]);
    EXPECT_TRUE(values[i] == 0 || values[i] == static_cast<float>(1 / 0.75)) << values[i];
    kept += i % 6 == 0 && values[i] != 0;
  }
  // 2000 draws with probability 0.75: the standard deviation is 19; allow five of them.
  EXPECT_NEAR(kept, 1500, 97);
  // The channels of one image are drawn separately: fifty equal draws have probability 6e-7.
  EXPECT_NE(std::count(values.begin(), values.begin() + 300, 0.0) % 300, 0);
  EXPECT_TRUE(dropout2d(x, 0.25, false).same(x));
  EXPECT_TRUE(dropout2d(x, 0).same(x));
  EXPECT_EQ(values_of(dropout2d(ones({2, 1, 2}), 1)), std::vector<double>(4, 0));
  EXPECT_WEFT_ERROR(dropout2d(ones({2, 3})), Shape, "[dropout2d] x: got [2,3], expected [N,C,..]");
  EXPECT_WEFT_ERROR(dropout2d(x, 2), InvalidArgument, "[dropout2d] p: got 2");
  EXPECT_WEFT_ERROR(dropout2d(Tensor()), InvalidArgument, "[dropout2d] x is an undefined tensor");
}

TEST_P(ComposedNnTest, NormalisationFollowsPyTorch) {
  const auto group = [](std::int64_t groups, double eps) {
    return [=](Inputs in) {
      return in.size() == 1 ? group_norm(in[0], groups, {}, {}, eps)
                            : group_norm(in[0], groups, in[1], in[2], eps);
    };
  };
  check("group_norm", group(3, 1e-5), {ramp({2, 6, 2, 3}), ramp({6}) + 1.5, ramp({6})});
  check("group_norm_plain", group(2, 0.1), {ramp({3, 4}) * 2});
  const Tensor rows = ramp({3, 4});
  rows[1].zero_();
  const auto run = [&](const char* name, double p) {
    check(name, [=](Inputs in) { return normalize(in[0], p); }, {rows});
  };
  run("normalize_one", 1);
  run("normalize_two", 2);
  run("normalize_three", 3);
  run("normalize_infinite", kInf);
  const auto columns = [](Inputs in) { return normalize(in[0], 2, 0, 0.9); };
  check("normalize_columns", columns, {ramp({2, 3, 2})});
}

// The 256th power of a number above 1.42 or below 0.7 does not fit in f32.
TEST_P(ComposedNnTest, NormalizesByHighPowers) {
  const Tensor x = make({0.5, 2, -3, 4, 0.25, 0.125, -0.375, 0, 0, 0, 0, 0}, {3, 4}, DType::f64);
  for (const double p : {3.0, 100.0, 256.0}) {
    const F f = [=](Inputs in) { return normalize(in[0], p); };
    const auto want = with_gradients(f, {{x}}, DType::f64);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto got = with_gradients(f, {{x}}, dtype);
      for (int i : {0, 1}) {
        EXPECT_EQ(got[i].dtype(), dtype);
        // In f32, p times the rounding error of a ratio and a few more, for numbers of up to 4;
        // then one rounding to bf16.
        const double bound = 4 * (p + 8) * 0x1p-24 + (dtype == DType::bf16 ? 0x1p-8 : 0);
        EXPECT_TRUE(near_values(got[i], values_of(want[i]), bound)) << p << ' ' << dtype;
      }
    }
  }
  EXPECT_EQ(normalize(zeros({0, 3}), 3).shape(), (Shape{0, 3}));
  EXPECT_EQ(normalize(zeros({3, 0}), 3).shape(), (Shape{3, 0}));
}

// A single value is its own mean, so there is no gradient.
TEST_P(ComposedNnTest, LayerNormOfOneValueHasNoGradient) {
  for (const DType dtype : kFloating) {
    const Tensor x = make({3.3, 0.1, -7.7}, {3, 1}, dtype).set_requires_grad();
    const Tensor weight = make({1.7}, {1}, dtype).set_requires_grad();
    layer_norm(x, {1}, weight).backward(make({1.3, 2.1, 0.7}, {3, 1}, dtype));
    EXPECT_TENSOR(x.grad(), ({3, 1}), {0, 0, 0});
    EXPECT_TENSOR(weight.grad(), ({1}), {0});
  }
}

TEST_P(ComposedNnTest, LogsumexpInBf16RoundsOnce) {
  const Tensor x = some({3, 40}, DType::bf16, -8, 8, 5);
  const F f = [](Inputs in) { return logsumexp(in[0], {1}); };
  const auto got = with_gradients(f, {{x}}, DType::bf16),
             want = with_gradients(f, {{x}}, DType::f64);
  for (int i : {0, 1}) {
    const std::vector<double> a = values_of(got[i]), b = values_of(want[i]);
    for (std::size_t k = 0; k < b.size(); ++k) {
      // A few roundings in f32, for numbers and exponents of up to 16, and one in bf16.
      EXPECT_NEAR(a[k], b[k], (0x1p-8 + 100 * 0x1p-24) * std::abs(b[k])) << i << ' ' << k;
    }
  }
}

TEST_P(ComposedNnTest, Conv1dFollowsPyTorch) {
  check("conv1d", [](Inputs in) { return conv1d(in[0], in[1], in[2]); },
        {ramp({2, 4, 7}), ramp({3, 4, 2}), ramp({3})});
  const Conv1dParams options{.stride = 2, .padding = 3, .dilation = 2, .groups = 2};
  check("conv1d_single", [](Inputs in) { return conv1d(in[0], in[1], in[2], {.padding = 1}); },
        {ramp({4, 7}), ramp({3, 4, 2}), ramp({3})});
  check("conv1d_options", [=](Inputs in) { return conv1d(in[0], in[1], {}, options); },
        {ramp({2, 4, 7}), ramp({6, 2, 3})});
}

TEST_P(ComposedNnTest, PaddingByNameFollowsPyTorch) {
  const F same = [](Inputs in) { return conv2d(in[0], in[1], in[2], "same"); };
  check("conv2d_same_odd", same, {ramp({2, 2, 4, 5}), ramp({3, 2, 3, 5}), ramp({3})});
  check("conv2d_same_even", same, {ramp({2, 2, 4, 5}), ramp({3, 2, 2, 4}), ramp({3})});
  check("conv2d_same_wide", same, {ramp({2, 2, 1, 2}), ramp({3, 2, 3, 6}), ramp({3})});
  const Conv2dParams options{.dilation = {1, 3}, .groups = 2};
  check("conv2d_same_options", [=](Inputs in) { return conv2d(in[0], in[1], {}, "same", options); },
        {ramp({4, 4, 5}), ramp({4, 2, 4, 2})});
  check("conv1d_same",
        [](Inputs in) { return conv1d(in[0], in[1], in[2], "same", {.dilation = 3}); },
        {ramp({2, 4, 7}), ramp({3, 4, 2}), ramp({3})});
  for (const DType dtype : kFloating) {
    const Tensor x = some({1, 2, 5, 4}, dtype), w = some({2, 2, 3, 2}, dtype);
    EXPECT_EQ(values_of(conv2d(x, w, {}, "valid", {.stride = {2, 1}})),
              values_of(conv2d(x, w, {}, {.stride = {2, 1}})));
    EXPECT_EQ(conv2d(x, w, {}, "same").shape(), x.shape());
    EXPECT_EQ(conv2d(zeros({0, 2, 5, 4}, dtype), w, {}, "same").shape(), (Shape{0, 2, 5, 4}));
  }
}

TEST_P(ComposedNnTest, PaddingByNameRefusesWhatDoesNotFit) {
  const Tensor x = ones({1, 1, 4, 4}), w = ones({1, 1, 3, 3});
  EXPECT_WEFT_ERROR(conv2d(x, w, {}, "reflect"), InvalidArgument,
                    "[conv2d] padding: got 'reflect', expected a number, 'same' or 'valid'");
  EXPECT_WEFT_ERROR(conv2d(x, w, {}, "same", {.stride = {1, 2}}), InvalidArgument,
                    "padding 'same' needs stride 1, got 2");
  EXPECT_WEFT_ERROR(conv2d(x, w, {}, "same", {.padding = {1, 1}}), InvalidArgument,
                    "padding is given as 'same' and in numbers");
  EXPECT_WEFT_ERROR(conv2d(x, w, {}, "same", {.transposed = true}), InvalidArgument,
                    "a transposed convolution has its padding in numbers");
  EXPECT_WEFT_ERROR(conv2d(x, w, {}, "same", {.dilation = {0, 1}}), InvalidArgument, "dilation");
  EXPECT_WEFT_ERROR(conv2d(x, w, {}, "same", {.dilation = {std::int64_t{1} << 62, 1}}), Shape, "");
  EXPECT_WEFT_ERROR(conv2d(x, w[0], {}, "same"), Shape, "[conv2d] weight: got [1,3,3]");
  EXPECT_WEFT_ERROR(conv2d(Tensor(), w, {}, "same"), InvalidArgument, "x is an undefined tensor");
  EXPECT_WEFT_ERROR(conv2d(x, Tensor(), {}, "same"), InvalidArgument, "w is an undefined tensor");
  EXPECT_WEFT_ERROR(conv1d(ones({1, 1, 4}), ones({1, 1, 3}), {}, "same", {.stride = 2}),
                    InvalidArgument, "[conv1d] padding 'same' needs stride 1");
  EXPECT_WEFT_ERROR(conv1d(x, ones({1, 1, 3}), {}, "same"), Shape, "[conv1d] needs x [N,C,L]");
}

TEST_P(ComposedNnTest, WindowsFollowPyTorch) {
  const UnfoldParams params{
      .kernel = {2, 3}, .dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}};
  check("unfold", [=](Inputs in) { return unfold(in[0], params); }, {ramp({2, 2, 4, 5})});
  check("fold", [=](Inputs in) { return fold(in[0], {4, 5}, params); }, {ramp({2, 12, 8})});
  const UnfoldParams two{.kernel = {2, 2}};
  check("unfold_single", [=](Inputs in) { return unfold(in[0], two); }, {ramp({2, 4, 5})});
  check("fold_single", [=](Inputs in) { return fold(in[0], {4, 5}, two); }, {ramp({8, 12})});
  const UnfoldParams apart{.kernel = {2, 2}, .padding = {1, 1}, .stride = {3, 3}};
  check("unfold_apart", [=](Inputs in) { return unfold(in[0], apart); }, {ramp({1, 3, 4, 5})});
  check("fold_apart", [=](Inputs in) { return fold(in[0], {4, 5}, apart); }, {ramp({1, 12, 4})});
}

TEST_P(ComposedNnTest, WindowsOfEveryDtype) {
  for (const DType dtype : testing::kAllDTypes) {
    const Tensor x = make({1, 0, 1, 1}, {1, 2, 2}, dtype);
    const Tensor columns = unfold(x, {.kernel = {2, 1}});
    EXPECT_EQ(columns.dtype(), dtype);
    EXPECT_TENSOR(columns, ({2, 2}), {1, 0, 1, 1});
    EXPECT_TENSOR(unfold(x, {.padding = {0, 1}, .stride = {2, 3}}), ({1, 2}), {0, 0});
  }
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32}) {
    const Tensor columns = make({1, 2, 3, 4}, {2, 2}, dtype);
    EXPECT_TENSOR(fold(columns, {1, 3}, {.kernel = {1, 2}}), ({1, 1, 3}), {1, 5, 4});
  }
  EXPECT_EQ(unfold(zeros({0, 2, 3, 3}), {}).shape(), (Shape{0, 2, 9}));
  EXPECT_EQ(fold(zeros({0, 2, 9}), {3, 3}, {}).shape(), (Shape{0, 2, 3, 3}));
}

TEST_P(ComposedNnTest, WindowsRefuseWhatDoesNotFit) {
  const Tensor x = ones({2, 3, 4, 5}), columns = ones({2, 12, 12});
  const UnfoldParams two{.kernel = {2, 2}};
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_WEFT_ERROR(unfold(Tensor(), two), InvalidArgument, "[unfold] x is an undefined tensor");
  EXPECT_WEFT_ERROR(unfold(ones({4, 5}), two), Shape,
                    "[unfold] input: got [4,5], expected [N,C,H,W] or [C,H,W]");
  EXPECT_WEFT_ERROR(unfold(ones({2, 0, 4, 5}), two), Shape, "which has no channels");
  EXPECT_WEFT_ERROR(unfold(ones({2, 3, 0, 5}), two), Shape, "image: got 0x5");
  EXPECT_WEFT_ERROR(unfold(x, {.kernel = {5, 1}}), Shape,
                    "window: 5 is larger than the input, 4 padded by 0 on both sides");
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, huge}) {
    EXPECT_WEFT_ERROR(unfold(x, {.kernel = {1, bad}}), InvalidArgument, "[unfold] kernel: got ");
    EXPECT_WEFT_ERROR(unfold(x, {.dilation = {bad, 1}}), InvalidArgument, "dilation: got ");
    EXPECT_WEFT_ERROR(unfold(x, {.stride = {1, bad}}), InvalidArgument, "stride: got ");
    EXPECT_WEFT_ERROR(fold(columns, {bad, 5}, two), Shape, "[fold] image: got ");
  }
  EXPECT_WEFT_ERROR(unfold(x, {.padding = {0, -1}}), InvalidArgument, "padding: got -1");
  EXPECT_WEFT_ERROR(fold(Tensor(), {4, 5}, two), InvalidArgument, "[fold] x is an undefined");
  EXPECT_WEFT_ERROR(fold(ones({12}), {4, 5}, two), Shape, "input: got [12], expected [N,C kh kw");
  EXPECT_WEFT_ERROR(fold(ones({2, 13, 12}), {4, 5}, two), Shape, "a multiple of 4 rows");
  EXPECT_WEFT_ERROR(fold(ones({2, 0, 12}), {4, 5}, two), Shape, "a multiple of 4 rows");
  EXPECT_WEFT_ERROR(fold(columns, {4, 4}, two), Shape, "expected 9 columns");
}

TEST_P(ComposedNnTest, NormsRefuseMixedDtypes) {
  // Like layer_norm: a bf16 image with f32 weights.
  EXPECT_EQ(group_norm(ones({2, 4, 6}, DType::bf16), 2, ones({4})).dtype(), DType::bf16);
  // Like PyTorch, no other mixture of dtypes; nor do the other norms accept one.
  for (const DType of_x : testing::kFloating) {
    for (const DType other : testing::kAllDTypes) {
      if (other == of_x || (of_x == DType::bf16 && other == DType::f32)) continue;
      const Tensor input = ones({2, 4, 3, 3}, of_x), p = ones({4}, other), row = ones({3}, other);
      const std::string names =
          weft::detail::concat("dtype: x is ", of_x, ", weight is ", other, ";");
      EXPECT_WEFT_ERROR(group_norm(input, 2, p), Dtype, "[group_norm] " + names);
      EXPECT_WEFT_ERROR(layer_norm(input, {3}, row), Dtype, "[layer_norm] " + names);
      EXPECT_WEFT_ERROR(batch_norm(input, p, {}, {}, {}), Dtype, "[batch_norm] " + names);
      EXPECT_WEFT_ERROR(group_norm(input, 2, {}, p), Dtype, "[group_norm] dtype: x is ");
    }
  }
}

TEST_P(ComposedNnTest, LayersOfNothingAndOfWhatDoesNotFit) {
  EXPECT_EQ(group_norm(zeros({0, 4, 3}), 2).shape(), (Shape{0, 4, 3}));
  EXPECT_EQ(group_norm(zeros({2, 0, 3}), 1, zeros({0})).shape(), (Shape{2, 0, 3}));
  EXPECT_TENSOR(group_norm(ones({1, 1}), 1, full({1}, 2), full({1}, 3)), ({1, 1}), {3});
  EXPECT_EQ(normalize(zeros({0, 3})).shape(), (Shape{0, 3}));
  EXPECT_TENSOR(normalize(make({-4}, {1}), 2, 0), ({1}), {-1});
  EXPECT_EQ(conv1d(zeros({0, 4, 5}), zeros({2, 4, 3})).shape(), (Shape{0, 2, 3}));
  EXPECT_WEFT_ERROR(group_norm(ones({2, 4}), 3), Shape,
                    "[group_norm] groups 3 do not divide the channels of [2,4]");
  EXPECT_WEFT_ERROR(group_norm(ones({4}), 1), Shape, "x: got [4], expected [N,C,..]");
  EXPECT_WEFT_ERROR(group_norm(ones({2, 4}), 2, ones({2})), Shape,
                    "[group_norm] weight: got [2], expected [4]");
  EXPECT_WEFT_ERROR(group_norm(ones({2, 4}, DType::i64), 2), Dtype,
                    "[group_norm] needs a floating dtype: x is i64");
  EXPECT_WEFT_ERROR(group_norm(Tensor(), 2), InvalidArgument, "x is an undefined tensor");
  EXPECT_TENSOR(normalize(ones({1, 2}), 0.5), ({1, 2}), {0.25, 0.25});
  EXPECT_WEFT_ERROR(normalize(ones({2}, DType::i64)), Dtype, "[normalize] x: got i64");
  EXPECT_WEFT_ERROR(normalize(ones({2})), Shape, "dimension");
  EXPECT_WEFT_ERROR(normalize(Tensor()), InvalidArgument, "x is an undefined tensor");
  EXPECT_WEFT_ERROR(conv1d(ones({4}), ones({2, 4, 3})), Shape, "[conv1d] needs x [N,C,L]");
  EXPECT_WEFT_ERROR(conv1d(ones({2, 3, 5}), ones({2, 4, 3})), Shape, "channels");
  EXPECT_WEFT_ERROR(conv1d(Tensor(), ones({2, 4, 3})), InvalidArgument, "[conv1d] x is an undef");
  EXPECT_WEFT_ERROR(conv1d(ones({2, 4, 3}), Tensor()), InvalidArgument, "[conv1d] w is an undef");
}

TEST_P(ComposedNnTest, InterpolationFollowsPyTorch) {
  const auto run = [](const std::string& name, InterpolateOptions options) {
    check((options.mode + "_" + name).c_str(),
          [=](Inputs in) { return interpolate(in[0], options); }, {ramp({2, 2, 4, 5})});
  };
  run("size", {.size = {7, 3}});
  run("scale", {.scale_factor = {2}});
  run("odd", {.scale_factor = {1.7, 0.6}});
  for (const bool corners : {false, true}) {
    const std::string end = corners ? "_corners" : "_edges";
    run("size" + end, {.size = {7, 3}, .mode = "bilinear", .align_corners = corners});
    run("scale" + end, {.scale_factor = {2}, .mode = "bilinear", .align_corners = corners});
    run("odd" + end, {.scale_factor = {1.7, 0.6}, .mode = "bilinear", .align_corners = corners});
  }
}

TEST_P(ComposedNnTest, InterpolationOfSequencesFollowsPyTorch) {
  const auto run = [](const std::string& name, InterpolateOptions options) {
    check((options.mode + "_" + name).c_str(),
          [=](Inputs in) { return interpolate(in[0], options); }, {ramp({2, 3, 5})});
  };
  run("size_sequence", {.size = {7}});
  run("odd_sequence", {.scale_factor = {1.7}});
  for (const bool corners : {false, true}) {
    const std::string end = corners ? "_corners" : "_edges";
    run("size" + end, {.size = {7}, .mode = "linear", .align_corners = corners});
    run("odd" + end, {.scale_factor = {1.7}, .mode = "linear", .align_corners = corners});
  }
}

TEST_P(ComposedNnTest, InterpolationOfBytesIsRounded) {
  const Tensor x = make({0, 255, 100, 3}, {1, 1, 2, 2}, DType::u8);
  const Tensor y = interpolate(x, {.size = {3}, .mode = "bilinear", .align_corners = true});
  EXPECT_EQ(y.dtype(), DType::u8);
  // 127.5, 51.5 and 89.5 are halfway: up.
  EXPECT_TENSOR(y, ({1, 1, 3, 3}), {0, 128, 255, 50, 90, 129, 100, 52, 3});
  EXPECT_TENSOR(interpolate(x, {.size = {1, 4}}), ({1, 1, 1, 4}), {0, 0, 255, 255});
}

TEST_P(ComposedNnTest, InterpolationInEveryDtypeAndOfOnePixel) {
  for (const DType dtype : kFloating) {
    const Tensor x = make({1, 2, 3, 4}, {1, 1, 2, 2}, dtype);
    const Tensor y = interpolate(x, {.size = {3}, .mode = "bilinear", .align_corners = true});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_TENSOR(y, ({1, 1, 3, 3}), {1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4});
    EXPECT_TENSOR(interpolate(x, {.size = {1, 4}}), ({1, 1, 1, 4}), {1, 1, 2, 2});
    const Tensor one = make({7}, {1, 1, 1, 1}, dtype);
    EXPECT_TENSOR(interpolate(one, {.size = {2, 1}, .mode = "bilinear"}), ({1, 1, 2, 1}), {7, 7});
    EXPECT_TENSOR(interpolate(x, {.size = {1}, .mode = "bilinear", .align_corners = true}),
                  ({1, 1, 1, 1}), {1});
  }
  // The row is between two positions, by a whole step of f32.
  const Tensor row = make({0, 1}, {1, 1, 1, 2});
  EXPECT_TENSOR(interpolate(row, {.size = {1, 6}}), ({1, 1, 1, 6}), {0, 0, 0, 1, 1, 1});
  EXPECT_EQ(interpolate(zeros({0, 2, 3, 3}), {.size = {2}}).shape(), (Shape{0, 2, 2, 2}));
}

TEST_P(ComposedNnTest, InterpolationRefusesWhatDoesNotFit) {
  const Tensor x = ones({1, 1, 2, 2});
  EXPECT_WEFT_ERROR(interpolate(ones({2, 2}), {.size = {2}}), Shape,
                    "[interpolate] x: got [2,2], expected [N,C,H,W] or [N,C,L] with pixels");
  EXPECT_WEFT_ERROR(interpolate(ones({1, 1, 0, 2}), {.size = {2}}), Shape, "with pixels");
  EXPECT_WEFT_ERROR(interpolate(x.to(DType::i64), {.size = {2}}), Dtype, "x: got i64");
  EXPECT_WEFT_ERROR(interpolate(x, {.size = {2}, .mode = "cubic"}), InvalidArgument,
                    "mode: got 'cubic', expected 'nearest' or 'bilinear'");
  const Tensor sequence = ones({1, 1, 2});
  EXPECT_WEFT_ERROR(interpolate(sequence, {.size = {2}, .mode = "bilinear"}), InvalidArgument,
                    "mode: got 'bilinear', expected 'nearest' or 'linear' for x [1,1,2]");
  EXPECT_WEFT_ERROR(interpolate(sequence, {.size = {2, 2}}), InvalidArgument, "of one number");
  EXPECT_WEFT_ERROR(interpolate(x, {}), InvalidArgument, "needs size or scale_factor");
  EXPECT_WEFT_ERROR(interpolate(x, {.size = {2}, .scale_factor = {2}}), InvalidArgument,
                    "needs size or scale_factor");
  EXPECT_WEFT_ERROR(interpolate(x, {.size = {2, 2, 2}}), InvalidArgument, "one or two numbers");
  EXPECT_WEFT_ERROR(interpolate(x, {.size = {0}}), InvalidArgument,
                    "[interpolate] a side of the result needs 1 to 2147483647 pixels");
  for (const double factor : {1e10, 1e18, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_WEFT_ERROR(interpolate(x, {.scale_factor = {factor}}), InvalidArgument,
                      "[interpolate] a side of the result");
  }
  EXPECT_WEFT_ERROR(interpolate(x, {.size = {std::int64_t{1} << 62}}), InvalidArgument,
                    "[interpolate] a side of the result");
  EXPECT_WEFT_ERROR(interpolate(x, {.scale_factor = {0.1}}), InvalidArgument,
                    "[interpolate] a side of the result needs 1 to 2147483647 pixels");
  EXPECT_WEFT_ERROR(interpolate(x, {.size = {2}, .align_corners = true}), InvalidArgument,
                    "align_corners belongs to mode 'bilinear'");
  EXPECT_WEFT_ERROR(interpolate(Tensor(), {.size = {2}}), InvalidArgument, "x is an undefined");
}

}  // namespace
}  // namespace weft
