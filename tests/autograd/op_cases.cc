#include "weft/tests/autograd/op_cases.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>

#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft::testing {

namespace {

using Inputs = std::span<const Tensor>;
using One = std::function<Tensor(Inputs)>;
using Many = std::function<std::vector<Tensor>(Inputs)>;

struct Range {
  double low = -3;
  double high = 3;
};

class List {
 public:
  // All inputs are random f64 tensors of the given shapes.
  OpCase& add(const std::string& op, const std::vector<Shape>& shapes, One f, Range range = {}) {
    std::string variant;
    for (const Shape& shape : shapes) variant += to_string(shape);
    return add(op, variant, shapes, std::move(f), range);
  }
  OpCase& add(const std::string& op, const std::string& variant, const std::vector<Shape>& shapes,
              One f, Range range = {}) {
    return add_from(
        op, variant,
        [shapes, range] {
          std::vector<Tensor> inputs;
          for (const Shape& shape : shapes) {
            inputs.push_back(some(shape, DType::f64, range.low, range.high, 10 + inputs.size()));
          }
          return inputs;
        },
        std::move(f));
  }
  OpCase& add_from(const std::string& op, const std::string& variant,
                   std::function<std::vector<Tensor>()> inputs, One f) {
    return add_many(op, variant, std::move(inputs),
                    [f = std::move(f)](Inputs x) { return std::vector<Tensor>{f(x)}; });
  }
  OpCase& add_many(const std::string& op, const std::string& variant,
                   std::function<std::vector<Tensor>()> inputs, Many f) {
    cases.push_back({op, variant, std::move(inputs), std::move(f)});
    return cases.back();
  }

  std::vector<OpCase> cases;
};

Tensor random(const Shape& shape, std::uint64_t seed = 1) {
  return some(shape, DType::f64, -3, 3, seed);
}

// All elements differ by at least 0.1, in random order.
Tensor distinct(const Shape& shape) {
  const std::int64_t n = numel(shape);
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(0.1 * static_cast<double>(i * 37 % 101 - 50));
  return make(values, shape, DType::f64);
}

Tensor indices(const std::vector<double>& values, const Shape& shape) {
  return make(values, shape, DType::i64);
}

void add_elementwise(List& list) {
#define X(value, name, functor, integers, low, high)                                         \
  for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{1}, Shape{1, 3, 1}, Shape{0, 3}}) { \
    list.add(#name, {shape}, [](Inputs x) { return weft::name(x[0]); }, {low, high});        \
  }
  WEFT_UNARY_OPS(X)
#undef X
  list.add("relu", "of a temporary", {{2, 3}}, [](Inputs x) { return weft::relu(x[0] * 1.0); },
           {0.1, 3});
  list.add("relu", "negative", {{2, 3}}, [](Inputs x) { return weft::relu(x[0]); }, {-3, -0.1});
  list.add("abs", "negative", {{2, 3}}, [](Inputs x) { return weft::abs(x[0]); }, {-3, -0.1});

#define X(value, name, functor, integers, low, high)                                         \
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{2, 3}, {2, 3}},           \
                                                                 {{2, 3}, {3}},              \
                                                                 {{3}, {2, 3}},              \
                                                                 {{2, 1}, {1, 3}},           \
                                                                 {{}, {2, 2}},               \
                                                                 {{2}, {}},                  \
                                                                 {{}, {}},                   \
                                                                 {{1}, {1}},                 \
                                                                 {{0, 3}, {3}},              \
                                                                 {{0}, {0}}}) {              \
    list.add(#name, {a, b}, [](Inputs x) { return weft::name(x[0], x[1]); }, {low, high});   \
  }                                                                                          \
  list.add(#name, "with a number", {{2, 3}}, [](Inputs x) { return weft::name(x[0], 1.7); }, \
           {low, high});
  WEFT_BINARY_OPS(X)
#undef X
  list.add("add", "with itself", {{2, 2}}, [](Inputs x) { return add(x[0], x[0]); });
  list.add("mul", "with itself", {{2, 2}}, [](Inputs x) { return mul(x[0], x[0]); });
  list.add("pow", "square of a negative", {{3}}, [](Inputs x) { return pow(x[0], 2.0); }, {-3, -1});
  list.add("sub", "number first", {{2, 3}}, [](Inputs x) { return sub(1.5, x[0]); });
  list.add("div", "number first", {{2, 3}}, [](Inputs x) { return div(1.5, x[0]); }, {0.5, 3});
  list.add("div", "by a power of two", {{2, 3}}, [](Inputs x) { return div(x[0], 4.0); });
  for (const double slope : {0.0, 0.2, 1.5}) {
    const std::string variant = "slope " + std::to_string(slope);
    list.add("leaky_relu", variant, {{2, 3}}, [=](Inputs x) { return leaky_relu(x[0], slope); });
    list.add("leaky_relu", variant + " of a temporary", {{2, 3}},
             [=](Inputs x) { return leaky_relu(x[0] * 1.0, slope); });
  }
  list.add("leaky_relu", "empty", {{0, 3}}, [](Inputs x) { return leaky_relu(x[0]); });
  for (const double alpha : {1.0, 0.3, -0.5}) {
    list.add("elu", "alpha " + std::to_string(alpha), {{2, 3}},
             [=](Inputs x) { return elu(x[0], alpha); });
  }
  list.add("elu", "empty", {{0, 3}}, [](Inputs x) { return elu(x[0]); });
  list.add("softplus", "", {{2, 3}}, [](Inputs x) { return softplus(x[0]); });
  list.add("softplus", "steep", {{2, 3}}, [](Inputs x) { return softplus(x[0], 4, 20); });
  list.add("softplus", "beyond", {{3}}, [](Inputs x) { return softplus(x[0], 2, 1); }, {1, 3});
  list.add("softplus", "empty", {{0}}, [](Inputs x) { return softplus(x[0]); });
  list.add("smooth_l1", "inside", {{2, 3}}, [](Inputs x) { return smooth_l1(x[0], 3.5); });
  list.add("smooth_l1", "outside", {{2, 3}}, [](Inputs x) { return smooth_l1(x[0], 0.5); }, {1, 3});
  list.add("smooth_l1", "negative", {{}}, [](Inputs x) { return smooth_l1(x[0]); }, {-3, -1.5});
  list.add("smooth_l1", "beta 0", {{2, 3}}, [](Inputs x) { return smooth_l1(x[0], 0); }, {1, 3});
  list.add("clamp", "inside", {{2, 3}}, [](Inputs x) { return clamp(x[0], -4, 4); });
  list.add("clamp", "outside", {{2, 3}}, [](Inputs x) { return clamp(x[0], -0.5, 0.5); }, {1, 3});
  list.add("clamp", "empty", {{0}}, [](Inputs x) { return clamp(x[0], -0.5, 0.5); });

  for (const auto& [c, a, b] : std::vector<std::array<Shape, 3>>{{{{2, 3}, {2, 3}, {2, 3}}},
                                                                 {{{3}, {2, 1}, {}}},
                                                                 {{{2, 1}, {3}, {2, 3}}},
                                                                 {{{0}, {0}, {1}}}}) {
    list.add_from(
        "where", to_string(c) + to_string(a) + to_string(b),
        [c, a, b]() -> std::vector<Tensor> {
          return {make(some_values(numel(c), -1, 1), c, DType::f64), random(a, 2), random(b, 3)};
        },
        [](Inputs x) { return where(raw::gt(x[0].detach(), 0.0), x[1], x[2]); });
  }
}

