// A copy of a module that stays what its original is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// Keeps a replica, a clone on whatever device, equal to its original:
///
///   Net replica = nn::replicate(net, "cuda:1");
///   nn::Follower follower(net, replica);
///   ...
///   follower.follow();           // before each forward
///   replica(x).sum().backward(); // the gradients are net's
///
/// A replica that follows has no parameters of its own: they need gradients as the original's do,
/// and pass them on.
class Follower {
 public:
  /// Keeps both, which are handles. Throws InvalidArgument where `replica` is not built like
  /// `original`, naming the first difference.
  Follower(const ModuleBase& original, const ModuleBase& replica);

  /// Takes over training or evaluation mode, requires_grad, what modules keep beside their tensors
  /// (ModuleBase::shared_state) and the values of parameters and buffers, converted ones too, and
  /// puts the copying of the parameters on the tape. Only what was written to since the last time
  /// is copied, so that several forwards may come before their backward. The replica's memory
  /// stays, unless a tensor was converted or got other strides. Throws InvalidArgument when one of
  /// the two got another child or tensor meanwhile.
  void follow();

  /// What follow() would copy, the i-th of `n` parts of about the same size, for n threads to make
  /// all parts at once and one to call follow() then. Converted tensors are left to it.
  void copy_part(std::size_t i, std::size_t n);

 private:
  struct Modules {
    std::shared_ptr<detail::ModuleNode> from, to;
  };
  struct Tensors {
    Tensor from, to;
    bool is_buffer;
    // The memory at the last copy, and how often it and that of `to` had been written to.
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
