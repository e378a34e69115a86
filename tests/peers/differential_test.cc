// Random cases of every family against PyTorch (differential.py), and whether that would notice.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace weft {
namespace {

// The status of a Python program of this folder, with the driver as its argument.
int status_of(const std::string& program) {
  const std::string python = std::getenv("WEFT_PEER");
  const int status = std::system((python + " -B tests/peers/" + program).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class HarnessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("WEFT_PEER") == nullptr) {
      GTEST_SKIP() << "set WEFT_PEER to a Python with torch";
    }
  }
};

class DifferentialTest : public HarnessTest, public ::testing::WithParamInterface<const char*> {};

TEST_F(HarnessTest, NoticesWhatIsWrong) {
  EXPECT_EQ(status_of("harness_test.py tests/peers/differential"), 0);
}

// More cases, other seeds and a single case: see differential.py --help.
TEST_P(DifferentialTest, AgreesWithPyTorch) {
  EXPECT_EQ(status_of(std::string("differential.py --driver tests/peers/differential --cases 600 "
                                  "--family ") +
                      GetParam()),
            0);
}

INSTANTIATE_TEST_SUITE_P(Families, DifferentialTest,
                         ::testing::Values("unary", "scalar", "binary", "arithmetic", "einsum",
                                           "arrangement", "conversion", "creation", "reduction",
                                           "scan", "softmax", "sorting", "counting", "matmul",
                                           "attention", "linear", "conv2d", "conv_transpose2d",
                                           "pooling", "windows", "norm", "loss", "indexing",
                                           "views", "tape", "tape_writes", "view_writes", "initial",
                                           "optimiser"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft
