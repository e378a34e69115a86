// Collectives on tensors of emulated GPUs: their streams and memory, and DDP on them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/parallel/sync_batch_norm.h"
#include "weft/tests/gpu/gpu_ranks.h"
#include "weft/tests/parallel/nets.h"
#include "weft/weft.h"

namespace weft {
namespace {

using comm::ProcessGroup;
using comm::ReduceOp;
using testing::batch;
using testing::gpu_of;
using testing::in_groups;
using testing::LabelledBatch;

// --- Operations ----------------------------------------------------------------------------------

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                             DType::i32, DType::u8,  DType::boolean};
constexpr ReduceOp kReduceOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min,
                                   ReduceOp::max};

/// The results of all operations, from the same numbers on any device.
class Operations {
 public:
  Operations(ProcessGroup& group, Device device, DType dtype)
      : group_(group), device_(device), dtype_(dtype) {
    const int n = group_.size(), rank = group_.rank();
    for (const ReduceOp op : kReduceOps) {
      if (op == ReduceOp::avg && !is_floating(dtype)) continue;
      Tensor x = numbers({kCount});
      group_.all_reduce(x, op).wait();
      keep(x);
      x = numbers({kCount});
      group_.reduce(x, n - 1, op).wait();
      if (rank == n - 1) keep(x);
      x = numbers({n, kCount});
      Tensor y = nothing({kCount});
      group_.reduce_scatter(y, x, op).wait();
      keep(y);
    }
    for (int root = 0; root < n; ++root) {
      Tensor x = numbers({kCount}), y = rank == root ? nothing({n, kCount}) : Tensor();
      group_.gather(y, x, root).wait();
      if (rank == root) keep(y);
      group_.scatter(x, rank == root ? numbers({n, kCount}) : Tensor(), root).wait();
      keep(x);
      group_.broadcast(x, root).wait();
      keep(x);
    }
    const Tensor all = nothing({n, kCount});
    group_.all_gather(all, numbers({kCount})).wait();
    keep(all);
    group_.all_to_all(all, numbers({n, kCount})).wait();
    keep(all);
    const Tensor from_before = nothing({kCount});
    if (rank > 0) group_.recv(from_before, rank - 1).wait();
    if (rank < n - 1) group_.send(numbers({kCount}), rank + 1).wait();
    keep(from_before);
  }

  const std::vector<std::vector<double>>& results() const { return results_; }

 private:
  static constexpr std::int64_t kCount = 1003;

  // Small numbers, different for each rank, place and call.
  Tensor numbers(const Shape& shape) {
    std::vector<double> values(static_cast<std::size_t>(numel(shape)));
    for (double& value : values) value = next_++ * (group_.rank() + 2) % 5;
    return raw::to(raw::to(from_vector(values, shape), dtype_), device_);
  }
  Tensor nothing(const Shape& shape) const { return zeros(shape, {dtype_, device_}); }
  void keep(const Tensor& x) {
    results_.push_back(raw::to(raw::to(x, Device()), DType::f64).to_vector<double>());
  }

  ProcessGroup& group_;
  const Device device_;
  const DType dtype_;
  int next_ = 0;
  std::vector<std::vector<double>> results_;
};

class EveryBackend : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static void run(const std::function<void(ProcessGroup&)>& f) {
    in_groups(std::get<0>(GetParam()), std::get<1>(GetParam()), f);
  }
};

INSTANTIATE_TEST_SUITE_P(OnGpus, EveryBackend,
                         ::testing::Combine(::testing::Values("threads", "shm", "gloo", "ring",
                                                              "nccl", "nccl-ring"),
                                            ::testing::Values(2, 3)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::erase(name, '-');
                           return name + std::to_string(std::get<1>(info.param));
                         });

TEST_P(EveryBackend, OperationsGiveWhatTheyGiveOnTheHost) {
  run([](ProcessGroup& group) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(to_string(dtype));
      const auto got = Operations(group, gpu_of(group.rank()), dtype).results();
      const auto expected = Operations(group, Device(), dtype).results();
      ASSERT_EQ(got.size(), expected.size());
      // NCCL divides before it adds, so thirds are rounded.
      const double rounding = dtype == DType::bf16 ? 0.02 : is_floating(dtype) ? 1e-6 : 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].size(), expected[i].size());
        for (std::size_t k = 0; k < got[i].size(); ++k) {
          ASSERT_NEAR(got[i][k], expected[i][k], rounding * std::abs(expected[i][k]))
              << "result " << i << " at " << k;
        }
      }
    }
  });
}

