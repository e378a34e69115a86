// DLPack 1.x (https://dmlc.github.io/dlpack): tensors whose memory two libraries of one process
// share, as numpy.from_dlpack and torch.from_dlpack do.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/core/runtime/runtime.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// The structs of dlpack.h, member for member, so that a pointer to one is a pointer to the other:
/// reinterpret_cast<::DLManagedTensorVersioned*>(weft::to_dlpack(x)).
namespace dlpack {

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

/// A DLDeviceType; those that weft does not know are integers, too.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3 };

struct Device {
  DeviceType type;
  std::int32_t id;
};

/// A DLDataTypeCode.
enum class TypeCode : std::uint8_t {
  signed_integer = 0,
  unsigned_integer = 1,
  floating = 2,
  bfloat = 4,
  boolean = 6
};

struct DataType {
  TypeCode code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

/// DLTensor.
struct View {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: row-major
  std::uint64_t byte_offset;
};

/// DLManagedTensor, of DLPack before 1.0.
struct ManagedTensor {
  View tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

/// DLManagedTensorVersioned.
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  View tensor;
};

inline constexpr std::uint64_t kReadOnly = 1;  ///< DLPACK_FLAG_BITMASK_READ_ONLY

}  // namespace dlpack

/// x's memory for another library. Nothing is copied; the memory lives until the consumer has
/// called the deleter, also after x is gone. Only values are shared, as by x.detach(): the tape
/// does not see what the consumer writes. Memory that may not be written is marked kReadOnly.
///
/// On CUDA the work of the consumer's stream (a cudaStream_t as its handle; the legacy default
/// stream unless given) comes after the work that is queued on the calling thread's current stream,
/// and the memory is not used for anything else before the consumer's work is done that is queued
/// when it calls the deleter. Throws InvalidArgument for a stream of another device, Unsupported
/// inside graph::capture.
dlpack::VersionedTensor* to_dlpack(const Tensor& x, std::optional<Stream> consumer = {});
/// For consumers older than DLPack 1.0, which cannot be told that memory is read-only: throws
/// InvalidArgument for such memory.
dlpack::ManagedTensor* to_dlpack_unversioned(const Tensor& x, std::optional<Stream> consumer = {});

/// A tensor in memory of another library, which is told by the deleter when the last tensor that
/// uses the memory is gone. Nothing is copied. An in-place write to memory that is marked kReadOnly
/// throws InvalidArgument. Page-locked memory of CUDA's host counts as cpu:0's.
///
/// On CUDA the producer must have made the calling thread's current stream wait for its work, and
/// gets the memory back as soon as the last tensor is gone: queued work must be done by then.
///
/// If it throws, `tensor` still belongs to the caller. Throws Unsupported for another major version
/// than 1, devices and dtypes that weft lacks (f16, complex numbers, vectors of lanes) and negative
/// strides, Shape for more than kMaxDims dimensions or sizes that do not fit, InvalidArgument for
/// an address that is null or not aligned to the dtype.
Tensor from_dlpack(dlpack::VersionedTensor* tensor);
Tensor from_dlpack(dlpack::ManagedTensor* tensor);

}  // namespace weft
