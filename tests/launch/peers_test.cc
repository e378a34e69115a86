// Other launchers start weft's programs, and weftrun theirs.
#include <filesystem>

#include "weft/tests/launch/training.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

class Peers : public testing::TwoRanksTrain {
 protected:
  void SetUp() override {
    const char* given = std::getenv("WEFT_PEER");
    if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch";
    folder_of_python_ = std::filesystem::path(given).parent_path();
    std::filesystem::create_directory(folder.path("run"));
    ::setenv("XDG_RUNTIME_DIR", folder.path("run").c_str(), 1);
  }

  /// Checks that `launcher PROGRAM`, run twice, and weftrun give the same results.
  void expect_same_by(const std::string& launcher) const {
    train_by_weftrun("weftrun");
    for (const std::string out : {"first", "again"}) {
      ASSERT_EQ(run(launcher + " " + program(out)), 0) << log();
      expect_same(out, "weftrun");
      EXPECT_TRUE(std::filesystem::is_empty(folder.path("run"))) << "a store is left";
    }
  }

  std::filesystem::path folder_of_python_;
};

TEST_F(Peers, TorchrunStartsTwoRanks) {
  const std::string torchrun = folder_of_python_ / "torchrun";
  ASSERT_TRUE(std::filesystem::exists(torchrun)) << torchrun;
  for (const char* where : {"", " --standalone"}) {
    SCOPED_TRACE(where);
    expect_same_by(torchrun + where + " --no-python --nproc-per-node 2");
  }
}

TEST_F(Peers, MpirunStartsTwoRanks) {
  if (run("command -v mpirun") != 0) GTEST_SKIP() << "no mpirun; it is in Debian's openmpi-bin";
  // The options are needed for root, and on a machine with a single core.
  expect_same_by(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -np 2");
}

TEST_F(Peers, MpichStartsTwoRanks) {
  if (run("command -v mpiexec.mpich") != 0) GTEST_SKIP() << "no MPICH; it is in Debian's mpich";
  expect_same_by("mpiexec.mpich -n 2");
}

// A cluster of two nodes, made from namespaces of this host.
class Slurm : public Peers {
 protected:
  void SetUp() override {
    Peers::SetUp();
    if (IsSkipped()) return;
    ::setenv("PATH", (std::string(::getenv("PATH")) + ":/usr/sbin:/sbin").c_str(), 1);
    if (run("command -v slurmctld && command -v munged") != 0) {
      GTEST_SKIP() << "no Slurm; it is in Debian's slurm-wlm and munge";
    }
    if (run(kUnshare + "true") != 0) GTEST_SKIP() << "no namespaces here: " << log();
  }
  /// Runs a line of sh on the first node; returns its status.
  int on_cluster(const std::string& line) const {
    const std::string cluster = folder.path("cluster");
    std::filesystem::remove_all(cluster);
    std::filesystem::create_directory(cluster);
    return run("timeout 100 " + kUnshare + "sh tests/launch/slurm.sh " + cluster + " '" + line +
               "'");
  }

 private:
  const std::string kUnshare =
      "unshare --net --uts --mount --pid --fork --mount-proc --kill-child ";
};

TEST_F(Slurm, SrunStartsTwoRanksOnOneNode) {
  train_by_weftrun("weftrun");
  ASSERT_EQ(on_cluster("srun --nodes 1 --ntasks 2 " + program("first") +
                       " && srun --nodes 1 "
                       "--ntasks 2 " +
                       program("again")),
            0)
      << log();
  expect_same("first", "weftrun");
  expect_same("again", "weftrun");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("run"))) << "a store is left";
}

// With one rank per node instead of four.
TEST_F(Slurm, TheScriptOfThePageTrainsOnTwoNodes) {
  const std::string page = testing::read_file("docs/ddp.md"), first = "#!/bin/bash\n#SBATCH ";
  const std::size_t begin = page.find(first);
  ASSERT_NE(begin, std::string::npos);
  std::string script = page.substr(begin, page.find("```", begin) - begin);
  const auto replace = [&](const std::string& text, const std::string& by) {
    const std::size_t at = script.find(text);
    ASSERT_NE(at, std::string::npos) << text;
    script.replace(at, text.size(), by);
  };
  replace("--ntasks-per-node=4", "--ntasks-per-node=1");
  replace("mlp_ddp --threads 8", program("two_nodes"));
  testing::write_file(folder.path("script"), script);
  train_by_weftrun("weftrun");
  ASSERT_EQ(
      on_cluster("sbatch --wait --output " + folder.path("output") + " " + folder.path("script")),
      0)
      << log() << testing::read_file(folder.path("output"));
  expect_same("two_nodes", "weftrun");
}

TEST_F(Peers, WeftrunStartsATorchDistributedScript) {
  testing::write_file(folder.path("train.py"), R"(
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(x)
print("sum", x.item(), "of", dist.get_world_size())
dist.destroy_process_group()
)");
  ASSERT_EQ(run("PATH=" + folder_of_python_.string() + ":$PATH launch/weftrun --nproc-per-node 2 " +
                folder.path("train.py") + " 2>" + folder.path("errors")),
            0)
      << testing::read_file(folder.path("errors"));
  const auto lines = testing::lines_by_rank(log());
  for (const int rank : {0, 1}) {
    EXPECT_EQ(lines.at(rank), (std::vector<std::string>{"sum 3.0 of 2"})) << log();
  }
}

}  // namespace
}  // namespace weft::launch
