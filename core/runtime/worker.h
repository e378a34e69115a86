// Workers: one permanent thread per device, which runs jobs in the order of their submission.
// Forward and backward use the same worker, and so do all callers of the process.
//
//   JobGroup group;
//   for (Device device : devices) group.submit(device, [&, device] { ... });
//   group.wait();  // the first error, if there was one
//
// A job that waits for other jobs does not block its device: while it waits, a stand-in thread
// serves the queue. So jobs may submit jobs, to any device, and wait for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <type_traits>
#include <utility>

#include "weft/core/base/device.h"
#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/runtime/streams.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {

class JobGroup;
class JobQueue;

/// Work for a device's worker. The queue links jobs through themselves, so submitting one that the
/// caller owns allocates nothing.
class Job {
 public:
  Job() = default;
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Its exceptions are rethrown in the thread that waits for the group. As its last action it may
  /// submit this job again, to the same device or to another.
  virtual void run() = 0;

 private:
  friend class JobGroup;
  friend class JobQueue;
  Job* next_ = nullptr;
  JobGroup* group_ = nullptr;
  bool owned_by_queue_ = false;
};

/// Jobs that one caller waits for. They run with the ThreadState and the streams that the group's
/// maker had when it made the group. Two things differ: ThreadState::device is the worker's, and
/// multiply_adds are not counted. Any thread may submit.
class JobGroup {
 public:
  JobGroup();
  /// Waits; an error that wait() has not thrown is lost.
  ~JobGroup();
  JobGroup(const JobGroup&) = delete;
  JobGroup& operator=(const JobGroup&) = delete;

  /// `job` must live until it has run. Throws Device if there is no such device, Library if its
  /// thread cannot be started, Unsupported inside graph::capture, Internal in a child of fork() if
  /// the group belongs to the parent.
  void submit(Device device, Job& job);
  /// f(), copied or moved into a job from the pool of small blocks (core/runtime/pool.h).
  template <class F>
    requires(!std::is_base_of_v<Job, std::remove_cvref_t<F>>)
  void submit(Device device, F&& f) {
    submit_owned(device, new JobOf<std::decay_t<F>>(std::forward<F>(f)));
  }
  /// Runs `job` at once in the calling thread, as the worker of `device` would, whatever that
  /// worker is doing. A thread that would only wait can run one job itself, so that one thread less
  /// has to be woken. wait() rethrows the job's exceptions. Throws like submit().
  void run_here(Device device, Job& job);
  template <class F>
    requires(!std::is_base_of_v<Job, std::remove_cvref_t<F>>)
  void run_here(Device device, F&& f) {
    JobOf<std::decay_t<F>> job(std::forward<F>(f));
    run_here(device, job);
  }
  /// Waits until all jobs have run. Rethrows the first error, if any; the others are lost. The
  /// group can be used again. Throws Internal in a child of fork() for jobs of the parent.
  void wait();

 private:
  friend class JobQueue;
  template <class F>
  class JobOf final : public Job, public Pooled {
   public:
    explicit JobOf(F f) : f_(std::move(f)) {}
    void run() override { f_(); }

   private:
    F f_;
  };

  void submit_owned(Device device, Job* job);
  void check_takes(Device device) const;
  void enqueue(Device device, Job& job);
  std::exception_ptr run(Device device, Job& job) noexcept;
  void finish(std::exception_ptr error) noexcept;
  void wait_until_done() noexcept;

  ThreadState state_;
  CurrentStreams streams_;
  const int process_;  // the number of the process (fork_count) that made the group
  std::atomic<int> pending_{0};
  std::mutex mutex_;
  std::condition_variable done_;
  std::exception_ptr error_;
  IndexReports reports_;  // for the thread that waits
};

/// While it lives, the calling thread only waits: for jobs, or for anything that may depend on
/// them. If the thread is a worker, a stand-in serves its queue meanwhile. Stand-ins are kept for
/// the next time: as many as jobs of one device ever waited at once. In other threads it does
/// nothing.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
};

/// The device whose worker, or its stand-in, the calling thread is; null in other threads.
const Device* worker_device();

/// Spins for a moment until `ready()`, so that a short wait costs no system call. Returns whether
/// ready() became true. On one core it does not spin: the thread to wait for could not run.
bool spin_until(bool (*ready)(const void*), const void* context);
template <class F>
bool spin_until(const F& ready) {
  return spin_until([](const void* f) { return bool((*static_cast<const F*>(f))()); }, &ready);
}

}  // namespace weft
