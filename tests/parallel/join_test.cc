#include "weft/parallel/join.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "weft/nn/batch_norm.h"
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

// Rank r of three has r + 1 batches, of r + 1 each.
RANKS_TEST(JoinTest, JoinedRanksCountAsZerosAndEndWithTheLastOnesModel, 3) {
  const CommHook mean = [](ProcessGroup& g, const Tensor& gradients) -> Reduction {
    return g.all_reduce(gradients, comm::ReduceOp::avg);
  };
  for (const auto& [all, hook] :
       {std::pair(true, CommHook()), {false, CommHook()}, {true, mean}, {false, mean}}) {
    Lines model;
    DistributedDataParallel ddp(model, group, {.comm_hook = hook});
    optim::SGD sgd(model.parameters(), {.lr = 1});
    const int mine = group.rank() + 1;
    const Floats expected = all ? Floats{2, 5.f / 3, 1} : Floats{2, 2.5, 3};
    ddp.join(
        [&] {
          for (int step = 0; step < mine; ++step) {
            sgd.zero_grad();
            sum(ddp(input(mine))).backward();
            EXPECT_FLOAT_EQ(grad_of(model.a)[0], expected[static_cast<std::size_t>(step)]);
            sgd.step();
          }
        },
        {.divide_by_initial_world_size = all});
    EXPECT_FLOAT_EQ(model.b.to_vector<float>()[0], 1 - expected[0] - expected[1] - expected[2]);
    EXPECT_EQ(ddp.stats().reductions, 3);
    sgd.zero_grad();
    sum(ddp(input(mine))).backward();  // as without join()
    EXPECT_EQ(grad_of(model.a), Floats(2, 2));
  }
}

TEST(JoinTest, JoinedRanksMayKeepTheirOptimisersInStep) {
  std::vector<Floats> weights(3);
  comm::run_ranks(3, [&](ProcessGroup& group) {
    nn::Sequential model{nn::BatchNorm2d(1), nn::Conv2d(1, 1, 1)};
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-6});
    optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    const auto step = [&] {
      sgd.step();
      sgd.zero_grad();
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      // Rank 0, whose buffers all ranks take, is done first.
      const int batches = epoch == 0 ? 2 * group.rank() : 1;
      ddp.join(
          [&] {
            for (int i = 0; i < batches; ++i) {
              sum(ddp(testing::batch(i, {2, 1, 2, 2}, DType::f32).x)).backward();
              step();
            }
          },
          {.step = step});
      EXPECT_EQ(model[0].as<nn::BatchNorm2d>()->num_batches_tracked.item<int>(), 4 + epoch);
    }
    sum(ddp(testing::batch(9, {2, 1, 2, 2}, DType::f32).x)).backward();
    step();
    Floats& mine = weights[static_cast<std::size_t>(group.rank())];
    for (const Tensor& p : model.parameters()) mine.push_back(p.to_vector<float>()[0]);
  });
  EXPECT_EQ(weights[0], weights[2]);
  EXPECT_EQ(weights[1], weights[2]);
}

// Each of rank 1's two steps has one backward that averages, and one that does not.
RANKS_TEST(JoinTest, AStepIsMadeForEachBackwardThatAverages, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  int steps = 0;
  ddp.join(
      [&] {
        for (int i = 0; i < 2 * group.rank(); ++i) {
          {
            const auto local = ddp.no_sync();
            sum(ddp(input(1))).backward();
          }
          sum(ddp(input(1))).backward();
        }
      },
      {.step = [&] { ++steps; }});
  EXPECT_EQ(steps, group.rank() == 0 ? 2 : 0);
}

// Including the first reduction, in which the ranks agree on buckets and used parameters.
RANKS_TEST(JoinTest, JoiningFitsEveryWayToFindParameters, 2) {
  for (const bool static_graph : {false, true}) {
    Lines model;
    DistributedDataParallel ddp(model, group,
                                {.bucket_cap_mb = 1e-6,
                                 .find_unused_parameters = !static_graph,
                                 .static_graph = static_graph});
    for (int epoch = 0; epoch < 3; ++epoch) {
      ddp.join([&] {
        for (int i = 0; i < 2 * group.rank(); ++i) {
          model.zero_grad();
          sum(ddp(input(4), "ab")).backward();
          EXPECT_EQ(grad_of(model.a), Floats(2, 2));
          EXPECT_FALSE(model.c.grad().defined());
        }
      });
    }
    model.zero_grad();
    sum(ddp(input(4), "ab")).backward();
    EXPECT_EQ(grad_of(model.a), Floats(2, 4));
  }
}

RANKS_TEST(JoinTest, AJoinWithoutAnyBatchEnds, 2) {
  Lines model;
  DistributedDataParallel ddp(model, group);
  ddp.join([] {});
  EXPECT_EQ(ddp.stats().reductions, 0);
}

TEST(JoinTest, ABodyThatThrowsEndsTheOtherRanksToo) {
  EXPECT_WEFT_ERROR(comm::run_ranks(2,
                                    [](ProcessGroup& group) {
                                      Lines model;
                                      DistributedDataParallel ddp(model, group);
                                      if (group.rank() == 1) {
                                        ddp.join([] { WEFT_THROW(Io, "user", "no data"); });
                                      }
                                      EXPECT_WEFT_ERROR(
                                          ddp.join([&] { sum(ddp(input(1))).backward(); }),
                                          PeerFailed, "rank 1");
                                    }),
                    Io, "no data");
}

}  // namespace
}  // namespace weft::parallel
