// What all optimisers share: parameter groups, state, gradients to zero.
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

/// Parameters that are updated with the same options.
template <class Options>
struct ParamGroup {
  std::vector<Tensor> params;
  Options options;
};

/// One update per step() for every parameter that has a gradient; the others, and their state, stay
/// untouched. One fused pass over all parameters of equal device, dtype and step count. State lies
/// where its parameter does. Of several devices each one's worker (core/worker.h) updates what is
/// its own, all at once; step() waits for them and throws the first error.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;
  virtual ~Optimizer() = default;

  virtual void step();
  /// Forgets the gradients (autograd::zero_grad).
  virtual void zero_grad();

  std::size_t group_count() const { return groups_.size(); }
  // What names a group throws InvalidArgument when there is no such group.
  double lr(std::size_t group = 0) const { return group_at(group).lr; }
  /// Of all groups. These two throw InvalidArgument for a rate below 0, and Unsupported inside
  /// graph::capture, whose replays read the rate but do not run the body.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);
  /// The rate the group had when its first scheduler started; what schedulers are based on.
  double initial_lr(std::size_t group) const;
  void set_initial_lr(std::size_t group, double lr);
  bool has_initial_lr(std::size_t group) const { return group_at(group).initial_lr.has_value(); }
  /// What OneCycleLR cycles: SGD's and RMSprop's momentum, Adam's beta1. Setting throws
  /// InvalidArgument where there is none, where the optimiser was made without, and for values
  /// that its constructor refuses.
  virtual double momentum(std::size_t group) const;
  virtual void set_momentum(std::size_t group, double momentum);
  std::vector<Tensor> parameters() const;

  /// Copies: "group.0.lr" (f64), and per parameter, in order over all groups, "state.7.step" (i64)
  /// and the buffers by PyTorch's names ("state.7.exp_avg"). Parameters never stepped have none.
  NamedTensors state_dict() const;
  /// Takes up where state_dict() was written. Throws InvalidArgument for state of other parameters
  /// (names and shapes are listed), before anything is changed.
  void load_state_dict(const NamedTensors& state);

 protected:
  struct Slot {
    Tensor param;
    std::int64_t step = 0;        // updates so far
    std::vector<Tensor> buffers;  // as buffer_names_; made at the first step
  };
  struct Group {
    std::vector<Slot> slots;
    double lr = 0;
    std::optional<double> initial_lr;
  };

  /// State per parameter besides its step count, by PyTorch's names ("exp_avg"), in the order of
  /// OptimSlot's; an empty name stands for one that this optimiser does without.
  explicit Optimizer(std::vector<std::string> buffer_names = {})
      : buffer_names_(std::move(buffer_names)) {}
  /// Whether the optimiser was made with that buffer.
  bool keeps(std::size_t buffer) const {
    return buffer < buffer_names_.size() && !buffer_names_[buffer].empty();
  }
  /// Throws InvalidArgument for an empty group, a parameter given twice, one that is no leaf or not
  /// floating, or a learning rate below 0.
  void add_group(std::span<const Tensor> params, double lr);

  void check_group(std::size_t group) const { group_at(group); }

  /// To be called when what update() passes by value or by address is another: captured steps that
  /// hold the old one are refused from then on.
  void options_changed() { ++revision_; }

  /// One call of the kernel for slots of group `group` that share device, dtype and step. Several
  /// threads may call it, each for a device of its own.
  virtual void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
                      const std::int64_t* step, std::span<const OptimSlot> slots) = 0;

 private:
  // Slots of one group that go into one kernel call, with the scalars it reads on the device.
  struct Batch {
    DType dtype;
    std::int64_t step;
    Tensor lr_on_device, step_on_device;
    std::vector<OptimSlot> slots;
    std::vector<Slot*> members;  // whose they are
  };
  // What one device has to do; reused, so that a steady step allocates nothing.
  struct Part {
    Device device;
    std::int64_t slots = 0;  // with a gradient, in this step
    std::vector<Batch> batches;
    std::vector<Tensor> regrouped;  // gradients copied because their layout differs
  };

  const Group& group_at(std::size_t group) const;

  // Finds the slots to update, and makes the state of those that have none yet.
  void prepare();
  void update_part(Part& part);
  // What step() does on the host, for a replay: returns the members' new step count.
  static std::int64_t advance(std::span<Slot* const> members);

  std::vector<std::string> buffer_names_;
  std::vector<Group> groups_;
  std::vector<Part> parts_;
  std::int64_t revision_ = 0;
};

/// Scales all gradients so that their joint L2 norm is at most max_norm; returns the norm before
/// (f64 scalar on the first gradient's device). Parameters without gradient are passed over. As
/// PyTorch: factor = min(1, max_norm / (norm + 1e-6)). Of several devices each one's worker sums up
/// and scales what is its own.
Tensor clip_grad_norm(std::span<const Tensor> params, double max_norm);

/// Sets what is outside of [-clip_value, clip_value] in the gradients to the nearer of the two; NaN
/// stays NaN. Parameters without gradient are passed over. Throws InvalidArgument for a clip_value
/// below 0.
void clip_grad_value(std::span<const Tensor> params, double clip_value);

}  // namespace weft::optim