void add_views(List& list) {
  const auto view = [&list](const char* op, const char* variant, const Shape& shape, auto f) {
    list.add(op, variant, {shape}, [f](Inputs x) { return f(x[0]); });
  };
  view("reshape", "matrix", {2, 6}, [](const Tensor& x) { return x.reshape({3, -1}); });
  view("reshape", "0-dim", {1}, [](const Tensor& x) { return x.reshape({}); });
  view("reshape", "empty", {0, 3}, [](const Tensor& x) { return x.reshape({3, 0}); });
  view("flatten", "all", {2, 3}, [](const Tensor& x) { return x.flatten(); });
  view("flatten", "some", {2, 3, 2}, [](const Tensor& x) { return x.flatten(1); });
  view("flatten", "0-dim", {}, [](const Tensor& x) { return x.flatten(); });
  view("unflatten", "", {2, 6}, [](const Tensor& x) { return x.unflatten(1, {2, 3}); });
  view("transpose", "", {2, 3, 2}, [](const Tensor& x) { return x.transpose(0, -1); });
  view("transpose", "t", {2, 3}, [](const Tensor& x) { return x.t(); });
  view("permute", "cycle", {2, 3, 1}, [](const Tensor& x) { return x.permute({2, 0, 1}); });
  view("permute", "negative", {2, 3, 4}, [](const Tensor& x) { return x.permute({-1, 0, 1}); });
  view("permute", "0-dim", {}, [](const Tensor& x) { return x.permute({}); });
  view("slice", "step", {5, 2}, [](const Tensor& x) { return x.slice(0, 1, 5, 2); });
  view("slice", "negative", {2, 5}, [](const Tensor& x) { return x.slice(-1, -4, -1); });
  view("slice", "clamped", {2, 3}, [](const Tensor& x) { return x.slice(1, 1, 100); });
  view("slice", "empty", {2, 3}, [](const Tensor& x) { return x.slice(1, 2, 2); });
  view("select", "", {2, 3}, [](const Tensor& x) { return x.select(1, 1); });
  view("select", "negative", {2, 3}, [](const Tensor& x) { return x.select(-1, -1); });
  view("select", "1-D", {3}, [](const Tensor& x) { return x[2]; });
  view("narrow", "", {2, 5}, [](const Tensor& x) { return x.narrow(1, 1, 3); });
  view("narrow", "negative", {2, 5}, [](const Tensor& x) { return x.narrow(1, -2, 2); });
  view("squeeze", "all", {1, 2, 1}, [](const Tensor& x) { return x.squeeze(); });
  view("squeeze", "one", {1, 2, 1}, [](const Tensor& x) { return x.squeeze(0); });
  view("squeeze", "nothing", {2}, [](const Tensor& x) { return x.squeeze(0); });
  view("unsqueeze", "", {2, 3}, [](const Tensor& x) { return x.unsqueeze(1); });
  view("unsqueeze", "0-dim", {}, [](const Tensor& x) { return x.unsqueeze(0); });
  view("expand", "", {2, 1}, [](const Tensor& x) { return x.expand({3, -1, 4}); });
  view("expand", "0-dim", {}, [](const Tensor& x) { return x.expand({2, 2}); });
  view("expand", "to nothing", {1, 3}, [](const Tensor& x) { return x.expand({0, 3}); });
  view("view", "", {2, 6}, [](const Tensor& x) { return x.view({2, 2, -1}); });
  view("view", "0-dim", {1}, [](const Tensor& x) { return x.view({}); });
  view("unfold", "overlapping", {7, 2}, [](const Tensor& x) { return x.unfold(0, 3, 2); });
  view("unfold", "long", {2, 7}, [](const Tensor& x) { return x.unfold(-1, 6, 1); });
  view("unfold", "apart", {2, 7, 2}, [](const Tensor& x) { return x.unfold(1, 2, 3); });
  view("unfold", "long of three", {2, 5, 3}, [](const Tensor& x) { return x.unfold(1, 4, 1); });
  view("unfold", "0-dim", {}, [](const Tensor& x) { return x.unfold(0, 1, 1); });
  view("unfold", "nothing", {2, 3}, [](const Tensor& x) { return x.unfold(1, 0, 2); });
  view("diagonal", "", {3, 4}, [](const Tensor& x) { return x.diagonal(); });
  view("diagonal", "below", {4, 3}, [](const Tensor& x) { return x.diagonal(-2); });
  view("diagonal", "of others", {3, 2, 4}, [](const Tensor& x) { return x.diagonal(1, -1, 0); });
  view("diagonal", "outside", {3, 2}, [](const Tensor& x) { return x.diagonal(5); });
  view("contiguous", "of a transpose", {2, 3}, [](const Tensor& x) { return x.t().contiguous(); });
  view("clone", "", {2, 3}, [](const Tensor& x) { return x.clone(); });
  view("clone", "empty", {0, 3}, [](const Tensor& x) { return x.clone(); });
  view("to", "dtype", {2, 3}, [](const Tensor& x) {
    // Finite differences through f32 would be too inexact; RuleTest tests the conversion.
    return x.to(x.dtype()).to(x.device());
  });

  const auto pieces = [&list](const char* op, const char* variant, const Shape& shape, auto f) {
    list.add_many(
        op, variant, [shape] { return std::vector<Tensor>{random(shape)}; },
        [f](Inputs x) { return f(x[0]); });
  };
  pieces("chunk", "uneven", {5, 2}, [](const Tensor& x) { return chunk(x, 2); });
  pieces("chunk", "one", {2, 2}, [](const Tensor& x) { return chunk(x, 1, -1); });
  pieces("split", "size", {2, 5}, [](const Tensor& x) { return split(x, 2, 1); });
  pieces("split", "sizes", {2, 5}, [](const Tensor& x) { return split(x, Dims{1, 0, 4}, 1); });
  pieces("split", "one used", {2, 4},
         [](const Tensor& x) { return std::vector<Tensor>{split(x, 2, 1)[1]}; });
  list.add("flip", {{2, 3, 4}}, [](Inputs x) { return x[0].flip({0, 2}); });
  list.add("cat", {{2, 3}, {1, 3}, {0, 3}}, [](Inputs x) { return cat(x, 0); });
  list.add("cat", "negative dim", {{2, 1}, {2, 2}}, [](Inputs x) { return cat(x, -1); });
  list.add("cat", "many", {{1}, {2}, {1}, {1}, {1}, {2}}, [](Inputs x) { return cat(x); });
  list.add("cat", "twice the same", {{2}}, [](Inputs x) { return cat({x[0], x[0]}); });
  list.add("stack", {{2, 3}, {2, 3}}, [](Inputs x) { return stack(x, 1); });
  list.add("stack", "0-dim", {{}, {}, {}, {}, {}}, [](Inputs x) { return stack(x); });
}

