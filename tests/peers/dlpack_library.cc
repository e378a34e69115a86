// What dlpack_peer.py calls of weft, by ctypes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "weft/tensor/creation.h"
#include "weft/tensor/dlpack.h"
#include "weft/tensor/ops.h"

namespace weft {
namespace {

std::string error_text;

Tensor made(int which) {
  const Tensor x = raw::reshape(arange(0, 24, 1, DType::f32), {2, 3, 4});
  switch (which) {
    case 0: return x;
    case 1: return raw::transpose(raw::to(x, DType::f64), 0, 2);
    case 2: return raw::slice(raw::to(x, DType::i64), 2, 1, 4, 2);
    case 3: return raw::to(x, DType::boolean);
    case 4: return raw::to(x, DType::u8);
    case 5: return raw::expand(raw::slice(raw::to(x, DType::i32), 0, 1, 2), {5, 3, 4});
    case 6: return raw::slice(x, 1, 0, 0);
    case 7: return scalar(7);
    default: return raw::to(x, DType::bf16);
  }
}

template <class Managed>
Tensor* import(Managed* managed) try {
  return new Tensor(from_dlpack(managed));
} catch (const Error& error) {
  error_text = error.what();
  return nullptr;
}

}  // namespace
}  // namespace weft

#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))

WEFT_EXPORT void* weft_share(int which) { return weft::to_dlpack(weft::made(which)); }
WEFT_EXPORT void* weft_share_unversioned(int which) {
  return weft::to_dlpack_unversioned(weft::made(which));
}
WEFT_EXPORT void* weft_import(void* managed) {
  return weft::import(static_cast<weft::dlpack::VersionedTensor*>(managed));
}
WEFT_EXPORT void* weft_import_unversioned(void* managed) {
  return weft::import(static_cast<weft::dlpack::ManagedTensor*>(managed));
}
WEFT_EXPORT void* weft_share_again(weft::Tensor* x) { return weft::to_dlpack(*x); }
WEFT_EXPORT double weft_sum(weft::Tensor* x) {
  return weft::raw::sum(weft::raw::to(*x, weft::DType::f64)).item<double>();
}
/// 0, or 1 after an error.
WEFT_EXPORT int weft_fill(weft::Tensor* x, double value) try {
  weft::raw::fill_(*x, value);
  return 0;
} catch (const weft::Error& error) {
  weft::error_text = error.what();
  return 1;
}
WEFT_EXPORT void weft_free(weft::Tensor* x) { delete x; }
WEFT_EXPORT const char* weft_error() { return weft::error_text.c_str(); }

/// Sizes and offsets, in the order of LAYOUT in dlpack_peer.py.
WEFT_EXPORT const std::size_t* weft_layout() {
  using namespace weft::dlpack;
  static const std::size_t layout[] = {sizeof(View),
                                       offsetof(View, data),
                                       offsetof(View, device.type),
                                       offsetof(View, device.id),
                                       offsetof(View, ndim),
                                       offsetof(View, dtype.code),
                                       offsetof(View, dtype.bits),
                                       offsetof(View, dtype.lanes),
                                       offsetof(View, shape),
                                       offsetof(View, strides),
                                       offsetof(View, byte_offset),
                                       sizeof(ManagedTensor),
                                       offsetof(ManagedTensor, tensor),
                                       offsetof(ManagedTensor, context),
                                       offsetof(ManagedTensor, deleter),
                                       sizeof(VersionedTensor),
                                       offsetof(VersionedTensor, version.major),
                                       offsetof(VersionedTensor, version.minor),
                                       offsetof(VersionedTensor, context),
                                       offsetof(VersionedTensor, deleter),
                                       offsetof(VersionedTensor, flags),
                                       offsetof(VersionedTensor, tensor),
                                       std::size_t(kReadOnly),
                                       std::size_t(DeviceType::cpu),
                                       std::size_t(DeviceType::cuda),
                                       std::size_t(DeviceType::cuda_host),
                                       std::size_t(TypeCode::signed_integer),
                                       std::size_t(TypeCode::unsigned_integer),
                                       std::size_t(TypeCode::floating),
                                       std::size_t(TypeCode::bfloat),
                                       std::size_t(TypeCode::boolean)};
  return layout;
}
