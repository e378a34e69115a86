// Python's safetensors package reads what weft wrote, and weft reads what Python wrote.
#include <cstdlib>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

TEST(SafetensorsPeer, PythonReadsWeftsFilesAndBack) {
  const char* given = std::getenv("WEFT_PEER");
  if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and safetensors";
  const std::string python = given;
  testing::TempFolder folder;
  const std::string path = folder.path("weft.safetensors"), back = folder.path("back.safetensors");
  const NamedTensors tensors = {{"fc.weight", rand({3, 5})},
                                {"f64", rand({2}, DType::f64)},
                                {"bf16", tensor({1, -0.5, 3.140625}, DType::bf16)},
                                {"step", arange(0, 3)},
                                {"flag", weft::tensor({1, 0}, DType::boolean)},
                                {"empty", zeros({0, 4})},
                                {"scalar", scalar(2)}};
  save_safetensors(path, tensors, {{"format", "pt"}, {"note", "gr\xc3\xbc\xc3\x9f"}});
  ASSERT_EQ(std::system((python + " tests/io/read_back.py " + path + " " + back).c_str()), 0);
  const SafetensorsFile file = load_safetensors(back);
  EXPECT_EQ(file.metadata, (Metadata{{"format", "pt"}, {"note", "gr\xc3\xbc\xc3\x9f"}}));
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    for (const auto& [other, value] : file.tensors) {
      if (other != name) continue;
      EXPECT_EQ(value.dtype(), expected.dtype()) << name;
      EXPECT_EQ(value.shape(), expected.shape()) << name;
      EXPECT_EQ(value.to_vector<double>(), expected.to_vector<double>()) << name;
    }
  }
}

}  // namespace
}  // namespace weft::io
