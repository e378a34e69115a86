// The context of a call: gradient mode, generator, device, module path, log and trace sinks. One
// object per thread; worker threads and backward copy it from the thread that gave them work.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/core/base/device.h"
#include "weft/core/base/dtype.h"
#include "weft/core/base/memory_owner.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

class ChoiceCache;
class LogSink;
class PoolChoice;
class GeneratorSet;
class Tracer;
class MemoryObserver;
class WeightCache;
namespace graph {
class Capture;
struct Trial;
}  // namespace graph

/// One step of the module path, linked through the stack frames of the calls: pushing is two
/// stores. A null name (the root module) does not show.
struct PathNode {
  const char* name = nullptr;
  const PathNode* parent = nullptr;
  /// The result of interned_path(); threads that share the path may write it at the same time.
  mutable const PathNode* interned = nullptr;
};

struct ThreadState {
  bool grad_enabled = true;
  /// The backward in progress is recorded (GradOptions::create_graph), so that its results can be
  /// differentiated again.
  bool create_graph = false;
  /// The backward in progress is that of autograd::grad(), which adds to no leaf's gradient.
  bool for_grad = false;
  /// autograd::checkpoint is running a forward again for its backward: running statistics must not
  /// count it a second time.
  bool recomputing = false;
  /// Choose kernels by fixed rules, without timing, and use no algorithm whose result depends on
  /// scheduling.
  bool deterministic = false;
  /// Time the candidates of a kernel for each new shape (set_benchmark).
  bool benchmark = false;
  /// autograd::Autocast: for each kind of device the dtype of matrix products; f32: off there.
  using AutocastTypes = std::array<DType, 2>;
  AutocastTypes autocast = {DType::f32, DType::f32};
  /// Where Autocast keeps converted weights: an object that is never freed, and the number of the
  /// scope that uses it. After that scope has ended the object has another number.
  struct AutocastCache {
    WeightCache* weights = nullptr;
    std::uint64_t scope = 0;
  };
  AutocastCache autocast_cache;
  /// TF32 as in PyTorch's defaults: convolutions yes, matmuls no. Only CUDA uses it
  /// (core/runtime/float32_precision.h).
  bool allow_tf32_conv = true;
  bool allow_tf32_matmul = false;
  /// Also tells the log how each kernel was chosen: candidates, their times, the winner and why.
  bool log_perf = false;
  int rank = 0;
  std::int64_t step = -1;  ///< of training, shown in traces; set by the code that runs the steps
  /// Team size of parallel_for and oneDNN; 0: all cores of the process, divided by the number of
  /// virtual CPU devices.
  int num_threads = 0;
  MemoryOwner memory_owner = MemoryOwner::activations;  ///< for new memory (allocator.h)
  Device device;                       ///< where creation functions put tensors by default
  GeneratorSet* generators = nullptr;  ///< null: the thread's own
  const PathNode* path = nullptr;
  LogSink* log = nullptr;  ///< null: warnings to stderr (core/runtime/log.h)
  Tracer* tracer = nullptr;
  MemoryObserver* memory = nullptr;   ///< is told of memory that is taken and given back
  ChoiceCache* choices = nullptr;     ///< null: timings are forgotten when the process ends
  graph::Capture* capture = nullptr;  ///< set while graph::capture records a step
  graph::Trial* trial = nullptr;      ///< set while graph::why_not_capturable runs a step
  const PoolChoice* pools = nullptr;  ///< the pools of that capture
  /// Where matrix products and convolutions count their multiply-adds; null: nowhere.
  std::int64_t* multiply_adds = nullptr;
};

namespace detail {
// Null until the thread's first use, and again after its end. A pointer, since the loader reserves
// few bytes for the thread-local variables of libraries that are opened at run time. constinit: no
// guard and no wrapper call. initial-exec: one load from the thread pointer, also across shared
// libraries.
#if defined(__CUDACC__)  // does not know the attribute; the access by a call it makes works as well
extern constinit thread_local ThreadState* current_thread_state;
#else
extern constinit thread_local ThreadState* current_thread_state
    __attribute__((tls_model("initial-exec")));
#endif
ThreadState& make_thread_state();
}  // namespace detail

inline ThreadState& thread_state() {
  ThreadState* const mine = detail::current_thread_state;
  if (!mine) [[unlikely]]
    return detail::make_thread_state();
  return *mine;
}

/// Like torch.backends.cudnn.benchmark, but also for matrix products, and on the CPU: for each new
/// shape the candidates are timed, and the fastest is kept. Off by default: then a fixed rule
/// chooses at once. For programs whose shapes stay the same: a shape takes from milliseconds to a
/// second. Of shapes that differ only in their batch or image size, rounded to a power of two, the
/// first few are timed, and the others use their result. Applies to this thread and to threads that
/// work for it; ignored if ThreadState::deterministic is set.
inline void set_benchmark(bool on) { thread_state().benchmark = on; }

/// Swaps in another state and puts the old one back: so a worker runs a job with the state of the
/// thread that submitted it.
class ThreadStateGuard {
 public:
  explicit ThreadStateGuard(const ThreadState& state) : saved_(thread_state()) {
    thread_state() = state;
  }
  ~ThreadStateGuard() { thread_state() = saved_; }
  ThreadStateGuard(const ThreadStateGuard&) = delete;
  ThreadStateGuard& operator=(const ThreadStateGuard&) = delete;

 private:
  ThreadState saved_;
};

/// Sets one field for a scope: Scoped no_grad(&ThreadState::grad_enabled, false);
template <class T>
class Scoped {
 public:
  using Field = T ThreadState::*;

  Scoped(Field field, T value) : field_(field), saved_(thread_state().*field) {
    thread_state().*field = value;
  }
  ~Scoped() { thread_state().*field_ = saved_; }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  Field field_;
  T saved_;
};
template <class T, class V>
Scoped(T ThreadState::*, V) -> Scoped<T>;

/// Names the module that is running, for errors and spans. `name` must outlive the scope.
class PathScope {
 public:
  explicit PathScope(const char* name) : node_{name, thread_state().path, nullptr} {
    thread_state().path = &node_;
  }
  ~PathScope() { thread_state().path = node_.parent; }
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  PathNode node_;
};

/// "layer1.0.conv1"; empty outside any module.
std::string module_path();
std::string module_path(const PathNode* path);
/// The calling thread's path in memory that is never freed: one object per path, so pointers can be
/// compared. Null outside any module. Takes a lock and memory only at a path's first use.
const PathNode* interned_path();

namespace graph {
/// Throws Unsupported, "[item] cannot be captured: <why>", or notes it for the trial.
void refuse(const char* op, const char* why);
/// Refuses in graph::capture and graph::why_not_capturable (core/runtime/capture.h).
inline void check_not_capturing(const char* op, const char* why) {
  const ThreadState& state = thread_state();
  if (state.capture || state.trial) [[unlikely]]
    refuse(op, why);
}
}  // namespace graph

/// The stream for new work of this thread on `device`: the last set_current_stream(), else the
/// runtime's default. Not part of ThreadState: a worker has its own streams. Throws Device if there
/// is no such CUDA device.
Stream current_stream(Device device);
/// Sets the stream for this thread; returns the previous one. Throws Unsupported inside
/// graph::capture.
Stream set_current_stream(const Stream& stream);
/// Makes `stream` current for a scope. Does nothing inside graph::capture, where all work uses one
/// stream.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::optional<Stream> before_;
};

}  // namespace weft