void add_reductions(List& list) {
  const auto reduce = [&list](const char* op, auto f, Range range = {}, bool of_nothing = true) {
    list.add(op, "all", {{2, 3}}, [f](Inputs x) { return f(x[0], Dims{}, false); }, range);
    list.add(op, "0-dim", {{}}, [f](Inputs x) { return f(x[0], Dims{}, false); }, range);
    list.add(op, "one", {{2, 3}}, [f](Inputs x) { return f(x[0], Dims{0}, false); }, range);
    list.add(op, "negative", {{2, 3}}, [f](Inputs x) { return f(x[0], Dims{-1}, true); }, range);
    list.add(op, "two", {{2, 3, 2}}, [f](Inputs x) { return f(x[0], Dims{2, 0}, false); }, range);
    list.add(op, "size 1", {{1, 2}}, [f](Inputs x) { return f(x[0], Dims{0}, false); }, range);
    list.add(op, "of none", {{0, 2}}, [f](Inputs x) { return f(x[0], Dims{1}, false); }, range);
    if (!of_nothing) return;
    list.add(op, "nothing", {{0, 2}}, [f](Inputs x) { return f(x[0], Dims{0}, false); }, range);
  };
  reduce("sum", [](auto&&... a) { return sum(a...); });
  reduce("mean", [](auto&&... a) { return mean(a...); });
  reduce("prod", [](auto&&... a) { return prod(a...); });
  reduce("norm", [](auto&&... a) { return norm(a...); }, {0.5, 3});
  // All elements differ by much, so the same one stays the maximum. No elements have no maximum.
  reduce("max", [](const Tensor& x, const Dims& d, bool k) { return max(x, d, k); }, {}, false);
  reduce("min", [](const Tensor& x, const Dims& d, bool k) { return min(x, d, k); }, {}, false);
  const auto zeros_in_product = [&list](const char* variant, std::vector<double> values) {
    list.add_from(
        "prod", variant,
        [values]() -> std::vector<Tensor> { return {make(values, {2, 3}, DType::f64)}; },
        [](Inputs x) { return prod(x[0], {1}); });
  };
  zeros_in_product("one zero", {2, 0, 3, 1, 2, 3});
  zeros_in_product("two zeros", {2, 0, 0, 1, 0, 3});
  for (const double correction : {0.0, 1.0}) {
    const std::string suffix = " correction " + std::to_string(static_cast<int>(correction));
    list.add("var", "all" + suffix, {{2, 3}},
             [correction](Inputs x) { return var(x[0], {}, correction); });
    list.add("var", "one" + suffix, {{2, 3}},
             [correction](Inputs x) { return var(x[0], {1}, correction, true); });
    list.add("var", "two" + suffix, {{2, 3, 2}},
             [correction](Inputs x) { return var(x[0], {0, -1}, correction); });
  }
  list.add("var", "size 1", {{1, 2}}, [](Inputs x) { return var(x[0], {0}, 0); });

  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{{{3, 4}, 1},
                                                                     {{3, 4}, 0},
                                                                     {{2, 3, 4}, -2},
                                                                     {{2, 3, 2, 2}, 1},
                                                                     {{2, 3, 2, 5}, -1},
                                                                     {{1, 7, 1}, 2},
                                                                     {{5}, 0},
                                                                     {{}, -1},
                                                                     {{3, 1}, 1},
                                                                     {{0, 3}, 1},
                                                                     {{3, 0}, 1}}) {
    const std::string variant = to_string(shape) + " dim " + std::to_string(dim);
    list.add("softmax", variant, {shape}, [d = dim](Inputs x) { return softmax(x[0], d); });
    list.add("log_softmax", variant, {shape}, [d = dim](Inputs x) { return log_softmax(x[0], d); });
  }
  list.add("index_select", "repeated", {{3, 2}},
           [](Inputs x) { return index_select(x[0], 0, indices({2, 0, 2, 2}, {4})); });
  list.add("index_select", "columns", {{2, 3}},
           [](Inputs x) { return index_select(x[0], -1, indices({1}, {1})); });
  list.add("index_select", "none", {{3, 2}},
           [](Inputs x) { return index_select(x[0], 0, indices({}, {0})); });
  list.add("gather", "", {{2, 3}},
           [](Inputs x) { return gather(x[0], 1, indices({0, 0, 2, 1}, {2, 2})); });
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{{{7}, 0},
                                                                     {{3, 4}, 0},
                                                                     {{2, 5, 3}, -2},
                                                                     {{2, 3, 4, 2}, 3},
                                                                     {{}, -1},
                                                                     {{3, 1}, 1},
                                                                     {{0, 3}, 1},
                                                                     {{3, 0}, 1}}) {
    const std::string variant = to_string(shape) + " dim " + std::to_string(dim);
    list.add("sort", variant, {shape}, [d = dim](Inputs x) { return sort(x[0], d).values; });
    list.add("sort", variant + " descending", {shape},
             [d = dim](Inputs x) { return sort(x[0], d, true).values; });
    if (shape != Shape{3, 0}) {  // has no medians
      list.add("median", variant, {shape}, [d = dim](Inputs x) { return median(x[0], d).values; });
    }
    list.add("cumsum", variant, {shape}, [d = dim](Inputs x) { return cumsum(x[0], d); });
    list.add("cumprod", variant, {shape}, [d = dim](Inputs x) { return cumprod(x[0], d); });
  }
  for (const auto& [variant, x] :
       std::map<std::string, std::vector<double>>{{"a zero", {2, 0, 3, -1}},
                                                  {"two zeros", {2, 0, 3, 0}},
                                                  {"zeros first", {0, 0, 3, 0.5}},
                                                  {"zeros alone", {0, 0, 0, 0}}}) {
    list.add_from(
        "cumprod", variant, [x = x] { return std::vector<Tensor>{make(x, {4, 1}, DType::f64)}; },
        [](Inputs in) { return cumprod(in[0].expand({4, 2}), 0); });
  }
  list.add("median", "kept", {{2, 5, 3}}, [](Inputs x) { return median(x[0], 1, true).values; });
  list.add("median", "of all", {{3, 4}}, [](Inputs x) { return median(x[0]); });
  list.add("median", "of a scalar", {{}}, [](Inputs x) { return median(x[0]); });
  list.add("topk", "largest", {{2, 5, 3}}, [](Inputs x) { return topk(x[0], 2, 1).values; });
  list.add("topk", "smallest", {{2, 5}}, [](Inputs x) { return topk(x[0], 3, -1, false).values; });
  list.add("topk", "none", {{2, 3}}, [](Inputs x) { return topk(x[0], 0).values; });
  list.add("topk", "scalar", {{}}, [](Inputs x) { return topk(x[0], 1).values; });
  list.add("embedding", "repeated", {{3, 2}},
           [](Inputs x) { return embedding(indices({2, 0, 2, 2, 1, 0}, {2, 3}), x[0]); });
  list.add("embedding", "none", {{3, 2}},
           [](Inputs x) { return embedding(indices({}, {0, 2}), x[0]); });
  list.add("embedding", "one", {{1, 1}},
           [](Inputs x) { return embedding(indices({0}, {}), x[0]); });
  list.add("embedding", "no features", {{3, 0}},
           [](Inputs x) { return embedding(indices({2, 0}, {2}), x[0]); });
  for (const auto& [shape, source, dim] : std::vector<std::tuple<Shape, Shape, int>>{
           {{3, 2}, {4, 2}, 0}, {{2, 3}, {2, 4}, -1}, {{3, 2}, {0, 2}, 0}, {{}, {}, 0}}) {
    const std::int64_t n = source.size() > 0 ? source[dim < 0 ? 1 : dim] : 1;
    list.add("index_add", {shape, source}, [d = dim, n](Inputs x) {
      const std::vector<double> four{2, 0, 2, 1};
      return index_add(x[0], d, indices(n == 4 ? four : std::vector<double>(n, 0), {n}), x[1]);
    });
  }
  list.add("scatter_add", {{2, 3}, {2, 2}},
           [](Inputs x) { return scatter_add(x[0], 1, indices({0, 0, 2, 1}, {2, 2}), x[1]); });
  list.add("scatter_add", {{3, 2}, {1, 2}},
           [](Inputs x) { return scatter_add(x[0], 0, indices({2, 0}, {1, 2}), x[1]); });
  list.add("scatter_add", {{}, {2}},
           [](Inputs x) { return scatter_add(x[0], 0, indices({0, 0}, {2}), x[1]); });
  list.add("scatter", {{2, 3}, {2, 2}},
           [](Inputs x) { return scatter(x[0], 1, indices({0, 1, 2, 1}, {2, 2}), x[1]); });
  list.add("scatter", {{}, {}}, [](Inputs x) { return scatter(x[0], 0, indices({0}, {}), x[1]); });
  list.add("scatter", "number", {{2, 3}},
           [](Inputs x) { return scatter(x[0], 1, indices({0, 0, 2, 1}, {2, 2}), 1.5); });
  list.add("gather", "rows", {{3, 2}},
           [](Inputs x) { return gather(x[0], 0, indices({2, 0}, {1, 2})); });
}

