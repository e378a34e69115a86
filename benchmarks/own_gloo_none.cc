// Replaces own_gloo.cc in builds without Gloo.
#include "weft/benchmarks/own_gloo.h"
#include "weft/core/base/error.h"

namespace weft::bench {

std::vector<std::string> own_gloo_algorithms() { return {}; }

std::string gloo_version() { return {}; }

std::unique_ptr<OwnGloo> make_own_gloo(const std::string& algorithm, const std::string&, int, int) {
  WEFT_THROW(Unsupported, "bench", "this build has no Gloo, so no ", algorithm, " of its own");
}

}  // namespace weft::bench
