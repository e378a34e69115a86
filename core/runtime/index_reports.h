// Indices that a device finds out of range: the thread whose call had one hears of it when it next
// waits for the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weft/core/base/shape.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

struct PathNode;

/// The indices that a call accepts: those in [0, bound), and `ignored`.
struct IndexBounds {
  const char* op;  ///< a literal
  std::int64_t bound;
  const char* what = "index";  ///< a literal: how the error names it
  std::optional<std::int64_t> ignored = {};

  bool accept(std::int64_t index) const {
    return (index >= 0 && index < bound) || index == ignored;
  }
};

/// Throws InvalidArgument for the entry `number` of an index of this shape, in row-major order:
/// "[gather] index 9 at position [0,2] is out of range [0, 6)".
[[noreturn]] void throw_out_of_range(const IndexBounds& bounds, std::int64_t value,
                                     const Shape& shape, std::int64_t number);

/// What a queued check finds, in page-locked memory that the device writes and the host reads.
struct BadIndex {
  static constexpr std::int64_t kUnknown = -1;  ///< the device has not come to it yet

  std::int64_t count;  ///< entries up to the first bad one, this included; 0: none is bad
  std::int64_t value;  ///< of that one; written before `count`
};

/// A check of one index. Its memory is used again as soon as the device has written to it.
struct QueuedCheck {
  struct GiveBack {
    void operator()(BadIndex* found) const noexcept;
  };
  std::unique_ptr<BadIndex, GiveBack> found;
  IndexBounds bounds;
  Shape shape;
  const PathNode* path;  ///< the module path of the call, interned
};
/// The checks in recorded work, which a replay does again. The device writes only what is bad, and
/// only where the host has read what it wrote before.
struct RecordedChecks {
  std::vector<QueuedCheck> checks;
  /// Set when the work is gone and its last replay done. Several threads may have replayed it.
  std::atomic<bool> over = false;
};

/// The checks of one thread.
class IndexReports {
 public:
  /// Where a check that the caller queues next, or records, has to write. `host`: gives page-locked
  /// memory, which devices must reach at its own address. Throws OutOfMemory.
  BadIndex* expect(Runtime& host, const IndexBounds& bounds, const Shape& shape, bool recorded);
  /// Takes back a check that was to be queued, and will not be.
  void forget(const BadIndex* place);
  /// The checks recorded since the last call.
  std::shared_ptr<RecordedChecks> take_recorded();
  /// Must be called after work with these checks was launched.
  void launched(const std::shared_ptr<RecordedChecks>& checks);
  /// Throws for the first call that is known to have had a bad index, and forgets the others.
  void report();
  /// Takes over the checks of a thread that worked for this one.
  void add(IndexReports&& other);
  bool empty() const { return queued_.empty() && launched_.empty() && !first_; }

 private:
  friend class OwnWait;
  struct Found {
    IndexBounds bounds;
    Shape shape;
    const PathNode* path;
    std::int64_t count, value;
  };
  void collect();
  void note(const QueuedCheck& check, std::int64_t count, std::int64_t value);

  std::vector<QueuedCheck> queued_;
  std::vector<QueuedCheck> recorded_;
  std::vector<std::shared_ptr<RecordedChecks>> launched_;
  std::optional<Found> first_;
  int own_waits_ = 0;  // that are under way
};

/// The calling thread's, made if `make`; else null if it has none.
IndexReports* index_reports(bool make = false);

/// The runtime calls this after it has waited for a stream, an event or a device.
inline void report_bad_indices() {
  if (IndexReports* const mine = index_reports()) mine->report();
}

/// While one lives, this thread's waits report no bad index: for waits that weft makes by itself,
/// such as in a destructor. The next wait that the caller asks for reports it.
class OwnWait {
 public:
  OwnWait() : reports_(index_reports()) {
    if (reports_) ++reports_->own_waits_;
  }
  OwnWait(const OwnWait&) = delete;
  OwnWait& operator=(const OwnWait&) = delete;
  ~OwnWait() {
    if (reports_) --reports_->own_waits_;
  }

 private:
  IndexReports* reports_;  // null: nothing to report
};

}  // namespace weft
