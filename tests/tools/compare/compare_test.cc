// tools/compare as a user sees it: output and exit status.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/pickle.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/io/files.h"
#include "weft/tests/tools/command.h"

namespace weft {
namespace {

class Compare : public testing::CommandTest {
 protected:
  Compare() : CommandTest("compare") {}
  std::string save(const std::string& name, const io::NamedTensors& tensors) const {
    io::save_safetensors(folder.path(name), tensors);
    return folder.path(name);
  }
  static Tensor pair(double a, double b) { return tensor({a, b}, DType::f64); }
};

TEST_F(Compare, NamesTheWorstElement) {
  const std::string a = save("a", {{"one", pair(1, 2)}, {"two", pair(3, 4)}});
  const std::string b = save("b", {{"two", pair(3, 4.5)}, {"one", pair(1.25, 2)}});
  EXPECT_EQ(run(a + " " + b + " --max 0.5"), 0) << log();
  EXPECT_EQ(log(),
            "same: 2 tensors, the largest difference 0.5 in two, element 1: 4 and 4.5 "
            "(allowed 0.5)\n");
  EXPECT_EQ(run(a + " " + b + " --max 0.4999"), 1);
  EXPECT_EQ(log().find("different: 2 tensors"), 0U) << log();
  EXPECT_EQ(run(a + " " + a), 0);
  EXPECT_EQ(log(), "same: 2 tensors (allowed 0)\n");
}

TEST_F(Compare, ANaNIsOnlyLikeANaN) {
  const std::string a = save("a", {{"x", pair(NAN, 1)}}), b = save("b", {{"x", pair(0, 1)}});
  EXPECT_EQ(run(a + " " + a), 0) << log();
  EXPECT_EQ(run(a + " " + b + " --max 1e300"), 1);
  EXPECT_HAS(log(), "inf in x, element 0");
}

TEST_F(Compare, IntegersThatF64CannotTellApart) {
  const auto integers = [](std::int64_t a, std::int64_t b) {
    return from_vector(std::vector{a, b}, {2});
  };
  constexpr std::int64_t kLarge = std::int64_t{1} << 53, kMost = INT64_MAX, kLeast = INT64_MIN;
  const std::string a = save("a", {{"x", integers(7, kLarge)}});
  const std::string b = save("b", {{"x", integers(7, kLarge + 1)}});
  EXPECT_EQ(run(a + " " + b), 1) << log();
  EXPECT_HAS(log(), "difference 1 in x, element 1: 9007199254740992 and 9007199254740993 ");
  EXPECT_EQ(run(a + " " + a), 0) << log();
  const std::string least = save("least", {{"x", integers(kLeast, kMost)}});
  const std::string most = save("most", {{"x", integers(kMost, kMost)}});
  EXPECT_EQ(run(least + " " + most + " --max 1e19"), 1) << log();
  EXPECT_HAS(log(), "difference 1.84e+19 in x, element 0: -9223372036854775808 and ");
}

TEST_F(Compare, ABoundIsANumberFrom0On) {
  const std::string a = save("a", {{"x", pair(0, 1)}}), b = save("b", {{"x", pair(9, 1)}});
  for (const char* wrong : {"nan", "-1", "x"}) {
    EXPECT_EQ(run(a + " " + b + " --max " + wrong), 2);
    EXPECT_HAS(log(), "--max: '" + std::string(wrong) + "' is no number from 0 on\n");
  }
  EXPECT_EQ(run(a + " " + b + " --max inf"), 0) << log();
}

TEST_F(Compare, OtherNamesShapesAndDtypesAreDifferent) {
  const std::string a = save("a", {{"x", pair(1, 2)}});
  const auto says = [&](const io::NamedTensors& other, const std::string& text) {
    EXPECT_EQ(run(a + " " + save("b", other) + " --max 9"), 1);
    EXPECT_HAS(log(), text);
  };
  says({}, "x is only in the first");
  says({{"x", pair(1, 2)}, {"y", pair(1, 2)}}, "y is only in the second");
  says({{"x", ones({1, 2}, DType::f64)}}, "x is f64 [2] in the first, f64 [1,2] in the second");
  says({{"x", ones({2})}}, "x is f64 [2] in the first, f32 [2] in the second");
}

TEST_F(Compare, FilesOfBothFormats) {
  const io::NamedTensors weights = {{"one", pair(1, 2)}, {"two", pair(3, 4)}};
  const std::string a = save("a.pth", weights);  // the content counts, not the name
  const std::string b = folder.path("b.safetensors"), c = folder.path("c.pt");
  io::save_pickle(b, io::PickleValue::state_dict(weights));
  io::save_pickle(
      c, io::PickleValue::dict({{"epoch", 3}, {"model", io::PickleValue::state_dict(weights)}}));
  EXPECT_EQ(run(a + " " + b), 0) << log();
  EXPECT_EQ(run(a + " " + c + ":model"), 0) << log();
  EXPECT_EQ(run(a + " " + c), 2);
  EXPECT_HAS(log(), "c.pt:model (2 tensors)");
}

TEST_F(Compare, AnIndexOfSeveralFiles) {
  const std::string whole = save("a.safetensors", {{"one", pair(1, 2)}, {"two", pair(3, 4)}});
  save("1.safetensors", {{"one", pair(1, 2)}});
  save("2.safetensors", {{"two", pair(3, 5)}});
  const std::string index = folder.path("model.safetensors.index.json");
  testing::write_file(index, R"({"weight_map": {"one": "1.safetensors", "two": "2.safetensors"}})");
  EXPECT_EQ(run(index + " " + index), 0) << log();
  EXPECT_EQ(run(whole + " " + index), 1) << log();
  EXPECT_HAS(log(), "difference 1 in two, element 1: 4 and 5 ");
}

TEST_F(Compare, LossesOfTwoRuns) {
  const auto write = [&](const char* name, const std::string& losses) {
    testing::write_file(folder.path(name), "{\"example\": \"mlp\", \"losses\": " + losses + "}");
    return folder.path(name) + " ";
  };
  const std::string a = write("a.json", "[3, 2.5, null]"), b = write("b.json", "[3, 2.25, null]");
  EXPECT_EQ(run(a + b + "--max 0.25"), 0) << log();
  EXPECT_EQ(log(),
            "same: 3 losses, the largest difference 0.25 in losses, element 1: 2.5 and 2.25 "
            "(allowed 0.25)\n");
  EXPECT_EQ(run(a + b), 1);
  EXPECT_EQ(run(a + write("short.json", "[3]")), 1);
  EXPECT_HAS(log(), "losses is f64 [3] in the first, f64 [1] in the second");
  const std::string two = write("two.json", R"({"net_d": [1, 2], "net_g": [3]})");
  EXPECT_EQ(run(two + two), 0) << log();
  EXPECT_EQ(log(), "same: 3 losses (allowed 0)\n");
  const auto refuses = [&](const std::string& arguments, const std::string& text) {
    EXPECT_EQ(run(arguments), 2) << log();
    EXPECT_HAS(log(), text);
  };
  refuses(a + save("tensors", {{"x", pair(1, 2)}}), "one of the two is a metrics.json");
  refuses(a + write("text.json", "\"none\""), "is no metrics.json that a program of weft wrote");
}

TEST_F(Compare, WrongUsageIsTwo) {
  const std::string a = save("a", {{"x", pair(1, 2)}});
  EXPECT_EQ(run(a), 2);
  EXPECT_EQ(run(a + " " + a + " --maximum 1"), 2);
  EXPECT_EQ(run(a + " " + a + " --max -1"), 2);
  EXPECT_EQ(run(a + " " + folder.path("nothing")), 2);
  EXPECT_HAS(log(), "compare: error: ");
  EXPECT_EQ(run("--help"), 0);
  EXPECT_HAS(log(), "--max");
}

TEST_F(Compare, OutputThatIsLostIsTwo) {
  const std::string a = save("a", {{"one", pair(1, 2)}});
  expect_loss_is_told({a + " " + a, "--help"});
}

}  // namespace
}  // namespace weft
