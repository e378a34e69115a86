// The two proofs that the ranks compute what one process does, and what the wrapper adds.
#include "weft/parallel/distributed_data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::LabelledBatch;

using Make = nn::Sequential (*)();

struct Net {
  const char* name;
  Make make;
  Shape sample;  // [1, ...]

  Shape batch_of(std::int64_t n) const {
    Shape shape = sample;
    shape[0] = n;
    return shape;
  }
};
const Net kNets[] = {{"mlp", &testing::mlp, {1, 6}}, {"cnn", &testing::cnn, {1, 1, 8, 8}}};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(raw::contiguous(a).raw_data(), raw::contiguous(b).raw_data(),
                     static_cast<std::size_t>(a.numel()) * size_of(a.dtype())) == 0;
}

// (a) f32, two ranks, bit for bit.
TEST(DistributedDataParallelTest, TwoRanksAreOneProcessBitForBit) {
  constexpr int kSteps = 12, kShard = 4;
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    std::vector<std::vector<Tensor>> expected;  // by step
    nn::Sequential one = testing::seeded(3, net.make);
    optim::SGD sgd(one.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      testing::backward_of_shards(one, batch(step, net.batch_of(2 * kShard), DType::f32), 2);
      sgd.step();
      auto& weights = expected.emplace_back();
      for (const Tensor& p : one.parameters()) weights.push_back(raw::clone(p));
    }
    // Whatever the buckets, in the first step and after they have been rebuilt.
    for (const std::optional<double> cap : {std::optional<double>(), std::optional(1e-4)}) {
      comm::run_ranks(2, [&](comm::ProcessGroup& group) {
        nn::Sequential model = testing::seeded(3 + group.rank(), net.make);
        DistributedDataParallel ddp(model, group, {.bucket_cap_mb = cap});
        optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
        for (int step = 0; step < kSteps; ++step) {
          const LabelledBatch part =
              batch(step, net.batch_of(2 * kShard), DType::f32).shard(group.rank(), 2);
          sgd.zero_grad();
          nn::cross_entropy(ddp(part.x), part.label).backward();
          sgd.step();
          const std::vector<Tensor> weights = model.parameters();
          for (std::size_t i = 0; i < weights.size(); ++i) {
            EXPECT_TRUE(same_bits(weights[i], expected[step][i])) << "step " << step << ", " << i;
          }
        }
      });
    }
  }
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const double scale = raw::norm(b).item<double>();
  return raw::norm(raw::sub(a, b)).item<double>() / scale;
}

// (b) f64, one to four ranks, against the whole batch.
TEST(DistributedDataParallelTest, RanksAreOneProcessWithTheWholeBatch) {
  constexpr int kSteps = 100, kBatch = 12;
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    const auto make = [&](std::uint64_t seed) {
      nn::Sequential model = testing::seeded(seed, net.make);
      model.to(DType::f64);
      return model;
    };
    nn::Sequential whole = make(3);
    const std::vector<Tensor> start = whole.parameters();
    optim::Adam adam(whole.parameters(), {.lr = 0.01});
    for (int step = 0; step < kSteps; ++step) {
      const LabelledBatch all = batch(step, net.batch_of(kBatch), DType::f64);
      adam.zero_grad();
      nn::cross_entropy(whole(all.x), all.label).backward();
      adam.step();
    }
    for (int n = 1; n <= 4; ++n) {
      comm::run_ranks(n, [&](comm::ProcessGroup& group) {
        nn::Sequential model = make(3 + group.rank());
        DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
        optim::Adam adam(model.parameters(), {.lr = 0.01});
        for (int step = 0; step < kSteps; ++step) {
          const LabelledBatch part =
              batch(step, net.batch_of(kBatch), DType::f64).shard(group.rank(), n);
          adam.zero_grad();
          nn::cross_entropy(ddp(part.x), part.label).backward();
          adam.step();
        }
        const auto expected = whole.named_parameters();
        const auto got = model.named_parameters();
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE(relative_difference(got[i].second, expected[i].second), 1e-9)
              << got[i].first << " of " << n << " ranks";
        }
      });
    }
  }
}

