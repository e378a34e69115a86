#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "weft/onnx/operation.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::onnx {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- Products ------------------------------------------------------------------------------------
Names matmul(Operation& o) { return {o.node("MatMul", {o.in(0), o.in(1)})}; }

// The relu that ends a product or a convolution.
Names activated(Operation& o, const std::string& y) {
  return {o.integer("then_relu") != 0 ? o.node("Relu", {y}) : y};
}

Names linear(Operation& o) {
  const bool has_bias = o.operands() > 2;
  if (o.operand(0).dim() == 2) {
    Names inputs{o.in(0), o.in(1)};
    if (has_bias) inputs.push_back(o.in(2));
    return activated(o, o.node("Gemm", inputs, {{"transB", std::int64_t{1}}}));
  }
  const std::string w = o.node("Transpose", {o.in(1)}, {{"perm", Ints{1, 0}}});
  const std::string y = o.node("MatMul", {o.in(0), w});
  return activated(o, has_bias ? o.node("Add", {y, o.in(2)}) : y);
}

// --- Convolutions and pooling --------------------------------------------------------------------
Ints both_sides(const Ints& padding) { return {padding[0], padding[1], padding[0], padding[1]}; }

Names conv(Operation& o, const char* type, Attributes more) {
  Attributes attributes{{"kernel_shape", Ints{o.operand(1).shape[2], o.operand(1).shape[3]}},
                        {"strides", o.ints("stride")},
                        {"pads", both_sides(o.ints("padding"))},
                        {"dilations", o.ints("dilation")},
                        {"group", o.integer("groups")}};
  attributes.insert(attributes.end(), more.begin(), more.end());
  Names inputs;
  for (std::size_t i = 0; i < o.operands(); ++i) inputs.push_back(o.in(i));
  return activated(o, o.node(type, inputs, attributes));
}
Names conv2d(Operation& o) { return conv(o, "Conv", {}); }
Names conv_transpose2d(Operation& o) {
  return conv(o, "ConvTranspose", {{"output_padding", o.ints("output_padding")}});
}

// The attributes of a pooling. The padding at the end is what the last window needs, so the
// attribute ceil_mode, whose meaning differs between runtimes, is not needed.
Attributes windows(Operation& o, const Ints& dilation) {
  const Ints &kernel = o.ints("kernel"), &stride = o.ints("stride");
  Ints pads = both_sides(o.ints("padding"));
  for (const std::size_t i : {0u, 1u}) {
    const int dim = 2 + static_cast<int>(i);
    const std::int64_t last_start = (o.result().shape[dim] - 1) * stride[i] - pads[i];
    const std::int64_t end = last_start + dilation[i] * (kernel[i] - 1) + 1;
    pads[2 + i] = std::max<std::int64_t>(end - o.operand(0).shape[dim], 0);
  }
  return {{"pads", pads}, {"kernel_shape", kernel}, {"strides", stride}};
}

Names max_pool2d(Operation& o) {
  Attributes attributes = windows(o, o.ints("dilation"));
  attributes.emplace_back("dilations", o.ints("dilation"));
  return {o.node("MaxPool", {o.in()}, attributes)};
}

Names avg_pool2d(Operation& o) {
  Attributes attributes = windows(o, {1, 1});
  const Ints &padding = o.ints("padding"), &kernel = o.ints("kernel");
  Ints& pads = std::get<Ints>(attributes[0].second);
  const std::int64_t divisor = o.integer("divisor");
  std::string x = o.in();
  bool counts = o.integer("count_include_pad") != 0 || divisor != 0;
  if (counts && divisor == 0 && (pads[2] > padding[0] || pads[3] > padding[1])) {
    // The divisor counts the padding, but not what ceil_mode adds: so the padding becomes zeros of
    // x.
    const Ints of_all{0, 0, padding[0], padding[1], 0, 0, padding[0], padding[1]};
    x = o.node("Pad", {x, o.ints_constant(of_all)});
    pads = {0, 0, std::max<std::int64_t>(pads[2] - padding[0], 0),
            std::max<std::int64_t>(pads[3] - padding[1], 0)};
    counts = false;
  }
  attributes.emplace_back("count_include_pad", std::int64_t{counts});
  const std::string y = o.node("AveragePool", {x}, attributes);
  if (divisor == 0) return {y};
  const double factor = static_cast<double>(kernel[0] * kernel[1]) / static_cast<double>(divisor);
  return {o.node("Mul", {y, o.constant(factor)})};
}

