// The state and the errors that the exchange() functions of all backends share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "weft/comm/backend/backend.h"

namespace weft::comm {

/// Whether a backend may still be used, and the errors of its exchange(); `backend` is its name.
class ExchangeState {
 public:
  explicit ExchangeState(const char* backend) : backend_(backend) {}

  /// Runs f(), the body of exchange(). Throws Comm instead if an earlier call failed or abort() was
  /// called.
  template <class F>
  void run(F&& f) {
    check();
    try {
      f();
    } catch (const std::exception& error) {
      failure_ = error.what();
      throw;
    }
  }

  void abort() noexcept { aborted_ = true; }
  bool aborted() const { return aborted_; }

  /// Throws "rank 2 closed its connection"; but Comm after abort(), which looks the same from here.
  [[noreturn]] void throw_closed(int rank, const std::string& reason = {}) const;
  /// Throws "rank 2 has sent 0 of 400 bytes"; `did` is "sent" or "taken".
  [[noreturn]] void throw_timeout(int rank, const char* did, const std::string& done,
                                  std::size_t bytes) const;
  /// Throws Comm unless both sides of a message have the same number of bytes.
  void check_bytes(int from, std::uint64_t sent, int to, std::uint64_t expected) const;
  [[noreturn]] void throw_aborted() const;

 private:
  void check() const;

  const char* backend_;
  std::atomic<bool> aborted_{false};
  std::string failure_;
};

}  // namespace weft::comm
