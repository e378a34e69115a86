#include "weft/core/runtime/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

struct Lines final : LogSink {
  std::vector<std::string> lines;
  void write(Level level, std::string_view message) override {
    lines.push_back((level == Level::warning ? "W " : "I ") + std::string(message));
  }
};

TEST(Log, GoesToTheSink) {
  Lines sink;
  const Scoped log(&ThreadState::log, static_cast<LogSink*>(&sink));
  testing::internal::CaptureStderr();
  log_info("a");
  log_warning("b");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(sink.lines, (std::vector<std::string>{"I a", "W b"}));
}

TEST(Log, WithoutASinkWarningsGoToStderr) {
  ASSERT_EQ(thread_state().log, nullptr);
  testing::internal::CaptureStderr();
  log_info("a");
  log_warning("b");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: b\n");
}

TEST(Log, IsSilentIfAsked) {
  const Scoped silent(&ThreadState::log, silent_log());
  testing::internal::CaptureStderr();
  log_info("a");
  log_warning("b");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, OfTheRanksOnlyTheFirstInforms) {
  StderrLog stderr_log;
  const Scoped log(&ThreadState::log, static_cast<LogSink*>(&stderr_log));
  testing::internal::CaptureStderr();
  log_info("from 0");
  const Scoped rank(&ThreadState::rank, 1);
  log_info("from 1");
  log_warning("b");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "from 0\nwarning: b\n");
}

// The environment is read once, so each case needs its own process.
TEST(LogDeathTest, WarningsCanBeTurnedOffFromOutside) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto warn = [](const char* wanted) {
    setenv("WEFT_WARNINGS", wanted, 1);
    log_warning("b");
    StderrLog().write(LogSink::Level::warning, "c");
    std::exit(0);
  };
  EXPECT_EXIT(warn("off"), testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(warn("on"), testing::ExitedWithCode(0), "warning: b\nwarning: c");
}

}  // namespace
}  // namespace weft
