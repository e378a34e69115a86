// A program outside the repository that starts its own ranks.
#include "weft/launch/spawn.h"

#include <cstdio>

#include "weft/weft.h"

using namespace weft;

int main(int argc, char** argv) {
  launch::spawn(argc, argv, 2, [](int rank) {
    const auto group = comm::init_process_group();
    const Tensor x = full({1000}, rank + 1);
    group->all_reduce(x).wait();
    std::printf("rank %d of %d: the sum is %g\n", group->rank(), group->size(),
                x[999].item<double>());
  });
}
