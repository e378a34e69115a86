#include "weft/parallel/reducer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "weft/autograd/checkpoint.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/repr.h"
#include "weft/parallel/gradient_memory.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "ddp";
constexpr double kMiB = 1 << 20;
// What ranks in join() say they do next.
constexpr const char* kBuffers = "buffers";
constexpr const char* kGradients = "gradients";
// In engine_state().
constexpr const char* kOrder = "order";

std::string text_of(const DistributedDataParallelOptions& o) {
  return detail::concat("bucket_cap_mb=", o.bucket_cap_mb ? std::to_string(*o.bucket_cap_mb) : "-",
                        " find_unused_parameters=", o.find_unused_parameters,
                        " broadcast_buffers=", o.broadcast_buffers,
                        " static_graph=", o.static_graph, " comm_hook=", o.comm_hook ? "set" : "-");
}

std::vector<Tensor> values_of(const nn::NamedTensors& named) {
  std::vector<Tensor> tensors;
  for (const auto& [name, x] : named) tensors.push_back(x);
  return tensors;
}

std::vector<Coalesced> coalesce_by_device(const std::vector<Tensor>& tensors) {
  std::vector<std::pair<Device, std::vector<Tensor>>> groups;
  for (const Tensor& x : tensors) {
    auto group = std::ranges::find(groups, x.device(), &decltype(groups)::value_type::first);
    if (group == groups.end()) group = groups.insert(group, {x.device(), {}});
    group->second.push_back(x);
  }
  std::vector<Coalesced> result;
  for (auto& [device, members] : groups) result.emplace_back(std::move(members));
  return result;
}

double ms(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

// --- Making and unmaking -------------------------------------------------------------------------

Reducer::Reducer(const nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group,
                 DistributedDataParallelOptions options, Averages when)
    : module_(module), group_(std::move(group)), options_(std::move(options)) {
  WEFT_CHECK(group_, InvalidArgument, kOp, "there is no process group");
  divisor_ = group_->size();
  WEFT_CHECK(!options_.bucket_cap_mb || *options_.bucket_cap_mb > 0, InvalidArgument, kOp,
             "bucket_cap_mb is ", *options_.bucket_cap_mb, ", needs more than 0");
  check_same_model(*group_, module_, text_of(options_));
  for (const auto& [name, x] : module_.named_parameters()) {
    if (x.requires_grad()) {
      index_of_[x.impl()] = parameters_.size();
      parameters_.push_back({.name = name, .tensor = x, .dtype = x.dtype(), .device = x.device()});
    } else {
      frozen_.emplace_back(name, x);
    }
  }
  WEFT_CHECK(!parameters_.empty(), InvalidArgument, kOp, module_.type_name(),
             " has no parameter that requires a gradient, so there is nothing to average: call the "
             "module itself, without DistributedDataParallel around it");

  broadcast_coalesced(*group_, state(), 0);
  if (options_.broadcast_buffers) buffers_ = coalesce_by_device(values_of(module_.named_buffers()));

  rebuilt_ = walks_outputs() || when == Averages::on_call;
  const std::vector<std::int64_t> one_bucket = {std::numeric_limits<std::int64_t>::max()};
  BucketPlan first = plan(rebuilt_ ? bucket_limits() : one_bucket);
  if (when == Averages::in_backward) {
    std::ranges::reverse(first);  // gradients come from the back of the model
  }
  try {
    for (Parameter& p : parameters_) p.attached = true;
    make_buckets(first);
    add_hooks();
  } catch (...) {
    release();
    throw;
  }
}

Reducer::~Reducer() { release(); }

std::vector<Tensor> Reducer::state() const {
  std::vector<Tensor> tensors = values_of(module_.named_parameters());
  for (const auto& [name, x] : module_.named_buffers()) tensors.push_back(x);
  return tensors;
}

void Reducer::add_hooks() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    p.hooks.push_back(
        autograd::add_final_leaf_hook(p.tensor, [this, i](const Tensor&) { on_gradient(i); }));
    if (!options_.find_unused_parameters && !options_.static_graph) continue;
    p.hooks.push_back(autograd::add_grad_hook(p.tensor, [this, i](const Tensor&) {
      check_not_sent(i);
      return Tensor();
    }));
  }
}

