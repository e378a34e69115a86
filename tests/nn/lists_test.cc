// Sequential's parts, AnyModule, ModuleList, Identity, and the exponential moving average.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/any_module.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/ema.h"
#include "weft/nn/linear.h"
#include "weft/nn/module_dict.h"
#include "weft/nn/module_list.h"
#include "weft/nn/parameter_list.h"
#include "weft/nn/sequential.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::values_of;

struct Block : nn::Module<Block> {
  explicit Block(std::int64_t width) : fc(child("fc", nn::Linear(width, width))) {}
  nn::Linear fc;
  Tensor forward(const Tensor& x, double scale) const { return fc(x) * scale; }
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

// Assigning must not compile: it would leave the registered module in place.
template <class Dict, class M>
concept AssignableByName = requires(Dict& dict, M module) { dict["a"] = module; };
template <class Dict, class M>
concept AssignableInALoop = requires(Dict& dict, M module) { dict.begin()->second = module; };
static_assert(!AssignableByName<nn::ModuleDict<>, nn::Linear>);
static_assert(!AssignableByName<nn::ModuleDict<Block>, Block>);
static_assert(!AssignableInALoop<nn::ModuleDict<>, nn::AnyModule>);

TEST(ModuleDict, ChangesModulesThroughTheirHandles) {
  nn::ModuleDict<> heads{{"a", nn::Linear(3, 2)}};
  nn::AnyModule head = heads["a"];
  head.eval();
  EXPECT_FALSE(heads["a"].is_training());
  heads.insert("b", nn::Identity());
  EXPECT_EQ(heads.keys(), (std::vector<std::string>{"a", "b"}));
}

TEST(ModuleDict, KeepsNamesAndOrder) {
  struct Heads : nn::Module<Heads> {
    nn::ModuleDict<> heads =
        child("heads", nn::ModuleDict<>{{"b", nn::Linear(3, 2)}, {"a", nn::Identity()}});
    nn::ModuleDict<Block> blocks = child("blocks", nn::ModuleDict<Block>{{"x", Block(3)}});
    Tensor forward(const Tensor& x, std::string_view head) {
      return heads[head](blocks["x"](x, 2));
    }
  } net;
  EXPECT_EQ(names_of(net.state_dict()),
            (std::vector<std::string>{"heads.b.weight", "heads.b.bias", "blocks.x.fc.weight",
                                      "blocks.x.fc.bias"}));
  std::string order;
  for (const auto& [name, head] : net.heads) order += name + head.type_name() + " ";
  EXPECT_EQ(order, "bLinear aIdentity ");
  EXPECT_EQ(net.heads.size(), 2u);
  EXPECT_EQ(net.heads.keys(), (std::vector<std::string>{"b", "a"}));
  EXPECT_TRUE(net.heads.contains("a"));
  EXPECT_FALSE(net.heads.contains("c"));
  const Tensor x = testing::some({4, 3});
  const std::vector<double> want = values_of(net(x, "b"));
  Heads copy = nn::clone(net);
  raw::zero_(net.blocks["x"].fc.weight);
  EXPECT_EQ(values_of(copy(x, "b")), want);
  EXPECT_NE(values_of(net(x, "b")), want);
  EXPECT_WEFT_ERROR(net.heads["c"], InvalidArgument, "[ModuleDict] has no 'c'; use insert()");
  EXPECT_WEFT_ERROR(net.heads.insert("a", nn::Identity()), InvalidArgument, "already has a 'a'");
  EXPECT_WEFT_ERROR(net.heads.insert("a.b", nn::Identity()), InvalidArgument, "without dots");
  EXPECT_EQ(net.heads.size(), 2u);
}

TEST(ParameterList, AndDictAreTrainedAndCloned) {
  struct Scales : nn::Module<Scales> {
    nn::ParameterList list = child("list", nn::ParameterList{ones({2}), ones({1})});
    nn::ParameterDict dict = child("dict", nn::ParameterDict{{"b", ones({2})}, {"a", zeros({1})}});
    Tensor forward(Tensor x) {
      for (const nn::Parameter& p : list) x = x * p;
      return x * dict["b"] + dict["a"];
    }
  } net;
  EXPECT_EQ(names_of(net.named_parameters()),
            (std::vector<std::string>{"list.0", "list.1", "dict.b", "dict.a"}));
  net.list.append(ones({2}));
  EXPECT_EQ(net.list.size(), 3u);
  EXPECT_TRUE(net.list[2].same(net.parameters()[2]));
  Scales copy = nn::clone(net);
  copy(ones({2})).sum().backward();
  for (const Tensor& p : copy.parameters()) EXPECT_TRUE(p.grad().defined());
  for (const Tensor& p : net.parameters()) EXPECT_FALSE(p.grad().defined());
  raw::zero_(net.list[0]);
  EXPECT_EQ(values_of(copy(ones({2}))), (std::vector<double>{1, 1}));
  EXPECT_TRUE(net.dict.contains("a"));
  EXPECT_EQ(net.dict.size(), 2u);
  EXPECT_WEFT_ERROR(net.list[3], InvalidArgument, "[ParameterList] index 3 in a list of 3");
  EXPECT_WEFT_ERROR(net.dict["c"], InvalidArgument, "[ParameterDict] has no 'c'");
  EXPECT_WEFT_ERROR(net.dict.insert("a", ones({1})), InvalidArgument, "already has a 'a'");
}

TEST(Sequential, GivesItsElements) {
  nn::Sequential net{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)};
  EXPECT_EQ(net.size(), 3u);
  EXPECT_EQ(net[2].name(), "2");
  EXPECT_EQ(net[1].type_name(), "ReLU");
  ASSERT_NE(net[0].as<nn::Linear>(), nullptr);
  EXPECT_TRUE(net[0].as<nn::Linear>()->weight.same(net.parameters()[0]));
  EXPECT_EQ(net[1].as<nn::Linear>(), nullptr);
  Tensor x = testing::some({5, 3});
  const std::vector<double> want = values_of(net(x));
  std::vector<std::string> types;
  for (const nn::AnyModule& module : net) {
    types.push_back(module.type_name());
    x = module(x);
  }
  EXPECT_EQ(types, (std::vector<std::string>{"Linear", "ReLU", "Linear"}));
  EXPECT_EQ(values_of(x), want);
  EXPECT_WEFT_ERROR(net[3], InvalidArgument, "[Sequential] index 3 in a chain of 3");
}

