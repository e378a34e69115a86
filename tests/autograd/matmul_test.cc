// Matrix products of empty matrices: what forward accepts, backward does too.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::some;

Tensor leaf(const Shape& shape, std::uint64_t seed) {
  return some(shape, DType::f64, -1, 1, seed).set_requires_grad();
}

std::string text_of(std::span<const Tensor> inputs) {
  std::string text;
  for (const Tensor& x : inputs) {
    text += "[";
    for (const std::int64_t size : x.shape()) text += std::to_string(size) + ",";
    text += "]";
  }
  return text;
}

// Every input has a gradient of its shape, zero where no product reaches it; also from the expanded
// gradient of sum().
void check(const std::function<Tensor(std::span<const Tensor>)>& f,
           const std::vector<Tensor>& inputs) {
  SCOPED_TRACE(text_of(inputs));
  autograd::gradcheck(
      "product", [&](std::span<const Tensor> x) { return std::vector<Tensor>{f(x)}; }, inputs);
  f(inputs).sum().backward();
  const std::vector<double> y = testing::values_of(f(inputs));
  for (const Tensor& x : inputs) {
    ASSERT_TRUE(x.grad().defined());
    EXPECT_EQ(x.grad().shape(), x.shape());
    if (!y.empty()) continue;
    for (const double g : testing::values_of(x.grad())) EXPECT_EQ(g, 0);
  }
}

std::vector<Shape> shapes_with(const std::vector<Shape>& outer, const Shape& inner) {
  std::vector<Shape> shapes;
  for (Shape shape : outer) {
    for (const std::int64_t size : inner) shape.push_back(size);
    shapes.push_back(shape);
  }
  return shapes;
}

TEST(EmptyLinearTest, BackwardTakesWhatForwardTakes) {
  const std::vector<Shape> outer = {{}, {0}, {2}, {4, 0}, {0, 2}, {4, 2}, {1, 1}};
  for (const std::int64_t in : {0, 3}) {
    for (const std::int64_t out : {0, 2}) {
      for (const Shape& x : shapes_with(outer, {in})) {
        for (const bool biased : {false, true}) {
          std::vector<Tensor> inputs{leaf(x, 1), leaf({out, in}, 2)};
          if (biased) inputs.push_back(leaf({out}, 3));
          check(
              [](std::span<const Tensor> t) {
                return linear(t[0], t[1], t.size() > 2 ? t[2] : Tensor());
              },
              inputs);
        }
      }
    }
  }
}

TEST(EmptyMatmulTest, BackwardTakesWhatForwardTakes) {
  const std::vector<std::pair<Shape, Shape>> batches = {
      {{}, {}},   {{2}, {}},    {{0}, {}},     {{}, {0}},     {{2}, {2}},       {{1}, {0}},
      {{0}, {1}}, {{1, 1}, {}}, {{2, 1}, {3}}, {{2, 1}, {0}}, {{2, 0}, {1, 1}}, {{3}, {2, 1}},
  };
  for (const auto& [outer_a, outer_b] : batches) {
    for (const std::int64_t m : {0, 1, 2}) {
      for (const std::int64_t k : {0, 1, 3}) {
        for (const std::int64_t n : {0, 2}) {
          check([](std::span<const Tensor> t) { return matmul(t[0], t[1]); },
                {leaf(shapes_with({outer_a}, {m, k})[0], 1),
                 leaf(shapes_with({outer_b}, {k, n})[0], 2)});
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
