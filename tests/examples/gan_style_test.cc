// The nets and losses of gan_style, its steps on two ranks, and what is said to wrong ones.
#include "weft/examples/gan_style.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/examples/collector.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"

namespace weft {
namespace {

using examples::GanStyle;
using parallel::DistributedDataParallel;
using testing::Collector;
using testing::same_bits;

constexpr int kSteps = 3;
constexpr std::int64_t kShard = 4;
constexpr optim::AdamOptions kOptions = {.lr = 2e-3, .beta1 = 0.5};
const examples::GanStyleFlags kFlags = {.width = 2, .vgg_width = 2};

GanStyle make_gan() {
  return testing::seeded(3, [] { return GanStyle(kFlags); });
}

// The pictures of one rank in one step.
Tensor pictures(int step, int rank) {
  Generator generator(static_cast<std::uint64_t>(10 * step + rank));
  return uniform({kShard, 1, 32, 32}, 0, 1, DType::f32, &generator);
}

std::vector<Tensor> copies(const nn::ModuleBase& net) {
  std::vector<Tensor> result;
  for (const Tensor& p : net.parameters()) result.push_back(raw::clone(p));
  return result;
}
bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

// --- The nets and losses -------------------------------------------------------------------------

TEST(GanStyle, GramIsTheMeanProductOfTwoChannels) {
  const Tensor features = arange(2 * 3 * 2 * 2, DType::f64).reshape({2, 3, 2, 2}) * 0.25 - 1;
  const auto x = features.to_vector<double>(), got = examples::gram(features).to_vector<double>();
  ASSERT_EQ(examples::gram(features).shape(), Shape({2, 3, 3}));
  for (std::size_t n = 0; n < 2; ++n) {
    for (std::size_t a = 0; a < 3; ++a) {
      for (std::size_t b = 0; b < 3; ++b) {
        double expected = 0;
        for (std::size_t i = 0; i < 4; ++i)
          expected += x[(n * 3 + a) * 4 + i] * x[(n * 3 + b) * 4 + i];
        EXPECT_NEAR(got[(n * 3 + a) * 3 + b], expected / 12, 1e-12);  // a few roundings
      }
    }
  }
}

// A file as torchvision's, with layers behind those that are used, and of another dtype.
TEST(GanStyle, ReadsTheWeightsOfTorchvisionsVgg16) {
  const testing::TempFolder folder;
  const std::string file = folder.path("vgg16.pth");
  const examples::Vgg saved = testing::seeded(1, [] { return examples::Vgg(3); });
  EXPECT_EQ(saved.state_dict()[12].first, "features.14.weight");
  const auto write = [&](nn::NamedTensors values, std::size_t first) {
    values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(first));
    for (auto& [name, x] : values) x = raw::to(x, DType::f64);
    values.emplace_back("features.17.weight", ones({1}));
    values.emplace_back("classifier.0.weight", ones({1}));
    io::save_pickle(file, io::PickleValue::state_dict(values));
  };
  write(saved.state_dict(), 0);
  const examples::Vgg read = examples::make_vgg(file, 8);
  EXPECT_TRUE(same(copies(read), copies(saved)));
  for (const Tensor& p : read.parameters()) EXPECT_FALSE(p.requires_grad());
  const Tensor x = rand({2, 1, 32, 32});
  const std::vector<Tensor> seen = nn::clone(read)(x);
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].shape(), Shape({2, 3, 32, 32}));
  EXPECT_EQ(seen[1].shape(), Shape({2, 6, 16, 16}));
  EXPECT_EQ(seen[2].shape(), Shape({2, 12, 8, 8}));
  EXPECT_GT(std::abs(mean(seen[2]).item<double>()), 1e-3);

  write(saved.state_dict(), 2);
  EXPECT_WEFT_ERROR(examples::make_vgg(file, 8), InvalidArgument,
                    "vgg16.pth: has no features.0.bias of one dimension; expected a state dict of "
                    "torchvision's vgg16");
  nn::NamedTensors values = saved.state_dict();
  values.pop_back();
  write(values, 0);
  EXPECT_WEFT_ERROR(examples::make_vgg(file, 8), InvalidArgument, "missing: features.14.bias");
  EXPECT_WEFT_ERROR(examples::make_vgg(folder.path("none"), 8), Io, "none");
}

