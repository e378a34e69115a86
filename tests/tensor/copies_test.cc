#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;
using testing::layouts;
using testing::make;
using testing::reversed_layout;
using testing::some;
using testing::values_of;
using testing::with_gaps;

class CopyTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(CopyTest);

TEST_P(CopyTest, Contiguous) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = some({2, 3, 4}, dtype, 0, 2);
    EXPECT_TRUE(raw::contiguous(x).same(x));
    for (const Tensor& y : {reversed_layout(x), with_gaps(x), raw::expand(x, {2, 2, 3, 4})}) {
      const Tensor z = raw::contiguous(y);
      EXPECT_TRUE(z.is_contiguous());
      EXPECT_EQ(values_of(z), values_of(y));
    }
  }
}

TEST_P(CopyTest, ContiguousInAFormat) {
  const Tensor x = some({2, 3, 4, 5});
  const Tensor y = raw::contiguous(x, MemoryFormat::nhwc);
  EXPECT_EQ(y.strides(), (Strides{60, 1, 15, 3}));
  EXPECT_EQ(values_of(y), values_of(x));
  EXPECT_TRUE(raw::contiguous(y, MemoryFormat::nhwc).same(y));
  EXPECT_TRUE(raw::contiguous(x, MemoryFormat::nchw).same(x));
  EXPECT_TRUE(raw::contiguous(y, MemoryFormat::nchw).is_contiguous());
  EXPECT_WEFT_ERROR(raw::contiguous(ones({2}), MemoryFormat::nhwc), Shape,
                    "[contiguous] a memory format needs [N,C,H,W], got [2]");
}

TEST_P(CopyTest, CloneOwnsItsMemoryAndKeepsADenseLayout) {
  const Tensor x = reversed_layout(some({2, 3, 4}));
  const Tensor y = raw::clone(x);
  EXPECT_NE(y.storage(), x.storage());
  EXPECT_EQ(y.strides(), x.strides());
  EXPECT_EQ(values_of(y), values_of(x));
  EXPECT_TRUE(raw::clone(with_gaps(x)).is_contiguous());
  EXPECT_EQ(raw::clone(zeros({0, 2})).shape(), (Shape{0, 2}));
  EXPECT_TENSOR(raw::clone(scalar(4)), ({}), {4});
}

TEST_P(CopyTest, ToDtype) {
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      const Tensor x = make({1, 0, 1, 1}, {2, 2}, from);
      const Tensor y = raw::to(x, to);
      EXPECT_EQ(y.dtype(), to);
      EXPECT_EQ(y.same(x), from == to);
      EXPECT_EQ(values_of(y), values_of(x));
    }
  }
  EXPECT_TENSOR(raw::to(make({-1.5, 2.5, 0.5}, {3}), DType::i64), ({3}), {-1, 2, 0});
  EXPECT_TENSOR(raw::to(make({0.5, 0}, {2}), DType::boolean), ({2}), {1, 0});
  const Tensor nhwc = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  EXPECT_EQ(raw::to(nhwc, DType::f64).strides(), nhwc.strides());
}

TEST_P(CopyTest, AnEmptyExpandedTensorIsReadLikeAnyOther) {
  // No elements, so no two share memory.
  const Tensor x = raw::expand(ones({1, 1}), {3, 0});
  EXPECT_TENSOR(raw::clone(x), ({3, 0}), {});
  EXPECT_TENSOR(raw::to(x, DType::f64), ({3, 0}), {});
  EXPECT_TENSOR(raw::exp(x), ({3, 0}), {});
  EXPECT_TENSOR(raw::add(x, ones({3, 1})), ({3, 0}), {});
  EXPECT_TENSOR(raw::contiguous(raw::transpose(x, 0, 1)), ({0, 3}), {});
  EXPECT_TENSOR(raw::sum(x, {1}), ({3}), {0, 0, 0});
  raw::fill_(x, 2);
  raw::add_scaled_(x, 1, x);
  EXPECT_WEFT_ERROR(raw::add_scaled_(raw::expand(ones({1}), {3}), 1, ones({3})), InvalidArgument,
                    "several elements share memory");
}

TEST_P(CopyTest, ToDeviceAndBack) {
  const Device host;
  for (DType dtype : kAllDTypes) {
    for (const Tensor& x : layouts(some({2, 3, 4}, dtype, 0, 2))) {
      EXPECT_TRUE(raw::to(x, x.device()).same(x));
      const Tensor there = raw::to(x, host);
      EXPECT_EQ(there.device(), host);
      EXPECT_EQ(values_of(there), values_of(x));
      const Tensor back = raw::to(there, device());
      EXPECT_EQ(back.device(), device());
      EXPECT_EQ(values_of(back), values_of(x));
      const Tensor target = zeros({2, 3, 4}, TensorOptions(DType::f64, host));
      raw::copy_(target, x);
      EXPECT_EQ(values_of(target), values_of(x));
      const Tensor wide = zeros({2, 2, 3, 4}, DType::f64);
      raw::copy_(raw::transpose(wide, 0, 1), raw::reshape(target, {2, 1, 3, 4}));
      EXPECT_EQ(values_of(raw::select(wide, 0, 1)), values_of(x));
    }
  }
}

