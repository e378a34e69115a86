// fully_shard: each rank keeps a part of each parameter, of its gradient and of the optimiser's
// state, and has whole parameters only while a module computes (FSDP; ZeRO, stage 3).
//
//   for (nn::ModuleBase block : blocks) parallel::fully_shard(block, group);
//   const auto sharded = parallel::fully_shard(model, group);  // what is left, and the blocks
//   optim::Adam adam(model.parameters(), {.lr = 1e-3});        // the parts
//   ...
//   adam.zero_grad();
//   nn::cross_entropy(model(x), label).backward();  // parts of the ranks' mean gradients
//   adam.step();
//
// The parameters of a module, without those of inner modules that were cut before, form a unit. In
// a step of blocks a, b and c:
//
//   forward    [gather a] a [gather b] b [gather c] c
//                           free a       free b       free c
//   backward   [gather c] c' [gather b] b' [gather a] a'
//                            free c; reduce-scatter c's gradients  ...
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"
#include "weft/parallel/fully_shard_stats.h"
#include "weft/parallel/mixed_precision.h"
#include "weft/parallel/sharded_state.h"

namespace weft::parallel {

struct FsdpEngine;
struct FsdpUnit;

struct FullyShardOptions {
  /// Whether a unit's parameters are freed between its forward and its backward. Unset: true, but
  /// false for the outermost module, whose backward follows its forward at once.
  std::optional<bool> reshard_after_forward = {};
  /// The ranks that keep the same parts (HSDP): for a mesh {{"replica", 2}, {"shard", 4}} it is
  /// mesh["replica"], and mesh["shard"] is the group. Gradients are averaged over both; parameters
  /// and states are gathered within the group.
  std::shared_ptr<comm::ProcessGroup> replicas = {};
  MixedPrecisionPolicy mp_policy = {};  ///< the dtypes in which the unit computes and sends
};

/// A handle on a module that is cut, with the units in it.
class FullySharded {
 public:
  nn::ModuleBase module() const { return module_; }
  /// What this rank did for these units; see fully_shard_stats.h. No other rank is asked. Not while
  /// a forward or backward of the model runs in another thread.
  FullyShardStats stats() const;

  // All ranks call these functions.

  /// The module paths of the units whose parameters are trained, in the order in which their
  /// gradients are reduced.
  std::vector<std::string> units() const;

  /// While it lives, backwards only add to whole gradients, which stay on each rank, also if
  /// zero_grad() is called. The first backward after its end reduces the sum, also of parameters
  /// that were frozen meanwhile. It must not outlive the module.
  class [[nodiscard]] NoSync;
  NoSync no_sync() const;

  /// Gathers the parameters of the unit and of the units in it, so that a loss may use them. Call
  /// it after the modules whose parameters the loss uses. The end of backward frees them.
  void unshard() const;
  void reshard() const;

  /// Parameters and buffers by name, as one process has them, in host memory, on every rank.
  nn::NamedTensors state_dict() const { return whole_state(*gathers(), module_); }
  /// Loads such values, on any number of ranks. Throws as load_whole_state() (sharded_state.h).
  void load_state_dict(const nn::NamedTensors& x) const { load_whole_state(between_steps(), x); }
  /// This rank's parts of the state, without gathering.
  nn::StateParts parts() const { return state_parts(module_); }
  void load_parts(const nn::SavedState& x) const { parallel::load_parts(between_steps(), x); }

  /// The whole state of an optimiser of the parts, or of averages (sharded_state.h):
  ///   auto state = sharded.state_of(adam);
  ///   recorder.save(sharded, loader, state);
  template <class Part>
  StateOf<Part> state_of(Part& part) const {
    return {gathers(), module_, part};
  }

  /// What this rank has sent and received for the outermost module: gathers, reductions, buffers,
  /// states, norms.
  comm::Traffic traffic() const;

  /// Scales the gradients so that their norm over all ranks is at most max_norm, as
  /// optim::clip_grad_norm; returns the norm before.
  Tensor clip_grad_norm(double max_norm) const;

