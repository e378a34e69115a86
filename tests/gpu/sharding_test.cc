// The engines that cut parameters, states and layers, and the collectives on the tape, with ranks
// on emulated GPUs; fully_shard is in comm_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/gpu/gpu_ranks.h"
#include "weft/tests/parallel/nets.h"
#include "weft/tests/parallel/tensor_nets.h"
#include "weft/weft.h"

namespace weft {
namespace {

using comm::ProcessGroup;
using testing::gpu_of;
using testing::in_groups;
using testing::Net;
using testing::text;

double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device()), y = b.to(Device());
  return raw::norm(raw::sub(x, y)).item<double>() / (raw::norm(y).item<double>() + 1e-30);
}

class Sharding : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OnGpus, Sharding,
                         ::testing::Values("threads", "shm", "nccl", "nccl-ring"));

// Each operation, and the gradient of its argument, as on the host.
TEST_P(Sharding, CollectivesOnTheTapeGiveWhatTheyGiveOnTheHost) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const auto results = [&](Device device) {
      const parallel::Collectives ranks(group.duplicate());
      Generator generator(static_cast<std::uint64_t>(7 + group.rank()));
      std::vector<Tensor> all;
      const auto run = [&](const auto& operation) {
        const Tensor x = uniform({2, 6}, -1, 1, DType::f64, &generator).to(device);
        x.set_requires_grad();
        const Tensor y = operation(x);
        (y * y).sum().backward();
        all.push_back(y.detach());
        all.push_back(x.grad());
      };
      run([&](const Tensor& x) { return ranks.all_reduce(x); });
      run([&](const Tensor& x) { return ranks.all_gather(x); });
      run([&](const Tensor& x) { return ranks.reduce_scatter(x); });
      run([&](const Tensor& x) { return ranks.all_to_all(x); });
      run([&](const Tensor& x) { return ranks.broadcast(x, 1); });
      run([&](const Tensor& x) { return ranks.reduce_from(x * x); });
      run([&](const Tensor& x) { return ranks.gather_from(x, 1); });
      run([&](const Tensor& x) { return ranks.split_to(ranks.reduce_from(x), 1); });
      run([&](const Tensor& x) { return ranks.reduce_from(ranks.copy_to(ranks.all_reduce(x))); });
      all.push_back(ranks.max_of(all[0]));
      return all;
    };
    const std::vector<Tensor> got = results(gpu_of(group.rank())), expected = results(Device());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(difference(got[i], expected[i]), 1e-14) << i;
    }
  });
}

// ZeRO-1 under DDP: the weights of the plain optimiser.
TEST_P(Sharding, ZeroIsThePlainOptimizer) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Sequential model = testing::seeded(3, testing::cnn),
                   plain = testing::seeded(3, testing::cnn);
    model.to(device), plain.to(device);
    const auto own = group.duplicate(), other = group.duplicate();
    parallel::DistributedDataParallel ddp(model, own), plain_ddp(plain, other);
    parallel::ZeroRedundancyOptimizer zero(optim::Adam(model.parameters(), {.lr = 0.01}), group);
    optim::Adam adam(plain.parameters(), {.lr = 0.01});
    for (int step = 0; step < 5; ++step) {
      const auto data = testing::batch(step, {4, 1, 8, 8}, DType::f32).shard(group.rank(), 2);
      const Tensor x = data.x.to(device), label = data.label.to(device);
      zero.zero_grad(), adam.zero_grad();
      nn::cross_entropy(ddp(x), label).backward();
      nn::cross_entropy(plain_ddp(x), label).backward();
      zero.step(), adam.step();
    }
    const auto got = model.parameters(), expected = plain.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(equal(got[i], expected[i])) << i;
    EXPECT_EQ(zero.state_dict().size(), adam.state_dict().size());
  });
}

// With dropout, whose masks are those of one GPU of that number.
TEST_P(Sharding, TensorParallelIsOneGpu) {
  for (const bool sequence : {false, true}) {
    in_groups(GetParam(), 2, [&](ProcessGroup& group) {
      const Device device = gpu_of(group.rank());
      Net plain = testing::seeded(3, [] { return Net(); });
      Net net = testing::seeded(3, [] { return Net(); });
      plain.to(device), net.to(device);
      const auto tp = parallel::parallelize(net, group, testing::plan_of(sequence));
      const auto generators = group.all_gather_object(default_generator(device).state());
      EXPECT_EQ(generators[0], generators[1]);
      optim::SGD sgd(net.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        const auto [x, y] = text(i);
        const std::pair data(x.to(device), y.to(device));
        const auto step = [&](optim::SGD& optimizer, const auto& loss_of) {
          default_generator(device).manual_seed(static_cast<std::uint64_t>(i));
          optimizer.zero_grad();
          const Tensor loss = loss_of();
          loss.backward();
          optimizer.step();
          return loss.template item<double>();
        };
        const double expected = step(plain_sgd, [&] { return testing::loss_of_all(plain, data); });
        EXPECT_NEAR(step(sgd, [&] { return testing::loss_of_part(net, tp, data); }), expected,
                    1e-9);
      }
      EXPECT_GT(tp.clip_grad_norm(1e6).item<double>(), 0);
      const nn::NamedTensors got = tp.state_dict(), expected = plain.state_dict();
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(difference(got[i].second, expected[i].second), 1e-9) << got[i].first;
      }
    });
  }
}

// Each GPU has a part of every sequence.
TEST_P(Sharding, ContextParallelIsOneGpu) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    Net plain = testing::seeded(3, [] { return Net(0); });
    Net net = testing::seeded(3, [] { return Net(0); });
    plain.to(device), net.to(device);
    parallel::context_parallel(net, group);
    net.first_place = group.rank() * (testing::kLength / 2);
    parallel::DistributedDataParallel ddp(net, group.duplicate());
    const auto [x, y] = text(0);
    const std::pair data(x.to(device), y.to(device));
    testing::loss_of_all(plain, data).backward();
    const auto own = [&](const Tensor& all) { return parallel::part_of_sequence(all, group, 1); };
    const Tensor logits = ddp(own(data.first));
    nn::cross_entropy(logits.flatten(0, 1), own(data.second).flatten()).backward();
    const auto got = net.parameters(), expected = plain.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(difference(got[i].grad(), expected[i].grad()), 1e-9) << i;
    }
  });
}

// An index that is no row is reported as the lookup of one GPU reports it.
TEST_P(Sharding, AWordThatIsNone) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Embedding words(5, 3);
    words.to(device);
    parallel::parallelize(words, group, {{"", parallel::VocabParallel{}}});
    const NoGrad no_grad;
    const Tensor y = words(from_vector<std::int64_t>({0, 4}, {2}).to(device));
    EXPECT_EQ(y.to(Device()).shape(), (Shape{2, 3}));
    const auto look_up_none = [&] {
      const Tensor z = words(from_vector<std::int64_t>({0, 5}, {2}).to(device));
      z.to(Device());
    };
    EXPECT_WEFT_ERROR(look_up_none(), InvalidArgument, "index");
  });
}

}  // namespace
}  // namespace weft
