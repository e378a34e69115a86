// The operations of random programs. Operands are drawn one by one into variables, because the
// compiler chooses the order in which a call evaluates its arguments.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad.h"
#include "weft/nn/activation.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/flatten.h"
#include "weft/nn/group_norm.h"
#include "weft/nn/init.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/pooling.h"
#include "weft/nn/sequential.h"
#include "weft/nn/upsample.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/memory/program.h"

namespace weft::testing {
namespace {

using Results = std::vector<Tensor>;

Results of(const std::pair<Tensor, Tensor>& x) { return {x.first, x.second}; }
Results of(const ValuesAndIndices& x) { return {x.values, x.indices}; }
Results of(const UniqueElements& x) { return {x.values, x.inverse, x.counts}; }
Results of(const raw::NormResult& x) { return {x.y, x.mean, x.invstd}; }
Results of(const raw::NormGradients& x) { return {x.x, x.weight, x.bias, x.addend}; }
Results of(const AttentionResult& x) { return {x.output, x.weights}; }

// --- Operands that fit together ------------------------------------------------------------------

/// x's dtype, or sometimes another one.
DType dtype_beside(Program& p, const Tensor& x) { return p.draw.one_in(3) ? p.dtype() : x.dtype(); }

Shape with(Shape shape, std::int64_t dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}
/// A dimension in [0, dims), for shapes; 0 if there is none.
std::int64_t place(Program& p, const Tensor& x) {
  return x.dim() == 0 ? 0 : p.draw.between(0, x.dim() - 1);
}
std::int64_t size_at(const Tensor& x, std::int64_t dim) {
  return x.dim() == 0 ? 1 : x.shape()[dim];
}
/// `place`, counted from either end, or sometimes wrong.
std::int64_t counted(Program& p, const Tensor& x, std::int64_t place) {
  return p.number(p.coin() ? place : place - std::max(x.dim(), 1));
}

struct Places {
  std::int64_t dim;
  Tensor index;
};
/// For scatter into y: a dimension, and an index that is not longer in the others.
Places places(Program& p, const Tensor& y) {
  const std::int64_t d = place(p, y);
  Shape shape = y.shape();
  for (std::int64_t& size : shape) size = p.draw.between(0, size);
  if (shape.size() > 0) shape[d] = p.size();
  const Tensor index = p.index(shape, size_at(y, d));
  return {counted(p, y, d), index};
}

UnaryOp unary_op(Program& p) {
  const UnaryOp all[] = {
#define X(value, ...) UnaryOp::value,
      WEFT_UNARY_OPS(X) WEFT_SCALAR_OPS(X)
#undef X
  };
  return all[p.draw.between(0, std::ssize(all) - 1)];
}
BinaryOp binary_op(Program& p) {
  const BinaryOp all[] = {
#define X(value, ...) BinaryOp::value,
      WEFT_BINARY_OPS(X)
#undef X
  };
  return all[p.draw.between(0, std::ssize(all) - 1)];
}
CompareOp compare_op(Program& p) {
  const CompareOp all[] = {
#define X(value, ...) CompareOp::value,
      WEFT_COMPARE_OPS(X)
#undef X
  };
  return all[p.draw.between(0, std::ssize(all) - 1)];
}
Reduction reduction(Program& p) {
  return p.draw.of({Reduction::none, Reduction::mean, Reduction::sum});
}

struct Factors {
  Tensor a, b, bias;
};
/// Of a product, with batch dimensions or as vectors; bias of the result's columns.
Factors factors(Program& p) {
  const DType dtype = p.floating_dtype();
  const std::int64_t batches = p.draw.one_in(2) ? 0 : p.draw.between(1, 2);
  const Shape batch = p.shape(int(batches)), rows = p.shape(2), columns = p.shape(1);
  Shape a, b;
  for (const std::int64_t n : batch) {
    const std::int64_t size = std::min<std::int64_t>(n, 5);
    a.push_back(p.draw.one_in(4) ? 1 : size);
    b.push_back(p.draw.one_in(4) ? 1 : size);
  }
  if (p.draw.one_in(4)) a = {};
  if (p.draw.one_in(3)) b = {};
  a.push_back(rows[0]), a.push_back(rows[1]);
  b.push_back(rows[1]), b.push_back(columns[0]);
  if (p.draw.one_in(12)) a = {rows[1]};
  if (p.draw.one_in(12)) b = {rows[1]};
  const Tensor x = p.operand(a, dtype);
  Tensor y = p.operand(b, dtype);
  if (p.draw.one_in(4) && b.size() > 1) {
    y = raw::transpose(p.operand(raw::transpose(y, -1, -2).shape(), dtype), -1, -2);
  }
  return {x, y, p.optional({b.back()}, dtype)};
}

struct Convolution {
  Tensor x, w, bias;
  Conv2dParams params;
  /// The result's shape; without dimensions if there is no result.
  Shape y;
};
Activation activation(Program& p) { return p.coin() ? Activation::relu : Activation::none; }

Convolution convolution(Program& p, bool transposed) {
  Convolution c;
  const DType dtype = p.floating_dtype();
  const auto channels = [&] {
    return p.draw.of<std::int64_t>({1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 32, 33});
  };
  const bool pointwise = p.draw.one_in(4);
  const std::int64_t groups = p.draw.one_in(3) ? p.draw.of<std::int64_t>({2, 3, 4, 8}) : 1;
  const bool depthwise = p.draw.one_in(6);
  std::int64_t in = channels(), out = channels();
  if (groups > 1) {
    in = groups * (depthwise ? 1 : p.draw.between(1, 3));
    out = groups * p.draw.between(1, 3);
  }
  const std::int64_t r = pointwise ? 1 : p.draw.between(1, 5);
  const std::int64_t s = pointwise ? 1 : p.coin() ? r : p.draw.between(1, 5);
  const std::int64_t n = p.draw.one_in(30) ? 0 : p.draw.between(1, 3);
  const std::int64_t h = p.draw.between(1, 14), w = p.draw.between(1, 14);
  c.params.stride = p.pair(1, p.draw.of<std::int64_t>({1, 2, 3}));
  c.params.padding = p.pair(0, p.draw.of<std::int64_t>({0, 1, 2, 3}));
  c.params.dilation = p.pair(1, p.draw.of<std::int64_t>({1, 1, 2}));
  c.params.groups = p.number(groups);
  c.params.transposed = transposed;
  if (transposed && p.draw.one_in(3)) {
    for (int i = 0; i < 2; ++i) {
      const std::int64_t most = std::clamp<std::int64_t>(c.params.stride[i], 1, 4) - 1;
      c.params.output_padding[i] = p.number(p.draw.between(0, most));
    }
  }
  c.x = p.operand({n, in, h, w}, dtype);
  c.w =
      p.operand(transposed ? Shape{in, out / groups, r, s} : Shape{out, in / groups, r, s}, dtype);
  c.bias = p.optional({out}, dtype);
  try {
    const NoGrad no_grad;
    c.y = raw::conv2d(c.x, c.w, c.bias, c.params).shape();
  } catch (const Error&) {
  }
  return c;
}
nn::Pair of(const std::array<std::int64_t, 2>& pair) { return {pair[0], pair[1]}; }
nn::ConvOptions options_of(const Convolution& c) {
  return {.stride = of(c.params.stride),
          .padding = of(c.params.padding),
          .dilation = of(c.params.dilation),
          .groups = c.params.groups,
          .bias = c.bias.defined(),
          .output_padding = of(c.params.output_padding)};
}

Pool2dParams pooling(Program& p) {
  Pool2dParams params;
  const std::int64_t k = p.draw.between(1, 4);
  params.kernel = p.pair(k, k + 1);
  params.stride = p.pair(1, p.draw.of<std::int64_t>({1, 2, 4}));
  params.padding = p.pair(0, k / 2);
  params.dilation = p.pair(1, p.draw.of<std::int64_t>({1, 1, 3}));
  params.ceil_mode = p.coin();
  return params;
}
AvgPool2dParams average_pooling(Program& p) {
  const Pool2dParams params = pooling(p);
  return {.kernel = params.kernel,
          .stride = params.stride,
          .padding = params.padding,
          .ceil_mode = params.ceil_mode,
          .count_include_pad = p.coin(),
          .divisor = p.draw.one_in(4) ? p.number(3) : 0};
}

struct BatchNormOperands {
  Tensor x, weight, bias;
  RunningStats running;
  BatchNormParams params;
};
BatchNormOperands batch_norm_operands(Program& p) {
  BatchNormOperands o;
  o.x = p.images();
  const DType dtype = o.x.dtype();
  const Shape channels = {o.x.dim() > 1 ? o.x.shape()[1] : 1};
  const DType type = dtype == DType::bf16 && p.coin() ? DType::f32 : dtype;
  o.weight = p.optional(channels, type);
  o.bias = p.optional(channels, type);
  o.params.training = !p.draw.one_in(3);
  // Not expanded: an expanded tensor cannot be updated.
  const auto statistics = [&](const Shape& shape, DType dtype) {
    const bool left_out = p.draw.one_in(o.params.training ? 3 : 30);
    return left_out ? Tensor() : raw::clone(p.operand(shape, dtype));
  };
  o.running.mean = statistics(channels, type);
  o.running.var = statistics(channels, type);
  o.running.num_batches = statistics({}, DType::i64);
  o.params.cumulative = p.draw.one_in(4);
  o.params.momentum = p.real(0.1);
  if (p.draw.one_in(3)) o.params.negative_slope = p.real(0.1);
  return o;
}

struct AttentionOperands {
  Tensor q, k, v;
  AttentionOptions options;
};
AttentionOperands attention_operands(Program& p) {
  const DType dtype = p.floating_dtype();
  const Shape sizes = p.shape(3);
  const auto at_most = [](std::int64_t n, std::int64_t most) { return std::min(n, most); };
  const std::int64_t batch = p.draw.between(1, 2), heads = p.draw.between(1, 3);
  const std::int64_t e = at_most(sizes[0], 40), l = at_most(sizes[1], 70),
                     s = at_most(sizes[2], 70);
  const std::int64_t ev = p.coin() ? e : p.draw.between(1, 9);
  AttentionOperands o;
  o.q = p.operand({batch, heads, l, e}, dtype);
  o.k = p.operand({batch, p.draw.one_in(5) ? 1 : heads, s, e}, dtype);
  o.v = p.operand({batch, heads, s, ev}, dtype);
  o.options.is_causal = p.draw.one_in(3);
  if (p.draw.one_in(3) && !(o.options.is_causal && !p.draw.one_in(8))) {
    const Shape shape = p.coin() ? Shape{l, s} : Shape{batch, 1, l, s};
    o.options.attn_mask = p.operand(shape, p.coin() ? DType::boolean : dtype);
  }
  if (p.draw.one_in(4)) o.options.dropout_p = p.real(0.3);
  if (p.draw.one_in(4)) o.options.scale = p.real(0.5);
  return o;
}

/// Logits or log-probabilities with their classes.
struct Classes {
  Tensor logits, target;
};
Classes classes(Program& p, bool images = true) {
  const Tensor logits = p.floating(images && p.draw.one_in(3) ? 4 : 2);
  Shape shape = logits.shape();
  const std::int64_t n = logits.dim() > 1 ? shape[1] : 1;
  if (shape.size() > 1) shape.erase(1);
  return {logits, p.index(shape, n)};
}

std::vector<Tensor> parameters(Program& p) {
  std::vector<Tensor> list;
  const DType dtype = p.floating_dtype();
  for (std::int64_t n = p.draw.between(1, 4); n > 0; --n) {
    const Tensor x = p.make(p.shape(int(p.draw.between(0, 3))), dtype).detach();
    const Tensor leaf = x.is_dense() || p.draw.one_in(20) ? x : raw::contiguous(x);
    leaf.set_requires_grad();
    if (!p.draw.one_in(6)) leaf.set_grad(p.make(leaf.shape(), dtype).detach());
    list.push_back(leaf);
  }
  return list;
}
template <class Optimizer, class Options>
Results steps(Program& p, const Options& options) {
  const std::vector<Tensor> list = parameters(p);
  Optimizer optimizer(list, options);
  for (std::int64_t n = p.draw.between(1, 3); n > 0; --n) {
    optimizer.step();
    if (p.draw.one_in(3)) optimizer.load_state_dict(optimizer.state_dict());
  }
  if (p.draw.one_in(3)) optimizer.zero_grad();
  return list;
}

/// A layer, called with x; sometimes in evaluation mode or with another dtype.
template <class Layer>
Results called(Program& p, Layer layer, const Tensor& x) {
  if (x.dtype() != DType::f32 && is_floating(x.dtype())) layer.to(x.dtype());
  if (p.draw.one_in(4)) layer.eval();
  if (p.draw.one_in(8)) layer.requires_grad(false);
  return {layer(x)};
}

// clang-format off: the list reads like a table
#define OP(name, ...) {name, [](Program& p) -> Results { __VA_ARGS__ }},

constexpr Operation kElementwise[] = {
#define X(value, name, ...)                                            \
  OP("raw::" #name, return {raw::name(p.any())};)                      \
  OP(#name, return {name(p.any())};)
  WEFT_UNARY_OPS(X)
#undef X
#define X(name) OP("Tensor::" #name, return {p.any_floating().name()};)
  WEFT_UNARY_METHODS(X)
#undef X
#define X(value, name, ...)                                                           \
  OP("raw::" #name, const Tensor a = p.any(); const DType type = dtype_beside(p, a);  \
     const Tensor b = p.broadcastable(a, type); return {raw::name(a, b)};)            \
  OP("raw::" #name "(x, number)", const Tensor a = p.any();                           \
     return {raw::name(a, p.real())};)                                                \
  OP(#name, const Tensor a = p.any(); const DType type = dtype_beside(p, a);          \
     const Tensor b = p.broadcastable(a, type);                                       \
     return {p.coin() ? name(a, b) : name(b, a)};)                                    \
  OP(#name "(x, number)", const Tensor a = p.any(); return {name(a, p.real())};)
  WEFT_BINARY_OPS(X)
  WEFT_COMPARE_OPS(X)
#undef X
#define X(name)                                                              \
  OP("Tensor::" #name, const Tensor a = p.any(); const Tensor b = p.like(a); \
     return {a.name(b), a.name(p.real())};)
  WEFT_BINARY_METHODS(X)
#undef X
  OP("raw::sub(number, x)", const double a = p.real(); return {raw::sub(a, p.any())};)
  OP("raw::div(number, x)", const double a = p.real(); return {raw::div(a, p.any())};)
  OP("sub(number, x)", const double a = p.real(); return {sub(a, p.any())};)
  OP("div(number, x)", const double a = p.real(); return {div(a, p.any())};)
  OP("raw::unary", const UnaryOp op = unary_op(p); const Tensor x = p.any();
     const UnaryParams params{p.real(), p.real()}; return {raw::unary(op, x, params)};)
  OP("raw::unary_backward", const UnaryOp op = unary_op(p); const Tensor x = p.any_floating();
     const Tensor saved = p.like(x); const UnaryParams params{p.real(), p.real()};
     return {raw::unary_backward(op, x, saved, params)};)
  OP("raw::unary_backward(in place)", const UnaryOp op = unary_op(p);
     const Tensor x = p.any_floating(); const Tensor saved = p.like(x);
     return {raw::unary_backward(op, p.like(x).detach(), saved, UnaryParams{0.5, 2})};)
  OP("raw::binary", const BinaryOp op = binary_op(p); const Tensor a = p.any();
     const DType type = dtype_beside(p, a); return {raw::binary(op, a, p.broadcastable(a, type))};)
  OP("raw::binary_backward", const BinaryOp op = binary_op(p); const Tensor a = p.any_floating();
     const Tensor b = p.broadcastable(a, a.dtype()); const bool of_b = p.coin();
     const Tensor grad = p.operand(broadcast_shapes(a.shape(), b.shape(), "test"), a.dtype());
     return {raw::binary_backward(op, of_b, grad, a, b)};)
  OP("raw::compare", const CompareOp op = compare_op(p); const Tensor a = p.any();
     const DType type = dtype_beside(p, a); return {raw::compare(op, a, p.broadcastable(a, type))};)
  OP("raw::logical_not", return {raw::logical_not(p.any())};)
  OP("raw::clamp", const Tensor x = p.any(); const double a = p.real();
     return {p.coin() ? raw::clamp(x, a, a + 2) : raw::clamp(x, {}, a)};)
  OP("raw::leaky_relu", const Tensor x = p.any(); return {raw::leaky_relu(x, p.real(0.1))};)
  OP("raw::elu", const Tensor x = p.any(); return {raw::elu(x, p.real(1))};)
  OP("raw::softplus", const Tensor x = p.any(); return {raw::softplus(x, p.real(1))};)
  OP("raw::smooth_l1", const Tensor x = p.any(); return {raw::smooth_l1(x, p.real(1))};)
  OP("raw::where", const Tensor a = p.any(); const Tensor condition = p.mask(a);
     const DType type = dtype_beside(p, a);
     return {raw::where(condition, a, p.broadcastable(a, type))};)
  OP("raw::check_holds", const DType type = p.dtype(); raw::check_holds("test", p.real(), type);
     return {};)
  OP("relu(temporary)", const Tensor x = p.any(); return {relu(x + 1)};)
  OP("leaky_relu", const Tensor x = p.any(); return {leaky_relu(x, p.real(0.1))};)
  OP("leaky_relu(temporary)", const Tensor x = p.any_floating();
     return {leaky_relu(x * 2, p.real(0.1))};)
  OP("elu", const Tensor x = p.any(); return {elu(x, p.real(1))};)
  OP("softplus", const Tensor x = p.any(); const double beta = p.real(1);
     return {softplus(x, beta, p.real(20))};)
  OP("smooth_l1", const Tensor x = p.any(); return {smooth_l1(x, p.real(1))};)
  OP("clamp", const Tensor x = p.any(); const double a = p.real();
     return {p.coin() ? clamp(x, a, a + 2) : x.clamp({}, a)};)
  OP("where", const Tensor a = p.any(); const Tensor condition = p.mask(a);
     const DType type = dtype_beside(p, a); return {where(condition, a, p.broadcastable(a, type))};)
  OP("operators", const Tensor a = p.any_floating(); const Tensor b = p.like(a);
     return {2 + a * b, -(a - b) / 2, 1 - a, 3 * b % 2};)
  OP("isnan", const Tensor x = p.any(); return {isnan(x), x.isinf(), isfinite(x)};)
  OP("isinf", const Tensor x = p.any(); return {isinf(x), x.isnan(), x.isfinite()};)
  OP("equal", const Tensor x = p.any(); equal(x, p.like(x)); return {};)
  OP("isclose", const Tensor x = p.any(); const Tensor y = p.broadcastable(x, x.dtype());
     const double rtol = p.real(0.1), atol = p.real(0.1);
     return {isclose(x, y, rtol, atol, p.coin())};)
  OP("allclose", const Tensor x = p.any(); const Tensor y = p.broadcastable(x, x.dtype());
     allclose(x, y); return {};)
  OP("masked_fill", const Tensor x = p.any(); const Tensor mask = p.mask(x);
     return {masked_fill(x, mask, p.real())};)
  OP("masked_select", const Tensor x = p.any(); return {masked_select(x, p.mask(x))};)
  OP("Tensor::operator[](mask)", const Tensor x = p.any();
     Shape shape = x.shape(); while (shape.size() > 1 && p.coin()) shape.erase(shape.size() - 1);
     return {x[p.operand(shape, DType::boolean)]};)
};

constexpr Operation kInPlace[] = {
  OP("raw::unary_", const UnaryOp op = unary_op(p); const Tensor y = p.target();
     return {raw::unary_(op, y, {p.real(), p.real()})};)
  OP("raw::binary_", const BinaryOp op = binary_op(p); const Tensor y = p.target();
     const DType type = dtype_beside(p, y); return {raw::binary_(op, y, p.broadcastable(y, type))};)
  OP("raw::binary_(with itself)", const BinaryOp op = binary_op(p); const Tensor y = p.target();
     const std::int64_t d = p.dim(y), n = size_at(y, std::clamp<std::int64_t>(d, 0, y.dim() - 1));
     const Tensor to = raw::slice(y, d, 0, n - 1), from = raw::slice(y, d, 1, n);
     return {raw::binary_(op, to, from)};)
  OP("raw::add_scaled_", const Tensor y = p.target(); const double alpha = p.real();
     return {raw::add_scaled_(y, alpha, p.broadcastable(y, y.dtype()))};)
  OP("raw::add_from_afar_", const Tensor y = p.target();
     return {raw::add_from_afar_(y, p.broadcastable(y, y.dtype()))};)
  OP("raw::mul_", const Tensor y = p.target(); return {raw::mul_(y, p.real(2))};)
  OP("raw::add_", const Tensor y = p.target(); return {raw::add_(y, p.real(2))};)
  OP("raw::fill_", const Tensor y = p.target(); return {raw::fill_(y, p.real(2))};)
  OP("raw::zero_", return {raw::zero_(p.target())};)
  OP("raw::copy_", const Tensor y = p.target(); const DType type = dtype_beside(p, y);
     return {raw::copy_(y, p.broadcastable(y, type))};)
  OP("raw::copy_(of itself)", const Tensor y = p.target();
     const std::int64_t d = p.dim(y), n = size_at(y, std::clamp<std::int64_t>(d, 0, y.dim() - 1));
     const Tensor to = raw::slice(y, d, 0, n - 1), from = raw::slice(y, d, 1, n);
     return {raw::copy_(to, from)};)
  OP("raw::uniform_", const Tensor y = p.target(); const double a = p.real();
     return {raw::uniform_(y, a, p.real(a + 1))};)
  OP("raw::normal_", const Tensor y = p.target(); const double a = p.real();
     return {raw::normal_(y, a, p.real(1))};)
  OP("raw::bernoulli_", const Tensor y = p.target(); return {raw::bernoulli_(y, p.real(0.5))};)
  OP("add_", const Tensor y = p.any(); const Tensor x = p.broadcastable(y, y.dtype());
     return {y.add_(x, p.real(2))};)
  OP("sub_", const Tensor y = p.any() + 0; return {y.sub_(p.broadcastable(y, y.dtype()))};)
  OP("mul_", const Tensor y = p.any() + 0; return {y.mul_(p.broadcastable(y, y.dtype()))};)
  OP("mul_(number)", const Tensor y = p.any() + 0; return {y.mul_(p.real(2))};)
  OP("div_", const Tensor y = p.any_floating() + 0; return {y.div_(p.broadcastable(y, y.dtype()))};)
  OP("copy_", const Tensor y = p.any() + 0; return {y.copy_(p.broadcastable(y, y.dtype()))};)
  OP("add_(number)", const Tensor y = p.any() + 0; return {y.add_(p.real(2))};)
  OP("sub_(number)", const Tensor y = p.any() + 0; return {y.sub_(p.real(2))};)
  OP("div_(number)", const Tensor y = p.any_floating() + 0; return {y.div_(p.real(2))};)
  OP("clamp_", const Tensor y = p.any() + 0; const double low = p.real(2);
     return {y.clamp_(low, p.real(2))};)
  OP("sigmoid_", const Tensor y = p.any_floating() + 0; return {y.sigmoid_()};)
  OP("write to a view", const Tensor y = p.any() + 0; const std::int64_t d = p.dim(y);
     y.slice(d, p.number(1), p.number(4), 2).mul_(p.real(2)); return {y};)
  OP("fill_", const Tensor y = p.any() + 0; return {y.fill_(p.real(2))};)
  OP("zero_", const Tensor y = p.any() + 0; return {y.zero_()};)
  OP("in place, of a view", const Tensor y = p.any() + 0; const std::int64_t d = p.dim(y);
     const Tensor view = y.narrow(d, 0, 1); view.mul_(2); return {y, view};)
  OP("operators in place", const Tensor a = p.any_floating() + 0; const Tensor b = p.like(a);
     a += b; a -= b; a *= b; a /= b; return {a};)
  OP("raw::index_add_", const Tensor y = p.target(); const std::int64_t d = place(p, y);
     const std::int64_t n = p.size(); const Tensor index = p.index({n}, size_at(y, d));
     const Tensor x = p.operand(y.dim() == 0 ? Shape{n} : with(y.shape(), d, n), y.dtype());
     const std::int64_t where = counted(p, y, d); return {raw::index_add_(y, where, index, x)};)
  OP("raw::scatter_add_", const Tensor y = p.target(); const std::int64_t d = place(p, y);
     Shape shape = y.shape(); for (std::int64_t& size : shape) size = p.draw.between(0, size);
     if (shape.size() > 0) shape[d] = p.size();
     const Tensor index = p.index(shape, size_at(y, d));
     const Tensor x = p.operand(shape, y.dtype()); const std::int64_t where = counted(p, y, d);
     return {raw::scatter_add_(y, where, index, x)};)
  OP("raw::scatter_", const Tensor y = p.target(); const Places at = places(p, y);
     const Tensor x = p.operand(at.index.shape(), y.dtype());
     return {p.coin() ? raw::scatter_(y, at.dim, at.index, x)
                      : raw::scatter_(y, at.dim, at.index, p.real(2))};)
  OP("raw::scatter", const Tensor y = p.any(); const Places at = places(p, y);
     const Tensor x = p.operand(at.index.shape(), y.dtype());
     return {p.coin() ? raw::scatter(y, at.dim, at.index, x)
                      : raw::scatter(y, at.dim, at.index, p.real(2))};)
  OP("raw::scatter_add", const Tensor y = p.any(); const Places at = places(p, y);
     return {raw::scatter_add(y, at.dim, at.index, p.operand(at.index.shape(), y.dtype()))};)
  OP("raw::index_add", const Tensor y = p.any(); const std::int64_t d = place(p, y);
     const std::int64_t n = y.dim() == 0 ? 1 : p.size(); const Tensor index = p.index({n}, size_at(y, d));
     const Tensor x = p.operand(y.dim() == 0 ? Shape{} : with(y.shape(), d, n), y.dtype());
     return {raw::index_add(y, counted(p, y, d), index, x)};)
  OP("scatter_", const Tensor y = p.any() + 0; const Places at = places(p, y);
     const Tensor x = p.operand(at.index.shape(), y.dtype());
     return {p.coin() ? y.scatter_(at.dim, at.index, x) : y.scatter_(at.dim, at.index, 1)};)
  OP("scatter", const Tensor y = p.any(); const Places at = places(p, y);
     const Tensor x = p.operand(at.index.shape(), y.dtype());
     if (p.coin()) return {scatter(y, at.dim, at.index, 1), y.scatter(at.dim, at.index, 1)};
     return {scatter(y, at.dim, at.index, x), y.scatter(at.dim, at.index, x)};)
  OP("scatter_add", const Tensor y = p.any(); const Places at = places(p, y);
     const Tensor x = p.operand(at.index.shape(), y.dtype());
     return {p.coin() ? scatter_add(y, at.dim, at.index, x) : y.scatter_add(at.dim, at.index, x)};)
  OP("index_add", const Tensor y = p.any(); const std::int64_t d = place(p, y);
     const std::int64_t n = y.dim() == 0 ? 1 : p.size(); const Tensor index = p.index({n}, size_at(y, d));
     const Tensor x = p.operand(y.dim() == 0 ? Shape{} : with(y.shape(), d, n), y.dtype());
     const std::int64_t where = counted(p, y, d);
     return {p.coin() ? index_add(y, where, index, x) : y.index_add(where, index, x)};)
};

constexpr Operation kViews[] = {
#define VIEWS(space, label)                                                                     \
  OP(label "reshape", const Tensor x = p.any(); Dims to;                                        \
     if (x.dim() > 1 && p.coin()) { to = x.shape(); to[1] *= to[0]; to.erase(0); }              \
     else { to = {p.number(-1)}; if (p.coin()) to.push_back(p.number(1)); }                     \
     return {space reshape(x, to)};)                                                            \
  OP(label "flatten", const Tensor x = p.any(); const std::int64_t a = p.dim(x), b = p.dim(x);  \
     return {p.coin() ? space flatten(x) : space flatten(x, a, b)};)                            \
  OP(label "unflatten", const Tensor x = p.any(); const std::int64_t d = p.dim(x);              \
     const std::int64_t a = p.number(p.draw.of<std::int64_t>({1, 2, -1})), b = p.number(-1);    \
     return {space unflatten(x, d, {a == -1 ? 1 : a, b})};)                                     \
  OP(label "transpose", const Tensor x = p.any(); const std::int64_t a = p.dim(x), b = p.dim(x);\
     return {space transpose(x, a, b)};)                                                        \
  OP(label "permute", const Tensor x = p.any(); Dims order;                                     \
     for (int d = 0; d < x.dim(); ++d) order.insert(p.draw.between(0, d), p.number(d));         \
     return {space permute(x, order)};)                                                         \
  OP(label "slice", const Tensor x = p.any(); const std::int64_t d = p.dim(x);                  \
     const std::int64_t from = p.number(p.draw.between(-2, 3));                                 \
     const std::int64_t to = p.number(p.draw.between(-2, 30));                                  \
     const std::int64_t step = p.number(p.draw.between(1, 3));                                  \
     return {space slice(x, d, from, to, step)};)                                               \
  OP(label "select", const Tensor x = p.any(); const std::int64_t d = p.dim(x);                 \
     return {space select(x, d, p.number(p.draw.between(-2, 1)))};)                             \
  OP(label "narrow", const Tensor x = p.any(); const std::int64_t d = p.dim(x);                 \
     const std::int64_t from = p.number(p.draw.between(-1, 1));                                 \
     return {space narrow(x, d, from, p.number(1))};)                                           \
  OP(label "squeeze", const Tensor x = p.any(); return {space squeeze(x)};)                     \
  OP(label "squeeze(dim)", const Tensor x = p.any(); return {space squeeze(x, p.dim(x))};)      \
  OP(label "unsqueeze", const Tensor x = p.any(); return {space unsqueeze(x, p.dim(x))};)       \
  OP(label "expand", const Tensor x = p.any(); Dims to = x.shape();                             \
     for (std::int64_t& size : to) { if (size == 1) size = p.number(p.draw.between(0, 5)); }    \
     if (to.size() < 6 && p.coin()) to.insert(0, p.number(3));                                  \
     return {space expand(x, to)};)
  VIEWS(raw::, "raw::")
#undef VIEWS
  OP("reshape", const Tensor x = p.any(); return {x.reshape({p.number(-1)})};)
  OP("reshape(temporary)", return {relu((p.any() + 1).reshape({-1}))};)
  OP("flatten", const Tensor x = p.any(); const std::int64_t a = p.dim(x);
     return {x.flatten(a, p.number(-1))};)
  OP("flatten(temporary)", return {(p.any() + 1).flatten()};)
  OP("unflatten", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {x.unflatten(d, {1, -1})};)
  OP("unflatten(temporary)", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {(x + 1).unflatten(d, {-1, p.number(1)})};)
  OP("transpose", const Tensor x = p.any(); const std::int64_t a = p.dim(x), b = p.dim(x);
     return {x.transpose(a, b)};)
  OP("t", return {p.floating(2).t()};)
  OP("permute", const Tensor x = p.any(); Dims order;
     for (int d = 0; d < x.dim(); ++d) order.insert(p.draw.between(0, d), p.number(d));
     return {x.permute(order)};)
  OP("slice", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     const std::int64_t from = p.number(p.draw.between(-2, 3));
     const std::int64_t to = p.number(p.draw.between(-2, 30));
     return {x.slice(d, from, to, p.number(p.draw.between(1, 3)))};)
  OP("select", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {x.select(d, p.number(p.draw.between(-2, 1)))};)
  OP("operator[]", const Tensor x = p.any(); return {x[p.number(0)]};)
  OP("narrow", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     const std::int64_t from = p.number(p.draw.between(-1, 1));
     return {x.narrow(d, from, p.number(1))};)
  OP("squeeze", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {x.squeeze(), x.squeeze(d)};)
  OP("unsqueeze", const Tensor x = p.any(); return {x.unsqueeze(p.dim(x))};)
  OP("expand", const Tensor x = p.any(); Dims to = x.shape();
     for (std::int64_t& size : to) size = size == 1 ? p.number(p.draw.between(0, 5)) : -1;
     return {x.expand(to)};)
  OP("raw::alias", return {raw::alias(p.any())};)
  OP("raw::chunk", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return raw::chunk(x, p.number(p.draw.between(1, 4)), d);)
  OP("raw::split", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return raw::split(x, p.number(p.draw.between(1, 9)), d);)
  OP("raw::split(sizes)", const Tensor x = p.any(); const std::int64_t d = place(p, x);
     const std::int64_t first = p.number(p.draw.between(0, size_at(x, d)));
     const Dims sizes = {first, p.number(0), size_at(x, d) - (first < 0 ? 0 : first)};
     return raw::split(x, sizes, counted(p, x, d));)
  OP("chunk", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? chunk(x, p.number(3), d) : x.chunk(p.number(2), d);)
  OP("split", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? split(x, p.number(3), d) : x.split(p.number(7), d);)
  OP("split(sizes)", const Tensor x = p.any(); const std::int64_t d = place(p, x);
     const std::int64_t first = p.draw.between(0, size_at(x, d));
     const Dims sizes = {first, size_at(x, d) - first};
     return p.coin() ? split(x, sizes, d) : x.split(sizes, d);)
};

constexpr Operation kCopies[] = {
  OP("raw::contiguous", return {raw::contiguous(p.any())};)
  OP("raw::contiguous(format)", const Tensor x = p.images();
     return {raw::contiguous(x, p.draw.of({MemoryFormat::nchw, MemoryFormat::nhwc}))};)
  OP("raw::clone", return {raw::clone(p.any())};)
  OP("raw::to", const Tensor x = p.any(); return {raw::to(x, p.dtype()), raw::to(x, Device())};)
  OP("contiguous", return {p.any().contiguous()};)
  OP("clone", return {p.any().clone()};)
  OP("to", const Tensor x = p.any(); const DType type = p.dtype();
     return {x.to(type), x.to(Device()), x.to(Device(), type)};)
  OP("raw::cat", const Tensor x = p.any(); const std::int64_t d = place(p, x);
     Results parts = {x};
     for (std::int64_t n = p.draw.between(0, 3); n > 0; --n) {
       const DType type = dtype_beside(p, x);
       parts.push_back(p.operand(x.dim() == 0 ? Shape{} : with(x.shape(), d, p.size()), type));
     }
     return {raw::cat(parts, counted(p, x, d))};)
  OP("raw::stack", const Tensor x = p.any(); const Results parts = {x, p.like(x), x};
     return {raw::stack(parts, p.dim(x))};)
  OP("cat", const Tensor x = p.any(); const std::int64_t d = place(p, x);
     const Tensor y = p.operand(x.dim() == 0 ? Shape{} : with(x.shape(), d, p.size()), x.dtype());
     return {cat({x, y, x}, counted(p, x, d))};)
  OP("stack", const Tensor x = p.any(); const Tensor y = p.like(x);
     return {stack({x, y}, p.dim(x.dim() + 1))};)
  OP("repeat", const Tensor x = p.any(); Dims counts;
     for (int d = 0; d < x.dim(); ++d) counts.push_back(p.number(p.draw.between(1, 3)));
     if (counts.size() < 5 && p.coin()) counts.insert(0, p.number(2));
     return {p.coin() ? repeat(x, counts) : x.repeat(counts)};)
  OP("flip", const Tensor x = p.any(); const Dims dims = p.dims(x);
     return {p.coin() ? flip(x, dims) : x.flip(dims)};)
  OP("repeat_interleave", const Tensor x = p.any(); const std::int64_t n = p.number(2);
     if (p.coin()) return {repeat_interleave(x, n)};
     return {x.repeat_interleave(n, p.dim(x))};)
  OP("diag", const Tensor x = p.any(); return {diag(x, p.number(p.draw.between(-3, 3)))};)
  OP("diagonal", const Tensor x = p.any(); const std::int64_t k = p.number(1), d = p.dim(x);
     return {x.diagonal(k, d, p.dim(x))};)
  OP("unfold", const Tensor x = p.any(); const std::int64_t d = p.dim(x), size = p.number(2);
     return {x.unfold(d, size, p.number(2))};)
  OP("unbind", const Tensor x = p.any(); return unbind(x, p.dim(x));)
  OP("roll", const Tensor x = p.any(); const std::int64_t shift = p.number(p.draw.between(-9, 9));
     if (p.coin()) return {roll(x, shift)};
     return {x.roll(shift, p.dim(x))};)
  OP("tril", const Tensor x = p.floating(3); const std::int64_t d = p.number(p.draw.between(-3, 3));
     return {p.coin() ? tril(x, d) : x.tril(d)};)
  OP("triu", const Tensor x = p.floating(2); const std::int64_t d = p.number(p.draw.between(-3, 3));
     return {p.coin() ? triu(x, d) : x.triu(d)};)
  OP("pad", const Tensor x = p.any(); std::vector<std::int64_t> pads;
     for (std::int64_t n = 2 * p.draw.between(0, x.dim()); n > 0; --n)
       pads.push_back(p.number(p.draw.between(-1, 4)));
     return {pad(x, pads, p.real(0))};)
  OP("to_string", std::ostringstream out; out << p.any(); return {};)
  OP("item", const Tensor x = p.any(); if (x.numel() == 0) return {};
     Tensor at = x; while (at.dim() > 0) at = at[p.draw.between(0, at.shape()[0] - 1)];
     at.item<double>(); at.item<std::int64_t>(); at.item<bool>(); return {at};)
  OP("to_vector", const Tensor x = p.any(); x.to_vector<float>(); x.to_vector<std::int64_t>();
     return {};)
};

constexpr Operation kCreation[] = {
#define SHAPED(call)                                                                    \
  Shape shape = p.shape(); for (std::int64_t& size : shape) size = p.number(size);      \
  TensorOptions options(p.dtype()); options.channels_last = shape.size() == 4 && p.coin(); \
  return {call};
  OP("empty", SHAPED(raw::zero_(empty(shape, options))))
  OP("zeros", SHAPED(zeros(shape, options)))
  OP("ones", SHAPED(ones(shape, options)))
  OP("full", SHAPED(full(shape, p.real(2), options)))
  OP("rand", SHAPED(rand(shape, options)))
  OP("randn", SHAPED(randn(shape, options)))
  OP("uniform", SHAPED(uniform(shape, -1, p.real(1), options)))
  OP("bernoulli", SHAPED(bernoulli(shape, p.real(0.5), options)))
  OP("randint", const std::int64_t from = p.number(0), to = p.number(9);
     SHAPED(randint(from, to, shape, options)))
#undef SHAPED
  OP("empty_like", return {raw::zero_(empty_like(p.any()))};)
  OP("zeros_like", return {zeros_like(p.any())};)
  OP("ones_like", return {ones_like(p.any())};)
  OP("full_like", const Tensor x = p.any(); return {full_like(x, p.real(2))};)
  OP("rand_like", return {rand_like(p.any_floating())};)
  OP("randn_like", return {randn_like(p.any_floating())};)
  OP("scalar", const double a = p.real(); return {scalar(a, p.dtype())};)
  OP("arange", const double from = p.real(), to = p.real(100), step = p.real(1);
     if (std::fabs(to - from) / std::fabs(step) > 1e6) return {};
     return {arange(from, to, step, p.dtype())};)
  OP("linspace", const double from = p.real(), to = p.real();
     const std::int64_t n = p.number(p.size());
     return {linspace(from, to, n, p.dtype())};)
  OP("eye", const std::int64_t n = p.number(p.size()); return {eye(n, p.dtype())};)
  OP("tensor", const DType type = p.dtype(); return {tensor({1, p.real(2), 3}, type)};)
  OP("randperm", const std::int64_t n = p.number(p.size()); return {randperm(n)};)
  OP("from_vector", const Shape shape = p.shape();
     const std::vector<float> values(std::size_t(p.number(numel(shape)) & 0xfffff), 2.0f);
     return {from_vector(values, shape, p.dtype())};)
  OP("borrow", static float memory[64]; Shape shape = {p.number(8), p.number(8)};
     return {borrow(std::span<float>(memory), shape).clone()};)
  OP("as_strided", const Tensor x = p.any(); if (x.dtype() == DType::boolean) return {};
     // not every operand is boolean
    
     const Shape shape = p.shape(int(p.draw.between(0, 3))); Dims strides;
     for (int d = 0; d < shape.size(); ++d) strides.push_back(p.number(p.draw.between(0, 4)));
     const std::int64_t offset = p.number(p.draw.between(0, 9));
     return {as_strided(x.storage(), x.dtype(), shape, strides, offset)};)
  OP("as_strided(whole)", const Tensor x = p.any_floating();
     const std::int64_t n = std::int64_t(x.storage()->bytes() / size_of(x.dtype()));
     const std::int64_t step = p.draw.between(1, 3), first = p.draw.between(0, 3);
     return {as_strided(x.storage(), x.dtype(), {std::max<std::int64_t>(0,
     (n - first + step - 1) / step)}, {step}, first)};)
};

constexpr Operation kReductions[] = {
  OP("raw::reduce", const ReduceOp op = p.draw.of({ReduceOp::sum, ReduceOp::mean, ReduceOp::prod,
     ReduceOp::max, ReduceOp::min});
     const Tensor x = p.any(); const Dims dims = p.dims(x);
     return {raw::reduce(op, x, dims, p.coin())};)
#define X(name)                                                                                 \
  OP("raw::" #name, const Tensor x = p.any(); const Dims dims = p.dims(x);                      \
     return {raw::name(x, dims, p.coin())};)                                                    \
  OP(#name, const Tensor x = p.any(); const Dims dims = p.dims(x);                              \
     return {p.coin() ? name(x, dims, p.coin()) : x.name(dims)};)
  X(sum) X(prod) X(max) X(min) X(all) X(any)
#undef X
#define X(name)                                                                                 \
  OP("raw::" #name, const Tensor x = p.any_floating(); const Dims dims = p.dims(x);             \
     return {raw::name(x, dims)};)                                                              \
  OP(#name, const Tensor x = p.any_floating(); const Dims dims = p.dims(x);                     \
     return {p.coin() ? name(x, dims) : x.name(dims)};)
  X(mean) X(var) X(norm)
#undef X
  OP("std", const Tensor x = p.any_floating(); const Dims dims = p.dims(x);
     const double correction = p.real(1);
     return {p.coin() ? weft::std(x, dims, correction) : x.std(dims, correction, p.coin())};)
  OP("logsumexp", const Tensor x = p.any(); const Dims dims = p.dims(x);
     return {p.coin() ? logsumexp(x, dims) : x.logsumexp(dims, p.coin())};)
  OP("raw::moments", const Tensor x = p.any_floating(); const Dims dims = p.dims(x);
     const bool keep = p.coin();
     const raw::Moments m = raw::moments("test", x, dims, keep, p.coin());
     return {m.mean, m.squares, raw::length_of(x, m)};)
  OP("raw::scaled_deviation", const Tensor x = p.any_floating();
     const Tensor center = p.broadcastable(x, DType::f64), factor = p.broadcastable(x, DType::f64);
     return {raw::scaled_deviation(x, p.coin() ? center : Tensor(), factor)};)
  OP("raw::argmax", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? raw::argmax(x) : raw::argmax(x, d, p.coin())};)
  OP("raw::argmin", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? raw::argmin(x) : raw::argmin(x, d, p.coin())};)
  OP("argmax", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? argmax(x, d) : x.argmax()};)
  OP("argmin", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? argmin(x, d) : x.argmin()};)
  OP("raw::sort", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return of(raw::sort(x, d, p.coin()));)
  OP("raw::argsort", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {raw::argsort(x, d, p.coin())};)
  OP("sort", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return of(p.coin() ? sort(x, d) : x.sort(d, p.coin()));)
  OP("argsort", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? argsort(x, d) : x.argsort(d, p.coin())};)
  OP("topk", const Tensor x = p.any(); const std::int64_t d = place(p, x);
     const std::int64_t k = p.number(p.draw.between(0, size_at(x, d)));
     const std::int64_t where = counted(p, x, d); const bool largest = p.coin();
     return of(p.coin() ? topk(x, k, where, largest) : x.topk(k, where, largest));)
  OP("raw::median", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? Results{raw::median(x)} : of(raw::median(x, d, p.coin()));)
  OP("median", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? Results{x.median()} : of(x.median(d, p.coin()));)
  OP("median(dim)", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? Results{median(x)} : of(median(x, d, p.coin()));)
  OP("raw::searchsorted", const Tensor x = p.any(); const Tensor s = p.operand(p.shape(1), x.dtype());
     return {raw::searchsorted(raw::sort(s).values, x, p.coin())};)
  OP("searchsorted", const Tensor x = p.any();
     return {searchsorted(raw::sort(x).values, x, p.coin())};)
  OP("raw::bincount", const std::int64_t n = p.size(); const Tensor x = p.index({n}, p.size());
     const Tensor weights = p.optional({n}, p.dtype());
     return {raw::bincount(x, weights, p.number(p.size()))};)
  OP("bincount", const std::int64_t n = p.size(); const Tensor x = p.index({n}, p.size());
     const std::int64_t most = p.number(p.size());
     return {p.coin() ? bincount(x, {}, most) : x.bincount({}, most)};)
  OP("raw::nonzero", return {raw::nonzero(p.any())};)
  OP("raw::flat_nonzero", return {raw::flat_nonzero(p.any())};)
  OP("nonzero", const Tensor x = p.any(); return {p.coin() ? nonzero(x) : x.nonzero()};)
  OP("raw::unique", const Tensor x = p.any(); const bool inverse = p.coin();
     return of(raw::unique(x, inverse, p.coin()));)
  OP("unique", const Tensor x = p.any(); const bool inverse = p.coin(), counts = p.coin();
     return of(p.coin() ? unique(x, true, inverse, counts) : x.unique(true, inverse, counts));)
  OP("raw::cumsum", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {raw::cumsum(x, d, p.coin())};)
  OP("raw::cumprod", const Tensor x = p.any(); return {raw::cumprod(x, p.dim(x))};)
  OP("cumsum", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? cumsum(x, d) : x.cumsum(d)};)
  OP("cumprod", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return {p.coin() ? cumprod(x, d) : x.cumprod(d)};)
  OP("raw::sum_to", const Tensor x = p.any(); Shape shape = x.shape();
     while (shape.size() > 0 && p.draw.one_in(4)) shape.erase(0);
     for (std::int64_t& size : shape) { if (p.draw.one_in(3)) size = p.number(1); }
     return {raw::sum_to(x, shape)};)
  OP("max(dim)", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? of(max(x, d)) : of(x.max(d));)
  OP("min(dim)", const Tensor x = p.any(); const std::int64_t d = p.dim(x);
     return p.coin() ? of(min(x, d)) : of(x.min(d));)
  OP("raw::softmax", const Tensor x = p.any_floating(); return {raw::softmax(x, p.dim(x))};)
  OP("raw::log_softmax", const Tensor x = p.any_floating(); return {raw::log_softmax(x, p.dim(x))};)
  OP("raw::softmax_backward", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     const std::int64_t d = p.dim(x);
     return {raw::softmax_backward(p.draw.of({SoftmaxOp::softmax, SoftmaxOp::log_softmax}), x, y,
     d)};)
  OP("softmax", const Tensor x = p.any_floating(); const std::int64_t d = p.dim(x);
     return {p.coin() ? softmax(x, d) : x.softmax(d)};)
  OP("log_softmax", const Tensor x = p.any_floating(); const std::int64_t d = p.dim(x);
     return {p.coin() ? log_softmax(x, d) : x.log_softmax(d)};)
  OP("normalize", const Tensor x = p.any_floating();
     const double power = p.real(p.draw.of({1.0, 2.0, 3.0}));
     return {normalize(x, power, p.dim(x))};)
};

