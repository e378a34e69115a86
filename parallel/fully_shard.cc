#include "weft/parallel/fully_shard.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <sstream>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/nesting_rule.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/repr.h"
#include "weft/parallel/same_model.h"
#include "weft/parallel/shard_checks.h"
#include "weft/parallel/shard_engine.h"
#include "weft/parallel/trace_moment.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "fully_shard";

using Unit = FsdpUnit;
using Engine = FsdpEngine;

// `unit`, then the other units in the module, in the order of the module tree.
std::vector<std::shared_ptr<Unit>> units_within(const nn::ModuleBase& module,
                                                const std::shared_ptr<Unit>& unit) {
  std::vector<std::shared_ptr<Unit>> units = {unit};
  for (const auto& [name, shard] : nn::shards_of(module)) {
    const auto other = unit_of(*shard);
    if (other && std::ranges::find(units, other) == units.end()) units.push_back(other);
  }
  return units;
}

// Makes the engine that the units of a model share, when its outermost module is first called.
void make_engine(const nn::ModuleBase& module, const std::shared_ptr<Unit>& unit) {
  const auto units = units_within(module, unit);
  // A module without parameters of its own joins the engine of the units in it, if they have one.
  const bool empty = unit->memory->pieces().empty();
  const std::shared_ptr<Engine> known = units.size() > 1 ? units[1]->engine : nullptr;
  if (empty && known && std::all_of(units.begin() + 1, units.end(), [&](const auto& other) {
        return other->engine == known;
      })) {
    unit->engine = known;
    return;
  }
  check_together(module, units);
  const auto engine = std::make_shared<Engine>(unit);
  // The modules' paths are known only now that the outermost module is.
  for (const auto& [name, shard] : nn::shards_of(module)) {
    const auto other = unit_of(*shard);
    if (other == unit) continue;
    for (const ShardUnit::Piece& piece : other->memory->pieces()) {
      if (piece.shard == shard && name.ends_with('.' + piece.name)) {
        other->name = name.substr(0, name.size() - piece.name.size() - 1);
      }
    }
  }
  if (!unit->reshard_set) unit->reshard = false;
  for (const auto& other : units) {
    other->memory->set_name(other->name);
    other->engine = engine;
    engine->all.push_back(other.get());
  }
  if (auto buffers = buffers_of(module); !buffers.empty()) {
    engine->buffers.emplace_back(std::move(buffers));
  }
}

// Makes the whole parameters of a unit depend on its token, and takes their gradients.
class UnshardNode final : public autograd::Node {
 public:
  UnshardNode(const std::shared_ptr<Unit>& unit, std::vector<std::size_t> trained)
      : Node("unshard", static_cast<int>(trained.size())),
        unit_(unit),
        trained_(std::move(trained)),
        recomputed_in_(autograd::recomputing() ? autograd::nesting_rule() : nullptr) {
    add_input(unit->token);
  }

  void apply(autograd::Gradients& grads) override {
    const auto unit = unit_.lock();
    WEFT_CHECK(unit, InvalidArgument, kOp, "the module of this tape is gone");
    for (std::size_t k = 0; k < trained_.size(); ++k) {
      Tensor grad = grads.take(static_cast<int>(k));
      if (!grad.defined() || !grads.accumulates()) continue;
      // Runs the hooks that the parameter had as a leaf, such as those of parallelize.
      const Tensor& whole = unit->memory->pieces()[trained_[k]].shard->used;
      autograd::OutputHooks* hooks = autograd::ensure_leaf_state(whole).grad_hooks.get();
      if (hooks) autograd::run_grad_hooks(*hooks, {&grad, 1});
      unit->memory->add_gradient(trained_[k], std::move(grad));
    }
    grads.set(0, zeros({}, {unit->token.dtype(), unit->token.device()}));
    // The token's gradient is finished only after all checkpoints of the backward. A call that was
    // recomputed in a checkpoint is done now, unless this backward is nested deeper.
    if (!recomputed_in_ || recomputed_in_ != autograd::nesting_rule()) return;
    recomputed_in_ = nullptr;
    if (grads.accumulates()) unit->engine->on_recomputed_gradients(*unit);
  }

 private:
  // Weak: the unit owns the whole parameters, and they own this node.
  const std::weak_ptr<Unit> unit_;
  const std::vector<std::size_t> trained_;
  const void* recomputed_in_;  // the checkpoint that recomputes; null once done
};

