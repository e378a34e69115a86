// Whole runs in their own processes: resuming bit for bit, signals, statuses.
#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <thread>

#include "weft/autograd/autocast.h"
#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/float32_precision.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/train/checkpoint.h"
#include "weft/train/interrupt.h"
#include "weft/train/program.h"

extern char** environ;

namespace weft::train {
namespace {

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    // 200 random pictures of 8 x 8.
    std::mt19937 random(1);
    std::string images = testing::idx_header({200, 8, 8}), labels = testing::idx_header({200});
    for (int i = 0; i < 200 * 64; ++i) images += static_cast<char>(random());
    for (int i = 0; i < 200; ++i) labels += static_cast<char>(random() % 10);
    std::filesystem::create_directory(folder.path("data"));
    testing::write_file(folder.path("data/train-images-idx3-ubyte"), images);
    testing::write_file(folder.path("data/train-labels-idx1-ubyte"), labels);
  }

  pid_t start(const std::string& out, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"tests/train/small_run", "--data", folder.path("data"), "--out",
                      folder.path(out), "--batch-size", "16", "--device", "cpu", "--threads", "1"});
    if (deterministic) arguments.push_back("--deterministic");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string log = folder.path("log");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    pid_t child = 0;
    const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error(std::string("cannot start: ") + std::strerror(error));
    return child;
  }
  static int wait(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
  int run(const std::string& out, std::vector<std::string> arguments) {
    const int status = wait(start(out, std::move(arguments)));
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  std::string checkpoint(const std::string& out) const {
    return folder.path(out) + "/checkpoint.safetensors";
  }
  /// Waits until the first checkpoint exists.
  void await_checkpoint(const std::string& out) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(checkpoint(out))) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << log();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  /// Weights, moments, generator, loader, losses: everything that later steps depend on, bit for
  /// bit.
  static void expect_same(const std::string& a, const std::string& b) {
    const Checkpoint x = load_checkpoint(a), y = load_checkpoint(b);
    const auto same = [](const io::NamedTensors& p, const io::NamedTensors& q) {
      ASSERT_EQ(p.size(), q.size());
      ASSERT_FALSE(p.empty());
      for (std::size_t i = 0; i < p.size(); ++i) {
        EXPECT_EQ(p[i].first, q[i].first);
        ASSERT_EQ(p[i].second.shape(), q[i].second.shape());
        EXPECT_EQ(std::memcmp(p[i].second.raw_data(), q[i].second.raw_data(),
                              p[i].second.numel() * size_of(p[i].second.dtype())),
                  0)
            << p[i].first;
      }
    };
    same(x.model, y.model);
    ASSERT_EQ(x.parts.size(), 1u);
    ASSERT_EQ(y.parts.size(), 1u);
    same(x.parts[0], y.parts[0]);
    EXPECT_EQ(x.generator, y.generator);
    EXPECT_EQ(x.loader, y.loader);
    EXPECT_EQ(x.losses, y.losses);
  }

  testing::TempFolder folder;
  bool deterministic = true;
};

// An epoch has 13 steps: step 10 is in the first one, step 20 in the second.
TEST_F(RunTest, TenStepsAndTenMoreAreTwenty) {
  for (const char* dtype : {"f32", "f64"}) {
    ASSERT_EQ(run("whole", {"--limit-steps", "20", "--dtype", dtype}), 0) << log();
    ASSERT_EQ(run("part", {"--limit-steps", "10", "--dtype", dtype}), 0) << log();
    ASSERT_EQ(load_checkpoint(checkpoint("part")).losses.size(), 10u);
    ASSERT_EQ(run("part", {"--limit-steps", "20", "--dtype", dtype, "--workers", "0", "--seed", "5",
                           "--resume", checkpoint("part")}),
              0)
        << log();
    expect_same(checkpoint("whole"), checkpoint("part"));
  }
}

