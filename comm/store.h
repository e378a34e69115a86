// Store: keys and values that all ranks of a run see, through which they find each other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/comm/deadline.h"

namespace weft::comm {

class KeyTable;

/// Thread-safe. Every call ends by its deadline, with Timeout that names the key and what is known
/// of the store's place; a store that cannot be reached any more throws PeerFailed, a file system
/// that refuses Io, a key or value beyond the limits InvalidArgument.
class Store {
 public:
  static constexpr std::size_t kMostKeyBytes = 1024, kMostValueBytes = std::size_t{1} << 20;

  virtual ~Store() = default;

  /// Replaces the value; values are any bytes.
  void set(std::string_view key, std::string_view value);
  /// Waits until somebody has set the key.
  std::string get(std::string_view key) { return get(key, Deadline(timeout_)); }
  std::string get(std::string_view key, const Deadline& deadline);
  /// As get(), but nothing when the deadline passed.
  std::optional<std::string> wait(std::string_view key, const Deadline& deadline);
  /// Nothing where the key has not been set.
  std::optional<std::string> try_get(std::string_view key);
  /// Adds to the number under the key, in decimal, 0 where there is none, and gives the sum. Throws
  /// InvalidArgument where the value is no number.
  std::int64_t add(std::string_view key, std::int64_t delta);
  /// Sets the key unless it has been set; gives the value that it has then.
  std::string set_once(std::string_view key, std::string_view value);
  /// Whether there was one.
  bool erase(std::string_view key);

  /// Another connection to the same store, for a thread that must not wait for calls of others.
  virtual std::unique_ptr<Store> duplicate() const = 0;
  /// "tcp://127.0.0.1:29500", for messages.
  virtual std::string describe() const = 0;

  /// Of calls without a deadline of their own; 300 s as PyTorch's.
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

 protected:
  // Keys and values have been checked.
  virtual void do_set(const std::string& key, std::string_view value, const Deadline&) = 0;
  /// Nothing if the deadline passed.
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

/// The keys of `store` that begin with `prefix` and a slash, without that: groups and restarts do
/// not meet. Keeps the timeout that `store` had.
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

/// In the memory of this process, for ranks that are its threads.
class MemoryStore final : public Store {
 public:
  MemoryStore();
  /// Shows the keys of `table`, which `place` describes.
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
