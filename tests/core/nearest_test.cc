#include "weft/core/base/nearest.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Nearest, NeedsToBeNear) {
  EXPECT_EQ(nearest("--epoks", {"--lr", "--epochs"}), "--epochs");
  EXPECT_EQ(nearest("--q", {"--lr", "--epochs"}), "");
  EXPECT_EQ(nearest("", {"--lr"}), "");
  EXPECT_EQ(nearest("--", {"--lr"}), "");
  EXPECT_EQ(nearest("--steps", {"--stairs-steps-on", "--limit-steps", "--lr"}), "--limit-steps");
  EXPECT_EQ(nearest("--nproc", {"--nnodes", "--nproc-per-node"}), "--nproc-per-node");
  EXPECT_EQ(nearest("--r", {"--lr"}), "");  // a separate word, not the end of another
}

}  // namespace
}  // namespace weft
