// One backward over the tape, from discovery to the last leaf. Private to autograd/.
//
// A task (discovery.h) runs when it waits for no more gradients, and the results of its rule follow
// its links. Nothing is written into the graph itself, so backwards may nest and overlap.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "weft/autograd/discovery.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/session.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/worker.h"

namespace weft::autograd {

/// The state of a backward. It is reused, so a training step in its steady state allocates nothing.
class Run {
 public:
  /// backward() if `inputs` is null, else grad(). `op` names it in errors. `last_of_rule`: the rule
  /// in progress starts no further backward.
  void execute(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads,
               const std::span<const Tensor>* inputs, bool allow_unused, bool retain_graph,
               bool last_of_rule = false);
  /// The gradients that grad() returns.
  std::vector<Tensor> take_results() { return std::move(results_); }
  void clear();

  Discovery found;
  Run* next_idle = nullptr;

 private:
  struct Capture {
    std::int32_t task;
    std::int32_t output;
    std::int32_t result;
  };
  // The tasks of one device, used when there are several devices. While a part is active, one
  // thread runs its ready tasks. The thread leaves when there are none, so no worker waits for a
  // task of another device.
  struct Part final : Job {
    explicit Part(Run& r) : whole(r) {}
    void run() override { whole.work(*this); }

    Run& whole;
    Device device;
    std::vector<std::int32_t> ready;
    bool active = false;
  };

  void seed(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads);
  void capture(std::span<const Tensor> inputs, bool allow_unused);
  void prune();
  void refuse_freed() const;
  bool split_by_device();
  void run_here();
  void run_on_workers();
  void work(Part& part);
  void activate(Part& part);
  void share_out();
  void run_ready(Part& part, std::unique_lock<std::mutex>& lock);

  // The stream in which a leaf's gradient is added up.
  Stream leaf_stream(Device device) const;
  Stream stream_of(const Task& task, Device device) const;
  // Whether `to` is not the thread's current stream, in which x was made.
  static bool changes_stream(const Tensor& x, const Stream& to);
  // Work queued on `to` from now on runs after the work in the current stream that made x.
  static void hand_over(const Tensor& x, const Stream& to);
  void run_task(std::int32_t index);
  void run_leaf(const Task& task, Tensor& grad);
  void deliver(const Task& from, std::int32_t link, Tensor grad);
  void gather(const Task& task, std::int32_t index);
  bool any_worker_may_add(const Task& task) const;
  void push_shared(std::int32_t task);
  void push_ready(std::vector<std::int32_t>& ready, std::int32_t task) const;
  std::int32_t pop_ready(std::vector<std::int32_t>& ready) const;

  CurrentStreams caller_streams_;  // the caller reads the results there
  Session* session_ = nullptr;
  bool retain_ = false;
  bool capturing_ = false;
  bool parallel_ = false;
  std::int32_t root_tasks_ = 0;
  std::vector<intrusive_ptr<RefCounted>> roots_;  // keep the graph alive
  std::vector<Tensor> buffers_;                   // summed gradients, by task and output
  std::vector<std::int32_t> ready_;               // heap: the task recorded last is first
  std::vector<Capture> captures_;
  std::vector<Tensor> results_;
  std::vector<std::int32_t> order_, counts_;  // of prune() and run_on_workers()

  // Several devices. Each contribution waits in the slot of its link until all contributions to its
  // target have arrived. Then they are added in an order that does not depend on timing.
  std::vector<std::unique_ptr<Part>> parts_;
  int part_count_ = 0;
  std::vector<Tensor> contributions_;         // by link
  std::vector<std::int32_t> incoming_;        // links, grouped by target task
  std::vector<std::int32_t> first_incoming_;  // by task
  std::vector<std::int32_t> shared_;          // ready tasks that any idle CPU device may run
  std::mutex mutex_;
  std::condition_variable wake_caller_;
  std::atomic<bool> caller_wanted_{false};  // the caller has something to do
  std::vector<Part*> for_caller_;           // active parts without a worker
  std::thread::id caller_;
  bool caller_waits_ = false;
  std::int64_t remaining_ = 0;
  std::exception_ptr error_;
  JobGroup* jobs_ = nullptr;
};

/// Lends a Run for a scope. The thread keeps it for its next backward.
class RunLease {
 public:
  RunLease();
  ~RunLease();
  RunLease(const RunLease&) = delete;
  RunLease& operator=(const RunLease&) = delete;
  Run* operator->() const { return run_.get(); }

 private:
  std::unique_ptr<Run> run_;
};

}  // namespace weft::autograd
