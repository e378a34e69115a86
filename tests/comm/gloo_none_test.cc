// A build without Gloo.
#include <gtest/gtest.h>

#include "weft/comm/backend/backends.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

TEST(GlooBackend, SaysThatThisBuildIsWithoutIt) {
  EXPECT_WEFT_ERROR(gloo_backend("127.0.0.1"), Unsupported, "this build is without Gloo");
}

}  // namespace
}  // namespace weft::comm
