// autograd::Autocast: the same dtypes as in PyTorch, gradients and training in f32.
#include "weft/autograd/autocast.h"

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/flatten.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/nn/autocast_goldens.h"

namespace weft {
namespace {

using autograd::Autocast;

class AutocastTest : public testing::DeviceParam {
 protected:
  /// Each of a test has other numbers.
  Tensor weight(const Shape& shape) {
    return randn(shape, Device(DeviceType::cpu), &generator_).to(device()).set_requires_grad();
  }
  DeviceType type() const { return device().type; }

 private:
  Generator generator_{5};
};

std::map<std::string, std::function<Tensor()>> operations(const Tensor& x, const Tensor& image) {
  const Tensor same = zeros({4, 8}), target = zeros({4}, DType::i64);
  const auto f32 = [](const Shape& shape) { return zeros(shape); };
  return {
#define X(value, name, ...) {#name, [=] { return name(x); }},
      WEFT_UNARY_OPS(X)
#undef X
          {"linear", [=] { return linear(x, f32({3, 8}), f32({3})); }},
      {"matmul", [=] { return matmul(x, f32({8, 3})); }},
      {"matmul_vectors", [=] { return matmul(x[0], f32({8})); }},
      {"dot", [=] { return dot(x[0], x[1]); }},
      {"conv2d", [=] { return conv2d(image, f32({4, 3, 3, 3}), f32({4})); }},
      {"conv_transpose2d", [=] { return conv_transpose2d(image, f32({3, 4, 3, 3}), f32({4})); }},
      {"softmax", [=] { return softmax(x, 1); }},
      {"log_softmax", [=] { return log_softmax(x, 1); }},
      {"cross_entropy", [=] { return cross_entropy(x, target); }},
      {"nll_loss", [=] { return nn::nll_loss(x, target); }},
      {"mse_loss", [=] { return mse_loss(x, same); }},
      {"bce_with_logits", [=] { return nn::bce_with_logits(x, same); }},
      {"l1_loss", [=] { return nn::l1_loss(x, same); }},
      {"smooth_l1_loss", [=] { return nn::smooth_l1_loss(x, same); }},
      {"batch_norm",
       [=] { return batch_norm(image, f32({3}), f32({3}), {f32({3}), f32({3}), {}}, {}); }},
      {"layer_norm", [=] { return layer_norm(x, {8}, f32({8}), f32({8})); }},
      {"cat", [=] { return cat({x, same}); }},
      {"stack", [=] { return stack({x, same}); }},
      {"where", [=] { return where(eq(same, 0), x, same); }},
      {"add", [=] { return x + same; }},
      {"add_alike", [=] { return x + x; }},
      {"mul_scalar", [=] { return x * 2; }},
      {"rdiv_scalar", [=] { return 1 / x; }},
      {"div_scalar", [=] { return x / 2; }},
      {"pow_scalar", [=] { return pow(x, 2.5); }},
      {"pow", [=] { return pow(x, x); }},
      {"maximum", [=] { return maximum(x, same); }},
      {"sum", [=] { return sum(x, {1}); }},
      {"mean", [=] { return mean(x, {1}); }},
      {"prod", [=] { return prod(x, {1}); }},
      {"norm", [=] { return norm(x); }},
      {"var", [=] { return var(x, {1}); }},
      {"max", [=] { return max(x, {1}); }},
      {"leaky_relu", [=] { return leaky_relu(x); }},
      {"elu", [=] { return elu(x); }},
      {"softplus", [=] { return softplus(x); }},
      {"clamp", [=] { return clamp(x, 0, 1); }},
      {"max_pool2d", [=] { return max_pool2d(image, {.kernel = {2, 2}, .stride = {2, 2}}); }},
      {"avg_pool2d", [=] { return avg_pool2d(image, {.kernel = {2, 2}, .stride = {2, 2}}); }},
      {"adaptive_avg_pool2d", [=] { return adaptive_avg_pool2d(image, {2, 2}); }},
      {"adaptive_max_pool2d", [=] { return adaptive_max_pool2d(image, {2, 2}); }},
      {"interpolate", [=] { return interpolate(image, {.size = {4}, .mode = "bilinear"}); }},
      {"group_norm", [=] { return group_norm(image, 3, f32({3}), f32({3})); }},
      {"conv1d", [=] { return conv1d(x.unsqueeze(0), f32({3, 4, 3}), f32({3})); }},
      {"normalize", [=] { return normalize(x); }},
      {"gather", [=] { return gather(x, 1, target.reshape({4, 1})); }},
      {"index_select", [=] { return index_select(x, 0, target); }},
      {"embedding", [=] { return embedding(target, x); }},
      {"attention",
       [=] {
         const Tensor keys = f32({1, 5, 8});
         return scaled_dot_product_attention(x.unsqueeze(0), keys, keys,
                                             {.attn_mask = f32({4, 5})});
       }},
      {"dropout", [=] { return dropout(x); }},
  };
}

TEST_P(AutocastTest, ResultsHavePyTorchsDtypes) {
  const Autocast autocast(type());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto ours = operations(ones({4, 8}, dtype), ones({2, 3, 8, 8}, dtype));
    for (const goldens::Autocast& golden : goldens::autocast) {
      SCOPED_TRACE(golden.op);
      ASSERT_TRUE(ours.count(golden.op));
      EXPECT_EQ(ours[golden.op]().dtype(),
                golden.result[static_cast<int>(type())][dtype == DType::bf16]);
      ours.erase(golden.op);
    }
    for (const auto& [op, f] : ours) {
      ADD_FAILURE() << op << " has no row in tests/nn/autocast_goldens.h. With PyTorch: name it in "
                    << "tests/nn/write_autocast_goldens.py and run python3 "
                    << "tests/nn/write_autocast_goldens.py > tests/nn/autocast_goldens.h. Without: "
                    << "write the row by hand";
    }
  }
}

TEST_P(AutocastTest, LeavesOtherDtypesAndDevicesAlone) {
  const Autocast autocast(type());
  EXPECT_EQ(matmul(ones({2, 2}, DType::f64), ones({2, 2}, DType::f64)).dtype(), DType::f64);
  EXPECT_EQ(sum(ones({2}, DType::i64)).dtype(), DType::i64);
  EXPECT_WEFT_ERROR(matmul(ones({2, 2}, DType::f64), ones({2, 2})), Dtype, "bf16");
  const Autocast off(type(), {.enabled = false});
  const DeviceType other = on_cpu() ? DeviceType::cuda : DeviceType::cpu;
  const Autocast elsewhere(other);
  EXPECT_EQ(matmul(ones({2, 2}), ones({2, 2})).dtype(), DType::f32);
}

TEST_P(AutocastTest, ScopesNest) {
  const auto product = [] { return matmul(ones({2, 2}), ones({2, 2})).dtype(); };
  EXPECT_EQ(product(), DType::f32);
  {
    const Autocast autocast(type());
    EXPECT_TRUE(autograd::is_autocast_enabled(type()));
    {
      const Autocast off(type(), {.enabled = false});
      EXPECT_FALSE(autograd::is_autocast_enabled(type()));
      EXPECT_EQ(product(), DType::f32);
      const Autocast on(type());
      EXPECT_EQ(product(), DType::bf16);
    }
    EXPECT_EQ(product(), DType::bf16);
  }
  EXPECT_EQ(product(), DType::f32);
  EXPECT_WEFT_ERROR(Autocast(type(), {.dtype = DType::f64}), InvalidArgument,
                    "[autocast] dtype: got f64, expected bf16");
}

TEST_P(AutocastTest, GradientsOfF32AreF32) {
  const Tensor w = weight({3, 8}), bias = weight({3}), kernel = weight({2, 1, 3, 3});
  const Tensor x = weight({4, 8}), scale = weight({2});
  Tensor loss;
  {
    const Autocast autocast(type());
    const Tensor image = conv2d(x.reshape({2, 1, 4, 4}), kernel);
    EXPECT_EQ(image.dtype(), DType::bf16);
    const Tensor normal = batch_norm(image, scale, {}, {});
    EXPECT_EQ(normal.dtype(), DType::bf16);
    loss = nn::mse_loss(linear(x, w, bias), zeros({4, 3})) + square(normal).sum();
    EXPECT_EQ(loss.dtype(), DType::f32);
  }
  loss.backward();
  for (const Tensor& leaf : {w, bias, kernel, x, scale}) {
    ASSERT_TRUE(leaf.grad().defined());
    EXPECT_EQ(leaf.grad().dtype(), DType::f32);
  }
}

// PyTorch's mixed batch norm also computes in f32, so only the rounding of the result differs.
TEST_P(AutocastTest, NormsOfBf16WithF32Weights) {
  const Tensor x = weight({4, 3, 5, 5}).detach().to(DType::bf16), w = weight({3}), b = weight({3});
  const Tensor mixed = batch_norm(x, w, b, {});
  const Tensor f32 = batch_norm(x.to(DType::f32), w, b, {});
  EXPECT_EQ(mixed.to_vector<float>(), f32.to(DType::bf16).to_vector<float>());
  const Tensor rows = weight({4, 3}).detach().to(DType::bf16);
  EXPECT_EQ(layer_norm(rows, {3}, w, b).to_vector<float>(),
            layer_norm(rows.to(DType::f32), {3}, w, b).to(DType::bf16).to_vector<float>());
}

// An addition and an activation in the same pass are rounded as separate operations are, forward
// and backward, with parameters in f32 and in bf16.
TEST_P(AutocastTest, BatchNormOfBf16InOnePass) {
  for (const DType part : {DType::f32, DType::bf16}) {
    const auto leaf = [&](const Shape& shape, DType dtype) {
      const Tensor x = weight(shape).detach().to(dtype);
      x.set_requires_grad(true);
      return x;
    };
    const Tensor x = leaf({4, 3, 5, 5}, DType::bf16), more = leaf({4, 3, 5, 5}, DType::bf16),
                 w = leaf({3}, part), b = leaf({3}, part);
    const Tensor grad = weight({4, 3, 5, 5}).detach().to(DType::bf16);
    const auto gradients_of = [&](const Tensor& y, const std::vector<Tensor>& inputs) {
      const Tensor outputs[] = {y}, grads[] = {grad};
      return autograd::grad(outputs, inputs, grads);
    };
    const auto gradients = [&](const Tensor& y) {
      EXPECT_EQ(y.dtype(), DType::bf16);
      std::vector<std::vector<float>> values{y.to_vector<float>()};
      for (const Tensor& g : gradients_of(y, {x, more, w, b})) {
        values.push_back(g.to_vector<float>());
      }
      return values;
    };
    for (const double slope : {0.0, 0.3}) {
      const RunningStats running{zeros({3}, part), ones({3}, part), {}},
          again{zeros({3}, part), ones({3}, part), {}};
      const auto fused =
          gradients(batch_norm(x, w, b, running, {}, {.add = more, .negative_slope = slope}));
      const Tensor v = batch_norm(x, w, b, again, {}) + more;
      EXPECT_EQ(fused, gradients(slope == 0 ? relu(v) : leaky_relu(v, slope)));
      EXPECT_EQ(running.mean.to_vector<float>(), again.mean.to_vector<float>());
      EXPECT_NE(running.var.to_vector<float>(), std::vector<float>(3, 1));
    }
    const Tensor y = batch_norm(x, w, b, {}, {}, {.add = more, .negative_slope = 0});
    EXPECT_EQ(gradients_of(y, {w})[0].dtype(), part);
    EXPECT_EQ(gradients_of(batch_norm(x.detach(), w, b, {}), {b})[0].dtype(), part);
  }
}

TEST_P(AutocastTest, WeightsAreConvertedOncePerScopeAndVersion) {
  const Tensor w = weight({3, 8});
  const auto converted = [&] {
    return autograd::autocast(autograd::CastPolicy::lower_precision, w);
  };
  Tensor first;
  {
    const Autocast autocast(type());
    first = converted();
    EXPECT_EQ(first.dtype(), DType::bf16);
    {
      const Autocast inner(type());
      EXPECT_TRUE(converted().same(first));
    }
    EXPECT_TRUE(converted().same(first));
    {
      const NoGrad no_grad;
      w.fill_(2);
    }
    const Tensor second = converted();
    EXPECT_FALSE(second.same(first));
    EXPECT_EQ(second.to_vector<float>(), std::vector<float>(24, 2));
    EXPECT_TRUE(converted().same(second));

    const NoGrad no_grad;
    EXPECT_FALSE(converted().same(second));
    EXPECT_FALSE(converted().requires_grad());
  }
  const Autocast autocast(type());
  EXPECT_FALSE(converted().same(first));
  const Autocast uncached(type(), {.cache_enabled = false});
  EXPECT_FALSE(converted().same(converted()));
}

TEST_P(AutocastTest, WeightsThatAModuleReplacesAreConvertedAnew) {
  nn::Linear layer(2, 2, false);
  const Tensor x = ones({1, 2});
  const Autocast autocast(type());
  layer(x);
  layer.to(DType::f64);
  {
    const NoGrad no_grad;
    layer.weight.fill_(3);
  }
  layer.to(DType::f32);
  EXPECT_EQ(layer(x).to_vector<float>(), std::vector<float>(2, 6));
}

/// How often memory was taken.
struct Taken final : MemoryObserver {
  void memory_changed(Device, MemoryOwner, std::int64_t in_use_bytes) noexcept override {
    times += std::exchange(before, in_use_bytes) < in_use_bytes;
  }
  int times = 0;
  std::int64_t before = 0;
};

// With the first weight of a step, those that the step before asked for after it.
TEST_P(AutocastTest, AStepConvertsItsWeightsTogether) {
  const Tensor a = weight({3, 8}), b = weight({5}), c = weight({2, 2});
  const Autocast autocast(type());
  int value = 0;
  const auto step = [&](const std::vector<Tensor>& used) {
    ++value;
    {
      const NoGrad no_grad;
      for (const Tensor& w : {a, b, c}) w.fill_(value);
    }
    std::vector<int> conversions;
    for (const Tensor& w : used) {
      Taken taken;
      Tensor y;
      {
        const Scoped<MemoryObserver*> observed(&ThreadState::memory, &taken);
        y = autograd::autocast(autograd::CastPolicy::lower_precision, w);
      }
      conversions.push_back(taken.times);
      EXPECT_EQ(y.to_vector<float>(), std::vector<float>(std::size_t(w.numel()), value));
      autograd::zero_grad(w);
      y.to(DType::f32).sum().backward();
      EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(std::size_t(w.numel()), 1));
    }
    return conversions;
  };
  using Each = std::vector<int>;
  EXPECT_EQ(step({a, b, c}), (Each{1, 1, 1}));
  EXPECT_EQ(step({a, b, c}), (Each{3, 0, 0}));
  EXPECT_EQ(step({a, c}), (Each{3, 0})) << "that of b is in vain";
  EXPECT_EQ(step({a, c}), (Each{2, 0}));
  EXPECT_EQ(step({a, b, c}), (Each{2, 1, 0}));
  EXPECT_EQ(step({a, b, c, a}), (Each{3, 0, 0, 0}));
  EXPECT_EQ(step({c, a, b}), (Each{1, 2, 0})) << "nothing has followed c yet";
  c.set_requires_grad(false);
  EXPECT_EQ(step({a, b}), (Each{2, 0})) << "c is no weight any more";
}

