// The owner of a gradient's memory, and its layout.
#include <gtest/gtest.h>

#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;

Tensor leaf(const std::vector<double>& values, const Shape& shape) {
  return make(values, shape, DType::f64).set_requires_grad();
}

TEST(GradTest, UndefinedUntilABackward) {
  const Tensor x = leaf({1, 2}, {2});
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(make({1}, {1}).grad().defined());
  x.sum().backward();
  EXPECT_TRUE(x.grad().defined());
  autograd::zero_grad(x);
  EXPECT_FALSE(x.grad().defined());
}

TEST(GradTest, StolenWhenNobodyElseHoldsIt) {
  const Tensor x = leaf({1, 2}, {2});
  const void* address = nullptr;
  const Tensor y = x * 2.0;
  autograd::add_grad_hook(x, [&](const Tensor& grad) {
    address = grad.raw_data();
    return Tensor();
  });
  y.sum().backward();
  EXPECT_EQ(x.grad().raw_data(), address);
}

// The gradient of sum is expanded; the gradient of an alias belongs to the caller.
TEST(GradTest, CopiedWhenShared) {
  const Tensor x = leaf({1, 2}, {2});
  x.sum().backward();
  EXPECT_TRUE(x.grad().is_contiguous());
  EXPECT_TENSOR(x.grad(), {2}, {1, 1});

  const Tensor y = leaf({1, 2}, {2});
  const Tensor gradient = make({5, 6}, {2}, DType::f64);
  y.backward(gradient);
  EXPECT_NE(y.grad().raw_data(), gradient.raw_data());
  y.backward(gradient);
  EXPECT_TENSOR(gradient, {2}, {5, 6});
  EXPECT_TENSOR(y.grad(), {2}, {10, 12});
}

// a + b passes the same gradient to both operands.
TEST(GradTest, LeavesDoNotShareMemory) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  ((a + b) * 2.0).sum().backward();
  EXPECT_NE(a.grad().raw_data(), b.grad().raw_data());
  a.backward(make({1, 1}, {2}, DType::f64));
  EXPECT_TENSOR(a.grad(), {2}, {3, 3});
  EXPECT_TENSOR(b.grad(), {2}, {2, 2});
}

TEST(GradTest, KeepsTheLeafsStrides) {
  const Tensor x = testing::reversed_layout(testing::some({2, 3}, DType::f64)).set_requires_grad();
  (x * 2.0).sum().backward();
  EXPECT_EQ(x.grad().strides(), x.strides());
  autograd::zero_grad(x);
  const Tensor plain = testing::some({2, 3}, DType::f64);
  x.backward(plain);
  EXPECT_EQ(x.grad().strides(), x.strides());
  EXPECT_EQ(testing::values_of(x.grad()), testing::values_of(plain));
}

TEST(GradTest, SetGrad) {
  const Tensor x = leaf({1, 2}, {2});
  x.set_grad(make({5, 5}, {2}, DType::f64));
  x.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {6, 6});
  x.set_grad(Tensor());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_WEFT_ERROR(x.set_grad(make({5}, {1}, DType::f64)), Shape, "gradient: got [1]");
  EXPECT_WEFT_ERROR(x.set_grad(make({5, 5}, {2}, DType::f32)), Dtype, "gradient: got f32");
  EXPECT_WEFT_ERROR((x * 2.0).set_grad(x), InvalidArgument, "only leaves");
}

// --- Memory from the owner of the leaf -----------------------------------------------------------

class GradStorageTest : public ::testing::Test {
 protected:
  const Tensor x = leaf({1, 2}, {2});
  const Tensor bucket = make({7, 7, 7, 7}, {4}, DType::f64);
  const Tensor memory = raw::narrow(bucket, 0, 1, 2);
};

TEST_F(GradStorageTest, FirstOverwritesLaterAddZeroGradNeverFrees) {
  autograd::set_grad_storage(x, memory);
  for (int round = 0; round < 2; ++round) {
    (x * 3.0).sum().backward();
    EXPECT_TENSOR(bucket, {4}, {7, 3, 3, 7});
    (x * 2.0).sum().backward();
    EXPECT_TENSOR(bucket, {4}, {7, 5, 5, 7});
    EXPECT_EQ(x.grad().raw_data(), memory.raw_data());
    autograd::zero_grad(x);
    EXPECT_TENSOR(bucket, {4}, {7, 5, 5, 7});  // forgotten, not written
  }
}

