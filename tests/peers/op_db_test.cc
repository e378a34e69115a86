// The samples of PyTorch's own operation database (op_db.py). What would make it fail is counted
// there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace weft {
namespace {

TEST(OpDbTest, AgreesWithPyTorchOnItsOwnSamples) {
  const char* python = std::getenv("WEFT_PEER");
  if (python == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and expecttest";
  const std::string program = " -B tests/peers/op_db.py --driver tests/peers/differential";
  EXPECT_EQ(std::system((python + program).c_str()), 0);
}

}  // namespace
}  // namespace weft
