#include "weft/core/runtime/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/copy_stream.h"
#include "weft/core/runtime/external_stream.h"
#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/thread_state.h"

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_ASAN 1
#endif
#endif
#if defined(WEFT_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace weft {
namespace {

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;

// PyTorch's constants (c10/cuda/CUDACachingAllocator). A segment is memory from the driver; it is
// split into blocks.
constexpr std::size_t kUnit = 512;                 // every block is a multiple of this
constexpr std::size_t kSmallSize = 1 * MiB;        // requests up to this size use the small lists
constexpr std::size_t kSmallSegment = 2 * MiB;     // the small lists get segments of this size
constexpr std::size_t kMidSize = 10 * MiB;         // larger requests share segments up to this size
constexpr std::size_t kMidSegment = 20 * MiB;      // size of a shared segment
constexpr std::size_t kSegmentRounding = 2 * MiB;  // of segments for one larger request
constexpr std::size_t kLargestRequest = std::size_t{1} << 47;

std::size_t round_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

std::size_t segment_bytes(std::size_t size) {
  if (size <= kSmallSize) return kSmallSegment;
  if (size < kMidSize) return kMidSegment;
  return round_up(size, kSegmentRounding);
}

// AddressSanitizer then reports any access to host memory that is in no storage, although it is
// ours.
void poison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(WEFT_ASAN)
  ASAN_POISON_MEMORY_REGION(p, bytes);
#endif
}
void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(WEFT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
}

// The address of an empty storage: not null, because null means "no tensor" in kernels.
alignas(256) constinit char empty_storage[1] = {};

class DeviceAllocator;

// Another stream that works on a block. It is on the block's list while the storage lives, then,
// with a recorded event, on the allocator's list of waits, then on the list of spare ones.
struct StreamUse : Pooled {
  Stream stream;
  std::unique_ptr<Event> event;
  detail::Block* block = nullptr;
  StreamUse* next = nullptr;
  // Neighbours on the allocator's list of all uses that are on blocks.
  StreamUse* previous_of_all = nullptr;
  StreamUse* next_of_all = nullptr;
};

}  // namespace

namespace detail {

struct Block : Pooled {
  char* data = nullptr;
  std::size_t size = 0;
  std::size_t charged = 0;  // bytes counted as in use: the request, rounded
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  Block* previous_free = nullptr;
  Block* next_free = nullptr;
  StreamLists* home = nullptr;
  StreamUse* uses = nullptr;
  int waits = 0;  // recorded events that must pass before the block is free
  MemoryOwner owner = MemoryOwner::activations;
  bool is_free = false;
  bool small = false;

  bool is_whole() const { return !before && !after; }  // the block is a whole segment
};

}  // namespace detail

namespace {

using detail::Block;

// Free blocks by size. Bins are one unit wide below 64 units and 1/32 of an octave above. In a bin
// the blocks are sorted by size, so the first large enough one is the best fit. Among equal ones
// the last freed comes first: it may still be in the processor's caches.
class FreeBlocks {
 public:
  void insert(Block* block) {
    const int bin = bin_of(block->size);
    Block* before = nullptr;
    Block* after = bins_[bin];
    while (after && after->size < block->size) before = std::exchange(after, after->next_free);
    block->previous_free = before;
    block->next_free = after;
    (before ? before->next_free : bins_[bin]) = block;
    if (after) after->previous_free = block;
    occupied_[bin / 64] |= bit(bin);
    block->is_free = true;
  }

  void remove(Block* block) {
    const int bin = bin_of(block->size);
    (block->previous_free ? block->previous_free->next_free : bins_[bin]) = block->next_free;
    if (block->next_free) block->next_free->previous_free = block->previous_free;
    if (!bins_[bin]) occupied_[bin / 64] &= ~bit(bin);
    block->is_free = false;
  }

  /// The smallest block of at least `size` bytes, or null; it stays in the lists.
  Block* best_fit(std::size_t size) const {
    const int bin = bin_of(size);
    for (Block* block = bins_[bin]; block; block = block->next_free) {
      if (block->size >= size) return block;
    }
    const int next = next_occupied(bin + 1);
    return next < kBins ? bins_[next] : nullptr;
  }

