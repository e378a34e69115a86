// In which order a loader visits a data set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/rng.h"

namespace weft::data {

/// An order per epoch, in two steps, so that an interrupted epoch can be taken up again: a seed is
/// drawn when the epoch begins, and the order follows from the seed alone.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of indices in an epoch.
  virtual std::int64_t size() const = 0;
  /// Called once at the start of an epoch; may draw from the generator. Text of one line, for a
  /// loader's state.
  virtual std::string draw_seed(Generator& generator) const = 0;
  /// Replaces `order` by the epoch's indices. Throws InvalidArgument for text that draw_seed() did
  /// not write.
  virtual void order(const std::string& seed, std::vector<std::int64_t>& order) const = 0;
};

/// 0, 1, 2, ...; draws nothing.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::string draw_seed(Generator&) const override { return ""; }
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override;

 private:
  std::int64_t size_;
};

/// A permutation: torch.utils.data.RandomSampler's, index for index. Its seed is one random_() of
/// the caller's generator, and seeds a generator of its own for randperm.
class RandomSampler final : public Sampler {
 public:
  explicit RandomSampler(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::string draw_seed(Generator& generator) const override;
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override;

 private:
  std::int64_t size_;
};

/// What torch.empty((), dtype=torch.int64).random_() draws: 63 bits.
std::uint64_t draw_int64(Generator& generator);

/// The number in a sampler's seed. Throws InvalidArgument for anything else.
std::uint64_t seed_number(const std::string& seed);

}  // namespace weft::data
