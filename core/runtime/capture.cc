#include "weft/core/runtime/capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/copy_stream.h"

namespace weft::graph {

namespace {

// Recording streams that no step uses now. Streams live as long as the process, and so does the
// scratch memory that kernels keep per stream.
struct IdleStreams {
  std::mutex mutex;
  std::vector<Stream> streams;
  std::size_t made = 0;
};
IdleStreams& idle_streams() {
  static auto* const idle = new IdleStreams;
  return *idle;
}

Stream take_stream(Device device) {
  IdleStreams& idle = idle_streams();
  std::lock_guard lock(idle.mutex);
  const auto found = std::find_if(idle.streams.begin(), idle.streams.end(),
                                  [&](const Stream& s) { return s.device == device; });
  if (found == idle.streams.end()) {
    idle.streams.reserve(++idle.made);  // so that giving it back cannot fail
    return runtime(device).new_stream(device.index);
  }
  const Stream stream = *found;
  idle.streams.erase(found);
  return stream;
}

std::atomic<std::uint64_t> last_id{0};
std::atomic<std::uint64_t> last_run{0};

}  // namespace

Capture::Capture(Device device)
    : id_(++last_id),
      run_(++last_run),
      stream_(take_stream(device)),
      on_host_(!runtime(device).can_record()),
      pool_(stream_, current_stream(device)),
      number_pool_(stream_, current_stream(device)) {}

Capture::~Capture() {
  IdleStreams& idle = idle_streams();
  std::lock_guard lock(idle.mutex);
  idle.streams.push_back(stream_);
}

const MemoryPool* Capture::pool_for(Device other) const {
  if (other == device()) return current_pool_;
  // For example, a recomputing node keeps the generator's state on the host.
  if (other.is_cpu() && device().is_cuda()) return nullptr;
  WEFT_THROW(Unsupported, "allocate", "cannot be captured: memory of ", to_string(other),
             " in a step of ", to_string(device()));
}

void Capture::on_op(const char* op, Device where) {
  WEFT_CHECK(where == device(), Unsupported, op, "cannot be captured: it runs on ",
             to_string(where), ", the step on ", to_string(device()));
  op_ = op;
  if (on_host_) note({.op = op});
}

void Capture::on_use(const intrusive_ptr<Storage>& storage, std::int64_t offset, DType dtype,
                     const Shape& shape, const Strides& strides) {
  if (!(storage->device() == device())) return;
  const bool own = pool_.owns(*storage);
  // Empty storages are made again each time and have no address.
  const bool outside = !own && storage->bytes() > 0;
  if (on_host_) note({nullptr, outside ? storage.get() : nullptr, offset, dtype, shape, strides});
  if (outside && mode_ == Mode::recording && known_.insert(storage.get()).second) {
    kept_.push_back(storage);
  }
}

void Capture::note(const Entry& entry) {
  if (mode_ == Mode::recording) {
    entries_.push_back(entry);
    return;
  }
  WEFT_CHECK(next_entry_ < entries_.size(), InvalidArgument, "graph",
             "this replay does more than the captured step, which ended before ", op_);
  const Entry& was = entries_[next_entry_];
  if (!(was == entry)) throw_differs(was, entry);
  ++next_entry_;
}

void Capture::throw_differs(const Entry& was, const Entry& is) const {
  const char* const advice =
      "; what a step does is fixed by its capture: make another one for other work";
  if (was.op || is.op) {
    WEFT_THROW(InvalidArgument, "graph",
               "this replay differs from the capture: ", is.op ? is.op : "another operand",
               " in place of ", was.op ? was.op : "another operand", ", at ", op_, advice);
  }
  if (was.dtype != is.dtype || !(was.shape == is.shape) || !(was.strides == is.strides)) {
    WEFT_THROW(InvalidArgument, "graph", "this replay differs from the capture: ", op_, " got ",
               to_string(is.dtype), " ", to_string(is.shape), " with strides ",
               to_string(is.strides), ", captured with ", to_string(was.dtype), " ",
               to_string(was.shape), " with strides ", to_string(was.strides), advice);
  }
  WEFT_THROW(InvalidArgument, "graph", "this replay differs from the capture: ", op_,
             " got another tensor ", to_string(is.shape),
             " than the one captured, which a replay would use again; copy_() new values into that "
             "one");
}

const void* Capture::add_number(std::uint64_t value, std::function<std::uint64_t()> next) {
  const std::size_t at = next_number_++;
  if (mode_ == Mode::recording) {
    if (at % kNumbersPerBlock == 0) {
      current_pool_ = &number_pool_;
      try {
        number_blocks_.push_back(
            Storage::allocate(device(), kNumbersPerBlock * sizeof(std::uint64_t)));
      } catch (...) {
        current_pool_ = &pool_;
        throw;
      }
      current_pool_ = &pool_;
    }
    numbers_.push_back(value);
    next_numbers_.push_back(std::move(next));
  }
  std::uint64_t* const place = place_of(at);
  if (on_host_) *place = value;
  return place;
}

std::uint64_t* Capture::place_of(std::size_t number) const {
  auto* const block =
      static_cast<std::uint64_t*>(number_blocks_[number / kNumbersPerBlock]->data());
  return block + number % kNumbersPerBlock;
}

const std::uint64_t* Capture::random64(Generator& generator) {
  const std::uint64_t value = generator.random64();
  for (const Device of : {Device(), device()}) {
    if (thread_state().generators || &generator != &default_generator(of)) continue;
    return number<std::uint64_t>(value, [of] { return default_generator(of).random64(); });
  }
  return number<std::uint64_t>(value, [&generator] { return generator.random64(); });
}

void Capture::on_host_state(const void* name, std::function<void()> again) {
  WEFT_CHECK(again, InvalidArgument, "graph", "got no function for the host's state");
  if (mode_ != Mode::recording) return;
  const auto [at, fresh] = host_state_at_.try_emplace(name, host_state_.size());
  if (fresh) {
    host_state_.push_back(std::move(again));
  } else {
    host_state_[at->second] = std::move(again);
  }
}

void Capture::set_host_state() const {
  for (const auto& again : host_state_) again();
}

void Capture::constant(const char* op, const char* what, std::function<std::int64_t()> now) {
  WEFT_CHECK(now, InvalidArgument, op, "got no function that tells ", what);
  if (mode_ == Mode::recording) constants_.push_back({op, what, now(), std::move(now)});
}

void Capture::check_constants() const {
  for (const Constant& c : constants_) {
    WEFT_CHECK(c.now() == c.value, InvalidArgument, c.op, c.what,
               " changed since the step was captured, which has the old one; capture it again");
  }
}

void Capture::run_on_host(const std::function<void()>& body) {
  run_ = ++last_run;
  next_entry_ = 0;
  next_number_ = 0;
  op_ = "the beginning";
  {
    const Scoped scope(&ThreadState::capture, this);
    const Scoped pools(&ThreadState::pools, static_cast<const PoolChoice*>(this));
    body();
  }
  if (mode_ == Mode::comparing) {
    WEFT_CHECK(next_entry_ == entries_.size(), InvalidArgument, "graph",
               "this replay does less than the captured step: it ended at ", op_);
  }
  mode_ = Mode::comparing;
}

std::unique_ptr<RecordedWork> Capture::record(const std::function<void()>& body) {
  Runtime& device_runtime = runtime(device());
  const StreamScope stream(stream_);
  device_runtime.begin_recording(stream_);
  try {
    {
      const Scoped scope(&ThreadState::capture, this);
      const Scoped pools(&ThreadState::pools, static_cast<const PoolChoice*>(this));
      body();
    }
    mode_ = Mode::comparing;
    return device_runtime.end_recording(stream_);
  } catch (const Error& error) {
    device_runtime.abandon_recording(stream_);
    // A library's own error does not say which operation called it.
    if (error.code() != ErrorCode::Cuda && error.code() != ErrorCode::Library) throw;
    throw error.with_context(
        detail::concat(op_, " of a captured step (--no-graph: weft's programs run it as it is)"));
  } catch (...) {
    device_runtime.abandon_recording(stream_);
    throw;
  }
}

void Capture::advance() {
  for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = next_numbers_[i]();
}

void Capture::write_numbers(const Stream& stream) const {
  for (std::size_t first = 0; first < numbers_.size(); first += kNumbersPerBlock) {
    const std::size_t count = std::min(kNumbersPerBlock, numbers_.size() - first);
    runtime(device()).write_words(place_of(first), std::span(numbers_).subspan(first, count),
                                  stream);
  }
}

struct Step::Impl {
  Device device;
  std::function<void()> body;
  bool warm = false;
  std::unique_ptr<Capture> capture;    // exists from the second call on
  std::unique_ptr<RecordedWork> work;  // null on the CPU; its launches use the capture's memory
};

Step::Step(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Step::Step(Step&&) noexcept = default;
Step& Step::operator=(Step&&) noexcept = default;
Step::~Step() = default;

void Step::replay() {
  check_not_capturing("graph", "a captured step cannot be part of another");
  Impl& step = *impl_;
  if (!step.warm) {
    step.body();
    step.warm = true;
    return;
  }
  const bool first = !step.capture;
  if (first) {
    // Memory that the body used before is cached and not in the pool, and recording could not
    // release it.
    release_cached_memory(step.device);
    auto capture = std::make_unique<Capture>(step.device);
    if (capture->on_host_) {
      capture->run_on_host(step.body);
    } else {
      step.work = capture->record(step.body);
    }
    step.capture = std::move(capture);
  } else {
    step.capture->check_constants();
    if (!step.work) {
      step.capture->run_on_host(step.body);
    } else {
      step.capture->advance();
    }
  }
  if (step.work) {
    const Stream stream = current_stream(step.device);
    wait_for_copies(stream);  // the copies may read what the step writes
    step.capture->write_numbers(stream);
    step.work->launch(stream);
    if (!first) step.capture->set_host_state();
  }
}

void Step::reset() {
  check_not_capturing("graph", "a captured step cannot be reset in another");
  impl_->work.reset();  // waits, because its launches use the capture's memory
  impl_->capture.reset();
}

void refuse(const char* op, const char* why) {
  if (thread_state().capture) WEFT_THROW(Unsupported, op, "cannot be captured: ", why);
  Trial& trial = *thread_state().trial;
  // Threads that the body starts inherit its thread's state.
  if (trial.thread == std::this_thread::get_id() && trial.why_not.empty()) {
    trial.why_not = detail::concat(op, ": ", why);
  }
}

std::string why_not_capturable(const std::function<void()>& body) {
  WEFT_CHECK(body, InvalidArgument, "graph", "got no function to try");
  Trial trial{std::this_thread::get_id(), {}};
  const Scoped scope(&ThreadState::trial, &trial);
  body();
  return trial.why_not;
}

Step capture(std::function<void()> body) { return capture(thread_state().device, std::move(body)); }

Step capture(Device device, std::function<void()> body) {
  WEFT_CHECK(body, InvalidArgument, "graph", "got no function to capture");
  runtime(device);  // throws if there is no such device
  auto impl = std::make_unique<Step::Impl>();
  impl->device = device;
  impl->body = std::move(body);
  return Step(std::move(impl));
}

}  // namespace weft::graph
