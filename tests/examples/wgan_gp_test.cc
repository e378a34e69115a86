// WGAN-GP: the penalty on the critic's slope needs second derivatives.
#include "weft/examples/wgan_gp.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tests/parallel/nets.h"

namespace weft {
namespace {

using examples::Critic;
using parallel::DistributedDataParallel;
using testing::same_bits;

constexpr std::int64_t kLatent = 100, kShard = 4;
constexpr optim::AdamOptions kOptions = {.lr = 1e-4, .beta1 = 0, .beta2 = 0.9};

// f64 agrees to rounding: weights and noise are drawn in f64, in PyTorch's order.
TEST(WganGp, FirstLossesAreThoseOfPyTorch) {
  const auto golden = nlohmann::json::parse(std::ifstream("tests/examples/wgan_goldens.json"));
  const std::int64_t size = golden["size"], batch_size = golden["batch_size"];
  manual_seed(golden["seed"].get<std::uint64_t>());
  examples::WganGp gan(size, golden["width"], kLatent);
  gan.to(DType::f64);
  optim::Adam adam_c(gan.critic.parameters(), kOptions),
      adam_g(gan.generator.parameters(), kOptions);
  data::DataLoader loader(
      data::Mnist(data::kFashionMnistDir,
                  {.dtype = DType::f64, .transform = data::Pad(2), .normalize = {{0.5}, {0.5}}}),
      {.batch_size = batch_size, .shuffle = true});
  const auto noise = [&] { return randn({batch_size, kLatent, 1, 1}, DType::f64); };
  std::size_t step = 0;
  for (auto& [real, label] : loader) {
    const auto expect = [&](const std::string& name, const Tensor& got) {
      const double want = golden[name][step];
      EXPECT_NEAR(got.item<double>(), want, 1e-9 * std::abs(want)) << name << ", step " << step;
    };
    const Tensor fake = gan.generator(noise()), share = rand({batch_size, 1, 1, 1}, DType::f64);
    const auto [loss, distance, penalty] =
        examples::train_critic(gan.critic, adam_c, real, fake, share, 10);
    expect("critic", loss);
    expect("distance", distance);
    expect("penalty", penalty);
    expect("generator", examples::train_generator(gan.critic, adam_g, gan.generator(noise())));
    if (++step == golden["critic"].size()) break;
  }
  EXPECT_EQ(step, 4U);
}

// The part of one rank in one step.
struct Shard {
  Shard(int step, int rank) {
    Generator generator(static_cast<std::uint64_t>(10 * step + rank));
    real = uniform({kShard, 1, 32, 32}, -1, 1, DType::f32, &generator);
    fake = uniform({kShard, 1, 32, 32}, -1, 1, DType::f32, &generator);
    share = uniform({kShard, 1, 1, 1}, 0, 1, DType::f32, &generator);
  }
  Tensor real, fake, share;
};

Critic make_critic() {
  return testing::seeded(3, [] { return Critic(32, 2); });
}

Tensor loss_of(auto& critic, const Shard& shard) {
  return examples::gradient_penalty(critic, shard.real, shard.fake, shard.share) * 10 +
         mean(critic(shard.fake)) - mean(critic(shard.real));
}

// grad() calls no hooks of leaves, and the backward of the loss reaches each weight by the scores
// and by the penalty: the reducer sends a bucket when the sum of both is there.
TEST(WganGp, TwoRanksAreOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  constexpr int kSteps = 3;
  Critic one = make_critic();
  optim::Adam adam(one.parameters(), kOptions);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<Tensor>> of_ranks;
    for (const int rank : {0, 1}) {
      adam.zero_grad();
      loss_of(one, Shard(step, rank)).backward();
      of_ranks.emplace_back();
      for (const Tensor& p : one.parameters()) of_ranks.back().push_back(raw::clone(p.grad()));
    }
    const std::vector<Tensor> params = one.parameters();
    for (std::size_t i = 0; i < params.size(); ++i) {
      params[i].set_grad(raw::mul(raw::add(of_ranks[0][i], of_ranks[1][i]), 0.5));
    }
    adam.step();
  }
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    DistributedDataParallel<Critic> ddp(make_critic(), group);
    optim::Adam adam_of_rank(ddp.module().parameters(), kOptions);
    for (int step = 0; step < kSteps; ++step) {
      adam_of_rank.zero_grad();
      loss_of(ddp, Shard(step, group.rank())).backward();
      adam_of_rank.step();
    }
    const std::vector<Tensor> got = ddp.module().parameters(), want = one.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << i;
  });
}

}  // namespace
}  // namespace weft
