// Element-wise arithmetic of reductions on the host, for every dtype.
#pragma once

#include <cstddef>

#include "weft/comm/backend/backend.h"

namespace weft::comm {

/// into[i] = into[i] op from[i]; `from` has as many numbers as `into` and does not overlap it. avg
/// adds, and finish_reduce() divides. bf16 is computed in f32 and rounded; integers wrap around; a
/// NaN wins as minimum and as maximum.
void reduce_into(const Buffer& into, const void* from, ReduceOp op);

/// Called once after the reduction over all `ranks`: divides by their number for avg, else does
/// nothing. Throws Dtype for an avg of a dtype that is not floating.
void finish_reduce(const Buffer& x, ReduceOp op, int ranks);

/// How the collectives copy and add a rank's numbers. This class is for numbers in host memory.
class Arithmetic {
 public:
  Arithmetic() = default;
  virtual ~Arithmetic() = default;
  Arithmetic(const Arithmetic&) = delete;
  Arithmetic& operator=(const Arithmetic&) = delete;

  /// The size of the messages in which large buffers travel.
  virtual std::size_t chunk_bytes() const;
  /// Memory for numbers that are received and then added; the next call may return the same.
  virtual std::byte* scratch(std::size_t bytes);
  /// Both may be the same memory.
  virtual void copy(const Buffer& to, const Buffer& from);
  /// As the functions above.
  virtual void reduce_into(const Buffer& into, const void* from, ReduceOp op);
  virtual void finish_reduce(const Buffer& x, ReduceOp op, int ranks);
};

}  // namespace weft::comm
