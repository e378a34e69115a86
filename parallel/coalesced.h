// Many tensors in one message: a broadcast of each one would cost mostly latency.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// Size of a message that copies a rank's model to the others (PyTorch's broadcast_bucket_size).
inline constexpr std::int64_t kBroadcastBytes = std::int64_t{250} << 20;

/// A copy of tensors of one device and any dtypes in one block of memory.
class Coalesced {
 public:
  explicit Coalesced(std::vector<Tensor> tensors);

  /// Copies root's values into the tensors of all ranks. Returns when that is done.
  void broadcast(comm::ProcessGroup& group, int root);

  /// The two parts of broadcast(). Between them the message is under way, and the tensors do not
  /// change; wait for the Work before finish().
  comm::Work start(comm::ProcessGroup& group, int root);
  void finish(const comm::ProcessGroup& group, int root);

 private:
  std::vector<Tensor> tensors_;
  Tensor memory_;              // bytes
  std::vector<Tensor> parts_;  // views of memory_, one per tensor
};

/// Copies root's values into the tensors of all ranks, of any devices, in messages of up to `limit`
/// bytes; a larger tensor is sent by itself, without a copy.
void broadcast_coalesced(comm::ProcessGroup& group, std::span<const Tensor> tensors, int root,
                         std::int64_t limit = kBroadcastBytes);

}  // namespace weft::parallel
