// DCGAN on two ranks: steps for one of the nets, which also use the other.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "weft/examples/dcgan.h"
#include "weft/tests/examples/collector.h"
#include "weft/tests/parallel/nets.h"

namespace weft {
namespace {

using examples::Gan;
using parallel::DistributedOptimizer;
using parallel::Horovod;
using testing::Collector;
using testing::same_bits;

constexpr int kSteps = 3;
constexpr std::int64_t kLatent = 8, kShard = 4;
constexpr optim::AdamOptions kOptions = {.lr = 2e-3, .beta1 = 0.5};

Gan make_gan() {
  return testing::seeded(3, [] {
    Gan gan(32, 2, kLatent);
    examples::dcgan_init(gan.generator);
    examples::dcgan_init(gan.discriminator);
    return gan;
  });
}

// The part of one rank in one step.
struct Shard {
  Shard(int step, int rank) {
    Generator generator(static_cast<std::uint64_t>(10 * step + rank));
    real = uniform({kShard, 1, 32, 32}, -1, 1, DType::f32, &generator);
    noise = uniform({kShard, kLatent, 1, 1}, -1, 1, DType::f32, &generator);
  }
  Tensor real, noise;
};

// One process that adds the gradients of both shards; the batch norms use separate statistics for
// each shard.
std::vector<Tensor> weights_of_one_process() {
  Gan gan = make_gan();
  Collector adam_d(gan.discriminator.parameters(), kOptions);
  Collector adam_g(gan.generator.parameters(), kOptions);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensor> fakes;
    for (const int rank : {0, 1}) {
      const Shard shard(step, rank);
      fakes.push_back(gan.generator(shard.noise));
      examples::train_discriminator(gan.discriminator, adam_d, shard.real, fakes.back());
    }
    adam_d.step_with_mean();
    for (const Tensor& fake : fakes) examples::train_generator(gan, adam_g, fake);
    adam_g.step_with_mean();
  }
  return gan.parameters();
}

// train_generator() as in PyTorch's tutorial: the discriminator gets gradients, too.
void train_generator_and_forget(Gan& gan, optim::Adam& adam, const Tensor& fake) {
  adam.zero_grad();
  const Tensor logits = gan.discriminator(fake);
  nn::bce_with_logits(logits, ones_like(logits)).backward();
  adam.step();
}

TEST(DcganHorovod, TwoRanksAreOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const std::vector<Tensor> expected = weights_of_one_process();
  for (const bool freeze : {true, false}) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      const Horovod hvd(group);
      Gan gan = make_gan();
      DistributedOptimizer adam_d(hvd, optim::Adam(gan.discriminator.parameters(), kOptions),
                                  gan.discriminator.named_parameters());
      DistributedOptimizer adam_g(hvd, optim::Adam(gan.generator.parameters(), kOptions),
                                  gan.generator.named_parameters());
      for (int step = 0; step < kSteps; ++step) {
        const Shard shard(step, hvd.rank());
        const Tensor fake = gan.generator(shard.noise);
        examples::train_discriminator(gan.discriminator, adam_d, shard.real, fake);
        freeze ? static_cast<void>(examples::train_generator(gan, adam_g, fake))
               : train_generator_and_forget(gan, adam_g, fake);
      }
      EXPECT_EQ(adam_d.messages_sent(), kSteps);
      EXPECT_EQ(adam_g.messages_sent(), kSteps);
      const std::vector<Tensor> got = gan.parameters();
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i], expected[i])) << i << ", " << freeze;
      }
    });
  }
}

}  // namespace
}  // namespace weft
