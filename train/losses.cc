#include "weft/train/losses.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "recorder";
constexpr std::int64_t kMostPending = 64;

}  // namespace

Losses::Losses(const Ranks& ranks, LossRecord record) : ranks_(&ranks), record_(std::move(record)) {
  record_.averaged = record_.values.size();
  for (const NamedLosses& more : record_.more) {
    WEFT_CHECK(more.values.size() == record_.values.size(), InvalidArgument, "checkpoint",
               "it has ", record_.values.size(), " losses, but ", more.values.size(), " of ",
               more.name);
  }
}

void Losses::reserve(std::int64_t steps) {
  const auto expected = static_cast<std::size_t>(this->steps() + steps);
  record_.values.reserve(expected);
  for (NamedLosses& more : record_.more) more.values.reserve(expected);
}

void Losses::add(std::initializer_list<NamedLoss> losses, std::int64_t epoch) {
  epoch_ = epoch;
  check_names(losses);
  const Tensor& first = losses.begin()->value;
  std::int64_t which = 0;
  // A loss that is no number throws before one of them counts: the step may be repeated.
  if (first.device().is_cpu()) {
    std::vector<double> values;
    for (const NamedLoss& loss : losses) values.push_back(loss.value.item<double>());
    for (const double value : values) record(static_cast<std::size_t>(which++), value);
  } else {
    const auto count = static_cast<std::int64_t>(losses.size());
    if (!waiting_.defined() || waiting_.shape(1) != count) {
      waiting_ = zeros({kMostPending, count}, TensorOptions(first.dtype(), first.device()));
    }
    const Tensor row = raw::narrow(waiting_, 0, pending_, 1);
    for (const NamedLoss& loss : losses)
      raw::copy_(raw::narrow(row, 1, which++, 1), raw::reshape(loss.value, {1, 1}));
    if (++pending_ == kMostPending) of_rank();
  }
}

void Losses::check_names(std::initializer_list<NamedLoss> losses) {
  const NamedLoss* first = losses.begin();
  if (steps() == 0) {
    WEFT_CHECK(losses.size() > 0, InvalidArgument, kOp, "a step without a loss");
    std::set<std::string_view> names;
    for (const NamedLoss& loss : losses) {
      WEFT_CHECK(losses.size() == 1 || !loss.name.empty(), InvalidArgument, kOp,
                 "a step with several losses, of which one has no name");
      WEFT_CHECK(names.insert(loss.name).second, InvalidArgument, kOp, "two losses are called '",
                 loss.name, "'");
    }
    record_.name = first->name;
    record_.more.clear();
    for (const NamedLoss* more = first + 1; more != losses.end(); ++more) {
      record_.more.push_back({std::string(more->name), {}});
      record_.more.back().values.reserve(record_.values.capacity());
    }
    return;
  }
  WEFT_CHECK(losses.size() == record_.more.size() + 1, InvalidArgument, kOp, "a step with ",
             losses.size(), " losses after steps with ", record_.more.size() + 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::string& before = i == 0 ? record_.name : record_.more[i - 1].name;
    WEFT_CHECK(first[i].name == before, InvalidArgument, kOp, "a loss named '", first[i].name,
               "' after steps where it was '", before, "'");
  }
}

void Losses::record(std::size_t which, double loss) {
  std::vector<double>& losses = which == 0 ? record_.values : record_.more[which - 1].values;
  losses.push_back(loss);
  if (std::isfinite(loss) || std::exchange(warned_, true)) return;
  const std::string& name = which == 0 ? record_.name : record_.more[which - 1].name;
  const char* what = std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf";
  log_warning(detail::concat("the loss", name.empty() ? "" : " of the ", name, " is ", what,
                             " at step ", losses.size() - 1, " (epoch ", epoch_,
                             "); further steps are not reported. A lower --lr may help"));
}

const LossRecord& Losses::of_rank() {
  if (pending_ > 0) {
    const std::vector<double> values = raw::narrow(waiting_, 0, 0, pending_).to_vector<double>();
    pending_ = 0;
    const std::size_t each = record_.more.size() + 1;
    for (std::size_t i = 0; i < values.size(); ++i) record(i % each, values[i]);
  }
  if (ranks_->size == 1) record_.averaged = record_.values.size();
  return record_;
}

// Averages only now, so that steps need not wait for the other ranks' losses.
const LossRecord& Losses::averaged() {
  of_rank();
  if (ranks_->size == 1) return record_;
  std::vector<std::vector<double>*> lists = {&record_.values};
  for (NamedLosses& more : record_.more) lists.push_back(&more.values);
  const auto first = static_cast<std::ptrdiff_t>(record_.averaged);
  std::vector<double> values;
  for (const auto* list : lists) values.insert(values.end(), list->begin() + first, list->end());
  values = ranks_->sum(values);
  auto from = values.begin();
  for (auto* list : lists) {
    for (std::size_t i = record_.averaged; i < list->size(); ++i)
      (*list)[i] = *from++ / ranks_->size;
  }
  record_.averaged = record_.values.size();
  return record_;
}

}  // namespace weft::train
