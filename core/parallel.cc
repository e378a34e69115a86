#include "weft/core/parallel.h"

#include <omp.h>
#include <sched.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "weft/core/device.h"
#include "weft/core/error.h"
#include "weft/core/thread_state.h"

namespace weft {
namespace {

int count_cores() {
  // A mask too small for the machine's processors is refused with EINVAL.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    std::vector<cpu_set_t> mask(bits / 8 / sizeof(cpu_set_t));
    const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) return CPU_COUNT_S(bytes, mask.data());
  }
  return 1;
}

// Launchers share out a machine by OMP_NUM_THREADS, so it stands in for the cores.
int threads_of_process() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const long n = std::strtol(text, nullptr, 10);
    if (n >= 1 && n <= 1 << 16) return static_cast<int>(n);
  }
  return core_count();
}

}  // namespace

int core_count() {
  static const int count = count_cores();
  return count;
}

int num_threads() {
  if (omp_in_parallel()) return 1;
  if (const int n = thread_state().num_threads) return n;
  static const int all = threads_of_process();
  return std::max(1, all / host_device_count());
}

void set_num_threads(int n) {
  WEFT_CHECK(n >= 1, InvalidArgument, "num_threads", "got ", n, ", expected at least 1");
  thread_state().num_threads = n;
}

namespace detail {

void parallel_run(int team, std::int64_t n, ParallelBody body, void* f) {
  const ThreadState state = thread_state();  // the caller's body may change its own meanwhile
  std::mutex mutex;
  std::exception_ptr error;
  int failed_part = team;

  const auto run_part = [&](int part) {
    // The first n % team parts are one element longer.
    const std::int64_t each = n / team;
    const std::int64_t longer = n % team;
    const std::int64_t begin = part * each + std::min<std::int64_t>(part, longer);
    const std::int64_t end = begin + each + (part < longer ? 1 : 0);
    try {
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
    std::optional<ThreadStateGuard> inherited;
    if (me != 0) inherited.emplace(state);
    for (int part = me; part < team; part += threads) run_part(part);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace detail
}  // namespace weft
