#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/tensor/multinomial.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;
using testing::make;
using testing::near_values;
using testing::reversed_layout;
using testing::values_of;
using testing::with_gaps;

const testing::Goldens goldens("tests/tensor/goldens/random_goldens");

constexpr double kNormalBound = 2e-6;  // PyTorch differs from itself by this much (rng.h)

TEST(RandomOnHostTest, EqualsPyTorch) {
  manual_seed(7);
  EXPECT_EQ(values_of(rand({2, 3}, Device())), goldens["rand_2_3"]);
  EXPECT_EQ(values_of(uniform({5}, -2, 3, {DType::f64, Device()})), goldens["uniform_5_f64"]);
  const Tensor x = zeros({19}, Device());
  raw::uniform_(x, -0.25, 0.25);
  EXPECT_EQ(values_of(x), goldens["uniform_19"]);
  EXPECT_TRUE(near_values(randn({20}, Device()), goldens["randn_20"], kNormalBound));
  EXPECT_TRUE(near_values(randn({5}, Device()), goldens["randn_5"], kNormalBound));
  const Tensor y = zeros({17}, {DType::f64, Device()});
  raw::normal_(y, 1, 0.5);
  EXPECT_TRUE(near_values(y, goldens["normal_17_f64"], kNormalBound));
  EXPECT_EQ(values_of(rand({4}, Device())), goldens["rand_4_after"]);
  EXPECT_EQ(values_of(randperm(11, {DType::i64, Device()})), goldens["randperm_11"]);
  EXPECT_EQ(values_of(rand({2}, Device())), goldens["rand_2_last"]);
}

class RandomTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(RandomTest);

TEST_P(RandomTest, MultinomialEqualsPyTorch) {
  for (const DType dtype : testing::kFloating) {
    const std::string name = "multinomial_" + std::string(to_string(dtype)) + "_";
    SCOPED_TRACE(name);
    const Tensor p = raw::to(goldens.tensor(name + "p"), device());
    // The numbers that PyTorch's generator had given for p.
    const auto after_p = [&] {
      Generator generator(11);
      rand(p.shape(), {dtype == DType::f64 ? DType::f64 : DType::f32, Device()}, &generator);
      return generator;
    };
    for (const Tensor& x : testing::layouts(p)) {
      Generator generator = after_p();
      const Tensor with = multinomial(x, 50, true, &generator);
      EXPECT_EQ(with.shape(), (Shape{3, 50}));
      EXPECT_EQ(with.dtype(), DType::i64);
      EXPECT_EQ(with.device(), device());
      EXPECT_EQ(values_of(with), goldens[name + "with"]);
      std::vector<double> without = values_of(multinomial(x, 30, false, &generator));
      std::vector<double> theirs = goldens[name + "without"];
      // bf16 has equal keys, which PyTorch takes in any order.
      for (auto* list : {&without, &theirs}) {
        for (auto row = list->begin(); dtype == DType::bf16 && row != list->end(); row += 30) {
          std::sort(row, row + 30);
        }
      }
      EXPECT_EQ(without, theirs);
      const Tensor one = multinomial(raw::select(x, 0, 0), 1, true, &generator);
      EXPECT_EQ(one.shape(), Shape{1});
      EXPECT_EQ(values_of(one), goldens[name + "one"]);
      EXPECT_EQ(values_of(rand({2}, Device(), &generator)), goldens[name + "after"]);
    }
  }
}

