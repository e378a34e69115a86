// A step of DistributedDataParallel as a trace shows it, and what it would take under other
// settings: other buckets, links, ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "weft/tools/simulate/cost_model.h"
#include "weft/tools/simulate/replay/steps.h"
#include "weft/tools/simulate/replay/traced_spans.h"

namespace weft::simulator {

struct TracedGradient {
  std::string name;
  double bytes = 0;
  int parameter = 0;  ///< its place among the model's
};

/// What a rank did in a step. Seconds from the step's beginning, which is the first forward.
struct TracedRank {
  double forward = 0;         ///< when it begins
  double backward = 0;        ///< when it begins
  std::vector<double> ready;  ///< of each gradient of the trace, when its last contribution was in
  std::vector<double> sent;   ///< when each bucket was sent
  std::vector<double> begun;  ///< when each bucket's all-reduce began
  std::vector<double> reduced;  ///< and when it ended
  double waited = 0;            ///< when the wait for the last bucket ended
  double end = 0;               ///< when the optimiser's step ended
};

struct TracedStep {
  int number = 0;
  std::vector<TracedRank> ranks;
  double seconds() const;  ///< to the end of the last rank
};

/// For each bucket the indices of its gradients in DdpTrace::gradients.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// The steps of a trace whose buckets are those of its last whole step.
struct DdpTrace final : RecordedSteps {
  std::vector<TracedGradient> gradients;  ///< in the order in which they were ready on rank 0
  std::vector<double> bucket_bytes;
  parallel::BucketOrder recorded_order = parallel::BucketOrder::arrival;
  std::vector<TracedStep> steps;
  /// The cores that compute also move the bytes of an all-reduce: tensors are on the CPU.
  bool all_reduce_computes = true;
  /// All-reduces move half of their buckets' bytes (bf16_compress).
  bool bf16 = false;
  /// Latency and bandwidth of one step of a ring, between two ranks, fitted to the times of the
  /// all-reduces. With all_reduce_computes, the time that they lost to computing is left out.
  Link link;

  Engine engine() const override { return Engine::ddp; }
  int ranks() const override { return static_cast<int>(steps.front().ranks.size()); }
  std::vector<double> step_seconds() const override;
  std::string what() const override;
  std::string model(const Setting& setting) const override;
  const char* counted() const override { return "buckets"; }
  const char* kept() const override {
    return "keep the recorded buckets: no cap or order here saves ";
  }
  /// Runs each step of the trace again, as the schedule parallel::ddp_step, by parallel::simulate.
  /// The backward of a bucket lasts until its last gradient is ready on the last rank. An
  /// all-reduce takes the time of a ring (all_reduce_link) and, with a thin link, that of its bytes
  /// over this link. Where cores move the bytes, an all-reduce and backward share the cores while
  /// both run.
  Replayed replay(const Setting& setting) const override;
  std::vector<std::string> usual_settings() const override;
  std::vector<train::LogLogChart> charts() const override;

  double gradient_bytes() const;  ///< of all gradients on one rank
  double bytes_of(const std::vector<std::size_t>& bucket) const;
  /// The bytes of the message for a bucket of `bytes` bytes.
  double sent_bytes(const Setting& setting, double bytes) const {
    return setting.bf16 || bf16 ? bytes / 2 : bytes;
  }
  /// The indices of the gradients: for arrival as they became ready, else in the order of their
  /// parameters.
  std::vector<std::size_t> in_order(parallel::BucketOrder order) const;
  /// For arrival, fills the buckets in the order in which rank 0's gradients were ready in the last
  /// whole step. DDP made them by the order of the first step, so the two should agree. Throws Io
  /// if the bytes of the gradients do not add up to those of the buckets.
  BucketPlan recorded_plan() const;
};

/// Throws Io for a trace without a whole step of DDP, and for one of an older weft, which did not
/// record when each gradient was ready.
DdpTrace ddp_trace(const TracedSpans& spans);

}  // namespace weft::simulator
