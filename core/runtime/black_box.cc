#include "weft/core/runtime/black_box.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

namespace weft {
namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

constexpr std::size_t kProbes = 32;  // after so many entries a text counts as one without room
constexpr int kTries = 100;          // of a reader, while a slot is written again and again

static_assert(std::is_trivially_destructible_v<BlackBox>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace

// --- Records -------------------------------------------------------------------------------------

std::uint64_t BlackBox::begin(OperationRecord record) {
  record.phase = phase_.load(memory_order_relaxed);
  std::uint64_t words[kWords];
  std::memcpy(words, &record, sizeof words);
  for (;;) {
    const std::uint64_t number = last_.fetch_add(1, memory_order_relaxed) + 1;
    Slot& slot = slots_[number % kRecords];
    std::uint64_t before = slot.sequence.load(memory_order_relaxed);
    // Another thread may still write there, or have written a later record, if the system has let
    // it, or this one, wait for 256 operations: then this record takes the next slot.
    if (before % 2 != 0 || before > 2 * number ||
        !slot.sequence.compare_exchange_strong(before, 2 * number - 1, memory_order_acquire)) {
      continue;
    }
    slot.end.store(-static_cast<std::int64_t>(number), memory_order_release);
    for (std::size_t i = 0; i < kWords; ++i) {
      slot.words[i].store(words[i], memory_order_release);
    }
    slot.sequence.store(2 * number, memory_order_release);
    return number;
  }
}

void BlackBox::end(std::uint64_t handle, bool failed) {
  std::int64_t open = -static_cast<std::int64_t>(handle);
  const std::int64_t now = steady_ns(std::chrono::steady_clock::now());
  slots_[handle % kRecords].end.compare_exchange_strong(open, 2 * now + failed,
                                                        memory_order_release, memory_order_relaxed);
}

std::vector<BlackBox::Found> BlackBox::operations() const {
  std::vector<std::pair<std::uint64_t, Found>> found;
  for (const Slot& slot : slots_) {
    for (int tries = 0; tries < kTries; ++tries) {
      const std::uint64_t sequence = slot.sequence.load(memory_order_acquire);
      if (sequence == 0) break;
      std::uint64_t words[kWords];
      for (std::size_t i = 0; i < kWords; ++i) {
        words[i] = slot.words[i].load(memory_order_acquire);
      }
      const std::int64_t end = slot.end.load(memory_order_acquire);
      if (sequence % 2 != 0 || slot.sequence.load(memory_order_relaxed) != sequence) continue;
      OperationRecord record;
      std::memcpy(&record, words, sizeof record);
      found.emplace_back(sequence, Found{record, end < 0 ? -1 : end / 2, end > 0 && end % 2 != 0});
      break;
    }
  }
  std::ranges::sort(found, {}, [](const auto& entry) { return entry.first; });
  std::vector<Found> records;
  for (const auto& entry : found) records.push_back(entry.second);
  return records;
}

// --- Texts ---------------------------------------------------------------------------------------

TextId BlackBox::find(std::string_view text, bool add) {
  text = text.substr(0, kMostText);
  if (text.empty()) return 0;
  const std::uint64_t hash = std::hash<std::string_view>{}(text);
  std::uint64_t mine = 0;
  for (std::size_t i = 0; i < kProbes; ++i) {
    const std::size_t at = (hash + i) % kTexts;
    std::uint64_t entry = texts_[at].load(memory_order_acquire);
    if (entry == 0) {
      if (!add) return 0;
      if (mine == 0) mine = append(text);
      if (mine == 0) return 0;
      mine |= hash >> 32 << 32;
      if (texts_[at].compare_exchange_strong(entry, mine, std::memory_order_acq_rel)) {
        return static_cast<TextId>(at + 1);
      }
    }
    if (entry >> 32 == hash >> 32 && text_at(entry) == text) return static_cast<TextId>(at + 1);
  }
  return 0;
}

// Returns its place as in texts_, 0 without room.
std::uint32_t BlackBox::append(std::string_view text) {
  if (text_bytes_used_.load(memory_order_relaxed) + 1 + text.size() > kTextBytes) return 0;
  const std::uint64_t at = text_bytes_used_.fetch_add(1 + text.size(), memory_order_relaxed);
  if (at + 1 + text.size() > kTextBytes) return 0;
  text_bytes_[at] = static_cast<unsigned char>(text.size());
  std::ranges::copy(text, text_bytes_ + at + 1);
  return static_cast<std::uint32_t>(at + 1);
}

// A program that writes over its own memory may have changed the entry: then it is cut off.
std::string_view BlackBox::text_at(std::uint64_t entry) const {
  const std::size_t place = entry & 0xffffffff;
  if (place == 0 || place >= kTextBytes) return {};
  const std::size_t size = std::min<std::size_t>(text_bytes_[place - 1], kTextBytes - place);
  return {reinterpret_cast<const char*>(text_bytes_ + place), size};
}

std::string BlackBox::text(TextId id) const {
  if (id == 0 || id > kTexts) return {};
  return std::string(text_at(texts_[id - 1].load(memory_order_acquire)));
}

TextId BlackBox::id_of_group(const std::string& members) {
  constexpr std::size_t kNumber = 16;  // for " #2"; a long list ends with a whole rank before it
  std::string list = members;
  if (list.size() > kMostText - kNumber) list.resize(list.rfind(',', kMostText - kNumber));
  std::string text = list;
  for (int i = 2; find(text, false) != 0; ++i) text = list + " #" + std::to_string(i);
  return id_of(text);
}

}  // namespace weft
