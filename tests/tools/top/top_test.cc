// `./weft top`, beside programs that run.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "weft/tests/examples/launched.h"
#include "weft/tests/tools/command.h"

namespace weft {
namespace {

class Top : public testing::LaunchedTest {
 protected:
  Top() : LaunchedTest("launch/weftrun --nproc-per-node 2") {}
  ~Top() override {
    unsetenv("WEFT_FAULT");
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);  // weftrun's ranks end with it
    ::waitpid(child_, nullptr, 0);
  }

  void begin(bool launched, const std::string& program, const std::string& options) {
    child_ = start("out", launched, program, options + " --epochs 1000000 --batch-size 4");
  }
  std::string top(const std::string& words) const {
    const std::string command = "tools/top/top " + std::to_string(child_) +
                                " --once --interval 0.2 " + words + " >" + folder.path("top") +
                                " 2>&1";
    status_ = WEXITSTATUS(std::system(command.c_str()));
    return testing::read_file(folder.path("top"));
  }
  /// Looks until `reached` is true of what it sees.
  template <class Condition>
  nlohmann::json look_until(const Condition& reached) const {
    nlohmann::json seen;
    await([&] {
      seen = nlohmann::json::parse(top("--json"), nullptr, false);
      return status_ == 0 && seen.is_array() && reached(seen);
    });
    return seen;
  }

