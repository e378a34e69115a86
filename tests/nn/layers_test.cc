// Layers compared with PyTorch: initial weights bit for bit, results in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/unfold.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/nn/activation.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/flatten.h"
#include "weft/nn/group_norm.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/pooling.h"
#include "weft/nn/sequential.h"
#include "weft/nn/summary.h"
#include "weft/nn/unfold.h"
#include "weft/nn/upsample.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/autograd/against_goldens.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"

namespace weft {
namespace {

const testing::Goldens goldens("tests/nn/goldens");

class Layers : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(Layers);

Tensor ramp(const Shape& shape, double scale = 1) {
  return testing::ramp(shape, scale).set_requires_grad();
}

// f64 sums of at most about a hundred products of values near 1, in another order than PyTorch's.
constexpr double kTolerance = 1e-12;

void expect_close(const Tensor& got, const std::vector<double>& expected, const char* what) {
  EXPECT_TRUE(testing::near_values(got, expected, kTolerance)) << what;
}

using testing::Inputs;

void check(const char* name, const std::function<Tensor(Inputs)>& f,
           const std::vector<Tensor>& inputs) {
  testing::expect_goldens(goldens, name, f, inputs, kTolerance);
}

TEST(Init, LayersStartWithPyTorchsBits) {
  for (const std::string seed : {"0", "7"}) {
    const auto expect_initial = [&](const std::string& name, auto layer) {
      EXPECT_EQ(layer.weight.template to_vector<double>(), goldens[name + "_weight_" + seed]);
      EXPECT_EQ(layer.bias.template to_vector<double>(), goldens[name + "_bias_" + seed]);
      EXPECT_TRUE(layer.weight.requires_grad());
    };
    manual_seed(std::stoull(seed));
    expect_initial("linear", nn::Linear(5, 3));
    expect_initial("conv", nn::Conv2d(4, 2, {3, 2}, {.groups = 2}));
    expect_initial("conv_transpose", nn::ConvTranspose2d(4, 6, 3, {.groups = 2}));
    manual_seed(std::stoull(seed));
    expect_initial("conv1d", nn::Conv1d(4, 6, 3, {.groups = 2}));
  }
}

TEST(Init, EmbeddingAndAttentionStartAsPyTorchs) {
  for (const std::string seed : {"0", "7"}) {
    manual_seed(std::stoull(seed));
    const nn::Embedding embedding(10, 3, {.padding_idx = -2});
    const nn::MultiheadAttention attention(4, 2);
    // PyTorch's own CPU levels differ by up to 1.8e-6 in what they draw normally.
    EXPECT_TRUE(testing::near_values(embedding.weight, goldens["embedding_weight_" + seed], 2e-6));
    EXPECT_EQ(embedding.weight[8].to_vector<float>(), std::vector<float>(3, 0));
    EXPECT_EQ(attention.in_proj_weight.to_vector<double>(), goldens["attention_in_weight_" + seed]);
    EXPECT_EQ(attention.in_proj_bias.to_vector<float>(), std::vector<float>(12, 0));
    EXPECT_EQ(attention.out_proj.weight.to_vector<double>(),
              goldens["attention_out_weight_" + seed]);
    EXPECT_EQ(attention.out_proj.bias.to_vector<float>(), std::vector<float>(4, 0));
  }
}

TEST_P(Layers, Embedding) {
  const Tensor index = from_vector(std::vector<std::int64_t>{4, 0, 3, 3, 3, 1}, {2, 3});
  const auto check = [&](std::optional<std::int64_t> padding_idx, const std::vector<double>& y,
                         const std::vector<double>& grad) {
    nn::Embedding embedding(5, 2, {.padding_idx = padding_idx});
    embedding.to(DType::f64);
    raw::copy_(embedding.weight, ramp({5, 2}));
    const Tensor rows = embedding(index);
    EXPECT_EQ(rows.shape(), (Shape{2, 3, 2}));
    expect_close(rows, y, "y");
    rows.backward(ramp(rows.shape()).detach());
    expect_close(embedding.weight.grad(), grad, "grad");
  };
  check({}, goldens["embedding_y"], goldens["embedding_grad0"]);
  check(-2, goldens["embedding_padded_y"], goldens["embedding_padded_grad0"]);
  check(3, goldens["embedding_padded_y"], goldens["embedding_padded_grad0"]);
  EXPECT_EQ(nn::Embedding(10, 3, {.padding_idx = -1}).to_string(),
            "Embedding(10, 3, padding_idx=9)  # 30 parameters\n30 parameters");
  EXPECT_EQ(nn::Embedding(4, 2).to_string(), "Embedding(4, 2)  # 8 parameters\n8 parameters");
  EXPECT_WEFT_ERROR(nn::Embedding(3, 2, {.padding_idx = 3}), InvalidArgument,
                    "[Embedding] padding_idx 3 is no row of 3");
  EXPECT_WEFT_ERROR(nn::Embedding(-1, 2), InvalidArgument,
                    "[Embedding] sizes must not be negative");
  EXPECT_WEFT_ERROR(embedding(index, ones({5, 2}), -6), InvalidArgument,
                    "[embedding] padding_idx -6 is no row of weight [5,2]");
}

TEST_P(Layers, ConvolutionsWithEveryOption) {
  const Conv2dParams params{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
  check("conv_strided", [=](Inputs in) { return conv2d(in[0], in[1], in[2], params); },
        {ramp({1, 4, 5, 6}), ramp({2, 2, 3, 2}), ramp({2})});
  const Conv2dParams transposed{.stride = {2, 3},
                                .padding = {1, 1},
                                .dilation = {2, 1},
                                .groups = 2,
                                .output_padding = {1, 2}};
  check("conv_transpose_strided",
        [=](Inputs in) { return conv_transpose2d(in[0], in[1], in[2], transposed); },
        {ramp({1, 4, 3, 2}), ramp({4, 2, 3, 3}), ramp({4})});
}

TEST_P(Layers, PoolingWithEveryOption) {
  const auto pool = [](const char* name, auto layer, const Shape& shape) {
    check(name, [=](Inputs in) mutable { return layer(in[0]); }, {ramp(shape)});
  };
  pool("max_pool", nn::MaxPool2d({3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true}),
       {1, 2, 6, 5});
  pool("max_pool_dilated",
       nn::MaxPool2d(
           3,
           {.stride = nn::Pair(2, 1), .padding = 1, .dilation = nn::Pair(1, 2), .ceil_mode = true}),
       {1, 2, 6, 7});
  pool("avg_pool", nn::AvgPool2d({3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true}),
       {1, 2, 6, 5});
  pool("avg_pool_inside",
       nn::AvgPool2d(3, {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false}),
       {1, 2, 6, 5});
  pool("avg_pool_divisor", nn::AvgPool2d(2, {.divisor = 3}), {1, 2, 4, 5});
  pool("adaptive_max_pool", nn::AdaptiveMaxPool2d({3, 2}), {1, 2, 5, 7});
  pool("adaptive_avg_pool", nn::AdaptiveAvgPool2d({3, 2}), {1, 2, 5, 7});
}

TEST_P(Layers, LayerNorm) {
  nn::LayerNorm norm({3, 2});
  EXPECT_EQ(norm.weight.to_vector<float>(), std::vector<float>(6, 1));
  EXPECT_EQ(norm.bias.to_vector<float>(), std::vector<float>(6, 0));
  norm.to(DType::f64);
  raw::copy_(norm.weight, ramp({3, 2}));
  raw::copy_(norm.bias, ramp({3, 2}, 0.5));
  const Tensor x = ramp({4, 3, 2});
  const Tensor y = norm(x);
  expect_close(y, goldens["layer_norm_y"], "y");
  y.backward(ramp(y.shape()).detach());
  expect_close(x.grad(), goldens["layer_norm_grad0"], "grad_x");
  expect_close(norm.weight.grad(), goldens["layer_norm_grad1"], "grad_w");
  expect_close(norm.bias.grad(), goldens["layer_norm_grad2"], "grad_b");
  EXPECT_TRUE(nn::LayerNorm(4, {.elementwise_affine = false}).parameters().empty());
}

template <class Norm = nn::BatchNorm2d>
void expect_batch_norm(std::optional<double> momentum, const std::string& name,
                       const Shape& shape = {2, 3, 4, 5}, const Shape& eval_shape = {1, 3, 1, 2}) {
  for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
    if (shape.size() < 4 && format == MemoryFormat::nhwc) break;
    Norm norm(3, {.momentum = momentum});
    norm.to(DType::f64);
    raw::copy_(norm.weight, raw::add(ramp({3}), 2.0));
    raw::copy_(norm.bias, ramp({3}));
    for (int step = 0; step < 2; ++step) {
      Tensor x = ramp(shape, step + 1);
      if (format == MemoryFormat::nhwc) {
        x = raw::contiguous(x.detach(), format).set_requires_grad();
      }
      const Tensor y = norm(x);
      EXPECT_EQ(y.is_channels_last(), format == MemoryFormat::nhwc);
      norm.zero_grad();
      y.backward(ramp(y.shape()).detach());
      expect_close(y, goldens[name + "_y" + std::to_string(step)], "y");
      expect_close(x.grad(), goldens[name + "_grad_x" + std::to_string(step)], "grad_x");
      expect_close(norm.weight.grad(), goldens[name + "_grad_w" + std::to_string(step)], "grad_w");
      expect_close(norm.bias.grad(), goldens[name + "_grad_b" + std::to_string(step)], "grad_b");
    }
    expect_close(norm.running_mean, goldens[name + "_running_mean"], "running_mean");
    expect_close(norm.running_var, goldens[name + "_running_var"], "running_var");
    EXPECT_EQ(norm.num_batches_tracked.template item<std::int64_t>(), 2);
    norm.eval();
    const Tensor x = ramp(eval_shape);
    const Tensor y = norm(x);
    y.backward(ramp(y.shape()).detach());
    expect_close(y, goldens[name + "_eval_y"], "y in evaluation");
    expect_close(x.grad(), goldens[name + "_eval_grad_x"], "grad_x in evaluation");
    expect_close(norm.running_mean, goldens[name + "_running_mean"],
                 "running_mean after evaluation");
    EXPECT_EQ(norm.num_batches_tracked.template item<std::int64_t>(), 2);
  }
}

TEST_P(Layers, BatchNormTrainsAndEvaluates) { expect_batch_norm(0.1, "batch_norm"); }

TEST_P(Layers, BatchNormAveragesAllBatches) {
  expect_batch_norm(std::nullopt, "batch_norm_cumulative");
}

TEST_P(Layers, BatchNorm1dFollowsPyTorch) {
  expect_batch_norm<nn::BatchNorm1d>(0.1, "batch_norm_rows", {5, 3}, {1, 3});
  expect_batch_norm<nn::BatchNorm1d>(std::nullopt, "batch_norm_sequences", {2, 3, 4}, {1, 3, 2});
}

TEST_P(Layers, BatchNorm1dGoesOn) {
  nn::BatchNorm1d norm(3), plain(3);
  const Tensor x = ramp({4, 3, 2}).detach().to(DType::f32), add = x * 0.5;
  EXPECT_EQ(norm(x, nn::then_relu()).to_vector<float>(), relu(plain(x)).to_vector<float>());
  EXPECT_EQ(norm(x, nn::then_add_relu(add)).to_vector<float>(),
            relu(plain(x) + add).to_vector<float>());
  EXPECT_EQ(norm.to_string().substr(0, 16), "BatchNorm1d(3, e");
  EXPECT_WEFT_ERROR(norm(ones({1, 3})), Shape, "more than 1 value per channel");
  EXPECT_WEFT_ERROR(norm(ones({2, 4})), Shape, "[batch_norm]");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2})), Shape,
                    "[BatchNorm1d] input: got [2,3,2,2], expected [N,C] or [N,C,L]");
  EXPECT_WEFT_ERROR(nn::BatchNorm1d(0), InvalidArgument, "[BatchNorm1d] channels must be positive");
}

