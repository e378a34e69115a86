// Ranks that are killed while they save in parts: the checkpoint is the old or the new one, never a
// mixture.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/data/dataloader.h"
#include "weft/io/state_dict.h"
#include "weft/nn/ema.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/parallel/fully_shard.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/faults.h"
#include "weft/tests/io/files.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/recorder.h"

extern char** environ;

namespace weft {
namespace {

using testing::FaultScope;
using testing::TempFolder;

void expect_all(const io::NamedTensors& tensors, double wanted) {
  EXPECT_EQ(tensors.size(), 4U);
  for (const auto& [name, x] : tensors) {
    for (const double value : x.to_vector<double>()) ASSERT_EQ(value, wanted) << name;
  }
}

// The number of the checkpoint; all its values must be equal to it.
double loaded(const std::string& folder) {
  const train::Checkpoint checkpoint = train::load_checkpoint(folder + "/checkpoint.safetensors");
  const double value = checkpoint.losses.back();
  expect_all(checkpoint.model, value);
  expect_all(checkpoint.parts.at(0), value);
  // The index may belong to a later save.
  const auto by_index = io::load_state_dict(folder + "/model.safetensors.index.json");
  const double of_index = by_index.at(0).second.to_vector<double>().at(0);
  EXPECT_GE(of_index, value);
  expect_all(by_index, of_index);
  return value;
}

// Returns when the process has been killed, after two saves and `eighths` of another's time.
void save_until_killed(const std::string& folder, unsigned eighths) {
  std::string program = "tests/parallel/save_parts_for_ever", out = folder;
  char* arguments[] = {program.data(), out.data(), nullptr};
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ready[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ready[1]);
  const auto await_save = [&] {
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "it ended by itself";
  };
  await_save();
  const auto begin = std::chrono::steady_clock::now();
  await_save();
  std::this_thread::sleep_for(eighths * (std::chrono::steady_clock::now() - begin) / 8);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::close(ready[0]);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with status " << status;
}

TEST(ShardedCheckpointFault, KilledRanksLeaveTheOldCheckpointOrTheNewOne) {
  const char* wanted = std::getenv("WEFT_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 10;
  const TempFolder folder;
  std::mt19937 random(1);
  double before = 0;
  int torn = 0;
  for (int i = 0; i < kills; ++i) {
    save_until_killed(folder.root(), random() % 64);
    const double now = loaded(folder.root());
    EXPECT_GE(now, before + 2);
    torn += folder.files() > 4;
    before = now;
  }
  EXPECT_GT(torn, 0) << "never killed within a save";
  EXPECT_LE(folder.files(), 10) << "what killed runs left was not cleaned up";
}

// Data, headers, index, checkpoint: each is on the disk before the next one is written, and the old
// checkpoint counts until the new one has its name.
TEST(ShardedCheckpointFault, WhatHasANameIsOnTheDisk) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  comm::run_ranks(1, [&](comm::ProcessGroup& group) {
    nn::Sequential model = {nn::Linear(4, 3), nn::Linear(3, 2)};
    const auto sharded = parallel::fully_shard(model, group);
    nn::ExponentialMovingAverage ema(model, 0);
    const auto averages = sharded.state_of(ema);
    train::Options options;
    options.out = folder.root();
    train::Recorder recorder(options);
    const data::DataLoader loader(testing::Numbers(), {.batch_size = 4});
    const auto save = [&] {
      recorder.step(scalar(static_cast<double>(recorder.steps() + 1)));
      {
        const NoGrad no_grad;
        for (const Tensor& x : model.parameters()) x.fill_(static_cast<double>(recorder.steps()));
      }
      ema.update();
      recorder.save(sharded, loader, averages);
    };
    save();
    double before = 1;
    std::vector<int> renames;
    for (int i = 1; renames.empty() || renames.back() < 2; ++i) {
      const FaultScope scope({.fail_fsync = i, .error = EIO});
      EXPECT_WEFT_ERROR(save(), Io, "Input/output error");
      renames.push_back(scope.faults().renames);
      if (renames.back() == 2) before = static_cast<double>(recorder.steps());
      EXPECT_EQ(loaded(folder.root()), before) << i;
    }
    // The fsyncs: two files, each when it is made, written and finished; then file and folder of
    // index and checkpoint.
    EXPECT_EQ(renames, (std::vector{0, 0, 0, 0, 0, 0, 0, 1, 1, 2}));
    save();
    EXPECT_EQ(loaded(folder.root()), static_cast<double>(recorder.steps()));
    EXPECT_EQ(folder.files(), 4) << "what failed saves left was not cleaned up";
  });
  ::testing::internal::GetCapturedStderr();
}

// A run that goes on after a save has failed at any moment has a checkpoint of every epoch, and the
// files that it names.
TEST(ShardedCheckpointFault, NoEpochLosesItsKeptCheckpoint) {
  ::testing::internal::CaptureStderr();
  comm::run_ranks(1, [](comm::ProcessGroup& group) {
    bool failed = true;
    int renames = 0;  // before the fsync that failed
    for (int i = 1; failed; ++i) {
      const TempFolder folder;
      testing::write_file(folder.path("checkpoint.safetensors.link"), "");  // of a killed run
      const auto train_to = [&](std::int64_t epochs, int fail_fsync) {
        nn::Sequential model = {nn::Linear(4, 3)};
        const auto sharded = parallel::fully_shard(model, group);
        train::Options options;
        options.out = folder.root();
        options.resume = "latest";
        options.epochs = epochs;
        options.keep_checkpoints = true;
        train::Recorder recorder(options);
        data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
        recorder.resume(sharded, loader);
        while (recorder.next_epoch()) {
          for (auto& x : recorder.batches(loader)) recorder.step(scalar(x.numel()));
          const FaultScope scope({.fail_fsync = fail_fsync, .error = EIO});
          try {
            recorder.save(sharded, loader);
          } catch (const Error&) {
            renames = scope.faults().renames;
            throw;
          }
        }
      };
      try {
        train_to(1, i);
        failed = false;
      } catch (const Error& error) {
        EXPECT_HAS(std::string(error.what()), "Input/output error");
      }
      train_to(2, 0);
      for (const std::string name : {"-epoch-0", "-epoch-1", ""}) {
        const std::string path = folder.path("checkpoint" + name + ".safetensors");
        ASSERT_TRUE(std::filesystem::exists(path)) << path << ", fsync " << i;
        EXPECT_EQ(train::load_checkpoint(path).losses.size(), name == "-epoch-0" ? 1U : 2U);
      }
      EXPECT_TRUE(std::filesystem::equivalent(folder.path("checkpoint.safetensors"),
                                              folder.path("checkpoint-epoch-1.safetensors")));
      EXPECT_FALSE(std::filesystem::exists(folder.path("checkpoint.safetensors.link")));
    }
    EXPECT_EQ(renames, 3) << "the index, the epoch's file, its second name, which is flushed, too";
  });
  ::testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace weft
