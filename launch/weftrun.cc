// weftrun: runs a program as the ranks of a group, on this node.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <iostream>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/launch/failure.h"
#include "weft/launch/launcher.h"
#include "weft/launch/options.h"
#include "weft/launch/report.h"

namespace weft::launch {
namespace {

/// Resets what a parent may have changed.
void prepare_process() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0 || fd > STDERR_FILENO) {
      ::close(fd);
      break;
    }
    ::fcntl(fd, F_SETFD, 0);
  }
  std::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int run(const Options& options) {
  for (const std::string& path : {options.report, options.failure}) {
    if (!path.empty()) const AtomicFile can_be_written(path);
  }
  Launcher launcher(options);
  for (int attempt = 0;; ++attempt) {
    const AttemptResult result = launcher.run(attempt);
    const RankResult* first = result.first_failure();
    const int restarts = attempt + launcher.replaced();
    // With --nnodes MIN:MAX each node has counted its own ranks that were started again.
    const bool may_restart = restarts < options.max_restarts && options.min_nnodes == 0;
    if (result.status() != 0 && result.signal == 0 && may_restart) {
      const RankResult* silent = result.unresponsive();
      launcher.say(detail::concat(silent ? describe_silence(*silent)
                                  : first
                                      ? detail::concat("rank ", first->rank, ": ", describe(*first))
                                      : result.other_failure,
                                  "; restart ", restarts + 1, " of ", options.max_restarts));
      continue;
    }
    bool is_reported = true;
    if (!options.report.empty()) {
      try {
        write_report(options.report, result, options.command, launcher.world_size(), attempt);
      } catch (const Error& error) {  // a full disk may be why the ranks have failed
        launcher.say(error.what());
        is_reported = false;
      }
    }
    std::string last = last_operations(result);
    if (result.status() != 0 && !options.failure.empty()) {
      try {
        write_failure(options.failure, result, options.command, launcher.world_size());
        last += "| more is in " + options.failure + ", which ./weft failure draws\n";
      } catch (const Error& error) {
        last += detail::concat("| ", error.what(), '\n');
      }
    } else if (!last.empty()) {
      last += "| --failure FILE keeps all of that, and ./weft failure FILE draws it\n";
    }
    if (!first && !result.other_failure.empty()) launcher.say(result.other_failure);
    launcher.say_last(failure_box(result, last));
    if (result.status() != 0) return result.status();
    launcher.check_stdout();
    return is_reported ? 0 : 1;
  }
}

}  // namespace
}  // namespace weft::launch

int main(int argc, char** argv) {
  weft::launch::prepare_process();
  weft::launch::Options options;
  try {
    if (const auto status = weft::launch::parse_options(argc, argv, options)) {
      weft::flush_stdout();
      return *status;
    }
    return weft::launch::run(options);
  } catch (const std::exception& error) {
    std::cerr << "weftrun: error: " << error.what() << '\n';
    return 1;
  }
}
