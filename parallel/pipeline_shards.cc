#include "weft/parallel/pipeline_shards.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <ranges>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/shard.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/sharded_state.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

namespace {

using Unit = FsdpUnit;
using Engine = FsdpEngine;

constexpr const char* kOp = "pipeline";

void make_leaves(const Unit& unit) {
  for (const ShardUnit::Piece& piece : unit.memory->pieces()) {
    const Tensor& whole = piece.shard->used;
    if (autograd::Meta* const meta = autograd::meta_of(whole)) {
      meta->producer.reset();
      meta->output = 0;
    }
    whole.set_requires_grad(piece.shard->part.requires_grad());
  }
}

void take_gradients(const Unit& unit) {
  for (std::size_t i = 0; i < unit.memory->pieces().size(); ++i) {
    const Tensor& whole = unit.memory->pieces()[i].shard->used;
    if (const Tensor gradient = whole.grad(); gradient.defined()) {
      whole.set_grad({});
      unit.memory->add_gradient(i, gradient);
    }
  }
}

void give_back(const Unit& unit) {
  for (const ShardUnit::Piece& piece : unit.memory->pieces()) {
    const Tensor& whole = piece.shard->used;
    if (!whole.is_leaf()) continue;  // in an evaluation, after a call without the pipeline
    whole.set_grad({});
    whole.set_requires_grad(false);
  }
  unit.memory->release();
}

}  // namespace

PipelineShards::PipelineShards(const PipelineState& state) {
  std::map<const TensorImpl*, const nn::Shard*> shard_of;
  for (int s = 0; s < std::ssize(state.stages); ++s) {
    if (!state.is_here(s)) continue;
    const nn::AnyModule& module = state.stages[static_cast<std::size_t>(s)];
    const nn::NamedShards shards = nn::shards_of(module);
    if (shards.empty()) continue;
    Units units;
    for (const auto& [name, shard] : shards) {
      for (const nn::Shard* cut = shard.get(); cut; cut = cut->of.get()) {
        if (!cut->group) continue;
        layer_groups_.insert(std::static_pointer_cast<comm::ProcessGroup>(cut->group));
      }
      const auto [first, is_new] = shard_of.emplace(shard->used.impl(), shard.get());
      WEFT_CHECK(is_new || first->second == shard.get(), InvalidArgument, kOp, "parameter ", name,
                 " of stage ", s,
                 " is shared with another stage, and parallelize has cut both: put "
                 "both uses into one stage");
      const auto unit = unit_of(*shard);
      WEFT_CHECK(unit || shard->group, InvalidArgument, kOp, name, " of stage ", s,
                 " was cut together with a module that is gone: keep that module");
      if (!unit || std::ranges::find(units, unit) != units.end()) continue;
      WEFT_CHECK(
          units.empty() || (units[0]->group == unit->group && units[0]->replicas == unit->replicas),
          InvalidArgument, kOp, unit->name, " and ", units[0]->name, " of stage ", s,
          " are cut over different groups or replicas: give fully_shard the same ones");
      for (const ShardUnit::Piece& piece : unit->memory->pieces()) {
        const auto is_it = [&](const auto& one) { return one.second == piece.shard; };
        WEFT_CHECK(std::ranges::any_of(shards, is_it), InvalidArgument, kOp, "stage ", s,
                   " has only a part of ", unit->name,
                   ", a unit of fully_shard: cut the stage, not the module that contains it");
      }
      units.push_back(unit);
    }
    WEFT_CHECK(units.empty() || !state.options.replicas, InvalidArgument, kOp, "stage ", s,
               " is cut by fully_shard, which averages its gradients by itself: leave out "
               "options.replicas");
    stages_.push_back({s, module, std::move(units)});
    check_averaged(stages_.back());
  }
}

void PipelineShards::check_averaged(const Stage& stage) {
  if (stage.units.empty()) return;
  for (const auto& [name, x] : nn::uncut_parameters(stage.module)) {
    WEFT_CHECK(!x.requires_grad(), InvalidArgument, kOp, "parameter ", name, " of stage ",
               stage.number,
               " is in no unit of fully_shard, so its gradient would not be averaged: cut the "
               "whole stage");
  }
}

