// An error about an undefined operand names the operand and the operation, in either namespace.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <regex>
#include <set>

#include "weft/autograd/ops.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

struct Case {
  std::string function;  ///< as declared
  std::string message;
  std::function<void()> call;
};

struct List {
  std::vector<Case> cases;

  void add(const char* function, const char* op, const char* operand, std::function<void()> call) {
    cases.push_back({function, std::string("[") + op + "] " + operand + " is an undefined tensor",
                     std::move(call)});
  }
};

// A function of weft::raw, or of both namespaces; `op` is its name in messages.
#define RAW_AS(name, op, operand, ...) \
  list.add(#name, op, operand, [=] { (void)raw::name(__VA_ARGS__); });
#define RAW(name, operand, ...) RAW_AS(name, #name, operand, __VA_ARGS__)
#define BOTH(name, operand, ...)  \
  RAW(name, operand, __VA_ARGS__) \
  list.add(#name, #name, operand, [=] { (void)weft::name(__VA_ARGS__); });

std::vector<Case> cases() {
  List list;
  // `u` is the undefined operand.
  const Tensor u, t = ones({2, 2}), image = ones({1, 2, 4, 4}), channels = ones({2});
  const Tensor index = zeros({2}, DType::i64), truth = ones({2, 2}, DType::boolean);
  const Pool2dParams pool{.kernel = {2, 2}, .stride = {2, 2}};
  const std::vector<Tensor> parts{t, u};
  const Tensor wide = ones({1}, DType::f64);
  const raw::Moments one{wide, wide, 1, {}};
#define X(value, name, ...) BOTH(name, "x", u)
  WEFT_UNARY_OPS(X)
#undef X
#define X(value, name, ...) \
  BOTH(name, "a", u, t)     \
  BOTH(name, "b", t, u)     \
  BOTH(name, "a", u, 2)     \
  BOTH(name, "a", u, 0.5)
  WEFT_BINARY_OPS(X)
  WEFT_COMPARE_OPS(X)
#undef X
  BOTH(sub, "b", 1, u)
  BOTH(div, "b", 1, u)
  BOTH(logical_not, "x", u)
  BOTH(clamp, "x", u, 0, 1)
  BOTH(leaky_relu, "x", u, 0.1)
  BOTH(elu, "x", u, 1)
  BOTH(softplus, "x", u, 1, 20)
  BOTH(smooth_l1, "x", u, 1)
  BOTH(where, "condition", u, t, t)
  BOTH(where, "a", truth, u, t)
  BOTH(where, "b", truth, t, u)
  RAW_AS(unary, "exp", "x", UnaryOp::exp, u)
  RAW_AS(unary_backward, "exp", "the gradient", UnaryOp::exp, u, t)
  RAW_AS(unary_backward, "exp", "the gradient", UnaryOp::exp, Tensor(), t)
  RAW_AS(unary_backward, "exp", "the saved tensor", UnaryOp::exp, t, u)
  RAW_AS(binary, "add", "a", BinaryOp::add, u, t)
  RAW_AS(binary_backward, "mul", "the gradient", BinaryOp::mul, false, u, t, t)
  RAW_AS(binary_backward, "mul", "b", BinaryOp::mul, false, t, t, u)
  RAW_AS(compare, "eq", "b", CompareOp::eq, t, u)

  RAW_AS(unary_, "exp_", "the written tensor", UnaryOp::exp, u)
  RAW_AS(binary_, "add_", "the written tensor", BinaryOp::add, u, t)
  RAW_AS(binary_, "add_", "the operand", BinaryOp::add, t, u)
  RAW_AS(add_scaled_, "add_", "the operand", t, 2, u)
  RAW_AS(add_from_afar_, "add_", "the written tensor", u, t)
  RAW_AS(add_from_afar_, "add_", "the operand", t, u)
  RAW(mul_, "the written tensor", u, 2)
  RAW(add_, "the written tensor", u, 2)
  RAW(sub_, "the written tensor", u, 2)
  RAW(div_, "the written tensor", u, 2)
  RAW(clamp_, "the written tensor", u, 0, 1)
  RAW(fill_, "the written tensor", u, 2)
  RAW(zero_, "the written tensor", u)
  RAW(copy_, "the written tensor", u, t)
  RAW(copy_, "the operand", t, u)
  RAW(uniform_, "the tensor", u)
  RAW(normal_, "the tensor", u)
  RAW(bernoulli_, "the written tensor", u, 0.5)

  RAW(reshape, "x", u, {4})
  RAW(flatten, "x", u)
  RAW(unflatten, "x", u, 0, {2, 1})
  RAW(transpose, "x", u, 0, 1)
  RAW(permute, "x", u, {1, 0})
  RAW(slice, "x", u, 0, 0, 1)
  RAW(select, "x", u, 0, 0)
  RAW(narrow, "x", u, 0, 0, 1)
  RAW(squeeze, "x", u)
  RAW(squeeze, "x", u, 0)
  RAW(unsqueeze, "x", u, 0)
  RAW(expand, "x", u, {2})
  RAW(view, "x", u, {4})
  RAW(unfold, "x", u, 0, 1, 1)
  RAW(diagonal, "x", u)
  BOTH(chunk, "x", u, 2)
  BOTH(split, "x", u, 2)
  BOTH(split, "x", u, Dims{1, 1}, 0)
  RAW(alias, "x", u)
  RAW(contiguous, "x", u)
  RAW(contiguous, "x", u, MemoryFormat::nhwc)
  RAW(clone, "x", u)
  BOTH(flip, "x", u, Dims{0})
  RAW(to, "x", u, Device())
  RAW(to, "x", u, DType::f64)
  BOTH(cat, "tensor 1", parts)
  BOTH(stack, "tensor 1", parts)

  RAW_AS(reduce, "sum", "x", ReduceOp::sum, u)
  BOTH(sum, "x", u)
  BOTH(mean, "x", u)
  BOTH(prod, "x", u)
  BOTH(max, "x", u)
  BOTH(min, "x", u)
  BOTH(all, "x", u)
  BOTH(any, "x", u)
  BOTH(var, "x", u)
  BOTH(norm, "x", u)
  RAW_AS(length_of, "abs", "x", u, one)
  RAW(scaled_deviation, "x", u, wide, wide)
  RAW(scaled_deviation, "factor", t, wide, u)
  BOTH(argmax, "x", u, 0)
  BOTH(argmin, "x", u, 0)
  RAW(sum_to, "x", u, {2})
  BOTH(softmax, "x", u, 0)
  BOTH(log_softmax, "x", u, 0)
  RAW_AS(softmax_backward, "softmax", "gradient", SoftmaxOp::softmax, u, t, 0)

  BOTH(sort, "x", u, 0)
  BOTH(argsort, "x", u, 0)
  BOTH(median, "x", u, 0)
  BOTH(median, "x", u)
  BOTH(searchsorted, "sequence", u, t)
  BOTH(searchsorted, "values", t, u)
  BOTH(bincount, "x", u)
  BOTH(nonzero, "x", u)
  RAW_AS(flat_nonzero, "nonzero", "x", u)
  BOTH(unique, "x", u)
  BOTH(cumsum, "x", u, 0)
  BOTH(cumprod, "x", u, 0)

  BOTH(index_select, "x", u, 0, index)
  BOTH(index_select, "index", t, 0, u)
  RAW(index_add_, "the written tensor", u, 0, index, t)
  RAW(index_add_, "index", t, 0, u, t)
  RAW(index_add_, "x", t, 0, index, u)
  BOTH(gather, "x", u, 0, index)
  BOTH(gather, "index", t, 0, u)
  RAW(scatter_add_, "the written tensor", u, 0, index, t)
  RAW(scatter_add_, "index", t, 0, u, t)
  RAW(scatter_add_, "x", t, 0, index, u)
  RAW(scatter_, "the written tensor", u, 0, index, t)
  RAW(scatter_, "index", t, 0, u, t)
  RAW(scatter_, "x", t, 0, index, u)
  RAW(scatter_, "the written tensor", u, 0, index, 1)
  RAW(scatter_, "index", t, 0, u, 1)
  BOTH(index_add, "x", u, 0, index, t)
  BOTH(index_add, "index", t, 0, u, t)
  BOTH(scatter_add, "x", u, 0, index, t)
  BOTH(scatter_add, "index", t, 0, u, t)
  BOTH(scatter, "x", u, 0, index, t)
  BOTH(scatter, "index", t, 0, u, t)
  BOTH(scatter, "x", u, 0, index, 1)
  BOTH(scatter, "index", t, 0, u, 1)
  BOTH(embedding, "index", u, t)
  BOTH(embedding, "weight", index, u)
  RAW_AS(embedding_backward, "embedding", "the gradient", u, index, 2, -1)
  RAW_AS(embedding_backward, "embedding", "index", t, u, 2, -1)
  BOTH(one_hot, "index", u)

  BOTH(matmul, "a", u, t)
  BOTH(matmul, "b", t, u)
  BOTH(linear, "x", u, t)
  BOTH(linear, "w", t, u)
  RAW_AS(linear_relu, "linear", "x", u, t, channels)
  RAW_AS(linear_relu, "linear", "w", t, u, channels)
  RAW_AS(matmul_where, "matmul", "a", u, t, t)
  RAW_AS(matmul_where, "matmul", "b", t, u, t)
  RAW_AS(linear_backward_weights, "linear", "x", u, t)
  RAW_AS(linear_backward_weights, "linear", "gradient", t, u)
  BOTH(conv2d, "x", u, image, {}, {})
  BOTH(conv2d, "w", image, u, {}, {})
  RAW_AS(conv2d_backward_data, "conv2d", "gradient", u, image, {1, 2, 4, 4}, {})
  RAW_AS(conv2d_relu_backward, "conv2d_relu_backward", "gradient", Tensor(), image)
  RAW_AS(conv2d_relu_backward, "conv2d_relu_backward", "y", Tensor(image), u)
  RAW_AS(conv2d_backward_weights, "conv2d", "x", u, image, {1, 2, 4, 4}, false, {})
  BOTH(max_pool2d, "x", u, pool)
  BOTH(adaptive_max_pool2d, "x", u, {1, 1})
  RAW_AS(max_pool2d_backward, "max_pool2d", "index", image, u, {1, 2, 8, 8}, pool)
  BOTH(avg_pool2d, "x", u, {})
  BOTH(adaptive_avg_pool2d, "x", u, {1, 1})
  RAW_AS(avg_pool2d_backward, "avg_pool2d", "the gradient", u, {1, 2, 8, 8}, {})

  BOTH(batch_norm, "x", u, channels, channels, {}, {})
  RAW_AS(batch_norm_backward, "batch_norm", "gradient", u, image, {}, channels, channels, true)
  RAW_AS(batch_norm_backward, "batch_norm", "x", image, u, {}, channels, channels, true)
  BOTH(layer_norm, "x", u, {2}, {}, {}, 1e-5)
  RAW_AS(layer_norm_backward, "layer_norm", "gradient", u, t, {2}, {}, channels, channels)
  BOTH(group_norm, "x", u, 2, {}, {}, 1e-5)
  RAW_AS(group_norm_backward, "group_norm", "gradient", u, t, 1, {}, channels, channels)
  BOTH(cross_entropy, "logits", u, index, {})
  BOTH(cross_entropy, "target", t, u, {})
  RAW_AS(cross_entropy_backward, "cross_entropy", "logits", t, u, index, t, {})
  BOTH(mse_loss, "x", u, t, Reduction::mean)
  BOTH(mse_loss, "target", t, u, Reduction::mean)
  RAW_AS(mse_loss_backward, "mse_loss", "x", t, u, t, Reduction::mean)
  return list.cases;
}

TEST(UndefinedOperandTest, IsNamedByEveryOperation) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.function);
    EXPECT_WEFT_ERROR(c.call(), InvalidArgument, c.message);
  }
}

