// Stands in for gloo_backend.cc in a build without Gloo.

#include "weft/comm/backend/backends.h"
#include "weft/core/base/error.h"

namespace weft::comm {

BackendMaker gloo_backend(std::string) {
  WEFT_THROW(Unsupported, "gloo", "this build is without Gloo; use \"ring\" or \"shm\"");
}

}  // namespace weft::comm
