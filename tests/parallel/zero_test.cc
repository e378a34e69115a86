// ZeroRedundancyOptimizer: the proofs that it is the plain optimiser, its memory and its traffic.
#include "weft/parallel/zero.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/horovod.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::testing::in_groups;
using testing::batch;
using testing::loss_of;
using testing::same_bits;

// --- Who gets what -------------------------------------------------------------------------------

TEST(ZeroDealOut, TheLargestGoesFirstToTheRankWithTheFewestBytes) {
  const std::vector<std::vector<std::int64_t>> groups = {{2, 9, 4, 4}, {1, 6}};
  // 9 to rank 0, 4 and 4 to ranks 1 and 2, 2 to rank 1; then 6 to rank 2, 1 to rank 1.
  EXPECT_EQ(deal_out(groups, 3), (std::vector<std::vector<int>>{{1, 0, 1, 2}, {1, 2}}));
  EXPECT_EQ(deal_out(groups, 1), (std::vector<std::vector<int>>{{0, 0, 0, 0}, {0, 0}}));
  EXPECT_EQ(deal_out({}, 2), std::vector<std::vector<int>>());
  // More ranks than parameters. Parameters without bytes all go to rank 0.
  const std::vector<std::vector<std::int64_t>> few = {{3, 5}}, nothing = {{0, 0}};
  EXPECT_EQ(deal_out(few, 4), (std::vector<std::vector<int>>{{1, 0}}));
  EXPECT_EQ(deal_out(nothing, 4), (std::vector<std::vector<int>>{{0, 0}}));
}

// --- The same bits as the plain optimiser --------------------------------------------------------

// A layer that is used twice, and one that is frozen.
nn::Sequential net() {
  nn::Linear tied(6, 6), frozen(6, 6);
  for (const Tensor& p : frozen.parameters()) p.set_requires_grad(false);
  return {tied, nn::ReLU(), frozen, tied, nn::ReLU(), nn::Linear(6, 3)};
}

template <class Options>
std::vector<optim::ParamGroup<Options>> two_groups(const nn::Sequential& model, Options options) {
  const std::vector<Tensor> all = model.parameters();
  Options slower = options;
  slower.lr = options.lr / 2;
  return {{{all.begin(), all.begin() + 2}, options}, {{all.begin() + 2, all.end()}, slower}};
}

// Calls f(make), where make(model) is an optimiser with a state.
template <class F>
void with_optimizer(const std::string& name, const F& f) {
  if (name == "sgd") {
    f([](const nn::Sequential& model) {
      return optim::SGD(
          two_groups(model, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}));
    });
  } else if (name == "adam") {
    f([](const nn::Sequential& model) {
      return optim::Adam(two_groups(model, optim::AdamOptions{.lr = 0.01}));
    });
  } else if (name == "adamw") {
    f([](const nn::Sequential& model) {
      return optim::AdamW(two_groups(model, optim::AdamWOptions{.lr = 0.01, .amsgrad = true}));
    });
  } else if (name == "adadelta") {
    f([](const nn::Sequential& model) {
      return optim::Adadelta(two_groups(model, optim::AdadeltaOptions{.lr = 0.5}));
    });
  } else {
    f([](const nn::Sequential& model) {
      return optim::RMSprop(
          two_groups(model, optim::RMSpropOptions{.lr = 0.01, .momentum = 0.9, .centered = true}));
    });
  }
}

// A step with clipping and a schedule.
template <class Called>
void step(Called& model, optim::Optimizer& optimizer, optim::LRScheduler& schedule,
          const testing::LabelledBatch& data) {
  optimizer.zero_grad();
  loss_of(model, data).backward();
  optim::clip_grad_norm(optimizer.parameters(), 0.5);
  optimizer.step();
  schedule.step();
}

void expect_same(const nn::Sequential& got, const nn::Sequential& expected) {
  const nn::NamedTensors a = got.named_parameters(), b = expected.named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same_bits(a[i].second, b[i].second)) << a[i].first;
  }
}

