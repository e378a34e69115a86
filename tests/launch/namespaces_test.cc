// Two network namespaces as two hosts, with nothing between them but a pair of virtual interfaces:
// a rank in each, started by a weftrun there or as srun would, that trains with the other one over
// TCP.
#include <sys/stat.h>
#include <unistd.h>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/launch/training.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

// To be run in a namespace of its own, which gets host 10.77.0.1, and starts host 10.77.0.2. $1 is
// the command of the first one, $2 that of the second one. With its last process each namespace is
// gone, and the interfaces in it.
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
    // ip(8) is not in everybody's PATH.
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
      // Those of this test, which itself began without the variable.
      return testing::processes_with("WEFT_TEST_RUN=" + mark_).empty();
    })) << "processes are left";
    ::unsetenv("WEFT_TEST_RUN");
  }

  /// The status of mlp_ddp with a rank on each host, told where to listen by `local_addr`.
  int train(const std::string& out, const std::string& options, bool local_addr = true) const {
    return on_two_hosts([&](const std::string& node, const std::string& address) {
      return "launch/weftrun --nnodes 2 --rdzv-endpoint 10.77.0.1:29400 --token-file " +
             folder.path("token") + " --node-rank " + node +
             (local_addr ? " --local-addr " + address + " " : " ") + program(out) + options;
    });
  }
  /// The same of the ranks that docs/ddp.md's script for Slurm starts, but that for names of nodes
  /// it has their addresses.
  int train_by_srun(const std::string& out, const std::string& options) const {
    return on_two_hosts([&](const std::string& node, const std::string& address) {
      return "env SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=" + node +
             " SLURM_NTASKS=2 SLURM_NODEID=" + node +
             " SLURM_LOCALID=0 \"SLURM_STEP_TASKS_PER_NODE=1(x2)\" MASTER_ADDR=10.77.0.1 "
             "MASTER_PORT=20077 WEFT_STORE_TOKEN=secret WEFT_LOCAL_ADDR=" +
             address + " " + program(out) + options;
    });
  }

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
    // Shared memory is not for ranks of several hosts.
    EXPECT_EQ(metrics(backend)["backend"], backend != "auto" ? backend : gloo ? "gloo" : "ring");
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

TEST_F(Namespaces, WhoListensOnLoopbackIsToldSo) {
  EXPECT_NE(train("out", "", false), 0);
  EXPECT_NE(log().find("listens on 127.0.0.1, where only its own host reaches it"),
            std::string::npos)
      << log();
  EXPECT_NE(log().find("--local-addr"), std::string::npos) << log();
}

}  // namespace
}  // namespace weft::launch
