// Weights of convolutions on emulated GPUs: they have channels last there, and with them all that
// is laid out like them; on the CPU and in files they are row-major.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/tests/gpu/gpu_ranks.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"
#include "weft/train/checkpoint.h"
#include "weft/weft.h"

namespace weft {
namespace {

using testing::batch;
using testing::gpu_of;
using testing::LabelledBatch;

const Device kHost, kFirst("cuda:0"), kSecond("cuda:1");

/// Convolutions whose weights differ in the two formats, and a parameter that only looks like one.
struct Net : nn::Module<Net> {
  nn::Conv2d down = child("down", nn::Conv2d(2, 4, 3, {.padding = 1}));
  nn::ConvTranspose2d up = child("up", nn::ConvTranspose2d(4, 3, 2, {.stride = 2}));
  nn::Parameter scale = parameter("scale", ones({1, 3, 2, 2}));
  nn::Linear fc = child("fc", nn::Linear(12, 3));
  Tensor forward(const Tensor& x) {
    const Tensor y = max_pool2d(up(relu(down(x))), {.kernel = {4, 4}, .stride = {4, 4}});
    return fc((y * scale).flatten(1));
  }
};
const Shape kImages{4, 2, 4, 4};

LabelledBatch images(int step, Device device) {
  const LabelledBatch made = batch(step, kImages, DType::f32);
  return {made.x.to(device), made.label.to(device)};
}

bool is_of(const Tensor& x, MemoryFormat format) {
  const bool row_major = x.is_contiguous(), channels_last = x.is_channels_last();
  return format == MemoryFormat::nchw ? row_major && !channels_last : channels_last && !row_major;
}
void expect_weights(const Net& net, MemoryFormat format) {
  EXPECT_TRUE(is_of(net.down.weight, format)) << net.down.weight.strides();
  EXPECT_TRUE(is_of(net.up.weight, format)) << net.up.weight.strides();
  EXPECT_TRUE(is_of(net.scale, MemoryFormat::nchw)) << "no weight of a convolution";
}
void expect_gradients(const Net& net) {
  for (const Tensor& p : net.parameters()) EXPECT_EQ(p.grad().strides(), p.strides());
}

std::vector<float> values(const Tensor& x) { return x.to(kHost).contiguous().to_vector<float>(); }
std::vector<std::vector<float>> values(const nn::NamedTensors& tensors) {
  std::vector<std::vector<float>> all;
  for (const auto& [name, x] : tensors) {
    all.push_back(values(x.dtype() == DType::f32 ? x : x.to(DType::f32)));
  }
  return all;
}

void step(Net& net, optim::Optimizer& optimizer, const LabelledBatch& examples) {
  optimizer.zero_grad();
  nn::cross_entropy(net(examples.x), examples.label).backward();
  optimizer.step();
}

class Weights : public ::testing::Test {
 protected:
  const Scoped<bool> deterministic{&ThreadState::deterministic, true};
};

TEST_F(Weights, TakeTheDevicesFormatWhereverTheyGo) {
  Net net = testing::seeded(1, [] { return Net(); });
  expect_weights(net, MemoryFormat::nchw);
  const auto before = values(net.state_dict());
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  nn::cross_entropy(net(images(0, kHost).x), images(0, kHost).label).backward();
  const std::vector<float> gradient = values(net.down.weight.grad());
  for (const auto& [device, format] :
       {std::pair(kFirst, MemoryFormat::nhwc), std::pair(kSecond, MemoryFormat::nhwc),
        std::pair(kHost, MemoryFormat::nchw)}) {
    net.to(device);
    expect_weights(net, format);
    expect_gradients(net);
    EXPECT_EQ(values(net.state_dict()), before);
    EXPECT_EQ(values(net.down.weight.grad()), gradient);
  }
  for (const auto& [device, format] :
       {std::pair(kFirst, MemoryFormat::nhwc), std::pair(kHost, MemoryFormat::nchw)}) {
    const Net copy = nn::replicate(net, device);
    expect_weights(copy, format);
    expect_weights(nn::clone(copy), format);
    EXPECT_EQ(values(copy.state_dict()), before);
  }
}

TEST_F(Weights, TheyHaveItFromTheBeginning) {
  const Scoped here(&ThreadState::device, kFirst);
  expect_weights(Net(), MemoryFormat::nhwc);
}

// Weights of one channel or one pixel, which have both formats: else each step would copy
// gradients.
TEST_F(Weights, OfBothFormatsHaveTheStridesOfTheirGradients) {
  const Scoped here(&ThreadState::device, kFirst);
  nn::Sequential net{nn::Conv2d(2, 4, 1), nn::Conv2d(4, 4, 3, {.padding = 1, .groups = 4}),
                     nn::ConvTranspose2d(4, 1, 2)};
  net(ones({2, 2, 4, 4})).sum().backward();
  for (const Tensor& p : net.parameters()) EXPECT_EQ(p.grad().strides(), p.strides());
}

TEST_F(Weights, WhatIsLikeThemHasTheirStrides) {
  Net net = testing::seeded(1, [] { return Net(); });
  net.to(kFirst);
  optim::Adam adam(net.parameters(), {.lr = 0.01});
  const nn::ExponentialMovingAverage ema(net, 0.9);
  for (int i = 0; i < 2; ++i) step(net, adam, images(i, kFirst));
  expect_gradients(net);
  int moments = 0, averages = 0;
  const Shape shape = net.down.weight.shape();
  for (const auto& [name, x] : adam.state_dict()) {
    if (x.shape() == shape) moments += is_of(x, MemoryFormat::nhwc);
  }
  for (const auto& [name, x] : ema.state_dict()) {
    if (x.shape() == shape) averages += is_of(x, MemoryFormat::nhwc);
  }
  EXPECT_EQ(moments, 2);
  EXPECT_EQ(averages, 1);
  // Also a gradient that can be differentiated again.
  const Tensor w = net.down.weight;
  const Tensor loss = net(images(0, kFirst).x).sum();
  EXPECT_EQ(autograd::grad(loss, w, {.create_graph = true}).strides(), w.strides());
}

// Trains on the CPU, saves, loads it on a GPU and saves that, loads it on the CPU: the files hold
// the same bytes, and the training goes on as if it had not been interrupted.
TEST_F(Weights, ACheckpointCrossesAGpuToTheBit) {
  const testing::TempFolder folder;
  Net net = testing::seeded(1, [] { return Net(); });
  optim::Adam adam(net.parameters(), {.lr = 0.01});
  for (int i = 0; i < 3; ++i) step(net, adam, images(i, kHost));
  const auto save = [&](const char* name, const Net& of, const optim::Optimizer& optimizer) {
    train::save_checkpoint(folder.path(name),
                           {.model = of.state_dict(), .parts = {optimizer.state_dict()}});
  };
  const auto load = [&](const char* name, Net& into, optim::Optimizer& optimizer) {
    const train::Checkpoint checkpoint = train::load_checkpoint(folder.path(name));
    into.load_state_dict(checkpoint.model);
    optimizer.load_state_dict(checkpoint.parts.at(0));
  };
  save("cpu", net, adam);

  Net there = testing::seeded(2, [] { return Net(); });
  there.to(kFirst);
  optim::Adam of_there(there.parameters(), {.lr = 0.01});
  load("cpu", there, of_there);
  expect_weights(there, MemoryFormat::nhwc);
  save("cuda", there, of_there);
  EXPECT_EQ(testing::read_file(folder.path("cuda")), testing::read_file(folder.path("cpu")));

  Net back = testing::seeded(3, [] { return Net(); });
  optim::Adam of_back(back.parameters(), {.lr = 0.01});
  load("cuda", back, of_back);
  expect_weights(back, MemoryFormat::nchw);
  for (int i = 3; i < 6; ++i) {
    step(net, adam, images(i, kHost));
    step(back, of_back, images(i, kHost));
  }
  EXPECT_EQ(values(back.state_dict()), values(net.state_dict()));
  EXPECT_EQ(values(of_back.state_dict()), values(adam.state_dict()));
}

/// The weights after each of three steps, whose gradients are those of two halves of the batch.
std::vector<std::vector<std::vector<float>>> weights_of_one_gpu() {
  Net net = testing::seeded(4, [] { return Net(); });
  net.to(kFirst);
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  std::vector<std::vector<std::vector<float>>> all;
  for (int i = 0; i < 3; ++i) {
    testing::backward_of_shards(net, images(i, kFirst), 2);
    sgd.step();
    all.push_back(values(net.state_dict()));
  }
  return all;
}

TEST_F(Weights, DdpOverTwoGpusIsOneBitForBit) {
  const auto expected = weights_of_one_gpu();
  testing::in_groups("threads", 2, [&](comm::ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    Net net = testing::seeded(4 + group.rank(), [] { return Net(); });
    net.to(device);
    parallel::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1e-4});
    optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int i = 0; i < 3; ++i) {
      const LabelledBatch part = images(i, device).shard(group.rank(), 2);
      sgd.zero_grad();
      nn::cross_entropy(ddp(part.x), part.label).backward();
      expect_gradients(net);  // in the buckets
      sgd.step();
      EXPECT_EQ(values(net.state_dict()), expected[static_cast<std::size_t>(i)]) << "step " << i;
    }
  });
}

