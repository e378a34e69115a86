// Running the tape: backward, grad, hooks, and who owns gradient memory.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "weft/core/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// No operation records while it lives (in this thread and the workers it starts).
class NoGrad {
  Scoped<bool> scope_{&ThreadState::grad_enabled, false};
};
class EnableGrad {
  Scoped<bool> scope_{&ThreadState::grad_enabled, true};
};

namespace autograd {

/// Accumulates dL/dleaf into .grad() of every leaf that the outputs depend on, with
/// L = sum_i <outputs[i], grads[i]>. An undefined grads[i] stands for 1 (one-element output).
/// Re-entrant: a rule or hook may run a backward of its own. Nodes of several devices run on the
/// calling thread and, where two devices have something to do at once, on the devices' workers.
/// Saved tensors are freed unless retain_graph; several threads may run backwards of one tape at
/// once, if all retain it. Where one does not, it alone runs the rules of the nodes it comes to,
/// and the others get the error of a freed tape there. Throws InvalidArgument when an output does
/// not require a gradient, or when the tape was already freed (the message says what to do), or
/// when a saved tensor was changed in place since.
void backward(std::span<const Tensor> outputs, std::span<const Tensor> grads = {},
              bool retain_graph = false);

/// dL/dinputs without touching any .grad(); an input L does not depend on gives an undefined tensor
/// with allow_unused, else InvalidArgument naming its position.
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads = {}, bool retain_graph = false,
                         bool allow_unused = false);

/// Takes a hook off again; dropping the handle does not.
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

/// hook(leaf) runs once per backward, when the last contribution of that backward is in
/// leaf.grad(), on the thread that runs the leaf's device. A backward inside of another one counts
/// for itself: a weight that three checkpoints use has three calls. The hooks of one device come in
/// the order in which its leaves are done, which is the same each time; between devices the order
/// depends on timing, and hooks of leaves on different devices may run at once.
HookHandle add_leaf_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);

/// hook(leaf) runs once per outermost backward that reaches the leaf, when the last contribution is
/// in leaf.grad() that this backward and those inside of it make: what a reduction over ranks waits
/// for. It comes after the leaf hooks of that contribution, and as early as it is known to be the
/// last:
///  - at once, where no rule is left that may start a backward of its own (a checkpoint, a Function
///    unless it says otherwise), and no backward around this one still owes the leaf something;
///  - else when the last such rule begins the backward that ends it (a checkpoint) or returns (a
///    Function), for all leaves that wait, in the order in which they arrived, on the thread of
///    that rule, which may be another device's than the leaf's;
///  - at the latest at the end of the outermost backward, before the callbacks of at_backward_end.
/// Of a backward that fails the hooks that have not run do not run: at_backward_end tells. A hook
/// (of any kind) that starts a backward is not foreseen: where that reaches a leaf whose final
/// hooks have run it throws InvalidArgument; start it in at_backward_end. As with leaf hooks, the
/// order between devices depends on timing.
HookHandle add_final_leaf_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);

/// hook(grad) sees, and may replace (return a defined tensor), dL/dx of any tensor during backward.
HookHandle add_grad_hook(const Tensor& x, std::function<Tensor(const Tensor& grad)> hook);

/// Runs once when the outermost backward in progress on this thread ends, with null or the error by
/// which it fails. All callbacks run, in the order of their addition (between devices that depends
/// on timing), on the thread that called backward; the first error is thrown there in the end, the
/// backward's before those of callbacks.
/// Callable only from inside a backward, else InvalidArgument.
void at_backward_end(std::function<void(const std::exception_ptr& error)> callback);

/// From now on leaf.grad() lives in `memory` (a bucket view, a fixed address; shape and dtype of
/// leaf): the first contribution after zero_grad overwrites it, later ones add, and zero_grad
/// never frees it. An undefined tensor gives the storage back.
void set_grad_storage(const Tensor& leaf, const Tensor& memory);

/// Tells that the leaf's gradient memory has been written by its owner and not by a backward: an
/// all-reduce into a bucket, also for a leaf that this backward did not use. It is a gradient then:
/// .grad() gives it as it is, and later contributions are added to it. Throws InvalidArgument when
/// the leaf has no gradient memory.
void mark_grad_written(const Tensor& leaf);

/// Forgets the gradient: .grad() becomes undefined, or, with owner-supplied storage, its content
/// counts as zero and the next contribution overwrites it. Nothing is written here; a .grad() asked
/// for before that contribution fills the storage with zeros. So who reads the storage by itself,
/// to send a bucket, asks for .grad() before: else it holds the last step's bytes where this step
/// contributed nothing.
void zero_grad(const Tensor& leaf);

/// For who keeps `copy` equal to x, here or on another device: says that it is a copy of what x is
/// now, so that dL/dx gets dL/dcopy of what is computed from it from here on. Where x needs no
/// gradient, or nothing records, neither does `copy`. `op` names the copy in traces and errors and
/// is a literal. Throws Shape for other shapes, InvalidArgument for a `copy` that is a leaf which
/// requires a gradient.
void record_copy(const char* op, const Tensor& copy, const Tensor& x);

/// The leaves that require a gradient and that `outputs` depend on, each once: how unused
/// parameters are found before a backward.
std::vector<Tensor> reachable_leaves(std::span<const Tensor> outputs);

}  // namespace autograd

}  // namespace weft