TEST_P(CopyTest, Cat) {
  for (DType dtype : kAllDTypes) {
    const Tensor a = make({0, 1, 1, 0}, {2, 2}, dtype), b = make({1, 1}, {2, 1}, dtype);
    for (const Tensor& x : layouts(a)) {
      const Tensor parts[] = {x, b, x};
      EXPECT_TENSOR(raw::cat(parts, 1), ({2, 5}), {0, 1, 1, 0, 1, 1, 0, 1, 1, 0});
    }
    const Tensor rows[] = {a, raw::transpose(b, 0, 1)};
    EXPECT_TENSOR(raw::cat(rows, -2), ({3, 2}), {0, 1, 1, 0, 1, 1});
  }
  const Tensor mixed[] = {ones({1}, DType::i32), full({1}, 0.5)};
  EXPECT_EQ(raw::cat(mixed).dtype(), DType::f32);
  EXPECT_TENSOR(raw::cat(mixed), ({2}), {1, 0.5});
  const Tensor with_empty[] = {zeros({0, 2}), ones({1, 2}), zeros({0, 2})};
  EXPECT_TENSOR(raw::cat(with_empty), ({1, 2}), {1, 1});
  const Tensor nhwc = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  const Tensor images[] = {nhwc, nhwc};
  EXPECT_TRUE(raw::cat(images, 1).is_channels_last());
  EXPECT_EQ(values_of(raw::slice(raw::cat(images, 1), 1, 3, 6)), values_of(nhwc));
}

TEST_P(CopyTest, SeveralToAnotherType) {
  std::vector<Tensor> xs{some({2, 3}), raw::transpose(some({2, 3}), 0, 1), zeros({0, 2}),
                         ones({2}, DType::bf16), make({1, 0, 2}, {3}, DType::i32)};
  for (int i = 0; i < 70; ++i) xs.push_back(full({i % 5 + 1}, i));
  const std::vector<Tensor> ys = raw::to(xs, DType::bf16);
  ASSERT_EQ(ys.size(), xs.size());
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const Tensor y = raw::to(xs[i], DType::bf16);
    EXPECT_EQ(ys[i].dtype(), DType::bf16);
    EXPECT_EQ(ys[i].shape(), y.shape());
    EXPECT_EQ(ys[i].strides(), y.strides());
    EXPECT_EQ(values_of(ys[i]), values_of(y));
  }
  EXPECT_TRUE(ys[3].same(xs[3]));
  EXPECT_TRUE(raw::to(std::span<const Tensor>(), DType::bf16).empty());
  EXPECT_WEFT_ERROR(raw::to(std::vector<Tensor>{xs[0], Tensor()}, DType::bf16), InvalidArgument,
                    "[to] another one is an undefined tensor");
}

TEST_P(CopyTest, CatWithOneDimensionalNothing) {
  const Tensor x = make({1, 2}, {1, 2}), nothing = zeros({0});
  const Tensor first[] = {nothing, x}, last[] = {x, nothing, x}, none[] = {nothing, nothing};
  EXPECT_TENSOR(raw::cat(first, 1), ({1, 2}), {1, 2});
  EXPECT_TENSOR(raw::cat(last, -2), ({2, 2}), {1, 2, 1, 2});
  EXPECT_EQ(raw::cat(none).shape(), Shape{0});
  const Tensor whole[] = {make({1}, {1}, DType::i64), nothing};
  EXPECT_EQ(raw::cat(whole).dtype(), DType::f32);
}

TEST_P(CopyTest, CatErrors) {
  const Tensor parts[] = {ones({2, 3}), ones({2, 4}), ones({3, 3})};
  EXPECT_WEFT_ERROR(raw::cat({}), InvalidArgument, "[cat] needs at least one tensor");
  EXPECT_WEFT_ERROR(raw::cat(parts, 1), Shape,
                    "[cat] tensor 2: got [3,3], tensor 0 is [2,3]; only dimension 1 may differ");
  EXPECT_WEFT_ERROR(raw::cat(parts, 2), Shape, "[cat] dimension: got 2");
  const Tensor ranks[] = {ones({2}), ones({2, 1})};
  EXPECT_WEFT_ERROR(raw::cat(ranks), Shape, "[cat] tensor 1: got [2,1], tensor 0 is [2]");
}

