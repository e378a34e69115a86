#include "weft/parallel/gradient_buckets.h"

#include <algorithm>
#include <locale>
#include <sstream>

#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/parallel/trace_moment.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "plan_buckets";

std::int64_t bytes_of(const Tensor& x) {
  return x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
}

Tensor memory_for(comm::ProcessGroup& group, std::int64_t count, DType dtype, Device device) {
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  return device == Device() ? group.empty({count}, dtype) : empty({count}, {dtype, device});
}

}  // namespace

// --- Plans ---------------------------------------------------------------------------------------

BucketPlan plan_buckets(std::span<const GradientSize> gradients,
                        std::span<const std::int64_t> limits, std::span<const std::size_t> order) {
  WEFT_CHECK(!limits.empty(), InvalidArgument, kOp, "got no limit");
  WEFT_CHECK(order.empty() || order.size() == gradients.size(), InvalidArgument, kOp,
             "the order has ", order.size(), " of ", gradients.size(), " gradients");
  // The bucket that is being filled, one for each dtype and device.
  struct Open {
    DType dtype;
    Device device;
    std::size_t limit = 0;
    std::int64_t bytes = 0;
    std::vector<std::size_t> members = {};
  };
  std::vector<Open> open;
  BucketPlan plan;
  for (std::size_t at = 0; at < gradients.size(); ++at) {
    const std::size_t index = order.empty() ? at : order[at];
    WEFT_CHECK(index < gradients.size(), InvalidArgument, kOp, "the order has gradient ", index,
               " of ", gradients.size());
    const GradientSize& gradient = gradients[index];
    auto bucket = std::ranges::find_if(open, [&](const Open& b) {
      return b.dtype == gradient.dtype && b.device == gradient.device;
    });
    if (bucket == open.end()) {
      bucket = open.insert(open.end(), {.dtype = gradient.dtype, .device = gradient.device});
    }
    bucket->members.push_back(index);
    bucket->bytes = checked_add(bucket->bytes, gradient.bytes, kOp);
    if (bucket->bytes < limits[bucket->limit]) continue;
    plan.push_back(std::exchange(bucket->members, {}));
    bucket->bytes = 0;
    bucket->limit = std::min(bucket->limit + 1, limits.size() - 1);
  }
  for (Open& rest : open) {
    if (!rest.members.empty()) plan.push_back(std::move(rest.members));
  }
  if (order.empty()) std::ranges::sort(plan, {}, [](const auto& b) { return b.front(); });
  return plan;
}

std::string to_string(const BucketPlan& plan) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const std::vector<std::size_t>& bucket : plan) {
    for (const std::size_t index : bucket) out << index << ' ';
    out << '\n';
  }
  return out.str();
}

BucketPlan parse_bucket_plan(const std::string& text) {
  BucketPlan plan;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    in.imbue(std::locale::classic());
    std::vector<std::size_t>& bucket = plan.emplace_back();
    for (std::size_t index; in >> index;) bucket.push_back(index);
  }
  return plan;
}

// --- Making and unmaking -------------------------------------------------------------------------

GradientBuckets::GradientBuckets(const std::vector<std::pair<std::string, Tensor>>& parameters,
                                 const Words& words, Send send)
    : words_(words), send_(std::move(send)) {
  for (const auto& [name, x] : parameters) {
    if (x.requires_grad()) {
      parameters_.push_back({.name = name, .tensor = x, .dtype = x.dtype(), .device = x.device()});
    } else {
      frozen_.emplace_back(name, x);
    }
  }
}

GradientBuckets::~GradientBuckets() {
  for (autograd::HookHandle& hook : hooks_) hook.remove();
  for (Parameter& p : parameters_) {
    try {
      const Tensor grad = p.tensor.grad();
      const bool ours = grad.defined() && p.place.defined() && grad.storage() == p.place.storage();
      if (ours) autograd::set_grad_storage(p.tensor, {});
    } catch (...) {  // no memory for a copy: keep the gradient in the bucket
    }
  }
}

void GradientBuckets::on_gradient(const std::function<void(std::size_t)>& f) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(
        autograd::add_final_leaf_hook(parameters_[i].tensor, [f, i](const Tensor&) { f(i); }));
  }
}

void GradientBuckets::before_contribution(const std::function<void(std::size_t)>& f) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(autograd::add_grad_hook(parameters_[i].tensor, [f, i](const Tensor&) {
      if (!thread_state().for_grad) f(i);
      return Tensor();
    }));
  }
}

std::vector<GradientSize> GradientBuckets::sizes() const {
  std::vector<GradientSize> sizes;
  for (const Parameter& p : parameters_) sizes.push_back({bytes_of(p.tensor), p.dtype, p.device});
  return sizes;
}