TEST_F(RunTest, SigintSavesAndEndsWith130) {
  const pid_t child = start("out", {"--epochs", "1000000"});
  await_checkpoint("out");
  ASSERT_EQ(::kill(child, SIGINT), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_EQ(::kill(child, SIGINT), 0);  // as by timeout(1)
  const int status = wait(child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130) << log();
  const std::size_t steps = load_checkpoint(checkpoint("out")).losses.size();
  EXPECT_GT(steps, 0u);
  const std::string limit = std::to_string(steps + 30);
  ASSERT_EQ(
      run("out", {"--epochs", "1000000", "--limit-steps", limit, "--resume", checkpoint("out")}),
      0);
  ASSERT_EQ(run("whole", {"--epochs", "1000000", "--limit-steps", limit}), 0);
  expect_same(checkpoint("whole"), checkpoint("out"));
}

// It is often killed while it writes.
TEST_F(RunTest, KilledAndResumedIsTheSameRun) {
  const pid_t child = start("out", {"--epochs", "1000000", "--checkpoint-every", "1"});
  await_checkpoint("out");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(WIFSIGNALED(wait(child)));
  const std::string limit = std::to_string(load_checkpoint(checkpoint("out")).losses.size() + 7);
  ASSERT_EQ(run("out", {"--epochs", "1000000", "--limit-steps", limit, "--resume", "latest"}), 0);
  ASSERT_EQ(run("whole", {"--epochs", "1000000", "--limit-steps", limit}), 0);
  expect_same(checkpoint("whole"), checkpoint("out"));
}

TEST_F(RunTest, ASecondRunTimesNoKernels) {
  ::setenv("WEFT_LOG", "perf", 1);
  ::setenv("WEFT_CACHE", folder.path("cache").c_str(), 1);
  const auto lines_with = [&](const std::string& end) {
    int n = 0;
    const std::string text = log();
    for (auto at = text.find(end); at != std::string::npos; at = text.find(end, at + 1)) ++n;
    return n;
  };
  ASSERT_EQ(run("out", {"--limit-steps", "2"}), 0) << log();
  EXPECT_EQ(lines_with("(timed)"), 0);
  EXPECT_GT(lines_with("(deterministic rule)"), 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("cache")));
  deterministic = false;
  ASSERT_EQ(run("out", {"--limit-steps", "2"}), 0) << log();
  const int timed = lines_with("(timed)");
  EXPECT_GT(timed, 0);
  EXPECT_EQ(lines_with("(remembered)"), 0);
  ASSERT_EQ(run("out", {"--limit-steps", "2"}), 0) << log();
  EXPECT_EQ(lines_with("(timed)"), 0);
  EXPECT_EQ(lines_with("(remembered)"), timed);
  // Killed while it trains: the choices that its checkpoint contains stay.
  std::filesystem::remove_all(folder.path("cache"));
  std::filesystem::remove_all(folder.path("out"));
  const pid_t child = start("out", {"--epochs", "1000000"});
  await_checkpoint("out");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(WIFSIGNALED(wait(child)));
  ASSERT_EQ(run("out", {"--limit-steps", "2"}), 0) << log();
  EXPECT_EQ(lines_with("(timed)"), 0);

  ::setenv("WEFT_LOG", "verbose", 1);
  ::setenv("WEFT_CACHE", "off", 1);
  ASSERT_EQ(run("out", {"--limit-steps", "2"}), 0) << log();
  EXPECT_EQ(lines_with("perf:"), 0);
  EXPECT_HAS(log(), "warning: WEFT_LOG: got 'verbose', expected perf");
  ::unsetenv("WEFT_LOG");
}

