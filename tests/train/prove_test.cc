// train::prove: a training that is no program.
#include "weft/train/prove.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/weft.h"

namespace weft::train {
namespace {

using proof::Verdict;

struct Net : nn::Module<Net> {
  nn::Linear hidden = child("hidden", nn::Linear(8, 16));
  nn::Dropout dropout = child("dropout", nn::Dropout(0.25));
  nn::Linear head = child("head", nn::Linear(16, 3));
  Tensor forward(const Tensor& x) { return head(dropout(relu(hidden(x)))); }
};

/// What a training does with a batch; the default is right.
struct Way {
  std::int64_t micro_batches = 1;
  bool sync_last = true;     // false: all backwards of the steps are under no_sync()
  bool wraps_head = true;    // false: the head is outside the wrapped module
  double one_rank_only = 0;  // added to the loss if there is more than one rank
};

void train_net(comm::ProcessGroup& group, Trial& trial, const Way& way) {
  Net net;
  net.to(Device(), trial.dtype());
  std::optional<parallel::DistributedDataParallel<Net>> whole;
  std::optional<parallel::DistributedDataParallel<nn::Linear>> half;
  if (way.wraps_head) whole.emplace(net, group);
  if (!way.wraps_head) half.emplace(net.hidden, group);
  manual_seed(1 + static_cast<std::uint64_t>(group.rank()));
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Generator random(7);
  const data::TensorDataset set(randn({36, 8}, trial.dtype(), &random),
                                randint(0, 3, {36}, {}, &random));
  data::DistributedSampler sampler(set.size(),
                                   {.num_replicas = group.size(), .rank = group.rank()});
  const std::shared_ptr<const data::Sampler> shared(&sampler, [](const data::Sampler*) {});
  data::DataLoader loader(set, trial.loader({.batch_size = 4, .workers = 1, .sampler = shared}));
  const auto step = [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    Tensor sum;
    const std::int64_t n = x.shape(0), k = std::min(way.micro_batches, n);
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t first = i * n / k, count = (i + 1) * n / k - first;
      const auto backward = [&] {
        const Tensor part = x.narrow(0, first, count);
        const Tensor y = whole ? (*whole)(part) : net.head(net.dropout(relu((*half)(part))));
        Tensor loss = nn::cross_entropy(y, label.narrow(0, first, count)) / k;
        if (group.size() > 1) loss = loss * (1 + way.one_rank_only);
        loss.backward();
        sum = sum.defined() ? sum + loss.detach() : loss.detach();
      };
      if (way.sync_last && i == k - 1) {
        backward();
      } else {
        const auto local = whole->no_sync();
        backward();
      }
    }
    sgd.step();
    return sum;
  };
  if (whole) {
    trial.train(net, loader, step, *whole, sampler);
  } else {
    trial.train(net, loader, step, *half, sampler);
  }
}

class ProveTest : public ::testing::Test {
 protected:
  ProveTest() { setenv("TMPDIR", folder.root().c_str(), 1); }
  // No temporary folder is left, however a run ends.
  ~ProveTest() override {
    EXPECT_EQ(folder.files(), 0);
    unsetenv("TMPDIR");
  }
  static Verdict prove_net(const ProveOptions& options, const Way& way = {}) {
    return prove(options,
                 [&](comm::ProcessGroup& group, Trial& trial) { train_net(group, trial, way); });
  }
  testing::TempFolder folder;
};

// Over three epochs, of which the last is not complete.
TEST_F(ProveTest, ARightTrainingIsEqualToTheBit) {
  const Verdict verdict = prove_net({.ranks = 2, .steps = 13, .name = "net"});
  EXPECT_TRUE(verdict.equal());
  EXPECT_EQ(verdict.word, "equal to the bit") << verdict.text();
  EXPECT_EQ(verdict.sides, "2 ranks");
  EXPECT_EQ(verdict.comparison.steps, 13);
  EXPECT_TRUE(verdict.causes.empty()) << verdict.text();
  EXPECT_EQ(verdict.text(),
            "net: 13 steps, 2 ranks: 104 outputs, 104 gradients, 104 weights, 26 losses: equal to "
            "the bit\n");
}

TEST_F(ProveTest, OneRankAndThree) {
  EXPECT_EQ(prove_net({.ranks = 1, .steps = 3}).word, "equal to the bit");
  const Verdict three = prove_net({.ranks = 3, .steps = 3});
  EXPECT_TRUE(three.equal()) << three.text();
  EXPECT_EQ(prove_net({.ranks = 2, .steps = 2, .dtype = DType::f64}).word, "equal to the bit");
}

TEST_F(ProveTest, AParameterOutsideTheWrappedModuleIsNamed) {
  const Verdict verdict = prove_net({.steps = 3}, {.wraps_head = false});
  EXPECT_EQ(verdict.word, "differs");
  EXPECT_EQ(verdict.status(), 1);
  ASSERT_EQ(verdict.causes.size(), 1U) << verdict.text();
  EXPECT_EQ(verdict.causes[0].name, "unreduced_gradient");
  EXPECT_HAS(verdict.causes[0].text, "the gradient of head.bias, head.weight differs");
  ASSERT_TRUE(verdict.first && verdict.elements);
  EXPECT_EQ(verdict.first->item.step, 0);
  EXPECT_EQ(verdict.first->item.kind, "gradient");
  EXPECT_EQ(verdict.first->item.name, "head.weight");
  EXPECT_GT(verdict.first->relative, 0);
  EXPECT_GT(verdict.elements->shown.at(0).ulps, 0);
  EXPECT_HAS(verdict.text(), "first: step 0, rank 0: the gradient of head.weight, differs: about");
  EXPECT_HAS(verdict.text(), "\ncause: step 0: the gradient of head.bias");
}

// 4 samples in three parts: one, one and two.
TEST_F(ProveTest, AccumulatedGradients) {
  const Verdict right = prove_net({.steps = 10}, {.micro_batches = 3});
  EXPECT_EQ(right.word, "equal to the bit") << right.text();
  EXPECT_TRUE(right.causes.empty()) << right.text();
  const Verdict wrong = prove_net({.steps = 10}, {.micro_batches = 3, .sync_last = false});
  EXPECT_EQ(wrong.word, "differs");
  ASSERT_EQ(wrong.causes.size(), 1U) << wrong.text();
  EXPECT_EQ(wrong.causes[0].name, "unreduced_gradient");
  EXPECT_HAS(wrong.causes[0].text, "Is the model called by itself, without its engine, or always");
}

TEST_F(ProveTest, ADifferenceWithoutAKnownCause) {
  const Verdict verdict = prove_net({.steps = 2}, {.one_rank_only = 0.01});
  EXPECT_EQ(verdict.word, "differs");
  EXPECT_TRUE(verdict.causes.empty()) << verdict.text();
  EXPECT_HAS(verdict.text(), "cause: no cause found");
}

// Transforms draw from the epoch's seed, which each rank draws for itself.
TEST_F(ProveTest, SamplesThatAreDrawnAtRandom) {
  const Verdict verdict = prove({.steps = 5}, [](comm::ProcessGroup& group, Trial& trial) {
    nn::Sequential net{nn::Flatten(), nn::Linear(3 * 4 * 4, 5)};
    net.to(Device(), trial.dtype());
    parallel::DistributedDataParallel ddp(net, group);
    optim::Adam adam(net.parameters());
    manual_seed(1 + static_cast<std::uint64_t>(group.rank()));
    const data::Transform crop = data::RandomCrop(4, 4);
    const data::FakeData set(16, {3, 8, 8}, 5,
                             {.format = {.transform = crop, .dtype = trial.dtype()}});
    const auto sampler = std::make_shared<data::DistributedSampler>(
        set.size(),
        data::DistributedSamplerOptions{.num_replicas = group.size(), .rank = group.rank()});
    data::DataLoader loader(set, trial.loader({.batch_size = 4, .workers = 2, .sampler = sampler}));
    const auto step = [&](const Tensor& x, const Tensor& label) {
      adam.zero_grad();
      Tensor loss = nn::cross_entropy(ddp(x), label);
      loss.backward();
      adam.step();
      return loss;
    };
    trial.train(net, loader, step, ddp, *sampler);
  });
  EXPECT_EQ(verdict.word, "equal to the bit") << verdict.text();
  ASSERT_EQ(verdict.causes.size(), 1U) << verdict.text();
  EXPECT_EQ(verdict.causes[0].name, "random_samples");
  EXPECT_EQ(verdict.causes[0].weight, proof::Weight::note);
}

// The same indices, but not the same samples.
TEST_F(ProveTest, DataSetsOfTheRanksOwn) {
  for (const bool right : {true, false}) {
    const Verdict verdict = prove({.steps = 4}, [&](comm::ProcessGroup& group, Trial& trial) {
      nn::Linear net(4, 1);
      net.to(Device(), trial.dtype());
      parallel::DistributedDataParallel ddp(net, group);
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      Generator random(right ? 7 + static_cast<std::uint64_t>(group.rank()) : 7);
      const data::TensorDataset set(randn({16, 4}, trial.dtype(), &random));
      data::DataLoader loader(set, trial.loader({.batch_size = 4, .shuffle = true}));
      const auto step = [&](const Tensor& x) {
        sgd.zero_grad();
        Tensor loss = ddp(x).square().mean();
        loss.backward();
        sgd.step();
        return loss;
      };
      trial.train(net, loader, step, ddp);
    });
    EXPECT_EQ(verdict.word, right ? "equal to the bit" : "differs") << verdict.text();
    ASSERT_EQ(verdict.causes.size(), 1U) << verdict.text();
    EXPECT_EQ(verdict.causes[0].name, right ? "random_samples" : "same_samples");
  }
}

// A model in parts; train() gets the object that keeps them. The ranks share a batch, or have one
// each.
TEST_F(ProveTest, ModelsInParts) {
  for (const bool shares_batch : {false, true}) {
    const ProveOptions options{.ranks = 2, .steps = 4, .batches = shares_batch ? 1 : 0};
    const Verdict verdict = prove(options, [&](comm::ProcessGroup& group, Trial& trial) {
      nn::Sequential net{nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 2)};
      net.to(Device(), trial.dtype());
      Generator random(3);
      const data::TensorDataset set(randn({16, 4}, trial.dtype(), &random));
      const auto sampler = std::make_shared<data::DistributedSampler>(
          set.size(),
          data::DistributedSamplerOptions{.num_replicas = shares_batch ? 1 : group.size(),
                                          .rank = shares_batch ? 0 : group.rank()});
      data::DataLoader loader(set, trial.loader({.batch_size = 4, .sampler = sampler}));
      const auto train = [&](auto parts) {
        optim::Adam adam(net.parameters());
        const auto step = [&](const Tensor& x) {
          adam.zero_grad();
          Tensor loss = net(x).square().mean();
          loss.backward();
          adam.step();
          return loss;
        };
        trial.train(parts, loader, step, *sampler);
      };
      if (shares_batch) {
        train(parallel::parallelize(
            net, group, {{"0", parallel::ColwiseParallel{}}, {"2", parallel::RowwiseParallel{}}}));
      } else {
        train(parallel::fully_shard(net, group));
      }
    });
    EXPECT_EQ(verdict.word, shares_batch ? "equal to rounding" : "equal to the bit")
        << verdict.text();
    EXPECT_EQ(verdict.comparison.compared.at("weight"), 32);
  }
}

