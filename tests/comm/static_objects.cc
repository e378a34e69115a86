// A program that computes before and after main(), in static objects. It is linked statically, so
// the linker decides their order: these are made first and destroyed last.
#include <unistd.h>

#include <atomic>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace {

using namespace weft;

// Made before any object of the library, if only because it is needed here.
const Tensor before_main = raw::matmul(ones({4, 8}), full({8, 4}, 2.0));

bool ranks_add_up() {
  std::atomic<int> right = 0;
  comm::run_ranks(3, [&](comm::ProcessGroup& group) {
    const Tensor x = raw::mul(before_main, full({4, 4}, group.rank() + 1.0));
    group.all_reduce(x).wait();
    right += x.to_vector<float>() == std::vector<float>(16, 96.0f) ? 1 : 0;
  });
  return right == 3;
}

struct AfterMain {
  ~AfterMain() {
    if (!ranks_add_up()) ::_exit(3);
  }
};
const AfterMain after_main;

}  // namespace

// The objects that this makes at first use are destroyed before `after_main`.
int main() { return ranks_add_up() ? 0 : 2; }