  template <class F>
  void for_each(F f) {
    for (int bin = next_occupied(0); bin < kBins; bin = next_occupied(bin + 1)) {
      for (Block* block = bins_[bin]; block;) {
        Block* const next = block->next_free;  // f may remove the block
        f(block);
        block = next;
      }
    }
  }

 private:
  static constexpr int kExact = 64;  // bins of one unit
  static constexpr int kPerOctave = 32;
  static constexpr int kOctaves = 34;  // enough for more than kLargestRequest
  static constexpr int kBins = kExact + kPerOctave * kOctaves;
  static_assert(kBins % 64 == 0);

  static int bin_of(std::size_t size) {
    const std::size_t units = size / kUnit;
    if (units < kExact) return static_cast<int>(units);
    const int octave = std::bit_width(units) - std::bit_width(std::size_t{kExact});
    const int within = static_cast<int>(units >> (octave + 1)) - kPerOctave;
    return kExact + octave * kPerOctave + within;
  }
  static std::uint64_t bit(int bin) { return std::uint64_t{1} << (bin % 64); }

  int next_occupied(int bin) const {
    if (bin >= kBins) return kBins;
    std::uint64_t word = occupied_[bin / 64] & (~std::uint64_t{0} << (bin % 64));
    for (int i = bin / 64;;) {
      if (word) return i * 64 + std::countr_zero(word);
      if (++i == kBins / 64) return kBins;
      word = occupied_[i];
    }
  }

  Block* bins_[kBins] = {};
  std::uint64_t occupied_[kBins / 64] = {};
};

}  // namespace

// The free blocks of one stream, or of one pool. Work on a stream runs in order, so a block that
// was freed there can be reused there at once.
struct detail::StreamLists {
  enum class Use { stream, pool, closed_pool };

  DeviceAllocator* owner = nullptr;
  void* handle = nullptr;
  Use use = Use::stream;
  StreamLists* from = nullptr;  // for a pool: the stream whose free blocks it may take over, and
                                // which gets its own when it is closed
  std::size_t bytes = 0;        // of all its blocks
  std::size_t unused = 0;       // bytes of blocks that are in no storage
  FreeBlocks small;
  FreeBlocks large;
  StreamLists* next = nullptr;

  FreeBlocks& blocks(bool is_small) { return is_small ? small : large; }
};

namespace {

using detail::StreamLists;

class DeviceAllocator {
 public:
  DeviceAllocator(Runtime& driver, Device device, bool pinned)
      : driver_(driver), device_(device), pinned_(pinned) {
    BlackBox* const box = pinned ? nullptr : own_black_box();  // pinned counts for no device
    if (box) reported_ = &box->memory(device);
  }

  /// Takes memory from `pool`, or from the stream's blocks.
  Block* allocate(std::size_t bytes, void* stream_handle, StreamLists* pool) {
    std::lock_guard lock(mutex_);
    if (countdown_ > 0 && --countdown_ == 0) throw_out_of_memory(bytes, "refused by a test");
    if (bytes > kLargestRequest) throw_out_of_memory(bytes, "no device has as much");
    const std::size_t size = round_up(bytes, kUnit);
    StreamLists& lists = pool ? *pool : lists_of(stream_handle);
    if (waiting_ && !thread_state().capture) free_passed_blocks();  // events cannot be queried then
    if (limit_ != 0 && in_use_ + unused_of_pools(&lists) + size > limit_) {
      throw_out_of_memory(bytes, "raise the limit or use a smaller batch");
    }

    const bool small = size <= kSmallSize;
    Block* block = lists.blocks(small).best_fit(size);
    if (!block) block = new_segment(lists, size, bytes);
    // A large remainder is only worth keeping when a large request fits.
    const bool split = block->size - size >= (small ? kUnit : kSmallSize + kUnit);
    Block* const rest = split ? new Block : nullptr;  // made before anything changes: it may throw
    lists.blocks(small).remove(block);
    if (rest) {
      rest->data = block->data + size;
      rest->size = block->size - size;
      rest->home = block->home;
      rest->small = block->small;
      rest->before = block;
      rest->after = block->after;
      if (rest->after) rest->after->before = rest;
      block->after = rest;
      block->size = size;
      lists.blocks(small).insert(rest);
    }
    block->charged = size;
    block->owner = thread_state().memory_owner;
    in_use_ += size;
    lists.unused -= size;
    add_to(block->owner, size);
    if (in_use_ > peak_) note_peak();
    if (is_host()) unpoison(block->data, bytes);
    return block;
  }

