#include "weft/parallel/pipeline_replicas.h"

#include <algorithm>
#include <deque>
#include <map>

#include "weft/core/base/error.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/same_model.h"

namespace weft::parallel {

namespace {

constexpr const char* kOp = "pipeline";

std::vector<Tensor> buffers_of(const nn::AnyModule& stage) {
  std::vector<Tensor> list;
  for (const auto& [name, x] : stage.named_buffers()) list.push_back(x);
  return list;
}

}  // namespace

PipelineReplicas::PipelineReplicas(const PipelineState& state) : group_(state.options.replicas) {
  std::map<const TensorImpl*, int> stage_of;
  for (int s = 0; s < std::ssize(state.stages); ++s) {
    if (!state.is_here(s)) continue;
    const nn::AnyModule& stage = state.stages[static_cast<std::size_t>(s)];
    // Each stage has a Reducer of its own, which averages only the gradients of that stage.
    for (const auto& [name, p] : stage.named_parameters()) {
      const auto [first, is_new] = stage_of.emplace(p.impl(), s);
      WEFT_CHECK(is_new || !p.requires_grad(), InvalidArgument, kOp, "parameter ", name,
                 " of stage ", s, " is one of stage ", first->second,
                 ", too, which replicas cannot average; put both uses into one stage");
    }
    if (std::ranges::any_of(stage.parameters(), &Tensor::requires_grad)) {
      reducers_.push_back(
          std::make_unique<Reducer>(stage, group_, ReducerOptions{.order = BucketOrder::given}));
      continue;
    }
    check_same_model(*group_, stage, "");
    broadcast_coalesced(*group_, stage.parameters(), 0);
    broadcast_coalesced(*group_, buffers_of(stage), 0);
    untrained_.push_back(stage);
  }
}

Tensor PipelineReplicas::step(const std::function<Tensor()>& step) {
  broadcast_buffers();
  std::deque<NoSync> adding_up;  // sums the micro-batches' gradients
  for (const auto& reducer : reducers_) adding_up.emplace_back(*reducer);
  const Tensor loss = step();
  for (const auto& reducer : reducers_) reducer->average();
  return loss;
}

// In training mode, as DistributedDataParallel before each forward.
void PipelineReplicas::broadcast_buffers() {
  for (const auto& reducer : reducers_) reducer->before_forward();
  for (const nn::AnyModule& stage : untrained_) {
    for (const auto& [name, p] : stage.named_parameters()) {
      WEFT_CHECK(
          !p.requires_grad(), InvalidArgument, kOp, "parameter ", name,
          " requires a gradient now, and nothing in its stage did when the pipeline was made, "
          "so it would not be averaged: make the pipeline again");
    }
    if (stage.is_training()) broadcast_coalesced(*group_, buffers_of(stage), 0);
  }
}

}  // namespace weft::parallel