void Reducer::release() noexcept {
  for (Parameter& p : parameters_) {
    for (autograd::HookHandle& hook : p.hooks) hook.remove();
    try {
      const Tensor grad = p.tensor.grad();
      const bool ours = grad.defined() && p.place.defined() && grad.storage() == p.place.storage();
      if (ours) autograd::set_grad_storage(p.tensor, {});
    } catch (...) {  // no memory for a copy: the gradient stays in the bucket, which lives on
    }
  }
}

// --- Buckets -------------------------------------------------------------------------------------

std::vector<std::int64_t> Reducer::bucket_limits() const {
  if (!options_.bucket_cap_mb) return {kFirstBucketBytes, kDefaultBucketMb << 20};
  // A cap that no gradient reaches may be infinite, or beyond 64 bits.
  const double cap = *options_.bucket_cap_mb * kMiB, most = 0x1p62;
  return {static_cast<std::int64_t>(std::min(cap, most))};
}

BucketPlan Reducer::plan(std::span<const std::int64_t> limits,
                         std::span<const std::size_t> order) const {
  std::vector<GradientSize> sizes;
  for (const Parameter& p : parameters_) {
    sizes.push_back(
        {p.tensor.numel() * static_cast<std::int64_t>(size_of(p.dtype)), p.dtype, p.device});
  }
  return plan_buckets(sizes, limits, order);
}

void Reducer::make_buckets(const BucketPlan& plan) {
  std::vector<Bucket> buckets;
  stats_.bucket_bytes.clear();
  for (const std::vector<std::size_t>& members : plan) {
    std::vector<Tensor> tensors;
    for (const std::size_t i : members) tensors.push_back(parameters_[i].tensor);
    GradientMemory memory(*group_, tensors);
    for (std::size_t m = 0; m < members.size(); ++m) {
      Parameter& p = parameters_[members[m]];
      p.place = memory.places[m];
      p.bucket = buckets.size();
      if (p.attached) autograd::set_grad_storage(p.tensor, p.place);
    }
    stats_.bucket_bytes.push_back(memory.all.numel() *
                                  static_cast<std::int64_t>(size_of(memory.all.dtype())));
    buckets.push_back({.memory = memory.all, .members = members});
  }
  buckets_ = std::move(buckets);
  reset();
}

// Of rank 0's order; the buckets stay as they are if that is empty.
void Reducer::rebuild_buckets(const std::vector<std::size_t>& order) {
  std::string text;
  if (group_->rank() == 0 && !order.empty()) {
    BucketPlan lists = plan(bucket_limits(), order);
    lists.insert(lists.begin(), order);
    text = to_string(lists);
  }
  BucketPlan lists = parse_bucket_plan(group_->broadcast_object(text, 0));
  if (lists.empty()) return;
  order_ = std::move(lists.front());
  lists.erase(lists.begin());
  make_buckets(lists);
  rebuilt_ = true;
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) {
    auto& list = names.emplace_back();
    for (const std::size_t i : bucket.members) list.push_back(parameters_[i].name);
  }
  return names;
}

// --- What a checkpoint holds of it ---------------------------------------------------------------

nn::NamedTensors Reducer::engine_state() const {
  if (!rebuilt_ || order_.empty()) return {};
  const std::vector<std::int64_t> order(order_.begin(), order_.end());
  return {{kOrder, from_vector(order, {std::ssize(order)}, Device())}};
}

