#include "weft/core/trace/trace_json.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"

namespace weft::detail {
namespace {

constexpr int kFirstDeviceRow = 1'000'000;

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  out += '"';
}

// Writes microseconds with three decimals, independent of the locale.
void append_microseconds(std::string& out, std::int64_t ns) {
  char fraction[8];
  std::snprintf(fraction, sizeof fraction, ".%03d", static_cast<int>(std::abs(ns % 1000)));
  if (ns < 0 && ns > -1000) out += '-';
  out.append(std::to_string(ns / 1000)).append(fraction);
}

std::uint64_t key_of(Device device) {
  return std::uint64_t(device.type) << 32 | std::uint64_t(device.index);
}

// An operation is recorded as "relu", and its span is "relu", or "relu_" if it ran in place.
bool is_span_of(const char* span, const char* recorded) {
  const std::size_t length = std::strlen(recorded);
  if (std::strncmp(span, recorded, length) != 0) return false;
  return span[length] == '\0' || (span[length] == '_' && span[length + 1] == '\0');
}

// The time at which an arrow leaves a span: shortly before its end, when inner spans have ended. At
// the end itself the viewer would take the next span.
std::int64_t leaves_at(const TraceRecord& span) {
  const std::int64_t length = span.end_ns - span.begin_ns;
  return std::max(span.begin_ns, span.end_ns - std::clamp<std::int64_t>(length / 4, 1, 50));
}

}  // namespace

void TraceJson::begin_thread(int number, std::string_view name) {
  flush();
  thread_ = number;
  thread_name_ = name;
}

void TraceJson::add(const TraceRecord& record) {
  if (record.kind == TraceRecord::Kind::memory) {
    return write_counter(record, row(record.rank, thread_, thread_name_));
  }
  if (record.kind == TraceRecord::Kind::span) {
    flush();
    span_ = record;
    span_waits_ = true;
    span_has_result_ = false;
    span_starts_ = 0;
    return;
  }
  if (!span_waits_ || span_has_result_ || !is_span_of(span_.name, record.name)) {
    flush();
    span_ = record;  // there is no such span: a view, for example, runs nothing
    span_.end_ns = span_.begin_ns + 1;
    span_.flow = 0;
    span_waits_ = true;
  }
  span_has_result_ = true;
  span_starts_ = record.flow;
  span_.device = record.device;
  span_.has_device = true;
  span_.dims = record.dims;
  std::copy_n(record.shape, TraceRecord::kMaxTraceDims, span_.shape);
}

void TraceJson::flush() {
  if (!std::exchange(span_waits_, false)) return;
  const Row at = row(span_.rank, thread_, thread_name_);
  write_span(span_, at);
  if (span_starts_) starts_[span_starts_] = {at, leaves_at(span_)};
  if (span_.flow) ends_.push_back({span_.flow, {at, span_.begin_ns}});
}

void TraceJson::add_device_work(const TraceRecord& record, const Stream& stream) {
  flush();
  const auto [found, fresh] = streams_.try_emplace({key_of(record.device), stream.handle}, 0);
  if (fresh) found->second = static_cast<int>(streams_.size()) - 1;
  int number = 0;  // counts the streams of this device
  for (const auto& [key, index] : streams_)
    number += key.first == key_of(record.device) && index < found->second;
  std::string name = "work of " + to_string(record.device);
  if (number > 0) name += ", stream " + std::to_string(number);
  write_span(record, row(record.rank, kFirstDeviceRow + found->second, name));
}

TraceJson::Row TraceJson::row(int rank, int number, const std::string& name) {
  const Row row{rank, number};
  rows_.try_emplace(row, name);
  return row;
}

void TraceJson::begin_event() { events_ += events_.empty() ? "\n" : ",\n"; }

void TraceJson::append_time(const char* key, std::int64_t ns) {
  events_.append(",\"").append(key).append("\":");
  append_microseconds(events_, ns);
}

const std::string& TraceJson::path_text(const PathNode* path) {
  const auto [found, fresh] = paths_.try_emplace(path);
  if (fresh) found->second = module_path(path);
  return found->second;
}

void TraceJson::write_counter(const TraceRecord& record, const Row& row) {
  begin_event();
  events_.append("{\"ph\":\"C\",\"name\":\"memory of ").append(to_string(record.device));
  events_.append("\",\"pid\":").append(std::to_string(row.rank));
  append_time("ts", record.begin_ns + offset_ns_);
  events_.append(",\"args\":{\"").append(record.name).append("\":");
  events_.append(std::to_string(record.arg[0].value)).append("}}");
}

