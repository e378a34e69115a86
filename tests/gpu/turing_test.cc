// A GPU before 8.0, for which the libraries support less.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

namespace weft {
namespace {

class Lines final : public LogSink {
 public:
  void write(Level, std::string_view message) override { lines.emplace_back(message); }
  std::vector<std::string> lines;
};

// cuDNN supports bf16 from 8.0 on.
TEST(Turing, ConvolvesInBf16ByWeftsOwnLoop) {
  Lines log;
  const Scoped<LogSink*> logging(&ThreadState::log, &log);
  const TensorOptions there(DType::bf16, Device("cuda:0"));
  const Tensor y = raw::conv2d(ones({1, 2, 6, 6}, there), ones({4, 2, 3, 3}, there), {}, {});
  EXPECT_EQ(testing::values_of(y.to(Device())), std::vector<double>(64, 18));
  ASSERT_EQ(log.lines.size(), 1U);
  EXPECT_NE(log.lines[0].find("weft's own loop is slow"), std::string::npos) << log.lines[0];
}

}  // namespace
}  // namespace weft
