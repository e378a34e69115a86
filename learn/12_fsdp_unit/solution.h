// Exercise 12: what you write, and what you write it with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/learn/judge/messages.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::learn {

/// Parameters that are gathered together, such as those of a layer; in float. "All numbers" are
/// those of the first, then those of the second, and so on.
struct Unit {
  std::vector<Tensor> parameters;      ///< the whole ones, whose memory comes and goes
  Tensor part;                         ///< of all numbers this rank's, [all / n, rounded up]
  Tensor gradient;                     ///< the same part of the mean gradient, after reduce()
  std::uint32_t gathered_version = 0;  ///< of part, for take_memory()
};

/// Once, before the training: all ranks have the same whole parameters. Makes unit.part, and gives
/// the memory of the parameters back. Where all numbers end before the parts do, there are zeros.
void cut(comm::ProcessGroup& group, Unit& unit);
/// Before the forward, and before backward: the parameters have their memory, and their numbers.
void gather(comm::ProcessGroup& group, Unit& unit);
/// After backward: makes unit.gradient of parameter.grad() of all ranks. Afterwards the rank has
/// neither whole gradients nor whole parameters.
void reduce(comm::ProcessGroup& group, Unit& unit);

// --- Given ---------------------------------------------------------------------------------------

/// The numbers of a tensor in its own memory. What is written to them is no change for the tape:
/// backward may find the parameters as the forward has left them.
inline std::span<float> numbers_of(const Tensor& x) {
  return {x.data<float>(), static_cast<std::size_t>(x.numel())};
}

/// Gives the memory of the parameters back. The training calls it, too, after the forward.
inline void free_whole(const Unit& unit) {
  for (const Tensor& parameter : unit.parameters) {
    parameter.storage()->release(
        "the parameters have given their memory back: take_memory() is first");
  }
}

/// They have memory again, in which there is anything.
inline void take_memory(Unit& unit) {
  const std::uint32_t version = unit.part.storage()->version();
  for (const Tensor& parameter : unit.parameters) {
    parameter.storage()->restore();
    // A step has changed them.
    if (version != unit.gathered_version) parameter.storage()->bump_version();
  }
  unit.gathered_version = version;
}

}  // namespace weft::learn
