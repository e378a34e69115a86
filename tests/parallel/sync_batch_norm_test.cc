// proofs_test.cc proves that ranks train as one process with the whole batch.
#include "weft/parallel/sync_batch_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/activation.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/models.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::ProcessGroup;
using Group = std::shared_ptr<ProcessGroup>;
using testing::batch;
using testing::LabelledBatch;
using testing::relative_difference;

Group borrowed(ProcessGroup& group) { return {std::shared_ptr<void>(), &group}; }

// Rank r has rows [first, end) of a batch of six, possibly none.
TEST(SyncBatchNormTest, BatchesMayDifferInSize) {
  const std::vector<std::int64_t> bounds = {0, 1, 1, 6};
  const Tensor all = batch(0, {6, 2, 3, 1}, DType::f32).x,
               weights = batch(1, {6, 2, 3, 1}, DType::f32).x;
  Tensor x = raw::clone(all);
  x.set_requires_grad();
  nn::BatchNorm2d whole(2);
  raw::copy_(whole.weight, tensor({2, -3}));
  const Tensor y = whole(x);
  sum(y * weights).backward();
  comm::run_ranks(3, [&](ProcessGroup& group) {
    const auto rows = [&](const Tensor& t) {
      const auto r = static_cast<std::size_t>(group.rank());
      return raw::clone(raw::slice(t, 0, bounds[r], bounds[r + 1]));
    };
    SyncBatchNorm2d bn(2, borrowed(group));
    raw::copy_(bn.weight, whole.weight);
    Tensor part = rows(all);
    part.set_requires_grad();
    const Tensor out = bn(part);
    sum(out * rows(weights)).backward();
    if (part.numel() > 0) {
      EXPECT_LE(relative_difference(out, rows(y)), 1e-6);
      EXPECT_LE(relative_difference(part.grad(), rows(x.grad())), 1e-5);
    }
    EXPECT_LE(relative_difference(bn.running_var, whole.running_var), 1e-6);
    // The gradients of the weights are those of each rank, as in other layers.
    const Tensor sums = raw::clone(bn.weight.grad());
    group.all_reduce(sums).wait();
    EXPECT_LE(relative_difference(sums, whole.weight.grad()), 1e-5);
  });
}

// As in one process: else the running variance would silently become NaN.
RANKS_TEST(SyncBatchNormTest, OneValueOfAllRanksIsAnErrorOnEach, 2) {
  SyncBatchNorm2d bn(2, borrowed(group));
  EXPECT_WEFT_ERROR(bn(ones({group.rank(), 2, 1, 1})), Shape,
                    "expected more than 1 value per channel when training");
  EXPECT_EQ(bn.running_var.to_vector<float>(), std::vector<float>(2, 1));
  EXPECT_EQ(bn(ones({1, 2, 1, 1})).shape(), (Shape{1, 2, 1, 1}));
}

RANKS_TEST(SyncBatchNormTest, ABatchWithoutValuesChangesNothing, 2) {
  SyncBatchNorm2d bn(2, borrowed(group));
  Tensor x = ones({0, 2, 3, 3});
  x.set_requires_grad();
  const Tensor y = bn(x);
  EXPECT_EQ(y.shape(), x.shape());
  sum(y).backward();
  EXPECT_EQ(bn.running_mean.to_vector<float>(), std::vector<float>(2, 0));
  EXPECT_EQ(bn.running_var.to_vector<float>(), std::vector<float>(2, 1));
  SyncBatchNorm2d any(2, borrowed(group), {.affine = false, .track_running_stats = false});
  EXPECT_EQ(any(ones({2, 0, 1, 1})).numel(), 0);
}

RANKS_TEST(SyncBatchNormTest, AFarMeanCostsNoPrecision, 2) {
  SyncBatchNorm2d bn(1, borrowed(group));
  const Tensor x = full({2, 1, 1, 1}, group.rank() == 0 ? 4096 : 4098);
  const auto y = bn(x).to_vector<float>();
  EXPECT_NEAR(y[0], group.rank() == 0 ? -1 : 1, 1e-5);
  EXPECT_FLOAT_EQ(bn.running_mean.item<float>(), 409.7f);
  EXPECT_FLOAT_EQ(bn.running_var.item<float>(), 0.9f + 0.1f * 4 / 3);
}

