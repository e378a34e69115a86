// Element-wise arithmetic of reductions on the host, for every dtype.
#pragma once

#include "weft/comm/backend/backend.h"

namespace weft::comm {

/// into[i] = into[i] op from[i]; `from` has as many numbers as `into` and does not overlap it. avg
/// adds, and finish_reduce() divides. bf16 is computed in f32 and rounded; integers wrap around; a
/// NaN wins as minimum and as maximum.
void reduce_into(const Buffer& into, const void* from, ReduceOp op);

/// Called once after the reduction over all `ranks`: divides by their number for avg, else does
/// nothing. Throws Dtype for an avg of a dtype that is not floating.
void finish_reduce(const Buffer& x, ReduceOp op, int ranks);

}  // namespace weft::comm
