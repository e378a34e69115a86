// Methods of Tensor that are composed of operations.
#include <cstring>

#include "weft/core/base/error.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"

namespace weft {

template <class T>
T Tensor::item() const {
  get("item");
  graph::check_not_capturing("item", "it waits for the value; call it after the step");
  WEFT_CHECK(numel() == 1, Shape, "item", "needs exactly one element, got shape ", shape());
  return dispatch_all(dtype(), [&]<class From>() {
    From value;
    if (device().is_cpu()) {
      value = *static_cast<const From*>(raw_data());
    } else {
      const Stream stream = current_stream(device());
      Runtime& source = runtime(device());
      source.copy(&value, Device(), raw_data(), device(), sizeof value, stream);
      source.synchronize(stream);
    }
    return element_cast<T>(value);
  });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  get("to_vector");
  graph::check_not_capturing("to_vector", "it waits for the values; call it after the step");
  const Tensor host = raw::contiguous(device().is_cpu() ? *this : raw::to(*this, Device()));
  const auto n = static_cast<std::size_t>(host.numel());
  std::vector<T> values(n);
  dispatch_all(dtype(), [&]<class From>() {
    const From* from = static_cast<const From*>(host.raw_data());
    for (std::size_t i = 0; i < n; ++i) values[i] = element_cast<T>(from[i]);
  });
  return values;
}

#define WEFT_INSTANTIATE(T)           \
  template T Tensor::item<T>() const; \
  template std::vector<T> Tensor::to_vector<T>() const;
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
WEFT_INSTANTIATE(bf16)
WEFT_INSTANTIATE(std::int64_t)
WEFT_INSTANTIATE(std::int32_t)
WEFT_INSTANTIATE(std::uint8_t)
WEFT_INSTANTIATE(bool)
#undef WEFT_INSTANTIATE

}  // namespace weft