TEST_P(Layers, OtherBatchNormsComputeInPlaceOfBoth) {
  nn::BatchNorm1d rows(3);
  nn::BatchNorm2d images(3);
  for (nn::ModuleBase* norm :
       {static_cast<nn::ModuleBase*>(&rows), static_cast<nn::ModuleBase*>(&images)}) {
    for (int times = 0; times < 2; ++times) {
      nn::replace_batch_norms(*norm, "Other", [](const Tensor& x, auto&&...) {
        EXPECT_EQ(x.dim(), 4);
        return x * 3.0;
      });
    }
  }
  EXPECT_EQ(rows.type_name(), "OtherBatchNorm1d");
  EXPECT_EQ(images.type_name(), "OtherBatchNorm2d");
  const Tensor x = ramp({2, 3}).detach();
  EXPECT_EQ(rows(x).to_vector<double>(), (x * 3.0).to_vector<double>());
  EXPECT_EQ(rows(x).shape(), x.shape());
  EXPECT_EQ(images(x.reshape({2, 3, 1, 1})).to_vector<double>(), (x * 3.0).to_vector<double>());
}

TEST_P(Layers, GroupNormIsTheFunction) {
  nn::GroupNorm norm(2, 4, {.eps = 1e-3});
  EXPECT_EQ(norm.weight.to_vector<float>(), std::vector<float>(4, 1));
  EXPECT_EQ(norm.bias.to_vector<float>(), std::vector<float>(4, 0));
  norm.to(DType::f64);
  raw::copy_(norm.weight, ramp({4}));
  raw::copy_(norm.bias, ramp({4}, 0.5));
  const Tensor x = ramp({2, 4, 3});
  EXPECT_EQ(norm(x).to_vector<double>(),
            group_norm(x, 2, norm.weight, norm.bias, 1e-3).to_vector<double>());
  EXPECT_EQ(norm.to_string(),
            "GroupNorm(2, 4, eps=0.001, affine=True)  # 8 parameters\n8 parameters");
  EXPECT_TRUE(nn::GroupNorm(2, 4, {.affine = false}).parameters().empty());
  EXPECT_WEFT_ERROR(nn::GroupNorm(3, 4), InvalidArgument,
                    "[GroupNorm] groups 3 must divide channels 4");
  EXPECT_WEFT_ERROR(norm(ramp({2, 6})), Shape, "[GroupNorm] input: got [2,6], expected [N,4,..]");
}