TEST_F(ProveTest, DevicesOfOneProcess) {
  set_host_devices(2);
  const ProveOptions options{.ranks = 1, .steps = 3};
  std::vector<bool> alone;
  const Verdict verdict = prove(options, [&](comm::ProcessGroup&, Trial& trial) {
    alone.push_back(trial.alone());
    nn::Sequential net{nn::Linear(2, 8), nn::ReLU(), nn::Linear(8, 1)};
    net.to(Device(), trial.dtype());
    std::optional<parallel::DataParallel<nn::Sequential>> both;
    if (!trial.alone()) both.emplace(net, parallel::DataParallelOptions{});
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    data::DataLoader loader(data::TensorDataset<1>(randn({12, 2}, trial.dtype())),
                            trial.loader({.batch_size = 6, .shuffle = true}));
    trial.train(net, loader, [&](const Tensor& x) {
      sgd.zero_grad();
      Tensor loss = (both ? (*both)(x) : net(x)).square().mean();
      loss.backward();
      sgd.step();
      return loss;
    });
  });
  EXPECT_TRUE(verdict.equal()) << verdict.text();
  EXPECT_EQ(verdict.comparison.compared.at("output"), 3 * 4);
  EXPECT_TRUE(alone.size() >= 2 && !alone[0] && alone[1]);
}

