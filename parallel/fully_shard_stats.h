// What FullySharded::stats() counts.
#pragma once

#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft::parallel {

/// Of one rank, since its units were cut. Bytes are those of whole parameters and gradients with
/// their padding; FullySharded::traffic() counts those that were sent.
struct FullyShardStats {
  std::int64_t gathers = 0;         ///< of parameters: started, also those that nobody needed
  std::int64_t bytes_gathered = 0;  ///< of whole parameters
  std::int64_t reductions = 0;      ///< reduce-scatters, one for each time that a unit was reduced
  std::int64_t bytes_reduced = 0;   ///< of whole gradients
  /// How long this rank has waited for these messages: for ranks that come later, and for what
  /// computation did not hide. On CUDA the stream waits, and this has only the host's time.
  double gather_wait_ms = 0;
  double reduce_wait_ms = 0;  ///< also for the mean over replicas

  FullyShardStats& operator+=(const FullyShardStats& other) {
    gathers += other.gathers;
    bytes_gathered += other.bytes_gathered;
    reductions += other.reductions;
    bytes_reduced += other.bytes_reduced;
    gather_wait_ms += other.gather_wait_ms;
    reduce_wait_ms += other.reduce_wait_ms;
    return *this;
  }
};

}  // namespace weft::parallel
