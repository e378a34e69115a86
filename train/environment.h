// Settings that programs read from the environment, and where their messages go.
#pragma once

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/plan/choice_cache.h"

namespace weft::train {

/// For the life of a program: a log on stderr, which explains kernel choices if WEFT_LOG=perf; and
/// kernels chosen by timing (set_benchmark), since a program's shapes do not change. The choices
/// are remembered in default_choice_folder() (kernels/plan/choice_cache.h), which WEFT_CACHE sets.
/// Warns of other values of WEFT_LOG.
class EnvironmentScope {
 public:
  EnvironmentScope();

 private:
  StderrLog log_{/*clear_line=*/true};
  ChoiceCache choices_{default_choice_folder()};
  Scoped<LogSink*> logging_{&ThreadState::log, &log_};
  Scoped<ChoiceCache*> remembering_{&ThreadState::choices, &choices_};
  Scoped<bool> timing_{&ThreadState::benchmark, true};
  Scoped<bool> explaining_{&ThreadState::log_perf, thread_state().log_perf};
};

/// Makes threads that wait for their team spin for some 150 us instead of ten milliseconds: if
/// other programs run, spinning threads take the core from the thread that they wait for. libgomp
/// reads GOMP_SPINCOUNT when it is loaded, so as its first act the process sets it and restarts its
/// program, which costs some milliseconds. Returns without doing so if the environment already says
/// how to wait (GOMP_SPINCOUNT, OMP_WAIT_POLICY), or if the arguments are not those of the process.
void bound_spinning(int argc, const char* const* argv);

}  // namespace weft::train
