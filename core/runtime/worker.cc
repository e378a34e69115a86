#include "weft/core/runtime/worker.h"

#include <pthread.h>

#include <chrono>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_name.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft {

// A thread that serves one device's queue. Level 0 is the worker, the others are stand-ins. The
// next job goes to the thread with the lowest level among those that do not wait for other jobs.
struct Server {
  enum class State { idle, running, waiting };

  Server(JobQueue& q, int l, State s, std::string n)
      : queue(q), level(l), name(std::move(n)), state(s) {}

  JobQueue& queue;
  const int level;
  const std::string name;  // for traces; made before its thread, which could not report an error
  State state;
  bool asleep = false;
  int wait_scopes = 0;
  std::condition_variable wake;
  std::unique_ptr<Server> next;  // of the next level
};

/// The jobs of one device.
class JobQueue {
 public:
  void set_device(Device device) { device_ = device; }
  const Device& device() const { return device_; }

  /// Throws Library if there is no thread to serve the queue and none can be started.
  void push(Job& job);
  void serve(Server& me);
  void begin_waiting(Server& me);
  void end_waiting(Server& me);

 private:
  Server* lowest_free() const;
  Server& start_server();
  void wake_or_start();
  Job* pop();
  void append(Job& job);
  static void run(Job* job) noexcept;

  Device device_;
  std::mutex mutex_;
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  std::atomic<int> length_{0};
  std::unique_ptr<Server> servers_;
};

