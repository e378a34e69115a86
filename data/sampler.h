// Samplers: the order in which a loader visits a data set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/runtime/rng.h"

namespace weft::data {

/// Gives an order for each epoch, in two steps: draw_seed() draws a seed when the epoch begins, and
/// order() computes the order from this seed alone. So an interrupted epoch can be resumed.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of indices in an epoch.
  virtual std::int64_t size() const = 0;
  /// Called once at the start of an epoch; may draw from the generator. Returns one line of text,
  /// which becomes a part of the loader's state.
  virtual std::string draw_seed(Generator& generator) const = 0;
  /// Replaces `order` by the epoch's indices. Throws InvalidArgument for text that draw_seed() did
  /// not write, OutOfMemory if there is no memory for the indices.
  virtual void order(const std::string& seed, std::vector<std::int64_t>& order) const = 0;

  // For a run that goes on within an epoch with another number of ranks, or another batch size.
  // Ranks may share one order, from which they take one sample each in turn.
  /// The number of ranks that share the order, of which this sampler gives the samples of one rank.
  /// 0: they do not take them in turn, so the order cannot be dealt out anew.
  virtual std::int64_t num_replicas() const { return 1; }
  /// size() and order() of the rest of an epoch, after the first `done` >= 0 samples of the shared
  /// order.
  virtual std::int64_t size_after(std::int64_t done) const;
  virtual void order_after(const std::string& seed, std::int64_t done,
                           std::vector<std::int64_t>& order) const;
};

/// The order 0, 1, 2, ...; draws nothing.
class SequentialSampler final : public Sampler {
 public:
  /// Throws InvalidArgument for size < 0.
  explicit SequentialSampler(std::int64_t size);
  std::int64_t size() const override { return size_; }
  std::string draw_seed(Generator&) const override { return ""; }
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override;

 private:
  std::int64_t size_;
};

/// A random permutation, index for index that of torch.utils.data.RandomSampler. The seed is one
/// random_() of the caller's generator; randperm uses a generator of its own with that seed.
class RandomSampler final : public Sampler {
 public:
  /// Throws InvalidArgument for size < 0.
  explicit RandomSampler(std::int64_t size);
  std::int64_t size() const override { return size_; }
  std::string draw_seed(Generator& generator) const override;
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override;

 private:
  std::int64_t size_;
};

/// Gives the batches of an epoch, each as the list of its indices, as torch.utils.data.DataLoader's
/// batch_sampler.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Number of batches in the next epoch.
  virtual std::int64_t size() const = 0;
  /// Called once at the start of an epoch, in place of a sampler's draw_seed() and order(); may
  /// draw from the generator.
  virtual std::vector<std::vector<std::int64_t>> batches(Generator& generator) const = 0;
  /// true: a loader ignores the options that this sampler replaces, and does not refuse them, since
  /// the batches were made with such options.
  virtual bool overrules() const { return false; }
};

/// The number that torch.empty((), dtype=torch.int64).random_() draws: 63 bits.
std::uint64_t draw_int64(Generator& generator);

/// Gives `order` the size `count`; the caller then writes the indices. Throws OutOfMemory.
void resize_order(std::vector<std::int64_t>& order, std::int64_t count);

/// The number in a sampler's seed. Throws InvalidArgument for text that is not a number.
std::uint64_t seed_number(const std::string& seed);

}  // namespace weft::data