void record(const std::shared_ptr<Unit>& unit) {
  std::vector<std::size_t> trained;
  const auto& pieces = unit->memory->pieces();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].shard->part.requires_grad()) {
      trained.push_back(i);
    } else if (autograd::Meta* meta = autograd::meta_of(pieces[i].shard->used)) {
      meta->requires_grad.store(false, std::memory_order_release);
      meta->producer.reset();  // left from when it was trained
    }
  }
  if (trained.empty()) return;
  const auto node = make_intrusive<UnshardNode>(unit, trained);
  for (std::size_t k = 0; k < trained.size(); ++k) {
    autograd::attach(pieces[trained[k]].shard->used, node, static_cast<int>(k));
  }
}

void before_forward(const nn::ModuleBase& module, const std::shared_ptr<Unit>& unit,
                    std::span<Tensor> args) {
  graph::check_not_capturing(kOp, "a replay would not gather parameters");
  if (!unit->engine) make_engine(module, unit);
  Engine& engine = *unit->engine;
  const MixedPrecisionPolicy& policy = unit->policy;
  if (policy.param_dtype && policy.cast_forward_inputs) cast_floating(args, *policy.param_dtype);
  if (engine.kept) return;
  const bool recorded = thread_state().grad_enabled;
  if (unit.get() == engine.root && !engine.in_backward && !autograd::recomputing()) {
    engine.begin_forward();
    const bool trains = module.is_training() && (recorded || autograd::in_first_forward());
    if (trains && engine.sync) engine.broadcast_buffers();
  }
  if (unit->memory->pieces().empty()) return;
  engine.gather_for_forward(*unit);
  if (recorded) record(unit);
}

void after_forward(const std::shared_ptr<Unit>& unit, std::span<Tensor> results) {
  Engine& engine = *unit->engine;
  if (unit->policy.output_dtype) cast_floating(results, *unit->policy.output_dtype);
  if (engine.kept) return;
  const bool recorded = thread_state().grad_enabled;
  const auto is_own = [&](const Tensor& y) {  // a hook on it would own the unit in a circle
    return std::ranges::any_of(unit->memory->pieces(), [&](const ShardUnit::Piece& piece) {
      return y.same(piece.shard->used);
    });
  };
  for (const Tensor& y : results) {
    if (!recorded || !y.defined() || !y.requires_grad() || y.is_leaf() || is_own(y)) continue;
    autograd::add_grad_hook(y, [unit](const Tensor&) {
      unit->engine->before_backward(*unit);
      return Tensor();
    });
  }
  // Its backward follows at once, so the parameters stay.
  if (recorded && (engine.in_backward || autograd::recomputing())) return;
  if (unit->reshard || !(recorded || autograd::in_first_forward())) unit->memory->release();
  if (unit.get() == engine.root) engine.end_forward();
}

}  // namespace

FullySharded fully_shard(const nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group,
                         const FullyShardOptions& options) {
  WEFT_CHECK(group, InvalidArgument, kOp, "there is no process group");
  const auto& reshards = options.reshard_after_forward;
  const std::string how = detail::concat(
      module.type_name(), ' ', module.name(), ", reshard_after_forward ",
      reshards ? std::to_string(*reshards) : "unset", ", replicas ",
      options.replicas ? options.replicas->size() : 1, ", ", to_string(options.mp_policy), '\n');
  check_same_cut(*group, options.replicas.get(), module, how);
  check(options.mp_policy);
  check_order(module);
  const nn::NamedTensors parameters = nn::uncut_parameters(module);
  check_can_be_cut(parameters);
  std::vector<Tensor> values = buffers_of(module);
  for (const auto& [name, x] : parameters) values.push_back(x);
  broadcast_coalesced(*group, values, 0);
  if (options.replicas) broadcast_coalesced(*options.replicas, values, 0);

  const auto unit = std::make_shared<Unit>();
  unit->name = module.name().empty() ? module.type_name() : module.name();
  unit->group = group;
  unit->replicas = options.replicas;
  unit->reshard = options.reshard_after_forward.value_or(true);
  unit->reshard_set = options.reshard_after_forward.has_value();
  unit->policy = options.mp_policy;
  unit->memory = std::make_unique<ShardUnit>(module, group->rank(), group->size(),
                                             options.mp_policy, unit, unit->name);
  if (const auto& pieces = unit->memory->pieces(); !pieces.empty()) {
    const Tensor& any = pieces[0].shard->part;
    unit->token = zeros({}, {any.dtype(), any.device()});
    unit->token.set_requires_grad();
    autograd::add_final_leaf_hook(unit->token, [weak = std::weak_ptr(unit)](const Tensor&) {
      if (const auto alive = weak.lock()) alive->engine->on_gradients(*alive);
    });
  }
  nn::ModuleBase handle(module);
  handle.register_forward_pre_hook(
      [unit](nn::ModuleBase& m, std::span<Tensor> args) { before_forward(m, unit, args); }, true);
  handle.register_forward_hook(
      [unit](nn::ModuleBase&, std::span<Tensor> results) { after_forward(unit, results); });
  handle.register_forward_error_hook([unit](nn::ModuleBase&) {
    if (unit->engine) unit->engine->on_forward_error(*unit);
  });
  return FullySharded(module, unit);
}