Shape joined(Shape outer, const Shape& inner) {
  for (const std::int64_t n : inner) outer.push_back(n);
  return outer;
}

void add_products(List& list) {
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{2, 3}, {3, 4}},
                                                                 {{1, 1}, {1, 1}},
                                                                 {{2, 2, 3}, {2, 3, 2}},
                                                                 {{2, 2, 3}, {3, 2}},
                                                                 {{2, 3}, {2, 3, 2}},
                                                                 {{1, 2, 3}, {2, 3, 1}},
                                                                 {{2, 1, 2, 3}, {2, 3, 1}},
                                                                 {{2, 0}, {0, 3}},
                                                                 {{0, 3}, {3, 2}},
                                                                 {{0, 2, 3}, {3, 2}},
                                                                 {{2, 3}, {3, 0}}}) {
    list.add("matmul", {a, b}, [](Inputs x) { return matmul(x[0], x[1]); });
  }
  for (const Shape& x : {Shape{4, 3}, Shape{2, 2, 3}, Shape{1, 3}, Shape{3}, Shape{0, 3}}) {
    list.add("linear", {x, {2, 3}, {2}}, [](Inputs t) { return linear(t[0], t[1], t[2]); });
    list.add("linear", {x, {2, 3}}, [](Inputs t) { return linear(t[0], t[1]); });
    list.add("linear", {x, {2, 3}, {2}},
             [](Inputs t) { return linear(t[0], t[1], t[2], Activation::relu); });
  }
  // Empty in any place: backward takes all that forward takes.
  const auto product = [&list](const Shape& a, const Shape& b) {
    list.add("matmul", {a, b}, [](Inputs x) { return matmul(x[0], x[1]); }, {-1, 1});
  };
  const std::pair<Shape, Shape> batches[] = {
      {{}, {}},   {{2}, {}},    {{0}, {}},     {{}, {0}},     {{2}, {2}},       {{1}, {0}},
      {{0}, {1}}, {{1, 1}, {}}, {{2, 1}, {3}}, {{2, 1}, {0}}, {{2, 0}, {1, 1}}, {{3}, {2, 1}}};
  for (const std::int64_t inner : {0, 1, 3}) {
    for (const std::int64_t n : {0, 2}) {
      for (const auto& [outer_a, outer_b] : batches) {
        for (const std::int64_t m : {0, 1, 2}) {
          product(joined(outer_a, {m, inner}), joined(outer_b, {inner, n}));
        }
      }
      if (inner == 1) continue;
      for (const Shape& outer :
           {Shape{}, Shape{0}, Shape{2}, Shape{4, 0}, Shape{0, 2}, Shape{4, 2}, Shape{1, 1}}) {
        const Shape x = joined(outer, {inner}), w{n, inner};
        list.add("linear", {x, w, {n}}, [](Inputs t) { return linear(t[0], t[1], t[2]); }, {-1, 1});
        list.add("linear", {x, w}, [](Inputs t) { return linear(t[0], t[1]); }, {-1, 1});
      }
    }
  }
}

