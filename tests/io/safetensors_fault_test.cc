// A full disk, a faulty one, a killed process: the file is the old or the new one, never a mixture.
#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <random>
#include <thread>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/faults.h"
#include "weft/tests/io/files.h"

extern char** environ;

namespace weft::io {
namespace {

using testing::Faults;
using testing::FaultScope;
using testing::TempFolder;

class SafetensorsFault : public ::testing::Test {
 protected:
  NamedTensors generation(double value) const {
    return {{"a", full({50'000}, value)}, {"b", full({300}, value, DType::f64)}};
  }
  double loaded() const {
    const SafetensorsFile file = load_safetensors(path);
    const double value = file.tensors.at(0).second.to_vector<double>().at(0);
    for (const auto& [name, tensor] : file.tensors) {
      for (const double v : tensor.to_vector<double>()) EXPECT_EQ(v, value) << name;
    }
    return value;
  }

  TempFolder folder;
  std::string path = folder.path("model.safetensors");
};

TEST_F(SafetensorsFault, TheOldFileSurvivesEveryFailure) {
  save_safetensors(path, generation(1));
  Faults calls;
  {
    const FaultScope scope({});
    save_safetensors(path, generation(1));
    calls = scope.faults();
  }
  ASSERT_GE(calls.writes, 3);
  ASSERT_GE(calls.fsyncs, 1);
  ASSERT_EQ(calls.renames, 1);
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    const std::string reason = std::generic_category().message(error);
    for (int i = 1; i <= calls.writes; ++i) {
      const FaultScope scope({.fail_write = i, .error = error});
      EXPECT_WEFT_ERROR(save_safetensors(path, generation(2)), Io, reason);
    }
    {
      const FaultScope scope({.fail_fsync = 1, .error = error});
      EXPECT_WEFT_ERROR(save_safetensors(path, generation(2)), Io, reason);
    }
    {
      const FaultScope scope({.fail_rename = 1, .error = error});
      EXPECT_WEFT_ERROR(save_safetensors(path, generation(2)), Io, path);
    }
    EXPECT_EQ(loaded(), 1);
    EXPECT_EQ(folder.files(), 1) << "a temporary file remains";
  }
  save_safetensors(path, generation(3));
  EXPECT_EQ(loaded(), 3);
}

TEST_F(SafetensorsFault, ShortAndInterruptedWritesAreContinued) {
  const FaultScope scope({.short_writes = true, .interrupted = true});
  save_safetensors(path, generation(4));
  EXPECT_GT(scope.faults().writes, 400);
  EXPECT_EQ(loaded(), 4);
}

TEST_F(SafetensorsFault, AFullFileSystem) {
  const std::string mount_point = folder.path("small");
  std::filesystem::create_directory(mount_point);
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=400k") != 0) {
    GTEST_SKIP() << "no right to mount a tmpfs";
  }
  path = mount_point + "/model.safetensors";
  save_safetensors(path, generation(1));  // writes only half of it
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"a", zeros({60'000})}}), Io,
                    "No space left on device");
  EXPECT_EQ(loaded(), 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(mount_point), {}), 1);
  ::umount(mount_point.c_str());
}

// Saves for ever, one generation after the other, until it is killed.
TEST_F(SafetensorsFault, AKilledWriterLeavesTheOldFileOrTheNewOne) {
  const char* wanted = std::getenv("WEFT_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 10;
  // The child is killed within its first few saves, even on a slow machine.
  const auto begin = std::chrono::steady_clock::now();
  save_safetensors(path, generation(0));
  const std::chrono::microseconds save =
      std::chrono::ceil<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  std::mt19937 random(1);
  double before = 0;
  int moved = 0;
  for (int i = 0; i < kills; ++i) {
    std::string program = "tests/io/save_for_ever";
    const std::string first = std::to_string(before + 1);
    char* arguments[] = {program.data(), path.data(), const_cast<char*>(first.c_str()), nullptr};
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ready[1], STDOUT_FILENO);
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ready[1]);
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "the writer did not start";
    ::close(ready[0]);
    std::this_thread::sleep_for(random() % 64 * save / 8);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with status " << status;
    const double now = loaded();
    EXPECT_GE(now, before);
    moved += now > before;
    before = now;
  }
  EXPECT_GT(moved, 0) << "killed too early to prove anything";
  save_safetensors(path, generation(-1));
  EXPECT_EQ(loaded(), -1);
  EXPECT_EQ(folder.files(), 1) << "what a killed writer left was not cleaned up";
}

}  // namespace
}  // namespace weft::io
