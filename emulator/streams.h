// Streams, events and recordings, behind CUDA's handles.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace emulator {

struct Stream;

/// A point in a stream.
struct Point {
  bool passed = false;
  double time = 0;  // ms, see Stream
  Stream* stream = nullptr;
};

inline constexpr char kLibraryKernel[] = "sm90_kernel_of_a_library";

/// One entry of a stream: something to run, or a wait, or a point.
struct Operation {
  std::function<void()> run;
  std::shared_ptr<Point> wait, point;
  int device = 0;
  int also = -1;      // another device whose memory it touches
  double queued = 0;  // when, in ms of the host's clock
  /// For work in which other processes or threads take part: whether it can run now. Empty: always.
  std::function<bool()> ready = {};
  const char* kernel = nullptr;  ///< the name of its kernel, if it is one
};
using Graph = std::deque<Operation>;  // pointers to its operations are handles of nodes

struct Recording {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  Stream* origin;
  std::set<Stream*> streams;
  Graph operations;
  bool invalid = false;
};

/// Its work begins when it has been queued and the previous work has ended. It takes a few random
/// microseconds plus the time that this processor needs for it, whenever it really runs.
struct Stream {
  int device;
  bool is_default;
  std::deque<Operation> queue;
  Recording* recording = nullptr;
  double time = 0;            // ms, when its last work ended
  bool is_destroyed = false;  // what it has queued still runs
};

struct Event {
  int device;
  bool timed;
  std::shared_ptr<Point> last;
  Recording* recorded_in = nullptr;
};

/// The stream of a handle; for a default stream that of the calling thread's device, or of
/// `device`.
Stream* stream_of(cudaStream_t handle);
Stream* stream_of(cudaStream_t handle, int device);
/// CUDA may use the handle of a destroyed stream again, and this does so.
Stream* new_stream();
/// Queues or records.
cudaError_t put(Stream* stream, Operation operation);
void run_all(Stream* stream);
void run_device(int device);
void run_until(const std::shared_ptr<Point>& point);
/// Runs the stream as far as possible without others; returns whether the point was reached.
bool advance(const std::shared_ptr<Point>& point);
/// Runs the streams with operations in which others take part, as far as possible.
void run_exchanges();
/// Runs what a recording holds.
void run_recorded(Graph& operations, Stream* stream);

Recording* begin_recording(Stream* stream, cudaStreamCaptureMode mode);
/// Its streams may be used again; events may still refer to it.
void end_recording(Recording* recording);
bool is_recording(const Recording* recording);
/// Whether one of the current device's streams records; its recording is invalid then.
bool spoils_recording();
void exchange_mode(cudaStreamCaptureMode& mode);
void set_current_device(int device);
cudaError_t take_error(bool keep);

}  // namespace emulator