// The matrix [out,in] of the averages of adaptive pooling along one side. Window i goes from
// floor(i in / out) to ceil((i + 1) in / out).
Tensor averages(std::int64_t in, std::int64_t out) {
  std::vector<double> parts(static_cast<std::size_t>(in * out), 0);
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    for (std::int64_t k = begin; k < end; ++k) {
      parts[static_cast<std::size_t>(i * in + k)] = 1 / static_cast<double>(end - begin);
    }
  }
  return from_vector(parts, {out, in}, Device());
}

// The attributes of a plain pooling, if the output sizes divide the input sizes, so that all
// windows are of one size; else none.
std::optional<Attributes> even_windows(Operation& o) {
  Ints kernel;
  for (const int dim : {2, 3}) {
    const std::int64_t in = o.operand(0).shape[dim], out = o.result().shape[dim];
    if (out == 0 || in % out != 0 || in == 0) return {};
    kernel.push_back(in / out);
  }
  return Attributes{{"kernel_shape", kernel}, {"strides", kernel}};
}

Names adaptive_avg_pool2d(Operation& o) {
  const Value x = o.operand(0), y = o.result();
  if (y.shape[2] == 1 && y.shape[3] == 1) return {o.node("GlobalAveragePool", {o.in()})};
  if (const auto even = even_windows(o)) return {o.node("AveragePool", {o.in()}, *even)};
  const auto matrix = [&](int dim, bool turned) {
    const Tensor m = raw::to(averages(x.shape[dim], y.shape[dim]), y.dtype);
    return o.constant(turned ? raw::transpose(m, 0, 1) : m);
  };
  return {o.node("MatMul", {matrix(2, false), o.node("MatMul", {o.in(), matrix(3, true)})})};
}

Names adaptive_max_pool2d(Operation& o) {
  if (const auto even = even_windows(o)) return {o.node("MaxPool", {o.in()}, *even)};
  o.refuse("the windows have different sizes: the output does not divide the input");
}

// --- Norms ---------------------------------------------------------------------------------------
// (x - mean) / standard deviation, both over the dimensions.
std::string normalized(Operation& o, const std::string& x, const Ints& dims) {
  const auto mean = [&](const std::string& of) {
    return o.node("ReduceMean", {of}, {{"axes", dims}, {"keepdims", std::int64_t{1}}});
  };
  const std::string deviation = o.node("Sub", {x, mean(x)});
  const std::string variance = mean(o.node("Mul", {deviation, deviation}));
  const std::string shifted = o.node("Add", {variance, o.constant(o.number("eps"))});
  return o.node("Div", {deviation, o.node("Sqrt", {shifted})});
}

// weight y + bias, with weight and bias [C] along dimension 1; either may be missing.
std::string scaled(Operation& o, std::string y) {
  const int rank = o.result().dim();
  const auto along = [&](std::size_t i) {
    Ints shape(static_cast<std::size_t>(rank), 1);
    shape[1] = o.operand(i).shape[0];
    return o.node("Reshape", {o.in(i), o.ints_constant(shape)});
  };
  if (o.operand(1).defined()) y = o.node("Mul", {y, along(1)});
  if (o.operand(2).defined()) y = o.node("Add", {y, along(2)});
  return y;
}