  /// The address at which the borrower of the block finds its first `bytes`.
  void* lend(const Block& block, std::size_t bytes) {
    return driver_.lend(block.data, bytes, {device_, block.home->handle});
  }

  void free(Block* block) noexcept {
    std::lock_guard lock(mutex_);
    take_from(block->owner, block->charged);
    block->home->unused += block->charged;
    in_use_ -= std::exchange(block->charged, 0);
    if (is_host()) poison(block->data, block->size);
    if (!block->uses) return insert_and_merge(block);

    ++block->waits;  // not free before all events are recorded
    try {
      while (StreamUse* use = block->uses) {
        use->event->record(use->stream);
        block->uses = use->next;
        use->next = nullptr;
        leave_all(use);
        ++block->waits;
        *waiting_end_ = use;
        waiting_end_ = &use->next;
      }
    } catch (const Error&) {
      // The device is broken, so nothing can tell when the other stream is done: the block is never
      // reused. The next operation on the device reports the cause.
      return;
    }
    --block->waits;
  }

  void record_stream(Block* block, const Stream& stream) {
    std::lock_guard lock(mutex_);  // end_stream() may change the block's home
    if (stream.device == device_ && block->home->handle == stream.handle) return;
    for (StreamUse* use = block->uses; use; use = use->next) {
      if (use->stream == stream) return;
    }
    StreamUse* const use = take_spare(stream.device);
    use->stream = stream;
    use->block = block;
    use->next = std::exchange(block->uses, use);
    use->previous_of_all = nullptr;
    use->next_of_all = std::exchange(all_uses_, use);
    if (use->next_of_all) use->next_of_all->previous_of_all = use;
  }

  void set_owner(Block* block, MemoryOwner owner) {
    std::lock_guard lock(mutex_);
    take_from(block->owner, block->charged);
    block->owner = owner;
    add_to(owner, block->charged);
  }

  /// Counts memory that did not come from here.
  void charge(std::size_t bytes, MemoryOwner owner) {
    std::lock_guard lock(mutex_);
    if (limit_ != 0 && in_use_ + unused_of_pools(nullptr) + bytes > limit_) {
      throw_out_of_memory(bytes, "raise the limit or use a smaller batch");
    }
    if (limit_ != 0 && held_ + bytes > limit_) release_cached_locked();
    held_ += bytes;
    in_use_ += bytes;
    add_to(owner, bytes);
    if (in_use_ > peak_) note_peak();
  }

  void move(std::size_t bytes, MemoryOwner from, MemoryOwner to) {
    std::lock_guard lock(mutex_);
    take_from(from, bytes);
    add_to(to, bytes);
  }

  void refund(std::size_t bytes, MemoryOwner owner) noexcept {
    std::lock_guard lock(mutex_);
    held_ -= bytes;
    in_use_ -= bytes;
    take_from(owner, bytes);
  }

  void release_cached() {
    std::lock_guard lock(mutex_);
    release_cached_locked();
  }

  StreamLists* open_pool(void* stream_handle, void* from_handle) {
    std::lock_guard lock(mutex_);
    StreamLists& from = lists_of(from_handle);
    return new_lists(StreamLists::Use::pool, stream_handle, &from);
  }

  void close_pool(StreamLists* lists) noexcept {
    std::lock_guard lock(mutex_);
    close(*lists);
  }

