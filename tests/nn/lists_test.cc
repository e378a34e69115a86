// ModuleList, Identity, and the exponential moving average.
#include <gtest/gtest.h>

#include "weft/autograd/autograd.h"
#include "weft/core/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/ema.h"
#include "weft/nn/linear.h"
#include "weft/nn/module_list.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::values_of;

struct Block : nn::Module<Block> {
  explicit Block(std::int64_t width) : fc(child("fc", nn::Linear(width, width))) {}
  nn::Linear fc;
  Tensor forward(const Tensor& x, double scale) { return fc(x) * scale; }
};

struct Net : nn::Module<Net> {
  nn::ModuleList<Block> blocks = child("blocks", nn::ModuleList<Block>{Block(3), Block(3)});
  nn::ModuleList<> heads = child("heads", nn::ModuleList<>{nn::Linear(3, 2), nn::Identity()});
  nn::Parameter count = buffer("count", zeros({1}));
  Tensor forward(Tensor x) {
    for (Block& block : blocks) x = block(x, 2);
    return heads[1](heads[0](x));
  }
};

std::vector<std::string> names_of(const nn::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(ModuleList, NamesItsModulesByNumber) {
  Net net;
  EXPECT_EQ(names_of(net.state_dict()),
            (std::vector<std::string>{"count", "blocks.0.fc.weight", "blocks.0.fc.bias",
                                      "blocks.1.fc.weight", "blocks.1.fc.bias", "heads.0.weight",
                                      "heads.0.bias"}));
  EXPECT_EQ(net.blocks.size(), 2u);
  EXPECT_EQ(net.blocks.type_name(), "ModuleList");
  net.blocks.append(Block(3));
  EXPECT_EQ(net.named_parameters().size(), 8u);
  EXPECT_EQ(net.blocks[2].name(), "2");
  EXPECT_WEFT_ERROR(net.blocks[3], InvalidArgument, "[ModuleList] index 3 in a list of 3");
}

TEST(ModuleList, ComputesLikeItsModules) {
  Net net;
  const Tensor x = testing::some({4, 3});
  const Tensor want = net.heads[0](net.blocks[1].fc(net.blocks[0].fc(x) * 2.0) * 2.0);
  EXPECT_EQ(values_of(net(x)), values_of(want));
  EXPECT_TRUE(nn::Identity()(x).same(x));
  net.eval();
  EXPECT_FALSE(net.blocks[1].fc.is_training());
}

TEST(ModuleList, ClonesAndLoads) {
  Net net;
  Net copy = nn::clone(net);
  const Tensor x = testing::some({4, 3});
  const std::vector<double> before = values_of(net(x));
  EXPECT_EQ(values_of(copy(x)), before);
  {
    const NoGrad no_grad;
    for (const Tensor& p : copy.parameters()) p.mul_(2);
  }
  EXPECT_EQ(values_of(net(x)), before);
  EXPECT_NE(values_of(copy(x)), before);
  copy.load_state_dict(net.state_dict());
  EXPECT_EQ(values_of(copy(x)), before);
}

class EmaTest : public ::testing::Test {
 protected:
  void move_parameters(double by) {
    for (const Tensor& p : net_.parameters()) raw::add_(p, by);
    raw::add_(net_.count, 1);
  }
  std::vector<double> weight() { return values_of(net_.blocks[0].fc.weight); }

  Net net_;
};

TEST_F(EmaTest, AveragesParametersAndCopiesBuffers) {
  nn::ExponentialMovingAverage ema(net_, 0.75);
  std::vector<double> want = weight();
  for (int step = 0; step < 3; ++step) {
    move_parameters(1);
    ema.update();
    const std::vector<double> now = weight();
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = 0.75 * want[i] + 0.25 * now[i];
  }
  const std::vector<double> own = weight();
  ema.apply();
  // Three steps of three roundings each, of values below 4.
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(weight()[i], want[i], 9 * 0x1p-22);
  EXPECT_EQ(values_of(net_.count), std::vector<double>{3});
  EXPECT_TRUE(net_.blocks[0].fc.weight.requires_grad());
  ema.restore();
  EXPECT_EQ(weight(), own);
}

TEST_F(EmaTest, SavesAndLoads) {
  nn::ExponentialMovingAverage ema(net_, 0.5);
  move_parameters(1);
  ema.update();
  nn::ExponentialMovingAverage other(net_, 0.5);
  other.load_state_dict(ema.state_dict());
  ema.apply();
  const std::vector<double> want = weight();
  ema.restore();
  other.apply();
  EXPECT_EQ(weight(), want);
  EXPECT_EQ(names_of(ema.state_dict()).size(), net_.state_dict().size());
  auto state = ema.state_dict();
  state.back().second = zeros({7});
  EXPECT_WEFT_ERROR(ema.load_state_dict(state), InvalidArgument, "count is [7], expected [1]");
  state.pop_back();
  EXPECT_WEFT_ERROR(ema.load_state_dict(state), InvalidArgument, "missing count");
}

TEST_F(EmaTest, RefusesWhatIsOutOfTurn) {
  EXPECT_WEFT_ERROR(nn::ExponentialMovingAverage(net_, 1.5), InvalidArgument,
                    "[ema] decay: got 1.5");
  nn::ExponentialMovingAverage ema(net_, 0.5);
  EXPECT_WEFT_ERROR(ema.restore(), InvalidArgument, "without apply()");
  ema.apply();
  EXPECT_WEFT_ERROR(ema.apply(), InvalidArgument, "holds the averages already");
  EXPECT_WEFT_ERROR(ema.update(), InvalidArgument, "call restore() first");
}

TEST_F(EmaTest, AnUpdateAllocatesNothing) {
  nn::ExponentialMovingAverage ema(net_, 0.5);
  ema.update();
  const auto before = testing::heap_count();
  ema.update();
  EXPECT_EQ(testing::heap_count(), before);
}

}  // namespace
}  // namespace weft
