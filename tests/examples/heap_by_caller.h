// Counts heap allocations of the whole program by the library that requests them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace weft::testing {

/// Counts every malloc, calloc, realloc, aligned_alloc and operator new of all threads while it
/// lives. One at a time.
class HeapByCaller {
 public:
  /// False under sanitizers, which have their own malloc: nothing is counted then.
  static bool available();

  HeapByCaller();
  ~HeapByCaller();

  /// Allocations per caller since construction: "weft" for the program and its libraries, else the
  /// file name of the library nearest to the call that is not the C or C++ run-time library.
  std::map<std::string, std::int64_t> counts() const;
  /// One call stack of an allocation by weft, for the message of a failing test; empty without one.
  std::string example() const;
};

}  // namespace weft::testing