TEST_P(RandomTest, MultinomialUsesTheDevicesGeneratorAndRefusesWhatHasNoProbability) {
  const Tensor p = make({0, 1, 3}, {3});
  manual_seed(3);
  const std::vector<double> drawn = values_of(multinomial(p, 20, true));
  EXPECT_EQ(std::ranges::count(drawn, 0.0), 0);
  manual_seed(3);
  Generator generator = default_generator(device());
  EXPECT_EQ(values_of(multinomial(p, 20, true, &generator)), drawn);
  EXPECT_EQ(multinomial(zeros({0, 3}), 2).shape(), (Shape{0, 2}));
  const auto refuses = [](const Tensor& x, std::int64_t samples, const char* text) {
    EXPECT_WEFT_ERROR(multinomial(x, samples), InvalidArgument, text);
  };
  const double infinity = std::numeric_limits<double>::infinity();
  refuses(p, 0, "[multinomial] num_samples: got 0, expected 1 or more");
  refuses(p, 3, "[multinomial] num_samples: got 3, expected at most 2 without replacement");
  refuses(make({1, -1}, {2}), 1,
          "[multinomial] probabilities: got -1, expected 0 or more, and finite");
  refuses(make({1, std::nan("")}, {2}), 1, "probabilities: got ");
  refuses(make({1, infinity}, {2}), 1, "probabilities: got inf");
  refuses(make({1, 1, 0, 0}, {2, 2}), 1, "probabilities: got none of 2 above 0 in a row");
  refuses(zeros({0}), 1, "num_samples: got 1, expected at most 0");
  EXPECT_WEFT_ERROR(multinomial(ones({2}, DType::i64), 1), Dtype, "[multinomial]");
  EXPECT_WEFT_ERROR(multinomial(ones({1, 1, 2}), 1), Shape,
                    "[multinomial] probabilities: got [1,1,2], expected [count] or [rows,count]");
}

// 1e-45 over a number above 2 is 0 in f32.
TEST_P(RandomTest, MultinomialNeverDrawsWhatHasNoProbability) {
  const Tensor p = from_vector(std::vector<float>{0, 1e-45F}, {2}, device());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(values_of(multinomial(p, 1))[0], 1);
}

TEST_P(RandomTest, ASeedRepeats) {
  for (DType dtype : testing::kFloating) {
    manual_seed(3);
    const Tensor a = rand({40}, dtype), b = randn({40}, dtype);
    manual_seed(3);
    EXPECT_EQ(values_of(rand({40}, dtype)), values_of(a));
    EXPECT_EQ(values_of(randn({40}, dtype)), values_of(b));
    EXPECT_NE(values_of(rand({40}, dtype)), values_of(a));
  }
}

TEST_P(RandomTest, TheLayoutDoesNotMatter) {
  const auto drawn = [](const Tensor& x, auto draw) {
    manual_seed(3);
    draw(x);
    return values_of(x);
  };
  const auto uniform = [](const Tensor& x) { raw::uniform_(x, -1, 1); };
  const auto normal = [](const Tensor& x) { raw::normal_(x); };
  const auto bernoulli = [](const Tensor& x) { raw::bernoulli_(x, 0.5); };
  const Tensor x = zeros({3, 4, 2});
  for (const Tensor& y : {reversed_layout(x), with_gaps(x)}) {
    EXPECT_EQ(drawn(y, uniform), drawn(x, uniform));
    EXPECT_EQ(drawn(y, normal), drawn(x, normal));
    EXPECT_EQ(drawn(y, bernoulli), drawn(x, bernoulli));
  }
}

TEST_P(RandomTest, Bf16IsTheRoundedF32Draw) {
  manual_seed(3);
  const Tensor want = raw::to(rand({33}), DType::bf16);
  manual_seed(3);
  EXPECT_EQ(values_of(rand({33}, DType::bf16)), values_of(want));
}

TEST_P(RandomTest, AGivenGeneratorIsUsed) {
  Generator a(5), b(5);
  manual_seed(1);
  const Tensor x = rand({20}, {}, &a);
  manual_seed(2);
  EXPECT_EQ(values_of(rand({20}, {}, &b)), values_of(x));
  EXPECT_EQ(values_of(randperm(20, DType::i32, &a)), values_of(randperm(20, DType::i64, &b)));
}