// One linear layer on a set of four samples.
struct Small {
  explicit Small(Trial& trial) : net(2, 1), sgd(net.parameters(), {.lr = 0.1}) {
    net.to(Device(), trial.dtype());
  }
  Tensor update(const Tensor& x) {
    sgd.zero_grad();
    Tensor loss = net(x).square().mean();
    loss.backward();
    sgd.step();
    return loss;
  }
  nn::Linear net;
  optim::SGD sgd;
};

TEST_F(ProveTest, ABatchMayBeATensorAndPartsHearOfEpochs) {
  struct Rows {
    std::int64_t size() const { return 6; }
    Tensor get_batch(std::span<const std::int64_t> indices) const {
      return ones({std::ssize(indices), 2});
    }
  };
  struct Epochs {
    void set_epoch(std::int64_t epoch) { seen.push_back(epoch); }
    std::vector<std::int64_t> seen = {};
  } epochs;
  manual_seed(5);
  const double drawn = rand({1}).item<double>();
  const ProveOptions options{.ranks = 1, .steps = 4, .seed = 5};
  const Verdict verdict = prove(options, [&](comm::ProcessGroup&, Trial& trial) {
    EXPECT_EQ(rand({1}).item<double>(), drawn);
    Small small(trial);
    data::DataLoader loader(Rows(), trial.loader({.batch_size = 2}));
    const auto step = [&](const Tensor& x) { return small.update(x); };
    trial.train(small.net, loader, step, epochs);
  });
  EXPECT_EQ(verdict.word, "equal to the bit") << verdict.text();
  EXPECT_EQ(epochs.seen, (std::vector<std::int64_t>{0, 1, 0, 1}));
}