comm::ProcessGroup& PipelineShards::group_of(const Stage& stage) {
  if (stage.units.empty()) {
    const auto& group = nn::shards_of(stage.module)[0].second->group;
    return *static_cast<comm::ProcessGroup*>(group.get());
  }
  const std::shared_ptr<Engine>& engine = stage.units[0]->engine;
  return engine ? *engine->reductions : *stage.units[0]->group;
}

Tensor PipelineShards::squared_grad_norm(std::span<const Tensor> own) const {
  const auto square = [](const Tensor& norm) { return raw::mul(norm, norm); };
  std::vector<Tensor> rest(own.begin(), own.end());
  std::vector<Tensor> squares;
  for (const Stage& stage : stages_) {
    std::vector<Tensor> of_stage;  // not counted for a stage before
    for (const Tensor& x : stage.module.parameters()) {
      if (std::erase_if(rest, [&](const Tensor& y) { return y.same(x); })) of_stage.push_back(x);
    }
    squares.push_back(parallel::squared_grad_norm(group_of(stage), stage.module, of_stage));
  }
  Tensor total = square(optim::total_grad_norm(rest));
  for (const Tensor& more : squares) total = raw::add(raw::to(total, more.device()), more);
  return total;
}

void PipelineShards::abort() const noexcept {
  for (const Stage& stage : stages_) {
    for (const auto& unit : stage.units) {
      if (unit->engine) unit->engine->abort();
    }
  }
  for (const auto& group : layer_groups_) group->abort();
}

PipelineShards::Whole::Whole(const PipelineShards& shards) : Whole(&shards) {
  std::vector<Unit*> units;
  for (const Stage& stage : shards_.stages_) {
    if (unfinished_) check_averaged(stage);  // it may have been unfrozen since
    for (const auto& unit : stage.units) {
      Engine* const engine = unit->engine.get();
      WEFT_CHECK(engine == stage.units[0]->engine.get(), InvalidArgument, kOp, unit->name, " and ",
                 stage.units[0]->name, " of stage ", stage.number,
                 " have no module around them that is cut, too: cut the stage itself");
      if (!engine) continue;  // never called: gathers by itself, as without a pipeline
      units.push_back(unit.get());
      if (std::ranges::find(engines_, engine) != engines_.end()) continue;
      engines_.push_back(engine);
      engine->kept = true;
      engine->end_forward();
      if (unfinished_ && stage.module.is_training() && engine->sync) engine->broadcast_buffers();
    }
  }
  const Span span("fully_shard", "wait for parameters");
  const auto start = [](Unit& unit) {
    const comm::ProcessGroup::Tag tag(unit.name);
    unit.memory->start_gather(*unit.engine->gathers);
  };
  for (std::size_t i = 0; i < units.size(); ++i) {  // the next unit arrives meanwhile
    if (i == 0) start(*units[0]);
    if (i + 1 < units.size()) start(*units[i + 1]);
    units[i]->memory->finish_gather();
    if (unfinished_) make_leaves(*units[i]);
  }
}

PipelineShards::Whole::~Whole() {
  for (const Stage& stage : shards_.stages_) {
    for (const auto& unit : stage.units) {
      if (!unit->engine || !unit->engine->kept) continue;
      give_back(*unit);
      if (unfinished_) unit->memory->drop_gradients();
    }
  }
  for (Engine* const engine : engines_) {
    engine->kept = false;
    engine->under_way = nullptr;  // left over only after an error
  }
}

void PipelineShards::Whole::collect(int of) const {
  for (const Stage& stage : shards_.stages_) {
    if (stage.number != of) continue;
    for (const auto& unit : stage.units) {
      const ShardUnit& memory = *unit->memory;
      if (unit->engine && unit->engine->kept && memory.sum_dtype() != memory.whole_dtype()) {
        take_gradients(*unit);
      }
    }
  }
}

void PipelineShards::Whole::reduce() {
  for (const Stage& stage : shards_.stages_ | std::views::reverse) {
    for (const auto& unit : stage.units | std::views::reverse) {
      if (!unit->engine || !unit->engine->kept) continue;
      take_gradients(*unit);
      give_back(*unit);
      if (!unit->engine->sync) unit->memory->keep_gradients();
      if (unit->engine->sync && unit->memory->reduces()) unit->engine->start_reduction(*unit);
    }
  }
  for (Engine* const engine : engines_) engine->finish_reduction();
  unfinished_ = false;
}

}  // namespace weft::parallel
