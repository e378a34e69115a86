// How long one call of a small model takes, alone and on a busy machine, compared with PyTorch.
#pragma once

#include <nlohmann/json.hpp>

#include "weft/benchmarks/peer.h"

namespace weft::bench {

struct LatencyOptions {
  double window_s = 4;  ///< of calls, per side in each pair
  int pairs = 5;
  int threads = 1;  ///< the largest team; one thread is also measured
};

/// Measures an MLP, 784-128-10 with ReLU, at batch 1 without gradients: calls per second and the
/// 50th and 99th percentile of a call's time, with one thread and with all, on an idle machine and
/// with one busy loop per core. Windows of the two sides alternate; each figure is the median over
/// the pairs. Prints and returns them. `peer` may be null.
nlohmann::json run_latency(const LatencyOptions& options, Peer* peer);

}  // namespace weft::bench