FullySharded fully_shard(const nn::ModuleBase& module, comm::ProcessGroup& group,
                         const FullyShardOptions& options) {
  return fully_shard(module, {std::shared_ptr<void>(), &group}, options);
}

// --- Engine --------------------------------------------------------------------------------------

FsdpUnit::~FsdpUnit() {
  if (engine) engine->forget(this);
}

// Gathers `unit`, and starts to gather `next`, which then arrives while `unit` computes.
void FsdpEngine::gather(Unit& unit, Unit* next) {
  const auto start = [&](Unit& one) {
    const comm::ProcessGroup::Tag tag(one.name);
    const std::int64_t sent = one.memory->start_gather(*gathers);
    if (sent > 0) trace_moment(kOp, "gather", one.name, {{"bytes", sent}, {"ahead", &one == next}});
  };
  if (posted == &unit) {
    posted = nullptr;
  } else if (next) {
    drop_posted();  // this step calls other units than the last one
  }
  start(unit);
  {
    Span span(kOp, "wait for parameters");
    span.set_arg("element_size", static_cast<std::int64_t>(size_of(unit.memory->whole_dtype())));
    unit.memory->finish_gather();
  }
  if (!next || posted || next->memory->gathered()) return;
  start(*next);
  posted = next;
}

// Drops a gather that was started early, since its parameters may be written next.
void FsdpEngine::drop_posted() {
  if (Unit* const unit = std::exchange(posted, nullptr)) unit->memory->drop_gather();
}

void FsdpEngine::begin_forward() {
  drop_posted();
  forwards.position = 0;
  in_forward = true;
}

void FsdpEngine::broadcast_buffers() {
  for (Coalesced& one : buffers) {
    one.broadcast(*gathers, 0);
    if (replicas) one.broadcast(*replicas, 0);
  }
}

void FsdpEngine::end_forward() {
  drop_posted();
  in_forward = false;
}

void FsdpEngine::on_forward_error(const Unit& unit) {
  // Otherwise the module around it handles the error, or nothing was gathered yet.
  const bool outermost = &unit == root ? in_forward : !in_forward && unit.memory->gathered();
  if (!outermost || in_backward || kept) return;
  abort();
  end_forward();
  release_all();
}

void FsdpEngine::gather_for_forward(Unit& unit) {
  if (autograd::recomputing() && unit.memory->up_to_date()) return;  // still whole
  // The order of units is learnt from the calls in the root's forward, not from others.
  gather(unit, in_backward || !in_forward ? nullptr : forwards.after(unit));
}

void FsdpEngine::begin_backward() {
  if (std::exchange(in_backward, true)) return;
  in_forward = false;
  backwards.position = 0;
  update_order();
  for (Unit* const unit : order) unit->ready = !unit->memory->trained();  // frozen since no_sync()
  autograd::at_backward_end([this](const std::exception_ptr& error) { end_backward(error); });
}

void FsdpEngine::before_backward(Unit& unit) {
  WEFT_CHECK(!thread_state().create_graph, Unsupported, kOp,
             "a second derivative, create_graph, of a module that is cut");
  begin_backward();
  if (unit.memory->pieces().empty()) return;
  Unit* const next = backwards.after(unit);
  if (!unit.memory->up_to_date()) gather(unit, next);
}

void FsdpEngine::on_recomputed_gradients(Unit& unit) {
  if (!unit.unsharded) unit.memory->release();
  if (!sync) return;
  begin_backward();
  reducing = unit.reduced = true;
  start_reduction(unit);
}

void FsdpEngine::on_gradients(Unit& unit) {
  begin_backward();
  unit.memory->release();
  if (!sync) return unit.memory->keep_gradients();
  reducing = unit.ready = true;
  if (!ordered) arrived.push_back(&unit);
  reduce_ready();
}

// Starts the reductions of units that are ready, in the order that all ranks share, one at a time.
void FsdpEngine::reduce_ready() {
  for (; next < order.size() && order[next]->ready; ++next) {
    const Unit& unit = *order[next];
    if (!unit.reduced || unit.memory->has_gradients()) start_reduction(*order[next]);
  }
}

void FsdpEngine::start_reduction(Unit& unit) {
  finish_reduction();
  const Span span(kOp, "reduce-scatter");
  const comm::ProcessGroup::Tag tag(unit.name);
  unit.memory->start_reduction(*reductions);
  under_way = &unit;
}

