// char_transformer_fsdp and resnet_fsdp, launched like by a user, and with other numbers of ranks.
#include <string>

#include "weft/tests/examples/transformer_run.h"

namespace weft {
namespace {

class FsdpRun : public testing::TransformerRun {
 protected:
  FsdpRun() : TransformerRun(2) {}
};

TEST_F(FsdpRun, EachStrategyOfTwoRanksIsOneProcessWithTheWholeBatch) {
  succeed("one", false, "char_transformer", in_f64(2) + "--batch-size 16 --sample 1");
  for (const std::string strategy : {"fsdp", "zero2", "zero1", "ddp"}) {
    succeed(strategy, true, "char_transformer_fsdp",
            in_f64(2) + "--batch-size 8 --strategy " + strategy);
    expect_same_as_one(strategy);
  }
  succeed("alone", false, "char_transformer_fsdp", in_f64(2) + "--batch-size 16");
  expect_same_run("one", "alone");
  succeed("dp", false, "char_transformer_dp", in_f64(2) + "--batch-size 16 --host-devices 2");
  expect_same_run("one", "dp");
  EXPECT_GT(memory("dp", 1, "parameters"), 0);
  const auto sent = [&](const char* out) { return metrics(out)["bytes_sent"].get<double>(); };
  EXPECT_GT(sent("ddp"), 0);
  EXPECT_GT(sent("fsdp"), 1.2 * sent("zero2"));  // the blocks' gathers before backward
  // Each rank has half of the moments, and all parameters for a while.
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(memory("fsdp", rank, "optimizer"), memory("ddp", rank, "optimizer") / 2,
                0.1 * memory("ddp", rank, "optimizer"));
    EXPECT_NEAR(memory("zero1", rank, "optimizer"), memory("ddp", rank, "optimizer") / 2,
                0.1 * memory("ddp", rank, "optimizer"));
    EXPECT_LT(memory("fsdp", rank, "whole_parameters"), memory("zero2", rank, "whole_parameters"));
    EXPECT_EQ(memory("ddp", rank, "whole_parameters"), 0);
  }
}

// Two groups of two ranks; then four of one, each of which has all moments.
TEST_F(FsdpRun, GroupsThatKeepCopiesAreOneProcessWithTheWholeBatch) {
  succeed("one", false, "char_transformer", in_f64(2) + "--batch-size 16 --sample 1");
  succeed("fsdp", true, "char_transformer_fsdp", in_f64(2) + "--batch-size 8");
  succeed("ddp", true, "char_transformer_fsdp", in_f64(2) + "--batch-size 8 --strategy ddp");
  launcher = "launch/weftrun --nproc-per-node 4";
  const std::string four = in_f64(2) + "--batch-size 4 --replicas ";
  succeed("hsdp", true, "char_transformer_fsdp", four + "2");
  expect_same_as_one("hsdp");
  for (int rank = 0; rank < 4; ++rank) {
    for (const char* owner : {"parameters", "whole_parameters", "gradients", "optimizer"}) {
      const double of_two = memory("fsdp", rank % 2, owner);
      EXPECT_NEAR(memory("hsdp", rank, owner), of_two, 0.1 * of_two) << rank << ' ' << owner;
    }
  }
  succeed("copies", true, "char_transformer_fsdp", four + "4 --strategy zero2");
  expect_same_as_one("copies");
  const double whole = memory("ddp", 0, "optimizer");
  EXPECT_NEAR(memory("copies", 3, "optimizer"), whole, 0.1 * whole);
  EXPECT_EQ(run("x", true, "char_transformer_fsdp", four + "3"), 1);
  EXPECT_HAS(log(), "--replicas 3 does not divide 4 ranks");
  for (const std::string strategy : {"ddp", "zero1"}) {
    EXPECT_EQ(run("x", true, "char_transformer_fsdp", four + "2 --strategy " + strategy), 1);
    EXPECT_HAS(log(), "--replicas is for parameters in parts, --strategy " + strategy);
  }
}

TEST_F(FsdpRun, ListsItsModules) {
  succeed("x", true, "char_transformer_fsdp", kNet + std::string("--summary"));
  EXPECT_HAS(log(), "TransformerBlock");
  succeed("x", false, "char_transformer", kNet + std::string("--summary"));
  EXPECT_HAS(log(), "TransformerBlock");
}

TEST_F(FsdpRun, StoppedAndResumedIsTheSameRun) {
  expect_resumes(true, "char_transformer_fsdp", kNet + std::string("--batch-size 8 --epochs 2"), 9,
                 "--seed 5");
}

TEST_F(FsdpRun, ACheckpointGoesOnWithAnotherNumberOfRanks) {
  succeed("whole", false, "char_transformer_fsdp", in_f64(3) + "--batch-size 8");
  succeed("part", true, "char_transformer_fsdp", in_f64(1) + "--batch-size 4");
  succeed("part", false, "char_transformer_fsdp", in_f64(2) + "--batch-size 8 --resume latest");
  succeed("part", true, "char_transformer_fsdp", in_f64(3) + "--batch-size 4 --resume latest");
  expect_same_run("whole", "part");
}

// The number of ranks changes in the middle of epochs, whose order is shuffled.
TEST_F(FsdpRun, AnotherNumberOfRanksGoesOnWithinAnEpoch) {
  const std::string net = kNet + std::string("--dtype f64 --epochs 2 ");
  succeed("whole", false, "char_transformer_fsdp", net + "--batch-size 16");
  succeed("part", true, "char_transformer_fsdp", net + "--batch-size 8 --limit-steps 3");
  succeed("part", false, "char_transformer_fsdp",
          net + "--batch-size 16 --limit-steps 13 --resume latest");
  EXPECT_HAS(log(), "generator r of 1 from (seed 7, step 3, r); the rest of the epoch is dealt");
  launcher = "launch/weftrun --nproc-per-node 4";
  succeed("part", true, "char_transformer_fsdp", net + "--batch-size 4 --resume latest");
  expect_same_run("whole", "part");

  // 3 steps of 2 x 8 samples, one of 8, and 5 of 3 x 6 for the other 72 of 128.
  launcher = "launch/weftrun --nproc-per-node 2";
  const std::string epoch = kNet + std::string("--dtype f64 --epochs 1 ");
  succeed("other", true, "char_transformer_fsdp", epoch + "--batch-size 8 --limit-steps 3");
  succeed("other", true, "char_transformer_fsdp",
          epoch + "--batch-size 4 --limit-steps 4 --resume latest");
  launcher = "launch/weftrun --nproc-per-node 3";
  succeed("other", true, "char_transformer_fsdp", epoch + "--batch-size 6 --resume latest");
  const auto whole = metrics("whole")["losses"], other = metrics("other")["losses"];
  EXPECT_EQ(other.size(), 8U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(other[i].get<double>(), whole[i].get<double>(), 1e-9);
  }
}

TEST_F(FsdpRun, ProgramsGoOnFromEachOthersCheckpoints) {
  succeed("whole", false, "char_transformer", in_f64(5) + "--batch-size 16 --sample 1");
  succeed("part", true, "char_transformer_fsdp", in_f64(1) + "--batch-size 8");
  succeed("part", true, "char_transformer_tp", in_f64(2) + "--batch-size 16 --resume latest");
  succeed("part", false, "char_transformer",
          in_f64(3) + "--batch-size 16 --sample 1 --resume latest");
  succeed("part", true, "char_transformer_fsdp", in_f64(4) + "--batch-size 8 --resume latest");
  succeed("part", true, "char_transformer_fsdp",
          in_f64(5) + "--batch-size 8 --strategy ddp --resume latest");
  expect_same_run("whole", "part");
  EXPECT_NE(run("part", false, "mlp", "--resume latest"), 0);
  EXPECT_HAS(log(), "it is of the program char_transformer_fsdp, this is mlp");
}

// A rank is killed in its second save, which the others have begun, too.
TEST_F(FsdpRun, ARankThatIsKilledInASaveLeavesTheOneBefore) {
  const std::string options = kNet + std::string("--batch-size 8 --epochs 2");
  succeed("whole", true, "char_transformer_fsdp", options);
  for (const std::string rank : {"0", "1"}) {
    const std::string out = "killed" + rank;
    setenv("WEFT_FAULT", ("kill:rank=" + rank + ":step=16:phase=save").c_str(), 1);
    EXPECT_EQ(run(out, true, "char_transformer_fsdp", options), 137) << log();
    unsetenv("WEFT_FAULT");
    const std::string end = "-00001-of-00001.safetensors";
    const auto is_there = [&](const std::string& name) {
      return std::filesystem::exists(folder.path(out + '/' + name + end));
    };
    EXPECT_TRUE(is_there("model-8") && is_there("model-16")) << "killed before or after the save";
    succeed(out, true, "char_transformer_fsdp", options + " --resume latest");
    expect_same_bits(out, "whole");
    // The files of the killed run were removed first.
    EXPECT_FALSE(is_there("model-8") || is_there("model-16.2") || is_there("optimizer-16.2"));
    EXPECT_TRUE(is_there("model-16") && is_there("optimizer-16"));
  }
}

TEST_F(FsdpRun, ARankThatIsKilledEndsTheOther) {
  setenv("WEFT_FAULT", "kill:rank=1:step=3", 1);
  EXPECT_EQ(
      run("killed", true, "char_transformer_fsdp", kNet + std::string("--batch-size 8 --epochs 1")),
      137)
      << log();
  unsetenv("WEFT_FAULT");
  EXPECT_HAS(log(), "rank 1 failed first");
}

// Parameters, gradients and moments of all blocks do not fit; those of a half, and two whole blocks
// do, also when they are saved and loaded.
TEST_F(FsdpRun, TrainsWhatDoesNotFitWithDdp) {
  const std::string options =
      "--device cpu --context 8 --width 64 --heads 2 --layers 8 --batch-size 1 "
      "--host-device-memory 5MiB --limit-steps ";
  succeed("fits", true, "char_transformer_fsdp", options + "5");
  succeed("fits", true, "char_transformer_fsdp", options + "8 --resume latest");
  EXPECT_EQ(run("ddp", true, "char_transformer_fsdp", options + "5 --strategy ddp"), 1);
  EXPECT_HAS(log(), "OutOfMemory");
}

// In f32, with batch norms of each rank's batch; in f64 and with fixed ones also one process.
TEST_F(FsdpRun, EachStrategyOfTheResNetTakesTheVerySteps) {
  const std::string options = "--data fake --image-size 8 --seed 7 --backend shm --limit-steps 3 ";
  for (const std::string strategy : {"ddp", "fsdp", "zero2", "zero1"}) {
    succeed(strategy, true, "resnet_fsdp", options + "--batch-size 8 --strategy " + strategy);
    expect_same_bits("ddp", strategy);
    EXPECT_EQ(metrics(strategy)["test"], metrics("ddp")["test"]);
  }
  EXPECT_NEAR(memory("fsdp", 1, "optimizer"), memory("ddp", 1, "optimizer") / 2,
              0.1 * memory("ddp", 1, "optimizer"));
  EXPECT_LT(memory("fsdp", 1, "whole_parameters"), memory("zero2", 1, "whole_parameters"));

  const std::string fixed =
      "--data fake --image-size 8 --limit-steps 3 --dtype f64 --no-shuffle --lr 0.1 --freeze "
      "all-but-fc ";
  succeed("one", false, "resnet", fixed + "--batch-size 8");
  succeed("two", true, "resnet_fsdp", fixed + "--batch-size 4");
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["test"], metrics("one")["test"]);
}

TEST_F(FsdpRun, TheResNetIsStoppedAndResumed) {
  expect_resumes(true, "resnet_fsdp",
                 "--data fake --image-size 8 --batch-size 8 --schedule cosine --limit-steps 5", 3,
                 "--seed 5");
}

}  // namespace
}  // namespace weft
