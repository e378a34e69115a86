// Shared by all optimisers: parameter groups, state and step(); and the clipping of gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/kernels/optim.h"
#include "weft/tensor/tensor.h"

namespace weft::optim {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// Parameters that are updated with the same options.
template <class Options>
struct ParamGroup {
  std::vector<Tensor> params{};
  Options options{};
};

/// Base of all optimisers. step() updates every parameter that has a gradient; the others do not
/// change, nor does their state. All parameters of one group with the same device, dtype and step
/// count are updated in one fused pass. The state is on the device of its parameter.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;
  virtual ~Optimizer() = default;

  /// With parameters on several devices, each device's worker (core/runtime/worker.h) updates its
  /// own, all at the same time; step() waits for them and throws the first error. Throws Device
  /// when a gradient or the state is on another device than its parameter, Dtype when the state has
  /// another dtype or order of elements, as after to(dtype), and Unsupported for the first gradient
  /// of a parameter inside graph::capture, if the optimiser keeps buffers. The first time that no
  /// parameter has a gradient, so that nothing changes, gives a warning.
  virtual void step();
  /// Clears the gradients of all parameters (autograd::zero_grad).
  virtual void zero_grad();

  std::size_t group_count() const { return groups_.size(); }
  // Every function that takes a group throws InvalidArgument when there is no such group.
  double lr(std::size_t group = 0) const { return group_at(group).lr; }
  /// Sets the rate of all groups, or of one. Both throw InvalidArgument for a rate below 0, and
  /// Unsupported inside graph::capture, whose replays read the rate but do not run the body.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);
  /// The rate from which schedulers compute: the one the group had when its first scheduler was
  /// made, or OneCycleLR's first. Throws InvalidArgument when the group has had no scheduler.
  double initial_lr(std::size_t group) const;
  void set_initial_lr(std::size_t group, double lr);
  bool has_initial_lr(std::size_t group) const { return group_at(group).initial_lr.has_value(); }
  /// The value that OneCycleLR changes: the momentum of SGD and RMSprop, beta1 of Adam. 0 for an
  /// optimiser that was made without momentum; set_momentum throws InvalidArgument then, and for a
  /// negative value (Adam: one outside [0, 1)).
  double momentum(std::size_t group) const { return group_at(group).momentum.value_or(0); }
  void set_momentum(std::size_t group, double momentum);
  /// The other options of the group, by their names: "weight_decay", "eps", ... A flag is 0 or 1.
  /// Throws InvalidArgument if there is no such group.
  NamedNumbers options(std::size_t group) const {
    static_cast<void>(group_at(group));
    return named_options(group);
  }
  /// The parameters of all groups, in order.
  std::vector<Tensor> parameters() const;
  std::vector<Tensor> parameters(std::size_t group) const;

  /// Copies of the state. Of each group what schedulers set (f64): "group.0.lr",
  /// "group.0.initial_lr" if it has had a scheduler, "group.0.momentum" if there is one. Of each
  /// parameter, numbered over all groups, "state.7.step" (i64) and its buffers by PyTorch's names
  /// ("state.7.exp_avg"); a parameter that was never updated has no entry. The other options are
  /// not in it: make the optimiser with the same ones.
  virtual NamedTensors state_dict() const;
  /// Restores what state_dict() returned. Throws InvalidArgument for names or shapes of other
  /// parameters or of another optimiser, for a name that is given twice and for a step outside
  /// [0, 2^53], listing them, and for a rate or momentum that set_lr() or set_momentum() refuses,
  /// before anything is changed. A state without momentum, from a version without this entry, is
  /// accepted and leaves the momentum unchanged; if set_momentum() was called here, as by
  /// OneCycleLR, a warning is logged.
  void load_state_dict(const NamedTensors& state);

 protected:
  struct Slot {
    Tensor param;
    std::int64_t step = 0;        // updates so far
    std::vector<Tensor> buffers;  // in the order of buffer_names_; made at the first step
    bool kept = true;             // false: another rank updates it
  };
  struct Group {
    std::vector<Slot> slots;
    double lr = 0;
    std::optional<double> initial_lr = {};
    std::optional<double> momentum = {};
    bool momentum_set = false;  // by set_momentum()
  };

