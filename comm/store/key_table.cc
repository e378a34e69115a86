#include "weft/comm/store/key_table.h"

#include <charconv>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::comm {
std::int64_t sum_with(const std::string& key, const std::optional<std::string>& value,
                      std::int64_t delta) {
  std::int64_t sum = 0;
  if (value) {
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, sum);
    WEFT_CHECK(error == std::errc() && stop == end, InvalidArgument, "store", "cannot add to '",
               key, "': its value of ", value->size(), " bytes is no number of 64 bits");
  }
  WEFT_CHECK(!__builtin_add_overflow(sum, delta, &sum), InvalidArgument, "store", "adding ", delta,
             " to '", key, "' leaves 64 bits");
  return sum;
}

// Here and in put() the caller holds the lock.
std::optional<std::string> KeyTable::look_up(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void KeyTable::put(const std::string& key, std::string_view value) {
  values_.insert_or_assign(key, std::string(value));
  changed_.notify_all();
  if (observer_) observer_();
}

void KeyTable::set(const std::string& key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  put(key, value);
}

std::optional<std::string> KeyTable::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return look_up(key);
}

std::optional<std::string> KeyTable::wait(const std::string& key, const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [&] { return values_.contains(key); });
  return look_up(key);
}

std::int64_t KeyTable::add(const std::string& key, std::int64_t delta) {
  const std::lock_guard lock(mutex_);
  const std::int64_t sum = sum_with(key, look_up(key), delta);
  put(key, std::to_string(sum));
  return sum;
}

std::string KeyTable::set_once(const std::string& key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  if (std::optional<std::string> found = look_up(key)) return *std::move(found);
  put(key, value);
  return std::string(value);
}

bool KeyTable::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return values_.erase(key) > 0;
}

void KeyTable::observe(std::function<void()> changed) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(changed);
}

}  // namespace weft::comm