// What another thread uses may be written to meanwhile.
TEST_P(AutocastTest, WeightsOfAnotherThreadAreNotConvertedAlong) {
  const Tensor a = weight({3, 8}), b = weight({5});
  const Autocast autocast(type());
  const ThreadState state = thread_state();
  const auto conversions = [&](const Tensor& w) {
    Taken taken;
    const Scoped<MemoryObserver*> observed(&ThreadState::memory, &taken);
    autograd::autocast(autograd::CastPolicy::lower_precision, w);
    return taken.times;
  };
  const auto change = [&] {
    const NoGrad no_grad;
    for (const Tensor& w : {a, b}) w.fill_(2);
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(conversions(a), 1);
    std::thread([&] {
      const ThreadStateGuard guard(state);
      EXPECT_EQ(conversions(b), 1);
    }).join();
    change();
  }
}

TEST_P(AutocastTest, AWeightUsedTwiceGetsBothGradients) {
  const Tensor w = weight({3, 3}), x = ones({2, 3});
  const auto gradient = [&](bool cache_enabled) {
    autograd::zero_grad(w);
    Tensor y;
    {
      const Autocast autocast(type(), {.cache_enabled = cache_enabled});
      y = sum(matmul(matmul(x, w), w));
    }
    y.backward();
    return w.grad().to_vector<float>();
  };
  const auto cached = gradient(true), plain = gradient(false);
  // With the cache, the two gradients are added in bf16, as in PyTorch: an error of 2^-8 of the
  // sum.
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(cached[i], plain[i], 0x1p-7 * std::abs(plain[i]) + 0x1p-7);
  }
}