// --- Steps ---------------------------------------------------------------------------------------

// The generator's gradient passes through the two other nets, which keep their weights and get no
// gradients.
TEST(GanStyle, EachStepTouchesItsOwnNetAlone) {
  GanStyle gan = make_gan();
  optim::Adam adam_d(gan.discriminator.parameters(), kOptions);
  optim::Adam adam_g(gan.generator.parameters(), kOptions);
  const std::vector<Tensor> vgg = copies(gan.vgg);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor real = pictures(step, 0), fake = gan.generator(examples::shrink(real));
    const std::vector<Tensor> g = copies(gan.generator), d = copies(gan.discriminator);
    examples::train_discriminator(gan.discriminator, adam_d, real, fake);
    EXPECT_TRUE(same(copies(gan.generator), g));
    EXPECT_FALSE(same(copies(gan.discriminator), d));

    const std::vector<Tensor> taught = copies(gan.discriminator);
    gan.discriminator.zero_grad();
    examples::train_generator(gan, adam_g, real, fake, kFlags);
    EXPECT_TRUE(same(copies(gan.discriminator), taught));
    EXPECT_FALSE(same(copies(gan.generator), g));
    for (const Tensor& p : gan.discriminator.parameters()) {
      EXPECT_TRUE(p.requires_grad());
      EXPECT_FALSE(p.grad().defined());
    }
  }
  EXPECT_TRUE(same(copies(gan.vgg), vgg));
  for (const Tensor& p : gan.vgg.parameters()) EXPECT_FALSE(p.grad().defined());
}

// Gray squares on black are learnt within some steps; the discriminator's part is small.
TEST(GanStyle, LossesGoDown) {
  GanStyle gan = make_gan();
  optim::Adam adam_d(gan.discriminator.parameters(), kOptions);
  optim::Adam adam_g(gan.generator.parameters(), {.lr = 1e-2});
  Tensor real = zeros({kShard, 1, 32, 32});
  for (std::int64_t i = 0; i < kShard; ++i)
    raw::fill_(real[i].narrow(1, 8, 16).narrow(2, 4 * i, 12), 0.8);
  std::vector<std::vector<double>> losses;
  for (int step = 0; step < 60; ++step) {
    const Tensor fake = gan.generator(examples::shrink(real));
    examples::train_discriminator(gan.discriminator, adam_d, real, fake);
    const auto g = examples::train_generator(gan, adam_g, real, fake, kFlags);
    losses.push_back({g.loss.item<double>(), g.content.item<double>(), g.style.item<double>()});
  }
  for (const std::size_t i : {0, 1, 2}) EXPECT_LT(losses.back()[i], 0.7 * losses[0][i]) << i;
}

// One process that adds the gradients of both shards.
std::vector<Tensor> weights_of_one_process() {
  GanStyle gan = make_gan();
  Collector adam_d(gan.discriminator.parameters(), kOptions);
  Collector adam_g(gan.generator.parameters(), kOptions);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensor> fakes;
    for (const int rank : {0, 1}) {
      const Tensor real = pictures(step, rank);
      fakes.push_back(gan.generator(examples::shrink(real)));
      examples::train_discriminator(gan.discriminator, adam_d, real, fakes.back());
    }
    adam_d.step_with_mean();
    for (const int rank : {0, 1})
      examples::train_generator(gan, adam_g, pictures(step, rank),
                                fakes[static_cast<std::size_t>(rank)], kFlags);
    adam_g.step_with_mean();
  }
  return copies(gan);
}

// What a rank has, with wrappers as in gan_style_ddp.
struct Training {
  explicit Training(comm::ProcessGroup& group)
      : generator(gan.generator, group), discriminator(gan.discriminator, group) {}

