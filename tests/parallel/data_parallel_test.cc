#include "weft/parallel/data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/dropout.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/devices.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::loss_of;
using testing::same_bits;
using testing::seeded;
using Values = std::vector<double>;

class DataParallelTest : public testing::DevicesTest {
 protected:
  static nn::Sequential mlp(int seed = 1) {
    return seeded(seed, [] {
      nn::Sequential net = testing::mlp();
      net.to(first());
      return net;
    });
  }
  static testing::LabelledBatch batch_here(int step, const Shape& shape) {
    const testing::LabelledBatch made = batch(step, shape, DType::f32);
    return {made.x.to(first()), made.label.to(first())};
  }
};

TEST_P(DataParallelTest, NamesAndStateAreTheModules) {
  nn::Sequential net = mlp();
  DataParallel dp(net);
  EXPECT_EQ(static_cast<int>(dp.devices().size()), device_count(GetParam()));
  EXPECT_EQ(dp.module().state_dict()[0].first, "0.weight");
  EXPECT_TRUE(dp.module().parameters()[0].same(net.parameters()[0]));
}

TEST_P(DataParallelTest, GradientsAndResultsAreTheModules) {
  nn::Sequential net = mlp(), alone = mlp();
  DataParallel dp(net, {.devices = devices(2)});
  for (const std::int64_t rows : {4, 5, 2, 1}) {  // 1: the second device gets nothing
    const auto whole = batch_here(0, {rows, 6});
    net.zero_grad();
    alone.zero_grad();
    const Tensor y = dp(whole.x), expected = alone(whole.x);
    EXPECT_EQ(y.device(), first());
    EXPECT_LT(testing::relative_difference(y.to(Device()), expected.to(Device())), 1e-6);
    nn::cross_entropy(y, whole.label).backward();
    nn::cross_entropy(expected, whole.label).backward();
    for (std::size_t i = 0; i < net.parameters().size(); ++i) {
      // f32 sums of a few products in another order.
      EXPECT_LT(testing::relative_difference(net.parameters()[i].grad().to(Device()),
                                             alone.parameters()[i].grad().to(Device())),
                1e-5)
          << rows << " rows";
    }
  }
}

TEST_P(DataParallelTest, TheStepsByHandAreItsOwn) {
  const auto two = devices(2);
  const auto whole = batch_here(0, {6, 6});
  nn::Sequential net = mlp();
  DataParallel dp(net, {.devices = two});
  nn::cross_entropy(dp(whole.x), whole.label).backward();

  nn::Sequential by_hand = mlp();
  // Forward.
  std::vector<Tensor> parts = scatter(whole.x, two);
  std::vector<nn::Sequential> replicas = replicate(by_hand, two);
  const std::vector<Tensor> outputs = parallel_apply(std::span(replicas), parts, two);
  const Tensor y = gather(outputs, two[0]);
  // Backward.
  const Tensor loss = nn::cross_entropy(y, whole.label);
  const Tensor gradient = autograd::grad({&loss, 1}, {&y, 1}, {}, {.retain_graph = true})[0];
  const std::vector<Tensor> gradients = scatter_gradients(gradient, outputs);
  parallel_backward(outputs, gradients);
  reduce_gradients(replicas);
  for (std::size_t i = 0; i < net.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(net.parameters()[i].grad().to(Device()),
                          by_hand.parameters()[i].grad().to(Device())));
    EXPECT_FALSE(replicas[1].parameters()[i].grad().defined());
  }
}

// When each of the steps begins, in the order of a step.
std::vector<std::pair<double, std::string>> steps_of(const Tracer& tracer) {
  const testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const auto trace = nlohmann::json::parse(testing::read_file(folder.path("trace.json")));
  std::map<std::string, double> first;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] != "parallel") continue;
    const double begin = event["ts"];
    const auto [place, is_new] = first.emplace(event["name"], begin);
    if (!is_new) place->second = std::min(place->second, begin);
  }
  std::vector<std::pair<double, std::string>> steps;
  for (const auto& [name, begin] : first) steps.emplace_back(begin, name);
  std::ranges::sort(steps);
  return steps;
}

