// Replays of steps of a pipeline made from schedules, so that their times under other settings are
// those of parallel::simulate, or computed by hand; and what is refused.
#include "weft/tools/simulate/replay/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/any_module.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/simulate.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tools/simulate/replay/traces.h"

namespace weft::simulator {
namespace {

using nlohmann::json;
using parallel::Action;
using Kind = Action::Kind;

using ReplayPipeline = ReplayTest<PipelineTrace>;

constexpr double kTail = 3;  // from the last action to the end of the last optimiser

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::backward: return "backward";
    case Kind::backward_input: return "backward_input";
    case Kind::backward_weight: return "backward_weight";
    default: return "recompute";
  }
}

// Whether another place sends what the action needs.
bool is_fed(const parallel::Schedule& schedule, const Action& action, int place) {
  const bool forward = action.kind == Kind::forward;
  const bool back = action.kind == Kind::backward || action.kind == Kind::backward_input;
  const int from = action.stage + (forward ? -1 : 1);
  return (forward || back) && 0 <= from && from < schedule.stages &&
         parallel::check(schedule).device_of_stage[static_cast<std::size_t>(from)] != place;
}

// The trace that devices would record if they run the schedule with these costs, in milliseconds.
// Each waits for what it needs. Over ranks, messages take the costs' transfer.
json trace_of(const parallel::Schedule& schedule, const parallel::StageCosts& costs,
              bool over_ranks = true, int bytes = 10000) {
  const parallel::Timeline timeline = parallel::simulate(schedule, costs);
  json events = json::array();
  std::map<int, double> free;
  for (const auto& [action, place, begin, end] : timeline.actions) {
    const int rank = over_ranks ? place : 0;
    const std::string device = over_ranks ? "cpu:0" : "cpu:" + std::to_string(place);
    // Over ranks each arrival has a wait, of length 0 if the message had come before.
    if (begin > free[place] || (over_ranks && is_fed(schedule, action, place))) {
      events.push_back(span("pipeline", "wait", rank, free[place], begin, {{"device", device}}));
    }
    free[place] = end;
    events.push_back(
        span("pipeline", name_of(action.kind), rank, begin, end,
             {{"stage", action.stage}, {"micro_batch", action.micro_batch}, {"device", device}}));
    const bool forward = action.kind == Kind::forward;
    const bool back = action.kind == Kind::backward || action.kind == Kind::backward_input;
    const int to = action.stage + (forward ? 1 : -1);
    if (!over_ranks || !(forward || back) || to < 0 || to == schedule.stages) continue;
    const int owner = parallel::check(schedule).device_of_stage[static_cast<std::size_t>(to)];
    if (owner == place) continue;
    const std::string of = (forward ? "F" : "B"), number = "." + std::to_string(action.micro_batch);
    events.push_back(
        span("comm", "send", rank, end, end + costs.transfer,
             {{"module", ">" + of + std::to_string(action.stage) + number}, {"bytes", bytes}}));
    events.push_back(span("comm", "receive", owner, end, end + costs.transfer,
                          {{"module", "<" + of + std::to_string(to) + number}, {"bytes", bytes}}));
  }
  const int ranks = over_ranks ? static_cast<int>(schedule.devices.size()) : 1;
  for (int r = 0; r < ranks; ++r) {
    events.push_back(span("pipeline", "step", r, 0, timeline.end));
    events.push_back(span("optim", "step", r, timeline.end, timeline.end + kTail - (r == 0)));
  }
  if (!over_ranks) events.push_back(span("optim", "step", 0, timeline.end, timeline.end + kTail));
  return {{"traceEvents", events}};
}

// F takes 2 ms, B 4 and a transfer 1: the last action ends at 20, then comes the optimiser.
json two_stages() { return trace_of(parallel::gpipe(2, 2), parallel::equal_costs(2, 2, 2, 2, 1)); }

TEST_F(ReplayPipeline, TheTraceIsReadInStages) {
  const PipelineTrace trace = read(two_stages());
  EXPECT_EQ(trace.what(),
            "a pipeline on 2 ranks, gpipe, 2 stages, 2 micro-batches, recomputed: never");
  EXPECT_NEAR(trace.seconds(), 0.023, 1e-9);
  ASSERT_EQ(trace.steps.size(), 1U);
  const PipelineStep& step = trace.steps[0];
  EXPECT_NEAR(step.transfer, 1e-3, 1e-9);
  EXPECT_NEAR(step.tail, 3e-3, 1e-9);
  EXPECT_EQ(trace.bytes[0], 10000);
  ASSERT_EQ(step.micro_batches.size(), 2U);
  for (const auto& each : step.micro_batches) {
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_NEAR(each.forward[s], 2e-3, 1e-9);
      EXPECT_NEAR(each.backward_input[s], 4e-3, 1e-9);
      EXPECT_EQ(each.backward_weight[s], 0);
    }
  }
}

