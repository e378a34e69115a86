// What the operations share: allocation, layouts, checks. Private to tensor/.
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

/// A tensor over given storage.
Tensor make(intrusive_ptr<Storage> storage, std::int64_t offset, const Shape& shape,
            const Strides& strides, DType dtype);
/// Another view of x's storage.
inline Tensor make_view(const Tensor& x, std::int64_t offset, const Shape& shape,
                        const Strides& strides) {
  return make(x.storage(), offset, shape, strides, x.dtype());
}
/// New and uninitialised. The strides must be dense.
Tensor allocate(const Shape& shape, const Strides& strides, DType dtype, Device device);
Tensor allocate(const Shape& shape, DType dtype, Device device);
Tensor allocate(const Shape& shape, MemoryFormat format, DType dtype, Device device);
/// Of x's shape and, if x is dense, layout.
Tensor allocate_like(const Tensor& x, DType dtype, Device device);

/// Scratch memory of a kernel for the length of a scope.
class Workspace {
 public:
  Workspace(Device device, std::size_t bytes) {
    if (bytes > 0) storage_ = Storage::allocate(device, bytes);
  }
  void* data() const { return storage_ ? storage_->data() : nullptr; }

 private:
  intrusive_ptr<Storage> storage_;
};

/// Same shape, and element by element the same place. One channel has one layout, whatever it is
/// called: the stride of a dimension of length 1 does not count.
bool same_layout(const Tensor& a, const Tensor& b);
Strides strides_for(const Shape& shape, MemoryFormat format);
/// Strides that make x look like `shape`, which x's shape broadcasts to.
Strides broadcast_strides(const Tensor& x, const Shape& shape);
View broadcast_view(const Tensor& x, const Shape& shape);
/// x as one row of all its n elements in memory order; x is dense.
View flat_view(const Tensor& x, std::int64_t n);
/// Layout of an element-wise result: that of the first operand that is dense and of the result's
/// shape, so that NHWC stays NHWC.
Strides result_strides(const Shape& shape, std::initializer_list<const Tensor*> operands);
/// The same elements in a layout of the given format, as the very strides strides_for gives (a
/// dimension of length 1 may have any stride, and kernels compare strides). Copies if need be.
View formatted_view(const Tensor& x, MemoryFormat format);

inline bool is_nchw(const Tensor& x) { return x.is_contiguous(); }
inline bool is_nhwc(const Tensor& x) { return x.is_channels_last(); }
/// x itself when it lies in a format that the kernels of images take, else a row-major copy.
Tensor in_image_format(const Tensor& x);
/// The format of an x that in_image_format returned. One channel or one pixel is both: nchw.
inline MemoryFormat format_of(const Tensor& x) {
  return is_nchw(x) ? MemoryFormat::nchw : MemoryFormat::nhwc;
}

/// Whether the memory of two tensors may have a byte in common.
bool overlap(const Tensor& a, const Tensor& b);
/// x, or a copy of it when y is to be written and shares memory with x other than element by
/// element.
Tensor disjoint(const Tensor& x, const Tensor& y);

[[noreturn]] void throw_undefined(const char* op, const char* name);
[[noreturn]] void throw_device_mismatch(const char* op, const char* name_a, Device a,
                                        const char* name_b, Device b);
/// Every operation asks this of each operand before anything else, by itself or by one of the
/// checks below.
inline void check_defined(const char* op, const char* name, const Tensor& x) {
  if (!x.defined()) [[unlikely]]
    throw_undefined(op, name);
}
/// Also that both are defined.
inline void check_same_device(const char* op, const char* name_a, const Tensor& a,
                              const char* name_b, const Tensor& b) {
  check_defined(op, name_a, a);
  check_defined(op, name_b, b);
  if (!(a.device() == b.device())) [[unlikely]]
    throw_device_mismatch(op, name_a, a.device(), name_b, b.device());
}
/// Also the same dtype; nothing is converted silently where sums are long.
void check_same_kind(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                     const Tensor& b);
void check_floating(const char* op, const char* name, const Tensor& x);
/// Refuses a pair (height, width) with a number below `least` or above kMaxPixels.
void check_pair(const char* op, const char* name, const std::array<std::int64_t, 2>& pair,
                std::int64_t least);
/// Refuses images [N,C,H,W] with more than kMaxPixels, padded on all sides, and batches that no
/// memory holds, so that the kernels' arithmetic on their sizes cannot overflow.
void check_images(const char* op, const Shape& shape,
                  const std::array<std::int64_t, 2>& padding = {0, 0});
/// Refuses a y of which several elements share memory, or with strides so odd that 2^20 places of a
/// table do not show whether they do.
void check_no_overlap(const char* op, const Tensor& y);
/// Every operation that writes to y asks this before.
inline void check_writable(const char* op, const Tensor& y) {
  check_defined(op, "the written tensor", y);
  if (!y.is_contiguous() && !y.is_channels_last()) check_no_overlap(op, y);
}
/// That a result of `rank` dimensions, made from `shape`, is possible.
void check_rank(const char* op, const Shape& shape, int rank);

/// Between different memories, one of them CUDA's: x to y, alike in dtype and dense layout.
void copy_block(const Tensor& y, const Tensor& x);

/// The dtype that a and b are brought to, as PyTorch's result_type: one without dimensions changes
/// that of one with some only where its kind is a higher one (bool, integer, floating).
DType result_type(const Tensor& a, const Tensor& b);

/// Whether an element of the dtype can be this number, as check_holds() in tensor/ops.h says.
bool holds(DType dtype, double value);
/// y = value, unchecked; returns y.
const Tensor& fill(const Tensor& y, double value);
/// The number as a kernel takes it, without dimensions and unchecked: an operand, not a result.
Tensor constant(double value, DType dtype, Device device);

/// Dtype conversion that keeps the handle when there is nothing to do.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace weft::raw::internal