TEST_P(DataParallelTest, ATraceShowsTheStepsAsThoseByHand) {
  const auto two = devices(2);
  const auto whole = batch_here(0, {6, 6});
  nn::Sequential net = mlp(), by_hand = mlp();
  DataParallel dp(net, {.devices = two});
  Tracer of_class, of_hand;
  {
    const Scoped traced(&ThreadState::tracer, &of_class);
    dp(whole.x).sum().backward();
  }
  {
    const Scoped traced(&ThreadState::tracer, &of_hand);
    std::vector<Tensor> parts = scatter(whole.x, two);
    std::vector<nn::Sequential> replicas = replicate(by_hand, two);
    const std::vector<Tensor> outputs = parallel_apply(std::span(replicas), parts, two);
    const Tensor y = gather(outputs, two[0]);
    parallel_backward(outputs, scatter_gradients(ones_like(y), outputs));
    reduce_gradients(replicas);
  }
  for (const Tracer* tracer : {&of_class, &of_hand}) {
    std::vector<std::string> names;
    for (const auto& [begin, name] : steps_of(*tracer)) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"scatter", "replicate", "parallel_apply", "gather",
                                               "scatter_gradients", "parallel_backward",
                                               "reduce_gradients"}));
  }
}

TEST_P(DataParallelTest, ReplicasAreMadeOnTheirDeviceAndKeepTheirMemory) {
  const auto two = devices(2);
  nn::Sequential net = mlp();
  reset_peak_memory(first());
  const std::int64_t before = memory_stats(first()).peak_in_use_bytes;
  DataParallel dp(net, {.devices = two});
  EXPECT_EQ(memory_stats(first()).peak_in_use_bytes, before);
  std::vector<const void*> places;
  for (const Tensor& p : dp.replica(1).parameters()) {
    EXPECT_EQ(p.device(), two[1]);
    places.push_back(p.raw_data());
  }
  const testing::LabelledBatch data = batch_here(0, {8192, 6});
  expect_steady_memory(two, [&] {
    net.zero_grad();
    loss_of(dp, data).backward();
    for (const Tensor& p : net.parameters()) raw::add_scaled_(p, -0.1, p.grad());
  });
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(dp.replica(1).parameters()[i].raw_data(), places[i]);
  }
}

TEST_P(DataParallelTest, OneBackwardAfterSeveralForwards) {
  nn::Sequential net = mlp(), alone = mlp();
  DataParallel dp(net, {.devices = devices(2)});
  const auto a = batch_here(0, {4, 6}), b = batch_here(1, {6, 6});
  (dp(a.x).sum() + dp(b.x).sum()).backward();
  (alone(a.x).sum() + alone(b.x).sum()).backward();
  for (std::size_t i = 0; i < net.parameters().size(); ++i) {
    EXPECT_LT(testing::relative_difference(net.parameters()[i].grad().to(Device()),
                                           alone.parameters()[i].grad().to(Device())),
              1e-5);
  }
}

TEST_P(DataParallelTest, FrozenParametersAndModesAreFollowed) {
  nn::Sequential net = mlp();
  DataParallel dp(net, {.devices = devices(2)});
  const auto whole = batch_here(0, {4, 6});
  net[0].requires_grad(false);
  dp(whole.x).sum().backward();
  EXPECT_FALSE(net.parameters()[0].grad().defined());
  EXPECT_TRUE(net.parameters()[2].grad().defined());
  net[0].requires_grad(true);
  net.eval();
  dp(whole.x).sum().backward();
  EXPECT_TRUE(net.parameters()[0].grad().defined());
  EXPECT_FALSE(dp.replica(1).is_training());
  {
    const NoGrad no_grad;
    EXPECT_FALSE(dp(whole.x).requires_grad());
  }
}

// Only replica 0's statistics are kept, as in PyTorch.
TEST_P(DataParallelTest, BatchNormsKeepReplicaZerosStatistics) {
  const auto make = [] {
    nn::BatchNorm2d norm(2);
    norm.to(first());
    return norm;
  };
  nn::BatchNorm2d norm = make(), alone = make();
  DataParallel dp(norm, {.devices = devices(2)});
  for (int step = 0; step < 3; ++step) {
    const Tensor x = batch_here(step, {6, 2, 2, 2}).x;
    dp(x);
    alone(x.narrow(0, 0, 3));
  }
  EXPECT_TRUE(same_bits(norm.running_mean.to(Device()), alone.running_mean.to(Device())));
  EXPECT_TRUE(same_bits(norm.running_var.to(Device()), alone.running_var.to(Device())));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 3);
}

