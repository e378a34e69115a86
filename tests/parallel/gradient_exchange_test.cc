// When an optimiser's gradients are sent, and their values, for every kind of training loop.
#include "weft/parallel/gradient_exchange.h"
#include "weft/core/runtime/allocator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad.h"
#include "weft/core/base/device.h"
#include "weft/core/runtime/capture.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_optimizer.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/horovod_ranks.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::ProcessGroup;
using testing::grad_of;
using testing::input;
using testing::Lines;
using Names = std::vector<std::vector<std::string>>;
using testing::run;
using Floats = std::vector<float>;
using Sgd = DistributedOptimizer<optim::SGD>;

// Three weights [2], whose gradients are the input, and an optimiser that subtracts them.
struct Training {
  explicit Training(const Horovod& hvd, const DistributedOptimizerOptions& options = {},
                    Lines net = Lines())
      : model(net),
        sgd(hvd, optim::SGD(model.parameters(), {.lr = 1}), model.named_parameters(), options) {}

  void backward(double value, const std::string& which = "abc") {
    sum(model(input(value), which)).backward();
  }
  float a() const { return model.a.to_vector<float>()[0]; }
  float b() const { return model.b.to_vector<float>()[0]; }
  float c() const { return model.c.to_vector<float>()[0]; }

  Lines model;
  Sgd sgd;
};

// --- The mean ------------------------------------------------------------------------------------

TEST(GradientExchangeTest, StepTakesTheMeanOfTheRanks) {
  for (const int n : {1, 2, 4}) {
    run(n, [&](const Horovod& hvd) {
      Training t(hvd);
      float expected = 1;
      for (int step = 0; step < 3; ++step) {
        t.sgd.zero_grad();
        t.backward(2 * hvd.rank() + step);
        t.sgd.step();
        expected -= static_cast<float>(n - 1 + step);
        EXPECT_EQ(grad_of(t.model.b), Floats(2, float(n - 1 + step)));
        EXPECT_EQ(t.a(), expected);
        EXPECT_EQ(t.c(), expected);
      }
    });
  }
}

HOROVOD_TEST(GradientExchangeTest, OrTheirSum, 3) {
  Training t(hvd, {.op = comm::ReduceOp::sum});
  t.sgd.zero_grad();
  t.backward(hvd.rank() + 1);
  t.sgd.step();
  EXPECT_EQ(t.a(), 1 - 6);
}

// 257 needs nine bits and is rounded to 256.
HOROVOD_TEST(GradientExchangeTest, Bf16CompressionKeepsEightBits, 2) {
  for (const comm::ReduceOp op : {comm::ReduceOp::avg, comm::ReduceOp::sum}) {
    Training t(hvd, {.op = op, .compression = Compression::bf16});
    t.sgd.zero_grad();
    t.backward(257);
    t.sgd.step();
    const float expected = op == comm::ReduceOp::avg ? 256 : 512;
    EXPECT_EQ(grad_of(t.model.a), Floats(2, expected));
    EXPECT_EQ(t.c(), 1 - expected);
    t.sgd.zero_grad();
    t.backward(3, "b");  // the marks are sent as bf16, too
    t.sgd.step();
    EXPECT_FALSE(t.model.c.grad().defined());
    EXPECT_EQ(t.b(), 1 - expected - (op == comm::ReduceOp::avg ? 3 : 6));
  }
}

HOROVOD_TEST(GradientExchangeTest, ManyRanksOfBf16StillSayWhatTheyHave, 5) {
  Training t(hvd, {.compression = Compression::bf16});
  t.sgd.zero_grad();
  t.backward(0, hvd.rank() == 3 ? "ab" : "b");
  t.sgd.step();
  EXPECT_TRUE(t.model.a.grad().defined());
  EXPECT_FALSE(t.model.c.grad().defined());
}

// --- When they are sent --------------------------------------------------------------------------

HOROVOD_TEST(GradientExchangeTest, GradientsAreSentWhileBackwardRuns, 2) {
  Training t(hvd, {.fusion_threshold = 0});
  EXPECT_EQ(t.sgd.message_names(), (Names{{"c"}, {"b"}, {"a"}}));
  std::vector<std::int64_t> sent;  // bytes sent when a's gradient, the last one, is ready
  autograd::add_leaf_hook(t.model.a, [&](const Tensor&) { sent.push_back(t.sgd.messages_sent()); });
  for (int step = 0; step < 3; ++step) {
    if (step > 0) t.sgd.zero_grad();  // this marks the beginning of a step
    t.backward(1);
    t.sgd.step();
    EXPECT_EQ(t.sgd.messages_sent(), 3 * (step + 1));
  }
  EXPECT_EQ(sent, (std::vector<std::int64_t>{0, 5, 8}));
}