TEST_F(ReplayPipeline, OtherSettingsAreComputed) {
  const std::vector<std::tuple<const char*, double, bool>> expected = {
      {"recorded", 20, false},
      {"schedule=gpipe", 20, false},
      {"schedule=1f1b", 20, false},
      // Each action takes half as long: F1 from 2 to 6, B1 to 14, B0.0 from 15 to 17.
      {"micro-batches=4", 17, true},
      // I and W take 2 each: F1.1 ends at 9, I1.1 at 11, I0.1 at 14, W0.1 at 16.
      {"schedule=zb-h1", 16, true},
      {"slow=1:20ms", 37, false},
      // Messages follow each other, of 10 ms and 1 each: F1 begins at 13 and 23, B1 ends at 29 and
      // 33, and the results arrive at 40 and 50.
      {"link=0-1:1MB/s", 54, false},
      {"latency=3ms", 24, true},
      {"bandwidth=1MB/s", 52, true},
  };
  for (const auto& [setting, ms, extrapolated] : expected) {
    EXPECT_NEAR(ms_of(two_stages(), setting), ms + kTail, 1e-6) << setting;
    EXPECT_EQ(replay(two_stages(), setting).extrapolated, extrapolated) << setting;
  }
  // F1 takes 4, until 11, B1 8, until 27, and B0.0 ends at 32; what follows stays as it is.
  EXPECT_NEAR(ms_of(two_stages(), "slow=1:2x"), 32 + kTail, 1e-6);
}

// A slow rank, and the two of a link, are ranks, even if the last stage is on rank 0, or if a rank
// has several devices.
TEST_F(ReplayPipeline, RanksNeedNotBePlaces) {
  json turned = two_stages();
  for (json& event : turned["traceEvents"]) event["pid"] = 1 - event["pid"].get<int>();
  EXPECT_NEAR(ms_of(turned, "slow=0:2x"), ms_of(two_stages(), "slow=1:2x"), 1e-6);
  EXPECT_NEAR(ms_of(turned, "slow=0:20ms"), ms_of(two_stages(), "slow=1:20ms"), 1e-6);
  // Stages 0 and 1 on rank 0, 2 and 3 on rank 1.
  json four = trace_of(parallel::gpipe(4, 2), parallel::equal_costs(4, 2, 2, 2, 1));
  json kept = json::array();
  for (json event : four["traceEvents"]) {
    const int place = event["pid"];
    event["pid"] = place / 2;
    if (event["cat"] == "pipeline") event["args"]["device"] = "cpu:" + std::to_string(place % 2);
    kept.push_back(event);
  }
  four["traceEvents"] = kept;
  const PipelineTrace trace = read(four);
  EXPECT_EQ(trace.ranks(), 2);
  EXPECT_EQ(trace.schedule.devices.size(), 4U);
  EXPECT_HAS(trace.what(), "a pipeline on 2 ranks, gpipe, 4 stages");
  for (const char* text : {"slow=2:1ms", "link=1-2:1MB/s"}) {
    EXPECT_WEFT_ERROR(trace.parse(text), InvalidArgument, "got the setting '");
  }
  // Stages 2 and 3 take twice their 2 and 4 ms. Four stages, two micro-batches.
  parallel::StageCosts slow = parallel::equal_costs(4, 2, 2, 2, 1);
  for (const std::size_t s : {2U, 3U}) {
    slow.forward[s] = slow.backward_input[s] = slow.backward_weight[s] = 4;
  }
  EXPECT_NEAR(ms_of(four, "slow=1:2x"), parallel::simulate(parallel::gpipe(4, 2), slow).end + kTail,
              1e-6);
  EXPECT_GT(replay(four, "link=0-1:1MB/s").seconds, replay(four, "recorded").seconds);
  EXPECT_EQ(replay(four, "schedule=1f1b").count, 2);
}

