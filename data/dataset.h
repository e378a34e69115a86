// What a data set must have, and how samples are read from it.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "weft/data/batch.h"

namespace weft::data {

/// What a DataLoader reads: size(), the number of samples, and get_batch(indices), these samples as
/// a batch.
template <class Set>
concept Dataset = requires(const Set& set, std::span<const std::int64_t> indices) {
  { set.size() } -> std::convertible_to<std::int64_t>;
  set.get_batch(indices);
};

template <Dataset Set>
using BatchOf = std::remove_cvref_t<decltype(std::declval<const Set&>().get_batch(
    std::declval<std::span<const std::int64_t>>()))>;

/// Reads these samples into `batch`: in the given memory if the set can fill a batch, and with the
/// epoch's seed if it takes one (DataLoader describes both forms).
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
