// Many tensors in one launch. Their addresses are passed in the kernel parameters. Each tensor is
// cut into chunks, so that thread blocks get equal work for any sizes of the tensors.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/base/dtype.h"
#include "weft/kernels/optim.h"

namespace weft::cuda {

// 64 slots of 48 bytes, and the other arguments of an update, fit in the 4 KiB of kernel parameters
// that every GPU and driver accepts.
inline constexpr int kMaxSlots = 64;

// Elements that a block processes in one round: enough to hide the search for the slot, and a
// multiple of every pack, so that the chunks of an aligned tensor are aligned.
inline constexpr std::int64_t kChunk = 4096;

/// A kernel argument: up to kMaxSlots slots, of `n` elements each, and where their chunks begin.
template <class Slot>
struct TableOf {
  int count = 0;
  std::int64_t first_chunk[kMaxSlots + 1] = {};  // [i]: of slot i; [count]: number of chunks
  Slot slot[kMaxSlots];

  WEFT_HD std::int64_t chunks() const { return first_chunk[count]; }
  bool full() const { return count == kMaxSlots; }

  /// Adds a slot to a table that is not full; one without elements is skipped.
  void add(const Slot& more) {
    if (more.n == 0) return;
    slot[count] = more;
    first_chunk[count + 1] = first_chunk[count] + more.n / kChunk + (more.n % kChunk != 0);
    ++count;
  }

  /// The slot to which chunk c belongs.
  WEFT_HD int slot_of(std::int64_t c) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_chunk[middle] <= c) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  /// The elements of chunk c.
  struct Chunk {
    const Slot& slot;
    std::int64_t begin, end;
  };
  WEFT_HD Chunk chunk(std::int64_t c) const {
    const int s = slot_of(c);
    const std::int64_t begin = (c - first_chunk[s]) * kChunk, n = slot[s].n;
    return {slot[s], begin, begin + kChunk < n ? begin + kChunk : n};
  }
};

using SlotTable = TableOf<OptimSlot>;

/// Calls f(table) for as many tables as the slots need, none of them empty.
template <class F>
void for_each_table(std::span<const OptimSlot> slots, F&& f) {
  SlotTable table;
  for (const OptimSlot& slot : slots) {
    table.add(slot);
    if (table.full()) {
      f(table);
      table.count = 0;
    }
  }
  if (table.count > 0) f(table);
}

}  // namespace weft::cuda
