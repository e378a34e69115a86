#include "weft/parallel/tensor_parallel.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/nn/shard.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/layer_exchange.h"
#include "weft/parallel/layer_plan.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "parallelize";

void cut_parameter(const nn::ModuleBase& module, const PartLayer& layer, const Tensor& used,
                   const nn::Cut& cut, const std::shared_ptr<void>& group) {
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::parameters);
  Tensor part = used;
  if (cut.dim >= 0) {
    nn::keep_part(used, cut);
  } else if (layer.kind == PartLayer::Kind::row) {
    // The layer itself adds zeros; the bias is added after the sum.
    part = empty(used.shape(), {used.dtype(), used.device()});
    raw::copy_(part, used);
    part.set_requires_grad(used.requires_grad());
    used.set_grad({});
    used.set_requires_grad(false);
    raw::zero_(used);
  }
  nn::put_in_place(module, {.used = used, .part = part, .cut = cut, .group = group});
}

}  // namespace

Parallelized parallelize(const nn::ModuleBase& module, comm::ProcessGroup& group,
                         const ParallelPlan& plan) {
  const nn::NamedShards before = nn::shards_of(module);
  check_same_lines(
      group, kOp,
      to_string(plan) + '\n' + (before.empty() ? lines_of_model(module) : before[0].first + '\n'),
      "cuts another model",
      "Build the same model, with the same parameters frozen, and give the same plan on every "
      "rank");
  WEFT_CHECK(before.empty(), InvalidArgument, kOp, before[0].first, " of ", module.type_name(),
             " is cut already: give one plan for all of a model, and cut by fully_shard "
             "afterwards");
  const std::vector<PartLayer> layers = layers_of(module, plan, group.rank(), group.size());

  std::vector<Tensor> values = module.parameters();
  for (const auto& [name, x] : module.named_buffers()) values.push_back(x);
  broadcast_coalesced(group, values, 0);
  share_generator(group, module);
  const auto exchange = std::make_shared<LayerExchange>(group);
  nn::ModuleBase handle(module);
  handle.register_forward_pre_hook(
      [exchange](nn::ModuleBase&, std::span<Tensor>) { exchange->begin(); });
  for (const PartLayer& layer : layers) {
    for (const auto& [parameter, cut] : layer.parameters) {
      const nn::NamedShards shards = nn::shards_of(module);
      const bool done = std::ranges::any_of(  // another layer has it, too
          shards, [&, x = parameter](const auto& one) { return one.second->used.same(x); });
      if (!done) cut_parameter(module, layer, parameter, cut, exchange->group);
    }
    exchange->attach(layer);
  }
  const nn::NamedShards shards = nn::shards_of(module);
  for (const auto& [name, x] : module.named_parameters()) {
    const bool known = std::ranges::any_of(
        shards, [&, x = x](const auto& one) { return one.second->part.same(x); });
    if (!known) exchange->watch(name, x);
  }
  return Parallelized(module, exchange);
}

const Collectives& Parallelized::ranks() const { return exchange_->ranks; }
const std::shared_ptr<comm::ProcessGroup>& Parallelized::group() const { return exchange_->group; }
comm::Traffic Parallelized::traffic() const { return group()->traffic(); }

nn::NamedTensors Parallelized::state_dict() const { return whole_state(*group(), module_); }
void Parallelized::load_state_dict(const nn::NamedTensors& values) const {
  load_whole_state(module_, values);
}
Tensor Parallelized::clip_grad_norm(double max_norm) const {
  return parallel::clip_grad_norm(*group(), module_, max_norm);
}

}  // namespace weft::parallel