  /// Forgets a stream whose work is done. Its blocks, now and when their storages end, go where
  /// those of a pool go that was taken from the default stream.
  void end_stream(const Stream& stream) noexcept {
    std::lock_guard lock(mutex_);
    for (StreamUse* use = all_uses_; use;) {
      StreamUse* const next = use->next_of_all;
      if (use->stream == stream) drop(use);
      use = next;
    }
    if (stream.device != device_) return;
    StreamLists* const lists = find_lists_of(stream.handle);
    if (!lists) return;
    StreamLists& heir = lists_of(nullptr);
    for (StreamLists* pool = streams_; pool; pool = pool->next) {
      if (pool->from == lists) pool->from = &heir;
    }
    lists->handle = nullptr;
    lists->from = &heir;
    close(*lists);
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return {.in_use_bytes = static_cast<std::int64_t>(in_use_),
            .peak_in_use_bytes = static_cast<std::int64_t>(peak_),
            .cached_bytes = static_cast<std::int64_t>(held_ - in_use_),
            .driver_allocations = driver_allocations_,
            .driver_frees = driver_frees_,
            .in_use_by_owner = in_use_by_owner_,
            .peak_by_owner = peak_by_owner_,
            .most_by_owner = most_by_owner_};
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    note_peak();
    most_by_owner_ = in_use_by_owner_;
  }
  void set_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
    if (reported_) {
      reported_->limit.store(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
    }
  }
  void set_countdown(std::int64_t k) {
    std::lock_guard lock(mutex_);
    countdown_ = k;
  }
  std::int64_t countdown() {
    std::lock_guard lock(mutex_);
    return countdown_;
  }
  std::size_t limit() {
    std::lock_guard lock(mutex_);
    return limit_;
  }

 private:
  bool is_host() const { return device_.is_cpu(); }
  std::int64_t& in_use_by(MemoryOwner owner) {
    return in_use_by_owner_[static_cast<std::size_t>(owner)];
  }
  void add_to(MemoryOwner owner, std::size_t bytes) {
    std::int64_t& most = most_by_owner_[static_cast<std::size_t>(owner)];
    most = std::max(most, in_use_by(owner) += static_cast<std::int64_t>(bytes));
    tell_of(owner);
  }
  void take_from(MemoryOwner owner, std::size_t bytes) noexcept {
    in_use_by(owner) -= static_cast<std::int64_t>(bytes);
    tell_of(owner);
  }
  void tell_of(MemoryOwner owner) noexcept {
    if (pinned_) return;  // counts for no device
    // What an exception frees on its way stays there until the next change: when a rank has failed,
    // one wants to know what it held then.
    if (reported_ && std::uncaught_exceptions() == 0) {
      reported_->in_use[static_cast<std::size_t>(owner)].store(in_use_by(owner),
                                                               std::memory_order_relaxed);
    }
    const ThreadState* const state = detail::current_thread_state;  // null at the thread's end
    if (state && state->memory) [[unlikely]]
      state->memory->memory_changed(device_, owner, in_use_by(owner));
  }
  void note_peak() {
    peak_ = in_use_;
    peak_by_owner_ = in_use_by_owner_;
  }

  template <class F>
  StreamLists* find_lists(const F& fits) const {
    StreamLists* lists = streams_;
    while (lists && !fits(*lists)) lists = lists->next;
    return lists;
  }
  StreamLists* find_lists_of(void* handle) const {
    return find_lists([&](const StreamLists& lists) {
      return lists.use == StreamLists::Use::stream && lists.handle == handle;
    });
  }
  StreamLists& lists_of(void* handle) {
    StreamLists* const found = find_lists_of(handle);
    return found ? *found : *new_lists(StreamLists::Use::stream, handle, nullptr);
  }

  void close(StreamLists& lists) noexcept {
    lists.use = StreamLists::Use::closed_pool;
    for (FreeBlocks* blocks : {&lists.small, &lists.large}) {
      blocks->for_each([&](Block* block) {
        blocks->remove(block);
        merge(block);
      });
    }
  }

  void leave_all(StreamUse* use) noexcept {
    (use->previous_of_all ? use->previous_of_all->next_of_all : all_uses_) = use->next_of_all;
    if (use->next_of_all) use->next_of_all->previous_of_all = use->previous_of_all;
  }

  // Takes a use off its block.
  void drop(StreamUse* use) noexcept {
    StreamUse** link = &use->block->uses;
    while (*link != use) link = &(*link)->next;
    *link = use->next;
    leave_all(use);
    use->block = nullptr;
    use->next = std::exchange(spare_, use);
  }

