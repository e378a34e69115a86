// The training steps of work.h by several ranks, each with a batch of its own.
#pragma once

#include <memory>
#include <optional>

#include "weft/benchmarks/work.h"
#include "weft/comm/group/process_group.h"
#include "weft/parallel/reducer.h"

namespace weft::bench {

class DdpWork : public Work {
 public:
  virtual const parallel::ReducerStats& stats() const = 0;
};

struct DdpWorkOptions {
  std::optional<double> bucket_cap_mb = {};
  /// false: buckets are divided as they fill, and reduced when backward is over.
  bool overlap = true;
};

/// One rank's steps of the autoencoder or a ResNet, spec.images being its own batch; all ranks call
/// it. The batches are the same on all ranks: what is in them costs nothing. Throws InvalidArgument
/// for another model.
std::unique_ptr<DdpWork> make_ddp_work(const WorkSpec& spec,
                                       std::shared_ptr<comm::ProcessGroup> group,
                                       const DdpWorkOptions& options);

}  // namespace weft::bench
