// The values of gradients, and when they are sent, for every way to use a model.
#include "weft/parallel/reducer.h"
#include "weft/core/runtime/allocator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/core/base/device.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/ema.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::ProcessGroup;
using testing::grad_of;
using testing::input;
using testing::Lines;
using Names = std::vector<std::vector<std::string>>;
using Floats = std::vector<float>;

// One bucket per gradient.
constexpr double kTiny = 1e-6;

// --- The mean ------------------------------------------------------------------------------------

TEST(ReducerTest, GradientsAreTheMeanOfTheRanks) {
  for (const int n : {1, 2, 4}) {
    comm::run_ranks(n, [&](ProcessGroup& group) {
      Lines model;
      DistributedDataParallel ddp(model, group);
      for (int step = 0; step < 3; ++step) {
        model.zero_grad();
        sum(ddp(input(2 * group.rank() + step))).backward();
        EXPECT_EQ(grad_of(model.a), Floats(2, float(n - 1 + step)));
        EXPECT_EQ(grad_of(model.c), Floats(2, float(n - 1 + step)));
      }
    });
  }
}

RANKS_TEST(ReducerTest, WithoutZeroGradMeansAddUp, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  sum(ddp(input(2 * group.rank()))).backward();
  sum(ddp(input(6 + 4 * group.rank()))).backward();
  EXPECT_EQ(grad_of(model.b), Floats(2, 1 + 8));
}

RANKS_TEST(ReducerTest, AParameterUsedTwiceIsSentOnce, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  sum(ddp(input(group.rank()), "aabca")).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 1.5));
  EXPECT_EQ(grad_of(model.b), Floats(2, 0.5));
}

RANKS_TEST(ReducerTest, TwoForwardsMayHaveOneBackward, 2) {
  for (const bool find_unused : {false, true}) {
    Lines model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = find_unused});
    const Tensor first = ddp(input(group.rank()), "ab"), second = ddp(input(3), "c");
    sum(first + second).backward();
    EXPECT_EQ(grad_of(model.a), Floats(2, 0.5));
    EXPECT_EQ(grad_of(model.c), Floats(2, 3));
  }
}

RANKS_TEST(ReducerTest, EachBackwardAveragesAlsoOfOneForward, 2) {
  for (const bool find_unused : {false, true}) {
    Lines model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = find_unused});
    const Tensor loss = sum(ddp(input(2 * group.rank())));
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(grad_of(model.a), Floats(2, 1));
    loss.backward();
    EXPECT_EQ(grad_of(model.a), Floats(2, 2));
    EXPECT_EQ(ddp.stats().reductions, 2);
  }
}

struct Shared : nn::Module<Shared> {
  nn::Linear first = child("first", nn::Linear(2, 2));
  nn::Linear again = child("again", first);
  Tensor forward(const Tensor& x) { return again(first(x)); }
};

RANKS_TEST(ReducerTest, ASharedParameterIsOne, 2) {
  Shared model;
  DistributedDataParallel ddp(model, group);
  EXPECT_EQ(ddp.bucket_names(), (Names{{"first.weight", "first.bias"}}));
  Shared alone = nn::clone(model);
  sum(alone(full({1, 2}, 0.5))).backward();
  sum(ddp(full({1, 2}, group.rank()))).backward();
  // The gradients are linear in x: the mean of those for x = 0 and x = 1 is that for their mean.
  EXPECT_EQ(grad_of(model.first.bias), grad_of(alone.first.bias));
}

RANKS_TEST(ReducerTest, FrozenParametersAreLeftAlone, 2) {
  Lines model;
  model.b.set_requires_grad(false);
  DistributedDataParallel ddp(model, group);
  sum(ddp(input(group.rank()))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 0.5));
  EXPECT_FALSE(model.b.grad().defined());
  EXPECT_EQ(ddp.bucket_names(), (Names{{"c", "a"}}));
}

// One of two nets is trained through the other: nothing has to be averaged.
RANKS_TEST(ReducerTest, AllFrozenForAStepSendsNothing, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  model.requires_grad(false);
  Tensor x = input(group.rank());
  x.set_requires_grad();
  sum(ddp(x)).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), Floats(2, 3));
  EXPECT_EQ(ddp.stats().reductions, 0);
  model.requires_grad(true);
  sum(ddp(x)).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 0.5));
}

RANKS_TEST(ReducerTest, NothingToAverageIsAnErrorThatSaysWhatToDo, 2) {
  Lines model;
  model.requires_grad(false);
  EXPECT_WEFT_ERROR(DistributedDataParallel(model, group), InvalidArgument,
                    "Lines has no parameter that requires a gradient");
  EXPECT_WEFT_ERROR(DistributedDataParallel(nn::BatchNorm2d(3, {.affine = false}), group),
                    InvalidArgument, "call the module itself");
}