// --- Streams and memory --------------------------------------------------------------------------

/// A tensor whose value is queued, and not yet computed if streams are late.
Tensor late(Device device, double value) {
  return raw::add(raw::mul(full({1000}, value, {DType::f32, device}), 2), 1);
}
void expect(const Tensor& x, double value) {
  EXPECT_EQ(x.to(Device()).to_vector<float>(), std::vector<float>(1000, float(value)));
}

TEST_P(EveryBackend, AnOperationComesAfterWhatMakesItsTensorAndBeforeWhatReadsIt) {
  run([](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    const int n = group.size(), sum = n * (n - 1) + n;
    Runtime& cuda = runtime(device);
    const Stream makes = cuda.new_stream(device.index), reads = cuda.new_stream(device.index);
    Tensor x;
    comm::Work work;
    {
      const StreamScope scope(makes);
      x = late(device, group.rank());
      work = group.all_reduce(x);
    }
    const StreamScope scope(reads);
    work.wait();
    expect(raw::mul(x, 2), 2 * sum);
  });
}

TEST_P(EveryBackend, WaitingTwiceAndFromTwoStreamsIsFine) {
  run([](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    const Tensor x = late(device, 0);
    const comm::Work work = group.all_reduce(x);
    for (int i = 0; i < 2; ++i) {
      const StreamScope scope(runtime(device).new_stream(device.index));
      work.wait();
      expect(raw::mul(x, 1), group.size());
    }
  });
}

TEST_P(EveryBackend, TensorsMayBeDroppedAtOnce) {
  run([](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    const Tensor all = empty({group.size(), 1000}, {DType::f32, device});
    std::vector<Tensor> others;
    for (int i = 0; i < 10; ++i) {
      const comm::Work work = group.all_gather(all, late(device, i));
      static_cast<void>(group.all_reduce(late(device, i)));
      others.push_back(late(device, 100));  // they would use memory that was freed too early
      work.wait();
      expect(raw::select(all, 0, group.size() - 1), 2 * i + 1);
    }
    for (const Tensor& other : others) expect(other, 201);
  });
}

TEST_P(EveryBackend, AResultsMemoryIsKeptUntilItIsThere) {
  run([](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    for (int i = 0; i < 10; ++i) {
      group.all_reduce(late(device, i)).wait();
      const StreamScope scope(runtime(device).new_stream(device.index));
      expect(late(device, 7), 15);
    }
  });
}

TEST_P(EveryBackend, HostAndDeviceTensorsTakeTurns) {
  run([](ProcessGroup& group) {
    for (int i = 0; i < 3; ++i) {
      const Tensor here = full({1000}, i), there = late(gpu_of(group.rank()), i);
      const comm::Work first = group.all_reduce(there), second = group.all_reduce(here);
      second.wait();
      first.wait();
      expect(here, group.size() * i);
      expect(there, group.size() * (2 * i + 1));
    }
  });
}

// --- Messages ------------------------------------------------------------------------------------

/// Rank 0 sends to rank 1 from each of its two GPUs to each of the other's; others wait meanwhile.
void send_between_all_gpus(ProcessGroup& group) {
  const int rank = group.rank();
  for (const int from : {0, 1}) {
    for (const int to : {0, 1}) {
      SCOPED_TRACE(detail::concat("from GPU ", from, " to GPU ", to));
      const double value = 10 * from + to + 1;
      if (rank == 0) group.send(late(gpu_of(from), value), 1).wait();
      if (rank == 1) {
        const Tensor x = late(gpu_of(2 + to), 0);
        group.recv(x, 0).wait();
        expect(raw::mul(x, 2), 4 * value + 2);
      }
      group.barrier().wait();
    }
  }
}

/// The same after a collective with the first GPU of each rank, and one with the second.
void send_after_collectives(ProcessGroup& group) {
  for (const int place : {0, 1}) {
    SCOPED_TRACE(detail::concat("after collective ", place));
    const Tensor x = late(gpu_of(2 * group.rank() + place), 1);
    group.all_reduce(x).wait();
    expect(x, 3 * group.size());
    send_between_all_gpus(group);
  }
}

TEST_P(EveryBackend, MessagesGoFromAnyGpuToAny) { run(send_after_collectives); }