TEST_F(RunTest, StatusesAndMessages) {
  EXPECT_EQ(run("out", {"--epohcs", "1"}), 2);
  EXPECT_HAS(log(), "unknown option --epohcs; did you mean --epochs?");
  EXPECT_EQ(run("out", {"--data", folder.path("nowhere")}), 1);
  EXPECT_HAS(log(), folder.path("nowhere") + ": no such folder");
  EXPECT_HAS(log(),
             "\nsmall_run: --data wants: folder of MNIST's IDX files; to fetch it: ./weft fetch "
             "fashion-mnist (or mnist), then --data fashion-mnist; or, on Debian, apt install "
             "dataset-fashion-mnist, which is where --data looks by default\n");
  EXPECT_EQ(run("out", {"--device", "cuda:63"}), 1);
  EXPECT_HAS(log(), "cuda:63");
  EXPECT_EQ(run("out", {"--resume", folder.path("nothing")}), 1);
  EXPECT_HAS(log(), "cannot open");
  EXPECT_LACKS(log(), "--data");
  EXPECT_EQ(run("out", {"--lr", "1e8", "--dtype", "f32"}), 0);
  // Reported before the training.
  EXPECT_EQ(run("new", {"--trace", folder.path("nowhere/trace.json")}), 1);
  EXPECT_HAS(log(), "cannot create " + folder.path("nowhere/trace.json"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("new")));
  testing::write_file(folder.path("file"), "");
  EXPECT_EQ(run("file", {}), 1);
  EXPECT_HAS(log(), folder.path("file") +
                        ": cannot make this folder: Not a directory; choose "
                        "another with --out");
}

TEST_F(RunTest, LeavesItsErrorForWhoStartedIt) {
  const std::string file = folder.path("error.json");
  ::setenv("WEFT_ERROR_FILE", file.c_str(), 1);
  EXPECT_EQ(run("out", {"--limit-steps", "1"}), 0);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(run("out", {"--data", folder.path("nowhere")}), 1);
  const auto error = nlohmann::json::parse(testing::read_file(file));
  EXPECT_EQ(error["code"], "Io");
  EXPECT_HAS(error["message"].get<std::string>(), "nowhere: no such folder");
  ::setenv("WEFT_ERROR_FILE", folder.path("nowhere/error.json").c_str(), 1);
  EXPECT_EQ(run("out", {"--data", folder.path("nowhere")}), 1);
  EXPECT_HAS(log(), "nowhere: no such folder");
  ::unsetenv("WEFT_ERROR_FILE");
}

TEST_F(RunTest, AnotherModelsCheckpointIsListed) {
  Checkpoint other;
  other.model = {};
  other.parts.resize(1);
  save_checkpoint(folder.path("other"), other);
  EXPECT_EQ(run("out", {"--resume", folder.path("other")}), 1);
  EXPECT_HAS(log(), "1.weight");
  other.notes["example"] = "dcgan";
  save_checkpoint(folder.path("other"), other);
  EXPECT_EQ(run("out", {"--resume", folder.path("other")}), 1);
  EXPECT_HAS(log(), folder.path("other") + ": it is of the program dcgan, this is small_run");
}

TEST_F(RunTest, TraceHasSpansOfEveryPart) {
  // A single worker does all the work; of two the first might get none.
  const std::string file = folder.path("trace.json");
  ASSERT_EQ(run("out", {"--epochs", "1", "--workers", "1", "--trace", file}), 0) << log();
  const std::string trace = testing::read_file(file);
  for (const char* text : {"\"loader\"", "\"fetch\"", "\"save_safetensors\"", "\"phase\"",
                           "\"optim\"", "\"step\":1", "\"main\"", "\"loader 0\""}) {
    EXPECT_HAS(trace, text);
  }
}

TEST(Program, TheBodyRunsUnderItsOptions) {
  const auto run_with = [](std::vector<const char*> arguments, const auto& body) {
    arguments.insert(arguments.begin(), {"test", "--device", "cpu"});
    return train::run(static_cast<int>(arguments.size()), arguments.data(), {.example = "test"},
                      body);
  };
  int runs = 0;
  EXPECT_EQ(run_with({},
                     [&](const Options&) {
                       EXPECT_FALSE(autograd::is_autocast_enabled(DeviceType::cpu));
                       EXPECT_EQ(get_float32_matmul_precision(), "highest");
                       EXPECT_FALSE(thread_state().deterministic);
                       ++runs;
                     }),
            0);
  EXPECT_EQ(run_with({"--amp", "bf16", "--float32-matmul-precision", "high", "--deterministic"},
                     [&](const Options&) {
                       EXPECT_TRUE(autograd::is_autocast_enabled(DeviceType::cpu));
                       EXPECT_EQ(get_float32_matmul_precision(), "high");
                       EXPECT_TRUE(thread_state().deterministic);
                       ++runs;
                     }),
            0);
  EXPECT_EQ(runs, 2);
  EXPECT_FALSE(autograd::is_autocast_enabled(DeviceType::cpu));
}

