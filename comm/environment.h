// Reads what launchers write into the environment of a process.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "weft/core/base/compiler.h"

namespace weft::comm {

/// What a launcher's environment says about this process.
struct LaunchEnvironment {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  /// "weftrun", "torchrun", "Open MPI" ...; empty: none.
  std::string launcher;
  /// Where the ranks meet: "tcp://host:port" or "file:///path"; empty in a world of one.
  std::string meeting;
  /// rank 0 of a tcp:// meeting hosts the store itself (false: weftrun or an agent hosts it).
  bool hosts_store = false;
};

/// Returns the value of an environment variable, or nothing if it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;
/// Reads the environment of this process.
std::optional<std::string> environment_variable(const char* name);

/// Reads the environment. Throws InvalidArgument if a launcher's variables are incomplete, naming
/// the missing one and a command line that would set it.
LaunchEnvironment launch_environment();
LaunchEnvironment launch_environment(const Variables& variables);

}  // namespace weft::comm
