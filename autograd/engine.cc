#include "weft/autograd/engine.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

// Nobody else can see the tensor's memory.
bool is_alone(const Tensor& x) {
  return x.impl()->use_count() == 1 && x.storage()->use_count() == 1;
}

// And each element has its own.
bool may_write(const Tensor& x) { return is_alone(x) && x.storage()->owned() && x.is_dense(); }

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

// The same, with a grad on another CPU device.
void add_from_afar(Tensor& sum, const Tensor& grad, Device device) {
  if (sum.defined() && may_write(sum)) {
    raw::add_from_afar_(sum, grad);
  } else {
    add_to(sum, raw::to(grad, device));
  }
}

// Takes about as long to add up as a sleeping thread to wake.
constexpr std::int64_t kWorthWaking = 1 << 16;  // elements

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

// --- Streams -------------------------------------------------------------------------------------

// A gradient that adds up belongs to who called the outermost backward, whatever stream the rule
// that started this one runs in.
Stream Run::leaf_stream(Device device) const {
  return (capturing_ ? caller_streams_ : session_->streams()).on(device);
}

Stream Run::stream_of(const Task& task, Device device) const {
  if (device.is_cpu()) return {device};
  if (task.leaf) return leaf_stream(device);
  return task.node().device() == device ? task.node().stream() : caller_streams_.on(device);
}

bool Run::changes_stream(const Tensor& x, const Stream& to) {
  return x.defined() && to.device.is_cuda() && !thread_state().capture &&
         current_stream(to.device) != to;
}

void Run::hand_over(const Tensor& x, const Stream& to) {
  if (!changes_stream(x, to)) return;
  const Stream from = current_stream(to.device);
  const auto event = runtime(to.device).new_event(to.device.index);
  event->record(from);
  event->block(to);
  x.storage()->record_stream(to);
}

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
                 ", the output on ", y.device(), "; move it there with to(device)");
    } else {
      WEFT_CHECK(y.numel() == 1, InvalidArgument, op, "output ", i, " has shape ", y.shape(),
                 "; without a gradient only one-element outputs can start a backward");
      grad = ones_like(y);
    }
    const Edge edge(y);
    const Task& task = found.tasks[found.task_of(edge)];
    const Stream stream = stream_of(task, grad.device());
    hand_over(grad, stream);
    const StreamScope scope(stream);
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

// --- Running it ----------------------------------------------------------------------------------

void Run::execute(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads,
                  const std::span<const Tensor>* inputs, bool allow_unused, bool retain_graph,
                  bool last_of_rule) {
  retain_ = retain_graph;
  capturing_ = inputs != nullptr;
  caller_streams_ = CurrentStreams::of_this_thread();
  session_ = Session::current();
  seed(op, outputs, grads);
  found.follow();
  if (capturing_) capture(*inputs, allow_unused);
  refuse_freed();
  session_->begin_run(found, !capturing_);
  if (last_of_rule) session_->settle(*NestingRule::current());
  buffers_.resize(found.buffers);
  const NoGrad no_grad;
  const Scoped autocast(&ThreadState::autocast, ThreadState().autocast);
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  if (split_by_device()) {
    run_on_workers();
  } else {
    run_here();
  }
  for (const Capture& c : captures_) {
    const Tensor& result = results_[c.result];
    if (!result.defined() || result.device().is_cpu()) continue;
    const StreamScope made(stream_of(found.tasks[c.task], result.device()));
    hand_over(result, caller_streams_.on(result.device()));
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
  const StreamScope stream(
      stream_of(task, task.leaf ? task.impl()->storage->device() : task.node().device()));
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
    if (node.nests()) nesting.emplace(*session_);
    if (any) {
      if (span.on() && of_outputs[0].defined()) span.set_shape(of_outputs[0].shape());
      Gradients gradients(of_outputs, results.span(),
                          {found.links.data() + task.first_link, results.span().size()},
                          !capturing_);
      node.apply(gradients);
    }
    use.finish();
    if (nesting) session_->settle(*nesting);
  }
  for (Tensor& g : of_outputs) g = Tensor();
  for (std::size_t i = 0; i < results.span().size(); ++i) {
    deliver(task, task.first_link + static_cast<std::int32_t>(i), std::move(results.span()[i]));
  }
}

