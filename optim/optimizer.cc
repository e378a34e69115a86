#include "weft/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"
#include "weft/core/trace/trace.h"
#include "weft/kernels/backend.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::optim {

namespace {

constinit ThreadLocal<UpdateWatch*> thread_watch;

UpdateWatch* current_watch() {
  UpdateWatch* const* const watch = thread_watch.get();
  return watch ? *watch : nullptr;
}

// f64, in which the kernels take the count, is exact for all integers up to this one.
constexpr double kMostSteps = 0x1p53;

// Runs f(part) for each part, on the worker of part.device; a single part, and captured work, in
// the calling thread.
template <class Part, class F>
void on_each_device(std::vector<Part>& parts, const F& f) {
  if (parts.size() <= 1 || thread_state().capture) {
    for (Part& part : parts) f(part);
    return;
  }
  JobGroup jobs;
  for (Part& part : parts) {
    jobs.submit(part.device, [&f, &part] {
      const Span span("optim", "part");
      f(part);
    });
  }
  jobs.wait();
}

// The gradient with the parameter's own order of elements, which the kernels need.
Tensor aligned_grad(const Tensor& param, const Tensor& grad) {
  if (grad.strides() == param.strides() && grad.dtype() == param.dtype()) return grad;
  Tensor copy = empty_like(param);
  raw::copy_(copy, grad);
  return copy;
}

// Whether the state is what zeros_like(param) would be: the kernels take both for arrays of param's
// dtype in one order.
bool fits(const Tensor& state, const Tensor& param) {
  bool same_order = state.dtype() == param.dtype() && state.shape() == param.shape();
  for (int i = 0; same_order && i < param.dim(); ++i) {
    same_order = param.shape()[i] <= 1 || state.strides()[i] == param.strides()[i];
  }
  return same_order;
}

constexpr const char* kMoveState =
    "; move the model before the first step, or the state after it with "
    "load_state_dict(state_dict())";

void check_lr(const char* op, double lr) {
  WEFT_CHECK(lr >= 0, InvalidArgument, op, "learning rate must not be negative, got ", lr);
}

// The name of an entry in the state dict.
std::string entry(std::size_t group, const char* name) {
  return detail::concat("group.", group, '.', name);
}

}  // namespace

UpdateWatchScope::UpdateWatchScope(UpdateWatch& watch)
    : before_(std::exchange(*thread_watch, &watch)) {}
UpdateWatchScope::~UpdateWatchScope() { *thread_watch = before_; }

void Optimizer::add_group(std::span<const Tensor> params, double lr,
                          std::optional<double> momentum) {
  WEFT_CHECK(!params.empty(), InvalidArgument, "optimizer", "got a group without parameters");
  check_lr("optimizer", lr);
  std::unordered_set<const TensorImpl*> known;
  for (const Group& g : groups_)
    for (const Slot& s : g.slots) known.insert(s.param.impl());
  Group group{.slots = {}, .lr = lr, .momentum = momentum};
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    WEFT_CHECK(p.defined() && p.is_leaf() && is_floating(p.dtype()), InvalidArgument, "optimizer",
               "parameter ", i, " is not a floating leaf tensor");
    WEFT_CHECK(p.is_dense(), InvalidArgument, "optimizer", "parameter ", i, " ", p.shape(),
               " has gaps in memory");
    WEFT_CHECK(known.insert(p.impl()).second, InvalidArgument, "optimizer", "parameter ", i, " ",
               p.shape(), " is given twice");
    group.slots.push_back({.param = p, .buffers = {}});
  }
  groups_.push_back(std::move(group));
}

void Optimizer::step() {
  UpdateWatch* const watch = current_watch();
  if (watch && !watch->before_step(*this)) return;
  Span span("optim", "step");
  const PhaseScope phase("optimizer step");
  if (span.on()) {
    std::int64_t count = 0;
    for (const Group& g : groups_) count += std::ssize(g.slots);
    span.set_arg("parameters", count);
  }
  prepare();
  on_each_device(parts_, [this](Part& part) { update_part(part); });
  if (graph::Capture* capture = thread_state().capture) {
    capture->constant("optimizer", "the momentum or the loaded state",
                      [this] { return revision_; });
  }
  if (watch) watch->after_step(*this);
}