TEST_F(GradStorageTest, ForgottenContentReadsAsZero) {
  autograd::set_grad_storage(x, memory);
  EXPECT_TENSOR(x.grad(), {2}, {0, 0});
  EXPECT_EQ(x.grad().raw_data(), memory.raw_data());
  x.sum().backward();
  autograd::zero_grad(x);
  EXPECT_TENSOR(x.grad(), {2}, {0, 0});
  // It still counts as forgotten: it is overwritten and not added to (NaN would stay).
  raw::fill_(memory, std::nan(""));
  x.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {1, 1});
}

TEST_F(GradStorageTest, SeveralUsesInOneBackward) {
  autograd::set_grad_storage(x, memory);
  (x * x + x).sum().backward();
  EXPECT_TENSOR(bucket, {4}, {7, 3, 5, 7});
}

TEST_F(GradStorageTest, TakesOverAndGivesBack) {
  (x * 3.0).sum().backward();
  autograd::set_grad_storage(x, memory);
  EXPECT_TENSOR(bucket, {4}, {7, 3, 3, 7});
  x.sum().backward();
  EXPECT_TENSOR(bucket, {4}, {7, 4, 4, 7});
  autograd::set_grad_storage(x, Tensor());
  EXPECT_NE(x.grad().raw_data(), memory.raw_data());
  EXPECT_TENSOR(x.grad(), {2}, {4, 4});
  autograd::zero_grad(x);
  EXPECT_FALSE(x.grad().defined());
  x.sum().backward();
  EXPECT_TENSOR(bucket, {4}, {7, 4, 4, 7});
}

TEST_F(GradStorageTest, GivenBackForgotten) {
  autograd::set_grad_storage(x, memory);
  autograd::set_grad_storage(x, Tensor());
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(GradStorageTest, SetGradWritesIntoIt) {
  autograd::set_grad_storage(x, memory);
  x.set_grad(make({1, 2}, {2}, DType::f64));
  EXPECT_TENSOR(bucket, {4}, {7, 1, 2, 7});
  x.set_grad(Tensor());
  x.sum().backward();
  EXPECT_TENSOR(bucket, {4}, {7, 1, 1, 7});
}

// What an engine does with a leaf that this backward has not used.
TEST_F(GradStorageTest, WrittenByItsOwner) {
  autograd::set_grad_storage(x, memory);
  (x * 3.0).sum().backward();
  autograd::zero_grad(x);
  EXPECT_TENSOR(bucket, {4}, {7, 3, 3, 7});
  x.grad();  // the values of this step are sent
  EXPECT_TENSOR(bucket, {4}, {7, 0, 0, 7});
  for (const bool asked_before : {false, true}) {
    autograd::zero_grad(x);
    if (asked_before) x.grad();
    raw::fill_(memory, 5);
    autograd::mark_grad_written(x);
    EXPECT_TENSOR(x.grad(), {2}, {5, 5});
    x.sum().backward();
    EXPECT_TENSOR(bucket, {4}, {7, 6, 6, 7});
  }
  autograd::set_grad_storage(x, Tensor());
  EXPECT_TENSOR(x.grad(), {2}, {6, 6});
  autograd::mark_grad_written(x);
  EXPECT_TENSOR(x.grad(), {2}, {6, 6});
  autograd::zero_grad(x);
  EXPECT_WEFT_ERROR(autograd::mark_grad_written(x), InvalidArgument, "no gradient that could have");
  EXPECT_WEFT_ERROR(autograd::mark_grad_written(x * 2.0), InvalidArgument, "only leaves");
}

// A copy of the handle does not change when the leaf forgets its gradient.
TEST(GradTest, IsAHandleOfItsOwn) {
  const Tensor x = leaf({1, 2}, {2});
  x.sum().backward();
  const Tensor& grad = x.grad();
  autograd::zero_grad(x);
  EXPECT_TENSOR(grad, {2}, {1, 1});
}

TEST_F(GradStorageTest, RefusesMemoryThatDoesNotFit) {
  EXPECT_WEFT_ERROR(autograd::set_grad_storage(x, bucket), Shape, "memory: got [4]");
  EXPECT_WEFT_ERROR(autograd::set_grad_storage(x, make({1, 2}, {2})), Dtype, "memory: got f32");
  EXPECT_WEFT_ERROR(autograd::set_grad_storage(x * 2.0, memory), InvalidArgument, "only leaves");
}

TEST_F(GradStorageTest, GradDoesNotTouchIt) {
  autograd::set_grad_storage(x, memory);
  const Tensor y = (x * 2.0).sum();
  autograd::grad({&y, 1}, {&x, 1});
  EXPECT_TENSOR(bucket, {4}, {7, 7, 7, 7});
}

}  // namespace
}  // namespace weft
