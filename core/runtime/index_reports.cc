#include "weft/core/runtime/index_reports.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

ThreadLocal<IndexReports> reports_of_thread;

using Count = std::atomic_ref<std::int64_t>;

bool is_known(const BadIndex* found) {
  return Count(const_cast<BadIndex*>(found)->count).load(std::memory_order_acquire) !=
         BadIndex::kUnknown;
}

// Page-locked memory for what the checks find. It is never freed.
class Places {
 public:
  BadIndex* take(Runtime& host) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) reuse_finished();
    if (free_.empty()) add_page(host);
    BadIndex* const place = free_.back();
    free_.pop_back();
    return place;
  }
  /// Does not look at the place: at the end of a process its memory may have gone.
  void give_back(BadIndex* place) noexcept {
    const std::lock_guard lock(mutex_);
    given_back_.push_back(place);
  }

 private:
  static constexpr std::size_t kPage = 4096 / sizeof(BadIndex);

  void reuse_finished() {
    const auto known = std::partition(given_back_.begin(), given_back_.end(),
                                      [](const BadIndex* place) { return !is_known(place); });
    free_.assign(known, given_back_.end());
    given_back_.erase(known, given_back_.end());
  }
  void add_page(Runtime& host) {
    // Room for all, so that giving back cannot fail.
    free_.reserve(made_ + kPage);
    given_back_.reserve(made_ + kPage);
    auto* const page = static_cast<BadIndex*>(host.allocate_pinned(kPage * sizeof(BadIndex)));
    WEFT_CHECK(page, OutOfMemory, "check_bounds", "no page-locked memory");
    made_ += kPage;
    for (std::size_t i = 0; i < kPage; ++i) free_.push_back(page + i);
  }

  std::mutex mutex_;
  std::vector<BadIndex*> free_;
  std::vector<BadIndex*> given_back_;  // the device may not have come to them yet
  std::size_t made_ = 0;
};
// Never destroyed: static objects may have checks.
Places& places() {
  static Places* const made = new Places;
  return *made;
}

}  // namespace

void throw_out_of_range(const IndexBounds& bounds, std::int64_t value, const Shape& shape,
                        std::int64_t number) {
  Dims at = Dims::filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d) {
    at[d] = number % shape[d];
    number /= shape[d];
  }
  WEFT_THROW(InvalidArgument, bounds.op, bounds.what, " ", value, " at position ", to_string(at),
             " is out of range [0, ", bounds.bound, ")");
}

void QueuedCheck::GiveBack::operator()(BadIndex* found) const noexcept {
  places().give_back(found);
}

IndexReports* index_reports(bool make) {
  return make ? &*reports_of_thread : reports_of_thread.get();
}

BadIndex* IndexReports::expect(Runtime& host, const IndexBounds& bounds, const Shape& shape,
                               bool recorded) {
  std::vector<QueuedCheck>& checks = recorded ? recorded_ : queued_;
  if (checks.size() == checks.capacity()) {
    if (!recorded) collect();
    if (checks.size() >= checks.capacity() / 2) checks.reserve(2 * checks.size() + 16);
  }
  BadIndex* const place = places().take(host);
  *place = {recorded ? 0 : BadIndex::kUnknown, 0};
  checks.push_back({decltype(QueuedCheck::found)(place), bounds, shape, interned_path()});
  return place;
}

void IndexReports::forget(const BadIndex* place) {
  const auto found = std::ranges::find(
      queued_, place,
      [](const QueuedCheck& check) -> const BadIndex* { return check.found.get(); });
  if (found == queued_.end()) return;
  queued_.erase(found);  // the place is used again only when a device has written to it
}

std::shared_ptr<RecordedChecks> IndexReports::take_recorded() {
  auto taken = std::make_shared<RecordedChecks>();
  taken->checks = std::exchange(recorded_, {});
  return taken;
}

void IndexReports::launched(const std::shared_ptr<RecordedChecks>& checks) {
  if (checks->checks.empty() || std::ranges::find(launched_, checks) != launched_.end()) return;
  launched_.push_back(checks);
}

void IndexReports::note(const QueuedCheck& check, std::int64_t count, std::int64_t value) {
  if (count <= 0 || first_) return;
  first_ = Found{check.bounds, check.shape, check.path, count, value};
}

void IndexReports::collect() {
  std::erase_if(queued_, [this](const QueuedCheck& check) {
    const std::int64_t count = Count(check.found->count).load(std::memory_order_acquire);
    note(check, count, check.found->value);
    return count != BadIndex::kUnknown;
  });
}

void IndexReports::report() {
  if (own_waits_ > 0 || empty()) return;
  collect();
  std::erase_if(launched_, [this](const auto& launched) {
    const bool over = launched->over.load(std::memory_order_acquire);  // before what it has found
    for (const QueuedCheck& check : launched->checks) {
      const Count place(check.found->count);
      std::int64_t count = place.load(std::memory_order_acquire);
      if (count <= 0) continue;
      const std::int64_t value = check.found->value;
      // From then on a replay may write again. Another thread may report this one.
      if (place.compare_exchange_strong(count, 0, std::memory_order_acq_rel)) {
        note(check, count, value);
      }
    }
    return over;
  });
  if (!first_) return;
  const Found found = *std::exchange(first_, std::nullopt);
  const Scoped path(&ThreadState::path, found.path);
  throw_out_of_range(found.bounds, found.value, found.shape, found.count - 1);
}

void IndexReports::add(IndexReports&& other) {
  queued_.reserve(queued_.size() + other.queued_.size());  // so that what is moved cannot get lost
  if (other.first_ && !first_) first_ = other.first_;
  std::ranges::move(other.queued_, std::back_inserter(queued_));
  for (const auto& checks : other.launched_) launched(checks);
  other = IndexReports();
}

}  // namespace weft