  GanStyle gan = make_gan();
  DistributedDataParallel<examples::Upscaler> generator;
  DistributedDataParallel<examples::Critic> discriminator;
  optim::Adam adam_d{gan.discriminator.parameters(), kOptions};
  optim::Adam adam_g{gan.generator.parameters(), kOptions};
};

// Also if the generator's step does not freeze the discriminator, whose gradients are then averaged
// in vain.
TEST(GanStyle, TwoRanksAreOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const std::vector<Tensor> expected = weights_of_one_process();
  for (const bool freeze : {true, false}) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      Training t(group);
      for (int step = 0; step < kSteps; ++step) {
        const Tensor real = pictures(step, group.rank());
        const Tensor fake = t.generator(examples::shrink(real));
        examples::train_discriminator(t.discriminator, t.adam_d, real, fake);
        if (freeze) {
          examples::train_generator(t.gan, t.adam_g, real, fake, kFlags);
        } else {
          t.adam_g.zero_grad();
          examples::generator_losses(t.gan, real, fake, kFlags).loss.backward();
          t.adam_g.step();
        }
      }
      EXPECT_TRUE(same(copies(t.gan), expected)) << freeze;
      EXPECT_EQ(t.generator.stats().reductions, kSteps);
      EXPECT_EQ(t.discriminator.stats().reductions, freeze ? kSteps : 2 * kSteps);
    });
  }
}

// --- Wrong ways ----------------------------------------------------------------------------------

RANKS_TEST(GanStyleTest, AFrozenNetIsNotWrapped, 2) {
  GanStyle gan = make_gan();
  EXPECT_WEFT_ERROR(DistributedDataParallel(gan.vgg, group), InvalidArgument,
                    "[ddp] Vgg has no parameter that requires a gradient, so there is nothing to "
                    "average: call the module itself, without DistributedDataParallel around it");
}

// A model whose forward returns the loss.
struct WithLoss : nn::Module<WithLoss> {
  GanStyle gan = child("gan", make_gan());

  Tensor forward(const Tensor& real, bool judged) {
    const Tensor fake = gan.generator(examples::shrink(real));
    const Tensor content = nn::mse_loss(gan.vgg(fake)[1], gan.vgg(real)[1]);
    return judged ? content - mean(gan.discriminator(fake)) : content;
  }
};

// The frozen net inside has no gradients; the frozen discriminator must stay frozen.
RANKS_TEST(GanStyleTest, TheLossMayBeWrappedTogetherWithOneNet, 2) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Tensor real = pictures(0, group.rank());
  WithLoss model, alone;
  model.gan.discriminator.requires_grad(false);
  DistributedDataParallel ddp(model, group);
  DistributedDataParallel generator(alone.gan.generator, group);
  alone.gan.discriminator.requires_grad(false);
  for (const bool judged : {true, false}) {
    ddp(real, judged).backward();
    alone(real, judged).backward();
    const auto got = model.gan.generator.parameters(), want = alone.gan.generator.parameters();
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(same_bits(got[i].grad(), want[i].grad())) << i;
  }
  model.gan.discriminator.requires_grad(true);
  EXPECT_WEFT_ERROR(
      ddp(real, true), InvalidArgument,
      "[ddp] parameter gan.discriminator.main.0.weight requires a gradient now and did not when "
      "the module was wrapped, so it would not be averaged: wrap the module again, or freeze what "
      "is trained by another wrapper before each forward of this one");
}

RANKS_TEST(GanStyleTest, NetsTrainedInTurnAreWrappedOneByOne, 2) {
  WithLoss model;
  DistributedDataParallel ddp(model, group);
  model.gan.discriminator.requires_grad(false);
  EXPECT_WEFT_ERROR(ddp(pictures(0, group.rank()), true).backward(), InvalidArgument,
                    "gan.discriminator.main.0.weight (frozen since the module was wrapped)");
  model.gan.discriminator.requires_grad(true);
  EXPECT_WEFT_ERROR(ddp(pictures(0, group.rank()), false).backward(), InvalidArgument,
                    "nets that are trained in turn, as in a GAN, wrap one by one");
}

