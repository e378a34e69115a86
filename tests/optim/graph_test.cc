// graph::capture: a captured step equals the step bit for bit, and refuses what cannot be captured.
#include <functional>
#include <sstream>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/dropout.h"
#include "weft/nn/flatten.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/sequential.h"
#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/reduce_lr_on_plateau.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"

namespace weft {
namespace {

using Model = nn::Sequential;

Model mlp() { return {nn::Linear(12, 16), nn::ReLU(), nn::Dropout(0.25), nn::Linear(16, 5)}; }
Model conv_net() {
  return {nn::Conv2d(2, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Flatten(),
          nn::Linear(4 * 4 * 4, 5)};
}

class GraphTest : public testing::DeviceParam {
 protected:
  void SetUp() override {
    DeviceParam::SetUp();
    if (IsSkipped()) return;
    thread_state().deterministic = true;
  }

  /// Returns the losses of 20 steps, then all parameters and buffers.
  template <class MakeOptimizer>
  std::vector<double> train(bool captured, Model (*make_model)(), const Shape& shape,
                            MakeOptimizer make_optimizer) {
    manual_seed(3);
    Model model = make_model();
    model.to(device());
    auto optimizer = make_optimizer(model.parameters());
    optim::StepLR scheduler(optimizer, {.step_size = 3, .gamma = 0.7});
    Generator data(11);
    const Tensor x = zeros(shape);
    const Tensor label = zeros({shape[0]}, DType::i64);
    Tensor loss;
    const auto body = [&] {
      optimizer.zero_grad();
      loss = nn::cross_entropy(model(x), label);
      loss.backward();
      optimizer.step();
    };
    graph::Step step = graph::capture(body);

    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      x.copy_(randn(shape, Device(DeviceType::cpu), &data).to(device()));
      label.fill_(i % 5);
      if (captured) {
        step();
      } else {
        body();
      }
      values.push_back(loss.item<double>());
      scheduler.step();
      if (i == 12) optimizer.set_lr(0.02);
      if (i == 8) step.reset();
    }
    for (const auto& entry : model.state_dict()) {
      const Tensor& state = entry.second;
      for (double v : state.to_vector<double>()) values.push_back(v);
    }
    return values;
  }

  template <class MakeOptimizer>
  void expect_the_same(Model (*make_model)(), const Shape& shape, MakeOptimizer make_optimizer) {
    const auto with = train(true, make_model, shape, make_optimizer);
    const auto without = train(false, make_model, shape, make_optimizer);
    EXPECT_EQ(with, without);
    EXPECT_NE(with[0], with[19]);
  }

  /// The first call runs the body normally; the second captures.
  void expect_refused(const std::function<void()>& body, const std::string& text) {
    SCOPED_TRACE(text);
    graph::Step step = graph::capture(body);
    step();
    EXPECT_WEFT_ERROR(step(), Unsupported, text);
    EXPECT_EQ(thread_state().capture, nullptr);
  }

  const Device host_{DeviceType::cpu};
};

TEST_P(GraphTest, MlpWithDropoutAndSgd) {
  expect_the_same(mlp, {6, 12}, [](const auto& params) {
    return optim::SGD(params, {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3});
  });
}

TEST_P(GraphTest, MlpWithDropoutAndAdam) {
  expect_the_same(mlp, {6, 12},
                  [](const auto& params) { return optim::Adam(params, {.lr = 0.01}); });
}

TEST_P(GraphTest, MlpWithAmsgrad) {
  expect_the_same(mlp, {6, 12}, [](const auto& params) {
    return optim::AdamW(params, {.lr = 0.01, .amsgrad = true, .maximize = true});
  });
}

TEST_P(GraphTest, ConvNetWithBatchNorm) {
  expect_the_same(conv_net, {3, 2, 6, 6},
                  [](const auto& params) { return optim::Adam(params, {.lr = 0.01}); });
}

// Without zero_grad the replays add to the gradients of the first call.
TEST_P(GraphTest, GradientsAccumulate) {
  const Tensor w = ones({3}).set_requires_grad();
  const Tensor x = zeros({3});
  graph::Step step = graph::capture([&] { mul(w, x).sum().backward(); });
  for (int i = 1; i <= 5; ++i) {
    x.fill_(i);
    step.replay();
  }
  EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(3, 15));
}

TEST_P(GraphTest, GradientsForgottenBetweenReplaysAreRefused) {
  const Tensor w = ones({3}).set_requires_grad();
  graph::Step step = graph::capture([&] { w.sum().backward(); });
  for (int i = 0; i < 3; ++i) step();
  autograd::zero_grad(w);
  EXPECT_WEFT_ERROR(step(), InvalidArgument, "[backward] the gradient it adds to changed");
}

// As in PyTorch's loop: after each replay .grad() has the step's gradients.
TEST_P(GraphTest, ZeroGradOutsideOfTheStep) {
  const Tensor w = ones({3}).set_requires_grad();
  graph::Step step = graph::capture([&] { w.sum().backward(); });
  for (int i = 0; i < 4; ++i) {
    autograd::zero_grad(w);
    step();
    EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(3, 1));
  }
}