 private:
  friend FullySharded fully_shard(const nn::ModuleBase&, std::shared_ptr<comm::ProcessGroup>,
                                  const FullyShardOptions&);
  FullySharded(const nn::ModuleBase& module, std::shared_ptr<FsdpUnit> unit)
      : module_(module), unit_(std::move(unit)) {}
  FsdpEngine& engine() const;
  const nn::ModuleBase& between_steps() const;
  const std::shared_ptr<comm::ProcessGroup>& gathers() const;

  nn::ModuleBase module_;
  std::shared_ptr<FsdpUnit> unit_;
};

class [[nodiscard]] FullySharded::NoSync {
 public:
  explicit NoSync(bool& sync) : sync_(sync), before_(std::exchange(sync, false)) {}
  ~NoSync() { sync_ = before_; }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  bool& sync_;
  const bool before_;
};

/// Cuts the parameters of `module` along dimension 0: the module then lists this rank's parts,
/// which are leaves, and its forward uses whole parameters, which hooks gather. As PyTorch's
/// torch.distributed.fsdp.fully_shard. All ranks call it, for the same modules in the same order:
/// inner modules first (also as soon as each is made), the outermost one before any is called, and
/// that one must be called first. Values are those of rank 0, as are those of buffers, which stay
/// whole on every rank and are copied before each forward in training. Parts that parallelize has
/// made before, over another axis of the mesh, are cut again; states and norms are those of the
/// whole. To cut a stage of a parallel::Pipeline over ranks, cut the stage itself, over another
/// axis than the pipeline's: it is gathered, and its gradients reduced, once a batch.
///
/// All ranks must call the same modules, and start the same backwards, in the same order, also in
/// evaluations; from one thread at a time, and no backward within a forward. If they do not, they
/// get Comm (on CUDA the numbers may be wrong) or Timeout. A backward that leaves out units throws
/// InvalidArgument with their names, and the other ranks take zeros for them, provided that all
/// ranks leave out the same ones, or that those units keep their parameters between forward and
/// backward and nothing is checkpointed.
///
/// A unit's parameters and gradients are freed when backward is done with them. That is known at
/// once, or for calls in a checkpoint at its end; but if the backward also has checkpoints, or an
/// autograd::Function without nests_backward = false, other calls wait for the last of these, and
/// several forwards of a unit for the last one. Units with only frozen parameters keep them to the
/// end of backward. A forward that throws frees what was gathered and ends the groups: the other
/// ranks get PeerFailed, or Timeout if a hook of the outermost module outside fully_shard's throws.
///
/// Move and convert the module before, and make optimisers afterwards: clone(), replicate() and
/// to() of a cut module throw Unsupported, as do captured steps and backward with create_graph.
/// state_dict() of the module, and of its optimiser, has this rank's parts; optim::clip_grad_norm()
/// would clip each rank by its own: use those of FullySharded. The member `weight` of a layer can
/// be read only while the layer computes, else InvalidArgument; its gradient is in the part that
/// named_parameters() lists, and what is written to it is lost. Hooks on its gradient that were
/// added before get this rank's whole gradient, once for each call of the unit; hooks on the
/// gradient of a part never run. forward must return its tensors as such or in structures that
/// tensor/tree.h can walk: a tensor hidden elsewhere has no backward in a unit that frees its
/// parameters.
///
/// Throws InvalidArgument on every rank if one has another module or other options, for a module
/// that is cut already, for a parameter without dimensions, without memory of its own, or of
/// another module that is cut, and for parameters of one unit of several dtypes or devices. The
/// first call throws it for units of different groups or replicas, and for parameters added since.
FullySharded fully_shard(const nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group,
                         const FullyShardOptions& options = {});
/// `group` must outlive the module.
FullySharded fully_shard(const nn::ModuleBase& module, comm::ProcessGroup& group,
                         const FullyShardOptions& options = {});

}  // namespace weft::parallel
