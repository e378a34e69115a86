// Two network namespaces replace two hosts; only a pair of virtual interfaces connects them. In
// each of them weftrun, or srun's environment, starts a rank, and the two train over TCP.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <new>
#include <thread>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/launch/strangers.h"
#include "weft/tests/launch/training.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

// Must run in a namespace of its own, which becomes host 10.77.0.1 and starts host 10.77.0.2. $1 is
// the command for the first one, $2 for the second. Each namespace and its interfaces end with its
// last process.
constexpr const char* kTwoHosts = R"sh(
set -eu
ip link set lo up
unshare --net sh -euc '
  until ip link show weft1 >/dev/null 2>&1; do sleep 0.02; done
  ip link set lo up
  ip address add 10.77.0.2/30 dev weft1
  ip link set weft1 up
  eval "exec $1"' sh "$2" &
second=$!
trap 'kill $second 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$second/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
  sleep 0.02
done
ip link add weft0 type veth peer name weft1 netns $second
ip address add 10.77.0.1/30 dev weft0
ip link set weft0 up
status=0
eval "$1" || status=$?
wait $second || status=$?
exit $status
)sh";

class Namespaces : public testing::TwoRanksTrain {
 protected:
  void SetUp() override {
    // PATH may lack ip(8).
    ::setenv("PATH", (std::string(::getenv("PATH")) + ":/usr/sbin:/sbin").c_str(), 1);
    ::setenv("WEFT_TEST_RUN", mark_.c_str(), 1);
    testing::write_file(folder.path("hosts"), kTwoHosts);
    testing::write_file(folder.path("token"), "the very same secret");
    ::chmod(folder.path("token").c_str(), 0600);
    for (const char* own : {"unshare --net ", "unshare --user --map-root-user --net "}) {
      unshare_ = own;
      if (run(unshare_ + "ip link add weft0 type veth peer name weft1") == 0) return;
    }
    GTEST_SKIP() << "no network namespaces here: " << log();
  }
  void TearDown() override {
    EXPECT_TRUE(testing::becomes_true([&] {
      // The processes of this test; the test itself was started without the variable.
      return testing::processes_with(mark()).empty();
    })) << "processes are left";
    ::unsetenv("WEFT_TEST_RUN");
  }

  /// Runs mlp_ddp with a rank on each host, whose address is given by `local_addr`; returns the
  /// status.
  int train(const std::string& out, const std::string& options, bool local_addr = true) const {
    return on_two_hosts([&](const std::string& node, const std::string& address) {
      return "launch/weftrun --nnodes 2 --rdzv-endpoint 10.77.0.1:29400 --token-file " +
             folder.path("token") + " --node-rank " + node +
             (local_addr ? " --local-addr " + address + " " : " ") + program(out) + options;
    });
  }
  /// The same, with ranks that docs/ddp.md's script for Slurm starts; it has addresses instead of
  /// names of nodes.
  int train_by_srun(const std::string& out, const std::string& options) const {
    return on_two_hosts([&](const std::string& node, const std::string& address) {
      return "env SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=" + node +
             " SLURM_NTASKS=2 SLURM_NODEID=" + node +
             " SLURM_LOCALID=0 \"SLURM_STEP_TASKS_PER_NODE=1(x2)\" MASTER_ADDR=10.77.0.1 "
             "MASTER_PORT=20077 WEFT_STORE_TOKEN=secret WEFT_LOCAL_ADDR=" +
             address + " " + program(out) + options;
    });
  }

  /// A variable in the environment of the ranks.
  std::string mark() const { return "WEFT_TEST_RUN=" + mark_; }

 private:
  template <class Command>
  int on_two_hosts(const Command& command) const {
    return run("timeout 60 " + unshare_ + "sh " + folder.path("hosts") + " '" +
               command("0", "10.77.0.1") + "' '" + command("1", "10.77.0.2") + "'");
  }

  const std::string mark_ = "namespaces_" + std::to_string(::getpid());
  std::string unshare_;
};

TEST_F(Namespaces, TwoHostsTrainAsOneDoes) {
  train_by_weftrun("one_host");
  const bool gloo = comm::testing::missing_backend("gloo").empty();
  for (const std::string backend : {"gloo", "ring", "auto"}) {
    if (backend == "gloo" && !gloo) continue;
    ASSERT_EQ(train(backend, " --backend " + backend), 0) << log();
    expect_same(backend, "one_host");
    // Ranks on several hosts cannot share memory.
    EXPECT_EQ(metrics(backend)["backend"], backend != "auto" ? backend : "ring");
  }
}

TEST_F(Namespaces, RanksOfSrunTrainAsThoseOfWeftrunDo) {
  train_by_weftrun("one_host");
  for (const std::string backend : {"gloo", "ring"}) {
    if (!comm::testing::missing_backend(backend).empty()) continue;
    ASSERT_EQ(train_by_srun(backend, " --backend " + backend), 0) << log();
    expect_same(backend, "one_host");
  }
}

/// A process that connects to everything that listens on one of the hosts, from before the ranks
/// meet.
class Scan {
 public:
  explicit Scan(const std::string& mark) : pid_(::fork()) {
    if (pid_ == 0) {
      while (!enter_host(mark)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      for (testing::Strangers strangers;;) {
        for (const auto& [inode, address] : testing::listening_sockets()) {
          for (int i = 0; i < 8; ++i) *visits_ += strangers.visit(address);
        }
      }
    }
  }
  ~Scan() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(visits_, sizeof *visits_);
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  int visits() const { return *visits_; }

 private:
  /// Enters the network of the first process there, once it has its own.
  static bool enter_host(const std::string& mark) {
    const auto name_space = [](const std::string& process, const char* of) {
      return "/proc/" + process + "/ns/" + of;
    };
    for (const pid_t there : testing::processes_with(mark)) {
      const std::string process = std::to_string(there);
      const auto is_own = [&](const char* of) {
        std::error_code gone;
        return std::filesystem::equivalent(name_space(process, of), name_space("self", of), gone) ||
               gone;
      };
      const auto enter = [&](const char* of) {
        const int fd = ::open(name_space(process, of).c_str(), O_RDONLY | O_CLOEXEC);
        const bool entered = fd >= 0 && ::setns(fd, 0) == 0;
        ::close(fd);
        return entered;
      };
      if (!is_own("net")) return (is_own("user") || enter("user")) && enter("net");
    }
    return false;
  }

  // Shared by both processes.
  std::atomic<int>* const visits_ =
      new (::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<int>(0);
  const pid_t pid_;
};

// Ranks that meet with "auto", which does not mean shared memory here; the scan lasts as long as
// they train.
TEST_F(Namespaces, APortScanDoesNotDisturbTheRanks) {
  train_by_weftrun("one_host");
  const Scan scan(mark());
  ASSERT_EQ(train("scanned", " --backend auto"), 0) << log();
  expect_same("scanned", "one_host");
  EXPECT_GT(scan.visits(), 0);
}

TEST_F(Namespaces, WhoListensOnLoopbackIsToldSo) {
  EXPECT_NE(train("out", "", false), 0);
  EXPECT_HAS(log(), "listens on 127.0.0.1, where only its own host reaches it");
  EXPECT_HAS(log(), "WEFT_LOCAL_ADDR (an option of weftrun sets it)");
}

}  // namespace
}  // namespace weft::launch