RANKS_TEST(ReducerTest, TwoModelsMayShareAGroup, 2) {
  Lines first, second;
  DistributedDataParallel g(first, group), d(second, group);
  for (int step = 0; step < 3; ++step) {
    first.zero_grad();
    second.zero_grad();
    sum(d(g(input(group.rank())))).backward();
    EXPECT_EQ(grad_of(first.a), Floats(2, 1.5));
    EXPECT_EQ(grad_of(second.c), Floats(2, 1.5));
  }
}

// --- Memory --------------------------------------------------------------------------------------

RANKS_TEST(ReducerTest, GradientsAreViewsOfABucketWithTheParametersStrides, 2) {
  TensorOptions options;
  options.channels_last = true;
  struct Layouts : nn::Module<Layouts> {
    explicit Layouts(const TensorOptions& o) : image(parameter("image", ones({2, 3, 2, 2}, o))) {}
    nn::Parameter image;
    nn::Parameter turned = parameter("turned", raw::transpose(ones({2, 3}), 0, 1));
    nn::Parameter gaps = parameter("gaps", raw::slice(ones({6}), 0, 0, 6, 2));
    nn::Parameter none = parameter("none", ones({0}));
    Tensor forward(const Tensor& x) {
      return x * (sum(image) + sum(turned) + sum(gaps) + sum(none));
    }
  } model(options);
  DistributedDataParallel ddp(model, group);
  sum(ddp(input(group.rank()))).backward();
  const auto parameters = model.parameters();
  for (const Tensor& p : parameters) {
    EXPECT_EQ(p.grad().storage().get(), parameters[0].grad().storage().get());
    EXPECT_EQ(grad_of(p), Floats(static_cast<std::size_t>(p.numel()), 1));
  }
  EXPECT_EQ(model.image.grad().strides(), model.image.strides());
  EXPECT_EQ(model.turned.grad().strides(), model.turned.strides());
  EXPECT_EQ(model.gaps.grad().strides(), (Strides{1}));
}

RANKS_TEST(ReducerTest, AnUnwrappedModuleKeepsItsGradientsAndIsItself, 2) {
  Lines model;
  {
    DistributedDataParallel ddp(model, group);
    sum(ddp(input(2 * group.rank()))).backward();
  }
  EXPECT_EQ(grad_of(model.a), Floats(2, 1));
  sum(model(input(4 * group.rank()))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 1 + 4 * group.rank()));
  model.zero_grad();
  EXPECT_FALSE(model.a.grad().defined());
  DistributedDataParallel again(model, group);
  sum(again(input(2 * group.rank()))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 1));
}

RANKS_TEST(ReducerTest, GradientsFromBeforeAreKept, 2) {
  Lines model;
  sum(model(input(6))).backward();
  DistributedDataParallel ddp(model, group);
  EXPECT_EQ(grad_of(model.a), Floats(2, 6));
  sum(ddp(input(2 * group.rank()))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 7));
}

// --- Buckets -------------------------------------------------------------------------------------

RANKS_TEST(ReducerTest, OneBucketAtFirstThenInTheOrderOfReadiness, 2) {
  nn::Sequential model{nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 8), nn::Linear(8, 2)};
  // 2.weight has 256 bytes, which is the cap: it closes the bucket of the gradients before it.
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 256.0 / (1 << 20)});
  const Names first = {{"0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"}};
  EXPECT_EQ(ddp.bucket_names(), first);
  EXPECT_EQ(ddp.stats().bucket_bytes, (std::vector<std::int64_t>{520}));
  sum(ddp(ones({1, 4}))).backward();
  const Names rebuilt = {{"3.weight", "3.bias", "2.weight"}, {"2.bias", "0.weight", "0.bias"}};
  EXPECT_EQ(ddp.bucket_names(), rebuilt);
  EXPECT_EQ(ddp.stats().bucket_bytes, (std::vector<std::int64_t>{328, 192}));
  const Floats before = grad_of(model[2].as<nn::Linear>()->weight);
  sum(ddp(ones({1, 4}))).backward();
  EXPECT_EQ(ddp.bucket_names(), rebuilt);
  EXPECT_EQ(ddp.stats().bytes_reduced, 2 * 520);
  // The gradients of the first bucket were sent with it.
  const Floats after = grad_of(model[2].as<nn::Linear>()->weight);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], 2 * before[i]);
}

