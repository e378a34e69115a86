// One backward over the tape, from discovery to the last leaf. Private to autograd/.
//
// Discovery numbers what the outputs depend on (tasks: nodes and leaves) and counts how many
// gradients each still waits for. A task whose count is 0 runs; its rule's results go along its
// links. Nothing is written into the graph itself, so that backwards may nest and overlap.
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

#include "weft/autograd/graph.h"
#include "weft/autograd/session.h"
#include "weft/core/runtime.h"
#include "weft/core/worker.h"

namespace weft::autograd {

struct Task {
  RefCounted* target = nullptr;  // a Node, or a leaf's TensorImpl
  std::uint64_t sequence = 0;
  std::int32_t first_link = 0;
  std::int32_t first_buffer = 0;
  std::int32_t pending = 0;  // gradients still to come
  std::int16_t part = 0;     // index of its device
  bool leaf = false;
  bool wanted = true;     // grad(): an input is reached from here
  bool runs = true;       // its rule has wanted results
  bool captured = false;  // grad(): it is an input
  bool crossed = false;   // some of its gradients come from other devices

  Node& node() const { return *static_cast<Node*>(target); }
  TensorImpl* impl() const { return static_cast<TensorImpl*>(target); }
};

/// What some outputs depend on.
class Discovery {
 public:
  /// The task of a node or leaf, a new one at its first mention.
  std::int32_t task_of(RefCounted* target, bool leaf);
  std::int32_t task_of(const Edge& edge) { return task_of(edge.target(), edge.is_leaf()); }
  /// The task found before, or -1.
  std::int32_t find(const RefCounted* target) const;
  /// Follows all edges from the tasks mentioned so far.
  void follow();
  void clear();

  std::vector<Task> tasks;
  std::vector<Link> links;  // of all tasks, in the order of their edges
  std::int32_t buffers = 0;

 private:
  std::size_t slot_of(const RefCounted* target) const;
  void grow();

  std::vector<std::int32_t> table_;  // open addressing; task + 1, 0: free
};

/// The reusable state of a backward: a steady step allocates nothing here.
class Run {
 public:
  /// backward() with `inputs` null, else grad(). `last_of_rule`: the rule in progress starts no
  /// other.
  void execute(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads,
               const std::span<const Tensor>* inputs, bool allow_unused, bool retain_graph,
               bool last_of_rule = false);
  /// dL/dinputs of a grad().
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
  // The tasks of one device, when there are several. While it is active one thread takes its ready
  // tasks, and goes when there are none: no thread waits for a task of another device.
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

  // Where a leaf's gradient is computed.
  Stream leaf_stream(Device device) const;
  Stream stream_of(const Task& task, Device device) const;
  // Whether `to` is another stream than the one that x was made in, the thread's current one.
  static bool changes_stream(const Tensor& x, const Stream& to);
  // What is queued on `to` from now on comes after what made x, in the thread's current stream.
  static void hand_over(const Tensor& x, const Stream& to);
  void run_task(std::int32_t index);
  void run_leaf(const Task& task, Tensor& grad);
  void deliver(const Task& from, std::int32_t link, Tensor grad);
  void gather(const Task& task, std::int32_t index);
  bool any_worker_may_add(const Task& task) const;
  void push_shared(std::int32_t task);
  void push_ready(std::vector<std::int32_t>& ready, std::int32_t task) const;
  std::int32_t pop_ready(std::vector<std::int32_t>& ready) const;

  CurrentStreams caller_streams_;  // where results are read
  Session* session_ = nullptr;
  bool retain_ = false;
  bool capturing_ = false;
  bool parallel_ = false;
  std::int32_t root_tasks_ = 0;
  std::vector<intrusive_ptr<RefCounted>> roots_;  // what keeps the graph alive
  std::vector<Tensor> buffers_;                   // summed gradients, by task and output
  std::vector<std::int32_t> ready_;               // heap: what was recorded last comes first
  std::vector<Capture> captures_;
  std::vector<Tensor> results_;
  std::vector<std::int32_t> order_, counts_;  // prune()

  // Several devices. A contribution waits in its link's slot until all of its target are in, and
  // then they are added in an order that does not depend on timing.
  std::vector<std::unique_ptr<Part>> parts_;
  int part_count_ = 0;
  std::vector<Tensor> contributions_;         // by link
  std::vector<std::int32_t> incoming_;        // links, grouped by target task
  std::vector<std::int32_t> first_incoming_;  // by task
  std::vector<std::int32_t> shared_;          // ready tasks for any CPU device that is free
  std::mutex mutex_;
  std::condition_variable wake_caller_;
  std::atomic<bool> caller_wanted_{false};  // there is something for it to do
  std::vector<Part*> for_caller_;           // active parts that no worker has been given
  std::thread::id caller_;
  bool caller_waits_ = false;
  std::int64_t remaining_ = 0;
  std::exception_ptr error_;
  JobGroup* jobs_ = nullptr;
};

/// A Run for the length of a scope, from those this thread used before.
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
