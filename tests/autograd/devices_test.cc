// One backward over several devices; here these are virtual CPU devices.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/sequence.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/worker.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

const Device kDevices[] = {Device("cpu:0"), Device("cpu:1"), Device("cpu:2")};

class ThreeDevices : public ::testing::Environment {
  void SetUp() override { set_host_devices(3); }
};
const auto* const environment = ::testing::AddGlobalTestEnvironment(new ThreeDevices);

Tensor value(double v, Device device = {}) { return scalar(v, {DType::f64, device}); }
Tensor leaf(double v, Device device = {}) { return value(v, device).set_requires_grad(); }

using ThreadId = std::thread::id;

// Records the thread that runs each leaf's hook.
class Watch {
 public:
  void add(const Tensor& x, const std::string& name) {
    autograd::add_leaf_hook(x, [this, name](const Tensor&) {
      const std::lock_guard lock(mutex_);
      threads_[name] = std::this_thread::get_id();
    });
  }
  ThreadId of(const std::string& name) const { return threads_.at(name); }

 private:
  std::mutex mutex_;
  std::map<std::string, ThreadId> threads_;
};

TEST(CrossDeviceTest, ToRecordsAndMovesGradientsBack) {
  const Tensor x = leaf(3);
  const Tensor y = x.to(kDevices[1]);
  EXPECT_EQ(y.device(), kDevices[1]);
  (y * y).backward();
  EXPECT_EQ(x.grad().device(), kDevices[0]);
  EXPECT_EQ(x.grad().item<double>(), 6);
}

TEST(CrossDeviceTest, ToDeviceAndDtypeTogether) {
  const Tensor x = leaf(3);
  const Tensor y = x.to(kDevices[2], DType::f32);
  EXPECT_EQ(y.dtype(), DType::f32);
  (y * 2.0).to(kDevices[1], DType::f64).backward();
  EXPECT_EQ(x.grad().dtype(), DType::f64);
  EXPECT_EQ(x.grad().item<double>(), 2);
}

TEST(CrossDeviceTest, CopyIntoAnotherDevice) {
  const Tensor x = leaf(3);
  const Tensor y = value(0, kDevices[1]);
  y.copy_(x);
  (y * y).backward();
  EXPECT_EQ(x.grad().item<double>(), 6);
}

TEST(CrossDeviceTest, AGradientOnTheWrongDeviceIsRefused) {
  const Tensor x = leaf(3);
  EXPECT_WEFT_ERROR(x.backward(value(1, kDevices[1])), Device, "gradient 0 is on cpu:1");
}

TEST(WorkerTest, OneDeviceStaysInTheCallingThread) {
  for (const Device device : kDevices) {
    Watch watch;
    const Tensor x = leaf(3, device);
    watch.add(x, "x");
    (x * x).backward();
    EXPECT_EQ(watch.of("x"), std::this_thread::get_id());
  }
}

// Nothing can run at the same time, so moving the work between threads would only take time.
TEST(WorkerTest, AChainOverDevicesStaysInTheCallingThread) {
  Watch watch;
  const Tensor a = leaf(2, kDevices[0]), b = leaf(3, kDevices[1]), c = leaf(5, kDevices[2]);
  watch.add(a, "a");
  for (int round = 0; round < 3; ++round) {
    for (const Tensor& x : {a, b, c}) autograd::zero_grad(x);
    const Tensor h = (a * a).to(kDevices[1]) * b;
    (h.to(kDevices[2]) * c).backward();
    EXPECT_EQ(a.grad().item<double>(), 4 * 3 * 5);
    EXPECT_EQ(b.grad().item<double>(), 4 * 5);
    EXPECT_EQ(c.grad().item<double>(), 4 * 3);
    EXPECT_EQ(watch.of("a"), std::this_thread::get_id());
  }
}

ThreadId worker_of(Device device) {
  ThreadId id;
  JobGroup group;
  group.submit(device, [&] { id = std::this_thread::get_id(); });
  group.wait();
  return id;
}

