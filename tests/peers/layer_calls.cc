// Convolution, pooling, normalisation, losses and initial weights.
#include "weft/autograd/ops.h"
#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/embedding_bag.h"
#include "weft/nn/init.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/pixel_shuffle.h"
#include "weft/nn/pooling.h"
#include "weft/tests/peers/calls.h"

namespace weft::peers {
namespace {

using Tensors = std::vector<Tensor>;

Conv2dParams conv_params(const Call& c) {
  return {.stride = c.pair("stride", 1),
          .padding = c.pair("padding", 0),
          .dilation = c.pair("dilation", 1),
          .groups = c.integer("groups", 1),
          .output_padding = c.pair("output_padding", 0)};
}

Pool2dParams max_pool_params(const Call& c) {
  return {.kernel = c.pair("kernel", 1),
          .stride = c.pair("stride", 1),
          .padding = c.pair("padding", 0),
          .dilation = c.pair("dilation", 1),
          .ceil_mode = c.flag("ceil_mode")};
}

UnfoldParams unfold_params(const Call& c) {
  return {.kernel = c.pair("kernel", 1),
          .dilation = c.pair("dilation", 1),
          .padding = c.pair("padding", 0),
          .stride = c.pair("stride", 1)};
}

void add_images(Operations& table) {
  table["unfold"] = [](const Call& c) -> Tensors {
    if (c.has("kernel")) return {unfold(c.operand(0), unfold_params(c))};
    return {c.in[0].unfold(c.dim("dim"), c.integer("size"), c.integer("step"))};
  };
  table["fold"] = [](const Call& c) -> Tensors {
    return {fold(c.operand(0), c.pair("size", 1), unfold_params(c))};
  };
  table["conv2d"] = [](const Call& c) -> Tensors {
    if (c.has("padding_name")) {
      return {
          conv2d(c.operand(0), c.operand(1), c.operand(2), c.text("padding_name"), conv_params(c))};
    }
    return {conv2d(c.operand(0), c.operand(1), c.operand(2), conv_params(c))};
  };
  table["conv_transpose2d"] = [](const Call& c) -> Tensors {
    return {conv_transpose2d(c.operand(0), c.operand(1), c.operand(2), conv_params(c))};
  };
  table["conv1d"] = [](const Call& c) -> Tensors {
    const Conv1dParams params{.stride = c.integer("stride", 1),
                              .padding = c.integer("padding", 0),
                              .dilation = c.integer("dilation", 1),
                              .groups = c.integer("groups", 1)};
    if (c.has("padding_name")) {
      return {conv1d(c.operand(0), c.operand(1), c.operand(2), c.text("padding_name"), params)};
    }
    return {conv1d(c.operand(0), c.operand(1), c.operand(2), params)};
  };
  table["interpolate"] = [](const Call& c) -> Tensors {
    return {interpolate(c.operand(0), {.size = c.dims("size"),
                                       .scale_factor = c.numbers("scale_factor"),
                                       .mode = c.text("mode"),
                                       .align_corners = c.flag("align_corners")})};
  };
  table["pixel_shuffle"] = [](const Call& c) -> Tensors {
    return {nn::pixel_shuffle(c.operand(0), c.integer("factor"))};
  };
  table["pixel_unshuffle"] = [](const Call& c) -> Tensors {
    return {nn::pixel_unshuffle(c.operand(0), c.integer("factor"))};
  };
  table["max_pool2d"] = [](const Call& c) -> Tensors {
    return {max_pool2d(c.operand(0), max_pool_params(c))};
  };
  table["max_pool2d_with_indices"] = [](const Call& c) -> Tensors {
    const auto [y, indices] = max_pool2d_with_indices(c.operand(0), max_pool_params(c));
    return {y, indices};
  };
  table["max_unpool2d"] = [](const Call& c) -> Tensors {
    const auto [h, w] = c.pair("size", 1);
    return {nn::max_unpool2d(c.operand(0), c.operand(1), {h, w})};
  };
  table["avg_pool2d"] = [](const Call& c) -> Tensors {
    return {avg_pool2d(c.operand(0), {.kernel = c.pair("kernel", 1),
                                      .stride = c.pair("stride", 1),
                                      .padding = c.pair("padding", 0),
                                      .ceil_mode = c.flag("ceil_mode"),
                                      .count_include_pad = c.flag("count_include_pad"),
                                      .divisor = c.integer("divisor", 0)})};
  };
  table["adaptive_max_pool2d_with_indices"] = [](const Call& c) -> Tensors {
    const auto [y, indices] = adaptive_max_pool2d_with_indices(c.operand(0), c.pair("size", 1));
    return {y, indices};
  };
  table["adaptive_max_pool2d"] = [](const Call& c) -> Tensors {
    return {adaptive_max_pool2d(c.operand(0), c.pair("size", 1))};
  };
  table["adaptive_avg_pool2d"] = [](const Call& c) -> Tensors {
    return {adaptive_avg_pool2d(c.operand(0), c.pair("size", 1))};
  };
}

void add_activations(Operations& table) {
#define X(name) table[#name] = [](const Call& c) -> Tensors { return {nn::name(c.operand(0))}; };
  X(relu6)
  X(hardswish)
  X(hardsigmoid)
#undef X
  table["prelu"] = [](const Call& c) -> Tensors { return {nn::prelu(c.operand(0), c.operand(1))}; };
}

// Operands: indices, the table, offsets and weights.
Tensor embedding_bag(const Call& c) {
  const Tensor& table = c.in[1];
  nn::EmbeddingBag bag(table.shape(0), table.shape(1),
                       {.mode = c.text("mode"),
                        .include_last_offset = c.flag("include_last_offset"),
                        .padding_idx = c.optional_integer("padding_idx")});
  bag.weight = nn::Parameter(table);
  return bag(c.operand(0), c.operand(2), c.operand(3));
}

void add_dropout(Operations& table) {
  table["embedding_bag"] = [](const Call& c) -> Tensors { return {embedding_bag(c)}; };
  table["dropout"] = [](const Call& c) -> Tensors {
    return {dropout(c.operand(0), c.number("p"), c.flag("training"))};
  };
  table["dropout2d"] = [](const Call& c) -> Tensors {
    return {dropout2d(c.operand(0), c.number("p"), c.flag("training"))};
  };
}

void add_norms(Operations& table) {
  // Operands: x, weight, bias, running mean, running variance, number of batches.
  table["batch_norm"] = [](const Call& c) -> Tensors {
    BatchNormEpilogue then{.add = c.operand(6)};
    if (c.has("slope")) then.negative_slope = c.number("slope");
    const BatchNormParams params{.eps = c.number("eps"),
                                 .training = c.flag("training"),
                                 .momentum = c.number("momentum"),
                                 .cumulative = c.flag("cumulative")};
    return {batch_norm(c.operand(0), c.operand(1), c.operand(2),
                       {c.operand(3), c.operand(4), c.operand(5)}, params, then)};
  };
  table["normalize"] = [](const Call& c) -> Tensors {
    return {normalize(c.operand(0), c.number("p"), c.integer("dim"), c.number("eps"))};
  };
  table["layer_norm"] = [](const Call& c) -> Tensors {
    return {layer_norm(c.operand(0), c.dims("shape"), c.operand(1), c.operand(2), c.number("eps"))};
  };
  table["group_norm"] = [](const Call& c) -> Tensors {
    return {
        group_norm(c.operand(0), c.integer("groups"), c.operand(1), c.operand(2), c.number("eps"))};
  };
}

void add_losses(Operations& table) {
  table["cross_entropy"] = [](const Call& c) -> Tensors {
    return {nn::cross_entropy(c.operand(0), c.operand(1),
                              {.weight = c.operand(2),
                               .ignore_index = c.integer("ignore_index"),
                               .label_smoothing = c.number("label_smoothing"),
                               .reduction = c.reduction()})};
  };
  table["nll_loss"] = [](const Call& c) -> Tensors {
    return {nn::nll_loss(c.operand(0), c.operand(1), c.integer("ignore_index"), c.reduction(),
                         c.operand(2))};
  };
  table["bce_with_logits"] = [](const Call& c) -> Tensors {
    return {
        nn::bce_with_logits(c.operand(0), c.operand(1), c.reduction(), c.operand(2), c.operand(3))};
  };
  table["bce_loss"] = [](const Call& c) -> Tensors {
    return {nn::bce_loss(c.operand(0), c.operand(1), c.reduction(), c.operand(2))};
  };
  table["huber_loss"] = [](const Call& c) -> Tensors {
    return {nn::huber_loss(c.operand(0), c.operand(1), c.reduction(), c.number("delta"))};
  };
  table["kl_div"] = [](const Call& c) -> Tensors {
    return {nn::kl_div(c.operand(0), c.operand(1), c.kl_reduction(), c.flag("log_target"))};
  };
  table["mse_loss"] = [](const Call& c) -> Tensors {
    return {mse_loss(c.operand(0), c.operand(1), c.reduction())};
  };
  table["l1_loss"] = [](const Call& c) -> Tensors {
    return {nn::l1_loss(c.operand(0), c.operand(1), c.reduction())};
  };
  table["smooth_l1_loss"] = [](const Call& c) -> Tensors {
    return {nn::smooth_l1_loss(c.operand(0), c.operand(1), c.reduction(), c.number("beta"))};
  };
}

// A layer's tensors as it starts; an undefined bias is left out.
Tensors first_values(const Tensor& weight, const Tensor& bias) {
  return bias.defined() ? Tensors{weight.detach(), bias.detach()} : Tensors{weight.detach()};
}

nn::Pair pair_of(const Call& c, const char* name, std::int64_t otherwise) {
  const auto [h, w] = c.pair(name, otherwise);
  return {h, w};
}

nn::ConvOptions conv_options(const Call& c) {
  return {.groups = c.integer("groups"), .bias = c.flag("bias")};
}

void add_initial_values(Operations& table) {
  table["linear_init"] = [](const Call& c) -> Tensors {
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    const nn::Linear layer(c.integer("inputs"), c.integer("outputs"), c.flag("bias"));
    return first_values(layer.weight, layer.bias);
  };
  table["conv2d_init"] = [](const Call& c) -> Tensors {
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    const nn::Conv2d layer(c.integer("inputs"), c.integer("outputs"), pair_of(c, "kernel", 1),
                           conv_options(c));
    return first_values(layer.weight, layer.bias);
  };
  table["conv_transpose2d_init"] = [](const Call& c) -> Tensors {
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    const nn::ConvTranspose2d layer(c.integer("inputs"), c.integer("outputs"),
                                    pair_of(c, "kernel", 1), conv_options(c));
    return first_values(layer.weight, layer.bias);
  };
  // One function of nn::init on zeros.
  table["init"] = [](const Call& c) -> Tensors {
    namespace init = nn::init;
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    const Tensor x = zeros(c.dims("shape"), c.dtype("dtype"));
    const std::string name = c.text("name");
    const auto fan = c.flag("fan_out") ? init::FanMode::fan_out : init::FanMode::fan_in;
    if (name == "uniform_") init::uniform_(x, c.number("a"), c.number("b"));
    if (name == "constant_") init::constant_(x, c.number("a"));
    if (name == "zeros_") init::zeros_(x);
    if (name == "ones_") init::ones_(x);
    if (name == "eye_") init::eye_(x);
    if (name == "dirac_") init::dirac_(x, c.integer("groups"));
    if (name == "xavier_uniform_") init::xavier_uniform_(x, c.number("a"));
    if (name == "kaiming_uniform_") init::kaiming_uniform_(x, c.number("a"), fan);
    if (name == "normal_") init::normal_(x, c.number("a"), c.number("b"));
    if (name == "trunc_normal_") init::trunc_normal_(x, c.number("a"), c.number("b"));
    if (name == "xavier_normal_") init::xavier_normal_(x, c.number("a"));
    if (name == "kaiming_normal_") init::kaiming_normal_(x, c.number("a"), fan);
    if (name == "orthogonal_") init::orthogonal_(x, c.number("a"));
    return {x};
  };
  table["rand"] = [](const Call& c) -> Tensors {
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    return {rand(c.dims("shape"), c.dtype("dtype"))};
  };
  table["randn"] = [](const Call& c) -> Tensors {
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    return {randn(c.dims("shape"), c.dtype("dtype"))};
  };
  table["randperm"] = [](const Call& c) -> Tensors {
    manual_seed(static_cast<std::uint64_t>(c.integer("seed")));
    return {randperm(c.integer("n"))};
  };
}

}  // namespace

void add_layers(Operations& table) {
  add_images(table);
  add_activations(table);
  add_dropout(table);
  add_norms(table);
  add_losses(table);
  add_initial_values(table);
}

}  // namespace weft::peers
