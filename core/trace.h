// Spans: what ran when, in which module, for a picture in Perfetto or chrome://tracing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/core/thread_state.h"

namespace weft {

/// Collects the spans of all threads whose thread_state().tracer points to it. Thread-safe.
class Tracer {
 public:
  Tracer();
  ~Tracer();
  /// Nanoseconds since the tracer was made.
  std::int64_t now_ns() const;
  /// category: "op", "backward", "loader", "optim" ...; both strings must be literals or interned.
  /// A span for which there is no memory is left out.
  void add(const char* category, const char* name, std::string module_path, std::int64_t begin_ns,
           std::int64_t end_ns) noexcept;
  /// The same, ending now, in the calling thread's module.
  void add_until_now(const char* category, const char* name, std::int64_t begin_ns) noexcept;
  /// Writes Chrome's trace event format (JSON) through a temporary file: one process per rank, one
  /// row per thread. Throws Io.
  void write(const std::string& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Times a scope; costs one load when no tracer is set.
class Span {
 public:
  Span(const char* category, const char* name)
      : tracer_(thread_state().tracer), category_(category), name_(name) {
    if (tracer_) begin_ns_ = tracer_->now_ns();
  }
  ~Span() {
    if (tracer_) tracer_->add_until_now(category_, name_, begin_ns_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Tracer* tracer_;
  const char* category_;
  const char* name_;
  std::int64_t begin_ns_ = 0;
};

}  // namespace weft
