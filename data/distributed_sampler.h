// DistributedSampler: which part of a data set a rank visits, in each epoch another one.
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
  bool shuffle = true;     ///< each epoch a permutation, the same one on all ranks
  std::uint64_t seed = 0;  ///< of the permutations, with the epoch added; the same on all ranks
  /// Leave out the last samples where the ranks cannot share them equally, instead of padding.
  bool drop_last = false;
  /// Rank r gets the r-th block, as in libtorch, instead of every num_replicas-th sample from r on.
  bool contiguous = false;
  /// false: each sample once, on one rank. Some ranks have one sample less then, so perhaps a batch
  /// less: right for an evaluation that adds up at its end, wrong for training.
  bool pad = true;
};

/// torch.utils.data.DistributedSampler, index for index: the order, range(size) or randperm seeded
/// with seed + epoch, is padded from its front until all ranks get ceil(size / num_replicas)
/// samples (or cut at its end: floor), and a rank takes its share.
///
///   auto sampler = std::make_shared<data::DistributedSampler>(
///       set.size(), {.num_replicas = group->size(), .rank = group->rank()});
///   data::DataLoader train(set, {.batch_size = 32, .sampler = sampler});
///   for (int epoch = 0; epoch < 10; ++epoch) {
///     sampler->set_epoch(epoch);
///     for (auto& batch : train) ...
///   }
///
/// Draws nothing from the caller's generator. A loader's state holds seed + epoch, so that a
/// resumed epoch goes on in its order; set_epoch() is for the next one.
class DistributedSampler final : public Sampler {
 public:
  /// Throws InvalidArgument for size < 0, fewer than one replica, a rank outside
  /// [0, num_replicas), and drop_last without pad.
  DistributedSampler(std::int64_t size, const DistributedSamplerOptions& options);

  /// To be called before each epoch, on all ranks with the same number. Throws InvalidArgument for
  /// epoch < 0.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  /// This rank's samples in an epoch.
  std::int64_t size() const override;
  /// seed + epoch. Warns in the log, once, of an epoch in the very order of the one before.
  std::string draw_seed(Generator& generator) const override;
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override;

 private:
  // Of all ranks together.
  std::int64_t total() const;

  const std::int64_t size_;
  const DistributedSamplerOptions options_;
  std::int64_t epoch_ = 0;
  // Several loaders may share a sampler.
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  mutable std::atomic<std::uint64_t> last_seed_{kNone};
  mutable std::atomic<bool> warned_{false};
};

}  // namespace weft::data
