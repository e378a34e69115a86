#include "weft/parallel/scatter_gather.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/devices.h"

namespace weft::parallel {
namespace {

using Sizes = std::vector<std::int64_t>;
using Values = std::vector<double>;

TEST(PartSizes, AreThoseOfPyTorchsChunk) {
  EXPECT_EQ(part_sizes(5, 4), (Sizes{2, 2, 1}));
  EXPECT_EQ(part_sizes(32, 3), (Sizes{11, 11, 10}));
  EXPECT_EQ(part_sizes(8, 4), (Sizes{2, 2, 2, 2}));
  EXPECT_EQ(part_sizes(9, 4), (Sizes{3, 3, 3}));
  EXPECT_EQ(part_sizes(1, 3), (Sizes{1}));
  EXPECT_EQ(part_sizes(7, 1), (Sizes{7}));
  EXPECT_EQ(part_sizes(0, 2), (Sizes{0}));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(part_sizes(most, 2), (Sizes{std::int64_t{1} << 62, (std::int64_t{1} << 62) - 1}));
  EXPECT_EQ(part_sizes(most, 2, Values{1, 1}), part_sizes(most, 2));
  EXPECT_WEFT_ERROR(part_sizes(-1, 2), InvalidArgument, "got -1 rows");
  EXPECT_WEFT_ERROR(part_sizes(4, 0), InvalidArgument, "got 0 parts, expected 1 to 16777216");
}

TEST(PartSizes, FollowTheWeights) {
  EXPECT_EQ(part_sizes(12, 3, Values{1, 2, 3}), (Sizes{2, 4, 6}));
  EXPECT_EQ(part_sizes(10, 2, Values{0.3, 0.7}), (Sizes{3, 7}));
  EXPECT_EQ(part_sizes(10, 3, Values{1, 1, 1}), (Sizes{3, 4, 3}));
  EXPECT_EQ(part_sizes(1, 2, Values{1, 3}), (Sizes{1}));
  EXPECT_EQ(part_sizes(3, 3, Values{1, 8, 1}), (Sizes{1, 2}));
  EXPECT_EQ(part_sizes(4, 3, Values{1, 1, 98}), (Sizes{1, 1, 2}));
  EXPECT_EQ(part_sizes(2, 3, Values{4, 4, 1}), (Sizes{1, 1}));
  EXPECT_EQ(part_sizes(0, 2, Values{1, 3}), (Sizes{0}));
  EXPECT_WEFT_ERROR(part_sizes(4, 2, Values{1}), InvalidArgument, "1 weights for 2 devices");
  EXPECT_WEFT_ERROR(part_sizes(4, 2, Values{1, 0}), InvalidArgument, "a number above 0");
  EXPECT_WEFT_ERROR(part_sizes(4, 1, Values{1.0 / 0.0}), InvalidArgument, "a number above 0");
}

struct Batch {
  Tensor x;
  std::map<std::string, Tensor> more;
  std::optional<Tensor> mask;
  std::string file = "a";
  auto tensors() { return std::tie(x, more, mask); }
};

struct Opaque {
  virtual ~Opaque() = default;
};

class ScatterGather : public testing::DevicesTest {
 protected:
  /// 0, 1, 2, ... in rows of two.
  static Tensor rows(std::int64_t n) {
    Values values;
    for (std::int64_t i = 0; i < 2 * n; ++i) values.push_back(static_cast<double>(i));
    return from_vector(values, {n, 2}, Device()).to(first());
  }
};

TEST_P(ScatterGather, WhatIsNestedIsCutAndJoined) {
  const auto two = devices(2);
  const Batch whole{rows(5), {{"label", rows(5)}, {"scale", full({}, 3).to(first())}}, {}, "file"};
  const std::vector<Batch> parts = scatter(whole, two);
  ASSERT_EQ(parts.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(parts[i].x.device(), two[i]);
    EXPECT_EQ(parts[i].more.at("label").device(), two[i]);
    EXPECT_EQ(parts[i].more.at("scale").item<double>(), 3);
    EXPECT_EQ(parts[i].file, "file");
  }
  EXPECT_EQ(parts[0].x.to_vector<double>(), (Values{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(parts[1].x.to_vector<double>(), (Values{6, 7, 8, 9}));

  const Batch joined = gather(parts, two[1]);
  EXPECT_EQ(joined.x.device(), two[1]);
  EXPECT_EQ(joined.x.to_vector<double>(), whole.x.to_vector<double>());
  EXPECT_EQ(joined.more.at("scale").to_vector<double>(), (Values{3, 3}));
  EXPECT_EQ(joined.file, "file");
}

TEST_P(ScatterGather, AnotherDimension) {
  const auto two = devices(2);
  const auto parts = scatter(rows(3), two, {.dim = 1});
  EXPECT_EQ(parts[1].to_vector<double>(), (Values{1, 3, 5}));
  EXPECT_EQ(gather(parts, two[0], -1).to_vector<double>(), rows(3).to_vector<double>());
}

TEST_P(ScatterGather, GradientsGoTheOtherWay) {
  const auto two = devices(2);
  const Tensor x = rows(3).set_requires_grad();
  const auto parts = scatter(x, two);
  const Tensor y = gather(std::vector<Tensor>{parts[0] * 2, parts[1] * 10}, two[1]);
  (y * rows(3).to(two[1])).sum().backward();
  EXPECT_EQ(x.grad().device(), two[0]);
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 2, 4, 6, 40, 50}));
}

TEST_P(ScatterGather, ScalarsBecomeAVector) {
  const auto two = devices(2);
  const std::vector<Tensor> losses = {full({}, 1, {DType::f32, two[0]}).set_requires_grad(),
                                      full({}, 5, {DType::f32, two[1]}).set_requires_grad()};
  const Tensor all = gather(losses, two[0]);
  EXPECT_EQ(all.shape(), (Shape{2}));
  all.mean().backward();
  EXPECT_EQ(losses[1].grad().device(), two[1]);
  EXPECT_EQ(losses[1].grad().item<double>(), 0.5);
}

TEST_P(ScatterGather, NothingIsCutThatHasNoRows) {
  const auto two = devices(2);
  const std::vector<Tensor> parts = scatter(zeros({0, 2}), two);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].device(), two[0]);
  EXPECT_EQ(scatter(std::string("text"), two).size(), 1u);
  EXPECT_EQ(gather(parts, two[1]).shape(), (Shape{0, 2}));
}

