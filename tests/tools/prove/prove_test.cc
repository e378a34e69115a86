// tools/prove as a user sees it: programs with one mistake, and right ones.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/tests/tools/command.h"

namespace weft {
namespace {

class Prove : public testing::CommandTest {
 protected:
  Prove() : CommandTest("prove") { setenv("TMPDIR", folder.root().c_str(), 1); }
  ~Prove() override { unsetenv("TMPDIR"); }

  /// The verdict on a program, which must end with this status.
  nlohmann::json prove(const std::string& program, int status) const {
    EXPECT_EQ(run("--json " + folder.path("json") + " --launcher launch/weftrun " + program),
              status)
        << log();
    return nlohmann::json::parse(testing::read_file(folder.path("json")));
  }
  nlohmann::json prove_mistake(const std::string& mistake, int status) const {
    return prove("tests/tools/prove/mistakes --threads 1 --mistake " + mistake, status);
  }
  /// Expects one cause, or one note, with this name and this text in it.
  static void names(const nlohmann::json& list, const std::string& name, const std::string& text) {
    ASSERT_EQ(list.size(), 1U) << list;
    EXPECT_EQ(list[0]["name"], name);
    EXPECT_HAS(list[0]["text"].get<std::string>(), text);
  }
};

struct Mistake {
  std::string name, cause, text, first;  // cause empty: the records do not show it
};

class EachMistake : public Prove, public ::testing::WithParamInterface<Mistake> {};

TEST_P(EachMistake, IsNamed) {
  const auto& [name, cause, text, first] = GetParam();
  const auto verdict = prove_mistake(name, 1);
  EXPECT_EQ(verdict["verdict"], "differs");
  if (cause.empty()) {
    EXPECT_TRUE(verdict["causes"].empty()) << verdict;
    EXPECT_HAS(log(), "cause: no cause found");
  } else {
    names(verdict["causes"], cause, text);
    EXPECT_HAS(log(), "cause: ");
  }
  if (first.empty()) {  // both sides are equal, and both are wrong
    EXPECT_FALSE(verdict.contains("first")) << verdict;
    return;
  }
  EXPECT_HAS(log(), "first: " + first);
  EXPECT_GT(verdict["first"]["unlike"], 0);
  EXPECT_GT(verdict["first"]["elements"][0]["ulps"], 0);
  EXPECT_TRUE(std::filesystem::exists(verdict["records"].get<std::string>()));
}

INSTANTIATE_TEST_SUITE_P(
    Of, EachMistake,
    ::testing::Values(
        Mistake{"learning_rate", "learning_rate",
                "step 0: lr of optimizer 0 is 0.1 on rank 0 and 0.2 on rank 1",
                "step 0, rank 1: the weight body.0.weight"},
        Mistake{"weight_decay", "optimizer_option",
                "step 0: weight_decay of optimizer 0 is 0.0 on rank 0 and 0.01 on rank 1",
                "step 0, rank 1: the weight body.0.weight"},
        Mistake{"pipeline_mean", "", "", "step 0, rank 1: the gradient of head.weight"},
        Mistake{"lost_micro_batch", "lost_micro_batch",
                "step 0: micro-batch 4 (of 0 to 4) is missing in the gradient of body.0.bias, "
                "body.0.weight, head.bias and 1 more, which is what the other micro-batches add, "
                "times 1.25",
                "step 0, rank 1: the gradient of head.weight"},
        Mistake{"unadded_micro_batch", "lost_micro_batch",
                "step 0: micro-batch 1 (of 0 to 4) is missing in the gradient of body.0.bias, "
                "body.0.weight, head.bias and 1 more, which is what the other micro-batches add: "
                "does its backward run",
                "step 0, rank 1: the gradient of head.weight"},
        Mistake{"reduction_order", "reduction_order", "in f64 both sides agree, to ",
                "step 0, rank 0: the gradient of body.0.weight"},
        Mistake{"outside_module", "unreduced_gradient",
                "step 0: the gradient of head.bias, head.weight differs between ranks 0 and 1",
                "step 0, rank 0: the gradient of head.weight"},
        Mistake{"no_sync", "unreduced_gradient", "step 3: all gradients", "step 3, rank 0: "},
        Mistake{"not_in_horovod", "unreduced_gradient", "head.bias, head.weight",
                "step 0, rank 0: the gradient of head.weight"},
        Mistake{"no_broadcast", "unlike_replicas", "did they begin with other weights",
                "step 0, rank 1: the output of body.0 (Linear), call 0"},
        Mistake{"sampler_rank", "same_samples", "both read 20 samples", ""},
        Mistake{"sampler_seed", "same_samples", "ranks 0 and 1 both read ", ""},
        Mistake{"mean_of_means", "mean_of_means", "step 2: rank 0 has 3 samples and rank 1 has 2",
                ""},
        Mistake{"only_f32", "only_f32",
                "both sides agree, but step 0, rank 0: the gradient of body.0.weight",
                "step 0, rank 0: the gradient of body.0.weight"},
        Mistake{"seeded_draws", "dropout_draws", "the output of body.2 (Dropout), call 0",
                "step 0, rank 1: the output of body.2 (Dropout), call 0"}),
    [](const auto& info) { return info.param.name; });

TEST_F(Prove, NotesDoNotFail) {
  for (const auto& [name, text] : {std::pair("padded_samples", "26 samples of a data set of 25"),
                                   std::pair("equal_draws", "body.2 (Dropout)"),
                                   std::pair("local_batch_norm", "body.1 (BatchNorm1d)"),
                                   std::pair("random_samples", "those of the ranks from files")}) {
    const auto verdict = prove_mistake(name, 0);
    EXPECT_EQ(verdict["verdict"], "equal to the bit") << log();
    EXPECT_TRUE(verdict["causes"].empty()) << verdict;
    names(verdict["notes"], name, text);
    EXPECT_HAS(log(), "note: ");
  }
}

TEST_F(Prove, RightProgramsAreEqualToTheBit) {
  testing::write_mnist(folder.path("data"), 40, 12);
  const std::string options =
      " --threads 1 --batch-size 4 --limit-steps 3 --data " + folder.path("data");
  const std::vector<std::string> programs = {
      "tests/tools/prove/mistakes --threads 1",
      "tests/tools/prove/mistakes --threads 1 --mistake horovod",
      "tests/tools/prove/mistakes --threads 1 --mistake pipeline", "examples/mlp_ddp" + options,
      "examples/autoencoder_ddp" + options};
  for (const std::string& program : programs) {
    const auto verdict = prove(program, 0);
    EXPECT_EQ(verdict["verdict"], "equal to the bit") << program << log();
    EXPECT_TRUE(verdict["causes"].empty() && verdict["notes"].empty()) << verdict;
    EXPECT_GT(verdict["compared"]["gradient"], 20) << program;
    EXPECT_FALSE(verdict.contains("records"));
  }
}

// The order of addends matters for sums of three ranks, and for a batch on two devices.
TEST_F(Prove, AnotherOrderOfSumsIsANote) {
  testing::write_mnist(folder.path("data"), 40, 12);
  const auto three = prove("--ranks 3 tests/tools/prove/mistakes --threads 1 --batch-size 2", 0);
  EXPECT_EQ(three["sides"], "3 ranks");
  const auto devices = prove(
      "examples/mlp_dp --threads 1 --batch-size 8 --limit-steps 3 --data " + folder.path("data"),
      0);
  // The processor decides whether two orders differ in a bit. That they are told apart is tested by
  // EachMistake's reduction_order.
  for (const auto& verdict : {three, devices}) {
    EXPECT_TRUE(verdict["causes"].empty()) << verdict;
    if (verdict["verdict"] == "equal to the bit") continue;
    names(verdict["notes"], "reduction_order", "in f64 both sides agree");
  }
}

// An element of a gradient may be off by 3 ulps of the sum of its addends' magnitudes, but not by
// 1e-4 of its own.
TEST_F(Prove, SumsOfThreeAreBoundedByTheirAddends) {
  const auto three = [&](const std::string& mistake, int status) {
    return prove(
        "--ranks 3 tests/tools/prove/mistakes --threads 1 --batch-size 13 --limit-steps 1 "
        "--mistake " +
            mistake,
        status);
  };
  const auto right = three("reduction_order", 0);
  EXPECT_EQ(right["verdict"], "equal to rounding");
  names(right["notes"], "reduction_order", " of what an order can do");
  const auto wrong = three("only_f32_slightly", 1);
  EXPECT_TRUE(wrong["notes"].empty()) << wrong;
  names(wrong["causes"], "only_f32", "times as far off as another order of the ranks' addends");
  EXPECT_HAS(log(), "first: step 0, rank 0: the gradient of ");
  EXPECT_GT(wrong["first"]["unlike"], 0);
  // An output is not a sum over ranks.
  names(three("only_f32_input", 1)["causes"], "only_f32",
        "the output of body.0 (Linear), call 0 is about ");
  EXPECT_HAS(log(), "all sums over the ranks before it are equal to the bit");
  // This is right, though its gradients are rounded otherwise on each rank. How much they differ
  // depends on the processor.
  const auto divided = three("divided_loss", 0);
  EXPECT_EQ(divided["verdict"], "equal to rounding");
  EXPECT_TRUE(divided["causes"].empty()) << divided;
}

TEST_F(Prove, RecordsOfTwoRuns) {
  const std::string mistakes = " tests/tools/prove/mistakes --threads 1 --limit-steps 2";
  const auto keep = [&](const std::string& name, const std::string& options, int status) {
    prove("--records " + folder.path(name) + mistakes + options, status);
    EXPECT_HAS(log(), "records: " + folder.path(name));
  };
  const auto write_record = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder.path(name + "/ranks"));
    testing::write_file(folder.path(name + "/ranks/rank-0.jsonl"), text);
  };
  std::filesystem::create_directories(folder.path("one/ranks"));
  testing::write_file(folder.path("one/ranks/rank-2.jsonl"), "of an earlier run of 3 ranks");
  keep("one", "", 0);
  keep("same", "", 0);
  keep("other", " --lr 0.2", 0);
  const std::string a = "--against " + folder.path("one") + " ";
  EXPECT_EQ(run(a + folder.path("same")), 0) << log();
  EXPECT_HAS(log(), "equal to the bit");
  EXPECT_EQ(run(a + folder.path("other")), 1) << log();
  EXPECT_HAS(log(), "first: step 0, rank 0: the weight body.0.weight, differs: about ");
  refuses(a + folder.path("none"), "no records in ");
  // Without some tensors of a rank, or all.
  const std::string whole = testing::read_file(folder.path("one/ranks/rank-0.jsonl"));
  std::string part, empty;
  std::istringstream lines(whole);
  for (std::string line; std::getline(lines, line);) {
    const std::string kind = nlohmann::json::parse(line)["kind"];
    if (kind != "weight") part += line + "\n";
    if (kind == "run" || kind == "end") empty += line + "\n";
  }
  for (const auto& [name, text] : {std::pair("whole", whole), {"part", part}, {"empty", empty}}) {
    write_record(name, text);
  }
  const std::string b = "--against " + folder.path("whole") + " ";
  EXPECT_EQ(run(b + folder.path("whole")), 0) << log();
  for (const std::string& order :
       {b + folder.path("part"), "--against " + folder.path("part") + " " + folder.path("whole")}) {
    refuses(order, "8 tensors are in one of them only");
    EXPECT_HAS(log(), "not comparable");
  }
  write_record("part_\xff", part);  // in JSON, which has no such byte
  const auto verdict = prove(b + folder.path("part_\xff"), 2);
  EXPECT_HAS(verdict["causes"][0]["text"].get<std::string>(), "part_\uFFFD of ");
  refuses("--against " + folder.path("empty") + " " + folder.path("empty"),
          "nothing could be compared");
  refuses(a + folder.path("one") + " " + mistakes, "At Most 2 required but received");
}

