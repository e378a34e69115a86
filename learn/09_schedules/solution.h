// Exercise 9: what you write, and what you write it with.
#pragma once

#include "weft/learn/judge/messages.h"
#include "weft/parallel/schedule.h"

namespace weft::learn {

/// All: a schedule of `stages` stages, one on each device (devices[s] is the list of stage s).
/// All forwards, then all backwards.
parallel::Schedule gpipe(int stages, int micro_batches);
/// As few forwards as possible before the first backward, then backward and forward in turns.
parallel::Schedule one_f_one_b(int stages, int micro_batches);
/// 1F1B whose backward is cut into I (gradients of inputs) and W (of weights); stage s delays each
/// W by s micro-batches.
parallel::Schedule zero_bubble_h1(int stages, int micro_batches);

}  // namespace weft::learn
