#include "weft/parallel/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/run_by_hand.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

// All schedules of one size, without communication.
std::vector<Schedule> schedules(int p, int m) {
  std::vector<Schedule> all;
  for (const Recompute recompute : {Recompute::never, Recompute::except_last, Recompute::always}) {
    all.push_back(gpipe(p, m, recompute));
    all.push_back(one_f_one_b(p, m, recompute));
    all.push_back(zero_bubble_h1(p, m, recompute));
    all.push_back(zero_bubble_v(p, m, recompute));
    if (m >= 2 * p) all.push_back(dual_pipe_v(p, m, recompute));
    for (const int per_device : {1, 2, 3}) {
      all.push_back(interleaved_one_f_one_b(p, per_device, m, recompute));
    }
  }
  return all;
}

// Small integers, so that every sum is exact.
StageCosts uneven(int stages, double transfer) {
  StageCosts costs{.transfer = transfer};
  for (int s = 0; s < stages; ++s) {
    costs.forward.push_back(1 + s * 5 % 4);
    costs.backward_input.push_back(1 + s * 7 % 5);
    costs.backward_weight.push_back(s * 3 % 4);
  }
  return costs;
}

TEST(SimulateTest, EqualStagesLeaveTheBubbleOfTheory) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      for (const Schedule& schedule : {gpipe(p, m), one_f_one_b(p, m)}) {
        const Timeline timeline = simulate(schedule, equal_costs(p, 1, 1, 1));
        EXPECT_EQ(timeline.end, 3 * (m + p - 1)) << to_string(schedule);
        EXPECT_EQ(timeline.busy, std::vector<double>(p, 3 * m));
        EXPECT_DOUBLE_EQ(timeline.bubble(), (p - 1.0) / (m + p - 1));
      }
    }
  }
}

// Table 2 of the paper: (p - 1) (F + I - W), instead of 1F1B's (p - 1) (F + I + W).
TEST(SimulateTest, ZeroBubbleH1IdlesAsItsPaperSays) {
  struct Costs {
    double forward, input, weight;
  };
  for (const auto& [f, i, w] : {Costs{1, 1, 1}, Costs{2, 3, 1}, Costs{3, 2, 2}, Costs{4, 5, 3}}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = p; m <= 12; ++m) {
        const StageCosts costs = equal_costs(p, f, i, w);
        EXPECT_EQ(simulate(zero_bubble_h1(p, m), costs).end,
                  m * (f + i + w) + (p - 1) * (f + i - w))
            << p << " stages, " << m << " micro-batches";
        EXPECT_EQ(simulate(one_f_one_b(p, m), costs).end, (m + p - 1) * (f + i + w));
      }
    }
  }
}

// (p - 1) (F + B) / v, where each stage has 1/v of the work; for as many micro-batches as devices
// or more.
TEST(SimulateTest, InterleavingDividesTheBubble) {
  for (const int v : {1, 2, 3}) {
    for (const int p : {1, 2, 3, 4, 5}) {
      for (int m = p; m <= 4 * p; ++m) {
        const Timeline timeline =
            simulate(interleaved_one_f_one_b(p, v, m), equal_costs(p * v, 1, 1, 1));
        EXPECT_EQ(timeline.end, 3 * (m * v + p - 1))
            << p << " devices, " << v << " stages each, " << m << " micro-batches";
      }
    }
  }
}

// A V, with F = I = W: until the common end each device idles (p - 1) F in all. With ZB-V it does
// so before its first and after its last action, with DualPipeV device d idles (p - 1 - d) F
// between.
TEST(SimulateTest, AVIdlesAtItsEndsAlone) {
  constexpr double kF = 3;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 4 * p; ++m) {
      for (const Schedule& schedule : {zero_bubble_v(p, m), dual_pipe_v(p, m)}) {
        SCOPED_TRACE(to_string(schedule));
        const Timeline timeline = simulate(schedule, equal_costs(2 * p, kF, kF, kF));
        EXPECT_EQ(timeline.end, (6 * m + p - 1) * kF);
        EXPECT_EQ(timeline.busy, std::vector<double>(p, 6 * m * kF));
        std::vector<double> first(p, timeline.end), last(p, 0);
        for (const auto& [action, d, begin, end] : timeline.actions) {
          first[d] = std::min(first[d], begin);
          last[d] = std::max(last[d], end);
        }
        for (int d = 0; d < p; ++d) {
          EXPECT_EQ(last[d] - first[d] - timeline.busy[d],
                    schedule.name == "zb-v" ? 0 : (p - 1 - d) * kF);
        }
      }
    }
  }
}