void add_images(List& list) {
  struct Conv {
    const char* variant;
    Shape x, w;
    Conv2dParams params;
  };
  const Conv convs[] = {
      {"plain", {2, 2, 4, 5}, {3, 2, 3, 2}, {}},
      {"1x1", {1, 3, 2, 2}, {2, 3, 1, 1}, {}},
      {"one channel", {2, 1, 4, 4}, {8, 1, 3, 3}, {}},
      {"one pixel", {3, 4, 1, 1}, {2, 4, 1, 1}, {}},
      {"window of the image's size", {2, 3, 3, 4}, {2, 3, 3, 4}, {}},
      {"stride, padding", {1, 2, 5, 4}, {2, 2, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}}},
      {"dilation", {1, 1, 6, 5}, {2, 1, 2, 3}, {.padding = {0, 1}, .dilation = {2, 2}}},
      {"groups", {2, 4, 3, 3}, {4, 2, 2, 2}, {.groups = 2}},
      {"depthwise", {1, 3, 4, 4}, {3, 1, 3, 3}, {.padding = {1, 1}, .groups = 3}},
      {"empty batch", {0, 2, 4, 4}, {3, 2, 3, 3}, {}},
  };
  for (const Conv& c : convs) {
    list.add("conv2d", c.variant, {c.x, c.w, {c.w[0]}},
             [p = c.params](Inputs t) { return conv2d(t[0], t[1], t[2], p); });
    list.add("conv2d", std::string("relu, ") + c.variant, {c.x, c.w, {c.w[0]}},
             [p = c.params](Inputs t) { return conv2d(t[0], t[1], t[2], p, Activation::relu); });
  }
  list.add("conv2d", "no batch", {{2, 4, 3}, {3, 2, 2, 3}, {3}},
           [](Inputs t) { return conv2d(t[0], t[1], t[2]); });
  list.add("conv2d", "no bias", {{1, 2, 3, 3}, {2, 2, 2, 2}},
           [](Inputs t) { return conv2d(t[0], t[1]); });
  list.add("conv2d", "same, even kernel", {{2, 2, 3, 4}, {3, 2, 2, 4}, {3}},
           [](Inputs t) { return conv2d(t[0], t[1], t[2], "same"); });
  // Transposed: w is [C,K/groups,R,S].
  const Conv transposed[] = {
      {"plain", {2, 2, 3, 3}, {2, 3, 2, 3}, {}},
      {"to one channel", {2, 8, 2, 3}, {8, 1, 3, 3}, {}},
      {"stride, output_padding",
       {1, 2, 3, 2},
       {2, 1, 3, 3},
       {.stride = {2, 2}, .padding = {1, 0}, .output_padding = {1, 0}}},
      {"groups, dilation", {1, 4, 3, 3}, {4, 1, 2, 2}, {.dilation = {2, 1}, .groups = 2}},
      {"empty batch", {0, 2, 3, 3}, {2, 3, 2, 2}, {}},
  };
  for (const Conv& c : transposed) {
    const Shape bias{c.w[1] * c.params.groups};
    list.add("conv_transpose2d", c.variant, {c.x, c.w, bias},
             [p = c.params](Inputs t) { return conv_transpose2d(t[0], t[1], t[2], p); });
    list.add("conv_transpose2d", std::string("relu, ") + c.variant, {c.x, c.w, bias},
             [p = c.params](Inputs t) {
               return conv_transpose2d(t[0], t[1], t[2], p, Activation::relu);
             });
  }

  const auto pool = [&list](const char* variant, const Shape& shape, const Pool2dParams& params) {
    list.add_from(
        "max_pool2d", variant, [shape] { return std::vector<Tensor>{distinct(shape)}; },
        [params](Inputs x) { return max_pool2d(x[0], params); });
    list.add_from(
        "max_pool2d_with_indices", variant,
        [shape] { return std::vector<Tensor>{distinct(shape)}; },
        [params](Inputs x) { return max_pool2d_with_indices(x[0], params).values; });
  };
  pool("2x2", {2, 2, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}});
  pool("overlapping", {1, 1, 5, 4}, {.kernel = {3, 2}, .stride = {1, 1}, .padding = {1, 0}});
  pool("ceil", {1, 1, 5, 5}, {.kernel = {2, 2}, .stride = {2, 2}, .ceil_mode = true});
  pool("dilation", {1, 2, 5, 5}, {.kernel = {2, 2}, .stride = {1, 2}, .dilation = {2, 1}});
  pool("no batch", {2, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}});
  pool("empty batch", {0, 2, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}});

  const auto average = [&list](const char* variant, const Shape& shape,
                               const AvgPool2dParams& params) {
    list.add("avg_pool2d", variant, {shape},
             [params](Inputs x) { return avg_pool2d(x[0], params); });
  };
  average("2x2", {2, 2, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}});
  average("overlapping", {1, 2, 5, 4}, {.kernel = {3, 2}, .padding = {1, 1}});
  average("gaps", {1, 1, 5, 5}, {.kernel = {1, 2}, .stride = {2, 3}});
  average("ceil", {1, 2, 5, 6},
          {.kernel = {3, 3}, .stride = {2, 3}, .padding = {1, 1}, .ceil_mode = true});
  average("without padding", {1, 2, 4, 4},
          {.kernel = {3, 3}, .padding = {1, 1}, .count_include_pad = false});
  average("divisor", {1, 1, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}, .divisor = 3});
  average("no batch", {2, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}});
  average("empty batch", {0, 2, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}});
  for (const auto& [shape, size] :
       std::vector<std::pair<Shape, std::array<std::int64_t, 2>>>{{{2, 2, 4, 5}, {1, 1}},
                                                                  {{1, 2, 5, 7}, {3, 2}},
                                                                  {{1, 1, 2, 3}, {4, 3}},
                                                                  {{2, 4, 3}, {2, 2}},
                                                                  {{0, 1, 2, 3}, {1, 1}}}) {
    list.add_from(
        "adaptive_max_pool2d", to_string(shape),
        [shape = shape] { return std::vector<Tensor>{distinct(shape)}; },
        [size = size](Inputs x) { return adaptive_max_pool2d(x[0], size); });
    list.add_from(
        "adaptive_max_pool2d_with_indices", to_string(shape),
        [shape = shape] { return std::vector<Tensor>{distinct(shape)}; },
        [size = size](Inputs x) { return adaptive_max_pool2d_with_indices(x[0], size).values; });
    list.add("adaptive_avg_pool2d", to_string(shape), {shape},
             [size = size](Inputs x) { return adaptive_avg_pool2d(x[0], size); });
  }
}

