#include "weft/tensor/dlpack.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"

namespace weft {
namespace {

using dlpack::DeviceType;
using dlpack::TypeCode;

constexpr dlpack::Version kVersion{1, 0};

// --- Out -----------------------------------------------------------------------------------------

dlpack::DataType type_of(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::f32:
    case DType::f64: return {TypeCode::floating, bits, 1};
    case DType::bf16: return {TypeCode::bfloat, bits, 1};
    case DType::i64:
    case DType::i32: return {TypeCode::signed_integer, bits, 1};
    case DType::u8: return {TypeCode::unsigned_integer, bits, 1};
    case DType::boolean: return {TypeCode::boolean, bits, 1};
  }
  WEFT_THROW(Internal, "to_dlpack", "no DLPack type for ", dtype);
}

/// What the consumer holds: a tensor, and the arrays to which its description points.
template <class Managed>
struct Shared {
  Managed managed{};
  Tensor x;
  Shape shape;
  Strides strides;
};

/// Lets the consumer's stream see x's values, and keeps its memory until that stream has used it.
void hand_over(const Tensor& x, const std::optional<Stream>& consumer) {
  const Device device = x.device();
  WEFT_CHECK(!consumer || consumer->device == device, InvalidArgument, "to_dlpack", "x is on ",
             device, ", the consumer's stream on ", consumer->device);
  if (device.is_cpu()) return;
  graph::check_not_capturing("to_dlpack", "the consumer's work would not be part of the step");
  const Stream stream = consumer.value_or(Stream{device, nullptr});
  const Stream mine = current_stream(device);
  if (stream == mine) return;
  const std::unique_ptr<Event> event = runtime(device).new_event(device.index);
  event->record(mine);
  event->block(stream);
  x.storage()->record_stream(stream);
}

template <class Managed>
Managed* share(const Tensor& x, const std::optional<Stream>& consumer) {
  auto shared = std::make_unique<Shared<Managed>>();
  shared->x = x;
  shared->shape = x.shape();
  shared->strides = x.strides();
  const Device device = x.device();
  shared->managed.tensor = {
      .data = x.raw_data(),
      // Virtual CPU devices are one to others.
      .device = {device.is_cuda() ? DeviceType::cuda : DeviceType::cpu,
                 device.is_cuda() ? device.index : 0},
      .ndim = x.dim(),
      .dtype = type_of(x.dtype()),
      .shape = shared->shape.begin(),
      .strides = shared->strides.begin(),
      .byte_offset = 0,
  };
  shared->managed.context = shared.get();
  shared->managed.deleter = [](Managed* managed) {
    delete static_cast<Shared<Managed>*>(managed->context);
  };
  hand_over(x, consumer);
  return &shared.release()->managed;
}

// --- In ------------------------------------------------------------------------------------------

/// "float16", "complex64"; what came after DLPack 1.0 by its number.
std::string name_of(const dlpack::DataType& type) {
  constexpr const char* kNames[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const auto code = std::size_t(type.code);
  std::string name =
      code < std::size(kNames) ? kNames[code] : detail::concat("type ", code, " of bits ");
  name += std::to_string(type.bits);
  return type.lanes == 1 ? name : detail::concat(name, " in vectors of ", type.lanes);
}

DType dtype_of_type(const dlpack::DataType& type) {
  constexpr std::array kAll = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                               DType::i32, DType::u8,  DType::boolean};
  const auto* const found = std::ranges::find_if(kAll, [&](DType dtype) {
    const dlpack::DataType mine = type_of(dtype);
    return mine.code == type.code && mine.bits == type.bits && type.lanes == 1;
  });
  WEFT_CHECK(found != kAll.end(), Unsupported, "from_dlpack", "weft has no dtype for DLPack's ",
             name_of(type));
  return *found;
}

Device device_of_view(const dlpack::Device& device) {
  switch (device.type) {
    case DeviceType::cpu:
    case DeviceType::cuda_host: return {};
    case DeviceType::cuda:
      WEFT_CHECK(device.id >= 0 && device.id < kMaxDevices, Device, "from_dlpack",
                 "there is no cuda:", device.id);
      return {weft::DeviceType::cuda, device.id};
  }
  WEFT_THROW(Unsupported, "from_dlpack", "DLPack's device type ", int(device.type),
             " is neither a CPU nor CUDA");
}

Shape shape_of(const dlpack::View& view) {
  WEFT_CHECK(view.ndim >= 0 && view.ndim <= kMaxDims, Shape, "from_dlpack", "got ", view.ndim,
             " dimensions, at most ", kMaxDims, " are supported");
  if (view.ndim == 0) return {};
  WEFT_CHECK(view.shape, InvalidArgument, "from_dlpack", "there is no shape");
  const Shape shape(std::span<const std::int64_t>(view.shape, std::size_t(view.ndim)));
  check_shape(shape, "from_dlpack");
  return shape;
}

/// Bytes from the first element to the end of the last.
std::size_t extent(const Shape& shape, const Strides& strides, DType dtype) {
  if (numel(shape) == 0) return 0;
  std::int64_t last = 0;
  for (int i = 0; i < shape.size(); ++i) {
    last = checked_add(last, checked_mul(shape[i] - 1, strides[i], "from_dlpack"), "from_dlpack");
  }
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return std::size_t(checked_mul(checked_add(last, 1, "from_dlpack"), size, "from_dlpack"));
}

/// The strides of dimensions that are not stepped along do not matter, and may be anything.
Strides strides_of(const dlpack::View& view, const Shape& shape) {
  if (!view.strides) return contiguous_strides(shape);
  const bool empty = numel(shape) == 0;
  Strides strides = contiguous_strides(shape);
  for (int i = 0; i < shape.size(); ++i) {
    if (empty || shape[i] == 1) continue;
    WEFT_CHECK(view.strides[i] >= 0, Unsupported, "from_dlpack", "dimension ", i,
               " has the negative stride ", view.strides[i]);
    strides[i] = view.strides[i];
  }
  return strides;
}

template <class Managed>
Tensor take_over(Managed* managed, bool read_only) {
  const dlpack::View& view = managed->tensor;
  const DType dtype = dtype_of_type(view.dtype);
  const Device device = device_of_view(view.device);
  runtime(device);  // throws if there is no such device
  const Shape shape = shape_of(view);
  const Strides strides = strides_of(view, shape);
  const std::size_t bytes = extent(shape, strides, dtype);
  char* const data = view.data ? static_cast<char*>(view.data) + view.byte_offset : nullptr;
  WEFT_CHECK(view.data || bytes == 0, InvalidArgument, "from_dlpack", "there is no memory for ",
             shape);
  WEFT_CHECK(reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0, InvalidArgument,
             "from_dlpack", "the address ", static_cast<void*>(data), " is not aligned to ", dtype);

  // Made before the memory is taken over, so that nothing can fail after it.
  const Tensor y = as_strided(Storage::borrow(device, data, bytes), dtype, shape, strides);
  y.storage()->set_release(
      [](void* context) {
        auto* const mine = static_cast<Managed*>(context);
        if (mine->deleter) mine->deleter(mine);
      },
      managed);
  if (read_only) y.storage()->set_read_only();
  return y;
}

}  // namespace

