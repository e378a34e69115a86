// Messages: what the ranks of an exercise talk through. It stands on a weft::comm::Backend, so that
// a solution runs on the judge's ranks and on weft's own backends alike.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "weft/comm/backend/backend.h"

namespace weft::learn {

/// What not_yet() throws.
struct NotYet : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Stands in a skeleton where something is to be written.
[[noreturn]] inline void not_yet(const std::string& what) { throw NotYet(what); }

/// One rank's way to the others. Calls throw weft's Error if another rank fails.
class Messages {
 public:
  Messages(comm::Backend& backend, const comm::Deadline& deadline)
      : backend_(backend), deadline_(deadline) {}

  int rank() const { return backend_.rank(); }
  int size() const { return backend_.size(); }  ///< the number of ranks

  /// Returns when rank `to` has received the numbers: two ranks that both send first wait for ever.
  void send(int to, std::span<const float> numbers) {
    const comm::Outgoing out{to, std::as_bytes(numbers)};
    backend_.exchange({&out, 1}, {}, deadline_);
  }
  /// Fills `numbers`, whose size must be that of what rank `from` sends.
  void receive(int from, std::span<float> numbers) {
    const comm::Incoming in{from, std::as_writable_bytes(numbers)};
    backend_.exchange({}, {&in, 1}, deadline_);
  }
  /// Both at once, in one step. `out` and `in` must not overlap.
  void exchange(int to, std::span<const float> out, int from, std::span<float> in) {
    const comm::Outgoing going{to, std::as_bytes(out)};
    const comm::Incoming coming{from, std::as_writable_bytes(in)};
    backend_.exchange({&going, 1}, {&coming, 1}, deadline_);
  }

  comm::Backend& backend() { return backend_; }
  const comm::Deadline& deadline() const { return deadline_; }

 private:
  comm::Backend& backend_;
  const comm::Deadline deadline_;
};

}  // namespace weft::learn