constexpr Operation kIndexing[] = {
#define X(space, label)                                                                          \
  OP(label "index_select", const Tensor x = p.any(); const std::int64_t d = place(p, x);         \
     const Tensor index = p.index({p.size()}, size_at(x, d));                                    \
     return {space index_select(x, counted(p, x, d), index)};)                                   \
  OP(label "gather", const Tensor x = p.any(); const std::int64_t d = place(p, x);               \
     Shape shape = x.shape(); for (std::int64_t& size : shape) size = p.draw.between(0, size);   \
     if (shape.size() > 0) shape[d] = p.size();                                                  \
     const Tensor index = p.index(shape, size_at(x, d));                                         \
     return {space gather(x, counted(p, x, d), index)};)
  X(raw::, "raw::") X(, "")
#undef X
  OP("raw::embedding", const Tensor w = p.floating(2);
     const Shape shape = p.shape(int(p.draw.between(0, 2)));
     return {raw::embedding(p.index(shape, w.dim() > 0 ? w.shape()[0] : 1), w)};)
  OP("raw::embedding_backward", const Tensor grad = p.floating(3); Shape shape = grad.shape();
     if (shape.size() > 0) shape.erase(shape.size() - 1);
     const std::int64_t rows = p.draw.between(1, 20); const Tensor index = p.index(shape, rows);
     const std::int64_t padding = p.number(-1);
     return {raw::embedding_backward(grad, index, p.number(rows), padding)};)
  OP("embedding", const Tensor w = p.floating(2);
     const std::int64_t rows = w.dim() > 0 ? w.shape()[0] : 1;
     const Tensor index = p.index(p.shape(int(p.draw.between(0, 2))), rows);
     if (p.coin()) return {embedding(index, w)};
     return {embedding(index, w, p.number(rows - 1))};)
  OP("one_hot", const std::int64_t n = p.draw.between(1, 9);
     const Tensor index = p.index(p.shape(int(p.draw.between(0, 2))), n);
     return {p.coin() ? one_hot(index) : raw::one_hot(index, p.number(n))};)
};