TEST(SimulateTest, EveryActionEndsWhenItDoesByHand) {
  for (int p = 1; p <= 4; ++p) {
    for (int m = 1; m <= 8; ++m) {
      for (const Schedule& plain : schedules(p, m)) {
        for (const Schedule& schedule : {plain, with_communication(plain)}) {
          for (const double transfer : {0, 2}) {
            const StageCosts costs = uneven(plain.stages, transfer);
            const auto want = testing::run_by_hand(schedule, costs);
            ASSERT_TRUE(want) << to_string(schedule);
            const Timeline timeline = simulate(schedule, costs);
            ASSERT_EQ(timeline.actions.size(), want->size());
            for (const auto& [action, device, begin, end] : timeline.actions) {
              const bool sends =
                  action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
              ASSERT_EQ(end, want->at(testing::key(action)) + (sends ? transfer : 0))
                  << to_string(action) << " in\n"
                  << to_string(schedule);
            }
          }
        }
      }
    }
  }
}

TEST(SimulateTest, SendsChangeNoTimes) {
  for (const Schedule& schedule : schedules(4, 8)) {
    const StageCosts costs = uneven(schedule.stages, 3);
    const Timeline plain = simulate(schedule, costs);
    const Timeline sending = simulate(with_communication(schedule), costs);
    EXPECT_EQ(plain.end, sending.end) << to_string(schedule);
    EXPECT_EQ(plain.busy, sending.busy);
    EXPECT_GT(plain.end, simulate(schedule, uneven(schedule.stages, 0)).end);
  }
}

TEST(SimulateTest, ATransferMakesAnotherDeviceWait) {
  const Timeline timeline = simulate(gpipe(2, 1), equal_costs(2, 1, 1, 1, 10));
  ASSERT_EQ(timeline.actions.size(), 4U);
  EXPECT_EQ(timeline.end, 1 + 10 + 1 + 2 + 10 + 2);
  EXPECT_EQ(timeline.busy, (std::vector<double>{3, 3}));
  EXPECT_DOUBLE_EQ(timeline.bubble(), 1 - 6 / 52.0);
  EXPECT_EQ(Timeline().bubble(), 0);
  EXPECT_EQ(simulate(gpipe(2, 1), equal_costs(2, 0, 0, 0)).bubble(), 0);
}

// Each message takes 10 on the link. Down: F0.0's from 1 to 11, F0.1's until 21. F1.1 runs until
// 22, B1.1 until 24 and B1.0 until 26. Up: B1.1's message from 24 to 34, B1.0's until 44; then B0.0
// takes 2.
TEST(SimulateTest, MessagesWaitForThoseBeforeThemOnTheirLink) {
  StageCosts costs = equal_costs(2, 1, 1, 1);
  costs.link = {10, 0};
  EXPECT_EQ(simulate(gpipe(2, 2), costs).end, 46);
  EXPECT_EQ(simulate(with_communication(gpipe(2, 2)), costs).end, 46);
  costs.transfer = 1;  // adds 1 in each direction
  EXPECT_EQ(simulate(gpipe(2, 2), costs).end, 48);
  // Stages 1 and 2 of this V are on one device.
  StageCosts of_v = equal_costs(4, 1, 1, 1);
  of_v.link = {0, 100, 0, 0};
  EXPECT_EQ(simulate(zero_bubble_v(2, 4), of_v).end,
            simulate(zero_bubble_v(2, 4), equal_costs(4, 1, 1, 1)).end);
}

// Two devices have one link in each direction, whichever stages use it: in interleaved schedules
// stages 0 and 2 share one, in a V the gradients of stage 3 use it, too. Each message takes 10.
TEST(SimulateTest, StagesOfTheSameDevicesShareALink) {
  StageCosts costs = equal_costs(4, 1, 1, 1);
  costs.link = {10, 10, 10, 0};
  for (const Schedule& schedule :
       {with_communication(interleaved_one_f_one_b(2, 2, 4)),
        with_communication(zero_bubble_v(2, 4)), with_communication(dual_pipe_v(2, 4))}) {
    const std::vector<int> devices = check(schedule).device_of_stage;
    std::map<std::pair<int, int>, std::vector<double>> arrivals;  // key: devices from, to
    for (const TimedAction& timed : simulate(schedule, costs).actions) {
      const bool forward = timed.action.kind == Kind::send_activation;
      if (!forward && timed.action.kind != Kind::send_gradient) continue;
      const auto to = static_cast<std::size_t>(timed.action.stage + (forward ? 1 : -1));
      arrivals[{timed.device, devices[to]}].push_back(timed.end);
    }
    EXPECT_EQ(arrivals.size(), 2U) << schedule.name;
    for (auto& [link, times] : arrivals) {
      std::ranges::sort(times);
      for (std::size_t i = 1; i < times.size(); ++i) {
        EXPECT_GE(times[i] - times[i - 1], 10) << schedule.name;
      }
    }
  }
}

