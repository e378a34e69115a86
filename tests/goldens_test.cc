// Where goldens are found, and the errors for missing ones.
#include "weft/tests/goldens.h"

#include <gtest/gtest.h>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

using testing::Goldens;

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Goldens, ReadsAFileBelowTheWorkingFolder) {
  const testing::TempFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.root());
  std::filesystem::create_directories("tests/room");
  io::save_safetensors(
      "tests/room/some_goldens.safetensors",
      {{"x", tensor({1, 0.5})}, {"many.0", tensor({3})}, {"many.1", tensor({4, 5})}});
  const Goldens goldens("tests/room/some_goldens");
  EXPECT_EQ(Goldens::all().back(), &goldens);
  EXPECT_EQ(goldens["x"], (std::vector<double>{1, 0.5}));
  EXPECT_EQ(goldens.tensor("x").dtype(), DType::f32);
  EXPECT_EQ(goldens.list("many"), (std::vector<std::vector<double>>{{3}, {4, 5}}));
  std::filesystem::current_path(before);
  const char* remedy = "; python3 tests/room/write_some_goldens.py writes it";
  EXPECT_EQ(error_of([&] { goldens["y"]; }),
            std::string("tests/room/some_goldens.safetensors has no 'y'") + remedy);
  EXPECT_EQ(error_of([&] { goldens.list("x"); }),
            std::string("tests/room/some_goldens.safetensors has no 'x.0'") + remedy);
  const Goldens absent("tests/room/some_goldens");
  EXPECT_EQ(error_of([&] { absent["x"]; }),
            std::string("tests/room/some_goldens.safetensors is neither beside the program nor in "
                        "the working folder") +
                remedy);
}

}  // namespace
}  // namespace weft