TEST_P(DataParallelTest, DropoutDrawsTheSameInEveryRun) {
  const auto run = [] {
    manual_seed(5);
    DataParallel dp(nn::Dropout(0.5), {.devices = devices(2)});
    return dp(ones({2, 64}, {DType::f32, first()})).to(Device());
  };
  const Tensor once = run();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(same_bits(run(), once));
  EXPECT_FALSE(same_bits(once.narrow(0, 0, 1), once.narrow(0, 1, 1))) << "replicas draw alike";
}

struct Structured : nn::Module<Structured> {
  nn::Linear left = child("left", nn::Linear(2, 1));
  nn::Linear right = child("right", nn::Linear(2, 1));
  struct Result {
    Tensor l;
    std::map<std::string, Tensor> r;
    auto tensors() { return std::tie(l, r); }
  };
  Result forward(const std::vector<Tensor>& x, const std::pair<Tensor, int>& more, bool both) {
    return {left(x[0]) + left(x[1]) + more.first,
            both ? std::map<std::string, Tensor>{{"right", right(x[0])}}
                 : std::map<std::string, Tensor>()};
  }
};

// Also hooks that are added or removed later, as in PyTorch, which makes the replicas anew in each
// forward.
TEST_P(DataParallelTest, ReplicasCallTheModulesHooks) {
  nn::Sequential net = mlp();
  DataParallel dp(net, {.devices = devices(2)});
  const Tensor x = batch_here(0, {6, 6}).x, plain = dp(x);
  std::atomic<int> calls = 0, rows = 0;
  nn::HookHandle count =
      net[0].register_forward_pre_hook([&](nn::ModuleBase& m, std::span<Tensor> args) {
        EXPECT_EQ(m.parameters()[0].device(), args[0].device());
        ++calls;
        rows += static_cast<int>(args[0].shape(0));
      });
  nn::HookHandle twice = net[2].register_forward_hook(
      [](nn::ModuleBase&, std::span<Tensor> results) { results[0] = results[0] * 2.0; });
  EXPECT_TRUE(same_bits((plain * 2.0).to(Device()), dp(x).to(Device())));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(rows, 6);
  count.remove();
  twice.remove();
  EXPECT_TRUE(same_bits(plain.to(Device()), dp(x).to(Device())));
  EXPECT_EQ(calls, 2);
}

TEST_P(DataParallelTest, ForwardTakesAndReturnsAnything) {
  Structured net;
  net.to(first());
  DataParallel dp(net, {.devices = devices(2), .output_device = devices(2)[1]});
  const Tensor x = ones({4, 2}, {DType::f32, first()});
  const std::pair<Tensor, int> more(zeros({}, {DType::f32, first()}), 3);
  const Structured::Result y = dp(std::vector<Tensor>{x, x}, more, true);
  EXPECT_EQ(y.l.device(), devices(2)[1]);
  EXPECT_EQ(y.r.at("right").shape(), (Shape{4, 1}));
  y.l.sum().backward();
  EXPECT_EQ(net.left.weight.grad().to_vector<double>(), (Values{8, 8}));
  EXPECT_FALSE(net.right.weight.grad().defined());
}

// A scalar from each replica: a loss that is computed where the outputs are.
struct WithLoss : nn::Module<WithLoss> {
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Tensor forward(const Tensor& x) { return fc(x).mean(); }
};

TEST_P(DataParallelTest, ScalarsAreGatheredToAVector) {
  WithLoss net;
  net.to(first());
  DataParallel dp(net, {.devices = devices(2)});
  const Tensor losses = dp(ones({4, 2}, {DType::f32, first()}));
  EXPECT_EQ(losses.shape(), (Shape{2}));
  losses.mean().backward();
  EXPECT_EQ(net.fc.weight.grad().to_vector<double>(), (Values{1, 1}));
  const std::vector<Tensor> outputs = {ones({}, {DType::f32, devices(2)[0]}),
                                       ones({}, {DType::f32, devices(2)[1]})};
  const Tensor gradient = from_vector(std::vector<float>{3, 4}, {2}).to(first());
  for (const int dim : {0, 1}) {
    const std::vector<Tensor> parts = scatter_gradients(gradient, outputs, dim);
    EXPECT_EQ(parts[1].item<float>(), 4);
    EXPECT_EQ(parts[1].device(), devices(2)[1]);
  }
}