void Optimizer::prepare() {
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::optimizer);
  for (Part& part : parts_) part.slots = 0;
  const std::size_t buffers = buffer_names_.size();
  int index = -1;
  bool any_gradient = false;
  for (Group& group : groups_) {
    for (Slot& slot : group.slots) {
      ++index;
      WEFT_CHECK(!slot.param.storage()->released(), InvalidArgument, "optimizer", "parameter ",
                 index, " ", slot.param.shape(),
                 " was cut (parallel::fully_shard) after this optimiser was made; make the "
                 "optimiser of model.parameters() afterwards");
      const Tensor& grad = slot.param.grad();
      any_gradient = any_gradient || grad.defined();
      if (!slot.kept || !grad.defined()) continue;
      const Device device = slot.param.device();
      WEFT_CHECK(grad.device() == device, Device, "optimizer", "parameter ", index, " ",
                 slot.param.shape(), " is on ", device, ", its gradient on ", grad.device(),
                 "; move it there with to(device)");
      for (const Tensor& state : slot.buffers) {
        WEFT_CHECK(!state.defined() || state.device() == device, Device, "optimizer", "parameter ",
                   index, " ", slot.param.shape(), " is on ", device, ", its state on ",
                   state.device(), kMoveState);
        WEFT_CHECK(!state.defined() || fits(state, slot.param), Dtype, "optimizer", "parameter ",
                   index, " is ", slot.param.dtype(), ' ', slot.param.shape(), " with strides ",
                   slot.param.strides(), ", its state ", state.dtype(), ' ', state.shape(),
                   " with strides ", state.strides(), kMoveState);
      }
      auto part = std::ranges::find(parts_, device, &Part::device);
      if (part == parts_.end()) part = parts_.insert(parts_.end(), {.device = device});
      ++part->slots;
      if (slot.buffers.size() < buffers) {
        graph::check_not_capturing(
            "optimizer",
            "every replay would make the state of a parameter anew that has its first gradient "
            "here; call the body once more before");
      }
      while (slot.buffers.size() < buffers) {
        const bool used = !buffer_names_[slot.buffers.size()].empty();
        slot.buffers.push_back(used ? zeros_like(slot.param) : Tensor());
      }
    }
  }
  std::erase_if(parts_, [](const Part& part) { return part.slots == 0; });
  if (any_gradient || std::exchange(warned_, true)) return;
  log_warning(
      detail::concat("optimizer: step() changes nothing, for none of the ", index + 1,
                     " parameters has a gradient: no backward has reached them since zero_grad(). "
                     "Was their forward run under NoGrad, or its result detached?"));
}

void Optimizer::update_part(Part& part) {
  const Device device = part.device;
  const std::size_t buffers = buffer_names_.size();
  part.regrouped.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (Batch& b : part.batches) {
      b.slots.clear();
      b.members.clear();
    }
    for (Slot& slot : groups_[g].slots) {
      const Tensor& grad = slot.param.grad();
      if (!slot.kept || !grad.defined() || !(slot.param.device() == device)) continue;
      const Tensor aligned = aligned_grad(slot.param, grad);
      if (!aligned.same(grad)) part.regrouped.push_back(aligned);
      const std::int64_t next = slot.step + 1;
      const DType dtype = slot.param.dtype();
      auto batch = std::ranges::find_if(part.batches, [&](const Batch& b) {
        return b.dtype == dtype && (b.step == next || b.slots.empty());
      });
      if (batch == part.batches.end()) {
        part.batches.push_back({dtype, 0, empty({2}, {DType::i64, device}), {}, {}});
        batch = part.batches.end() - 1;
      }
      batch->step = next;
      const auto state = [&](std::size_t i) {
        return i < buffers && slot.buffers[i].defined() ? slot.buffers[i].raw_data() : nullptr;
      };
      batch->slots.push_back({slot.param.raw_data(), aligned.raw_data(), state(0), state(1),
                              state(2), slot.param.numel()});
      batch->members.push_back(&slot);
      slot.param.storage()->bump_version();
      for (const Tensor& kept : slot.buffers) {
        if (kept.defined()) kept.storage()->bump_version();
      }
    }
    for (const Batch& b : part.batches) {
      if (b.slots.empty()) continue;
      const double* lr = nullptr;
      const std::int64_t* step = nullptr;
      if (graph::Capture* capture = thread_state().capture) {
        lr = capture->number<double>(groups_[g].lr, [this, g] { return groups_[g].lr; });
        step = capture->number<std::int64_t>(b.step,
                                             [members = b.members] { return advance(members); });
      } else {
        const std::uint64_t words[] = {std::bit_cast<std::uint64_t>(groups_[g].lr),
                                       static_cast<std::uint64_t>(b.step)};
        void* const at = b.lr_and_step.raw_data();
        runtime(device).write_words(static_cast<std::uint64_t*>(at), words, current_stream(device));
        lr = static_cast<const double*>(at);
        step = static_cast<const std::int64_t*>(at) + 1;
      }
      update(current_stream(device), b.dtype, g, lr, step, b.slots);
      for (Slot* slot : b.members) ++slot->step;  // last: what is before it may fail
    }
  }
  part.regrouped.clear();
}

