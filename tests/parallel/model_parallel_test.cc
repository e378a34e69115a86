// A model whose parts are on several devices: its optimiser, and errors for forgotten moves.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/worker.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/devices.h"

namespace weft {
namespace {

using Values = std::vector<std::vector<double>>;

class ModelParallel : public testing::DevicesTest {
 protected:
  // Six parameters, distributed over the devices in turn.
  static std::vector<Tensor> spread(const std::vector<Device>& over) {
    std::vector<Tensor> params;
    for (int i = 0; i < 6; ++i) {
      const Tensor values =
          raw::add(raw::mul(arange(0, 12, 1, {DType::f64, Device()}), 0.25), i - 3);
      const Device device = over[static_cast<std::size_t>(i) % over.size()];
      params.push_back(raw::to(raw::reshape(values, {3, 4}), device).set_requires_grad());
    }
    return params;
  }
  static void set_grads(const std::vector<Tensor>& params, int step) {
    for (const Tensor& p : params) p.set_grad(raw::add(raw::mul(p, (step + 1) / 4.0), 0.1));
  }
  static Values values_of(const std::vector<Tensor>& tensors) {
    Values values;
    for (const Tensor& x : tensors) values.push_back(x.to_vector<double>());
    return values;
  }
};
WEFT_ON_DEVICES(ModelParallel);

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>& params)>;

template <class Optimizer, class Options>
MakeOptimizer maker(const Options& options) {
  return [options](const auto& params) { return std::make_unique<Optimizer>(params, options); };
}

const std::map<std::string, MakeOptimizer>& optimizers() {
  static const auto& all = *new std::map<std::string, MakeOptimizer>{
      {"SGD", maker<optim::SGD>(optim::SGDOptions{.lr = 0.1})},
      {"momentum", maker<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9})},
      {"Adam", maker<optim::Adam>(optim::AdamOptions{.lr = 0.1})},
      {"AdamW", maker<optim::AdamW>(optim::AdamWOptions{.lr = 0.1})},
      {"Adadelta", maker<optim::Adadelta>(optim::AdadeltaOptions{.lr = 0.1})},
      {"RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions{.lr = 0.1})}};
  return all;
}

TEST_P(ModelParallel, OneStepUpdatesTheParametersOfAllDevices) {
  for (const auto& [name, make] : optimizers()) {
    const std::vector<Tensor> alone = spread(devices(1)), parts = spread(devices(count()));
    const auto expected = make(alone), optimizer = make(parts);
    for (int step = 0; step < 4; ++step) {
      set_grads(alone, step);
      set_grads(parts, step);
      expected->step();
      optimizer->step();
    }
    EXPECT_EQ(values_of(parts), values_of(alone)) << name;
  }
}

TEST_P(ModelParallel, StateLiesWithItsParametersAlsoWhenLoaded) {
  for (const auto& [name, make] : optimizers()) {
    const std::vector<Tensor> alone = spread(devices(1)), parts = spread(devices(count()));
    const auto expected = make(alone), before = make(parts);
    set_grads(alone, 0);
    set_grads(parts, 0);
    expected->step();
    before->step();
    // From the state of the parts, and from that of a model on one device.
    for (const auto* from : {before.get(), expected.get()}) {
      const std::vector<Tensor> again = spread(devices(count()));
      for (std::size_t i = 0; i < again.size(); ++i) raw::copy_(again[i], parts[i]);
      const auto after = make(again);
      after->load_state_dict(from->state_dict());
      for (const auto& [key, value] : after->state_dict()) {
        if (!key.starts_with("state.") || key.ends_with(".step")) continue;
        EXPECT_EQ(value.device(), again[static_cast<std::size_t>(key[6] - '0')].device()) << key;
      }
      set_grads(again, 1);
      after->step();
      const std::vector<Tensor> one = spread(devices(1));
      for (std::size_t i = 0; i < one.size(); ++i) raw::copy_(one[i], alone[i]);
      const auto rest = make(one);
      rest->load_state_dict(expected->state_dict());
      set_grads(one, 1);
      rest->step();
      EXPECT_EQ(values_of(again), values_of(one)) << name;
    }
  }
}

// Runs `in_update` instead of a kernel.
class Watched final : public optim::Optimizer {
 public:
  Watched(const std::vector<Tensor>& params, std::function<void(Device)> in_update)
      : in_update_(std::move(in_update)) {
    add_group(params, 0.1);
  }