TEST_P(GraphTest, ReplaysSetGradientsAsTheBodyDoes) {
  const Tensor made = ones({3}).set_requires_grad(), supplied = ones({3}).set_requires_grad();
  const Tensor dropped = ones({3}).set_requires_grad();
  const Tensor memory = zeros({3});
  autograd::set_grad_storage(supplied, memory);
  graph::Step step = graph::capture(device(), [&] {
    for (const Tensor& leaf : {made, supplied, dropped}) autograd::zero_grad(leaf);
    add(add(made.sum(), supplied.sum()), dropped.sum()).backward();
    autograd::zero_grad(dropped);
  });
  Tensor grad;
  for (int replay = 0; replay < 3; ++replay) {
    for (const Tensor& leaf : {made, supplied}) autograd::zero_grad(leaf);
    dropped.set_grad(zeros({3}));
    step.replay();
    EXPECT_EQ(made.grad().to_vector<float>(), std::vector<float>(3, 1)) << replay;
    EXPECT_EQ(supplied.grad().to_vector<float>(), std::vector<float>(3, 1)) << replay;
    EXPECT_EQ(memory.to_vector<float>(), std::vector<float>(3, 1)) << replay;
    EXPECT_FALSE(dropped.grad().defined()) << replay;
    // A captured step writes into the memory with which it was captured.
    EXPECT_TRUE(replay < 2 || on_cpu() || made.grad().same(grad));
    grad = made.grad();
  }
}