dlpack::VersionedTensor* to_dlpack(const Tensor& x, std::optional<Stream> consumer) {
  auto* const managed = share<dlpack::VersionedTensor>(x, consumer);
  managed->version = kVersion;
  managed->flags = x.storage()->read_only() ? dlpack::kReadOnly : 0;
  return managed;
}

dlpack::ManagedTensor* to_dlpack_unversioned(const Tensor& x, std::optional<Stream> consumer) {
  WEFT_CHECK(!x.storage()->read_only(), InvalidArgument, "to_dlpack_unversioned",
             "x may only be read, which DLPack before 1.0 cannot say; clone it");
  return share<dlpack::ManagedTensor>(x, consumer);
}

Tensor from_dlpack(dlpack::VersionedTensor* tensor) {
  WEFT_CHECK(tensor, InvalidArgument, "from_dlpack", "got a null pointer");
  WEFT_CHECK(tensor->version.major == kVersion.major, Unsupported, "from_dlpack", "this is DLPack ",
             tensor->version.major, ".", tensor->version.minor, ", weft reads versions 1.x");
  return take_over(tensor, (tensor->flags & dlpack::kReadOnly) != 0);
}

Tensor from_dlpack(dlpack::ManagedTensor* tensor) {
  WEFT_CHECK(tensor, InvalidArgument, "from_dlpack", "got a null pointer");
  return take_over(tensor, false);
}

}  // namespace weft
