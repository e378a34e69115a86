// What the programs of several processes share.
#include "weft/examples/ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/core/phase.h"
#include "weft/core/thread_state.h"

namespace weft {
namespace {

// A rank without a batch left waits in ranks.sum(), and may wait longer than its timeout.
TEST(ExampleRanks, WhoTestsItsBatchesSaysSo) {
  const Scoped rank(&ThreadState::rank, 1);
  std::vector<int> test = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int> own;
  examples::own_batches(test, {.rank = 1, .size = 3}, [&](int batch) {
    own.push_back(batch);
    const char* const busy = busy_with(1);
    EXPECT_EQ(std::string(busy ? busy : "nothing"), "evaluation");
  });
  EXPECT_EQ(own, (std::vector<int>{1, 4, 7}));
  EXPECT_EQ(busy_with(1), nullptr);
}

}  // namespace
}  // namespace weft