void TraceJson::write_span(const TraceRecord& record, const Row& row) {
  begin_event();
  events_ += "{\"ph\":\"X\",\"cat\":";
  append_json_string(events_, record.category);
  events_ += ",\"name\":";
  append_json_string(events_, record.name);
  events_.append(",\"pid\":").append(std::to_string(row.rank));
  events_.append(",\"tid\":").append(std::to_string(row.number));
  append_time("ts", record.begin_ns + offset_ns_);
  append_time("dur", record.end_ns - record.begin_ns);
  events_ += ",\"args\":{";
  bool first = true;
  const auto arg = [&](std::string_view key) -> std::string& {
    if (!std::exchange(first, false)) events_ += ',';
    append_json_string(events_, key);
    events_ += ':';
    return events_;
  };
  if (record.path) append_json_string(arg("module"), path_text(record.path));
  if (record.step >= 0) arg("step") += std::to_string(record.step);
  if (record.has_device) append_json_string(arg("device"), to_string(record.device));
  if (record.dims >= 0) {
    Dims shape;
    for (int i = 0; i < record.dims; ++i) shape.push_back(record.shape[i]);
    append_json_string(arg("shape"), to_string(shape));
  }
  for (int i = 0; i < record.args; ++i)
    arg(record.arg[i].key) += std::to_string(record.arg[i].value);
  events_ += "}}";
}

void TraceJson::write_arrow(const char* phase, std::uint64_t flow, const Arrow& end) {
  begin_event();
  // Different ranks use the same numbers for arrows.
  char id[24];
  std::snprintf(id, sizeof id, "0x%04x%012llx", static_cast<unsigned>(end.row.rank) & 0xffffu,
                static_cast<unsigned long long>(flow));
  events_.append("{\"ph\":\"").append(phase);
  events_.append("\",\"cat\":\"tape\",\"name\":\"backward of\",\"id\":\"").append(id);
  events_.append("\",\"pid\":").append(std::to_string(end.row.rank));
  events_.append(",\"tid\":").append(std::to_string(end.row.number));
  append_time("ts", end.ns + offset_ns_);
  events_ += *phase == 'f' ? ",\"bp\":\"e\"}" : "}";
}

void TraceJson::add_events(std::string_view events) {
  if (events.empty()) return;
  if (!events_.empty()) events_ += ',';
  events_ += events;
}

std::string TraceJson::events() {
  flush();
  std::set<std::uint64_t> drawn;
  for (const auto& [flow, end] : ends_) {
    const auto begin = starts_.find(flow);
    if (begin == starts_.end()) continue;  // began before the trace
    if (drawn.insert(flow).second) write_arrow("s", flow, begin->second);
    write_arrow("f", flow, end);
  }
  const auto tell = [&](const char* what, const Row& row, bool thread, const char* key,
                        std::string_view text) {
    begin_event();
    events_.append("{\"ph\":\"M\",\"name\":\"").append(what);
    events_.append("\",\"pid\":").append(std::to_string(row.rank));
    if (thread) events_.append(",\"tid\":").append(std::to_string(row.number));
    events_.append(",\"args\":{\"").append(key).append("\":");
    append_json_string(events_, text);
    events_ += "}}";
  };
  int rank = 0;
  bool first = true;
  for (const auto& [row, thread] : rows_) {  // in the order of ranks
    if (std::exchange(first, false) || row.rank != rank) {
      rank = row.rank;
      tell("process_name", row, false, "name", "rank " + std::to_string(rank));
      tell("process_labels", row, false, "labels", concat("cores: ", core_count()));
    }
    tell("thread_name", row, true, "name", thread);
  }
  return std::move(events_);
}

std::string TraceJson::text(const ClockReading& start, std::uint64_t lost) {
  return "{\"traceEvents\":[" + events() +
         concat("\n],\"displayTimeUnit\":\"ns\",\"otherData\":{\"start_steady_ns\":\"",
                start.steady_ns, "\",\"start_realtime_ns\":\"", start.realtime_ns,
                "\",\"offset_ns\":\"", offset_ns_, "\",\"spans_lost\":\"", lost, "\"}}\n");
}

}  // namespace weft::detail
