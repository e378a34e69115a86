#include "weft/parallel/gradient_exchange.h"

#include <algorithm>
#include <exception>
#include <set>
#include <unordered_map>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/repr.h"
#include "weft/parallel/buckets.h"
#include "weft/parallel/gradient_memory.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "DistributedOptimizer";
// So many messages at least, of 1 MiB at least.
constexpr std::int64_t kMessages = 8, kLeastBytes = std::int64_t{1} << 20;

void check(const DistributedOptimizerOptions& o) {
  WEFT_CHECK(o.op == comm::ReduceOp::avg || o.op == comm::ReduceOp::sum, InvalidArgument, kOp,
             "op is ", to_string(o.op), "; gradients are reduced by avg or sum");
  WEFT_CHECK(o.backward_passes_per_step >= 1, InvalidArgument, kOp, "backward_passes_per_step is ",
             o.backward_passes_per_step, ", needs at least 1");
  WEFT_CHECK(o.fusion_threshold >= 0, InvalidArgument, kOp, "fusion_threshold is ",
             o.fusion_threshold, ", must not be negative");
}

}  // namespace

// --- Making and unmaking -------------------------------------------------------------------------

GradientExchange::GradientExchange(const Horovod& hvd, const std::vector<Tensor>& parameters,
                                   const optim::NamedTensors& names,
                                   const DistributedOptimizerOptions& options)
    : group_(hvd.own_group()), options_(options) {
  check(options_);
  take_parameters(parameters, names);
  check_same();
  make_messages();
  try {
    for (Parameter& p : parameters_) autograd::set_grad_storage(p.tensor, p.place);
    add_hooks();
  } catch (...) {
    release();
    throw;
  }
}

GradientExchange::~GradientExchange() {
  group_.reset();  // from here on nothing is on its way
  release();
}

void GradientExchange::take_parameters(const std::vector<Tensor>& parameters,
                                       const optim::NamedTensors& names) {
  std::set<std::string> known, twice;
  std::unordered_map<const TensorImpl*, std::string> name_of;
  for (const auto& [name, x] : names) {
    if (!known.insert(name).second) twice.insert(name);
    name_of.emplace(x.impl(), name);
  }
  WEFT_CHECK(twice.empty(), InvalidArgument, kOp, "rank ", group_->rank(), ": the names ",
             nn::detail::first_few({twice.begin(), twice.end()}),
             " are given to more than one parameter; put a prefix before the names of each model");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& x = parameters[i];
    const auto found = name_of.find(x.impl());
    WEFT_CHECK(found != name_of.end(), InvalidArgument, kOp, "rank ", group_->rank(),
               ": parameter ", i, ' ', x.shape(),
               " of the optimiser is not among the named parameters; give those of all models that "
               "it trains");
    if (x.requires_grad()) {
      parameters_.push_back({.name = found->second, .tensor = x});
    } else {
      frozen_.emplace_back(found->second, x);
    }
  }
  WEFT_CHECK(!parameters_.empty(), InvalidArgument, kOp, "rank ", group_->rank(),
             ": no parameter requires a gradient, so there is nothing to reduce; use the optimiser "
             "itself, or unfreeze the model before");
}

void GradientExchange::check_same() const {
  std::string text =
      detail::concat("op=", to_string(options_.op),
                     " compression=", options_.compression == Compression::bf16 ? "bf16" : "none",
                     " backward_passes_per_step=", options_.backward_passes_per_step,
                     " fusion_threshold=", options_.fusion_threshold, '\n');
  for (const Parameter& p : parameters_) {
    text += detail::concat("parameter ", p.name, ' ', p.tensor.dtype(), ' ', p.tensor.shape(),
                           " of strides ", p.tensor.strides(), '\n');
  }
  check_same_lines(*group_, kOp, text, "makes another optimiser",
                   "Make the same one, with the same options, of the same model, with the same "
                   "parameters frozen, on every rank");
}

