#include "weft/train/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"

namespace weft::train {

namespace {

// Iterations of libgomp's waiting loop, about 50 ns each. docs/performance.md: Threads.
constexpr const char* kSpinCount = "3000";

bool arguments_of_process(int argc, const char* const* argv) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (int i = 0; i < argc; ++i) {
    if (!std::getline(file, text, '\0') || text != argv[i]) return false;
  }
  return file.peek() == std::ifstream::traits_type::eof();
}

}  // namespace

void bound_spinning(int argc, const char* const* argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  if (!arguments_of_process(argc, argv)) return;
  setenv("GOMP_SPINCOUNT", kSpinCount, 1);
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) arguments.push_back(const_cast<char*>(argv[i]));
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());  // returns only if it fails: then nothing changes
}

EnvironmentScope::EnvironmentScope() {
  const char* given = std::getenv("WEFT_LOG");
  const std::string_view wanted = given ? given : "";
  if (wanted == "perf") {
    thread_state().log_perf = true;
  } else if (!wanted.empty()) {
    log_warning(detail::concat("WEFT_LOG: got '", wanted,
                               "', expected perf (how each kernel was chosen) or nothing"));
  }
}

}  // namespace weft::train
