// raw::scaled_dot_product_attention: shapes, layouts, errors. tests/kernels has its values, and
// tests/autograd holds it against PyTorch.
#include <array>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::some;
using testing::values_of;

class RawAttentionTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(RawAttentionTest);

Tensor some64(const Shape& shape, std::uint64_t seed) {
  return some(shape, DType::f64, -1, 1, seed);
}

void expect_near(const Tensor& x, const Tensor& want) {
  ASSERT_EQ(x.shape(), want.shape());
  const std::vector<double> a = values_of(x), b = values_of(want);
  // Sums of at most ten products of numbers of about 1, in f64.
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-13) << "element " << i;
}

// By single operations.
Tensor composed(const raw::AttentionInputs& in) {
  Tensor scores = raw::mul(raw::matmul(in.q, raw::transpose(in.k, -2, -1)), in.scale);
  if (in.mask.defined()) scores = raw::add(scores, in.mask);
  Tensor weights = raw::softmax(scores, -1);
  if (in.kept.defined())
    weights = raw::mul(weights, raw::mul(raw::to(in.kept, DType::f64), in.keep_scale));
  return raw::matmul(weights, in.v);
}

// Leading dimensions that merge into two, and such that do not, broadcast in any operand.
TEST_P(RawAttentionTest, LeadingDimensions) {
  const std::vector<std::vector<Shape>> leading{
      {{}, {}, {}},
      {{3}, {3}, {3}},
      {{2, 3}, {2, 3}, {2, 3}},
      {{2, 3}, {3}, {1}},
      {{1}, {2, 1}, {3}},
      {{2, 3, 2}, {2, 3, 2}, {2, 3, 2}},
      {{2, 1, 2}, {3, 1}, {2, 3, 2}},
      {{2, 1, 2, 1}, {3, 1, 3}, {1}},
  };
  const auto shape = [](Shape lead, std::int64_t n, std::int64_t width) {
    lead.push_back(n);
    lead.push_back(width);
    return lead;
  };
  for (const std::vector<Shape>& lead : leading) {
    SCOPED_TRACE(to_string(lead[0]) + " " + to_string(lead[1]) + " " + to_string(lead[2]));
    const Tensor q = some64(shape(lead[0], 3, 4), 1), k = some64(shape(lead[1], 5, 4), 2);
    const Tensor v = some64(shape(lead[2], 5, 2), 3);
    const Shape scores = raw::check_attention(q, k, v, {}, false);
    raw::AttentionInputs in{q, k, v};
    in.scale = 0.7;
    expect_near(raw::scaled_dot_product_attention(in).y, composed(in));
    in.mask = some64({3, 5}, 4);
    in.kept = raw::gt(some64(scores, 5), scalar(-0.5, DType::f64));
    in.keep_scale = 1.5;
    expect_near(raw::scaled_dot_product_attention(in).y, composed(in));
  }
}

TEST_P(RawAttentionTest, AnyLayout) {
  const Tensor q = some64({2, 3, 3, 4}, 1), k = some64({2, 3, 5, 4}, 2),
               v = some64({2, 3, 5, 2}, 3);
  const raw::AttentionInputs dense{q, k, v, some64({2, 1, 3, 5}, 4)};
  const raw::AttentionOutputs want = raw::scaled_dot_product_attention(dense);
  const Tensor grad = some64({2, 3, 3, 2}, 5);
  const auto grads = raw::scaled_dot_product_attention_backward(grad, dense, want);
  for (const auto layout : {testing::reversed_layout, testing::with_gaps}) {
    const raw::AttentionInputs in{layout(q), layout(k), layout(v), layout(dense.mask)};
    const raw::AttentionOutputs out = raw::scaled_dot_product_attention(in);
    EXPECT_TRUE(out.y.is_contiguous());
    EXPECT_EQ(values_of(out.y), values_of(want.y));
    EXPECT_EQ(values_of(out.log_sums), values_of(want.log_sums));
    const auto got = raw::scaled_dot_product_attention_backward(layout(grad), in, out);
    EXPECT_EQ(values_of(got.q), values_of(grads.q));
    EXPECT_EQ(values_of(got.k), values_of(grads.k));
    EXPECT_EQ(values_of(got.v), values_of(grads.v));
  }
  const auto only = raw::scaled_dot_product_attention_backward(grad, dense, want,
                                                               {.q = false, .k = true, .v = false});
  EXPECT_FALSE(only.q.defined() || only.v.defined());
  EXPECT_EQ(values_of(only.k), values_of(grads.k));
}

TEST_P(RawAttentionTest, OfNothing) {
  for (const auto& [length, keys, values] :
       std::vector<std::array<std::int64_t, 3>>{{0, 0, 1}, {0, 2, 1}, {3, 0, 1}, {3, 2, 0}}) {
    const raw::AttentionInputs in{some64({2, length, 4}, 1), some64({2, keys, 4}, 2),
                                  some64({2, keys, values}, 3)};
    const raw::AttentionOutputs out = raw::scaled_dot_product_attention(in);
    const auto grads = raw::scaled_dot_product_attention_backward(out.y, in, out);
    for (const Tensor& x : {out.y, grads.q, grads.k, grads.v}) {
      for (const double value : values_of(x)) EXPECT_EQ(value, 0);
    }
  }
  // Nothing can have as many keys as a tensor may have.
  const Tensor many = empty({std::int64_t{1} << 62, 0}, DType::f64);
  const raw::AttentionOutputs out =
      raw::scaled_dot_product_attention({empty({3, 0}, DType::f64), many, many});
  EXPECT_EQ(out.y.shape(), Shape({3, 0}));
}

TEST_P(RawAttentionTest, TakesAnExpandedMaskOfAnotherType) {
  const Tensor q = some({2, 3, 4}, DType::f32, -1, 1, 1), k = some({2, 5, 4}, DType::f32, -1, 1, 2);
  const Tensor mask = some64({3, 1}, 3);
  raw::AttentionInputs in{q, k, k};
  in.mask = raw::to(mask, DType::f32);
  const Tensor want = raw::scaled_dot_product_attention(in).y;
  in.mask = raw::expand(mask, {2, 3, 5});
  EXPECT_EQ(values_of(raw::scaled_dot_product_attention(in).y), values_of(want));
}

TEST_P(RawAttentionTest, Errors) {
  const Tensor q = ones({2, 3, 4}), k = ones({2, 5, 4}), v = ones({2, 5, 6});
  raw::AttentionInputs in{q, k, v};
  in.kept = ones({3, 4}, DType::boolean);
  EXPECT_WEFT_ERROR(raw::scaled_dot_product_attention(in), InvalidArgument,
                    "[scaled_dot_product_attention] kept: got bool [3,4], expected bool [2,3,5]");
  in.kept = {};
  EXPECT_WEFT_ERROR(raw::scaled_dot_product_attention({q, k, ones({3, 5, 6})}), Shape,
                    "do not broadcast");
  const raw::AttentionOutputs out = raw::scaled_dot_product_attention(in);
  EXPECT_WEFT_ERROR(raw::scaled_dot_product_attention_backward(ones({2, 3, 5}), in, out), Shape,
                    "gradient: got [2,3,5], the output is [2,3,6]");
  EXPECT_WEFT_ERROR(raw::scaled_dot_product_attention_backward(out.y, in, {out.y, ones({2, 4})}),
                    InvalidArgument, "expected what forward returned");
}

}  // namespace
}  // namespace weft
