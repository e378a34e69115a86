#include "weft/data/subset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_local.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "random_split";

// random_split's rule (torch/utils/data/dataset.py).
std::vector<std::int64_t> lengths_of(const std::vector<double>& fractions, std::int64_t size) {
  // The sum may differ from 1 by this much, because additions round.
  constexpr double kTolerance = 1e-9;
  double sum = 0;
  for (const double share : fractions) {
    WEFT_CHECK(share >= 0, InvalidArgument, kOp, "a fraction is ", share);
    sum += share;
  }
  WEFT_CHECK(std::abs(sum - 1) <= kTolerance, InvalidArgument, kOp, "the fractions add up to ", sum,
             ", not to 1");
  std::vector<std::int64_t> lengths;
  std::int64_t left = size;
  for (const double share : fractions) {
    // In f64 the nearest number to a large size may be larger than it, up to 2^63.
    const double length = std::floor(static_cast<double>(size) * share);
    const bool fits = length < static_cast<double>(left);
    lengths.push_back(fits ? static_cast<std::int64_t>(length) : left);
    left -= lengths.back();
  }
  for (std::size_t i = 0; left > 0; --left, i = (i + 1) % lengths.size()) ++lengths[i];
  return lengths;
}

}  // namespace

namespace detail {

void check_indices(std::span<const std::int64_t> indices, std::int64_t size) {
  for (const std::int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < size, InvalidArgument, "subset", "index ", index,
               " is outside the ", size, " samples");
  }
}

namespace {
// Buffers of the nested subsets that are being read, the outermost first.
struct Buffers {
  std::vector<std::vector<std::int64_t>> all;
  std::size_t in_use = 0;
};
constinit ThreadLocal<Buffers> buffers;
}  // namespace

Chosen::Chosen(std::span<const std::int64_t> from, std::span<const std::int64_t> at) {
  check_indices(at, static_cast<std::int64_t>(from.size()));
  auto& [all, in_use] = *buffers;
  if (in_use == all.size()) all.emplace_back();
  std::vector<std::int64_t>& buffer = all[in_use];
  buffer.clear();
  for (const std::int64_t i : at) buffer.push_back(from[static_cast<std::size_t>(i)]);
  indices_ = std::move(buffer);
  ++in_use;
}

Chosen::~Chosen() {
  auto& [all, in_use] = *buffers;
  all[--in_use] = std::move(indices_);
}

}  // namespace detail

std::vector<std::int64_t> split_lengths(const Split& split, std::int64_t size) {
  WEFT_CHECK(size >= 0, InvalidArgument, kOp, "the size of the data set is ", size);
  WEFT_CHECK(split.lengths.empty() != split.fractions.empty(), InvalidArgument, kOp,
             "needs lengths or fractions, and not both");
  if (!split.fractions.empty()) return lengths_of(split.fractions, size);
  for (const std::int64_t length : split.lengths) {
    WEFT_CHECK(length >= 0, InvalidArgument, kOp, "a length is ", length);
  }
  std::int64_t left = size;
  for (const std::int64_t length : split.lengths) {
    WEFT_CHECK(length <= left, InvalidArgument, kOp, "the lengths add up to more than the ", size,
               " samples of the data set");
    left -= length;
  }
  WEFT_CHECK(left == 0, InvalidArgument, kOp, "the lengths add up to ", size - left,
             ", the data set has ", size);
  return split.lengths;
}

}  // namespace weft::data
