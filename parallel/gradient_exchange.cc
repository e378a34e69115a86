#include "weft/parallel/gradient_exchange.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/repr.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "DistributedOptimizer";
// Gradients are cut into at least this many messages, unless messages would be smaller than
// kLeastBytes.
constexpr std::int64_t kMessages = 8, kLeastBytes = std::int64_t{1} << 20;

constexpr GradientBuckets::Words kWords = {
    .op = kOp,
    .send = "send gradients",
    .number = "message",
    .tag = "gradients ",
    .moved = "; move the model first and make the optimiser then",
    .unfrozen = "the optimiser was made, so it would not be reduced: make the optimiser again",
};

DistributedOptimizerOptions checked(const DistributedOptimizerOptions& o) {
  WEFT_CHECK(o.op == comm::ReduceOp::avg || o.op == comm::ReduceOp::sum, InvalidArgument, kOp,
             "op is ", to_string(o.op), "; gradients are reduced by avg or sum");
  WEFT_CHECK(o.backward_passes_per_step >= 1, InvalidArgument, kOp, "backward_passes_per_step is ",
             o.backward_passes_per_step, ", needs at least 1");
  WEFT_CHECK(o.fusion_threshold >= 0, InvalidArgument, kOp, "fusion_threshold is ",
             o.fusion_threshold, ", must not be negative");
  return o;
}

// This rank's number in the run.
int number_of(const comm::ProcessGroup& group) { return group.number_in_run(group.rank()); }

// The parameters with their names.
optim::NamedTensors with_names(int rank, const std::vector<Tensor>& parameters,
                               const optim::NamedTensors& names) {
  std::set<std::string> known, twice;
  std::unordered_map<const TensorImpl*, std::string> name_of;
  for (const auto& [name, x] : names) {
    if (!known.insert(name).second) twice.insert(name);
    name_of.emplace(x.impl(), name);
  }
  WEFT_CHECK(twice.empty(), InvalidArgument, kOp, "rank ", rank, ": the names ",
             nn::detail::first_few({twice.begin(), twice.end()}),
             " are given to more than one parameter; put a prefix before the names of each model");
  optim::NamedTensors result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& x = parameters[i];
    const auto found = name_of.find(x.impl());
    WEFT_CHECK(found != name_of.end(), InvalidArgument, kOp, "rank ", rank, ": parameter ", i, ' ',
               x.shape(),
               " of the optimiser is not among the named parameters; give those of all models that "
               "it trains");
    result.emplace_back(found->second, x);
  }
  return result;
}

}  // namespace

// --- Making and unmaking -------------------------------------------------------------------------

GradientExchange::GradientExchange(const Horovod& hvd, const std::vector<Tensor>& parameters,
                                   const optim::NamedTensors& names,
                                   const DistributedOptimizerOptions& options)
    : group_(hvd.own_group()),
      options_(checked(options)),
      buckets_(with_names(number_of(*group_), parameters, names), kWords,
               [this](const Tensor& memory) { return send(memory); }) {
  WEFT_CHECK(!buckets_.parameters().empty(), InvalidArgument, kOp, "rank ", number_of(*group_),
             ": no parameter requires a gradient, so there is nothing to reduce; use the optimiser "
             "itself, or unfreeze the model before");
  check_same();
  make_messages();
  buckets_.before_contribution([this](std::size_t index) { check_may_add(index); });
  buckets_.on_gradient([this](std::size_t index) { on_gradient(index); });
}

GradientExchange::~GradientExchange() {
  group_.reset();  // no operation is in progress after this
}

void GradientExchange::check_same() const {
  std::string text =
      detail::concat("op=", to_string(options_.op),
                     " compression=", options_.compression == Compression::bf16 ? "bf16" : "none",
                     " backward_passes_per_step=", options_.backward_passes_per_step,
                     " fusion_threshold=", options_.fusion_threshold, '\n');
  for (const GradientBuckets::Parameter& p : buckets_.parameters()) {
    text += detail::concat("parameter ", p.name, ' ', p.tensor.dtype(), ' ', p.tensor.shape(),
                           " of strides ", p.tensor.strides(), '\n');
  }
  check_same_lines(*group_, kOp, text, "makes another optimiser",
                   "Make the same one, with the same options, of the same model, with the same "
                   "parameters frozen, on every rank");
}

void GradientExchange::make_messages() {
  const std::vector<GradientSize> sizes = buckets_.sizes();
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});  // the last layers come first
  std::int64_t total = 0;
  for (const GradientSize& size : sizes) total += size.bytes;
  const std::int64_t limit =
      std::min(options_.fusion_threshold, std::max(kLeastBytes, total / kMessages));
  buckets_.make(*group_, plan_buckets(sizes, {&limit, 1}, order), /*extra=*/1);
  arrivals_.resize(sizes.size());
  marks_.resize(sizes.size());
  for (const GradientBuckets::Bucket& message : buckets_.buckets()) {
    const std::int64_t count = std::ssize(message.members);
    const Tensor& marks = message_marks_.emplace_back(
        raw::narrow(message.memory, 0, message.memory.numel() - count, count));
    for (std::int64_t m = 0; m < count; ++m) {
      marks_[message.members[static_cast<std::size_t>(m)]] = raw::narrow(marks, 0, m, 1);
    }
  }
}

