#include "weft/parallel/zero_mirror.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "weft/comm/environment.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/named_state.h"
#include "weft/parallel/zero_partition.h"

namespace weft::parallel {
namespace {

constexpr const char* kParameter = "state.";

/// The number of the parameter to which an entry of a state belongs; -1: the entry is of a group.
std::int64_t parameter_of(const std::string& name) {
  return name.starts_with(kParameter) ? std::atoll(name.c_str() + std::strlen(kParameter)) : -1;
}

std::vector<bool> operator|(std::vector<bool> a, const std::vector<bool>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = a[i] || b[i];
  return a;
}

/// The number of ranks on this rank's node; 1 if no launcher says it.
int ranks_of_node() {
  const auto text = comm::environment_variable("LOCAL_WORLD_SIZE");
  return std::max(text ? std::atoi(text->c_str()) : 1, 1);
}

}  // namespace

// --- The whole state -----------------------------------------------------------------------------

optim::NamedTensors ZeroPartition::all_gather(const optim::NamedTensors& own) const {
  return within("state_dict() of a ZeroRedundancyOptimizer, which all ranks must call", [&] {
    const std::vector<bool> mine = kept();
    optim::NamedTensors whole, part;
    for (const auto& entry : own) {
      const std::int64_t number = parameter_of(entry.first);
      if (number < 0) whole.push_back(entry);  // the groups' rates are on every rank
      if (number >= 0 && mine[static_cast<std::size_t>(number)]) part.push_back(entry);
    }
    for (int rank = 0; rank < states_->size(); ++rank) {
      for (auto& entry : broadcast_named(*states_, part, rank)) whole.push_back(std::move(entry));
    }
    return whole;
  });
}

bool ZeroPartition::states_failed() const { return states_ && states_->failed(); }

// --- Mirrors -------------------------------------------------------------------------------------

void ZeroMirror::keep(const std::vector<bool>& kept) {
  kept_ = kept;
  keep_parts(kept);
}

void ZeroMirror::forget() { keep(std::vector<bool>(kept_.size())); }

optim::NamedTensors ZeroMirror::rates() const {
  optim::NamedTensors rates = parts();
  std::erase_if(rates, [](const auto& entry) { return parameter_of(entry.first) >= 0; });
  return rates;
}

void ZeroMirror::send() { partition_->broadcast(); }

bool ZeroMirror::failed() const { return partition_->states_failed(); }

bool ZeroMirror::deal(optim::Optimizer& self, const std::shared_ptr<comm::ProcessGroup>& group) {
  // Rates are not compared: a rank that is one step ahead may have other ones.
  const auto partition = std::make_shared<ZeroPartition>(self, type_name_, group, false);
  const int size = group->size();
  std::string has;
  for (const bool kept : kept_) has += kept ? '1' : '0';
  std::vector<std::string> all_have =
      group->all_gather_object(detail::concat(has, ' ', ranks_of_node()));
  // The first rank's number counts. A node has consecutive ranks, so at this distance the mirror is
  // on another node than the owner.
  const int of_node = std::atoi(all_have[0].c_str() + has.size() + 1);
  const int distance = of_node < size ? of_node : 1;
  for (std::string& of_rank : all_have) of_rank.resize(has.size());
  // The parts that a rank will have: its own, and those that it mirrors.
  const auto dealt_to = [&](int rank) {
    return partition->kept(rank) | partition->kept((rank + size - distance) % size);
  };

  const std::vector<Tensor> parameters = self.parameters();
  std::vector<int> from;                        // the first rank that has it
  std::vector<bool> wanted(parameters.size());  // whether some rank lacks its part
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto first = std::ranges::find(all_have, '1', [&](const std::string& h) { return h[i]; });
    if (first == all_have.end()) return false;
    from.push_back(static_cast<int>(first - all_have.begin()));
    for (int rank = 0; rank < size; ++rank) {
      if (dealt_to(rank)[i] && all_have[static_cast<std::size_t>(rank)][i] == '0') wanted[i] = true;
    }
  }
  fault_point("deal");

  const std::vector<bool> mine = dealt_to(group->rank());
  const bool some_move = std::ranges::find(wanted, true) != wanted.end();
  const optim::NamedTensors own = some_move ? parts() : optim::NamedTensors();
  optim::NamedTensors state = own;
  for (int root = 0; root < size; ++root) {
    std::vector<Tensor> values;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (from[i] == root) values.push_back(parameters[i]);
    }
    broadcast_coalesced(*group, values, root);
    if (!some_move) continue;
    const auto is_sent = [&](const auto& entry) {
      const std::int64_t number = parameter_of(entry.first);
      const auto i = static_cast<std::size_t>(number);
      return number >= 0 && from[i] == root && wanted[i];
    };
    optim::NamedTensors sent;
    if (root == group->rank()) std::ranges::copy_if(own, std::back_inserter(sent), is_sent);
    for (auto& entry : broadcast_named(*group, sent, root)) {
      const auto i = static_cast<std::size_t>(parameter_of(entry.first));
      if (mine[i] && !kept_[i]) state.push_back(std::move(entry));
    }
  }
  if (some_move) {
    keep(kept_ | mine);
    self.load_state_dict(state);
  }
  fault_point("dealt");
  group->barrier().wait();
  keep(mine);  // only now: until all have theirs, this may be the only copy
  partition_ = partition;
  return true;
}

}  // namespace weft::parallel
