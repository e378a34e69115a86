// Shared by the programs that use several processes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
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
          "what the ranks talk by; auto: shm on one host, ring on several, nccl on GPUs; "
          "nccl-ring: on GPUs, weft's ring over NCCL's messages",
          {"auto", "shm", "gloo", "ring", "nccl", "nccl-ring"}};
}

/// --strategy
inline train::Flag strategy_flag(std::string& strategy) {
  return {"--strategy",
          &strategy,
          "what each rank keeps a part of; fsdp: parameters, gradients and the optimiser's state; "
          "zero2: the last two; zero1: the last one; ddp: nothing",
          {"fsdp", "zero2", "zero1", "ddp"}};
}

/// What the programs with DistributedDataParallel can be told about it.
struct DdpFlags {
  std::string backend = "auto";
  double bucket_cap_mb = 0;  ///< 0: the default
  std::string bucket_order = "arrival";
  std::string comm_hook = "none";
};

inline std::vector<train::Flag> ddp_flags(DdpFlags& values) {
  return {
      backend_flag(values.backend),
      {"--bucket-cap-mb", &values.bucket_cap_mb,
       "MiB of gradients at which a bucket is full; without: 1 for the first, 25 for others"},
      {"--bucket-order",
       &values.bucket_order,
       "buckets are filled as the first backward has the gradients (arrival), or in the order of "
       "the parameters, and sent from the last bucket on (reversed) or from the first (given)",
       {"arrival", "reversed", "given"}},
      {"--comm-hook",
       &values.comm_hook,
       "how buckets are averaged: bf16_compress sends half the bytes of f32",
       {"none", "bf16_compress"}}};
}

/// The options that the flags give.
inline parallel::DistributedDataParallelOptions ddp_options(const DdpFlags& flags) {
  parallel::DistributedDataParallelOptions options;
  if (flags.bucket_cap_mb > 0) options.bucket_cap_mb = flags.bucket_cap_mb;
  using enum parallel::BucketOrder;
  if (flags.bucket_order == "reversed") options.bucket_order = reversed;
  if (flags.bucket_order == "given") options.bucket_order = given;
  if (flags.comm_hook == "bf16_compress") options.comm_hook = parallel::bf16_compress;
  return options;
}

/// This process's number on its host, from the launcher.
inline int local_rank() { return comm::launch_environment().local_rank; }

/// The ranks of `group`, for the recorder and for tests.
inline train::Ranks ranks(const std::shared_ptr<comm::ProcessGroup>& group) {
  return {.rank = group->rank(),
          .size = group->size(),
          .backend = group->backend(),
          .gather = [group](const std::string& text) { return group->all_gather_object(text); }};
}

/// This rank's share of `size` images. --seed is only for the weights; the seed of the order stays
/// 0, as in PyTorch programs.
inline std::shared_ptr<data::DistributedSampler> distributed_sampler(std::int64_t size,
                                                                     const train::Options& options,
                                                                     const train::Ranks& ranks) {
  return std::make_shared<data::DistributedSampler>(
      size, data::DistributedSamplerOptions{
                .num_replicas = ranks.size, .rank = ranks.rank, .shuffle = options.shuffle});
}

/// Calls f(batch) for this rank's batches of a test set, every size-th one. There is no time limit:
/// other ranks, which may have fewer batches or none, wait for this one. If a signal reaches any
/// rank, all ranks throw train::Interrupted, as in train::top_accuracy.
template <class Loader, class F>
void own_batches(Loader& test, const train::Ranks& ranks, const F& f) {
  std::optional<BusyScope> busy("evaluation");
  int batch = 0;
  for (auto& tensors : test) {
    if (train::interrupted()) break;
    if (batch++ % ranks.size == ranks.rank) f(tensors);
  }
  busy.reset();
  // Other ranks may already wait in the sum, so this rank must take part in it.
  if (ranks.sum({train::interrupted() ? 1.0 : 0.0})[0] > 0) throw train::Interrupted();
}

/// The cost of communication so far, for metrics.json (train/metrics.h explains the figures). Of
/// memory the recorder keeps account.
inline train::TestFigures costs(const comm::Traffic& traffic) {
  return {{"bytes_sent", static_cast<double>(traffic.bytes_sent)}};
}
/// Also of reductions. All ranks call it together. `traffic`: one entry per group that is used.
/// `stats`: one entry per reduction in a step, for example one for each of two optimisers.
inline train::TestFigures costs(const train::Ranks& ranks,
                                std::initializer_list<comm::Traffic> traffic,
                                std::initializer_list<parallel::ReducerStats> stats) {
  comm::Traffic all;
  for (const comm::Traffic& t : traffic) all += t;
  const auto mean = [](const std::vector<double>& values) {
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    return sum / static_cast<double>(std::max<std::size_t>(values.size(), 1));
  };
  double reduce_ms = 0, wait_ms = 0, exposed_ms = 0;
  for (const parallel::ReducerStats& s : stats) {
    reduce_ms += s.reduce_ms / static_cast<double>(std::max<std::int64_t>(s.reductions, 1));
    wait_ms += mean(s.exposed_ms);
    exposed_ms += mean(ranks.least(s.exposed_ms));
  }
  train::TestFigures figures = costs(all);
  figures.insert(figures.end(),
                 {{"allreduce_ms", reduce_ms}, {"wait_ms", wait_ms}, {"exposed_ms", exposed_ms}});
  return figures;
}
/// For a DistributedDataParallel that uses one group.
inline train::TestFigures costs(const train::Ranks& ranks, const comm::ProcessGroup& group,
                                const parallel::ReducerStats& stats) {
  return costs(ranks, {group.traffic()}, {stats});
}

}  // namespace weft::examples
