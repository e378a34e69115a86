// Spans: what ran, when and where, to be shown by Perfetto or chrome://tracing.
//
//   Tracer tracer;
//   const Scoped traced(&ThreadState::tracer, &tracer);
//   ... train ...
//   tracer.write("trace.json");   // rows: threads (and devices) by name, one process per rank
//
// Each thread writes into its own chunks: a span takes no lock, and allocates nothing until the
// reserve is used up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "weft/core/base/device.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {

class Event;

namespace detail {
class TraceJson;
/// From here on the thread's innermost span works on `device`, unless its device is already known.
void work_begins(Device device) noexcept;
}  // namespace detail

/// One moment on two clocks, in nanoseconds.
struct ClockReading {
  std::int64_t steady_ns = 0;    ///< std::chrono::steady_clock: one clock for a host's processes
  std::int64_t realtime_ns = 0;  ///< since 1970: comparable between hosts if their clocks agree
};

struct TracerOptions {
  std::size_t reserved_spans = 16384;  ///< memory allocated at the start, 128 bytes each
  /// Also measures the time of spans on a CUDA device, with events in their streams: one row per
  /// stream. Costs some microseconds per span; the first one waits for the device.
  bool device_time = false;
  std::string path = {};  ///< where finish() writes
};

/// One line of a thread's log. Plain data, written by one thread.
struct TraceRecord {
  enum class Kind : std::uint8_t { span, result, memory };
  static constexpr int kMaxArgs = 2, kMaxTraceDims = 6;
  struct Arg {
    const char* key;
    std::int64_t value;
  };

  const char* category;
  const char* name;
  const PathNode* path;  // interned
  std::int64_t begin_ns, end_ns;
  std::int64_t step;
  std::uint64_t flow;  // the arrow that ends in a span or starts at a result; 0: none
  std::int32_t rank;
  Device device;
  Kind kind;
  bool has_device;
  std::int8_t dims;  // -1: no shape
  std::int8_t args;
  std::int32_t shape[kMaxTraceDims];
  Arg arg[kMaxArgs];

  void set_shape(const Dims& of);
};

/// Collects the spans of all threads whose thread_state().tracer points to it, and the changes of
/// memory of those whose thread_state().memory does. Thread-safe; outlives its spans.
class Tracer final : public MemoryObserver {
 public:
  explicit Tracer(const TracerOptions& options = {});
  ~Tracer();

  /// Nanoseconds since the tracer was made.
  std::int64_t now_ns() const;
  /// The moment that now_ns() counts from.
  ClockReading start() const;
  /// Added to every time when written. Times count from this tracer's start. For the files of
  /// several ranks to share one time, all but the first set how much later they started:
  ///   tracer.set_offset_ns(tracer.start().steady_ns - first.steady_ns);   // one host
  ///   tracer.set_offset_ns(tracer.start().realtime_ns - first.realtime_ns);
  /// Then their events can go into one file. The start and the offset are written, too.
  /// train::merge_traces() does all of this.
  void set_offset_ns(std::int64_t offset);

  /// A span of the calling thread, in its module. category: "op", "backward", "loader", "optim"
  /// ...; both strings must be literals or live as long as the tracer. A span for which there is no
  /// memory is left out, and counted.
  void add(const char* category, const char* name, std::int64_t begin_ns,
           std::int64_t end_ns) noexcept;
  /// Records the result of the operation just done: shown with the thread's last span of that name,
  /// else as a moment of its own. Returns the start of an arrow to a later span (Span::set_flow).
  std::uint64_t add_result(const char* name, Device device, const Dims& shape) noexcept;

  /// Records a counter: what the owner has of the device's memory.
  void memory_changed(Device device, MemoryOwner owner,
                      std::int64_t in_use_bytes) noexcept override;

  /// Writes Chrome's trace event format (JSON) through a temporary file: one process per rank, one
  /// row per thread. Other threads may go on adding spans. Waits for the devices whose work is
  /// timed. Throws Io.
  void write(const std::string& path) const;
  /// For the end of a program, and for code that ends it from within (launch::spawn): write() to
  /// the options' path. Does nothing without a path or a span, and on all ranks but the first.
  void finish() const;
  /// No thread has added a span so far.
  bool empty() const;
  /// The spans so far, and how many are lost, as text for merge() in another process.
  std::string part() const;
  /// From now on write() also writes these spans of another rank. Throws InvalidArgument for a text
  /// that is not from part().
  void merge(std::string part);

 private:
  friend class Span;
  struct Impl;
  /// All records of this process; returns how many are lost.
  std::uint64_t collect(detail::TraceJson& json) const;
  /// Fills in the state of the calling thread.
  void append(TraceRecord& record) noexcept;
  Event* begin_device_work(Device device) noexcept;
  void end_device_work(Event* begin, const TraceRecord& record) noexcept;

  std::unique_ptr<Impl> impl_;
};

/// Times a scope; costs one load when no tracer is set. Spans of a thread nest.
class Span {
 public:
  Span(const char* category, const char* name) : tracer_(thread_state().tracer) {
    if (tracer_) [[unlikely]]
      begin(category, name);
  }
  /// For work on `device`, which is shown. The time on the device is measured if the tracer does
  /// so. The span of an operation gets its device when the operation's kernel is looked up.
  Span(const char* category, const char* name, Device device) : tracer_(thread_state().tracer) {
    if (tracer_) [[unlikely]]
      begin(category, name, device);
  }
  ~Span() {
    if (tracer_) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  /// Whether there is a tracer; if not, arguments need not be computed.
  bool on() const { return tracer_ != nullptr; }
  /// Shown with the span; `key` a literal. At most two, further ones are dropped.
  void set_arg(const char* key, std::int64_t value) {
    if (tracer_ && record_.args < TraceRecord::kMaxArgs) record_.arg[record_.args++] = {key, value};
  }
  void set_shape(const Dims& shape) {
    if (tracer_) record_.set_shape(shape);
  }
  /// The arrow that add_result() began ends here.
  void set_flow(std::uint64_t flow) {
    if (tracer_) record_.flow = flow;
  }

 private:
  friend void detail::work_begins(Device device) noexcept;
  void begin(const char* category, const char* name) noexcept;
  void begin(const char* category, const char* name, Device device) noexcept;
  void set_device(Device device) noexcept;
  void end() noexcept;

  Tracer* tracer_;
  TraceRecord record_;  // not set when off
  Event* device_begin_;
  Span* outer_;
};

}  // namespace weft
