// Small models, and the steps of one process with which ranks are compared.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/conv.h"
#include "weft/nn/flatten.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/nn/pooling.h"
#include "weft/nn/sequential.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::testing {

/// A model whose weights follow from the seed alone, in any thread.
template <class Make>
auto seeded(std::uint64_t seed, const Make& make) {
  manual_seed(seed);
  return make();
}

/// [n, 6] -> [n, 3]
inline nn::Sequential mlp() { return {nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 3)}; }

/// [n, 1, 8, 8] -> [n, 3]
inline nn::Sequential cnn() {
  return {nn::Conv2d(1, 4, 3), nn::ReLU(),    nn::MaxPool2d(2),
          nn::Conv2d(4, 6, 2), nn::Flatten(), nn::Linear(24, 3)};
}

/// x [N,1,8,8] -> [N,4,2,2], and [N,4,4,4] and [N,2,8,8] for UNetUp
struct UNetDown : nn::Module<UNetDown> {
  nn::Conv2d conv1 = child("conv1", nn::Conv2d(1, 2, 3, {.padding = 1}));
  nn::Conv2d conv2 = child("conv2", nn::Conv2d(2, 4, 3, {.padding = 1}));
  nn::MaxPool2d pool = child("pool", nn::MaxPool2d(2));
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x) {
    const Tensor large = tanh(conv1(x)), small = tanh(conv2(pool(large)));
    return {pool(small), small, large};
  }
};
/// UNetDown's results, with the first one changed -> [N,1,8,8]
struct UNetUp : nn::Module<UNetUp> {
  nn::ConvTranspose2d up2 = child("up2", nn::ConvTranspose2d(4, 2, 2, {.stride = 2}));
  nn::ConvTranspose2d up1 = child("up1", nn::ConvTranspose2d(6, 2, 2, {.stride = 2}));
  nn::Conv2d conv = child("conv", nn::Conv2d(4, 1, 3, {.padding = 1}));
  Tensor forward(const Tensor& x, const Tensor& small, const Tensor& large) {
    const Tensor y = tanh(up1(cat({up2(x), small}, 1)));
    return conv(cat({y, large}, 1));
  }
};
/// x [N,1,8,8] -> [N,1,8,8], a small U-Net (Ronneberger et al. 2015)
struct UNet : nn::Module<UNet> {
  UNetDown down = child("down", UNetDown());
  nn::Sequential middle =
      child("middle", nn::Sequential{nn::Conv2d(4, 4, 3, {.padding = 1}), nn::Tanh()});
  UNetUp up = child("up", UNetUp());
  Tensor forward(const Tensor& x) {
    const auto [y, small, large] = down(x);
    return up(middle(y), small, large);
  }
};

/// Returns its input after a varying delay.
struct Delay : nn::Module<Delay> {
  explicit Delay(std::uint64_t seed) : generator(std::make_shared<Generator>(seed)) {}
  Tensor forward(const Tensor& x) {
    std::this_thread::sleep_for(std::chrono::microseconds(generator->random32() % 2000));
    return x * 1.0;
  }
  std::shared_ptr<Generator> generator;
};

struct LabelledBatch {
  Tensor x, label;

  /// The `index`-th of `count` equal parts.
  LabelledBatch shard(int index, int count) const {
    const std::int64_t n = x.shape(0) / count;
    return {raw::narrow(x, 0, index * n, n), raw::narrow(label, 0, index * n, n)};
  }
};

/// Numbers in [-1, 1) that depend on the step; labels 0 to 2.
inline LabelledBatch batch(int step, const Shape& shape, DType dtype) {
  Generator generator(1000 + static_cast<std::uint64_t>(step));
  LabelledBatch made{uniform(shape, -1, 1, dtype, &generator), zeros({shape[0]}, DType::i64)};
  for (std::int64_t i = 0; i < shape[0]; ++i) made.label.data<std::int64_t>()[i] = (i + step) % 3;
  return made;
}

/// `shape`, the shape of a batch of one, with n rows.
inline Shape batch_of(std::int64_t n, Shape shape) {
  shape[0] = n;
  return shape;
}

/// The loss of the examples: the squared error for an autoencoder, which must reproduce its input,
/// else the cross entropy.
template <class Model>
Tensor loss_of(Model& model, const LabelledBatch& batch) {
  if constexpr (requires { model(batch.x).first; }) {
    return nn::mse_loss(model(batch.x).first, batch.x);
  } else {
    return nn::cross_entropy(model(batch.x), batch.label);
  }
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(raw::contiguous(a).raw_data(), raw::contiguous(b).raw_data(),
                     static_cast<std::size_t>(a.numel()) * size_of(a.dtype())) == 0;
}

/// |a - b| / |b|, for any dtypes.
inline double relative_difference(const Tensor& a, const Tensor& b) {
  const Tensor expected = raw::to(b, DType::f64);
  return raw::norm(raw::sub(raw::to(a, DType::f64), expected)).item<double>() /
         (1e-300 + raw::norm(expected).item<double>());
}

/// One process: the mean of the shards' gradients, each divided before it is added, as on the
/// ranks.
template <class Model>
void backward_of_shards(Model& model, const LabelledBatch& whole, int shards) {
  const std::vector<Tensor> parameters = model.parameters();
  std::vector<Tensor> means;
  for (int shard = 0; shard < shards; ++shard) {
    const LabelledBatch part = whole.shard(shard, shards);
    model.zero_grad();
    loss_of(model, part).backward();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor grad = raw::mul_(raw::clone(parameters[i].grad()), 1.0 / shards);
      if (shard == 0) {
        means.push_back(grad);
      } else {
        raw::add_scaled_(means[i], 1, grad);
      }
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].set_grad(means[i]);
}

/// y = a x + b x + c x: the gradients of the weights are sums over x.
struct Lines : nn::Module<Lines> {
  nn::Parameter a = parameter("a", ones({2}));
  nn::Parameter b = parameter("b", ones({2}));
  nn::Parameter c = parameter("c", ones({2}));
  /// Uses the parameters named in `which`.
  Tensor forward(const Tensor& x, const std::string& which = "abc") {
    Tensor y = zeros({2});
    for (const char name : which) y = y + x * (name == 'a' ? a : name == 'b' ? b : c);
    return y;
  }
};

inline Tensor input(double value) { return full({2}, value); }

inline std::vector<float> grad_of(const Tensor& x) { return x.grad().to_vector<float>(); }

}  // namespace weft::testing
