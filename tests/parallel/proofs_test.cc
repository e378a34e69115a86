// The two proofs that ranks compute the same as one process: six models, every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/sync_batch_norm.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/models.h"

namespace weft::parallel {
namespace {

using comm::testing::in_groups;
using testing::batch;
using testing::batch_of;
using testing::LabelledBatch;
using testing::loss_of;
using testing::optimizer_of;
using testing::relative_difference;
using testing::same_bits;
using testing::seeded;
using testing::with_model;

// Parameters: model and backend.
class Proofs : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    const std::string missing = comm::testing::missing_backend(backend());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  static std::string model() { return std::get<0>(GetParam()); }
  static std::string backend() { return std::get<1>(GetParam()); }
};

// (a) f32, two ranks, bit for bit. Batch norms use fixed statistics, so no row depends on another.
TEST_P(Proofs, TwoRanksAreOneProcessBitForBit) {
  constexpr int kSteps = 12, kShard = 3;
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  with_model(model(), [&](const auto& make, const Shape& sample) {
    const Shape shape = batch_of(2 * kShard, sample);
    const auto made = [&](int seed) {
      auto model = seeded(seed, [&] { return make(testing::batch_norm); });
      model.eval();
      return model;
    };
    std::vector<std::vector<Tensor>> expected;  // per step
    auto one = made(3);
    const auto optimizer = optimizer_of(one);
    for (int step = 0; step < kSteps; ++step) {
      testing::backward_of_shards(one, batch(step, shape, DType::f32), 2);
      optimizer->step();
      auto& weights = expected.emplace_back();
      for (const Tensor& p : one.parameters()) weights.push_back(raw::clone(p));
    }
    // With any buckets, in the first step and after they have been rebuilt.
    for (const std::optional<double> cap : {std::optional<double>(), std::optional(1e-4)}) {
      in_groups(backend(), 2, [&](comm::ProcessGroup& group) {
        auto model = made(3 + group.rank());
        DistributedDataParallel ddp(model, group, {.bucket_cap_mb = cap});
        const auto optimizer = optimizer_of(model);
        for (int step = 0; step < kSteps; ++step) {
          optimizer->zero_grad();
          loss_of(ddp, batch(step, shape, DType::f32).shard(group.rank(), 2)).backward();
          optimizer->step();
          const nn::NamedTensors weights = model.named_parameters();
          for (std::size_t i = 0; i < weights.size(); ++i) {
            EXPECT_TRUE(same_bits(weights[i].second, expected[step][i]))
                << "step " << step << ", " << weights[i].first;
          }
        }
      });
    }
  });
}

// A sanitizer makes the plain f64 loops about ten times slower; a few steps cover all the code.
constexpr int kSteps = testing::kSanitized ? 5 : 100;
constexpr int kBatch = 12;
// Sums are taken in another order: a difference of 6e-15 in the ResNet after these steps. A change
// of one weight's last bit makes as much in one process.
constexpr double kMost = 1e-9;

template <class Model, class Trained>
void train(Model& called, Trained& model, const Shape& sample, int rank, int n) {
  const auto optimizer = optimizer_of(model);
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    loss_of(called, batch(step, batch_of(kBatch, sample), DType::f64).shard(rank, n)).backward();
    optimizer->step();
  }
}

// The result of one process with the whole batches. Every weight must change: an unchanged one
// would prove nothing.
nn::NamedTensors trained_by_one(const std::string& name) {
  static std::map<std::string, nn::NamedTensors> all;
  nn::NamedTensors& trained = all[name];
  if (!trained.empty()) return trained;
  with_model(name, [&](const auto& make, const Shape& sample) {
    auto model = seeded(3, [&] { return make(testing::batch_norm); });
    model.to(DType::f64);
    std::vector<Tensor> first;
    for (const Tensor& p : model.parameters()) first.push_back(raw::clone(p));
    train(model, model, sample, 0, 1);
    const nn::NamedTensors last = model.named_parameters();
    for (std::size_t i = 0; i < last.size(); ++i) {
      EXPECT_GT(relative_difference(last[i].second, first[i]), 1e-5) << last[i].first;
    }
    trained = model.state_dict();
  });
  return trained;
}

