// Rows of autograd/ and of the methods of Tensor.
#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/tensor/creation.h"
#include "weft/tests/sizes/sizes.h"

namespace weft::testing {
namespace {

Tensor index(const Shape& shape) { return zeros(shape, DType::i64); }

WEFT_SIZES(
    Methods,
    {
        {"Tensor::shape(dim)", {{1}}, RUNS(leaf({2, 3}).shape(s[0]))},
        {"Tensor::reshape(shape)",
         {{2, 6}},
         [](const Sizes& s) -> Result {
           const Tensor x = leaf({3, 4});
           return {x.reshape(s.dims(0)), leaf({3, 4}).reshape(s.dims(0))};
         }},
        {"Tensor::flatten(start_dim, end_dim)",
         {{0}, {1}},
         [](const Sizes& s) -> Result {
           const Tensor x = leaf({2, 3, 4});
           return {x.flatten(s[0], s[1]), leaf({2, 3, 4}).flatten(s[0], s[1])};
         }},
        {"Tensor::unflatten(dim, sizes)",
         {{1}, {2, 2}},
         [](const Sizes& s) -> Result {
           const Tensor x = leaf({3, 4});
           return {x.unflatten(s[0], s.dims(1)), leaf({3, 4}).unflatten(s[0], s.dims(1))};
         }},
        {"Tensor::transpose(dim0, dim1)", {{0}, {1}}, GIVES(leaf({3, 4}).transpose(s[0], s[1]))},
        {"Tensor::permute(dims)", {{1, 0, 2}}, GIVES(leaf({2, 3, 4}).permute(s.dims(0)))},
        {"Tensor::slice(dim, start, end, step)",
         {{0}, {1}, {9}, {2}},
         GIVES(leaf({10}).slice(s[0], s[1], s[2], s[3]))},
        {"Tensor::select(dim, index)", {{0}, {1}}, GIVES(leaf({3, 4}).select(s[0], s[1]))},
        {"Tensor::narrow(dim, start, length)",
         {{0}, {1}, {2}},
         GIVES(leaf({10}).narrow(s[0], s[1], s[2]))},
        {"Tensor::squeeze(dim)", {{1}}, GIVES(leaf({3, 1}).squeeze(s[0]))},
        {"Tensor::unsqueeze(dim)", {{1}}, GIVES(leaf({3, 4}).unsqueeze(s[0]))},
        {"Tensor::expand(shape)", {{2, 3}}, GIVES(leaf({1, 3}).expand(s.dims(0)))},
        {"Tensor::operator[](index)", {{1}}, GIVES(leaf({3, 4})[s[0]])},
        {"Tensor::sum(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).sum(s.dims(0)))},
        {"Tensor::mean(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).mean(s.dims(0)))},
        {"Tensor::prod(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).prod(s.dims(0)))},
        {"Tensor::max(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).max(s.dims(0)))},
        {"Tensor::min(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).min(s.dims(0)))},
        {"Tensor::max(dim)", {{1}}, GIVES(leaf({2, 3}).max(s[0].value))},
        {"Tensor::min(dim)", {{1}}, GIVES(leaf({2, 3}).min(s[0].value))},
        {"Tensor::argmax(dim)", {{1}}, GIVES(leaf({2, 3}).argmax(s[0]))},
        {"Tensor::argmin(dim)", {{1}}, GIVES(leaf({2, 3}).argmin(s[0]))},
        {"Tensor::var(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).var(s.dims(0)))},
        {"Tensor::std(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).std(s.dims(0)))},
        {"Tensor::norm(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).norm(s.dims(0)))},
        {"Tensor::logsumexp(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).logsumexp(s.dims(0)))},
        {"Tensor::all(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).all(s.dims(0)))},
        {"Tensor::any(dims)", {{0, 1}}, GIVES(leaf({2, 3, 4}).any(s.dims(0)))},
        {"Tensor::softmax(dim)", {{1}}, GIVES(leaf({2, 3}).softmax(s[0]))},
        {"Tensor::log_softmax(dim)", {{1}}, GIVES(leaf({2, 3}).log_softmax(s[0]))},
        {"Tensor::sort(dim)", {{1}}, GIVES(leaf({2, 3}).sort(s[0]))},
        {"Tensor::argsort(dim)", {{1}}, GIVES(leaf({2, 3}).argsort(s[0]))},
        {"Tensor::topk(k, dim)", {{2}, {1}}, GIVES(leaf({2, 3}).topk(s[0], s[1]))},
        {"Tensor::cumsum(dim)", {{1}}, GIVES(leaf({2, 3}).cumsum(s[0]))},
        {"Tensor::cumprod(dim)", {{1}}, GIVES(leaf({2, 3}).cumprod(s[0]))},
        {"Tensor::median(dim)", {{1}}, GIVES(leaf({2, 3}).median(s[0]))},
        {"Tensor::bincount(minlength)", {{3}}, GIVES(index({2}).bincount({}, s[0]))},
        {"Tensor::index_add(dim)",
         {{1}},
         GIVES(leaf({2, 2}).index_add(s[0], index({2}), ramp({2, 2})))},
        {"Tensor::scatter_add(dim)",
         {{1}},
         GIVES(leaf({2, 3}).scatter_add(s[0], index({2, 2}), ramp({2, 2})))},
        {"Tensor::scatter(dim)",
         {{1}},
         GIVES({leaf({2, 3}).scatter(s[0], index({2, 2}), ramp({2, 2})),
                leaf({2, 3}).scatter(s[0], index({2, 2}), 1.5)})},
        {"Tensor::scatter_(dim)",
         {{1}},
         GIVES({ramp({2, 3}).scatter_(s[0], index({2, 2}), ramp({2, 2})),
                ramp({2, 3}).scatter_(s[0], index({2, 2}), 1.5)})},
        {"Tensor::index_select(dim)", {{1}}, GIVES(leaf({2, 3}).index_select(s[0], index({2})))},
        {"Tensor::gather(dim)", {{1}}, GIVES(leaf({2, 3}).gather(s[0], index({2, 2})))},
        {"Tensor::chunk(count, dim)", {{3}, {0}}, GIVES(leaf({10}).chunk(s[0], s[1]))},
        {"Tensor::split(size, dim)", {{3}, {0}}, GIVES(leaf({10}).split(s[0], s[1]))},
        {"Tensor::split(sizes, dim)", {{3, 3, 4}, {0}}, GIVES(leaf({10}).split(s.dims(0), s[1]))},
        {"Tensor::repeat(counts)", {{2, 3}}, GIVES(leaf({2, 3}).repeat(s.dims(0)))},
        {"Tensor::flip(dims)", {{0, 1}}, GIVES(leaf({2, 3}).flip(s.dims(0)))},
        {"Tensor::roll(shift, dim)",
         {{1}, {0}},
         GIVES({leaf({2, 3}).roll(s[0], s[1]), leaf({2, 3}).roll(s[0])})},
        {"Tensor::tril(diagonal)", {{1}}, GIVES(leaf({3, 3}).tril(s[0]))},
        {"Tensor::triu(diagonal)", {{1}}, GIVES(leaf({3, 3}).triu(s[0]))},
    });

WEFT_SIZES(
    Operations,
    {
        {"chunk(count, dim)", {{3}, {0}}, GIVES(chunk(leaf({10}), s[0], s[1]))},
        {"split(size, dim)", {{3}, {0}}, GIVES(split(leaf({10}), s[0], s[1]))},
        {"split(sizes, dim)", {{3, 3, 4}, {0}}, GIVES(split(leaf({10}), s.dims(0), s[1]))},
        {"cat(dim)", {{0}}, GIVES(cat({leaf({2, 3}), leaf({2, 3})}, s[0]))},
        {"stack(dim)", {{0}}, GIVES(stack({leaf({2, 3}), leaf({2, 3})}, s[0]))},
        {"sum(dims)", {{0, 1}}, GIVES(sum(leaf({2, 3, 4}), s.dims(0)))},
        {"mean(dims)", {{0, 1}}, GIVES(mean(leaf({2, 3, 4}), s.dims(0)))},
        {"prod(dims)", {{0, 1}}, GIVES(prod(leaf({2, 3, 4}), s.dims(0)))},
        {"max(dims)", {{0, 1}}, GIVES(max(leaf({2, 3, 4}), s.dims(0)))},
        {"min(dims)", {{0, 1}}, GIVES(min(leaf({2, 3, 4}), s.dims(0)))},
        {"var(dims)", {{0, 1}}, GIVES(var(leaf({2, 3, 4}), s.dims(0)))},
        {"norm(dims)", {{0, 1}}, GIVES(norm(leaf({2, 3, 4}), s.dims(0)))},
        {"softmax(dim)", {{1}}, GIVES(softmax(leaf({2, 3}), s[0]))},
        {"log_softmax(dim)", {{1}}, GIVES(log_softmax(leaf({2, 3}), s[0]))},
        {"sort(dim)", {{1}}, GIVES(sort(leaf({2, 3}), s[0]))},
        {"argsort(dim)", {{1}}, GIVES(argsort(leaf({2, 3}), s[0]))},
        {"topk(k, dim)", {{2}, {1}}, GIVES(topk(leaf({2, 3}), s[0], s[1]))},
        {"cumsum(dim)", {{1}}, GIVES(cumsum(leaf({2, 3}), s[0]))},
        {"cumprod(dim)", {{1}}, GIVES(cumprod(leaf({2, 3}), s[0]))},
        {"median(dim)", {{1}}, GIVES(median(leaf({2, 3}), s[0]))},
        {"index_add(dim)", {{1}}, GIVES(index_add(leaf({2, 2}), s[0], index({2}), ramp({2, 2})))},
        {"scatter_add(dim)",
         {{1}},
         GIVES(scatter_add(leaf({2, 3}), s[0], index({2, 2}), ramp({2, 2})))},
        {"scatter(dim)",
         {{1}},
         GIVES({scatter(leaf({2, 3}), s[0], index({2, 2}), ramp({2, 2})),
                scatter(leaf({2, 3}), s[0], index({2, 2}), 1.5)})},
        {"index_select(dim)", {{1}}, GIVES(index_select(leaf({2, 3}), s[0], index({2})))},
        {"gather(dim)", {{1}}, GIVES(gather(leaf({2, 3}), s[0], index({2, 2})))},
        {"embedding(padding_idx)", {{1}}, GIVES(embedding(index({2}), leaf({4, 3}), s[0].value))},
        {"adaptive_max_pool2d(size)",
         {{2, 2}},
         GIVES(adaptive_max_pool2d(leaf({1, 2, 5, 5}), s.pair(0)))},
        {"adaptive_avg_pool2d(size)",
         {{2, 2}},
         GIVES(adaptive_avg_pool2d(leaf({1, 2, 5, 5}), s.pair(0)))},
        {"layer_norm(normalized_shape)", {{3, 4}}, GIVES(layer_norm(leaf({2, 3, 4}), s.dims(0)))},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / recorded",
         {{1, 1}, {0, 0}, {1, 1}, {1}, {0, 0}},
         [](const Sizes& s) -> Result {
           const Conv2dParams params = {.stride = s.pair(0),
                                        .padding = s.pair(1),
                                        .dilation = s.pair(2),
                                        .groups = s[3],
                                        .output_padding = s.pair(4)};
           const Tensor x = leaf({1, 2, 5, 5}), w = leaf({2, 2, 3, 3}), bias = leaf({2});
           return conv2d(x, w, bias, params);
         }},
        {"Conv2dParams{stride, padding, dilation, groups, output_padding} / recorded, transposed",
         {{1, 1}, {0, 0}, {1, 1}, {1}, {0, 0}},
         [](const Sizes& s) -> Result {
           const Conv2dParams params = {.stride = s.pair(0),
                                        .padding = s.pair(1),
                                        .dilation = s.pair(2),
                                        .groups = s[3],
                                        .output_padding = s.pair(4)};
           const Tensor x = leaf({1, 2, 5, 5}), w = leaf({2, 2, 3, 3}), bias = leaf({2});
           return conv_transpose2d(x, w, bias, params);
         }},
        {"Pool2dParams{kernel, stride, padding, dilation} / recorded",
         {{2, 2}, {1, 1}, {0, 0}, {1, 1}},
         GIVES(max_pool2d(leaf({1, 2, 5, 5}), {.kernel = s.pair(0),
                                               .stride = s.pair(1),
                                               .padding = s.pair(2),
                                               .dilation = s.pair(3)}))},
        {"AvgPool2dParams{kernel, stride, padding, divisor} / recorded",
         {{2, 2}, {1, 1}, {0, 0}, {1}},
         GIVES(avg_pool2d(
             leaf({1, 2, 5, 5}),
             {.kernel = s.pair(0), .stride = s.pair(1), .padding = s.pair(2), .divisor = s[3]}))},
        {"CrossEntropyParams{ignore_index} / recorded",
         {{-100}},
         GIVES(cross_entropy(leaf({2, 3}), index({2}), {.ignore_index = s[0]}))},
    });

WEFT_SIZES(Composed,
           {
               {"max_of_dim(dim)", {{1}}, GIVES(max_of_dim(leaf({2, 3}), s[0]))},
               {"min_of_dim(dim)", {{1}}, GIVES(min_of_dim(leaf({2, 3}), s[0]))},
               {"max(dim)", {{1}}, GIVES(max(leaf({2, 3}), s[0].value))},
               {"min(dim)", {{1}}, GIVES(min(leaf({2, 3}), s[0].value))},
               {"std(dims)", {{0, 1}}, GIVES(weft::std(leaf({2, 3, 4}), s.dims(0)))},
               {"logsumexp(dims)", {{0, 1}}, GIVES(logsumexp(leaf({2, 3, 4}), s.dims(0)))},
               {"repeat(counts)", {{2, 3}}, GIVES(repeat(leaf({2, 3}), s.dims(0)))},
               {"repeat(counts) / of nothing", {{2, 3}}, GIVES(repeat(leaf({0, 3}), s.dims(0)))},
               {"flip(dims)", {{0, 1}}, GIVES(flip(leaf({2, 3}), s.dims(0)))},
               {"roll(shift, dim)",
                {{1}, {0}},
                GIVES({roll(leaf({2, 3}), s[0], s[1]), roll(leaf({2, 3}), s[0])})},
               {"tril(diagonal)", {{1}}, GIVES(tril(leaf({3, 4}), s[0]))},
               {"triu(diagonal)", {{1}}, GIVES(triu(leaf({3, 4}), s[0]))},
               {"pad(pads)", {{1, 1, 0, 1}}, GIVES(pad(leaf({2, 3}), s.list(0)))},
               {"pad(pads) / of nothing", {{1, 1, 0, 0}}, GIVES(pad(leaf({0, 3}), s.list(0)))},
               {"normalize(dim)", {{1}}, GIVES(normalize(leaf({2, 3}), 2, s[0]))},
               {"group_norm(groups)", {{2}}, GIVES(group_norm(leaf({2, 4, 3}), s[0]))},
               {"Conv1dParams{stride, padding, dilation, groups}",
                {{1}, {0}, {1}, {1}},
                GIVES(conv1d(leaf({1, 2, 5}), leaf({2, 2, 3}), leaf({2}),
                             {.stride = s[0], .padding = s[1], .dilation = s[2], .groups = s[3]}))},
               {"InterpolateOptions{size}",
                {{3, 3}},
                GIVES(interpolate(leaf({1, 2, 5, 5}), {.size = s.dims(0)}))},
               {"InterpolateOptions{size} / bilinear",
                {{3, 3}},
                GIVES(interpolate(leaf({1, 2, 5, 5}), {.size = s.dims(0), .mode = "bilinear"}))},
               {"InterpolateOptions{size} / bilinear, without images",
                {{3, 3}},
                GIVES(interpolate(leaf({0, 2, 5, 5}), {.size = s.dims(0), .mode = "bilinear"}))},
           });

}  // namespace
}  // namespace weft::testing