TEST_P(CopyTest, Stack) {
  const Tensor a = make({1, 2, 3, 4}, {2, 2});
  for (const Tensor& x : layouts(a)) {
    const Tensor parts[] = {x, raw::neg(x)};
    EXPECT_TENSOR(raw::stack(parts), ({2, 2, 2}), {1, 2, 3, 4, -1, -2, -3, -4});
    EXPECT_TENSOR(raw::stack(parts, 1), ({2, 2, 2}), {1, 2, -1, -2, 3, 4, -3, -4});
    EXPECT_TENSOR(raw::stack(parts, -1), ({2, 2, 2}), {1, -1, 2, -2, 3, -3, 4, -4});
  }
  const Tensor scalars[] = {scalar(1), scalar(2), scalar(3)};
  EXPECT_TENSOR(raw::stack(scalars), ({3}), {1, 2, 3});
  const Tensor nothing[] = {zeros({0}), zeros({0})};
  EXPECT_EQ(raw::stack(nothing).shape(), (Shape{2, 0}));
  const Tensor uneven[] = {ones({2}), ones({3})};
  EXPECT_WEFT_ERROR(raw::stack(uneven), Shape, "[stack] tensor 1: got [3], tensor 0 is [2]");
  EXPECT_WEFT_ERROR(raw::stack({}), InvalidArgument, "[stack] needs at least one tensor");
}

// Two virtual CPU devices count as two devices, although they share their memory.
class VirtualDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { set_host_devices(2); }
  void TearDown() override { set_host_devices(1); }
  const Device other_ = Device("cpu:1");
};

TEST_F(VirtualDeviceTest, Copies) {
  for (const Tensor& x : layouts(some({2, 3, 4}))) {
    const Tensor y = raw::to(x, other_);
    EXPECT_EQ(y.device(), other_);
    EXPECT_NE(y.storage(), x.storage());
    EXPECT_EQ(values_of(y), values_of(x));
    const Tensor z = zeros({2, 3, 4}, TensorOptions(DType::bf16, other_));
    raw::copy_(z, x);
    EXPECT_EQ(values_of(z), values_of(raw::to(x, DType::bf16)));
  }
}

TEST_F(VirtualDeviceTest, ResultsStayOnTheOperandsDevice) {
  const Tensor x = ones({2, 2}, other_);
  EXPECT_EQ(raw::add(x, x).device(), other_);
  EXPECT_EQ(raw::add(x, 1).device(), other_);
  EXPECT_EQ(raw::eq(x, 1).device(), other_);
  EXPECT_EQ(raw::sum(x).device(), other_);
  EXPECT_EQ(raw::matmul(x, x).device(), other_);
  EXPECT_EQ(raw::var(x).device(), other_);
}

TEST_F(VirtualDeviceTest, MismatchNamesBoth) {
  const Tensor a = ones({2, 2}), b = ones({2, 2}, other_);
  const Tensor index = zeros({2}, DType::i64);
  const char* text =
      "operands on different devices: a on cpu:0, b on cpu:1; move one with to(device)";
  EXPECT_WEFT_ERROR(raw::add(a, b), Device, std::string("[add] ") + text);
  EXPECT_WEFT_ERROR(raw::eq(a, b), Device, std::string("[eq] ") + text);
  EXPECT_WEFT_ERROR(raw::matmul(a, b), Device, std::string("[matmul] ") + text);
  EXPECT_WEFT_ERROR(raw::where(ones({2, 2}, DType::boolean), a, b), Device, text);
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::add, a, b), Device,
                    "[add_] operands on different devices");
  EXPECT_WEFT_ERROR(raw::add_scaled_(a, 1, b), Device, "[add_]");
  EXPECT_WEFT_ERROR(raw::mse_loss(a, b, Reduction::mean), Device, "x on cpu:0, target on cpu:1");
  EXPECT_WEFT_ERROR(raw::index_select(b, 0, index), Device, "x on cpu:1, index on cpu:0");
  EXPECT_WEFT_ERROR(raw::cross_entropy(b, index, {}), Device, "logits on cpu:1, target on cpu:0");
  const Tensor parts[] = {a, a, b};
  EXPECT_WEFT_ERROR(raw::cat(parts), Device,
                    "[cat] operands on different devices: tensor 0 on cpu:0, tensor 2 on cpu:1");
  EXPECT_WEFT_ERROR(raw::conv2d(ones({1, 1, 2, 2}), ones({1, 1, 1, 1}, other_), {}, {}), Device,
                    "[conv2d] operands on different devices: x on cpu:0, w on cpu:1");
  EXPECT_WEFT_ERROR(raw::linear(a, a, ones({2}, other_)), Device, "bias on cpu:1");
}

TEST_F(VirtualDeviceTest, MissingDevice) {
  EXPECT_WEFT_ERROR(zeros({1}, Device("cpu:7")), Device, "[cpu:7] no such device");
  if (device_count(DeviceType::cuda) == 0) {
    EXPECT_WEFT_ERROR(raw::to(ones({1}), Device("cuda:0")), Device, "[cuda:0] no such device");
  }
}

}  // namespace
}  // namespace weft
