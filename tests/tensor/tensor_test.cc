// The handle: what it tells about itself, and the ways values leave it.
#include "weft/tensor/tensor.h"
#include "weft/tensor/elementwise.h"

#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;
using testing::make;
using testing::with_gaps;

class TensorTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(TensorTest);

TEST_P(TensorTest, TellsItsShape) {
  const Tensor x = zeros({2, 3, 4}, DType::f64);
  EXPECT_EQ(x.dim(), 3);
  EXPECT_EQ(x.numel(), 24);
  EXPECT_EQ(x.shape(-1), 4);
  EXPECT_EQ(x.shape(0), 2);
  EXPECT_EQ(x.strides(), (Strides{12, 4, 1}));
  EXPECT_EQ(x.dtype(), DType::f64);
  EXPECT_EQ(x.device(), device());
  EXPECT_WEFT_ERROR(static_cast<void>(x.shape(3)), Shape,
                    "[shape] dimension: got 3, expected -3 to 2");
}

TEST_P(TensorTest, UndefinedSaysSo) {
  const Tensor x;
  EXPECT_FALSE(x.defined());
  EXPECT_WEFT_ERROR(x.shape(), InvalidArgument, "[shape] this tensor is undefined");
  EXPECT_WEFT_ERROR(x.item<float>(), InvalidArgument, "undefined");
  EXPECT_WEFT_ERROR(raw::add(x, x), InvalidArgument, "undefined");
  EXPECT_WEFT_ERROR(raw::sum(x), InvalidArgument, "undefined");
  EXPECT_EQ(to_string(x), "undefined");
}

TEST_P(TensorTest, CopiesShareTheTensor) {
  const Tensor x = zeros({2});
  const Tensor y = x;
  EXPECT_TRUE(x.same(y));
  EXPECT_FALSE(x.same(raw::alias(x)));
  raw::fill_(y, 5);
  EXPECT_TENSOR(x, ({2}), {5, 5});
}

TEST_P(TensorTest, KnowsRowMajor) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_FALSE(raw::transpose(x, 0, 1).is_contiguous());
  EXPECT_FALSE(raw::slice(x, 2, 0, 2).is_contiguous());
  EXPECT_TRUE(raw::slice(x, 0, 1, 2).is_contiguous());
  EXPECT_TRUE(raw::slice(x, 0, 1, 1).is_contiguous()) << "empty";
  EXPECT_TRUE(raw::slice(raw::slice(x, 1, 0, 1), 0, 0, 1).is_contiguous())
      << "the stride of a dimension of length 1 does not count";
  EXPECT_FALSE(raw::expand(zeros({1}), {3}).is_contiguous());
  EXPECT_TRUE(scalar(1).is_contiguous());
}

TEST_P(TensorTest, KnowsChannelsLast) {
  const Tensor x = zeros({2, 3, 4, 5});
  EXPECT_FALSE(x.is_channels_last());
  EXPECT_TRUE(raw::contiguous(x, MemoryFormat::nhwc).is_channels_last());
  EXPECT_FALSE(zeros({2, 3, 4}).is_channels_last());
  EXPECT_TRUE(zeros({2, 1, 4, 5}).is_channels_last()) << "one channel is both";
  EXPECT_TRUE(zeros({2, 3, 1, 1}).is_channels_last()) << "one pixel is both";
  EXPECT_TRUE(zeros({0, 3, 4, 5}).is_channels_last());
}

TEST_P(TensorTest, KnowsDense) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_TRUE(x.is_dense());
  EXPECT_TRUE(raw::permute(x, {2, 0, 1}).is_dense());
  EXPECT_FALSE(raw::slice(x, 1, 0, 2).is_dense());
  EXPECT_FALSE(raw::expand(zeros({1, 3}), {2, 3}).is_dense());
  EXPECT_TRUE(raw::slice(raw::permute(x, {2, 0, 1}), 1, 0, 1).is_dense() ==
              raw::slice(x, 0, 0, 1).is_dense());
}

TEST_P(TensorTest, DataIsTyped) {
  const Tensor x = zeros({2}, DType::i32);
  EXPECT_EQ(x.data<std::int32_t>(), x.raw_data());
  EXPECT_WEFT_ERROR(x.data<float>(), Dtype, "[data] asked for f32, the tensor is i32");
  const Tensor tail = raw::slice(x, 0, 1, 2);
  EXPECT_EQ(static_cast<char*>(tail.raw_data()), static_cast<char*>(x.raw_data()) + 4);
}

TEST_P(TensorTest, ItemConverts) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = make({1}, {1, 1}, dtype);
    EXPECT_EQ(x.item<float>(), 1.f);
    EXPECT_EQ(x.item<double>(), 1.0);
    EXPECT_EQ(static_cast<float>(x.item<bf16>()), 1.f);
    EXPECT_EQ(x.item<std::int64_t>(), 1);
    EXPECT_EQ(x.item<std::int32_t>(), 1);
    EXPECT_EQ(x.item<std::uint8_t>(), 1);
    EXPECT_EQ(x.item<bool>(), true);
  }
  EXPECT_EQ(scalar(0.25).item<bool>(), true);
  EXPECT_EQ(scalar(-2.75).item<std::int64_t>(), -2);
  EXPECT_EQ(scalar(300).item<std::uint8_t>(), 255);
  EXPECT_EQ(scalar(std::nan("")).item<std::int64_t>(), 0);
  EXPECT_EQ(scalar(-1e10, DType::f64).to_vector<std::int32_t>(),
            std::vector{std::numeric_limits<std::int32_t>::min()});
  EXPECT_EQ(raw::select(make({3, 4, 5}, {3}), 0, 1).item<float>(), 4.f);
}

TEST_P(TensorTest, ItemNeedsOneElement) {
  EXPECT_WEFT_ERROR(zeros({2}).item<float>(), Shape,
                    "[item] needs exactly one element, got shape [2]");
  EXPECT_WEFT_ERROR(zeros({0}).item<float>(), Shape, "got shape [0]");
}

TEST_P(TensorTest, ToVectorIsRowMajor) {
  const Tensor x = make({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(raw::transpose(x, 0, 1).to_vector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(with_gaps(x).to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(make({0, 2}, {2}).to_vector<bool>(), (std::vector<bool>{false, true}));
  EXPECT_EQ(zeros({0, 3}).to_vector<double>(), std::vector<double>());
  EXPECT_EQ(make({1.5}, {1}, DType::bf16).to_vector<float>(), std::vector<float>{1.5f});
}

TEST_P(TensorTest, VersionCountsWrites) {
  const Tensor x = zeros({4});
  const std::uint32_t before = x.storage()->version();
  raw::fill_(raw::slice(x, 0, 0, 2), 1);
  EXPECT_EQ(x.storage()->version(), before + 1) << "a view counts for its storage";
  raw::add_(x, 1);
  raw::binary_(BinaryOp::mul, x, x);
  raw::zero_(x);
  raw::copy_(x, ones({4}));
  raw::uniform_(x);
  raw::add_scaled_(x, 2, x);
  EXPECT_EQ(x.storage()->version(), before + 7);
  raw::add(x, x);
  EXPECT_EQ(x.storage()->version(), before + 7) << "reading is no write";
}

}  // namespace
}  // namespace weft