// A message that comes while its rank is busy has to wait, which is not part of the transfer.
TEST_F(ReplayPipeline, ATransferEndsWhenTheMessageIsThere) {
  for (const parallel::Schedule& schedule :
       {parallel::one_f_one_b(4, 8), parallel::gpipe(4, 8), parallel::zero_bubble_h1(4, 8)}) {
    const json trace = trace_of(schedule, parallel::equal_costs(4, 1, 1, 1, 0.1));
    EXPECT_NEAR(read(trace).steps.at(0).transfer, 0.1e-3, 1e-9) << schedule.name;
  }
  parallel::StageCosts uneven = parallel::equal_costs(2, 1, 1, 1, 0.1);
  uneven.forward[1] = 2;
  const json trace = trace_of(parallel::gpipe(2, 8), uneven);
  EXPECT_NEAR(read(trace).steps.at(0).transfer, 0.1e-3, 1e-9);
  EXPECT_NEAR(ms_of(trace, "recorded"), 1e3 * read(trace).seconds(), 1e-6);
}

TEST_F(ReplayPipeline, AStepOverRanksRecordsItsActions) {
  constexpr int kRanks = 2, kChunks = 4;
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    comm::run_ranks(kRanks, [](comm::ProcessGroup& group) {
      nn::Sequential first{nn::Linear(4, 8)}, second{nn::Linear(8, 2)};
      parallel::Pipeline pipe(std::vector<nn::AnyModule>{first, second},
                              {.chunks = kChunks,
                               .checkpoint = parallel::Recompute::never,
                               .schedule = "1f1b",
                               .group = std::shared_ptr<comm::ProcessGroup>(&group, [](auto*) {})});
      optim::SGD sgd((group.rank() == 0 ? first : second).parameters(), {.lr = 0.1});
      for (int step = 0; step < 3; ++step) {
        thread_state().step = step;
        sgd.zero_grad();
        pipe.step({ones({8, 4})}, {ones({8, 2})},
                  [](const auto& y, const auto& target) { return mean(y[0] * target[0]); });
        sgd.step();
      }
    });
  }
  tracer.write(folder.path("trace.json"));
  const PipelineTrace trace = read_file();
  EXPECT_EQ(trace.what(),
            "a pipeline on 2 ranks, 1f1b, 2 stages, 4 micro-batches, recomputed: never");
  EXPECT_EQ(trace.steps.size(), 3U);
  // Each micro-batch sends 2 rows of 8 numbers, after a message that describes them.
  EXPECT_GT(trace.bytes.at(0), 64);
  EXPECT_EQ(trace.batch_bytes.at(0), kChunks * 64);
  EXPECT_GT(trace.replay(trace.parse("recorded")).seconds, 0);
  EXPECT_GT(trace.replay(trace.parse("schedule=gpipe,link=0-1:1MB/s")).seconds, 0);
}

// A recorded schedule of any kind is replayed to its own time, with uneven stages too.
TEST_F(ReplayPipeline, TheRecordedSettingGivesTheRecordedStep) {
  using parallel::Recompute;
  for (const bool over_ranks : {true, false}) {
    for (const parallel::Schedule& schedule :
         {parallel::gpipe(3, 4), parallel::one_f_one_b(3, 5, Recompute::except_last),
          parallel::zero_bubble_h1(3, 4), parallel::interleaved_one_f_one_b(2, 2, 4),
          parallel::zero_bubble_v(2, 4)}) {
      parallel::StageCosts costs{.transfer = over_ranks ? 0.5 : 0};
      for (int s = 0; s < schedule.stages; ++s) {
        costs.forward.push_back(1 + s);
        costs.backward_input.push_back(2 + s % 2);
        costs.backward_weight.push_back(1);
      }
      const json trace = trace_of(schedule, costs, over_ranks);
      const PipelineTrace steps = read(trace);
      EXPECT_EQ(steps.over_ranks, over_ranks);
      EXPECT_EQ(steps.known_as, schedule.name);
      EXPECT_NEAR(ms_of(trace, "recorded"), 1e3 * steps.seconds(), 1e-6) << schedule.name;
    }
  }
}

TEST_F(ReplayPipeline, StagesArePutTogetherOrCut) {
  // Two stages on each device become one of twice the time.
  const json many =
      trace_of(parallel::interleaved_one_f_one_b(2, 2, 4), parallel::equal_costs(4, 1, 1, 1, 0.5));
  const auto took = [](const parallel::Schedule& schedule, const parallel::StageCosts& costs) {
    return parallel::simulate(schedule, costs).end + kTail;
  };
  EXPECT_NEAR(ms_of(many, "schedule=1f1b"),
              took(parallel::one_f_one_b(2, 4), parallel::equal_costs(2, 2, 2, 2, 0.5)), 1e-6);
  EXPECT_FALSE(replay(many, "schedule=1f1b").extrapolated);
  // And the other way round, with half of the time each.
  EXPECT_NEAR(
      ms_of(two_stages(), "schedule=interleaved"),
      took(parallel::interleaved_one_f_one_b(2, 2, 2), parallel::equal_costs(4, 1, 1, 1, 1)), 1e-6);
  EXPECT_TRUE(replay(two_stages(), "schedule=interleaved").extrapolated);
}

