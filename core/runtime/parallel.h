// The only way in which weft's CPU code runs in parallel: a team of OpenMP threads, the same
// runtime as oneDNN uses.
#pragma once

#include <cstdint>
#include <type_traits>

#include "weft/core/runtime/cores.h"

namespace weft {

/// Team size for the calling thread: thread_state().num_threads, else OMP_NUM_THREADS or, if that
/// is not set, the process's cores, divided by the number of virtual CPU devices. 1 inside a team,
/// and in a child of fork() for the thread that called fork(), if it had a team. Smaller if the
/// process or its user is at the limit of threads: this is decided at the thread's first call, and
/// logged.
int num_threads();
/// Sets the team size of the calling thread. Throws InvalidArgument for n < 1.
void set_num_threads(int n);
namespace detail {
using ParallelBody = void (*)(void* f, std::int64_t begin, std::int64_t end);
void parallel_run(int team, std::int64_t n, ParallelBody body, void* f);
}  // namespace detail

/// Calls f(begin, end) for a partition of [0, n) into one contiguous range per thread, each of at
/// least `grain` elements (all in the calling thread if n <= grain). The partition depends only on
/// n, grain and team size. All ranges run to their end or their exception; the exception of the
/// lowest range is rethrown in the caller. The team uses a copy of the caller's ThreadState.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  const std::int64_t parts = n <= grain ? 1 : n / grain;
  const int team = parts == 1 ? 1 : parts < num_threads() ? static_cast<int>(parts) : num_threads();
  if (team <= 1) {
    f(std::int64_t{0}, n);
    return;
  }
  detail::parallel_run(
      team, n,
      [](void* body, std::int64_t begin, std::int64_t end) {
        (*static_cast<std::remove_reference_t<F>*>(body))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace weft