namespace {

// Never destroyed: idle workers wait in it until the process ends. A child of fork() has none of
// the threads and makes its own.
struct Registry {
  Registry() {
    for (int type = 0; type < 2; ++type) {
      for (int i = 0; i < kMaxDevices; ++i) {
        queues[type][i].set_device({static_cast<DeviceType>(type), i});
      }
    }
  }
  JobQueue queues[2][kMaxDevices];
};

constinit std::atomic<Registry*> registry{nullptr};
constinit thread_local Server* this_server = nullptr;

// The child has only the thread that called fork(), and its locks may be in any state.
void forget_threads() {
  registry.store(nullptr, std::memory_order_relaxed);
  this_server = nullptr;
}

struct AtFork {
  AtFork() { pthread_atfork(nullptr, nullptr, forget_threads); }
} const at_fork;

JobQueue& queue_of(Device device) {
  Registry* found = registry.load(std::memory_order_acquire);
  if (!found) {
    auto fresh = std::make_unique<Registry>();
    if (registry.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) {
      found = fresh.release();
    }
  }
  return found->queues[static_cast<int>(device.type)][device.index];
}

// About the time to wake a sleeping thread; after a longer spin nothing is saved.
constexpr std::chrono::microseconds kSpin{30};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

bool spin_until(bool (*ready)(const void*), const void* context) {
  if (ready(context)) return true;
  static const bool alone = core_count() == 1;
  if (alone) return false;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      pause();
      if (ready(context)) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// --- The queue -----------------------------------------------------------------------------------

Server* JobQueue::lowest_free() const {
  Server* server = servers_.get();
  while (server && server->state == Server::State::waiting) server = server->next.get();
  return server;
}

// The caller holds the lock.
Server& JobQueue::start_server() {
  std::unique_ptr<Server>* place = &servers_;
  int level = 0;
  for (; *place; place = &(*place)->next) ++level;
  std::string name = "worker " + to_string(device_);
  if (level > 0) name += ", stand-in " + std::to_string(level);
  auto fresh = std::make_unique<Server>(*this, level, Server::State::idle, std::move(name));
  Server* const server = fresh.get();
  try {
    std::thread([server] { server->queue.serve(*server); }).detach();
  } catch (const std::system_error& error) {
    WEFT_THROW(Library, "worker", "cannot start a thread for ", device_, ": ", error.what(),
               "; the process or its user is at the limit of threads");
  }
  *place = std::move(fresh);
  return *server;
}

void JobQueue::wake_or_start() {
  Server* server = lowest_free();
  if (!server) server = &start_server();
  if (server->asleep) server->wake.notify_one();
}

void JobQueue::append(Job& job) {
  job.next_ = nullptr;
  (last_ ? last_->next_ : first_) = &job;
  last_ = &job;
  length_.fetch_add(1, std::memory_order_release);
}

Job* JobQueue::pop() {
  Job* const job = first_;
  first_ = job->next_;
  if (!first_) last_ = nullptr;
  length_.fetch_sub(1, std::memory_order_relaxed);
  return job;
}

void JobQueue::push(Job& job) {
  std::lock_guard lock(mutex_);
  wake_or_start();
  append(job);
}

void JobQueue::run(Job* job) noexcept {
  // After run() has begun, the job may be destroyed or submitted again.
  JobGroup& group = *job->group_;
  const bool owned = job->owned_by_queue_;
  std::exception_ptr error = group.run(*worker_device(), *job);
  if (owned) delete job;
  group.finish(std::move(error));
}

void JobQueue::serve(Server& me) {
  this_server = &me;
  set_thread_name(me.name);
  leave_thread_unbound();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (first_ && lowest_free() == &me) {
      Job* const job = pop();
      me.state = Server::State::running;
      lock.unlock();
      run(job);
      lock.lock();
      me.state = Server::State::idle;
      continue;
    }
    // A stand-in leaves the next job to a thread of a lower level as soon as that is free.
    if (lowest_free() == &me) {
      lock.unlock();
      const bool more = spin_until([this] { return length_.load(std::memory_order_acquire) > 0; });
      lock.lock();
      if (more || first_) continue;
    } else if (first_) {
      wake_or_start();
    }
    me.asleep = true;
    me.wake.wait(lock, [&] { return first_ && lowest_free() == &me; });
    me.asleep = false;
  }
}

void JobQueue::begin_waiting(Server& me) {
  std::unique_lock lock(mutex_);
  if (me.wait_scopes++ > 0) return;
  me.state = Server::State::waiting;
  if (!first_) return;
  try {
    wake_or_start();
  } catch (...) {
    // No thread can be started: queued jobs run here, inside the job that waits, and may wait, too.
    const int scopes = std::exchange(me.wait_scopes, 0);
    me.state = Server::State::running;
    while (first_) {
      Job* const job = pop();
      lock.unlock();
      run(job);
      lock.lock();
    }
    me.wait_scopes = scopes;
    me.state = Server::State::waiting;
  }
}

void JobQueue::end_waiting(Server& me) {
  std::lock_guard lock(mutex_);
  if (--me.wait_scopes == 0) me.state = Server::State::running;
}

WaitScope::WaitScope() {
  if (Server* const server = this_server) server->queue.begin_waiting(*server);
}

WaitScope::~WaitScope() {
  if (Server* const server = this_server) server->queue.end_waiting(*server);
}

const Device* worker_device() {
  if (!this_server) return nullptr;
  return &this_server->queue.device();
}

// --- The group -----------------------------------------------------------------------------------

JobGroup::JobGroup()
    : state_(thread_state()), streams_(CurrentStreams::of_this_thread()), process_(fork_count()) {
  state_.generators = &default_generators();
  state_.multiply_adds = nullptr;
}

JobGroup::~JobGroup() { wait_until_done(); }

void JobGroup::check_takes(Device device) const {
  graph::check_not_capturing("worker", "what another thread does would not be part of the step");
  runtime(device);  // throws if there is no such device
  WEFT_CHECK(process_ == fork_count(), Internal, "worker",
             "this group was made in the parent process; make another one after fork()");
}

std::exception_ptr JobGroup::run(Device device, Job& job) noexcept {
  const auto take_reports = [this] {
    IndexReports* const found = index_reports();
    if (!found || found->empty()) return;
    const std::lock_guard lock(mutex_);
    reports_.add(std::move(*found));
  };
  try {
    const ThreadStateGuard state(state_);
    const StreamsGuard streams(streams_);
    thread_state().device = device;
    try {
      job.run();
    } catch (...) {
      take_reports();
      throw;
    }
    take_reports();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void JobGroup::run_here(Device device, Job& job) {
  check_takes(device);
  pending_.fetch_add(1, std::memory_order_relaxed);
  finish(run(device, job));
}

void JobGroup::enqueue(Device device, Job& job) {
  check_takes(device);
  job.group_ = this;
  pending_.fetch_add(1, std::memory_order_relaxed);
  try {
    queue_of(device).push(job);
  } catch (...) {
    pending_.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

void JobGroup::submit(Device device, Job& job) { enqueue(device, job); }

void JobGroup::submit_owned(Device device, Job* job) {
  std::unique_ptr<Job> owner(job);
  job->owned_by_queue_ = true;
  enqueue(device, *job);
  owner.release();
}

void JobGroup::finish(std::exception_ptr error) noexcept {
  // Holds the lock to the end: a waiting thread may destroy the group as soon as it gets the lock.
  std::lock_guard lock(mutex_);
  if (error && !error_) error_ = std::move(error);
  if (pending_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
}

void JobGroup::wait_until_done() noexcept {
  const auto done = [this] { return pending_.load(std::memory_order_acquire) == 0; };
  if (process_ != fork_count()) return;  // the jobs' threads belong to the parent
  if (!done()) {
    const WaitScope waiting;
    spin_until(done);
    std::unique_lock lock(mutex_);
    done_.wait(lock, done);
  }
  // The last finish() may still hold the lock.
  std::lock_guard lock(mutex_);
}

void JobGroup::wait() {
  WEFT_CHECK(process_ == fork_count() || pending_ == 0, Internal, "worker",
             "these jobs were given to threads of the parent process; fork() does not copy them");
  wait_until_done();
  if (!reports_.empty()) index_reports(true)->add(std::move(reports_));
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace weft