TEST(Sequential, OfModulesWithNames) {
  const nn::Linear first(3, 4), last(4, 2);
  const nn::ReLU relu;
  nn::Sequential net(first, relu, last);
  EXPECT_EQ(names_of(net.state_dict()),
            (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"}));
  EXPECT_TRUE(net.parameters()[0].same(first.parameters()[0]));
  const nn::Sequential one(first), copy(net);
  EXPECT_EQ(one.size(), 1u);
  EXPECT_EQ(copy.size(), 3u);
}

TEST(Sequential, SlicesShareTheirModules) {
  nn::Sequential net{nn::Linear(3, 4), nn::BatchNorm2d(4), nn::ReLU(), nn::Linear(4, 2)};
  net.eval();
  net[3].as<nn::Linear>()->train();
  nn::Sequential part = net.slice(2, 4);
  EXPECT_EQ(part.size(), 2u);
  EXPECT_EQ(names_of(part.state_dict()), (std::vector<std::string>{"1.weight", "1.bias"}));
  EXPECT_TRUE(part.parameters()[0].same(net.parameters()[4]));
  EXPECT_FALSE(part.is_training());
  EXPECT_FALSE(part[0].is_training());
  EXPECT_TRUE(part[1].is_training()) << "a slice leaves its modules alone";
  EXPECT_EQ(part[1].name(), "1");
  EXPECT_EQ(net[3].name(), "3");
  EXPECT_WEFT_ERROR(part(ones({7})), Shape, " in 1 at ");
  EXPECT_WEFT_ERROR(net[3](ones({7})), Shape, " in 3 at ");

  nn::Sequential ends{nn::Linear(3, 4), nn::Linear(4, 4), nn::Linear(4, 2)};
  const Tensor x = testing::some({5, 3});
  EXPECT_EQ(values_of(ends.slice(1, 3)(ends.slice(0, 1)(x))), values_of(ends(x)));
  EXPECT_EQ(ends.slice(1, 1).size(), 0u);
  EXPECT_WEFT_ERROR(ends.slice(2, 1), InvalidArgument, "[Sequential] slice [2, 1) of a chain of 3");
  EXPECT_WEFT_ERROR(ends.slice(0, 4), InvalidArgument, "slice [0, 4)");

  // A copy of the slice has its own modules, which the chain and its other slices do not share.
  nn::Sequential copy = nn::clone(part);
  EXPECT_FALSE(copy.parameters()[0].same(part.parameters()[0]));
  EXPECT_EQ(names_of(copy.state_dict()), names_of(part.state_dict()));
}

// Fused or not, a batch norm and its activation give the same values, so a slice may separate them.
TEST(Sequential, SlicesBetweenABatchNormAndItsActivation) {
  nn::Sequential net{nn::BatchNorm2d(2), nn::LeakyReLU(0.1)};
  nn::Sequential same = nn::clone(net);
  const Tensor x = testing::some({3, 2, 4, 4});
  EXPECT_EQ(values_of(same.slice(1, 2)(same.slice(0, 1)(x))), values_of(net(x)));
}

struct Mix : nn::Module<Mix> {
  nn::Linear fc = child("fc", nn::Linear(3, 3));
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& x, Tensor y = Tensor()) {
    return {fc(x), {x, y.defined() ? y : x}};
  }
};
struct ListToArray : nn::Module<ListToArray> {
  std::array<Tensor, 2> forward(const std::vector<Tensor>& x) { return {x.at(1), x.at(0)}; }
};
struct Sink : nn::Module<Sink> {
  void forward(Tensor) {}
};
struct Source : nn::Module<Source> {
  Tensor forward() { return ones({1}); }
};
struct Scaled : nn::Module<Scaled> {
  Tensor forward(const Tensor& x, double by) { return x * by; }
};
static_assert(!std::convertible_to<Scaled, nn::AnyModule>, "its forward takes a number");

TEST(AnyModule, TakesAndGivesLists) {
  const Tensor x = testing::some({2, 3}), y = testing::some({2, 2});
  Mix mix;
  const nn::AnyModule any = mix;
  const std::vector<Tensor> two = any(std::vector{x, y});
  ASSERT_EQ(two.size(), 3u);
  EXPECT_EQ(values_of(two[0]), values_of(mix.fc(x)));
  EXPECT_TRUE(two[1].same(x));
  EXPECT_TRUE(two[2].same(y));
  EXPECT_TRUE(any(std::vector{x})[2].same(x)) << "the second has a default";

  const nn::AnyModule swap = ListToArray(), sink = Sink(), source = Source();
  EXPECT_TRUE(swap(std::vector{x, y})[0].same(y));
  EXPECT_EQ(sink(std::vector{x}).size(), 0u);
  EXPECT_EQ(source(std::span<const Tensor>()).size(), 1u);

  EXPECT_WEFT_ERROR(any(std::vector{x, x, x}), InvalidArgument,
                    "[Mix] its forward does not take 3 tensors");
  EXPECT_WEFT_ERROR(source(x), InvalidArgument, "[Source] its forward does not take 1 tensor at");
  EXPECT_WEFT_ERROR(any(x), InvalidArgument, "[Mix] expected one tensor of its forward, got 3");
  EXPECT_WEFT_ERROR(sink(x), InvalidArgument, "[Sink] expected one tensor of its forward, got 0");
}

TEST(AnyModule, IsAHandleOnItsModule) {
  Mix mix;
  nn::AnyModule any = mix;
  EXPECT_EQ(any.type_name(), "Mix");
  EXPECT_EQ(names_of(any.state_dict()), (std::vector<std::string>{"fc.weight", "fc.bias"}));
  EXPECT_TRUE(any.parameters()[0].same(mix.fc.weight));
  any.eval();
  EXPECT_FALSE(mix.fc.is_training());
  EXPECT_EQ(any.to_string(), mix.to_string());
  const nn::AnyModule other = any;
  EXPECT_EQ(other.as<Mix>(), any.as<Mix>()) << "copies share the module";
  EXPECT_WEFT_ERROR(any(std::vector{ones({7})}), Shape, " in fc at ");
}

TEST(AnyModule, PassesTensorsThrough) {
  const Tensor x = testing::some({2, 3}), skip = testing::some({2, 5}), other = testing::some({1});
  nn::Linear fc(3, 4);
  nn::AnyModule one = nn::pass_through(fc);
  const std::vector<Tensor> two = one(std::vector{x, skip});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(values_of(two[0]), values_of(fc(x)));
  EXPECT_TRUE(two[1].same(skip));
  const std::vector<Tensor> three = nn::pass_through(fc, 2)(std::vector{x, skip, other});
  ASSERT_EQ(three.size(), 3u);
  EXPECT_TRUE(three[1].same(skip));
  EXPECT_TRUE(three[2].same(other));
  EXPECT_EQ(nn::pass_through(nn::Identity(), 0)(x).to_vector<double>(), x.to_vector<double>());

  // An AnyModule reports the type of the module that it holds.
  EXPECT_EQ(one.type_name(), "Linear");
  EXPECT_EQ(names_of(one.state_dict()), names_of(fc.state_dict()));
  EXPECT_TRUE(one.parameters()[0].same(fc.weight));
  one.eval();
  EXPECT_FALSE(fc.is_training());
  EXPECT_EQ(one.as<nn::Linear>(), nullptr);
  nn::AnyModule copy = nn::clone(one);
  EXPECT_FALSE(copy.parameters()[0].same(fc.weight));
  EXPECT_EQ(values_of(copy(std::vector{x, skip})[0]), values_of(fc(x)));
  EXPECT_TRUE(copy(std::vector{x, skip})[1].same(skip));

  struct Net : nn::Module<Net> {
    nn::Linear middle = child("middle", nn::Linear(3, 4));
  };
  const Net net;
  EXPECT_WEFT_ERROR(nn::pass_through(net.middle)(std::vector{ones({7}), skip}), Shape,
                    " in middle at ");
  EXPECT_WEFT_ERROR(nn::pass_through(fc, 2)(std::vector{x}), InvalidArgument,
                    "[Linear] has 2 tensors to pass through, got 1");
  EXPECT_WEFT_ERROR(one(std::vector{x, x, skip}), InvalidArgument, "does not take 2 tensors");
}

TEST(AnyModule, ClonesAndReplicates) {
  set_host_devices(2);
  const nn::AnyModule any = nn::Sequential{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)};
  const Tensor x = testing::some({5, 3});
  const std::vector<double> want = values_of(any(x));
  nn::AnyModule copy = nn::clone(any);
  EXPECT_EQ(values_of(copy(x)), want);
  {
    const NoGrad no_grad;
    for (const Tensor& p : copy.parameters()) p.mul_(2);
  }
  EXPECT_EQ(values_of(any(x)), want);
  EXPECT_NE(values_of(copy(x)), want);
  EXPECT_TRUE(copy.as<nn::Sequential>()->parameters()[0].same(copy.parameters()[0]));

  const nn::AnyModule there = nn::replicate(any, "cpu:1");
  const Tensor y = there(std::vector{x.to("cpu:1")})[0];
  EXPECT_EQ(y.device(), Device("cpu:1"));
  EXPECT_EQ(values_of(y), want);

  struct Stages : nn::Module<Stages> {
    std::vector<nn::AnyModule> stages;
    explicit Stages(const nn::AnyModule& stage) { stages.push_back(child("0", stage)); }
    Tensor forward(const Tensor& x) { return stages[0](x); }
  };
  Stages stages(any);
  EXPECT_EQ(names_of(stages.state_dict()).front(), "0.0.weight");
  Stages own = nn::clone(stages);
  EXPECT_FALSE(own.stages[0].parameters()[0].same(any.parameters()[0]));
  EXPECT_EQ(values_of(own(x)), want);
  EXPECT_WEFT_ERROR(own(ones({7})), Shape, " in 0.0 at ");
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
  // Three steps with three roundings each, for values below 4.
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
  const auto count =
      std::ranges::find(state, "count", [](const auto& entry) { return entry.first; });
  ASSERT_NE(count, state.end());
  count->second = zeros({7});
  EXPECT_WEFT_ERROR(ema.load_state_dict(state), InvalidArgument, "count is [7], expected [1]");
  state.erase(count);
  EXPECT_WEFT_ERROR(ema.load_state_dict(state), InvalidArgument, "missing count");
}