void Reducer::load_engine_state(const nn::NamedTensors& state) {
  std::vector<std::size_t> order;
  if (!state.empty() && !walks_outputs()) {
    const auto& [name, x] = state[0];
    WEFT_CHECK(state.size() == 1 && name == kOrder && x.dtype() == DType::i64 && x.dim() == 1,
               InvalidArgument, kOp, "this is not the state of a DistributedDataParallel: ", name,
               " is ", x.dtype(), ' ', x.shape(), ", expected one ", kOrder, ", i64 [parameters]");
    for (const std::int64_t i : x.to_vector<std::int64_t>()) {
      order.push_back(static_cast<std::size_t>(i));
    }
    std::vector<std::size_t> sorted = order, all(order.size());
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), std::size_t{0});
    WEFT_CHECK(sorted == all, InvalidArgument, kOp, "the state's ", kOrder,
               " does not have each parameter once");
    if (order.size() != parameters_.size()) {
      log_warning(detail::concat("ddp: the state is of a model that trained ", order.size(),
                                 " parameters, this one trains ", parameters_.size(),
                                 ": its order of gradients is dropped, and the first step finds "
                                 "out another one"));
      order.clear();
    }
  }
  rebuild_buckets(order);
}

// --- Forward -------------------------------------------------------------------------------------

void Reducer::check_unchanged() const {
  for (const Parameter& p : parameters_) {
    const char* const remedy = " after the module was wrapped; move it first and wrap it then";
    WEFT_CHECK(p.tensor.device() == p.device, Device, kOp, "parameter ", p.name, " was moved from ",
               p.device, " to ", p.tensor.device(), remedy);
    WEFT_CHECK(p.tensor.dtype() == p.dtype, Dtype, kOp, "parameter ", p.name,
               " was converted from ", p.dtype, " to ", p.tensor.dtype(), remedy);
  }
  for (const auto& [name, x] : frozen_) {
    WEFT_CHECK(!x.requires_grad(), InvalidArgument, kOp, "parameter ", name,
               " requires a gradient now and did not when the module was wrapped, so it would not "
               "be averaged: wrap the module again");
  }
}

void Reducer::before_forward() {
  check_unchanged();
  if (!sync_ || !module_.is_training() || !thread_state().grad_enabled || autograd::recomputing()) {
    return;
  }
  if (buffers_.empty()) return;
  if (joining_) announce(kBuffers);
  broadcast_buffers();
}

void Reducer::broadcast_buffers() {
  const Span span(kOp, "broadcast buffers");
  const comm::ProcessGroup::Tag tag("buffers");
  for (Coalesced& buffers : buffers_) buffers.broadcast(*group_, root_);
}

void Reducer::after_forward(std::span<const Tensor> outputs) {
  if (!thread_state().grad_enabled) return;
  for (const Tensor& leaf : autograd::reachable_leaves(outputs)) {
    const auto found = index_of_.find(leaf.impl());
    if (found == index_of_.end()) continue;
    parameters_[found->second].reached = walked_ = true;
  }
}

bool Reducer::set_sync(bool sync) { return std::exchange(sync_, sync); }

// --- Backward ------------------------------------------------------------------------------------

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  Parameter& p = parameters_[index];
  p.used = true;
  if (!sync_) return;
  begin_reduction();
  if (p.ready) throw_unexpected(p);
  p.arrived = true;
  last_arrival_ = Clock::now();
  make_ready(index);
}

// Before a contribution is added: a bucket that is on its way may not be written to.
void Reducer::check_not_sent(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  const Parameter& p = parameters_[index];
  if (p.ready) throw_unexpected(p);
}

void Reducer::begin_reduction() {
  if (reducing_) return;
  graph::check_not_capturing(kOp, "a replay would not send the gradients");
  autograd::at_backward_end([this](const std::exception_ptr& error) { end_backward(error); });
  if (joining_) announce(kGradients);
  reducing_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if ((walked_ && !p.reached) || p.always_unused) make_ready(i);
  }
}

void Reducer::make_ready(std::size_t index) {
  Parameter& p = parameters_[index];
  if (!std::exchange(p.attached, true)) autograd::set_grad_storage(p.tensor, p.place);
  static_cast<void>(p.tensor.grad());  // writes zeros where nothing has been added up
  if (!options_.comm_hook && divisor_ != 1) raw::mul_(p.place, 1 / divisor_);
  p.ready = true;
  if (!rebuilt_) order_.push_back(index);
  --buckets_[p.bucket].pending;
  while (next_ < buckets_.size() && buckets_[next_].pending == 0) send_next();
}

