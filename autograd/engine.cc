#include "weft/autograd/engine.h"

#include <algorithm>
#include <array>
#include <optional>

#include "weft/autograd/autograd.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/root_gradient.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {
namespace {

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

// The hooks on the gradients of a task; null if there are none.
OutputHooks* hooks_of(const Task& task) {
  return task.leaf ? meta_of(task.impl())->leaf->grad_hooks.get() : task.node().hooks();
}

}  // namespace

void add_to(Tensor& sum, Tensor grad) {
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (thread_state().create_graph) {
    sum = add(sum, grad);
  } else if (may_write(sum)) {
    raw::add_scaled_(sum, 1, grad);
  } else if (may_write(grad)) {
    raw::add_scaled_(grad, 1, sum);
    sum = std::move(grad);
  } else {
    sum = raw::add(sum, grad);
  }
}

// --- What to compute -----------------------------------------------------------------------------

void Run::seed(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> grads) {
  WEFT_CHECK(!outputs.empty(), InvalidArgument, op, "needs at least one output");
  WEFT_CHECK(grads.empty() || grads.size() == outputs.size(), InvalidArgument, op, "got ",
             grads.size(), " gradients for ", outputs.size(), " outputs");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    WEFT_CHECK(
        y.defined() && requires_grad(y), InvalidArgument, op, "output ", i,
        " does not require a gradient: it was computed under NoGrad, or in a backward without "
        "create_graph, or only from tensors that are frozen or were detached");
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
      grad = y.device().is_cuda() && !for_grad_ ? shared_one(y) : ones_like(y);
    }
    const Edge edge(y);
    const Task& task = found.tasks[found.task_of(edge)];
    const Stream stream = streams_.of(task, grad.device());
    TaskStreams::hand_over(grad, stream);
    const StreamScope scope(stream);
    add_to(gradient(task, edge.output()), std::move(grad));
  }
}

// Checks before anything is added to a .grad(). What a nested backward or one in another thread
// frees is noticed later.
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
                  const std::span<const Tensor>* inputs, const GradOptions& options,
                  bool last_of_rule) {
  retain_ = options.retain_graph || options.create_graph;
  for_grad_ = inputs != nullptr;
  session_ = Session::current();
  const Scoped only_returned(&ThreadState::for_grad, for_grad_);
  const Scoped recorded(&ThreadState::create_graph, options.create_graph);
  const Scoped grad_mode(&ThreadState::grad_enabled, options.create_graph);
  streams_.begin(*session_, for_grad_);
  seed(op, outputs, grads);
  found.follow();
  if (for_grad_) captures_.choose(found, *inputs, options.allow_unused);
  refuse_freed();
  session_->begin_run(found, !for_grad_);
  if (last_of_rule) session_->settle(*NestingRule::current());
  buffers_.resize(found.buffers);
  const Scoped autocast(&ThreadState::autocast, ThreadState().autocast);
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  distributed_ = !on_one_device();
  WEFT_CHECK(!distributed_ || !options.create_graph, Unsupported, op,
             "create_graph of a tape whose nodes are on several devices");
  if (distributed_) {
    distribution->run();
  } else {
    run_here();
  }
  captures_.hand_over(found, streams_);
}

bool Run::on_one_device() const {
  std::optional<Device> device;
  for (const Task& task : found.tasks) {
    if (!task.wanted) continue;
    const Device own = task.device();
    if (device && !(own == *device)) return false;
    device = own;
  }
  return true;
}

void Run::run_here() {
  for_each_root([this](std::int32_t task) { ready_.push(task); });
  while (!ready_.empty()) run_task(ready_.pop());
}

void ReadyTasks::push(std::int32_t task) {
  heap_.push_back(task);
  std::push_heap(heap_.begin(), heap_.end(), order());
}

std::int32_t ReadyTasks::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), order());
  const std::int32_t task = heap_.back();
  heap_.pop_back();
  return task;
}

void Run::run_task(std::int32_t index) {
  const Task& task = found.tasks[index];
  const StreamScope stream(streams_.of(task, task.device()));
  if (distributed_) distribution->gather(index);
  const std::span<Tensor> gradients(buffers_.data() + task.first_buffer,
                                    task.leaf ? 1 : task.node().outputs());
  if (OutputHooks* hooks = hooks_of(task)) {
    std::ranges::for_each(gradients, make_own);
    run_grad_hooks(*hooks, gradients);
  }
  if (task.captured) captures_.keep(index, gradients);
  if (!task.leaf) return run_node(index, gradients);
  if (!for_grad_) run_leaf(task, gradients[0]);
  gradients[0] = Tensor();
}

void Run::run_node(std::int32_t index, std::span<Tensor> of_outputs) {
  const Task& task = found.tasks[index];
  Node& node = task.node();
  RuleResults results(node.edges().size());
  if (task.runs) {
    const Scoped path(&ThreadState::path, node.path());
    Span span("backward", node.op(), node.device());
    span.set_flow(node.trace_flow());
    const bool any = std::ranges::any_of(of_outputs, &Tensor::defined);
    WEFT_CHECK(!thread_state().create_graph || node.differentiable(), Unsupported, node.op(),
               "has no second derivative here: its backward cannot run with create_graph");
    NodeUse use(node, retain_);
    std::optional<NestingRule> nesting;
    if (node.nests()) nesting.emplace(*session_);
    if (any) {
      if (span.on() && of_outputs[0].defined()) span.set_shape(of_outputs[0].shape());
      Gradients gradients(of_outputs, results.span(),
                          {found.links.data() + task.first_link, results.span().size()}, !for_grad_,
                          task.before_relu, *this);
      node.apply(gradients);
    }
    use.finish();
    if (nesting) session_->settle(*nesting);
  }
  for (Tensor& g : of_outputs) g = Tensor();
  for (std::size_t i = 0; i < results.span().size(); ++i) {
    deliver(index, task.first_link + static_cast<std::int32_t>(i), std::move(results.span()[i]));
  }
}

void Run::run_leaf(const Task& task, Tensor& grad) {
  const Tensor leaf{intrusive_ptr<TensorImpl>(task.impl())};
  LeafState& state = *meta_of(leaf)->leaf;
  const bool adds = grad.defined();
  if (adds) state.accumulate(leaf, std::move(grad));
  if (HookList<LeafHook>* hooks = state.leaf_hooks.get()) {
    hooks->for_each([&](const LeafHook& hook) { hook(leaf); });
  }
  // The rule that started this backward may read the sum in its own stream.
  const Stream caller = streams_.caller(leaf.device());
  if (adds && TaskStreams::changes(leaf, caller)) TaskStreams::hand_over(state.grad(), caller);
  if (state.final_hooks.get()) session_->arrived(leaf);
}

void Run::deliver(std::int32_t from, std::int32_t index, Tensor grad) {
  const Link link = found.links[index];
  if (link.task < 0) return;
  Task& to = found.tasks[link.task];
  const Stream stream = streams_.of(to, grad.defined() ? grad.device() : Device());
  TaskStreams::give_away(grad, stream);
  if (distributed_) return distribution->deliver(from, index, std::move(grad));
  if (grad.defined()) {
    const StreamScope scope(stream);
    add_to(gradient(to, link.output), std::move(grad));
  }
  if (--to.pending == 0) ready_.push(link.task);
}

void Run::clear() {
  found.clear();
  roots_.clear();
  buffers_.clear();
  ready_.clear();
  captures_.clear();
  if (distributed_) distribution->clear();
  distributed_ = false;
}

}  // namespace weft::autograd
