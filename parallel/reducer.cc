#include "weft/parallel/reducer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/repr.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "ddp";
constexpr double kMiB = 1 << 20;

constexpr GradientBuckets::Words kWords = {
    .op = kOp,
    .send = "send bucket",
    .number = "bucket",
    .tag = "bucket ",
    .moved = " after the module was wrapped; move it first and wrap it then",
    .unfrozen =
        "the module was wrapped, so it would not be averaged: wrap the module again, or "
        "freeze what is trained by another wrapper before each forward of this one",
};

std::vector<Coalesced> coalesce_by_device(const nn::NamedTensors& tensors) {
  std::vector<std::vector<Tensor>> groups;
  for (const auto& [name, x] : tensors) {
    auto group = std::ranges::find(groups, x.device(), [](const auto& g) { return g[0].device(); });
    if (group == groups.end()) group = groups.insert(group, std::vector<Tensor>());
    group->push_back(x);
  }
  return {groups.begin(), groups.end()};
}

// The module of a parameter: "layer1.0.conv" for "layer1.0.conv.weight", `root` for the root's.
std::string module_of(const std::string& parameter, const std::string& root) {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? root : parameter.substr(0, dot);
}

}  // namespace

// --- Making --------------------------------------------------------------------------------------

Reducer::Reducer(const nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group,
                 ReducerOptions options)
    : module_(module),
      group_(std::move(group)),
      options_(std::move(options)),
      buckets_(module_.named_parameters(), kWords, [this](const Tensor& x) { return send(x); }) {
  WEFT_CHECK(group_, InvalidArgument, kOp, "there is no process group");
  divisor_ = group_->size();
  check_same_model(*group_, module_, options_.text);
  WEFT_CHECK(!options_.bucket_cap_mb || *options_.bucket_cap_mb > 0, InvalidArgument, kOp,
             "bucket_cap_mb is ", *options_.bucket_cap_mb, ", needs more than 0");
  WEFT_CHECK(!buckets_.parameters().empty(), InvalidArgument, kOp, module_.type_name(),
             " has no parameter that requires a gradient, so there is nothing to average: call the "
             "module itself, without DistributedDataParallel around it");

  try {  // all ranks have come here
    broadcast_model(0);
    if (options_.broadcast_buffers) buffers_ = coalesce_by_device(module_.named_buffers());

    rebuilt_ = options_.order != BucketOrder::arrival;
    const std::vector<std::int64_t> one_bucket = {std::numeric_limits<std::int64_t>::max()};
    BucketPlan first = plan_buckets(buckets_.sizes(), rebuilt_ ? bucket_limits() : one_bucket);
    if (options_.order != BucketOrder::given) std::ranges::reverse(first);
    buckets_.make(*group_, first);
    buckets_.on_gradient([this](std::size_t index) { on_gradient(index); });
  } catch (...) {
    give_up();
    throw;
  }
}

void Reducer::broadcast_model(int root) {
  std::vector<Tensor> tensors = module_.parameters();
  for (const auto& [name, x] : module_.named_buffers()) tensors.push_back(x);
  broadcast_coalesced(*group_, tensors, root);
}

std::vector<std::int64_t> Reducer::bucket_limits() const {
  if (!options_.bucket_cap_mb) return {kFirstBucketBytes, kDefaultBucketMb << 20};
  // A cap may be infinite or exceed 64 bits: then no bucket reaches it.
  const double cap = *options_.bucket_cap_mb * kMiB, most = 0x1p62;
  return {static_cast<std::int64_t>(std::min(cap, most))};
}

// Makes the buckets from rank 0's order; does nothing if that order is empty.
void Reducer::rebuild_buckets(const std::vector<std::size_t>& order) {
  std::string text;
  if (group_->rank() == 0 && !order.empty()) {
    BucketPlan lists = plan_buckets(buckets_.sizes(), bucket_limits(), order);
    lists.insert(lists.begin(), order);
    text = to_string(lists);
  }
  BucketPlan lists = parse_bucket_plan(group_->broadcast_object(text, 0));
  if (lists.empty()) return;
  buckets_.make(*group_, BucketPlan(lists.begin() + 1, lists.end()));
  order_ = std::move(lists.front());
  rebuilt_ = true;
}

// --- Forward -------------------------------------------------------------------------------------

// An update takes gradients of a backward, of which the wrapper hears; else the loss did not depend
// on what forward had returned.
void Reducer::check_averaged() {
  // An evaluation may have other weights, such as averages, for a while.
  if (!module_.is_training()) version_.reset();
  if (warned_ || !module_.is_training()) return;
  const std::uint32_t version = buckets_.parameters()[0].tensor.storage()->version();
  const std::optional<std::uint32_t> before = std::exchange(version_, version);
  if (before == version) return;
  const std::int64_t reductions = buckets_.stats().reductions;
  warned_ = std::exchange(averaged_, reductions) == reductions && before;
  if (!warned_) return;
  log_warning(detail::concat("ddp: rank ", group_->number_in_run(group_->rank()), ": ",
                             module_.type_name(),
                             " was updated since its last forward, but no backward has averaged "
                             "its gradients: was that forward run under NoGrad, its result "
                             "detached, or the backward under no_sync()? Values that "
                             "load_state_dict() or a moving average puts there between a forward "
                             "and its backward look like an update, too"));
}