TEST_P(ScatterGather, SaysWhatDoesNotFit) {
  const auto two = devices(2);
  EXPECT_WEFT_ERROR(scatter(std::vector<Tensor>{rows(3), rows(4)}, two), Shape,
                    "a tensor [4,2] has 4 rows in dimension 0, one before it 3");
  EXPECT_WEFT_ERROR(scatter(Opaque(), two), InvalidArgument, "Opaque");
  EXPECT_WEFT_ERROR(scatter(rows(3), {}), InvalidArgument, "at least one device");
  EXPECT_WEFT_ERROR(gather(std::vector<Tensor>(), two[0]), InvalidArgument, "at least one part");
  EXPECT_WEFT_ERROR(gather(std::vector<Tensor>{rows(2), zeros({2, 3}).to(two[1])}, two[0]), Shape,
                    "a part is [2,3] f32, the first is [2,2] f64");
  EXPECT_WEFT_ERROR(gather(std::vector<Tensor>{rows(2), Tensor()}, two[0]), InvalidArgument,
                    "defined in one part");
  EXPECT_WEFT_ERROR(gather(std::vector<std::vector<Tensor>>{{rows(2)}, {rows(2), rows(2)}}, two[0]),
                    InvalidArgument, "part 1 has 2 tensors, part 0 has 1");
}

WEFT_ON_DEVICES(ScatterGather);

}  // namespace
}  // namespace weft::parallel