struct Large : nn::Module<Large> {
  std::vector<nn::Parameter> w;
  Large() {
    for (const int i : {0, 1, 2, 3}) {
      w.push_back(parameter("w" + std::to_string(i), ones({i == 2 ? 8 << 20 : 1 << 18})));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = zeros({});
    for (const nn::Parameter& p : w) y = y + sum(p * x);
    return y;
  }
};

// w0, w1 and w3 have 1 MiB, w2 has 32.
RANKS_TEST(ReducerTest, TheDefaultCapsAreOneMiBAnd25, 2) {
  {
    DistributedDataParallel ddp(Large(), group, {.find_unused_parameters = true});
    const Names reversed = {{"w3"}, {"w1", "w2"}, {"w0"}};
    EXPECT_EQ(ddp.bucket_names(), reversed);
    ddp(ones({1})).backward();
    EXPECT_EQ(ddp.bucket_names(), reversed);
  }
  for (const bool is_given : {false, true}) {
    const BucketOrder order = is_given ? BucketOrder::given : BucketOrder::reversed;
    for (const bool find_unused : {false, true}) {
      DistributedDataParallel ddp(Large(), group,
                                  {.bucket_order = order, .find_unused_parameters = find_unused});
      const Names expected =
          is_given ? Names{{"w0"}, {"w1", "w2"}, {"w3"}} : Names{{"w3"}, {"w1", "w2"}, {"w0"}};
      EXPECT_EQ(ddp.bucket_names(), expected);
      ddp(ones({1})).backward();
      EXPECT_EQ(ddp.bucket_names(), expected);
      EXPECT_TRUE(ddp.engine_state().empty());
    }
  }
  DistributedDataParallel ddp(Large(), group);
  EXPECT_EQ(ddp.bucket_names(), (Names{{"w0", "w1", "w2", "w3"}}));
  ddp(ones({1})).backward();
  EXPECT_EQ(ddp.bucket_names(), (Names{{"w3"}, {"w2"}, {"w1", "w0"}}));
}

RANKS_TEST(ReducerTest, ACapThatIsGivenIsTheFirstOneToo, 2) {
  DistributedDataParallel ddp(Large(), group, {.bucket_cap_mb = 2, .find_unused_parameters = true});
  EXPECT_EQ(ddp.bucket_names(), (Names{{"w3"}, {"w2"}, {"w0", "w1"}}));
  EXPECT_WEFT_ERROR(DistributedDataParallel(Large(), group, {.bucket_cap_mb = 0}), InvalidArgument,
                    "bucket_cap_mb is 0");
  EXPECT_WEFT_ERROR(DistributedDataParallel(Large(), group, {.bucket_cap_mb = std::nan("")}),
                    InvalidArgument, "bucket_cap_mb is nan");
}

RANKS_TEST(ReducerTest, ACapAboveAllGradientsMakesOneBucket, 2) {
  for (const double cap : {1e14, std::numeric_limits<double>::infinity()}) {
    DistributedDataParallel ddp(Large(), group,
                                {.bucket_cap_mb = cap, .find_unused_parameters = true});
    EXPECT_EQ(ddp.bucket_names(), (Names{{"w0", "w1", "w2", "w3"}})) << cap;
  }
}

RANKS_TEST(ReducerTest, AllRanksTakeRankZerosOrder, 3) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  const std::string which = group.rank() == 0 ? "bca" : "abc";  // backward runs in reverse order
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    sum(ddp(input(group.rank()), which)).backward();
    EXPECT_EQ(ddp.bucket_names(), (Names{{"a"}, {"c"}, {"b"}}));
    for (const Tensor& p : model.parameters()) EXPECT_EQ(grad_of(p), Floats(2, 1));
  }
}

RANKS_TEST(ReducerTest, TheStateIsTheOrderAndGivesTheSameBucketsFromTheFirstStep, 3) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  EXPECT_TRUE(ddp.engine_state().empty());  // there was no step
  ddp.load_engine_state({});
  const std::string which = group.rank() == 0 ? "bca" : "abc";
  sum(ddp(input(1), which)).backward();
  const nn::NamedTensors state = ddp.engine_state();
  ASSERT_EQ(state.size(), 1U);
  EXPECT_EQ(state[0].first, "order");
  EXPECT_EQ(state[0].second.to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 2, 1}));

  Lines again;
  DistributedDataParallel resumed(again, group, {.bucket_cap_mb = kTiny});
  resumed.load_engine_state(state);
  const Names names = {{"a"}, {"c"}, {"b"}};
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(resumed.bucket_names(), names);
    EXPECT_EQ(resumed.engine_state()[0].second.to_vector<std::int64_t>(),
              state[0].second.to_vector<std::int64_t>());
    again.zero_grad();
    sum(resumed(input(group.rank()))).backward();
    for (const Tensor& p : again.parameters()) EXPECT_EQ(grad_of(p), Floats(2, 1));
  }

  DistributedDataParallel other_cap(Lines(), group);
  other_cap.load_engine_state(state);
  EXPECT_EQ(other_cap.bucket_names(), (Names{{"a", "c", "b"}}));
  DistributedDataParallel searches(Lines(), group, {.find_unused_parameters = true});
  searches.load_engine_state(state);
  EXPECT_EQ(searches.bucket_names(), (Names{{"a", "b", "c"}}));  // unchanged
  EXPECT_TRUE(searches.engine_state().empty());
}

