// For death tests of what happens when the system starts no more threads.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace weft::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizedThreads = true;  // they need address space of their own
#elif defined(__has_feature)
constexpr bool kSanitizedThreads =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitizedThreads = false;
#endif

/// The process has no room for another thread's stack from here on, and little for anything else.
/// (RLIMIT_NPROC does not bind root, nor the root of a sandbox.)
inline void use_up_threads() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{4} << 20);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(99);
}

}  // namespace weft::testing
