// Subset and random_split: parts of a data set.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/data/dataset.h"

namespace weft::data {

namespace detail {

/// Throws InvalidArgument for an index outside [0, size).
void check_indices(std::span<const std::int64_t> indices, std::int64_t size);

/// from[i] for each i in `at`, in memory that the thread keeps, so that later epochs allocate
/// nothing.
class Chosen {
 public:
  /// Throws like check_indices for `at`.
  Chosen(std::span<const std::int64_t> from, std::span<const std::int64_t> at);
  ~Chosen();
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;
  std::span<const std::int64_t> span() const { return indices_; }

 private:
  std::vector<std::int64_t> indices_;
};

}  // namespace detail

/// torch.utils.data.Subset. Sample i is sample indices[i] of the data set, with the random
/// transforms of that index. So an index that is listed twice gives the same picture twice in an
/// epoch. Copies share the data set. As safe to read from several threads as the data set is.
template <Dataset Set>
class Subset {
 public:
  using Batch = BatchOf<Set>;

  /// Throws InvalidArgument for an index outside the data set.
  Subset(Set set, std::vector<std::int64_t> indices)
      : Subset(std::make_shared<const Set>(std::move(set)), std::move(indices)) {}
  Subset(std::shared_ptr<const Set> set, std::vector<std::int64_t> indices)
      : set_(std::move(set)), indices_(std::move(indices)) {
    detail::check_indices(indices_, set_->size());
  }

  std::int64_t size() const { return static_cast<std::int64_t>(indices_.size()); }
  const Set& dataset() const { return *set_; }
  const std::vector<std::int64_t>& indices() const { return indices_; }

  /// Throws InvalidArgument for an index outside [0, size()), and what the set throws.
  Batch get_batch(std::span<const std::int64_t> indices) const {
    return set_->get_batch(detail::Chosen(indices_, indices).span());
  }
  /// The same, but fills `batch`, in memory of the given kind if the set can.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const {
    read_batch(*set_, detail::Chosen(indices_, indices).span(), batch, memory, epoch_seed);
  }

 private:
  std::shared_ptr<const Set> set_;
  std::vector<std::int64_t> indices_;
};

struct Split {
  std::vector<std::int64_t> lengths{};  ///< of the parts; their sum is the size of the data set
  /// Instead of lengths: fractions of the data set with the sum 1. Lengths are rounded down; each
  /// remaining sample goes to one part, beginning with the first part.
  std::vector<double> fractions{};
};

/// The lengths of the parts. Throws InvalidArgument unless exactly one of the two lists is given,
/// for a negative value or size, and for a wrong sum.
std::vector<std::int64_t> split_lengths(const Split& split, std::int64_t size);

/// torch.utils.data.random_split: disjoint parts of a permutation that is drawn from the generator,
/// index for index as in PyTorch.
///   auto parts = data::random_split(data::Mnist(), {.fractions = {0.9, 0.1}});
/// Throws like split_lengths.
template <Dataset Set>
std::vector<Subset<Set>> random_split(Set set, const Split& split,
                                      Generator& generator = default_generator()) {
  const auto shared = std::make_shared<const Set>(std::move(set));
  const std::vector<std::int64_t> lengths = split_lengths(split, shared->size());
  const std::vector<std::int64_t> order = generator.randperm(shared->size());
  std::vector<Subset<Set>> parts;
  auto begin = order.begin();
  for (const std::int64_t length : lengths) {
    parts.emplace_back(shared, std::vector(begin, begin + length));
    begin += length;
  }
  return parts;
}

}  // namespace weft::data