TEST(Program, ASignalInATestIsTheStatus) {
  const char* argv[] = {"program"};
  EXPECT_EQ(run(1, argv, {.example = "program"},
                [](const Options&) {
                  std::raise(SIGTERM);
                  throw_if_interrupted();
                  FAIL();
                }),
            128 + SIGTERM);
}

TEST(InterruptScope, LeavesTheCallersHandlers) {
  static std::atomic<int> calls = 0;
  const auto found = std::signal(SIGINT, +[](int) { ++calls; });
  {
    const InterruptScope scope;
    std::raise(SIGINT);
    EXPECT_TRUE(interrupted());
    EXPECT_EQ(calls, 0);
  }
  std::raise(SIGINT);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(interrupted());
  std::signal(SIGINT, found);
}

// As a shell starts a job in the background, and nohup any.
TEST(InterruptScope, WhatIsIgnoredStaysIgnored) {
  const auto found = std::signal(SIGINT, SIG_IGN);
  {
    const InterruptScope scope;
    std::raise(SIGINT);
    EXPECT_FALSE(interrupted());
    std::raise(SIGTERM);
    EXPECT_EQ(interrupt_status(), 128 + SIGTERM);
  }
  EXPECT_EQ(std::signal(SIGINT, found), SIG_IGN);
}

TEST(Program, ThreadsAreSharedByTheDevices) {
  const Scoped threads(&ThreadState::num_threads, 0);
  const std::vector<const char*> arguments = {"test", "--device",       "cpu", "--threads",
                                              "6",    "--host-devices", "3"};
  int team = 0, on_worker = 0;
  EXPECT_EQ(train::run(static_cast<int>(arguments.size()), arguments.data(), {.example = "test"},
                       [&](const Options&) {
                         team = num_threads();
                         JobGroup group;
                         group.submit("cpu:2", [&] { on_worker = num_threads(); });
                         group.wait();
                       }),
            0);
  EXPECT_EQ(team, 2);
  EXPECT_EQ(on_worker, 2);
  set_host_devices(1);
}

// libgomp reads the variable when it is loaded, so the program has to start with it.
TEST_F(RunTest, WaitsForAWhileAlone) {
  const char* const given = std::getenv("OMP_WAIT_POLICY");
  const std::string policy = given ? given : "";
  unsetenv("OMP_WAIT_POLICY");
  EXPECT_EQ(run("plain", {"--limit-steps", "1"}), 0);
  EXPECT_HAS(log(), "spins: 3000");
  setenv("GOMP_SPINCOUNT", "123", 1);
  EXPECT_EQ(run("given", {"--limit-steps", "1"}), 0);
  EXPECT_HAS(log(), "spins: 123\n");
  unsetenv("GOMP_SPINCOUNT");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  EXPECT_EQ(run("policy", {"--limit-steps", "1"}), 0);
  EXPECT_LACKS(log(), "spins");
  if (!given) unsetenv("OMP_WAIT_POLICY");
  if (given) setenv("OMP_WAIT_POLICY", policy.c_str(), 1);
}

TEST_F(RunTest, OutputThatIsLostIsAnError) {
  const std::string command = "tests/train/small_run --help >/dev/full 2>" + folder.path("log");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_HAS(log(), "small_run: error: [stdout] some of the output is lost");
}

// For each of a run's files as the one that no longer fits.
TEST_F(RunTest, AFullDiskEndsTheRunAndIsNamed) {
  const std::string small = folder.path("small");
  for (const std::string size : {"4k", "8k", "16k", "24k", "32k", "48k"}) {
    std::filesystem::create_directories(small);
    if (::mount("tmpfs", small.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) {
      GTEST_SKIP() << "no right to mount a tmpfs";
    }
    EXPECT_EQ(run("small/out", {"--epochs", "1", "--trace", small + "/trace.json"}), 1) << size;
    EXPECT_HAS(log(), "No space left on device") << size;
    EXPECT_HAS(log(), small) << size;
    ::umount(small.c_str());
  }
}

}  // namespace
}  // namespace weft::train