// PyTorch's order on the CPU is the default of every device.
TEST_P(RandomTest, AGpusGeneratorGivesAnOrderOfItsOwn) {
  if (device().is_cpu()) GTEST_SKIP() << "a GPU's generator";
  Generator& own = default_generator(device());
  const auto drawn = [&](std::int64_t n, DType dtype) {
    own.manual_seed(3);
    return values_of(randperm(n, {dtype, device()}, &own));
  };
  const std::vector<double> order = drawn(1000, DType::i64);
  std::vector<double> sorted = order, all(1000);
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
  EXPECT_NE(order, all);
  EXPECT_EQ(drawn(1000, DType::i32), order);
  EXPECT_NE(values_of(randperm(1000, {DType::i64, device()}, &own)), order);  // the next
  Generator cpu(3);
  EXPECT_NE(values_of(randperm(1000, {DType::i64, device()}, &cpu)), order);
  EXPECT_EQ(drawn(0, DType::i64).size(), 0u);
  EXPECT_EQ(drawn(1, DType::f32), std::vector<double>{0});
}

TEST_P(RandomTest, Moments) {
  manual_seed(11);
  const Tensor u = uniform({100000}, 2, 4, DType::f64), n = randn({100000}, DType::f64);
  EXPECT_NEAR(raw::mean(u).item<double>(), 3, 0.01);
  EXPECT_NEAR(raw::var(u).item<double>(), 1.0 / 3, 0.01);
  EXPECT_GE(raw::min(u).item<double>(), 2);
  EXPECT_LT(raw::max(u).item<double>(), 4);
  EXPECT_NEAR(raw::mean(n).item<double>(), 0, 0.02);
  EXPECT_NEAR(raw::var(n).item<double>(), 1, 0.02);
  EXPECT_NEAR(raw::mean(bernoulli({100000}, 0.3)).item<double>(), 0.3, 0.01);
}

TEST_P(RandomTest, BernoulliOfEveryDtype) {
  for (DType dtype : kAllDTypes) {
    EXPECT_TENSOR(bernoulli({3}, 1, dtype), ({3}), {1, 1, 1});
    EXPECT_TENSOR(bernoulli({3}, 0, dtype), ({3}), {0, 0, 0});
  }
}

TEST_P(RandomTest, Nothing) {
  EXPECT_EQ(rand({0, 3}).shape(), (Shape{0, 3}));
  EXPECT_EQ(randn({0}).numel(), 0);
  EXPECT_EQ(randperm(0).numel(), 0);
  EXPECT_TENSOR(randperm(1), ({1}), {0});
}

TEST_P(RandomTest, Errors) {
  EXPECT_WEFT_ERROR(raw::uniform_(ones({2}, DType::i64)), Dtype,
                    "[uniform_] needs a floating dtype");
  EXPECT_WEFT_ERROR(raw::uniform_(ones({2}), 2, 1), InvalidArgument, "[uniform_] needs from <= to");
  EXPECT_WEFT_ERROR(raw::normal_(ones({2}), 0, -1), InvalidArgument,
                    "[normal_] needs std >= 0, got -1");
  EXPECT_WEFT_ERROR(raw::normal_(ones({2}), 0, std::nan("")), InvalidArgument, "[normal_]");
  EXPECT_WEFT_ERROR(raw::bernoulli_(ones({2}), 1.5), InvalidArgument,
                    "[bernoulli_] needs a probability in [0, 1], got 1.5");
  EXPECT_WEFT_ERROR(rand({2}, DType::i64), Dtype, "[rand] needs a floating dtype");
  EXPECT_WEFT_ERROR(raw::uniform_(ones({2}), 0, 1e39), InvalidArgument,
                    "[uniform_] a tensor of f32 cannot hold 1e+39");
  EXPECT_WEFT_ERROR(randperm(-1), InvalidArgument, "[randperm] negative length -1");
  EXPECT_WEFT_ERROR(randperm(257, DType::u8), InvalidArgument,
                    "[randperm] a tensor of u8 cannot hold 256");
  EXPECT_WEFT_ERROR(randperm(std::int64_t{1} << 62), OutOfMemory, "");
}

}  // namespace
}  // namespace weft
