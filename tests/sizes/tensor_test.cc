// Rows of tensor/, and of the parameters of its operations from kernels/.

#include "weft/tensor/creation.h"
#include "weft/tensor/multinomial.h"
#include "weft/tensor/ops.h"
#include "weft/tests/sizes/sizes.h"

namespace weft::testing {
namespace {

Tensor index(std::int64_t n) { return zeros({n}, DType::i64); }

Conv2dParams conv_params(const Sizes& s) {
  return {.stride = s.pair(0),
          .padding = s.pair(1),
          .dilation = s.pair(2),
          .groups = s[3],
          .output_padding = s.pair(4)};
}
Pool2dParams pool_params(const Sizes& s) {
  return {.kernel = s.pair(0), .stride = s.pair(1), .padding = s.pair(2), .dilation = s.pair(3)};
}
AvgPool2dParams avg_pool_params(const Sizes& s) {
  return {.kernel = s.pair(0), .stride = s.pair(1), .padding = s.pair(2), .divisor = s[3]};
}
const Sizes::Values kConv = {{1, 1}, {0, 0}, {1, 1}, {1}, {0, 0}};
const Sizes::Values kPool = {{2, 2}, {1, 1}, {0, 0}, {1, 1}};
const Sizes::Values kAvgPool = {{2, 2}, {1, 1}, {0, 0}, {1}};

WEFT_SIZES(
    Creation,
    {
        {"empty(shape)", {{2, 4}}, GIVES(empty(s.dims(0)))},
        {"empty(shape) / of no dimensions", {{}}, GIVES(empty(s.dims(0)))},
        {"empty(shape) / channels last",
         {{2, 3, 4, 4}},
         [](const Sizes& s) -> Result {
           TensorOptions options;
           options.channels_last = true;
           return empty(s.dims(0), options);
         }},
        {"zeros(shape)", {{2, 4}}, GIVES(zeros(s.dims(0)))},
        {"ones(shape)", {{2, 4}}, GIVES(ones(s.dims(0)))},
        {"full(shape)", {{2, 4}}, GIVES(full(s.dims(0), 2))},
        {"linspace(steps)", {{3}}, GIVES(linspace(0, 1, s[0]))},
        {"eye(n)", {{3}}, GIVES(eye(s[0]))},
        {"eye(n, m)", {{3}, {2}}, GIVES(eye(s[0], s[1]))},
        {"from_span(shape)",
         {{2, 4}},
         [](const Sizes& s) -> Result {
           const float values[8] = {};
           return from_span(std::span<const float>(values), s.dims(0));
         }},
        {"from_vector(shape)", {{2, 4}}, GIVES(from_vector(std::vector<float>(8), s.dims(0)))},
        {"borrow(shape)",
         {{2, 4}},
         [](const Sizes& s) -> Result {
           static float memory[8] = {};
           return borrow(std::span<float>(memory), s.dims(0));
         }},
        {"borrow(shape, strides)",
         {{2, 4}, {4, 1}},
         [](const Sizes& s) -> Result {
           static float memory[8] = {};
           return borrow(std::span<float>(memory), s.dims(0), s.dims(1));
         }},
        {"as_strided(shape, strides, offset)",
         {{2, 4}, {4, 1}, {0}},
         GIVES(as_strided(ramp({8}).storage(), DType::f32, s.dims(0), s.dims(1), s[2]))},
        {"rand(shape)", {{2, 4}}, GIVES(rand(s.dims(0)))},
        {"randn(shape)", {{2, 4}}, GIVES(randn(s.dims(0)))},
        {"normal(shape)", {{2, 4}}, GIVES(normal(0, 1, s.dims(0)))},
        {"uniform(shape)", {{2, 4}}, GIVES(uniform(s.dims(0), 0, 1))},
        {"bernoulli(shape)", {{2, 4}}, GIVES(bernoulli(s.dims(0), 0.5))},
        {"randint(low, high, shape)", {{0}, {9}, {2, 4}}, GIVES(randint(s[0], s[1], s.dims(2)))},
        {"randint(low, high, shape) / of bytes",
         {{0}, {9}, {2, 4}},
         GIVES(randint(s[0], s[1], s.dims(2), DType::u8))},
        {"multinomial(num_samples)", {{2}}, GIVES(multinomial(ones({2, 3}), s[0], true))},
        {"randperm(n)", {{3}}, GIVES(randperm(s[0]))},
        {"as_strided(shape, strides, offset) / without memory",
         {{0, 4}, {4, 1}, {0}},
         GIVES(as_strided(empty({0}).storage(), DType::f32, s.dims(0), s.dims(1), s[2]))},
    });

WEFT_SIZES(
    RawViews,
    {
        {"raw::reshape(shape)", {{2, 6}}, GIVES(raw::reshape(ramp({3, 4}), s.dims(0)))},
        {"raw::reshape(shape) / of nothing", {{0, 4}}, GIVES(raw::reshape(empty({0}), s.dims(0)))},
        {"raw::flatten(start_dim, end_dim)",
         {{0}, {1}},
         GIVES(raw::flatten(ramp({2, 3, 4}), s[0], s[1]))},
        {"raw::unflatten(dim, sizes)",
         {{1}, {2, 2}},
         GIVES(raw::unflatten(ramp({3, 4}), s[0], s.dims(1)))},
        {"raw::unflatten(dim, sizes) / of nothing",
         {{1}, {0, 4}},
         GIVES(raw::unflatten(empty({3, 0}), s[0], s.dims(1)))},
        {"raw::transpose(dim0, dim1)", {{0}, {1}}, GIVES(raw::transpose(ramp({3, 4}), s[0], s[1]))},
        {"raw::permute(dims)", {{1, 0, 2}}, GIVES(raw::permute(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::flip(dims)", {{0, 1}}, GIVES(raw::flip(ramp({2, 3}), s.dims(0)))},
        {"raw::slice(dim, start, end, step)",
         {{0}, {1}, {9}, {2}},
         GIVES(raw::slice(ramp({10}), s[0], s[1], s[2], s[3]))},
        {"raw::slice(dim, start, end, step) / of an expanded dimension",
         {{0}, {1}, {9}, {2}},
         [](const Sizes& s) -> Result {
           const Tensor x = raw::expand(ramp({1}), {std::int64_t{1} << 40});
           return raw::slice(x, s[0], s[1], s[2], s[3]);
         }},
        {"raw::select(dim, index)", {{0}, {1}}, GIVES(raw::select(ramp({3, 4}), s[0], s[1]))},
        {"raw::narrow(dim, start, length)",
         {{0}, {1}, {2}},
         GIVES(raw::narrow(ramp({10}), s[0], s[1], s[2]))},
        {"raw::squeeze(dim)", {{1}}, GIVES(raw::squeeze(ramp({3, 1}), s[0]))},
        {"raw::unsqueeze(dim)", {{1}}, GIVES(raw::unsqueeze(ramp({3, 4}), s[0]))},
        {"raw::expand(shape)", {{2, 3}}, GIVES(raw::expand(ramp({1, 3}), s.dims(0)))},
        {"raw::expand(shape) / of nothing", {{2, 0}}, GIVES(raw::expand(empty({1, 0}), s.dims(0)))},
        {"raw::view(shape)", {{2, 6}}, GIVES(raw::view(ramp({3, 4}), s.dims(0)))},
        {"raw::unfold(dim, size, step)",
         {{1}, {2}, {3}},
         GIVES(raw::unfold(ramp({2, 9}), s[0], s[1], s[2]))},
        {"raw::diagonal(offset, dim1, dim2)",
         {{1}, {0}, {1}},
         GIVES(raw::diagonal(ramp({3, 4}), s[0], s[1], s[2]))},
        {"raw::chunk(count, dim)", {{3}, {0}}, GIVES(raw::chunk(ramp({10}), s[0], s[1]))},
        {"raw::split(size, dim)", {{3}, {0}}, GIVES(raw::split(ramp({10}), s[0], s[1]))},
        {"raw::split(sizes, dim)",
         {{3, 3, 4}, {0}},
         GIVES(raw::split(ramp({10}), s.dims(0), s[1]))},
        {"raw::split(sizes, dim) / with empty parts",  // 4 times 2^62 is 0 modulo 2^64
         {{0, 0, 0, 0, 10}, {0}},
         GIVES(raw::split(ramp({10}), s.dims(0), s[1]))},
        {"raw::cat(dim)",
         {{0}},
         GIVES(raw::cat(std::vector<Tensor>{ramp({2, 3}), ramp({2, 3})}, s[0]))},
        {"raw::stack(dim)",
         {{0}},
         GIVES(raw::stack(std::vector<Tensor>{ramp({2, 3}), ramp({2, 3})}, s[0]))},
    });

WEFT_SIZES(
    RawReductions,
    {
        {"raw::reduce(dims)",
         {{0, 1}},
         GIVES(raw::reduce(ReduceOp::sum, ramp({2, 3, 4}), s.dims(0)))},
        {"raw::sum(dims)", {{0, 1}}, GIVES(raw::sum(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::mean(dims)", {{0, 1}}, GIVES(raw::mean(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::prod(dims)", {{0, 1}}, GIVES(raw::prod(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::max(dims)", {{0, 1}}, GIVES(raw::max(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::min(dims)", {{0, 1}}, GIVES(raw::min(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::all(dims)", {{0, 1}}, GIVES(raw::all(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::any(dims)", {{0, 1}}, GIVES(raw::any(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::var(dims)", {{0, 1}}, GIVES(raw::var(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::norm(dims)", {{0, 1}}, GIVES(raw::norm(ramp({2, 3, 4}), s.dims(0)))},
        {"raw::argmax(dim)", {{1}}, GIVES(raw::argmax(ramp({2, 3, 4}), s[0]))},
        {"raw::argmin(dim)", {{1}}, GIVES(raw::argmin(ramp({2, 3, 4}), s[0]))},
        {"raw::sum_to(shape)", {{1, 3}}, GIVES(raw::sum_to(ramp({2, 3}), s.dims(0)))},
        {"raw::sort(dim)", {{1}}, GIVES(raw::sort(ramp({2, 3}), s[0]))},
        {"raw::argsort(dim)", {{1}}, GIVES(raw::argsort(ramp({2, 3}), s[0]))},
        {"raw::median(dim)", {{1}}, GIVES(raw::median(ramp({2, 3}), s[0]))},
        {"raw::unique(dim)", {{0}}, GIVES(raw::unique(ramp({4}), false, false, s[0]).values)},
        {"raw::bincount(minlength)", {{3}}, GIVES(raw::bincount(index(2), {}, s[0]))},
        {"raw::cumsum(dim)", {{1}}, GIVES(raw::cumsum(ramp({2, 3}), s[0]))},
        {"raw::cumprod(dim)", {{1}}, GIVES(raw::cumprod(ramp({2, 3}), s[0]))},
        {"raw::softmax(dim)", {{1}}, GIVES(raw::softmax(ramp({2, 3}), s[0]))},
        {"raw::log_softmax(dim)", {{1}}, GIVES(raw::log_softmax(ramp({2, 3}), s[0]))},
        {"raw::softmax_backward(dim)",
         {{1}},
         GIVES(raw::softmax_backward(SoftmaxOp::softmax, ramp({2, 3}), ramp({2, 3}), s[0]))},
    });

WEFT_SIZES(
    RawIndexing,
    {
        {"raw::index_select(dim)", {{1}}, GIVES(raw::index_select(ramp({2, 3}), s[0], index(2)))},
        {"raw::index_add_(dim)",
         {{1}},
         GIVES(raw::index_add_(ramp({2, 2}), s[0], index(2), ramp({2, 2})))},
        {"raw::gather(dim)",
         {{1}},
         GIVES(raw::gather(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64)))},
        {"raw::scatter_add_(dim)",
         {{1}},
         GIVES(raw::scatter_add_(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64), ramp({2, 2})))},
        {"raw::index_add(dim)",
         {{1}},
         GIVES(raw::index_add(ramp({2, 2}), s[0], index(2), ramp({2, 2})))},
        {"raw::scatter_add(dim)",
         {{1}},
         GIVES(raw::scatter_add(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64), ramp({2, 2})))},
        {"raw::scatter(dim)",
         {{1}},
         GIVES({raw::scatter(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64), ramp({2, 2})),
                raw::scatter(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64), 1.5)})},
        {"raw::scatter_(dim)",
         {{1}},
         GIVES({raw::scatter_(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64), ramp({2, 2})),
                raw::scatter_(ramp({2, 3}), s[0], zeros({2, 2}, DType::i64), 1.5)})},
        {"raw::embedding_backward(rows, padding)",
         {{4}, {-1}},
         GIVES(raw::embedding_backward(ramp({2, 3}), index(2), s[0], s[1]))},
        {"raw::embedding_backward(rows, padding) / without columns",
         {{4}, {-1}},
         GIVES(raw::embedding_backward(ramp({2, 0}), index(2), s[0], s[1]))},
        {"raw::one_hot(classes)", {{3}}, GIVES(raw::one_hot(index(2), s[0]))},
        {"raw::one_hot(classes) / of nothing", {{3}}, GIVES(raw::one_hot(index(0), s[0]))},
    });

WEFT_SIZES(
    RawImages,
    {
        {"Conv2dParams{stride, padding, dilation, groups, output_padding}", kConv,
         GIVES(raw::conv2d(ramp({1, 2, 5, 5}), ramp({2, 2, 3, 3}), ramp({2}), conv_params(s)))},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / of a point", kConv,
         GIVES(raw::conv2d(ramp({1, 2, 1, 1}), ramp({2, 2, 1, 1}), ramp({2}), conv_params(s)))},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / transposed", kConv,
         [](const Sizes& s) -> Result {
           Conv2dParams params = conv_params(s);
           params.transposed = true;
           return raw::conv2d(ramp({1, 2, 5, 5}), ramp({2, 2, 3, 3}), ramp({2}), params);
         }},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / transposed, of a point",
         kConv,
         [](const Sizes& s) -> Result {
           Conv2dParams params = conv_params(s);
           params.transposed = true;
           return raw::conv2d(ramp({1, 2, 1, 1}), ramp({2, 2, 1, 1}), ramp({2}), params);
         }},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / without images", kConv,
         GIVES(raw::conv2d(ramp({0, 2, 5, 5}), ramp({2, 2, 3, 3}), ramp({2}), conv_params(s)))},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / dL/dx", kConv,
         GIVES(raw::conv2d_backward_data(ramp({1, 2, 3, 3}), ramp({2, 2, 3, 3}), {1, 2, 5, 5}, conv_params(s)))},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / dL/dw", kConv,
         GIVES(raw::conv2d_backward_weights(ramp({1, 2, 5, 5}), ramp({1, 2, 3, 3}), {2, 2, 3, 3}, true, conv_params(s)))},
        {"raw::conv2d_backward_data(x_shape)",
         {{1, 2, 5, 5}},
         GIVES(raw::conv2d_backward_data(ramp({1, 2, 3, 3}), ramp({2, 2, 3, 3}), s.dims(0), {}))},
        {"raw::conv2d_backward_weights(w_shape)",
         {{2, 2, 3, 3}},
         GIVES(raw::conv2d_backward_weights(ramp({1, 2, 5, 5}), ramp({1, 2, 3, 3}), s.dims(0), true, {}))},
        {"Pool2dParams{kernel, stride, padding, dilation}", kPool,
         GIVES(raw::max_pool2d(ramp({1, 2, 5, 5}), pool_params(s)))},
        {"Pool2dParams{kernel, stride, padding, dilation} / rounded up", kPool,
         [](const Sizes& s) -> Result {
           Pool2dParams params = pool_params(s);
           params.ceil_mode = true;
           return raw::max_pool2d(ramp({1, 2, 5, 5}), params);
         }},
        {"Pool2dParams{kernel, stride, padding, dilation} / backward", kPool,
         GIVES(raw::max_pool2d_backward(ramp({1, 2, 4, 4}), zeros({1, 2, 4, 4}, DType::i32), {1, 2, 5, 5}, pool_params(s)))},
        {"raw::adaptive_max_pool2d(size)",
         {{2, 2}},
         GIVES(raw::adaptive_max_pool2d(ramp({1, 2, 5, 5}), s.pair(0)))},
        {"raw::adaptive_max_pool2d(size) / without images",
         {{2, 2}},
         GIVES(raw::adaptive_max_pool2d(ramp({0, 2, 5, 5}), s.pair(0)))},
        {"raw::max_pool2d_backward(x_shape)",
         {{1, 2, 5, 5}},
         GIVES(raw::max_pool2d_backward(ramp({1, 2, 4, 4}), zeros({1, 2, 4, 4}, DType::i32), s.dims(0), {.kernel = {2, 2}}))},
        {"AvgPool2dParams{kernel, stride, padding, divisor}", kAvgPool,
         GIVES(raw::avg_pool2d(ramp({1, 2, 5, 5}), avg_pool_params(s)))},
        {"AvgPool2dParams{kernel, stride, padding, divisor} / rounded up, of the image's points",
         kAvgPool,
         [](const Sizes& s) -> Result {
           AvgPool2dParams params = avg_pool_params(s);
           params.ceil_mode = true;
           params.count_include_pad = false;
           return raw::avg_pool2d(ramp({1, 2, 5, 5}), params);
         }},
        {"AvgPool2dParams{kernel, stride, padding, divisor} / backward", kAvgPool,
         GIVES(raw::avg_pool2d_backward(ramp({1, 2, 4, 4}), {1, 2, 5, 5}, avg_pool_params(s)))},
        {"raw::adaptive_avg_pool2d(size)",
         {{2, 2}},
         GIVES(raw::adaptive_avg_pool2d(ramp({1, 2, 5, 5}), s.pair(0)))},
        {"raw::adaptive_avg_pool2d(size) / without images",
         {{2, 2}},
         GIVES(raw::adaptive_avg_pool2d(ramp({0, 2, 5, 5}), s.pair(0)))},
        {"raw::avg_pool2d_backward(x_shape)",
         {{1, 2, 5, 5}},
         GIVES(raw::avg_pool2d_backward(ramp({1, 2, 4, 4}), s.dims(0), {.kernel = {2, 2}}))},
        {"raw::layer_norm(normalized_shape)",
         {{3, 4}},
         [](const Sizes& s) -> Result {
           const raw::NormResult y = raw::layer_norm(ramp({2, 3, 4}), s.dims(0), {}, {}, 1e-5);
           return {y.y, y.mean, y.invstd};
         }},
        {"raw::layer_norm_backward(normalized_shape)",
         {{3, 4}},
         [](const Sizes& s) -> Result {
           const raw::NormGradients g = raw::layer_norm_backward(
               ramp({2, 3, 4}), ramp({2, 3, 4}), s.dims(0), {}, ramp({2}), ramp({2}));
           return {g.x, g.weight, g.bias};
         }},
        {"raw::group_norm(groups)",
         {{2}},
         [](const Sizes& s) -> Result {
           const raw::NormResult y = raw::group_norm(ramp({2, 4, 3}), s[0], {}, {}, 1e-5);
           return {y.y, y.mean, y.invstd};
         }},
        {"raw::group_norm_backward(groups)",
         {{2}},
         [](const Sizes& s) -> Result {
           const raw::NormGradients g = raw::group_norm_backward(
               ramp({2, 4, 3}), ramp({2, 4, 3}), s[0], {}, ramp({2, 2}), ramp({2, 2}));
           return {g.x, g.weight, g.bias};
         }},
        {"CrossEntropyParams{ignore_index}",
         {{-100}},
         [](const Sizes& s) -> Result {
           const raw::CrossEntropyResult y =
               raw::cross_entropy(ramp({2, 3}), index(2), {.ignore_index = s[0]});
           return {y.loss, y.log_probs, y.count};
         }},
    });

}  // namespace
}  // namespace weft::testing
