// For death tests on a system that starts no more threads.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
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
  // Since the reading another thread may have given memory back, as when it gets a heap of its own.
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  const auto take = [] {
    return mmap(nullptr, kBlock, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  };
  void* last[4] = {};
  std::size_t count = 0;
  for (void* block = take(); block != MAP_FAILED; block = take()) last[count++ % 4] = block;
  for (void* const block : last) {
    if (block) munmap(block, kBlock);
  }
}

}  // namespace weft::testing
