// Runs a libFuzzer target over its seeds as a GoogleTest program: one test per file given as
// argument.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

class Replay : public testing::Test {
 public:
  explicit Replay(std::string path) : path_(std::move(path)) {}
  void TestBody() override {
    std::ifstream file(path_, std::ios::binary);
    ASSERT_TRUE(file) << path_;
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
        0);
  }

 private:
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    const std::string name = path.substr(path.rfind('/') + 1);
    testing::RegisterTest("Replay", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [path] { return new Replay(path); });
  }
  return RUN_ALL_TESTS();
}