HOROVOD_TEST(GradientExchangeTest, AMessageWaitsForThoseBeforeIt, 2) {
  Training t(hvd, {.fusion_threshold = 0});
  std::vector<std::int64_t> sent;
  autograd::add_leaf_hook(t.model.c, [&](const Tensor&) { sent.push_back(t.sgd.messages_sent()); });
  t.sgd.zero_grad();
  t.backward(hvd.rank(), hvd.rank() == 0 ? "cab" : "abc");  // backward runs in the opposite order
  t.sgd.step();
  EXPECT_EQ(sent, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(t.a(), 0.5);
  EXPECT_EQ(t.c(), 0.5);
}

HOROVOD_TEST(GradientExchangeTest, AMessageIsClosedAtTheThreshold, 2) {
  EXPECT_EQ(Training(hvd).sgd.message_names(), (Names{{"c", "b", "a"}}));
  EXPECT_EQ(Training(hvd, {.fusion_threshold = 16}).sgd.message_names(),
            (Names{{"c", "b"}, {"a"}}));
  EXPECT_EQ(Training(hvd, {.fusion_threshold = 17}).sgd.message_names(), (Names{{"c", "b", "a"}}));
}

HOROVOD_TEST(GradientExchangeTest, LargeModelsAreSentInEightMessages, 2) {
  optim::NamedTensors named;
  std::vector<Tensor> parameters;
  for (int i = 0; i < 16; ++i) {  // 1 MiB each
    parameters.push_back(zeros({1 << 18}));
    parameters.back().set_requires_grad();
    named.emplace_back("w" + std::to_string(i), parameters.back());
  }
  const Names names = Sgd(hvd, optim::SGD(parameters), named).message_names();
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(names[0], (std::vector<std::string>{"w15", "w14"}));
  parameters.resize(4);
  EXPECT_EQ(Sgd(hvd, optim::SGD(parameters), named).message_names().size(), 4u);
}

HOROVOD_TEST(GradientExchangeTest, DtypesHaveMessagesOfTheirOwn, 2) {
  const Tensor a = ones({2}), b = ones({2}, DType::f64);
  a.set_requires_grad();
  b.set_requires_grad();
  Sgd sgd(hvd, optim::SGD({a, b}, {.lr = 1}), {{"a", a}, {"b", b}});
  EXPECT_EQ(sgd.message_names().size(), 2u);
  sgd.zero_grad();
  sum(a.to(DType::f64) * b * (2.0 * hvd.rank())).backward();
  sgd.step();
  EXPECT_EQ(a.to_vector<float>(), Floats(2, 0));
  EXPECT_EQ(b.to_vector<float>(), Floats(2, 0));
}

HOROVOD_TEST(GradientExchangeTest, AParameterUsedTwiceIsSentOnce, 2) {
  Training t(hvd, {.fusion_threshold = 0});
  t.sgd.zero_grad();
  t.backward(hvd.rank(), "aabca");
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 1.5));
  EXPECT_EQ(grad_of(t.model.b), Floats(2, 0.5));
}

HOROVOD_TEST(GradientExchangeTest, ACheckpointedBlockIsSentOnce, 2) {
  Training t(hvd, {.fusion_threshold = 0});
  t.sgd.zero_grad();
  const auto block = [&](const Tensor& x) { return t.model(x); };
  Tensor x = input(2 * hvd.rank());
  x.set_requires_grad();
  sum(autograd::checkpoint(block, autograd::checkpoint(block, x))).backward();
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 6));  // from rank 1: 3 * 2 + 6
}

// --- Parts of the model --------------------------------------------------------------------------

HOROVOD_TEST(GradientExchangeTest, WhatSomeRanksLeaveOutCountsAsZerosThere, 3) {
  for (const std::int64_t threshold : {std::int64_t{0}, kFusionThreshold}) {
    Training t(hvd, {.fusion_threshold = threshold});
    for (const std::string which : {"abc", "ab", "c", "", "ba"}) {
      t.sgd.zero_grad();
      if (hvd.rank() == 0) {
        t.backward(3);
      } else if (!which.empty()) {
        t.backward(3, which);
      }
      t.sgd.step();
      for (const auto& [name, p] : t.model.named_parameters()) {
        const bool used = which.find(name) != std::string::npos;
        EXPECT_EQ(grad_of(p), Floats(2, used ? 3 : 1)) << name << " of " << which;
      }
    }
  }
}

