#include "weft/data/concat_dataset.h"

#include <algorithm>
#include <cstring>

#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft::data::detail {
namespace {

constexpr const char* kOp = "concat_dataset";

std::size_t row_bytes(const Tensor& x) {
  return x.shape(0) == 0 ? 0
                         : static_cast<std::size_t>(x.numel() / x.shape(0)) * size_of(x.dtype());
}

}  // namespace

std::vector<Share> shares_of(std::span<const std::int64_t> ends,
                             std::span<const std::int64_t> indices) {
  std::vector<std::size_t> place(ends.size(), ends.size());  // index of each set's share
  std::vector<Share> shares;
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const std::int64_t index = indices[row];
    WEFT_CHECK(index >= 0 && index < ends.back(), InvalidArgument, kOp, "index ", index,
               " is outside the ", ends.back(), " samples");
    const auto set = static_cast<std::size_t>(std::ranges::upper_bound(ends, index) - ends.begin());
    if (place[set] == ends.size()) {
      place[set] = shares.size();
      shares.push_back({.set = set, .indices = {}, .rows = {}});
    }
    Share& share = shares[place[set]];
    share.indices.push_back(index - (set == 0 ? 0 : ends[set - 1]));
    share.rows.push_back(static_cast<std::int64_t>(row));
  }
  if (shares.empty()) shares.push_back({.set = 0, .indices = {}, .rows = {}});
  std::ranges::sort(shares, {}, &Share::set);
  return shares;
}

void RowJoiner::add(std::span<const Tensor> part, const Share& share) {
  if (first_) tensors_.resize(part.size());
  WEFT_CHECK(part.size() == tensors_.size(), Shape, kOp, "set ", share.set, " gives batches of ",
             part.size(), " tensors, one before it of ", tensors_.size());
  for (std::size_t i = 0; i < part.size(); ++i) {
    const Tensor from = raw::contiguous(part[i]);
    Tensor& to = tensors_[i];
    WEFT_CHECK(from.dim() > 0 && from.shape(0) == std::ssize(share.indices), Shape, kOp, "set ",
               share.set, " gives ", from.shape(), " for ", share.indices.size(),
               " samples; a row for each is needed where a batch is of several sets");
    Shape shape = from.shape();
    shape[0] = rows_;
    if (first_) memory_.prepare(to, shape, from.dtype());
    WEFT_CHECK(to.shape() == shape && to.dtype() == from.dtype(), Shape, kOp, "set ", share.set,
               " gives rows of ", from.dtype(), ' ', from.shape(), ", one before it of ",
               to.dtype(), ' ', to.shape());
    const std::size_t bytes = row_bytes(from);
    const auto* row = static_cast<const std::byte*>(from.raw_data());
    auto* const out = static_cast<std::byte*>(to.raw_data());
    for (const std::int64_t at : share.rows) {
      if (bytes > 0) std::memcpy(out + static_cast<std::size_t>(at) * bytes, row, bytes);
      row += bytes;
    }
  }
  first_ = false;
}

}  // namespace weft::data::detail
