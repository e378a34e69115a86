// Rows of nn/: each layer is made and, if that works, called.
#include "weft/nn/activation.h"
#include "weft/nn/any_module.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/embedding.h"
#include "weft/nn/embedding_bag.h"
#include "weft/nn/flatten.h"
#include "weft/nn/group_norm.h"
#include "weft/nn/init.h"
#include "weft/nn/instance_norm.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/loss_modules.h"
#include "weft/nn/module_list.h"
#include "weft/nn/padding.h"
#include "weft/nn/parameter_list.h"
#include "weft/nn/pixel_shuffle.h"
#include "weft/nn/pooling.h"
#include "weft/nn/recurrent.h"
#include "weft/nn/sequential.h"
#include "weft/nn/summary.h"
#include "weft/nn/transformer.h"
#include "weft/nn/unfold.h"
#include "weft/nn/upsample.h"
#include "weft/tensor/creation.h"
#include "weft/tests/sizes/sizes.h"

namespace weft::testing {
namespace {

nn::Pair pair(const Sizes& s, std::size_t i) { return {s(i, 0), s(i, 1)}; }

nn::ConvOptions conv_options(const Sizes& s) {
  return {.stride = pair(s, 0),
          .padding = pair(s, 1),
          .dilation = pair(s, 2),
          .groups = s[3],
          .output_padding = pair(s, 4)};
}
const Sizes::Values kConv = {{1, 1}, {0, 0}, {1, 1}, {1}, {0, 0}};

WEFT_SIZES(
    Layers,
    {
        {"nn::Softmax::Softmax(dim)",
         {{1}},
         GIVES(nn::Softmax(s[0])(leaf({2, 3})))},
        {"nn::LogSoftmax::LogSoftmax(dim)",
         {{1}},
         GIVES(nn::LogSoftmax(s[0])(leaf({2, 3})))},
        {"nn::pass_through(count)",
         {{1}},
         GIVES(nn::pass_through(nn::ReLU(), s[0])(std::vector<Tensor>{leaf({2, 3}), leaf({2, 3})}))},
        {"nn::MultiheadAttention::MultiheadAttention(embed_dim, heads)",
         {{4}, {2}},
         [](const Sizes& s) -> Result {
           nn::MultiheadAttention attention(s[0], s[1]);
           return attention(leaf({3, 2, 4}));
         }},
        {"nn::BatchNorm2d::BatchNorm2d(channels)",
         {{2}},
         GIVES(nn::BatchNorm2d(s[0])(leaf({2, 2, 3, 3})))},
        {"nn::BatchNorm1d::BatchNorm1d(channels)",
         {{2}},
         GIVES(nn::BatchNorm1d(s[0])(leaf({2, 2, 3})))},
        {"nn::Pair::Pair(both)",
         {{1}},
         GIVES(nn::AdaptiveAvgPool2d(nn::Pair(s[0].value))(leaf({1, 2, 5, 5})))},
        {"nn::Conv1dOptions{stride, padding, dilation, groups}",
         {{1}, {0}, {1}, {1}},
         GIVES(nn::Conv1d(2, 2, 3, {.stride = s[0], .padding = s[1].value, .dilation = s[2], .groups = s[3]})( leaf({1, 2, 5})))},
        {"nn::Conv1d::Conv1d(in, out, kernel)",
         {{2}, {4}, {3}},
         GIVES(nn::Conv1d(s[0], s[1], s[2])(leaf({1, 2, 5})))},
        {"nn::ConvOptions{stride, padding, dilation, groups, output_padding}", kConv,
         GIVES(nn::Conv2d(2, 2, 3, conv_options(s))(leaf({1, 2, 5, 5})))},
        {"nn::ConvOptions{stride, padding, dilation, groups, output_padding} / transposed", kConv,
         GIVES(nn::ConvTranspose2d(2, 2, 3, conv_options(s))(leaf({1, 2, 5, 5})))},
        {"nn::Conv2d::Conv2d(in, out, kernel)",
         {{2}, {4}, {3, 4}},
         GIVES(nn::Conv2d(s[0], s[1], pair(s, 2))(leaf({1, 2, 5, 5})))},
        {"nn::ConvTranspose2d::ConvTranspose2d(in, out, kernel)",
         {{2}, {4}, {3, 4}},
         GIVES(nn::ConvTranspose2d(s[0], s[1], pair(s, 2))(leaf({1, 2, 5, 5})))},
        {"nn::EmbeddingOptions{padding_idx}",
         {{1}},
         GIVES(nn::Embedding(4, 3, {.padding_idx = s[0].value})(zeros({2}, DType::i64)))},
        {"nn::Embedding::Embedding(num, dim)",
         {{4}, {3}},
         GIVES(nn::Embedding(s[0], s[1])(zeros({2}, DType::i64)))},
        {"nn::Flatten::Flatten(start_dim, end_dim)",
         {{0}, {1}},
         GIVES(nn::Flatten(s[0], s[1])(leaf({2, 3, 4})))},
        {"nn::Unflatten::Unflatten(dim, sizes)",
         {{1}, {2, 2}},
         GIVES(nn::Unflatten(s[0], s.dims(1))(leaf({3, 4})))},
        {"nn::GroupNorm::GroupNorm(groups, channels)",
         {{2}, {4}},
         GIVES(nn::GroupNorm(s[0], s[1])(leaf({2, 4, 3})))},
        {"nn::InstanceNorm2d::InstanceNorm2d(channels)",
         {{4}},
         GIVES(nn::InstanceNorm2d(s[0])(leaf({2, 4, 3, 3})))},
        {"nn::pixel_shuffle(upscale_factor)",
         {{2}},
         GIVES(nn::pixel_shuffle(leaf({1, 4, 2, 2}), s[0]))},
        {"nn::pixel_unshuffle(downscale_factor)",
         {{2}},
         GIVES(nn::pixel_unshuffle(leaf({1, 1, 4, 4}), s[0]))},
        {"nn::PixelShuffle::PixelShuffle(upscale_factor)",
         {{2}},
         GIVES(nn::PixelShuffle(s[0])(leaf({1, 4, 2, 2})))},
        {"nn::Padding2d::Padding2d(all)",
         {{1}},
         GIVES(nn::ZeroPad2d(s[0].value)(leaf({1, 1, 3, 3})))},
        {"nn::Padding2d::Padding2d(l, r, t, b)",
         {{1}, {0}, {0}, {1}},
         GIVES(nn::ReflectionPad2d({s[0], s[1], s[2], s[3]})(leaf({1, 1, 3, 3})))},
        {"nn::NLLLoss::NLLLoss(ignore_index)",
         {{1}},
         GIVES(nn::NLLLoss({}, s[0])(log_softmax(leaf({2, 3}), 1), zeros({2}, DType::i64)))},
        {"nn::init::dirac_(groups)",
         {{2}},
         [](const Sizes& s) -> Result {
           const Tensor x = ramp({4, 2, 3});
           nn::init::dirac_(x, s[0]);
           return x;
         }},
        {"nn::LayerNorm::LayerNorm(normalized_shape)",
         {{3, 4}},
         GIVES(nn::LayerNorm(s.dims(0))(leaf({2, 3, 4})))},
        {"nn::LayerNorm::LayerNorm(features)",
         {{4}},
         GIVES(nn::LayerNorm(s[0].value)(leaf({2, 3, 4})))},
        {"nn::Linear::Linear(in, out)",
         {{3}, {4}},
         GIVES(nn::Linear(s[0], s[1])(leaf({2, 3})))},
        {"nn::PReLU::PReLU(num_parameters)",
         {{3}},
         GIVES(nn::PReLU(s[0])(leaf({2, 3})))},
        {"nn::EmbeddingBag::EmbeddingBag(num, dim)",
         {{4}, {3}},
         GIVES(nn::EmbeddingBag(s[0], s[1])(zeros({2, 2}, DType::i64)))},
        {"nn::EmbeddingBagOptions{padding_idx}",
         {{1}},
         GIVES(nn::EmbeddingBag(4, 3, {.padding_idx = s[0].value})(zeros({2, 2}, DType::i64)))},
        {"nn::TransformerEncoderLayer::TransformerEncoderLayer(d_model, nhead)",
         {{4}, {2}},
         GIVES(nn::TransformerEncoderLayer(s[0], s[1], {.dim_feedforward = 3})(leaf({3, 2, 4})))},
        {"nn::TransformerEncoderLayerOptions{dim_feedforward}",
         {{3}},
         GIVES(nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = s[0]})(leaf({3, 2, 4})))},
        {"nn::TransformerEncoder::TransformerEncoder(num_layers)",
         {{2}},
         GIVES(nn::TransformerEncoder(nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = 3}), s[0])(leaf({3, 2, 4})))},
        {"nn::ParameterList::operator[](index)",
         {{1}},
         GIVES(nn::ParameterList{ones({2}), ones({3})}[s[0]] * 2.0)},
        {"nn::RNN::RNN(input_size, hidden_size)",
         {{3}, {4}},
         GIVES(nn::RNN(s[0], s[1])(leaf({5, 2, 3})).output)},
        {"nn::RNNOptions{num_layers}",
         {{2}},
         GIVES(nn::RNN(3, 4, {.num_layers = s[0]})(leaf({5, 2, 3})).output)},
        {"nn::GRU::GRU(input_size, hidden_size)",
         {{3}, {4}},
         GIVES(nn::GRU(s[0], s[1])(leaf({5, 2, 3})).output)},
        {"nn::GRUOptions{num_layers}",
         {{2}},
         GIVES(nn::GRU(3, 4, {.num_layers = s[0]})(leaf({5, 2, 3})).output)},
        {"nn::LSTM::LSTM(input_size, hidden_size)",
         {{3}, {4}},
         GIVES(nn::LSTM(s[0], s[1])(leaf({5, 2, 3})).output)},
        {"nn::LSTMOptions{num_layers, proj_size}",
         {{2}, {3}},
         GIVES(nn::LSTM(3, 4, {.num_layers = s[0], .proj_size = s[1]})(leaf({5, 2, 3})).output)},
        {"nn::RNNCell::RNNCell(input_size, hidden_size)",
         {{3}, {4}},
         GIVES(nn::RNNCell(s[0], s[1])(leaf({2, 3})))},
        {"nn::GRUCell::GRUCell(input_size, hidden_size)",
         {{3}, {4}},
         GIVES(nn::GRUCell(s[0], s[1])(leaf({2, 3})))},
        {"nn::LSTMCell::LSTMCell(input_size, hidden_size)",
         {{3}, {4}},
         GIVES(nn::LSTMCell(s[0], s[1])(leaf({2, 3})).h)},
        {"nn::CrossEntropyOptions{ignore_index}",
         {{-100}},
         GIVES(nn::cross_entropy(leaf({2, 3}), zeros({2}, DType::i64), {.weight = ones({3}), .ignore_index = s[0]}))},
        {"nn::nll_loss(ignore_index)",
         {{-100}},
         GIVES(nn::nll_loss(leaf({2, 3}), zeros({2}, DType::i64), s[0]))},
        {"nn::ModuleList::operator[](index)",
         {{1}},
         [](const Sizes& s) -> Result {
           nn::ModuleList<nn::ReLU> list{nn::ReLU(), nn::ReLU()};
           return list[s[0]](leaf({2, 3}));
         }},
        {"nn::PoolOptions{stride, padding, dilation}",
         {{1, 1}, {0, 0}, {1, 1}},
         GIVES(nn::MaxPool2d( 2, {.stride = pair(s, 0), .padding = pair(s, 1), .dilation = pair(s, 2)})( leaf({1, 2, 5, 5})))},
        {"nn::MaxPool2d::MaxPool2d(kernel)",
         {{2, 2}},
         GIVES(nn::MaxPool2d(pair(s, 0))(leaf({1, 2, 5, 5})))},
        {"nn::MaxPool2dWithIndices::MaxPool2dWithIndices(kernel)",
         {{2, 2}},
         GIVES(nn::MaxPool2dWithIndices(pair(s, 0))(leaf({1, 2, 5, 5})))},
        {"nn::UnpoolOptions{stride, padding}",
         {{2, 2}, {0, 0}},
         GIVES(nn::MaxUnpool2d(2, {.stride = pair(s, 0), .padding = pair(s, 1)})( leaf({1, 2, 2, 2}), zeros({1, 2, 2, 2}, DType::i64)))},
        {"nn::MaxUnpool2d::MaxUnpool2d(kernel)",
         {{2, 2}},
         GIVES(nn::MaxUnpool2d(pair(s, 0))(leaf({1, 2, 2, 2}), zeros({1, 2, 2, 2}, DType::i64)))},
        {"nn::MaxUnpool2d::forward(size)",
         {{4, 4}},
         GIVES(nn::MaxUnpool2d(2)(leaf({1, 2, 2, 2}), zeros({1, 2, 2, 2}, DType::i64), pair(s, 0)))},
        {"nn::max_unpool2d(size)",
         {{4, 4}},
         GIVES(nn::max_unpool2d(leaf({1, 2, 2, 2}), zeros({1, 2, 2, 2}, DType::i64), pair(s, 0)))},
        {"nn::UnfoldOptions{dilation, padding, stride}",
         {{1, 1}, {0, 0}, {1, 1}},
         GIVES(nn::Unfold( 2, {.dilation = pair(s, 0), .padding = pair(s, 1), .stride = pair(s, 2)})( leaf({1, 2, 5, 5})))},
        {"nn::Unfold::Unfold(kernel)", {{2, 2}}, GIVES(nn::Unfold(pair(s, 0))(leaf({1, 2, 5, 5})))},
        {"nn::Fold::Fold(size, kernel)",
         {{5, 5}, {2, 2}},
         GIVES(nn::Fold(pair(s, 0), pair(s, 1))(leaf({1, 8, 16})))},
        {"nn::AvgPoolOptions{stride, padding, divisor}",
         {{1, 1}, {0, 0}, {1}},
         GIVES(nn::AvgPool2d( 2, {.stride = pair(s, 0), .padding = pair(s, 1), .divisor = s[2].value})( leaf({1, 2, 5, 5})))},
        {"nn::AvgPool2d::AvgPool2d(kernel)",
         {{2, 2}},
         GIVES(nn::AvgPool2d(pair(s, 0))(leaf({1, 2, 5, 5})))},
        {"nn::AdaptiveAvgPool2d::AdaptiveAvgPool2d(size)",
         {{2, 2}},
         GIVES(nn::AdaptiveAvgPool2d(pair(s, 0))(leaf({1, 2, 5, 5})))},
        {"nn::AdaptiveMaxPool2d::AdaptiveMaxPool2d(size)",
         {{2, 2}},
         GIVES(nn::AdaptiveMaxPool2d(pair(s, 0))(leaf({1, 2, 5, 5})))},
        {"nn::Sequential::operator[](index)",
         {{1}},
         GIVES(nn::Sequential{nn::ReLU(), nn::ReLU()}[s[0]](leaf({2, 3})))},
        {"nn::Sequential::slice(first, last)",
         {{0}, {1}},
         GIVES(nn::Sequential{nn::ReLU(), nn::ReLU()}.slice(s[0], s[1])(leaf({2, 3})))},
        {"nn::summary(shape)",
         {{2, 3}},
         RUNS(nn::summary(nn::Linear(3, 4), s.dims(0)).to_string())},
        {"nn::summary(shape) / of a convolution",
         {{1, 2, 5, 5}},
         RUNS(nn::summary(nn::Conv2d(2, 2, 3), s.dims(0)).to_string())},
        {"InterpolateOptions{size} / of a layer",
         {{3, 3}},
         GIVES(nn::Upsample({.size = s.dims(0)})(leaf({1, 2, 5, 5})))},
    });

}  // namespace
}  // namespace weft::testing