// Names, shapes and bits, in any order.
void expect_same(const optim::NamedTensors& got, const optim::NamedTensors& expected) {
  const std::map<std::string, Tensor> a(got.begin(), got.end()),
      b(expected.begin(), expected.end());
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, x] : b) {
    ASSERT_TRUE(a.contains(name)) << name;
    EXPECT_TRUE(same_bits(a.at(name), x)) << name;
  }
}

class ZeroTest : public ::testing::TestWithParam<const char*> {
 protected:
  const Scoped<bool> deterministic_{&ThreadState::deterministic, true};
  const Scoped<int> threads_{&ThreadState::num_threads, 1};
};

TEST_P(ZeroTest, TwentyStepsUnderDdpAreThoseOfThePlainOptimiserBitForBit) {
  constexpr int kSteps = 20;
  for (int n = 1; n <= 4; ++n) {
    SCOPED_TRACE(n);
    with_optimizer(GetParam(), [&](const auto& make) {
      comm::run_ranks(n, [&](comm::ProcessGroup& group) {
        nn::Sequential model = testing::seeded(3, net), plain = testing::seeded(3, net);
        const auto frozen = raw::clone(model.parameters()[2]);
        DistributedDataParallel ddp(model, group), plain_ddp(plain, group);
        ZeroRedundancyOptimizer zero(make(model), group);
        auto optimizer = make(plain);
        const optim::OneCycleLROptions once{
            .max_lr = {0.1, 0.05},
            .total_steps = kSteps + 1,
            .cycle_momentum = std::string(GetParam()) != "adadelta"};
        optim::OneCycleLR schedule(zero, once), plain_schedule(optimizer, once);
        for (int i = 0; i < kSteps; ++i) {
          const auto data = batch(i, {12, 6}, DType::f32).shard(group.rank(), n);
          step(ddp, zero, schedule, data);
          step(plain_ddp, optimizer, plain_schedule, data);
          expect_same(model, plain);
        }
        EXPECT_TRUE(same_bits(model.parameters()[2], frozen));
        EXPECT_EQ(zero.lr(1), optimizer.lr(1));
        EXPECT_EQ(zero.momentum(0), optimizer.momentum(0));
        expect_same(zero.state_dict(), optimizer.state_dict());
      });
    });
  }
}

// Each rank computes the gradients of the whole batch, so the number of ranks changes no bit.
template <class Optimizer>
void train(nn::Sequential& model, Optimizer& optimizer, int first, int last) {
  for (int i = first; i < last; ++i) {
    optimizer.zero_grad();
    loss_of(model, batch(i, {12, 6}, DType::f32)).backward();
    optimizer.step();
  }
}

