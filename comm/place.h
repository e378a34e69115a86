// Where a process joins a run, by an address or by its environment. Private to comm/.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace weft::comm {

/// The address of the meeting, and this process's rank.
struct Place {
  std::string host;  ///< empty: a file
  int port = 0;
  std::string path;
  std::optional<int> rank, size;
  bool hosts_store = false;
};

/// `init_method` as InitOptions; `rank` and `size`, if given, replace what it or the launcher says.
/// Rank and size of the result are set, but not checked against each other. Throws InvalidArgument
/// for an address of another form.
Place place_of(const std::string& init_method, std::optional<int> rank, std::optional<int> size);

/// The time of the variable WEFT_TIMEOUT. Throws InvalidArgument for what is no time.
std::optional<std::chrono::milliseconds> timeout_of_environment();

}  // namespace weft::comm