TEST_F(Weights, DataParallelOfAModelFromTheCpuIsOneGpuBitForBit) {
  const auto expected = weights_of_one_gpu();
  Net net = testing::seeded(4, [] { return Net(); });
  net.to(kFirst);
  parallel::DataParallel dp(net, {.devices = {kFirst, kSecond}});
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int i = 0; i < 3; ++i) {
    const LabelledBatch examples = images(i, kFirst);
    sgd.zero_grad();
    nn::cross_entropy(dp(examples.x), examples.label).backward();
    expect_gradients(net);
    sgd.step();
    EXPECT_EQ(values(net.state_dict()), expected[static_cast<std::size_t>(i)]) << "step " << i;
  }
}

// The replica keeps its own layout and memory, and the gradients come in the original's.
TEST_F(Weights, AReplicaOnAGpuFollowsAModelOnTheCpu) {
  Net net = testing::seeded(4, [] { return Net(); });
  Net replica = nn::replicate(net, kFirst);
  nn::Follower follower(net, replica);
  const void* const memory = replica.down.weight.raw_data();
  for (int i = 0; i < 2; ++i) {
    follower.follow();
    expect_weights(replica, MemoryFormat::nhwc);
    EXPECT_EQ(replica.down.weight.raw_data(), memory);
    EXPECT_EQ(values(replica.state_dict()), values(net.state_dict()));
    net.zero_grad();
    const LabelledBatch examples = images(i, kFirst);
    nn::cross_entropy(replica(examples.x), examples.label).backward();
    expect_gradients(net);
    raw::add_scaled_(net.down.weight, -0.1, net.down.weight.grad());
  }
  net.to(DType::bf16);
  follower.follow();
  expect_weights(replica, MemoryFormat::nhwc);
}

}  // namespace
}  // namespace weft