TEST_P(Layers, Conv1dIsTheFunction) {
  nn::Conv1d conv(4, 6, 3, {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
  conv.to(DType::f64);
  const Tensor x = ramp({2, 4, 9});
  EXPECT_EQ(
      conv(x).to_vector<double>(),
      conv1d(x, conv.weight, conv.bias, {.stride = 2, .padding = 1, .dilation = 2, .groups = 2})
          .to_vector<double>());
  EXPECT_EQ(conv(x).shape(), (Shape{2, 6, 4}));
  EXPECT_EQ(conv.to_string(),
            "Conv1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), dilation=(2,), groups=2)  "
            "# 42 parameters\n42 parameters");
  EXPECT_EQ(nn::Conv1d(1, 2, 3, {.bias = false}).to_string(),
            "Conv1d(1, 2, kernel_size=(3,), stride=(1,), bias=False)  # 6 parameters\n"
            "6 parameters");
  EXPECT_WEFT_ERROR(nn::Conv1d(3, 4, 2, {.groups = 2}), InvalidArgument,
                    "[Conv1d] groups 2 must divide in 3 and out 4");
  EXPECT_WEFT_ERROR(nn::Conv1d(1, 1, 1, {.stride = 0}), InvalidArgument, "[Conv1d] stride");
}

TEST_P(Layers, ConvolutionsTakePaddingByName) {
  const std::int64_t n = 3;
  const std::string word = "same";
  nn::Conv2d conv(2, 4, {2, 3}, {.padding = "same", .dilation = {1, 2}, .groups = 2});
  conv.to(DType::f64);
  const Tensor x = ramp({2, 2, 4, 5});
  EXPECT_EQ(conv(x).to_vector<double>(),
            conv2d(x, conv.weight, conv.bias, "same", {.dilation = {1, 2}, .groups = 2})
                .to_vector<double>());
  EXPECT_EQ(conv(x).shape(), (Shape{2, 4, 4, 5}));
  EXPECT_EQ(nn::Conv2d(1, 2, {2, 3}, {.padding = word}).to_string(),
            "Conv2d(1, 2, kernel_size=(2, 3), stride=(1, 1), padding=same)  # 14 parameters\n"
            "14 parameters");
  EXPECT_EQ(nn::Conv2d(1, 1, 3, {.stride = 2, .padding = "valid"})(ones({1, 1, 5, 5})).shape(),
            (Shape{1, 1, 2, 2}));
  EXPECT_EQ(nn::Conv2d(1, 1, 3, {.padding = {0, n}})(ones({1, 1, 5, 5})).shape(),
            (Shape{1, 1, 3, 9}));
  EXPECT_EQ(nn::Conv2d(1, 1, 3, {.padding = n})(ones({1, 1, 5, 5})).shape(), (Shape{1, 1, 9, 9}));
  nn::Conv1d row(2, 4, 4, {.padding = "same", .dilation = 3});
  EXPECT_EQ(row(ones({2, 2, 7})).shape(), (Shape{2, 4, 7}));
  EXPECT_EQ(row.to_string().substr(0, 69),
            "Conv1d(2, 4, kernel_size=(4,), stride=(1,), padding=same, dilation=(3");
  EXPECT_WEFT_ERROR(nn::Conv2d(1, 1, 3, {.stride = {1, 2}, .padding = "same"}), InvalidArgument,
                    "[Conv2d] padding 'same' needs stride 1, got 1x2");
  EXPECT_WEFT_ERROR(nn::Conv2d(1, 1, 3, {.padding = "full"}), InvalidArgument,
                    "[Conv2d] padding: got 'full', expected a number, 'same' or 'valid'");
  EXPECT_WEFT_ERROR(nn::Conv1d(1, 1, 3, {.stride = 2, .padding = "same"}), InvalidArgument,
                    "[Conv1d] padding 'same' needs stride 1");
  EXPECT_WEFT_ERROR(nn::ConvTranspose2d(1, 1, 3, {.padding = "same"}), InvalidArgument,
                    "[ConvTranspose2d] padding: got 'same', expected numbers");
}

TEST_P(Layers, UnfoldAndFoldAreTheFunctions) {
  const nn::Unfold unfold({2, 3}, {.dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}});
  const nn::Fold fold({4, 5}, {2, 3}, {.dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}});
  const UnfoldParams params{
      .kernel = {2, 3}, .dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}};
  const Tensor x = ramp({2, 2, 4, 5}), columns = unfold(x);
  EXPECT_EQ(columns.shape(), (Shape{2, 12, 8}));
  EXPECT_EQ(columns.to_vector<double>(), weft::unfold(x, params).to_vector<double>());
  EXPECT_EQ(fold(columns).to_vector<double>(),
            weft::fold(columns, {4, 5}, params).to_vector<double>());
  EXPECT_EQ(unfold.to_string(),
            "Unfold(kernel_size=(2, 3), dilation=(2, 1), padding=(1, 0), stride=(1, 2))\n"
            "0 parameters");
  EXPECT_EQ(nn::Fold({3, 4}, 2).to_string(),
            "Fold(output_size=(3, 4), kernel_size=2, dilation=1, padding=0, stride=1)\n"
            "0 parameters");
  EXPECT_WEFT_ERROR(nn::Unfold(0), InvalidArgument, "[Unfold] kernel, dilation and stride must be");
  EXPECT_WEFT_ERROR(nn::Unfold(1, {.padding = -1}), InvalidArgument, "[Unfold] padding must not");
  EXPECT_WEFT_ERROR(nn::Fold({0, 1}, 1), InvalidArgument, "[Fold] size must be positive, got 0x1");
}

