// The encoder of a transformer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/nn/attention.h"
#include "weft/nn/dropout.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"
#include "weft/nn/module_list.h"

namespace weft::nn {

/// PyTorch's defaults, in PyTorch's order.
struct TransformerEncoderLayerOptions {
  std::int64_t dim_feedforward = 2048;
  double dropout = 0.1;             ///< of the attention weights, too
  std::string activation = "relu";  ///< or "gelu"
  double layer_norm_eps = 1e-5;
  bool batch_first = false;  ///< [N,L,E] instead of [L,N,E]
  bool norm_first = false;   ///< normalises before each part, not after it
  bool bias = true;          ///< of all layers in it
};

/// With norm_first y = x + attention(norm1(x)), then y + feed(norm2(y)); else norm1(x +
/// attention(x)), then norm2(y + feed(y)). feed(x) = linear2(activation(linear1(x))). Dropout
/// follows the attention, the activation and feed (Vaswani et al., "Attention Is All You Need",
/// 2017). x [L,N,E] -> the same shape, E: d_model; [N,L,E] with batch_first, [L,E] without a batch.
/// As torch.nn.TransformerEncoderLayer, with its names and initial values. Throws InvalidArgument
/// as MultiheadAttention does, for a dim_feedforward that is negative and for another activation;
/// Shape and Dtype as MultiheadAttention.
class TransformerEncoderLayer : public Module<TransformerEncoderLayer> {
 public:
  TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                          const TransformerEncoderLayerOptions& options = {});

  /// The masks are those of MultiheadAttention; call.need_weights is not used.
  Tensor forward(const Tensor& x, const AttentionCall& call = {}) const;
  Tensor operator()(const Tensor& x, const AttentionCall& call = {}) const {
    return Module::operator()(x, call);
  }

  MultiheadAttention self_attn;
  Linear linear1;
  Dropout dropout;
  Linear linear2;
  LayerNorm norm1, norm2;
  Dropout dropout1, dropout2;

 private:
  Tensor attend(const Tensor& x, const AttentionCall& call) const;
  Tensor feed(const Tensor& x) const;

  bool gelu_, norm_first_;
};

/// num_layers clones of a layer, one after the other, and then `norm` if it is given. As in
/// PyTorch, all start with the same values. What PyTorch returns in evaluation for padding may
/// differ: its fast path for nested tensors writes zeros there. Throws InvalidArgument unless
/// num_layers is from 1 to 1024.
class TransformerEncoder : public Module<TransformerEncoder> {
 public:
  TransformerEncoder(const TransformerEncoderLayer& layer, std::int64_t num_layers,
                     const std::optional<LayerNorm>& norm = {});

  Tensor forward(Tensor x, const AttentionCall& call = {}) const;
  Tensor operator()(const Tensor& x, const AttentionCall& call = {}) const {
    return Module::operator()(x, call);
  }

  ModuleList<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm;
};

}  // namespace weft::nn