void FsdpEngine::finish_reduction() {
  Unit* const unit = std::exchange(under_way, nullptr);
  if (!unit) return;
  const Span span(kOp, "wait for sums");
  const comm::ProcessGroup::Tag tag(unit->name);
  unit->memory->finish_reduction(replicas.get());
}

void FsdpEngine::end_backward(const std::exception_ptr& error) {
  in_backward = false;
  const auto give_up = [&] { abort(), reset(); };
  if (error) return give_up();
  if (!reducing) return release_all();
  std::vector<std::string> missing;
  try {
    for (Unit* const unit : order) {
      if (!unit->ready) missing.push_back(unit->name);
      unit->ready = true;
    }
    reduce_ready();
    finish_reduction();
    if (!ordered) find_order();
  } catch (...) {
    give_up();
    throw;
  }
  reset();
  WEFT_CHECK(missing.empty(), InvalidArgument, kOp, "rank ",
             reductions->number_in_run(reductions->rank()), ": the parameters of ", missing.size(),
             " of ", order.size(),
             " units got no gradient in this backward: ", nn::detail::first_few(missing),
             ". The other ranks took zeros for them. What forward or the loss does not use, freeze "
             "before it is cut");
}

void FsdpEngine::abort() const {
  for (const auto& ranks : {gathers, reductions, replicas}) {
    if (ranks && ranks->size() > 1) ranks->abort();
  }
}

// The first guess of the order, also after parameters were frozen or unfrozen: about the reverse of
// the module tree, the root's own parameters last, as backward reaches them.
void FsdpEngine::update_order() {
  std::vector<Unit*> trained(all.rbegin(), all.rend());
  std::erase_if(trained, [](const Unit* unit) { return !unit->memory->reduces(); });
  if (std::ranges::is_permutation(trained, order)) return;
  order = std::move(trained);
  ordered = false;
}

// Gives all ranks rank 0's order: the one in which its backward has reached the units.
void FsdpEngine::find_order() {
  ordered = true;
  std::string text;
  for (Unit* const unit : std::exchange(arrived, {})) {
    text += std::to_string(std::ranges::find(order, unit) - order.begin()) + ' ';
  }
  text = reductions->broadcast_object(text, 0);
  if (replicas) text = replicas->broadcast_object(text, 0);
  std::istringstream words(text);
  std::vector<Unit*> found;
  for (std::size_t i; words >> i;) {
    if (i < order.size()) found.push_back(order[i]);
  }
  if (found.size() == order.size()) order = std::move(found);
}

void FsdpEngine::release_all() {
  drop_posted();
  for (Unit* const unit : all) {
    unit->unsharded = false;
    unit->memory->release();
  }
}

void FsdpEngine::reset() {
  release_all();
  for (Unit* const unit : all) {
    unit->ready = unit->reduced = false;
    unit->memory->drop_gradients();
  }
  arrived.clear();
  next = 0;
  under_way = nullptr;
  reducing = false;
}

// --- The handle ----------------------------------------------------------------------------------

FsdpEngine& FullySharded::engine() const {
  if (!unit_->engine) make_engine(module_, unit_);
  return *unit_->engine;
}

std::vector<std::string> FullySharded::units() const {
  std::vector<std::string> names;
  engine().update_order();
  for (const Unit* const unit : engine().order) names.push_back(unit->name);
  return names;
}

FullySharded::NoSync FullySharded::no_sync() const { return NoSync(engine().sync); }

void FullySharded::unshard() const {
  engine().end_forward();
  for (const auto& unit : units_within(module_, unit_)) {
    unit->unsharded = true;
    unit->memory->start_gather(*engine().gathers);
    unit->memory->finish_gather();
    if (thread_state().grad_enabled) record(unit);
  }
}

void FullySharded::reshard() const {
  for (const auto& unit : units_within(module_, unit_)) {
    unit->unsharded = false;
    unit->memory->release();
  }
}

FullyShardStats FullySharded::stats() const {
  FullyShardStats sum;
  for (const auto& unit : units_within(module_, unit_)) sum += unit->memory->stats();
  return sum;
}

comm::Traffic FullySharded::traffic() const {
  comm::Traffic traffic = engine().gathers->traffic();
  traffic += engine().reductions->traffic();
  return engine().replicas ? traffic += engine().replicas->traffic() : traffic;
}

const std::shared_ptr<comm::ProcessGroup>& FullySharded::gathers() const {
  return engine().gathers;
}

const nn::ModuleBase& FullySharded::between_steps() const {
  engine().end_forward();
  return module_;
}

Tensor FullySharded::clip_grad_norm(double max_norm) const {
  return parallel::clip_grad_norm(*engine().reductions, module_, max_norm);
}

}  // namespace weft::parallel
