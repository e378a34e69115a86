// Gloo's own all-reduces, on their own connections, to compare with weft's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::bench {

/// "ring" and "bcube" of gloo::allreduce(), and the older class templates "halving-doubling", on
/// connections that are read synchronously, and "ring chunked". None in a build without Gloo.
std::vector<std::string> own_gloo_algorithms();

/// Gloo's version: "0.5.0"; empty without Gloo.
std::string gloo_version();

/// One rank's part. All ranks make the same calls.
class OwnGloo {
 public:
  virtual ~OwnGloo() = default;
  /// Sums over the ranks, in place.
  virtual void all_reduce(float* x, std::int64_t count) = 0;
  virtual void barrier() = 0;
};

/// The ranks meet through files in `folder`, which nothing else uses. Throws Comm.
std::unique_ptr<OwnGloo> make_own_gloo(const std::string& algorithm, const std::string& folder,
                                       int rank, int ranks);

}  // namespace weft::bench
