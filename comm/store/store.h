// Store: keys and values that all ranks of a run can read and write; they find each other through
// it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/comm/store/deadline.h"

namespace weft::comm {

class KeyTable;

/// Thread-safe. Every call ends by its deadline. It throws Timeout, which names the key and the
/// store's place; PeerFailed when the store can no longer be reached; Io for a file system's error;
/// InvalidArgument for a key or value beyond the limits.
class Store {
 public:
  static constexpr std::size_t kMostKeyBytes = 1024, kMostValueBytes = std::size_t{1} << 20;

  virtual ~Store() = default;

  /// Replaces the value; values are any bytes.
  void set(std::string_view key, std::string_view value);
  /// Waits until somebody has set the key.
  std::string get(std::string_view key) { return get(key, Deadline(timeout_)); }
  std::string get(std::string_view key, const Deadline& deadline);
  /// As get(), but returns nothing when the deadline has passed.
  std::optional<std::string> wait(std::string_view key, const Deadline& deadline);
  /// Returns nothing if the key has not been set.
  std::optional<std::string> try_get(std::string_view key);
  /// Adds to the decimal number under the key (0 if there is none) and returns the sum. Throws
  /// InvalidArgument if the value is not a number.
  std::int64_t add(std::string_view key, std::int64_t delta);
  /// Sets the key unless it has been set; returns the value after that.
  std::string set_once(std::string_view key, std::string_view value);
  /// Returns whether the key was set.
  bool erase(std::string_view key);

  /// Another connection to the same store, for a thread that must not wait for other threads'
  /// calls.
  virtual std::unique_ptr<Store> duplicate() const = 0;
  /// "tcp://127.0.0.1:29500", for messages.
  virtual std::string describe() const = 0;

  /// For calls without a deadline of their own; 300 s as in PyTorch.
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

 protected:
  // Keys and values have been checked.
  virtual void do_set(const std::string& key, std::string_view value, const Deadline&) = 0;
  /// Returns nothing if the deadline passed.
  virtual std::optional<std::string> do_get(const std::string& key, const Deadline&) = 0;
  virtual std::optional<std::string> do_try_get(const std::string& key, const Deadline&) = 0;
  virtual std::int64_t do_add(const std::string& key, std::int64_t delta, const Deadline&) = 0;
  virtual std::string do_set_once(const std::string& key, std::string_view value,
                                  const Deadline&) = 0;
  virtual bool do_erase(const std::string& key, const Deadline&) = 0;

 private:
  friend class PrefixStore;
  std::chrono::milliseconds timeout_{300'000};
};

/// The keys of `store` that begin with `prefix` and a slash, shown without them, so that the keys
/// of groups and restarts stay apart. Keeps the timeout that `store` had.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

  std::unique_ptr<Store> duplicate() const override;
  std::string describe() const override;

 private:
  void do_set(const std::string& key, std::string_view value, const Deadline&) override;
  std::optional<std::string> do_get(const std::string& key, const Deadline&) override;
  std::optional<std::string> do_try_get(const std::string& key, const Deadline&) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, const Deadline&) override;
  std::string do_set_once(const std::string& key, std::string_view value, const Deadline&) override;
  bool do_erase(const std::string& key, const Deadline&) override;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

/// A store in the memory of this process, for ranks that are its threads.
class MemoryStore final : public Store {
 public:
  MemoryStore();
  /// Gives access to the keys of `table`; `place` describes them.
  MemoryStore(std::shared_ptr<KeyTable> table, std::string place);

  std::unique_ptr<Store> duplicate() const override;
  std::string describe() const override { return place_; }

 private:
  void do_set(const std::string& key, std::string_view value, const Deadline&) override;
  std::optional<std::string> do_get(const std::string& key, const Deadline&) override;
  std::optional<std::string> do_try_get(const std::string& key, const Deadline&) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, const Deadline&) override;
  std::string do_set_once(const std::string& key, std::string_view value, const Deadline&) override;
  bool do_erase(const std::string& key, const Deadline&) override;

  std::shared_ptr<KeyTable> table_;
  std::string place_;
};

}  // namespace weft::comm
