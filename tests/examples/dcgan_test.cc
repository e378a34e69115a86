// DCGAN: two nets; a step trains one of them through the other.
#include "weft/examples/dcgan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "weft/tests/examples/heap_by_caller.h"

namespace weft {
namespace {

using examples::Gan;

constexpr std::int64_t kLatent = 100;

using Values = std::vector<std::vector<double>>;

Values weights_of(const nn::ModuleBase& net) {
  Values values;
  for (const Tensor& p : net.parameters()) values.push_back(p.to_vector<double>());
  return values;
}

// Empty if there are none.
Values gradients_of(const nn::ModuleBase& net) {
  Values values;
  for (const Tensor& p : net.parameters()) {
    values.push_back(p.grad().defined() ? p.grad().to_vector<double>() : std::vector<double>());
  }
  return values;
}

bool any(const Values& gradients) {
  for (const auto& g : gradients) {
    if (!g.empty()) return true;
  }
  return false;
}

struct Training {
  explicit Training(std::int64_t size, std::int64_t width, DType dtype = DType::f32)
      : gan(size, width, kLatent) {
    gan.to(dtype);
    examples::dcgan_init(gan.generator);
    examples::dcgan_init(gan.discriminator);
  }

  Gan gan;
  const optim::AdamOptions options = {.lr = 2e-4, .beta1 = 0.5};
  optim::Adam adam_d{gan.discriminator.parameters(), options};
  optim::Adam adam_g{gan.generator.parameters(), options};
};

TEST(Dcgan, MakesImagesOfEachSizeAndALogitForEach) {
  NoGrad no_grad;
  for (const std::int64_t size : {32, 64}) {
    Gan gan(size, 2, kLatent);
    const Tensor images = gan.generator(randn({3, kLatent, 1, 1}));
    EXPECT_EQ(images.shape(), Shape({3, 1, size, size}));
    EXPECT_EQ(gan.discriminator(images).shape(), Shape({3}));
  }
}

TEST(Dcgan, StartsAsTheTutorialDoes) {
  manual_seed(0);
  Training t(32, 16);
  for (const auto& [name, tensor] : t.gan.named_parameters()) {
    const auto values = tensor.to_vector<double>();
    double mean = 0, square = 0;
    for (const double v : values) mean += v / static_cast<double>(values.size());
    for (const double v : values) square += (v - mean) * (v - mean);
    const double std = std::sqrt(square / static_cast<double>(values.size()));
    const auto n = static_cast<double>(values.size());
    if (name.ends_with("bias")) {
      EXPECT_TRUE(mean == 0 && std == 0) << name;
      continue;
    }
    // Weights of BatchNorm have one dimension. Allows five standard errors.
    EXPECT_NEAR(mean, tensor.dim() == 1 ? 1 : 0, 5 * 0.02 / std::sqrt(n)) << name;
    EXPECT_NEAR(std, 0.02, 5 * 0.02 / std::sqrt(2 * n)) << name;
  }
}

TEST(Dcgan, EachStepTouchesItsOwnNetAlone) {
  manual_seed(0);
  Training t(32, 4);
  const Tensor real = rand({8, 1, 32, 32});
  for (int step = 0; step < 3; ++step) {
    const Tensor fake = t.gan.generator(randn({8, kLatent, 1, 1}));

    const Values generator = weights_of(t.gan.generator);
    const Values generator_gradients = gradients_of(t.gan.generator);
    const Values discriminator = weights_of(t.gan.discriminator);
    examples::train_discriminator(t.gan.discriminator, t.adam_d, real, fake);
    EXPECT_EQ(weights_of(t.gan.generator), generator);
    EXPECT_EQ(gradients_of(t.gan.generator), generator_gradients);
    EXPECT_EQ(any(generator_gradients), step > 0);
    EXPECT_NE(weights_of(t.gan.discriminator), discriminator);

    const Values taught = weights_of(t.gan.discriminator);
    const Values gradients = gradients_of(t.gan.discriminator);
    examples::train_generator(t.gan, t.adam_g, fake);
    EXPECT_EQ(weights_of(t.gan.discriminator), taught);
    EXPECT_EQ(gradients_of(t.gan.discriminator), gradients);  // nothing added
    EXPECT_NE(weights_of(t.gan.generator), generator);
    for (const Tensor& p : t.gan.parameters()) EXPECT_TRUE(p.requires_grad());
  }
  // There was none before, so there is none now.
  const Tensor fake = t.gan.generator(randn({8, kLatent, 1, 1}));
  t.gan.discriminator.zero_grad();
  examples::train_generator(t.gan, t.adam_g, fake);
  EXPECT_FALSE(any(gradients_of(t.gan.discriminator)));
}

// The other way, as in PyTorch's tutorial: the discriminator also collects gradients, and its next
// step first clears them. The training is the same, with more work.
TEST(Dcgan, ForgettingGradientsInsteadOfNotComputingThemIsTheSame) {
  const Scoped<bool> deterministic(&ThreadState::deterministic, true);
  std::vector<Values> outcomes;
  for (const bool forget : {false, true}) {
    manual_seed(0);
    Training t(32, 4);
    const Tensor real = rand({8, 1, 32, 32});
    for (int step = 0; step < 3; ++step) {
      const Tensor fake = t.gan.generator(randn({8, kLatent, 1, 1}));
      examples::train_discriminator(t.gan.discriminator, t.adam_d, real, fake);
      if (!forget) {
        examples::train_generator(t.gan, t.adam_g, fake);
        continue;
      }
      const Values before = gradients_of(t.gan.discriminator);
      t.adam_g.zero_grad();
      const Tensor logits = t.gan.discriminator(fake);
      nn::bce_with_logits(logits, ones_like(logits)).backward();
      t.adam_g.step();
      EXPECT_NE(gradients_of(t.gan.discriminator), before);
    }
    outcomes.push_back(weights_of(t.gan));
  }
  EXPECT_EQ(outcomes[0], outcomes[1]);
}

// f64 agrees to rounding: weights and noise are drawn in f64, in PyTorch's order.
TEST(Dcgan, FirstLossesAreThoseOfPyTorch) {
  const auto golden = nlohmann::json::parse(std::ifstream("tests/examples/dcgan_goldens.json"));
  const std::int64_t size = golden["size"], batch_size = golden["batch_size"];
  manual_seed(golden["seed"].get<std::uint64_t>());
  Training t(size, golden["width"], DType::f64);
  data::DataLoader loader(
      data::Mnist(data::kFashionMnistDir,
                  {.dtype = DType::f64, .transform = data::Pad(2), .normalize = {{0.5}, {0.5}}}),
      {.batch_size = batch_size, .shuffle = true});
  std::size_t step = 0;
  for (auto& [real, label] : loader) {
    const Tensor fake = t.gan.generator(randn({batch_size, kLatent, 1, 1}, DType::f64));
    const double d =
        examples::train_discriminator(t.gan.discriminator, t.adam_d, real, fake).item<double>();
    const double g = examples::train_generator(t.gan, t.adam_g, fake).item<double>();
    const double want_d = golden["discriminator"][step], want_g = golden["generator"][step];
    EXPECT_NEAR(d, want_d, 1e-9 * want_d) << "step " << step;
    EXPECT_NEAR(g, want_g, 1e-9 * want_g) << "step " << step;
    if (++step == golden["generator"].size()) break;
  }
  EXPECT_EQ(step, 5U);
}

TEST(Dcgan, SteadyStepAllocatesNothing) {
  if (!testing::HeapByCaller::available()) GTEST_SKIP() << "a sanitizer owns malloc";
  manual_seed(0);
  Training t(32, 4);
  const Tensor real = rand({8, 1, 32, 32});
  const auto step = [&] {
    const Tensor fake = t.gan.generator(randn({8, kLatent, 1, 1}));
    examples::train_discriminator(t.gan.discriminator, t.adam_d, real, fake);
    examples::train_generator(t.gan, t.adam_g, fake);
  };
  for (int i = 0; i < 5; ++i) step();
  const std::int64_t driver_calls = memory_stats(Device()).driver_allocations;
  testing::HeapByCaller heap;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(heap.counts()["weft"], 0) << "in 10 steps; one of them from" << heap.example();
  EXPECT_EQ(memory_stats(Device()).driver_allocations, driver_calls);
}

}  // namespace
}  // namespace weft