void add_norms(List& list) {
  // Training updates no statistics here: finite differences call the operation many times.
  const BatchNormParams training, evaluation{.training = false};
  for (const Shape& shape : {Shape{3, 2, 2, 2}, Shape{2, 1, 3, 1}, Shape{4, 3, 1, 1},
                             Shape{0, 2, 3, 3}, Shape{4, 2}, Shape{2, 3, 2}}) {
    const Shape part{shape[1]};
    list.add("batch_norm", "training " + to_string(shape), {shape, part, part},
             [=](Inputs x) { return batch_norm(x[0], x[1], x[2], {}, training); });
    list.add("batch_norm", "training, plain " + to_string(shape), {shape},
             [=](Inputs x) { return batch_norm(x[0], {}, {}, {}, training); });
    const auto running = [=](const Tensor& x) {
      return RunningStats{random(part, 7).to(x.dtype()), some(part, x.dtype(), 0.5, 2, 8), {}};
    };
    list.add("batch_norm", "evaluation " + to_string(shape), {shape, part, part},
             [=](Inputs x) { return batch_norm(x[0], x[1], x[2], running(x[0]), evaluation); });
    for (const double slope : {0.0, 0.2}) {
      const std::string name = ", slope " + std::to_string(slope) + " " + to_string(shape);
      list.add("batch_norm", "training" + name, {shape, part, part}, [=](Inputs x) {
        return batch_norm(x[0], x[1], x[2], {}, training, {.add = {}, .negative_slope = slope});
      });
      list.add("batch_norm", "plain, addend" + name, {shape, shape}, [=](Inputs x) {
        return batch_norm(x[0], {}, {}, {}, training, {.add = x[1], .negative_slope = slope});
      });
      list.add("batch_norm", "evaluation, addend" + name, {shape, part, part, shape},
               [=](Inputs x) {
                 return batch_norm(x[0], x[1], x[2], running(x[0]), evaluation,
                                   {.add = x[3], .negative_slope = slope});
               });
    }
    list.add("batch_norm", "addend " + to_string(shape), {shape, part, part, shape},
             [=](Inputs x) { return batch_norm(x[0], x[1], x[2], {}, training, {.add = x[3]}); });
  }
  for (const auto& [x, part] : std::vector<std::pair<Shape, Shape>>{
           {{4, 5}, {5}}, {{2, 2, 3}, {2, 3}}, {{3}, {3}}, {{2, 1, 4}, {4}}, {{0, 3}, {3}}}) {
    const std::string name = to_string(x) + to_string(part);
    list.add("layer_norm", name, {x, part, part},
             [part = part](Inputs t) { return layer_norm(t[0], part, t[1], t[2]); });
    list.add("layer_norm", "plain " + name, {x},
             [part = part](Inputs t) { return layer_norm(t[0], part); });
  }
  for (const Shape& x : {Shape{2, 4, 3}, Shape{2, 4}, Shape{1, 6, 2, 2}, Shape{2, 2, 1},
                         Shape{0, 4, 2}, Shape{2, 0, 3}, Shape{2, 4, 0}}) {
    const Shape part{x[1]};
    list.add("group_norm", to_string(x), {x, part, part},
             [](Inputs t) { return group_norm(t[0], 2, t[1], t[2]); });
    list.add("group_norm", "plain " + to_string(x), {x},
             [](Inputs t) { return group_norm(t[0], 2); });
  }
}

void add_losses(List& list) {
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const std::string r = reduction == Reduction::none   ? "none"
                          : reduction == Reduction::mean ? "mean"
                                                         : "sum";
    const auto ce = [&](const std::string& variant, const Shape& logits, const Shape& target,
                        const std::vector<double>& classes, CrossEntropyParams params) {
      params.reduction = reduction;
      list.add("cross_entropy", r + " " + variant, {logits}, [=](Inputs x) {
        const Tensor labels = indices(classes, target);
        return cross_entropy(x[0], params.label_smoothing > 0 ? with_gaps(labels) : labels, params);
      });
    };
    ce("", {3, 4}, {3}, {1, 0, 3}, {});
    ce("size 1", {1, 1}, {1}, {0}, {});
    ce("ignored", {3, 4}, {3}, {1, -100, 3}, {});
    ce("own ignore_index", {3, 4}, {3}, {1, 2, 2}, {.ignore_index = 2});
    ce("smoothing", {3, 4}, {3}, {1, -100, 3}, {.label_smoothing = 0.1});
    ce("image", {2, 3, 2, 2}, {2, 2, 2}, {0, 1, 2, 0, 2, 1, -100, 0}, {});
    if (reduction != Reduction::mean) ce("empty", {0, 3}, {0}, {}, {});

    for (const Shape& shape : {Shape{2, 3}, Shape{2, 3, 4}, Shape{}, Shape{1}, Shape{0, 2}}) {
      if (numel(shape) == 0 && reduction == Reduction::mean) continue;  // 0 / 0
      list.add("mse_loss", r + " " + to_string(shape), {shape, shape},
               [=](Inputs x) { return mse_loss(x[0], x[1], reduction); });
    }
  }
}