void GradientBuckets::make(comm::ProcessGroup& group, const BucketPlan& plan, std::int64_t extra) {
  std::vector<Bucket> buckets;  // all of them, before anything changes: memory may run out
  for (const std::vector<std::size_t>& members : plan) {
    const Tensor& x = parameters_[members[0]].tensor;
    std::int64_t count = extra * std::ssize(members);
    for (const std::size_t i : members) count += parameters_[i].tensor.numel();
    const Tensor memory = memory_for(group, count, x.dtype(), x.device());
    buckets.push_back({.memory = memory, .members = members});
  }
  stats_.bucket_bytes.clear();
  for (const Bucket& bucket : buckets) {
    std::int64_t offset = 0;
    for (const std::size_t i : bucket.members) {
      Parameter& p = parameters_[i];
      const Tensor& x = p.tensor;
      p.bucket = stats_.bucket_bytes.size();
      p.place = as_strided(bucket.memory.storage(), bucket.memory.dtype(), x.shape(),
                           x.is_dense() ? x.strides() : contiguous_strides(x.shape()), offset);
      if (p.attached) autograd::set_grad_storage(x, p.place);
      offset += x.numel();
    }
    stats_.bucket_bytes.push_back(bytes_of(bucket.memory));
  }
  buckets_ = std::move(buckets);
  reset();
}

std::vector<std::vector<std::string>> GradientBuckets::names() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) {
    auto& list = names.emplace_back();
    for (const std::size_t i : bucket.members) list.push_back(parameters_[i].name);
  }
  return names;
}

void GradientBuckets::check_unchanged() const {
  for (const Parameter& p : parameters_) {
    WEFT_CHECK(p.tensor.device() == p.device, Device, words_.op, "parameter ", p.name,
               " was moved from ", p.device, " to ", p.tensor.device(), words_.moved);
    WEFT_CHECK(p.tensor.dtype() == p.dtype, Dtype, words_.op, "parameter ", p.name,
               " was converted from ", p.dtype, " to ", p.tensor.dtype(), words_.moved);
  }
  for (const auto& [name, x] : frozen_) {
    WEFT_CHECK(!x.requires_grad(), InvalidArgument, words_.op, "parameter ", name,
               " requires a gradient now and did not when ", words_.unfrozen);
  }
}

// --- A reduction ---------------------------------------------------------------------------------

const Tensor& GradientBuckets::attach(std::size_t index) {
  Parameter& p = parameters_[index];
  if (!std::exchange(p.attached, true)) autograd::set_grad_storage(p.tensor, p.place);
  static_cast<void>(p.tensor.grad());  // writes zeros if nothing was added
  return p.place;
}

void GradientBuckets::make_ready(std::size_t index) {
  Parameter& p = parameters_[index];
  p.ready = true;
  trace_moment(words_.op, "gradient", p.name,
               {{"bytes", bytes_of(p.tensor)}, {"parameter", static_cast<std::int64_t>(index)}});
  --buckets_[p.bucket].pending;
  send_full();
}

void GradientBuckets::send_full() {
  while (next_ < buckets_.size() && buckets_[next_].pending == 0) send_next();
}

void GradientBuckets::send_next() {
  Bucket& bucket = buckets_[next_];
  Span span(words_.op, words_.send);
  span.set_arg(words_.number, static_cast<std::int64_t>(next_));
  span.set_arg("bytes", stats_.bucket_bytes[next_]);
  const comm::ProcessGroup::Tag tag(words_.tag + std::to_string(next_));
  if (next_ == 0) first_sent_ = Clock::now();
  try {
    bucket.reduction = send_(bucket.memory);
  } catch (const Error&) {
    // If the group has ended, the error of an earlier bucket says why, and which rank failed.
    for (std::size_t i = 0; i < next_; ++i) {
      if (buckets_[i].reduction.work) buckets_[i].reduction.work->wait();
    }
    throw;
  }
  ++next_;
}

void GradientBuckets::wait(Clock::time_point last_ready) {
  for (const Bucket& bucket : buckets_) {
    if (bucket.reduction.work) bucket.reduction.work->wait();
    if (bucket.reduction.finish) bucket.reduction.finish();
  }
  const auto end = Clock::now();
  const auto ms_since = [end](Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(end - begin).count();
  };
  ++stats_.reductions;
  for (const std::int64_t bytes : stats_.bucket_bytes) stats_.bytes_reduced += bytes;
  stats_.reduce_ms += ms_since(first_sent_);
  stats_.exposed_ms.push_back(ms_since(last_ready));
}

void GradientBuckets::hand_over(std::size_t index, bool used) {
  Parameter& p = parameters_[index];
  if (used) {
    autograd::mark_grad_written(p.tensor);
  } else {  // no gradient instead of zeros, which an optimiser would use
    autograd::set_grad_storage(p.tensor, {});
    p.attached = false;
  }
}

void GradientBuckets::reset() {
  for (Parameter& p : parameters_) p.ready = false;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.members.size();
    bucket.reduction = {};
  }
  next_ = 0;
}

}  // namespace weft::parallel
