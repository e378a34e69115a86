#include "weft/parallel/pipeline_state.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/core/runtime/runtime.h"
#include "weft/nn/shard.h"
#include "weft/nn/summary.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;
using Kind = Action::Kind;

namespace {

constexpr const char* kOp = "pipeline";

bool sends(const Schedule& schedule) {
  return std::ranges::any_of(schedule.devices, [](const std::vector<Action>& list) {
    return std::ranges::any_of(list, is_communication, &Action::kind);
  });
}

}  // namespace

PipelinePlan::PipelinePlan(Schedule s) : schedule(std::move(s)), checked(check(schedule)) {
  recomputed.resize(static_cast<std::size_t>(schedule.stages));
  for (auto& row : recomputed) row.resize(static_cast<std::size_t>(schedule.micro_batches));
  for (const std::vector<Action>& actions : schedule.devices) {
    for (const Action& action : actions) {
      if (action.kind == Kind::recompute) recomputed[action.stage][action.micro_batch] = true;
    }
  }
}

const PipelinePlan& PipelineState::plan(int micro_batches) {
  std::unique_ptr<const PipelinePlan>& made = plans[micro_batches];
  if (made) return *made;
  const int count = static_cast<int>(stages.size());
  if (options.actions) {
    const Schedule& given = *options.actions;
    WEFT_CHECK(given.stages == count, InvalidArgument, kOp, "the schedule ", given.name, " is for ",
               given.stages, " stages, got ", count);
    WEFT_CHECK(given.micro_batches == micro_batches, InvalidArgument, kOp, "the schedule ",
               given.name, " is for ", given.micro_batches,
               " micro-batches, this batch has rows for ", micro_batches);
    made = std::make_unique<PipelinePlan>(
        sends(given) || !options.group ? given : with_communication(given));
  } else {
    const bool interleaved = options.schedule == "interleaved";
    const int lists = options.group ? options.group->size() : std::ssize(options.devices);
    const Schedule schedule = make_schedule(options.schedule, count, micro_batches,
                                            options.checkpoint, interleaved ? lists : 0);
    made = std::make_unique<PipelinePlan>(options.group ? with_communication(schedule) : schedule);
  }
  return *made;
}

std::vector<std::int64_t> PipelineState::micro_batches(std::int64_t rows) const {
  const int count = options.actions ? options.actions->micro_batches : options.chunks;
  return part_sizes(rows, static_cast<std::size_t>(count));
}

int PipelineState::find_owners() {
  const PipelinePlan& first =
      plan(options.actions ? options.actions->micro_batches : options.chunks);
  owners = first.checked.device_of_stage;
  return static_cast<int>(first.schedule.devices.size());
}

void PipelineState::place_stages() {
  const int lists = find_owners();
  make_stages();
  if (options.devices.empty()) {
    const std::vector<Tensor> parameters = stages[0].parameters();
    const DeviceType type = parameters.empty() ? DeviceType::cpu : parameters[0].device().type;
    for (int i = 0; i < lists; ++i) options.devices.emplace_back(type, i);
  }
  WEFT_CHECK(std::ssize(options.devices) == lists, Device, kOp, "got ", options.devices.size(),
             " devices, the schedule is for ", lists);
  for (const int list : owners) {
    devices.push_back(options.devices[static_cast<std::size_t>(list)]);
  }
  move_stages();
}

void PipelineState::move_stages() {
  for (const Device device : devices) runtime(device);  // throws if it does not exist
  for (int s = 0; s < std::ssize(stages); ++s) {
    if (!is_here(s)) continue;
    nn::AnyModule& stage = stages[static_cast<std::size_t>(s)];
    const bool cut = !nn::shards_of(stage).empty();
    WEFT_CHECK(!cut || options.group, Unsupported, kOp, "stage ", s,
               " is cut into parts (fully_shard, parallelize): give each stage a rank of a group");
    if (!cut || stage.parameters()[0].device() != device(s)) stage.to(device(s));
  }
}

void PipelineState::make_stages() {
  for (std::size_t s = 0; factory && s < stages.size(); ++s) {
    if (is_here(static_cast<int>(s))) stages[s] = factory(s);
  }
}

void PipelineState::try_stages(std::span<const Tensor> inputs, std::int64_t rows) {
  if (rows == 0) return;
  std::vector<std::pair<Shape, DType>> forms;
  for (const Tensor& x : inputs) {
    Shape shape = x.defined() ? x.shape() : Shape();
    if (!shape.empty()) shape[0] = 1;
    forms.emplace_back(shape, x.defined() ? x.dtype() : DType::f32);
  }
  if (forms == tried) return;
  const std::int64_t count = micro_batches(rows)[0];
  TensorList x = part_of(inputs, 0, count, device(0));
  for (int s = 0; s < std::ssize(stages); ++s) try_stage(s, x, count);
  tried = std::move(forms);
}

void PipelineState::try_stage(int s, TensorList& x, std::int64_t rows) const {
  const nn::AnyModule& stage = stages[static_cast<std::size_t>(s)];
  const auto place = [&] {
    return weft::detail::concat("stage ", s, " on ", device(s), ", tried with ", rows,
                                rows == 1 ? " row" : " rows",
                                s > 0 ? " of what the stage before it gave" : "");
  };
  within(place, [&] {
    const nn::detail::SummaryScope without_effect(stage);
    for (Tensor& each : x) {
      if (each.defined()) each = raw::to(each, device(s));
    }
    x = stage(x);
  });
}

std::int64_t rows_of(const char* what, std::span<const Tensor> tensors,
                     std::optional<std::int64_t> expected) {
  for (const Tensor& x : tensors) {
    if (!x.defined() || x.dim() == 0) continue;
    WEFT_CHECK(!expected || *expected == x.shape(0), Shape, kOp, what, ' ', x.shape(),
               ": expected ", *expected, " rows");
    expected = x.shape(0);
  }
  return expected.value_or(1);
}

TensorList part_of(std::span<const Tensor> tensors, std::int64_t begin, std::int64_t rows,
                   Device device) {
  TensorList part;
  for (const Tensor& x : tensors) {
    const bool cut = x.defined() && x.dim() > 0;
    part.push_back(!x.defined() ? x : raw::to(cut ? raw::narrow(x, 0, begin, rows) : x, device));
  }
  return part;
}

}  // namespace weft::parallel
