// Replays of a step of fully_shard made by hand, whose times under each setting are computed by
// hand, too; what a real step records; and what is refused.
#include "weft/tools/simulate/replay/fsdp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tools/simulate/replay/traces.h"
#include "weft/tools/simulate/replay/shared_time.h"

namespace weft::simulator {
namespace {

using nlohmann::json;

using ReplayFsdp = ReplayTest<FsdpTrace>;

// A message of a unit: when it is asked for, begins and ends, and when the waiting for it ends.
struct Gather {
  const char* unit;
  double asked, begin, end, waited_from, waited_to;
};
struct Sum {
  const char* unit;
  double copied_from, begin, end, waited_from, waited_to;  // begin: also the end of copying
};

// Each rank does the same: what is left of the Net, 1 MB, and a block of 2 MB. Milliseconds:
//   forward   0 to 16: the Net's gather to 2, its forward to 4; the block's to 6, a copy to 7
//   backward  from 16: the Net's to 20; the block's gather to 24, a copy to 25, its backward to 36,
//             and a copy to 37; its reduce-scatter to 41; the Net's backward to 40, and
//             its reduce-scatter to 43
//   optimizer from 43 to 47
json two_units(const std::string& device, int ranks = 2) {
  const std::vector<Gather> gathers = {
      {"Net", 0, 0, 2, 0, 2}, {"block", 2, 2, 6, 4, 7}, {"block", 20, 20, 24, 20, 25}};
  const std::vector<Sum> sums = {{"block", 36, 37, 41, 40, 41}, {"Net", 41, 41, 43, 41, 43}};
  const auto bytes_of = [](const std::string& unit) { return unit == "Net" ? 1e6 : 2e6; };
  json events = json::array();
  for (int r = 0; r < ranks; ++r) {
    events.push_back(span("forward", "Net", r, 0, 16, {{"device", device}}));
    for (const auto& [unit, asked, begin, end, from, to] : gathers) {
      events.push_back(
          span("fully_shard", "gather", r, asked, asked,
               {{"module", unit}, {"bytes", bytes_of(unit)}, {"ahead", asked < from ? 1 : 0}}));
      events.push_back(span("fully_shard", "wait for parameters", r, from, to));
      events.push_back(span("comm", "all_gather", r, begin, end, {{"module", unit}}));
    }
    for (const auto& [unit, copied, begin, end, from, to] : sums) {
      events.push_back(span("fully_shard", "reduce-scatter", r, copied, begin));
      events.push_back(span("comm", "reduce_scatter", r, begin, end,
                            {{"module", unit}, {"bytes", bytes_of(unit) / ranks}}));
      events.push_back(span("fully_shard", "wait for sums", r, from, to));
    }
    events.push_back(span("phase", "backward", r, 16, 43));
    events.push_back(span("optim", "step", r, 43, 47));
  }
  return {{"traceEvents", events}};
}

// The same without the block's second gather; the block's backward takes up that time, too.
json zero2_units(const std::string& device) {
  const json full = two_units(device);
  json kept = json::array();
  for (const json& event : full["traceEvents"]) {
    const bool gathers = event["name"] == "gather" || event["name"] == "all_gather" ||
                         event["name"] == "wait for parameters";
    if (!gathers || event["ts"] != 20e3) kept.push_back(event);
  }
  return {{"traceEvents", kept}};
}

// The same with param_dtype = bf16, and sums in f32.
json in_bf16(json trace) {
  for (json& event : trace["traceEvents"]) {
    json& args = event["args"];
    if (event["name"] == "gather") args["bytes"] = args["bytes"].get<double>() / 2;
  }
  return trace;
}

TEST_F(ReplayFsdp, TheTraceIsReadInUnits) {
  const FsdpTrace trace = read(two_units("cuda:0"));
  EXPECT_EQ(trace.what(), "FSDP on 2 ranks, 2 units of 3.00 MB, reshard_after_forward true");
  EXPECT_NEAR(trace.seconds(), 0.047, 1e-9);
  ASSERT_EQ(trace.units.size(), 2U);
  EXPECT_EQ(trace.units[1].name, "block");
  EXPECT_EQ(trace.units[1].gather_bytes, 2e6);
  EXPECT_EQ(trace.units[1].reduce_bytes, 2e6);
  // Half of the bytes in 4 ms.
  EXPECT_NEAR(trace.gather_link.bytes_per_second, 1e6 / 4e-3, 1);
  EXPECT_EQ(trace.gather_link.latency, 0);
  const FsdpStep::Rank& rank = trace.steps.at(0).ranks.at(1);
  const auto expect_ms = [](const std::vector<double>& seconds, const std::vector<double>& ms) {
    ASSERT_EQ(seconds.size(), ms.size());
    for (std::size_t i = 0; i < ms.size(); ++i) EXPECT_NEAR(1e3 * seconds[i], ms[i], 1e-6) << i;
  };
  expect_ms(rank.forward, {2, 9, 0});
  expect_ms(rank.backward, {3, 12, 4});
  expect_ms(rank.copy, {0, 1});
  EXPECT_NEAR(rank.optimizer, 4e-3, 1e-9);
}

TEST_F(ReplayFsdp, OtherSettingsAreComputed) {
  const std::vector<std::pair<const char*, double>> expected = {
      {"recorded", 47},
      {"reshard=true", 47},
      {"reshard=false", 42},  // without the block's second gather of 4, and the copy after it
      {"slow=1:20ms", 67},
      // Forwards of 4 and 20 ms, backwards of 8, 26 and 6, the optimiser 8. In turn: 6 + 20 + 8 + 4
      // + 26 + 6, with the block's sums beside the last, then 2 and 8.
      {"slow=1:2x", 80},
      // Messages take 5 or 10 ms more: 21 until the block is there, then 10 and 4, 14 and 13, 14, 7
      // and 4.
      {"link=0-1:100MB/s", 87},
      // The gathers take 1 and 2 ms: 3 + 10 + 4 + 2 + 13 + 4 + 2 + 4.
      {"bf16", 42},
      // 3/4 of the bytes instead of 1/2: 9 + 10 + 4 + 6 + 13 + 6 + 3, then 2 for the optimiser,
      // whose parts are half as large.
      {"ranks=4", 53},
      {"latency=1ms", 52},      // 8 + 10 + 4 + 5 + 13 + 5 + 3 + 4
      {"bandwidth=1GB/s", 38},  // 2.5 + 10 + 4 + 1 + 13 + 3 + 0.5 + 4
  };
  for (const auto& [setting, ms] : expected) {
    EXPECT_NEAR(ms_of(two_units("cuda:0"), setting), ms, 1e-6) << setting;
  }
  const json four = two_units("cuda:0", 4);
  EXPECT_NEAR(ms_of(four, "link=0-2:1MB/s"), 47, 1e-6) << "a ring sends nothing there";
  EXPECT_GT(ms_of(four, "link=0-3:1MB/s"), 1000);
  EXPECT_FALSE(replay(four, "reshard=false").extrapolated);
  EXPECT_TRUE(replay(four, "bf16").extrapolated);
  EXPECT_EQ(replay(four, "reshard=false").count, 2);
  EXPECT_EQ(replay(four, "reshard=true").count, 3);
}

// On the CPU the block's first gather, from 2 to 6, shares the core with the Net's forward until
// that ends at 4. So the gather needs 3 ms of the core, and the forward 1. The block's sums, from
// 37 to 41, need 2.5, and the Net's backward, until 40, needs 1.5.
TEST_F(ReplayFsdp, OnTheCpuMessagesTakeTimeFromComputing) {
  const FsdpTrace trace = read(two_units("cpu:0"));
  const FsdpStep& step = trace.steps.at(0);
  EXPECT_NEAR(step.ranks[0].forward[0], 1e-3, 1e-9);
  EXPECT_NEAR(step.ranks[0].backward[0], 1.5e-3, 1e-9);
  EXPECT_NEAR(step.gather[1], 3.5e-3, 1e-9) << "the mean of 3 and 4";
  EXPECT_NEAR(step.reduce[1], 2.5e-3, 1e-9);
  // Times settle to 1e-7 s. The mean of the two gathers shifts half a millisecond between them.
  EXPECT_NEAR(ms_of(two_units("cpu:0"), "recorded"), 47, 1e-3);
  EXPECT_NEAR(ms_of(two_units("cpu:0"), "reshard=false"), 42.5, 1e-3);
  // Nothing is shared: 0.5 and 1 for gathers, 1 for the Net's forward beside the block's
  // gather: 1.5, then 10, 4, 1, 13, 1.5 and 0.5, 4.
  EXPECT_NEAR(ms_of(two_units("cpu:0"), "bandwidth=1GB/s"), 35.5, 1e-3);
}

TEST(SharedTime, TasksThatRunAtOnceEachHaveAPart) {
  const auto expect = [](const std::vector<SharedTask>& tasks, const std::vector<double>& lost) {
    const std::vector<double> found = lost_to_others(tasks);
    ASSERT_EQ(found.size(), lost.size());
    for (std::size_t i = 0; i < lost.size(); ++i) EXPECT_NEAR(found[i], lost[i], 1e-12) << i;
  };
  expect({}, {});
  expect({{0, 4}, {4, 6}}, {0, 0});
  expect({{0, 4}, {2, 6}}, {1, 1});
  expect({{0, 3}, {0, 3}, {0, 3}}, {2, 2, 2});
  expect({{0, 4}, {1, 1}}, {0, 0});
  // A task that waits for a link leaves the core to the other; two tasks on the link share it.
  expect({{0, 4}, {0, 4, 0, 1}}, {0, 0});
  expect({{0, 4, 0, 1}, {2, 6, 0, 1}}, {1, 1});
}

// Times that never settle are reported.
TEST(SharedTime, TimesSettleOrNot) {
  const parallel::StepSchedule step = parallel::fsdp_step(2, 2, true);
  parallel::StepCosts costs{.forward = {1, 1, 0}, .backward = {1, 1, 1}};
  std::size_t messages = 0;
  for (const auto& turn : parallel::check(step).order) {
    messages = std::max(messages, static_cast<std::size_t>(turn.message) + 1);
  }
  std::vector<parallel::StepCosts> ranks(2, costs);
  ranks[0].messages.assign(messages, 0.5);
  EXPECT_TRUE(simulate_shared(step, ranks, std::vector<MessageNeeds>(messages)).settled);
  // 60 rounds, each of which halves the distance, cannot bring 1e15 s nearer than 1e-3.
  for (parallel::StepCosts& each : ranks) {
    for (double& cost : each.backward) cost = 1e15;
  }
  ranks[0].messages.assign(messages, 1e15);
  const std::vector<MessageNeeds> all(messages, {.core = 1});
  EXPECT_FALSE(simulate_shared(step, ranks, all).settled);
}

TEST_F(ReplayFsdp, TheCommandSaysWhatToUse) {
  const std::string file = write("fsdp.json", two_units("cuda:0").dump());
  EXPECT_EQ(run("--replay " + file), 0) << log();
  EXPECT_HAS(log(), "1 steps of FSDP on 2 ranks");
  EXPECT_HAS(log(), "use reshard=false: a step of 42.000 ms, 10.6 % less");
  EXPECT_HAS(log(), "bandwidth=100MB/s");
  const std::string zero2 = write("zero2.json", zero2_units("cuda:0").dump());
  EXPECT_EQ(run("--replay " + file + " slow=1:20ms reshard=false@" + zero2), 0) << log();
  EXPECT_HAS(log(), "1 of 1 measured rows lie within 15 %");
  refuses("--replay " + file + " reshard=false@" + file, "is the trace itself");
  const std::string again = write("again.json", two_units("cuda:0").dump());
  refuses("--replay " + file + " reshard=false@" + again,
          "with 3 gathers, expected 2 ranks and 2 units of 3 MB with 2 gathers");
  // A run with half of the bytes.
  const std::string halves = write("bf16.json", in_bf16(two_units("cuda:0")).dump());
  refuses("--replay " + file + " bf16@" + again,
          "is of 2 ranks and 2 units of 3 MB with 3 gathers, expected 2 ranks and 2 units of 1.5 "
          "MB with 3 gathers");
  EXPECT_NE(run("--replay " + file + " bf16@" + halves), 2) << log();
  EXPECT_HAS(log(), "measured rows");
  refuses("--replay " + file + " cap=5", "got the setting 'cap=5', expected words as reshard=true");
  refuses("--replay " + file + " reshard=x", "got the setting 'reshard=x'");
  const std::string four = write("four.json", two_units("cuda:0", 4).dump());
  refuses("--replay " + file + " slow=1:1ms@" + four,
          "is of 4 ranks and 2 units of 3 MB with 3 gathers, expected 2 ranks and 2 units of 3 MB "
          "with 3 gathers");
  EXPECT_EQ(run("--replay " + file + " -o " + folder.path("curves.svg")), 0) << log();
  const std::string drawn = testing::read_file(folder.path("curves.svg"));
  EXPECT_HAS(drawn, "reshard=false");
  EXPECT_HAS(drawn, "Extrapolated: FSDP on 2 ranks");
}

TEST_F(ReplayFsdp, OtherTracesAreRefused) {
  const json good = two_units("cpu:0");
  const auto expect_refused = [&](const json& trace, const std::string& why) {
    EXPECT_WEFT_ERROR(read(trace), Io, why);
  };
  expect_refused(without(good, "gather"),
                 "when each unit's parameters were asked for (spans 'gather'), from which other "
                 "steps are made: an older weft recorded it; record it again with --trace FILE");
  expect_refused(two_units("cpu:0", 1), "it is of one rank");
  for (const char* name : {"backward", "step", "Net"}) {
    expect_refused(without(good, name), "no step of it is whole");
  }
  for (const char* name : {"reduce_scatter", "all_gather", "wait for sums", "wait for parameters",
                           "reduce-scatter", "gather"}) {
    expect_refused(without(good, name, 1), "no step of it has the gathers and reduce-scatters");
  }
  // The first step of a run asks for parameters when it needs them.
  json late = good;
  for (json& event : late["traceEvents"]) {
    if (event["name"] == "gather") event["args"]["ahead"] = 0;
  }
  expect_refused(late, "the first steps of a run learn that order");
  // Messages between rows of ranks that have the same parts, as in HSDP, or between ranks that
  // share a layer.
  json rows = good;
  rows["traceEvents"].push_back(span("comm", "all_reduce", 1, 38, 39, {{"module", "block"}}));
  expect_refused(rows, "in step 3 an all-reduce of block is none of fully_shard among all ranks");
  json clipped = good;
  clipped["traceEvents"].push_back(span("comm", "all_reduce", 1, 43, 44, {{"module", "norm"}}));
  EXPECT_EQ(read(clipped).steps.size(), 1U);
  json twice = good;
  twice["traceEvents"].push_back(span("phase", "backward", 0, 16, 20));
  expect_refused(twice, "its steps have 2 backwards");
  // On a mesh, whatever the messages along its other axis are.
  expect_refused(in_mesh(two_units("cpu:0"), "tp"),
                 "in step 3 its ranks send messages in several groups (dp of ranks 0, 1; tp of "
                 "ranks 0, 1): a replay knows only fully_shard among all ranks");
  EXPECT_EQ(read(in_mesh(two_units("cpu:0"), "dp")).steps.size(), 1U) << "one group";
}

// Numbers of two bytes are not halved again. Older traces do not have the size of numbers; there it
// is told by sums of twice the bytes.
TEST_F(ReplayFsdp, ATraceMayHaveBf16) {
  const json trace = in_bf16(two_units("cuda:0"));
  EXPECT_FALSE(read(two_units("cuda:0")).has_bf16());
  EXPECT_TRUE(read(trace).has_bf16());
  EXPECT_HAS(read(trace).what(), "reshard_after_forward true, already bf16");
  EXPECT_NEAR(ms_of(trace, "recorded"), 47, 1e-6);
  EXPECT_WEFT_ERROR(replay(trace, "bf16"), InvalidArgument,
                    "got the setting 'bf16', but the trace has bf16 already");
  const std::string file = write("bf16.json", trace.dump());
  EXPECT_EQ(run("--replay " + file + " -o " + folder.path("curves.svg")), 0) << log();
  // Sums may be in bf16, too, or not; and perhaps only one of the two units gathers in bf16.
  const auto with_sizes = [](json sized, int of_net, int of_block) {
    for (json& event : sized["traceEvents"]) {
      if (event["name"] != "wait for parameters") continue;
      event["args"]["element_size"] = event["ts"] == 0 ? of_net : of_block;
    }
    return sized;
  };
  EXPECT_TRUE(read(with_sizes(two_units("cuda:0"), 2, 2)).has_bf16());
  EXPECT_FALSE(read(with_sizes(trace, 4, 4)).has_bf16());
  EXPECT_WEFT_ERROR(replay(with_sizes(two_units("cuda:0"), 2, 2), "bf16"), InvalidArgument,
                    "but the trace has bf16 already");
  EXPECT_EQ(run("--replay " + write("both.json", with_sizes(two_units("cuda:0"), 2, 2).dump())), 0);
  EXPECT_HAS(log(), "already bf16");
  EXPECT_LACKS(log(), "\nbf16");
  // 42 ms if both are halved; but the Net's gather takes 2 ms, not 1.
  EXPECT_NEAR(ms_of(with_sizes(two_units("cuda:0"), 2, 4), "bf16"), 43, 1e-6);
}

// Units and bytes are taken from the last step that fits fully_shard, not from the last whole step.
TEST_F(ReplayFsdp, TheLastStepMayBeOtherwise) {
  const json full = two_units("cuda:0"), zero2 = zero2_units("cuda:0");
  const json without_sums = without(full, "reduce_scatter");
  const FsdpTrace trace = read(with_step(full, without_sums, 4));
  ASSERT_EQ(trace.steps.size(), 1U);
  EXPECT_EQ(trace.units[0].reduce_bytes, 1e6);
  EXPECT_EQ(trace.units[1].reduce_bytes, 2e6);
  EXPECT_FALSE(read(zero2).reshard);
  json more = zero2;
  for (int r = 0; r < 2; ++r) {
    more["traceEvents"].push_back(span("fully_shard", "gather", r, 42, 42,
                                       {{"module", "Net"}, {"bytes", 1e6}, {"ahead", 0}}));
  }
  EXPECT_FALSE(read(with_step(zero2, more, 4)).reshard);
  EXPECT_EQ(read(with_step(zero2, more, 4)).steps.size(), 1U);
  // If steps with and without resharding are recorded, the last one counts.
  EXPECT_TRUE(read(with_step(zero2, full, 4)).reshard);
  EXPECT_EQ(read(with_step(zero2, full, 4)).steps.at(0).number, 4);
}

// Writes a trace of four steps on two ranks.
void record_steps(const std::string& path, const parallel::MixedPrecisionPolicy& policy) {
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      nn::Sequential net{nn::Linear(4, 8), nn::Linear(8, 6), nn::Linear(6, 2)};
      for (const char* block : {"0", "1"}) {
        net.apply([&](nn::ModuleBase& m) {
          if (m.name() == block) parallel::fully_shard(m, group, {.mp_policy = policy});
        });
      }
      parallel::fully_shard(net, group, {.mp_policy = policy});
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      for (int step = 0; step < 4; ++step) {
        thread_state().step = step;
        sgd.zero_grad();
        sum(net(ones({3, 4}))).backward();
        sgd.step();
      }
    });
  }
  tracer.write(path);
}