constexpr Operation kProducts[] = {
  OP("raw::matmul", const Factors f = factors(p); return {raw::matmul(f.a, f.b, f.bias)};)
  OP("raw::matmul(dtype)", const Factors f = factors(p);
     return {raw::matmul(f.a, f.b, p.coin() ? f.a.dtype() : DType::f32)};)
  OP("matmul", const Factors f = factors(p);
     return {p.coin() ? matmul(f.a, f.b) : f.a.matmul(f.b)};)
  OP("matmul(dtype)", const Factors f = factors(p);
     return {matmul(f.a, f.b, p.coin() ? f.a.dtype() : DType::f32)};)
  OP("matmul(autocast)", const Factors f = factors(p);
     const autograd::Autocast on(DeviceType::cpu); return {matmul(f.a, f.b)};)
  OP("dot", const Tensor a = p.floating(1);
     return {p.coin() ? dot(a, p.like(a)) : a.dot(p.like(a))};)
#define X(space, label)                                                                          \
  OP(label "linear", const Tensor x = p.floating(int(p.draw.between(1, 3)));                     \
     const Shape shape = {p.size(), x.dim() > 0 ? x.shape().back() : 1};                         \
     const Tensor w = p.operand(shape, x.dtype());                                               \
     const Tensor bias = p.optional({shape[0]}, x.dtype()); return {space linear(x, w, bias, activation(p))};)
  X(raw::, "raw::") X(, "")
#undef X
  OP("addmm", const Factors f = factors(p);
     return {f.bias.defined() ? f.bias + matmul(f.a, f.b) * 2 : matmul(f.a, f.b)};)
  OP("raw::conv2d", const Convolution c = convolution(p, p.draw.one_in(3));
     return {raw::conv2d(c.x, c.w, c.bias, c.params, activation(p))};)
  OP("raw::conv2d_backward_data", const Convolution c = convolution(p, p.draw.one_in(3));
     const Tensor grad = p.operand(c.y, c.x.dtype());
     const MemoryFormat format = p.draw.of({MemoryFormat::nchw, MemoryFormat::nhwc});
     return {raw::conv2d_backward_data(grad, c.w, c.x.shape(), c.params, format)};)
  OP("raw::conv2d_backward_weights", const Convolution c = convolution(p, p.draw.one_in(3));
     const Tensor grad = p.operand(c.y, c.x.dtype());
     return of(raw::conv2d_backward_weights(c.x, grad, c.w.shape(), p.coin(), c.params));)
  OP("conv2d", const Convolution c = convolution(p, false);
     return {conv2d(c.x, c.w, c.bias, c.params, activation(p))};)
  OP("conv2d(autocast)", const Convolution c = convolution(p, false);
     const autograd::Autocast on(DeviceType::cpu);
     return {conv2d(c.x, c.w, c.bias, c.params)};)
  OP("conv_transpose2d", const Convolution c = convolution(p, true);
     return {conv_transpose2d(c.x, c.w, c.bias, c.params, activation(p))};)
  OP("conv1d", const DType type = p.floating_dtype();
     const std::int64_t in = p.draw.between(1, 9), out = p.draw.between(1, 9);
     const std::int64_t l = p.draw.between(5, 40);
     const Tensor x = p.operand({p.draw.between(1, 3), in, l}, type);
     const Tensor w = p.operand({out, in, p.draw.between(1, 5)}, type);
     const Tensor bias = p.optional({out}, type);
     const Conv1dParams params = {.stride = p.number(p.draw.between(1, 3)),
     .padding = p.number(p.draw.between(0, 2)),
                                  .dilation = p.number(1), .groups = p.number(1)};
     return {conv1d(x, w, bias, params)};)
};