TEST(Automatic, MessagesGoFromAnyGpuToAnyBeforeAndAfterCollectives) {
  constexpr int kRanks = 3;
  // With fewer, threads would share default streams.
  if (device_count(DeviceType::cuda) < 2 * kRanks)
    GTEST_SKIP() << "needs " << 2 * kRanks << " GPUs";
  comm::run_ranks(kRanks, [](ProcessGroup& group) {
    send_between_all_gpus(group);
    send_after_collectives(group);
  });
}

// Of rank 1 the first message has another GPU than the first collective.
TEST(Automatic, AMessageOfTwoRanksComesBeforeTheFirstCollective) {
  constexpr int kRanks = 2;
  if (device_count(DeviceType::cuda) < 2 * kRanks)
    GTEST_SKIP() << "needs " << 2 * kRanks << " GPUs";
  comm::run_ranks(kRanks,
                  [](ProcessGroup& group) {
                    const Tensor x = late(gpu_of(3 * group.rank()), group.rank() + 1);
                    if (group.rank() == 0) {
                      group.send(x, 1).wait();
                    } else {
                      group.recv(x, 0).wait();
                      expect(x, 3);
                    }
                    send_after_collectives(group);
                  },
                  {.timeout = std::chrono::seconds(60)});
}

// --- DistributedDataParallel ---------------------------------------------------------------------

using Make = nn::Sequential (*)();

struct Net {
  const char* name;
  Make make;
  Shape sample;  // the shape [1, ...] of one sample

  Shape batch_of(std::int64_t n) const {
    Shape shape = sample;
    shape[0] = n;
    return shape;
  }
};
const Net kNets[] = {{"mlp", &testing::mlp, {1, 6}}, {"cnn", &testing::cnn, {1, 1, 8, 8}}};

LabelledBatch on(Device device, const LabelledBatch& batch) {
  return {batch.x.to(device), batch.label.to(device)};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = raw::contiguous(a.to(Device())), y = raw::contiguous(b.to(Device()));
  return x.shape() == y.shape() &&
         std::memcmp(x.raw_data(), y.raw_data(),
                     static_cast<std::size_t>(x.numel()) * size_of(x.dtype())) == 0;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device()), y = b.to(Device());
  return raw::norm(raw::sub(x, y)).item<double>() / raw::norm(y).item<double>();
}

class Ddp : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OnGpus, Ddp, ::testing::Values("threads", "shm", "nccl", "nccl-ring"));

constexpr int kSteps = 6, kShard = 4;

// The weights after each step of one process, in f32, with the shards of two ranks.
std::vector<std::vector<Tensor>> weights_of_one_process(const Net& net) {
  std::vector<std::vector<Tensor>> weights;
  nn::Sequential one = testing::seeded(3, net.make);
  one.to(gpu_of(0));
  optim::SGD sgd(one.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < kSteps; ++step) {
    const LabelledBatch all = batch(step, net.batch_of(2 * kShard), DType::f32);
    testing::backward_of_shards(one, on(gpu_of(0), all), 2);
    sgd.step();
    auto& of_step = weights.emplace_back();
    for (const Tensor& p : one.parameters()) of_step.push_back(raw::to(p, Device()));
  }
  return weights;
}

// Forward and backward of one of the two shards, on the rank's GPU.
template <class Called>
void backward_of_rank(const Net& net, int rank, int step, Called& model) {
  const LabelledBatch all = batch(step, net.batch_of(2 * kShard), DType::f32);
  const LabelledBatch part = on(gpu_of(rank), all.shard(rank, 2));
  nn::cross_entropy(model(part.x), part.label).backward();
}

// (a) f32, two ranks, each on its own GPU, bit for bit.
TEST_P(Ddp, TwoRanksAreOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    const std::vector<std::vector<Tensor>> expected = weights_of_one_process(net);
    in_groups(GetParam(), 2, [&](ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3 + group.rank(), net.make);
      model.to(gpu_of(group.rank()));
      parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
      optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < kSteps; ++step) {
        sgd.zero_grad();
        backward_of_rank(net, group.rank(), step, ddp);
        sgd.step();
        const std::vector<Tensor> weights = model.parameters();
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(same_bits(weights[i], expected[step][i])) << "step " << step << ", " << i;
        }
      }
    });
  }
}

