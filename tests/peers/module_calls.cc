// nn's modules, as {"op": "module", "class": "Conv2d", "in": [0, 1, 2], "names": ["weight",
// "bias"], "dtype": "f32", "training": true, ... options}. Operands: what forward takes, and then
// the parameters and buffers of `names`, whose values are copied in. The results are forward's, and
// then the parameters and buffers in the order of `names`, so that gradients and running statistics
// can be asked for.
#include <algorithm>
#include <concepts>

#include "weft/core/base/error.h"
#include "weft/nn/activation.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/embedding.h"
#include "weft/nn/group_norm.h"
#include "weft/nn/instance_norm.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss_modules.h"
#include "weft/nn/module.h"
#include "weft/nn/padding.h"
#include "weft/nn/pooling.h"
#include "weft/nn/recurrent.h"
#include "weft/nn/transformer.h"
#include "weft/tensor/creation.h"
#include "weft/tests/peers/calls.h"

namespace weft::peers {
namespace {

using Tensors = std::vector<Tensor>;

void append(Tensors& results, const Tensor& y) { results.push_back(y); }
void append(Tensors& results, const AttentionResult& y) {
  results.push_back(y.output);
  if (y.weights.defined()) results.push_back(y.weights);
}
void append(Tensors& results, const ValuesAndIndices& y) {
  results.insert(results.end(), {y.values, y.indices});
}
void append(Tensors& results, const nn::RNNResult& y) {
  results.insert(results.end(), {y.output, y.h_n});
}
void append(Tensors& results, const nn::LSTMState& y) { results.insert(results.end(), {y.h, y.c}); }
void append(Tensors& results, const nn::LSTMResult& y) {
  results.push_back(y.output);
  append(results, y.state);
}

template <class M, class... Others>
concept OneOf = (std::same_as<M, Others> || ...);

template <class M>
Tensors forward(const Call& c, M& module, std::span<const Tensor> in) {
  Tensors results;
  if constexpr (std::same_as<M, nn::MultiheadAttention>) {
    append(results, module(in[0], in[1], in[2],
                           {.key_padding_mask = in[3],
                            .attn_mask = in[4],
                            .is_causal = c.flag("is_causal"),
                            .need_weights = c.flag("need_weights"),
                            .average_attn_weights = c.flag("average_attn_weights")}));
  } else if constexpr (OneOf<M, nn::TransformerEncoderLayer, nn::TransformerEncoder>) {
    append(results, module(in[0], {.key_padding_mask = in[1],
                                   .attn_mask = in[2],
                                   .is_causal = c.flag("is_causal")}));
  } else if constexpr (OneOf<M, nn::LSTM, nn::LSTMCell>) {
    append(results, in.size() > 1 ? module(in[0], {in[1], in[2]}) : module(in[0]));
  } else if constexpr (requires { module.forward(in[0], in[1]); }) {
    append(results, module(in[0], in.size() > 1 ? in[1] : Tensor()));
  } else {
    append(results, module(in[0]));
  }
  return results;
}

template <class M>
Tensors run(const Call& c, M module) {
  const std::vector<std::string> names = c.texts("names");
  const auto arguments = c.in.first(c.in.size() - names.size());
  const auto values = c.in.subspan(arguments.size());
  nn::NamedTensors given;
  for (std::size_t i = 0; i < names.size(); ++i) given.emplace_back(names[i], values[i]);
  module.to(c.dtype("dtype"));
  module.load_state_dict(given);
  module.train(c.flag("training"));
  Tensors results = forward(c, module, arguments);
  nn::NamedTensors state = module.named_parameters();
  for (auto& buffer : module.named_buffers()) state.push_back(std::move(buffer));
  for (const std::string& name : names) {
    results.push_back(std::ranges::find(state, name, &nn::NamedTensors::value_type::first)->second);
  }
  return results;
}

nn::Pair pair_of(const Call& c, const char* name, std::int64_t otherwise) {
  const auto [h, w] = c.pair(name, otherwise);
  return {h, w};
}

std::optional<nn::Pair> stride_of(const Call& c) {
  return c.has("stride") ? std::optional(pair_of(c, "stride", 1)) : std::nullopt;
}

nn::ConvPadding<nn::Pair> conv_padding(const Call& c) {
  if (c.has("padding_name")) return c.text("padding_name");
  return pair_of(c, "padding", 0);
}

nn::ConvPadding<std::int64_t> conv1d_padding(const Call& c) {
  if (c.has("padding_name")) return c.text("padding_name");
  return c.integer("padding", 0);
}

nn::ConvOptions conv_options(const Call& c) {
  return {.stride = pair_of(c, "stride", 1),
          .padding = conv_padding(c),
          .dilation = pair_of(c, "dilation", 1),
          .groups = c.integer("groups", 1),
          .bias = c.flag("bias"),
          .output_padding = pair_of(c, "output_padding", 0)};
}

template <class Options>
Options norm_options(const Call& c) {
  return {.eps = c.number("eps"),
          .momentum = c.optional_number("momentum"),
          .affine = c.flag("affine"),
          .track_running_stats = c.flag("track_running_stats")};
}

nn::PoolOptions pool_options(const Call& c) {
  return {.stride = stride_of(c),
          .padding = pair_of(c, "padding", 0),
          .dilation = pair_of(c, "dilation", 1),
          .ceil_mode = c.flag("ceil_mode")};
}

nn::TransformerEncoderLayer encoder_layer(const Call& c) {
  return {c.integer("d_model"),
          c.integer("nhead"),
          {.dim_feedforward = c.integer("dim_feedforward"),
           .dropout = c.number("dropout"),
           .activation = c.text("activation"),
           .layer_norm_eps = c.number("layer_norm_eps"),
           .batch_first = c.flag("batch_first"),
           .norm_first = c.flag("norm_first"),
           .bias = c.flag("bias")}};
}

nn::Padding2d padding_of(const Call& c) {
  const std::vector<std::int64_t> p = c.integers("padding");
  return {p[0], p[1], p[2], p[3]};
}

#define MODULE(name, ...) \
  table[#name] = [](const Call& c) -> Tensors { return run(c, nn::name(__VA_ARGS__)); };

void add_weighted(Operations& table) {
  MODULE(Linear, c.integer("in_features"), c.integer("out_features"), c.flag("bias"))
  MODULE(Conv1d, c.integer("in_channels"), c.integer("out_channels"), c.integer("kernel_size"),
         {.stride = c.integer("stride", 1),
          .padding = conv1d_padding(c),
          .dilation = c.integer("dilation", 1),
          .groups = c.integer("groups", 1),
          .bias = c.flag("bias")})
  MODULE(Conv2d, c.integer("in_channels"), c.integer("out_channels"), pair_of(c, "kernel_size", 1),
         conv_options(c))
  MODULE(ConvTranspose2d, c.integer("in_channels"), c.integer("out_channels"),
         pair_of(c, "kernel_size", 1), conv_options(c))
  MODULE(Embedding, c.integer("num_embeddings"), c.integer("embedding_dim"),
         {.padding_idx = c.optional_integer("padding_idx")})
  MODULE(MultiheadAttention, c.integer("embed_dim"), c.integer("num_heads"),
         {.dropout = c.number("dropout", 0),
          .bias = c.flag("bias"),
          .batch_first = c.flag("batch_first")})
}

// What the recurrent layers have in common; the first sizes are the constructors' own arguments.
template <class Options>
Options recurrent_options(const Call& c) {
  Options options;
  options.num_layers = c.integer("num_layers");
  options.bias = c.flag("bias");
  options.batch_first = c.flag("batch_first");
  options.dropout = c.number("dropout");
  options.bidirectional = c.flag("bidirectional");
  if constexpr (requires { options.proj_size; }) options.proj_size = c.integer("proj_size");
  if constexpr (requires { options.nonlinearity; }) options.nonlinearity = c.text("nonlinearity");
  return options;
}

void add_recurrent(Operations& table) {
#define SIZES c.integer("input_size"), c.integer("hidden_size")
  MODULE(RNN, SIZES, recurrent_options<nn::RNNOptions>(c))
  MODULE(GRU, SIZES, recurrent_options<nn::GRUOptions>(c))
  MODULE(LSTM, SIZES, recurrent_options<nn::LSTMOptions>(c))
  MODULE(RNNCell, SIZES, {.bias = c.flag("bias"), .nonlinearity = c.text("nonlinearity")})
  MODULE(GRUCell, SIZES, {.bias = c.flag("bias")})
  MODULE(LSTMCell, SIZES, {.bias = c.flag("bias")})
#undef SIZES
  table["TransformerEncoderLayer"] = [](const Call& c) { return run(c, encoder_layer(c)); };
  MODULE(TransformerEncoder, encoder_layer(c), c.integer("num_layers"))
}

void add_norms(Operations& table) {
  MODULE(BatchNorm1d, c.integer("num_features"), norm_options<nn::BatchNormOptions>(c))
  MODULE(BatchNorm2d, c.integer("num_features"), norm_options<nn::BatchNormOptions>(c))
  MODULE(InstanceNorm2d, c.integer("num_features"), norm_options<nn::InstanceNormOptions>(c))
  MODULE(GroupNorm, c.integer("num_groups"), c.integer("num_channels"),
         {.eps = c.number("eps"), .affine = c.flag("affine")})
  MODULE(LayerNorm, Shape(c.dims("normalized_shape")),
         {.eps = c.number("eps"),
          .elementwise_affine = c.flag("elementwise_affine"),
          .bias = c.flag("bias")})
}

void add_pooling_and_padding(Operations& table) {
  MODULE(MaxPool2d, pair_of(c, "kernel_size", 1), pool_options(c))
  MODULE(MaxPool2dWithIndices, pair_of(c, "kernel_size", 1), pool_options(c))
  MODULE(AvgPool2d, pair_of(c, "kernel_size", 1),
         {.stride = stride_of(c),
          .padding = pair_of(c, "padding", 0),
          .ceil_mode = c.flag("ceil_mode"),
          .count_include_pad = c.flag("count_include_pad"),
          .divisor = c.optional_integer("divisor_override")})
  MODULE(AdaptiveAvgPool2d, pair_of(c, "output_size", 1))
  MODULE(AdaptiveMaxPool2d, pair_of(c, "output_size", 1))
  MODULE(ZeroPad2d, padding_of(c))
  MODULE(ReflectionPad2d, padding_of(c))
}

void add_activations(Operations& table){
    MODULE(ReLU) MODULE(ReLU6) MODULE(Hardswish) MODULE(PReLU, c.integer("num_parameters"))
        MODULE(Sigmoid) MODULE(Tanh) MODULE(SiLU) MODULE(LeakyReLU, c.number("negative_slope"))
            MODULE(GELU, c.text("approximate")) MODULE(ELU, c.number("alpha"))
                MODULE(Softplus, c.number("beta"), c.number("threshold"))
                    MODULE(Softmax, c.integer("dim")) MODULE(LogSoftmax, c.integer("dim"))}

/// A weight that was given to the constructor: the value comes with the others of `names`.
Tensor given(const Call& c, const char* name) {
  const std::vector<std::string> names = c.texts("names");
  const auto at = std::ranges::find(names, name);
  if (at == names.end()) return {};
  return zeros_like(c.in[c.in.size() - names.size() + (at - names.begin())]);
}

void add_losses(Operations& table){
    MODULE(MSELoss, c.reduction()) MODULE(L1Loss, c.reduction())
        MODULE(SmoothL1Loss, c.reduction(), c.number("beta"))
            MODULE(HuberLoss, c.reduction(), c.number("delta"))
                MODULE(CrossEntropyLoss, {.weight = given(c, "weight"),
                                          .ignore_index = c.integer("ignore_index"),
                                          .label_smoothing = c.number("label_smoothing"),
                                          .reduction = c.reduction()})
                    MODULE(NLLLoss, given(c, "weight"), c.integer("ignore_index"), c.reduction())
                        MODULE(BCELoss, given(c, "weight"), c.reduction())
                            MODULE(BCEWithLogitsLoss, given(c, "weight"), c.reduction(),
                                   given(c, "pos_weight"))
                                MODULE(KLDivLoss, c.kl_reduction(), c.flag("log_target"))}
#undef MODULE

Operations all_modules() {
  Operations table;
  add_weighted(table);
  add_recurrent(table);
  add_norms(table);
  add_pooling_and_padding(table);
  add_activations(table);
  add_losses(table);
  return table;
}

}  // namespace

void add_modules(Operations& table) {
  table["module"] = [modules = all_modules()](const Call& c) {
    const auto module = modules.find(c.text("class"));
    WEFT_CHECK(module != modules.end(), InvalidArgument, "differential", "no module ",
               c.text("class"));
    return module->second(c);
  };
}

}  // namespace weft::peers
