// A trace as text: Chrome's trace event format,
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Private to core/.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/core/runtime/runtime.h"
#include "weft/core/trace/trace.h"

namespace weft::detail {

class TraceJson {
 public:
  explicit TraceJson(std::int64_t offset_ns) : offset_ns_(offset_ns) {}

  /// The records that follow belong to this thread, in the order of its log.
  void begin_thread(int number, std::string_view name);
  void add(const TraceRecord& record);
  void add_device_work(const TraceRecord& record, const Stream& stream);
  /// `events`: from events() of another process.
  void add_events(std::string_view events);
  /// All records as JSON, one per line, each line beginning with a line end, separated by commas.
  std::string events();
  /// The whole file.
  std::string text(const ClockReading& start, std::uint64_t lost);

 private:
  struct Row {
    int rank;
    int number;
    auto operator<=>(const Row&) const = default;
  };
  struct Arrow {
    Row row;
    std::int64_t ns;
  };

  // A span is kept back until its result has been read, which may follow it in the log.
  void flush();
  void write_counter(const TraceRecord& record, const Row& row);
  void write_span(const TraceRecord& record, const Row& row);
  void write_arrow(const char* phase, std::uint64_t flow, const Arrow& end);
  void begin_event();
  void append_time(const char* key, std::int64_t ns);
  const std::string& path_text(const PathNode* path);
  Row row(int rank, int number, const std::string& name);

  const std::int64_t offset_ns_;
  std::string events_;
  int thread_ = 0;
  std::string thread_name_;
  TraceRecord span_;
  bool span_waits_ = false;
  bool span_has_result_ = false;
  std::uint64_t span_starts_ = 0;  // the arrow that begins in the span
  std::map<Row, std::string> rows_;
  std::map<std::pair<std::uint64_t, void*>, int> streams_;  // (device and stream) -> row
  std::unordered_map<std::uint64_t, Arrow> starts_;
  std::vector<std::pair<std::uint64_t, Arrow>> ends_;
  std::unordered_map<const PathNode*, std::string> paths_;
};

}  // namespace weft::detail
