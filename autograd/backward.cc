// backward(), and what a thread keeps between its backwards.
#include <memory>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/engine.h"
#include "weft/autograd/session.h"
#include "weft/autograd/several_devices.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/trace/trace.h"

namespace weft::autograd {

namespace {

// A run keeps its memory for the next one, but not that of an exceptionally long graph.
constexpr std::size_t kKeptTasks = 1 << 16;

// What a thread keeps between its backwards.
struct Kept {
  ~Kept() {
    while (Run* const run = idle_runs) {
      idle_runs = run->next_idle;
      delete run;
    }
  }

  // A list linked through the Runs themselves, so that giving one back cannot run out of memory.
  Run* idle_runs = nullptr;
  Session session;
};
constinit ThreadLocal<Kept> kept;

// Lends a Run for a scope. The thread keeps it for its next backward.
class RunLease {
 public:
  RunLease() {
    if (Run*& idle = kept->idle_runs) {
      run_.reset(idle);
      idle = run_->next_idle;
    } else {
      run_ = std::make_unique<Run>();
      run_->distribution = std::make_unique<SeveralDevices>(*run_);
    }
  }
  ~RunLease() {
    Kept* const mine = kept.get();
    const bool huge = run_->found.tasks.size() > kKeptTasks;
    if (huge || !mine) return;  // no kept: the thread is ending
    run_->clear();
    run_->next_idle = mine->idle_runs;
    mine->idle_runs = run_.release();
  }
  RunLease(const RunLease&) = delete;
  RunLease& operator=(const RunLease&) = delete;
  Run* operator->() const { return run_.get(); }

 private:
  std::unique_ptr<Run> run_;
};

}  // namespace

std::vector<Tensor> run_backward(const char* op, std::span<const Tensor> outputs,
                                 std::span<const Tensor> grads,
                                 const std::span<const Tensor>* inputs,
                                 const GradOptions& options) {
  std::vector<Tensor> results;
  const auto run_all = [&] {
    const RunLease run;
    run->execute(op, outputs, grads, inputs, options);
    if (inputs) results = run->take_results();
  };
  Session::current() ? run_all() : kept->session.run(run_all);
  return results;
}

void backward(std::span<const Tensor> outputs, std::span<const Tensor> grads, bool retain_graph,
              bool create_graph) {
  const Span span("phase", "backward");
  const PhaseScope phase("backward");
  run_backward("backward", outputs, grads, nullptr, {retain_graph, create_graph});
}

void last_backward_of_rule(std::span<const Tensor> outputs, std::span<const Tensor> grads) {
  const RunLease run;
  run->execute("backward", outputs, grads, nullptr, {}, true);
}

void at_backward_end(std::function<void(const std::exception_ptr& error)> callback) {
  Session* const session = Session::current();
  WEFT_CHECK(session, InvalidArgument, "at_backward_end",
             "no backward is in progress on this thread; call it from a hook or a rule");
  WEFT_CHECK(callback, InvalidArgument, "at_backward_end", "the callback is empty");
  session->at_end(std::move(callback));
}

std::vector<Tensor> reachable_leaves(std::span<const Tensor> outputs) {
  const RunLease run;
  for (const Tensor& y : outputs) {
    if (y.defined() && requires_grad(y)) run->found.task_of(Edge(y));
  }
  run->found.follow();
  std::vector<Tensor> leaves;
  for (const Task& task : run->found.tasks) {
    if (task.leaf) leaves.emplace_back(intrusive_ptr<TensorImpl>(task.impl()));
  }
  return leaves;
}

}  // namespace weft::autograd
