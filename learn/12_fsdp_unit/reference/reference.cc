#include "weft/learn/12_fsdp_unit/reference/reference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weft::learn::reference {

void cut(comm::ProcessGroup& group, Unit& unit) {
  std::vector<float> all;
  for (const Tensor& parameter : unit.parameters) {
    const std::span<float> numbers = numbers_of(parameter);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  const std::int64_t n = group.size(), each = (std::ssize(all) + n - 1) / n;
  all.resize(static_cast<std::size_t>(n * each));
  const auto first = all.begin() + group.rank() * each;
  unit.part = from_vector(std::vector<float>(first, first + each), {each});
  free_whole(unit);
}

void gather(comm::ProcessGroup& group, Unit& unit) {
  const Tensor all = empty({group.size(), unit.part.numel()});
  group.all_gather(all, unit.part).wait();
  take_memory(unit);
  const float* from = numbers_of(all).data();
  for (const Tensor& parameter : unit.parameters) {
    std::copy_n(from, parameter.numel(), numbers_of(parameter).data());
    from += parameter.numel();
  }
}

void reduce(comm::ProcessGroup& group, Unit& unit) {
  const Tensor all = zeros({group.size(), unit.part.numel()});
  float* to = numbers_of(all).data();
  for (const Tensor& parameter : unit.parameters) {
    to = std::ranges::copy(numbers_of(parameter.grad()), to).out;
    parameter.set_grad({});
  }
  unit.gradient = empty({unit.part.numel()});
  group.reduce_scatter(unit.gradient, all, comm::ReduceOp::avg).wait();
  free_whole(unit);
}

}  // namespace weft::learn::reference
