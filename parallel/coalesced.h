// Many tensors in one message: what a broadcast of each would cost is mostly latency.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/comm/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// Of a message that makes all ranks' models equal (PyTorch's broadcast_bucket_size).
inline constexpr std::int64_t kBroadcastBytes = std::int64_t{250} << 20;

/// The tensors, of one device and any dtypes, in one piece of memory.
class Coalesced {
 public:
  explicit Coalesced(std::vector<Tensor> tensors);

  /// The ranks' tensors become root's. Returns when they are.
  void broadcast(comm::ProcessGroup& group, int root);

 private:
  std::vector<Tensor> tensors_;
  Tensor memory_;              // bytes
  std::vector<Tensor> parts_;  // where each tensor lies in it
};

/// The ranks' tensors, of any devices, become root's, in messages of up to `limit` bytes; a tensor
/// larger than that is sent from where it is.
void broadcast_coalesced(comm::ProcessGroup& group, std::span<const Tensor> tensors, int root,
                         std::int64_t limit = kBroadcastBytes);

}  // namespace weft::parallel
