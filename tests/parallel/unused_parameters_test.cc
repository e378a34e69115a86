// Steps that leave parameters out, found in each forward or known from the first one.
#include "weft/parallel/unused_parameters.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::ProcessGroup;
using testing::grad_of;
using testing::input;
using testing::Lines;
using Floats = std::vector<float>;

// A bucket for each gradient.
constexpr double kTiny = 1e-6;

// --- Found in each forward -----------------------------------------------------------------------

RANKS_TEST(UnusedParametersTest, UnusedParametersCountAsZeros, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group,
                              {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  // Gradients of one step must not remain in the bucket for the next one.
  for (const std::string which : {"abc", "ab", "ca", "b", "abc"}) {
    model.zero_grad();
    sum(ddp(input(4), group.rank() == 0 ? "abc" : which)).backward();
    for (const auto& [name, p] : model.named_parameters()) {
      const bool used = which.find(name) != std::string::npos;
      EXPECT_EQ(grad_of(p), Floats(2, used ? 4 : 2)) << name << " of " << which;
    }
  }
}

RANKS_TEST(UnusedParametersTest, WhatAFailedBackwardHasUsedDoesNotCount, 1) {
  Lines model;
  DistributedDataParallel ddp(model, group,
                              {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  autograd::HookHandle hook = autograd::add_leaf_hook(
      model.a, [](const Tensor&) { WEFT_THROW(Library, "user", "the reason"); });
  EXPECT_WEFT_ERROR(sum(ddp(input(1))).backward(), Library, "the reason");
  hook.remove();
  model.zero_grad();
  sum(ddp(input(1), "ab")).backward();
  EXPECT_TRUE(model.b.grad().defined());
  EXPECT_FALSE(model.c.grad().defined());
}

// As in one process, an optimiser skips parameters that no rank has used.
RANKS_TEST(UnusedParametersTest, WhatNoRankUsesHasNoGradient, 2) {
  for (const bool static_graph : {false, true}) {
    Lines model;
    DistributedDataParallel ddp(
        model, group, {.find_unused_parameters = !static_graph, .static_graph = static_graph});
    optim::SGD sgd(model.parameters(), {.lr = 1, .weight_decay = 0.5});
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      sum(ddp(input(group.rank()), group.rank() == 0 ? "a" : "ab")).backward();
      EXPECT_TRUE(model.b.grad().defined());
      EXPECT_FALSE(model.c.grad().defined());
      sgd.step();
      EXPECT_EQ(model.c.to_vector<float>(), Floats(2, 1));
    }
  }
}

RANKS_TEST(UnusedParametersTest, WhatWasUnusedMayBeUsedAgain, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
  for (int step = 0; step < 4; ++step) {
    model.zero_grad();
    const bool c = step % 2 == 1;
    sum(ddp(input(2 * group.rank()), c ? "abc" : "ab")).backward();
    EXPECT_EQ(model.c.grad().defined(), c);
    if (c) {
      EXPECT_EQ(grad_of(model.c), Floats(2, 1));
    }
  }
  // Gradients that were added up before stay.
  sum(ddp(input(2 * group.rank()), "a")).backward();
  EXPECT_EQ(grad_of(model.c), Floats(2, 1));
  sum(ddp(input(2 * group.rank()), "c")).backward();
  EXPECT_EQ(grad_of(model.c), Floats(2, 2));
}

RANKS_TEST(UnusedParametersTest, WhatNoSyncHasAddedUpIsUsed, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
  {
    const auto local = ddp.no_sync();
    sum(ddp(input(2), group.rank() == 0 ? "c" : "b")).backward();
  }
  sum(ddp(input(2), "a")).backward();
  EXPECT_EQ(grad_of(model.b), Floats(2, 1));
  EXPECT_EQ(grad_of(model.c), Floats(2, 1));
}

// The outputs of an evaluation between forward and backward have no tape.
RANKS_TEST(UnusedParametersTest, AForwardWithoutTapeIsNotSearched, 2) {
  struct ShowsItsWeight : nn::Module<ShowsItsWeight> {
    Lines lines = child("lines", Lines());
    std::pair<Tensor, Tensor> forward(const Tensor& x) { return {lines(x), lines.a}; }
  } model;
  DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
  const Tensor loss = sum(ddp(input(group.rank())).first);
  loss.backward({}, /*retain_graph=*/true);
  {
    const NoGrad no_grad;
    ddp(input(1));
  }
  loss.backward();
  EXPECT_EQ(grad_of(model.lines.c), Floats(2, 1));
}

// An output may depend on parameters on which the loss does not.
RANKS_TEST(UnusedParametersTest, OutputsThatTheLossLeavesOutAreNoError, 2) {
  struct Two : nn::Module<Two> {
    Lines left = child("left", Lines()), right = child("right", Lines());
    std::pair<Tensor, Tensor> forward(const Tensor& x) { return {left(x), right(x)}; }
  } model;
  DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    const auto [left, right] = ddp(input(group.rank()));
    sum(step == 1 ? right : left).backward();
    EXPECT_EQ(grad_of(step == 1 ? model.right.a : model.left.a), Floats(2, 0.5));
    EXPECT_FALSE((step == 1 ? model.left.a : model.right.a).grad().defined());
  }
}

// --- Checkpoints and static graphs ---------------------------------------------------------------

struct Checkpointed : nn::Module<Checkpointed> {
  Lines outer = child("outer", Lines());
  Lines inner = child("inner", Lines());
  Tensor forward(const Tensor& x, const std::string& which = "abc") {
    const auto block = [this, which](const Tensor& y) { return inner(y, which); };
    // Twice, so that each parameter gets two contributions.
    return autograd::checkpoint(block, autograd::checkpoint(block, outer(x)));
  }
};

RANKS_TEST(UnusedParametersTest, CheckpointedBlocksAreAveraged, 2) {
  for (const bool static_graph : {false, true}) {
    Checkpointed model;
    DistributedDataParallel ddp(model, group,
                                {.bucket_cap_mb = kTiny, .static_graph = static_graph});
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      sum(ddp(input(2 * group.rank()))).backward();
      EXPECT_EQ(grad_of(model.outer.b), Floats(2, 9));
      EXPECT_EQ(grad_of(model.inner.b), Floats(2, 18));
      EXPECT_EQ(ddp.stats().reductions, step + 1);
    }
  }
}

