#include "weft/parallel/gradient_buckets.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/ranks.h"
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

// Without an order, buckets are sorted by their smallest index; with one, they come as they were
// closed.
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

// --- The buckets ---------------------------------------------------------------------------------

constexpr GradientBuckets::Words kWords = {"op", "send", "bucket", "bucket ", "; moved", "before"};

using Parameters = std::vector<std::pair<std::string, Tensor>>;

Parameters trained(const std::vector<Tensor>& tensors) {
  Parameters result;
  for (const Tensor& x : tensors) {
    x.set_requires_grad(true);
    result.emplace_back(std::string(1, static_cast<char>('a' + result.size())), x);
  }
  return result;
}

TEST(GradientBucketsTest, GradientsLieSideBySideWithTheirParametersStrides) {
  for (const int n : {1, 2}) {
    comm::run_ranks(n, [](comm::ProcessGroup& group) {
      const std::vector<Tensor> parameters = {ones({2, 3}, DType::f64),
                                              raw::transpose(ones({4, 5}, DType::f64), 0, 1),
                                              raw::slice(ones({6}, DType::f64), 0, 0, 6, 2)};
      GradientBuckets buckets(trained(parameters), kWords, {});
      buckets.make(group, {{0, 1, 2}}, 2);
      const Tensor& memory = buckets.buckets()[0].memory;
      EXPECT_EQ(memory.shape(), Shape({6 + 20 + 3 + 3 * 2}));
      EXPECT_EQ(memory.dtype(), DType::f64);
      EXPECT_EQ(buckets.stats().bucket_bytes, (std::vector<std::int64_t>{35 * 8}));
      raw::fill_(memory, 7);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& place = buckets.parameters()[i].place;
        EXPECT_EQ(place.shape(), parameters[i].shape());
        EXPECT_EQ(place.storage().get(), memory.storage().get());
        raw::fill_(place, static_cast<double>(i));
      }
      EXPECT_EQ(buckets.parameters()[1].place.strides(), parameters[1].strides());
      EXPECT_EQ(buckets.parameters()[2].place.strides(), (Strides{1}));  // not those with gaps
      std::vector<double> expected(6, 0);
      expected.insert(expected.end(), 20, 1);
      expected.insert(expected.end(), 3, 2);
      expected.insert(expected.end(), 6, 7);
      EXPECT_EQ(memory.to_vector<double>(), expected);
    });
  }
}

RANKS_TEST(GradientBucketsTest, ABucketWaitsForThoseBeforeIt, 1) {
  std::vector<std::size_t> sent;  // bucket by bucket, the number of its gradients
  GradientBuckets buckets(trained({ones({1}), ones({1}), ones({1})}), kWords,
                          [&](const Tensor& memory) {
                            sent.push_back(static_cast<std::size_t>(memory.numel()));
                            return Reduction();
                          });
  buckets.make(group, {{2, 1}, {0}});
  EXPECT_EQ(buckets.names(), (std::vector<std::vector<std::string>>{{"c", "b"}, {"a"}}));
  const auto make_ready = [&](std::size_t index) {
    buckets.attach(index);
    buckets.make_ready(index);
    return sent.size();
  };
  for (std::int64_t step = 1; step <= 2; ++step) {
    EXPECT_EQ(make_ready(0), 0u);
    EXPECT_EQ(make_ready(1), 0u);
    EXPECT_EQ(make_ready(2), 2u);
    EXPECT_EQ(std::exchange(sent, {}), (std::vector<std::size_t>{2, 1}));
    buckets.wait(buckets.first_sent());
    for (const std::size_t i : {0, 1, 2}) buckets.hand_over(i, i != 1);
    buckets.reset();
    EXPECT_EQ(buckets.stats().reductions, step);
    EXPECT_EQ(buckets.stats().bytes_reduced, 12 * step);
    EXPECT_EQ(buckets.parameters()[0].tensor.grad().to_vector<float>(), (std::vector<float>{0}));
    EXPECT_FALSE(buckets.parameters()[1].tensor.grad().defined());
  }
}

RANKS_TEST(GradientBucketsTest, WithoutMemoryForNewBucketsTheOldOnesStay, 1) {
  GradientBuckets buckets(trained({ones({1}), ones({2})}), kWords, {});
  buckets.make(group, {{0, 1}});
  {
    const FailAllocation second(Device(), 2);
    EXPECT_WEFT_ERROR(buckets.make(group, {{1}, {0}}), OutOfMemory, "");
  }
  EXPECT_EQ(buckets.names(), (std::vector<std::vector<std::string>>{{"a", "b"}}));
  EXPECT_EQ(buckets.stats().bucket_bytes, (std::vector<std::int64_t>{12}));
  for (const GradientBuckets::Parameter& p : buckets.parameters()) {
    EXPECT_EQ(p.bucket, 0u);
    EXPECT_EQ(p.place.storage().get(), buckets.buckets()[0].memory.storage().get());
  }
}

// By then the group itself says only that it has ended.
RANKS_TEST(GradientBucketsTest, ABucketThatCannotBeSentTellsWhyTheOneBeforeItFailed, 2) {
  if (group.rank() == 1) return;  // its group ends
  comm::Work first;
  int tries = 0;
  GradientBuckets buckets(trained({ones({1}), ones({1})}), kWords,
                          [&](const Tensor& memory) -> Reduction {
                            WEFT_CHECK(tries++ == 0, Comm, "op", "has ended");
                            return first = group.all_reduce(memory);
                          });
  buckets.make(group, {{0}, {1}});
  buckets.attach(0);
  buckets.make_ready(0);
  EXPECT_WEFT_ERROR(first.wait(), PeerFailed, "rank 1");
  buckets.attach(1);
  EXPECT_WEFT_ERROR(buckets.make_ready(1), PeerFailed, "rank 1");
  EXPECT_WEFT_ERROR(buckets.send_full(), PeerFailed, "rank 1");  // tries again
  EXPECT_EQ(tries, 3);
}

}  // namespace
}  // namespace weft::parallel
