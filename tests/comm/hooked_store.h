// A store that fails, or is slow, as a test needs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "weft/comm/store/store.h"
#include "weft/core/base/error.h"

namespace weft::testing {

/// First calls `before` with the key, which may throw.
class HookedStore final : public comm::Store {
 public:
  using Hook = std::function<void(const std::string& key)>;
  HookedStore(std::shared_ptr<comm::Store> store, Hook before)
      : store_(std::move(store)), before_(std::move(before)) {}
  std::unique_ptr<comm::Store> duplicate() const override {
    return std::make_unique<HookedStore>(store_, before_);
  }
  std::string describe() const override { return store_->describe(); }

 private:
  void do_set(const std::string& key, std::string_view value, const comm::Deadline&) override {
    before_(key);
    store_->set(key, value);
  }
  std::optional<std::string> do_get(const std::string& key,
                                    const comm::Deadline& deadline) override {
    before_(key);
    return store_->wait(key, deadline);
  }
  std::optional<std::string> do_try_get(const std::string& key, const comm::Deadline&) override {
    before_(key);
    return store_->try_get(key);
  }
  std::int64_t do_add(const std::string& key, std::int64_t delta, const comm::Deadline&) override {
    before_(key);
    return store_->add(key, delta);
  }
  std::string do_set_once(const std::string& key, std::string_view value,
                          const comm::Deadline&) override {
    before_(key);
    return store_->set_once(key, value);
  }
  bool do_erase(const std::string& key, const comm::Deadline&) override {
    before_(key);
    return store_->erase(key);
  }

  const std::shared_ptr<comm::Store> store_;
  const Hook before_;
};

[[noreturn]] inline void store_times_out() {
  throw Error(ErrorCode::Timeout, "store", "does not answer", __FILE__, __LINE__);
}

}  // namespace weft::testing
