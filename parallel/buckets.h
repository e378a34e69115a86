// Which gradients are reduced together: PyTorch's assignment, number for number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/dtype.h"

namespace weft::parallel {

/// The cap of the first bucket to be reduced, if the cap of the others is the default: it should be
/// sent early.
inline constexpr std::int64_t kFirstBucketBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kDefaultBucketMb = 25;

/// A gradient, as far as its bucket depends on it.
struct GradientSize {
  std::int64_t bytes = 0;
  DType dtype = DType::f32;
  Device device;
};

/// Indices of gradients, by bucket.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// Fills buckets of one dtype and device each, in the given `order` of all gradients (empty: as
/// given). A bucket is closed when it reaches its limit, so its last gradient may exceed it. The
/// limits are those of the first, second ... bucket of each dtype and device; the last one is for
/// all further buckets. With an order the result has the buckets as they were closed, those left
/// open last; without an order it is sorted by their smallest index. PyTorch's
/// compute_bucket_assignment_by_size (reducer.cpp). Throws InvalidArgument without limits, and for
/// an order that has another number of gradients or one that does not exist.
BucketPlan plan_buckets(std::span<const GradientSize> gradients,
                        std::span<const std::int64_t> limits,
                        std::span<const std::size_t> order = {});

/// As text, to send it.
std::string to_string(const BucketPlan& plan);
BucketPlan parse_bucket_plan(const std::string& text);

}  // namespace weft::parallel
