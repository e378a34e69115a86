#include "weft/autograd/engine.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "weft/autograd/autograd.h"
#include "weft/autograd/worker.h"
#include "weft/core/capture.h"
#include "weft/core/error.h"
#include "weft/core/pool.h"
#include "weft/core/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

// Nobody else can see the tensor's memory, and each element has its own.
bool may_write(const Tensor& x) {
  return x.impl()->use_count() == 1 && x.storage()->use_count() == 1 && x.storage()->owned() &&
         x.is_dense();
}

// sum += grad, into whichever of the two is free.
void add_to(Tensor& sum, Tensor grad) {
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (may_write(sum)) {
    raw::add_scaled_(sum, 1, grad);
  } else if (may_write(grad)) {
    raw::add_scaled_(grad, 1, sum);
    sum = std::move(grad);
  } else {
    sum = raw::add(sum, grad);
  }
}

void run_grad_hooks(OutputHooks* hooks, int output, Tensor& grad) {
  hooks->for_each([&](const OutputHook& entry) {
    if (entry.output != output || !grad.defined()) return;
    Tensor replaced = entry.hook(grad);
    if (!replaced.defined()) return;
    WEFT_CHECK(replaced.shape() == grad.shape() && replaced.dtype() == grad.dtype() &&
                   replaced.device() == grad.device(),
               Shape, "grad_hook", "the hook returned ", replaced.dtype(), " ", replaced.shape(),
               " on ", replaced.device(), " for a gradient ", grad.dtype(), " ", grad.shape(),
               " on ", grad.device());
    grad = std::move(replaced);
  });
}

// The gradients a rule fills in; on the stack for nearly all nodes.
class RuleResults {
 public:
  explicit RuleResults(std::size_t count) : span_(few_.data(), count) {
    if (count <= few_.size()) return;
    many_.resize(count);
    span_ = many_;
  }
  std::span<Tensor> span() { return span_; }

 private:
  std::array<Tensor, 4> few_;
  std::vector<Tensor, PoolAllocator<Tensor>> many_;
  std::span<Tensor> span_;
};

}  // namespace

// --- What to compute -----------------------------------------------------------------------------

void Run::seed(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads) {
  WEFT_CHECK(!outputs.empty(), InvalidArgument, op, "needs at least one output");
  WEFT_CHECK(grads.empty() || grads.size() == outputs.size(), InvalidArgument, op, "got ",
             grads.size(), " gradients for ", outputs.size(), " outputs");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    WEFT_CHECK(y.defined() && requires_grad(y), InvalidArgument, op, "output ", i,
               " does not require a gradient; it depends on no tensor that does, or was computed "
               "under NoGrad");
    const Edge edge(y);
    if (found.task_of(edge) == static_cast<std::int32_t>(roots_.size())) {
      roots_.emplace_back(edge.target());
    }
  }
  root_tasks_ = static_cast<std::int32_t>(found.tasks.size());
  buffers_.resize(found.buffers);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    Tensor grad;
    if (!grads.empty() && grads[i].defined()) {
      grad = grads[i];
      WEFT_CHECK(grad.shape() == y.shape(), Shape, op, "gradient ", i, ": got ", grad.shape(),
                 ", the output is ", y.shape());
      WEFT_CHECK(grad.dtype() == y.dtype(), Dtype, op, "gradient ", i, ": got ", grad.dtype(),
                 ", the output is ", y.dtype());
      WEFT_CHECK(grad.device() == y.device(), Device, op, "gradient ", i, " is on ", grad.device(),
                 ", the output on ", y.device());
    } else {
      WEFT_CHECK(y.numel() == 1, InvalidArgument, op, "output ", i, " has shape ", y.shape(),
                 "; without a gradient only one-element outputs can start a backward");
      grad = ones_like(y);
    }
    const Edge edge(y);
    const Task& task = found.tasks[found.task_of(edge)];
    add_to(buffers_[task.first_buffer + edge.output()], std::move(grad));
  }
}

void Run::capture(std::span<const Tensor> inputs, bool allow_unused) {
  results_.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    WEFT_CHECK(x.defined() && requires_grad(x), InvalidArgument, "grad", "input ", i,
               " does not require a gradient");
    const Edge edge(x);
    const std::int32_t task = found.find(edge.target());
    if (task < 0) {
      WEFT_CHECK(allow_unused, InvalidArgument, "grad", "the outputs do not depend on input ", i,
                 " (", x.shape(), "); pass allow_unused=true to get an undefined gradient for it");
      continue;
    }
    found.tasks[task].captured = true;
    captures_.push_back({task, edge.output(), static_cast<std::int32_t>(i)});
  }
  prune();
}