std::int64_t Optimizer::advance(std::span<Slot* const> members) {
  for (Slot* slot : members) {
    ++slot->step;
    slot->param.storage()->bump_version();
  }
  return members.front()->step;
}

void Optimizer::zero_grad() {
  for (const Group& g : groups_)
    for (const Slot& s : g.slots) autograd::zero_grad(s.param);
}

const Optimizer::Group& Optimizer::group_at(std::size_t group) const {
  WEFT_CHECK(group < groups_.size(), InvalidArgument, "optimizer", "there is no group ", group,
             ": this optimiser has ", groups_.size());
  return groups_[group];
}

void Optimizer::set_lr(double lr) {
  for (std::size_t g = 0; g < groups_.size(); ++g) set_lr(g, lr);
}

void Optimizer::set_lr(std::size_t group, double lr) {
  graph::check_not_capturing("set_lr", "a replay does not run it; call it between the steps");
  group_at(group);
  check_lr("set_lr", lr);
  groups_[group].lr = lr;
}

void Optimizer::set_initial_lr(std::size_t group, double lr) {
  group_at(group);
  groups_[group].initial_lr = lr;
}

double Optimizer::initial_lr(std::size_t group) const {
  WEFT_CHECK(has_initial_lr(group), InvalidArgument, "optimizer", "group ", group,
             " has no scheduler");
  return *group_at(group).initial_lr;
}

void Optimizer::check_momentum(double momentum) const {
  WEFT_CHECK(momentum >= 0, InvalidArgument, "optimizer", "momentum must not be negative, got ",
             momentum);
}

void Optimizer::set_momentum(std::size_t group, double momentum) {
  WEFT_CHECK(group_at(group).momentum, InvalidArgument, "optimizer",
             "made without momentum, which ", momentum, " would need");
  check_momentum(momentum);
  groups_[group].momentum = momentum;
  groups_[group].momentum_set = true;
  options_changed();
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> result;
  for (const Group& g : groups_)
    for (const Slot& s : g.slots) result.push_back(s.param);
  return result;
}

std::vector<Tensor> Optimizer::parameters(std::size_t group) const {
  std::vector<Tensor> result;
  for (const Slot& s : group_at(group).slots) result.push_back(s.param);
  return result;
}

void Optimizer::keep_only(const std::vector<bool>& kept) {
  auto is_kept = kept.begin();
  for (Group& g : groups_) {
    for (Slot& slot : g.slots) {
      slot.kept = *is_kept++;
      if (!slot.kept) slot = {.param = slot.param, .buffers = {}, .kept = false};
    }
  }
}

NamedTensors Optimizer::state_dict() const {
  NamedTensors state;
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto add = [&](const char* name, std::optional<double> value) {
      if (value) state.emplace_back(entry(g, name), scalar(*value, {DType::f64, Device()}));
    };
    add("lr", groups_[g].lr);
    add("initial_lr", groups_[g].initial_lr);
    add("momentum", groups_[g].momentum);
    for (const Slot& slot : groups_[g].slots) {
      const std::string prefix = "state." + std::to_string(index++) + ".";
      if (slot.step == 0) continue;
      state.emplace_back(prefix + "step",
                         scalar(static_cast<double>(slot.step), {DType::i64, Device()}));
      for (std::size_t b = 0; b < slot.buffers.size(); ++b) {
        if (slot.buffers[b].defined())
          state.emplace_back(prefix + buffer_names_[b], raw::clone(slot.buffers[b]));
      }
    }
  }
  return state;
}