TEST_P(ZeroTest, AStateGoesOnWithAnotherNumberOfRanksBitForBit) {
  with_optimizer(GetParam(), [&](const auto& make) {
    nn::Sequential whole = testing::seeded(3, net);
    auto optimizer = make(whole);
    train(whole, optimizer, 0, 5);
    nn::NamedTensors weights, state;
    comm::run_ranks(3, [&](comm::ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3, net);
      ZeroRedundancyOptimizer zero(make(model), group);
      train(model, zero, 0, 5);
      const optim::NamedTensors mine = zero.state_dict();
      expect_same(mine, optimizer.state_dict());
      if (group.rank() != 1) return;
      for (const auto& [name, x] : model.state_dict()) weights.emplace_back(name, raw::clone(x));
      state = mine;
    });
    train(whole, optimizer, 5, 10);
    for (int n = 1; n <= 4; ++n) {
      comm::run_ranks(n, [&](comm::ProcessGroup& group) {
        nn::Sequential model = testing::seeded(4, net);
        model.load_state_dict(weights);
        ZeroRedundancyOptimizer zero(make(model), group);
        zero.load_state_dict(state);
        train(model, zero, 5, 10);
        expect_same(model, whole);
        expect_same(zero.state_dict(), optimizer.state_dict());
      });
    }
    nn::Sequential model = testing::seeded(4, net);
    model.load_state_dict(weights);
    auto resumed = make(model);
    resumed.load_state_dict(state);
    train(model, resumed, 5, 10);
    expect_same(model, whole);
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ZeroTest,
                         ::testing::Values("sgd", "adam", "adamw", "adadelta", "rmsprop"));

// --- Memory and traffic --------------------------------------------------------------------------

std::int64_t bytes_of(std::span<const Tensor> tensors) {
  std::int64_t sum = 0;
  for (const Tensor& x : tensors) sum += x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
  return sum;
}

// All sizes are multiples of the allocator's blocks (512 bytes) and of a message's parts (64).
nn::Sequential large_net() {
  return {nn::Linear(128, 256), nn::ReLU(), nn::Linear(256, 384), nn::ReLU(), nn::Linear(384, 128)};
}

std::int64_t optimizer_bytes(Device device) {
  return memory_stats(device).in_use_by_owner[static_cast<std::size_t>(MemoryOwner::optimizer)];
}

TEST(ZeroMemoryTest, ARankHasItsPartOfTheMoments) {
  set_host_devices(4);
  for (int n = 1; n <= 4; ++n) {
    std::atomic<std::int64_t> sum = 0;
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const Device device(DeviceType::cpu, group.rank());
      const std::int64_t before = optimizer_bytes(device);
      nn::Sequential model = testing::seeded(3, large_net);
      model.to(device);
      ZeroRedundancyOptimizer zero(optim::Adam(model.parameters()), group);
      model(uniform({4, 128}, -1, 1).to(device)).sum().backward();
      zero.step();
      const std::int64_t moments = optimizer_bytes(device) - before;
      const std::vector<Tensor> all = model.parameters();
      const Tensor largest = *std::ranges::max_element(all, {}, &Tensor::numel);
      EXPECT_LE(moments, 2 * (bytes_of(all) / n + bytes_of({&largest, 1}))) << n;
      sum += moments;
      zero.load_state_dict(zero.state_dict());  // keeps only this rank's part
      EXPECT_EQ(optimizer_bytes(device) - before, moments);
      group.barrier().wait();
      EXPECT_EQ(sum, 2 * bytes_of(all));
    });
  }
}

// --- Mirrors -------------------------------------------------------------------------------------

// Calls it as parallel::Elastic does, with the same gradients on all ranks.
void step_of_mirrors(ZeroRedundancyOptimizer<optim::Adam>& zero, const nn::Sequential& model,
                     Device device, std::uint64_t step) {
  zero.zero_grad();
  Generator draws(step);
  std::vector<float> x(4 * 128);
  draws.uniform(std::span(x));
  model(from_vector(x, {4, 128}).to(device)).sum().backward();
  zero.step();
  zero.send();
}

TEST(ZeroMirrorTest, ARankHasTwoPartsOfTheMoments) {
  set_host_devices(4);
  for (int n = 1; n <= 4; ++n) {
    SCOPED_TRACE(n);
    std::atomic<std::int64_t> sum = 0;
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const Device device(DeviceType::cpu, group.rank());
      const std::int64_t before = optimizer_bytes(device);
      nn::Sequential model = testing::seeded(3, large_net);
      model.to(device);
      ZeroRedundancyOptimizer zero(optim::Adam(model.parameters()), {.mirror = true});
      ASSERT_TRUE(zero.deal(zero, group.duplicate()));
      step_of_mirrors(zero, model, device, 0);
      const std::int64_t moments = optimizer_bytes(device) - before;
      const std::vector<Tensor> all = model.parameters();
      const Tensor largest = *std::ranges::max_element(all, {}, &Tensor::numel);
      EXPECT_LE(moments, 2 * (2 * bytes_of(all) / n + bytes_of({&largest, 1})));
      sum += moments;
      group.barrier().wait();
      EXPECT_EQ(sum, 2 * std::min(n, 2) * bytes_of(all));
    });
  }
}

