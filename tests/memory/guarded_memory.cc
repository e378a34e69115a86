#include "weft/tests/memory/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define WEFT_ASAN 1
#endif
#endif

namespace weft::testing {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kKeptFreed = 1000;
constexpr unsigned char kGap = 0xa5, kFresh = 0xff;

std::size_t round_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

// AddressSanitizer also detects accesses that end within a page.
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

void check_gap(const unsigned char* from, const unsigned char* to, const char* where,
               std::size_t bytes) {
  if (std::all_of(from, to, [](unsigned char c) { return c == kGap; })) return;
  std::fprintf(stderr, "somebody wrote %s a storage of %zu bytes\n", where, bytes);
  std::abort();
}

}  // namespace

void* GuardedMemory::lend(void* p, std::size_t bytes, const Stream&) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Place place{};
  place.bytes = bytes;
  const std::size_t usable = round_up(bytes, page);
  place.mapped = usable + 2 * page;
  void* const pages = mmap(nullptr, place.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  place.pages = static_cast<unsigned char*>(pages);
  unsigned char* const first = place.pages + page;
  unsigned char* const last = first + usable;
  if (mprotect(first, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(pages, place.mapped);
    throw std::bad_alloc();
  }
  place.data = side_ == Side::end ? last - round_up(bytes, kAlignment) : first;
  std::memset(first, kGap, static_cast<std::size_t>(place.data - first));
  std::memset(place.data, kFresh, bytes);
  std::memset(place.data + bytes, kGap, static_cast<std::size_t>(last - (place.data + bytes)));
  poison(first, static_cast<std::size_t>(place.data - first));
  poison(place.data + bytes, static_cast<std::size_t>(last - (place.data + bytes)));
  const std::lock_guard lock(mutex_);
  lent_.insert_or_assign(p, place);
  return place.data;
}

void GuardedMemory::take_back(void* p, const Stream&) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = lent_.find(p);
  if (found == lent_.end()) return;  // lent by the runtime before this one
  const Place place = found->second;
  lent_.erase(found);

  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  unsigned char* const first = place.pages + page;
  unsigned char* const last = place.pages + place.mapped - page;
  unpoison(first, static_cast<std::size_t>(last - first));
  check_gap(first, place.data, "before", place.bytes);
  check_gap(place.data + place.bytes, last, "after", place.bytes);
  // New pages without access replace the old ones, whose memory the kernel gets back.
  mmap(place.pages, place.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  freed_.push_back(place);
  if (freed_.size() > kKeptFreed) {
    munmap(freed_.front().pages, freed_.front().mapped);
    freed_.pop_front();
  }
}

}  // namespace weft::testing