void Reducer::send_next() {
  Bucket& bucket = buckets_[next_];
  Span span(kOp, "send bucket");
  span.set_arg("bucket", static_cast<std::int64_t>(next_));
  span.set_arg("bytes", stats_.bucket_bytes[next_]);
  const comm::ProcessGroup::Tag tag("bucket " + std::to_string(next_));
  if (next_ == 0) first_sent_ = Clock::now();
  try {
    bucket.reduction = options_.comm_hook ? options_.comm_hook(*group_, bucket.memory)
                                          : Reduction(group_->all_reduce(bucket.memory));
  } catch (const Error&) {
    // Where the group has ended, the error of a bucket sent before says why, and which rank failed.
    for (std::size_t i = 0; i < next_; ++i) {
      if (buckets_[i].reduction.work) buckets_[i].reduction.work->wait();
    }
    throw;
  }
  ++next_;
}

void Reducer::end_backward(const std::exception_ptr& error) {
  if (error) {  // the other ranks wait for buckets that will not come
    group_->abort();
    return reset();
  }
  std::vector<std::size_t> missing = complete_reduction();
  if (options_.static_graph && !std::exchange(graph_learnt_, true)) {
    for (const std::size_t i : missing) parameters_[i].always_unused = true;
    return;
  }
  if (!missing.empty() && !walks_outputs()) throw_without_gradient(missing);
}

// Sends what is left, so that no rank waits for it, and waits. What happens here happens on all
// ranks. Returns the parameters that have got no gradient though they were waited for.
std::vector<std::size_t> Reducer::complete_reduction() {
  std::vector<std::size_t> missing;
  try {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].ready) continue;
      missing.push_back(i);
      make_ready(missing.back());
    }
    const bool asks = walks_outputs() || (options_.static_graph && !graph_known_);
    const std::function<void()> wait_for_uses = asks ? ask_for_uses() : nullptr;
    wait_for_buckets();
    if (asks) wait_for_uses();
    graph_known_ = options_.static_graph;
    hand_over_gradients();
  } catch (...) {
    reset();
    if (!rebuilt_) order_.clear();
    throw;
  }
  reset();
  if (!rebuilt_) rebuild_buckets(order_);
  return missing;
}

void Reducer::average() {
  graph::check_not_capturing(kOp, "a replay would not send the gradients");
  reducing_ = true;
  last_arrival_ = Clock::now();
  complete_reduction();
}

// Which parameters some rank uses. Returns what waits for the answer.
std::function<void()> Reducer::ask_for_uses() {
  std::vector<std::uint8_t> here;
  for (const Parameter& p : parameters_) here.push_back(p.used);
  const Tensor uses = from_vector(here, {std::ssize(here)}, parameters_[0].device);
  const comm::ProcessGroup::Tag tag("used parameters");
  return [this, uses, work = group_->all_reduce(uses, comm::ReduceOp::max)] {
    work.wait();
    const std::vector<std::uint8_t> somewhere = uses.to_vector<std::uint8_t>();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].used_somewhere = somewhere[i] != 0;
    }
  };
}

void Reducer::wait_for_buckets() {
  const Span span(kOp, "wait for buckets");
  for (const Bucket& bucket : buckets_) {
    if (bucket.reduction.work) bucket.reduction.work->wait();
    if (bucket.reduction.finish) bucket.reduction.finish();
  }
  const auto end = Clock::now();
  ++stats_.reductions;
  for (const std::int64_t bytes : stats_.bucket_bytes) stats_.bytes_reduced += bytes;
  stats_.reduce_ms += ms(end - first_sent_);
  stats_.exposed_ms += ms(end - last_arrival_);
}

