// KeyTable: the keys and values of a store, in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "weft/comm/store/deadline.h"

namespace weft::comm {

/// Store::add: the new value of `key`, whose value is `value`. Throws InvalidArgument if that is
/// not a number.
std::int64_t sum_with(const std::string& key, const std::optional<std::string>& value,
                      std::int64_t delta);

/// MemoryStore and TcpStoreServer use it. Its calls are those of Store and thread-safe, but check
/// no lengths.
class KeyTable {
 public:
  void set(const std::string& key, std::string_view value);
  std::optional<std::string> find(const std::string& key) const;
  /// Waits for the key; returns nothing if the deadline passed.
  std::optional<std::string> wait(const std::string& key, const Deadline& deadline) const;
  std::int64_t add(const std::string& key, std::int64_t delta);
  std::string set_once(const std::string& key, std::string_view value);
  bool erase(const std::string& key);

  /// From now on calls `changed` after each set, add and set_once, in the calling thread and under
  /// the table's lock; null ends this.
  void observe(std::function<void()> changed);

 private:
  std::optional<std::string> look_up(const std::string& key) const;
  void put(const std::string& key, std::string_view value);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::unordered_map<std::string, std::string> values_;
  std::function<void()> observer_;
};

}  // namespace weft::comm