TEST_P(Layers, MaxPoolingIsUndoneByItsIndices) {
  const nn::MaxPool2dWithIndices pool(2, {.stride = nn::Pair(2, 3)});
  const nn::MaxUnpool2d unpool(2, {.stride = nn::Pair(2, 3)});
  const Tensor x = ramp({2, 3, 5, 8});
  const auto [y, indices] = pool(x);
  EXPECT_EQ(y.to_vector<double>(),
            nn::MaxPool2d(2, {.stride = nn::Pair(2, 3)})(x).to_vector<double>());
  EXPECT_EQ(indices.dtype(), DType::i64);
  EXPECT_EQ(unpool(y, indices).shape(), (Shape{2, 3, 4, 8}));
  const Tensor back = unpool(y, indices, nn::Pair(5, 8));
  EXPECT_EQ(back.shape(), x.shape());
  // Each maximum stands where it was, and all else is 0.
  EXPECT_TRUE(back.equal(where(back.ne(0), x, back)));
  EXPECT_EQ(back.ne(0).sum().item<double>(), 2 * 3 * 2 * 3);
  const Tensor one = full({1, 1, 1}, 7), at = full({1, 1, 1}, 5, DType::i64);
  EXPECT_TENSOR(nn::max_unpool2d(one, at, {2, 3}), ({1, 2, 3}), {0, 0, 0, 0, 0, 7});
  autograd::gradcheck("max_unpool2d",
                      [&](auto in) { return unpool(in[0], indices, nn::Pair(5, 8)); },
                      {y.detach().set_requires_grad()});
  EXPECT_EQ(pool.to_string(),
            "MaxPool2dWithIndices(kernel_size=2, stride=(2, 3), padding=0, dilation=1, "
            "ceil_mode=False)\n0 parameters");
  EXPECT_EQ(unpool.to_string(),
            "MaxUnpool2d(kernel_size=(2, 2), stride=(2, 3), padding=(0, 0))\n0 parameters");
  EXPECT_WEFT_ERROR(unpool(y, indices, nn::Pair(6, 8)), InvalidArgument,
                    "[MaxUnpool2d] size: got 6x8, expected less than a stride more or less than");
  EXPECT_WEFT_ERROR(unpool(ones({2}), indices), Shape, "[MaxUnpool2d] input: got [2]");
  EXPECT_WEFT_ERROR(nn::max_unpool2d(y, indices[0], 5), Shape, "indices: got [3,2,3]");
  EXPECT_WEFT_ERROR(nn::max_unpool2d(y, indices, 0), InvalidArgument, "size must be positive");
  EXPECT_WEFT_ERROR(nn::MaxUnpool2d(2, {.padding = 2}), InvalidArgument, "[MaxUnpool2d] padding");
}