// As in one process, an optimiser skips parameters that no rank has used, and their state.
HOROVOD_TEST(GradientExchangeTest, WhatNoRankUsesHasNoGradient, 2) {
  Lines model;
  Sgd sgd(hvd, optim::SGD(model.parameters(), {.lr = 1, .weight_decay = 0.5}),
          model.named_parameters(), {.fusion_threshold = 0});
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    const float before = model.c.to_vector<float>()[0];
    const bool c = step == 2;
    sum(model(input(hvd.rank()), hvd.rank() == 0 ? "a" : c ? "abc" : "ab")).backward();
    sgd.step();
    EXPECT_TRUE(model.b.grad().defined());
    EXPECT_EQ(model.c.grad().defined(), c);
    EXPECT_EQ(model.c.to_vector<float>()[0] != before, c) << step;
  }
}

// A model that is trained through another one. For every kind of loop, its optimiser must see
// exactly the gradients of its own backward.
enum class Loop { zero_before_backward, zero_after_step, zero_all_first, zero_modules, freeze };

TEST(GradientExchangeTest, AStepOfOneNetLeavesTheOthersOptimiserAlone) {
  for (const Loop loop : {Loop::zero_before_backward, Loop::zero_after_step, Loop::zero_all_first,
                          Loop::zero_modules, Loop::freeze}) {
    for (const bool only_on_rank_0 : {false, true}) {
      SCOPED_TRACE(static_cast<int>(loop));
      run(2, [&](const Horovod& hvd) {
        Training g(hvd, {.fusion_threshold = 0}), d(hvd, {.fusion_threshold = 0});
        for (int step = 0; step < 3; ++step) {
          const float g_before = g.a(), d_before = d.a();
          // The discriminator's half: its gradient is 1 on rank 0 and 3 on rank 1.
          if (loop == Loop::zero_before_backward || loop == Loop::freeze) d.sgd.zero_grad();
          if (loop == Loop::zero_all_first) {
            d.sgd.zero_grad();
            g.sgd.zero_grad();
          }
          if (loop == Loop::zero_modules) d.model.zero_grad();
          d.backward(1 + 2 * hvd.rank());
          d.sgd.step();
          EXPECT_EQ(d.a(), d_before - 2);
          EXPECT_EQ(g.a(), g_before);
          // The generator's half; a gradient of 2 also reaches the discriminator.
          if (loop == Loop::zero_after_step) d.sgd.zero_grad();
          if (loop == Loop::zero_before_backward || loop == Loop::freeze) g.sgd.zero_grad();
          if (loop == Loop::zero_modules) g.model.zero_grad();
          if (loop == Loop::freeze) d.model.requires_grad(false);
          const std::int64_t sent = d.sgd.messages_sent();
          const Tensor fake = g.model(input(2 * hvd.rank()), "a");
          const bool reaches = !only_on_rank_0 || hvd.rank() == 0;
          sum(reaches ? fake + d.model(input(2)) : fake).backward();
          if (loop != Loop::zero_after_step) {
            EXPECT_EQ(d.sgd.messages_sent(), sent);
          }
          g.sgd.step();
          EXPECT_EQ(g.a(), g_before - 1);
          EXPECT_EQ(d.a(), d_before - 2);
          if (loop == Loop::freeze) d.model.requires_grad(true);
          if (loop == Loop::zero_after_step) {
            g.sgd.zero_grad();
            d.sgd.zero_grad();
          }
        }
      });
    }
  }
}

HOROVOD_TEST(GradientExchangeTest, WhatIsLeftOverIsReducedByAStepWithoutZeroGrad, 2) {
  Training t(hvd);
  t.backward(2 * hvd.rank());
  t.backward(4, hvd.rank() == 0 ? "a" : "c");
  EXPECT_EQ(t.sgd.messages_sent(), 0);
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 3));
  EXPECT_EQ(grad_of(t.model.b), Floats(2, 1));
  EXPECT_EQ(grad_of(t.model.c), Floats(2, 3));
  // As in one process, the next gradient is added to it.
  t.backward(2 * hvd.rank());
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 4));
}

