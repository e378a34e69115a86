// tools/schedule as a user sees it: output and exit status.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "weft/parallel/schedule.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tests/tools/command.h"

namespace weft {
namespace {

class ScheduleCommand : public testing::CommandTest {
 protected:
  ScheduleCommand() : CommandTest("schedule") {}
};

TEST_F(ScheduleCommand, PrintsWhatCanBeReadBack) {
  EXPECT_EQ(run("1f1b --stages 2 --micro-batches 3"), 0);
  EXPECT_EQ(log(),
            "weft schedule 1f1b stages 2 micro-batches 3\n"
            "0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2\n"
            "1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2\n"
            "# micro-batches kept at once, by stage: 2 1\n"
            "# with F, R, I and W of 1 and B of 2: ends after 12, bubble 25.0 %\n"
            "# 0 F0F1 . .B0--F2B1-- .B2--\n"
            "# 1  .F0B0--F1B1--F2B2-- . .\n");
  EXPECT_EQ(parallel::parse_schedule(log()), parallel::one_f_one_b(2, 3));
}

TEST_F(ScheduleCommand, WritesAFile) {
  const std::string file = folder.path("schedule");
  EXPECT_EQ(run("interleaved --stages 4 --devices 2 --micro-batches 4 --checkpoint always "
                "--communication -o " +
                file),
            0)
      << log();
  EXPECT_EQ(log().find("micro-batches kept at once, by stage: 1 1 1 1\n"
                       "the inputs alone, by stage: 4 3 2 1\n"
                       "kept at once, by device: 1 1\n"),
            0U)
      << log();
  EXPECT_EQ(parallel::load_schedule(file),
            parallel::with_communication(
                parallel::interleaved_one_f_one_b(2, 2, 4, parallel::Recompute::always)));
}

// What the page does is in page_test.cc.
TEST_F(ScheduleCommand, WritesAPage) {
  const std::string page = folder.path("page.html");
  EXPECT_EQ(run("1f1b --stages 2 --micro-batches 1 --communication -o " + page), 0) << log();
  const std::string text = testing::read_file(page);
  EXPECT_EQ(text.find("<!DOCTYPE html>"), 0U);
  EXPECT_HAS(text,
             ">weft schedule 1f1b stages 2 micro-batches 1\n"
             "0: F0.0 >F0.0 &lt;B0.0 B0.0\n1: &lt;F1.0 F1.0 B1.0 >B1.0\n</textarea>");
  EXPECT_TRUE(text.ends_with("</html>\n"));
  // It needs nothing but itself.
  EXPECT_EQ(text.find("http"), text.find("http://www.w3.org/2000/svg"));
  EXPECT_EQ(text.find("src="), std::string::npos);

  const std::string none = folder.path("none.html");
  refuses("zb-v --stages 8 --micro-batches 700 -o " + none,
          "a page of 16800 actions would be slow to edit, at most 5000 are shown; take fewer");
  refuses("ddp --units 2 --ranks 2 -o " + none, "ddp is a step, and pages are made of pipelines");
  EXPECT_FALSE(std::filesystem::exists(none));
}

// Every schedule in the usual sizes.
TEST_F(ScheduleCommand, ADrawingFitsATerminal) {
  for (const std::string options : {"gpipe", "1f1b", "zb-h1", "gpipe --checkpoint always"}) {
    EXPECT_EQ(run(options + " --stages 4 --micro-batches 8"), 0);
    const std::size_t row = log().find("\n# 0 F0F1") + 1;
    ASSERT_NE(row, 0U) << log();
    EXPECT_LE(log().find('\n', row) - row, 80U) << log();
    EXPECT_EQ(log().find("(cut ") != std::string::npos, options.ends_with("always")) << log();
  }
}

TEST_F(ScheduleCommand, ChecksAFile) {
  const std::string good = write("good",
                                 "weft schedule mine stages 2 micro-batches 1\n"
                                 "0: F0.0 B0.0\n1: F1.0 B1.0\n");
  EXPECT_EQ(run("--check " + good), 0);
  EXPECT_EQ(log(), good +
                       ": complete and free of deadlock: mine, 2 stages on 2 devices, "
                       "1 micro-batches\n"
                       "micro-batches kept at once, by stage: 1 1\n"
                       "with F, R, I and W of 1 and B of 2: ends after 6, bubble 50.0 %\n"
                       "0 F0 . . .B0--\n"
                       "1  .F0B0-- . .\n");
  const std::string bad = write("bad",
                                "weft schedule mine stages 2 micro-batches 1\n"
                                "0: F0.0\n1: F1.0 B1.0\n");
  EXPECT_EQ(run("--check " + bad), 1);
  EXPECT_EQ(log().find("schedule: error: [schedule] B0.0 is missing"), 0U) << log();
  EXPECT_HAS(log(), " in " + bad);
  EXPECT_EQ(run("--check " + folder.path("nothing")), 2);
  EXPECT_HAS(log(), "cannot read ");
  // A good schedule is not refused because something else is wrong.
  const std::string costs = write(
      "costs", R"({"forward": [-1, 1], "backward_input": [1, 1], "backward_weight": [1, 1]})");
  EXPECT_EQ(run("--check " + good + " --json --costs " + costs), 2);
  EXPECT_HAS(log(), "got -1 s as a cost of forward");
}

TEST_F(ScheduleCommand, PrintsAsJsonWhenActionsRun) {
  EXPECT_EQ(run("gpipe --stages 2 --micro-batches 1 --json"), 0);
  EXPECT_EQ(
      log(),
      R"({"actions":[{"action":"F0.0","begin":0.0,"device":0,"end":1.0},)"
      R"({"action":"F1.0","begin":1.0,"device":1,"end":2.0},)"
      R"({"action":"B1.0","begin":2.0,"device":1,"end":4.0},)"
      R"({"action":"B0.0","begin":4.0,"device":0,"end":6.0}],"bubble":0.5,"busy":[3.0,3.0],)"
      R"("end":6.0,"kept":[1,1],"known_as":"gpipe, checkpoint never","micro_batches":1,"name":"gpipe",)"
      R"("stages":2})"
      "\n");
  const std::string file = folder.path("schedule");
  for (const std::string schedule :
       {"1f1b --stages 3", "zb-h1 --stages 3", "1f1b --checkpoint except_last --stages 3",
        "interleaved --devices 2 --stages 4", "gpipe --checkpoint always --stages 2",
        "zb-v --stages 4", "dualpipev --checkpoint except_last --stages 4"}) {
    EXPECT_EQ(run(schedule + " --micro-batches 4 --json -o " + file), 0) << log();
    const std::string made = log();
    EXPECT_EQ(run("--check " + file + " --json"), 0);
    EXPECT_EQ(log(), made);
    const std::string mode = schedule.find("always") != std::string::npos        ? "always"
                             : schedule.find("except_last") != std::string::npos ? "except_last"
                                                                                 : "never";
    EXPECT_HAS(made, "\"known_as\":\"" + schedule.substr(0, schedule.find(' ')) + ", checkpoint " +
                         mode + '"');
  }
  EXPECT_EQ(run("--check " +
                write("own",
                      "weft schedule mine stages 2 micro-batches 2\n"
                      "0: F0.1 F0.0 B0.1 B0.0\n1: F1.1 F1.0 B1.1 B1.0\n") +
                " --json"),
            0);
  EXPECT_HAS(log(), "\"known_as\":null");
}

TEST_F(ScheduleCommand, TakesTheCostsOfStagesFromAFile) {
  const std::string arguments = "zb-h1 --stages 2 --micro-batches 1 --json --costs ";
  const auto costs = [&](const std::string& text) { return arguments + write("costs", text); };
  EXPECT_EQ(
      run(costs(R"({"forward": [1, 2], "backward_input": [3, 4], "backward_weight": [5, 6]})")), 0);
  for (const char* action : {R"({"action":"F1.0","begin":1.0,"device":1,"end":3.0})",
                             R"({"action":"I1.0","begin":3.0,"device":1,"end":7.0})",
                             R"({"action":"W1.0","begin":7.0,"device":1,"end":13.0})",
                             R"({"action":"I0.0","begin":7.0,"device":0,"end":10.0})",
                             R"({"action":"W0.0","begin":10.0,"device":0,"end":15.0})",
                             R"("busy":[9.0,12.0],"end":15.0)"}) {
    EXPECT_HAS(log(), action);
  }
  const auto refuses = [&](const std::string& text, const std::string& why) {
    EXPECT_EQ(run(costs(text)), 2) << text;
    EXPECT_HAS(log(), why);
  };
  refuses(R"({"forward": [1, 2], "backward_input": [3, 4]})",
          "costs is no costs by stage: a 'backward_weight' is missing in it");
  refuses(R"({"forward": 1})", "something in it is not of the type that belongs there");
  refuses(R"({"forward": [1], "backward_input": [3, 4], "backward_weight": [5, 6]})",
          "1 costs of forward for 2 stages; give one each");
  refuses("{", "no JSON at byte 2");
  EXPECT_EQ(run(arguments + folder.path("nothing")), 2);
  EXPECT_HAS(log(), "nothing cannot be read, or is empty");
}

TEST_F(ScheduleCommand, PrintsAndChecksAStepOfRanks) {
  EXPECT_EQ(run("ddp --units 2 --ranks 2"), 0);
  EXPECT_EQ(log(),
            "weft step ddp units 2\n"
            "0: F0 F1 B1 >A1 B0 >A0 <A1 <A0 O\n"
            "1: F0 F1 B1 >A1 B0 >A0 <A1 <A0 O\n"
            "# units with whole gradients at once, by rank: 2 2\n"
            "# with F, O and messages of 1 and B of 2: ends after 8, waiting, by rank: 1 1\n"
            "# 0 F0F1B1--B0-- .O0\n"
            "# >  . . . .A1 .A0 .\n"
            "# 1 F0F1B1--B0-- .O0\n"
            "# >  . . . .A1 .A0 .\n");
  EXPECT_EQ(parallel::parse_step(log()), parallel::ddp_step(2, 2));
  const std::string file = folder.path("step");
  EXPECT_EQ(run("fsdp --units 3 --ranks 2 -o " + file), 0);
  EXPECT_EQ(log().find("units whole at once, by rank: 3 3\n"), 0U) << log();
  EXPECT_EQ(run("--check " + file), 0);
  EXPECT_EQ(log().find(file + ": complete and free of deadlock: fsdp, 3 units on 2 ranks\n"), 0U)
      << log();
  EXPECT_EQ(run("--check " + write("bad", "weft step mine units 1\n0: F0 B0 >A0\n")), 1);
  EXPECT_HAS(log(), ">A0 (rank 0, action 3; line 2, column 10) is never waited for");
  EXPECT_EQ(run("--check " + file + " --communication"), 2);
  EXPECT_HAS(log(), "is a step, which has its messages already");
}

TEST_F(ScheduleCommand, PrintsAsJsonWhenAStepRuns) {
  const std::string costs =
      write("costs", R"({"forward": [1], "backward": [2], "optimizer": 3, "reduce": [4]})");
  EXPECT_EQ(run("ddp --units 1 --ranks 1 --json --costs " + costs), 0) << log();
  EXPECT_EQ(log(), R"({"actions":[{"action":"F0","begin":0.0,"end":1.0,"rank":0},)"
                   R"({"action":"B0","begin":1.0,"end":3.0,"rank":0},)"
                   R"({"action":">A0","begin":3.0,"end":7.0,"rank":0},)"
                   R"({"action":"<A0","begin":3.0,"end":7.0,"rank":0},)"
                   R"({"action":"O","begin":7.0,"end":10.0,"rank":0}],"busy":[6.0],"end":10.0,)"
                   R"("known_as":"ddp","name":"ddp","units":1,"waiting":[4.0],"whole":[0]})"
                   "\n");
  for (const std::string name : {"ddp", "zero1", "zero2", "fsdp", "tp"}) {
    const std::string file = folder.path(name);
    EXPECT_EQ(run(name + " --units 3 --ranks 2 --json -o " + file), 0) << log();
    const std::string made = log();
    EXPECT_HAS(made, "\"known_as\":\"" + name + '"');
    EXPECT_EQ(run("--check " + file + " --json"), 0);
    EXPECT_EQ(log(), made);
  }
  EXPECT_EQ(run("--json --check " + write("own", "weft step mine units 1\n0: F0 B0\n")), 0);
  EXPECT_HAS(log(), "\"known_as\":null");
  // With so many units fsdp has more actions than a step may have.
  std::string list = ": ", large = "weft step mine units 4096\n";
  for (int unit = 0; unit < 4096; ++unit) list += 'F' + std::to_string(unit) + ' ';
  for (int unit = 4096; unit-- > 0;) list += 'B' + std::to_string(unit) + ' ';
  for (int rank = 0; rank < 26; ++rank) large += std::to_string(rank) + list + '\n';
  EXPECT_EQ(run("--json --check " + write("large", large)), 0);
  EXPECT_HAS(log(), "\"known_as\":null");
  EXPECT_EQ(run("ddp --units 2 --ranks 1 --json --costs " + costs), 2);
  EXPECT_HAS(log(), "1 costs of forward, expected 2");
}

TEST_F(ScheduleCommand, WrongUsageIsTwoAndSaysWhatIsRight) {
  refuses("", "expected a NAME, --stages and --micro-batches, or --check FILE");
  refuses("gpipe --stages 2", "expected a NAME, --stages and --micro-batches");
  refuses("gpip --stages 2 --micro-batches 2", "did you mean gpipe?");
  refuses("gpipe --stage 2 --micro-batches 2", "unknown option --stage; did you mean --stages?");
  refuses("gpipe --stages two --micro-batches 2", "--stages");
  refuses("gpipe --stages 0 --micro-batches 2", "not in range");
  refuses("gpipe --stages 2 --micro-batches", "--micro-batches");
  refuses("gpipe more --stages 2 --micro-batches 2", "unexpected argument 'more'");
  refuses("gpipe --stages 2 --micro-batches 2 --checkpoint sometimes",
          "never, except_last or always");
  refuses("interleaved --stages 4 --micro-batches 2", "needs --devices, too");
  refuses("interleaved --stages 3 --devices 2 --micro-batches 2", "divides the stages");
  refuses("zb-v --stages 3 --micro-batches 2", "expected an even number: two per device");
  refuses("dualpipev --stages 4 --micro-batches 3", "expected at least 4, two for each device");
  refuses("--check F --stages 2", "--stages");
  refuses("ddp --units 2", "ddp needs --units and --ranks");
  refuses("ddp --stages 2 --ranks 2", "--stages does not go with ddp, which takes --units and");
  refuses("gpipe --units 2 --micro-batches 2", "--units does not go with gpipe, which takes --st");
  refuses("tp --units 1 --ranks 2", "a table and a head");
  refuses("ddp --units 0 --ranks 2", "not in range");
  refuses("gpipe --stages 2 --micro-batches 2 --costs F", "--json");
  refuses("--check F gpipe --stages 2 --micro-batches 2", "--check");
  refuses("gpipe --stages 2 --micro-batches 2 -o " + folder.path("no/folder"), "no/folder");
  EXPECT_EQ(run("--help"), 0);
  EXPECT_HAS(log(), "--micro-batches");
}

TEST_F(ScheduleCommand, OutputThatIsLostIsTwo) {
  expect_loss_is_told({"gpipe --stages 2 --micro-batches 2", "--help"});
}

}  // namespace
}  // namespace weft
