// The setting of a replay: what differs from the recorded run.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "weft/comm/backend/thin_links.h"
#include "weft/parallel/reducer.h"

namespace weft::simulator {

enum class Engine { ddp, fsdp, pipeline };
/// "DDP", "FSDP", "a pipeline"
const char* to_string(Engine engine);

/// What differs from the recorded run.
struct Setting {
  std::string text = "recorded";
  // For DDP.
  std::optional<double> cap_mib = {};  ///< infinity: one bucket
  /// Only without cap_mib. true: PyTorch's caps, also where only an order is given; false: the
  /// recorded buckets.
  bool default_caps = false;
  std::optional<parallel::BucketOrder> order = {};
  // For FSDP.
  std::optional<bool> reshard = {};  ///< after forward; false: ZeRO-2
  // For a pipeline.
  std::string schedule = {};  ///< a name of parallel::schedule_names(); empty: as recorded
  int micro_batches = 0;      ///< of the same batch; 0: as recorded
  // For all engines.
  std::optional<comm::ThinLink> thin_link = {};
  int slow_rank = -1;
  double slow_by = 0;                          ///< seconds, at the beginning of forward
  double slow_times = 1;                       ///< a factor of all its times
  int ranks = 0;                               ///< 0: as recorded
  double latency = -1, bytes_per_second = -1;  ///< of all links; -1: as recorded
  bool bf16 = false;                           ///< half the bytes; with FSDP only of gathers

  /// Links of another machine.
  bool has_own_links() const { return latency >= 0 || bytes_per_second >= 0; }
  /// Whether it needs what no trace can show: other ranks, links of another machine, bf16, another
  /// number of micro-batches.
  bool is_extrapolated() const;
};

/// Reads words with commas between them. For all engines: link=A-B:RATE, slow=R:20ms or
/// slow=R:1.5x, latency=50us, bandwidth=RATE. For DDP also cap=MIB (or inf, or default),
/// order=arrival, reversed or given, ranks=N and bf16; for FSDP reshard=true or false, ranks=N and
/// bf16; for a pipeline schedule=NAME and micro-batches=M. Throws InvalidArgument for other words,
/// for a name that comes twice, and for a slow rank or a link of ranks that do not exist: the trace
/// has `ranks` ranks, or the setting has ranks=N.
Setting parse_setting(std::string_view text, int ranks, Engine engine = Engine::ddp);

}  // namespace weft::simulator