Tensor seen() {
  return make({1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, {3, 5}, DType::boolean);
}

void add_composed(List& list) {
  for (const Shape& shape : {Shape{4, 3}, Shape{1, 3}, Shape{0, 3}}) {
    const auto one = [&](const char* op, auto f) {
      list.add(op, to_string(shape), {shape}, [f](Inputs x) { return f(x[0]); });
    };
    const auto truth = [] { return make({1, 0, 1}, {3}, DType::boolean); };
    one("std", [](const Tensor& x) { return x.std({1}); });
    one("logsumexp", [](const Tensor& x) { return x.logsumexp({1}); });
    one("masked_fill", [=](const Tensor& x) { return x.masked_fill(truth(), 2); });
    one("masked_select", [=](const Tensor& x) { return x.masked_select(truth()); });
    one("repeat", [](const Tensor& x) { return x.repeat({2, 2, 1}); });
    one("flip", [](const Tensor& x) { return x.flip({0, 1}); });
    one("roll", [](const Tensor& x) { return x.roll(2, 1); });
    one("tril", [](const Tensor& x) { return x.tril(); });
    one("triu", [](const Tensor& x) { return x.triu(1); });
    one("pad", [](const Tensor& x) { return pad(x, {1, -1, 2, 0}, 3); });
    one("max_of_dim", [](const Tensor& x) { return x.max(1).values; });
    one("min_of_dim", [](const Tensor& x) { return x.min(1, true).values; });
    one("clamp", [](const Tensor& x) { return x.clamp(0.1); });
    one("dot", [](const Tensor& x) { return dot(x.flatten(), x.flatten()); });
    one("matmul", [](const Tensor& x) { return matmul(x, x.sum({0})); });
  }

  const auto add = [&](const char* op, const char* variant,
                       const std::vector<std::vector<Shape>>& inputs, const One& f) {
    for (const std::vector<Shape>& shapes : inputs) {
      std::string name = variant;
      for (const Shape& shape : shapes) name += " " + to_string(shape);
      list.add(op, name, shapes, f, {-1, 1});
    }
  };
  const auto attend = [](Inputs in, const AttentionOptions& options) {
    return scaled_dot_product_attention(in[0], in[1], in[2], options);
  };
  const char* const attention = "scaled_dot_product_attention";
  add(attention, "plain",
      {{{2, 3, 4}, {2, 5, 4}, {2, 5, 2}}, {{1, 1}, {1, 1}, {1, 1}}, {{3, 2}, {0, 2}, {0, 1}}},
      [=](Inputs in) { return attend(in, {}); });
  add(attention, "causal", {{{2, 3, 4}, {2, 3, 4}, {2, 3, 1}}},
      [=](Inputs in) { return attend(in, {.is_causal = true}); });
  add(attention, "bool", {{{3, 4}, {5, 4}, {5, 2}}, {{2, 3, 4}, {2, 5, 4}, {2, 5, 2}}},
      [=](Inputs in) { return attend(in, {.attn_mask = seen()}); });
  add(attention, "added",
      {{{2, 3, 4}, {2, 5, 4}, {2, 5, 2}, {3, 5}}, {{3, 2}, {4, 2}, {4, 1}, {1, 4}}},
      [=](Inputs in) { return attend(in, {.attn_mask = in[3]}); });
  add(attention, "longer causal", {{{5, 2}, {3, 2}, {3, 2}}, {{3, 2}, {5, 2}, {5, 2}}},
      [=](Inputs in) { return attend(in, {.is_causal = true}); });
  add(attention, "broadcast", {{{2, 1, 3, 2}, {3, 4, 2}, {1, 1, 1, 4, 3}}},
      [=](Inputs in) { return attend(in, {.scale = -0.4}); });
  add(attention, "dropout", {{{2, 3, 4}, {2, 5, 4}, {2, 5, 2}}}, [=](Inputs in) {
    default_generator(in[0].device()).manual_seed(5);
    return attend(in, {.attn_mask = seen(), .dropout_p = 0.4});
  });
  add("attention_with_weights", "", {{{3, 4}, {5, 4}, {5, 2}}}, [](Inputs in) {
    const auto [y, weights] = attention_with_weights(in[0], in[1], in[2], {.attn_mask = seen()});
    return weights + y.sum();
  });
  for (const char* mode : {"nearest", "bilinear"}) {
    add("interpolate", mode, {{{2, 1, 3, 2}}, {{1, 1, 1, 1}}, {{0, 1, 2, 2}}}, [=](Inputs in) {
      return interpolate(in[0], {.size = {4, mode[0] == 'n' ? 3 : 1}, .mode = mode});
    });
  }
  add("interpolate", "linear", {{{2, 3, 4}}, {{1, 1, 1}}, {{0, 2, 3}}},
      [](Inputs in) { return interpolate(in[0], {.size = {5}, .mode = "linear"}); });
  add("normalize", "", {{{3, 4}}, {{1, 1}}, {{0, 2}}}, [](Inputs in) { return normalize(in[0]); });
  add("normalize", "1", {{{2, 3}}}, [](Inputs in) { return normalize(in[0], 1, 0); });
  add("normalize", "3", {{{2, 3}}}, [](Inputs in) { return normalize(in[0], 3, -1, 10); });
  add("conv1d", "",
      {{{2, 4, 5}, {4, 2, 3}, {4}},
       {{1, 4, 1}, {2, 2, 1}, {2}},
       {{4, 5}, {4, 2, 3}, {4}},
       {{0, 4, 5}, {4, 2, 3}, {4}}},
      [](Inputs in) { return conv1d(in[0], in[1], in[2], {.padding = 1, .groups = 2}); });
  add("conv1d", "same", {{{2, 2, 5}, {3, 2, 2}, {3}}, {{2, 5}, {3, 2, 3}, {3}}},
      [](Inputs in) { return conv1d(in[0], in[1], in[2], "same", {.dilation = 3}); });
  const UnfoldParams windows{
      .kernel = {2, 3}, .dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}};
  add("unfold", "windows", {{{2, 2, 4, 5}}, {{3, 3, 4}}, {{1, 1, 1, 3}}, {{0, 2, 4, 5}}},
      [=](Inputs in) { return unfold(in[0], windows); });
  add("unfold", "one pixel", {{{2, 1, 1, 1}}}, [](Inputs in) { return unfold(in[0], {}); });
  add("fold", "", {{{2, 12, 8}}, {{6, 8}}, {{0, 6, 8}}},
      [=](Inputs in) { return fold(in[0], {4, 5}, windows); });
  add("fold", "one pixel", {{{2, 1, 1}}}, [](Inputs in) { return fold(in[0], {1, 1}, {}); });
}

