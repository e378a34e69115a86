#include "weft/parallel/zero_partition.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/trace/trace.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "zero";
constexpr int kNobody = -1;
// A smaller parameter shares a message with others, since a message of its own would cost mostly
// latency. The copies that this needs are small.
constexpr std::int64_t kSmallBytes = std::int64_t{1} << 16;

std::int64_t bytes_of(const Tensor& x) {
  return x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
}

// What must be equal on all ranks, as lines for check_same_lines().
std::string lines_of(const optim::Optimizer& optimizer, bool rates) {
  std::string text;
  for (std::size_t g = 0; g < optimizer.group_count(); ++g) {
    text += detail::concat("group ", g, " of lr ", rates ? optimizer.lr(g) : 0, ", momentum ",
                           rates ? optimizer.momentum(g) : 0, '\n');
    for (const Tensor& p : optimizer.parameters(g)) {
      text += detail::concat("parameter ", p.dtype(), ' ', p.shape(), " of strides ", p.strides(),
                             p.requires_grad() ? ", trained\n" : ", not trained\n");
    }
  }
  return text;
}

}  // namespace

std::vector<std::vector<int>> deal_out(std::span<const std::vector<std::int64_t>> bytes_of_groups,
                                       int ranks) {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks));
  std::vector<std::vector<int>> owners;
  for (const std::vector<std::int64_t>& bytes : bytes_of_groups) {
    std::vector<std::size_t> order(bytes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      return bytes[a] != bytes[b] ? bytes[a] > bytes[b] : a < b;
    });
    std::vector<int>& owner = owners.emplace_back(bytes.size());
    for (const std::size_t i : order) {
      const auto least = std::ranges::min_element(sums);
      *least += bytes[i];
      owner[i] = static_cast<int>(least - sums.begin());
    }
  }
  return owners;
}

ZeroPartition::ZeroPartition(const optim::Optimizer& optimizer, const std::string& type_name,
                             std::shared_ptr<comm::ProcessGroup> group, bool same_rates)
    : group_(std::move(group)),
      states_(group_ ? group_->duplicate() : nullptr),
      parameters_(optimizer.parameters()) {
  WEFT_CHECK(group_, InvalidArgument, kOp, "there is no process group");
  check_same_lines(*group_, kOp, type_name + '\n' + lines_of(optimizer, same_rates),
                   "has another optimiser",
                   "Make the same optimiser, of the same parameters with the same ones frozen, on "
                   "every rank");
  std::vector<std::vector<std::int64_t>> bytes;
  for (std::size_t g = 0; g < optimizer.group_count(); ++g) {
    bytes.emplace_back();
    for (const Tensor& p : optimizer.parameters(g)) {
      bytes.back().push_back(p.requires_grad() ? bytes_of(p) : 0);
    }
  }
  for (const std::vector<int>& of_group : deal_out(bytes, group_->size())) {
    for (const int owner : of_group) {
      owners_.push_back(parameters_[owners_.size()].requires_grad() ? owner : kNobody);
    }
  }
  if (group_->size() > 1) make_messages();
}

void ZeroPartition::make_messages() {
  std::vector<std::pair<int, std::vector<Tensor>>> small;  // with their owners
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    const int owner = owners_[i];
    if (owner == kNobody) continue;
    if (bytes_of(p) >= kSmallBytes) {
      large_.emplace_back(owner, p);
      continue;
    }
    auto few = std::ranges::find_if(small, [&](const auto& entry) {
      return entry.first == owner && entry.second[0].device() == p.device();
    });
    if (few == small.end()) few = small.emplace(few, owner, std::vector<Tensor>());
    few->second.push_back(p);
  }
  for (auto& [owner, few] : small) small_.emplace_back(owner, std::move(few));
}

std::vector<bool> ZeroPartition::kept(int rank) const {
  std::vector<bool> kept;
  // Rank 0 keeps the states of frozen parameters, which a checkpoint may contain.
  for (const int owner : owners_) kept.push_back((owner == kNobody ? 0 : owner) == rank);
  return kept;
}

void ZeroPartition::check_frozen() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    WEFT_CHECK(owners_[i] != kNobody || !parameters_[i].requires_grad(), InvalidArgument, kOp,
               "parameter ", i, ' ', parameters_[i].shape(),
               " requires a gradient, and did not when the optimiser was made, so no rank updates "
               "it. This ends the group: make a new one, and the optimiser again");
  }
}

// Ranks with different values would silently overwrite each other's. Checked in the first step, not
// when the optimiser is made: what gives all ranks the same values may come in between.
void ZeroPartition::check_equal() {
  if (std::exchange(compared_, true)) return;
  std::string text;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (owners_[i] == kNobody) continue;  // frozen: not sent
    const Tensor& p = parameters_[i];
    const std::int64_t step = std::max<std::int64_t>(p.numel() / 3, 1);
    const Shape few = {std::min<std::int64_t>(p.numel(), 3)};
    const Tensor some = as_strided(p.storage(), p.dtype(), few, {step}, p.offset());
    text += detail::concat("parameter ", i, ' ', p.shape(), " with");
    for (const double value : raw::to(some, DType::f64).to_vector<double>())
      text += detail::concat(' ', value);
    text += '\n';
  }
  check_same_lines(
      *group_, kOp, text, "has other values",
      "Give all ranks the same ones, as DistributedDataParallel does; for a model that "
      "ranks have cut, use the ranks that have the same parts. This ends the group");
}

void ZeroPartition::step(const std::function<void()>& update) {
  if (group_->size() == 1) return update();
  graph::check_not_capturing(kOp, "a replay would not send the parameters");
  try {
    check_frozen();
    check_equal();
    update();
  } catch (...) {
    group_->abort();
    throw;
  }
  broadcast();
}

void ZeroPartition::broadcast() {
  const Span span(kOp, "send updated parameters");
  const comm::ProcessGroup::Tag tag("updated parameters");
  std::vector<comm::Work> under_way;
  for (const auto& [owner, p] : large_) under_way.push_back(group_->broadcast(p, owner));
  for (auto& [owner, few] : small_) under_way.push_back(few.start(*group_, owner));
  for (const comm::Work& work : under_way) work.wait();
  for (auto& [owner, few] : small_) few.finish(*group_, owner);
}

}  // namespace weft::parallel
