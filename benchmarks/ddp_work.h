// The training steps of work.h on several ranks, each with its own batch.
#pragma once

#include <memory>
#include <optional>

#include "weft/benchmarks/work.h"
#include "weft/comm/group/process_group.h"
#include "weft/parallel/gradient_buckets.h"

namespace weft::bench {

class DdpWork : public Work {
 public:
  virtual const parallel::ReducerStats& stats() const = 0;
};

struct DdpWorkOptions {
  std::optional<double> bucket_cap_mb = {};
  /// false: buckets are divided as they fill, but reduced only after backward.
  bool overlap = true;
};

/// One rank's steps of the autoencoder or a ResNet; spec.images is the batch of one rank. All ranks
/// call it. The batches are the same on all ranks, since their content does not affect the time.
/// Throws InvalidArgument for another model.
std::unique_ptr<DdpWork> make_ddp_work(const WorkSpec& spec,
                                       std::shared_ptr<comm::ProcessGroup> group,
                                       const DdpWorkOptions& options);

}  // namespace weft::bench
