// For death tests on a system that starts no more threads.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "weft/tests/core/sanitized.h"

namespace weft::testing {

/// From here on the process has no room for another thread's stack, and little for anything else.
/// (RLIMIT_NPROC does not limit root, nor the root of a sandbox.)
inline void use_up_threads() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{4} << 20);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(99);
}

}  // namespace weft::testing
