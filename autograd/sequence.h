// The order of the nodes that several threads record for one graph.
#pragma once

#include <cstdint>

namespace weft::autograd {

/// Reserves `count` sequence numbers and returns the first. The calling thread's earlier nodes have
/// smaller numbers, its later nodes larger ones.
std::uint64_t reserve_sequence(std::uint64_t count);

/// While it lives, the calling thread's new nodes are numbered from `first` on. Several threads
/// that record one graph each use a part of the numbers that their caller reserved. Then the order
/// in which gradients are added does not depend on the threads.
class SequenceScope {
 public:
  explicit SequenceScope(std::uint64_t first);
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

 private:
  std::uint64_t before_;
};

}  // namespace weft::autograd