  pid_t child_ = 0;
  mutable int status_ = -1;
};

TEST_F(Top, ShowsWhoWaitsForARankThatIsStopped) {
  setenv("WEFT_FAULT", "stop:rank=1:step=5:phase=forward", 1);
  begin(true, "mlp_ddp", "");
  const nlohmann::json seen = look_until([](const nlohmann::json& ranks) {
    return ranks.size() == 2 && ranks[0]["seconds_in_operation"] > 2.5;
  });
  for (int rank = 0; rank < 2; ++rank) {
    const nlohmann::json& shown = seen[static_cast<std::size_t>(rank)];
    EXPECT_EQ(shown["program"], "mlp_ddp");
    EXPECT_EQ(shown["launcher"], child_);
    EXPECT_EQ(shown["rank"], rank);
    EXPECT_EQ(shown["ranks"], 2);
    EXPECT_EQ(shown["step"], 5);
    EXPECT_EQ(shown["samples"], 5 * 4);
    EXPECT_EQ(shown["samples_per_s"], 0);
    EXPECT_GT(shown["bytes_sent"], 0);
    const nlohmann::json& memory = shown["devices"][0];
    EXPECT_EQ(memory["device"], "cpu:0");
    // 784-10: what ../examples/mlp.h has, in f32.
    EXPECT_GE(memory["by_owner"]["parameters"], 784 * 10 * 4);
    EXPECT_GE(memory["in_use"], memory["by_owner"]["parameters"]);
  }
  EXPECT_HAS(seen[0]["operation"].get<std::string>(), "all_reduce");
  EXPECT_EQ(seen[1]["operation"], "");
  EXPECT_EQ(seen[1]["phase"], "forward");
  EXPECT_EQ(seen[0]["stopped"], false);
  EXPECT_EQ(seen[1]["stopped"], true);
  // It waits all the time, but its waiting is counted every 0.1 s only.
  EXPECT_GT(seen[0]["waited"], 0.4);
  EXPECT_EQ(seen[1]["waited"], 0);

  const std::string screen = top("");
  EXPECT_HAS(screen, "mlp_ddp: 2 ranks of weftrun, process " + std::to_string(child_) + "\n");
  EXPECT_HAS(screen, "all_reduce");
  EXPECT_HAS(screen, " s\n");  // since when
  EXPECT_HAS(screen, "forward (stopped)\n");
  EXPECT_HAS(screen, "parameters ");
}

// A step takes some milliseconds, except on the rank that sleeps for 100 ms in each.
TEST_F(Top, ShowsTheStraggler) {
  setenv("WEFT_FAULT", "delay=100ms:rank=1:phase=forward", 1);
  begin(true, "mlp_ddp", "");
  const nlohmann::json seen = look_until([](const nlohmann::json& ranks) {
    return ranks.size() == 2 && ranks[0]["waited"] > 0.5 && ranks[1]["waited"] < 0.25 &&
           ranks[0]["operation"] != "" && ranks[1]["phase"] == "forward" &&
           ranks[0]["samples_per_s"] > 0 && ranks[1]["samples_per_s"] > 0;
  });
  EXPECT_HAS(seen[0]["operation"].get<std::string>(), "all_reduce");
  EXPECT_EQ(seen[1]["operation"], "");
  for (const nlohmann::json& shown : seen) {
    EXPECT_EQ(shown["stopped"], false);
    EXPECT_LT(shown["samples_per_s"], 100);  // 10 steps of 4, and perhaps one more is seen
  }
}

TEST_F(Top, ShowsTheThinLink) {
  const std::string fault = "link=0-1:5MB/s";
  setenv("WEFT_FAULT", fault.c_str(), 1);
  begin(true, "mlp_ddp", "");
  const nlohmann::json seen = look_until([](const nlohmann::json& ranks) {
    return ranks.size() == 2 && ranks[0]["samples_per_s"] > 0 && ranks[1]["samples_per_s"] > 0;
  });
  for (const nlohmann::json& shown : seen) EXPECT_EQ(shown["fault"], fault);
  EXPECT_HAS(top(""), std::to_string(child_) + "\n  WEFT_FAULT " + fault + "\n  rank ");
}

TEST_F(Top, ShowsTheDevicesOfOneProcess) {
  begin(false, "mlp_dp", "--host-devices 2 --devices 0,1 --host-device-memory 64MiB");
  const nlohmann::json seen = look_until([](const nlohmann::json& programs) {
    return programs.size() == 1 && programs[0]["samples_per_s"] > 0 &&
           programs[0]["devices"].size() == 2 && !programs[0]["devices"][1]["worker"].is_null();
  });
  EXPECT_EQ(seen[0]["program"], "mlp_dp");
  EXPECT_EQ(seen[0]["process"], child_);
  EXPECT_TRUE(seen[0]["rank"].is_null());
  EXPECT_GT(seen[0]["cpu"], 0);
  EXPECT_TRUE(seen[0]["fault"].is_null());
  EXPECT_EQ(seen[0]["devices"][1]["device"], "cpu:1");
  EXPECT_EQ(seen[0]["devices"][1]["limit"], 64 << 20);
  EXPECT_HAS(top(""), "mlp_dp, process " + std::to_string(child_) + "\n");
  EXPECT_HAS(top(""), " of 64.00 MiB, worker ");
}

TEST_F(Top, ANameMayHaveAnyBytes) {
  const std::string name = folder.path("no_utf8_\xff");
  std::filesystem::create_symlink(std::filesystem::absolute("examples/mlp"), name);
  std::string shell = "sh", flag = "-c";
  std::string command = "exec " + name + " --data " + folder.path("data") + " --out " +
                        folder.path("out") + " --epochs 1000000 --batch-size 4 >/dev/null 2>&1";
  char* argv[] = {shell.data(), flag.data(), command.data(), nullptr};
  ASSERT_EQ(posix_spawn(&child_, "/bin/sh", nullptr, nullptr, argv, environ), 0);
  const nlohmann::json seen =
      look_until([](const nlohmann::json& programs) { return programs.size() == 1; });
  EXPECT_EQ(seen[0]["program"], "no_utf8_\uFFFD");
}

TEST_F(Top, EndsBySigint) {
  std::string shell = "sh", flag = "-c";
  std::string command = "exec tools/top/top --interval 0.1 >" + folder.path("top");
  char* argv[] = {shell.data(), flag.data(), command.data(), nullptr};
  ASSERT_EQ(posix_spawn(&child_, "/bin/sh", nullptr, nullptr, argv, environ), 0);
  std::string seen;
  await([&] {
    if (std::filesystem::exists(folder.path("top"))) seen = testing::read_file(folder.path("top"));
    return seen.find("weft top, ") != std::string::npos;
  });
  ::kill(child_, SIGINT);
  EXPECT_EQ(finish(std::exchange(child_, 0)), 0);
  EXPECT_HAS(seen, ", every 0.1 s; Ctrl-C ends it\n");
  EXPECT_EQ(seen.find('\x1b'), std::string::npos);  // it is no terminal
}

class TopCommand : public testing::CommandTest {
 protected:
  TopCommand() : CommandTest("top") {}
};

TEST_F(TopCommand, SaysThatNothingRuns) {
  EXPECT_EQ(run("no_such_program --once --interval 0.05"), 1);
  EXPECT_HAS(log(), "'no_such_program' is not running, or not this user's");
  EXPECT_EQ(run("no_such_program --once --json --interval 0.05"), 1);
  EXPECT_EQ(log(), "[]\n");
}

// What it shows first in a terminal of this size, in which `run` does not run.
std::string screen_of(const std::string& run, unsigned short rows, unsigned short columns) {
  const winsize size{rows, columns, 0, 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error(std::string("no terminal: ") + std::strerror(errno));
  if (child == 0) {
    ::execl("tools/top/top", "top", run.c_str(), "--interval", "0.05", nullptr);
    ::_exit(127);
  }
  const std::string clear = "\x1b[H\x1b[J";
  std::string shown;
  char bytes[4096];
  for (ssize_t n = 0; shown.rfind(clear) == shown.find(clear) &&
                      (n = ::read(terminal, bytes, sizeof bytes)) > 0;) {
    shown.append(bytes, static_cast<std::size_t>(n));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(terminal);
  const std::size_t end = shown.rfind(clear);
  return end < clear.size() || end == std::string::npos
             ? shown
             : shown.substr(clear.size(), end - clear.size());
}

TEST_F(TopCommand, ALineFitsTheTerminal) {
  std::string name, nineteen;
  for (int i = 0; i < 30; ++i) {
    name += "\u00e9";
    if (i < 19) nineteen += "\u00e9";
  }
  const std::string screen = screen_of(name, 24, 20);
  EXPECT_EQ(screen.find("weft top, "), 0U) << screen;
  EXPECT_EQ(screen.find("\r\n"), 20U) << screen;
  EXPECT_HAS(screen, "\r\n\r\n'" + nineteen + "\r\n");
  EXPECT_HAS(screen_of(name, 3, 20), ", \r\n... more than this s\r\n");
}

TEST_F(TopCommand, RefusesWrongWords) {
  refuses("--onse", "unknown option --onse; did you mean --once?");
  refuses("mlp mlp", "unexpected argument 'mlp'");
  for (const char* wrong : {"0", "nan", "inf"}) {
    refuses(std::string("--interval ") + wrong,
            "--interval: '" + std::string(wrong) + "' is no number from 0.05 to 3600\n");
  }
  refuses("--interval x", "--interval");
  expect_loss_is_told({"--once --interval 0.05"});
}

}  // namespace
}  // namespace weft
