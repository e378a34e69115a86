#include "weft/parallel/buckets.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "weft/tests/core/expect_error.h"

namespace weft::parallel {
namespace {

using Limits = std::vector<std::int64_t>;

std::vector<GradientSize> f32(const std::vector<std::int64_t>& bytes) {
  std::vector<GradientSize> gradients;
  for (const std::int64_t b : bytes) gradients.push_back({.bytes = b});
  return gradients;
}

TEST(BucketsTest, ABucketIsClosedWhenItReachesItsLimit) {
  EXPECT_EQ(plan_buckets(f32({4, 4, 4, 4}), Limits{8}), (BucketPlan{{0, 1}, {2, 3}}));
  EXPECT_EQ(plan_buckets(f32({4, 5, 4, 4}), Limits{8}), (BucketPlan{{0, 1}, {2, 3}}));
  EXPECT_EQ(plan_buckets(f32({4, 3, 4, 4}), Limits{8}), (BucketPlan{{0, 1, 2}, {3}}));
}

TEST(BucketsTest, RefusesWhatDoesNotFit) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_WEFT_ERROR(plan_buckets(f32({most - 1, most}), Limits{most}), Shape,
                    "does not fit in 64 bits");
  EXPECT_WEFT_ERROR(plan_buckets(f32({4}), {}), InvalidArgument, "got no limit");
  const std::size_t order[] = {0, 2};
  EXPECT_WEFT_ERROR(plan_buckets(f32({4, 4}), Limits{8}, order), InvalidArgument,
                    "the order has gradient 2 of 2");
  EXPECT_WEFT_ERROR(plan_buckets(f32({4, 4, 4}), Limits{8}, order), InvalidArgument,
                    "the order has 2 of 3 gradients");
}

TEST(BucketsTest, ALargeGradientEndsTheBucketOfThoseBeforeIt) {
  EXPECT_EQ(plan_buckets(f32({1, 100, 1, 1}), Limits{8}), (BucketPlan{{0, 1}, {2, 3}}));
  EXPECT_EQ(plan_buckets(f32({100, 1, 100}), Limits{8}), (BucketPlan{{0}, {1, 2}}));
}

TEST(BucketsTest, TheLastLimitHoldsForAllThatFollow) {
  EXPECT_EQ(plan_buckets(f32({2, 2, 2, 2, 2, 2, 2}), Limits{2, 6}),
            (BucketPlan{{0}, {1, 2, 3}, {4, 5, 6}}));
  EXPECT_EQ(plan_buckets(f32({2, 2, 2, 2, 2, 2}), Limits{2, 4, 6}),
            (BucketPlan{{0}, {1, 2}, {3, 4, 5}}));
}

TEST(BucketsTest, WithoutALimitThereIsOne) {
  EXPECT_EQ(plan_buckets(f32({1 << 30, 5, 7}), Limits{std::numeric_limits<std::int64_t>::max()}),
            (BucketPlan{{0, 1, 2}}));
  EXPECT_EQ(plan_buckets({}, Limits{8}), BucketPlan());
}

TEST(BucketsTest, EachDtypeAndDeviceHasItsOwnAndItsOwnLimits) {
  const Device second(DeviceType::cpu, 1);
  const std::vector<GradientSize> gradients = {
      {.bytes = 4, .dtype = DType::f32},  {.bytes = 4, .dtype = DType::f64},
      {.bytes = 4, .dtype = DType::f32},  {.bytes = 4, .dtype = DType::f64},
      {.bytes = 4, .device = second},     {.bytes = 4, .dtype = DType::f32},
      {.bytes = 40, .dtype = DType::f64},
  };
  EXPECT_EQ(plan_buckets(gradients, Limits{4, 44}), (BucketPlan{{0}, {1}, {2, 5}, {3, 6}, {4}}));
}

// By their smallest index in the order of definition, as they were closed in another one.
TEST(BucketsTest, BucketsComeInTheOrderOfTheirGradients) {
  const std::vector<GradientSize> gradients = {
      {.bytes = 1, .dtype = DType::f32},
      {.bytes = 9, .dtype = DType::f64},
      {.bytes = 9, .dtype = DType::f32},
      {.bytes = 1, .dtype = DType::bf16},
  };
  EXPECT_EQ(plan_buckets(gradients, Limits{8}), (BucketPlan{{0, 2}, {1}, {3}}));
  EXPECT_EQ(plan_buckets(gradients, Limits{8}, std::vector<std::size_t>{3, 2, 1, 0}),
            (BucketPlan{{2}, {1}, {3}, {0}}));
  EXPECT_EQ(plan_buckets(f32({4, 4, 4, 1}), Limits{4, 8}, std::vector<std::size_t>{2, 3, 0, 1}),
            (BucketPlan{{2}, {3, 0, 1}}));
}

TEST(BucketsTest, PlansAreSentAsText) {
  const BucketPlan plan = {{12, 3}, {0}, {7, 1, 2}};
  EXPECT_EQ(to_string(plan), "12 3 \n0 \n7 1 2 \n");
  EXPECT_EQ(parse_bucket_plan(to_string(plan)), plan);
}

}  // namespace
}  // namespace weft::parallel