RANKS_TEST(ReducerTest, AStateOfOtherParametersIsDroppedWithAWarning, 2) {
  const testing::CollectedLog log;
  Lines model;
  model.c.set_requires_grad(false);
  DistributedDataParallel ddp(model, group);
  const auto order = [](const std::vector<std::int64_t>& values) {
    return nn::NamedTensors{{"order", from_vector(values, {std::ssize(values)})}};
  };
  ddp.load_engine_state(order({0, 2, 1}));
  EXPECT_TRUE(
      log.text.starts_with("warning: ddp: the state is of a model that trained 3 "
                           "parameters, this one trains 2: its order of gradients is "
                           "dropped"))
      << log.text;
  EXPECT_EQ(ddp.bucket_names(), (Names{{"a", "b"}}));
  for (const auto& bad : {order({0, 0}), order({1, 2}), order({0, -1})}) {
    EXPECT_WEFT_ERROR(ddp.load_engine_state(bad), InvalidArgument,
                      "order does not have each parameter once");
  }
  EXPECT_WEFT_ERROR(ddp.load_engine_state({{"lr", zeros({2})}}), InvalidArgument,
                    "this is not the state of a DistributedDataParallel: lr is f32 [2]");
}

RANKS_TEST(ReducerTest, AParameterThatWasAddedAfterWrappingIsNamed, 2) {
  nn::Sequential model{nn::Linear(2, 3)};
  DistributedDataParallel ddp(model, group);
  nn::Linear frozen(3, 3);
  frozen.requires_grad(false);
  model.append(frozen);
  model.append(nn::Linear(3, 1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_WEFT_ERROR(ddp(ones({1, 2})), InvalidArgument,
                      "parameter 2.weight was added after the module was wrapped");
  }
}

RANKS_TEST(ReducerTest, ADamagedStateOnOneRankIsAnErrorOnAllRanks, 3) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  const auto order = [&](bool damaged) {
    return nn::NamedTensors{{"order", from_vector<std::int64_t>({2, damaged ? 2 : 1, 0}, {3})}};
  };
  for (const int bad : {0, 2}) {
    const std::string who = group.rank() == bad ? "" : "rank " + std::to_string(bad) + ": [ddp] ";
    EXPECT_WEFT_ERROR(ddp.load_engine_state(order(group.rank() == bad)), InvalidArgument,
                      "[ddp] " + who + "the state's order does not have each parameter once");
    EXPECT_EQ(ddp.bucket_names(), (Names{{"a", "b", "c"}}));  // unchanged
  }
  ddp.load_engine_state(order(false));
  EXPECT_EQ(ddp.bucket_names(), (Names{{"c"}, {"b"}, {"a"}}));
  sum(ddp(input(group.rank()))).backward();
  for (const Tensor& p : model.parameters()) EXPECT_EQ(grad_of(p), Floats(2, 1));
}

RANKS_TEST(ReducerTest, DtypesHaveBucketsOfTheirOwn, 2) {
  struct Mixed : nn::Module<Mixed> {
    nn::Parameter a = parameter("a", ones({2}));
    nn::Parameter b = parameter("b", ones({2}, DType::f64));
    nn::Parameter c = parameter("c", ones({2}));
    Tensor forward(const Tensor& x) { return sum(x * a) + sum(x.to(DType::f64) * b) + sum(x * c); }
  } mixed;
  DistributedDataParallel ddp(mixed, group);
  for (int step = 0; step < 2; ++step) {
    mixed.zero_grad();
    ddp(input(group.rank())).backward();
    for (const Tensor& p : mixed.parameters()) EXPECT_EQ(grad_of(p), Floats(2, 0.5));
    EXPECT_EQ(ddp.bucket_names().size(), 2u);
  }
}

// --- When they are sent --------------------------------------------------------------------------

using Events = std::vector<std::string>;

// What rank 0 observes in the last of some backwards, with one bucket per gradient: finished
// parameters and sent buckets.
Events events_of(const std::vector<std::string>& steps, bool find_unused = false) {
  Events seen;
  comm::run_ranks(2, [&](ProcessGroup& group) {
    Lines model;
    Events mine;
    const CommHook hook = [&](ProcessGroup& g, const Tensor& gradients) -> Reduction {
      mine.push_back("send");
      return g.all_reduce(gradients, comm::ReduceOp::avg);
    };
    for (const auto& [name, p] : model.named_parameters()) {
      autograd::add_leaf_hook(p, [&, text = name](const Tensor&) { mine.push_back(text); });
    }
    DistributedDataParallel ddp(
        model, group,
        {.bucket_cap_mb = kTiny, .find_unused_parameters = find_unused, .comm_hook = hook});
    for (const std::string& which : steps) {
      mine.clear();
      sum(ddp(input(1), which)).backward();
    }
    if (group.rank() == 0) seen = mine;
  });
  return seen;
}

