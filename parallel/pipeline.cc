#include "weft/parallel/pipeline.h"

#include <algorithm>
#include <set>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/sequential.h"
#include "weft/parallel/pipeline_batch.h"
#include "weft/parallel/pipeline_ranks.h"
#include "weft/parallel/pipeline_replicas.h"
#include "weft/parallel/pipeline_state.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;

namespace {

constexpr const char* kOp = "pipeline";

}  // namespace

Pipeline::Pipeline(std::vector<nn::AnyModule> stages, PipelineOptions options)
    : state_(new PipelineState{.stages = std::move(stages), .options = std::move(options)}) {
  start();
}
Pipeline::Pipeline(std::size_t stages, const StageFactory& factory, PipelineOptions options)
    : state_(new PipelineState{
          .stages = {std::min<std::size_t>(stages, kMostStages + 1), nn::Sequential()},
          .factory = factory,
          .options = std::move(options)}) {
  WEFT_CHECK(factory, InvalidArgument, kOp, "the factory is empty");
  WEFT_CHECK(stages <= kMostStages, InvalidArgument, kOp, "got ", stages, " stages, expected 1 to ",
             kMostStages);
  start();
}

void Pipeline::start() {
  PipelineState& state = *state_;
  WEFT_CHECK(!state.stages.empty(), InvalidArgument, kOp, "needs at least one stage");
  WEFT_CHECK(state.options.chunks >= 1, InvalidArgument, kOp, "chunks: got ", state.options.chunks,
             ", expected at least 1");
  try {
    if (state.options.group) {
      ranks_ = std::make_shared<PipelineRanks>(state_);
    } else {
      state.place_stages();
    }
    if (state.options.replicas) replicas_ = std::make_shared<PipelineReplicas>(state);
  } catch (...) {  // a factory may fail in one pipeline only: the other ones would wait
    if (state.factory && state.options.replicas) state.options.replicas->abort();
    throw;
  }
}

void Pipeline::abort() const {
  if (ranks_) ranks_->abort();
  if (replicas_) replicas_->abort();
}

Tensor Pipeline::clip_grad_norm(double max_norm) {
  WEFT_CHECK(max_norm >= 0, InvalidArgument, kOp, "max_norm must not be negative, got ", max_norm);
  TensorList here;
  std::set<const TensorImpl*> seen;
  for (std::size_t s = 0; s < state_->stages.size(); ++s) {
    if (!is_here(s)) continue;
    for (const Tensor& p : state_->stages[s].parameters()) {
      if (seen.insert(p.impl()).second) here.push_back(p);
    }
  }
  if (!ranks_) return optim::clip_grad_norm(here, max_norm);
  return or_abort([&] { return ranks_->clip_grad_norm(here, max_norm); });
}

bool Pipeline::is_training() const {  // of the first stage here: others may be empty
  std::size_t s = 0;
  while (!is_here(s)) ++s;
  return state_->stages[s].is_training();
}
void Pipeline::train(bool training) {
  for (nn::AnyModule& stage : state_->stages) stage.train(training);
}
std::span<const nn::AnyModule> Pipeline::stages() const { return state_->stages; }
std::span<const Device> Pipeline::devices() const { return state_->devices; }
bool Pipeline::is_here(std::size_t stage) const { return state_->is_here(static_cast<int>(stage)); }
const Schedule& Pipeline::schedule(int micro_batches) const {
  return state_->plan(micro_batches).schedule;
}
const Timeline& Pipeline::timeline() const { return state_->timeline; }
comm::Traffic Pipeline::traffic() const { return ranks_ ? ranks_->traffic() : comm::Traffic(); }

Tensor Pipeline::step(std::span<const Tensor> inputs, std::span<const Tensor> targets,
                      const Loss& loss) {
  WEFT_CHECK(loss, InvalidArgument, kOp, "the loss is empty");
  WEFT_CHECK(thread_state().grad_enabled, InvalidArgument, kOp,
             "step() computes gradients, which are off here; call the pipeline itself");
  return or_abort([&] {
    const auto has_rows = [](const Tensor& x) { return x.defined() && x.dim() > 0; };
    const std::int64_t rows = std::ranges::any_of(inputs, has_rows)
                                  ? rows_of("input", inputs, {})
                                  : rows_of("target", targets, {});
    try_stages(inputs, rows);
    const Span span(kOp, "step");
    const auto step = [&] {
      PipelineBatch batch(state_, inputs, rows);
      return ranks_ ? ranks_->step(batch, targets, loss) : batch.step(targets, loss);
    };
    return replicas_ ? replicas_->step(step) : step();
  });
}

void Pipeline::try_stages(std::span<const Tensor> inputs, std::int64_t rows) const {
  if (ranks_) {
    ranks_->try_stages(inputs, rows);
  } else {
    state_->try_stages(inputs, rows);
  }
}

void Pipeline::all_gather() {
  if (ranks_) or_abort([&] { ranks_->all_gather(); });
}

optim::NamedTensors Pipeline::all_gather_state(const optim::Optimizer& optimizer) const {
  const optim::NamedTensors own = optimizer.state_dict();
  if (!ranks_) return own;
  return or_abort([&] { return ranks_->all_gather_state(own, optimizer.parameters()); });
}

optim::NamedTensors Pipeline::all_gather_named(const optim::NamedTensors& own) const {
  if (!ranks_) return own;
  return or_abort([&] { return ranks_->all_gather_named(own); });
}

}  // namespace weft::parallel