// A rank without any part gets its parts from the others, as long as these have all parts.
TEST(ZeroMirrorTest, PartsAreDealtOutAnew) {
  comm::run_ranks(4, [&](comm::ProcessGroup& group) {
    const Scoped<int> threads(&ThreadState::num_threads, 1);
    nn::Sequential model = testing::seeded(3, large_net),
                   plain_model = testing::seeded(3, large_net);
    ZeroRedundancyOptimizer zero(optim::Adam(model.parameters()), {.mirror = true});
    ZeroRedundancyOptimizer plain(optim::Adam(plain_model.parameters()), {.mirror = true});
    ASSERT_TRUE(zero.deal(zero, group.duplicate()));
    ASSERT_TRUE(plain.deal(
        plain, std::make_shared<comm::ProcessGroup>(comm::thread_backend(),
                                                    std::make_shared<comm::MemoryStore>(), 0, 1)));
    for (int step = 0; step < 6; ++step) {
      // Rank `step` comes back with other values; in step 4 two ranks that are no neighbours do.
      if (group.rank() == step || (step == 4 && group.rank() % 2 == 0)) {
        for (const Tensor& p : model.parameters()) raw::fill_(p, 7);
        zero.forget();
      }
      ASSERT_TRUE(zero.deal(zero, group.duplicate()));
      step_of_mirrors(zero, model, Device(), static_cast<std::uint64_t>(step));
      step_of_mirrors(plain, plain_model, Device(), static_cast<std::uint64_t>(step));
      expect_same(model, plain_model);
      expect_same(zero.state_dict(), plain.state_dict());
    }
    if (group.rank() >= 2) zero.forget();
    EXPECT_FALSE(zero.deal(zero, group.duplicate()));
  });
}

// DDP's all-reduce is 2 (n-1)/n P, the broadcasts are (n-1)/n P, on average over the ranks.
TEST(ZeroTrafficTest, AStepUnderDdpSendsThreeTimesTheParameters) {
  for (const char* const backend : {"ring", "shm"}) {
    for (int n = 1; n <= 4; ++n) {
      SCOPED_TRACE(::testing::Message() << backend << ' ' << n);
      std::atomic<std::int64_t> sent = 0;
      std::int64_t expected = 0;
      in_groups(backend, n, [&](comm::ProcessGroup& group) {
        nn::Sequential model = testing::seeded(3, large_net);
        DistributedDataParallel ddp(model, group);
        ZeroRedundancyOptimizer zero(optim::Adam(model.parameters()), group);
        const Tensor x = uniform({4, 128}, -1, 1);
        std::int64_t before = 0;
        for (int i = 0; i < 3; ++i) {  // the first one rebuilds DDP's buckets
          before = group.traffic().bytes_sent;
          zero.zero_grad();
          ddp(x).sum().backward();
          zero.step();
        }
        sent += group.traffic().bytes_sent - before;
        if (group.rank() == 0) expected = 3 * (n - 1) * bytes_of(model.parameters());
      });
      // shm counts what a ring would send, rounded down on each rank.
      EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(expected), 2 * n);
    }
  }
}

// --- Odd parameters ------------------------------------------------------------------------------

// Tensors with no, one and many elements and three dtypes; one is too large to share a message, and
// one has another order of dimensions.
std::vector<Tensor> odd_parameters() {
  TensorOptions channels_last;
  channels_last.channels_last = true;
  std::vector<Tensor> all = {empty({0}),
                             full({1}, 1),
                             scalar(2),
                             full({3, 5}, 3, TensorOptions(DType::f64)),
                             full({7}, 4, TensorOptions(DType::bf16)),
                             full({20'000}, 5),
                             full({2, 3, 2, 2}, 6, channels_last)};
  for (Tensor& x : all) {  // no two elements of a tensor are alike
    const Tensor steps = raw::mul(arange(0, x.numel()), 1.0 / 64);
    raw::copy_(x, raw::add(x, raw::reshape(raw::to(steps, x.dtype()), x.shape())));
    x.set_requires_grad(true);
  }
  return all;
}

void give_gradients(const std::vector<Tensor>& parameters, double value) {
  for (const Tensor& p : parameters) {
    const Tensor grad = empty_like(p);
    raw::fill_(grad, value);
    p.set_grad(grad);
  }
}

TEST(ZeroOddTest, ParametersOfAnySizeAndDtypeOnMoreRanksThanTheyAre) {
  const std::vector<Tensor> expected = odd_parameters();
  optim::Adam adam(expected, {.lr = 0.25});
  for (int i = 0; i < 3; ++i) {
    give_gradients(expected, i + 1);
    adam.step();
  }
  for (const int n : {1, 2, 3, 9}) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const std::vector<Tensor> parameters = odd_parameters();
      ZeroRedundancyOptimizer zero(optim::Adam(parameters, {.lr = 0.25}), group);
      for (int i = 0; i < 3; ++i) {
        give_gradients(parameters, i + 1);
        zero.step();
      }
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(same_bits(parameters[i], expected[i])) << i << " of " << n << " ranks";
      }
      expect_same(zero.state_dict(), adam.state_dict());
    });
  }
}