  // Uses closed ones again that have no blocks any more.
  StreamLists* new_lists(StreamLists::Use use, void* handle, StreamLists* from) {
    StreamLists* lists = find_lists([](const StreamLists& of) {
      return of.use == StreamLists::Use::closed_pool && of.bytes == 0;
    });
    if (!lists) {
      lists = new StreamLists;
      lists->owner = this;
      lists->next = std::exchange(streams_, lists);
    }
    lists->use = use;
    lists->handle = handle;
    lists->from = from;
    return lists;
  }

  // Bytes that are in no storage and belong to pools other than `asking`, so only these can use
  // them.
  std::size_t unused_of_pools(const StreamLists* asking) const {
    std::size_t bytes = 0;
    for (const StreamLists* lists = streams_; lists; lists = lists->next) {
      if (lists->use == StreamLists::Use::pool && lists != asking) bytes += lists->unused;
    }
    return bytes;
  }

  // The smallest free block of at least `size` bytes that `pool` can take over; or null.
  Block* take_over(StreamLists& pool, std::size_t size) {
    const bool small = size <= kSmallSize;
    Block* const block = pool.from->blocks(small).best_fit(size);
    if (!block) return nullptr;
    pool.from->blocks(small).remove(block);
    move(block, pool);
    pool.blocks(small).insert(block);
    return block;
  }

  // `block` must be in no storage and in no list.
  static void move(Block* block, StreamLists& home) {
    block->home->bytes -= block->size;
    block->home->unused -= block->size;
    home.bytes += block->size;
    home.unused += block->size;
    block->home = &home;
  }

  // Gets a free block of at least `size` bytes from the driver. If that needs cached memory to be
  // given back first, blocks may have become whole on the way, and the block may be one of these.
  Block* new_segment(StreamLists& lists, std::size_t size, std::size_t asked) {
    if (lists.use == StreamLists::Use::pool) {
      if (Block* const block = take_over(lists, size)) return block;
    }
    const std::size_t bytes = segment_bytes(size);
    // Giving back waits for the device, which is not allowed while the stream records.
    const bool may_release = !thread_state().capture;
    if (limit_ != 0 && held_ + bytes > limit_ && may_release) release_cached_locked();
    auto block = std::make_unique<Block>();
    block->data = driver_allocate(bytes);
    if (!block->data) {
      if (!may_release) throw_out_of_memory(asked, "no cached memory is given back in a capture");
      release_cached_locked();
      if (Block* merged = lists.blocks(size <= kSmallSize).best_fit(size)) return merged;
      block->data = driver_allocate(bytes);
      if (!block->data) throw_out_of_memory(asked, "the device has no more");
    }
    held_ += bytes;
    lists.bytes += bytes;
    lists.unused += bytes;
    block->size = bytes;
    block->home = &lists;
    block->small = size <= kSmallSize;
    if (is_host()) poison(block->data, bytes);
    lists.blocks(block->small).insert(block.get());
    return block.release();
  }

  char* driver_allocate(std::size_t bytes) {
    ++driver_allocations_;
    void* const p =
        pinned_ ? driver_.allocate_pinned(bytes) : driver_.allocate(device_.index, bytes);
    return static_cast<char*>(p);
  }

  void release_cached_locked() {
    const OwnWait own;
    while (waiting_) {
      waiting_->event->synchronize();
      retire_first_wait();
    }
    for (StreamLists* lists = streams_; lists; lists = lists->next) {
      // Memory that a captured step wrote into may be free, but its replays write there again.
      if (lists->use == StreamLists::Use::pool) continue;
      give_back_whole_segments(*lists);
    }
  }

  void give_back_whole_segments(StreamLists& lists) {
    for (FreeBlocks* blocks : {&lists.small, &lists.large}) {
      blocks->for_each([this](Block* block) {
        if (block->is_whole()) give_back(block);
      });
    }
  }

  void give_back(Block* block) noexcept {
    StreamLists& lists = *block->home;
    lists.blocks(block->small).remove(block);
    lists.bytes -= block->size;
    lists.unused -= block->size;
    held_ -= block->size;
    ++driver_frees_;
    if (is_host()) unpoison(block->data, block->size);
    if (pinned_) {
      driver_.free_pinned(block->data);
    } else {
      driver_.free(device_.index, block->data, block->size);
    }
    delete block;
  }