struct Recomputed : nn::Module<Recomputed> {
  nn::Linear fc = child("fc", nn::Linear(3, 3));
  Tensor forward(const Tensor& x) {
    const auto layer = [this](const Tensor& y) { return fc(y); };
    return autograd::checkpoint(layer, autograd::checkpoint(layer, x));
  }
};

TEST_P(DataParallelTest, CheckpointsInsideReplicas) {
  Recomputed net = seeded(2, [] { return Recomputed(); });
  net.to(first());
  Recomputed alone = nn::clone(net);
  DataParallel dp(net, {.devices = devices(2)});
  const Tensor x = batch_here(0, {4, 3}).x;
  const Tensor y = dp(x);
  {
    const NoGrad no_grad;  // a forward without gradients, before the backward
    dp(x);
  }
  y.sum().backward();
  alone(x).sum().backward();
  EXPECT_LT(testing::relative_difference(net.fc.weight.grad().to(Device()),
                                         alone.fc.weight.grad().to(Device())),
            1e-6);
}

// --- Several at once -----------------------------------------------------------------------------

struct Sleeper : nn::Module<Sleeper> {
  static inline std::atomic<int> running = 0, most = 0;
  Tensor forward(const Tensor& x) {
    const int now = ++running;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (most < 2 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    --running;
    return x;
  }
};

TEST_P(DataParallelTest, ReplicasRunAtOnce) {
  Sleeper::most = 0;
  DataParallel dp(Sleeper(), {.devices = devices(2)});
  dp(ones({2, 2}, {DType::f32, first()}));
  EXPECT_EQ(Sleeper::most, 2);
}

struct Threads : nn::Module<Threads> {
  static inline std::thread::id of[2];
  Tensor forward(const Tensor& x) {
    of[x.device().index] = std::this_thread::get_id();
    return x;
  }
};

// The caller would otherwise only wait, while one more thread had to be woken.
TEST_P(DataParallelTest, TheCallerRunsTheFirstReplica) {
  DataParallel dp(Threads(), {.devices = devices(2)});
  dp(ones({2, 2}, {DType::f32, first()}));
  EXPECT_EQ(Threads::of[0], std::this_thread::get_id());
  EXPECT_NE(Threads::of[1], std::this_thread::get_id());
}

TEST_P(DataParallelTest, ATraceShowsTheStepsAndReplicasAtOnce) {
  Sleeper::most = 0;
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    DataParallel dp(Sleeper(), {.devices = devices(2)});
    dp(ones({2, 2}, {DType::f32, first()}));
  }
  const testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const auto trace = nlohmann::json::parse(testing::read_file(folder.path("trace.json")));
  std::map<std::string, double> begins;  // of the steps, which run in the caller
  std::vector<std::pair<double, double>> replicas;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] != "parallel") continue;
    const double begin = event["ts"];
    if (event["args"].contains("replica")) {
      if (event["name"] == "parallel_apply") {
        replicas.emplace_back(begin, begin + event["dur"].get<double>());
      }
    } else {
      begins[event["name"]] = begin;
    }
  }
  ASSERT_EQ(begins.size(), 4u);
  EXPECT_LT(begins["scatter"], begins["replicate"]);
  EXPECT_LT(begins["replicate"], begins["parallel_apply"]);
  EXPECT_LT(begins["parallel_apply"], begins["gather"]);
  ASSERT_EQ(replicas.size(), 2u);
  EXPECT_LT(std::max(replicas[0].first, replicas[1].first),
            std::min(replicas[0].second, replicas[1].second));
}

// The weights of the two layers are copied by different threads: the first device's worker has
// nothing else to do.
TEST_P(DataParallelTest, AllDevicesOfTheCpuCopyTheWeights) {
  if (GetParam() != DeviceType::cpu) GTEST_SKIP() << "streams copy for GPUs";
  nn::Sequential net{nn::Linear(64, 64, false), nn::Linear(64, 64, false)};
  DataParallel dp(net, {.devices = devices(2)});
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    dp(ones({2, 64}));
  }
  const testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const auto trace = nlohmann::json::parse(testing::read_file(folder.path("trace.json")));
  std::map<int, double> begins, ends;  // of the first "replicate" span of each thread
  std::map<int, int> copies;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["name"] != "replicate" || !event["args"].contains("replica")) {
      continue;
    }
    const int thread = event["tid"];
    const double begin = event["ts"];
    if (begins.contains(thread) && begins[thread] < begin) continue;
    begins[thread] = begin;
    ends[thread] = begin + event["dur"].get<double>();
  }
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["name"] != "copy_") continue;
    const int thread = event["tid"];
    const double at = event["ts"];
    if (begins.contains(thread) && begins[thread] <= at && at <= ends[thread]) ++copies[thread];
  }
  ASSERT_EQ(copies.size(), 2u);
  for (const auto& [thread, count] : copies) EXPECT_EQ(count, 1) << "thread " << thread;
}