// A parameter is updated with its owner's gradient; whether other ranks have one does not matter.
RANKS_TEST(ZeroOddTest, AParameterWithoutAGradientOnOneRank, 2) {
  const Tensor first = full({4}, 1.0), second = full({2}, 1.0);
  for (const Tensor& x : {first, second}) x.set_requires_grad(true);
  ZeroRedundancyOptimizer zero(optim::SGD({first, second}, {.lr = 1, .momentum = 0.5}), group);
  ASSERT_EQ(zero.owners(), (std::vector<int>{0, 1}));
  if (group.rank() == 0) give_gradients({first, second}, 1);
  zero.step();
  EXPECT_EQ(first.to_vector<float>(), std::vector<float>(4, 0));
  EXPECT_EQ(second.to_vector<float>(), std::vector<float>(2, 1));
  EXPECT_EQ(zero.state_dict().size(), 4U);  // two of the group; step and buffer of `first`
}

// --- Mistakes and failures -----------------------------------------------------------------------

Tensor parameter(double value) { return full({4}, value).set_requires_grad(true); }

TEST(ZeroErrorTest, RanksWithDifferentOptimisersHearOfItAtOnce) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const int rank = group.rank();
    const auto make = [&](double lr, const std::vector<Tensor>& parameters) {
      ZeroRedundancyOptimizer zero(optim::SGD(parameters, {.lr = lr}), group);
    };
    EXPECT_WEFT_ERROR(make(rank == 0 ? 0.5 : 0.25, {parameter(1)}), InvalidArgument,
                      "rank 1 has another optimiser than rank 0: it has \"group 0 of lr 0.25, "
                      "momentum 0\", rank 0 has \"group 0 of lr 0.5, momentum 0\"");
    const std::vector<Tensor> one = {parameter(1)}, two = {parameter(1), parameter(1)};
    EXPECT_WEFT_ERROR(make(0.5, rank == 0 ? one : two), InvalidArgument,
                      "it has \"parameter f32 [4] of strides [1], trained\"");
    EXPECT_WEFT_ERROR(make(0.5, {full({4}, 1.0).set_requires_grad(rank == 0)}), InvalidArgument,
                      "not trained");
    make(0.5, one);  // the group still works
    EXPECT_WEFT_ERROR(ZeroRedundancyOptimizer(optim::SGD(one), nullptr), InvalidArgument,
                      "[zero] there is no process group");
  });
}

// As with the parts of a model that was cut over the same ranks.
RANKS_TEST(ZeroErrorTest, OtherValuesAreNoticedInTheFirstStep, 2) {
  nn::Sequential model{nn::Linear(3, 4), nn::Linear(4, 2), nn::PReLU()};
  raw::fill_(model.parameters()[3], 0.5 + group.rank());
  ZeroRedundancyOptimizer sgd(optim::SGD(model.parameters(), {.lr = 0.1}), group);
  EXPECT_WEFT_ERROR(sgd.step(), InvalidArgument, "rank 1 has other values than rank 0");
}