HOROVOD_TEST(GradientExchangeTest, ZeroGradDropsWhatIsOnItsWay, 2) {
  Training t(hvd, {.fusion_threshold = 0});
  t.sgd.zero_grad();
  if (hvd.rank() == 1) t.backward(100, "bc");  // rank 0 has not begun
  t.sgd.zero_grad();
  t.backward(2 * hvd.rank());
  t.sgd.step();
  EXPECT_EQ(t.a(), 0);
  EXPECT_EQ(t.b(), 0);
  EXPECT_EQ(t.c(), 0);
}

HOROVOD_TEST(GradientExchangeTest, StatsCountReductions, 2) {
  Training t(hvd, {.fusion_threshold = 0});
  // Two gradients and a mark in each.
  EXPECT_EQ(t.sgd.stats().bucket_bytes, (std::vector<std::int64_t>(3, 12)));
  EXPECT_EQ(t.sgd.stats().reductions, 0);
  const std::int64_t before = t.sgd.traffic().bytes_sent,
                     others = hvd.group()->traffic().bytes_sent;
  double reduce_ms = 0;
  for (const std::int64_t step : {1, 2, 3}) {
    if (step > 1) t.sgd.zero_grad();  // in the first step, step() sends them
    t.backward(1);
    t.sgd.step();
    const ReducerStats& stats = t.sgd.stats();
    EXPECT_EQ(stats.reductions, step);
    EXPECT_EQ(stats.bytes_reduced, 36 * step);
    ASSERT_EQ(std::ssize(stats.exposed_ms), step);
    EXPECT_GT(stats.exposed_ms.back(), 0);
    EXPECT_GE(stats.reduce_ms - reduce_ms, stats.exposed_ms.back() - 1e-9);
    reduce_ms = stats.reduce_ms;
  }
  EXPECT_EQ(t.sgd.traffic().bytes_sent - before, 3 * 36);
  EXPECT_EQ(hvd.group()->traffic().bytes_sent, others);
  t.sgd.zero_grad();
  t.backward(1);
  t.sgd.zero_grad();  // drops the gradients that all have sent
  EXPECT_EQ(t.sgd.stats().reductions, 4);
  EXPECT_EQ(t.sgd.stats().bytes_reduced, 4 * 36);
}

// --- Several backwards ---------------------------------------------------------------------------

HOROVOD_TEST(GradientExchangeTest, BackwardPassesAddUpBeforeTheyAreSent, 2) {
  Training t(hvd, {.backward_passes_per_step = 3});
  for (int step = 0; step < 2; ++step) {
    t.sgd.zero_grad();
    for (int pass = 0; pass < 3; ++pass) {
      EXPECT_EQ(t.sgd.messages_sent(), step);
      t.backward(2 * hvd.rank());
    }
    EXPECT_EQ(t.sgd.messages_sent(), step + 1);
    t.sgd.step();
    EXPECT_EQ(grad_of(t.model.a), Floats(2, 3));
  }
  // Fewer are allowed, too.
  t.sgd.zero_grad();
  t.backward(2 * hvd.rank());
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 1));
}

HOROVOD_TEST(GradientExchangeTest, MoreBackwardsThanThatAreAnErrorThatSaysWhatToDo, 2) {
  for (const int passes : {1, 2}) {
    Training t(hvd, {.backward_passes_per_step = passes});
    t.sgd.zero_grad();
    for (int pass = 0; pass < passes; ++pass) t.backward(1, "ab");
    const std::string text = "parameter b got gradients in more than " + std::to_string(passes) +
                             " backwards between zero_grad() and step(). To add up more, raise "
                             "backward_passes_per_step.";
    EXPECT_WEFT_ERROR(t.backward(1, "b"), InvalidArgument, text);
  }
}

// It adds nothing to a gradient that is on its way, or has arrived.
HOROVOD_TEST(GradientExchangeTest, GradMayBeCalledBetweenBackwardAndStep, 2) {
  Training t(hvd);
  const auto probe = [&] {
    const Tensor y = sum(t.model(input(5)) * 2.0);
    return autograd::grad(y, t.model.a).to_vector<float>();
  };
  t.sgd.zero_grad();
  t.backward(2 * hvd.rank());
  EXPECT_EQ(probe(), Floats(2, 10));
  t.sgd.synchronize();
  EXPECT_EQ(probe(), Floats(2, 10));
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 1));
  EXPECT_EQ(t.a(), 0);
}