// The same with parameters that are cut, each layer by itself.
TEST_P(Ddp, FullyShardedIsOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    const std::vector<std::vector<Tensor>> expected = weights_of_one_process(net);
    in_groups(GetParam(), 2, [&](ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3 + group.rank(), net.make);
      model.to(gpu_of(group.rank()));
      model.apply([&](nn::ModuleBase& m) {
        if (!m.name().empty() && !m.parameters().empty()) parallel::fully_shard(m, group);
      });
      const parallel::FullySharded sharded = parallel::fully_shard(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < kSteps; ++step) {
        sgd.zero_grad();
        backward_of_rank(net, group.rank(), step, model);
        EXPECT_GT(sharded.clip_grad_norm(1e6).item<double>(), 0);
        sgd.step();
        const nn::NamedTensors weights = sharded.state_dict();
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(same_bits(weights[i].second, expected[step][i])) << step << ", " << i;
        }
      }
    });
  }
}

// The first half of a perceptron is on one GPU, the second on another or on the same one.
struct Across : nn::Module<Across> {
  Across(Device a, Device b) : first(a), second(b) {
    up.to(a);
    down.to(b);
  }
  Tensor forward(const Tensor& x) { return down(relu(up(x.to(first))).to(second)); }

  Device first, second;
  nn::Linear up = child("up", nn::Linear(6, 8));
  nn::Linear down = child("down", nn::Linear(8, 3));
};

// (b) f64, compared with the whole batch on the host; every second step has two backwards.
TEST_P(Ddp, RanksAreOneProcessWithTheWholeBatch) {
  constexpr int kSteps = 100, kBatch = 12;
  const auto make = [](std::uint64_t seed, Device a, Device b) {
    manual_seed(seed);
    Across model(a, b);
    model.to(DType::f64);
    return model;
  };
  Across whole = make(3, Device(), Device());
  const auto train = [&](int rank, int n, auto& model, auto& optimizer, const auto& no_sync) {
    for (int step = 0; step < kSteps; ++step) {
      const LabelledBatch part = batch(step, {kBatch, 6}, DType::f64).shard(rank, n);
      const auto backward = [&](const LabelledBatch& some) {
        const Tensor y = model(some.x);
        nn::cross_entropy(y, some.label.to(y.device())).backward();
      };
      optimizer.zero_grad();
      if (step % 2 == 0) {
        backward(part);
      } else {
        no_sync([&] { backward(part.shard(0, 2)); });
        backward(part.shard(1, 2));
      }
      optimizer.step();
    }
  };
  optim::Adam adam(whole.parameters(), {.lr = 0.01});
  train(0, 1, whole, adam, [](const auto& f) { f(); });
  for (const int n : {2, 3}) {
    for (const bool two_gpus : {false, true}) {
      in_groups(GetParam(), n, [&](ProcessGroup& group) {
        const int rank = group.rank();
        Across model = make(3 + rank, gpu_of(2 * rank), gpu_of(2 * rank + two_gpus));
        parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
        optim::Adam adam(model.parameters(), {.lr = 0.01});
        train(rank, n, ddp, adam, [&](const auto& f) {
          const auto scope = ddp.no_sync();
          f();
        });
        const auto expected = whole.named_parameters(), got = model.named_parameters();
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE(relative_difference(got[i].second, expected[i].second), 1e-9)
              << got[i].first << " of " << n << " ranks";
        }
      });
    }
  }
}

template <class Norm>
struct Block : nn::Module<Block<Norm>> {
  explicit Block(const Norm& norm)
      : conv(this->child("conv", nn::Conv2d(1, 4, 3, {.bias = false}))),
        bn(this->child("bn", norm)),
        fc(this->child("fc", nn::Linear(4 * 36, 3))) {}
  Tensor forward(const Tensor& x) { return fc(relu(bn(conv(x))).flatten(1)); }

  nn::Conv2d conv;
  Norm bn;
  nn::Linear fc;
};