void add_further(List& list) {
  const auto one = [&list](const char* op, const std::string& variant, const Shape& shape, auto f) {
    list.add(op, variant, {shape}, [f](Inputs x) { return f(x[0]); }, {0.5, 3});
  };
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3}, {2, 3}}, {{2, 1}, {3}}, {{}, {2}}, {{0, 2}, {2}}}) {
    list.add("fmod", {a, b}, [](Inputs x) { return fmod(x[0] * 4, x[1]); }, {0.5, 3});
    list.add("addcmul", {a, a, b}, [](Inputs x) { return addcmul(x[0], x[1], x[2], -2); });
    list.add("addcdiv", {a, a, b}, [](Inputs x) { return addcdiv(x[0], x[1], x[2], 2); }, {1, 3});
  }
  one("fmod", "number", {2, 3}, [](const Tensor& x) { return fmod(x, -1.7); });
  for (const Shape& shape : {Shape{2, 3}, Shape{3}, Shape{0, 3}}) {
    list.add("masked_fill", {shape, {}}, [](Inputs x) {
      return masked_fill(x[0], make({1, 0, 1}, {3}, DType::boolean).to(x[0].device()), x[1]);
    });
  }
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3}, {2, 3}}, {{2, 1}, {3}}, {{}, {2}}, {{0, 2}, {2}}}) {
    list.add("clamp", {a, b, a}, [](Inputs x) { return clamp(x[0], x[1], x[2]); });
    list.add("clamp", {a, b, b}, [](Inputs x) { return clamp(x[0], x[1], x[2]); });
    list.add("clamp_min", {a, b}, [](Inputs x) { return clamp_min(x[0], x[1]); });
    list.add("clamp_max", {a, b}, [](Inputs x) { return clamp_max(x[0], x[1]); });
  }
  one("clamp_min", "", {2, 3}, [](const Tensor& x) { return clamp_min(x, 1.1); });
  one("clamp_max", "", {2, 3}, [](const Tensor& x) { return clamp_max(x, 1.1); });
  one("amax", "", {2, 3}, [](const Tensor& x) { return amax(x, 1); });
  one("amin", "", {2, 3}, [](const Tensor& x) { return amin(x); });
  for (const double p : {0.5, 1.0, 1.5, 3.0, -1.0, 0.0}) {
    const std::string variant = std::to_string(p);
    list.add("p_norm", variant, {{2, 3}}, [p](Inputs x) { return p_norm(x[0], p, 1); }, {0.5, 3});
    list.add("p_norm", variant + " of all", {{2, 3}}, [p](Inputs x) { return p_norm(x[0], p); },
             {-3, -0.5});
    list.add("p_norm", variant + " of one", {{}}, [p](Inputs x) { return p_norm(x[0], p); },
             {1, 3});
  }
  list.add("std_mean", "", {{2, 3}}, [](Inputs x) {
    const auto [std, mean] = std_mean(x[0], 1);
    return std * mean;
  });
  list.add("var_mean", "", {{2, 3}}, [](Inputs x) {
    const auto [var, mean] = var_mean(x[0], {}, 0, true);
    return var * mean;
  });
  list.add("outer", {{2}, {3}}, [](Inputs x) { return outer(x[0], x[1]); });
  list.add("outer", {{0}, {3}}, [](Inputs x) { return outer(x[0], x[1]); });
  list.add_many(
      "unbind", "", [] { return std::vector<Tensor>{random({2, 3})}; },
      [](Inputs x) { return unbind(x[0], 1); });
  for (const char* indexing : {"ij", "xy"}) {
    list.add("meshgrid", indexing, {{2}, {3}, {}}, [indexing](Inputs x) {
      const std::vector<Tensor> grids = meshgrid(x, indexing);
      return grids[0] * grids[1] + grids[2];
    });
  }
  // Each call draws the same mask.
  const auto drops = [&one](const char* op, const std::string& variant, const Shape& shape,
                            auto f) {
    one(op, variant, shape, [f](const Tensor& x) {
      default_generator(x.device()).manual_seed(5);
      return f(x);
    });
  };
  for (const Shape& shape : {Shape{4, 3}, Shape{}, Shape{0, 3}}) {
    drops("dropout", to_string(shape), shape, [](const Tensor& x) { return dropout(x, 0.4); });
  }
  drops("dropout", "part", {4, 3},
        [](const Tensor& x) { return dropout(x, 0.4, true, {.dim = 1, .index = 1, .count = 2}); });
  drops("dropout", "everything", {2, 3}, [](const Tensor& x) { return dropout(x, 1); });
  for (const Shape& shape : {Shape{2, 3, 2, 2}, Shape{3, 4, 2}, Shape{0, 2, 3}}) {
    drops("dropout2d", to_string(shape), shape, [](const Tensor& x) { return dropout2d(x, 0.4); });
  }
  for (const char* mode : {"reflect", "replicate", "circular"}) {
    one("pad", mode, {3, 4}, [mode](const Tensor& x) { return pad(x, {1, -1, 1, 1}, mode); });
  }
  one("diag", "matrix", {2, 3}, [](const Tensor& x) { return diag(x, 1); });
  one("diag", "vector", {3}, [](const Tensor& x) { return diag(x, -1); });
  one("diag", "nothing", {0}, [](const Tensor& x) { return diag(x); });
  one("repeat_interleave", "all", {2, 3}, [](const Tensor& x) { return repeat_interleave(x, 2); });
  one("repeat_interleave", "dim", {2, 3},
      [](const Tensor& x) { return repeat_interleave(x, 3, 0); });
  one("repeat_interleave", "none", {2, 3},
      [](const Tensor& x) { return repeat_interleave(x, 0, 1); });
  one("repeat_interleave", "each", {2, 3}, [](const Tensor& x) {
    return repeat_interleave(x, indices({2, 0, 1}, {3}).to(x.device()), 1);
  });
  const auto sums = [&list](const char* equation, const std::vector<Shape>& shapes) {
    list.add("einsum", equation, shapes, [equation](Inputs x) { return einsum(equation, x); },
             {-1, 1});
  };
  sums("ij,jk->ik", {{2, 3}, {3, 2}});
  sums("bij,bjk", {{2, 2, 3}, {2, 3, 2}});
  sums("ii->i", {{3, 3}});
  sums("ii", {{3, 3}});
  sums("i,j,k->kij", {{2}, {3}, {2}});
  sums("...i,...i->...", {{2, 3}, {1, 3}});
  sums("ij,ij,ij->j", {{2, 3}, {2, 3}, {2, 3}});
  sums("ij->", {{0, 3}});
  sums("aab,b->a", {{2, 2, 3}, {3}});
}

}  // namespace

std::vector<OpCase> op_cases() {
  List list;
  add_elementwise(list);
  add_views(list);
  add_reductions(list);
  add_products(list);
  add_images(list);
  add_norms(list);
  add_losses(list);
  add_composed(list);
  add_further(list);
  return std::move(list.cases);
}

const std::set<std::string>& non_differentiable() {
  static const std::set<std::string> names = {
#define X(value, name, ...) #name,
      WEFT_COMPARE_OPS(X)
#undef X
          "logical_not",
      "isnan",
      "isinf",
      "isfinite",
      "isclose",
      "all",
      "any",
      "argmax",
      "argmin",
      "argsort",
      "searchsorted",
      "unique",
      "bincount",
      "nonzero",
      "one_hot"};
  return names;
}

namespace {

std::set<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace

const std::set<std::string>& not_recorded() {
  static const std::set<std::string> names = words(
      // generic forms
      "unary binary compare reduce "
      // parts of rules
      "unary_backward binary_backward sum_to embedding_backward conv2d_backward_data "
      "conv2d_backward_weights conv2d_relu_backward linear_relu linear_backward_weights "
      "max_pool2d_backward "
      "avg_pool2d_backward batch_norm_backward "
      "layer_norm_backward group_norm_backward cross_entropy_backward softmax_backward "
      "scaled_dot_product_attention_backward mse_loss_backward moments length_of "
      "scaled_deviation matmul_where "
      // gradients of 0, which differences do not give; composed_test
      "normal "
      // checks, and a dtype
      "check_attention broadcast_pair result_type "
      // writes; inplace_test tests the methods
      "unary_ binary_ add_scaled_ add_from_afar_ mul_ add_ sub_ div_ clamp_ fill_ zero_ copy_ "
      "uniform_ normal_ "
      "bernoulli_ index_add_ scatter_add_ scatter_ "
      "flat_nonzero alias");
  return names;
}

}  // namespace weft::testing