void Run::run_leaf(const Task& task, Tensor& grad) {
  const Tensor leaf{intrusive_ptr<TensorImpl>(task.impl())};
  LeafState& state = *meta_of(leaf)->leaf;
  if (OutputHooks* hooks = state.grad_hooks.get()) run_grad_hooks(hooks, 0, grad);
  const bool adds = grad.defined();
  if (adds) state.accumulate(leaf, std::move(grad));
  if (HookList<LeafHook>* hooks = state.leaf_hooks.get()) {
    hooks->for_each([&](const LeafHook& hook) { hook(leaf); });
  }
  // A rule that started this backward reads the sum in its own stream.
  const Stream caller = caller_streams_.on(leaf.device());
  if (adds && changes_stream(leaf, caller)) hand_over(state.grad(), caller);
  if (state.final_hooks.get()) session_->arrived(leaf);
}

void Run::deliver(const Task& from, std::int32_t index, Tensor grad) {
  const Link link = found.links[index];
  if (link.task < 0) return;
  Task& to = found.tasks[link.task];
  const Stream stream = stream_of(to, grad.defined() ? grad.device() : Device());
  // Who is left alone with a gradient may write over it, and does not know that another stream has
  // yet to read it: none that others hold goes to one.
  if (changes_stream(grad, stream) && !is_alone(grad)) grad = raw::clone(grad);
  hand_over(grad, stream);
  if (parallel_) {
    contributions_[index] = std::move(grad);
    std::lock_guard lock(mutex_);
    to.crossed |= to.part != from.part;
    if (--to.pending > 0) return;
    if (any_worker_may_add(to)) return push_shared(link.task);
    Part& part = *parts_[to.part];
    push_ready(part.ready, link.task);
    if (!part.active) activate(part);
    return;
  }
  if (grad.defined()) {
    const StreamScope scope(stream);
    add_to(buffers_[to.first_buffer + link.output], std::move(grad));
  }
  if (--to.pending == 0) push_ready(ready_, link.task);
}

// --- Several devices -----------------------------------------------------------------------------

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
        parts_.push_back(std::make_unique<Part>(*this));
      parts_[part_count_++]->device = device;
    }
    task.part = static_cast<std::int16_t>(part);
  }
  return part_count_ > 1;
}

void Run::run_on_workers() {
  graph::check_not_capturing("backward", "the tape has nodes on several devices");
  const std::size_t n = found.tasks.size();
  parallel_ = true;
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
    parts_[i]->active = false;
  }
  shared_.clear();
  caller_ = std::this_thread::get_id();
  caller_waits_ = false;
  caller_wanted_ = false;
  for_caller_.clear();
  for_caller_.reserve(parts_.size());
  JobGroup jobs;
  jobs_ = &jobs;
  std::unique_lock lock(mutex_);
  for (std::int32_t i = 0; i < root_tasks_; ++i) {
    const Task& task = found.tasks[i];
    if (!task.wanted || task.pending > 0) continue;
    Part& part = *parts_[task.part];
    push_ready(part.ready, i);
    if (!part.active) activate(part);
  }
  // As long as only one device has something to do, it is done here: waking a thread takes longer
  // than a small operation. What can run beside it goes to its device's worker.
  while (remaining_ > 0 && !error_) {
    if (for_caller_.empty()) {
      caller_waits_ = true;
      caller_wanted_ = false;
      lock.unlock();
      {
        const WaitScope waiting;
        spin_until([this] { return caller_wanted_.load(std::memory_order_acquire); });
        lock.lock();
        wake_caller_.wait(lock, [this] { return caller_wanted_.load(); });
      }
      caller_waits_ = false;
      continue;
    }
    Part& part = *for_caller_.front();
    for_caller_.erase(for_caller_.begin());
    share_out();
    run_ready(part, lock);
  }
  lock.unlock();
  jobs.wait();
  jobs_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// The rest with the lock held.

// The gradients of a leaf that several CPU devices used. Its hooks run where it is.
bool Run::any_worker_may_add(const Task& task) const {
  if (!task.leaf || !task.crossed || !parts_[task.part]->device.is_cpu()) return false;
  if (numel(task.impl()->shape) < kWorthWaking) return false;
  const LeafState& state = *meta_of(task.impl())->leaf;
  return !state.grad_hooks.get() && !state.leaf_hooks.get() && !state.final_hooks.get();
}

