#include "weft/comm/store/store.h"

#include <utility>

#include "weft/comm/store/key_table.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "store";

std::string checked_key(std::string_view key) {
  WEFT_CHECK(!key.empty() && key.size() <= Store::kMostKeyBytes, InvalidArgument, kOp, "a key of ",
             key.size(), " bytes; it may have 1 to ", Store::kMostKeyBytes);
  return std::string(key);
}

std::string_view checked_value(std::string_view key, std::string_view value) {
  WEFT_CHECK(value.size() <= Store::kMostValueBytes, InvalidArgument, kOp, "the value of '", key,
             "' has ", value.size(), " bytes; the most are ", Store::kMostValueBytes);
  return value;
}

}  // namespace

void Store::set(std::string_view key, std::string_view value) {
  do_set(checked_key(key), checked_value(key, value), Deadline(timeout_));
}

std::optional<std::string> Store::wait(std::string_view key, const Deadline& deadline) {
  const std::string checked = checked_key(key);
  for (;;) {
    try {
      if (auto value = do_get(checked, Deadline(deadline.left()))) return value;
      if (deadline.passed()) return std::nullopt;
    } catch (const Error& error) {
      // A store that does not answer for a moment is asked again until the deadline.
      if (error.code() != ErrorCode::Timeout || deadline.passed()) throw;
    }
  }
}

std::string Store::get(std::string_view key, const Deadline& deadline) {
  const auto start = Deadline::Clock::now();
  std::optional<std::string> value = wait(key, deadline);
  if (value) return *std::move(value);
  WEFT_THROW(Timeout, kOp, "nobody has set '", key, "' in ", describe(), " within ",
             seconds_since(start), " s");
}

std::optional<std::string> Store::try_get(std::string_view key) {
  return do_try_get(checked_key(key), Deadline(timeout_));
}

std::int64_t Store::add(std::string_view key, std::int64_t delta) {
  return do_add(checked_key(key), delta, Deadline(timeout_));
}

std::string Store::set_once(std::string_view key, std::string_view value) {
  return do_set_once(checked_key(key), checked_value(key, value), Deadline(timeout_));
}

bool Store::erase(std::string_view key) { return do_erase(checked_key(key), Deadline(timeout_)); }

// --- PrefixStore ---------------------------------------------------------------------------------

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix) + "/"), store_(std::move(store)) {
  set_timeout(store_->timeout());
}

std::unique_ptr<Store> PrefixStore::duplicate() const {
  auto copy = std::make_unique<PrefixStore>(*this);
  copy->store_ = store_->duplicate();
  return copy;
}

std::string PrefixStore::describe() const {
  return store_->describe() + " under '" + prefix_ + "'";
}

void PrefixStore::do_set(const std::string& key, std::string_view value, const Deadline& deadline) {
  store_->do_set(checked_key(prefix_ + key), value, deadline);
}

std::optional<std::string> PrefixStore::do_get(const std::string& key, const Deadline& deadline) {
  return store_->do_get(checked_key(prefix_ + key), deadline);
}

std::optional<std::string> PrefixStore::do_try_get(const std::string& key,
                                                   const Deadline& deadline) {
  return store_->do_try_get(checked_key(prefix_ + key), deadline);
}

std::int64_t PrefixStore::do_add(const std::string& key, std::int64_t delta,
                                 const Deadline& deadline) {
  return store_->do_add(checked_key(prefix_ + key), delta, deadline);
}

std::string PrefixStore::do_set_once(const std::string& key, std::string_view value,
                                     const Deadline& deadline) {
  return store_->do_set_once(checked_key(prefix_ + key), value, deadline);
}

bool PrefixStore::do_erase(const std::string& key, const Deadline& deadline) {
  return store_->do_erase(checked_key(prefix_ + key), deadline);
}

// --- MemoryStore ---------------------------------------------------------------------------------

MemoryStore::MemoryStore() : MemoryStore(std::make_shared<KeyTable>(), "memory") {}

MemoryStore::MemoryStore(std::shared_ptr<KeyTable> table, std::string place)
    : table_(std::move(table)), place_(std::move(place)) {}

std::unique_ptr<Store> MemoryStore::duplicate() const {
  return std::make_unique<MemoryStore>(*this);
}

void MemoryStore::do_set(const std::string& key, std::string_view value, const Deadline&) {
  table_->set(key, value);
}

std::optional<std::string> MemoryStore::do_get(const std::string& key, const Deadline& deadline) {
  return table_->wait(key, deadline);
}

std::optional<std::string> MemoryStore::do_try_get(const std::string& key, const Deadline&) {
  return table_->find(key);
}

std::int64_t MemoryStore::do_add(const std::string& key, std::int64_t delta, const Deadline&) {
  return table_->add(key, delta);
}

std::string MemoryStore::do_set_once(const std::string& key, std::string_view value,
                                     const Deadline&) {
  return table_->set_once(key, value);
}

bool MemoryStore::do_erase(const std::string& key, const Deadline&) { return table_->erase(key); }

}  // namespace weft::comm
