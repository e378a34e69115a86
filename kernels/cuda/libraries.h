// cuDNN and cuBLASLt are opened when a GPU has been found. So a program without a GPU does not load
// them (about 200 MB of memory), and a weft built with CUDA runs where CUDA is not installed.
//
// In this namespace their functions have their own names, as in `cudnnCreate(&handle)`. A function
// that is not listed below does not link. The CUDA runtime is linked statically; it opens the
// driver itself.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <atomic>
#include <string>
#include <type_traits>

namespace weft::cuda {

/// A shared library. It is never closed: its threads and handles live as long as the process.
class Library {
 public:
  /// Opens `file`, a name for dlopen() with the version of the headers. Does not throw; see
  /// error().
  explicit Library(const char* file);
  /// The dynamic linker's message if it could not be opened, else empty.
  const std::string& error() const { return error_; }
  /// The address of a function. Throws Library if the library is not open or has no such function.
  void* find(const char* function) const;

 private:
  void* opened_;
  std::string error_;
};

/// The error of the first library that cannot be opened, so that no GPU can be used; empty if both
/// are open.
std::string missing_library();

#ifndef WEFT_EMULATED_CUDA  // the emulator is linked with the functions' own names

Library& cudnn_library();
Library& cublas_library();

/// A function of the library. Found at its first call; throws Library if the library lacks it.
template <Library& (*library)(), class Signature>
class Imported;

template <Library& (*library)(), class Result, class... Args>
class Imported<library, Result(Args...)> {
 public:
  constexpr explicit Imported(const char* name) : name_(name) {}
  Result operator()(Args... args) {
    void* address = address_.load(std::memory_order_acquire);
    if (!address) [[unlikely]] {
      address = library().find(name_);
      address_.store(address, std::memory_order_release);
    }
    return reinterpret_cast<Result (*)(Args...)>(address)(args...);
  }

 private:
  const char* name_;
  std::atomic<void*> address_ = nullptr;
};

#define WEFT_IMPORT_(library, name) \
  inline constinit Imported<library, std::remove_pointer_t<decltype(&::name)>> name { #name }

#define WEFT_CUDNN_(name) WEFT_IMPORT_(cudnn_library, name)
WEFT_CUDNN_(cudnnBackendCreateDescriptor);
WEFT_CUDNN_(cudnnBackendDestroyDescriptor);
WEFT_CUDNN_(cudnnBackendExecute);
WEFT_CUDNN_(cudnnBackendFinalize);
WEFT_CUDNN_(cudnnBackendGetAttribute);
WEFT_CUDNN_(cudnnBackendSetAttribute);
WEFT_CUDNN_(cudnnCreate);
WEFT_CUDNN_(cudnnDestroy);
WEFT_CUDNN_(cudnnGetErrorString);
WEFT_CUDNN_(cudnnGetLastErrorString);
WEFT_CUDNN_(cudnnGetVersion);
WEFT_CUDNN_(cudnnSetStream);
#undef WEFT_CUDNN_

#define WEFT_CUBLAS_(name) WEFT_IMPORT_(cublas_library, name)
WEFT_CUBLAS_(cublasLtCreate);
WEFT_CUBLAS_(cublasLtDestroy);
WEFT_CUBLAS_(cublasLtGetStatusName);
WEFT_CUBLAS_(cublasLtGetStatusString);
WEFT_CUBLAS_(cublasLtGetVersion);
WEFT_CUBLAS_(cublasLtMatmul);
WEFT_CUBLAS_(cublasLtMatmulAlgoCheck);
WEFT_CUBLAS_(cublasLtMatmulAlgoGetHeuristic);
WEFT_CUBLAS_(cublasLtMatmulDescSetAttribute);
WEFT_CUBLAS_(cublasLtMatmulPreferenceSetAttribute);
WEFT_CUBLAS_(cublasLtMatrixLayoutSetAttribute);
WEFT_CUBLAS_(cublasLtMatmulDescInit_internal);
WEFT_CUBLAS_(cublasLtMatmulPreferenceInit_internal);
WEFT_CUBLAS_(cublasLtMatrixLayoutInit_internal);
#undef WEFT_CUBLAS_
#undef WEFT_IMPORT_

// In cublasLt.h these are inline functions that call the last three directly, so they would have to
// be linked.
inline constexpr auto cublasLtMatmulDescInit = [](auto* made, auto... values) {
  return cublasLtMatmulDescInit_internal(made, sizeof *made, values...);
};
inline constexpr auto cublasLtMatmulPreferenceInit = [](auto* made) {
  return cublasLtMatmulPreferenceInit_internal(made, sizeof *made);
};
inline constexpr auto cublasLtMatrixLayoutInit = [](auto* made, auto... values) {
  return cublasLtMatrixLayoutInit_internal(made, sizeof *made, values...);
};

#endif

}  // namespace weft::cuda