HOROVOD_TEST(GradientExchangeTest, SynchronizeShowsWhatStepWillTake, 2) {
  Training t(hvd);
  for (int step = 0; step < 2; ++step) {
    t.sgd.zero_grad();
    t.backward(4 * hvd.rank());
    t.sgd.synchronize();
    t.sgd.synchronize();
    EXPECT_EQ(t.sgd.messages_sent(), step + 1);
    EXPECT_EQ(grad_of(t.model.a), Floats(2, 2));
    // The norm is sqrt(6 * 4).
    optim::clip_grad_norm(t.model.parameters(), std::sqrt(6.0));
    t.sgd.step();
    EXPECT_EQ(t.sgd.messages_sent(), step + 1);
    EXPECT_NEAR(t.a(), 1 - (step + 1), 1e-5);
  }
}

HOROVOD_TEST(GradientExchangeTest, ABackwardBehindSynchronizeIsAnError, 2) {
  Training t(hvd);
  t.backward(1);
  t.sgd.synchronize();
  EXPECT_WEFT_ERROR(t.backward(1), InvalidArgument,
                    "got a gradient after synchronize() had made it that of all ranks; call "
                    "step(), or zero_grad() to drop it, before");
  t.sgd.zero_grad();
  t.backward(2);
  t.sgd.step();
  EXPECT_EQ(grad_of(t.model.a), Floats(2, 2));
}

HOROVOD_TEST(GradientExchangeTest, AStepWithoutBackwardIsAnErrorOnAllRanks, 3) {
  Training t(hvd);
  const std::string text = "rank " + std::to_string(hvd.rank()) +
                           ": step() without a gradient: no rank has run a backward";
  EXPECT_WEFT_ERROR(t.sgd.step(), InvalidArgument, text);
  t.sgd.zero_grad();
  EXPECT_WEFT_ERROR(t.sgd.step(), InvalidArgument, text);
  EXPECT_EQ(t.a(), 1);
  if (hvd.rank() == 1) t.backward(6);
  t.sgd.step();
  EXPECT_EQ(t.a(), -1);
}

// --- Memory --------------------------------------------------------------------------------------

HOROVOD_TEST(GradientExchangeTest, GradientsFromBeforeAndAfterAreKept, 2) {
  Lines model;
  sum(model(input(6))).backward();
  {
    Training t(hvd, {}, model);
    EXPECT_EQ(grad_of(model.a), Floats(2, 6));
    t.backward(2 * hvd.rank());
    t.sgd.synchronize();
    EXPECT_EQ(grad_of(model.a), Floats(2, 7));
  }
  EXPECT_EQ(grad_of(model.a), Floats(2, 7));
  model.zero_grad();
  EXPECT_FALSE(model.a.grad().defined());
  sum(model(input(hvd.rank()))).backward();  // sends nothing
  EXPECT_EQ(grad_of(model.a), Floats(2, hvd.rank()));
}

TEST(GradientExchangeTest, AModelMayLieOnSeveralDevices) {
  set_host_devices(2);
  run(2, [](const Horovod& hvd) {
    const Device other("cpu:1");
    const Tensor a = ones({2}), b = ones({2}, {DType::f32, other});
    a.set_requires_grad();
    b.set_requires_grad();
    Sgd sgd(hvd, optim::SGD({a, b}, {.lr = 1}), {{"a", a}, {"b", b}}, {.fusion_threshold = 0});
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      (sum(a * (2.0 * hvd.rank())).to(other) + sum(b * (4.0 * hvd.rank()))).backward();
      sgd.step();
    }
    EXPECT_EQ(a.to_vector<float>(), Floats(2, 1 - 3));
    EXPECT_EQ(b.to_vector<float>(), Floats(2, 1 - 6));
  });
}

// --- Mistakes ------------------------------------------------------------------------------------

HOROVOD_TEST(GradientExchangeTest, NamesMustBeUniqueAndThereForAll, 2) {
  Lines first, second;
  std::vector<Tensor> both = first.parameters();
  for (const Tensor& p : second.parameters()) both.push_back(p);
  optim::NamedTensors names = first.named_parameters();
  EXPECT_WEFT_ERROR(Sgd(hvd, optim::SGD(both), names), InvalidArgument,
                    "parameter 3 [2] of the optimiser is not among the named parameters");
  for (const auto& named : second.named_parameters()) names.push_back(named);
  EXPECT_WEFT_ERROR(Sgd(hvd, optim::SGD(both), names), InvalidArgument,
                    "the names a, b, c are given to more than one parameter; put a prefix");
  for (std::size_t i = 3; i < 6; ++i) names[i].first = "second." + names[i].first;
  EXPECT_EQ(Sgd(hvd, optim::SGD(first.parameters()), names).message_names(),
            (Names{{"c", "b", "a"}}));  // more names than needed
}

