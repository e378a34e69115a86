// Where a process joins a run, by an address or by its environment. Private to comm/.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace weft::comm {

struct Generation;
struct InitOptions;
class ProcessGroup;
class Store;

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

/// As init_process_group() (in init.cc), for some of a run's ranks, which meet in `store`:
/// options.rank is this one's place among options.world_size, the ranks of `generation`, and
/// thread_state().rank stays what it is.
std::shared_ptr<ProcessGroup> meet_in(const std::shared_ptr<Store>& store,
                                      const Generation& generation, const InitOptions& options);

/// The time in the variable WEFT_TIMEOUT. Throws InvalidArgument if its value is no time.
std::optional<std::chrono::milliseconds> timeout_of_environment();

}  // namespace weft::comm
