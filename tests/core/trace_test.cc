#include "weft/core/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

std::string written(const Tracer& tracer) {
  const std::string path = ::testing::TempDir() + "trace_test.json";
  tracer.write(path);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::remove(path.c_str());
  return text.str();
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Tracer, WritesChromesFormat) {
  Tracer tracer;
  tracer.add("op", "conv2d", "layer1.conv", 1500, 4007);
  tracer.add("loader", "a\"b\\c\n", "", 2000000, 2000000);
  const std::string json = written(tracer);
  EXPECT_EQ(json,
            "{\"traceEvents\":[\n"
            "{\"ph\":\"X\",\"cat\":\"op\",\"name\":\"conv2d\",\"pid\":0,\"tid\":0,\"ts\":1.500,"
            "\"dur\":2.507,\"args\":{\"module\":\"layer1.conv\"}},\n"
            "{\"ph\":\"X\",\"cat\":\"loader\",\"name\":\"a\\\"b\\\\c\\u000a\",\"pid\":0,\"tid\":0,"
            "\"ts\":2000.000,\"dur\":0.000,\"args\":{\"module\":\"\"}}\n"
            "],\"displayTimeUnit\":\"ns\"}\n");
}

TEST(Tracer, EmptyTraceIsStillJson) {
  EXPECT_EQ(written(Tracer()), "{\"traceEvents\":[\n],\"displayTimeUnit\":\"ns\"}\n");
}

TEST(Span, RecordsOnlyWhereATracerIsSet) {
  Tracer tracer;
  {
    const Span lost("op", "before");
  }
  {
    const Scoped scope(&ThreadState::tracer, &tracer);
    const PathScope path("fc");
    const Span outer("op", "outer");
    const Span inner("op", "inner");
  }
  const std::string json = written(tracer);
  EXPECT_EQ(count(json, "\"ph\""), 2) << json;
  EXPECT_EQ(count(json, "\"module\":\"fc\""), 2);
  EXPECT_LT(json.find("inner"), json.find("outer")) << "spans stand in the order they end";
}

TEST(Span, ThreadsGetTheirOwnRowsAndRanksTheirOwnProcess) {
  Tracer tracer;
  const auto work = [&](int rank) {
    thread_state().tracer = &tracer;
    thread_state().rank = rank;
    for (int i = 0; i < 100; ++i) const Span span("op", "x");
  };
  std::thread a(work, 1), b(work, 2);
  a.join();
  b.join();
  const std::string json = written(tracer);
  EXPECT_EQ(count(json, "\"pid\":1,"), 100);
  EXPECT_EQ(count(json, "\"pid\":2,"), 100);
  const auto tid = [&](const char* pid) {
    const auto at = json.find("\"tid\":", json.find(pid));
    return json.substr(at, json.find(',', at) - at);
  };
  EXPECT_NE(tid("\"pid\":1,"), tid("\"pid\":2,"));
}

TEST(Tracer, UnwritablePathIsAnIoError) {
  EXPECT_WEFT_ERROR(Tracer().write("/nowhere/trace.json"), Io,
                    "cannot create /nowhere/trace.json.tmp: No such file or directory");
}

}  // namespace
}  // namespace weft
