// What the programs of several processes have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/runtime/phase.h"
#include "weft/train/interrupt.h"
#include "weft/train/metrics.h"
#include "weft/train/options.h"
#include "weft/train/ranks.h"
#include "weft/weft.h"

namespace weft::examples {

/// --backend
inline train::Flag backend_flag(std::string& backend) {
  return {"--backend",
          &backend,
          "what the ranks talk by; auto: shm on one host, ring on several, nccl on GPUs",
          {"auto", "shm", "gloo", "ring", "nccl"}};
}

/// This process's number on its host, by the launcher.
inline int local_rank() { return comm::launch_environment().local_rank; }

/// The ranks of `group`, for the recorder and for tests.
inline train::Ranks ranks(const std::shared_ptr<comm::ProcessGroup>& group) {
  return {.rank = group->rank(),
          .size = group->size(),
          .backend = group->backend(),
          .gather = [group](const std::string& text) { return group->all_gather_object(text); }};
}

/// This rank's share of `size` images. --seed is the weights'; the order's stays 0, as PyTorch
/// programs have it.
inline std::shared_ptr<data::DistributedSampler> distributed_sampler(std::int64_t size,
                                                                     const train::Options& options,
                                                                     const train::Ranks& ranks) {
  return std::make_shared<data::DistributedSampler>(
      size, data::DistributedSamplerOptions{
                .num_replicas = ranks.size, .rank = ranks.rank, .shuffle = options.shuffle});
}

/// Calls f(batch) for those of a test set's batches that this rank takes, every size-th one. As
/// long as it takes: the other ranks, which may have fewer or none, wait for this one. When a
/// signal comes, to whichever rank, all throw train::Interrupted, as train::top_accuracy does.
template <class Loader, class F>
void own_batches(Loader& test, const train::Ranks& ranks, const F& f) {
  std::optional<BusyScope> busy("evaluation");
  int batch = 0;
  for (auto& tensors : test) {
    if (train::interrupted()) break;
    if (batch++ % ranks.size == ranks.rank) f(tensors);
  }
  busy.reset();
  // Others may wait in the sum already: whoever stays away makes it fail.
  if (ranks.sum({train::interrupted() ? 1.0 : 0.0})[0] > 0) throw train::Interrupted();
}

/// What the ranks' talk has cost so far, for metrics.json (train/metrics.h says what each is).
/// `traffic`: of each group that they talk by. `stats`: of each reduction of a step, as of two
/// optimisers.
inline train::TestFigures costs(std::initializer_list<comm::Traffic> traffic,
                                std::initializer_list<parallel::ReducerStats> stats) {
  double bytes_sent = 0, reduce_ms = 0, exposed_ms = 0;
  for (const comm::Traffic& t : traffic) bytes_sent += static_cast<double>(t.bytes_sent);
  for (const parallel::ReducerStats& s : stats) {
    const auto steps = static_cast<double>(std::max<std::int64_t>(s.reductions, 1));
    reduce_ms += s.reduce_ms / steps;
    exposed_ms += s.exposed_ms / steps;
  }
  return {{"bytes_sent", bytes_sent}, {"allreduce_ms", reduce_ms}, {"exposed_ms", exposed_ms}};
}
/// Of DistributedDataParallel by one group.
inline train::TestFigures costs(const comm::ProcessGroup& group,
                                const parallel::ReducerStats& stats) {
  return costs({group.traffic()}, {stats});
}

}  // namespace weft::examples
