#include "weft/tensor/tensor.h"

#include <array>
#include <cmath>
#include <cstring>

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {

std::int64_t Tensor::shape(std::int64_t dim) const {
  const Shape& all = get().shape;
  return all[normalize_dim(dim, all.size(), "shape")];
}

bool Tensor::is_contiguous() const {
  const TensorImpl& x = get();
  std::int64_t step = 1;
  bool contiguous = true;
  for (int i = x.shape.size() - 1; i >= 0; --i) {
    const std::int64_t n = x.shape[i];
    if (n == 0) return true;
    // The stride of a dimension of length 1 is never used.
    contiguous &= n == 1 || x.strides[i] == step;
    step *= n;
  }
  return contiguous;
}

bool Tensor::is_channels_last() const {
  const TensorImpl& x = get();
  if (x.shape.size() != 4) return false;
  std::int64_t step = 1;
  bool channels_last = true;
  for (int i : {1, 3, 2, 0}) {
    const std::int64_t n = x.shape[i];
    if (n == 0) return true;
    channels_last &= n == 1 || x.strides[i] == step;
    step *= n;
  }
  return channels_last;
}

bool Tensor::is_dense() const {
  if (is_contiguous()) return true;
  const TensorImpl& x = get();
  std::array<int, kMaxDims> order;
  int count = 0;
  for (int i = 0; i < x.shape.size(); ++i) {
    if (x.shape[i] == 1) continue;
    int at = count++;
    for (; at > 0 && x.strides[order[at - 1]] > x.strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t step = 1;
  for (int k = 0; k < count; ++k) {
    if (x.strides[order[k]] != step) return false;
    step *= x.shape[order[k]];
  }
  return true;
}

void* Tensor::raw_data() const {
  const TensorImpl& x = get();
  if (graph::Capture* capture = thread_state().capture) [[unlikely]] {
    capture->on_use(x.storage, x.offset, x.dtype, x.shape, x.strides);
  }
  return static_cast<char*>(x.storage->data()) +
         x.offset * static_cast<std::int64_t>(size_of(x.dtype));
}

View Tensor::view_of() const {
  const TensorImpl& x = get();
  return {raw_data(), x.dtype, x.shape, x.strides};
}

void Tensor::throw_undefined(const char* method) {
  WEFT_THROW(InvalidArgument, method,
             "this tensor is undefined: default-constructed, moved from, or a gradient that is not "
             "there");
}

void* Tensor::checked_data(DType expected) const {
  WEFT_CHECK(dtype() == expected, Dtype, "data", "asked for ", expected, ", the tensor is ",
             dtype());
  return raw_data();
}

}  // namespace weft
