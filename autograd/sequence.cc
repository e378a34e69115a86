#include "weft/autograd/sequence.h"

#include <utility>

#include "weft/autograd/graph.h"
#include "weft/autograd/thread_tape.h"

namespace weft::autograd {

std::uint64_t reserve_sequence(std::uint64_t count) {
  std::uint64_t& last = tape_of_thread->last_sequence;
  return std::exchange(last, last + count) + 1;
}

SequenceScope::SequenceScope(std::uint64_t first)
    : before_(std::exchange(tape_of_thread->last_sequence, first - 1)) {}
SequenceScope::~SequenceScope() { tape_of_thread->last_sequence = before_; }

}  // namespace weft::autograd