TEST_P(Layers, UpsampleIsTheFunction) {
  nn::Upsample upsample({.scale_factor = {2}, .mode = "bilinear"});
  const Tensor x = ramp({1, 2, 3, 4});
  EXPECT_EQ(upsample(x).to_vector<double>(),
            interpolate(x, {.scale_factor = {2}, .mode = "bilinear"}).to_vector<double>());
  EXPECT_EQ(upsample.to_string(), "Upsample(scale_factor=2.0, mode='bilinear')\n0 parameters");
  EXPECT_EQ(nn::Upsample({.size = {4, 6}}).to_string(),
            "Upsample(size=(4, 6), mode='nearest')\n0 parameters");
  EXPECT_EQ(nn::AdaptiveMaxPool2d({3, 2}).to_string(),
            "AdaptiveMaxPool2d(output_size=(3, 2))\n0 parameters");
  EXPECT_WEFT_ERROR(nn::AdaptiveMaxPool2d(0), InvalidArgument,
                    "[AdaptiveMaxPool2d] size must be positive, got 0x0");
}

TEST_P(Layers, Dropout2dInTrainingAlone) {
  manual_seed(3);
  nn::Dropout2d dropout(0.5);
  const Tensor x = ones({3, 8, 2, 2});
  const std::vector<float> y = dropout(x).to_vector<float>();
  EXPECT_NE(y, x.to_vector<float>());
  manual_seed(3);
  EXPECT_EQ(dropout2d(x).to_vector<float>(), y);
  dropout.eval();
  EXPECT_TRUE(dropout(x).same(x));
  EXPECT_EQ(dropout.to_string(), "Dropout2d(p=0.5)\n0 parameters");
  EXPECT_WEFT_ERROR(nn::Dropout2d(-1), InvalidArgument, "[Dropout2d] p: got -1");
}

TEST_P(Layers, BatchNormsStateHasPyTorchsNames) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : nn::BatchNorm2d(3).state_dict()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                             "num_batches_tracked"}));
  const nn::BatchNorm2d plain(3, {.affine = false, .track_running_stats = false});
  EXPECT_TRUE(plain.state_dict().empty());
}

// Without running statistics a batch is always normalised by its own statistics.
TEST_P(Layers, BatchNormWithoutRunningStatistics) {
  nn::BatchNorm2d norm(3,
                       {.momentum = std::nullopt, .affine = false, .track_running_stats = false});
  const Tensor x = ramp({2, 3, 4, 5}).detach();
  const std::vector<double> trained = norm(x).to_vector<double>();
  norm.eval();
  EXPECT_EQ(norm(x).to_vector<double>(), trained);
}

// A block that is recomputed in backward counts its batch only once.
TEST_P(Layers, BatchNormCountsARecomputedBatchOnce) {
  for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
    const auto train = [&](bool recompute) {
      nn::BatchNorm2d norm(3, {.momentum = momentum});
      norm.to(DType::f64);
      const auto block = [&norm](const Tensor& in) {
        return norm(in * 2.0, nn::then_add_relu(in));
      };
      std::vector<std::vector<double>> results;
      for (int step = 1; step <= 2; ++step) {
        const Tensor x = ramp({2, 3, 4, 5}, step);
        const Tensor y = recompute ? autograd::checkpoint(block, x) : block(x);
        y.backward(ramp(y.shape()).detach());
        results.push_back(y.to_vector<double>());
        results.push_back(x.grad().to_vector<double>());
      }
      for (const auto& [name, tensor] : norm.state_dict())
        results.push_back(raw::to(tensor, DType::f64).to_vector<double>());
      results.push_back(norm.weight.grad().to_vector<double>());
      results.push_back(norm.bias.grad().to_vector<double>());
      EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 2);
      return results;
    };
    EXPECT_EQ(train(true), train(false));
  }
}