TEST_F(ReplayPipeline, OtherSettingsAreRefused) {
  const json threads = trace_of(parallel::gpipe(2, 2), parallel::equal_costs(2, 2, 2, 2), false);
  for (const char* text : {"bandwidth=1GB/s", "latency=1ms", "link=0-1:1MB/s"}) {
    EXPECT_WEFT_ERROR(replay(threads, text), InvalidArgument, "which has no links");
  }
  for (const char* text : {"schedule=", "schedule=1F1B", "micro-batches=0", "micro-batches=2x",
                           "ranks=4", "bf16", "cap=1", "reshard=true"}) {
    EXPECT_WEFT_ERROR(replay(two_stages(), text), InvalidArgument, "expected words as schedule=");
  }
  parallel::Schedule own = parallel::gpipe(2, 2);
  std::swap(own.devices[1][2], own.devices[1][3]);
  const json unknown = trace_of(own, parallel::equal_costs(2, 2, 2, 2, 1));
  EXPECT_EQ(read(unknown).known_as, "");
  EXPECT_WEFT_ERROR(replay(unknown, "micro-batches=4"), InvalidArgument, "add schedule=1f1b");
  EXPECT_EQ(replay(unknown, "schedule=1f1b,micro-batches=4").count, 4);
}

TEST_F(ReplayPipeline, TheCommandSaysWhatToUse) {
  const std::string file = write("gpipe.json", two_stages().dump());
  EXPECT_EQ(run("--replay " + file), 0) << log();
  EXPECT_HAS(log(), "1 steps of a pipeline on 2 ranks");
  EXPECT_HAS(log(), "keep the recorded schedule: no other here saves 2 %");
  EXPECT_HAS(log(), "schedule=zb-h1");
  EXPECT_HAS(log(), "micro-batches=8");
  const std::string split =
      write("zb.json",
            trace_of(parallel::zero_bubble_h1(2, 2), parallel::equal_costs(2, 2, 2, 2, 1)).dump());
  EXPECT_EQ(run("--replay " + file + " schedule=zb-h1@" + split), 0) << log();
  EXPECT_HAS(log(), "1 of 1 measured rows lie within 15 %");
  EXPECT_EQ(run("--replay " + split + " schedule=1f1b schedule=gpipe -o " + folder.path("c.svg")),
            0)
      << log();
  EXPECT_HAS(testing::read_file(folder.path("c.svg")), "schedule=zb-h1");
  refuses("--replay " + file + " cap=5", "expected words as schedule=1f1b");
  refuses("--replay " + file + " schedule=2f2b", "got the setting 'schedule=2f2b'");
  refuses("--replay " + file + " schedule=dualpipev", "micro-batches");
  const std::string threads =
      write("threads.json",
            trace_of(parallel::gpipe(2, 2), parallel::equal_costs(2, 2, 2, 2), false).dump());
  EXPECT_EQ(run("--replay " + threads), 0) << log();
  EXPECT_HAS(log(), "a pipeline on 2 devices");
  refuses("--replay " + threads + " bandwidth=1GB/s", "within one process, which has no links");
  refuses("--replay " + file + " schedule=1f1b@" + threads,
          "is of a pipeline on 2 devices, gpipe, 2 stages, 2 micro-batches, recomputed: never, "
          "expected a pipeline on 2 ranks, 1f1b, 2 stages, 2 micro-batches, recomputed: never");
  refuses("--replay " + file + " recorded@" + file, "is the trace itself");
  const std::string again = write("again.json", two_stages().dump());
  EXPECT_EQ(run("--replay " + file + " recorded@" + again), 0) << log();
  refuses("--replay " + file + " schedule=1f1b@" + again, "is of a pipeline on 2 ranks, gpipe, ");
  refuses("--replay " + file + " micro-batches=4@" + again, ", 2 micro-batches, ");
  // A batch of the same size whose messages have twice the bytes.
  const std::string larger = write(
      "larger.json",
      trace_of(parallel::gpipe(2, 2), parallel::equal_costs(2, 2, 2, 2, 1), true, 20000).dump());
  refuses("--replay " + file + " recorded@" + larger,
          "sends 40000 bytes of a batch behind stage 0, expected 20000");
  const std::string finer = write(
      "finer.json",
      trace_of(parallel::gpipe(2, 4), parallel::equal_costs(2, 1, 1, 1, 1), true, 5000).dump());
  EXPECT_NE(run("--replay " + file + " micro-batches=4@" + finer), 2) << log();
  const std::string cut = write("cut.json", trace_of(parallel::interleaved_one_f_one_b(2, 2, 2),
                                                     parallel::equal_costs(4, 1, 1, 1, 1))
                                                .dump());
  EXPECT_NE(run("--replay " + file + " schedule=interleaved@" + cut), 2) << log();
}