TEST(UnusedParametersTest, CheckpointsHideTheirParametersFromTheSearch) {
  EXPECT_WEFT_ERROR(comm::run_ranks(2,
                                    [&](ProcessGroup& group) {
                                      Checkpointed model;
                                      DistributedDataParallel ddp(model, group,
                                                                  {.find_unused_parameters = true});
                                      sum(ddp(input(1))).backward();
                                    }),
                    InvalidArgument,
                    " of module inner got a gradient, but the outputs of the last forward do not "
                    "lead to it. Inside of autograd::checkpoint find_unused_parameters cannot see "
                    "it: use static_graph");
}

RANKS_TEST(UnusedParametersTest, AStaticGraphIsLearntInTheFirstBackward, 2) {
  Checkpointed model;
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kTiny, .static_graph = true});
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    sum(ddp(input(group.rank()), group.rank() == 0 ? "a" : "ab")).backward();
    // Rank 0 computes 1 * (3 * 0), rank 1 2 * 2 * (3 * 1).
    EXPECT_EQ(grad_of(model.inner.a), Floats(2, 6));
    EXPECT_EQ(grad_of(model.inner.b), Floats(2, 6));
    EXPECT_FALSE(model.inner.c.grad().defined());
  }
}

RANKS_TEST(UnusedParametersTest, AStaticGraphAsksOnlyOnce, 2) {
  const auto messages_of_second_step = [&](const DistributedDataParallelOptions& options) {
    DistributedDataParallel ddp(Lines(), group, options);
    sum(ddp(input(1))).backward();
    const std::int64_t before = group.traffic().messages_sent;
    sum(ddp(input(1))).backward();
    return group.traffic().messages_sent - before;
  };
  EXPECT_EQ(messages_of_second_step({.static_graph = true}), messages_of_second_step({}));
}

TEST(UnusedParametersTest, AStaticGraphThatChangesIsAnError) {
  comm::run_ranks(2, [](ProcessGroup& group) {
    Lines model;
    DistributedDataParallel ddp(model, group, {.static_graph = true});
    sum(ddp(input(1), "ab")).backward();
    EXPECT_WEFT_ERROR(sum(ddp(input(1), "a")).backward(), InvalidArgument,
                      "1 of 3 parameters got no gradient in this backward: b");
    sum(ddp(input(1), "ab")).backward();
  });
  EXPECT_WEFT_ERROR(comm::run_ranks(2,
                                    [](ProcessGroup& group) {
                                      Lines model;
                                      DistributedDataParallel ddp(model, group,
                                                                  {.static_graph = true});
                                      sum(ddp(input(1), "ab")).backward();
                                      sum(ddp(input(1), "abc")).backward();
                                    }),
                    InvalidArgument, "got none in the first backward");
}

}  // namespace
}  // namespace weft::parallel