TEST(WorkerTest, WhatCanRunAtOnceRunsOnTheWorkersOfItsDevices) {
  for (int round = 0; round < 3; ++round) {
    Watch watch;
    const Tensor a = leaf(2, kDevices[0]), b = leaf(3, kDevices[1]), c = leaf(5, kDevices[2]);
    watch.add(a, "a");
    watch.add(b, "b");
    watch.add(c, "c");
    const Tensor outputs[] = {a * a, b * b, c * c};
    autograd::backward(outputs);
    EXPECT_EQ(watch.of("a"), std::this_thread::get_id());
    EXPECT_EQ(watch.of("b"), worker_of(kDevices[1]));
    EXPECT_EQ(watch.of("c"), worker_of(kDevices[2]));
    EXPECT_EQ(a.grad().item<double>(), 4);
    EXPECT_EQ(b.grad().item<double>(), 6);
    EXPECT_EQ(c.grad().item<double>(), 10);
  }
}

// The default device for tensors that a rule or a hook makes.
TEST(WorkerTest, TheCurrentDeviceIsThatOfTheTask) {
  std::vector<Device> seen(3);
  Tensor leaves[3], outputs[3];
  for (int i = 0; i < 3; ++i) {
    leaves[i] = leaf(i, kDevices[i]);
    outputs[i] = leaves[i] * 2.0;
    autograd::add_leaf_hook(leaves[i],
                            [&seen, i](const Tensor&) { seen[i] = zeros({1}).device(); });
  }
  autograd::backward(outputs);
  EXPECT_EQ(seen, (std::vector<Device>{kDevices[0], kDevices[1], kDevices[2]}));

  // A chain, which needs no worker.
  const Tensor x = leaf(1, kDevices[1]);
  Device of_hook;
  autograd::add_leaf_hook(x, [&](const Tensor&) { of_hook = zeros({1}).device(); });
  ((x * 2.0).to(kDevices[2]) * 2.0).backward();
  EXPECT_EQ(of_hook, kDevices[1]);
}

