// The two proofs that the ranks compute the same as one process, and that the inner optimiser can
// be used.
#include "weft/parallel/distributed_optimizer.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/sgd.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::batch_of;
using testing::LabelledBatch;
using testing::loss_of;
using testing::relative_difference;
using testing::same_bits;

struct Net {
  const char* name;
  nn::Sequential (*make)();
  Shape sample;
};
const Net kNets[] = {{"mlp", &testing::mlp, {1, 6}}, {"cnn", &testing::cnn, {1, 1, 8, 8}}};

// (a) f32, two ranks, bit for bit, with one message and with many.
TEST(DistributedOptimizerTest, TwoRanksAreOneProcessBitForBit) {
  constexpr int kSteps = 12, kShard = 4;
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    std::vector<std::vector<Tensor>> expected;  // per step
    nn::Sequential one = testing::seeded(3, net.make);
    optim::SGD sgd(one.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      testing::backward_of_shards(one, batch(step, batch_of(2 * kShard, net.sample), DType::f32),
                                  2);
      sgd.step();
      auto& weights = expected.emplace_back();
      for (const Tensor& p : one.parameters()) weights.push_back(raw::clone(p));
    }
    for (const std::int64_t threshold : {kFusionThreshold, std::int64_t{0}}) {
      comm::run_ranks(2, [&](comm::ProcessGroup& group) {
        const Horovod hvd(group);
        nn::Sequential model = testing::seeded(3 + group.rank(), net.make);
        hvd.broadcast_parameters(model.state_dict());
        DistributedOptimizer opt(hvd, optim::SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}),
                                 model.named_parameters(), {.fusion_threshold = threshold});
        for (int step = 0; step < kSteps; ++step) {
          const LabelledBatch all = batch(step, batch_of(2 * kShard, net.sample), DType::f32);
          opt.zero_grad();
          loss_of(model, all.shard(group.rank(), 2)).backward();
          opt.step();
          const std::vector<Tensor> weights = model.parameters();
          for (std::size_t i = 0; i < weights.size(); ++i) {
            EXPECT_TRUE(same_bits(weights[i], expected[step][i])) << "step " << step << ", " << i;
          }
        }
      });
    }
  }
}

// (b) f64, one to four ranks, compared with the whole batch; also with several backwards.
TEST(DistributedOptimizerTest, RanksAreOneProcessWithTheWholeBatch) {
  constexpr int kSteps = 100, kBatch = 24;
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    const auto make = [&](std::uint64_t seed) {
      nn::Sequential model = testing::seeded(seed, net.make);
      model.to(DType::f64);
      return model;
    };
    nn::Sequential whole = make(3);
    optim::Adam adam(whole.parameters(), {.lr = 0.01});
    for (int step = 0; step < kSteps; ++step) {
      adam.zero_grad();
      loss_of(whole, batch(step, batch_of(kBatch, net.sample), DType::f64)).backward();
      adam.step();
    }
    for (int n = 1; n <= 4; ++n) {
      comm::run_ranks(n, [&](comm::ProcessGroup& group) {
        const Horovod hvd(group);
        nn::Sequential model = make(3 + group.rank());
        hvd.broadcast_parameters(model.state_dict());
        DistributedOptimizer opt(hvd, optim::Adam(model.parameters(), {.lr = 0.01}),
                                 model.named_parameters(),
                                 {.backward_passes_per_step = 2, .fusion_threshold = 100});
        for (int step = 0; step < kSteps; ++step) {
          const LabelledBatch part =
              batch(step, batch_of(kBatch, net.sample), DType::f64).shard(group.rank(), n);
          opt.zero_grad();
          for (const int half : {0, 1}) {
            (loss_of(model, part.shard(half, 2)) / 2).backward();
          }
          opt.step();
        }
        const auto expected = whole.named_parameters(), got = model.named_parameters();
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE(relative_difference(got[i].second, expected[i].second), 1e-9)
              << got[i].first << " of " << n << " ranks";
        }
      });
    }
  }
}

void train(nn::Sequential& model, optim::Adam& adam, int step) {
  adam.zero_grad();
  loss_of(model, batch(step, {4, 6}, DType::f64)).backward();
  adam.step();
}

// It converts to an Adam&, and step() called through that reduces the gradients.
RANKS_TEST(DistributedOptimizerTest, ItIsTheOptimiser, 2) {
  const Horovod hvd(group);
  nn::Sequential model = testing::seeded(1, testing::mlp), one = nn::clone(model);
  model.to(DType::f64);
  one.to(DType::f64);
  DistributedOptimizer opt(hvd, optim::Adam(model.parameters()), model.named_parameters());
  optim::Adam adam(one.parameters());
  optim::OneCycleLR schedule(opt, {.max_lr = {0.1}, .total_steps = 9});
  optim::OneCycleLR expected(adam, {.max_lr = {0.1}, .total_steps = 9});
  for (int step = 0; step < 8; ++step) {
    train(model, opt, step);  // the same batch on both ranks
    train(one, adam, step);
    schedule.step();
    expected.step();
    EXPECT_EQ(opt.lr(), adam.lr());
    EXPECT_EQ(opt.momentum(0), adam.momentum(0));
  }
  EXPECT_EQ(opt.messages_sent(), 8);
  const auto a = model.parameters(), b = one.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i]));
}

RANKS_TEST(DistributedOptimizerTest, ItsStateTravelsAsTheOptimisers, 2) {
  const Horovod hvd(group);
  nn::Sequential model = testing::seeded(1, testing::mlp);
  model.to(DType::f64);
  DistributedOptimizer opt(hvd, optim::Adam(model.parameters()), model.named_parameters());
  for (int step = 0; step < 3; ++step) train(model, opt, step);
  // Another DistributedOptimizer and a plain Adam load the state.
  nn::Sequential again = nn::clone(model), alone = nn::clone(model);
  DistributedOptimizer resumed(hvd, optim::Adam(again.parameters()), again.named_parameters());
  resumed.load_state_dict(opt.state_dict());
  optim::Adam adam(alone.parameters());
  adam.load_state_dict(opt.state_dict());
  for (int step = 3; step < 6; ++step) {
    train(model, opt, step);
    train(again, resumed, step);
    train(alone, adam, step);
  }
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(again.parameters()[i], model.parameters()[i]));
    EXPECT_TRUE(same_bits(alone.parameters()[i], model.parameters()[i]));
  }
}

RANKS_TEST(DistributedOptimizerTest, ItMayBeMoved, 2) {
  const Horovod hvd(group);
  testing::Lines model;
  DistributedOptimizer made(hvd, optim::SGD(model.parameters(), {.lr = 1}),
                            model.named_parameters());
  DistributedOptimizer sgd = std::move(made);
  sgd.zero_grad();
  sum(model(testing::input(2 * group.rank()))).backward();
  sgd.step();
  EXPECT_EQ(model.a.to_vector<float>()[0], 0);
}

}  // namespace
}  // namespace weft::parallel