TEST_F(ReplayFsdp, AStepOfFullyShardRecordsItsGathers) {
  record_steps(folder.path("trace.json"),
               {.param_dtype = DType::bf16, .reduce_dtype = DType::bf16});
  EXPECT_TRUE(read_file().has_bf16());
  record_steps(folder.path("trace.json"), {});
  const FsdpTrace trace = read_file();
  EXPECT_EQ(trace.ranks(), 2);
  EXPECT_TRUE(trace.messages_compute);
  EXPECT_FALSE(trace.has_bf16());
  EXPECT_TRUE(trace.reshard);
  // The first one has to learn the order.
  EXPECT_GE(trace.steps.size(), 1U);
  EXPECT_GT(trace.steps.front().number, 0);
  std::vector<std::pair<std::string, double>> units;
  for (const FsdpTrace::Unit& each : trace.units) units.emplace_back(each.name, each.gather_bytes);
  const std::vector<std::pair<std::string, double>> expected = {
      {"Sequential", (6 * 2 + 2) * 4}, {"0", (4 * 8 + 8) * 4}, {"1", (8 * 6 + 6) * 4}};
  EXPECT_EQ(units, expected);
  for (const FsdpTrace::Unit& each : trace.units) EXPECT_EQ(each.reduce_bytes, each.gather_bytes);
  EXPECT_GT(trace.replay(trace.parse("reshard=false")).seconds, 0);
}

}  // namespace
}  // namespace weft::simulator
