#include "weft/data/tensor_dataset.h"

#include <cstring>

#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft::data::detail {
namespace {

constexpr const char* kOp = "tensor_dataset";

}  // namespace

void check_rows(std::span<Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensor& x = tensors[i];
    WEFT_CHECK(x.defined(), InvalidArgument, kOp, "tensor ", i, " is undefined");
    WEFT_CHECK(x.device().is_cpu(), Device, kOp, "tensor ", i, " ", x.shape(), " is on ",
               x.device(),
               "; keep it in the host's memory: the loader's `device` says where batches go, "
               "device_resident copies the whole set there");
    WEFT_CHECK(x.dim() > 0, Shape, kOp, "tensor ", i, " has no dimension of samples");
    WEFT_CHECK(x.shape(0) == tensors[0].shape(0), Shape, kOp, "tensor ", i, " ", x.shape(), " has ",
               x.shape(0), " rows, tensor 0 ", tensors[0].shape(), " has ", tensors[0].shape(0));
    x = raw::contiguous(x);
  }
}

void copy_rows(const Tensor& x, std::span<const std::int64_t> rows, Tensor& y,
               const HostMemory& memory) {
  Shape shape = x.shape();
  const std::int64_t count = shape[0];
  shape[0] = static_cast<std::int64_t>(rows.size());
  memory.prepare(y, shape, x.dtype());
  shape[0] = 1;
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(x.dtype());
  const auto* const from = static_cast<const std::byte*>(x.raw_data());
  auto* to = static_cast<std::byte*>(y.raw_data());
  for (const std::int64_t row : rows) {
    WEFT_CHECK(row >= 0 && row < count, InvalidArgument, kOp, "index ", row, " is outside the ",
               count, " samples");
    if (bytes > 0) std::memcpy(to, from + static_cast<std::size_t>(row) * bytes, bytes);
    to += bytes;
  }
}

}  // namespace weft::data::detail