void GradientExchange::make_messages() {
  std::vector<GradientSize> sizes;
  std::vector<std::size_t> order;
  std::int64_t total = 0;
  for (const Parameter& p : parameters_) {
    const DType dtype = p.tensor.dtype();
    sizes.push_back(
        {p.tensor.numel() * static_cast<std::int64_t>(size_of(dtype)), dtype, p.tensor.device()});
    total += sizes.back().bytes;
    order.push_back(order.size());
  }
  std::ranges::reverse(order);  // gradients come from the back of the model
  const std::int64_t limit =
      std::min(options_.fusion_threshold, std::max(kLeastBytes, total / kMessages));
  for (const std::vector<std::size_t>& members : plan_buckets(sizes, {&limit, 1}, order)) {
    std::vector<Tensor> tensors;
    for (const std::size_t i : members) tensors.push_back(parameters_[i].tensor);
    const GradientMemory memory(*group_, tensors, std::ssize(members));
    const std::int64_t first_mark = memory.all.numel() - std::ssize(members);
    for (std::size_t m = 0; m < members.size(); ++m) {
      Parameter& p = parameters_[members[m]];
      p.message = messages_.size();
      p.place = memory.places[m];
      p.mark = raw::narrow(memory.all, 0, first_mark + static_cast<std::int64_t>(m), 1);
    }
    messages_.push_back({.memory = memory.all,
                         .marks = raw::narrow(memory.all, 0, first_mark, std::ssize(members)),
                         .members = members,
                         .pending = members.size()});
    stats_.bucket_bytes.push_back(memory.all.numel() *
                                  static_cast<std::int64_t>(size_of(memory.all.dtype())));
  }
}

void GradientExchange::add_hooks() {
  for (Parameter& p : parameters_) {
    p.hooks.push_back(autograd::add_grad_hook(p.tensor, [this, &p](const Tensor&) {
      check_may_add(p);
      return Tensor();
    }));
    p.hooks.push_back(
        autograd::add_final_leaf_hook(p.tensor, [this, &p](const Tensor&) { on_gradient(p); }));
  }
}

void GradientExchange::release() noexcept {
  for (Parameter& p : parameters_) {
    for (autograd::HookHandle& hook : p.hooks) hook.remove();
    try {
      const Tensor grad = p.tensor.grad();
      const bool ours = grad.defined() && grad.storage() == p.place.storage();
      if (ours) autograd::set_grad_storage(p.tensor, {});
    } catch (...) {  // no memory for a copy: the gradient stays in the message, which lives on
    }
  }
}

void GradientExchange::check_unchanged() const {
  for (const Parameter& p : parameters_) {
    const char* const remedy = "; move the model first and make the optimiser then";
    WEFT_CHECK(p.tensor.device() == p.place.device(), Device, kOp, "parameter ", p.name,
               " was moved from ", p.place.device(), " to ", p.tensor.device(), remedy);
    WEFT_CHECK(p.tensor.dtype() == p.place.dtype(), Dtype, kOp, "parameter ", p.name,
               " was converted from ", p.place.dtype(), " to ", p.tensor.dtype(), remedy);
  }
  for (const auto& [name, x] : frozen_) {
    WEFT_CHECK(!x.requires_grad(), InvalidArgument, kOp, "parameter ", name,
               " requires a gradient now and did not when the optimiser was made, so it would not "
               "be reduced: make the optimiser again");
  }
}

std::vector<std::vector<std::string>> GradientExchange::message_names() const {
  std::vector<std::vector<std::string>> names;
  for (const Message& message : messages_) {
    auto& list = names.emplace_back();
    for (const std::size_t i : message.members) list.push_back(parameters_[i].name);
  }
  return names;
}

// --- Backward ------------------------------------------------------------------------------------

// Before a contribution is added: a gradient that is complete may be on its way.
void GradientExchange::check_may_add(const Parameter& p) const {
  const std::lock_guard lock(mutex_);
  WEFT_CHECK(state_ != State::reduced, InvalidArgument, kOp, "rank ", group_->rank(),
             ": parameter ", p.name,
             " got a gradient after synchronize() had made it that of all ranks; call step(), or "
             "zero_grad() to drop it, before the next backward");
  WEFT_CHECK(state_ != State::reducing || !p.complete, InvalidArgument, kOp, "rank ",
             group_->rank(), ": parameter ", p.name, " got gradients in more than ",
             options_.backward_passes_per_step,
             " backwards between zero_grad() and step(). To add up more, raise "
             "backward_passes_per_step. Where the backward is another model's, as in a GAN, freeze "
             "this one meanwhile (requires_grad(false)), detach() its outputs, or call this "
             "optimiser's zero_grad() not before it but right before its own backward");
}