// The two gradients are added in bf16, where 1 + 2^-9 is 1: in a captured step as well as outside,
// though the scope began before the capture.
TEST_P(AutocastTest, AWeightUsedTwiceIsConvertedOnceInACapturedStep) {
  const Tensor w = weight({8, 8}), x = ones({1, 8}), small = full({1, 8}, 0x1p-9);
  const Autocast autocast(type());
  graph::Step step = graph::capture([&] {
    autograd::zero_grad(w);
    add(matmul(x, w).sum(), matmul(small, w).sum()).backward();
  });
  for (int i = 0; i < 4; ++i) {
    step();
    EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(64, 1)) << i;
  }
}

TEST_P(AutocastTest, BackwardRunsOutside) {
  const Tensor w = weight({3, 8});
  DType inside = DType::bf16;
  const Autocast autocast(type());
  const Tensor y = linear(ones({2, 8}), w).to(DType::f32);
  autograd::add_grad_hook(y, [&](const Tensor& grad) {
    inside = matmul(grad, ones({3, 1})).dtype();
    return Tensor();
  });
  y.sum().backward();
  EXPECT_EQ(inside, DType::f32);
  EXPECT_EQ(matmul(ones({2, 2}), ones({2, 2})).dtype(), DType::bf16);
}

TEST_P(AutocastTest, CheckpointRecomputesUnderTheSameSetting) {
  const Tensor w = weight({8, 8}), x = weight({4, 8});
  const auto gradients = [&](bool checkpointed) {
    for (const Tensor& leaf : {w, x}) autograd::zero_grad(leaf);
    std::vector<DType> dtypes;
    const auto block = [&](const Tensor& in) {
      const Tensor y = matmul(tanh(matmul(in, w)), w);
      dtypes.push_back(y.dtype());
      return y;
    };
    Tensor loss;
    {
      // With the cache, the weight's two gradients would be added in bf16 or, by the inner
      // backward, not.
      const Autocast autocast(type(), {.cache_enabled = false});
      loss = nn::mse_loss(checkpointed ? autograd::checkpoint(block, x) : block(x), zeros({4, 8}));
    }
    loss.backward();
    EXPECT_EQ(dtypes, std::vector<DType>(checkpointed ? 2 : 1, DType::bf16));
    auto values = w.grad().to_vector<float>();
    for (float v : x.grad().to_vector<float>()) values.push_back(v);
    return values;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

using Model = nn::Sequential;
Model conv_net() {
  return {nn::Conv2d(2, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Flatten(),
          nn::Linear(4 * 4 * 4, 5)};
}

TEST_P(AutocastTest, ClonesStayF32AndAreConvertedApart) {
  Model model = conv_net();
  model.to(device());
  const Autocast autocast(type());
  const Tensor x = ones({2, 2, 6, 6});
  const auto before = model(x).to_vector<float>();
  Model copy = nn::clone(model);
  for (const Tensor& p : copy.parameters()) {
    EXPECT_EQ(p.dtype(), DType::f32);
    const NoGrad no_grad;
    p.zero_();
  }
  EXPECT_EQ(copy(x).to_vector<float>(), std::vector<float>(10, 0));
  EXPECT_EQ(model(x).to_vector<float>(), before);
}

class AutocastTraining : public AutocastTest {
 protected:
  enum class Scope { inside, outside };

  std::vector<double> losses(bool enabled, bool captured = false, Scope scope = Scope::inside) {
    thread_state().deterministic = true;
    manual_seed(3);
    Model model = conv_net();
    model.to(device());
    optim::SGD sgd(model.parameters(), {.lr = 0.05, .momentum = 0.9});
    Generator data(11);
    const Tensor x = randn({8, 2, 6, 6}, Device(DeviceType::cpu), &data).to(device());
    const Tensor label = zeros({8}, DType::i64);
    for (int i = 0; i < 8; ++i) label.narrow(0, i, 1).fill_(i % 5);
    Tensor loss;
    const auto forward = [&] { loss = nn::cross_entropy(model(x), label); };
    const auto body = [&] {
      sgd.zero_grad();
      if (scope == Scope::outside) {
        forward();
      } else {
        const Autocast autocast(type(), {.enabled = enabled});
        forward();
      }
      loss.backward();
      sgd.step();
    };
    const Autocast outside(type(), {.enabled = enabled && scope == Scope::outside});
    graph::Step step = graph::capture(body);
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      captured ? step() : body();
      values.push_back(loss.item<double>());
    }
    return values;
  }
};

// Between the images and the first loss there are eight roundings of 2^-9: 2^-6 of a loss of about
// 2. The gradients of the 20 steps are as inexact, but the problem contracts.
TEST_P(AutocastTraining, LossesFollowF32) {
  const auto f32 = losses(false), bf16 = losses(true);
  EXPECT_NE(f32, bf16);
  EXPECT_NEAR(bf16[0], f32[0], 0x1p-5);
  for (std::size_t i = 0; i < f32.size(); ++i) EXPECT_NEAR(bf16[i], f32[i], 0x1p-4) << i;
  EXPECT_LT(bf16[19], 0.5 * bf16[0]);
}

TEST_P(AutocastTraining, CapturedStepsAreTheSame) {
  const auto plain = losses(true);
  EXPECT_EQ(losses(true, true), plain);
  EXPECT_EQ(losses(true, true, Scope::outside), plain);
}

// In which all weights of a step are converted at its begin.
TEST_P(AutocastTraining, AScopeAroundTheLoopIsTheSame) {
  EXPECT_EQ(losses(true, false, Scope::outside), losses(true));
}

// The outer scope remembers a conversion from the first run, before anything is recorded. Replays
// must not use it: they would compute with old weights.
TEST_P(AutocastTraining, ReplaysConvertTheWeightsAnew) {
  Model model = conv_net();
  model.to(device());
  const Tensor x = ones({8, 2, 6, 6});
  const Autocast outside(type());
  Tensor y;
  graph::Step step = graph::capture([&] { y = model(x); });
  step();  // not captured
  step();  // captured
  {
    const NoGrad no_grad;
    for (const Tensor& p : model.parameters()) p.mul_(0.5);
  }
  step();
  EXPECT_EQ(y.to_vector<float>(), model(x).to_vector<float>());
}

WEFT_FOR_EACH_DEVICE(AutocastTest);
WEFT_FOR_EACH_DEVICE(AutocastTraining);

}  // namespace
}  // namespace weft
