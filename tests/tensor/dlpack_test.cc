#include "weft/tensor/dlpack.h"

#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using dlpack::ManagedTensor;
using dlpack::TypeCode;
using dlpack::VersionedTensor;

class DlpackTest : public testing::DeviceParam {};

/// Another library's tensor of f32 on the host, 2 x 3 unless changed; counts its deletions.
struct Foreign {
  std::vector<float> values{0, 1, 2, 3, 4, 5};
  std::vector<std::int64_t> shape{2, 3}, strides{3, 1};
  int deleted = 0;
  VersionedTensor managed{
      .version = {1, 3},
      .context = this,
      .deleter = [](VersionedTensor* t) { ++static_cast<Foreign*>(t->context)->deleted; },
      .flags = 0,
      .tensor = {.data = values.data(),
                 .device = {dlpack::DeviceType::cpu, 0},
                 .ndim = 2,
                 .dtype = {TypeCode::floating, 32, 1},
                 .shape = shape.data(),
                 .strides = strides.data(),
                 .byte_offset = 0}};
};

TEST_P(DlpackTest, EveryDtypeThereAndBackWithoutACopy) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor x = raw::to(raw::reshape(arange(0, 6, 1, device()), {2, 3}), dtype);
    for (const Tensor& each : {x, raw::transpose(x, 0, 1), raw::slice(x, 1, 1, 3),
                               raw::expand(raw::slice(x, 0, 1, 2), {4, 3}), raw::slice(x, 0, 0, 0),
                               raw::select(raw::select(x, 0, 1), 0, 2)}) {
      for (const Tensor& y :
           {from_dlpack(to_dlpack(each)), from_dlpack(to_dlpack_unversioned(each))}) {
        EXPECT_EQ(y.dtype(), dtype);
        EXPECT_EQ(y.device(), device());
        EXPECT_EQ(y.shape(), each.shape());
        EXPECT_EQ(y.to_vector<double>(), each.to_vector<double>()) << dtype << each.shape();
        EXPECT_TRUE(each.numel() == 0 || y.raw_data() == each.raw_data());
      }
    }
  }
}

TEST_P(DlpackTest, TheMemoryLivesAsLongAsTheConsumerWants) {
  Tensor x = full({1000}, 3, device());
  VersionedTensor* const managed = to_dlpack(x);
  const void* const data = managed->tensor.data;
  x = {};
  const Tensor other = full({1000}, 4, device());  // would get the same memory
  EXPECT_NE(other.raw_data(), data);
  Tensor y = from_dlpack(managed);
  EXPECT_EQ(y.raw_data(), data);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 3));
  raw::fill_(y, 5);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 5));
}

TEST_P(DlpackTest, DescribesTheTensor) {
  const Tensor x = raw::slice(zeros({4, 6}, TensorOptions(DType::bf16, device())), 1, 2, 6, 2);
  VersionedTensor* const managed = to_dlpack(x);
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  const dlpack::View& view = managed->tensor;
  EXPECT_EQ(view.device.type, on_cpu() ? dlpack::DeviceType::cpu : dlpack::DeviceType::cuda);
  EXPECT_EQ(view.device.id, 0);
  EXPECT_EQ(std::vector<std::int64_t>(view.shape, view.shape + view.ndim),
            (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(std::vector<std::int64_t>(view.strides, view.strides + view.ndim),
            (std::vector<std::int64_t>{6, 2}));
  EXPECT_EQ(view.dtype.code, TypeCode::bfloat);
  EXPECT_EQ(view.dtype.bits, 16);
  EXPECT_EQ(view.dtype.lanes, 1);
  EXPECT_EQ(static_cast<char*>(view.data) + view.byte_offset, x.raw_data());
  managed->deleter(managed);
}

TEST_P(DlpackTest, TheConsumersStreamWaits) {
  if (on_cpu()) GTEST_SKIP() << "a CPU has no streams";
  const Stream other = runtime(device()).new_stream(device().index);
  const Tensor x = zeros({1 << 20}, device());
  for (int i = 0; i < 20; ++i) raw::add_(x, 1);
  VersionedTensor* const managed = to_dlpack(x, other);
  const Stream mine = set_current_stream(other);
  const Tensor y = from_dlpack(managed);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1 << 20, 20));
  set_current_stream(mine);
  EXPECT_WEFT_ERROR(to_dlpack(x, Stream{}), InvalidArgument, "the consumer's stream on cpu:0");
}