constexpr Operation kImages[] = {
  OP("raw::max_pool2d", const Pool2dParams params = pooling(p);
     return of(raw::max_pool2d(p.images(), params));)
  OP("raw::adaptive_max_pool2d", const auto size = p.pair(1, 7);
     return of(raw::adaptive_max_pool2d(p.images(), size));)
  OP("raw::max_pool2d_backward", const Pool2dParams params = pooling(p);
     const Tensor x = p.images();
     const auto [y, index] = raw::max_pool2d(x, params);
     const Tensor grad = p.like(y);
     return {raw::max_pool2d_backward(grad, index, x.shape(), params)};)
  OP("raw::max_pool2d_backward(adaptive)", const auto size = p.pair(1, 5);
     const Tensor x = p.images();
     const auto [y, index] = raw::adaptive_max_pool2d(x, size);
     const Tensor grad = p.like(y); Pool2dParams params; params.adaptive = true;
     return {raw::max_pool2d_backward(grad, index, x.shape(), params)};)
  OP("raw::max_pool2d_backward(any index)", const Pool2dParams params = pooling(p);
     const Tensor x = p.images();
     const Tensor y = raw::max_pool2d(x, params).first;
     const Tensor index = p.operand(y.shape(), DType::i32);
     const Tensor grad = p.like(y);
     return {raw::max_pool2d_backward(grad, index, x.shape(), params)};)
  OP("raw::avg_pool2d", const AvgPool2dParams params = average_pooling(p);
     return {raw::avg_pool2d(p.images(), params)};)
  OP("raw::adaptive_avg_pool2d", const auto size = p.pair(1, 7);
     return {raw::adaptive_avg_pool2d(p.images(), size)};)
  OP("raw::avg_pool2d_backward", const AvgPool2dParams params = average_pooling(p);
     const Tensor x = p.images();
     const Tensor y = raw::avg_pool2d(x, params);
     return {raw::avg_pool2d_backward(p.like(y), x.shape(), params)};)
  OP("raw::avg_pool2d_backward(adaptive)", const Tensor y = p.images(); AvgPool2dParams params;
     params.adaptive = true;
     Shape shape = y.shape(); for (int d = 2; d < shape.size();
     ++d) shape[d] = p.number(p.draw.between(1, 9));
     return {raw::avg_pool2d_backward(y, shape, params)};)
  OP("max_pool2d", const Pool2dParams params = pooling(p); return {max_pool2d(p.images(), params)};)
  OP("adaptive_max_pool2d", const auto size = p.pair(1, 7);
     return {adaptive_max_pool2d(p.images(), size)};)
  OP("avg_pool2d", const AvgPool2dParams params = average_pooling(p);
     return {avg_pool2d(p.images(), params)};)
  OP("adaptive_avg_pool2d", const auto size = p.pair(1, 7);
     return {adaptive_avg_pool2d(p.images(), size)};)
  OP("interpolate(size)", const Tensor x = p.images(); InterpolateOptions options;
     const auto size = p.pair(1, 12); options.size = {size[0], size[1]};
     if (p.coin()) options.mode = "bilinear", options.align_corners = p.coin();
     return {interpolate(x, options)};)
  OP("interpolate(scale)", const Tensor x = p.images(); InterpolateOptions options;
     options.scale_factor = {p.real(p.draw.of({0.5, 1.0, 1.7, 2.0}))};
     if (p.coin()) options.mode = "bilinear", options.align_corners = p.coin();
     return {interpolate(x, options)};)
};