TEST(ReducerTest, BucketsAreSentWhileBackwardRuns) {
  EXPECT_EQ(events_of({"abc", "abc"}), (Events{"c", "send", "b", "send", "a", "send"}));
}

TEST(ReducerTest, ABucketWaitsForThoseBeforeIt) {
  const Events expected = {"b", "a", "c", "send", "send", "send"};
  EXPECT_EQ(events_of({"abc", "cab"}), expected);
  EXPECT_EQ(events_of({"abc", "cab", "cab"}), expected);  // buckets are rebuilt only once
}

TEST(ReducerTest, TheFirstBackwardSendsOneBucketAtItsEnd) {
  EXPECT_EQ(events_of({"abc"}), (Events{"c", "b", "a", "send"}));
}

// Buckets c, b and a.
TEST(ReducerTest, UnusedParametersDoNotHoldUpTheOthers) {
  const Events expected = {"b", "send", "send", "a", "send"};
  EXPECT_EQ(events_of({"ab"}, true), expected);
  EXPECT_EQ(events_of({"abc", "ab"}, true), expected);
}

RANKS_TEST(ReducerTest, CollectivesCarryTheBucketsNumber, 2,
           {.timeout = std::chrono::seconds(20)}) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  sum(ddp(input(1))).backward();
  if (group.rank() == 1) return;  // its group ends
  try {
    sum(ddp(input(1))).backward();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::PeerFailed) << e.what();
    EXPECT_HAS(std::string(e.what()), "(bucket 0)") << e.what();
  }
}

RANKS_TEST(ReducerTest, StatisticsCountBuckets, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 3; ++step) sum(ddp(input(1))).backward();
  const ReducerStats& stats = ddp.stats();
  EXPECT_EQ(stats.reductions, 3);
  EXPECT_EQ(stats.bytes_reduced, 3 * 24);
  EXPECT_EQ(stats.bucket_bytes, (std::vector<std::int64_t>{8, 8, 8}));
  ASSERT_EQ(stats.exposed_ms.size(), 3U);
  double exposed_ms = 0;
  for (const double ms : stats.exposed_ms) {
    EXPECT_GT(ms, 0);
    exposed_ms += ms;
  }
  EXPECT_GE(stats.reduce_ms, exposed_ms);
}

// --- no_sync -------------------------------------------------------------------------------------

RANKS_TEST(ReducerTest, NoSyncAddsUpUntilTheFirstBackwardOutside, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    {
      const auto local = ddp.no_sync();
      for (int i = 0; i < 2; ++i) sum(ddp(input(4 * group.rank()))).backward();
      EXPECT_EQ(grad_of(model.a), Floats(2, 8 * group.rank()));
      EXPECT_EQ(ddp.stats().reductions, step);
    }
    sum(ddp(input(2))).backward();
    EXPECT_EQ(grad_of(model.a), Floats(2, 4 + 2));
    EXPECT_EQ(ddp.stats().reductions, step + 1);
  }
}

RANKS_TEST(ReducerTest, NoSyncCountsWhereBackwardRuns, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  Tensor loss;
  {
    const auto local = ddp.no_sync();
    const auto inner = ddp.no_sync();
    loss = sum(ddp(input(2 * group.rank())));
  }
  loss.backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 1));
  model.zero_grad();
  loss = sum(ddp(input(2 * group.rank())));
  const auto local = ddp.no_sync();
  {
    const auto inner = ddp.no_sync();
  }  // the outer one still applies
  loss.backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 2 * group.rank()));
}

// Later a true update without a mean is still warned of.
RANKS_TEST(ReducerTest, AveragesInAnEvaluationBetweenForwardsAreNoUpdate, 2) {
  const testing::CollectedLog log;
  Lines model;
  DistributedDataParallel ddp(model, group);
  nn::ExponentialMovingAverage ema(model, 0.5);
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    {
      const auto local = ddp.no_sync();
      sum(ddp(input(1))).backward();
    }
    ema.apply();
    model.eval();
    ddp(input(1));
    model.train();
    ema.restore();
    sum(ddp(input(1))).backward();
    raw::fill_(model.a, step);
  }
  {
    const NoGrad no_grad;
    ddp(input(1));
  }
  EXPECT_EQ(log.text, "");
  raw::fill_(model.a, 2);
  ddp(input(1));
  EXPECT_HAS(log.text, "Lines was updated since its last forward, but no backward has averaged");
}

// --- Buffers -------------------------------------------------------------------------------------