void Reducer::hand_over_gradients() {
  for (Parameter& p : parameters_) {
    if (p.used_somewhere) {
      autograd::mark_grad_written(p.tensor);
    } else {  // no gradient, and not zeros, which an optimiser would take for one
      autograd::set_grad_storage(p.tensor, {});
      p.attached = false;
    }
    p.reached = p.used = false;
  }
  walked_ = false;
}

void Reducer::reset() {
  for (Parameter& p : parameters_) p.arrived = p.ready = false;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.members.size();
    bucket.reduction = {};
  }
  next_ = 0;
  reducing_ = false;
}

// --- Uneven inputs -------------------------------------------------------------------------------

// Says to those that are done what comes next; who is done says "". Returns what the others say.
std::string Reducer::announce(const char* what) {
  const std::vector<std::string> said = group_->all_gather_object(what);
  const auto is_active = [](const std::string& text) { return !text.empty(); };
  const auto first = std::ranges::find_if(said, is_active);
  if (first == said.end()) return "";
  root_ = static_cast<int>(first - said.begin());
  if (!joining_->divide_by_initial_world_size) {
    divisor_ = static_cast<double>(std::ranges::count_if(said, is_active));
  }
  return *first;
}

void Reducer::follow_others() {
  for (std::string next = announce(""); !next.empty(); next = announce("")) {
    if (next == kBuffers) {
      broadcast_buffers();
      continue;
    }
    for (const Parameter& p : parameters_) autograd::zero_grad(p.tensor);
    reducing_ = true;
    last_arrival_ = Clock::now();
    complete_reduction();
    if (joining_->step) joining_->step();
  }
}

void Reducer::join(const std::function<void()>& body, const JoinOptions& options) {
  joining_ = &options;
  try {
    body();
    follow_others();
  } catch (...) {
    joining_ = nullptr;
    group_->abort();
    throw;
  }
  joining_ = nullptr;
  divisor_ = group_->size();
  broadcast_coalesced(*group_, state(), std::exchange(root_, 0));
}

// --- Errors --------------------------------------------------------------------------------------

namespace {

// "layer1.0" of "layer1.0.conv.weight"'s layer1.0.conv; the root's own parameters have none.
std::string module_of(const std::string& parameter, const std::string& root) {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? root : parameter.substr(0, dot);
}

}  // namespace

void Reducer::throw_unexpected(const Parameter& p) const {
  WEFT_THROW(InvalidArgument, kOp, "rank ", group_->rank(), ": parameter ", p.name, " of module ",
             module_of(p.name, module_.type_name()),
             options_.static_graph
                 ? " got a gradient, but got none in the first backward: with static_graph each "
                   "step must use the same parameters; use find_unused_parameters instead"
                 : " got a gradient, but the outputs of the last forward do not lead to it. Inside "
                   "of autograd::checkpoint find_unused_parameters cannot see it: use static_graph "
                   "if each step uses the same parameters, or turn find_unused_parameters off if "
                   "each uses all");
}

void Reducer::throw_without_gradient(const std::vector<std::size_t>& missing) const {
  std::vector<std::string> names, modules;
  for (const std::size_t i : missing) {
    const Parameter& p = parameters_[i];
    names.push_back(p.name +
                    (p.tensor.requires_grad() ? "" : " (frozen since the module was wrapped)"));
    const std::string module = module_of(p.name, module_.type_name());
    if (modules.empty() || modules.back() != module) modules.push_back(module);
  }
  WEFT_THROW(InvalidArgument, kOp, "rank ", group_->rank(), ": ", missing.size(), " of ",
             parameters_.size(),
             " parameters got no gradient in this backward: ", nn::detail::first_few(names),
             "; modules: ", nn::detail::first_few(modules),
             ". The other ranks took zeros for them. ",
             options_.static_graph
                 ? "With static_graph each step must use the same parameters; use "
                   "find_unused_parameters instead"
                 : "If forward does not use all of them, or the loss not all outputs, set "
                   "find_unused_parameters, or static_graph if they are the same in each step; "
                   "what is never trained, freeze before wrapping");
}

}  // namespace weft::parallel