// --- Backward ------------------------------------------------------------------------------------

// Called before a contribution is added: a complete gradient may already be on its way.
void GradientExchange::check_may_add(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  const GradientBuckets::Parameter& p = buckets_.parameters()[index];
  WEFT_CHECK(state_ != State::reduced, InvalidArgument, kOp, "rank ", number_of(*group_),
             ": parameter ", p.name,
             " got a gradient after synchronize() had made it that of all ranks; call step(), or "
             "zero_grad() to drop it, before the next backward");
  WEFT_CHECK(state_ != State::reducing || !p.ready, InvalidArgument, kOp, "rank ",
             number_of(*group_), ": parameter ", p.name, " got gradients in more than ",
             options_.backward_passes_per_step,
             " backwards between zero_grad() and step(). To add up more, raise "
             "backward_passes_per_step. Where the backward is another model's, as in a GAN, freeze "
             "this one meanwhile (requires_grad(false)), detach() its outputs, or call this "
             "optimiser's zero_grad() not before it but right before its own backward");
}

void GradientExchange::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  ++arrivals_[index];
  if (state_ != State::reducing) return;
  last_arrival_ = Clock::now();
  if (!std::exchange(in_backward_, true)) {
    autograd::at_backward_end(
        [this](const std::exception_ptr& error) { end_backward(error != nullptr); });
  }
  if (arrivals_[index] == options_.backward_passes_per_step) make_ready(index);
}

void GradientExchange::end_backward(bool failed) {
  const std::lock_guard lock(mutex_);
  in_backward_ = false;
  if (failed && group_->size() > 1) group_->abort();  // the other ranks would wait forever
}

void GradientExchange::make_ready(std::size_t index) {
  buckets_.attach(index);
  raw::fill_(marks_[index], arrivals_[index] > 0 ? 1 : 0);
  buckets_.make_ready(index);
}

Reduction GradientExchange::send(const Tensor& memory) {
  graph::check_not_capturing(kOp, "a replay would not send the gradients");
  Reduction reduction;
  if (options_.compression == Compression::none) {
    reduction = group_->all_reduce(memory, options_.op);
  } else {
    const auto reduce = options_.op == comm::ReduceOp::avg ? bf16_compress : bf16_sum;
    reduction = reduce(*group_, memory);
  }
  ++messages_sent_;
  return reduction;
}

// --- Steps ---------------------------------------------------------------------------------------

void GradientExchange::zero_grad() {
  buckets_.check_unchanged();
  // Other ranks may have sent gradients, even if this rank has none.
  if (state_ == State::reducing) reduce_all();
  begin(State::reducing);
}

void GradientExchange::synchronize() {
  buckets_.check_unchanged();
  if (state_ == State::reduced) return;
  reduce_all();
  hand_over_gradients();
  begin(State::reduced);
}

void GradientExchange::before_step() {
  synchronize();
  if (any_gradient_) return;
  begin(State::collecting);
  WEFT_THROW(InvalidArgument, kOp, "rank ", number_of(*group_),
             ": step() without a gradient: no rank has run a backward that reaches these "
             "parameters since the last step() or zero_grad()");
}

void GradientExchange::after_step() { begin(State::collecting); }

// Sends the remaining messages, so that no rank waits for them, and waits for all.
void GradientExchange::reduce_all() {
  const Span span(kOp, "wait for gradients");
  try {
    for (std::size_t i = 0; i < arrivals_.size(); ++i) {
      if (!buckets_.parameters()[i].ready) make_ready(i);
    }
    buckets_.send_full();  // fails again if sending has failed
    // Gradients that only step() sends were ready before the first message.
    buckets_.wait(std::max(buckets_.first_sent(), last_arrival_));
  } catch (...) {
    if (group_->size() > 1) group_->abort();
    throw;
  }
}

void GradientExchange::hand_over_gradients() {
  any_gradient_ = false;
  for (std::size_t i = 0; i < message_marks_.size(); ++i) {
    const std::vector<double> marks = message_marks_[i].to_vector<double>();
    for (std::size_t m = 0; m < marks.size(); ++m) {
      any_gradient_ = any_gradient_ || marks[m] > 0;
      buckets_.hand_over(buckets_.buckets()[i].members[m], marks[m] > 0);
    }
  }
}

void GradientExchange::begin(State state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
  arrivals_.assign(arrivals_.size(), 0);
  buckets_.reset();
}

}  // namespace weft::parallel