TEST_F(EmaTest, HasTheNamesOfTheModelsStateDict) {
  struct Tied : nn::Module<Tied> {
    nn::Linear in = child("in", nn::Linear(3, 3));
    nn::Parameter again = parameter("again", in.weight);
    Tensor forward(const Tensor& x) { return in(x); }
  } tied;
  nn::ExponentialMovingAverage ema(tied, 0.5);
  EXPECT_EQ(names_of(ema.state_dict()), names_of(tied.state_dict()));
  EXPECT_EQ(ema.state_dict().size(), 3u);
  const std::vector<double> own = values_of(tied.in.weight);
  {
    const NoGrad no_grad;
    tied.in.weight.mul_(2);
  }
  tied.load_state_dict(ema.state_dict());
  EXPECT_EQ(values_of(tied.in.weight), own);
  ema.load_state_dict(tied.state_dict());
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

TEST_F(EmaTest, AMovedModelNeedsAveragesThatMoved) {
  set_host_devices(2);
  nn::ExponentialMovingAverage ema(net_, 0.5);
  const auto averages = [&] {
    std::vector<std::vector<double>> all;
    for (const auto& [name, average] : ema.state_dict()) all.push_back(values_of(average));
    return all;
  };
  const std::vector<std::vector<double>> before = averages();
  net_.to("cpu:1");
  EXPECT_WEFT_ERROR(ema.update(), Device,
                    "[ema] the averages are on cpu:0, the model is on cpu:1; make them after to(");
  EXPECT_EQ(averages(), before);

  nn::ExponentialMovingAverage moved(net_, 0.5);
  moved.load_state_dict(ema.state_dict());
  moved.update();
  EXPECT_EQ(values_of(moved.state_dict()[0].second), before[0]);
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
