// What is to be different in a replay.
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

/// What is to be different.
struct Setting {
  std::string text = "recorded";
  // Of DDP.
  std::optional<double> cap_mib = {};  ///< infinity: one bucket
  /// Without any cap: PyTorch's, as for another order. Else the recorded buckets.
  bool default_caps = false;
  std::optional<parallel::BucketOrder> order = {};
  // Of FSDP.
  std::optional<bool> reshard = {};  ///< after forward; false: ZeRO-2
  // Of a pipeline.
  std::string schedule = {};  ///< a name of parallel::schedule_names(); empty: as recorded
  int micro_batches = 0;      ///< of the same batch; 0: as recorded
  // Of all.
  std::optional<comm::ThinLink> thin_link = {};
  int slow_rank = -1;
  double slow_by = 0;                          ///< seconds, at the beginning of forward
  double slow_times = 1;                       ///< each of its times
  int ranks = 0;                               ///< 0: as recorded
  double latency = -1, bytes_per_second = -1;  ///< of all links; -1: as recorded
  bool bf16 = false;                           ///< half the bytes; of FSDP: of gathers

  /// Links of another machine.
  bool has_own_links() const { return latency >= 0 || bytes_per_second >= 0; }
  /// It needs what no trace can show: other ranks, links of another machine, bf16, another number
  /// of micro-batches.
  bool is_extrapolated() const;
};

/// Reads words with commas between. Of all engines: link=A-B:RATE, slow=R:20ms or slow=R:1.5x,
/// latency=50us, bandwidth=RATE. Of DDP also cap=MIB (or inf, or default), order=arrival, reversed
/// or given, ranks=N and bf16; of FSDP reshard=true or false, ranks=N and bf16; of a pipeline
/// schedule=NAME and micro-batches=M. Throws InvalidArgument, also for a slow rank that the trace,
/// of `ranks` ranks, does not have, or would not with `ranks=`, for a link of one that there would
/// not be, and for a name that comes twice.
Setting parse_setting(std::string_view text, int ranks, Engine engine = Engine::ddp);

}  // namespace weft::simulator
