// Exercise 12: one unit of FSDP. README.md says what to write; ./weft learn 12 judges it.
#include "weft/learn/12_fsdp_unit/solution.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weft::learn {

void cut(comm::ProcessGroup& group, Unit& unit) {
  std::vector<float> all;
  for (const Tensor& parameter : unit.parameters) {
    const std::span<float> numbers = numbers_of(parameter);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  not_yet("how long each of the n equal parts is, and which numbers are this rank's");
  unit.part = from_vector(all, {std::ssize(all)});
  free_whole(unit);
}

void gather(comm::ProcessGroup& group, Unit& unit) {
  const Tensor all = empty({group.size(), unit.part.numel()});
  not_yet("the parts of all ranks come to `all`");
  take_memory(unit);
  for (const Tensor& parameter : unit.parameters) {
    not_yet("which of all numbers are this parameter's");
  }
}

void reduce(comm::ProcessGroup& group, Unit& unit) {
  const Tensor all = zeros({group.size(), unit.part.numel()});
  for (const Tensor& parameter : unit.parameters) {
    const std::span<float> gradient = numbers_of(parameter.grad());
    not_yet("the gradients go to `all`, to the places that the parameters have");
  }
  not_yet("the mean over the ranks, of which each gets its part");
  not_yet("what has to go, when only parts are needed");
}

}  // namespace weft::learn
