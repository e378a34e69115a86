#include "weft/nn/embedding_bag.h"

#include <algorithm>
#include <limits>
#include <span>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/embedding.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

namespace {

constexpr const char* kOp = "EmbeddingBag";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Checks only on the CPU, where the offsets can be read without waiting.
void check_offsets(const Tensor& offsets, std::int64_t n, bool last) {
  if (offsets.device().type != DeviceType::cpu || offsets.numel() == 0) return;
  const Tensor dense = raw::contiguous(offsets);
  const std::span values(dense.data<std::int64_t>(), static_cast<std::size_t>(dense.numel()));
  WEFT_CHECK(values.front() == 0 && std::ranges::is_sorted(values) &&
                 (last ? values.back() == n : values.back() <= n),
             InvalidArgument, kOp, "offsets must begin with 0, ascend and end ",
             last ? "with " : "at most with ", n, ", the number of indices; got ", offsets);
}

// In bf16 index_add, which rounds each sum, would end a sum of ones at 256, and a mean would be a
// quotient of rounded numbers.
DType sum_dtype(const Tensor& weight) {
  return weight.dtype() == DType::bf16 ? DType::f32 : weight.dtype();
}

Tensor places(std::int64_t n, Device device) {
  return arange(0, static_cast<double>(n), 1, {DType::i64, device});
}

}  // namespace

EmbeddingBag::EmbeddingBag(std::int64_t num, std::int64_t dim, const EmbeddingBagOptions& options)
    : include_last_offset_(options.include_last_offset) {
  const std::string& mode = options.mode;
  WEFT_CHECK(mode == "sum" || mode == "mean" || mode == "max", InvalidArgument, kOp, "mode: got '",
             mode, "', expected 'sum', 'mean' or 'max'");
  mode_ = mode == "sum" ? Mode::sum : mode == "mean" ? Mode::mean : Mode::max;
  const Embedding rows(num, dim, {.padding_idx = options.padding_idx});
  weight = parameter("weight", rows.weight);
  std::string description = weft::detail::concat(num, ", ", dim, ", mode='", mode, "'");
  if (const auto padding = options.padding_idx) {
    padding_idx_ = *padding + (*padding < 0 ? num : 0);
    description += weft::detail::concat(", padding_idx=", *padding_idx_);
  }
  set_description(std::move(description));
}

// Whether each index counts: boolean, in the shape of index.
Tensor EmbeddingBag::not_padding(const Tensor& index) const {
  if (padding_idx_) return ne(index, static_cast<double>(*padding_idx_));
  return full(index.shape(), 1, {DType::boolean, index.device()});
}

// index [bags,n]; counts [bags,n]: whether each index counts; weights [bags,n] or undefined.
Tensor EmbeddingBag::of_bags(const Tensor& index, const Tensor& counts,
                             const Tensor& weights) const {
  Tensor rows = embedding(index, weight, padding_idx_);
  if (mode_ == Mode::max && index.numel() > 0) {  // the maximum of nothing is 0, as its mean
    const Tensor none = raw::logical_not(raw::any(counts, {1}, true));  // [bags,1]
    rows = masked_fill(rows, raw::logical_not(counts).unsqueeze(2), -kInfinity);
    return masked_fill(max(rows, 1).values, none, 0);
  }
  const DType wide = sum_dtype(weight);
  rows = rows.to(wide);
  if (weights.defined()) rows = rows * weights.unsqueeze(2);
  const Tensor sums = masked_fill(rows, raw::logical_not(counts).unsqueeze(2), 0).sum({1});
  if (mode_ == Mode::sum) return sums.to(weight.dtype());
  return (sums / clamp(raw::sum(counts, {1}, true), 1).to(wide)).to(weight.dtype());
}

// index [n], offsets [bags].
Tensor EmbeddingBag::of_offsets(const Tensor& index, Tensor offsets, const Tensor& weights) const {
  const std::int64_t n = index.shape(0);
  const Tensor end = full({1}, static_cast<double>(n), {DType::i64, index.device()});
  Tensor ends = end;
  if (include_last_offset_) {
    ends = offsets.slice(0, 1, offsets.numel());
    offsets = offsets.slice(0, 0, offsets.numel() - 1);
  } else if (offsets.numel() > 0) {
    ends = cat({offsets.slice(0, 1, offsets.numel()), end});
  }
  const std::int64_t bags = offsets.numel(), dim = weight.shape(1);
  const Tensor place = places(n, index.device());
  if (bags == 0 || n == 0) {
    // By operations, so that the gradients are zeros.
    const auto nothing = [&](const Tensor& x) { return x.slice(0, 0, 0).reshape({bags, 0}); };
    const Tensor none = nothing(index);
    return of_bags(none, not_padding(none), weights.defined() ? nothing(weights) : Tensor());
  }
  if (mode_ == Mode::max) {
    const Tensor lengths = ends - offsets;
    const auto longest = raw::max(lengths).item<std::int64_t>();
    const Tensor steps = places(longest, index.device()).unsqueeze(0);
    const Tensor at = minimum(offsets.unsqueeze(1) + steps, static_cast<double>(n - 1));
    const Tensor padded = index_select(index, 0, at.flatten()).reshape({bags, longest});
    return of_bags(padded, logical_and(lt(steps, lengths.unsqueeze(1)), not_padding(padded)), {});
  }
  // The bag of each index is the last one that begins at or before it.
  const Tensor bag = searchsorted(offsets, place, true) - 1.0;
  const DType wide = sum_dtype(weight);
  Tensor rows = embedding(index, weight, padding_idx_).to(wide);
  if (weights.defined()) rows = rows * weights.unsqueeze(1);
  const Tensor counts = not_padding(index);
  rows = masked_fill(rows, raw::logical_not(counts).unsqueeze(1), 0);
  const Tensor none = zeros({bags, dim}, {wide, weight.device()});
  const Tensor sums = index_add(none, 0, bag, rows);
  if (mode_ == Mode::sum) return sums.to(weight.dtype());
  const Tensor no_number = zeros({bags}, {DType::i64, weight.device()});
  const Tensor number = raw::index_add(no_number, 0, bag, raw::to(counts, DType::i64));
  return (sums / raw::to(clamp(number, 1), wide).unsqueeze(1)).to(weight.dtype());
}

Tensor EmbeddingBag::forward(const Tensor& index, const Tensor& offsets,
                             const Tensor& per_sample_weights) const {
  WEFT_CHECK(index.dim() == (offsets.defined() ? 1 : 2), Shape, kOp, "index: got ", index.shape(),
             ", expected [bags,n], or [n] with offsets");
  if (per_sample_weights.defined()) {
    WEFT_CHECK(mode_ == Mode::sum, InvalidArgument, kOp,
               "per_sample_weights are only for the mode 'sum'");
    WEFT_CHECK(per_sample_weights.shape() == index.shape(), Shape, kOp, "per_sample_weights: got ",
               per_sample_weights.shape(), ", expected ", index.shape());
  }
  if (!offsets.defined()) return of_bags(index, not_padding(index), per_sample_weights);
  WEFT_CHECK(offsets.dim() == 1 && (offsets.numel() > 0 || !include_last_offset_), Shape, kOp,
             "offsets: got ", offsets.shape(), ", expected [bags]",
             include_last_offset_ ? " and one more" : "");
  WEFT_CHECK(offsets.dtype() == DType::i64, Dtype, kOp, "offsets: got ", offsets.dtype(),
             ", expected i64");
  check_offsets(offsets, index.shape(0), include_last_offset_);
  return of_offsets(index, offsets, per_sample_weights);
}

}  // namespace weft::nn
