// One backward over the tape, from discovery to the last leaf. Private to autograd/.
//
// A task (discovery.h) runs when it waits for no more gradients, and the results of its rule follow
// its links. Nothing is written into the graph itself, so backwards may nest and overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weft/autograd/captures.h"
#include "weft/autograd/discovery.h"
#include "weft/autograd/grad_options.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/session.h"
#include "weft/autograd/task_streams.h"

namespace weft::autograd {

/// sum += grad, into the memory of whichever of the two is free.
void add_to(Tensor& sum, Tensor grad);

/// Tasks that wait for no more gradients.
class ReadyTasks {
 public:
  explicit ReadyTasks(const Discovery& found) : found_(found) {}

  bool empty() const { return heap_.empty(); }
  void push(std::int32_t task);
  /// Removes and returns the one recorded last.
  std::int32_t pop();
  void clear() { heap_.clear(); }

 private:
  auto order() const {
    return [this](std::int32_t a, std::int32_t b) {
      return found_.tasks[a].sequence < found_.tasks[b].sequence;
    };
  }

  const Discovery& found_;
  std::vector<std::int32_t> heap_;
};

/// Runs the tasks of a backward whose nodes are on several devices.
class Distribution {
 public:
  virtual ~Distribution() = default;

  virtual void run() = 0;
  /// A rule, that of task `from`, has made the gradient for the target of a link.
  virtual void deliver(std::int32_t from, std::int32_t link, Tensor grad) = 0;
  /// All gradients for the task are delivered: adds them up where it will read them.
  virtual void gather(std::int32_t task) = 0;
  virtual void clear() = 0;
};

/// The state of a backward. It is reused, so a training step in its steady state allocates nothing.
class Run {
 public:
  /// backward() if `inputs` is null, else grad(). `op` names it in errors. `last_of_rule`: the rule
  /// in progress starts no further backward.
  void execute(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads,
               const std::span<const Tensor>* inputs, const GradOptions& options,
               bool last_of_rule = false);
  /// The gradients that grad() returns.
  std::vector<Tensor> take_results() { return captures_.take(); }
  void clear();

  /// Calls call(index) for each task that is ready at the start.
  template <class F>
  void for_each_root(F&& call) const {
    for (std::int32_t i = 0; i < root_tasks_; ++i) {
      if (found.tasks[i].wanted && found.tasks[i].pending == 0) call(i);
    }
  }
  void run_task(std::int32_t index);
  /// The sum of the gradients of an output of the task.
  Tensor& gradient(const Task& task, std::int32_t output) {
    return buffers_[task.first_buffer + output];
  }
  Session& session() const { return *session_; }
  Tensor relu_mask(const Link& link);

  Discovery found;
  std::unique_ptr<Distribution> distribution;
  Run* next_idle = nullptr;

 private:
  void seed(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads);
  void refuse_freed() const;
  bool on_one_device() const;
  void run_here();
  void run_node(std::int32_t task, std::span<Tensor> of_outputs);
  void run_leaf(const Task& task, Tensor& grad);
  void deliver(std::int32_t from, std::int32_t link, Tensor grad);

  TaskStreams streams_;
  Session* session_ = nullptr;
  bool retain_ = false;
  bool for_grad_ = false;
  std::int32_t root_tasks_ = 0;
  std::vector<intrusive_ptr<RefCounted>> roots_;  // keep the graph alive
  std::vector<Tensor> buffers_;                   // summed gradients, by task and output
  ReadyTasks ready_{found};
  Captures captures_;
  bool distributed_ = false;  // whether the distribution runs this backward
};

/// Executes as the outermost backward of this thread, or inside the one in progress. Returns what
/// grad() does.
std::vector<Tensor> run_backward(const char* op, std::span<const Tensor> outputs,
                                 std::span<const Tensor> grads,
                                 const std::span<const Tensor>* inputs, const GradOptions& options);

}  // namespace weft::autograd
