#include "weft/parallel/unused_parameters.h"

#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {

UnusedParameters::UnusedParameters(Reducer& reducer, bool static_graph)
    : reducer_(reducer),
      static_graph_(static_graph),
      used_(reducer.buckets().parameters().size(), 0) {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    index_of_[reducer_.buckets().parameters()[i].tensor.impl()] = i;
  }
  reducer_.set_expectations(*this);
  // A late gradient is an error: its bucket may be on its way and must not be written.
  reducer_.before_late_contribution([this](std::size_t index) { throw_unexpected(index); });
}

void UnusedParameters::after_forward(std::span<const Tensor> outputs) {
  if (!thread_state().grad_enabled) return;
  for (const Tensor& leaf : autograd::reachable_leaves(outputs)) {
    const auto found = index_of_.find(leaf.impl());
    if (found == index_of_.end()) continue;
    expected_.resize(used_.size());
    expected_[found->second] = true;
  }
}

std::vector<std::size_t> UnusedParameters::left_out() {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    if (!expected_[i]) result.push_back(i);
  }
  return result;
}

void UnusedParameters::on_gradient(std::size_t index, bool too_late) {
  used_[index] = 1;
  if (too_late) throw_unexpected(index);
}

void UnusedParameters::on_all_sent() {
  if (told_) return;
  uses_ = from_vector(used_, {std::ssize(used_)}, reducer_.buckets().parameters()[0].device);
  const comm::ProcessGroup::Tag tag("used parameters");
  telling_ = reducer_.group().all_reduce(uses_, comm::ReduceOp::max);
}

std::vector<std::size_t> UnusedParameters::unused() {
  if (!told_) {
    std::exchange(telling_, std::nullopt)->wait();
    const std::vector<std::uint8_t> somewhere = uses_.to_vector<std::uint8_t>();
    unused_.clear();
    for (std::size_t i = 0; i < somewhere.size(); ++i) {
      if (somewhere[i] == 0) unused_.push_back(i);
    }
    told_ = static_graph_;
  }
  begin_again();
  return unused_;
}

void UnusedParameters::on_failure() {
  telling_.reset();
  begin_again();
}

void UnusedParameters::begin_again() {
  used_.assign(used_.size(), 0);
  if (!static_graph_) expected_.clear();
}

const char* UnusedParameters::on_end(const std::vector<std::size_t>& missing) {
  if (!static_graph_) return nullptr;
  if (expected_.empty()) {  // this rank's first backward
    expected_.resize(used_.size(), true);
    for (const std::size_t i : missing) expected_[i] = false;
    return nullptr;
  }
  if (missing.empty()) return nullptr;
  return "With static_graph each step must use the same parameters; use find_unused_parameters "
         "instead";
}

void UnusedParameters::throw_unexpected(std::size_t index) const {
  WEFT_THROW(InvalidArgument, "ddp", reducer_.describe(index),
             static_graph_
                 ? " got a gradient, but got none in the first backward: with static_graph each "
                   "step must use the same parameters; use find_unused_parameters instead"
                 : " got a gradient, but the outputs of the last forward do not lead to it. Inside "
                   "of autograd::checkpoint find_unused_parameters cannot see it: use static_graph "
                   "if each step uses the same parameters, or turn find_unused_parameters off if "
                   "each uses all");
}

}  // namespace weft::parallel