// The loss does not lead to the net that it shall train.
RANKS_TEST(GanStyleTest, HalfAGraphIsAnError, 2) {
  const Tensor real = pictures(0, group.rank()), small = examples::shrink(real);
  const std::string nothing =
      "output 0 does not require a gradient: it was computed under NoGrad, or in a backward "
      "without create_graph, or only from tensors that are frozen or were detached";
  {
    Training t(group);
    std::optional<NoGrad> no_grad(std::in_place);
    const Tensor fake = t.generator(small);
    no_grad.reset();
    EXPECT_WEFT_ERROR(examples::train_generator(t.gan, t.adam_g, real, fake, kFlags),
                      InvalidArgument, nothing);
  }
  {
    Training t(group);
    const Tensor fake = t.generator(small).detach();
    EXPECT_WEFT_ERROR(examples::train_generator(t.gan, t.adam_g, real, fake, kFlags),
                      InvalidArgument, nothing);
  }
  {
    Training t(group);
    t.gan.discriminator.requires_grad(false);
    EXPECT_WEFT_ERROR(
        examples::train_discriminator(t.discriminator, t.adam_d, real, t.generator(small)),
        InvalidArgument, nothing);
  }
  {  // the discriminator's backward goes on through the generator
    Training t(group);
    const Tensor fake = t.generator(small);
    mean(t.discriminator(fake)).backward();
    EXPECT_WEFT_ERROR(examples::train_generator(t.gan, t.adam_g, real, fake, kFlags),
                      InvalidArgument,
                      "run the forward again, or detach() before that backward what it need not "
                      "pass through");
  }
}

// The discriminator, which is not frozen, gets the gradients; the generator's update has none.
RANKS_TEST(GanStyleTest, AnUpdateWithoutGradientsIsWarnedOfOnce, 2) {
  for (const bool recorded : {true, false}) {
    const testing::CollectedLog log;
    Training t(group);
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(log.text.empty(), step < 2) << log.text;
      std::optional<NoGrad> no_grad;
      if (!recorded) no_grad.emplace();
      const Tensor fake = t.generator(examples::shrink(pictures(step, group.rank())));
      no_grad.reset();
      t.adam_g.zero_grad();
      mean(t.discriminator(fake.detach())).backward();
      t.adam_g.step();
    }
    EXPECT_EQ(log.text, "warning: ddp: rank " + std::to_string(group.rank()) +
                            ": Upscaler was updated since its last forward, but no backward has "
                            "averaged its gradients: was that forward run under NoGrad, its result "
                            "detached, or the backward under no_sync()? Values that "
                            "load_state_dict() or a moving average puts there between a forward "
                            "and its backward look like an update, too\n");
  }
}

// Nor of weights that are loaded before the first forward, nor of a forward before the update.
RANKS_TEST(GanStyleTest, AnUpdateWithGradientsIsNotWarnedOf, 2) {
  const testing::CollectedLog log;
  Training t(group);
  t.gan.load_state_dict(make_gan().state_dict());
  for (int step = 0; step < kSteps; ++step) {
    const Tensor real = pictures(step, group.rank()), small = examples::shrink(real);
    const Tensor fake = t.generator(small);
    t.adam_g.zero_grad();
    examples::generator_losses(t.gan, real, fake, kFlags).loss.backward();
    {
      const NoGrad no_grad;
      t.generator(small);
    }
    t.adam_g.step();
  }
  EXPECT_EQ(log.text, "");
}

// The rank's own error comes first. The others hear of it and do not wait.
TEST(GanStyleTest, OneRankThatDetachesEndsAll) {
  EXPECT_WEFT_ERROR(comm::run_ranks(2,
                                    [](comm::ProcessGroup& group) {
                                      Training t(group);
                                      const Tensor real = pictures(0, group.rank());
                                      Tensor fake = t.generator(examples::shrink(real));
                                      if (group.rank() == 1) fake = fake.detach();
                                      examples::train_generator(t.gan, t.adam_g, real, fake,
                                                                kFlags);
                                    }),
                    InvalidArgument, "or only from tensors that are frozen or were detached");
}

}  // namespace
}  // namespace weft
