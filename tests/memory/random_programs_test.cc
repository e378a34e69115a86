// Random programs on memory in which an access next to a storage ends the process (GuardedMemory).
// Their numbers are not checked: an operation must return tensors that are inside their storages,
// or throw an Error. Programs run in child processes, so that a crash can be reported. Environment
// variables:
//   WEFT_CASES    programs (100)       WEFT_SEED  the first one (1)
//   WEFT_VERBOSE  if set: the name of each operation, before it is called
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/draw.h"
#include "weft/tests/core/sanitized.h"
#include "weft/tests/memory/guarded_memory.h"
#include "weft/tests/memory/heap_limit.h"
#include "weft/tests/memory/program.h"

namespace weft::testing {
namespace {

// A program takes milliseconds, but oneDNN's teams spin while they wait for a thread without a
// core. The first limit is processor time; the second is for threads that wait for each other.
constexpr int kMostSeconds = kSanitized ? 100 : 30, kMostWaiting = 300;
constexpr std::size_t kMostOperations = 1024;

/// A child's report to its parent.
struct Report {
  std::int64_t seed;
  std::int64_t step;
  std::size_t operation;
  char what[1000];
  std::int64_t calls[kMostOperations], results[kMostOperations];
};

class Silence final : public LogSink {
 public:
  void write(Level, std::string_view) override {}
};

void set_alarms(int processor_seconds, int seconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = processor_seconds;
  setitimer(ITIMER_PROF, &timer, nullptr);
  timer.it_value.tv_sec = seconds;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation>& all = *new std::vector<Operation>([] {
    std::vector<Operation> list;
    for (const auto& room : rooms()) list.insert(list.end(), room.begin(), room.end());
    return list;
  }());
  return all;
}

/// Draws from all operations, or first draws a room: some rooms have few operations with many
/// kernels.
std::size_t draw_operation(Draw& draw) {
  const auto total = static_cast<std::int64_t>(operations().size());
  if (draw.one_in(2)) return static_cast<std::size_t>(draw.between(0, total - 1));
  const std::int64_t room = draw.between(0, std::ssize(rooms()) - 1);
  std::size_t before = 0;
  for (std::int64_t i = 0; i < room; ++i) before += rooms()[std::size_t(i)].size();
  return before + std::size_t(draw.between(0, std::ssize(rooms()[std::size_t(room)]) - 1));
}

void run_program(std::uint64_t seed, GuardedMemory& memory, Report& report) {
  set_alarms(kMostSeconds, kMostWaiting);
  memory.set_side(seed % 2 == 0 ? GuardedMemory::Side::end : GuardedMemory::Side::begin);
  const Scoped threads(&ThreadState::num_threads, seed / 2 % 2 == 0 ? 1 : 3);
  // Timing runs all ways to compute a product or a convolution.
  const Scoped deterministic(&ThreadState::deterministic, seed / 4 % 2 == 0);
  manual_seed(seed);
  Program program(seed);
  const std::int64_t steps = program.draw.between(5, 30);
  const bool verbose = std::getenv("WEFT_VERBOSE") != nullptr;
  for (report.step = 0; report.step < steps; ++report.step) {
    report.operation = draw_operation(program.draw);
    if (verbose) std::fprintf(stderr, "%s\n", operations()[report.operation].name);
    ++report.calls[report.operation];
    report.results[report.operation] += program.step(operations()[report.operation]);
  }
  program.finish();
}

/// The child: runs programs first ... last - 1, until one fails.
[[noreturn]] void run_programs(std::int64_t first, std::int64_t last, Report& report) {
  static GuardedMemory memory(runtime(Device()));
  register_runtime(DeviceType::cpu, &memory);
  set_memory_limit(Device(), kMostBytes);
  Silence silence;
  const Scoped log(&ThreadState::log, static_cast<LogSink*>(&silence));
  for (report.seed = first; report.seed < last; ++report.seed) {
    try {
      run_program(std::uint64_t(report.seed), memory, report);
      const std::int64_t left = memory_stats(Device()).in_use_bytes;
      if (left != 0) throw std::runtime_error(std::to_string(left) + " bytes are left in use");
    } catch (const std::exception& error) {
      std::snprintf(report.what, sizeof report.what, "%s", error.what());
      _exit(1);
    }
  }
  _exit(0);
}

TEST(RandomPrograms, GiveResultsOrErrors) {
  ASSERT_LE(operations().size(), kMostOperations);
  void* const shared =
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Report& report = *new (shared) Report{};
  const std::int64_t first = from_environment("WEFT_SEED", 1);
  const std::int64_t last = first + from_environment("WEFT_CASES", 100);
  constexpr std::int64_t kPerProcess = 500;
  for (std::int64_t seed = first; seed < last;) {
    const std::int64_t end = std::min(last, seed + kPerProcess);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) run_programs(seed, end, report);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (status == 0) {
      seed = end;
      continue;
    }
    const char* const name = operations()[report.operation].name;
    if (WIFSIGNALED(status)) {
      const int signal = WTERMSIG(status);
      ADD_FAILURE() << "program " << report.seed << ", step " << report.step << ", " << name << ": "
                    << (signal == SIGPROF || signal == SIGALRM ? "hangs" : strsignal(signal));
    } else {
      ADD_FAILURE() << "program " << report.seed << ", step " << report.step << ", " << name
                    << ": status " << WEXITSTATUS(status) << ' ' << report.what;
    }
    seed = report.seed + 1;
  }

  std::int64_t calls = 0, results = 0;
  for (std::size_t i = 0; i < operations().size(); ++i) {
    calls += report.calls[i], results += report.results[i];
    std::printf("%7lld calls %7lld results  %s\n", static_cast<long long>(report.calls[i]),
                static_cast<long long>(report.results[i]), operations()[i].name);
    if (last - first >= 300) {
      EXPECT_GT(report.results[i], 0) << operations()[i].name;
    }
  }
  std::printf("%lld programs: %lld calls, %lld results\n", static_cast<long long>(last - first),
              static_cast<long long>(calls), static_cast<long long>(results));
  RecordProperty("calls", std::to_string(calls));
  RecordProperty("results", std::to_string(results));
}

}  // namespace
}  // namespace weft::testing