TEST(WorkerTest, DevicesWorkAtTheSameTime) {
  // The hook of each side waits for the other one's: a single thread would never end.
  const Tensor a = leaf(2, kDevices[0]), b = leaf(3, kDevices[1]);
  std::atomic<int> arrived{0};
  const auto meet = [&](const Tensor& grad) {
    ++arrived;
    for (int i = 0; arrived < 2 && i < 20'000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(arrived, 2);
    return grad;
  };
  const Tensor ya = a * a, yb = b * b;
  autograd::add_grad_hook(ya, meet);
  autograd::add_grad_hook(yb, meet);
  const Tensor outputs[] = {ya, yb};
  autograd::backward(outputs);
  EXPECT_EQ(a.grad().item<double>(), 4);
  EXPECT_EQ(b.grad().item<double>(), 6);
}

TEST(WorkerTest, TheCallersStateGoesAlong) {
  const Tensor a = leaf(2, kDevices[0]);
  const Tensor y = a.to(kDevices[1]) * 1.0;
  bool seen = false;
  autograd::add_leaf_hook(a, [&](const Tensor&) {
    seen = thread_state().deterministic && thread_state().rank == 7 && !thread_state().grad_enabled;
  });
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped rank(&ThreadState::rank, 7);
  y.backward();
  EXPECT_TRUE(seen);
}

TEST(WorkerTest, GradAndPruningOverDevices) {
  const Tensor a = leaf(2, kDevices[0]), b = leaf(3, kDevices[1]);
  const Tensor h = a.to(kDevices[1]);
  const Tensor y = h * b;
  const Tensor inputs[] = {h, a};
  const auto g = autograd::grad({&y, 1}, inputs, {}, {.retain_graph = true});
  EXPECT_EQ(g[0].item<double>(), 3);
  EXPECT_EQ(g[1].item<double>(), 3);
  EXPECT_EQ(g[1].device(), kDevices[0]);
  EXPECT_FALSE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
}

// A broadcast parameter: the gradients of all devices are added on the first, always in the same
// order.
TEST(WorkerTest, ContributionsAddUpInAFixedOrder) {
  const Tensor w = leaf(1);
  Tensor losses[3];
  const double factors[] = {1.0, 1e-16, -1.0};  // the sum depends on the order
  for (int i = 0; i < 3; ++i) losses[i] = w.to(kDevices[i == 0 ? 1 : i]) * factors[i];
  for (int round = 0; round < 50; ++round) {
    autograd::zero_grad(w);
    autograd::backward(losses, {}, true);
    // The last recorded one comes first: (-1 + 1e-16) + 1.
    EXPECT_EQ(w.grad().item<double>(), (-1.0 + 1e-16) + 1.0);
  }
}

// A gradient on another CPU device is read where it is, or moved if there is nothing to add it to.
TEST(WorkerTest, GradientsOfOtherDevicesAreAddedWithoutACopy) {
  constexpr std::int64_t kBytes = 1 << 20;
  const TensorOptions f32{DType::f32, kDevices[0]};
  for (const bool both : {true, false}) {
    const Tensor x = ones({kBytes / 4}, f32).set_requires_grad(), other = ones({kBytes / 4}, f32);
    const Tensor there = x.to(kDevices[1]) * 3.0;
    const Tensor outputs[] = {there.sum(), (x * other).sum()};
    const std::int64_t before = memory_stats(kDevices[0]).in_use_bytes;
    reset_peak_memory(kDevices[0]);
    autograd::backward(std::span(outputs).first(both ? 2 : 1));
    EXPECT_LT(memory_stats(kDevices[0]).peak_in_use_bytes, before + kBytes * 3 / 2);
    EXPECT_EQ(x.grad().device(), kDevices[0]);
    const Tensor expected = both ? other + 3.0 : other * 3.0;
    EXPECT_EQ(testing::values_of(x.grad()), testing::values_of(expected));
  }
}

// A device's worker that is free adds large gradients for a device whose worker is busy. `late`:
// the device whose gradient comes last.
TEST(WorkerTest, AFreeWorkerAddsUpForABusyOne) {
  const auto wait_for = [](const auto& ready) {
    for (int i = 0; !ready() && i < 20'000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(ready());
  };
  for (const int late : {0, 1}) {
    const Tensor x = ones({1 << 18}).set_requires_grad(), y = leaf(1);
    std::atomic<bool> busy = false, given = false;
    const Tensor blocked = y * 1.0;
    autograd::add_grad_hook(blocked, [&](const Tensor&) {
      busy = true;
      wait_for([&] { return x.grad().defined(); });
      return Tensor();
    });
    const Tensor here = x * 2.0, there = x.to(kDevices[1]) * 3.0;
    autograd::add_grad_hook(late == 0 ? here : there, [&](const Tensor&) {
      if (late == 1) {
        wait_for([&] { return busy.load(); });
      } else {
        wait_for([&] { return given.load(); });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the worker goes to sleep
      }
      return Tensor();
    });
    autograd::add_grad_hook(late == 0 ? there : here, [&](const Tensor&) {
      given = true;
      return Tensor();
    });
    const Tensor outputs[] = {blocked + here.sum(), there.sum()};
    autograd::backward(outputs);
    EXPECT_EQ(x.grad().mean().item<float>(), 5);
  }
}

TEST(WorkerTest, LeafHookOnceWithContributionsOfAllDevices) {
  const Tensor w = leaf(2);
  std::atomic<int> calls{0};
  autograd::add_leaf_hook(w, [&](const Tensor& x) {
    ++calls;
    EXPECT_EQ(x.grad().item<double>(), 6);
  });
  Tensor losses[3];
  for (int i = 0; i < 3; ++i) losses[i] = w.to(kDevices[i]) * (i + 1.0);
  autograd::backward(losses);
  EXPECT_EQ(calls, 1);
}

TEST(WorkerTest, TheFirstErrorReachesTheCaller) {
  const Tensor a = leaf(2, kDevices[0]), b = leaf(3, kDevices[1]);
  auto hook =
      autograd::add_leaf_hook(b, [](const Tensor&) { throw std::runtime_error("on cpu:1"); });
  const auto run = [&] {
    const Tensor outputs[] = {a.to(kDevices[1]) * b, a * 1.0, b.to(kDevices[2]) * 1.0};
    autograd::backward(outputs);
  };
  for (int round = 0; round < 20; ++round) {
    try {
      run();
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "on cpu:1");
    }
  }
  hook.remove();
  autograd::zero_grad(a);
  autograd::zero_grad(b);
  run();
  EXPECT_EQ(a.grad().item<double>(), 4);
  EXPECT_EQ(b.grad().item<double>(), 3);
}

TEST(WorkerTest, EndCallbackFromAWorkerRunsInTheCaller) {
  const Tensor a = leaf(2);
  std::vector<ThreadId> ends;
  autograd::add_leaf_hook(a, [&](const Tensor&) {
    autograd::at_backward_end(
        [&](const std::exception_ptr&) { ends.push_back(std::this_thread::get_id()); });
  });
  (a.to(kDevices[1]) * 1.0).backward();
  EXPECT_EQ(ends, std::vector<ThreadId>{std::this_thread::get_id()});
}

// All workers of the outer backward are busy when the inner one needs workers of all devices.
TEST(WorkerTest, NestedBackwardsOverAllDevicesDoNotDeadlock) {
  const Tensor w = leaf(1);
  std::function<Tensor(int)> make = [&](int depth) {
    Tensor y = w;
    for (int d : {1, 2, 0}) {
      y = y.to(kDevices[d]) * 1.0;
      if (depth == 0) continue;
      autograd::add_grad_hook(y, [&make, depth](const Tensor&) {
        const EnableGrad grad;
        make(depth - 1).backward();
        return Tensor();
      });
    }
    return y;
  };
  make(2).backward();
  EXPECT_EQ(w.grad().item<double>(), 1 + 3 + 9);
}

struct MoveAndScale : autograd::Function<MoveAndScale> {
  static Tensor forward(autograd::Context& ctx, const Tensor& x, Device device) {
    ctx.data = x.device();
    return raw::mul(raw::to(x, device), 2);
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    return {raw::mul(raw::to(grads[0], std::any_cast<Device>(ctx.data)), 2)};
  }
};

TEST(WorkerTest, FunctionsMayCrossDevices) {
  const Tensor a = leaf(3);
  const Tensor y = MoveAndScale::apply(a, kDevices[2]);
  y.backward();
  EXPECT_EQ(a.grad().item<double>(), 2);
}

// --- Features that engines use -------------------------------------------------------------------

// Replicas of one model on workers of their own, which draw dropout masks.
std::vector<std::vector<double>> masks_of_replicas() {
  std::vector<std::vector<double>> masks(3);
  JobGroup group;
  for (int i = 0; i < 3; ++i) {
    group.submit(kDevices[i], [&masks, i] {
      for (int k = 0; k < 3; ++k) {
        const auto more = testing::values_of(bernoulli({16}, 0.5, {DType::f32, kDevices[i]}));
        masks[i].insert(masks[i].end(), more.begin(), more.end());
      }
    });
  }
  group.wait();
  return masks;
}

TEST(ReplicasTest, DrawDifferentMasksAndTheSameAgain) {
  manual_seed(5);
  const auto masks = masks_of_replicas();
  EXPECT_NE(masks[0], masks[1]);
  EXPECT_NE(masks[1], masks[2]);
  EXPECT_NE(masks[0], masks[2]);
  manual_seed(5);
  std::vector<double> of_one;  // the first device draws the same as without replicas
  for (int k = 0; k < 3; ++k) {
    const auto more = testing::values_of(bernoulli({16}, 0.5));
    of_one.insert(of_one.end(), more.begin(), more.end());
  }
  EXPECT_EQ(masks[0], of_one);
  for (int round = 0; round < 20; ++round) {
    manual_seed(5);
    EXPECT_EQ(masks_of_replicas(), masks);
  }
  manual_seed(6);
  EXPECT_NE(masks_of_replicas(), masks);
}

TEST(ReplicasTest, RecomputationDrawsTheSameMasksOnEveryDevice) {
  std::vector<std::vector<double>> first(3), second(3);
  const auto dropout = [&](const Tensor& x) {
    // On the device of the input, and from there on another one.
    const int at = x.device().index;
    const Tensor mask = bernoulli({16}, 0.5, {DType::f64, x.device()});
    const Device other = kDevices[(at + 1) % 3];
    const Tensor there = bernoulli({16}, 0.5, {DType::f64, other}).to(x.device());
    auto& seen = autograd::recomputing() ? second[at] : first[at];
    seen = testing::values_of(mask + there * 2.0);
    return x * mask * there;
  };
  manual_seed(5);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = ones({16}, {DType::f64, kDevices[i]}).set_requires_grad();
    const Tensor y = autograd::checkpoint(dropout, x).sum();
    bernoulli({3}, 0.5, {DType::f64, kDevices[i]});  // goes on from there
    y.backward();
    EXPECT_EQ(first[i], second[i]);
    EXPECT_NE(first[i], first[(i + 1) % 3]);
  }
}

