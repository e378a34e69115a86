// What a process did last, in memory that outlives it, even after SIGKILL: its last operations
// between ranks, its memory by owner, the texts that name these, and sums. Part of the StatusPage.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/dtype.h"
#include "weft/core/base/memory_owner.h"

namespace weft {

/// A text of a BlackBox, by its number. 0: none, or one for which there was no room left.
using TextId = std::uint32_t;

/// An operation between ranks.
struct OperationRecord {
  /// Of the call: counts the collectives of a group, or the sends and receives of a rank in it.
  std::int64_t number = 0;
  std::int64_t begin_ns = 0;  ///< by the steady clock, as steady_ns()
  std::int64_t count = 0, bytes = 0;
  std::int64_t step = -1;  ///< of training; -1: none
  TextId name = 0, group = 0, tag = 0, module = 0, phase = 0;
  std::int32_t rank = 0;    ///< in the run, of the rank whose operation this is
  std::int32_t peer = -1;   ///< the other one of a send or recv, in the run; -1: all of the group
  std::int32_t dtype = -1;  ///< a DType, which a reader must check; -1: no tensor
};

/// The time of std::chrono::steady_clock, which is one for all processes of a host.
inline std::int64_t steady_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

/// For any number of threads that write and of processes that read. Nothing in it has to be locked
/// or put in order when the process is killed. Memory full of zeros is an empty one.
class BlackBox {
 public:
  static constexpr std::size_t kRecords = 256, kTexts = 1024, kTextBytes = 1 << 16, kMostText = 240;

  /// Never fails: a text that is not there yet is added while there is room. Texts are cut off
  /// after kMostText bytes. Takes no lock, and no memory of the heap.
  TextId id_of(std::string_view text) { return find(text, true); }
  /// The text of a new group of ranks: `members`, or "members #2" for the second such group.
  TextId id_of_group(const std::string& members);
  /// Empty for 0 and for a number without a text.
  std::string text(TextId id) const;

  /// Begins a record, which is then the last one; sets its phase. Returns its handle.
  std::uint64_t begin(OperationRecord record);
  /// Does nothing if the record has meanwhile been overwritten by a later one.
  void end(std::uint64_t handle, bool failed);

  /// The phase of the program, for the records to come.
  void set_phase(TextId phase) { phase_.store(phase, std::memory_order_relaxed); }

  /// What the allocator of a device reports.
  struct Memory {
    std::array<std::atomic<std::int64_t>, kMemoryOwners> in_use;  ///< bytes by MemoryOwner
    std::atomic<std::int64_t> limit;                              ///< 0: none
  };
  Memory& memory(Device device) { return memory_[static_cast<int>(device.type)][device.index]; }
  const Memory& memory(Device device) const {
    return memory_[static_cast<int>(device.type)][device.index];
  }

  /// Since the process began; a reader makes rates of them.
  struct Sums {
    std::atomic<std::int64_t> samples;    ///< of training, in this process's share of the batches
    std::atomic<std::int64_t> sent;       ///< bytes, to other ranks
    std::atomic<std::int64_t> waited_ns;  ///< its threads, for operations between ranks
  };
  Sums& sums() { return sums_; }
  const Sums& sums() const { return sums_; }

  /// A record as it is read.
  struct Found : OperationRecord {
    std::int64_t end_ns = -1;  ///< -1: it has not ended
    bool failed = false;
  };
  /// In the order in which they began. A record that is being written, or was when its process was
  /// killed, is left out.
  std::vector<Found> operations() const;

 private:
  // 128 bytes. `sequence` is 2 n - 1 while record n is written, and 2 n from then on. Everything is
  // stored with release after the former and before the latter, and read with acquire between two
  // reads of the sequence: if both are 2 n, all is of record n. `end` is -n until the record has
  // ended, then twice the time, plus 1 if it has failed: one word, so it is never half written.
  static constexpr std::size_t kWords = sizeof(OperationRecord) / 8;
  struct alignas(128) Slot {
    std::atomic<std::uint64_t> sequence;
    std::atomic<std::int64_t> end;
    std::atomic<std::uint64_t> words[kWords];
  };
  static_assert(sizeof(OperationRecord) == 8 * kWords && sizeof(Slot) == 128);

  TextId find(std::string_view text, bool add);
  std::uint32_t append(std::string_view text);
  std::string_view text_at(std::uint64_t entry) const;

  std::atomic<std::uint64_t> last_;  // the number of records that have begun
  std::atomic<TextId> phase_;
  // A hash table: the upper half of a text's hash, and its place in text_bytes_: 1 + the index of
  // its length, which stands before it. Entries stay; 0: free.
  std::atomic<std::uint64_t> texts_[kTexts];
  std::atomic<std::uint64_t> text_bytes_used_;
  unsigned char text_bytes_[kTextBytes];
  Memory memory_[2][kMaxDevices];
  Sums sums_;
  Slot slots_[kRecords];
};

/// This process's, in its StatusPage; null if it has none.
BlackBox* own_black_box();

}  // namespace weft
