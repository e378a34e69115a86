#include "weft/benchmarks/collective_call.h"

#include "weft/benchmarks/bandwidth.h"
#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::bench {

std::function<void()> make_call(comm::ProcessGroup& group, const std::string& collective,
                                std::int64_t bytes, bool in_place) {
  const std::int64_t n = group.size();
  const std::int64_t count =
      bytes / static_cast<std::int64_t>(sizeof(float)) / (is_divided(collective) ? n : 1);
  const Tensor part = in_place ? group.empty({count}) : empty({count});
  raw::fill_(part, 0.0);  // also touches the memory for the first time
  const Tensor all = is_divided(collective) ? zeros({n, count}) : Tensor();
  if (collective == "all_reduce") return [=, &group] { group.all_reduce(part).wait(); };
  if (collective == "broadcast") return [=, &group] { group.broadcast(part, 0).wait(); };
  if (collective == "reduce") return [=, &group] { group.reduce(part, 0).wait(); };
  if (collective == "all_gather") return [=, &group] { group.all_gather(all, part).wait(); };
  if (collective == "gather") return [=, &group] { group.gather(all, part, 0).wait(); };
  if (collective == "scatter") return [=, &group] { group.scatter(part, all, 0).wait(); };
  if (collective == "reduce_scatter") {
    return [=, &group] { group.reduce_scatter(part, all).wait(); };
  }
  WEFT_CHECK(collective == "all_to_all", InvalidArgument, "bench", "no collective named '",
             collective, "'");
  return [=, to = zeros({n, count}), &group] { group.all_to_all(to, all).wait(); };
}

double time_calls(const std::function<void()>& call, const std::function<void()>& barrier,
                  int calls) {
  call();
  barrier();
  const double ms = time_ms([&] {
    for (int i = 0; i < calls; ++i) call();
  });
  return ms / calls * 1e3;
}

}  // namespace weft::bench