// Its gradient checks for a NaN if it may.
TEST_P(GraphTest, TheLargestOfAll) {
  const Tensor w = ones({4}).set_requires_grad();
  const Tensor x = zeros({4});
  graph::Step step = graph::capture([&] {
    autograd::zero_grad(w);
    max(mul(w, x)).backward();
  });
  for (int i = 0; i < 4; ++i) {
    raw::zero_(x);
    raw::fill_(raw::narrow(x, 0, i, 1), i + 1);
    step.replay();
    std::vector<float> expected(4, 0);
    expected[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
    EXPECT_EQ(w.grad().to_vector<float>(), expected);
  }
}

TEST_P(GraphTest, ReadsOfTheHostAreRefused) {
  const Tensor x = ones({1});
  expect_refused([&] { relu(x).item<float>(); }, "[item] cannot be captured");
  expect_refused([&] { relu(x).to_vector<float>(); }, "[to_vector] cannot be captured");
  expect_refused([&] { std::ostringstream() << relu(x); }, "[to_string] cannot be captured");
}

TEST_P(GraphTest, HostValuesAreRefused) {
  const Tensor x = ones({2});
  expect_refused([&] { x.copy_(tensor({1, 2})); }, "[from_span] cannot be captured");
  expect_refused([&] { randperm(4); }, "cannot be captured");
  expect_refused([&] { Storage::allocate_pinned(64); }, "[allocate_pinned] cannot be captured");
  if (on_cpu()) return;
  const Tensor there = ones({2}, host_);
  expect_refused([&] { x.copy_(there); }, "[copy] cannot be captured");
  expect_refused([&] { there.copy_(x); }, "[copy] cannot be captured");
  expect_refused([&] { relu(there); }, "[relu] cannot be captured: it runs on cpu:0");
}

TEST_P(GraphTest, WaitingIsRefused) {
  expect_refused([&] { runtime(device()).synchronize(current_stream(device())); },
                 "[synchronize] cannot be captured");
  expect_refused([&] { runtime(device()).synchronize_device(0); },
                 "[synchronize] cannot be captured");
  expect_refused([&] { release_cached_memory(device()); }, "[release_cached_memory]");
}

TEST_P(GraphTest, OtherStreamsAndDevicesAreRefused) {
  const Stream other = runtime(device()).new_stream(0);
  expect_refused([&] { set_current_stream(set_current_stream(other)); },
                 "[set_current_stream] cannot be captured");
  expect_refused([&] { ones({2}).storage()->record_stream(other); }, "[record_stream]");
  if (!on_cpu()) return;
  const int devices = host_device_count();
  set_host_devices(2);
  const Tensor x = ones({2});
  expect_refused([&] { x.to(Device("cpu:1")); },
                 "[allocate] cannot be captured: memory of cpu:1 in a step of cpu:0");
  set_host_devices(devices);
}

TEST_P(GraphTest, HostSideChangesAreRefused) {
  const Tensor w = ones({3}).set_requires_grad();
  optim::SGD sgd({w});
  expect_refused([&] { sgd.set_lr(0.1); }, "[set_lr] cannot be captured");
  optim::ExponentialLR exponential(sgd, {.gamma = 0.5});
  expect_refused([&] { exponential.step(); }, "[scheduler] cannot be captured");
  EXPECT_EQ(exponential.last_epoch(), 1);  // that of the call before
  optim::ReduceLROnPlateau plateau(sgd);
  const auto best = [&] { return plateau.state_dict()[1].second.item<double>(); };
  double metric = 3;
  expect_refused([&] { plateau.step(metric--); }, "[ReduceLROnPlateau] cannot be captured");
  EXPECT_EQ(plateau.last_epoch(), 1);
  EXPECT_EQ(best(), 3);
  graph::Step inner = graph::capture([] {});
  expect_refused([&] { inner(); }, "[graph] cannot be captured");
  expect_refused(
      [&] {
        const auto noisy = [](const Tensor& x) {
          const Tensor mask = empty_like(x);
          raw::bernoulli_(mask, 0.5);
          return mul(x, mask);
        };
        autograd::checkpoint(noisy, w).sum().backward();
      },
      "[bernoulli_] cannot be captured: random numbers inside autograd::checkpoint");
}

// The first call makes no gradients.
TEST_P(GraphTest, StateMadeInTheCaptureIsRefused) {
  const Tensor w = ones({3}).set_requires_grad();
  optim::Adam adam({w});
  expect_refused(
      [&] {
        adam.step();
        adam.zero_grad();
        w.sum().backward();
      },
      "[optimizer] cannot be captured: every replay would make the state");
}

TEST_P(GraphTest, MomentumIsPartOfTheStep) {
  const Tensor w = ones({3}).set_requires_grad();
  optim::SGD sgd({w}, {.lr = 0.1, .momentum = 0.5});
  graph::Step step = graph::capture([&] {
    sgd.zero_grad();
    w.sum().backward();
    sgd.step();
  });
  for (int i = 0; i < 3; ++i) step();
  sgd.set_momentum(0, 0.6);
  EXPECT_WEFT_ERROR(step(), InvalidArgument, "the momentum or the loaded state changed");
}

// Tensors of the body belong to the step: nobody else gets their memory between the replays.
TEST_P(GraphTest, MemoryStaysTheSteps) {
  const Tensor x = ones({1000});
  Tensor y;
  {
    graph::Step step = graph::capture([&] { y = add(relu(x), 1); });
    step();
    step();
    const Tensor replayed = y;
    release_cached_memory(device());
    const Tensor others = full({4, 1000}, 7);
    x.fill_(5);
    step();
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 6));
    EXPECT_EQ(others.to_vector<float>(), std::vector<float>(4000, 7));
  }
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 6));  // outlives the step
}