// The proofs above start from weights that differ: rank 0's are everybody's.
TEST(DistributedDataParallelTest, ParametersAndBuffersBecomeRankZeros) {
  comm::run_ranks(3, [](comm::ProcessGroup& group) {
    const auto make = [] {
      return nn::Sequential{nn::Linear(3, 2), nn::BatchNorm2d(2), nn::Linear(2, 2)};
    };
    nn::Sequential model = testing::seeded(group.rank(), make);
    raw::fill_(model[1].as<nn::BatchNorm2d>()->running_mean, group.rank() + 5);
    model[0].requires_grad(false);  // frozen ones, too
    const DistributedDataParallel ddp(model, group);
    nn::Sequential roots = testing::seeded(0, make);
    raw::fill_(roots[1].as<nn::BatchNorm2d>()->running_mean, 5);
    const auto expected = roots.state_dict(), got = model.state_dict();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(same_bits(got[i].second, expected[i].second)) << got[i].first;
    }
  });
}

TEST(DistributedDataParallelTest, NamesAndStateAreTheModules) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    nn::Sequential model = testing::mlp();
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(ddp.module().state_dict()[0].first, "0.weight");
    EXPECT_TRUE(ddp.module().parameters()[0].same(model.parameters()[0]));
    EXPECT_EQ(ddp.module().to_string(), testing::mlp().to_string());
  });
}

struct TwoHeads : nn::Module<TwoHeads> {
  nn::Linear left = child("left", nn::Linear(2, 1));
  nn::Linear right = child("right", nn::Linear(2, 1));
  struct Result {
    Tensor l;
    std::map<std::string, Tensor> r;
    auto tensors() { return std::tie(l, r); }
  };
  Result forward(const Tensor& x, bool both) {
    return {left(x), both ? std::map<std::string, Tensor>{{"right", right(x)}}
                          : std::map<std::string, Tensor>()};
  }
};

TEST(DistributedDataParallelTest, ForwardTakesAndReturnsAnything) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    DistributedDataParallel ddp(TwoHeads(), group, {.find_unused_parameters = true});
    const auto y = ddp(ones({1, 2}), true);
    sum(y.l + y.r.at("right")).backward();
    EXPECT_EQ(ddp.module().right.weight.grad().to_vector<float>(), (std::vector<float>{1, 1}));
    sum(ddp(ones({1, 2}), false).l).backward();
    EXPECT_EQ(ddp.module().left.weight.grad().to_vector<float>(), (std::vector<float>{2, 2}));
    EXPECT_EQ(ddp.module().right.weight.grad().to_vector<float>(), (std::vector<float>{1, 1}));
  });
}

struct Hidden {
  virtual ~Hidden() = default;
  Tensor y;
};
struct HidesItsResult : nn::Module<HidesItsResult> {
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Hidden forward(const Tensor& x) {
    Hidden h;
    h.y = fc(x);
    return h;
  }
};

TEST(DistributedDataParallelTest, AResultThatCannotBeWalkedIsAnErrorOnlyWhereItMustBe) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    DistributedDataParallel walks(HidesItsResult(), group, {.find_unused_parameters = true});
    EXPECT_WEFT_ERROR(walks(ones({1, 2})), InvalidArgument, "Hidden");
    DistributedDataParallel plain(HidesItsResult(), group);
    sum(plain(ones({1, 2})).y).backward();
    EXPECT_EQ(plain.module().fc.bias.grad().item<float>(), 1);
  });
}

struct ReturnsNothing : nn::Module<ReturnsNothing> {
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Tensor last;
  void forward(const Tensor& x) { last = fc(x); }
};

TEST(DistributedDataParallelTest, ForwardMayReturnNothing) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    ReturnsNothing net;
    DistributedDataParallel ddp(net, group);
    ddp(full({1, 2}, group.rank()));
    sum(ddp.module().last).backward();
    EXPECT_EQ(net.fc.weight.grad().to_vector<float>(), (std::vector<float>{0.5, 0.5}));
  });
}

TEST(DistributedDataParallelTest, SharesTheGroupItIsGiven) {
  comm::run_ranks(1, [](comm::ProcessGroup&) {
    auto group = std::make_shared<comm::ProcessGroup>(nullptr, nullptr, 0, 1);
    DistributedDataParallel ddp(testing::mlp(), group);
    const std::weak_ptr<comm::ProcessGroup> watched = group;
    group.reset();
    EXPECT_FALSE(watched.expired());
    DistributedDataParallel moved = std::move(ddp);
    sum(moved(ones({1, 6}))).backward();
    EXPECT_EQ(moved.stats().reductions, 1);
    EXPECT_WEFT_ERROR(
        DistributedDataParallel(testing::mlp(), std::shared_ptr<comm::ProcessGroup>()),
        InvalidArgument, "there is no process group");
  });
}

}  // namespace
}  // namespace weft::parallel