  // Waits are in the order of the frees. Checking only the first costs one query per call and
  // delays a block at most until the older ones have passed.
  void free_passed_blocks() {
    while (waiting_ && waiting_->event->done()) retire_first_wait();
  }

  void retire_first_wait() {
    StreamUse* const use = waiting_;
    waiting_ = use->next;
    if (!waiting_) waiting_end_ = &waiting_;
    Block* const block = std::exchange(use->block, nullptr);
    use->next = std::exchange(spare_, use);
    if (--block->waits == 0) insert_and_merge(block);
  }

  // An event belongs to a device, so a spare one serves streams of its device only.
  StreamUse* take_spare(Device device) {
    for (StreamUse** link = &spare_; *link; link = &(*link)->next) {
      if ((*link)->stream.device == device) return std::exchange(*link, (*link)->next);
    }
    auto use = std::make_unique<StreamUse>();
    use->event = runtime(device).new_event(device.index);
    return use.release();
  }

  void insert_and_merge(Block* block) {
    driver_.take_back(block->data, {device_, block->home->handle});
    merge(block);
  }

  // Puts the block into its list, joined with free neighbours there. If its pool is closed, a whole
  // segment goes back to the driver, and a part of one goes to where the pool took it from.
  void merge(Block* block) {
    const bool closed = block->home->use == StreamLists::Use::closed_pool;
    if (closed) move(block, *block->home->from);
    FreeBlocks& blocks = block->home->blocks(block->small);
    const auto is_free = [&](const Block* neighbour) {
      return neighbour && neighbour->is_free && neighbour->home == block->home;
    };
    if (Block* next = block->after; is_free(next)) {
      blocks.remove(next);
      block->size += next->size;
      block->after = next->after;
      if (block->after) block->after->before = block;
      delete next;
    }
    if (Block* previous = block->before; is_free(previous)) {
      blocks.remove(previous);
      previous->size += block->size;
      previous->after = block->after;
      if (previous->after) previous->after->before = previous;
      delete std::exchange(block, previous);
    }
    blocks.insert(block);
    if (closed && block->is_whole()) give_back(block);
  }

  [[noreturn]] void throw_out_of_memory(std::size_t asked, const char* remedy) const {
    const std::size_t of_pools = unused_of_pools(nullptr);
    // Cached memory is given back before the limit would refuse it, so it is no reason there.
    const bool cache_matters = limit_ == 0 || of_pools > 0 || in_use_ + asked <= limit_;
    WEFT_THROW(OutOfMemory, "allocate", pinned_ ? "pinned memory" : to_string(device_),
               " is out of memory: asked ", readable_bytes(asked), ", in use ",
               readable_bytes(in_use_), ", ",
               limit_ ? "limit " + readable_bytes(limit_) : "no limit",
               cache_matters ? ", cached " + readable_bytes(held_ - in_use_) : "",
               of_pools ? ", of this " + readable_bytes(of_pools) + " by captured steps" : "", " (",
               remedy, ")");
  }

  Runtime& driver_;
  const Device device_;
  const bool pinned_;
  BlackBox::Memory* reported_ = nullptr;  // what a launcher sees; null without one