// Every part of a CPU device takes such tasks when it has none of its own.
void Run::push_shared(std::int32_t task) {
  shared_.push_back(task);
  for (int i = 0; i < part_count_; ++i) {
    if (parts_[i]->device.is_cpu() && !parts_[i]->active) return activate(*parts_[i]);
  }
}

// A part has got its first ready task. The thread that called backward takes it, where that has
// nothing else to do or may have nothing soon, else the device's worker.
void Run::activate(Part& part) {
  part.active = true;
  const bool here = std::this_thread::get_id() == caller_;
  if (!here && !caller_waits_) {
    try {
      return jobs_->submit(part.device, part);
    } catch (...) {  // no thread to be had: it has to wait for the caller
    }
  }
  for_caller_.push_back(&part);
  caller_waits_ = false;
  caller_wanted_.store(true, std::memory_order_release);
  if (!here) wake_caller_.notify_one();
}

// Gives the workers what waits for the caller.
void Run::share_out() {
  while (!for_caller_.empty()) {
    try {
      jobs_->submit(for_caller_.back()->device, *for_caller_.back());
    } catch (...) {
      return;  // no thread to be had: they run one after the other
    }
    for_caller_.pop_back();
  }
}

void Run::run_ready(Part& part, std::unique_lock<std::mutex>& lock) {
  const bool here = std::this_thread::get_id() == caller_;
  try {
    while (!error_) {
      std::int32_t task;
      if (!part.ready.empty()) {
        task = pop_ready(part.ready);
      } else if (part.device.is_cpu() && !shared_.empty()) {
        task = shared_.back();
        shared_.pop_back();
      } else {
        break;
      }
      const Scoped device(&ThreadState::device, parts_[found.tasks[task].part]->device);
      lock.unlock();
      run_task(task);
      lock.lock();
      --remaining_;
      if (here && !part.ready.empty()) share_out();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!error_) error_ = std::current_exception();
  }
  part.active = false;
}

void Run::work(Part& part) {
  const Span span("phase", "backward");
  Session* const outer = Session::set_current(session_);
  std::unique_lock lock(mutex_);
  run_ready(part, lock);
  if (remaining_ == 0 || error_) {
    caller_wanted_.store(true, std::memory_order_release);
    wake_caller_.notify_one();
  }
  lock.unlock();
  Session::set_current(outer);
}

// The contributions to a task that is ready: all are in.
void Run::gather(const Task& task, std::int32_t index) {
  for (std::int32_t i = first_incoming_[index]; i < first_incoming_[index + 1]; ++i) {
    const std::int32_t link = incoming_[i];
    Tensor grad = std::move(contributions_[link]);
    if (!grad.defined()) continue;
    Tensor& sum = buffers_[task.first_buffer + found.links[link].output];
    const Device device = task.leaf ? task.impl()->storage->device() : grad.device();
    if (grad.device() == device) {
      add_to(sum, std::move(grad));
    } else {
      add_from_afar(sum, grad, device);
    }
  }
}

// --- Reuse ---------------------------------------------------------------------------------------

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

// What a thread keeps between its backwards.
struct Kept {
  ~Kept() {
    while (Run* const run = idle_runs) {
      idle_runs = run->next_idle;
      delete run;
    }
  }

  // Linked through themselves: giving one back takes no memory, which there may be none of.
  Run* idle_runs = nullptr;
  Session session;
};
constinit ThreadLocal<Kept> kept;

}  // namespace

RunLease::RunLease() {
  Run*& idle = kept->idle_runs;
  if (idle) {
    run_.reset(idle);
    idle = run_->next_idle;
  } else {
    run_ = std::make_unique<Run>();
  }
}

RunLease::~RunLease() {
  run_->clear();
  Kept* const mine = kept.get();
  if (!mine) return;  // the thread has ended
  run_->next_idle = mine->idle_runs;
  mine->idle_runs = run_.release();
}

// --- The public functions ------------------------------------------------------------------------

namespace {

// Runs f as the outermost backward of this thread, or inside the one in progress.
template <class F>
void in_session(F&& f) {
  if (Session::current()) return f();
  kept->session.run(f);
}

}  // namespace

void backward(std::span<const Tensor> outputs, std::span<const Tensor> grads, bool retain_graph) {
  const Span span("phase", "backward");
  const PhaseScope phase("backward");
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