// Operand i, or a constant of this value if the layer has none: ONNX's node needs both weight and
// bias.
std::string or_all(Operation& o, std::size_t i, double value, const Shape& shape) {
  if (o.operand(i).defined()) return o.in(i);
  return o.constant(full(shape, value, {o.computed(), Device()}));
}

Names batch_norm(Operation& o) {
  const bool widens = o.result().dtype == DType::bf16;  // computed in f32, as in weft
  if (widens) o.compute_in(DType::f32);
  const auto running = [&](const char* name) {
    const Value& x = o.tensor(name);
    return x.dtype == o.computed() ? x.name : o.cast(x.name, o.computed());
  };
  std::string y;
  if (o.integer("training") != 0) {  // a layer without running statistics
    y = scaled(o, normalized(o, o.in(), {0, 2, 3}));
  } else {
    const Shape channels{o.result().shape[1]};
    y = o.node("BatchNormalization",
               {o.in(), or_all(o, 1, 1, channels), or_all(o, 2, 0, channels), running("mean"),
                running("var")},
               {{"epsilon", o.number("eps")}});
  }
  if (widens) {
    y = o.cast(y, DType::bf16);
    o.compute_in(DType::bf16);
  }
  if (o.operands() > 3) y = o.node("Add", {y, o.in(3)});
  const double slope = o.number("negative_slope");  // 1: no activation
  if (slope == 0) y = o.node("Relu", {y});
  if (slope != 0 && slope != 1) y = o.node("LeakyRelu", {y}, {{"alpha", slope}});
  return {y};
}

Names layer_norm(Operation& o) {
  const Ints& sizes = o.ints("normalized_shape");
  const Shape shape{std::span<const std::int64_t>(sizes)};
  Names inputs{o.in(), or_all(o, 1, 1, shape)};
  if (o.operand(2).defined()) inputs.push_back(o.in(2));
  return {o.node("LayerNormalization", inputs,
                 {{"axis", -std::ssize(sizes)}, {"epsilon", o.number("eps")}})};
}

// Also used for instance norm, with as many groups as channels.
Names group_norm(Operation& o) {
  const std::string groups =
      o.node("Reshape", {o.in(), o.ints_constant({0, o.integer("groups"), -1})});
  const Value y = o.result();
  Value grouped = y;
  grouped.shape = grouped.other = {0, 0, 0};  // so that the reshape copies none of its sizes
  return {scaled(o, o.reshape(normalized(o, groups, {2}), grouped, y))};
}

// --- Attention -----------------------------------------------------------------------------------
// What a causal mask adds: query i sees the keys up to i.
Tensor causal_mask(std::int64_t length, std::int64_t keys, DType dtype) {
  std::vector<double> mask;
  for (std::int64_t i = 0; i < length; ++i) {
    for (std::int64_t k = 0; k < keys; ++k) mask.push_back(k > i ? -kInfinity : 0);
  }
  return raw::to(from_vector(mask, {length, keys}, Device()), dtype);
}

// A query whose keys are all masked gets the result 0: its weights become 0.
std::string masked_weights(Operation& o, std::string scores) {
  const DType dtype = o.result().dtype;
  const auto softmax = [&] { return o.node("Softmax", {scores}, {{"axis", std::int64_t{-1}}}); };
  if (!o.has_tensor("mask")) return softmax();
  const Value& mask = o.tensor("mask");
  if (mask.dtype == DType::boolean) {
    const double least = dtype == DType::f64 ? std::numeric_limits<double>::lowest() : -3e38;
    scores = o.node("Where", {mask.name, scores, o.constant(least)});
    return o.node("Mul", {softmax(), o.cast(mask.name, dtype)});
  }
  const std::string added = mask.dtype == dtype ? mask.name : o.cast(mask.name, dtype);
  const Attributes of_keys{{"axes", Ints{-1}}, {"keepdims", std::int64_t{1}}};
  const std::string largest = mask.dim() == 0 ? added : o.node("ReduceMax", {added}, of_keys);
  const std::string blind = o.node("Equal", {largest, o.constant(-kInfinity)});
  scores = o.node("Add", {scores, added});
  return o.node("Where", {blind, o.constant(0), softmax()});
}