RANKS_TEST(ReducerTest, BuffersAreRankZerosInEachForwardOfTraining, 2) {
  for (const bool broadcast : {true, false}) {
    nn::Sequential model{nn::BatchNorm2d(2), nn::Conv2d(2, 1, 1)};
    DistributedDataParallel ddp(model, group, {.broadcast_buffers = broadcast});
    const auto& bn = *model[0].as<nn::BatchNorm2d>();
    const auto set = [&](double rank_1s) {
      raw::fill_(bn.running_var, group.rank() == 0 ? 2 : rank_1s);
      raw::fill_(bn.num_batches_tracked, group.rank() == 0 ? 7 : rank_1s);
    };
    // With momentum 0.1 and a batch variance of 0: 0.9 of the old value.
    const auto expect = [&](float rank_1s, std::int64_t batches, const char* when) {
      const bool other = group.rank() == 1;
      EXPECT_FLOAT_EQ(bn.running_var.to_vector<float>()[0], other ? rank_1s : 1.8f) << when;
      EXPECT_EQ(bn.num_batches_tracked.item<std::int64_t>(), other ? batches : 8) << when;
    };
    const Tensor x = ones({2, 2, 2, 2});
    set(4);
    ddp(x);
    broadcast ? expect(1.8f, 8, "training") : expect(3.6f, 5, "training, off");
    set(4);
    {
      const auto local = ddp.no_sync();
      ddp(x);
    }
    expect(3.6f, 5, "no_sync");
    set(4);
    {
      const NoGrad no_grad;
      ddp(x);
    }
    expect(3.6f, 5, "no_grad");
    set(4);
    model.eval();
    ddp(x);
    EXPECT_EQ(bn.running_var.to_vector<float>()[0], group.rank() == 0 ? 2 : 4);
  }
}

RANKS_TEST(ReducerTest, BuffersAreRankZerosAlsoInsideACheckpoint, 2) {
  nn::Sequential model{nn::BatchNorm2d(2), nn::Conv2d(2, 1, 1)};
  DistributedDataParallel ddp(model, group);
  const auto& bn = *model[0].as<nn::BatchNorm2d>();
  raw::fill_(bn.running_var, group.rank() == 0 ? 2 : 4);
  const auto call = [&](const Tensor& x) { return ddp(x); };
  sum(autograd::checkpoint(call, full({2, 2, 2, 2}, group.rank()))).backward();
  EXPECT_FLOAT_EQ(bn.running_var.to_vector<float>()[0], 1.8f);  // momentum 0.1, variance 0
  // Of the means 0 and 0.1 that this forward has left, both ranks go on with rank 0's.
  sum(autograd::checkpoint(call, ones({2, 2, 2, 2}))).backward();
  EXPECT_FLOAT_EQ(bn.running_mean.to_vector<float>()[0], 0.1f);
  EXPECT_EQ(bn.num_batches_tracked.item<std::int64_t>(), 2);
}

// Rank 1 may evaluate more often than rank 0.
RANKS_TEST(ReducerTest, EvaluationNeedsNoOtherRank, 2) {
  nn::Sequential model{nn::BatchNorm2d(2), nn::Conv2d(2, 1, 1)};
  DistributedDataParallel ddp(model, group);
  model.eval();
  for (int i = 0; i < group.rank() * 3; ++i) ddp(ones({1, 2, 1, 1}));
  model.train();
  sum(ddp(ones({2, 2, 2, 2}))).backward();
  EXPECT_EQ(ddp.stats().reductions, 1);
}

// --- Parameters without a gradient ---------------------------------------------------------------

struct Blocks : nn::Module<Blocks> {
  Lines first = child("first", Lines());
  Lines second = child("second", Lines());
};

struct Nested : nn::Module<Nested> {
  Blocks blocks = child("blocks", Blocks());
  nn::Parameter scale = parameter("scale", ones({}));
  Tensor forward(const Tensor& x, bool all) {
    const Tensor y = blocks.first(x, all ? "abc" : "a");
    return all ? scale * blocks.second(y) : blocks.second(y);
  }
};

RANKS_TEST(ReducerTest, ParametersWithoutGradientAreNamedAndNobodyHangs, 3) {
  Nested model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    const bool all = group.rank() != 1;
    const Tensor loss = sum(ddp(input(1), all));
    if (all) {
      loss.backward();  // with zeros for rank 1
      EXPECT_EQ(grad_of(model.scale), Floats(1, 12));
      continue;
    }
    EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument,
                      "rank 1: 3 of 7 parameters got no gradient in this backward: scale, "
                      "blocks.first.b, blocks.first.c; modules: Nested, blocks.first.");
  }
  // The group still works.
  sum(ddp(input(1), true)).backward();
  EXPECT_EQ(ddp.stats().reductions, 3);
}