TEST_P(DlpackTest, TheMemoryIsKeptForTheConsumersWork) {
  if (on_cpu()) GTEST_SKIP() << "a CPU has no streams";
  const Stream other = runtime(device()).new_stream(device().index);
  for (int round = 0; round < 20; ++round) {
    VersionedTensor* const managed = to_dlpack(full({1 << 12}, 3, device()), other);
    const Stream mine = set_current_stream(other);
    const Tensor y = raw::clone(from_dlpack(managed));  // the deleter has run, the copy need not
    set_current_stream(mine);
    const Tensor z = full({1 << 12}, 9, device());  // would get the same memory
    set_current_stream(other);
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1 << 12, 3));
    set_current_stream(mine);
  }
}

WEFT_FOR_EACH_DEVICE(DlpackTest);

TEST(Dlpack, VirtualDevicesAreOneCpu) {
  Foreign foreign;
  Tensor y = from_dlpack(&foreign.managed);
  EXPECT_EQ(y.device(), Device("cpu:0"));
  y = {};
  foreign.managed.tensor.device.type = dlpack::DeviceType::cuda_host;
  EXPECT_EQ(from_dlpack(&foreign.managed).device(), Device("cpu:0"));
}

TEST(Dlpack, TellsTheProducerOnceWhenTheLastViewIsGone) {
  Foreign foreign;
  {
    Tensor y = from_dlpack(&foreign.managed);
    EXPECT_EQ(y.raw_data(), foreign.values.data());
    const Tensor row = raw::select(y, 0, 1);
    y = {};
    EXPECT_EQ(foreign.deleted, 0);
    EXPECT_EQ(row.to_vector<float>(), (std::vector<float>{3, 4, 5}));
    raw::fill_(row, 7);
  }
  EXPECT_EQ(foreign.deleted, 1);
  EXPECT_EQ(foreign.values, (std::vector<float>{0, 1, 2, 7, 7, 7}));

  foreign.managed.deleter = nullptr;  // memory that lives for ever
  from_dlpack(&foreign.managed);
}

TEST(Dlpack, ReadsWhatProducersMayLeaveOut) {
  Foreign foreign;
  dlpack::View& view = foreign.managed.tensor;
  view.strides = nullptr;
  EXPECT_EQ(from_dlpack(&foreign.managed).strides(), (Strides{3, 1}));
  view.byte_offset = 2 * sizeof(float);
  view.ndim = 0;
  view.shape = nullptr;
  EXPECT_EQ(from_dlpack(&foreign.managed).item<float>(), 2);
  view.ndim = 2;
  foreign.shape = {2, 0};
  view.shape = foreign.shape.data();
  view.data = nullptr;
  EXPECT_EQ(from_dlpack(&foreign.managed).numel(), 0);
  EXPECT_EQ(foreign.deleted, 3);
}

TEST(Dlpack, StridesThatAreNotUsedMayBeAnything) {
  Foreign foreign;
  foreign.shape = {1, 3};
  foreign.strides = {-1'000'000'000'000, 2};
  EXPECT_EQ(from_dlpack(&foreign.managed).to_vector<float>(), (std::vector<float>{0, 2, 4}));
}

