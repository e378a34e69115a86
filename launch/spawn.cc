#include "weft/launch/spawn.h"

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/launch/launcher.h"
#include "weft/launch/options.h"
#include "weft/launch/report.h"

namespace weft::launch {
namespace {

/// The number of the call of spawn() that started a child.
constexpr const char* kCallVariable = "WEFT_SPAWN_CALL";

[[noreturn]] void be_rank(const std::function<void(int rank)>& fn) {
  const char* rank = std::getenv("RANK");
  const char* error_file = std::getenv("WEFT_ERROR_FILE");
  WEFT_CHECK(rank && error_file, InvalidArgument, "spawn", kCallVariable,
             " is set and RANK or WEFT_ERROR_FILE is not: unset it");
  try {
    fn(std::atoi(rank));
    if (const Tracer* tracer = thread_state().tracer) tracer->finish();
    flush_stdout();  // one rank alone writes to the caller's stdout, where nobody else checks it
  } catch (const Error& error) {
    write_error_file(error_file, {.code = to_string(error.code()), .message = error.what()});
    throw;
  } catch (const std::exception& error) {
    write_error_file(error_file, {.code = to_string(ErrorCode::Library), .message = error.what()});
    throw;
  }
  std::exit(0);
}

ErrorCode code_of(const RankResult& rank) {
  if (!rank.error) return ErrorCode::PeerFailed;
  for (int code = 0; code <= static_cast<int>(ErrorCode::Internal); ++code) {
    if (rank.error->code == to_string(static_cast<ErrorCode>(code))) {
      return static_cast<ErrorCode>(code);
    }
  }
  return ErrorCode::Library;
}

}  // namespace

void spawn(int argc, const char* const* argv, int nprocs, const std::function<void(int rank)>& fn) {
  WEFT_CHECK(nprocs >= 1, InvalidArgument, "spawn", "got ", nprocs,
             " processes, expected 1 or more");
  static int calls = 0;
  const std::string call = std::to_string(calls++);
  if (const char* mine = std::getenv(kCallVariable)) {
    if (call == mine) be_rank(fn);
    return;  // the parent made this call before the one that started this child
  }
  Options options;
  options.nproc = nprocs;
  options.no_python = true;
  options.command.assign(argv, argv + argc);
  options.command.front() = std::filesystem::read_symlink("/proc/self/exe");
  options.variables = {{kCallVariable, call}};
  AttemptResult result;
  {
    Launcher launcher(options);
    result = launcher.run(0);
    launcher.say_last({});
    if (result.status() == 0) launcher.check_stdout();
  }
  if (result.signal != 0) {
    std::raise(result.signal);
  } else if (const RankResult* first = result.first_failure()) {
    const RankResult* silent = result.unresponsive();
    const std::string before = silent ? describe_silence(*silent) + "; " : std::string();
    const std::string why = first->error ? first->error->message : describe(*first);
    throw Error(code_of(*first), "spawn", detail::concat(before, "rank ", first->rank, ": ", why),
                __FILE__, __LINE__);
  }
}

}  // namespace weft::launch
