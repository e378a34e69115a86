// A disk that fails on request: replaces write, fsync and rename in the program that links it.
#pragma once

namespace weft::testing {

struct Faults {
  int fail_write = 0;  ///< which call of write() fails, counting from 1; 0: none
  int fail_fsync = 0;
  int fail_rename = 0;
  int error = 0;              ///< errno of the failing call
  bool short_writes = false;  ///< write() takes at most 1000 bytes at a time
  bool interrupted = false;   ///< every other write() stops with EINTR

  int writes = 0, fsyncs = 0, renames = 0;  ///< calls so far
};

/// Active while the object lives. One at a time.
class FaultScope {
 public:
  explicit FaultScope(Faults faults);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
  const Faults& faults() const;
};

}  // namespace weft::testing
