// tools/compare as its user meets it: output and exit status.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

class Compare : public ::testing::Test {
 protected:
  std::string save(const std::string& name, const io::NamedTensors& tensors) const {
    io::save_safetensors(folder.path(name), tensors);
    return folder.path(name);
  }
  int run(const std::string& arguments, const std::string& out = "&2") const {
    const std::string command =
        "tools/compare/compare " + arguments + " 2>" + folder.path("log") + " >" + out;
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  static Tensor pair(double a, double b) { return tensor({a, b}, DType::f64); }

  testing::TempFolder folder;
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
  EXPECT_NE(log().find("inf in x, element 0"), std::string::npos) << log();
}

TEST_F(Compare, OtherNamesShapesAndDtypesAreDifferent) {
  const std::string a = save("a", {{"x", pair(1, 2)}});
  const auto says = [&](const io::NamedTensors& other, const std::string& text) {
    EXPECT_EQ(run(a + " " + save("b", other) + " --max 9"), 1);
    EXPECT_NE(log().find(text), std::string::npos) << log();
  };
  says({}, "x is only in the first");
  says({{"x", pair(1, 2)}, {"y", pair(1, 2)}}, "y is only in the second");
  says({{"x", ones({1, 2}, DType::f64)}}, "x is f64 [2] in the first, f64 [1,2] in the second");
  says({{"x", ones({2})}}, "x is f64 [2] in the first, f32 [2] in the second");
}

TEST_F(Compare, WrongUsageIsTwo) {
  const std::string a = save("a", {{"x", pair(1, 2)}});
  EXPECT_EQ(run(a), 2);
  EXPECT_EQ(run(a + " " + a + " --maximum 1"), 2);
  EXPECT_EQ(run(a + " " + a + " --max -1"), 2);
  EXPECT_EQ(run(a + " " + folder.path("nothing")), 2);
  EXPECT_NE(log().find("compare: error: "), std::string::npos) << log();
  EXPECT_EQ(run("--help"), 0);
  EXPECT_NE(log().find("--max"), std::string::npos) << log();
}

TEST_F(Compare, OutputThatIsLostIsTwo) {
  const std::string a = save("a", {{"one", pair(1, 2)}});
  for (const std::string& arguments : {a + " " + a, std::string("--help")}) {
    EXPECT_EQ(run(arguments, "/dev/full"), 2) << arguments;
    EXPECT_NE(log().find("compare: error: [stdout] some of the output is lost: No space left"),
              std::string::npos)
        << log();
  }
}

}  // namespace
}  // namespace weft