// Keeps the tasks from which an input is reached.
void Run::prune() {
  auto& tasks = found.tasks;
  const auto end_of_links = [&](std::int32_t task) {
    const std::size_t next = task + 1;
    return next < tasks.size() ? tasks[next].first_link
                               : static_cast<std::int32_t>(found.links.size());
  };
  counts_.resize(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    counts_[i] = tasks[i].pending;
    if (counts_[i] == 0) order_.push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (int k = tasks[order_[i]].first_link; k < end_of_links(order_[i]); ++k) {
      const std::int32_t to = found.links[k].task;
      if (to >= 0 && --counts_[to] == 0) order_.push_back(to);
    }
  }
  for (auto at = order_.rbegin(); at != order_.rend(); ++at) {
    Task& task = tasks[*at];
    task.runs = false;
    for (int k = task.first_link; k < end_of_links(*at); ++k) {
      Link& link = found.links[k];
      if (link.task < 0) continue;
      if (tasks[link.task].wanted) {
        task.runs = true;
      } else {
        link.task = -1;
      }
    }
    task.wanted = task.runs || task.captured;
  }
}

// Before anything has been added to a .grad(); what a nested backward, or one in another thread,
// frees is found later.
void Run::refuse_freed() const {
  for (const Task& task : found.tasks) {
    if (!task.leaf && task.wanted && task.runs && task.node().freed()) {
      const Scoped path(&ThreadState::path, task.node().path());
      task.node().throw_freed();
    }
  }
}

// --- Running it
// ------------------------------------------------------------------------------------

void Run::execute(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads,
                  const std::span<const Tensor>* inputs, bool allow_unused, bool retain_graph,
                  bool last_of_rule) {
  retain_ = retain_graph;
  capturing_ = inputs != nullptr;
  seed(op, outputs, grads);
  found.follow();
  if (capturing_) capture(*inputs, allow_unused);
  refuse_freed();
  Session& session = *Session::current();
  session.begin_run(found, !capturing_);
  if (last_of_rule) session.settle(*NestingRule::current());
  buffers_.resize(found.buffers);
  const NoGrad no_grad;
  const Scoped autocast(&ThreadState::autocast, ThreadState().autocast);
  if (split_by_device()) {
    run_on_workers();
  } else {
    run_here();
  }
}

void Run::run_here() {
  for (std::int32_t i = 0; i < root_tasks_; ++i) {
    if (found.tasks[i].wanted && found.tasks[i].pending == 0) push_ready(ready_, i);
  }
  while (!ready_.empty()) run_task(pop_ready(ready_));
}

void Run::push_ready(std::vector<std::int32_t>& ready, std::int32_t task) const {
  ready.push_back(task);
  std::push_heap(ready.begin(), ready.end(), [this](std::int32_t a, std::int32_t b) {
    return found.tasks[a].sequence < found.tasks[b].sequence;
  });
}

std::int32_t Run::pop_ready(std::vector<std::int32_t>& ready) const {
  std::pop_heap(ready.begin(), ready.end(), [this](std::int32_t a, std::int32_t b) {
    return found.tasks[a].sequence < found.tasks[b].sequence;
  });
  const std::int32_t task = ready.back();
  ready.pop_back();
  return task;
}

void Run::run_task(std::int32_t index) {
  const Task& task = found.tasks[index];
  if (parallel_) gather(task, index);
  Tensor* const first = buffers_.data() + task.first_buffer;
  if (task.leaf) {
    if (capturing_) {
      if (OutputHooks* hooks = meta_of(task.impl())->leaf->grad_hooks.get()) {
        run_grad_hooks(hooks, 0, *first);
      }
    } else {
      run_leaf(task, *first);
    }
  }
  if (!task.leaf && task.node().hooks()) {
    for (int i = 0; i < task.node().outputs(); ++i) {
      run_grad_hooks(task.node().hooks(), i, first[i]);
    }
  }
  if (task.captured) {
    for (const Capture& c : captures_) {
      if (c.task == index) results_[c.result] = first[c.output];
    }
  }
  if (task.leaf) {
    *first = Tensor();
    return;
  }

  Node& node = task.node();
  const std::span<Tensor> of_outputs(first, node.outputs());
  RuleResults results(node.edges().size());
  if (task.runs) {
    const Scoped path(&ThreadState::path, node.path());
    Span span("backward", node.op(), node.device());
    span.set_flow(node.trace_flow());
    const bool any = std::any_of(of_outputs.begin(), of_outputs.end(),
                                 [](const Tensor& g) { return g.defined(); });
    NodeUse use(node, retain_);
    std::optional<NestingRule> nesting;
    if (node.nests()) nesting.emplace(*Session::current());
    if (any) {
      if (span.on() && of_outputs[0].defined()) span.set_shape(of_outputs[0].shape());
      Gradients gradients(of_outputs, results.span(),
                          {found.links.data() + task.first_link, results.span().size()},
                          !capturing_);
      node.apply(gradients);
    }
    use.finish();
    if (nesting) Session::current()->settle(*nesting);
  }
  for (Tensor& g : of_outputs) g = Tensor();
  for (std::size_t i = 0; i < results.span().size(); ++i) {
    deliver(task.first_link + static_cast<std::int32_t>(i), std::move(results.span()[i]));
  }
}

