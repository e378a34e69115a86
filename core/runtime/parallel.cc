#include "weft/core/runtime/parallel.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>

#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

// OMP_NUM_THREADS replaces the number of cores: launchers use it to divide a machine.
int threads_of_process() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const long n = std::strtol(text, nullptr, 10);
    if (n >= 1 && n <= 1 << 16) return static_cast<int>(n);
  }
  return core_count();
}

}  // namespace

int num_threads() {
  if (omp_in_parallel() || detail::team_lost_in_fork()) return 1;
  static const int all = threads_of_process();
  const int n = thread_state().num_threads;
  const int wanted = n > 0 ? n : std::max(1, all / host_device_count());
  return wanted > 1 ? detail::grant_team(wanted) : 1;
}

void set_num_threads(int n) {
  WEFT_CHECK(n >= 1, InvalidArgument, "num_threads", "got ", n, ", expected at least 1");
  thread_state().num_threads = n;
}

namespace detail {

void parallel_run(int team, std::int64_t n, ParallelBody body, void* f) {
  const ThreadState state = thread_state();  // a copy: the caller's body may change its own
  std::mutex mutex;
  std::exception_ptr error;
  int failed_part = team;
  // OpenMP binds the teams of all threads to the same cores.
  static const bool binds = omp_get_num_places() > 0;
  const bool unbind = binds && gettid() != getpid();

  const auto run_part = [&](int part) {
    // The first n % team parts are one element longer.
    const std::int64_t each = n / team;
    const std::int64_t longer = n % team;
    const std::int64_t begin = part * each + std::min<std::int64_t>(part, longer);
    const std::int64_t end = begin + each + (part < longer ? 1 : 0);
    try {
      // Not for the calling thread: it has the state already, and may change it.
      std::optional<ThreadStateGuard> inherited;
      if (omp_get_thread_num() != 0) inherited.emplace(state);
      body(f, begin, end);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (part < failed_part) {
        failed_part = part;
        error = std::current_exception();
      }
    }
  };

#pragma omp parallel num_threads(team)
  {
    // The runtime may grant fewer threads than asked; the partition stays the same.
    const int threads = omp_get_num_threads();
    const int me = omp_get_thread_num();
    if (unbind) leave_thread_unbound();
    for (int part = me; part < team; part += threads) run_part(part);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace detail
}  // namespace weft
