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
  double forward = 0;         ///< begins
  double backward = 0;        ///< begins
  std::vector<double> ready;  ///< of each gradient of the trace, when its last contribution was in
  std::vector<double> sent;   ///< of each bucket
  std::vector<double> begun;  ///< of each bucket's all-reduce
  std::vector<double> reduced;  ///< and its end
  double waited = 0;            ///< when the last bucket had come
  double end = 0;               ///< of the optimiser's step
};

struct TracedStep {
  int number = 0;
  std::vector<TracedRank> ranks;
  double seconds() const;  ///< to the end of the last rank
};

/// Of the gradients of the trace, by bucket.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// The steps that have the buckets of the last one.
struct DdpTrace final : RecordedSteps {
  std::vector<TracedGradient> gradients;  ///< in the order in which rank 0 had them
  std::vector<double> bucket_bytes;
  parallel::BucketOrder recorded_order = parallel::BucketOrder::arrival;
  std::vector<TracedStep> steps;
  /// The cores that compute also move the bytes of an all-reduce: tensors are on the CPU.
  bool all_reduce_computes = true;
  /// All-reduces move half of their buckets' bytes (bf16_compress).
  bool bf16 = false;
  /// A step of a ring between two ranks, from the times of the all-reduces; with
  /// all_reduce_computes without what computing took from them. See replay().
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
  /// Each step of the trace as a schedule of DDP (parallel::ddp_step), run by parallel::simulate: a
  /// bucket's backward lasts until its last gradient is ready on the last rank. An all-reduce takes
  /// the time of a ring (all_reduce_link) and, over a thin link, of its bytes over that link. Where
  /// cores move bytes they share their time with backward as long as both last.
  Replayed replay(const Setting& setting) const override;
  std::vector<std::string> usual_settings() const override;
  std::vector<train::LogLogChart> charts() const override;

  double gradient_bytes() const;  ///< of a rank
  double bytes_of(const std::vector<std::size_t>& bucket) const;
  /// Of a bucket of so many bytes.
  double sent_bytes(const Setting& setting, double bytes) const {
    return setting.bf16 || bf16 ? bytes / 2 : bytes;
  }
  /// Gradients as they came, or by their parameters.
  std::vector<std::size_t> in_order(parallel::BucketOrder order) const;
  /// By arrival buckets are filled in the order that rank 0's gradients had in the last whole step.
  /// It should be that of the first step, by which DDP made the buckets. Throws Io if they do not
  /// fit.
  BucketPlan recorded_plan() const;
};

/// Throws Io for a trace without a whole step of DDP, and for one without the moments of gradients,
/// which older programs did not record.
DdpTrace ddp_trace(const TracedSpans& spans);

}  // namespace weft::simulator
