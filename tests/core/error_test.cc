#include "weft/core/base/error.h"

#include <gtest/gtest.h>

#include <exception>
#include <locale>
#include <new>
#include <thread>

#include "weft/core/runtime/thread_state.h"
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
  EXPECT_EQ(where("core/base/shape.cc"), "core/base/shape.cc:7");
  EXPECT_EQ(where("./core/base/shape.cc"), "core/base/shape.cc:7");
  EXPECT_EQ(where("weft/core/base/shape.h"), "core/base/shape.h:7");
  EXPECT_EQ(where("bazel-out/k8-opt/bin/core/_virtual_includes/core/weft/core/base/shape.h"),
            "core/base/shape.h:7");
  EXPECT_EQ(where("/usr/include/weft/core/base/shape.h"), "core/base/shape.h:7");
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

TEST(Within, AddsToTheTextAndKeepsTheRest) {
  const auto fail = [] { WEFT_THROW(Shape, "conv2d", "m"); };
  std::string where;
  try {
    fail();
  } catch (const Error& e) {
    EXPECT_EQ(e.context(), "");
    where = e.where();
  }
  try {
    const PathScope outside("model");  // the path is that of the place where the error was thrown
    within("stage 1", [&] { within("rank 2", [&] { within("replica on cpu:1", fail); }); });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Shape);
    EXPECT_EQ(e.op(), "conv2d");
    EXPECT_EQ(e.where(), where);
    EXPECT_EQ(e.context(), "replica on cpu:1, rank 2, stage 1");
    EXPECT_EQ(std::string(e.what()),
              "[conv2d] m in model at " + where + " in replica on cpu:1, rank 2, stage 1");
  }
}

TEST(Within, GivesWhatTheFunctionGives) {
  int x = 0;
  int& same = within("rank 0", [&]() -> int& { return x; });
  EXPECT_EQ(&same, &x);
  within("rank 0", [&] { x = 2; });
  EXPECT_EQ(x, 2);
  int made = 0;
  const auto context = [&] { return "rank " + std::to_string(++made); };
  EXPECT_EQ(within(context, [] { return 5; }), 5);
  EXPECT_EQ(made, 0) << "the text is made for an error";
  EXPECT_WEFT_ERROR(within(context, [] { WEFT_THROW(Comm, "ring", "m"); }), Comm, " in rank 1");
}

TEST(Within, FirstErrorStaysAsItIs) {
  const Error first(ErrorCode::Io, "png", "m", "io/png.cc", 1);
  const Error longer = first.with_context("rank\n1");
  EXPECT_STREQ(first.what(), "[png] m at io/png.cc:1");
  EXPECT_STREQ(longer.what(), "[png] m at io/png.cc:1 in rank 1");
}

TEST(Within, WrapsForeignExceptionsAndKeepsThemInside) {
  const auto foreign = [] { throw std::out_of_range("index 7"); };
  const int line = __LINE__ + 2;
  try {
    within("rank 1", [&] { within("replica on cpu:1", foreign); });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Library);
    EXPECT_EQ(e.op(), "exception");
    EXPECT_EQ(std::string(e.what()), "[exception] index 7 at tests/core/error_test.cc:" +
                                         std::to_string(line) + " in replica on cpu:1, rank 1");
    EXPECT_THROW(std::rethrow_if_nested(e), std::out_of_range);
  }
  EXPECT_WEFT_ERROR(within("rank 1", [] { throw std::bad_alloc(); }), OutOfMemory, " in rank 1");
  EXPECT_WEFT_ERROR(within("rank 1", [] { throw 5; }), Library, "unknown type");
}

TEST(Within, WorksOnErrorsOfOtherThreads) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      WEFT_THROW(Device, "add", "m");
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  const auto wait = [&] { std::rethrow_exception(error); };
  EXPECT_WEFT_ERROR(within("device cpu:1", wait), Device, " in device cpu:1");
  EXPECT_WEFT_ERROR(wait(), Device, "[add] m at ");
  try {
    wait();
  } catch (const Error& e) {
    EXPECT_EQ(e.context(), "") << "the stored error is shared: it stays as it was";
  }
}

}  // namespace
}  // namespace weft
