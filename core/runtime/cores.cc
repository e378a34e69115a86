#include "weft/core/runtime/cores.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

constexpr const char* kMembership = "/proc/self/cgroup";
constexpr const char* kCgroups = "/sys/fs/cgroup";

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Number `which` of a file; nothing if the file does not exist or contains "max".
std::optional<std::int64_t> number_in(const std::string& path, int which = 0) {
  std::istringstream in(read_file(path));
  std::string word;
  for (int i = 0; i <= which; ++i) in >> word;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || word.empty() || end != word.data() + word.size()) return {};
  return value;
}

/// Calls look(folder, v2) for the process' group of a controller and its ancestors, up to the
/// mount.
template <class Look>
void for_each_group(const std::string& membership, const std::string& root,
                    std::string_view controller, Look&& look) {
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool v2 = names.empty();
    if (!v2 && (',' + names + ',').find(detail::concat(',', controller, ',')) == std::string::npos)
      continue;
    // If the group is outside the mount (as in a container), only the mount itself can be read.
    for (const std::string& mount :
         v2 ? std::vector<std::string>{root}
            : std::vector<std::string>{root + '/' + names, detail::concat(root, '/', controller)}) {
      std::string path = line.substr(second + 1);
      for (;;) {
        while (path.ends_with('/')) path.pop_back();
        look(mount + path, v2);
        if (path.empty()) break;
        path.erase(path.find_last_of('/'));
      }
    }
  }
}

int affinity_cores() {
  // Uses the mask of the first thread: the calling one may have bound itself. A mask that is too
  // small for the machine's processors is refused with EINVAL.
  int count = 1;
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    std::vector<cpu_set_t> mask(bits / 8 / sizeof(cpu_set_t));
    const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(getpid(), bytes, mask.data()) != 0) continue;
    count = CPU_COUNT_S(bytes, mask.data());
    break;
  }
  // If OpenMP binds threads, it has already bound the first one, and knows the original mask.
  return omp_get_num_places() > 0 ? std::max(count, omp_get_num_procs()) : count;
}

// --- Threads of teams ----------------------------------------------------------------------------

// The number of extra threads that all teams of the process may have together.
struct Budget {
  std::mutex mutex;
  int used = 0;
  int limit = 0;  // 0: not determined yet
};
constinit Budget budget;

// Eight full teams or 256 threads, and at most half of the threads that the system still allows.
int budget_limit() {
  std::int64_t limit = std::max(256, 8 * core_count());
  limit = std::min<std::int64_t>(limit, omp_get_thread_limit() - 1);
  rlimit user{};
  if (getrlimit(RLIMIT_NPROC, &user) == 0 && user.rlim_cur != RLIM_INFINITY) {
    limit = std::min(limit, static_cast<std::int64_t>(user.rlim_cur / 2));
  }
  if (const int left = detail::threads_left(read_file(kMembership), kCgroups); left >= 0) {
    limit = std::min<std::int64_t>(limit, left / 2);
  }
  return static_cast<int>(std::max<std::int64_t>(limit, 1));
}

// Returns how many of `count` threads can exist at once, by starting them.
int startable(int count) {
  std::mutex mutex;
  std::condition_variable gate;
  bool open = false;
  std::vector<std::thread> threads;
  try {
    threads.reserve(count);
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        gate.wait(lock, [&] { return open; });
      });
    }
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  {
    std::lock_guard lock(mutex);
    open = true;
  }
  gate.notify_all();
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(threads.size());
}

// The team size granted to the calling thread, itself included. 0: it has not asked.
constinit thread_local int granted = 0;
constinit thread_local bool lost = false;
constinit thread_local bool refused = false;  // it gets no more threads

// OpenMP ends a thread's team together with the thread.
struct GiveBack {
  ~GiveBack() {
    std::lock_guard lock(budget.mutex);
    budget.used -= std::max(granted, 1) - 1;
    granted = 1;
    refused = true;  // code that still runs in this thread gets no team
  }
};

constinit ThreadLocal<GiveBack> give_back;

constinit std::atomic<int> forks{0};

void after_fork() {
  forks.fetch_add(1, std::memory_order_relaxed);
  lost = granted > 1;
  // Another thread may have held the lock.
  ::new (&budget) Budget;
  if (lost) budget.used = granted - 1;
}

struct AtFork {
  AtFork() { pthread_atfork(nullptr, nullptr, after_fork); }
} const at_fork;

}  // namespace

int fork_count() { return forks.load(std::memory_order_relaxed); }

int core_count() {
  static const int count = [] {
    const int cores = affinity_cores();
    const int quota = detail::quota_cores(read_file(kMembership), kCgroups);
    return quota > 0 ? std::min(cores, quota) : cores;
  }();
  return count;
}

void leave_thread_unbound() {
  static thread_local bool done = false;
  if (std::exchange(done, true)) return;
  const int places = omp_get_num_places();
  if (places == 0 || gettid() == getpid()) return;
  std::vector<int> cores;
  for (int place = 0; place < places; ++place) {
    std::vector<int> ids(omp_get_place_num_procs(place));
    omp_get_place_proc_ids(place, ids.data());
    cores.insert(cores.end(), ids.begin(), ids.end());
  }
  if (cores.empty()) return;
  const int last = *std::max_element(cores.begin(), cores.end());
  std::vector<cpu_set_t> mask(last / CPU_SETSIZE + 1);
  const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
  for (const int core : cores) CPU_SET_S(core, bytes, mask.data());
  sched_setaffinity(0, bytes, mask.data());  // if refused, the binding stays
}

namespace detail {

int quota_cores(const std::string& membership, const std::string& root) {
  int cores = 0;
  for_each_group(membership, root, "cpu", [&](const std::string& group, bool v2) {
    const auto quota = number_in(group + (v2 ? "/cpu.max" : "/cpu.cfs_quota_us"));
    const auto period =
        v2 ? number_in(group + "/cpu.max", 1) : number_in(group + "/cpu.cfs_period_us");
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    const auto here =
        static_cast<int>(std::min<std::int64_t>((*quota + *period - 1) / *period, INT_MAX));
    cores = cores == 0 ? here : std::min(cores, here);
  });
  return cores;
}

int threads_left(const std::string& membership, const std::string& root) {
  int left = -1;
  for_each_group(membership, root, "pids", [&](const std::string& group, bool) {
    const auto most = number_in(group + "/pids.max");
    const auto now = number_in(group + "/pids.current");
    if (!most || !now) return;
    const auto here = static_cast<int>(std::clamp<std::int64_t>(*most - *now, 0, INT_MAX));
    left = left < 0 ? here : std::min(left, here);
  });
  return left;
}

bool team_lost_in_fork() { return lost; }

int grant_team(int wanted) {
  if (wanted <= granted) [[likely]]
    return wanted;
  if (refused) return granted;
  static_cast<void>(*give_back);  // makes the object, so that it ends with the thread
  bool by_system = false;
  {
    std::lock_guard lock(budget.mutex);
    if (budget.limit == 0) budget.limit = budget_limit();
    const int has = std::max(granted, 1);
    const int allowed = std::min(wanted - has, std::max(0, budget.limit - budget.used));
    const int more = startable(allowed);
    by_system = more < allowed;
    budget.used += more;
    granted = has + more;
  }
  if (granted < wanted) {
    refused = true;
    log_warning(concat(
        "OpenMP teams of this thread have ", granted, " threads instead of ", wanted,
        by_system ? ": the system starts no more" : ": the process has no more threads for teams"));
  }
  return granted;
}

}  // namespace detail
}  // namespace weft