constexpr Operation kNorms[] = {
  OP("raw::batch_norm", const BatchNormOperands o = batch_norm_operands(p);
     const Tensor addend = p.optional(o.x.shape(), o.x.dtype());
     return of(raw::batch_norm(o.x, o.weight, o.bias, o.running, o.params, addend));)
  OP("raw::batch_norm_backward", BatchNormOperands o = batch_norm_operands(p);
     const Tensor addend = p.optional(o.x.shape(), o.x.dtype());
     const raw::NormResult y = raw::batch_norm(o.x, o.weight, o.bias, o.running, o.params, addend);
     const Tensor grad = p.like(y.y); raw::BatchNormActivation activation;
     if (o.params.negative_slope) activation = {o.params.negative_slope,
     addend.defined() ? Tensor() : o.bias, addend.defined() ? y.y : Tensor()};
     const raw::NormWants wants = {p.coin(), o.weight.defined() && p.coin(), p.coin(),
     o.params.negative_slope && addend.defined()};
     return of(raw::batch_norm_backward(grad, o.x, o.weight, y.mean, y.invstd, o.params.training,
     wants, activation));)
  OP("batch_norm", const BatchNormOperands o = batch_norm_operands(p); BatchNormEpilogue then;
     then.add = p.optional(o.x.shape(), o.x.dtype());
     if (p.coin()) then.negative_slope = p.real(0.2);
     BatchNormParams params = o.params; params.negative_slope = {};
     return {batch_norm(o.x, o.weight, o.bias, o.running, params, then)};)
#define NORMALIZED                                                                        \
  const Tensor x = p.any_floating(); Shape shape;                                         \
  for (std::int64_t d = x.dim() == 0 ? 0 : p.draw.between(0, x.dim() - 1); d < x.dim(); \
     ++d) shape.push_back(x.shape()[d]); \
  const DType type = x.dtype() == DType::bf16 && p.coin() ? DType::f32 : x.dtype();       \
  const Tensor weight = p.optional(shape, type), bias = p.optional(shape, type);
  OP("raw::layer_norm", NORMALIZED return of(raw::layer_norm(x, shape, weight, bias,
     p.real(1e-5)));)
  OP("raw::layer_norm_backward", NORMALIZED const raw::NormResult y = raw::layer_norm(x, shape,
     weight, bias, 1e-5);
     const Tensor grad = p.like(x);
     const raw::NormWants wants = {p.coin(), weight.defined() && p.coin(), p.coin()};
     return of(raw::layer_norm_backward(grad, x, shape, weight, y.mean, y.invstd, wants));)
  OP("layer_norm", NORMALIZED return {layer_norm(x, shape, weight, bias)};)
#undef NORMALIZED
#define GROUPED                                                                           \
  const Tensor x = p.floating(int(p.draw.between(2, 4)));                                 \
  const std::int64_t c = x.dim() > 1 ? x.shape()[1] : 1;                                  \
  const std::int64_t groups = std::gcd(c, p.draw.between(1, 8));                          \
  const Tensor weight = p.optional({c}, x.dtype()), bias = p.optional({c}, x.dtype());
  OP("raw::group_norm", GROUPED return of(raw::group_norm(x, p.number(groups), weight, bias,
     p.real(1e-5)));)
  OP("raw::group_norm_backward", GROUPED const raw::NormResult y = raw::group_norm(x, groups,
     weight, bias, 1e-5);
     const Tensor grad = p.like(x);
     const raw::NormWants wants = {p.coin(), weight.defined() && p.coin(), p.coin()};
     return of(raw::group_norm_backward(grad, x, groups, weight, y.mean, y.invstd, wants));)
  OP("group_norm", GROUPED return {group_norm(x, p.number(groups), weight, bias)};)
#undef GROUPED
  OP("dropout", const Tensor x = p.any_floating(); const double rate = p.real(0.4);
     return {dropout(x, rate, !p.draw.one_in(4))};)
  OP("dropout2d", const Tensor x = p.images(); return {dropout2d(x, p.real(0.4))};)
  OP("scaled_dot_product_attention", const AttentionOperands o = attention_operands(p);
     return {scaled_dot_product_attention(o.q, o.k, o.v, o.options)};)
  OP("scaled_dot_product_attention(autocast)", const AttentionOperands o = attention_operands(p);
     const autograd::Autocast on(DeviceType::cpu);
     return {scaled_dot_product_attention(o.q, o.k, o.v, o.options)};)
  OP("attention_with_weights", const AttentionOperands o = attention_operands(p);
     return of(attention_with_weights(o.q, o.k, o.v, o.options));)
};