Names attention(Operation& o) {
  const Value q = o.operand(0), k = o.operand(1);
  const int last = k.dim() - 1;
  Ints order;
  for (int i = 0; i <= last; ++i) order.push_back(i);
  std::swap(order[static_cast<std::size_t>(last)], order[static_cast<std::size_t>(last) - 1]);
  const std::string scaled = o.node("Mul", {o.in(0), o.constant(o.number("scale"))});
  const std::string turned = o.node("Transpose", {o.in(1)}, {{"perm", order}});
  std::string scores = o.node("MatMul", {scaled, turned});
  if (o.integer("causal") != 0) {
    const std::int64_t length = q.shape[q.dim() - 2], keys = k.shape[last - 1];
    if (length != q.other[q.dim() - 2] || keys != k.other[last - 1])
      o.refuse("a causal mask whose size depends on the batch");
    scores = o.node("Add", {scores, o.constant(causal_mask(length, keys, o.result().dtype))});
  }
  return {o.node("MatMul", {masked_weights(o, scores), o.in(2)})};
}

// --- Resampling ----------------------------------------------------------------------------------
// As weft computes it: each position is a sum of weighted positions of the input.
Names by_taps(Operation& o) {
  const std::int64_t dim = o.integer("dim");
  std::string y;
  for (int tap = 0; o.has_tensor("index" + std::to_string(tap)); ++tap) {
    const std::string number = std::to_string(tap);
    std::string part = o.node("Gather", {o.in(), o.tensor("index" + number).name}, {{"axis", dim}});
    if (o.has_tensor("weights" + number)) {
      part = o.node("Mul", {part, o.tensor("weights" + number).name});
    }
    y = y.empty() ? part : o.node("Add", {y, part});
  }
  return {y};
}

// One Resize node along one dimension, if it reads the same positions as weft. For nearest pixels
// that is certain only if the new size is a multiple of the old one: else the result depends on
// how a runtime rounds. Otherwise single operations.
Names interpolate(Operation& o) {
  const int dim = static_cast<int>(o.integer("dim"));
  const Value x = o.operand(0), y = o.result();
  const std::int64_t in = x.shape[dim], out = y.shape[dim];
  const bool linear = o.integer("linear") != 0, corners = o.integer("align_corners") != 0;
  const bool plain = o.number("step") == static_cast<double>(in) / static_cast<double>(out);
  if (linear ? !(plain || corners) : !(plain && out % in == 0)) return by_taps(o);
  const char* positions = corners ? "align_corners" : linear ? "half_pixel" : "asymmetric";
  Attributes attributes{{"mode", std::string(linear ? "linear" : "nearest")},
                        {"coordinate_transformation_mode", std::string(positions)}};
  if (!linear) attributes.emplace_back("nearest_mode", std::string("floor"));
  return {o.node("Resize", {o.in(), "", "", o.shape_of(y)}, attributes)};
}

}  // namespace

const Rules& layer_rules() {
  static const Rules& rules = *new Rules{
      {"matmul", in_i32(matmul)},
      {"linear", linear},
      {"conv2d", conv2d},
      {"conv_transpose2d", conv_transpose2d},
      {"max_pool2d", max_pool2d},
      {"avg_pool2d", avg_pool2d},
      {"adaptive_avg_pool2d", adaptive_avg_pool2d},
      {"adaptive_max_pool2d", adaptive_max_pool2d},
      {"batch_norm", batch_norm},
      {"layer_norm", layer_norm},
      {"group_norm", group_norm},
      {"scaled_dot_product_attention", attention},
      {"interpolate", interpolate},
  };
  return rules;
}

}  // namespace weft::onnx