struct Thrower : nn::Module<Thrower> {
  static inline std::atomic<int> done = 0;
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Tensor forward(const Tensor& x, int which) {
    if (x.device().index == which) throw std::runtime_error("no luck");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Tensor y = fc(x);
    ++done;
    return y;
  }
};

TEST_P(DataParallelTest, TheFirstErrorNamesItsDeviceWhenAllHaveEnded) {
  Thrower net;
  net.to(first());
  DataParallel dp(net, {.devices = devices(2)});
  const Tensor x = ones({4, 2}, {DType::f32, first()});
  for (const int which : {0, 1}) {
    Thrower::done = 0;
    const std::string place =
        "replica " + std::to_string(which) + " on " + to_string(devices(2)[which]);
    EXPECT_WEFT_ERROR(dp(x, which), Library, place);
    EXPECT_EQ(Thrower::done, 1) << "the other replica has not ended";
    EXPECT_WEFT_ERROR(dp(x, which), Library, "no luck");
  }
  dp(x, -1).sum().backward();  // it still works
  EXPECT_EQ(net.fc.weight.grad().to_vector<double>(), (Values{4, 4}));
}

// --- What is refused -----------------------------------------------------------------------------

TEST_P(DataParallelTest, SaysWhatIsWrongWithTheDevices) {
  nn::Sequential net = mlp();
  const std::string name = to_string(first());
  const Device second = devices(2)[1], missing(GetParam(), 63);
  EXPECT_WEFT_ERROR(DataParallel(net, {.devices = {first(), first()}}), InvalidArgument,
                    name + " is named twice");
  EXPECT_WEFT_ERROR(DataParallel(net, {.devices = {first(), missing}}), Device, "no such device");
  EXPECT_WEFT_ERROR(DataParallel(net, {.devices = {second, first()}}), Device,
                    "the module must be on " + to_string(second) +
                        ", the first of the devices; its 0.weight is on " + name);
  EXPECT_WEFT_ERROR(DataParallel(net, {.devices = devices(2), .weights = {1}}), InvalidArgument,
                    "1 weights for 2 devices");
  DataParallel dp(net, {.devices = devices(2)});
  net.to(second);
  EXPECT_WEFT_ERROR(dp(batch_here(0, {4, 6}).x), Device, "its 0.weight is on");
}

struct Shared : nn::Module<Shared> {
  Tensor weight = parameter("weight", ones({2}));  // not an nn::Parameter: a clone would share it
  Tensor forward(const Tensor& x) { return x * weight; }
};

TEST_P(DataParallelTest, RefusesWhatCannotBeCopied) {
  Shared net;
  net.to(first());
  EXPECT_WEFT_ERROR(DataParallel(net, {.devices = devices(2)}), InvalidArgument,
                    "weight is still shared with the original");
}

TEST_P(DataParallelTest, WarnsOfDevicesThatAreVeryDifferent) {
  if (GetParam() != DeviceType::cpu) GTEST_SKIP() << "GPUs that are alike";
  const testing::CollectedLog log;
  set_memory_limit("cpu:0", 100 << 20);
  set_memory_limit("cpu:1", 70 << 20);
  nn::Sequential net = mlp();
  DataParallel(net, {.devices = devices(2), .weights = {2, 1}});
  EXPECT_EQ(log.text, "");
  DataParallel(net, {.devices = devices(2)});
  EXPECT_HAS(log.text, "cpu:1 has 73400320 bytes of memory, cpu:0 has 104857600");
  for (const Device device : devices(2)) set_memory_limit(device, 0);
}

WEFT_ON_DEVICES(DataParallelTest);

}  // namespace
}  // namespace weft::parallel