constexpr Operation kLosses[] = {
  OP("raw::cross_entropy", const Classes c = classes(p, false); CrossEntropyParams params;
     params.reduction = reduction(p);
     params.ignore_index = p.number(p.draw.of<std::int64_t>({-100, 0}));
     params.label_smoothing = p.real(p.draw.of({0.0, 0.1}));
     const auto r = raw::cross_entropy(c.logits, c.target, params);
     return {r.loss, r.log_probs, r.count};)
  OP("raw::cross_entropy_backward", const Classes c = classes(p, false);
     CrossEntropyParams params; params.reduction = reduction(p);
     const Shape shape = params.reduction == Reduction::none ? c.target.shape() : Shape{};
     const Tensor grad = p.operand(shape, c.logits.dtype());
     const Tensor count = p.operand({}, DType::f64);
     return {raw::cross_entropy_backward(grad, c.logits, c.target, count, params)};)
  OP("cross_entropy", const Classes c = classes(p); CrossEntropyParams params;
     params.reduction = reduction(p);
     params.ignore_index = p.number(p.draw.of<std::int64_t>({-100, 0}));
     return {cross_entropy(c.logits, c.target, params)};)
  OP("nn::cross_entropy", const Classes c = classes(p); nn::CrossEntropyOptions options;
     options.reduction = reduction(p);
     options.weight = p.optional({c.logits.dim() > 1 ? c.logits.shape()[1] : 1}, c.logits.dtype());
     options.label_smoothing = p.real(p.draw.of({0.0, 0.1}));
     return {nn::cross_entropy(c.logits, c.target, options)};)
  OP("nn::nll_loss", const Classes c = classes(p);
     const Tensor weight = p.optional({c.logits.dim() > 1 ? c.logits.shape()[1] : 1},
     c.logits.dtype());
     const Reduction how = reduction(p);
     return {nn::nll_loss(c.logits, c.target, p.number(-100), how, weight)};)
  OP("raw::mse_loss", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     return {raw::mse_loss(x, y, reduction(p))};)
  OP("raw::mse_loss_backward", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     const Reduction how = reduction(p);
     const Tensor grad = p.operand(how == Reduction::none ? x.shape() : Shape{}, x.dtype());
     return {raw::mse_loss_backward(grad, x, y, how)};)
  OP("mse_loss", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     return {mse_loss(x, y, reduction(p))};)
  OP("nn::bce_loss", const Tensor x = sigmoid(p.any_floating());
     const Tensor y = sigmoid(p.like(x)); return {nn::bce_loss(x, y, reduction(p))};)
  OP("nn::bce_with_logits", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     const Tensor weight = p.draw.one_in(3) ? p.broadcastable(x, x.dtype()) : Tensor();
     return {nn::bce_with_logits(x, y, reduction(p), weight)};)
  OP("nn::l1_loss", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     return {nn::l1_loss(x, y, reduction(p))};)
  OP("nn::smooth_l1_loss", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     const Reduction how = reduction(p); return {nn::smooth_l1_loss(x, y, how, p.real(1))};)
  OP("nn::kl_div", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     const bool log = p.coin();
     return {nn::kl_div(x, y, p.draw.of({nn::KlReduction::none, nn::KlReduction::mean,
     nn::KlReduction::batchmean, nn::KlReduction::sum}), log)};)
};

