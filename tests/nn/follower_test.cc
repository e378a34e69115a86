#include "weft/nn/follower.h"

#include <gtest/gtest.h>

#include "weft/autograd/autograd.h"
#include "weft/core/runtime/allocator.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft::nn {
namespace {

using testing::values_of;

class TwoDevices : public ::testing::Environment {
  void SetUp() override { set_host_devices(2); }
};
const auto* const environment = ::testing::AddGlobalTestEnvironment(new TwoDevices);

const Device kThere("cpu:1");

TEST(Follower, TakesOverValuesWhenTheyHaveChanged) {
  Linear fc(2, 1);
  Linear replica = replicate(fc, kThere);
  Follower follower(fc, replica);
  follower.follow();
  const std::uint32_t version = replica.weight.storage()->version();
  const void* const place = replica.weight.raw_data();
  follower.follow();
  EXPECT_EQ(replica.weight.storage()->version(), version) << "copied for nothing";
  raw::fill_(fc.weight, 7);
  follower.follow();
  EXPECT_EQ(values_of(replica.weight), (std::vector<double>{7, 7}));
  raw::fill_(replica.weight, 3);  // a write by other code
  follower.follow();
  EXPECT_EQ(values_of(replica.weight), (std::vector<double>{7, 7}));
  EXPECT_EQ(replica.weight.raw_data(), place);
  EXPECT_EQ(replica.weight.device(), kThere);
}

TEST(Follower, GradientsAreTheOriginals) {
  Linear fc(2, 1);
  Linear replica = replicate(fc, kThere);
  Follower follower(fc, replica);
  follower.follow();
  EXPECT_FALSE(replica.weight.is_leaf());
  replica(ones({3, 2}, {DType::f32, kThere})).sum().backward();
  EXPECT_EQ(values_of(fc.weight.grad()), (std::vector<double>{3, 3}));
  EXPECT_EQ(fc.weight.grad().device(), Device());
  EXPECT_FALSE(replica.weight.grad().defined());
  {
    const NoGrad no_grad;
    follower.follow();  // an earlier checkpoint may still be recomputed with it
    EXPECT_TRUE(replica.weight.requires_grad());
  }
  fc.weight.set_requires_grad(false);
  follower.follow();
  EXPECT_FALSE(replica.weight.requires_grad());
  EXPECT_TRUE(replica.bias.requires_grad());
}

TEST(Follower, TakesOverModesBuffersAndConversions) {
  Sequential net{Linear(2, 2), BatchNorm2d(2)};
  Sequential replica = replicate(net, kThere);
  Follower follower(net, replica);
  net.eval();
  raw::fill_(net[1].as<BatchNorm2d>()->running_mean, 4);
  follower.follow();
  EXPECT_FALSE(replica[1].is_training());
  EXPECT_EQ(values_of(replica[1].as<BatchNorm2d>()->running_mean), (std::vector<double>{4, 4}));
  net.to(DType::f64);
  follower.follow();
  EXPECT_EQ(replica.parameters()[0].dtype(), DType::f64);
  EXPECT_EQ(replica.parameters()[0].device(), kThere);
  EXPECT_EQ(values_of(replica.parameters()[0]), values_of(net.parameters()[0]));
  replace_batch_norms(net, "Other", [](const Tensor& x, auto&&...) { return x; });
  net.train();
  follower.follow();
  const Tensor x = ones({2, 2, 1, 1}, {DType::f64, kThere});
  EXPECT_TRUE((*replica[1].as<BatchNorm2d>())(x).same(x));
}

struct Tied : Module<Tied> {
  Linear a = child("a", Linear(2, 2, false));
  Parameter again = parameter("again", a.weight);
  Tensor forward(const Tensor& x) { return a(x) + matmul(x, again.t()); }
};

TEST(Follower, PartsTogetherAreEverythingButWhatIsConverted) {
  Sequential net{Linear(2, 2), Linear(8, 8), BatchNorm2d(3)};
  Sequential replica = replicate(net, kThere);
  Follower follower(net, replica);
  net[0].to(DType::f64);
  const auto change = [&] {
    for (const auto& [name, tensor] : net.state_dict()) raw::add_(tensor, 1);
  };
  const auto copied = [&](std::size_t n) {
    std::vector<int> times;
    for (const auto& [name, tensor] : replica.state_dict()) {
      times.push_back(-static_cast<int>(tensor.storage()->version()));
    }
    for (std::size_t i = 0; i < n; ++i) follower.copy_part(i, n);
    int at = 0;
    for (const auto& [name, tensor] : replica.state_dict()) {
      times[at++] += static_cast<int>(tensor.storage()->version());
    }
    return times;
  };
  EXPECT_EQ(replica.state_dict()[0].second.dtype(), DType::f32);
  for (const std::size_t n : {1, 2, 3, 20}) {
    change();
    // Two tensors of the first layer, two of the second, five of the norm.
    EXPECT_EQ(copied(n), (std::vector<int>{0, 0, 1, 1, 1, 1, 1, 1, 1})) << n << " parts";
  }
  follower.follow();
  const auto from = net.state_dict(), to = replica.state_dict();
  for (std::size_t i = 0; i < to.size(); ++i) {
    EXPECT_EQ(to[i].second.dtype(), from[i].second.dtype());
    EXPECT_EQ(values_of(to[i].second), values_of(from[i].second)) << to[i].first;
  }
  EXPECT_EQ(copied(2), std::vector<int>(9, 0)) << "copied for nothing";
}

TEST(Follower, PartsAreOfAboutTheSameSize) {
  Sequential net{Linear(8, 8, false), Linear(8, 8, false)};
  Sequential replica = replicate(net, kThere);
  Follower follower(net, replica);
  for (const auto& [name, tensor] : net.state_dict()) raw::fill_(tensor, 7);
  follower.copy_part(1, 2);
  EXPECT_NE(values_of(replica.parameters()[0])[0], 7);
  EXPECT_EQ(values_of(replica.parameters()[1])[0], 7);
}

TEST(Follower, ASharedParameterIsOne) {
  Tied net;
  Tied replica = replicate(net, kThere);
  Follower follower(net, replica);
  follower.follow();
  EXPECT_TRUE(replica.again.same(replica.a.weight));
  replica(ones({1, 2}, {DType::f32, kThere})).sum().backward();
  EXPECT_EQ(values_of(net.again.grad()), (std::vector<double>{2, 2, 2, 2}));
}

TEST(Follower, RefusesWhatIsBuiltOtherwise) {
  Sequential net{Linear(2, 2)}, other{Linear(2, 2), Linear(2, 2)};
  EXPECT_WEFT_ERROR(Follower(net, other), InvalidArgument, "has 1 children");
  Sequential replica = replicate(net, kThere);
  Follower follower(net, replica);
  net.append(Linear(2, 2));
  EXPECT_WEFT_ERROR(follower.follow(), InvalidArgument, "make the replica after the module");
}

}  // namespace
}  // namespace weft::nn