void Optimizer::load_state_dict(const NamedTensors& state) {
  std::unordered_map<std::string, Tensor> by_name;
  std::string problems;
  for (const auto& [name, tensor] : state) {
    if (!by_name.emplace(name, tensor).second) problems += "\n  " + name + " is given twice";
  }
  const auto take = [&](const std::string& name, const Shape& shape) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      problems += "\n  missing " + name;
      return Tensor();
    }
    if (found->second.shape() != shape) {
      problems += "\n  " + name + " is " + to_string(found->second.shape()) + ", expected " +
                  to_string(shape);
    }
    const Tensor value = found->second;
    by_name.erase(found);
    return value;
  };

  const auto take_if_there = [&](const std::string& name) {
    return by_name.count(name) ? take(name, {}) : Tensor();
  };

  struct Numbers {
    Tensor lr, initial_lr, momentum;  // the last two may be missing
  };
  std::vector<Numbers> numbers;             // per group
  std::vector<std::vector<Tensor>> values;  // per parameter: step, buffers; empty: never updated
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    numbers.push_back({take(entry(g, "lr"), {}), take_if_there(entry(g, "initial_lr")),
                       groups_[g].momentum ? take_if_there(entry(g, "momentum")) : Tensor()});
    for (const Slot& slot : groups_[g].slots) {
      const std::string prefix = "state." + std::to_string(index++) + ".";
      values.emplace_back();
      if (!by_name.count(prefix + "step")) continue;
      const Tensor& step = values.back().emplace_back(take(prefix + "step", {}));
      if (step.numel() == 1) {
        const double count = step.item<double>();
        if (!(count >= 0 && count <= kMostSteps)) {
          problems += detail::concat("\n  ", prefix, "step is ", count, ", expected 0 to 2^53");
        }
      }
      for (const std::string& name : buffer_names_) {
        values.back().push_back(name.empty() ? Tensor() : take(prefix + name, slot.param.shape()));
      }
    }
  }
  for (const auto& [name, tensor] : state)
    if (by_name.count(name)) problems += "\n  unexpected " + name;
  WEFT_CHECK(problems.empty(), InvalidArgument, "optimizer",
             "this state is of other parameters or another optimiser:", problems);
  for (const Numbers& of_group : numbers) {
    check_lr("optimizer", of_group.lr.item<double>());
    if (of_group.momentum.defined()) check_momentum(of_group.momentum.item<double>());
  }

  options_changed();
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::optimizer);
  bool unknown_momentum = false;
  auto value = values.begin();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& [lr, initial_lr, momentum] = numbers[g];
    groups_[g].lr = lr.item<double>();
    if (initial_lr.defined()) groups_[g].initial_lr = initial_lr.item<double>();
    if (momentum.defined()) groups_[g].momentum = momentum.item<double>();
    unknown_momentum |= groups_[g].momentum_set && !momentum.defined();
    for (Slot& slot : groups_[g].slots) {
      if (!slot.kept) value->clear();
      slot.step = value->empty() ? 0 : (*value)[0].item<std::int64_t>();
      slot.buffers.clear();
      for (std::size_t b = 0; b + 1 < value->size(); ++b) {
        const Tensor& stored = (*value)[b + 1];
        slot.buffers.push_back(stored.defined() ? empty_like(slot.param) : Tensor());
        if (stored.defined()) raw::copy_(slot.buffers.back(), stored);
      }
      ++value;
    }
  }
  if (unknown_momentum) {
    log_warning(
        "optimizer: this state was saved without the momentum, which a scheduler or set_momentum() "
        "sets here: the next step takes the present one, and may differ from that of the run that "
        "saved it");
  }
}