// Programs that are scripts, of devices or of ranks.
TEST_F(Prove, OtherEndsOfAProgram) {
  const auto script = [&](const std::string& help, const std::string& body) {
    const std::string path = write("script", "#!/bin/sh\ncase \"$*\" in\n*--help*) echo '" + help +
                                                 "';;\n*)\n" + body + ";;\nesac\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  };
  refuses(script("  --devices N", "true"), "no records in ");
  // Only the beginning of a line counts as an option.
  const std::string of_ranks =
      script("  --limit-stepsize N  not --threads", "echo \"<$*>\"; exit 3");
  refuses("--launcher " + of_ranks + " " + of_ranks,
          "<--nproc-per-node 2 " + of_ranks + ">\nprove: error: [prove] the run of 2 ranks ended");
  refuses(script("  --devices N", "exit 3"),
          "ended with status 3 and without a word; is there room");
  // SIGTERM to prove ends the run, too.
  EXPECT_EQ(run(script("  --devices N", "kill -TERM $PPID; exec sleep 1000")), 128 + 15) << log();
  EXPECT_EQ(folder.files(), 2);  // the script and the log
}

// The run ends with prove, even if that is killed.
TEST_F(Prove, NothingGoesOnWithoutIt) {
  const std::string program =
      write("script",
            "#!/bin/sh\n[ \"$1\" = --help ] && "
            "echo '  --devices N' && exit\ntrap 'echo >" +
                folder.path("ended") +
                "; exit' TERM\nkill -KILL $PPID\nfor i in $(seq 600); do sleep 0.1; done\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  run(program);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!std::filesystem::exists(folder.path("ended")) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path("ended")));
}

TEST_F(Prove, WrongUsageIsTwo) {
  refuses("", "which program?");
  refuses("--rank 2 x", "unknown option --rank; did you mean --ranks?");
  refuses("--ranks 0 x", "--ranks");
  refuses("--against x", "--against");
  refuses(folder.path("nothing"), "cannot start ");
  refuses("--launcher launch/weftrun tests/tools/prove/mistakes --mistak none",
          "unknown option --mistak; did you mean --mistake?");
  refuses("--launcher launch/weftrun tests/tools/prove/mistakes --mistake uses_result",
          "Does the loop use what the train::Step returns for more than Recorder::step()?");
  refuses("/bin/false", "--help ends with status 1");
  refuses("--json " + folder.path("nowhere/json") + " /bin/false",
          "nowhere/json cannot be written");
  EXPECT_EQ(run("--help"), 0);
  expect_loss_is_told({"--help"});
  EXPECT_EQ(folder.files(), 1);  // only the log
}

}  // namespace
}  // namespace weft