// Operations in one pass must have the same values and gradients as separate calls, bit for bit:
// each step rounds in the same way, and the sums have the same order.
TEST_P(Layers, BatchNormGoesOnInTheSamePass) {
  using Forward = std::function<Tensor(nn::BatchNorm2d&, const Tensor& x, const Tensor& identity)>;
  const auto results = [](const Forward& forward, DType dtype, bool training, bool nhwc) {
    nn::BatchNorm2d norm(5);
    {
      const NoGrad no_grad;
      norm.weight.copy_(ramp({5}));
      norm.bias.copy_(ramp({5}, 0.3));
      norm.running_mean.fill_(0.1);
    }
    norm.to(dtype);
    norm.train(training);
    const auto input = [&](double scale) {
      const Tensor x = raw::to(ramp({3, 5, 4, 6}, scale).detach(), dtype);
      return (nhwc ? raw::contiguous(x, MemoryFormat::nhwc) : x).set_requires_grad();
    };
    const Tensor x = input(1), identity = input(-0.5);
    const Tensor y = forward(norm, x, identity);
    y.backward(raw::to(ramp(y.shape(), 2).detach(), dtype));
    std::vector<std::vector<double>> all;
    for (const Tensor& t : {y, x.grad(), identity.grad(), norm.weight.grad(), norm.bias.grad()}) {
      all.push_back(t.defined() ? t.to_vector<double>() : std::vector<double>());
    }
    return all;
  };
  const std::pair<Forward, Forward> kPairs[] = {
      {[](auto& bn, auto& x, auto&) { return bn(x, nn::then_relu()); },
       [](auto& bn, auto& x, auto&) { return relu(bn(x)); }},
      {[](auto& bn, auto& x, auto&) { return bn(x, nn::then_leaky_relu(0.2)); },
       [](auto& bn, auto& x, auto&) { return leaky_relu(bn(x), 0.2); }},
      {[](auto& bn, auto& x, auto& more) { return bn(x, nn::then_add_relu(more)); },
       [](auto& bn, auto& x, auto& more) { return relu(bn(x) + more); }},
      {[](auto& bn, auto& x, auto& more) { return bn(x, BatchNormEpilogue{.add = more}); },
       [](auto& bn, auto& x, auto& more) { return bn(x) + more; }},
      {[](auto& bn, auto& x, auto&) { return nn::Sequential{bn, nn::ReLU()}(x); },
       [](auto& bn, auto& x, auto&) { return relu(bn(x)); }},
      {[](auto& bn, auto& x, auto&) { return nn::Sequential{bn, nn::LeakyReLU(0.2), bn}(x); },
       [](auto& bn, auto& x, auto&) { return bn(leaky_relu(bn(x), 0.2)); }}};
  for (const auto& [fused, separate] : kPairs) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const bool training : {true, false}) {
        for (const bool nhwc : {true, false}) {
          SCOPED_TRACE(std::to_string(&fused - &kPairs[0].first) + " " + to_string(dtype));
          EXPECT_EQ(results(fused, dtype, training, nhwc),
                    results(separate, dtype, training, nhwc));
        }
      }
    }
  }
}

// The same for layers without statistics.
template <class Layer>
void expect_relu_in_the_same_pass(Layer layer, const Shape& shape) {
  const bool on_cpu = layer.weight.device().is_cpu();
  using Forward = std::function<Tensor(Layer&, const Tensor& x)>;
  const auto results = [&](const Forward& forward, DType dtype, bool nhwc, bool again) {
    layer.to(dtype);
    layer.zero_grad();
    Tensor x = raw::to(ramp(shape).detach(), dtype);
    x = (nhwc ? raw::contiguous(x, MemoryFormat::nhwc) : x).set_requires_grad();
    const Tensor y = forward(layer, x);
    const Tensor grad = raw::to(ramp(y.shape(), 2).detach(), dtype);
    if (again) {  // a gradient of gradients
      const std::vector<Tensor> first =
          autograd::grad((y * grad).sum(), {x, layer.weight}, {.create_graph = true});
      (square(first[0]).sum() + square(first[1]).sum()).backward();
    } else {
      y.backward(grad);
    }
    std::vector<std::vector<double>> all;
    for (const Tensor& t : {y, x.grad(), layer.weight.grad(), layer.bias.grad()})
      all.push_back(t.defined() ? t.to_vector<double>() : std::vector<double>());
    return all;
  };
  const Forward separate = [](auto& f, auto& x) { return relu(f(x)); };
  const Forward fused[] = {[](auto& f, auto& x) { return f(x, nn::then_relu()); },
                           [](auto& f, auto& x) { return nn::Sequential{f, nn::ReLU()}(x); }};
  for (const Forward& forward : fused) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const bool nhwc : {false, true}) {
        if (nhwc && shape.size() != 4) continue;
        for (const bool again : {false, true}) {
          SCOPED_TRACE(layer.type_name() + " " + to_string(dtype));
          auto got = results(forward, dtype, nhwc, again);
          auto want = results(separate, dtype, nhwc, again);
          // On a GPU the f64 sums for the bias run in another order; rounded to f32 they are equal.
          if (!on_cpu && dtype == DType::f64) {
            for (std::size_t k = 0; k < want[3].size(); ++k)
              EXPECT_NEAR(got[3].at(k), want[3][k], 1e-13 * (1 + std::abs(want[3][k])));
            got.pop_back();
            want.pop_back();
          }
          EXPECT_EQ(got, want);
        }
      }
    }
  }
}

TEST_P(Layers, OtherLayersGoOnInTheSamePass) {
  const Scoped fixed(&ThreadState::deterministic, true);
  expect_relu_in_the_same_pass(nn::Conv2d(5, 4, 3, {.padding = 1}), {3, 5, 4, 6});
  expect_relu_in_the_same_pass(nn::Conv2d(4, 8, 3, {.stride = 2, .groups = 2}), {3, 4, 7, 6});
  expect_relu_in_the_same_pass(nn::Conv2d(1, 8, 3), {3, 1, 7, 6});
  expect_relu_in_the_same_pass(nn::Conv2d(2, 3, 3), {2, 7, 6});  // no batch
  expect_relu_in_the_same_pass(nn::ConvTranspose2d(5, 8, 3), {3, 5, 4, 6});
  expect_relu_in_the_same_pass(nn::ConvTranspose2d(8, 1, 3), {3, 8, 4, 6});
  expect_relu_in_the_same_pass(nn::Linear(6, 7), {3, 5, 6});
  expect_relu_in_the_same_pass(nn::Linear(6, 7), {6});
}

// y is what the separate relu would keep; the value before it is not kept.
TEST_P(Layers, ReluInTheSamePassSavesNoMore) {
  nn::Linear fc(4, 64);
  const Tensor x = ramp({16, 4}).to(DType::f32);
  const auto held = [&](bool then) {
    const std::int64_t before = memory_stats(device()).in_use_bytes;
    Tensor y = then ? fc(x, nn::then_relu()) : relu(fc(x));
    y = y.sum();
    return memory_stats(device()).in_use_bytes - before;
  };
  // On a GPU also a bit for each element, in rows of 128.
  const std::int64_t mask = on_cpu() ? 0 : 512;
  EXPECT_GE(held(true), held(false));
  EXPECT_LE(held(true), held(false) + mask);
}

