// Layers against PyTorch: initial weights bit for bit, results in f64.
#include <gtest/gtest.h>

#include "weft/autograd/autograd.h"
#include "weft/core/error.h"
#include "weft/nn/activation.h"
#include "weft/nn/conv.h"
#include "weft/nn/flatten.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/pooling.h"
#include "weft/tests/nn/goldens.h"

namespace weft {
namespace {

// The formula of write_goldens.py.
Tensor ramp(const Shape& shape, double scale = 1) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < numel(shape); ++i)
    values.push_back((static_cast<double>(i * 7919 % 1009) / 504.5 - 1) * scale);
  return from_vector(values, shape).set_requires_grad();
}

void expect_close(const Tensor& got, const std::vector<double>& expected, const char* what) {
  const std::vector<double> values = got.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size()) << what;
  // f64 sums of at most some hundred products of values near 1, in another order than PyTorch's.
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], 1e-12) << what << " element " << i;
}

template <class Layer>
void expect_initial(Layer layer, const std::vector<float>& weight, const std::vector<float>& bias) {
  EXPECT_EQ(layer.weight.template to_vector<float>(), weight);
  EXPECT_EQ(layer.bias.template to_vector<float>(), bias);
  EXPECT_TRUE(layer.weight.requires_grad());
}

TEST(Init, LayersStartWithPyTorchsBits) {
  manual_seed(0);
  expect_initial(nn::Linear(5, 3), goldens::linear_weight_0, goldens::linear_bias_0);
  expect_initial(nn::Conv2d(4, 2, {3, 2}, {.groups = 2}), goldens::conv_weight_0,
                 goldens::conv_bias_0);
  expect_initial(nn::ConvTranspose2d(4, 6, 3, {.groups = 2}), goldens::conv_transpose_weight_0,
                 goldens::conv_transpose_bias_0);
  manual_seed(7);
  expect_initial(nn::Linear(5, 3), goldens::linear_weight_7, goldens::linear_bias_7);
  expect_initial(nn::Conv2d(4, 2, {3, 2}, {.groups = 2}), goldens::conv_weight_7,
                 goldens::conv_bias_7);
  expect_initial(nn::ConvTranspose2d(4, 6, 3, {.groups = 2}), goldens::conv_transpose_weight_7,
                 goldens::conv_transpose_bias_7);
}

TEST(Layers, ConvolutionWithEveryOption) {
  const Tensor x = ramp({1, 4, 5, 6}), w = ramp({2, 2, 3, 2}), b = ramp({2});
  Conv2dParams params{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
  const Tensor y = conv2d(x, w, b, params);
  expect_close(y, goldens::conv_strided_y, "y");
  y.backward(ramp(y.shape()).detach());
  expect_close(x.grad(), goldens::conv_strided_grad0, "grad_x");
  expect_close(w.grad(), goldens::conv_strided_grad1, "grad_w");
  expect_close(b.grad(), goldens::conv_strided_grad2, "grad_b");
}

TEST(Layers, TransposedConvolutionWithEveryOption) {
  const Tensor x = ramp({1, 4, 3, 2}), w = ramp({4, 2, 3, 3}), b = ramp({4});
  Conv2dParams params{.stride = {2, 3},
                      .padding = {1, 1},
                      .dilation = {2, 1},
                      .groups = 2,
                      .output_padding = {1, 2}};
  const Tensor y = conv_transpose2d(x, w, b, params);
  expect_close(y, goldens::conv_transpose_strided_y, "y");
  y.backward(ramp(y.shape()).detach());
  expect_close(x.grad(), goldens::conv_transpose_strided_grad0, "grad_x");
  expect_close(w.grad(), goldens::conv_transpose_strided_grad1, "grad_w");
  expect_close(b.grad(), goldens::conv_transpose_strided_grad2, "grad_b");
}

TEST(Layers, MaxPool) {
  const Tensor x = ramp({1, 2, 6, 5});
  nn::MaxPool2d pool({3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true});
  const Tensor y = pool(x);
  expect_close(y, goldens::max_pool_y, "y");
  y.backward(ramp(y.shape()).detach());
  expect_close(x.grad(), goldens::max_pool_grad0, "grad_x");
}

TEST(Layers, FlattenAndUnflattenAreInverse) {
  const Tensor x = ramp({2, 3, 4, 5});
  nn::Flatten flatten;
  nn::Unflatten unflatten(1, {3, -1, 5});
  EXPECT_EQ(flatten(x).shape(), (Shape{2, 60}));
  EXPECT_EQ(unflatten(flatten(x)).shape(), x.shape());
  EXPECT_EQ(unflatten(flatten(x)).to_vector<double>(), x.to_vector<double>());
}

TEST(Losses, CrossEntropyIgnoresAndSmoothes) {
  const Tensor x = ramp({4, 3}, 3);
  const Tensor target = from_vector(std::vector<std::int64_t>{2, -100, 0, 1}, {4});
  const Tensor loss = nn::cross_entropy(x, target, {.label_smoothing = 0.1});
  expect_close(loss, goldens::cross_entropy_y, "loss");
  loss.backward();
  expect_close(x.grad(), goldens::cross_entropy_grad0, "grad");
}

TEST(Losses, MseToBothSides) {
  const Tensor x = ramp({2, 3}), target = ramp({2, 3}, 0.5);
  const Tensor loss = nn::mse_loss(x, target);
  expect_close(loss, goldens::mse_y, "loss");
  loss.backward();
  expect_close(x.grad(), goldens::mse_grad0, "grad_x");
  expect_close(target.grad(), goldens::mse_grad1, "grad_target");
}

template <class F>
std::string message_of(F&& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  ADD_FAILURE() << "nothing thrown";
  return "";
}

TEST(Layers, RefuseBadOptions) {
  EXPECT_NE(message_of([] { nn::Linear(0, 3); }, ErrorCode::InvalidArgument)
                .find("[Linear] features must be positive, got in 0, out 3"),
            std::string::npos);
  EXPECT_NE(message_of([] { nn::Conv2d(3, 4, 3, {.groups = 2}); }, ErrorCode::InvalidArgument)
                .find("[Conv2d] groups 2 must divide in 3 and out 4"),
            std::string::npos);
  EXPECT_NE(message_of([] { nn::ConvTranspose2d(2, 2, 3, {.output_padding = 1}); },
                       ErrorCode::InvalidArgument)
                .find("output_padding must be smaller than stride or dilation"),
            std::string::npos);
  EXPECT_NE(message_of([] { nn::MaxPool2d(2, {.padding = 2}); }, ErrorCode::InvalidArgument)
                .find("at most half the kernel"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
