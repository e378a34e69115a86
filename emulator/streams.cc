#include "emulator/streams.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "emulator/emulator.h"

namespace emulator {

namespace {

// A queue of this length is run: waiting work holds memory.
constexpr std::size_t kLongQueue = 4096;

auto& streams = *new std::vector<Stream*>;  // never destroyed
std::set<Recording*> recordings;
std::atomic<unsigned> contexts = 0;  // bit i: device i has one

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

double host_clock() {
  using Ms = std::chrono::duration<double, std::milli>;
  return Ms(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Time of this thread only: other work on the machine does not count.
double work_clock() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

void run(Operation& operation, Stream* stream) {
  stream->time = std::max(stream->time, operation.queued);
  if (operation.run) {
    std::set<int> devices{operation.device};
    if (operation.also >= 0) devices.insert(operation.also);
    open_memory(devices);
    const std::int64_t cycles = device_cycles();
    const double before = work_clock();
    operation.run();
    stream->time += 0.001 + 0.000001 * static_cast<double>(random_word() % 3000) + work_clock() -
                    before + static_cast<double>(device_cycles() - cycles) / kCyclesPerMs;
  }
  if (operation.point) {
    operation.point->time = stream->time;
    operation.point->passed = true;
  }
}

// False if there is nothing, or nothing that can run yet.
bool run_one(Stream* stream) {
  if (stream->queue.empty()) return false;
  Operation& first = stream->queue.front();
  if (first.wait && !advance(first.wait)) return false;
  if (first.ready && !first.ready()) return false;
  Operation operation = std::move(first);
  stream->queue.pop_front();
  if (operation.wait) stream->time = std::max(stream->time, operation.wait->time);
  run(operation, stream);
  return true;
}

// Lets other threads go on, as a GPU would.
void wait_for_others() {
  run_exchanges();
  close_memory();
  pause();
}

void queued(Stream* stream) {
  if (options().order == Order::eager || stream->queue.size() > kLongQueue) {
    while (run_one(stream)) {
    }
  } else if (options().order == Order::random) {
    while (random_word() % 4 == 0) {
      Stream* const any = streams[random_word() % streams.size()];
      for (auto n = random_word() % 8; n > 0 && run_one(any); --n) {
      }
    }
  }
  close_memory();
}

}  // namespace

int current_device() { return current; }

int device_with_context() {
  contexts |= 1u << current;
  return current;
}

// Since CUDA 12 this also makes a context.
void set_current_device(int device) {
  current = device;
  device_with_context();
}

cudaError_t fail(cudaError_t error) { return last_error = error; }

cudaError_t take_error(bool keep) {
  return keep ? last_error : std::exchange(last_error, cudaSuccess);
}

Stream* stream_of(cudaStream_t handle) {
  return handle ? stream_of(handle, -1) : stream_of(handle, device_with_context());
}

Stream* stream_of(cudaStream_t handle, int device) {
  if (handle) {
    auto* const stream = reinterpret_cast<Stream*>(handle);
    if (stream->is_destroyed) fault("stream %p is destroyed", static_cast<void*>(handle));
    return stream;
  }
  static std::array<Stream*, kMostDevices> defaults{};
  Stream*& found = defaults[static_cast<std::size_t>(device)];
  if (!found) streams.push_back(found = new Stream{device, true, {}, nullptr});
  return found;
}

Stream* new_stream() {
  const int device = device_with_context();
  for (Stream* const stream : streams) {
    if (!stream->is_destroyed || stream->device != device || !stream->queue.empty()) continue;
    stream->is_destroyed = false;
    return stream;
  }
  streams.push_back(new Stream{device, false, {}, nullptr});
  return streams.back();
}

void run_all(Stream* stream) {
  while (!stream->queue.empty()) {
    if (!run_one(stream)) wait_for_others();
  }
}

void run_device(int device) {
  std::vector<Stream*> order;
  for (Stream* stream : streams) {
    if (stream->device == device) order.push_back(stream);
  }
  std::shuffle(order.begin(), order.end(), options().random);
  for (Stream* stream : order) run_all(stream);
}

bool advance(const std::shared_ptr<Point>& point) {
  while (!point->passed) {
    if (point->stream->queue.empty()) fault("an event's stream is empty, but it has not come");
    if (!run_one(point->stream)) return false;
  }
  return true;
}

void run_until(const std::shared_ptr<Point>& point) {
  while (!advance(point)) wait_for_others();
}

void run_exchanges() {
  const auto has_exchange = [](const Stream* stream) {
    return std::ranges::any_of(stream->queue,
                               [](const Operation& operation) { return bool(operation.ready); });
  };
  for (std::size_t i = 0; i < streams.size(); ++i) {
    while (has_exchange(streams[i]) && run_one(streams[i])) {
    }
  }
}

void run_recorded(Graph& operations, Stream* stream) {
  for (Operation& operation : operations) run(operation, stream);
}

cudaError_t put(Stream* stream, Operation operation) {
  if (stream->recording) {
    if (stream->recording->invalid) return fail(cudaErrorStreamCaptureInvalidated);
    stream->recording->operations.push_back(std::move(operation));
    return cudaSuccess;
  }
  operation.queued = host_clock();
  stream->queue.push_back(std::move(operation));
  queued(stream);
  return cudaSuccess;
}

cudaError_t check_stream(cudaStream_t stream) {
  const Guard guard;
  return stream_of(stream)->device == current ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t enqueue(cudaStream_t handle, std::function<void()> work, int also) {
  const Guard guard;
  Stream* const stream = stream_of(handle);
  Operation operation{std::move(work), nullptr, nullptr, stream->device, also};
  operation.kernel = kLibraryKernel;
  return put(stream, std::move(operation));
}

cudaError_t queue_library(cudaStream_t stream, void* workspace, std::size_t bytes,
                          std::function<void()> work) {
  if (const cudaError_t status = check_stream(stream); status != cudaSuccess) return fail(status);
  return enqueue(stream, [=] {
    if (options().counts) return;
    scribble(workspace, bytes);
    work();
  });
}

Recording* begin_recording(Stream* stream, cudaStreamCaptureMode mode) {
  auto* const recording =
      new Recording{mode, std::this_thread::get_id(), stream, {stream}, {}, false};
  stream->recording = recording;
  recordings.insert(recording);
  return recording;
}

void end_recording(Recording* recording) {
  for (Stream* stream : recording->streams) stream->recording = nullptr;
  recordings.erase(recording);
}

bool is_recording(const Recording* recording) {
  return recordings.count(const_cast<Recording*>(recording)) != 0;
}

bool spoils_recording() {
  for (Stream* stream : streams) {
    if (stream->device != current || !stream->recording) continue;
    stream->recording->invalid = true;
    return true;
  }
  return false;
}

void exchange_mode(cudaStreamCaptureMode& mode) { std::swap(mode, thread_mode); }

// CUDA programming guide, "Prohibited and Unhandled Operations" of stream capture, and
// cudaThreadExchangeStreamCaptureMode.
bool prohibited() {
  const Guard guard;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  for (Recording* recording : recordings) {
    const bool mine = recording->thread == std::this_thread::get_id();
    const bool counts = mine ? recording->mode != cudaStreamCaptureModeRelaxed
                             : recording->mode == cudaStreamCaptureModeGlobal &&
                                   thread_mode == cudaStreamCaptureModeGlobal;
    if (!counts) continue;
    recording->invalid = found = true;
  }
  return found;
}

}  // namespace emulator

// For tests: bit i is set when the process has a context on device i.
extern "C" unsigned weft_emulated_contexts() { return emulator::contexts; }
