#include "weft/core/trace/trace.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/delay_observer.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/trace/trace_device.h"
#include "weft/core/trace/trace_json.h"

namespace weft {
namespace {

constexpr std::size_t kChunkSpans = 256;

// One thread fills it; other threads read only records below `count`.
struct Chunk {
  std::atomic<std::size_t> count{0};
  std::atomic<Chunk*> next{nullptr};
  TraceRecord records[kChunkSpans];
};

// The records of one thread for one tracer.
struct Log {
  explicit Log(int number) : thread(number) {}
  const int thread;
  std::string name;  // under the tracer's mutex
  std::uint32_t results = 0;
  Chunk* current = nullptr;
  std::atomic<Chunk*> first{nullptr};
  std::atomic<std::uint64_t> lost{0};
};

// The records of another process.
struct Part {
  std::uint64_t lost = 0;
  std::string events;
};

// The logs of the tracers that the thread used last, by id: an address may be used again.
struct KnownLog {
  std::uint64_t tracer = 0;
  Log* log = nullptr;
};
constexpr std::size_t kKnownLogs = 8;
struct ThreadTrace {
  std::array<KnownLog, kKnownLogs> logs;
  Span* innermost = nullptr;
};
constinit ThreadLocal<ThreadTrace> thread_trace;

// Null if there is no memory for it.
ThreadTrace* trace_of_thread() noexcept {
  try {
    return &*thread_trace;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

std::uint64_t next_id() {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t realtime_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void add_delay(std::chrono::nanoseconds slept) {
  Tracer* const tracer = thread_state().tracer;
  if (!tracer) return;
  const std::int64_t end = tracer->now_ns();
  tracer->add("fault", "fault: delay", end - slept.count(), end);
}

}  // namespace

struct Tracer::Impl {
  explicit Impl(const TracerOptions& options)
      : device_time(options.device_time),
        path(options.path),
        reserved((options.reserved_spans + kChunkSpans - 1) / kChunkSpans),
        reserve(std::make_unique<Chunk[]>(reserved)) {
    // Touches the pages, so that they exist before the first span.
    for (std::size_t i = 0; i < reserved; ++i)
      std::memset(static_cast<void*>(reserve[i].records), 0, sizeof reserve[i].records);
  }
  ~Impl() {
    for (Chunk* chunk : allocated) delete chunk;
  }

  Chunk* new_chunk() noexcept {
    const std::size_t mine = taken.fetch_add(1, std::memory_order_relaxed);
    if (mine < reserved) return &reserve[mine];
    try {
      auto chunk = std::make_unique<Chunk>();
      std::lock_guard lock(mutex);
      allocated.push_back(chunk.get());
      return chunk.release();
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  Log* log_of_thread() noexcept {
    ThreadTrace* const mine = trace_of_thread();
    if (!mine) return find_log();
    KnownLog& known = mine->logs[id % kKnownLogs];
    if (known.tracer == id) [[likely]]
      return known.log;
    Log* const log = find_log();
    if (log) known = {id, log};
    return log;
  }

  Log* find_log() noexcept {
    try {
      const int number = detail::thread_number();
      std::string name = detail::thread_name();
      std::lock_guard lock(mutex);
      for (Log& log : logs) {
        if (log.thread != number) continue;
        log.name = std::move(name);
        return &log;
      }
      Log& log = logs.emplace_back(number);
      log.name = std::move(name);
      return &log;
    } catch (const std::bad_alloc&) {
      lost.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
  }

  void append(const TraceRecord& record) noexcept {
    Log* const log = log_of_thread();
    if (!log) return;
    Chunk* chunk = log->current;
    std::size_t count = chunk ? chunk->count.load(std::memory_order_relaxed) : kChunkSpans;
    if (count == kChunkSpans) [[unlikely]] {
      Chunk* const fresh = new_chunk();
      if (!fresh) {
        log->lost.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      (chunk ? chunk->next : log->first).store(fresh, std::memory_order_release);
      log->current = chunk = fresh;
      count = 0;
    }
    chunk->records[count] = record;
    chunk->count.store(count + 1, std::memory_order_release);
  }

  const std::uint64_t id = next_id();
  const ClockReading start{steady_ns(), realtime_ns()};
  const bool device_time;
  const std::string path;
  std::atomic<std::int64_t> offset_ns{0};
  const std::size_t reserved;
  const std::unique_ptr<Chunk[]> reserve;
  std::atomic<std::size_t> taken{0};
  std::atomic<std::uint64_t> lost{0};
  mutable std::mutex mutex;
  std::vector<Chunk*> allocated;
  std::deque<Log> logs;  // a deque: addresses must not change
  std::vector<Part> merged;
  detail::DeviceTimes device_times{[this] { return steady_ns() - start.steady_ns; }};
};

void TraceRecord::set_shape(const Dims& of) {
  dims = -1;
  if (of.size() > kMaxTraceDims) return;
  for (int i = 0; i < of.size(); ++i) {
    if (of[i] > INT32_MAX) return;
    shape[i] = static_cast<std::int32_t>(of[i]);
  }
  dims = static_cast<std::int8_t>(of.size());
}

namespace {

// Sets all fields that are not set later.
void start_record(TraceRecord& record, TraceRecord::Kind kind, const char* category,
                  const char* name) {
  record.category = category;
  record.name = name;
  record.flow = 0;
  record.kind = kind;
  record.has_device = false;
  record.dims = -1;
  record.args = 0;
}

}  // namespace

Tracer::Tracer(const TracerOptions& options) : impl_(std::make_unique<Impl>(options)) {
  detail::delay_observer.store(add_delay, std::memory_order_relaxed);
}
Tracer::~Tracer() = default;

std::int64_t Tracer::now_ns() const { return steady_ns() - impl_->start.steady_ns; }
ClockReading Tracer::start() const { return impl_->start; }
void Tracer::set_offset_ns(std::int64_t offset) {
  impl_->offset_ns.store(offset, std::memory_order_relaxed);
}

void Tracer::append(TraceRecord& record) noexcept {
  const ThreadState& state = thread_state();
  record.rank = state.rank;
  record.step = state.step;
  try {
    record.path = interned_path();
  } catch (const std::bad_alloc&) {
    record.path = nullptr;
  }
  impl_->append(record);
}

void Tracer::add(const char* category, const char* name, std::int64_t begin_ns,
                 std::int64_t end_ns) noexcept {
  TraceRecord record;
  start_record(record, TraceRecord::Kind::span, category, name);
  record.begin_ns = begin_ns;
  record.end_ns = end_ns;
  append(record);
}

std::uint64_t Tracer::add_result(const char* name, Device device, const Dims& shape) noexcept {
  Log* const log = impl_->log_of_thread();
  if (!log) return 0;
  TraceRecord record;
  start_record(record, TraceRecord::Kind::result, "op", name);
  record.begin_ns = record.end_ns = now_ns();
  record.device = device;
  record.has_device = true;
  record.set_shape(shape);
  record.flow = std::uint64_t(log->thread) << 32 | ++log->results;
  append(record);
  return record.flow;
}

void Tracer::memory_changed(Device device, MemoryOwner owner, std::int64_t in_use_bytes) noexcept {
  TraceRecord record;
  start_record(record, TraceRecord::Kind::memory, "memory", to_string(owner));
  record.begin_ns = record.end_ns = now_ns();
  record.device = device;
  record.has_device = true;
  record.arg[record.args++] = {"bytes", in_use_bytes};
  append(record);
}

Event* Tracer::begin_device_work(Device device) noexcept {
  // Events of a step that is being captured would be recorded and would pass at each replay.
  if (!impl_->device_time || device.is_cpu() || thread_state().capture) return nullptr;
  try {
    return impl_->device_times.begin(device);
  } catch (const std::exception&) {
    return nullptr;  // the trace lacks it, but the program must not fail because of its trace
  }
}

void Tracer::end_device_work(Event* begin, const TraceRecord& record) noexcept {
  try {
    impl_->device_times.end(begin, record);
  } catch (const std::exception&) {
    impl_->lost.fetch_add(1, std::memory_order_relaxed);
  }
}

std::uint64_t Tracer::collect(detail::TraceJson& json) const {
  std::uint64_t lost = impl_->lost.load(std::memory_order_relaxed);
  std::vector<std::pair<const Log*, std::string>> logs;
  {
    std::lock_guard lock(impl_->mutex);
    for (const Log& log : impl_->logs) logs.emplace_back(&log, log.name);
  }
  for (const auto& [log, name] : logs) {
    json.begin_thread(log->thread, name);
    for (const Chunk* chunk = log->first.load(std::memory_order_acquire); chunk;
         chunk = chunk->next.load(std::memory_order_acquire)) {
      const std::size_t count = chunk->count.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < count; ++i) json.add(chunk->records[i]);
    }
    lost += log->lost.load(std::memory_order_relaxed);
  }
  impl_->device_times.for_each([&](const TraceRecord& record, const Stream& stream) {
    json.add_device_work(record, stream);
  });
  return lost;
}

bool Tracer::empty() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->logs.empty();
}

std::string Tracer::part() const {
  detail::TraceJson json(impl_->offset_ns.load(std::memory_order_relaxed));
  const std::uint64_t lost = collect(json);
  return std::to_string(lost) + json.events();
}

void Tracer::merge(std::string part) {
  const std::size_t end = std::min(part.find('\n'), part.size());
  Part merged;
  const auto [rest, error] = std::from_chars(part.data(), part.data() + end, merged.lost);
  WEFT_CHECK(error == std::errc() && rest == part.data() + end, InvalidArgument, "tracer",
             "got a text that is no part of a trace");
  merged.events = part.substr(end);
  const std::lock_guard lock(impl_->mutex);
  impl_->merged.push_back(std::move(merged));
}

void Tracer::write(const std::string& path) const {
  detail::TraceJson json(impl_->offset_ns.load(std::memory_order_relaxed));
  std::uint64_t lost = collect(json);
  {
    const std::lock_guard lock(impl_->mutex);
    for (const Part& part : impl_->merged) {
      json.add_events(part.events);
      lost += part.lost;
    }
  }
  write_file_atomically(path, json.text(impl_->start, lost));
}

void Tracer::finish() const {
  if (!impl_->path.empty() && !empty() && thread_state().rank == 0) write(impl_->path);
}

void Span::begin(const char* category, const char* name) noexcept {
  start_record(record_, TraceRecord::Kind::span, category, name);
  device_begin_ = nullptr;
  ThreadTrace* const mine = trace_of_thread();
  outer_ = mine ? std::exchange(mine->innermost, this) : nullptr;
  record_.begin_ns = tracer_->now_ns();
}

void Span::begin(const char* category, const char* name, Device device) noexcept {
  begin(category, name);
  set_device(device);
}

void Span::set_device(Device device) noexcept {
  record_.device = device;
  record_.has_device = true;
  device_begin_ = tracer_->begin_device_work(device);
}

void detail::work_begins(Device device) noexcept {
  const ThreadTrace* const mine = thread_trace.get();
  Span* const span = mine ? mine->innermost : nullptr;
  if (span && !span->record_.has_device) span->set_device(device);
}

void Span::end() noexcept {
  record_.end_ns = tracer_->now_ns();
  if (ThreadTrace* const mine = thread_trace.get()) mine->innermost = outer_;
  tracer_->append(record_);
  if (device_begin_) tracer_->end_device_work(device_begin_, record_);
}

void detail::thread_renamed() {
  if (ThreadTrace* const mine = thread_trace.get()) mine->logs.fill({});
}

}  // namespace weft