TEST(Dlpack, ReadOnlyMemoryIsNotWritten) {
  Foreign foreign;
  foreign.managed.flags = dlpack::kReadOnly;
  const Tensor y = from_dlpack(&foreign.managed);
  const Tensor row = raw::select(y, 0, 0);
  EXPECT_WEFT_ERROR(raw::fill_(row, 1), InvalidArgument, "may only be read");
  EXPECT_WEFT_ERROR(raw::add_(y, 1), InvalidArgument, "may only be read");
  EXPECT_WEFT_ERROR(raw::copy_(y, zeros({2, 3})), InvalidArgument, "may only be read");
  EXPECT_EQ(y.storage()->version(), 0u);
  EXPECT_EQ(foreign.values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(raw::add(y, y).to_vector<float>(), (std::vector<float>{0, 2, 4, 6, 8, 10}));
  raw::fill_(raw::clone(y), 1);

  VersionedTensor* const again = to_dlpack(row);
  EXPECT_EQ(again->flags, dlpack::kReadOnly);
  again->deleter(again);
  EXPECT_WEFT_ERROR(to_dlpack_unversioned(row), InvalidArgument, "clone it");
}

TEST(Dlpack, WhatWeftLacksIsRefusedAndStaysTheCallers) {
  const auto refuses = [](ErrorCode code, const char* text, auto change) {
    Foreign foreign;
    change(foreign, foreign.managed.tensor);
    try {
      from_dlpack(&foreign.managed);
      ADD_FAILURE() << "no error: " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_HAS(e.what(), text);
    }
    EXPECT_EQ(foreign.deleted, 0) << text;
  };
  using V = dlpack::View;
  refuses(ErrorCode::Unsupported, "this is DLPack 2.0, weft reads versions 1.x",
          [](Foreign& f, V&) { f.managed.version = {2, 0}; });
  refuses(ErrorCode::Unsupported, "no dtype for DLPack's float16",
          [](Foreign&, V& v) { v.dtype.bits = 16; });
  refuses(ErrorCode::Unsupported, "float32 in vectors of 4",
          [](Foreign&, V& v) { v.dtype.lanes = 4; });
  refuses(ErrorCode::Unsupported, "complex64",
          [](Foreign&, V& v) { v.dtype = {TypeCode(5), 64, 1}; });
  refuses(ErrorCode::Unsupported, "device type 10 is neither",
          [](Foreign&, V& v) { v.device.type = dlpack::DeviceType(10); });
  refuses(ErrorCode::Device, "there is no cuda:-1",
          [](Foreign&, V& v) { v.device = {dlpack::DeviceType::cuda, -1}; });
  refuses(ErrorCode::Shape, "got 9 dimensions", [](Foreign&, V& v) { v.ndim = 9; });
  refuses(ErrorCode::Shape, "got -1 dimensions", [](Foreign&, V& v) { v.ndim = -1; });
  refuses(ErrorCode::InvalidArgument, "there is no shape",
          [](Foreign&, V& v) { v.shape = nullptr; });
  refuses(ErrorCode::Shape, "", [](Foreign& f, V&) { f.shape[0] = -2; });
  refuses(ErrorCode::Shape, "", [](Foreign& f, V&) { f.strides[0] = std::int64_t{1} << 62; });
  refuses(ErrorCode::Shape, "", [](Foreign& f, V&) {
    f.shape = {std::int64_t{1} << 62, 3};
    f.managed.tensor.shape = f.shape.data();
  });
  refuses(ErrorCode::Unsupported, "dimension 0 has the negative stride -3",
          [](Foreign& f, V&) { f.strides[0] = -3; });
  refuses(ErrorCode::InvalidArgument, "there is no memory for [2,3]",
          [](Foreign&, V& v) { v.data = nullptr; });
  refuses(ErrorCode::InvalidArgument, "is not aligned to f32",
          [](Foreign&, V& v) { v.byte_offset = 2; });
  EXPECT_WEFT_ERROR(from_dlpack(static_cast<VersionedTensor*>(nullptr)), InvalidArgument,
                    "null pointer");
  EXPECT_WEFT_ERROR(from_dlpack(static_cast<ManagedTensor*>(nullptr)), InvalidArgument,
                    "null pointer");
  EXPECT_WEFT_ERROR(to_dlpack(Tensor()), InvalidArgument, "undefined");
}

}  // namespace
}  // namespace weft
