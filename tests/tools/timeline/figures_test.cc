// What figures of traces made by hand say.
#include "weft/tools/timeline/figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/tools/timeline/traces.h"

namespace weft::timeline {
namespace {

using parallel::simulate;
using parallel::StageCosts;

class Figures : public ::testing::Test {
 protected:
  Figure figure(std::int64_t step = -1) const { return trace_figure(trace.write(folder), step); }

  TraceFile trace;
  testing::TempFolder folder;
};

std::string facts(const Figure& figure) {
  std::string text;
  for (const std::string& fact : figure.facts) text += fact + '\n';
  return text;
}

const StageCosts kEqual = {{.010, .010}, {.020, .020}, {0, 0}};
const StageCosts kUnequal = {{.010, .020}, {.020, .040}, {0, 0}};

TEST_F(Figures, APipelineIsPredictedFromTheOtherSteps) {
  const parallel::Schedule schedule = parallel::gpipe(2, 2);
  for (int step = 0; step < 5; ++step) {
    trace.add_pipeline(step, simulate(schedule, step == 3 ? kUnequal : kEqual), 200 * step);
  }
  const Figure shown = figure(3);
  EXPECT_EQ(shown.title, "Step 3 of a pipeline: 2 stages on 2 devices, 2 micro-batches");
  // Equal stages: 1 of 3 slots idles. With stage 1 twice as slow, 60 and 120 of 150 ms are busy.
  EXPECT_EQ(facts(shown),
            "Schedule: gpipe, checkpoint never.\n"
            "Measured 150.0 ms, 1.667 times the predicted 90.0 ms; bubble 40.0 % measured, 33.3 % "
            "predicted.\n"
            "GPipe and 1F1B with equal stages: bubble (p-1)/(m+p-1) = 33.3 % for p = 2 devices, "
            "m = 2 micro-batches.\n"
            "Predicted from the medians of each stage's times over 4 other steps of the trace, "
            "transfers taking no time.\n");
  ASSERT_EQ(shown.panels.size(), 2U);
  EXPECT_EQ(shown.panels[0].title, "Predicted: 90.0 ms, bubble 33.3 %");
  EXPECT_EQ(shown.panels[1].title, "Measured: 150.0 ms, bubble 40.0 %");
  ASSERT_EQ(shown.panels[1].rows.size(), 2U);
  const Row& row = shown.panels[1].rows[0];
  EXPECT_EQ(row.name, "cpu:0");
  EXPECT_EQ(row.note, "idle 60.0 %");
  ASSERT_EQ(row.bars.size(), 4U);
  EXPECT_NEAR(row.bars[2].begin, .090, 1e-9);
  EXPECT_NEAR(row.bars[2].end, .110, 1e-9);
  EXPECT_EQ(row.bars[2].text, "1");
  EXPECT_EQ(row.bars[2].hover,
            "B0.1: backward of micro-batch 1 in stage 0 on cpu:0\n"
            "measured: begins at 90.0 ms, takes 20.0 ms\n"
            "predicted: begins at 50.0 ms, takes 20.0 ms");
}

TEST_F(Figures, AStepAloneIsPredictedFromItself) {
  trace.add_pipeline(7, simulate(parallel::gpipe(2, 2), kUnequal), 0);
  std::string said = facts(figure());
  EXPECT_NE(said.find("Measured 150.0 ms, 1.000 times the predicted 150.0 ms"), std::string::npos)
      << said;
  EXPECT_NE(said.find("this step's own medians"), std::string::npos) << said;
  trace.add_pipeline(8, simulate(parallel::one_f_one_b(2, 2), kEqual), 200);  // another schedule
  EXPECT_EQ(facts(figure(7)), said);
  trace.add_pipeline(9, simulate(parallel::gpipe(2, 2), kEqual), 400);
  said = facts(figure(7));
  EXPECT_NE(said.find("Measured 150.0 ms, 1.667 times the predicted 90.0 ms"), std::string::npos)
      << said;
}

TEST_F(Figures, TheUsualStepIsOfMedianLengthAfterTheFirstTwo) {
  const double factors[] = {3, 2.9, 1.2, 1, 1.1};
  for (int step = 0; step < 5; ++step) {
    StageCosts costs = kEqual;
    for (auto* of_stages : {&costs.forward, &costs.backward_input}) {
      for (double& cost : *of_stages) cost *= factors[step];
    }
    trace.add_pipeline(step, simulate(parallel::gpipe(2, 2), costs), 1000 * step);
  }
  EXPECT_NE(figure().title.find("Step 4 "), std::string::npos) << figure().title;
}

TEST_F(Figures, GradientsOfWeightsAndRecomputationHaveTheirOwnTimes) {
  const StageCosts costs = {{.010, .012}, {.014, .015}, {.008, .009}};
  for (const parallel::Schedule& schedule :
       {parallel::zero_bubble_h1(2, 4), parallel::one_f_one_b(2, 4, parallel::Recompute::always)}) {
    trace = {};
    for (int step = 0; step < 3; ++step) trace.add_pipeline(step, simulate(schedule, costs), 0);
    const Figure shown = figure();
    ASSERT_EQ(shown.panels.size(), 2U);
    for (std::size_t d = 0; d < 2; ++d) {
      const std::vector<Bar>&predicted = shown.panels[0].rows[d].bars,
            &measured = shown.panels[1].rows[d].bars;
      ASSERT_EQ(predicted.size(), measured.size());
      for (std::size_t i = 0; i < predicted.size(); ++i) {
        EXPECT_NEAR(predicted[i].begin, measured[i].begin, 1e-9) << measured[i].hover;
        EXPECT_NEAR(predicted[i].end, measured[i].end, 1e-9) << measured[i].hover;
      }
    }
    EXPECT_EQ(facts(shown).find("Schedule: " + schedule.name + ", checkpoint "), 0U)
        << facts(shown);
  }
}

TEST_F(Figures, DevicesStandInTheOrderOfTheirStages) {
  const parallel::Schedule schedule = parallel::interleaved_one_f_one_b(2, 2, 5);
  parallel::Timeline timeline = simulate(schedule, parallel::equal_costs(4, .01, .02, 0));
  for (parallel::TimedAction& timed : timeline.actions) timed.device = 9 - timed.device;
  trace.add_pipeline(0, timeline, 0);
  const Figure shown = figure();
  EXPECT_EQ(shown.panels[1].rows[0].name, "cpu:9");
  EXPECT_EQ(shown.panels[1].rows[1].name, "cpu:8");
  EXPECT_EQ(facts(shown).find("Schedule: interleaved, checkpoint never.\n"), 0U) << facts(shown);
  // Two stages on each: 1 of 11 slots.
  EXPECT_NE(facts(shown).find("(p-1)/(vm+p-1) = 9.1 %"), std::string::npos) << facts(shown);
}

// Ranks 2 and 3 have the stages of ranks 0 and 1.
TEST_F(Figures, OfSeveralPipelinesTheFirstIsShown) {
  const parallel::Schedule schedule = parallel::gpipe(2, 2);
  for (int rank = 0; rank < 4; ++rank) {
    parallel::Timeline timeline = simulate(schedule, rank < 2 ? kEqual : kUnequal);
    std::erase_if(timeline.actions, [&](const auto& t) { return t.device != rank % 2; });
    trace.add_pipeline(0, timeline, 0, "cpu:", 3, rank);
  }
  const Figure shown = figure();
  EXPECT_EQ(shown.title,
            "Step 0 of the first of 2 pipelines: 2 stages on 2 devices, 2 micro-batches");
  EXPECT_EQ(shown.panels[1].title, "Measured: 90.0 ms, bubble 33.3 %");
  EXPECT_EQ(shown.panels[1].rows[1].name, "rank 1, cpu:1");
}

TEST_F(Figures, WorkOnAGpuIsWhatItsStreamsSay) {
  trace.add_pipeline(0, simulate(parallel::gpipe(2, 2), kUnequal), 0, "cuda:", 1'000'000);
  trace.add_pipeline(0, simulate(parallel::gpipe(2, 2), kEqual), 0, "cuda:");
  EXPECT_EQ(figure().panels[1].title, "Measured: 150.0 ms, bubble 40.0 %");
}

TEST_F(Figures, AStepThatIsNotWholeIsLeftOutOrAnError) {
  const parallel::Timeline whole = simulate(parallel::gpipe(2, 2), kEqual);
  parallel::Timeline half = whole;
  half.actions.resize(5);
  trace.add_pipeline(1, half, 200);
  EXPECT_WEFT_ERROR(figure(), InvalidArgument, "is missing");
  trace.add_pipeline(0, whole, 0);
  EXPECT_NE(figure().title.find("Step 0 "), std::string::npos);
  EXPECT_WEFT_ERROR(figure(1), InvalidArgument,
                    "the trace has no whole step 1; its first is 0, its last 0");
}

TEST_F(Figures, AnActionNeedsStepStageAndMicroBatch) {
  trace.add("pipeline", "forward", 0, 1, 3, {{"device", "cpu:0"}, {"stage", 0}, {"step", 0}});
  EXPECT_WEFT_ERROR(figure(), InvalidArgument, "micro-batch -1");
  trace = {};
  trace.add("pipeline", "forward", 0, 1, 3,
            {{"device", "cpu:0"}, {"stage", 1 << 30}, {"micro_batch", 0}, {"step", 0}});
  EXPECT_WEFT_ERROR(figure(), InvalidArgument, "stage 1073741824");
}

TEST_F(Figures, DataParallelSaysHowLongEachDeviceIdles) {
  for (int step = 0; step < 3; ++step) trace.add_data_parallel(step, 20 * step);
  const Figure shown = figure(1);
  EXPECT_EQ(shown.title, "Step 1 of DataParallel on 2 devices");
  // cpu:0 works 2 and 3 ms, cpu:1 0.5, 1.5 and 4.
  EXPECT_EQ(facts(shown),
            "Forward and backward take 10.0 ms, in which the devices idle 45.0 % of the time.\n");
  ASSERT_EQ(shown.panels.size(), 1U);
  const std::vector<Row>& rows = shown.panels[0].rows;
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].bars.size(), 5U);
  EXPECT_EQ(rows[1].note, "idle 50.0 %");
  EXPECT_EQ(rows[2].note, "idle 40.0 %");
  EXPECT_EQ(rows[2].bars[0].text, "replicate");
  EXPECT_EQ(rows[2].bars[0].hover,
            "replicate of replica 1 on cpu:1\nbegins at 1.50 ms, takes 0.500 ms");
}

TEST_F(Figures, DdpSaysWhatCommunicationIsExposed) {
  trace.add_ddp(0, 0);
  trace.add_ddp(1, 100);
  const Figure shown = figure(1);
  EXPECT_EQ(shown.title, "Step 1 of DistributedDataParallel on 2 ranks, 1 buckets");
  ASSERT_EQ(shown.panels.size(), 1U);
  EXPECT_NE(shown.panels[0].title.find("50.0 ms, exposed communication 15.0 % on average"),
            std::string::npos)
      << shown.panels[0].title;
  const std::vector<Row>& rows = shown.panels[0].rows;
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].note, "exposed 10.0 %");
  EXPECT_EQ(rows[3].note, "exposed 20.0 %");
  EXPECT_EQ(rows[3].bars[0].text, "bucket 0");
  EXPECT_NEAR(rows[3].bars[0].begin, .031, 1e-9);
}

TEST_F(Figures, MediansOfEvenAndOddNumbers) {
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({5, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace weft::timeline
