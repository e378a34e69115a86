#include "weft/parallel/same_model.h"

#include <gtest/gtest.h>

#include <functional>

#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::parallel {
namespace {

nn::Sequential usual() { return {nn::Linear(4, 3), nn::ReLU(), nn::Linear(3, 2)}; }

// Rank 2 of three builds another model; all get the error.
void expect_difference(const std::function<nn::Sequential()>& other, const char* text) {
  comm::run_ranks(3, [&](comm::ProcessGroup& group) {
    const nn::Sequential model = group.rank() == 2 ? other() : usual();
    EXPECT_WEFT_ERROR(check_same_model(group, model, "cap=25"), InvalidArgument, text);
  });
}

RANKS_TEST(SameModelTest, EqualModelsPass, 3) { ; }

TEST(SameModelTest, AnotherShapeIsNamedOnEveryRank) {
  expect_difference(
      [] { return nn::Sequential{nn::Linear(4, 3), nn::ReLU(), nn::Linear(3, 5)}; },
      "rank 2 wraps another model than rank 0: it has \"parameter 2.weight f32 [5,3] of strides "
      "[3,1], trained\", rank 0 has \"parameter 2.weight f32 [2,3] of strides [3,1], trained\"");
}

TEST(SameModelTest, AnotherNameIsNamed) {
  expect_difference(
      [] { return nn::Sequential{nn::Linear(4, 3), nn::Linear(3, 2)}; },
      "it has \"parameter 1.weight f32 [2,3] of strides [3,1], trained\", rank 0 has \"parameter "
      "2.weight");
}

TEST(SameModelTest, AnotherDtypeIsNamed) {
  expect_difference(
      [] {
        nn::Sequential model = usual();
        model.to(DType::f64);
        return model;
      },
      "it has \"parameter 0.weight f64 ");
}

TEST(SameModelTest, FewerAndMoreTensorsAreNamed) {
  expect_difference([] { return nn::Sequential{nn::Linear(4, 3), nn::ReLU()}; },
                    "it has nothing behind \"parameter 0.bias");
  expect_difference(
      [] {
        return nn::Sequential{nn::Linear(4, 3), nn::ReLU(), nn::Linear(3, 2), nn::Linear(2, 2)};
      },
      "it has \"parameter 3.weight f32 [2,2] of strides [2,1], trained\", rank 0 has nothing "
      "behind \"parameter 2.bias");
  expect_difference(
      [] {
        return nn::Sequential{nn::Linear(4, 3), nn::BatchNorm2d(3, {.affine = false}),
                              nn::Linear(3, 2)};
      },
      "it has \"buffer 1.running_mean f32 [3] of strides [1], not trained\", rank 0 has nothing");
}

TEST(SameModelTest, AParameterFrozenOnOneRankIsNamed) {
  expect_difference(
      [] {
        nn::Sequential model = usual();
        model[2].requires_grad(false);
        return model;
      },
      "it has \"parameter 2.weight f32 [2,3] of strides [3,1], not trained\"");
}

RANKS_TEST(SameModelTest, OtherOptionsAreNamed, 2) {
  EXPECT_WEFT_ERROR(check_same_model(group, usual(), group.rank() == 0 ? "cap=25" : "cap=4"),
                    InvalidArgument,
                    "rank 1 wraps another model than rank 0: it has \"cap=4\", rank 0 has "
                    "\"cap=25\"");
}

}  // namespace
}  // namespace weft::parallel
