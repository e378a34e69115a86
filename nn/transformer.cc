#include "weft/nn/transformer.h"

#include "weft/autograd/arithmetic.h"
#include "weft/core/base/error.h"

namespace weft::nn {

namespace {

// A larger number would be a mistake, and each layer has a dozen tensors.
constexpr std::int64_t kMaxLayers = 1024;

bool is_gelu(const std::string& activation) {
  WEFT_CHECK(activation == "relu" || activation == "gelu", InvalidArgument,
             "TransformerEncoderLayer", "activation: got '", activation,
             "', expected 'relu' or 'gelu'");
  return activation == "gelu";
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                                                 const TransformerEncoderLayerOptions& o)
    : self_attn(child("self_attn",
                      MultiheadAttention(
                          d_model, nhead,
                          {.dropout = o.dropout, .bias = o.bias, .batch_first = o.batch_first}))),
      linear1(child("linear1", Linear(d_model, o.dim_feedforward, o.bias))),
      dropout(child("dropout", Dropout(o.dropout))),
      linear2(child("linear2", Linear(o.dim_feedforward, d_model, o.bias))),
      norm1(child("norm1", LayerNorm(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}))),
      norm2(child("norm2", LayerNorm(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}))),
      dropout1(child("dropout1", Dropout(o.dropout))),
      dropout2(child("dropout2", Dropout(o.dropout))),
      gelu_(is_gelu(o.activation)),
      norm_first_(o.norm_first) {}

Tensor TransformerEncoderLayer::attend(const Tensor& x, const AttentionCall& call) const {
  return dropout1(self_attn(x, call));
}

Tensor TransformerEncoderLayer::feed(const Tensor& x) const {
  Tensor hidden = linear1(x);
  hidden = gelu_ ? gelu(hidden) : relu(std::move(hidden));
  return dropout2(linear2(dropout(hidden)));
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionCall& call) const {
  if (norm_first_) {
    const Tensor y = x + attend(norm1(x), call);
    return y + feed(norm2(y));
  }
  const Tensor y = norm1(x + attend(x, call));
  return norm2(y + feed(y));
}

TransformerEncoder::TransformerEncoder(const TransformerEncoderLayer& layer,
                                       std::int64_t num_layers,
                                       const std::optional<LayerNorm>& last) {
  WEFT_CHECK(num_layers > 0 && num_layers <= kMaxLayers, InvalidArgument, "TransformerEncoder",
             "num_layers: got ", num_layers, ", expected 1 to ", kMaxLayers);
  for (std::int64_t i = 0; i < num_layers; ++i) layers.append(clone(layer));
  layers = child("layers", layers);
  if (last) norm = child("norm", *last);
}

Tensor TransformerEncoder::forward(Tensor x, const AttentionCall& call) const {
  for (const TransformerEncoderLayer& layer : layers) x = layer(x, call);
  return norm ? (*norm)(x) : x;
}

}  // namespace weft::nn
