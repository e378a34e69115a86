#include "weft/kernels/cuda/libraries.h"

#include <dlfcn.h>

#include "weft/core/base/error.h"

namespace weft::cuda {

Library::Library(const char* file) : opened_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (!opened_) error_ = dlerror();
}

void* Library::find(const char* function) const {
  WEFT_CHECK(opened_, Library, function, error_);
  void* const found = dlsym(opened_, function);
  WEFT_CHECK(found, Library, function, dlerror());
  return found;
}

#ifdef WEFT_EMULATED_CUDA

std::string missing_library() { return {}; }

#else

// "libcudnn.so.9", with the version of the headers.
#define WEFT_SONAME_TEXT_(name, version) #name ".so." #version
#define WEFT_SONAME_(name, version) WEFT_SONAME_TEXT_(name, version)

Library& cudnn_library() {
  static auto* const library = new Library(WEFT_SONAME_(libcudnn, CUDNN_MAJOR));
  return *library;
}

Library& cublas_library() {
  static auto* const library = new Library(WEFT_SONAME_(libcublasLt, CUBLAS_VER_MAJOR));
  return *library;
}

std::string missing_library() {
  const std::string& cublas = cublas_library().error();
  return cublas.empty() ? cudnn_library().error() : cublas;
}

#endif

}  // namespace weft::cuda