// As after relu(): a change of the result would give backward another sign.
TEST_P(Layers, ReluInTheSamePassKeepsItsResult) {
  nn::Linear fc(4, 3);
  Tensor y = fc(ones({2, 4}), nn::then_relu());
  y.mul_(2);
  EXPECT_WEFT_ERROR(y.sum().backward(), InvalidArgument, "[linear");
}

// bf16 images and f32 weights, as under autocast.
TEST_P(Layers, BatchNormOfMixedTypesGoesOn) {
  nn::BatchNorm2d norm(3);
  const Tensor x = raw::to(ramp({2, 3, 4, 5}).detach(), DType::bf16);
  const Tensor more = raw::to(ramp({2, 3, 4, 5}, -0.5).detach(), DType::bf16);
  EXPECT_EQ(norm(x, nn::then_relu()).to_vector<double>(), relu(norm(x)).to_vector<double>());
  EXPECT_EQ(norm(x, nn::then_leaky_relu(0.3)).to_vector<double>(),
            leaky_relu(norm(x), 0.3).to_vector<double>());
  const Tensor y = norm(x, nn::then_add_relu(more));
  EXPECT_EQ(y.dtype(), DType::bf16);
  EXPECT_EQ(y.to_vector<double>(), relu(norm(x) + more).to_vector<double>());
  EXPECT_WEFT_ERROR(norm(x, nn::then_add_relu(ones({3, 4, 5}, DType::bf16))), Shape,
                    "addend: got [3,4,5]");
  EXPECT_WEFT_ERROR(norm(x, nn::then_add_relu(ones({2, 3, 4, 5}))), Dtype, "addend is f32");
}

// The fused operation allows this, as two separate operations do.
TEST_P(Layers, BatchNormWithReluLetsItsParametersChangeBeforeBackward) {
  nn::BatchNorm2d norm(3);
  norm.to(DType::f64);
  const Tensor x =
      ramp({2, 3, 4, 5}).detach();  // needs no gradient, so weight is not needed either
  const Tensor y = norm(x, nn::then_relu());
  const Tensor wanted = relu(norm(x)).sum();
  {
    const NoGrad no_grad;
    norm.weight.fill_(-7);
    norm.bias.fill_(100);
  }
  y.sum().backward();
  const auto fused = norm.bias.grad().to_vector<double>();
  norm.zero_grad();
  wanted.backward();
  EXPECT_EQ(norm.bias.grad().to_vector<double>(), fused);
}

// One operation on the tape. With only an activation, backward computes its mask from x, and keeps
// no more images than the norm alone.
TEST_P(Layers, BatchNormWithReluSavesNoMore) {
  nn::BatchNorm2d norm(4, {.affine = false});
  norm.to(DType::f64);
  const Tensor x = ramp({2, 4, 8, 8});
  const auto held = [&](bool then) {
    const std::int64_t before = memory_stats(device()).in_use_bytes;
    Tensor y = then ? norm(x, nn::then_relu()) : norm(x);
    y = y.sum();
    return memory_stats(device()).in_use_bytes - before;
  };
  EXPECT_EQ(held(true), held(false));
}

TEST_P(Layers, SequentialTakesOverAnActivationUnlessObserved) {
  nn::Sequential net{nn::Conv2d(1, 3, 3), nn::BatchNorm2d(3), nn::ReLU(), nn::BatchNorm2d(3),
                     nn::LeakyReLU(0.1)};
  std::vector<std::string> names;
  for (const auto& [name, tensor] : net.state_dict()) names.push_back(name);
  EXPECT_EQ(names.size(), 12u);
  EXPECT_EQ(names[2], "1.weight");
  EXPECT_EQ(names[7], "3.weight");
  std::vector<std::string> types;
  for (const nn::SummaryRow& row : nn::summary(net, {1, 1, 6, 6}).rows) types.push_back(row.type);
  EXPECT_EQ(types, (std::vector<std::string>{"Sequential", "Conv2d", "BatchNorm2d", "ReLU",
                                             "BatchNorm2d", "LeakyReLU"}));
}

TEST_P(Layers, NewLayersPrintAsPyTorchs) {
  const auto line = [](const nn::ModuleBase& m) {
    const std::string text = m.to_string();
    return text.substr(0, text.find(')') + 1);
  };
  EXPECT_EQ(line(nn::BatchNorm2d(64)),
            "BatchNorm2d(64, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)");
  EXPECT_EQ(
      line(nn::BatchNorm2d(
          8,
          {.eps = 1e-3, .momentum = std::nullopt, .affine = false, .track_running_stats = false})),
      "BatchNorm2d(8, eps=0.001, momentum=None, affine=False, track_running_stats=False)");
  EXPECT_EQ(line(nn::AvgPool2d(3, {.stride = 2, .padding = 1})),
            "AvgPool2d(kernel_size=3, stride=2, padding=1)");
  EXPECT_EQ(nn::AvgPool2d({3, 2}).to_string(),
            "AvgPool2d(kernel_size=(3, 2), stride=(3, 2), padding=0)\n0 parameters");
  EXPECT_EQ(line(nn::AdaptiveAvgPool2d(1)), "AdaptiveAvgPool2d(output_size=1)");
  EXPECT_EQ(nn::LayerNorm(10).to_string(),
            "LayerNorm((10,), eps=1e-05, elementwise_affine=True)  # 20 parameters\n"
            "20 parameters");
  EXPECT_EQ(nn::LayerNorm({4, 5}, {.eps = 1e-4, .elementwise_affine = false}).to_string(),
            "LayerNorm((4, 5), eps=0.0001, elementwise_affine=False)\n0 parameters");
}