// Methods of an undefined Tensor.
TEST(UndefinedOperandTest, MethodsNameThemselves) {
  const Tensor u, t = ones({2});
  const std::string rest = "] this tensor is undefined";
  EXPECT_WEFT_ERROR(u.shape(), InvalidArgument, "[shape" + rest);
  EXPECT_WEFT_ERROR(u.dtype(), InvalidArgument, "[dtype" + rest);
  EXPECT_WEFT_ERROR(u.device(), InvalidArgument, "[device" + rest);
  EXPECT_WEFT_ERROR(static_cast<void>(u.numel()), InvalidArgument, "[numel" + rest);
  EXPECT_WEFT_ERROR(u.item<float>(), InvalidArgument, "[item" + rest);
  EXPECT_WEFT_ERROR(u.to_vector<float>(), InvalidArgument, "[to_vector" + rest);
  EXPECT_WEFT_ERROR(u.reshape({2}), InvalidArgument, "[reshape] x is an undefined tensor");
  EXPECT_WEFT_ERROR(u.sum(), InvalidArgument, "[sum] x is an undefined tensor");
  EXPECT_WEFT_ERROR(u[0], InvalidArgument, "[select] x is an undefined tensor");
  EXPECT_WEFT_ERROR(u.to(Device(), DType::f64), InvalidArgument, "undefined");
  EXPECT_WEFT_ERROR(u.add_(t), InvalidArgument, "[add_] the written tensor is an undefined tensor");
  EXPECT_WEFT_ERROR(t.add_(u), InvalidArgument, "[add_] the operand is an undefined tensor");
  EXPECT_WEFT_ERROR(t.mul_(u), InvalidArgument, "[mul_] the operand is an undefined tensor");
  EXPECT_WEFT_ERROR(t + u, InvalidArgument, "[add] b is an undefined tensor");
}

TEST(UndefinedOperandTest, CoversEveryOperation) {
  std::set<std::string> covered;
  for (const Case& c : cases()) covered.insert(c.function);
  std::ifstream header("tensor/ops.h");
  const std::regex declaration(
      "^(?:const )?(?:Tensor&?|std::vector<Tensor>|std::pair<Tensor, "
      "Tensor>|ValuesAndIndices|UniqueElements|"
      "CrossEntropyResult|NormResult|NormGradients) "
      "([a-z0-9_]+)\\(.*");
  std::smatch match;
  int declared = 0;
  for (std::string line; std::getline(header, line);) {
    if (!std::regex_match(line, match, declaration)) continue;
    ++declared;
    EXPECT_TRUE(covered.contains(match[1])) << match[1];
  }
  EXPECT_GT(declared, 60) << "tensor/ops.h was not read";
}

}  // namespace
}  // namespace weft