  std::mutex mutex_;  // guards everything below and every block
  StreamLists* streams_ = nullptr;
  StreamUse* all_uses_ = nullptr;
  StreamUse* waiting_ = nullptr;
  StreamUse** waiting_end_ = &waiting_;
  StreamUse* spare_ = nullptr;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
  std::array<std::int64_t, kMemoryOwners> in_use_by_owner_ = {}, peak_by_owner_ = {},
                                          most_by_owner_ = {};
  std::size_t held_ = 0;  // bytes held from the driver
  std::size_t limit_ = 0;
  std::int64_t driver_allocations_ = 0;
  std::int64_t driver_frees_ = 0;
  std::int64_t countdown_ = 0;
};

// Made at first use and never destroyed: storages may outlive static objects.
struct Allocators {
  std::atomic<DeviceAllocator*> of_device[2][kMaxDevices];
  std::atomic<DeviceAllocator*> pinned;
};
constinit Allocators allocators{};
constinit std::mutex allocators_mutex;

DeviceAllocator& made(std::atomic<DeviceAllocator*>& slot, Runtime& driver, Device device,
                      bool pinned) {
  std::lock_guard lock(allocators_mutex);
  if (!slot.load()) slot = new DeviceAllocator(driver, device, pinned);
  return *slot;
}

DeviceAllocator& allocator(Device device) {
  // The number of virtual CPU devices can become smaller, so one that was used before may no longer
  // exist.
  const int most = device.is_cpu() ? host_device_count() : kMaxDevices;
  if (device.index >= 0 && device.index < most) [[likely]] {
    auto& slot = allocators.of_device[static_cast<int>(device.type)][device.index];
    if (DeviceAllocator* found = slot.load(std::memory_order_acquire)) return *found;
    return made(slot, runtime(device), device, false);
  }
  runtime(device);  // throws: there is no such device
  WEFT_THROW(Internal, "allocate", "no allocator for ", device);
}

DeviceAllocator& pinned_allocator() {
  if (DeviceAllocator* found = allocators.pinned.load(std::memory_order_acquire)) return *found;
  return made(allocators.pinned, runtime(Device(DeviceType::cuda)), Device(DeviceType::cpu), true);
}

}  // namespace

MemoryStats memory_stats(Device device) { return allocator(device).stats(); }
void reset_peak_memory(Device device) { allocator(device).reset_peak(); }
void release_cached_memory(Device device) {
  graph::check_not_capturing("release_cached_memory", "it waits for the device");
  allocator(device).release_cached();
}

void set_memory_limit(Device device, std::int64_t bytes) {
  WEFT_CHECK(bytes >= 0, InvalidArgument, "set_memory_limit", "got ", bytes,
             " bytes, expected 0 or more");
  allocator(device).set_limit(static_cast<std::size_t>(bytes));
}

std::int64_t memory_limit(Device device) {
  return static_cast<std::int64_t>(allocator(device).limit());
}

std::string readable_bytes(std::size_t bytes) {
  if (bytes < KiB) return std::to_string(bytes) + " B";
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = KiB;
  int i = 0;
  while (i < 3 && bytes / unit >= 1024) unit *= 1024, ++i;
  char text[32];
  const std::size_t hundredths = (bytes % unit) * 100 / unit;
  std::snprintf(text, sizeof text, "%zu.%02zu %s", bytes / unit, hundredths, units[i]);
  return text;
}

const char* to_string(MemoryOwner owner) {
  constexpr const char* names[kMemoryOwners] = {"activations", "parameters",       "gradients",
                                                "optimizer",   "gathered outputs", "batches",
                                                "data set",    "whole parameters", "communication"};
  return names[static_cast<std::size_t>(owner)];
}

FailAllocation::FailAllocation(Device device, std::int64_t k) : device_(device) {
  WEFT_CHECK(k >= 1, InvalidArgument, "fail_allocation", "got ", k, ", expected 1 or more");
  allocator(device).set_countdown(k);
}
FailAllocation::~FailAllocation() { allocator(device_).set_countdown(0); }
bool FailAllocation::fired() const { return allocator(device_).countdown() == 0; }

void set_host_devices(int n) {
  detail::change_host_device_count(n, [](int so_far, int wanted) {
    // If the count was not determined yet, or there is no CPU runtime, no device can hold memory.
    if (so_far == 0 || device_count(DeviceType::cpu) == 0) return;
    for (int i = wanted; i < so_far; ++i) {
      const Device device(DeviceType::cpu, i);
      const std::int64_t held = memory_stats(device).in_use_bytes;
      WEFT_CHECK(held == 0, InvalidArgument, "host_devices", "got ", wanted, ", but ", device,
                 " still holds ", held, " bytes");
    }
    for (int i = wanted; i < so_far; ++i) release_cached_memory(Device(DeviceType::cpu, i));
  });
}

void detail::free_blocks_of(const Stream& stream) noexcept {
  const auto end_in = [&](const std::atomic<DeviceAllocator*>& slot) {
    if (DeviceAllocator* const made = slot.load(std::memory_order_acquire))
      made->end_stream(stream);
  };
  for (const auto& devices : allocators.of_device) {
    for (const auto& slot : devices) end_in(slot);
  }
  end_in(allocators.pinned);
}

