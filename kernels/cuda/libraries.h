// cuDNN and cuBLASLt, opened when a GPU has been found. Without one a program has nothing of them,
// some 200 MB, in memory, and a weft built with CUDA runs where there is no CUDA.
//
// In this namespace their functions go by their own names, as `cudnnCreate(&handle)`; one that is
// not named below does not link. CUDA's runtime is linked statically and opens the driver by
// itself.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <atomic>
#include <string>
#include <type_traits>

namespace weft::cuda {

/// A shared library. Never closed: its threads and handles live as long as the process.
class Library {
 public:
  /// `file`: as dlopen() takes it, with the version that the headers belong to.
  explicit Library(const char* file);
  /// What kept it from being opened, in the dynamic linker's words; empty when it is open.
  const std::string& error() const { return error_; }
  /// A function's address. Throws Library when there is no such library, or function in it.
  void* find(const char* function) const;

 private:
  void* opened_;
  std::string error_;
};

/// Why no GPU can be used though there may be one: what keeps a library from being opened; empty
/// when nothing does.
std::string missing_library();

#ifndef WEFT_EMULATED_CUDA  // the emulator is linked, under the functions' own names

Library& cudnn_library();
Library& cublas_library();

/// Calls the library's function of that name and type.
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
WEFT_CUDNN_(cudnnConvolutionBackwardData);
WEFT_CUDNN_(cudnnConvolutionBackwardFilter);
WEFT_CUDNN_(cudnnConvolutionBiasActivationForward);
WEFT_CUDNN_(cudnnConvolutionForward);
WEFT_CUDNN_(cudnnCreate);
WEFT_CUDNN_(cudnnCreateActivationDescriptor);
WEFT_CUDNN_(cudnnCreateConvolutionDescriptor);
WEFT_CUDNN_(cudnnCreateFilterDescriptor);
WEFT_CUDNN_(cudnnCreateTensorDescriptor);
WEFT_CUDNN_(cudnnDestroy);
WEFT_CUDNN_(cudnnDestroyActivationDescriptor);
WEFT_CUDNN_(cudnnDestroyConvolutionDescriptor);
WEFT_CUDNN_(cudnnDestroyFilterDescriptor);
WEFT_CUDNN_(cudnnDestroyTensorDescriptor);
WEFT_CUDNN_(cudnnGetConvolution2dForwardOutputDim);
WEFT_CUDNN_(cudnnGetConvolutionBackwardDataAlgorithm_v7);
WEFT_CUDNN_(cudnnGetConvolutionBackwardDataWorkspaceSize);
WEFT_CUDNN_(cudnnGetConvolutionBackwardFilterAlgorithm_v7);
WEFT_CUDNN_(cudnnGetConvolutionBackwardFilterWorkspaceSize);
WEFT_CUDNN_(cudnnGetConvolutionForwardAlgorithm_v7);
WEFT_CUDNN_(cudnnGetConvolutionForwardWorkspaceSize);
WEFT_CUDNN_(cudnnGetErrorString);
WEFT_CUDNN_(cudnnGetLastErrorString);
WEFT_CUDNN_(cudnnGetVersion);
WEFT_CUDNN_(cudnnSetActivationDescriptor);
WEFT_CUDNN_(cudnnSetConvolution2dDescriptor);
WEFT_CUDNN_(cudnnSetConvolutionGroupCount);
WEFT_CUDNN_(cudnnSetConvolutionMathType);
WEFT_CUDNN_(cudnnSetFilter4dDescriptor);
WEFT_CUDNN_(cudnnSetStream);
WEFT_CUDNN_(cudnnSetTensor4dDescriptor);
#undef WEFT_CUDNN_

#define WEFT_CUBLAS_(name) WEFT_IMPORT_(cublas_library, name)
WEFT_CUBLAS_(cublasLtCreate);
WEFT_CUBLAS_(cublasLtDestroy);
WEFT_CUBLAS_(cublasLtGetStatusName);
WEFT_CUBLAS_(cublasLtGetStatusString);
WEFT_CUBLAS_(cublasLtGetVersion);
WEFT_CUBLAS_(cublasLtMatmul);
WEFT_CUBLAS_(cublasLtMatmulAlgoGetHeuristic);
WEFT_CUBLAS_(cublasLtMatmulDescSetAttribute);
WEFT_CUBLAS_(cublasLtMatmulPreferenceSetAttribute);
WEFT_CUBLAS_(cublasLtMatrixLayoutSetAttribute);
WEFT_CUBLAS_(cublasLtMatmulDescInit_internal);
WEFT_CUBLAS_(cublasLtMatmulPreferenceInit_internal);
WEFT_CUBLAS_(cublasLtMatrixLayoutInit_internal);
#undef WEFT_CUBLAS_
#undef WEFT_IMPORT_

// Inline in the header, where they call the last three as what a program links.
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
