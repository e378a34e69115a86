// Runs weftrun for tests, and checks what it leaves.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::testing {

/// The longest time that a test waits, for loaded machines.
inline constexpr std::chrono::seconds kDeadline{60};

/// Waits until `condition` is true; false if that takes longer than kDeadline.
template <class Condition>
bool becomes_true(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// The processes, without zombies, whose environment contains `variable` ("NAME=value").
inline std::vector<pid_t> processes_with(const std::string& variable) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::istringstream environment(read_file(entry.path() / "environ"));
    for (std::string text; std::getline(environment, text, '\0');) {
      if (text == variable) found.push_back(pid);
    }
  }
  return found;
}

/// One run of weftrun, whose processes are marked by a variable. The test fails if any of them is
/// left in the destructor or at the end of finish().
class Weftrun {
 public:
  /// Arguments that begin with "DIR/" are in this run's folder, which the ranks know as $DIR.
  /// `variables`: "NAME=value" for its environment, in addition to those of this process. `output`:
  /// replaces out() and err() for both its streams.
  explicit Weftrun(std::vector<std::string> arguments, std::vector<std::string> variables = {},
                   int output = -1) {
    static int runs = 0;
    mark_ = "WEFT_TEST_RUN=" + std::to_string(::getpid()) + "_" + std::to_string(runs++);
    std::filesystem::create_directory(folder_.path("tmp"));
    variables.push_back(mark_);
    variables.push_back("TMPDIR=" + folder_.path("tmp"));
    variables.push_back("DIR=" + folder_.root());
    for (char** own = environ; *own; ++own) {
      const std::string text = *own;
      if (!text.starts_with("TMPDIR=")) variables.push_back(text);
    }
    for (std::string& argument : arguments) {
      if (argument.starts_with("DIR/")) argument.replace(0, 3, folder_.root());
    }
    arguments.insert(arguments.begin(), "launch/weftrun");
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    add_output(files, STDOUT_FILENO, "stdout", output);
    add_output(files, STDERR_FILENO, "stderr", output);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    EXPECT_EQ(posix_spawn(&pid_, arguments[0].c_str(), &files, &attributes,
                          pointers(arguments).data(), pointers(variables).data()),
              0)
        << "no launch/weftrun in " << std::filesystem::current_path();
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Weftrun() {
    if (!ended_) {
      signal(SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    expect_nothing_left();
  }
  Weftrun(const Weftrun&) = delete;
  Weftrun& operator=(const Weftrun&) = delete;

  pid_t pid() const { return pid_; }
  /// pid -1 would mean all processes.
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }

  /// Its status, 128 + signal when it was killed by one, after which nothing of it is left.
  int finish() {
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    pollfd end{fd, POLLIN, 0};
    const int in_time =
        ::poll(&end, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count()));
    ::close(fd);
    EXPECT_EQ(in_time, 1) << "weftrun does not end; " << err();
    if (in_time != 1) signal(SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_ = true;
    expect_nothing_left();
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  std::string out() const { return read_file(folder_.path("stdout")); }
  std::string err() const { return read_file(folder_.path("stderr")); }
  std::vector<pid_t> processes() const { return processes_with(mark_); }

  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string file(const std::string& name) const { return read_file(path(name)); }
  bool has_file(const std::string& name) const { return std::filesystem::exists(path(name)); }
  nlohmann::json report() const { return nlohmann::json::parse(file("report.json")); }

 private:
  void add_output(posix_spawn_file_actions_t& files, int fd, const std::string& name,
                  int output) const {
    if (output >= 0) {
      posix_spawn_file_actions_adddup2(&files, output, fd);
      return;
    }
    posix_spawn_file_actions_addopen(&files, fd, folder_.path(name).c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
    list.push_back(nullptr);
    return list;
  }
  void expect_nothing_left() const {
    // A process killed by SIGKILL, or by weftrun's guardian, needs a moment to end.
    EXPECT_TRUE(becomes_true([&] { return processes().empty(); })) << "processes are left";
    EXPECT_TRUE(becomes_true([&] { return std::filesystem::is_empty(folder_.path("tmp")); }))
        << "files are left";
  }

  TempFolder folder_;
  std::string mark_;
  pid_t pid_ = -1;
  bool ended_ = false;
};

/// The lines of each rank, whether or not they were merged with those of others.
inline std::map<int, std::vector<std::string>> lines_by_rank(const std::string& shown) {
  std::map<int, std::vector<std::string>> lines;
  std::istringstream in(shown);
  for (std::string line; std::getline(in, line);) {
    const std::size_t end = line.find("] ");
    if (!line.starts_with('[') || end == std::string::npos) {
      lines[-1].push_back(line);
      continue;
    }
    std::istringstream ranges(line.substr(1, end - 1));
    for (std::string range; std::getline(ranges, range, ',');) {
      const std::size_t dash = range.find('-');
      const int first = std::stoi(range);
      const int last = dash == std::string::npos ? first : std::stoi(range.substr(dash + 1));
      for (int rank = first; rank <= last; ++rank) lines[rank].push_back(line.substr(end + 2));
    }
  }
  return lines;
}

}  // namespace weft::testing
