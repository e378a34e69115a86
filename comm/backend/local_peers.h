// Connections between the ranks of one host, over which they share memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "weft/comm/store/deadline.h"
#include "weft/comm/store/socket.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// Memory that several processes have mapped. It has no name in any file system, so the kernel
/// frees it when the last process has ended, even after a crash.
class SharedMemory {
 public:
  /// Maps `bytes` of the object that `memory` is a descriptor of. Throws OutOfMemory.
  SharedMemory(const Socket& memory, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// A Unix socket to each other rank, in the abstract namespace: without a file that could be left
/// behind.
class LocalPeers {
 public:
  LocalPeers(int rank, int size);
  /// Meets the others in `store`. Throws Unsupported, on all ranks, if one cannot be reached this
  /// way: because it is on another host, or belongs to another user.
  void connect(Store& store, const Deadline& deadline);

  /// Zeroed memory that all ranks have mapped. All must call it, with the same size: Comm if rank 0
  /// has another.
  std::unique_ptr<SharedMemory> share(std::size_t bytes, const Deadline& deadline) const;
  /// Whether the connection of `rank` is closed, as it is when the process has ended.
  bool gone(int rank) const noexcept;
  /// Tells the others that this rank is gone.
  void shut_down() const noexcept;

 private:
  int rank_, size_;
  Socket listening_;             // only while they connect
  std::vector<Socket> sockets_;  // by rank; the one at this rank's place is empty
};

}  // namespace weft::comm
