#include "weft/core/error.h"

#include <gtest/gtest.h>

#include <locale>

#include "weft/core/thread_state.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

TEST(Error, TextNamesOpMessageAndPlace) {
  try {
    WEFT_CHECK(1 + 1 == 3, Shape, "conv2d", "input channels: got ", 3, ", weight expects ", 16);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Shape);
    EXPECT_EQ(e.op(), "conv2d");
    EXPECT_EQ(e.where(), "tests/core/error_test.cc:" + std::to_string(__LINE__ - 5));
    EXPECT_EQ(std::string(e.what()),
              "[conv2d] input channels: got 3, weight expects 16 at " + e.where());
  }
}

TEST(Error, ModulePathStandsBeforeThePlace) {
  const PathScope root(nullptr), layer("layer1"), block("0"), conv("conv1");
  const Error e(ErrorCode::Dtype, "conv2d", "m", "tensor/conv.cc", 41);
  EXPECT_STREQ(e.what(), "[conv2d] m in layer1.0.conv1 at tensor/conv.cc:41");
}

TEST(Error, PlaceIsRelativeToTheSourceRoot) {
  const auto where = [](const char* file) {
    return Error(ErrorCode::Io, "x", "m", file, 7).where();
  };
  EXPECT_EQ(where("core/shape.cc"), "core/shape.cc:7");
  EXPECT_EQ(where("./core/shape.cc"), "core/shape.cc:7");
  EXPECT_EQ(where("weft/core/shape.h"), "core/shape.h:7");
  EXPECT_EQ(where("bazel-out/k8-opt/bin/core/_virtual_includes/core/weft/core/shape.h"),
            "core/shape.h:7");
  EXPECT_EQ(where("/usr/include/weft/core/shape.h"), "core/shape.h:7");
  EXPECT_EQ(where("/home/ann/program.cc"), "/home/ann/program.cc:7");
}

TEST(Error, TextIsOneLine) {
  const Error e(ErrorCode::Library, "png", "first\nsecond\r\n", "io/png.cc", 1);
  EXPECT_STREQ(e.what(), "[png] first second   at io/png.cc:1");
}

TEST(Error, HostLocaleDoesNotGroupDigits) {
  struct Grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouping));
  const std::string text = detail::concat(1234567);
  std::locale::global(before);
  EXPECT_EQ(text, "1234567");
}

TEST(Error, EveryCodeHasItsName) {
  const char* const names[] = {"Shape", "Dtype",           "Device",  "Unsupported", "OutOfMemory",
                               "Cuda",  "Library",         "Comm",    "Timeout",     "PeerFailed",
                               "Io",    "InvalidArgument", "Internal"};
  int code = 0;
  for (const char* name : names) EXPECT_STREQ(to_string(static_cast<ErrorCode>(code++)), name);
}

TEST(Error, MessagePartsAreOnlyEvaluatedOnFailure) {
  int evaluated = 0;
  WEFT_CHECK(true, Internal, "x", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  EXPECT_WEFT_ERROR(WEFT_CHECK(false, Internal, "x", ++evaluated), Internal, "[x] 1 at ");
}

}  // namespace
}  // namespace weft