RANKS_TEST(ReducerTest, AParameterFrozenSinceIsCalledSo, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  model.b.set_requires_grad(false);
  EXPECT_WEFT_ERROR(sum(ddp(input(1))).backward(), InvalidArgument,
                    "1 of 3 parameters got no gradient in this backward: b (frozen since the "
                    "module was wrapped)");
}

// --- Hooks ---------------------------------------------------------------------------------------

RANKS_TEST(ReducerTest, WithAHookNothingIsDivided, 2) {
  Lines model;
  const CommHook add = [](ProcessGroup& g, const Tensor& gradients) -> Reduction {
    return g.all_reduce(gradients);
  };
  DistributedDataParallel ddp(model, group, {.comm_hook = add});
  sum(ddp(input(3))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 6));
}

RANKS_TEST(ReducerTest, AHookMayDoItAllAtOnce, 2) {
  Lines model;
  const CommHook nothing = [](ProcessGroup&, const Tensor& gradients) -> Reduction {
    raw::mul_(gradients, 10);
    return {};
  };
  DistributedDataParallel ddp(model, group, {.comm_hook = nothing});
  sum(ddp(input(group.rank()))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 10 * group.rank()));
}

// --- Failures ------------------------------------------------------------------------------------

RANKS_TEST(ReducerTest, AModuleMovedSinceIsAnError, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  model.to(DType::f64);
  EXPECT_WEFT_ERROR(ddp(input(1)), Dtype,
                    "parameter a was converted from f32 to f64 after the module was wrapped");
  model.to(DType::f32);
  sum(ddp(input(1))).backward();
  EXPECT_EQ(grad_of(model.a), Floats(2, 1));
}

RANKS_TEST(ReducerTest, AParameterUnfrozenSinceIsAnError, 2) {
  Lines model;
  model.b.set_requires_grad(false);
  DistributedDataParallel ddp(model, group);
  model.b.set_requires_grad(true);
  EXPECT_WEFT_ERROR(ddp(input(1)), InvalidArgument, "parameter b requires a gradient now");
}

// The first error is the rank's own; the other rank ends at once and not at its timeout.
TEST(ReducerTest, ABackwardThatFailsEndsTheOtherRanksToo) {
  const auto run = [] {
    comm::run_ranks(2, [](ProcessGroup& group) {
      Lines model;
      DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
      sum(ddp(input(1))).backward();
      const Tensor y = ddp(input(1));
      if (group.rank() == 1) {
        autograd::add_leaf_hook(model.a,
                                [](const Tensor&) { WEFT_THROW(Library, "user", "the reason"); });
        EXPECT_WEFT_ERROR(sum(y).backward(), Library, "the reason");
        EXPECT_WEFT_ERROR(sum(ddp(input(1))).backward(), Comm, "aborted");
        WEFT_THROW(Library, "user", "gave up");
      }
      EXPECT_WEFT_ERROR(sum(y).backward(), PeerFailed, "rank 1");
      EXPECT_WEFT_ERROR(sum(ddp(input(1))).backward(), Comm, "");
    });
  };
  EXPECT_WEFT_ERROR(run(), Library, "gave up");
}

// The other rank waits meanwhile.
RANKS_TEST(ReducerTest, ABackwardThatFailsBeforeItsFirstGradientHasSentNothing, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    if (group.rank() == 1) {
      const Tensor y = ddp(input(2));
      autograd::add_grad_hook(
          y, [](const Tensor&) -> Tensor { WEFT_THROW(Library, "user", "the reason"); });
      EXPECT_WEFT_ERROR(sum(y).backward(), Library, "the reason");
    }
    sum(ddp(input(2 * group.rank()))).backward();
    for (const Tensor& p : model.parameters()) EXPECT_EQ(grad_of(p), Floats(2, 1));
  }
  EXPECT_EQ(ddp.stats().reductions, 2);
}

// Rank 1 sends its bucket only at the end of its backward, since c gets no gradient there.
TEST(ReducerTest, ABackwardThatFailsAtItsEndEndsTheOtherRanksToo) {
  const auto run = [] {
    comm::run_ranks(2, [](ProcessGroup& group) {
      Lines model;
      const CommHook hook = [](ProcessGroup& g, const Tensor& gradients) -> Reduction {
        WEFT_CHECK(g.rank() == 0, Library, "user", "the reason");
        return g.all_reduce(gradients);
      };
      DistributedDataParallel ddp(model, group, {.comm_hook = hook});
      const Tensor loss = sum(ddp(input(1), group.rank() == 0 ? "abc" : "ab"));
      if (group.rank() == 1) {
        EXPECT_WEFT_ERROR(loss.backward(), Library, "the reason");
        EXPECT_WEFT_ERROR(group.barrier().wait(), Comm, "aborted");
        WEFT_THROW(Library, "user", "gave up");
      }
      EXPECT_WEFT_ERROR(loss.backward(), PeerFailed, "rank 1");
    });
  };
  EXPECT_WEFT_ERROR(run(), Library, "gave up");
}

