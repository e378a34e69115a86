#include "weft/parallel/deferred_batch_norm.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/nn/batch_norm.h"
#include "weft/parallel/pipeline.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/devices.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

class DeferredBatchNorm : public testing::DevicesTest {};

// The statistics are those of the whole batch, with the biased variance, also with recomputation.
TEST_P(DeferredBatchNorm, StatisticsFollowTheWholeBatch) {
  for (const std::optional<double> momentum : {std::optional(0.3), std::optional<double>()}) {
    for (const Recompute mode : {Recompute::never, Recompute::always}) {
      nn::BatchNorm2d norm(2, {.momentum = momentum});
      norm.to(DType::f64);
      convert_deferred_batch_norm(norm, 3);
      Pipeline pipe({norm, nn::Flatten()},
                    {.devices = devices(2), .chunks = 3, .checkpoint = mode});
      double mean = 0, var = 1, batches = 0;
      for (int step = 0; step < 4; ++step) {
        const Tensor x = testing::batch(step, {7, 2, 3, 3}, DType::f64).x;
        pipe(x).sum().backward();
        const Tensor channel = raw::select(x, 1, 1);
        const double batch_mean = raw::mean(channel).item<double>();
        const double batch_var =
            raw::mean(raw::mul(channel, channel)).item<double>() - batch_mean * batch_mean;
        const double share = momentum.value_or(1 / ++batches);
        mean += share * (batch_mean - mean);
        var += share * (batch_var - var);
      }
      EXPECT_NEAR(norm.running_mean.to_vector<double>()[1], mean, 1e-12);
      EXPECT_NEAR(norm.running_var.to_vector<double>()[1], var, 1e-12);
      EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 4);
    }
  }
}

// With sums of x^2 no digit of the variance would be left.
TEST_P(DeferredBatchNorm, AFarMeanCostsNoPrecision) {
  nn::BatchNorm2d norm(2, {.momentum = 1});
  convert_deferred_batch_norm(norm, 3);
  const Tensor x = raw::add(raw::mul(testing::batch(0, {7, 2, 3, 3}, DType::f32).x, 50), 1e7);
  for (const Tensor& part : raw::split(x, Dims{2, 4, 1}, 0)) norm(part);
  const Tensor exact = raw::to(x, DType::f64);
  const auto mean = raw::mean(exact, {0, 2, 3}).to_vector<double>();
  const auto var = raw::var(exact, {0, 2, 3}, 0).to_vector<double>();
  for (std::size_t c : {0, 1}) {
    // Rounded to f32 once.
    EXPECT_FLOAT_EQ(norm.running_mean.to_vector<float>()[c], static_cast<float>(mean[c]));
    EXPECT_FLOAT_EQ(norm.running_var.to_vector<float>()[c], static_cast<float>(var[c]));
  }
}

TEST_P(DeferredBatchNorm, EachMicroBatchIsNormalisedByItself) {
  nn::BatchNorm2d norm(2), plain(2);
  convert_deferred_batch_norm(norm, 2);
  EXPECT_EQ(norm.type_name(), "DeferredBatchNorm2d");
  const Tensor x = testing::batch(0, {4, 2, 3, 3}, DType::f32).x;
  EXPECT_TRUE(testing::same_bits(norm(x), plain(x)));
  EXPECT_EQ(norm.running_mean.to_vector<double>(), (std::vector<double>{0, 0}));
  EXPECT_WEFT_ERROR(convert_deferred_batch_norm(norm, 0), InvalidArgument, "chunks: got 0");
}

// Copies are made as when layers are timed: each one counts separately, and the addresses of freed
// copies are reused.
TEST_P(DeferredBatchNorm, CopiesThatHaveGoneCountForNobody) {
  nn::Sequential norms{nn::BatchNorm2d(2, {.momentum = 1}), nn::BatchNorm2d(3, {.momentum = 1})};
  convert_deferred_batch_norm(norms, 2);
  const std::vector<Tensor> x = {testing::batch(0, {4, 2, 3, 3}, DType::f32).x,
                                 testing::batch(1, {4, 3, 3, 3}, DType::f32).x};
  for (std::size_t i = 0; i < 20; ++i) {
    nn::Sequential copy = nn::clone(norms.slice(i % 2, i % 2 + 1));
    copy(x[i % 2]);
    EXPECT_EQ(raw::sum(copy.named_buffers()[0].second).item<float>(), 0) << i;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    norms[i](x[i]);
    EXPECT_EQ(raw::sum(norms[i].named_buffers()[0].second).item<float>(), 0);
    norms[i](x[i]);
    EXPECT_NE(raw::sum(norms[i].named_buffers()[0].second).item<float>(), 0);
  }
}

// The threads of the stages count at the same time, each for its own layer.
TEST_P(DeferredBatchNorm, TwoStagesCountAtOnce) {
  nn::BatchNorm2d first(2), second(2);
  nn::Sequential both{first, second};
  convert_deferred_batch_norm(both, 2);
  Pipeline pipe({first, second}, {.devices = devices(2), .chunks = 2});
  for (int step = 0; step < 30; ++step) {
    pipe(testing::batch(step, {4, 2, 3, 3}, DType::f32).x).sum().backward();
  }
  for (const nn::BatchNorm2d& norm : {first, second}) {
    EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 30);
  }
}

// Micro-batches of rows and of sequences in a pipeline.
TEST_P(DeferredBatchNorm, OfOneDimension) {
  nn::BatchNorm1d norm(2, {.momentum = 1});
  norm.to(DType::f64);
  convert_deferred_batch_norm(norm, 2);
  EXPECT_EQ(norm.type_name(), "DeferredBatchNorm1d");
  const Tensor x = testing::batch(0, {6, 2, 3, 1}, DType::f64).x.squeeze(3);
  for (const Tensor& part : raw::split(x, 3)) norm(part);
  EXPECT_NEAR(norm.running_mean.to_vector<double>()[1],
              raw::mean(raw::select(x, 1, 1)).item<double>(), 1e-12);
}

WEFT_ON_DEVICES(DeferredBatchNorm);

}  // namespace
}  // namespace weft::parallel
