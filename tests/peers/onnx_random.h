// Random chains of operations for onnx_test.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/nn/module.h"
#include "weft/nn/pixel_shuffle.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::testing {

/// A module that runs one function after the other.
struct Chain : nn::Module<Chain> {
  std::vector<std::function<Tensor(const Tensor&)>> steps;
  std::string text;  ///< the names of the steps
  Tensor forward(Tensor x) const {
    for (const auto& step : steps) x = step(x);
    return x;
  }
};

/// Makes chains whose values stay finite and of moderate size. Dimension 0 is the batch.
class RandomChains {
 public:
  explicit RandomChains(unsigned seed) : random_(seed) {}

  /// An input [rows,..] for the next chain.
  Tensor input(int rows) {
    if (row_.empty()) row_ = {pick(1, 5), pick(3, 9), pick(3, 9)};
    Dims shape = row_;
    shape.insert(0, rows);
    return randn(shape);
  }

  Chain next(int length) {
    row_ = {};
    Chain chain;
    Tensor x = input(2);
    for (int tries = 0; static_cast<int>(chain.steps.size()) < length && tries < 200; ++tries) {
      const auto [name, step] = any(x);
      if (!step) continue;
      const Tensor y = step(x);
      const double largest = y.numel() == 0 ? NAN : raw::max(raw::abs(y)).item<double>();
      if (!(largest < 1e3 && largest > 1e-2) || y.numel() > 20'000 || y.dim() < 2 || y.dim() > 6)
        continue;
      if (y.shape(0) != 2) continue;
      chain.steps.push_back(step);
      chain.text += " " + name;
      x = y;
    }
    return chain;
  }

 private:
  using Step = std::function<Tensor(const Tensor&)>;
  using Named = std::pair<std::string, Step>;

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool coin() { return pick(0, 1) == 1; }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

  Named any(const Tensor& x) {
    switch (pick(0, 6)) {
      case 0: return unary();
      case 1: return with_constant(x);
      case 2: return reduction(x);
      case 3:
      case 4: return shape(x);
      default: return x.dim() == 4 ? image(x) : rows(x);
    }
  }

  Named unary() {
    using T = const Tensor&;
    const double a = real(-2, 2), b = real(0.1, 2);
    const std::vector<Named> all = {{"relu", [](T x) { return relu(x); }},
                                    {"gelu", [](T x) { return gelu(x); }},
                                    {"gelu_tanh", [](T x) { return gelu_tanh(x); }},
                                    {"silu", [](T x) { return silu(x); }},
                                    {"tanh", [](T x) { return tanh(x); }},
                                    {"sigmoid", [](T x) { return sigmoid(x); }},
                                    {"log_sigmoid", [](T x) { return log_sigmoid(x); }},
                                    {"leaky_relu", [=](T x) { return leaky_relu(x, b); }},
                                    {"elu", [=](T x) { return elu(x, b); }},
                                    {"softplus", [=](T x) { return softplus(x, b, 3); }},
                                    {"exp", [](T x) { return exp(clamp(x, -3, 3)); }},
                                    {"expm1", [](T x) { return expm1(clamp(x, {}, 2)); }},
                                    {"log", [](T x) { return log(abs(x) + 1); }},
                                    {"log1p", [](T x) { return log1p(abs(x)); }},
                                    {"sqrt", [](T x) { return sqrt(abs(x) + 0.1); }},
                                    {"rsqrt", [](T x) { return rsqrt(abs(x) + 0.5); }},
                                    {"reciprocal", [](T x) { return reciprocal(abs(x) + 1); }},
                                    {"square", [](T x) { return square(x); }},
                                    {"neg", [](T x) { return -x; }},
                                    {"erf", [](T x) { return erf(x); }},
                                    {"sin", [](T x) { return sin(x); }},
                                    {"cos", [](T x) { return cos(x); }},
                                    {"pow", [=](T x) { return pow(abs(x) + 0.1, b); }},
                                    {"clamp", [=](T x) { return clamp(x, -b, b); }},
                                    {"add_scalar", [=](T x) { return x + a; }},
                                    {"rsub_scalar", [=](T x) { return a - x; }},
                                    {"div_scalar", [=](T x) { return x / b; }},
                                    {"rdiv_scalar", [=](T x) { return a / (abs(x) + 1); }},
                                    {"in_place", [=](T x) {
                                       Tensor y = x * 1.5;
                                       y.add_(a), y.mul_(b), y.sub_(x, 0.5), y.tanh_();
                                       return y;
                                     }}};
    return all[static_cast<std::size_t>(pick(0, std::ssize(all) - 1))];
  }

  Named with_constant(const Tensor& x) {
    using T = const Tensor&;
    Dims shape = x.shape();
    shape[0] = 1;
    for (std::int64_t i = 1; i < shape.size(); ++i) {
      if (coin()) shape[i] = 1;
    }
    if (coin()) shape.erase(0);
    const Tensor c = randn(shape);
    const std::vector<Named> all = {
        {"add", [=](T y) { return y + c; }},
        {"sub", [=](T y) { return c - y; }},
        {"mul", [=](T y) { return y * c; }},
        {"div", [=](T y) { return y / (abs(c) + 0.5); }},
        {"maximum", [=](T y) { return maximum(y, c); }},
        {"minimum", [=](T y) { return minimum(c, y); }},
        {"where", [=](T y) { return where(raw::gt(c, 0.0), y, y * 0.5); }},
        {"masked_fill", [=](T y) { return masked_fill(y, raw::gt(c, 0.5), 0.25); }},
        {"add self", [=](T y) { return y + tanh(y) * c; }}};
    return all[static_cast<std::size_t>(pick(0, std::ssize(all) - 1))];
  }

  Named reduction(const Tensor& x) {
    using T = const Tensor&;
    const std::int64_t dim = pick(1, x.dim() - 1);
    const std::int64_t last = x.dim() > 2 ? pick(1, x.dim() - 1) : dim;
    Dims dims = {dim};
    if (last != dim) dims.push_back(last - (coin() ? x.dim() : 0));
    const bool keep = x.dim() - dims.size() < 2 || coin();
    const std::vector<Named> all = {
        {"sum", [=](T y) { return sum(y, dims, keep); }},
        {"mean", [=](T y) { return mean(y, dims, keep); }},
        {"max", [=](T y) { return max(y, dims, keep); }},
        {"min", [=](T y) { return min(y, dims, keep); }},
        {"prod", [=](T y) { return prod(tanh(y) + 1.5, dims, keep); }},
        {"var", [=](T y) { return var(y, dims, 1, keep); }},
        {"std", [=](T y) { return weft::std(y, dims, 0, keep) + 0.1; }},
        {"norm", [=](T y) { return norm(y, dims, keep); }},
        {"max of dim", [=](T y) { return max_of_dim(y, dim, true).values; }},
        {"logsumexp", [=](T y) { return log(sum(exp(clamp(y, -3, 3)), dims, keep)); }},
        {"softmax", [=](T y) { return softmax(y, dim); }},
        {"log_softmax", [=](T y) { return log_softmax(y, dim); }},
        {"cumsum", [=](T y) { return cumsum(y, dim); }},
        {"normalize", [=](T y) { return normalize(y, 2, dim); }}};
    const Named found = all[static_cast<std::size_t>(pick(0, std::ssize(all) - 1))];
    return x.shape()[dim] > 1 ? found : Named{};
  }

  Named shape(const Tensor& x) {
    using T = const Tensor&;
    const std::int64_t dim = pick(1, x.dim() - 1), n = x.shape()[dim], rank = x.dim();
    Dims order = {0};
    for (std::int64_t i = 1; i < rank; ++i) order.push_back(i);
    std::shuffle(order.begin() + 1, order.end(), random_);
    const std::int64_t start = pick(0, n - 1), end = pick(start + 1, n), step = pick(1, 2);
    const std::int64_t before = pick(0, 2), after = pick(0, 2);
    std::vector<std::int64_t> pads(static_cast<std::size_t>(2 * (rank - dim)), 0);
    pads[pads.size() - 2] = before, pads.back() = after;
    const Tensor index = randint(0, n, {pick(1, 4)});
    Dims rows = x.shape();
    rows[0] = -1;
    Dims joined = rows;
    joined[dim] *= joined[rank - 1];
    joined.erase(rank - 1);
    const std::vector<Named> all = {
        {"flatten", [=](T y) { return y.flatten(1) * 1.0; }},
        {"join",
         [=](T y) {
           return dim < rank - 1
                      ? y.transpose(dim + 1, -1).transpose(dim + 1, -1).reshape(y.shape())
                      : y.flatten(dim);
         }},
        {"permute", [=](T y) { return y.permute(order); }},
        {"batch last", [=](T y) { return tanh(y.transpose(0, dim)).transpose(0, dim); }},
        {"batch in",
         [=](T y) { return y.flatten(0, 1).sin().unflatten(0, {y.shape(0), y.shape(1)}); }},
        {"unsqueeze", [=](T y) { return y.unsqueeze(dim); }},
        {"squeeze", [=](T y) { return y.unsqueeze(-1).squeeze(-1); }},
        {"slice", [=](T y) { return y.slice(dim, start, end, step); }},
        {"slice from end", [=](T y) { return y.slice(dim, -end, n + 5); }},
        {"whole batch",
         [=](T y) { return y.narrow(0, 0, y.shape(0)).narrow(dim, start, end - start); }},
        {"select", [=](T y) { return y.select(dim, start - n); }},
        {"flip", [=](T y) { return flip(y, {dim, 0}); }},
        {"roll", [=](T y) { return roll(y, start + 1, dim); }},
        {"cat", [=](T y) { return cat({y, tanh(y), y.slice(dim, 0, start)}, dim); }},
        {"stack", [=](T y) { return stack({y, sigmoid(y)}, dim); }},
        {"expand",
         [=](T y) {
           Dims to = y.shape();
           to.insert(dim, 3);
           return y.unsqueeze(dim).expand(to);
         }},
        {"chunk",
         [=](T y) {
           const auto c = chunk(y, 2, dim);
           return cat({c.back(), c.front()}, dim);
         }},
        {"repeat",
         [=](T y) {
           Dims times = Dims::filled(rank, 1);
           times[dim] = 2;
           return repeat(y, times);
         }},
        {"pad", [=](T y) { return pad(y, pads, 0.5); }},
        {"reflect", [=](T y) { return n > 2 ? pad(y, pads, "reflect") : y; }},
        {"replicate", [=](T y) { return pad(y, pads, "replicate"); }},
        {"index_select", [=](T y) { return index_select(y, dim, index); }},
        {"tril", [=](T y) { return rank > 2 ? tril(y) : y; }},
        {"unbind", [=](T y) { return stack(unbind(y, dim), -1); }},
        {"clone", [=](T y) { return y.clone().to(DType::f64).tanh().to(DType::f32); }}};
    return all[static_cast<std::size_t>(pick(0, std::ssize(all) - 1))];
  }

  Named image(const Tensor& x) {
    using T = const Tensor&;
    const std::int64_t c = x.shape()[1], h = x.shape()[2], w = x.shape()[3];
    if (h < 2 || w < 2) return {};
    const auto pair = [&](std::int64_t low, std::int64_t high) {
      return std::array<std::int64_t, 2>{pick(low, high), pick(low, high)};
    };
    const std::int64_t groups = coin() ? c : 1, out = groups * pick(1, 3);
    const std::array<std::int64_t, 2> kernel = {pick(1, std::min<std::int64_t>(h, 3)),
                                                pick(1, std::min<std::int64_t>(w, 3))};
    const Conv2dParams conv{.stride = pair(1, 2), .padding = pair(0, 2), .groups = groups};
    Conv2dParams turned{.stride = {2, 2},
                        .padding = {kernel[0] / 2, kernel[1] / 2},
                        .dilation = pair(1, 2),
                        .groups = groups,
                        .output_padding = pair(0, 1)};
    const Tensor weight = randn({out, c / groups, kernel[0], kernel[1]}) * 0.5;
    const Tensor back = randn({c, out / groups, kernel[0], kernel[1]}) * 0.5;
    const Tensor bias = coin() ? randn({out}) : Tensor();
    const Pool2dParams pool{.kernel = kernel,
                            .stride = pair(1, 2),
                            .padding = {kernel[0] / 2, kernel[1] / 2},
                            .ceil_mode = coin()};
    const AvgPool2dParams average{.kernel = kernel,
                                  .stride = pool.stride,
                                  .padding = pool.padding,
                                  .count_include_pad = coin(),
                                  .divisor = coin() ? 0 : 3};
    const std::array<std::int64_t, 2> size = pair(1, 9),
                                      half = {std::max<std::int64_t>(h / 2, 1), 1};
    const bool even = h % half[0] == 0;
    const Tensor mean = randn({c}), var = rand({c}) + 0.5, gain = coin() ? randn({c}) : Tensor();
    const Tensor shift = gain.defined() ? randn({c}) : Tensor();
    const std::optional<double> slope = coin() ? std::optional(coin() ? 0.0 : 0.2) : std::nullopt;
    const double factor = real(0.6, 2.5);
    const std::vector<Named> all = {
        {"conv2d", [=](T y) { return conv2d(y, weight, bias, conv); }},
        {"conv_transpose2d", [=](T y) { return conv_transpose2d(y, back, bias, turned); }},
        {"max_pool2d", [=](T y) { return max_pool2d(y, pool); }},
        {"avg_pool2d", [=](T y) { return avg_pool2d(y, average); }},
        {"adaptive_avg_pool2d", [=](T y) { return adaptive_avg_pool2d(y, size); }},
        {"adaptive_max_pool2d", [=](T y) { return even ? adaptive_max_pool2d(y, half) : y; }},
        {"nearest",
         [=](T y) { return interpolate(y, {.size = {size[0], size[1]}, .mode = "nearest"}); }},
        {"nearest twice",
         [=](T y) { return interpolate(y, {.scale_factor = {2}, .mode = "nearest"}); }},
        {"bilinear",
         [=](T y) { return interpolate(y, {.size = {size[0], size[1]}, .mode = "bilinear"}); }},
        {"bilinear by",
         [=](T y) { return interpolate(y, {.scale_factor = {factor}, .mode = "bilinear"}); }},
        {"corners",
         [=](T y) {
           return interpolate(
               y, {.size = {size[0], size[1]}, .mode = "bilinear", .align_corners = true});
         }},
        {"batch_norm",
         [=](T y) {
           return batch_norm(y, gain, shift, {mean, var}, {.training = false},
                             {.add = coin_of(slope) ? y.sin() : Tensor(), .negative_slope = slope});
         }},
        {"group_norm", [=](T y) { return group_norm(y, groups, gain, shift); }},
        {"pixel_unshuffle",
         [=](T y) { return h % 2 == 0 && w % 2 == 0 ? nn::pixel_unshuffle(y, 2) : y; }},
        {"pixel_shuffle", [=](T y) { return c % 4 == 0 ? nn::pixel_shuffle(y, 2) : y; }}};
    return all[static_cast<std::size_t>(pick(0, std::ssize(all) - 1))];
  }
  static bool coin_of(const std::optional<double>& slope) { return slope.value_or(1) == 0; }

  Named rows(const Tensor& x) {
    using T = const Tensor&;
    const std::int64_t n = x.shape(-1), out = pick(1, 8), c = x.dim() > 2 ? x.shape()[1] : 1;
    const Tensor weight = randn({out, n}) * (1 / std::sqrt(static_cast<double>(n)));
    const Tensor bias = coin() ? randn({out}) : Tensor();
    const Tensor gain = coin() ? randn({n}) : Tensor(),
                 shift = gain.defined() ? randn({n}) : Tensor();
    const Tensor right = randn({n, out}), vector = randn({n});
    const Tensor kernel = randn({out, c, 3}) * 0.5;
    const bool causal = coin(), masked = coin() && !causal;
    const Tensor mask = x.dim() > 2 ? raw::gt(randn({x.shape(-2), x.shape(-2)}), 0.0) : Tensor();
    const Named linear_step{"linear", [=](T y) { return linear(y, weight, bias); }};
    const std::vector<Named> all = {
        linear_step,
        linear_step,
        {"layer_norm", [=](T y) { return layer_norm(y, {n}, gain, shift); }},
        {"matmul", [=](T y) { return matmul(y, right) * 0.5; }},
        {"matmul of a vector", [=](T y) { return y.dim() > 2 ? matmul(y, vector) : y; }},
        {"conv1d", [=](T y) { return y.dim() == 3 ? conv1d(y, kernel, bias, {.padding = 1}) : y; }},
        {"attention",
         [=](T y) {
           if (y.dim() < 3) return y;
           return scaled_dot_product_attention(
               y, tanh(y), y + 1, {.attn_mask = masked ? mask : Tensor(), .is_causal = causal});
         }},
        {"products",
         [=](T y) { return y.dim() > 2 ? matmul(y, tanh(y).transpose(-1, -2)) * 0.3 : y; }}};
    return all[static_cast<std::size_t>(pick(0, std::ssize(all) - 1))];
  }

  std::mt19937_64 random_;
  Dims row_;
};

}  // namespace weft::testing
