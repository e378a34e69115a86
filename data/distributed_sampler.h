// DistributedSampler: the part of a data set that a rank visits, a different one in each epoch.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/sampler.h"

namespace weft::data {

struct DistributedSamplerOptions {
  int num_replicas = 1;    ///< ranks that share the data set
  int rank = 0;            ///< which of them this is
  bool shuffle = true;     ///< a new permutation each epoch, the same on all ranks
  std::uint64_t seed = 0;  ///< seed + epoch gives the permutation; the same on all ranks
  /// Leave out the last samples if the ranks cannot share them equally, instead of padding.
  bool drop_last = false;
  /// Rank r gets the r-th block, as in libtorch, instead of every num_replicas-th sample from r on.
  bool contiguous = false;
  /// false: each sample is visited once, by one rank. Some ranks then have one sample less, and
  /// maybe one batch less: right for an evaluation that sums up at its end, wrong for training.
  bool pad = true;
};

/// torch.utils.data.DistributedSampler, index for index. The order of all samples is range(size),
/// or randperm seeded with seed + epoch. It is padded with its first indices until every rank gets
/// ceil(size / num_replicas) samples; with drop_last it is cut at its end to floor(size /
/// num_replicas) per rank. Each rank takes its share of it.
///
///   auto sampler = std::make_shared<data::DistributedSampler>(
///       set.size(), data::DistributedSamplerOptions{.num_replicas = group->size(),
///                                                   .rank = group->rank()});
///   data::DataLoader train(set, {.batch_size = 32, .sampler = sampler});
///   for (int epoch = 0; epoch < 10; ++epoch) {
///     sampler->set_epoch(epoch);
///     for (auto& batch : train) ...
///   }
///
/// Draws nothing from the caller's generator. The loader's state holds seed + epoch, so a resumed
/// epoch keeps its order; set_epoch() affects the next one.
class DistributedSampler final : public Sampler {
 public:
  /// Throws InvalidArgument for a size outside [0, 2^62], fewer than one replica, a rank outside
  /// [0, num_replicas), and drop_last without pad.
  DistributedSampler(std::int64_t size, const DistributedSamplerOptions& options);

  /// Call this before each epoch, on all ranks with the same number. Throws InvalidArgument for
  /// epoch < 0.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  /// The number of this rank's samples in an epoch.
  std::int64_t size() const override { return size_after(0); }
  /// Returns seed + epoch. With shuffle it logs a warning, once, when an epoch has the same order
  /// as the one before.
  std::string draw_seed(Generator& generator) const override;
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override {
    order_after(seed, 0, order);
  }
  std::int64_t num_replicas() const override;
  /// The rest of an epoch is padded, too, with the epoch's first indices.
  std::int64_t size_after(std::int64_t done) const override;
  void order_after(const std::string& seed, std::int64_t done,
                   std::vector<std::int64_t>& order) const override;

 private:
  // The samples of all ranks together, with padding, after the first `done` of the order.
  std::int64_t total_after(std::int64_t done) const;

  const std::int64_t size_;
  const DistributedSamplerOptions options_;
  std::int64_t epoch_ = 0;
  // Several loaders may share a sampler.
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  mutable std::atomic<std::uint64_t> last_seed_{kNone};
  mutable std::atomic<bool> warned_{false};
};

}  // namespace weft::data