// (b) f64, one to four ranks (shards of 12, 6, 4 and 3), compared with the whole batch.
TEST_P(Proofs, RanksAreOneProcessWithTheWholeBatch) {
  const nn::NamedTensors expected = trained_by_one(model());
  for (int n = 1; n <= 4; ++n) {
    std::vector<double> largest(static_cast<std::size_t>(n));  // per rank
    with_model(model(), [&](const auto& make, const Shape& sample) {
      in_groups(backend(), n, [&](comm::ProcessGroup& group) {
        // Batch norms use either a group of their own, or the one in which the buckets are sent.
        const std::shared_ptr<comm::ProcessGroup> own =
            n == 3 ? std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group)
                   : group.duplicate();
        const auto norm = [&](std::int64_t channels) { return SyncBatchNorm2d(channels, own); };
        auto model = seeded(3 + group.rank(), [&] { return make(norm); });
        model.to(DType::f64);
        DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
        train(ddp, model, sample, group.rank(), n);
        const nn::NamedTensors got = model.state_dict();
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double difference = relative_difference(got[i].second, expected[i].second);
          EXPECT_LE(difference, kMost) << got[i].first << " of " << n << " ranks";
          double& worst = largest[static_cast<std::size_t>(group.rank())];
          worst = std::max(worst, difference);
        }
      });
    });
    RecordProperty("largest_difference_" + std::to_string(n),
                   ::testing::PrintToString(std::ranges::max(largest)));
  }
}

// --- The same with parameters that are cut: a unit for each layer, or one for all --------------

template <class Model>
FullySharded cut(Model& model, comm::ProcessGroup& group, bool layers) {
  if (layers) {
    model.apply([&](nn::ModuleBase& m) {
      if (!m.name().empty() && !m.named_parameters(/*recurse=*/false).empty()) {
        fully_shard(m, group);
      }
    });
  }
  return fully_shard(model, group);
}

// (a) f32, bit for bit what DistributedDataParallel computes. With more than two ranks, only shm
// adds the ranks' numbers in the same order in both.
TEST_P(Proofs, FullyShardedIsDdpBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  with_model(model(), [&](const auto& make, const Shape& sample) {
    for (const int n : backend() == "shm" ? std::vector{2, 3, 4} : std::vector{2}) {
      in_groups(backend(), n, [&](comm::ProcessGroup& group) {
        const auto made = [&] {
          auto model = seeded(3 + group.rank(), [&] { return make(testing::batch_norm); });
          model.eval();
          return model;
        };
        auto model = made(), plain = made();
        const FullySharded sharded = cut(model, group, n != 3);
        DistributedDataParallel ddp(plain, group);
        const auto optimizer = optimizer_of(model), plain_optimizer = optimizer_of(plain);
        for (int step = 0; step < 20; ++step) {
          const auto data = batch(step, batch_of(2 * n, sample), DType::f32).shard(group.rank(), n);
          optimizer->zero_grad();
          loss_of(model, data).backward();
          optimizer->step();
          plain_optimizer->zero_grad();
          loss_of(ddp, data).backward();
          plain_optimizer->step();
        }
        const nn::NamedTensors got = sharded.state_dict(), expected = plain.state_dict();
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(same_bits(got[i].second, expected[i].second))
              << got[i].first << " of " << n << " ranks";
        }
      });
    }
  });
}

// (b) f64, compared with the whole batch.
TEST_P(Proofs, FullyShardedIsOneProcessWithTheWholeBatch) {
  const nn::NamedTensors expected = trained_by_one(model());
  for (int n = 1; n <= 4; ++n) {
    with_model(model(), [&](const auto& make, const Shape& sample) {
      in_groups(backend(), n, [&](comm::ProcessGroup& group) {
        const std::shared_ptr<comm::ProcessGroup> own = group.duplicate();
        const auto norm = [&](std::int64_t channels) { return SyncBatchNorm2d(channels, own); };
        auto model = seeded(3 + group.rank(), [&] { return make(norm); });
        model.to(DType::f64);
        const FullySharded sharded = cut(model, group, n % 2 == 0);
        train(model, model, sample, group.rank(), n);
        const nn::NamedTensors got = sharded.state_dict();
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE(relative_difference(got[i].second, expected[i].second), kMost)
              << got[i].first << " of " << n << " ranks";
        }
      });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Proofs,
                         ::testing::Combine(::testing::Values("mlp", "autoencoder", "cnn",
                                                              "recurrent", "transformer", "resnet"),
                                            ::testing::Values("threads", "shm", "gloo", "ring")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace weft::parallel
