// The functions of libweft_cuda.so that kernels/cuda_loader.cc calls.
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda_library.h"

const char* weft_cuda_stamp() {
  static const auto* const stamp = new std::string(weft::cuda_library_stamp());
  return stamp->c_str();
}

const weft::Backend* weft_cuda_backend() { return &weft::cuda::own_backend(); }