HOROVOD_TEST(GradientExchangeTest, OptionsOutOfRangeAreErrors, 1) {
  EXPECT_WEFT_ERROR(Training(hvd, {.op = comm::ReduceOp::max}), InvalidArgument,
                    "op is max; gradients are reduced by avg or sum");
  EXPECT_WEFT_ERROR(Training(hvd, {.backward_passes_per_step = 0}), InvalidArgument,
                    "backward_passes_per_step is 0");
  EXPECT_WEFT_ERROR(Training(hvd, {.fusion_threshold = -1}), InvalidArgument,
                    "fusion_threshold is -1");
  Lines frozen;
  frozen.requires_grad(false);
  EXPECT_WEFT_ERROR(Training(hvd, {}, frozen), InvalidArgument, "no parameter requires a gradient");
}

HOROVOD_TEST(GradientExchangeTest, RanksThatDifferAreNamed, 3) {
  EXPECT_WEFT_ERROR(Training(hvd, {.backward_passes_per_step = hvd.rank() == 2 ? 2 : 1}),
                    InvalidArgument,
                    "rank 2 makes another optimiser than rank 0: it has \"op=avg compression=none "
                    "backward_passes_per_step=2");
  Lines model;
  model.b.set_requires_grad(hvd.rank() != 1);
  EXPECT_WEFT_ERROR(Training(hvd, {}, model), InvalidArgument,
                    "rank 1 makes another optimiser than rank 0: it has \"parameter c f32 [2] of "
                    "strides [1]\", rank 0 has \"parameter b");
}

HOROVOD_TEST(GradientExchangeTest, AModelChangedSinceIsAnError, 2) {
  Lines model;
  model.b.set_requires_grad(false);
  Training t(hvd, {}, model);
  model.b.set_requires_grad(true);
  EXPECT_WEFT_ERROR(t.sgd.zero_grad(), InvalidArgument, "parameter b requires a gradient now");
  model.b.set_requires_grad(false);
  model.to(DType::f64);
  EXPECT_WEFT_ERROR(t.sgd.step(), Dtype, "parameter a was converted from f32 to f64; move");
  model.to(DType::f32);
  t.backward(1, "ac");
  t.sgd.step();
  EXPECT_EQ(t.a(), 0);
}

// The first error is the rank's own; the other rank ends at once and not at its timeout.
TEST(GradientExchangeTest, ABackwardThatFailsEndsTheOtherRanksToo) {
  const auto fail = [] {
    run(2, [](const Horovod& hvd) {
      Training t(hvd, {.fusion_threshold = 0});
      t.sgd.zero_grad();
      if (hvd.rank() == 1) {
        autograd::add_leaf_hook(t.model.a,
                                [](const Tensor&) { WEFT_THROW(Library, "user", "the reason"); });
        EXPECT_WEFT_ERROR(t.backward(1), Library, "the reason");
        EXPECT_WEFT_ERROR(t.sgd.step(), Comm, "aborted");
        EXPECT_WEFT_ERROR(t.sgd.zero_grad(), Comm, "aborted");
        WEFT_THROW(Library, "user", "gave up");
      }
      EXPECT_WEFT_ERROR((t.backward(1), t.sgd.step()), PeerFailed, "rank 1");
    });
  };
  EXPECT_WEFT_ERROR(fail(), Library, "gave up");
}

HOROVOD_TEST(GradientExchangeTest, ARankAloneGoesOnAfterABackwardThatFailed, 1) {
  Training t(hvd, {.fusion_threshold = 0});
  t.sgd.zero_grad();
  autograd::HookHandle hook = autograd::add_leaf_hook(
      t.model.a, [](const Tensor&) { WEFT_THROW(Library, "user", "the reason"); });
  EXPECT_WEFT_ERROR(t.backward(1), Library, "the reason");
  hook.remove();
  t.sgd.zero_grad();
  t.backward(2);
  t.sgd.step();
  EXPECT_EQ(t.a(), -1);
}

HOROVOD_TEST(GradientExchangeTest, ACapturedStepCannotReduce, 1) {
  Training t(hvd);
  auto step = graph::capture([&] {
    t.sgd.zero_grad();
    t.backward(1);
    t.sgd.step();
  });
  step();
  EXPECT_WEFT_ERROR(step(), Unsupported, "[DistributedOptimizer] cannot be captured");
}

}  // namespace
}  // namespace weft::parallel
