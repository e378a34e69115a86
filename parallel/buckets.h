// Which gradients are reduced together: PyTorch's assignment, number for number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/core/device.h"
#include "weft/core/dtype.h"

namespace weft::parallel {

/// Of the first bucket to be reduced, where the cap of the others is the default: it should be on
/// its way early.
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

/// Fills buckets of one dtype and device each, in the given order (all gradients; empty: as they
/// stand). One that reaches its limit is closed, so it may exceed it by its last gradient. The
/// limits are for the first, second ... bucket of each dtype and device, the last one for all that
/// follow. With an order the buckets come as they were closed, those left open last; without one
/// by their smallest index. PyTorch's compute_bucket_assignment_by_size (reducer.cpp).
BucketPlan plan_buckets(std::span<const GradientSize> gradients,
                        std::span<const std::int64_t> limits,
                        std::span<const std::size_t> order = {});

/// As text, to send it.
std::string to_string(const BucketPlan& plan);
BucketPlan parse_bucket_plan(const std::string& text);

}  // namespace weft::parallel
