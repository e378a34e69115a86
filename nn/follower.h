// Follower: keeps a copy of a module equal to its original.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// Keeps a replica (a clone on any device) equal to its original:
///
///   Net replica = nn::replicate(net, "cuda:1");
///   nn::Follower follower(net, replica);
///   ...
///   follower.follow();           // before each forward
///   replica(x).sum().backward(); // the gradients are net's
///
/// The parameters of the replica are no leaves: follow() records them on the tape as copies of the
/// original's parameters, so their gradients go to the original.
class Follower {
 public:
  /// Keeps a handle on each. Throws InvalidArgument when `replica` is not built like `original`,
  /// naming the first difference.
  Follower(const ModuleBase& original, const ModuleBase& replica);

  /// Copies from the original to the replica: training or evaluation mode, hooks, requires_grad,
  /// what modules keep beside their tensors (ModuleBase::shared_state), and the values of
  /// parameters and buffers, also after a dtype conversion. Records the copies of the parameters on
  /// the tape. A tensor is copied only if it was written to since the last copy, so several
  /// forwards may come before their backward. The replica keeps its memory, unless a tensor was
  /// converted or got other strides. Throws InvalidArgument when the original or the replica has
  /// got another number of children or tensors.
  void follow();

  /// Copies the i-th of `n` parts, of about the same size, of what follow() would copy. So n
  /// threads can copy all parts at the same time, and then one thread calls follow(). Converted
  /// tensors are left to follow().
  void copy_part(std::size_t i, std::size_t n);

 private:
  struct Modules {
    std::shared_ptr<detail::ModuleNode> from, to;
  };
  struct Tensors {
    Tensor from, to;
    bool is_buffer, is_image_weight;
    // The original's memory at the last copy, and the version counters of the original's and the
    // replica's memory at that time.
    intrusive_ptr<Storage> storage = nullptr;
    std::uint32_t from_version = 0, to_version = 0;
  };
  void pair(const std::shared_ptr<detail::ModuleNode>& from,
            const std::shared_ptr<detail::ModuleNode>& to);
  static bool converted(const Tensors& tensors);
  static void copy(Tensors& tensors);

  std::vector<Modules> modules_;
  std::vector<Tensors> tensors_;
};

}  // namespace weft::nn