// The sum shows whether 1 was added before or after the others cancelled.
double summed(bool reserve) {
  const Tensor w = leaf(1);
  const double factors[] = {1, 1e16, -1e16};
  Tensor parts[3];
  const std::uint64_t base = reserve ? autograd::reserve_sequence(3 * 100) : 0;
  JobGroup group;
  for (int i = 0; i < 3; ++i) {
    group.submit(kDevices[i], [&, i] {
      std::optional<autograd::SequenceScope> numbers;
      if (reserve) numbers.emplace(base + static_cast<std::uint64_t>(i) * 100);
      for (int k = 0; k < 7 * (3 - i); ++k)
        static_cast<void>((w * 2.0).numel());  // records other operations
      parts[i] = w * factors[i];
    });
  }
  group.wait();
  const Tensor y = (parts[0] + parts[1]) + parts[2];
  y.backward();
  return w.grad().item<double>();
}

TEST(ReplicasTest, AGraphSumsInOneOrderWhoeverRecordedIt) {
  const Tensor w = leaf(1);
  const Tensor a = w * 1.0, b = w * 1e16, c = w * -1e16;
  (a + b + c).backward();
  const double alone = w.grad().item<double>();
  EXPECT_EQ(alone, 1);
  for (int round = 0; round < 5; ++round) EXPECT_EQ(summed(true), alone);
}