// The usual settings and the curves use only schedules that ./weft schedule has.
TEST_F(ReplayPipeline, OnlySchedulesThatThereAreAreTriedAndDrawn) {
  const auto expect_replays = [](const PipelineTrace& steps, std::size_t count) {
    EXPECT_EQ(steps.usual_settings().size(), count);
    for (const std::string& text : steps.usual_settings()) {
      EXPECT_GT(steps.replay(steps.parse(text)).count, 0) << text;
    }
  };
  // Stages 0 and 1 are on one device and 2 on the other: three stages cannot become two or four.
  const parallel::Schedule three = parallel::gpipe(3, 2);
  parallel::Schedule own = three;
  own.devices.erase(own.devices.begin());
  std::vector<Action>& both = own.devices[0];
  both.clear();
  for (std::size_t i = 0; i < three.devices[0].size(); ++i) {
    const bool forward = three.devices[0][i].kind == Kind::forward;
    both.push_back(three.devices[forward ? 0 : 1][i]);
    both.push_back(three.devices[forward ? 1 : 0][i]);
  }
  const auto costs = parallel::equal_costs(3, 2, 2, 2, 1);
  const PipelineTrace trace = read(trace_of(own, costs));
  expect_replays(trace, 2);  // bandwidths
  EXPECT_HAS(picture(trace), "recorded");
  const PipelineTrace threads = read(trace_of(own, parallel::equal_costs(3, 2, 2, 2), false));
  expect_replays(threads, 0);
  EXPECT_WEFT_ERROR(picture(threads), InvalidArgument, "nothing can be drawn");
  // Four times as many micro-batches would be more than a schedule may have.
  PipelineTrace fine = read(two_stages());
  fine.schedule = parallel::gpipe(2, parallel::kMostMicroBatches / 3);
  fine.steps[0].micro_batches.resize(parallel::kMostMicroBatches / 3,
                                     fine.steps[0].micro_batches[0]);
  expect_replays(fine, 4 + 1 + 2);
  // Nothing is printed before something is refused.
  const std::string file =
      write("own.json", trace_of(own, parallel::equal_costs(3, 2, 2, 2), false).dump());
  refuses("--replay " + file + " -o " + folder.path("c.svg"), "nothing can be drawn");
  EXPECT_LACKS(log(), "1 steps of a pipeline");
}

TEST_F(ReplayPipeline, OtherTracesAreRefused) {
  const auto expect_refused = [&](const json& trace, const std::string& why) {
    EXPECT_WEFT_ERROR(read(trace), Io, why);
  };
  expect_refused(without(two_stages(), "forward", 1), "no step of it is a whole step of one pipel");
  json optimizers = json::array();
  json several = two_stages(), cut = two_stages();
  const json events = several["traceEvents"];
  for (json event : events) {  // a second pipeline of the same stages
    event["pid"] = event["pid"].get<int>() + 2;
    several["traceEvents"].push_back(event);
    if (event["cat"] != "optim") optimizers.push_back(event);
  }
  expect_refused(several, "no step of it is a whole step of one pipeline");
  expect_refused({{"traceEvents", optimizers}}, "it has no action of one with its optimizer");
  // All pipelines over ranks have such spans.
  cut["traceEvents"].push_back(span("fully_shard", "wait for parameters", 0, 0, 0));
  EXPECT_EQ(read(cut).steps.size(), 1U);
  cut["traceEvents"].push_back(span("fully_shard", "reduce-scatter", 0, 0, 0));
  expect_refused(cut, "its pipeline's stages are cut by fully_shard");
  expect_refused(trace_of(parallel::gpipe(1, 2), parallel::equal_costs(1, 2, 2, 2)),
                 "its pipeline is on one device");
  json nameless = two_stages();
  for (json& event : nameless["traceEvents"]) event["args"].erase("stage");
  expect_refused(nameless, "has no stage or no micro-batch");
}

}  // namespace
}  // namespace weft::simulator
