// Shared by the operations: allocation, layouts, checks. Private to tensor/.
#pragma once

#include <array>
#include <initializer_list>

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/kernels/backend.h"
#include "weft/tensor/tensor.h"

namespace weft::raw::internal {

/// A tensor on the given storage.
Tensor make(intrusive_ptr<Storage> storage, std::int64_t offset, const Shape& shape,
            const Strides& strides, DType dtype);
/// Another view of x's storage.
inline Tensor make_view(const Tensor& x, std::int64_t offset, const Shape& shape,
                        const Strides& strides) {
  return make(x.storage(), offset, shape, strides, x.dtype());
}
/// A new tensor, not initialised. The strides must be dense.
Tensor allocate(const Shape& shape, const Strides& strides, DType dtype, Device device);
Tensor allocate(const Shape& shape, DType dtype, Device device);
Tensor allocate(const Shape& shape, MemoryFormat format, DType dtype, Device device);
/// A new tensor with x's shape and, if x is dense, its layout.
Tensor allocate_like(const Tensor& x, DType dtype, Device device);

/// Scratch memory for a kernel during a scope.
class Workspace {
 public:
  Workspace(Device device, std::size_t bytes) {
    if (bytes > 0) storage_ = Storage::allocate(device, bytes);
  }
  void* data() const { return storage_ ? storage_->data() : nullptr; }

 private:
  intrusive_ptr<Storage> storage_;
};

/// Whether both have the same shape, and each element the same offset. Strides of dimensions of
/// length 1 do not count, so with one channel the two formats are the same layout.
bool same_layout(const Tensor& a, const Tensor& b);
/// For kernels of rows: x with `dim` last, row-major; a copy unless it already is innermost in
/// memory. A scalar counts as one row of one.
Tensor with_dim_last(const Tensor& x, std::int64_t dim);
/// The inverse of with_dim_last.
Tensor with_dim_back(const Tensor& y, const Shape& shape, std::int64_t dim);
/// A row-major x that is not empty as [rows, n].
View rows_view(const Tensor& x);
/// Strides with which x appears as `shape`; x's shape must broadcast to it.
Strides broadcast_strides(const Tensor& x, const Shape& shape);
View broadcast_view(const Tensor& x, const Shape& shape);
/// x as one row of its n elements in memory order; x must be dense.
View flat_view(const Tensor& x, std::int64_t n);
/// Layout of an element-wise result: that of the first operand that is dense and has the result's
/// shape, so that NHWC stays NHWC.
Strides result_strides(const Shape& shape, std::initializer_list<const Tensor*> operands);
/// The same elements in the given format, with exactly the strides of format_strides (kernels
/// compare strides, though a dimension of length 1 may have any stride). Copies if necessary.
View formatted_view(const Tensor& x, MemoryFormat format);

inline bool is_nchw(const Tensor& x) { return x.is_contiguous(); }
inline bool is_nhwc(const Tensor& x) { return x.is_channels_last(); }
/// x itself if it has a format that the image kernels accept, else a row-major copy.
Tensor in_image_format(const Tensor& x);
/// The format of an x that in_image_format returned. One channel or one pixel fits both: nchw.
inline MemoryFormat format_of(const Tensor& x) {
  return is_nchw(x) ? MemoryFormat::nchw : MemoryFormat::nhwc;
}

/// Whether nothing else can see what is written to x.
inline bool is_alone(const Tensor& x) {
  return x.impl()->use_count() == 1 && x.storage()->use_count() == 1 && x.storage()->owned();
}
/// Whether the memory of two tensors may overlap in a byte.
bool overlap(const Tensor& a, const Tensor& b);
/// x, or a copy of it if writing y would change x: if they share memory, but not element by
/// element.
Tensor disjoint(const Tensor& x, const Tensor& y);

[[noreturn]] void throw_undefined(const char* op, const char* name);
[[noreturn]] void throw_device_mismatch(const char* op, const char* name_a, Device a,
                                        const char* name_b, Device b);
/// Every operation calls this first for each operand, directly or in one of the checks below.
inline void check_defined(const char* op, const char* name, const Tensor& x) {
  if (!x.defined()) [[unlikely]]
    throw_undefined(op, name);
}
/// Also checks that both are defined.
inline void check_same_device(const char* op, const char* name_a, const Tensor& a,
                              const char* name_b, const Tensor& b) {
  check_defined(op, name_a, a);
  check_defined(op, name_b, b);
  if (!(a.device() == b.device())) [[unlikely]]
    throw_device_mismatch(op, name_a, a.device(), name_b, b.device());
}
/// Also checks for the same dtype: operations with long sums convert nothing silently.
void check_same_kind(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                     const Tensor& b);
void check_floating(const char* op, const char* name, const Tensor& x);
/// Refuses a pair (height, width) with a number below `least` or above kMaxPixels.
void check_pair(const char* op, const char* name, const std::array<std::int64_t, 2>& pair,
                std::int64_t least);
/// Refuses images [N,C,H,W] of more than kMaxPixels including the padding on all sides, and batches
/// larger than any memory, so that the kernels' arithmetic on their sizes cannot overflow.
void check_images(const char* op, const Shape& shape,
                  const std::array<std::int64_t, 2>& padding = {0, 0});
/// Refuses a y of which several elements share memory, and one whose strides are so unusual that a
/// table of 2^20 positions cannot tell.
void check_no_overlap(const char* op, const Tensor& y);
/// Every operation that writes to y calls this first.
inline void check_writable(const char* op, const Tensor& y) {
  check_defined(op, "the written tensor", y);
  if (!y.is_contiguous() && !y.is_channels_last()) check_no_overlap(op, y);
}
/// Checks that a result of `rank` dimensions, made from `shape`, is possible.
void check_rank(const char* op, const Shape& shape, int rank);

/// Copies x to y between two different memories, one of which is CUDA's. Both have the same dtype
/// and dense layout.
void copy_block(const Tensor& y, const Tensor& x);

/// Whether the dtype can represent this number; check_holds() in tensor/ops.h has the rule.
bool holds(DType dtype, double value);
/// The number to add to a tensor of this dtype in order to subtract `value`: for integers -2^63 is
/// its own negative, modulo 2^64, and 2^63 is no i64.
double negated(double value, DType dtype);
/// Sets y = value without checks; returns y.
const Tensor& fill(const Tensor& y, double value);
/// A number as a kernel's operand: a tensor without dimensions, not checked.
Tensor constant(double value, DType dtype, Device device);

/// Converts the dtype; returns the same handle if it is already the right one.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace weft::raw::internal