TEST(SimulateTest, ADeviceMayBeginLater) {
  StageCosts costs = equal_costs(2, 1, 1, 1);
  costs.begin = {0, 30};
  const Timeline timeline = simulate(gpipe(2, 1), costs);
  EXPECT_EQ(timeline.end, 30 + 1 + 2 + 2);
  EXPECT_EQ(timeline.busy, (std::vector<double>{3, 3}));
}

// The second micro-batch takes 10 times as long: F0.1 until 11, F1.1 until 21, its backwards 20
// each, until 61. Of the first one's backwards, 2 each, only B0.0 runs after that.
TEST(SimulateTest, MicroBatchesMayHaveCostsOfTheirOwn) {
  StageCosts costs;
  costs.micro_batches = {{{1, 1}, {1, 1}, {1, 1}}, {{10, 10}, {10, 10}, {10, 10}}};
  EXPECT_EQ(simulate(gpipe(2, 2), costs).end, 61 + 2);
  EXPECT_EQ(simulate(gpipe(2, 2), costs).busy, (std::vector<double>{33, 33}));
  EXPECT_WEFT_ERROR(simulate(gpipe(2, 3), costs), InvalidArgument,
                    "2 costs of micro-batches, expected 3");
  costs.micro_batches[1].forward.pop_back();
  EXPECT_WEFT_ERROR(simulate(gpipe(2, 2), costs), InvalidArgument,
                    "1 costs of forward for 2 stages");
}

TEST(SimulateTest, DrawsARowPerDevice) {
  EXPECT_EQ(draw(simulate(one_f_one_b(2, 3, Recompute::except_last), equal_costs(2, 1, 1, 1))),
            "0 F0F1R0 . .B0--F2R1B1-- .B2--\n"
            "1  .F0R0B0--F1R1B1--F2B2-- . .\n");
  EXPECT_EQ(draw(simulate(with_communication(zero_bubble_h1(2, 2)), equal_costs(2, 2, 2, 2)), 2),
            "0 F0F1 .I0W0I1W1\n"
            "1  .F0I0F1I1W0W1\n");
}

TEST(SimulateTest, DrawsNoMoreThanFits) {
  EXPECT_EQ(draw(simulate(gpipe(2, 3), equal_costs(2, 1, 1, 1)), 1, 13),
            "0 F0F1F2 . .\n"
            "1  .F0F1F2B2\n"
            "(cut behind 5 of 12 units of 1 s)\n");
  EXPECT_EQ(draw(simulate(gpipe(2, 1), equal_costs(2, 1, 1, 1)), 1, 14),
            "0 F0 . . .B0--\n"
            "1  .F0B0-- . .\n");
  const std::string many = draw(simulate(gpipe(11, 40), equal_costs(11, 1, 1, 1)), 1, 1000);
  EXPECT_EQ(std::ranges::count(many, '\n'), 11);
  EXPECT_HAS(many, "10  . . . . . . . . . .F0");
  EXPECT_HAS(many, "F9FaFb");
  EXPECT_HAS(many, "FzF0F1F2F3 ");
}

TEST(SimulateTest, CostsAreOnePerStageAndNotNegative) {
  const Schedule schedule = gpipe(2, 2);
  EXPECT_WEFT_ERROR(simulate(schedule, equal_costs(3, 1, 1, 1)), InvalidArgument,
                    "3 costs of forward for 2 stages; give one each");
  EXPECT_WEFT_ERROR(simulate(schedule, equal_costs(2, 1, 1, -2)), InvalidArgument,
                    "got -2 s as a cost of backward_weight, expected 0 or more");
  EXPECT_WEFT_ERROR(
      simulate(schedule, equal_costs(2, 1, 1, 1, std::numeric_limits<double>::infinity())),
      InvalidArgument, "got inf s as a cost of transfer");
  StageCosts costs = equal_costs(2, 1, 1, 1);
  costs.link = {1};
  EXPECT_WEFT_ERROR(simulate(schedule, costs), InvalidArgument, "1 costs of link for 2 stages");
  costs.link = {1, -1};
  EXPECT_WEFT_ERROR(simulate(schedule, costs), InvalidArgument, "got -1 s as a cost of link");
  costs.link = {};
  costs.begin = {0, 0, 0};
  EXPECT_WEFT_ERROR(simulate(schedule, costs), InvalidArgument, "3 costs of begin for 2 devices");
  EXPECT_WEFT_ERROR(draw(simulate(schedule, equal_costs(2, 1, 1, 1)), 0), InvalidArgument,
                    "got 0 s as a unit");
  EXPECT_WEFT_ERROR(equal_costs(-1, 1, 1, 1), InvalidArgument, "got -1 stages");
  Timeline timeline = simulate(schedule, equal_costs(2, 1, 1, 1));
  timeline.actions[0].device = 2;
  EXPECT_WEFT_ERROR(draw(timeline), InvalidArgument, "F0.0 is on device 2 of 2");
}

}  // namespace
}  // namespace weft::parallel