  /// buffer_names: the state of each parameter besides its step count, by PyTorch's names
  /// ("exp_avg"), in the order of OptimSlot's. An empty name means that this optimiser does not use
  /// that buffer.
  explicit Optimizer(std::vector<std::string> buffer_names = {})
      : buffer_names_(std::move(buffer_names)) {}
  /// Whether this optimiser uses the buffer.
  bool keeps(std::size_t buffer) const {
    return buffer < buffer_names_.size() && !buffer_names_[buffer].empty();
  }
  /// momentum: what set_momentum() may change, if this optimiser has any. Throws InvalidArgument
  /// for an empty group, for a learning rate below 0, and for a parameter that is given twice, is
  /// no leaf, is not floating or has gaps in memory.
  void add_group(std::span<const Tensor> params, double lr, std::optional<double> momentum = {});
  /// Throws InvalidArgument for a value that set_momentum() must refuse.
  virtual void check_momentum(double momentum) const;

  /// What options() returns. ./weft prove compares it among ranks.
  virtual NamedNumbers named_options(std::size_t /*group*/) const { return {}; }

  /// From now on step() updates only the parameters with kept[i], numbered over all groups, and
  /// only they have a state; ranks that share the work keep different ones.
  void keep_only(const std::vector<bool>& kept);

  /// Call this when a value or an address that update() passes to the kernel has changed. A
  /// captured step holds the old one, so its replay is refused from then on.
  void options_changed() { ++revision_; }

  /// Makes one kernel call for slots of group `group` that share device, dtype and step count.
  /// Several threads may call it at once, each for another device.
  virtual void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
                      const std::int64_t* step, std::span<const OptimSlot> slots) = 0;

 private:
  // Slots of one group that go into one kernel call, and the scalars that it reads on the device.
  struct Batch {
    DType dtype;
    std::int64_t step;
    Tensor lr_and_step;  // on the device: a word each
    std::vector<OptimSlot> slots;
    std::vector<Slot*> members;  // the owners of `slots`
  };
  // The work of one device. Reused, so that a step allocates nothing after the first ones.
  struct Part {
    Device device;
    std::int64_t slots = 0;  // slots with a gradient in this step
    std::vector<Batch> batches;
    std::vector<Tensor> regrouped;  // gradients copied because their layout differs
  };

  const Group& group_at(std::size_t group) const;

  // Finds the slots to update, and makes the state of those that have none yet.
  void prepare();
  void update_part(Part& part);
  // The host's part of step(), for a replay: returns the members' new step count.
  static std::int64_t advance(std::span<Slot* const> members);

  std::vector<std::string> buffer_names_;
  std::vector<Group> groups_;
  std::vector<Part> parts_;
  std::int64_t revision_ = 0;
  bool warned_ = false;  // of a step with no gradient at all
};

/// Sees the updates of a thread, and may skip them: for train/, which records and replays steps.
class UpdateWatch {
 public:
  virtual ~UpdateWatch() = default;
  /// Before step(); if it returns false, step() does nothing.
  virtual bool before_step(Optimizer& optimizer) = 0;
  virtual void after_step(Optimizer& optimizer) = 0;
  /// Before the functions below read or change the gradients of these parameters.
  virtual void before_clipping(std::span<const Tensor> params) = 0;
};

/// While it lives, `watch` sees the updates of the thread that made it.
class UpdateWatchScope {
 public:
  explicit UpdateWatchScope(UpdateWatch& watch);
  ~UpdateWatchScope();
  UpdateWatchScope(const UpdateWatchScope&) = delete;
  UpdateWatchScope& operator=(const UpdateWatchScope&) = delete;

 private:
  UpdateWatch* const before_;
};

/// Scales all gradients so that their joint L2 norm is at most max_norm. As in PyTorch the factor
/// is min(1, max_norm / (norm + 1e-6)). Returns the norm before scaling: an f64 scalar on the
/// device of the first gradient, 0 on the CPU when there is none. Parameters without a gradient are
/// skipped. With several devices, the worker of each one sums up and scales its own gradients.
/// Throws InvalidArgument for a max_norm below 0 and for a gradient with gaps in memory. When each
/// process has only a part of the model: parallel::Pipeline::clip_grad_norm().
Tensor clip_grad_norm(std::span<const Tensor> params, double max_norm);

/// The first half of clip_grad_norm(): the joint L2 norm of all gradients, as PyTorch's
/// get_total_norm.
Tensor total_grad_norm(std::span<const Tensor> params);

/// The second half: scales the gradients by min(1, max_norm / (total_norm + 1e-6)). `total_norm`
/// must have one f64 element, on any device, else InvalidArgument.
void clip_grads_with_norm(std::span<const Tensor> params, double max_norm,
                          const Tensor& total_norm);

/// Limits every element of the gradients to [-clip_value, clip_value]; NaN stays NaN. Parameters
/// without a gradient are skipped. Throws InvalidArgument for a clip_value below 0 and for a
/// gradient with gaps in memory.
void clip_grad_value(std::span<const Tensor> params, double clip_value);

}  // namespace weft::optim