TEST(ZeroErrorTest, ARankThatDoesNotCollectTheStateIsNamed) {
  std::latch done(1);
  comm::run_ranks(
      2,
      [&](comm::ProcessGroup& group) {
        ZeroRedundancyOptimizer zero(optim::SGD({parameter(1)}, {.momentum = 0.5}), group);
        if (group.rank() == 1) return done.wait();
        try {
          zero.state_dict();
          ADD_FAILURE() << "rank 1 is missing";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::Timeout);
          EXPECT_HAS(error.what(), "waiting for rank 1");
          EXPECT_HAS(error.what(),
                     "state_dict() of a ZeroRedundancyOptimizer, which all ranks must call");
        }
        done.count_down();
      },
      {.timeout = std::chrono::milliseconds(300)});
}

TEST(ZeroErrorTest, AFailedStepEndsTheOthers) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const Tensor frozen = full({4}, 1.0);
    ZeroRedundancyOptimizer zero(optim::SGD({parameter(1), frozen}), group);
    EXPECT_EQ(zero.owners(), (std::vector<int>{0, -1}));
    if (group.rank() == 1) {
      frozen.set_requires_grad(true);
      EXPECT_WEFT_ERROR(zero.step(), InvalidArgument,
                        "[zero] parameter 1 [4] requires a gradient, and did not when the "
                        "optimiser was made");
    } else {
      EXPECT_WEFT_ERROR(zero.step(), PeerFailed, "rank 1");
    }
  });
}

TEST(ZeroErrorTest, ARankThatEndsBetweenStepsEndsTheOthers) {
  EXPECT_WEFT_ERROR(comm::run_ranks(3,
                                    [](comm::ProcessGroup& group) {
                                      const Tensor p = parameter(1);
                                      ZeroRedundancyOptimizer zero(optim::SGD({p}), group);
                                      for (int i = 0; i < 4; ++i) {
                                        if (group.rank() == 1 && i == 2) {
                                          WEFT_THROW(Io, "test", "the disk is full");
                                        }
                                        give_gradients({p}, 1);
                                        zero.step();
                                      }
                                    }),
                    Io, "the disk is full");
}

// As for a layer that was trained before and is frozen now.
RANKS_TEST(ZeroOddTest, AStateOfAFrozenParameterIsKept, 2) {
  const Tensor frozen = full({4}, 1.0).set_requires_grad(true), trained = parameter(2);
  optim::Adam plain({frozen, trained});
  give_gradients({frozen, trained}, 1);
  plain.step();
  frozen.set_requires_grad(false);
  frozen.set_grad(Tensor());
  ZeroRedundancyOptimizer zero(optim::Adam({frozen, trained}), group);
  zero.load_state_dict(plain.state_dict());
  expect_same(zero.state_dict(), plain.state_dict());
  zero.step();
  plain.step();
  expect_same(zero.state_dict(), plain.state_dict());
}

RANKS_TEST(ZeroOddTest, HorovodSendsItsState, 2) {
  const Tensor a = parameter(1), b = parameter(2);
  ZeroRedundancyOptimizer zero(optim::Adam({a, b}), group);
  give_gradients({a, b}, 1);
  zero.step();
  const auto state = zero.state_dict();
  Horovod(group).broadcast_optimizer_state(zero, 1);
  expect_same(zero.state_dict(), state);
}

RANKS_TEST(ZeroOddTest, AStepOfOneRankIsCaptured, 1) {
  const Tensor p = parameter(1);
  ZeroRedundancyOptimizer zero(optim::SGD({p}), group);
  give_gradients({p}, 1);
  auto captured = graph::capture([&] { zero.step(); });
  captured();
  captured();
}

RANKS_TEST(ZeroErrorTest, AStepOfSeveralRanksIsNotCaptured, 2) {
  const Tensor p = parameter(1);
  ZeroRedundancyOptimizer zero(optim::SGD({p}), group);
  give_gradients({p}, 1);
  auto captured = graph::capture([&] { zero.step(); });
  captured();
  EXPECT_WEFT_ERROR(captured(), Unsupported, "a replay would not send the parameters");
}

}  // namespace
}  // namespace weft::parallel