 private:
  void update(const Stream& stream, DType, std::size_t, const double*, const std::int64_t*,
              std::span<const OptimSlot>) override {
    in_update_(stream.device);
  }
  std::function<void(Device)> in_update_;
};

TEST_P(ModelParallel, EachDevicesWorkerUpdatesWhatIsItsOwnAllAtOnce) {
  const std::vector<Tensor> parts = spread(devices(count()));
  set_grads(parts, 0);
  std::atomic<int> inside{0};
  std::atomic<bool> own = true;
  Watched optimizer(parts, [&](Device device) {
    const Device* const worker = worker_device();
    if (!worker || !(*worker == device)) own = false;
    ++inside;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (inside < count() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  optimizer.step();
  EXPECT_TRUE(own);
  EXPECT_EQ(inside, count());
}

TEST_P(ModelParallel, OneDeviceIsUpdatedByTheCaller) {
  const std::vector<Tensor> alone = spread(devices(1));
  set_grads(alone, 0);
  std::thread::id thread;
  Watched optimizer(alone, [&](Device) { thread = std::this_thread::get_id(); });
  optimizer.step();
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST_P(ModelParallel, TheErrorOfADeviceReachesTheCallerOnceTheOthersAreDone) {
  const std::vector<Tensor> parts = spread(devices(count()));
  set_grads(parts, 0);
  const Device failing = devices(2)[1];
  std::atomic<int> updated{0};
  bool fails = true;
  Watched optimizer(parts, [&](Device device) {
    if (fails && device == failing) WEFT_THROW(Cuda, "test", device, " is gone");
    ++updated;
  });
  EXPECT_WEFT_ERROR(optimizer.step(), Cuda, to_string(failing) + " is gone");
  EXPECT_EQ(updated, count() - 1);
  fails = false;
  optimizer.step();
  EXPECT_EQ(updated, 2 * count() - 1);
}

TEST_P(ModelParallel, WithoutMemoryForAStateNothingIsUpdated) {
  const std::vector<Tensor> parts = spread(devices(count()));
  set_grads(parts, 0);
  optim::Adam adam(parts, {.lr = 0.1});
  const Values before = values_of(parts);
  {
    const FailAllocation fail(devices(2)[1], 1);
    EXPECT_WEFT_ERROR(adam.step(), OutOfMemory, to_string(devices(2)[1]) + " is out of memory");
  }
  EXPECT_EQ(values_of(parts), before);
  EXPECT_EQ(adam.state_dict().size(), 2U) << "the learning rate and beta1";
  adam.step();
  EXPECT_NE(values_of(parts), before);
}

TEST_P(ModelParallel, AStepOverSeveralDevicesCannotBeCaptured) {
  const std::vector<Tensor> parts = spread(devices(count()));
  set_grads(parts, 0);
  optim::Adam adam(parts, {.lr = 0.1});
  graph::Step step = graph::capture(first(), [&] { adam.step(); });
  step();
  EXPECT_WEFT_ERROR(step(), Unsupported, to_string(devices(2)[1]));
}

TEST_P(ModelParallel, ClippingSpansDevicesAndDtypes) {
  const auto leaf = [](double value, DType dtype, Device device) {
    const Tensor x = zeros({2, 2}, {dtype, device}).set_requires_grad();
    x.set_grad(full({2, 2}, value, {dtype, device}));
    return x;
  };
  // 4 (9 + 4 + 1 + 2) = 64
  const Device a = devices(2)[0], b = devices(2)[1];
  const std::vector<Tensor> params = {leaf(3, DType::f64, b), leaf(-2, DType::f32, a),
                                      leaf(1, DType::f32, b), leaf(1, DType::f64, a),
                                      leaf(1, DType::f64, b)};
  const Tensor norm = optim::clip_grad_norm(params, 100);
  EXPECT_EQ(norm.device(), b) << "the first gradient's";
  EXPECT_EQ(norm.item<double>(), 8);
  EXPECT_EQ(params[0].grad().to_vector<double>(), std::vector<double>(4, 3)) << "short enough";
  EXPECT_EQ(optim::clip_grad_norm(params, 4).item<double>(), 8);
  const double factor = 4 / (8 + 1e-6);
  const double expected[] = {3, -2, 1, 1, 1};
  for (std::size_t i = 0; i < params.size(); ++i) {
    EXPECT_EQ(params[i].grad().device(), params[i].device());
    const double accuracy = params[i].dtype() == DType::f64 ? 1e-15 : 1e-7;
    for (const double value : params[i].grad().to_vector<double>()) {
      EXPECT_NEAR(value, expected[i] * factor, accuracy) << i;
    }
  }
}

TEST_P(ModelParallel, ClippingSeveralDevicesIsClippingOne) {
  const std::vector<Tensor> alone = spread(devices(1)), parts = spread(devices(count()));
  set_grads(alone, 0);
  set_grads(parts, 0);
  const double expected = optim::clip_grad_norm(alone, 0.5).item<double>();
  EXPECT_NEAR(optim::clip_grad_norm(parts, 0.5).item<double>(), expected, 1e-12);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto x = parts[i].grad().to_vector<double>(), y = alone[i].grad().to_vector<double>();
    for (std::size_t k = 0; k < x.size(); ++k) EXPECT_NEAR(x[k], y[k], 1e-12);
  }
}

TEST_P(ModelParallel, AModelMovedAwayFromItsOptimizersStateIsRefused) {
  nn::Linear layer(4, 3);
  layer.to(devices(2)[0]);
  optim::Adam adam(layer.parameters(), {.lr = 0.1});
  const auto backward = [&] {
    layer(ones({2, 4}, {DType::f32, layer.weight.device()})).sum().backward();
  };
  backward();
  adam.step();
  layer.to(devices(2)[1]);
  const std::string here = to_string(devices(2)[1]), there = to_string(devices(2)[0]);
  EXPECT_WEFT_ERROR(adam.step(), Device,
                    "[optimizer] parameter 0 [3,4] is on " + here + ", its state on " + there +
                        "; move the model before the first step, or the state after it with "
                        "load_state_dict(state_dict())");
  adam.load_state_dict(adam.state_dict());
  adam.step();
  EXPECT_WEFT_ERROR(
      layer.weight.set_grad(ones({3, 4}, {DType::f32, devices(2)[0]})), Device,
      "is on " + there + ", the tensor on " + here + "; move it there with to(device)");
}

// Its last part is on another device than the first, and forward does not move the data.
struct Forgetful : nn::Module<Forgetful> {
  struct Tail : nn::Module<Tail> {
    nn::Conv2d conv = child("conv", nn::Conv2d(1, 1, 3));
    nn::BatchNorm2d norm = child("norm", nn::BatchNorm2d(1));
    nn::Linear fc = child("fc", nn::Linear(4, 2));
    std::function<Tensor(Tail&, const Tensor&)> run;
    Tensor forward(const Tensor& x) { return run(*this, x); }
  };
  Tail tail = child("tail", Tail());
  Tensor forward(const Tensor& x) { return tail(x); }
};

TEST_P(ModelParallel, AForgottenMoveNamesBothTensorsTheModuleAndTheRemedy) {
  const Device here = devices(2)[0], there = devices(2)[1];
  const TensorOptions on_here(DType::f32, here);
  Forgetful model;
  model.tail.to(there);
  const auto expect = [&](const char* op, const std::string& a, const std::string& b,
                          const std::string& path, const Tensor& x,
                          const std::function<Tensor(Forgetful::Tail&, const Tensor&)>& run) {
    model.tail.run = run;
    EXPECT_WEFT_ERROR(model(x), Device,
                      "[" + std::string(op) + "] operands on different devices: " + a + ", " + b +
                          "; move one with to(device) in " + path + " at ");
  };
  const auto on = [](const std::string& name, Device device) {
    return name + " on " + to_string(device);
  };
  const Tensor image = ones({2, 1, 4, 4}, on_here), row = ones({2, 4}, on_here);
  const Tensor other = ones({2, 4}, {DType::f32, there});
  expect("linear", on("x", here), on("w", there), "tail.fc", row,
         [](auto& tail, const Tensor& x) { return tail.fc(x); });
  expect("conv2d", on("x", here), on("w", there), "tail.conv", image,
         [](auto& tail, const Tensor& x) { return tail.conv(x); });
  expect("batch_norm", on("x", here), on("weight", there), "tail.norm", image,
         [](auto& tail, const Tensor& x) { return tail.norm(x); });
  expect("add", on("a", here), on("b", there), "tail", row,
         [&](auto&, const Tensor& x) { return x + other; });
  expect("matmul", on("a", here), on("b", there), "tail", row,
         [&](auto&, const Tensor& x) { return matmul(x, other.transpose(0, 1)); });
  expect("cat", on("tensor 0", here), on("tensor 1", there), "tail", row,
         [&](auto&, const Tensor& x) { return cat({x, other}, 0); });
  expect("mse_loss", on("x", here), on("target", there), "tail", row,
         [&](auto&, const Tensor& x) { return nn::mse_loss(x, other); });
  const Tensor label = zeros({2}, {DType::i64, there});
  expect("cross_entropy", on("logits", here), on("target", there), "tail", row,
         [&](auto&, const Tensor& x) { return nn::cross_entropy(x, label); });
  expect("add_", on("the written tensor", here), on("the operand", there), "tail", row,
         [&](auto&, const Tensor& x) { return x.add_(other); });
}

}  // namespace
}  // namespace weft