// A capture that fails at any point has run nothing on the device, and the next call captures.
TEST_P(GraphTest, OutOfMemoryWhileCapturing) {
  if (on_cpu()) GTEST_SKIP() << "there the body runs";
  const auto held = [&] {
    release_cached_memory(device());
    const MemoryStats stats = memory_stats(device());
    return stats.in_use_bytes + stats.cached_bytes;
  };
  // Losses and weights of steps; the k-th allocation of the second one fails, and it is repeated.
  bool fired = false;
  const auto run = [&](std::int64_t k) {
    manual_seed(3);
    Model model = conv_net();
    model.to(device());
    optim::Adam adam(model.parameters(), {.lr = 0.01});
    const Tensor x = rand({3, 2, 6, 6}), label = zeros({3}, DType::i64);
    Tensor loss;
    graph::Step step = graph::capture([&] {
      adam.zero_grad();
      loss = nn::cross_entropy(model(x), label);
      loss.backward();
      adam.step();
    });
    step();
    std::vector<double> values{loss.item<double>()};
    if (k > 0) {
      const FailAllocation fail(device(), k);
      try {
        step();
        values.push_back(loss.item<double>());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::OutOfMemory) << error.what();
      }
      fired = fail.fired();
    }
    while (values.size() < 4) {
      step();
      values.push_back(loss.item<double>());
    }
    for (const auto& entry : model.state_dict()) {
      for (double v : entry.second.to_vector<double>()) values.push_back(v);
    }
    return values;
  };
  const std::vector<double> expected = run(0);
  const std::int64_t before = held();
  std::int64_t k = 0;
  do {
    EXPECT_EQ(run(++k), expected) << "allocation " << k;
    EXPECT_EQ(held(), before) << "allocation " << k;
  } while (fired);
  EXPECT_GT(k, 20);
}

// Others may use the memory then, except that of live tensors.
TEST_P(GraphTest, ResetGivesMemoryToOthers) {
  const Tensor x = ones({1000});
  Tensor y;
  graph::Step step = graph::capture([&] { y = add(relu(x), 1); });
  for (int i = 0; i < 3; ++i) step();
  const Tensor earlier = y;
  step.reset();
  const Tensor others = full({4, 1000}, 7);
  x.fill_(5);
  for (int i = 0; i < 2; ++i) {
    step();
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 6));
  }
  EXPECT_EQ(earlier.to_vector<float>(), std::vector<float>(1000, 2));
  EXPECT_EQ(others.to_vector<float>(), std::vector<float>(4000, 7));
}

// Only if replays run the body can they check that it does the same.
class GraphCheckTest : public ::testing::Test {
 protected:
  static void expect_differs(const std::function<void()>& body, const std::function<void()>& change,
                             const std::string& text) {
    SCOPED_TRACE(text);
    graph::Step step = graph::capture(body);
    for (int i = 0; i < 3; ++i) step();
    change();
    EXPECT_WEFT_ERROR(step(), InvalidArgument, text);
  }
};

TEST_F(GraphCheckTest, AnotherShape) {
  Tensor x = ones({2, 3});
  expect_differs([&] { relu(x); }, [&] { x = ones({3, 2}); },
                 "relu got f32 [3,2] with strides [2,1], captured with f32 [2,3]");
}

TEST_F(GraphCheckTest, AnotherShapeInside) {
  const Tensor x = ones({4, 3});
  std::int64_t rows = 2;
  expect_differs([&] { relu(x.narrow(0, 0, rows)); }, [&] { rows = 3; }, "relu got f32 [3,3]");
}

TEST_F(GraphCheckTest, AnotherTensor) {
  Tensor x = ones({2, 3});
  expect_differs([&] { relu(x); }, [&] { x = ones({2, 3}); },
                 "relu got another tensor [2,3] than the one captured");
}

TEST_F(GraphCheckTest, AnotherOperation) {
  const Tensor x = ones({2});
  int path = 0;
  const auto body = [&] {
    if (path != 1) relu(x);
    if (path != 0) tanh(x);
  };
  expect_differs(body, [&] { path = 1; }, "tanh in place of relu");
  path = 0;
  expect_differs(body, [&] { path = 2; }, "does more than the captured step");
  path = 2;
  expect_differs(body, [&] { path = 0; }, "does less than the captured step");
}

// On CUDA a replay would read the value of the first call for ever.
TEST_F(GraphCheckTest, StateThatMovesFromStepToStep) {
  Tensor state = ones({2});
  graph::Step step = graph::capture([&] { state = add(state, 1); });
  step();
  step();
  EXPECT_WEFT_ERROR(step(), InvalidArgument, "add_scalar got another tensor [2]");
}

WEFT_FOR_EACH_DEVICE(GraphTest);

}  // namespace
}  // namespace weft
