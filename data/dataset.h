// What a data set has to offer, and how samples are read from one.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "weft/data/batch.h"

namespace weft::data {

/// What a DataLoader reads: a number of samples, and those of some indices as a batch.
template <class Set>
concept Dataset = requires(const Set& set, std::span<const std::int64_t> indices) {
  { set.size() } -> std::convertible_to<std::int64_t>;
  set.get_batch(indices);
};

template <Dataset Set>
using BatchOf = std::remove_cvref_t<decltype(std::declval<const Set&>().get_batch(
    std::declval<std::span<const std::int64_t>>()))>;

/// The samples of these indices into `batch`: in the given memory where the set fills a batch
/// (DataLoader says how), with the epoch's seed where it takes one.
template <Dataset Set>
void read_batch(const Set& set, std::span<const std::int64_t> indices, BatchOf<Set>& batch,
                const HostMemory& memory, std::uint64_t epoch_seed) {
  if constexpr (requires { set.get_batch(indices, batch, memory, epoch_seed); }) {
    set.get_batch(indices, batch, memory, epoch_seed);
  } else if constexpr (requires { set.get_batch(indices, batch, memory); }) {
    set.get_batch(indices, batch, memory);
  } else {
    batch = set.get_batch(indices);
  }
}

}  // namespace weft::data
