// Printing, compared with numpy's own output.
#include <sstream>

#include "weft/core/runtime/allocator.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

const testing::Goldens goldens("tests/tensor/goldens/print_goldens");

class PrintTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(PrintTest);

std::string suffix(const Tensor& x) {
  std::string text;
  if (x.dtype() != DType::f32) text += std::string(" ") + to_string(x.dtype());
  if (!(x.device() == Device())) text += " " + to_string(x.device());
  return text;
}

TEST_P(PrintTest, AsNumpy) {
  for (const auto& [name, array] : goldens.tensors()) {
    if (name.ends_with("/text")) continue;
    const std::vector<std::uint8_t> text = goldens.tensor(name + "/text").to_vector<std::uint8_t>();
    const Tensor x = raw::to(array, device());
    EXPECT_EQ(to_string(x), std::string(text.begin(), text.end()) + suffix(x)) << name;
  }
}

TEST_P(PrintTest, OfEveryLayout) {
  const Tensor x = testing::make({1, 2.5, -3, 4, 5, 6}, {2, 3});
  for (const Tensor& y : testing::layouts(x)) EXPECT_EQ(to_string(y), to_string(x));
}

TEST(PrintOnHostTest, Suffixes) {
  EXPECT_EQ(to_string(tensor({1, 2}, Device())), "[1. 2.]");
  EXPECT_EQ(to_string(tensor({1, 2}, {DType::f64, Device()})), "[1. 2.] f64");
  EXPECT_EQ(to_string(tensor({1, 2}, {DType::i64, Device()})), "[1 2] i64");
  EXPECT_EQ(to_string(tensor({1, 0}, {DType::boolean, Device()})), "[ True False] bool");
  EXPECT_EQ(to_string(tensor({1, 0.1}, {DType::bf16, Device()})), "[1.         0.10009766] bf16");
  EXPECT_EQ(to_string(scalar(3, {DType::i32, Device()})), "3 i32");
  EXPECT_EQ(to_string(Tensor()), "undefined");
  set_host_devices(2);
  EXPECT_EQ(to_string(tensor({1}, Device("cpu:1"))), "[1.] cpu:1");
  EXPECT_EQ(to_string(tensor({1}, {DType::u8, Device("cpu:1")})), "[1] u8 cpu:1");
  set_host_devices(1);
}

TEST(PrintOnHostTest, Streams) {
  std::ostringstream out;
  out << tensor({1, 2}, Device());
  EXPECT_EQ(out.str(), "[1. 2.]");
}

}  // namespace
}  // namespace weft
