#include "weft/core/trace.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/file.h"

namespace weft {
namespace {

struct SpanRecord {
  const char* category;
  const char* name;
  std::string module_path;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  int thread;
  int rank;
};

// Small numbers in order of first appearance: rows of the picture.
int thread_number() {
  static std::atomic<int> next{0};
  static thread_local const int number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

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

// Microseconds with the nanoseconds behind the point, whatever the locale.
void append_microseconds(std::string& out, std::int64_t ns) {
  char fraction[8];
  std::snprintf(fraction, sizeof fraction, ".%03d", static_cast<int>(ns % 1000));
  out.append(std::to_string(ns / 1000)).append(fraction);
}

}  // namespace

struct Tracer::Impl {
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  mutable std::mutex mutex;
  std::vector<SpanRecord> spans;
};

Tracer::Tracer() : impl_(std::make_unique<Impl>()) {}
Tracer::~Tracer() = default;

std::int64_t Tracer::now_ns() const {
  const auto passed = std::chrono::steady_clock::now() - impl_->start;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
}

void Tracer::add(const char* category, const char* name, std::string module_path,
                 std::int64_t begin_ns, std::int64_t end_ns) noexcept {
  try {
    const int thread = thread_number();
    std::lock_guard lock(impl_->mutex);
    impl_->spans.push_back(
        {category, name, std::move(module_path), begin_ns, end_ns, thread, thread_state().rank});
  } catch (const std::bad_alloc&) {
    // Left out, as declared: a span ends in a destructor.
  }
}

void Tracer::add_until_now(const char* category, const char* name, std::int64_t begin_ns) noexcept {
  const std::int64_t end_ns = now_ns();
  try {
    add(category, name, module_path(), begin_ns, end_ns);
  } catch (const std::bad_alloc&) {
    // No memory for the path: the span is left out.
  }
}

void Tracer::write(const std::string& path) const {
  std::string json = "{\"traceEvents\":[";
  {
    std::lock_guard lock(impl_->mutex);
    bool first = true;
    for (const SpanRecord& span : impl_->spans) {
      json += std::exchange(first, false) ? "\n" : ",\n";
      json += "{\"ph\":\"X\",\"cat\":";
      append_json_string(json, span.category);
      json += ",\"name\":";
      append_json_string(json, span.name);
      json.append(",\"pid\":").append(std::to_string(span.rank));
      json.append(",\"tid\":").append(std::to_string(span.thread));
      json += ",\"ts\":";
      append_microseconds(json, span.begin_ns);
      json += ",\"dur\":";
      append_microseconds(json, span.end_ns - span.begin_ns);
      json += ",\"args\":{\"module\":";
      append_json_string(json, span.module_path);
      json += "}}";
    }
  }
  json += "\n],\"displayTimeUnit\":\"ns\"}\n";
  write_file_atomically(path, json);
}

}  // namespace weft