// At 1e7 f32 numbers are 1 apart; the ranks' means are compared in f64.
TEST(SyncBatchNormTest, RunningVarianceKeepsItsDigitsBesideAFarMean) {
  const Tensor all = raw::add(raw::mul(batch(0, {6, 2, 3, 3}, DType::f32).x, 5), 1e7);
  const auto var = raw::var(raw::to(all, DType::f64), {0, 2, 3}).to_vector<double>();
  comm::run_ranks(2, [&](ProcessGroup& group) {
    SyncBatchNorm2d bn(2, borrowed(group), {.momentum = 1});
    bn(group.rank() == 0 ? raw::narrow(all, 0, 0, 2) : raw::narrow(all, 0, 2, 4));
    for (std::size_t c : {0, 1}) {
      EXPECT_FLOAT_EQ(bn.running_var.to_vector<float>()[c], static_cast<float>(var[c]));
    }
  });
}

RANKS_TEST(SyncBatchNormTest, EvaluationIsTheRanksOwn, 2) {
  SyncBatchNorm2d bn(2, borrowed(group));
  raw::fill_(bn.running_mean, 1);
  bn.eval();
  if (group.rank() == 0) {
    EXPECT_FLOAT_EQ(bn(full({1, 2, 1, 1}, 3)).to_vector<float>()[0], 2 / std::sqrt(1.00001f));
  }
}

RANKS_TEST(SyncBatchNormTest, OptionsAreBatchNorms, 2) {
  const auto x = [&](int step) { return batch(step, {4, 2, 2, 2}, DType::f32); };
  for (const nn::BatchNormOptions& options :
       {nn::BatchNormOptions{.momentum = {}}, nn::BatchNormOptions{.affine = false},
        nn::BatchNormOptions{.eps = 0.5, .track_running_stats = false}}) {
    SyncBatchNorm2d bn(2, borrowed(group), options);
    nn::BatchNorm2d whole(2, options);
    for (int step = 0; step < 3; ++step) {
      Tensor part = raw::clone(x(step).shard(group.rank(), 2).x);
      part.set_requires_grad();
      const Tensor y = bn(part), expected = whole(x(step).x);
      EXPECT_LE(relative_difference(y, raw::narrow(expected, 0, 2 * group.rank(), 2)), 1e-6);
      sum(y * y * y).backward();
      EXPECT_GT(raw::norm(part.grad()).item<float>(), 0);
    }
    const auto got = bn.state_dict(), expected = whole.state_dict();
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].first, expected[i].first);
      EXPECT_LE(relative_difference(got[i].second, expected[i].second), 1e-6) << got[i].first;
    }
  }
}

RANKS_TEST(SyncBatchNormTest, AnInputWithoutGradientNeedsNoOtherRankInBackward, 2) {
  SyncBatchNorm2d bn(2, borrowed(group));
  const Tensor y = bn(batch(0, {4, 2, 2, 2}, DType::f32).shard(group.rank(), 2).x);
  if (group.rank() == 0) {
    sum(y * y * y).backward();
    EXPECT_GT(raw::norm(bn.weight.grad()).item<float>(), 0);
  }
  group.barrier().wait();
}

RANKS_TEST(SyncBatchNormTest, ACheckpointCountsABatchOnce, 2) {
  SyncBatchNorm2d bn(2, borrowed(group));
  Tensor x = raw::clone(batch(0, {4, 2, 2, 2}, DType::f32).shard(group.rank(), 2).x);
  x.set_requires_grad();
  const Tensor y = bn(x);
  sum(y * y * y).backward();
  const auto expected = x.grad().to_vector<float>();
  autograd::zero_grad(x);
  const Tensor z = autograd::checkpoint([&](const Tensor& t) { return bn(t); }, x);
  sum(z * z * z).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), expected);
  EXPECT_EQ(bn.num_batches_tracked.item<int>(), 2);
}