void GradientExchange::on_gradient(Parameter& p) {
  const std::lock_guard lock(mutex_);
  ++p.arrivals;
  if (state_ != State::reducing) return;
  last_arrival_ = Clock::now();
  if (!std::exchange(in_backward_, true)) {
    autograd::at_backward_end(
        [this](const std::exception_ptr& error) { end_backward(error != nullptr); });
  }
  if (p.arrivals == options_.backward_passes_per_step) mark_complete(p);
}

void GradientExchange::end_backward(bool failed) {
  const std::lock_guard lock(mutex_);
  in_backward_ = false;
  if (failed) group_->abort();  // the other ranks wait for what will not come
}

void GradientExchange::mark_complete(Parameter& p) {
  if (!std::exchange(p.attached, true)) autograd::set_grad_storage(p.tensor, p.place);
  static_cast<void>(p.tensor.grad());  // writes zeros where nothing has been added up
  raw::fill_(p.mark, p.arrivals > 0 ? 1 : 0);
  p.complete = true;
  --messages_[p.message].pending;
  while (next_ < messages_.size() && messages_[next_].pending == 0) send_next();
}

void GradientExchange::send_next() {
  graph::check_not_capturing(kOp, "a replay would not send the gradients");
  Message& message = messages_[next_];
  Span span(kOp, "send gradients");
  span.set_arg("message", static_cast<std::int64_t>(next_));
  const comm::ProcessGroup::Tag tag("gradients " + std::to_string(next_));
  if (next_ == 0) first_sent_ = Clock::now();
  if (options_.compression == Compression::none) {
    message.reduction = group_->all_reduce(message.memory, options_.op);
  } else {
    const auto reduce = options_.op == comm::ReduceOp::avg ? bf16_compress : bf16_sum;
    message.reduction = reduce(*group_, message.memory);
  }
  ++next_;
  ++messages_sent_;
}

// --- Steps ---------------------------------------------------------------------------------------

void GradientExchange::zero_grad() {
  check_unchanged();
  // Others may have sent gradients, also where this rank has none.
  if (state_ == State::reducing) reduce_all();
  begin(State::reducing);
}

void GradientExchange::synchronize() {
  check_unchanged();
  if (state_ == State::reduced) return;
  reduce_all();
  hand_over_gradients();
  begin(State::reduced);
}

void GradientExchange::before_step() {
  synchronize();
  if (any_gradient_) return;
  begin(State::collecting);
  WEFT_THROW(InvalidArgument, kOp, "rank ", group_->rank(),
             ": step() without a gradient: no rank has run a backward that reaches these "
             "parameters since the last step() or zero_grad()");
}

void GradientExchange::after_step() { begin(State::collecting); }

// Sends what is left, so that no rank waits for it, and waits for all.
void GradientExchange::reduce_all() {
  const Span span(kOp, "wait for gradients");
  try {
    for (Parameter& p : parameters_) {
      if (!p.complete) mark_complete(p);
    }
    while (next_ < messages_.size()) send_next();  // where that has failed, as it will again
    for (const Message& message : messages_) {
      message.reduction.work->wait();
      if (message.reduction.finish) message.reduction.finish();
    }
    const auto end = Clock::now();
    const auto ms_since = [end](Clock::time_point begin) {
      return std::chrono::duration<double, std::milli>(end - begin).count();
    };
    ++stats_.reductions;
    for (const std::int64_t bytes : stats_.bucket_bytes) stats_.bytes_reduced += bytes;
    stats_.reduce_ms += ms_since(first_sent_);
    // Gradients that step() sends came earlier.
    stats_.exposed_ms += ms_since(std::max(first_sent_, last_arrival_));
  } catch (...) {
    group_->abort();
    throw;
  }
}

void GradientExchange::hand_over_gradients() {
  any_gradient_ = false;
  for (const Message& message : messages_) {
    const std::vector<double> marks = message.marks.to_vector<double>();
    for (std::size_t m = 0; m < marks.size(); ++m) {
      Parameter& p = parameters_[message.members[m]];
      if (marks[m] > 0) {
        any_gradient_ = true;
        autograd::mark_grad_written(p.tensor);
      } else {  // no gradient, and not zeros, which an optimiser would take for one
        autograd::set_grad_storage(p.tensor, {});
        p.attached = false;
      }
    }
  }
}

void GradientExchange::begin(State state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
  for (Parameter& p : parameters_) {
    p.arrivals = 0;
    p.complete = false;
  }
  for (Message& message : messages_) {
    message.pending = message.members.size();
    message.reduction = {};
  }
  next_ = 0;
}

}  // namespace weft::parallel