constexpr Operation kLayers[] = {
#define X(Layer) OP("nn::" #Layer, nn::Layer layer; return called(p, layer, p.any_floating());)
  X(ReLU) X(Sigmoid) X(LeakyReLU) X(Tanh) X(GELU) X(SiLU) X(ELU) X(Softplus)
#undef X
  OP("nn::Softmax", const Tensor x = p.any_floating(); return called(p, nn::Softmax(p.dim(x)), x);)
  OP("nn::LogSoftmax", const Tensor x = p.any_floating();
     return called(p, nn::LogSoftmax(p.dim(x)), x);)
  OP("nn::Linear", const Tensor x = p.floating(2);
     const std::int64_t in = p.number(x.dim() > 0 ? x.shape().back() : 1);
     const std::int64_t out = p.number(p.size());
     return called(p, nn::Linear(in, out, p.coin()), x);)
  OP("nn::Conv2d", const Convolution c = convolution(p, false);
     const std::int64_t out = c.w.dim() > 0 ? c.w.shape()[0] : 1;
     return called(p, nn::Conv2d(c.x.shape(1), out, of({c.w.shape(-2), c.w.shape(-1)}),
     options_of(c)), c.x);)
  OP("nn::ConvTranspose2d", const Convolution c = convolution(p, true);
     return called(p, nn::ConvTranspose2d(c.x.shape(1), c.w.shape(1) * c.params.groups,
     of({c.w.shape(-2), c.w.shape(-1)}), options_of(c)), c.x);)
  OP("nn::Conv1d", const std::int64_t in = p.draw.between(1, 33), out = p.draw.between(1, 9);
     const std::int64_t k = p.number(p.draw.between(1, 3)), l = p.draw.between(3, 40);
     const std::int64_t n = p.draw.between(1, 3);  // few: an image may need waits of the whole team
     const Tensor x = p.operand({n, in, l}, p.floating_dtype());
     const nn::Conv1dOptions options = {.stride = p.number(1), .padding = p.number(1)};
     return called(p, nn::Conv1d(in, out, k, options), x);)
  OP("nn::BatchNorm1d", const Tensor x = p.floating(int(p.draw.between(2, 3)));
     return called(p, nn::BatchNorm1d(x.shape(1)), x);)
  OP("nn::BatchNorm2d", const Tensor x = p.images();
     const nn::BatchNormOptions options = {.affine = p.coin(), .track_running_stats = p.coin()};
     return called(p, nn::BatchNorm2d(p.number(x.shape(1)), options), x);)
  OP("nn::GroupNorm", const Tensor x = p.images(); const std::int64_t c = x.shape(1);
     return called(p, nn::GroupNorm(p.number(c % 2 == 0 ? 2 : 1), c), x);)
  OP("nn::LayerNorm", const Tensor x = p.floating(3);
     return called(p, nn::LayerNorm(p.number(x.shape(-1))), x);)
  OP("nn::Embedding", const std::int64_t n = p.draw.between(1, 20), d = p.draw.between(1, 20);
     const Tensor index = p.index(p.shape(2), n);
     nn::Embedding layer(n, d,
     {.padding_idx = p.coin() ? std::optional<std::int64_t>(p.number(0)) : std::nullopt});
     return {layer(index)};)
  OP("nn::Dropout", const Tensor x = p.any_floating();
     return called(p, nn::Dropout(p.real(0.3)), x);)
  OP("nn::Dropout2d", const Tensor x = p.images(); return called(p, nn::Dropout2d(p.real(0.3)), x);)
  OP("nn::Flatten", const Tensor x = p.any_floating();
     return called(p, nn::Flatten(p.number(0)), x);)
  OP("nn::Unflatten", const Tensor x = p.any_floating(); const std::int64_t d = p.dim(x);
     return called(p, nn::Unflatten(d, {1, -1}), x);)
  OP("nn::MaxPool2d", const Pool2dParams k = pooling(p);
     return called(p, nn::MaxPool2d(of(k.kernel), {.stride = of(k.stride),
     .padding = of(k.padding)}), p.images());)
  OP("nn::AvgPool2d", const Pool2dParams k = pooling(p);
     return called(p, nn::AvgPool2d(of(k.kernel), {.stride = of(k.stride),
     .padding = of(k.padding)}), p.images());)
  OP("nn::AdaptiveMaxPool2d", const auto size = p.pair(1, 5);
     return called(p, nn::AdaptiveMaxPool2d(of(size)), p.images());)
  OP("nn::AdaptiveAvgPool2d", const auto size = p.pair(1, 5);
     return called(p, nn::AdaptiveAvgPool2d(of(size)), p.images());)
  OP("nn::Upsample", InterpolateOptions options; options.scale_factor = {2};
     options.mode = p.coin() ? "nearest" : "bilinear";
     return called(p, nn::Upsample(options), p.images());)
  OP("nn::Sequential", const Tensor x = p.floating(2);
     return called(p, nn::Sequential{nn::Linear(x.shape(-1), 5), nn::ReLU(), nn::Linear(5, 3)}, x);)
  OP("nn::MultiheadAttention", const std::int64_t heads = p.draw.between(1, 3),
     e = heads * p.draw.between(1, 8);
     const std::int64_t l = p.draw.between(1, 20), n = p.draw.between(1, 3), s = p.draw.between(1,
     20); const DType type = p.floating_dtype();
     const double rate = p.draw.one_in(3) ? p.real(0.2) : 0;
     nn::MultiheadAttention layer(e, heads, {.dropout = rate, .bias = p.coin()}); layer.to(type);
     const Tensor query = p.operand({l, n, e}, type), key = p.operand({s, n, e}, type),
     value = p.operand({s, n, e}, type);
     nn::AttentionCall call; call.is_causal = p.draw.one_in(4); call.need_weights = p.coin();
     call.average_attn_weights = p.coin();
     if (p.draw.one_in(3)) call.key_padding_mask = p.operand({n, s},
     p.coin() ? DType::boolean : type);
     if (p.draw.one_in(3)) call.attn_mask = p.operand({l, s}, p.coin() ? DType::boolean : type);
     return of(layer(query, key, value, call));)
  OP("nn::init::uniform_", const Tensor x = p.target(); nn::init::uniform_(x); return {x};)
  OP("nn::init::normal_", const Tensor x = p.target(); nn::init::normal_(x); return {x};)
  OP("nn::init::trunc_normal_", const Tensor x = p.target();
     nn::init::trunc_normal_(x, p.real(0)); return {x};)
  OP("nn::init::constant_", const Tensor x = p.target(); nn::init::constant_(x, p.real(3));
     nn::init::zeros_(x); nn::init::ones_(x); return {x};)
  OP("nn::init::eye_", const Tensor x = p.floating(2).detach(); nn::init::eye_(x); return {x};)
  OP("nn::init::dirac_", const Tensor x = p.images().detach(); nn::init::dirac_(x, p.number(1));
     return {x};)
  OP("nn::init::orthogonal_", const Tensor x = p.floating(2).detach();
     if (x.numel() > 5000) return {}; nn::init::orthogonal_(x); return {x};)
  OP("nn::init::xavier_uniform_", const Tensor x = p.floating(2).detach();
     nn::init::xavier_uniform_(x); return {x};)
  OP("nn::init::xavier_normal_", const Tensor x = p.floating(3).detach();
     nn::init::xavier_normal_(x); return {x};)
  OP("nn::init::kaiming_uniform_", const Tensor x = p.floating(2).detach();
     nn::init::kaiming_uniform_(x); return {x};)
  OP("nn::init::kaiming_normal_", const Tensor x = p.floating(4).detach();
     nn::init::kaiming_normal_(x); return {x};)
};