void Run::run_leaf(const Task& task, Tensor& grad) {
  const Tensor leaf{intrusive_ptr<TensorImpl>(task.impl())};
  LeafState& state = *meta_of(leaf)->leaf;
  if (OutputHooks* hooks = state.grad_hooks.get()) run_grad_hooks(hooks, 0, grad);
  if (grad.defined()) state.accumulate(leaf, std::move(grad));
  if (HookList<LeafHook>* hooks = state.leaf_hooks.get()) {
    hooks->for_each([&](const LeafHook& hook) { hook(leaf); });
  }
  if (state.final_hooks.get()) Session::current()->arrived(leaf);
}

void Run::deliver(std::int32_t index, Tensor grad) {
  const Link link = found.links[index];
  if (link.task < 0) return;
  Task& to = found.tasks[link.task];
  if (parallel_) {
    contributions_[index] = std::move(grad);
    std::lock_guard lock(mutex_);
    if (--to.pending > 0) return;
    Part& part = *parts_[to.part];
    push_ready(part.ready, link.task);
    part.wake.notify_one();
    return;
  }
  if (grad.defined()) add_to(buffers_[to.first_buffer + link.output], std::move(grad));
  if (--to.pending == 0) push_ready(ready_, link.task);
}

// --- Several devices
// ---------------------------------------------------------------------------------

// Numbers the devices; false when there is only one.
bool Run::split_by_device() {
  part_count_ = 0;
  for (Task& task : found.tasks) {
    if (!task.wanted) continue;
    const Device device = task.leaf ? task.impl()->storage->device() : task.node().device();
    int part = 0;
    while (part < part_count_ && !(parts_[part]->device == device)) ++part;
    if (part == part_count_) {
      if (part_count_ == static_cast<int>(parts_.size()))
        parts_.push_back(std::make_unique<Part>());
      parts_[part_count_++]->device = device;
    }
    task.part = static_cast<std::int16_t>(part);
  }
  return part_count_ > 1;
}

/// One device's part of a run.
class PartJob final : public Job {
 public:
  PartJob(Run& run, Run::Part& part) : run_(run), part_(part) {}
  void run() override { run_.work(part_); }
  void done() override {
    // Under the lock: the waiting thread must not destroy the run before the notification is out.
    std::lock_guard lock(run_.mutex_);
    if (--run_.running_ == 0) run_.finished_.notify_one();
  }

 private:
  Run& run_;
  Run::Part& part_;
};

