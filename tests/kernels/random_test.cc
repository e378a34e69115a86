// Random filling: the CPU returns what the generator draws; on all devices the distributions are
// right and a seed repeats them.
#include <cmath>

#include "weft/core/runtime/rng.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

class Random : public TargetTest {
 protected:
  using Fill = void (*)(const Stream&, Generator&, double, double, const View&);

  std::vector<double> draw(Fill fill, DType dtype, std::int64_t n, double a, double b,
                           std::uint64_t seed) {
    Generator generator(seed);
    Buffer y(device(), dtype, {n});
    fill(stream, generator, a, b, y.view());
    return y.values();
  }

  static void expect_moments(const std::vector<double>& v, double mean, double std) {
    const auto n = static_cast<double>(v.size());
    double sum = 0, squares = 0;
    for (const double x : v) sum += x;
    for (const double x : v) squares += (x - sum / n) * (x - sum / n);
    // Six standard errors; the seeds are fixed, so the test is repeatable.
    EXPECT_NEAR(sum / n, mean, 6 * std / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(squares / n), std, 6 * std / std::sqrt(n));
  }
};
WEFT_ON_EVERY_TARGET(Random);

TEST_P(Random, Uniform) {
  const Fill fill = kernels().random.uniform;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 100000}) {
      const std::vector<double> v = draw(fill, dtype, n, -2, 3, 5);
      for (const double x : v) {
        ASSERT_GE(x, -2);
        ASSERT_LE(x, 3);
      }
      EXPECT_EQ(v, draw(fill, dtype, n, -2, 3, 5));
      if (n <= 1) continue;
      EXPECT_NE(v, draw(fill, dtype, n, -2, 3, 6));
      if (n > 1000) expect_moments(v, 0.5, 5 / std::sqrt(12.0));
    }
  }
}

TEST_P(Random, Normal) {
  const Fill fill = kernels().random.normal;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 100000}) {
      const std::vector<double> v = draw(fill, dtype, n, 1, 2, 5);
      EXPECT_EQ(v, draw(fill, dtype, n, 1, 2, 5));
      if (n <= 1) continue;
      EXPECT_NE(v, draw(fill, dtype, n, 1, 2, 6));
      if (n > 1000) expect_moments(v, 1, 2);
    }
  }
}

TEST_P(Random, Bernoulli) {
  for (const DType dtype : kAllDTypes) {
    for (const double p : {0.0, 0.3, 1.0}) {
      Generator generator(3), again(3);
      Buffer y(device(), dtype, {50001}), z(device(), dtype, {50001});
      kernels().random.bernoulli(stream, generator, p, y.view());
      kernels().random.bernoulli(stream, again, p, z.view());
      const std::vector<double> v = y.values();
      EXPECT_EQ(v, z.values());
      double ones = 0;
      for (const double x : v) {
        ASSERT_TRUE(x == 0 || x == 1);
        ones += x;
      }
      EXPECT_NEAR(ones / 50001, p, 6 * std::sqrt(p * (1 - p) / 50001));
    }
  }
}

// Two successive fills differ: the generator has advanced.
TEST_P(Random, TheGeneratorMovesOn) {
  Generator generator(1);
  Buffer a(device(), DType::f32, {100}), b(device(), DType::f32, {100});
  kernels().random.uniform(stream, generator, 0, 1, a.view());
  kernels().random.uniform(stream, generator, 0, 1, b.view());
  EXPECT_NE(a.values(), b.values());
}

TEST(RandomOnCpu, DrawsWhatTheGeneratorDraws) {
  const Device device("cpu");
  const KernelTable& kernels = backend(device).kernels;
  const Stream stream = backend(device).runtime->default_stream(0);
  Generator mine(11), theirs(11);
  Buffer y(device, DType::f32, {2000});
  std::vector<float> want(2000);
  const auto check = [&] {
    const std::vector<double> got = y.values();
    EXPECT_EQ(got, std::vector<double>(want.begin(), want.end()));
  };
  kernels.random.uniform(stream, mine, -1, 1, y.view());
  theirs.uniform(std::span(want), -1, 1);
  check();
  kernels.random.normal(stream, mine, 0, 3, y.view());
  theirs.normal(std::span(want), 0, 3);
  check();
  std::vector<std::uint8_t> bits(2000);
  kernels.random.bernoulli(stream, mine, 0.4, y.view());
  theirs.bernoulli(std::span(bits), 0.4);
  want.assign(bits.begin(), bits.end());
  check();
  EXPECT_EQ(mine.random64(), theirs.random64());
}

TEST(RandomOnCpu, OtherTypesAreUnsupported) {
  const Device device("cpu");
  Generator generator(1);
  Buffer y(device, DType::i64, {3});
  const Stream stream = backend(device).runtime->default_stream(0);
  EXPECT_THROW(backend(device).kernels.random.uniform(stream, generator, 0, 1, y.view()), Error);
}

}  // namespace
}  // namespace weft::testing
