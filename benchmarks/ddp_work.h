// The training steps of work.h on several ranks, each with its own batch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "weft/benchmarks/work.h"
#include "weft/comm/group/process_group.h"
#include "weft/parallel/gradient_buckets.h"

namespace weft::bench {

class DdpWork : public Work {
 public:
  virtual const parallel::ReducerStats& stats() const = 0;
};

struct RankWorkOptions {
  /// ddp, or what each rank has a part of: zero2 (gradients and the optimiser's state) or fsdp
  /// (parameters, too).
  std::string strategy = "ddp";
  std::optional<double> bucket_cap_mb = {};  ///< of ddp
  /// false: ddp's buckets are divided as they fill, but reduced only after backward.
  bool overlap = true;
};

/// One rank's steps of the autoencoder, the MLP, the transformer or a ResNet, a DdpWork for ddp;
/// spec.images is the batch of one rank. All ranks call it. The batches are the same on all ranks,
/// since their content does not affect the time. Throws InvalidArgument for another model.
std::unique_ptr<Work> make_rank_work(const WorkSpec& spec,
                                     const std::shared_ptr<comm::ProcessGroup>& group,
                                     const RankWorkOptions& options);

}  // namespace weft::bench
