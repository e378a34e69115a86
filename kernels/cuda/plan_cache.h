// Plans by problem, for the life of the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace weft::cuda {

/// Everything a plan depends on, written out as numbers.
using PlanKey = std::vector<std::int64_t>;

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    std::uint64_t h = 0xcbf29ce484222325u;  // FNV-1a over words, folded down after each
    for (const std::int64_t word : key) {
      h = (h ^ static_cast<std::uint64_t>(word)) * 0x100000001b3u;
      h ^= h >> 29;
    }
    return h;
  }
};

template <class P>
class PlanCache {
 public:
  /// The plan of `key`; make() -> std::unique_ptr<P> when it is new. One plan is made at a time, so
  /// that timing one does not disturb timing another.
  template <class Make>
  const P& get(std::span<const std::int64_t> words, Make&& make) {
    const std::lock_guard lock(mutex_);
    key_.assign(words.begin(), words.end());  // reuses its memory: a lookup touches no heap
    const auto found = plans_.find(key_);
    if (found != plans_.end()) return *found->second;
    std::unique_ptr<P> made = make();
    return *plans_.emplace(key_, std::move(made)).first->second;
  }

 private:
  std::mutex mutex_;
  PlanKey key_;  // guarded by mutex_, like the map
  std::unordered_map<PlanKey, std::unique_ptr<P>, PlanKeyHash> plans_;
};

}  // namespace weft::cuda