constexpr Operation kTraining[] = {
  OP("set_requires_grad", const Tensor x = p.any_floating(); x.set_requires_grad(p.coin());
     return {x};)
  OP("detach", return {p.any().detach()};)
  OP("backward", const Tensor x = p.leaf(); const Tensor y = sum(x * p.like(x));
     y.backward({}, p.coin()); return {y};)
  OP("backward twice", const Tensor x = p.leaf(); const Tensor y = x.exp() * p.like(x);
     const Tensor grad = p.like(y).detach();
     y.backward(grad, true); y.backward(grad); return {y};)
  OP("autograd::grad", const Tensor x = p.leaf();
     const Tensor y = x * p.broadcastable(x, x.dtype());
     const Tensor outputs[] = {y}, inputs[] = {x};
     const Tensor grads[] = {p.like(y).detach()};
     return autograd::grad(outputs, inputs, grads, {.retain_graph = p.coin(), .create_graph = p.coin(), .allow_unused = p.coin()});)
  OP("autograd::add_grad_hook", const Tensor x = p.leaf() * 1;
     autograd::add_grad_hook(x, [](const Tensor& grad) { return grad * 2; });
     return {x};)
  OP("autograd::set_grad_storage", const Tensor x = p.leaf().detach(); x.set_requires_grad();
     const Tensor memory = p.like(x).detach(); autograd::set_grad_storage(x, memory);
     sum(x * 2).backward(); return {x.grad(), x};)
  OP("autograd::zero_grad", const Tensor x = p.any_floating(); autograd::zero_grad(x); return {x};)
  OP("autograd::checkpoint", const Tensor x = p.any_floating(); const Tensor y = p.like(x);
     return {autograd::checkpoint([](const Tensor& a,
     const Tensor& b) { return dropout((a * b).tanh(), 0.5); }, x, y)};)
  OP("optim::SGD", const optim::SGDOptions options = {.momentum = p.coin() ? p.real(0.9) : 0,
     .weight_decay = p.real(0.1), .nesterov = p.draw.one_in(4)};
     return steps<optim::SGD>(p, options);)
  OP("optim::Adam", const optim::AdamOptions options = {.weight_decay = p.real(0.1),
     .amsgrad = p.coin()}; return steps<optim::Adam>(p, options);)
  OP("optim::AdamW", const optim::AdamWOptions options = {.amsgrad = p.coin(),
     .maximize = p.coin()}; return steps<optim::AdamW>(p, options);)
  OP("optim::Adadelta", const optim::AdadeltaOptions options = {.weight_decay = p.real(0.1),
     .maximize = p.coin()}; return steps<optim::Adadelta>(p, options);)
  OP("optim::RMSprop", const optim::RMSpropOptions options = {.momentum = p.coin() ? 0.9 : 0.0,
     .centered = p.coin()}; return steps<optim::RMSprop>(p, options);)
  OP("optim::clip_grad_norm", const Results list = parameters(p);
     return {optim::clip_grad_norm(list, p.real(1)), optim::total_grad_norm(list)};)
  OP("optim::clip_grad_value", const Results list = parameters(p);
     optim::clip_grad_value(list, p.real(0.5)); return list;)
};

#undef OP
// clang-format on

}  // namespace

std::span<const std::span<const Operation>> rooms() {
  static constexpr std::span<const Operation> all[] = {
      kElementwise, kInPlace, kViews, kCopies, kCreation, kReductions, kIndexing,
      kProducts,    kImages,  kNorms, kLosses, kLayers,   kTraining,
  };
  return all;
}

}  // namespace weft::testing