namespace {

// The gradients of one device.
struct DeviceGrads {
  Device device;
  // One slot list per dtype: a kernel call takes one dtype.
  std::vector<std::pair<DType, std::vector<OptimSlot>>> lists = {};
  Tensor sum = {};     // sum of their squares
  Tensor factor = {};  // they are to be scaled by it
};

std::vector<DeviceGrads> grads_by_device(const char* op, std::span<const Tensor> params) {
  if (UpdateWatch* const watch = current_watch()) watch->before_clipping(params);
  std::vector<DeviceGrads> parts;
  for (const Tensor& p : params) {
    const Tensor& grad = p.grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    WEFT_CHECK(grad.is_dense(), InvalidArgument, op, "gradient ", grad.shape(),
               " has gaps in memory");
    auto part = std::ranges::find(parts, grad.device(), &DeviceGrads::device);
    if (part == parts.end()) part = parts.insert(parts.end(), {.device = grad.device()});
    auto list =
        std::ranges::find_if(part->lists, [&](const auto& l) { return l.first == grad.dtype(); });
    if (list == part->lists.end()) list = part->lists.insert(list, {grad.dtype(), {}});
    list->second.push_back({.grad = grad.raw_data(), .n = grad.numel()});
  }
  return parts;
}

// The gradients will be overwritten.
void bump_versions(std::span<const Tensor> params) {
  for (const Tensor& p : params) {
    if (p.grad().defined()) p.grad().storage()->bump_version();
  }
}

}  // namespace

Tensor total_grad_norm(std::span<const Tensor> params) {
  std::vector<DeviceGrads> parts = grads_by_device("total_grad_norm", params);
  if (parts.empty()) return zeros({}, {DType::f64, Device()});
  on_each_device(parts, [](DeviceGrads& part) {
    part.sum = zeros({}, {DType::f64, part.device});
    for (const auto& [dtype, slots] : part.lists) {
      const Tensor squares = empty({}, {DType::f64, part.device});
      kernel(part.device, &KernelTable::optim, &OptimKernels::sum_of_squares, "total_grad_norm",
             dtype)(current_stream(part.device), dtype, slots, squares.data<double>());
      raw::add_scaled_(part.sum, 1, squares);
    }
  });
  const Tensor total = parts[0].sum;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    raw::add_scaled_(total, 1, raw::to(parts[i].sum, total.device()));
  }
  return raw::sqrt(total);
}

void clip_grads_with_norm(std::span<const Tensor> params, double max_norm,
                          const Tensor& total_norm) {
  constexpr const char* kOp = "clip_grads_with_norm";
  WEFT_CHECK(max_norm >= 0, InvalidArgument, kOp, "max_norm must not be negative, got ", max_norm);
  WEFT_CHECK(total_norm.numel() == 1 && total_norm.dtype() == DType::f64, InvalidArgument, kOp,
             "total_norm: got ", total_norm.shape(), " of ", total_norm.dtype(),
             ", expected one f64 element");
  std::vector<DeviceGrads> parts = grads_by_device(kOp, params);
  bump_versions(params);
  const Tensor factor = raw::clamp(raw::div(max_norm, raw::add(total_norm, 1e-6)), 0, 1);
  for (DeviceGrads& part : parts) part.factor = raw::to(factor, part.device);
  on_each_device(parts, [](DeviceGrads& part) {
    for (const auto& [dtype, slots] : part.lists) {
      kernel(part.device, &KernelTable::optim, &OptimKernels::scale_grads, kOp, dtype)(
          current_stream(part.device), dtype, part.factor.data<double>(), slots);
    }
  });
}

Tensor clip_grad_norm(std::span<const Tensor> params, double max_norm) {
  WEFT_CHECK(max_norm >= 0, InvalidArgument, "clip_grad_norm",
             "max_norm must not be negative, got ", max_norm);
  const Tensor norm = total_grad_norm(params);
  clip_grads_with_norm(params, max_norm, norm);
  return norm;
}

void clip_grad_value(std::span<const Tensor> params, double clip_value) {
  WEFT_CHECK(clip_value >= 0, InvalidArgument, "clip_grad_value",
             "clip_value must not be negative, got ", clip_value);
  std::vector<DeviceGrads> parts = grads_by_device("clip_grad_value", params);
  bump_versions(params);
  on_each_device(parts, [&](DeviceGrads& part) {
    for (const auto& [dtype, slots] : part.lists) {
      kernel(part.device, &KernelTable::optim, &OptimKernels::clamp_grads, "clip_grad_value",
             dtype)(current_stream(part.device), dtype, clip_value, slots);
    }
  });
}

}  // namespace weft::optim
