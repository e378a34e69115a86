// Running the tape: backward, hooks, and the memory of gradients; grad.h has grad().
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// While it lives, no operation is recorded, in this thread and in the workers that it starts. As
/// torch.no_grad.
class NoGrad {
  Scoped<bool> scope_{&ThreadState::grad_enabled, false};
};
/// Records again inside a NoGrad. As torch.enable_grad.
class EnableGrad {
  Scoped<bool> scope_{&ThreadState::grad_enabled, true};
};

namespace autograd {

/// Adds dL/dleaf to .grad() of every leaf that the outputs depend on, with
/// L = sum_i <outputs[i], grads[i]>. As torch.autograd.backward. An undefined grads[i] stands for 1
/// if output i has one element.
///
/// A backward rule may run a backward of its own. Nodes of several devices run on the calling
/// thread and, when two devices have work at the same time, on the workers of the devices.
///
/// create_graph: see grad_options.h. Saved tensors are freed unless retain_graph is true.
/// Several threads may run backwards over one tape at the same time if all of them retain it. A
/// backward that does not retain it ends the use of each node that it runs: other backwards that
/// come to the node later get the error of a freed tape.
///
/// Throws InvalidArgument
///  - if an output does not require a gradient, or has several elements and an undefined gradient;
///  - if the tape was already freed (the message says what to do);
///  - if a saved tensor was changed in place since the forward.
/// Throws Shape, Dtype or Device if grads[i] does not match outputs[i].
void backward(std::span<const Tensor> outputs, std::span<const Tensor> grads = {},
              bool retain_graph = false, bool create_graph = false);

/// remove() removes the hook. Destroying the handle does not.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) std::exchange(remove_, nullptr)();
  }

 private:
  std::function<void()> remove_;
};

/// hook(leaf) runs once per backward that reaches the leaf, when the last contribution of that
/// backward is in leaf.grad(). It runs on the thread that runs the leaf's device. A nested backward
/// counts separately: if three checkpoints use a weight, its hook is called three times. The hooks
/// of one device run in the order in which its leaves are done; this order is the same each time.
/// Between devices the order depends on timing, and hooks of leaves on different devices may run at
/// the same time. Throws InvalidArgument unless `leaf` is a leaf that requires a gradient.
HookHandle add_leaf_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);

/// hook(leaf) runs once per outermost backward that reaches the leaf, when leaf.grad() is final:
/// the outermost backward and all backwards nested in it have made their last contribution. A
/// reduction over ranks starts here. The hook runs after the leaf hooks of the last contribution,
/// as soon as that contribution is known to be the last:
///  - at once, if no rule is left to run that may start a backward (a checkpoint, or a Function
///    unless it says otherwise), and no enclosing backward still has a contribution for the leaf;
///  - else when the last such rule is settled: a checkpoint when it starts its last backward, a
///    Function when it returns. Then the hooks of all waiting leaves run, in the order in which the
///    leaves arrived. They run on the thread of that rule, which may serve another device;
///  - at the latest at the end of the outermost backward, before the callbacks of at_backward_end.
/// If the backward fails, the remaining hooks do not run; at_backward_end reports the error. As
/// with leaf hooks, the order between devices depends on timing.
///
/// No hook should start a backward: if that backward reaches a leaf whose final hooks have run, it
/// throws InvalidArgument. Start it in at_backward_end. add_final_leaf_hook itself throws as
/// add_leaf_hook.
HookHandle add_final_leaf_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);

/// hook(grad) gets dL/dx in each backward() and grad() that computes it. If the hook returns a
/// defined tensor, that tensor replaces the gradient; with another shape, dtype or device it throws
/// Shape. As torch.Tensor.register_hook. Throws InvalidArgument unless x requires a gradient, and
/// Unsupported for a view of elements that share memory, if its base was written to since.
HookHandle add_grad_hook(const Tensor& x, std::function<Tensor(const Tensor& grad)> hook);

/// The callback runs once, when the outermost backward in progress on this thread ends. Its
/// argument is the error of a backward that failed, else null. All callbacks run, on the thread
/// that called backward, in the order in which they were added. (Between devices this order depends
/// on timing.) Then the first error is thrown: that of the backward, else the first of a callback.
/// Throws InvalidArgument outside of a backward.
void at_backward_end(std::function<void(const std::exception_ptr& error)> callback);

/// From now on leaf.grad() lives in `memory`, for example a view of a bucket. The present gradient
/// is copied there. After zero_grad the first contribution overwrites the memory and later ones are
/// added; zero_grad never frees it. With an undefined `memory`, the leaf gives the memory back and
/// keeps a copy of its gradient. Throws InvalidArgument unless `leaf` is a leaf; Shape, Dtype or
/// Device unless `memory` matches it.
void set_grad_storage(const Tensor& leaf, const Tensor& memory);

/// Tells weft that the owner of the leaf's gradient memory has written a gradient there, for
/// example by an all-reduce into a bucket. This is needed for a leaf that the backward did not use.
/// From now on .grad() returns the memory as it is, and later contributions are added to it. Throws
/// InvalidArgument if `leaf` is not a leaf or has no gradient memory.
void mark_grad_written(const Tensor& leaf);

/// Forgets the gradient: .grad() becomes undefined. With memory from set_grad_storage, the content
/// counts as zero instead, and the next contribution overwrites it. zero_grad itself writes
/// nothing; .grad() fills the memory with zeros if no contribution came before. Code that reads the
/// memory directly, to send a bucket, must therefore call .grad() first: if this step contributed
/// nothing, the memory still holds the bytes of the last step.
void zero_grad(const Tensor& leaf);

/// Records that `copy`, on this or another device, holds a copy of the present x: later operations
/// on `copy` contribute to dL/dx. The caller wrote the values. If x requires no gradient, or
/// nothing records, `copy` requires none either. `op` names the copy in traces and errors; it is a
/// string literal. Throws Shape if the shapes differ, and InvalidArgument if `copy` is a leaf that
/// requires a gradient.
void record_copy(const char* op, const Tensor& copy, const Tensor& x);

/// The leaves that require a gradient and that `outputs` depend on, each once. With it, unused
/// parameters are found before a backward. Parameters that only a checkpoint uses are not found.
std::vector<Tensor> reachable_leaves(std::span<const Tensor> outputs);

}  // namespace autograd

}  // namespace weft