void Reducer::before_forward() {
  buckets_.check_unchanged();
  if (!called_) check_none_added(module_, buckets_.parameters());
  called_ = true;
  check_averaged();
  const bool recorded = thread_state().grad_enabled || autograd::in_first_forward();
  if (!sync_ || !recorded || autograd::recomputing()) return;
  if (buffers_.empty() || !module_.is_training()) return;
  if (before_) before_(kBuffers);
  broadcast_buffers();
}

void Reducer::broadcast_buffers() {
  const Span span(kOp, "broadcast buffers");
  const comm::ProcessGroup::Tag tag("buffers");
  for (Coalesced& buffers : buffers_) buffers.broadcast(*group_, root_);
}

bool Reducer::set_sync(bool sync) { return std::exchange(sync_, sync); }

void Reducer::set_shares(int root, double divisor) {
  root_ = root;
  divisor_ = divisor;
}

// --- Backward ------------------------------------------------------------------------------------

void Reducer::before_late_contribution(const std::function<void(std::size_t)>& f) {
  buckets_.before_contribution([this, f](std::size_t index) {
    const std::lock_guard lock(mutex_);
    if (buckets_.parameters()[index].ready) f(index);
  });
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (sync_) begin_reduction();
  expectations_->on_gradient(index, sync_ && buckets_.parameters()[index].ready);
  if (!sync_) return;
  last_arrival_ = GradientBuckets::Clock::now();
  make_ready(index);
}

void Reducer::begin_reduction() {
  if (reducing_) return;
  graph::check_not_capturing(kOp, "a replay would not send the gradients");
  autograd::at_backward_end([this](const std::exception_ptr& error) { end_backward(error); });
  if (before_) before_(kGradients);
  reducing_ = true;
  for (const std::size_t i : expectations_->left_out()) make_ready(i);
}

void Reducer::make_ready(std::size_t index) {
  const Tensor& gradient = buckets_.attach(index);
  // A hook that gives means divides by the number of ranks itself.
  const double factor = (options_.comm_hook ? group_->size() : 1) / divisor_;
  if (factor != 1) raw::mul_(gradient, factor);
  if (!rebuilt_) order_.push_back(index);
  buckets_.make_ready(index);
}

Reduction Reducer::send(const Tensor& memory) {
  return options_.comm_hook ? options_.comm_hook(*group_, memory)
                            : Reduction(group_->all_reduce(memory));
}

void Reducer::end_backward(const std::exception_ptr& error) {
  reducing_ = false;
  if (error) return give_up();
  const std::vector<std::size_t> missing = complete_reduction();
  if (const char* remedy = expectations_->on_end(missing)) throw_missing(missing, remedy);
}

// Sends the remaining buckets, so that no rank waits for them, and waits. All ranks take the same
// steps here. Returns the parameters that were expected to get a gradient and got none.
std::vector<std::size_t> Reducer::complete_reduction() {
  const std::vector<GradientBuckets::Parameter>& parameters = buckets_.parameters();
  std::vector<std::size_t> missing;
  try {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].ready) continue;
      missing.push_back(i);
      make_ready(i);
    }
    expectations_->on_all_sent();
    {
      const Span span(kOp, "wait for buckets");
      buckets_.wait(last_arrival_);
    }
    const std::vector<std::size_t> unused = expectations_->unused();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      buckets_.hand_over(i, !std::ranges::binary_search(unused, i));
    }
    buckets_.reset();
    if (!rebuilt_) rebuild_buckets(order_);
  } catch (...) {
    give_up();
    throw;
  }
  return missing;
}

void Reducer::average() {
  graph::check_not_capturing(kOp, "a replay would not send the gradients");
  last_arrival_ = GradientBuckets::Clock::now();
  complete_reduction();
}

void Reducer::give_up() {
  if (group_->size() > 1) group_->abort();  // the other ranks would wait forever
  if (!rebuilt_) order_.clear();
  expectations_->on_failure();
  buckets_.reset();
}

// --- Errors --------------------------------------------------------------------------------------

const char* Expectations::on_end(const std::vector<std::size_t>& missing) {
  return missing.empty()
             ? nullptr
             : "If forward does not use all of them, or the loss not all outputs, set "
               "find_unused_parameters, or static_graph if they are the same in each step; "
               "what is never trained, freeze before wrapping; nets that are trained in turn, as "
               "in a GAN, wrap one by one";
}

std::string Reducer::describe(std::size_t index) const {
  const std::string& name = buckets_.parameters()[index].name;
  return detail::concat("rank ", group_->number_in_run(group_->rank()), ": parameter ", name,
                        " of module ", module_of(name, module_.type_name()));
}

void Reducer::throw_missing(const std::vector<std::size_t>& missing, const char* remedy) const {
  std::vector<std::string> names, modules;
  for (const std::size_t i : missing) {
    const GradientBuckets::Parameter& p = buckets_.parameters()[i];
    names.push_back(p.name +
                    (p.tensor.requires_grad() ? "" : " (frozen since the module was wrapped)"));
    const std::string module = module_of(p.name, module_.type_name());
    if (modules.empty() || modules.back() != module) modules.push_back(module);
  }
  WEFT_THROW(InvalidArgument, kOp, "rank ", group_->number_in_run(group_->rank()), ": ",
             missing.size(), " of ", buckets_.parameters().size(),
             " parameters got no gradient in this backward: ", nn::detail::first_few(names),
             "; modules: ", nn::detail::first_few(modules),
             ". The other ranks took zeros for them. ", remedy);
}

}  // namespace weft::parallel
