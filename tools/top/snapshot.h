// What the training processes of this user show of themselves (core/runtime/phase.h), and rates
// from two such looks.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/memory_owner.h"
#include "weft/core/runtime/phase.h"

namespace weft::top {

/// The memory of a device that a process uses, in bytes.
struct DeviceMemory {
  Device device;
  std::array<std::int64_t, kMemoryOwners> in_use = {};
  std::int64_t limit = 0;  ///< 0: none

  std::int64_t sum() const;
};

/// A process at one moment. Sums are since its beginning.
struct Process {
  int pid = 0, parent = 0;
  std::int64_t started = 0;  ///< in clock ticks since the machine's start
  std::string program;       ///< the name of its file
  std::optional<int> rank;   ///< as the launcher has set it
  int world_size = 1;
  std::string fault;     ///< the text of WEFT_FAULT (docs/faults.md); empty after a restart
  bool stopped = false;  ///< by a signal
  Status status;
  double in_operation = 0;  ///< seconds since status.operation has begun
  std::int64_t samples = 0, sent = 0, waited_ns = 0;
  double cpu = 0;                         ///< seconds of processor time, of all its threads
  std::map<std::string, double> threads;  ///< the same of the threads of a name
  std::vector<DeviceMemory> memory;       ///< of devices that it uses
};

/// The change between two looks at a process, per second.
struct Rates {
  double samples = 0;
  double sent = 0;    ///< bytes, to other ranks
  double waited = 0;  ///< seconds that its threads waited for operations between ranks
  double cpu = 0;     ///< processors
  std::map<std::string, double> threads;  ///< the same of the threads of a name
};

/// Finds the processes and keeps their pages open between looks.
class Watch {
 public:
  /// All processes that have a StatusPage which this user may read, by parent and rank.
  std::vector<Process> look();

 private:
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<StatusPage>> pages_;  // by pid and start
};

/// Nothing for a process that is not in `before`.
std::optional<Rates> rates(const std::vector<Process>& before, const Process& now,
                           std::chrono::duration<double> between);

/// The name of the program of a process; empty if there is none.
std::string program_of(int pid);

}  // namespace weft::top