void Run::run_on_workers() {
  graph::check_not_capturing("backward", "the tape has nodes on several devices");
  const std::size_t n = found.tasks.size();
  parallel_ = true;
  state_ = thread_state();
  session_ = Session::current();
  error_ = nullptr;
  contributions_.resize(found.links.size());

  // incoming_: the links grouped by target, those of the task recorded last first, which is the
  // order in which a single thread would add them up.
  first_incoming_.assign(n + 1, 0);
  for (const Link& link : found.links) {
    if (link.task >= 0) ++first_incoming_[link.task + 1];
  }
  for (std::size_t i = 0; i < n; ++i) first_incoming_[i + 1] += first_incoming_[i];
  incoming_.resize(first_incoming_[n]);
  counts_.assign(first_incoming_.begin(), first_incoming_.end() - 1);
  order_.resize(n);
  for (std::size_t i = 0; i < n; ++i) order_[i] = static_cast<std::int32_t>(i);
  std::sort(order_.begin(), order_.end(), [this](std::int32_t a, std::int32_t b) {
    const std::uint64_t left = found.tasks[a].sequence, right = found.tasks[b].sequence;
    return left != right ? left > right : a < b;
  });
  for (const std::int32_t source : order_) {
    if (found.tasks[source].leaf) continue;
    const auto edges = static_cast<std::int32_t>(found.tasks[source].node().edges().size());
    for (std::int32_t k = 0; k < edges; ++k) {
      const std::int32_t link = found.tasks[source].first_link + k;
      const std::int32_t to = found.links[link].task;
      if (to >= 0) incoming_[counts_[to]++] = link;
    }
  }

  remaining_ = std::count_if(found.tasks.begin(), found.tasks.end(),
                             [](const Task& task) { return task.wanted; });
  for (int i = 0; i < part_count_; ++i) {
    parts_[i]->ready.clear();
    parts_[i]->stream = current_stream(parts_[i]->device);
  }
  for (std::int32_t i = 0; i < root_tasks_; ++i) {
    const Task& task = found.tasks[i];
    if (task.wanted && task.pending == 0) push_ready(parts_[task.part]->ready, i);
  }

  std::vector<PartJob, PoolAllocator<PartJob>> jobs;
  jobs.reserve(part_count_);
  running_ = part_count_;
  for (int i = 0; i < part_count_; ++i) {
    jobs.emplace_back(*this, *parts_[i]);
    try {
      run_on_worker(parts_[i]->device, &jobs.back());
    } catch (...) {  // no thread to be had: those already started are told to stop
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      running_ -= part_count_ - i;
      for (int k = 0; k < part_count_; ++k) parts_[k]->wake.notify_one();
      break;
    }
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return running_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Run::work(Part& part) {
  const ThreadStateGuard state(state_);
  const Span span("phase", "backward");
  Session* const outer = Session::set_current(session_);
  // Each device's work stays in the stream that the caller's forward used.
  std::array<Stream, 2 * kMaxDevices> streams;
  std::unique_lock lock(mutex_, std::defer_lock);
  try {
    for (int i = 0; i < part_count_; ++i) streams[i] = set_current_stream(parts_[i]->stream);
    lock.lock();
    while (remaining_ > 0 && !error_) {
      if (part.ready.empty()) {
        part.wake.wait(lock);
        continue;
      }
      const std::int32_t task = pop_ready(part.ready);
      lock.unlock();
      run_task(task);
      lock.lock();
      --remaining_;
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!error_) error_ = std::current_exception();
  }
  for (int i = 0; i < part_count_; ++i) parts_[i]->wake.notify_one();
  lock.unlock();
  for (int i = 0; i < part_count_; ++i) set_current_stream(streams[i]);
  Session::set_current(outer);
}

// The contributions to a task that is ready: all are in.
void Run::gather(const Task& task, std::int32_t index) {
  for (std::int32_t i = first_incoming_[index]; i < first_incoming_[index + 1]; ++i) {
    const std::int32_t link = incoming_[i];
    if (!contributions_[link].defined()) continue;
    add_to(buffers_[task.first_buffer + found.links[link].output], std::move(contributions_[link]));
  }
}

// --- Reuse
// -------------------------------------------------------------------------------------------

void Run::clear() {
  const bool huge = found.tasks.size() > 1 << 16;
  found.clear();
  roots_.clear();
  buffers_.clear();
  ready_.clear();
  captures_.clear();
  results_.clear();
  order_.clear();
  contributions_.clear();
  parallel_ = false;
  if (!huge) return;
  buffers_.shrink_to_fit();
  order_ = counts_ = incoming_ = first_incoming_ = {};
  contributions_.shrink_to_fit();
}

namespace {
thread_local std::vector<std::unique_ptr<Run>> idle_runs;
}  // namespace

RunLease::RunLease() {
  if (idle_runs.empty()) {
    run_ = std::make_unique<Run>();
  } else {
    run_ = std::move(idle_runs.back());
    idle_runs.pop_back();
  }
}

RunLease::~RunLease() {
  run_->clear();
  idle_runs.push_back(std::move(run_));
}

// --- The public functions
// ----------------------------------------------------------------------------

namespace {

thread_local Session own_session;

// Runs f as the outermost backward of this thread, or inside the one in progress.
template <class F>
void in_session(F&& f) {
  if (Session::current()) return f();
  own_session.run(f);
}

}  // namespace

void backward(std::span<const Tensor> outputs, std::span<const Tensor> grads, bool retain_graph) {
  const Span span("phase", "backward");
  in_session([&] {
    const RunLease run;
    run->execute("backward", outputs, grads, nullptr, false, retain_graph);
  });
}

void last_backward_of_rule(std::span<const Tensor> outputs, std::span<const Tensor> grads) {
  const RunLease run;
  run->execute("backward", outputs, grads, nullptr, false, false, true);
}

std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads, bool retain_graph, bool allow_unused) {
  const Span span("phase", "grad");
  std::vector<Tensor> results;
  in_session([&] {
    const RunLease run;
    run->execute("grad", outputs, grads, &inputs, allow_unused, retain_graph);
    results = run->take_results();
  });
  return results;
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