TEST_P(Layers, FlattenAndUnflattenAreInverse) {
  const Tensor x = ramp({2, 3, 4, 5});
  nn::Flatten flatten;
  nn::Unflatten unflatten(1, {3, -1, 5});
  EXPECT_EQ(flatten(x).shape(), (Shape{2, 60}));
  EXPECT_EQ(unflatten(flatten(x)).shape(), x.shape());
  EXPECT_EQ(unflatten(flatten(x)).to_vector<double>(), x.to_vector<double>());
}

TEST_P(Layers, FlattenAndUnflattenLeaveTheirInputToTheNext) {
  nn::Sequential flat{nn::Flatten(), nn::ReLU()}, deep{nn::Unflatten(1, {3, 4}), nn::ReLU()};
  Tensor image = ramp({2, 3, 4}) * 2.0, row = ramp({2, 12}) * 2.0;
  const void *image_at = image.raw_data(), *row_at = row.raw_data();
  EXPECT_EQ(flat(std::move(image)).raw_data(), image_at);
  EXPECT_EQ(deep(std::move(row)).raw_data(), row_at);
}

TEST_P(Layers, LossesFollowPyTorch) {
  const Tensor target = from_vector(std::vector<std::int64_t>{2, -100, 0, 1}, {4});
  check("cross_entropy",
        [=](Inputs in) { return nn::cross_entropy(in[0], target, {.label_smoothing = 0.1}); },
        {ramp({4, 3}, 3)});
  check("mse", [](Inputs in) { return nn::mse_loss(in[0], in[1]); },
        {ramp({2, 3}), ramp({2, 3}, 0.5)});
}

// As in PyTorch: weights without elements, and a bias of zeros for which the generator still draws.
TEST_P(Layers, LinearOfNothing) {
  manual_seed(5);
  nn::Linear none(0, 3);
  const Tensor next = rand({2});
  EXPECT_EQ(none.weight.shape(), (Shape{3, 0}));
  EXPECT_EQ(none.bias.to_vector<float>(), std::vector<float>(3, 0.f));
  EXPECT_EQ(none(zeros({2, 0})).to_vector<float>(), std::vector<float>(6, 0.f));
  manual_seed(5);
  rand({3});
  EXPECT_EQ(rand({2}).to_vector<float>(), next.to_vector<float>());
  EXPECT_EQ(nn::Linear(4, 0)(zeros({2, 4})).shape(), (Shape{2, 0}));
}

TEST_P(Layers, RefuseBadOptions) {
  EXPECT_WEFT_ERROR(nn::Linear(-1, 3), InvalidArgument,
                    "[Linear] features must not be negative, got in -1, out 3");
  EXPECT_WEFT_ERROR(nn::Conv2d(3, 4, 3, {.groups = 2}), InvalidArgument,
                    "[Conv2d] groups 2 must divide in 3 and out 4");
  EXPECT_WEFT_ERROR(nn::ConvTranspose2d(2, 2, 3, {.output_padding = 1}), InvalidArgument,
                    "output_padding must be smaller than stride or dilation");
  EXPECT_WEFT_ERROR(nn::MaxPool2d(2, {.padding = 2}), InvalidArgument, "at most half the kernel");
  EXPECT_WEFT_ERROR(nn::AvgPool2d(2, {.padding = 2}), InvalidArgument,
                    "[AvgPool2d] padding 2x2 must be at most half the kernel 2x2");
  EXPECT_WEFT_ERROR(nn::MaxPool2d(2, {.padding = std::int64_t{1} << 62}), InvalidArgument,
                    "[MaxPool2d] padding 4611686018427387904x4611686018427387904 must be at most");
  const Tensor image = ones({1, 1, 4, 4});
  const nn::Pair far = std::int64_t{1} << 62;
  EXPECT_WEFT_ERROR(nn::MaxPool2d{far}(image), InvalidArgument, "[max_pool2d] kernel: got (461");
  EXPECT_WEFT_ERROR(nn::AdaptiveAvgPool2d{far}(image), Shape,
                    "[adaptive_avg_pool2d] the number of elements of");
  EXPECT_WEFT_ERROR(nn::Conv2d(1, 1, 2, {.stride = far})(image), InvalidArgument,
                    "[conv2d] stride: got (461");
  EXPECT_WEFT_ERROR(nn::Softmax(std::int64_t{1} << 32)(image), Shape, "[softmax] dimension: got 4");
  EXPECT_WEFT_ERROR(nn::Flatten(std::int64_t{1} << 32)(image), Shape, "[flatten] dimension: got 4");
  EXPECT_WEFT_ERROR(nn::Unflatten(std::int64_t{1} << 32, {1, 1})(image), Shape,
                    "[unflatten] dimension: got 4");
  EXPECT_WEFT_ERROR(nn::AvgPool2d(2, {.divisor = 0}), InvalidArgument, "divisor must not be 0");
  EXPECT_WEFT_ERROR(nn::BatchNorm2d(0), InvalidArgument, "channels must be positive, got 0");
  EXPECT_WEFT_ERROR(nn::LayerNorm(Shape{}), InvalidArgument, "one dimension or more");
  EXPECT_WEFT_ERROR(nn::BatchNorm2d(3)(ones({1, 3, 1, 1})), Shape,
                    "expected more than 1 value per channel when training, got x [1,3,1,1]");
}

}  // namespace
}  // namespace weft
