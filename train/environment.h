// What programs read from the environment, and where their messages go.
#pragma once

#include <mutex>
#include <string_view>

#include "weft/core/choices.h"
#include "weft/core/thread_state.h"

namespace weft::train {

/// Messages to stderr, one line each; of the ranks of a run only the first tells what is no
/// warning.
class StderrLog final : public LogSink {
 public:
  void write(Level level, std::string_view message) override;

 private:
  std::mutex mutex_;
};

/// For the life of a program: a log on stderr, more of it where WEFT_LOG=perf, and kernel choices
/// remembered in default_choice_folder() (core/choices.h), which WEFT_CACHE names. Warns of another
/// WEFT_LOG.
class EnvironmentScope {
 public:
  EnvironmentScope();

 private:
  StderrLog log_;
  ChoiceCache choices_{default_choice_folder()};
  Scoped<LogSink*> logging_{&ThreadState::log, &log_};
  Scoped<ChoiceCache*> remembering_{&ThreadState::choices, &choices_};
  Scoped<bool> explaining_{&ThreadState::log_perf, thread_state().log_perf};
};

/// Lets threads that wait for their team spin for some 150 us and not ten milliseconds: beside
/// other work the spinning takes the core from whom they wait for. libgomp reads how long when it
/// is loaded, so the process starts its program anew, with GOMP_SPINCOUNT, as the first thing it
/// does. Returns where that is not to be: the environment says how to wait (GOMP_SPINCOUNT,
/// OMP_WAIT_POLICY), or the arguments are not those of the process. Costs the start of a program,
/// some milliseconds.
void bound_spinning(int argc, const char* const* argv);

}  // namespace weft::train
