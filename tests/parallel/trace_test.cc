// How a trace shows the buckets: they are reduced while backward runs, in order.
#include "weft/core/trace/trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
// In a step. The step before, whose backward has one bucket for everything, is not checked.
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

TEST_P(TraceTest, BucketsAreReducedInOrderWhileBackwardRuns) {
  const std::string missing = comm::testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    comm::testing::in_groups(GetParam(), kRanks, train);
  }
  const weft::testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const json trace = json::parse(weft::testing::read_file(folder.path("trace.json")));

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

INSTANTIATE_TEST_SUITE_P(Backends, TraceTest, ::testing::Values("threads", "shm", "gloo", "ring"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft::parallel
