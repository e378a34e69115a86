// How a trace shows what is sent while a step computes: the buckets of DistributedDataParallel, and
// the units of fully_shard.
#include "weft/core/trace/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/shard.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/shard_engine.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
// The step that is checked. In the step before there is one bucket for everything.
constexpr std::int64_t kStep = 1;

struct Times {
  double begin, end;
};

Times times_of(const json& event) {
  const double begin = event["ts"];
  return {begin, begin + event["dur"].get<double>()};
}

class TraceTest : public ::testing::TestWithParam<const char*> {};

// The last gradient waits until the first bucket has been reduced; if buckets were sent only after
// backward, it would wait for ever.
void train(comm::ProcessGroup& group) {
  nn::Sequential model = weft::testing::mlp();
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-6});
  const auto step = [&] {
    const auto [x, label] = weft::testing::batch(group.rank(), {4, 6}, DType::f32);
    nn::cross_entropy(ddp(x), label).backward();
  };
  step();
  const Scoped second(&ThreadState::step, kStep);
  const std::int64_t sent = group.traffic().bytes_sent;
  const Tensor last = model.parameters().front();
  autograd::HookHandle hook = autograd::add_leaf_hook(last, [&](const Tensor&) {
    const comm::Deadline patience = comm::testing::patience();
    while (group.traffic().bytes_sent == sent) {
      ASSERT_FALSE(patience.passed()) << "nothing was sent while backward ran";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  step();
  hook.remove();
}

json trace_of(const char* backend, const std::function<void(comm::ProcessGroup&)>& f) {
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    comm::testing::in_groups(backend, kRanks, f);
  }
  const weft::testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  return json::parse(weft::testing::read_file(folder.path("trace.json")));
}

TEST_P(TraceTest, BucketsAreReducedInOrderWhileBackwardRuns) {
  const std::string missing = comm::testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  const json trace = trace_of(GetParam(), train);
  std::vector<Times> backward(kRanks), waiting(kRanks);
  std::vector<std::vector<Times>> buckets(kRanks);
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["args"].value("step", -1) != kStep) continue;
    const auto rank = event["pid"].get<std::size_t>();
    const std::string name = event["name"];
    if (event["cat"] == "phase" && name == "backward") backward[rank] = times_of(event);
    if (name == "wait for buckets") waiting[rank] = times_of(event);
    if (name != "all_reduce") continue;
    const std::string tag = "bucket " + std::to_string(buckets[rank].size());
    EXPECT_TRUE(event["args"]["module"].get<std::string>().ends_with(tag)) << event;
    buckets[rank].push_back(times_of(event));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& own = buckets[rank];
    ASSERT_EQ(own.size(), 4U) << "a bucket for each parameter of rank " << rank;
    for (std::size_t i = 1; i < own.size(); ++i) EXPECT_LE(own[i - 1].end, own[i].begin);
    EXPECT_GT(own.front().begin, backward[rank].begin);
    EXPECT_LT(own.front().end, waiting[rank].begin) << "before the last gradient";
    EXPECT_LE(own.back().end, backward[rank].end) << "backward returns with means";
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_LT(own[i].begin, buckets[1 - rank][i].end) << "together, bucket " << i;
    }
  }
}

constexpr int kUnits = 3;