TEST(ReplicasTest, ReservedNumbersLieBetweenThoseBeforeAndAfter) {
  const Tensor x = leaf(1);
  const auto number = [&] { return autograd::Edge(x * 2.0); };
  const auto sequence = [](const autograd::Edge& edge) {
    return static_cast<autograd::Node*>(edge.target())->sequence();
  };
  const std::uint64_t before = sequence(number());
  const std::uint64_t first = autograd::reserve_sequence(10);
  EXPECT_EQ(first, before + 1);
  {
    const autograd::SequenceScope scope(first);
    EXPECT_EQ(sequence(number()), first);
    EXPECT_EQ(sequence(number()), first + 1);
  }
  EXPECT_EQ(sequence(number()), first + 10);
}

TEST(WorkerTest, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([] {
      for (int round = 0; round < 20; ++round) {
        const Tensor a = leaf(2, kDevices[0]), b = leaf(3, kDevices[1]);
        const Tensor y = (a * a).to(kDevices[1]) * b;
        (y.to(kDevices[2]) * 1.0).backward();
        EXPECT_EQ(a.grad().item<double>(), 12);
        EXPECT_EQ(b.grad().item<double>(), 4);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// A checkpoint whose inputs need no gradient adds nothing to the tape of another device.
TEST(CheckpointDeviceTest, StaysOnTheDeviceOfItsInputs) {
  const Tensor w = leaf(3, kDevices[1]);
  Watch watch;
  watch.add(w, "w");
  const Tensor x = value(2, kDevices[1]);
  const Tensor y = autograd::checkpoint([&](const Tensor& in) { return in * w; }, x);
  const auto leaves = autograd::reachable_leaves({&y, 1});
  EXPECT_FALSE(leaves.empty());
  for (const Tensor& reached : leaves) EXPECT_EQ(reached.device(), kDevices[1]);
  y.backward();
  EXPECT_EQ(watch.of("w"), std::this_thread::get_id());
  EXPECT_EQ(w.grad().item<double>(), 2);
}

// The hook is called once for each leaf, when its gradient is complete, in the thread that finds
// out.
TEST(FinalHookDeviceTest, OncePerLeafOverSeveralDevices) {
  const Tensor a = leaf(1, kDevices[0]), b = leaf(1, kDevices[1]), c = leaf(1, kDevices[2]);
  std::mutex mutex;
  std::map<const TensorImpl*, std::vector<double>> seen;
  for (const Tensor& x : {a, b, c}) {
    autograd::add_final_leaf_hook(x, [&](const Tensor& t) {
      const std::lock_guard lock(mutex);
      seen[t.impl()].push_back(t.grad().item<double>());
    });
  }
  for (int round = 0; round < 100; ++round) {
    for (const Tensor& x : {a, b, c}) autograd::zero_grad(x);
    seen.clear();
    const auto block = [](const Tensor& w) { return [w](const Tensor& in) { return in * w; }; };
    using autograd::checkpoint;
    std::vector<Tensor> ends;
    for (int branch = 0; branch < 2; ++branch) {
      Tensor h = checkpoint(block(a), value(1, kDevices[0]));
      h = checkpoint(block(b), h.to(kDevices[1])) * b;
      h = checkpoint(block(c), h.to(kDevices[2]));
      ends.push_back(checkpoint(block(a), h.to(kDevices[0])) * a);
    }
    (ends[0] + ends[1]).backward();
    ASSERT_EQ(seen[a.impl()], std::vector<double>{6});
    ASSERT_EQ(seen[b.impl()], std::vector<double>{4});
    ASSERT_EQ(seen[c.impl()], std::vector<double>{2});
  }
}

}  // namespace
}  // namespace weft