MemoryPool::MemoryPool(const Stream& stream, const Stream& from)
    : lists_(allocator(stream.device).open_pool(stream.handle, from.handle)) {}
MemoryPool::~MemoryPool() { lists_->owner->close_pool(lists_); }
bool MemoryPool::owns(const Storage& storage) const {
  return storage.block_ && storage.block_->home == lists_;
}

intrusive_ptr<Storage> Storage::allocate(Device device, std::size_t bytes) {
  intrusive_ptr<Storage> storage(new Storage(device, empty_storage, bytes));
  storage->take_block();
  return storage;
}

void Storage::take_block() {
  DeviceAllocator& from = allocator(device_);
  if (bytes_ == 0) return;
  const PoolChoice* const pools = thread_state().pools;
  const MemoryPool* const pool = pools ? pools->pool_for(device_) : nullptr;
  block_ = from.allocate(bytes_, current_stream(device_).handle, pool ? pool->lists_ : nullptr);
  data_ = from.lend(*block_, bytes_);
}

void Storage::release(const char* why) {
  graph::check_not_capturing("release", "a replay would find other memory");
  if (bytes_ == 0 || released_) return;
  WEFT_CHECK(block_ && !pinned_, InvalidArgument, "release",
             "this memory does not come from the cache of ", device_);
  block_->home->owner->free(std::exchange(block_, nullptr));
  released_ = why;
}

void Storage::restore() {
  if (!released_) return;
  take_block();
  released_ = nullptr;
}

void Storage::throw_released() const { WEFT_THROW(InvalidArgument, "memory", released_); }

intrusive_ptr<Storage> Storage::borrow(Device device, void* data, std::size_t bytes,
                                       void (*release)(void*), void* context) {
  intrusive_ptr<Storage> storage(new Storage(device, data, bytes));
  storage->release_ = release;
  storage->release_context_ = context;
  return storage;
}

intrusive_ptr<Storage> Storage::allocate_pinned(std::size_t bytes) {
  graph::check_not_capturing("allocate_pinned", "host memory would not be part of the step");
  const Device host(DeviceType::cpu);
  if (device_count(DeviceType::cuda) == 0) return allocate(host, bytes);
  intrusive_ptr<Storage> storage(new Storage(host, empty_storage, bytes));
  storage->pinned_ = true;
  if (bytes > 0) {
    DeviceAllocator& from = pinned_allocator();
    storage->block_ = from.allocate(bytes, nullptr, nullptr);
    storage->data_ = from.lend(*storage->block_, bytes);
  }
  return storage;
}

Storage::~Storage() {
  if (block_) block_->home->owner->free(block_);
  if (charged_to_) allocator(device_).refund(bytes_, *charged_to_);
  if (release_) release_(release_context_);
}

void Storage::charge() {
  WEFT_CHECK(!block_ && !charged_to_, InvalidArgument, "charge", "this memory counts already");
  const MemoryOwner owner = thread_state().memory_owner;
  allocator(device_).charge(bytes_, owner);
  charged_to_ = owner;
}

void Storage::set_owner(MemoryOwner owner) {
  if (block_) block_->home->owner->set_owner(block_, owner);
  if (!charged_to_) return;
  allocator(device_).move(bytes_, *charged_to_, owner);
  charged_to_ = owner;
}

void Storage::record_stream(const Stream& stream) {
  graph::check_not_capturing("record_stream",
                             "work on another stream would not be part of the step");
  if (block_ && stream.device.is_cuda()) block_->home->owner->record_stream(block_, stream);
}

void Storage::record_copy() {
  record_stream(copy_stream(device_));
  before_write_.fetch_or(kCopiedAway, std::memory_order_relaxed);
}

void Storage::prepare_write() {
  WEFT_CHECK(!read_only(), InvalidArgument, "write",
             "this memory belongs to another library and may only be read; clone the tensor first");
  // A stream that records cannot wait for work outside the step: the step's launches do
  // (Step::replay).
  if (thread_state().capture) return;
  const std::uint8_t before = before_write_.fetch_and(std::uint8_t(~kCopiedAway));
  if (!(before & kCopiedAway)) return;
  wait_for_copies(current_stream(device_));
}

}  // namespace weft
