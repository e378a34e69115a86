// The launchers of others start weft's programs, and weftrun theirs.
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

  /// `launcher PROGRAM`, and again, and weftrun's run give the same.
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
  // For root, and for a machine with a single core.
  expect_same_by(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -np 2");
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