TEST_P(Ddp, SyncBatchNormIsThatOfTheWholeBatch) {
  constexpr int kSteps = 10, kBatch = 12;
  const auto train = [](int rank, int n, Device device, auto& model, const auto& parameters) {
    optim::SGD sgd(parameters, {.lr = 0.05, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      const LabelledBatch part =
          on(device, batch(step, {kBatch, 1, 8, 8}, DType::f64).shard(rank, n));
      sgd.zero_grad();
      nn::cross_entropy(model(part.x), part.label).backward();
      sgd.step();
    }
  };
  auto whole = testing::seeded(3, [] { return Block(nn::BatchNorm2d(4)); });
  whole.to(DType::f64);
  train(0, 1, Device(), whole, whole.parameters());
  for (const int n : {2, 3}) {
    in_groups(GetParam(), n, [&](ProcessGroup& group) {
      const auto own = group.duplicate();
      auto model = testing::seeded(3, [&] { return Block(parallel::SyncBatchNorm2d(4, own)); });
      const Device device = gpu_of(group.rank());
      model.to(device, DType::f64);
      parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
      train(group.rank(), n, device, ddp, model.parameters());
      const auto expected = whole.state_dict(), got = model.state_dict();
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!is_floating(got[i].second.dtype())) continue;
        EXPECT_LE(relative_difference(got[i].second, expected[i].second), 1e-8)
            << got[i].first << " of " << n << " ranks";
      }
    });
  }
}

struct Halves : nn::Module<Halves> {
  nn::Parameter left = parameter("left", ones({2}));
  nn::Parameter right = parameter("right", ones({2}));
  nn::Parameter neither = parameter("neither", ones({2}));
  Tensor forward(const Tensor& x, bool is_left) { return x * (is_left ? left : right); }
};

TEST_P(Ddp, BatchesMayRunOutAndParametersBeLeftOut) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    Halves model;
    model.to(device);
    parallel::DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    ddp.join([&] {
      for (int step = 0; step < 1 + group.rank(); ++step) {
        model.zero_grad();
        sum(ddp(full({2}, 4, {DType::f32, device}), group.rank() == 0)).backward();
        EXPECT_EQ(model.right.grad().to_vector<float>(), std::vector<float>(2, 2));
        if (step == 0) {
          EXPECT_EQ(model.left.grad().to_vector<float>(), std::vector<float>(2, 2));
        }
        EXPECT_FALSE(model.neither.grad().defined());
      }
    });
  });
}

TEST_P(Ddp, GradientsMayTravelInBf16) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Linear model(2, 1);
    model.to(device);
    parallel::DistributedDataParallel ddp(model, group, {.comm_hook = parallel::bf16_compress});
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      sum(ddp(full({1, 2}, 2 * group.rank() + step, {DType::f32, device}))).backward();
      const float mean = 1.0F + static_cast<float>(step);
      EXPECT_EQ(model.weight.grad().to_vector<float>(), std::vector<float>(2, mean));
    }
  });
}

// --- Horovod -------------------------------------------------------------------------------------

using Horovod = Ddp;
INSTANTIATE_TEST_SUITE_P(OnGpus, Horovod, ::testing::Values("threads", "shm", "nccl", "nccl-ring"));

// Rank 1 has trained before, and rank 0 gets its weights and moments. Their steps must be those of
// one process with the whole batch.
TEST_P(Horovod, RanksTakeUpTheRootsTrainingAndAreOneProcess) {
  constexpr int kBatch = 8, kBefore = 2, kSteps = 6, kRoot = 1;
  const auto train = [](Device device, nn::Sequential& model, optim::Optimizer& adam, int begin,
                        int end, int rank, int n) {
    for (int step = begin; step < end; ++step) {
      const LabelledBatch part = on(device, batch(step, {kBatch, 6}, DType::f64).shard(rank, n));
      adam.zero_grad();
      nn::cross_entropy(model(part.x), part.label).backward();
      adam.step();
    }
  };
  const auto seeded = [](Device device) {
    nn::Sequential model = testing::seeded(3, testing::mlp);
    model.to(device, DType::f64);
    return model;
  };
  nn::Sequential whole = seeded(Device());
  optim::Adam expected(whole.parameters());
  train(Device(), whole, expected, 0, kSteps, 0, 1);
  in_groups(GetParam(), 2, [&](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Sequential model = seeded(device);
    optim::Adam own(model.parameters());
    if (group.rank() == kRoot) train(device, model, own, 0, kBefore, 0, 1);
    const parallel::Horovod hvd(group);
    hvd.broadcast_parameters(model.state_dict(), kRoot);
    parallel::DistributedOptimizer adam(hvd, std::move(own), model.named_parameters());
    hvd.broadcast_optimizer_state(adam, kRoot);
    train(device, model, adam, kBefore, kSteps, group.rank(), 2);
    const auto want = whole.state_dict(), got = model.state_dict();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].second.device(), device);
      EXPECT_LE(relative_difference(got[i].second, want[i].second), 1e-12) << got[i].first;
    }
  });
}

}  // namespace
}  // namespace weft
