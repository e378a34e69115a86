#include "weft/parallel/step_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::parallel {
namespace {

StepSchedule mine(const std::string& lists) {
  return parse_step("weft step mine units 2\n" + lists + "\n");
}

void expect_refused(const std::string& lists, const std::string& text) {
  SCOPED_TRACE(lists);
  EXPECT_WEFT_ERROR(check(mine(lists)), InvalidArgument, text);
}

// The list of a rank of the step, which all ranks have.
std::string list_of(const std::string& name, int units) {
  const StepSchedule step = make_step(name, units, 3);
  EXPECT_EQ(step.ranks.size(), 3U);
  for (const auto& list : step.ranks) EXPECT_EQ(list, step.ranks[0]);
  const std::string text = to_string(step);
  const std::size_t begin = text.find("\n0: ") + 4;
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(StepSchedule, TheListsOfTheEngines) {
  EXPECT_EQ(list_of("ddp", 1), "F0 B0 >A0 <A0 O");
  EXPECT_EQ(list_of("ddp", 3), "F0 F1 F2 B2 >A2 B1 >A1 B0 >A0 <A2 <A1 <A0 O");
  EXPECT_EQ(list_of("zero1", 2), "F0 F1 B1 >A1 B0 >A0 <A1 <A0 O >U0 >U1 <U0 <U1");
  EXPECT_EQ(list_of("fsdp", 1), ">U0 <U0 F0 B0 S0 >G0 <G0 O");
  EXPECT_EQ(list_of("fsdp", 2),
            ">U0 <U0 >U1 F0 <U1 F1 S1 F0 B0 >U1 <U1 B1 S1 >G1 B0 S0 <G1 >G0 <G0 O");
  EXPECT_EQ(list_of("fsdp", 3),
            ">U0 <U0 >U1 F0 <U1 >U2 F1 S1 <U2 F2 S2 F0 "
            "B0 >U2 <U2 >U1 B2 S2 >G2 <U1 B1 S1 <G2 >G1 B0 S0 <G1 >G0 <G0 O");
  EXPECT_EQ(list_of("zero2", 3),
            ">U0 <U0 >U1 F0 <U1 >U2 F1 <U2 F2 F0 "
            "B0 B2 S2 >G2 B1 S1 <G2 >G1 B0 S0 <G1 >G0 <G0 O");
  EXPECT_EQ(list_of("tp", 2), "F0 >F0 <F0 F1 >F1 <F1 B1 >B1 <B1 B0 O");
}

TEST(StepSchedule, EveryStepIsReadBackAndChecked) {
  for (const std::string& name : step_names()) {
    for (const int units : {2, 3, 17}) {
      for (const int ranks : {1, 2, 5}) {
        const StepSchedule step = make_step(name, units, ranks);
        EXPECT_EQ(step.name, name);
        EXPECT_EQ(parse_step(to_string(step)), step);
        EXPECT_EQ(check(step).order.size(), step.ranks.size() * step.ranks[0].size());
      }
    }
  }
}

TEST(StepSchedule, SizesOutOfRangeAreRefused) {
  for (const std::string& name : step_names()) {
    for (const int none : {0, -1, kMostStages + 1, std::numeric_limits<int>::max()}) {
      EXPECT_WEFT_ERROR(make_step(name, none, 2), InvalidArgument, " units, expected ");
      EXPECT_WEFT_ERROR(make_step(name, 2, none), InvalidArgument, " ranks, expected ");
    }
    EXPECT_WEFT_ERROR(make_step(name, kMostStages, kMostStages), InvalidArgument,
                      "take fewer of one of them");
  }
  EXPECT_WEFT_ERROR(make_step("tp", 1, 2), InvalidArgument, "a table and a head");
  EXPECT_WEFT_ERROR(make_step("fsdpp", 1, 2), InvalidArgument, "did you mean fsdp?");
  EXPECT_WEFT_ERROR(check(StepSchedule{"mine", 1, {}}), InvalidArgument, "got 0 ranks");
  EXPECT_WEFT_ERROR(check(StepSchedule{"mine", 0, {{}}}), InvalidArgument, "got 0 units");
  const std::vector<StepAction> many(kMostActions + 1);
  EXPECT_WEFT_ERROR(check(StepSchedule{"mine", 1, {many}}), InvalidArgument, "got 1000001 actions");
  using enum StepAction::Kind;
  EXPECT_WEFT_ERROR(check(StepSchedule{"mine", 1, {{{forward, 1}}}}), InvalidArgument,
                    "F1 of rank 0: the units are 0 to 0");
  EXPECT_WEFT_ERROR(check(StepSchedule{"mine", 1, {{{unshard, 0}}}}), InvalidArgument,
                    "U0 of rank 0: a message is started, >, or waited for, <");
  EXPECT_WEFT_ERROR(check(StepSchedule{"mine", 1, {{{reshard, 0, StepAction::Phase::start}}}}),
                    InvalidArgument, ">S0 of rank 0: this is no message");
}

TEST(StepSchedule, WhatIsNoStepIsRefusedWithItsPlace) {
  const auto refused = [](const std::string& text, const std::string& why) {
    SCOPED_TRACE(text);
    EXPECT_WEFT_ERROR(parse_step(text), InvalidArgument, why);
  };
  refused("", "line 1: expected 'weft step NAME units K'");
  refused("weft step a/b units 2", "the name of letters, digits and ._-");
  refused("weft step mine units 0", "1 to 4096 units");
  refused("weft step mine units 2\n1: F0", "line 2, column 1: got '1:', expected '0:'");
  for (const char* word : {"X0", "F", "U0", ">S0", ">O", "O1", "F-1", "<", "0", ">Fx"}) {
    refused(std::string("weft step mine units 2\n0: F0 ") + word,
            std::string("line 2, column 7: got '") + word + "', expected O, or a unit's number");
  }
  refused("weft step mine units 2\n\n0: F2", "line 3, column 4: got 'F2', expected units 0 to 1");
  EXPECT_EQ(to_string(parse_step(" weft  step mine units 2 # a comment\n\n0:  F0 \t F1 O\r\n")),
            "weft step mine units 2\n0: F0 F1 O\n");
  EXPECT_WEFT_ERROR(to_string(StepSchedule{"a b", 1, {}}), InvalidArgument, "got the name 'a b'");
}

TEST(StepSchedule, ParametersAreWholeWhenTheyAreUsed) {
  expect_refused("0: >U0 F0 F1 B1 B0 S0",
                 "F0 (rank 0, action 2) does not wait for >U0 (rank 0, action 1); put <U0 between");
  expect_refused("0: F0 S0 F1 B1 B0 O",
                 "F0 (rank 0, action 1) uses parameters that are not gathered, since S0 (rank 0, "
                 "action 2) of the step before; put >U0 and <U0 before it");
  expect_refused("0: >U0 <U0 F0 S0 F1 B1 B0",
                 "B0 (rank 0, action 7) uses parameters that are not gathered, since S0 (rank 0, "
                 "action 4); put");
  expect_refused("0: >U0 <U0 F0 F1 >U0 <U0 B1 B0 S0",
                 ">U0 (rank 0, action 5) gathers parameters that are whole, since <U0 (rank 0, "
                 "action 2); leave it out, or put S before it");
  expect_refused("0: >U0 >U0 S0",
                 ">U0 (rank 0, action 2) stands twice, first >U0 (rank 0, action 1)");
  expect_refused("0: F0 F1 >U1",
                 "are whole, and that no S frees; leave it out, or put it behind O");
  expect_refused("0: >U0 <U0 F0 S0 S0",
                 "S0 (rank 0, action 5) frees parameters that are not whole, since S0 (rank 0, "
                 "action 4)");
  expect_refused("0: >U0 <U0 F0 S0 F1 B1 >U0 <U0 B0 O",
                 "unit 0 is whole at the end, since <U0 (rank 0, action 8), though S0 (rank 0, "
                 "action 4) frees it in the step; put S0 behind its last use");
  check(mine("0: F0 F1 B1 B0 O >U0 <U0"));  // ZeRO-1: they are old
}

TEST(StepSchedule, BackwardGoesTheWayOfForward) {
  expect_refused("0: F0 F1 B0 B1 O",
                 "B0 (rank 0, action 3) comes before the backward of F1 (rank 0, action 2)");
  expect_refused("0: B0", "B0 (rank 0, action 1) comes before its F0; put it behind");
  expect_refused("0: F0 B0 F1", "F1 (rank 0, action 3) has no backward; add B1 on rank 0");
  expect_refused("0: F0 B0", "F1 is missing on rank 0; add it, or say 1 units");
  expect_refused("0: F0 F1 B1 B0 O F0", "F0 (rank 0, action 6) comes behind O (rank 0, action 5)");
  // Several forwards of a unit, and several backwards before a sum.
  check(mine("0: F0 F1 F0 B0 B1 B0 F0 F1 B1 >A1 B0 >A0 <A0 <A1 O"));
}

TEST(StepSchedule, EachGradientIsSummedOnceBehindItsLastBackward) {
  expect_refused("0: F0 F1 B1 >A1 B0 <A1 O",
                 "the gradients of B0 (rank 0, action 5) are never summed, while there is >A1 "
                 "(rank 0, action 4); put >A0 behind it");
  expect_refused("0: F0 F1 B1 >G1 B0 <G1", "put >G0 behind it");
  expect_refused("0: F0 F1 >A1", ">A1 (rank 0, action 3) comes before B1, which makes");
  expect_refused("0: F0 F1 F1 B1 >A1",
                 ">A1 (rank 0, action 5) comes before the backward of F1 (rank 0, action 3)");
  expect_refused("0: F0 F1 B1 >A1 <A1 F1 B1",
                 "B1 (rank 0, action 7) adds to gradients that >A1 (rank 0, action 4) has summed");
  expect_refused("0: F0 F1 B1 >A1 <A1 >G1",
                 ">G1 (rank 0, action 6) sums gradients that >A1 (rank 0, action 4) has summed");
  expect_refused(
      "0: F0 F1 B1 >A1 B0 >A0 <A0 O",
      "O (rank 0, action 8) does not wait for >A1 (rank 0, action 4); put <A1 before it");
  expect_refused("0: F0 F1 B1 B0 O >A1",
                 ">A1 (rank 0, action 6) comes behind O (rank 0, action 5), which needs the sum");
  expect_refused("0: F0 F1 B1 >A1 B0 >A0 <A1",
                 ">A0 (rank 0, action 6) is never waited for; put <A0 behind it");
  expect_refused("0: F0 F1 B1 <A1", "<A1 (rank 0, action 4) waits for no message; put >A1 before");
}

TEST(StepSchedule, LayersWaitForTheSumBeforeThem) {
  expect_refused("0: F0 >F0 F1",
                 "F1 (rank 0, action 3) does not wait for >F0 (rank 0, action 2); put <F0 between");
  expect_refused("0: F0 F1 B1 >B1 B0", "B0 (rank 0, action 5) does not wait for >B1 (rank 0, act");
  expect_refused("0: F0 F1 >F0",
                 ">F0 (rank 0, action 3) sums what F0 has made, but stands behind "
                 "F1 (rank 0, action 2); put it behind F0");
  expect_refused("0: >F0", ">F0 (rank 0, action 1) sums what F0 has made; put it behind F0");
}

TEST(StepSchedule, AllRanksSendTheSame) {
  expect_refused(
      "0: F0 F1 B1 >A1 B0 >A0 <A0 <A1 O\n1: F0 F1 B1 B0 >A0 >A1 <A0 <A1 O",
      "of the sums of gradients, number 1 is >A1 (rank 0, action 4) and >A0 (rank 1, action 5)");
  expect_refused(
      "0: F0 >F0 <F0 F1 B1 B0 O\n1: F0 F1 B1 B0 O",
      "rank 1 has only 0 sums of what layers make: the other side of >F0 (rank 0, action "
      "2) is missing");
  expect_refused("0: F0 F1 B1 B0 O\n1: F0 F1 B1 B0", "rank 1 has no O, while there is O (rank 0");
  expect_refused("0: F0 F1 B1 B0 O\n1: F0 F1 F1 B1 B1 B0 O", "rank 1 has 3 F, and rank 0 has 2");
}

TEST(StepSchedule, RanksThatWaitForEachOtherAreADeadlock) {
  const std::string begin = ": >U0 <U0 F0 S0 F1 B1 ", end = " B0 S0 >A0 <A0 O";
  const std::string first = "0" + begin + ">A1 <A1 >U0 <U0" + end;
  expect_refused(
      first + "\n1" + begin + ">U0 <U0 >A1 <A1" + end,
      "deadlock: <A1 (rank 0, action 8) waits for >A1 (rank 1, action 9); before that <U0 "
      "(rank 1, action 8) waits for >U0 (rank 0, action 9); before that stands <A1 "
      "(rank 0, action 8)");
  // Started before either is waited for, the order of two kinds of messages does not matter.
  check(mine("0" + begin + ">A1 >U0 <A1 <U0" + end + "\n1" + begin + ">U0 >A1 <U0 <A1" + end));
}

TEST(StepSchedule, AFileTellsWhatItIs) {
  const testing::TempFolder folder;
  const std::string file = folder.path("step"), text = "weft step mine units 1\n0: F0 B0 O\n";
  testing::write_file(file, text);
  EXPECT_EQ(std::get<StepSchedule>(load_any_schedule(file)), parse_step(text));
  testing::write_file(file, "# F0\n" + to_string(gpipe(2, 1)));
  EXPECT_EQ(std::get<Schedule>(load_any_schedule(file)), gpipe(2, 1));
  testing::write_file(file, "weft step mine units 1\n0: F0\n   B0\n");
  EXPECT_WEFT_ERROR(load_any_schedule(file), InvalidArgument, "line 3, column 4");
  testing::write_file(file, "weft step mine units 1\n0: F0 O\n");
  EXPECT_WEFT_ERROR(load_any_schedule(file), InvalidArgument,
                    "F0 (rank 0, action 1; line 2, column 4) has no backward");
  testing::write_file(file, "");
  EXPECT_WEFT_ERROR(load_any_schedule(file), InvalidArgument, "expected 'weft schedule NAME");
  EXPECT_WEFT_ERROR(load_any_schedule(folder.path("none")), Io, "cannot read");
}

// --- When they run -------------------------------------------------------------------------------

// All-reduces that backward does not hide add to the time.
TEST(StepTime, OfDdp) {
  for (const int units : {1, 2, 5}) {
    const StepSchedule step = ddp_step(units, 3);
    for (const double message : {0.0, 1.0, 3.0, 8.0}) {
      const StepTimeline t = simulate(step, equal_costs(step, 1, 3, 2, message));
      const double exposed = message <= 3 ? message : units * message - (units - 1) * 3;
      EXPECT_EQ(t.end, units * 4 + exposed + 2);
      EXPECT_EQ(t.waiting, std::vector<double>(3, exposed));
      EXPECT_EQ(t.busy, std::vector<double>(3, units * 4 + 2));
    }
  }
}

// ZeRO-1 sends the new parameters after the optimiser's step, where nothing hides them.
TEST(StepTime, OfZero1) {
  const StepSchedule step = zero1_step(4, 2);
  EXPECT_EQ(simulate(step, equal_costs(step, 1, 2, 1, 1)).end, 4 * 3 + 1 + 1 + 4);
}

// If a message takes no longer than a forward, three are exposed: the first gather, the gather for
// backward's first block, and the last sum.
TEST(StepTime, OfFsdpWithPerfectOverlap) {
  for (const int units : {2, 3, 8}) {
    const StepSchedule step = fsdp_step(units, 2);
    for (const double message : {0.0, 0.5, 2.0}) {
      const StepTimeline t = simulate(step, equal_costs(step, 2, 4, 1, message));
      EXPECT_EQ(t.end, (units + 1) * 6 + 1 + 3 * message);
      EXPECT_EQ(t.waiting, std::vector<double>(2, 3 * message));
    }
    const StepSchedule zero2 = fsdp_step(units, 2, false);  // has no gather in backward
    EXPECT_EQ(simulate(zero2, equal_costs(zero2, 2, 4, 1, 2)).end, (units + 1) * 6 + 1 + 2 * 2);
  }
}

// Gathers that take longer than anything that could hide them: their time is what counts.
TEST(StepTime, OfFsdpWithSlowMessages) {
  const StepSchedule step = fsdp_step(3, 2);
  StepCosts costs = equal_costs(step, 1, 2, 1, 0);
  costs.unshard = {10, 10, 10};
  // Three gathers, the forwards of the last unit and the root, its backward, two gathers, the
  // backwards of unit 1 and of the root, the optimiser.
  EXPECT_EQ(simulate(step, costs).end, 30 + 1 + 1 + 2 + 20 + 2 + 2 + 1);
}

// No sum is hidden: there are 2 units - 1.
TEST(StepTime, OfTensorParallelism) {
  for (const int units : {2, 3, 9}) {
    const StepSchedule step = tensor_parallel_step(units, 4);
    const StepTimeline t = simulate(step, equal_costs(step, 1, 2, 1, 0.5));
    EXPECT_EQ(t.end, units * 3 + 1 + (2 * units - 1) * 0.5);
    EXPECT_EQ(t.waiting, std::vector<double>(4, (2 * units - 1) * 0.5));
  }
}

TEST(StepTime, AMessageBeginsWhenTheLastRankHasStartedIt) {
  StepSchedule step = mine("0: F0 F1 B1 >A1 <A1 B0 >A0 <A0 O\n1: F0 F1 B1 B0 >A1 <A1 >A0 <A0 O");
  const StepTimeline t = simulate(step, equal_costs(step, 1, 2, 1, 1));
  EXPECT_EQ(t.waiting, (std::vector<double>{2 + 1 + 1, 2 + 2}));
  EXPECT_EQ(t.end, 2 + 2 + 2 + 1 + 2 + 1 + 1);
}

TEST(StepTime, RanksMayHaveCostsOfTheirOwn) {
  const StepSchedule step = ddp_step(1, 2);
  std::vector<StepCosts> costs(2, equal_costs(step, 1, 2, 1, 1));
  costs[1].forward = {5};
  costs[1].reduce = {100};  // not used: the first rank's costs count
  const StepTimeline t = simulate(step, costs);
  EXPECT_EQ(t.end, 5 + 2 + 1 + 1);
  EXPECT_EQ(t.waiting, (std::vector<double>{4 + 1, 1}));
  costs[0].begin = 6;
  EXPECT_EQ(simulate(step, costs).end, 6 + 1 + 2 + 1 + 1);
  costs.pop_back();
  EXPECT_WEFT_ERROR(simulate(step, costs), InvalidArgument, "costs of 1 ranks, expected 2");
}

// Unit 1's gather before forward takes no time, the one before backward takes 7.
TEST(StepTime, MessagesOfAUnitMayDiffer) {
  const StepSchedule step = fsdp_step(2, 1);
  StepCosts costs = equal_costs(step, 1, 2, 1, 100);
  const StepCheck checked = check(step);
  costs.messages.resize(static_cast<std::size_t>(checked.messages));
  int last = -1;
  for (const StepCheck::Turn& turn : checked.order) {
    if (to_string(turn.action) == ">U1") last = turn.message;
  }
  costs.messages[static_cast<std::size_t>(last)] = 7;
  EXPECT_EQ(simulate(step, costs).end, 3 * 1 + 2 + 7 + 2 + 2 + 1);
  costs.messages.pop_back();
  EXPECT_WEFT_ERROR(simulate(step, costs), InvalidArgument, "costs of messages, expected");
}

TEST(StepTime, WhatIsWholeAtOnceIsCounted) {
  EXPECT_EQ(check(fsdp_step(5, 2)).peak_whole, (std::vector<int>{3, 3}));
  EXPECT_EQ(check(fsdp_step(2, 1)).peak_whole, (std::vector<int>{2}));
  EXPECT_EQ(check(fsdp_step(5, 2, false)).peak_whole, (std::vector<int>{5, 5}));
  EXPECT_EQ(check(ddp_step(5, 2)).peak_whole, (std::vector<int>{0, 0}));
  EXPECT_EQ(check(ddp_step(5, 2)).peak_gradients, (std::vector<int>{5, 5}));
  // The gradients of the outermost module, of a block, and of the block before, which are being
  // summed.
  EXPECT_EQ(check(fsdp_step(5, 2)).peak_gradients, (std::vector<int>{3, 3}));
}

TEST(StepTime, WrongCostsAreRefused) {
  const StepSchedule step = ddp_step(2, 2);
  const StepCosts good = equal_costs(step, 1, 2, 1, 1);
  const auto refused = [&](auto change, const std::string& text) {
    StepCosts costs = good;
    change(costs);
    EXPECT_WEFT_ERROR(simulate(step, costs), InvalidArgument, text);
  };
  refused([](StepCosts& c) { c.forward.pop_back(); }, "1 costs of forward, expected 2");
  refused([](StepCosts& c) { c.backward.clear(); }, "0 costs of backward, expected 2");
  refused([](StepCosts& c) { c.reduce.pop_back(); }, "1 costs of reduce, expected 2");
  refused([](StepCosts& c) { c.optimizer = -1; }, "got -1 s as a cost of optimizer");
  refused([](StepCosts& c) { c.unshard[0] = std::numeric_limits<double>::quiet_NaN(); },
          "got nan s as a cost of unshard");
  StepCosts free = good;
  free.reduce.clear();
  EXPECT_EQ(simulate(step, free).end, 2 * 3 + 1);
}

TEST(StepTime, IsDrawn) {
  const StepSchedule step = fsdp_step(2, 2);
  EXPECT_EQ(draw(simulate(step, equal_costs(step, 1, 2, 1, 1))),
            "0  .F0F1F0B0-- .B1--B0-- .O0\n"
            "> U0U1 . . . .U1 . . . . . .\n"
            ">  . . . . . . . . .G1 .G0 .\n"
            "1  .F0F1F0B0-- .B1--B0-- .O0\n"
            "> U0U1 . . . .U1 . . . . . .\n"
            ">  . . . . . . . . .G1 .G0 .\n");
  EXPECT_WEFT_ERROR(draw({.actions = {{{}, 1, 0, 1}}, .end = 1, .busy = {1}}), InvalidArgument,
                    "F0 is on rank 1 of 1");
}

}  // namespace
}  // namespace weft::parallel
