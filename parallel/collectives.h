// Collective operations on the tape: forward exchanges tensors between the ranks, and backward
// their gradients.
//
//   const parallel::Collectives ranks(mesh["tp"]);
//   Tensor y = ranks.all_reduce(x);
//   (y * y).sum().backward();   // x.grad() is that of the sum of the ranks' losses
//
// Of which function are gradients the derivatives? There are two answers, each with its operations;
// a model that mixes them must know at each tensor which one holds.
//
// Summed: each rank has a loss L_r of its own, and gradients are those of L = sum_r L_r. Every
// tensor is a variable of its own on each rank, and each rule is the adjoint of its operation: what
// forward copies to several ranks, backward sums.
//
//   forward                              backward
//   all_reduce      y = sum_s x_s        all_reduce       gx = sum_s gy_s
//   all_gather      y[s] = x_s           reduce_scatter   gx = sum_s gy_s[r]
//   reduce_scatter  y = sum_s x_s[r]     all_gather       gx[s] = gy_s
//   all_to_all      y[s] = x_s[r]        all_to_all       gx[s] = gy_s[r]
//   broadcast       y = x_root           reduce           gx_root = sum_s gy_s, else 0
//   send, recv      y = x of the sender  recv, send       gx of the sender = gy
//
// These are the rules of torch/distributed/nn/functional.py, and for send and recv of ChainerMN's
// chainermn.functions.send, recv.
//
// Replicated: some tensors are the same on every rank, and count once, as does the loss, which all
// ranks compute. Between two such tensors each rank may compute a part. These are the functions of
// Megatron-LM's core/tensor_parallel/mappings.py (f and g in Shoeybi et al., "Megatron-LM", 2019):
//
//   copy_to      y_r = x, the same             all_reduce     gx = sum_s gy_s      (f)
//   reduce_from  y = sum_s x_s, the same       nothing        gx_r = gy            (g)
//   split_to     y_r = part r of x, the same   all_gather     gx = all gy_s
//   gather_from  y = all x_s, the same         nothing        gx_r = part r of gy
//
// With summed rules in their place gradients would be n times too large: the loss would count once
// for each rank.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// The ranks of a group, for operations on the tape; a handle. All ranks call the same operations
/// in the same order, also in backward: so all of them need the gradient of an operation's input,
/// or none. The ranks' calls must agree in number, root or dimension, dtype, shape and module path,
/// which the group compares (ProcessGroup::Tag): if they differ, as after a call that one rank has
/// left out, no rank gets a result; they throw Comm or PeerFailed, which names both calls. With
/// NCCL only check_fingerprints finds that. A rank that calls nothing more lets the others run into
/// Timeout. Steps that send nothing ("nothing" above; copy_to and split_to forward) compare
/// nothing. A send() sends 256 bytes first, a broadcast() runs a barrier first, in backward, too.
///
/// Nothing else, such as DistributedDataParallel, may use the group at the same time: pass
/// group->duplicate(), also for a subgroup of a Mesh, which may be the whole group itself. From one
/// thread at a time. All tensors, and what is computed from them, must be on the device of the
/// first one, else Unsupported. Results are new tensors, except copy_to's, which is x. There are no
/// second derivatives. Throws what ProcessGroup throws.
class Collectives {
 public:
  /// Throws InvalidArgument for null.
  explicit Collectives(std::shared_ptr<comm::ProcessGroup> group);

  int rank() const;
  int size() const;

  // --- Summed ------------------------------------------------------------------------------------

  Tensor all_reduce(const Tensor& x) const;
  /// x [...] -> [n, ...]
  Tensor all_gather(const Tensor& x) const;
  /// x [n, ...] -> [...]. Throws Shape if the first dimension is not n, as all_to_all.
  Tensor reduce_scatter(const Tensor& x) const;
  /// x [n, ...] -> [n, ...]
  Tensor all_to_all(const Tensor& x) const;
  /// The other ranks' x gives only shape, dtype, and whether it requires a gradient.
  Tensor broadcast(const Tensor& x, int root) const;
  /// Waits until the other rank receives. Returns a scalar 0: add it to the loss, so that backward
  /// waits here for the gradient of x. Messages between two ranks are numbered, and their dtypes,
  /// shapes and steps compared, but not module paths, since the ranks are mostly in different
  /// modules, as the stages of a pipeline. So if a rank leaves out a send, its next one of the same
  /// shape in this step takes its place, and only the other rank's last recv of the step throws
  /// (Comm or Timeout), before its loss is computed. Messages with tags of their own, which are
  /// compared, too, never take each other's place.
  Tensor send(const Tensor& x, int to, int tag = 0) const;
  /// Returns a tensor of the shape and dtype of `like`. `like` gets no gradient, but must require
  /// one if the sender's x does. Throws Comm if the message has another tag.
  Tensor recv(const Tensor& like, int from, int tag = 0) const;

  // --- Replicated --------------------------------------------------------------------------------

  Tensor copy_to(const Tensor& x) const;
  Tensor reduce_from(const Tensor& x) const;
  /// x [..., n k, ...] -> [..., k, ...] along `dim`. Throws Shape if n does not divide it.
  Tensor split_to(const Tensor& x, std::int64_t dim) const;
  /// x [..., k, ...] -> [..., n k, ...] along `dim`.
  Tensor gather_from(const Tensor& x, std::int64_t dim) const;
  /// The largest of the ranks' values, element by element, without a gradient.
  Tensor max_of(const Tensor& x) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace weft::parallel