// Each unit waits, in forward and in backward, until the message that should travel meanwhile has
// begun. If that were posted only afterwards, it would wait for ever.
void train_units(comm::ProcessGroup& group) {
  nn::Sequential model{nn::Linear(6, 6), nn::Linear(6, 6), nn::Linear(6, 6)};
  model.apply([&](nn::ModuleBase& m) {
    if (!m.name().empty()) fully_shard(m, group);
  });
  const FullySharded sharded = fully_shard(model, group);
  const auto step = [&] {
    const Tensor x = weft::testing::batch(group.rank(), {4, 6}, DType::f32).x;
    model(x.set_requires_grad()).sum().backward();
  };
  step();
  const auto engine = unit_of(*nn::shards_of(model)[0].second)->engine;
  const auto gathered = [&] { return engine->gathers->traffic().bytes_sent; };
  const auto reduced = [&] { return engine->reductions->traffic().bytes_sent; };
  const std::int64_t gather = gathered() / (2 * kUnits), reduction = reduced() / kUnits;
  const auto wait = [base = gathered(), reductions = reduced(), gather, reduction, gathered,
                     reduced](std::int64_t gathers_since, std::int64_t reductions_since) {
    const comm::Deadline patience = comm::testing::patience();
    while (gathered() < base + gathers_since * gather ||
           reduced() < reductions + reductions_since * reduction) {
      ASSERT_FALSE(patience.passed()) << "nothing was sent for the next unit";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  model.apply([&](nn::ModuleBase& m) {
    if (m.name().empty()) return;
    const int k = std::stoi(m.name());
    m.register_forward_pre_hook(
        [wait, k](nn::ModuleBase&, std::span<Tensor>) { wait(std::min(k + 2, kUnits), 0); });
    m.register_forward_hook([wait, k](nn::ModuleBase&, std::span<Tensor> results) {
      autograd::add_grad_hook(results[0], [wait, k](const Tensor&) {
        wait(std::min(2 * kUnits - k + 1, 2 * kUnits), std::max(kUnits - 2 - k, 0));
        return Tensor();
      });
    });
  });
  const Scoped second(&ThreadState::step, kStep);
  step();
}

TEST_P(TraceTest, UnitsAreGatheredAndReducedWhileOthersCompute) {
  const std::string missing = comm::testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  const json trace = trace_of(GetParam(), train_units);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<Times> gathers, reductions, forward(kUnits), backward(kUnits);
    std::set<std::string> names;  // spans that cut_model.py shows
    std::vector<double> asked;    // times at which parameters were asked for
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["pid"] != rank) continue;
      if (event["args"].value("step", -1) != kStep) continue;
      const std::string name = event["name"], cat = event["cat"];
      const std::string module = event["args"].value("module", "");
      const int unit = module.empty() ? -1 : module.back() - '0';
      if (cat == "fully_shard") names.insert(name);
      if (cat == "fully_shard" && name == "gather") {
        const int i = static_cast<int>(asked.size());
        EXPECT_EQ(unit, i < kUnits ? i : 2 * kUnits - 1 - i) << event;
        EXPECT_EQ(event["args"]["bytes"], (6 * 6 + 6) * 4) << "weight and bias, f32";
        EXPECT_EQ(event["args"]["ahead"], i % kUnits > 0 ? 1 : 0)
            << "but for the first ones, " << event;
        asked.push_back(event["ts"]);
      }
      if (cat == "forward" && unit >= 0) forward.at(unit) = times_of(event);
      if (cat == "backward" && name == "linear") backward.at(unit) = times_of(event);
      if (cat != "comm") continue;
      const bool gathering = name == "all_gather";
      if (!gathering && name != "reduce_scatter") continue;
      const int i = static_cast<int>((gathering ? gathers : reductions).size());
      EXPECT_EQ(unit, gathering && i < kUnits ? i : 2 * kUnits - 1 - i - (gathering ? 0 : kUnits))
          << event;
      (gathering ? gathers : reductions).push_back(times_of(event));
    }
    ASSERT_EQ(gathers.size(), 2U * kUnits);
    ASSERT_EQ(reductions.size(), 1U * kUnits);
    ASSERT_EQ(asked.size(), 2U * kUnits);
    for (int k = 1; k < kUnits; ++k) {
      EXPECT_LT(asked[k], forward[k - 1].end) << "before the one in front of it computes";
      EXPECT_LT(asked[2 * kUnits - k], backward[k].end) << "likewise";
      EXPECT_LT(gathers[k].begin, forward[k - 1].end) << k;
      EXPECT_LT(gathers[2 * kUnits - k].begin, backward[k].end) << k;
    }
    EXPECT_LT(reductions[0].begin, backward[0].begin) << "before the last operation";
    EXPECT_EQ(names, (std::set<std::string>{"gather", "reduce-scatter", "wait for parameters",
                                            "wait for sums"}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TraceTest, ::testing::Values("threads", "shm", "gloo", "ring"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft::parallel