RANKS_TEST(SyncBatchNormTest, Bf16IsComputedInF32, 2) {
  SyncBatchNorm2d bn(2, borrowed(group));
  bn.to(DType::bf16);
  const Tensor x = batch(0, {4, 2, 2, 2}, DType::f32).shard(group.rank(), 2).x.to(DType::bf16);
  const Tensor y = bn(x);
  EXPECT_EQ(y.dtype(), DType::bf16);
  sum(y * x).backward();
  EXPECT_EQ(bn.weight.grad().dtype(), DType::bf16);
  nn::BatchNorm2d whole(2);
  const Tensor expected =
      whole(batch(0, {4, 2, 2, 2}, DType::f32).x.to(DType::bf16).to(DType::f32));
  EXPECT_LE(relative_difference(y, raw::narrow(expected, 0, 2 * group.rank(), 2)), 4e-3);
}

TEST(SyncBatchNormTest, RefusesWhatCannotBe) {
  EXPECT_WEFT_ERROR(SyncBatchNorm2d(2, nullptr), InvalidArgument, "there is no process group");
  comm::run_ranks(1, [](ProcessGroup& group) {
    EXPECT_WEFT_ERROR(SyncBatchNorm2d(0, borrowed(group)), InvalidArgument, "channels");
    SyncBatchNorm2d bn(2, borrowed(group));
    EXPECT_WEFT_ERROR(bn(ones({1, 2, 1, 1})), Shape, "more than 1 value per channel");
    EXPECT_WEFT_ERROR(bn(ones({1, 2})), Shape, "expected [N,C,H,W]");
    EXPECT_WEFT_ERROR(bn(ones({2, 3, 1, 1})), Shape, "expected [N,2,H,W]");
    EXPECT_WEFT_ERROR(convert_sync_batchnorm(bn, nullptr), InvalidArgument,
                      "there is no process group");
  });
}

// Batch norms as members, and deep inside a Sequential.
using ResNet = testing::SmallResNet<nn::BatchNorm2d>;

ResNet resnet() {
  ResNet model = testing::seeded(3, [] { return ResNet(testing::batch_norm); });
  model.to(DType::f64);
  return model;
}

// Two steps: the second one shows the effect of the first on the statistics.
TEST(ConvertSyncBatchNormTest, RanksAreOneProcessWithTheWholeBatch) {
  const auto step = [](int number, int rank, int n, auto& model, const ResNet& trained) {
    for (const Tensor& p : trained.parameters()) autograd::zero_grad(p);
    const LabelledBatch part = batch(number, {12, 3, 8, 8}, DType::f64).shard(rank, n);
    const Tensor y = model(part.x);
    nn::cross_entropy(y, part.label).backward();
    return y;
  };
  ResNet whole = resnet();
  step(0, 0, 1, whole, whole);
  const Tensor expected = step(1, 0, 1, whole, whole);
  for (const int n : {2, 3}) {
    comm::run_ranks(n, [&](ProcessGroup& group) {
      ResNet model = resnet();
      convert_sync_batchnorm(model, group.duplicate());
      DistributedDataParallel ddp(model, group);
      step(0, group.rank(), n, ddp, model);
      const Tensor y = step(1, group.rank(), n, ddp, model);
      const std::int64_t rows = 12 / n;
      EXPECT_LE(relative_difference(y, raw::narrow(expected, 0, group.rank() * rows, rows)), 1e-12);
      const nn::NamedTensors got = model.named_parameters(), want = whole.named_parameters();
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(relative_difference(got[i].second.grad(), want[i].second.grad()), 1e-12)
            << got[i].first;
      }
      const nn::NamedTensors buffers = model.named_buffers(), others = whole.named_buffers();
      ASSERT_EQ(buffers.size(), others.size());
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        EXPECT_LE(relative_difference(buffers[i].second, others[i].second), 1e-12)
            << buffers[i].first;
      }
    });
  }
}