// Rank 0 lacks the memory to send its parameters.
TEST(ReducerTest, AWrapperThatCannotBeMadeEndsTheOtherRanksToo) {
  set_host_devices(2);
  const auto run = [] {
    comm::run_ranks(2, [](ProcessGroup& group) {
      Lines model;
      if (group.rank() == 0) {
        model.to(Device("cpu:1"));
        const FailAllocation no_memory(Device("cpu:1"), 1);
        EXPECT_WEFT_ERROR(DistributedDataParallel(model, group), OutOfMemory, "");
        EXPECT_WEFT_ERROR(group.barrier().wait(), Comm, "aborted");
        WEFT_THROW(Library, "user", "gave up");
      }
      EXPECT_WEFT_ERROR(DistributedDataParallel(model, group), PeerFailed, "rank 0");
    });
  };
  EXPECT_WEFT_ERROR(run(), Library, "gave up");
}

RANKS_TEST(ReducerTest, ARankAloneGoesOnAfterABackwardThatFailed, 1) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny});
  autograd::HookHandle hook = autograd::add_leaf_hook(
      model.a, [](const Tensor&) { WEFT_THROW(Library, "user", "the reason"); });
  EXPECT_WEFT_ERROR(sum(ddp(input(1))).backward(), Library, "the reason");
  hook.remove();
  for (const float value : {1, 2}) {
    model.zero_grad();
    sum(ddp(input(value))).backward();
    EXPECT_EQ(grad_of(model.a), Floats(2, value));
  }
  EXPECT_EQ(ddp.bucket_names(), (Names{{"c"}, {"b"}, {"a"}}));
}

// The buckets that are there stay, and the next backward makes the new ones.
RANKS_TEST(ReducerTest, MemoryMayRunOutWhenBucketsAreRebuilt, 1) {
  Lines model;
  std::optional<FailAllocation> no_memory;
  bool first = true;
  const CommHook hook = [&](ProcessGroup& g, const Tensor& gradients) -> Reduction {
    if (std::exchange(first, false)) no_memory.emplace(Device(), 3);
    return g.all_reduce(gradients);
  };
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny, .comm_hook = hook});
  EXPECT_WEFT_ERROR(sum(ddp(input(1))).backward(), OutOfMemory, "");
  no_memory.reset();
  EXPECT_EQ(ddp.bucket_names(), (Names{{"a", "b", "c"}}));
  EXPECT_EQ(ddp.stats().bucket_bytes, (std::vector<std::int64_t>{24}));
  for (const float value : {1, 2}) {
    model.zero_grad();
    sum(ddp(input(value))).backward();
    EXPECT_EQ(grad_of(model.a), Floats(2, value));
    EXPECT_EQ(grad_of(model.c), Floats(2, value));
  }
  EXPECT_EQ(ddp.bucket_names(), (Names{{"c"}, {"b"}, {"a"}}));
}

RANKS_TEST(ReducerTest, ACapturedStepCannotAverage, 1) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  auto step = graph::capture([&] {
    model.zero_grad();
    sum(ddp(input(1))).backward();
  });
  step();
  EXPECT_WEFT_ERROR(step(), Unsupported, "[ddp] cannot be captured");
}

// --- Several devices -----------------------------------------------------------------------------

struct OnTwoDevices : nn::Module<OnTwoDevices> {
  nn::Linear first = child("first", nn::Linear(4, 4));
  nn::Linear second = child("second", nn::Linear(4, 2));
  Tensor forward(const Tensor& x) { return second(first(x).to(second.weight.device())); }
};

TEST(ReducerTest, AModelMayLieOnSeveralDevices) {
  set_host_devices(2);
  comm::run_ranks(2, [](ProcessGroup& group) {
    OnTwoDevices model = testing::seeded(4, [] { return OnTwoDevices(); });
    model.second.to(Device("cpu:1"));
    DistributedDataParallel ddp(model, group);
    OnTwoDevices alone = nn::clone(model);
    sum(alone(full({1, 4}, 1))).backward();
    for (int step = 0; step < 5; ++step) {
      model.zero_grad();
      sum(ddp(full({1, 4}, 2 * group.rank()))).backward();
      EXPECT_EQ(ddp.bucket_names().size(), 2u);
      EXPECT_EQ(grad_of(model.first.weight), grad_of(alone.first.weight));
      EXPECT_EQ(grad_of(model.second.bias), grad_of(alone.second.bias));
      EXPECT_EQ(model.second.weight.grad().device(), Device("cpu:1"));
    }
  });
}

}  // namespace
}  // namespace weft::parallel