TEST_F(ProveTest, RefusesWhatCannotBeProved) {
  using Body = std::function<void(comm::ProcessGroup&, Trial&)>;
  const auto refused = [](const Body& body, const std::string& why,
                          const ProveOptions& options = {.steps = 2}) {
    EXPECT_WEFT_ERROR(prove(options, body), InvalidArgument, why);
  };
  const auto loader_of = [](Trial& trial, std::int64_t samples, bool own = false) {
    data::DataLoaderOptions loading{.batch_size = 2, .shuffle = true};
    if (!own) loading = trial.loader(loading);
    return data::DataLoader(data::TensorDataset<1>(ones({samples, 2}, trial.dtype())), loading);
  };
  const Body nothing = [](comm::ProcessGroup&, Trial&) {};
  refused(nothing, "has not called Trial::train()");
  refused(nothing, "got 0 ranks and 20 steps", {.ranks = 0});
  refused(nothing, "got 2 ranks and 0 steps", {.steps = 0});
  for (const int batches : {-1, 2, 4}) {
    refused(nothing,
            "got 3 ranks with " + std::to_string(batches) +
                " batches in a step, needs 0 (one per rank) or a number that divides the ranks",
            {.ranks = 3, .batches = batches});
  }
  refused(
      [&](comm::ProcessGroup&, Trial& trial) {
        Small small(trial);
        auto loader = loader_of(trial, 0);
        trial.train(small.net, loader, [&](const Tensor& x) { return small.update(x); });
      },
      "the loader has no batch in epoch 0, and 2 steps are wanted");
  refused(
      [&](comm::ProcessGroup&, Trial& trial) {
        Small small(trial);
        auto loader = loader_of(trial, 4, /*own=*/true);
        trial.train(small.net, loader, [&](const Tensor& x) { return small.update(x); });
      },
      "step 0 has other samples than that of rank 1: this loader is not made with "
      "Options::loader() or Trial::loader(), or its batch sampler was replaced afterwards");
  refused(
      [&](comm::ProcessGroup&, Trial& trial) {
        Small small(trial);
        auto loader = loader_of(trial, 4);
        const auto step = [&](const Tensor& x) { return small.update(x); };
        trial.train(small.net, loader, step);
        trial.train(small.net, loader, step);
      },
      "trains twice; only one run is recorded");
  refused(
      [&](comm::ProcessGroup&, Trial& trial) {
        Small small(trial);
        auto loader = loader_of(trial, 4);
        trial.train(small.net, loader, [&](const Tensor& x) {
          return std::vector<Tensor>(0 * static_cast<std::size_t>(small.update(x).dim()));
        });
      },
      "the step returns no loss");
  refused(
      [&](comm::ProcessGroup&, Trial& trial) {
        Small small(trial);
        small.net.to(Device(), DType::f64);
        auto loader = loader_of(trial, 4);
        trial.train(small.net, loader, [&](const Tensor& x) { return small.update(x); });
      },
      "no parameter is f32: make the model and its data with trial.dtype()");
  refused(
      [&](comm::ProcessGroup& group, Trial& trial) {
        Small small(trial);
        parallel::fully_shard(small.net, group);
        auto loader = loader_of(trial, 4);
        trial.train(small.net, loader, [&](const Tensor& x) { return small.update(x); });
      },
      "the model is cut into parts, one on each rank: Trial::train() needs what fully_shard");
  refused(
      [&](comm::ProcessGroup& group, Trial& trial) {
        Small small(trial);
        auto loader = loader_of(trial, 4);
        WEFT_CHECK(group.rank() == 0, InvalidArgument, "own", "of a rank of the user's");
        trial.train(small.net, loader, [&](const Tensor& x) { return small.update(x); });
      },
      "of a rank of the user's");
  EXPECT_WEFT_ERROR(prove({.steps = 2},
                          [&](comm::ProcessGroup&, Trial& trial) {
                            nn::Linear net(2, 1);
                            net.to(Device(), trial.dtype());
                            auto loader = loader_of(trial, 4);
                            try {
                              trial.train(net, loader, [](const Tensor& x) -> Tensor {
                                WEFT_THROW(InvalidArgument, "own", x.shape(0));
                              });
                            } catch (const Error&) {
                            }
                          }),
                    Io, "or does it catch what Trial::train() throws?");
}

}  // namespace
}  // namespace weft::train