RANKS_TEST(ConvertSyncBatchNormTest, AllButTheTypeStays, 2) {
  ResNet model = resnet();
  const ResNet other = nn::clone(model);
  model.layer1.eval();
  model.bn1.requires_grad(false);
  const auto modes = [&] {
    std::vector<bool> all;
    model.apply([&](nn::ModuleBase& m) { all.push_back(m.is_training()); });
    return all;
  };
  const std::vector<bool> modes_before = modes();
  const Tensor weight = model.layer2.bn2.weight;
  convert_sync_batchnorm(model, group.duplicate());
  EXPECT_EQ(modes(), modes_before);
  EXPECT_FALSE(model.bn1.weight.requires_grad());
  EXPECT_EQ(model.layer2.bn2.weight.impl(), weight.impl());
  const nn::NamedTensors got = model.state_dict(), expected = other.state_dict();
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, expected[i].first);
    EXPECT_TRUE(testing::same_bits(got[i].second, expected[i].second)) << got[i].first;
  }
  EXPECT_HAS(model.to_string(), "(bn2): SyncBatchNorm2d(8, eps=1e-05");
  EXPECT_LACKS(model.to_string(), ": BatchNorm2d");
  EXPECT_LACKS(other.to_string(), "SyncBatchNorm2d");
  EXPECT_EQ(nn::clone(model).to_string(), model.to_string());
}

// A single rank cannot compute the variance of this batch.
TEST(ConvertSyncBatchNormTest, TheLastGroupCountsAndOneValueEachIsEnough) {
  const Tensor all = batch(0, {2, 2, 1, 1}, DType::f64).x;
  const auto made = [] {
    nn::Sequential net{nn::BatchNorm2d(2), nn::ReLU()};
    net.to(DType::f64);
    return net;
  };
  nn::Sequential whole = made();
  const Tensor expected = whole(all);
  comm::run_ranks(2, [&](ProcessGroup& group) {
    nn::Sequential net = made();
    const Group alone = group.subgroup({0}), other = group.subgroup({1});
    convert_sync_batchnorm(net, group.rank() == 0 ? alone : other);
    const Tensor x = raw::narrow(all, 0, group.rank(), 1);
    EXPECT_WEFT_ERROR(net(x), Shape, "more than 1 value per channel");
    const Group own = group.duplicate();
    for (int times = 0; times < 2; ++times) convert_sync_batchnorm(net, own);
    nn::Sequential copy = nn::clone(net);
    for (nn::Sequential* model : {&net, &copy}) {
      EXPECT_LE(relative_difference((*model)(x), raw::narrow(expected, 0, group.rank(), 1)), 1e-12);
      EXPECT_LE(
          relative_difference(model->named_buffers()[1].second, whole.named_buffers()[1].second),
          1e-12);
    }
  });
}

TEST(ConvertSyncBatchNormTest, BatchNorm1dIsConvertedToo) {
  const Tensor all = raw::squeeze(batch(0, {6, 2, 3, 1}, DType::f64).x, 3);
  const auto made = [] {
    nn::BatchNorm1d norm(2);
    norm.to(DType::f64);
    return norm;
  };
  nn::BatchNorm1d whole = made();
  const Tensor expected = whole(all);
  comm::run_ranks(2, [&](ProcessGroup& group) {
    nn::BatchNorm1d norm = made();
    convert_sync_batchnorm(norm, group.duplicate());
    EXPECT_EQ(norm.type_name(), "SyncBatchNorm1d");
    const std::int64_t start = group.rank() * 4, length = group.rank() == 0 ? 4 : 2;
    EXPECT_LE(relative_difference(norm(raw::narrow(all, 0, start, length)),
                                  raw::narrow(expected, 0, start, length)),
              1e-12);
    EXPECT_LE(relative_difference(norm.running_var, whole.running_var), 1e-12);
  });
}

// Also if it uses the batch's own statistics, as in PyTorch.
RANKS_TEST(ConvertSyncBatchNormTest, EvaluationIsTheRanksOwn, 2) {
  for (const bool tracked : {true, false}) {
    nn::Sequential net{nn::BatchNorm2d(2, {.track_running_stats = tracked}), nn::ReLU()};
    nn::Sequential plain = nn::clone(net);
    convert_sync_batchnorm(net, group.duplicate());
    net.eval();
    plain.eval();
    const Tensor x = batch(0, {4, 2, 3, 3}, DType::f32).x;
    if (group.rank() == 0) {
      EXPECT_TRUE(testing::same_bits(net(x), plain(x)));
    }
    group.barrier().wait();
  }
}

}  // namespace
}  // namespace weft::parallel
