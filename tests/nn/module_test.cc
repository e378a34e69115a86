// Modules: names, state, copies, printing, paths in errors.
#include "weft/nn/module.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/nn/activation.h"
#include "weft/nn/any_module.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/dropout.h"
#include "weft/nn/group_norm.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/module_list.h"
#include "weft/nn/pooling.h"
#include "weft/nn/sequential.h"
#include "weft/nn/wrapper_prefix.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/goldens.h"

namespace weft {
namespace {

const testing::Goldens goldens("tests/nn/goldens");

struct Block : nn::Module<Block> {
  nn::Linear fc1 = child("fc1", nn::Linear(4, 3));
  nn::Parameter scale = parameter("scale", ones({3}));
  nn::Parameter count = buffer("count", zeros({}, DType::i64));
  Tensor forward(const Tensor& x) { return relu(fc1(x)) * scale; }
};

struct Net : nn::Module<Net> {
  Block block = child("block", Block());
  nn::Sequential head =
      child("head", nn::Sequential{nn::Linear(3, 2), nn::ReLU(), nn::Linear(2, 2, false)});
  Tensor forward(const Tensor& x) { return head(block(x)); }
};

std::vector<std::string> names_of(const nn::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(Module, NamesTensorsByPathInOrder) {
  Net net;
  EXPECT_EQ(names_of(net.named_parameters()),
            (std::vector<std::string>{"block.scale", "block.fc1.weight", "block.fc1.bias",
                                      "head.0.weight", "head.0.bias", "head.2.weight"}));
  EXPECT_EQ(names_of(net.named_buffers()), (std::vector<std::string>{"block.count"}));
  EXPECT_EQ(net.parameter_count(), 3 + 12 + 3 + 6 + 2 + 4);
  EXPECT_TRUE(net.block.named_parameters(false)[0].second.same(net.block.scale));
  EXPECT_EQ(net.block.named_parameters(false).size(), 1u);
}

TEST(Module, StaysConnectedAfterMove) {
  auto make = [] {
    Net net;
    Net other = std::move(net);
    return other;
  };
  Net net = make();
  net.block.fc1.weight.set_grad(ones({3, 4}));
  EXPECT_TRUE(net.named_parameters()[1].second.grad().defined());
  net.to(DType::f64);
  EXPECT_EQ(net.block.fc1.weight.dtype(), DType::f64);
  EXPECT_EQ(net.block.fc1.weight.grad().dtype(), DType::f64);
  EXPECT_EQ(net.block.count.dtype(), DType::i64);
  EXPECT_EQ(net(zeros({5, 4}, DType::f64)).shape(), (Shape{5, 2}));
}

TEST(Module, CopyIsTheSameModuleAndCloneIsNot) {
  Net net;
  Net same = net;
  EXPECT_TRUE(same.block.scale.same(net.block.scale));

  net.eval();
  Net copy = nn::clone(net);
  EXPECT_FALSE(copy.is_training());
  EXPECT_FALSE(copy.block.scale.same(net.block.scale));
  EXPECT_TRUE(copy.block.scale.is_leaf());
  EXPECT_TRUE(copy.block.scale.requires_grad());
  EXPECT_EQ(names_of(copy.state_dict()), names_of(net.state_dict()));
  const Tensor x = rand({5, 4});
  EXPECT_EQ(copy(x).to_vector<float>(), net(x).to_vector<float>());

  // Every way to reach a tensor of the clone leads to the clone's own tensor.
  {
    NoGrad guard;
    for (const auto& [name, tensor] : copy.named_parameters()) tensor.fill_(0);
  }
  EXPECT_EQ(copy(x).to_vector<float>(), std::vector<float>(10, 0.f));
  EXPECT_NE(net.block.scale.to_vector<float>(), copy.block.scale.to_vector<float>());
  EXPECT_EQ(copy.block.scale.to_vector<float>(), std::vector<float>(3, 0.f));
}

TEST(Module, CloneKeepsTiedParametersTied) {
  struct Tied : nn::Module<Tied> {
    nn::Parameter a = parameter("a", ones({2}));
    nn::Parameter b = parameter("b", a);
    Tensor forward(const Tensor& x) { return x * a * b; }
  };
  Tied tied;
  EXPECT_EQ(tied.parameters().size(), 1u);
  Tied copy = nn::clone(tied);
  EXPECT_TRUE(copy.a.same(copy.b));
  EXPECT_FALSE(copy.a.same(tied.a));
}

TEST(Module, CloneRefusesWhatItCannotReach) {
  struct Hidden : nn::Module<Hidden> {
    Tensor weight = parameter("weight", ones({2}));  // a plain Tensor stays shared
    Tensor forward(const Tensor& x) { return x * weight; }
  };
  Hidden hidden;
  EXPECT_WEFT_ERROR(nn::clone(hidden), InvalidArgument,
                    "[clone] weight is still shared with the original");
}

TEST(Module, VectorOfModulesClones) {
  struct Stack : nn::Module<Stack> {
    std::vector<nn::Linear> layers;
    Stack() {
      for (int i = 0; i < 3; ++i)
        layers.push_back(child("layer" + std::to_string(i), nn::Linear(2, 2)));
    }
    Tensor forward(Tensor x) {
      for (auto& l : layers) x = l(x);
      return x;
    }
  };
  Stack stack;
  Stack copy = nn::clone(stack);
  EXPECT_FALSE(copy.layers[2].weight.same(stack.layers[2].weight));
  const Tensor x = rand({1, 2});
  EXPECT_EQ(copy(x).to_vector<float>(), stack(x).to_vector<float>());
}

TEST(Module, ReplicatesOntoAnotherDevice) {
  set_host_devices(2);
  Net net;
  Net replica = nn::replicate(net, "cpu:1");
  EXPECT_EQ(replica.block.fc1.weight.device(), Device("cpu:1"));
  EXPECT_EQ(net.block.fc1.weight.device(), Device("cpu:0"));
  const Tensor x = rand({5, 4});
  const Tensor y = replica(x.to("cpu:1"));
  EXPECT_EQ(y.device(), Device("cpu:1"));
  EXPECT_EQ(y.to_vector<float>(), net(x).to_vector<float>());
}

TEST(Module, LoadsStrictlyOrNot) {
  Net from, to;
  auto state = from.state_dict();
  to.load_state_dict(state);
  EXPECT_EQ(to.head.state_dict()[0].second.to_vector<float>(),
            from.head.state_dict()[0].second.to_vector<float>());

  const auto before = to.block.scale.to_vector<float>();
  state.erase(state.begin() + 3);  // block.fc1.bias
  state.emplace_back("extra", ones({1}));
  state[0].second = full({3}, 9);
  EXPECT_WEFT_ERROR(to.load_state_dict(state), InvalidArgument, "missing: block.fc1.bias");
  EXPECT_WEFT_ERROR(to.load_state_dict(state), InvalidArgument, "unexpected: extra");
  EXPECT_EQ(to.block.scale.to_vector<float>(), before);

  const nn::LoadResult result = to.load_state_dict(state, false);
  EXPECT_EQ(result.missing, std::vector<std::string>{"block.fc1.bias"});
  EXPECT_EQ(result.unexpected, std::vector<std::string>{"extra"});
  EXPECT_EQ(to.block.scale.to_vector<float>(), std::vector<float>(3, 9.f));

  state[0].second = ones({4});
  EXPECT_WEFT_ERROR(to.load_state_dict(state, false), InvalidArgument,
                    "of another shape: block.scale [4] for [3]");
}

nn::NamedTensors prefixed(const nn::NamedTensors& values, const std::string& prefix) {
  nn::NamedTensors result;
  for (const auto& [name, value] : values) result.emplace_back(prefix + name, value);
  return result;
}

TEST(Module, StripsWhatWrappersPutBeforeNames) {
  const nn::NamedTensors own = Net().state_dict();
  const auto names = [](const nn::NamedTensors& values) {
    std::vector<std::string> list;
    for (const auto& item : values) list.push_back(item.first);
    return list;
  };
  for (const char* prefix : {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."}) {
    const nn::NamedTensors wrapped = prefixed(own, prefix);
    EXPECT_EQ(nn::wrapper_prefix(wrapped), prefix);
    EXPECT_EQ(names(nn::strip_wrappers(wrapped)), names(own));
  }
  // The stages of a pipeline have other numbers.
  nn::NamedTensors stages = own;
  for (std::size_t i = 0; i < stages.size(); ++i)
    stages[i].first = "partitions." + std::to_string(7 * i) + "." + stages[i].first;
  EXPECT_EQ(nn::wrapper_prefix(stages), "partitions.N.");
  EXPECT_EQ(names(nn::strip_wrappers(stages)), names(own));
  // If one name lacks the prefix, or two would become equal, the prefix belongs to the names.
  EXPECT_EQ(nn::wrapper_prefix({{"module.a", ones({1})}, {"a", ones({1})}}), "");
  EXPECT_EQ(nn::wrapper_prefix({{"partitions.0.a", ones({1})}, {"partitions.1.a", ones({1})}}), "");
  EXPECT_EQ(nn::wrapper_prefix({{"partitions.x.a", ones({1})}}), "");
  EXPECT_EQ(nn::wrapper_prefix({{"modules.a", ones({1})}}), "");
  EXPECT_EQ(nn::wrapper_prefix({}), "");
}

TEST(Module, KeepsAPrefixThatIsTheModelsOwn) {
  const nn::NamedTensors own = prefixed(Net().state_dict(), "module.");
  const std::string first = own[0].first;
  for (const char* wrapper : {"", "module.", "_orig_mod.", "_orig_mod.module."}) {
    EXPECT_EQ(nn::strip_wrappers(prefixed(own, wrapper), own)[0].first, first) << wrapper;
  }
  EXPECT_EQ("module." + nn::strip_wrappers(own, Net().state_dict())[0].first, first);
  EXPECT_EQ(nn::strip_wrappers(Net().state_dict(), own)[0].first,
            Net().state_dict()[0].first);  // of another model
}

TEST(Module, SaysThatNamesHaveAWrappersPrefix) {
  Net net;
  const nn::NamedTensors own = net.state_dict();
  EXPECT_WEFT_ERROR(net.load_state_dict(prefixed(own, "module.")), InvalidArgument,
                    "; all names begin with \"module.\", as a wrapper of PyTorch's saves them: "
                    "nn::strip_wrappers(values) removes it");
  try {
    net.load_state_dict(prefixed(own, "net."));
  } catch (const Error& error) {
    EXPECT_LACKS(error.what(), "strip_wrappers");
  }
  net.load_state_dict(nn::strip_wrappers(prefixed(own, "module.")));
}

TEST(Module, AForeignModelIsNotListedWhole) {
  nn::Sequential to{nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2),
                    nn::Linear(2, 2)};
  nn::NamedTensors renamed, reshaped;
  for (const auto& [name, tensor] : to.state_dict()) {
    renamed.emplace_back("net." + name, tensor);
    reshaped.emplace_back(name, ones({3}));
  }
  const auto expect = [&](const nn::NamedTensors& state, const std::string& part) {
    EXPECT_WEFT_ERROR(to.load_state_dict(state), InvalidArgument, part);
  };
  expect(renamed,
         "model than Sequential: missing: 0.weight, 0.bias, 1.weight, 1.bias, 2.weight, 2.bias, "
         "3.weight, 3.bias and 2 more; unexpected: net.0.weight, ");
  expect(renamed, ", net.3.bias and 2 more at ");
  expect(reshaped, "Sequential: of another shape: 0.weight [3] for [2,2], 0.bias [3] for [2], ");
  expect(reshaped, ", 3.bias [3] for [2] and 2 more at ");
}

TEST(Module, ErrorsNameTheModulePath) {
  Net net;
  EXPECT_WEFT_ERROR(net(ones({5, 7})), Shape, "in block.fc1");
}

struct Forgetful : nn::Module<Forgetful> {
  nn::Linear kept = child("kept", nn::Linear(4, 4));
  nn::Linear forgotten = nn::Linear(4, 4);
  nn::ReLU without_parameters;
  Tensor forward(const Tensor& x) { return forgotten(without_parameters(kept(x))); }
};

TEST(Module, APartThatIsNoChildIsAnErrorWhereItWouldBeTrained) {
  Forgetful net;
  EXPECT_WEFT_ERROR(net(ones({1, 4})), InvalidArgument,
                    "a Linear is called within the forward of another module and is no child of "
                    "one: it would be neither trained nor saved. Make the member a child: `Linear "
                    "part = child(\"part\", Linear(...));`");
  {
    const NoGrad no_grad;
    EXPECT_EQ(net(ones({1, 4})).shape(), (Shape{1, 4}));
  }
  net.forgotten.requires_grad(false);  // on purpose, as for a teacher
  EXPECT_EQ(net(ones({1, 4})).shape(), (Shape{1, 4}));
  EXPECT_EQ(net.forgotten(ones({1, 4})).shape(), (Shape{1, 4}));  // not registered in `net`
}

TEST(Module, TrainModeReachesEveryChild) {
  Net net;
  net.eval();
  EXPECT_FALSE(net.block.fc1.is_training());
  net.train();
  EXPECT_TRUE(net.block.fc1.is_training());
}

TEST(Module, AppliesChildrenFirst) {
  Net net;
  std::vector<std::string> types;
  net.apply([&](nn::ModuleBase& m) { types.push_back(m.type_name()); });
  EXPECT_EQ(types, (std::vector<std::string>{"Linear", "Block", "Linear", "ReLU", "Linear",
                                             "Sequential", "Net"}));
}

// A child with two names, as in PyTorch: the state lists both, the parameters only the first.
struct Shared : nn::Module<Shared> {
  nn::Linear first = child("first", nn::Linear(2, 2));
  nn::Linear second = child("second", first);
  Tensor forward(const Tensor& x) { return second(relu(first(x))); }
};

TEST(Module, OneModuleUnderTwoNames) {
  Shared net;
  EXPECT_EQ(names_of(net.state_dict()), (std::vector<std::string>{"first.weight", "first.bias",
                                                                  "second.weight", "second.bias"}));
  EXPECT_EQ(names_of(net.named_parameters()),
            (std::vector<std::string>{"first.weight", "first.bias"}));
  EXPECT_EQ(net.parameter_count(), 6);
  EXPECT_EQ(to_string(net), net.to_string());
  EXPECT_EQ(net.to_string(),
            "Shared(\n"
            "  (first): Linear(in_features=2, out_features=2, bias=True)  # 6 parameters\n"
            "  (second): Linear(in_features=2, out_features=2, bias=True)  # 6 parameters\n"
            ")\n"
            "6 parameters");
  Shared other;
  other.load_state_dict(net.state_dict());
  EXPECT_EQ(other.second.weight.to_vector<float>(), net.first.weight.to_vector<float>());

  EXPECT_EQ(net.first.name(), "first");
  EXPECT_EQ(net.second.name(), "second");
  EXPECT_WEFT_ERROR(net.first(ones({7})), Shape, " in first at ");
  EXPECT_WEFT_ERROR(net.second(ones({7})), Shape, " in second at ");

  Shared copy = nn::clone(net);
  EXPECT_EQ(names_of(copy.state_dict()), names_of(net.state_dict()));
  EXPECT_TRUE(copy.first.weight.same(copy.second.weight));
  EXPECT_FALSE(copy.first.weight.same(net.first.weight));
  EXPECT_EQ(copy.second.name(), "second");

  std::vector<std::string> names;
  net.apply([&](nn::ModuleBase& m) { names.push_back(m.name()); });
  EXPECT_EQ(names, (std::vector<std::string>{"first", ""})) << "as PyTorch's apply";
}

TEST(Module, HandlesFromBeforeTheRegistrationHaveTheName) {
  struct Late : nn::Module<Late> {
    nn::Linear fc{2, 2};
    Late() { child("fc", fc); }
    Tensor forward(const Tensor& x) { return fc(x); }
  };
  Late net;
  EXPECT_EQ(net.fc.name(), "fc");
  EXPECT_WEFT_ERROR(net(ones({7})), Shape, " in fc at ");
}

TEST(Module, MovedFromIsAnError) {
  Net net;
  const Net holds = std::move(net);
  nn::Sequential chain{nn::Linear(2, 2)};
  nn::Sequential moved = std::move(chain);
  nn::AnyModule any = moved;
  const nn::AnyModule taken = std::move(any);
  struct Parent : nn::Module<Parent> {
    explicit Parent(nn::Sequential& m) { add_child("m", m); }
    Tensor forward(const Tensor& x) { return x; }
  };
  const std::vector<std::function<void()>> uses = {
      [&] { net(ones({1, 4})); },
      [&] { net.parameters(); },
      [&] { net.state_dict(); },
      [&] { net.load_state_dict({}); },
      [&] { net.train(); },
      [&] { net.is_training(); },
      [&] { net.to(DType::f64); },
      [&] { net.to(Device("cpu")); },
      [&] { net.requires_grad(false); },
      [&] { net.zero_grad(); },
      [&] { net.apply([](nn::ModuleBase&) {}); },
      [&] { net.to_string(); },
      [&] { net.name(); },
      [&] { net.type_name(); },
      [&] { nn::clone(net); },
      [&] { chain(ones({1, 2})); },
      [&] { chain.append(nn::ReLU()); },
      [&] { Parent{chain}; },
      [&] { any(ones({1, 2})); },
      [&] { any(std::vector{ones({1, 2})}); },
      [&] { any.as<nn::Linear>(); },
  };
  for (std::size_t i = 0; i < uses.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_WEFT_ERROR(uses[i](), InvalidArgument, "[module] this module was moved from");
  }
  net = holds;
  EXPECT_EQ(net(ones({1, 4})).shape(), (Shape{1, 2}));
}

TEST(Module, IntegersWouldDestroyWeights) {
  Net net;
  const auto before = net.block.fc1.weight.to_vector<float>();
  for (const DType dtype : {DType::i64, DType::u8}) {
    const std::string text = "[to] a module's weights would be lost as " +
                             std::string(to_string(dtype)) + ": expected a floating dtype";
    EXPECT_WEFT_ERROR(net.to(dtype), Dtype, text);
    EXPECT_WEFT_ERROR(net.to(Device("cpu"), dtype), Dtype, text);
  }
  EXPECT_EQ(net.block.fc1.weight.dtype(), DType::f32);
  EXPECT_EQ(net.block.fc1.weight.to_vector<float>(), before);
}

TEST(Module, AnEmptyFunctionIsRefused) {
  Net net;
  EXPECT_WEFT_ERROR(net.apply({}), InvalidArgument, "[apply] the function is empty");
}

TEST(Module, RefusesNamesTakenOrUnfit) {
  struct Bad : nn::Module<Bad> {
    explicit Bad(const std::string& name) {
      parameter("a", ones({1}));
      parameter(name, ones({1}));
    }
    Tensor forward(const Tensor& x) { return x; }
  };
  EXPECT_WEFT_ERROR(Bad("a"), InvalidArgument, "Bad already has a 'a'");
  EXPECT_WEFT_ERROR(Bad("a.b"), InvalidArgument, "without dots");
}

TEST(Module, PrintsAsPyTorchWithCounts) {
  Net net;
  EXPECT_EQ(net.to_string(),
            "Net(\n"
            "  (block): Block(  # 3 parameters\n"
            "    (fc1): Linear(in_features=4, out_features=3, bias=True)  # 15 parameters\n"
            "  )\n"
            "  (head): Sequential(\n"
            "    (0): Linear(in_features=3, out_features=2, bias=True)  # 8 parameters\n"
            "    (1): ReLU()\n"
            "    (2): Linear(in_features=2, out_features=2, bias=False)  # 4 parameters\n"
            "  )\n"
            ")\n"
            "30 parameters");
  EXPECT_EQ(nn::Conv2d(1, 8, 3, {.padding = 1}).to_string(),
            "Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))  # 80 parameters\n"
            "80 parameters");
}

struct Autoencoder : nn::Module<Autoencoder> {
  nn::Conv2d a = child("a", nn::Conv2d(1, 8, 3));
  nn::Conv2d b = child("b", nn::Conv2d(8, 64, 3));
  nn::Linear c = child("c", nn::Linear(36864, 32));
  nn::Linear d = child("d", nn::Linear(32, 36864));
  nn::ConvTranspose2d e = child("e", nn::ConvTranspose2d(64, 8, 3));
  nn::ConvTranspose2d f = child("f", nn::ConvTranspose2d(8, 1, 3));
  Tensor forward(const Tensor& x) { return x; }
};

TEST(Module, AutoencoderStartsAsPyTorchs) {
  for (const auto& [seed, expected] : {std::pair{0, goldens["autoencoder_sum_0"][0]},
                                       std::pair{7, goldens["autoencoder_sum_7"][0]}}) {
    manual_seed(seed);
    Autoencoder net;
    double sum = 0;
    for (const Tensor& p : net.parameters()) sum += raw::sum(raw::to(p, DType::f64)).item<double>();
    // The same 2.4 M values; only the order of the f64 sums differs.
    EXPECT_NEAR(sum, expected, 1e-9);
    EXPECT_EQ(net.parameter_count(), 2405633);
  }
}

// gcc evaluates a list in parentheses from the right: the last layer would draw the first weights.
TEST(Module, SequentialDrawsFromLeftToRight) {
  manual_seed(0);
  nn::Linear first(5, 3), second(3, 2);
  manual_seed(0);
  nn::Sequential both{nn::Linear(5, 3), nn::Linear(3, 2)};
  EXPECT_EQ(both.parameters()[0].to_vector<float>(), first.weight.to_vector<float>());
  EXPECT_EQ(both.parameters()[2].to_vector<float>(), second.weight.to_vector<float>());
}

TEST(Module, TwoModelsInTwoThreadsDoNotDisturbEachOther) {
  auto train = [](std::vector<float>& result) {
    manual_seed(3);
    Net net;
    for (int i = 0; i < 20; ++i) {
      net.zero_grad();
      net(rand({5, 4})).sum().backward();
    }
    result = net.block.fc1.weight.grad().to_vector<float>();
  };
  std::vector<float> alone, first, second;
  train(alone);
  std::thread a([&] { train(first); }), b([&] { train(second); });
  a.join();
  b.join();
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second, alone);
}

struct Served : nn::Module<Served> {
  nn::Sequential features =
      child("features", nn::Sequential{nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::ReLU(),
                                       nn::GroupNorm(2, 4), nn::MaxPool2d(2), nn::Dropout(0.5)});
  nn::ModuleList<nn::Linear> heads =
      child("heads", nn::ModuleList<nn::Linear>{nn::Linear(9, 8), nn::Linear(8, 8)});
  nn::MultiheadAttention attention = child("attention", nn::MultiheadAttention(8, 2));
  nn::LayerNorm norm = child("norm", nn::LayerNorm(8));
  Tensor forward(const Tensor& x) const {
    Tensor y = features(x).flatten(2);
    for (const nn::Linear& head : heads) y = gelu(head(y));
    return norm(attention(y));
  }
};
static_assert(std::is_invocable_v<const Served&, Tensor>);
static_assert(!std::is_invocable_v<const Block&, Tensor>);  // its forward is not const

TEST(Module, AConstModelServesSeveralThreads) {
  manual_seed(5);
  Served trained;
  trained(randn({4, 1, 8, 8}));  // so that the batch norm has statistics
  trained.eval();
  const Served model = trained;
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(randn({3, 1, 8, 8}));
  const auto run = [&](std::size_t i, bool in_bf16) {
    const NoGrad no_grad;
    const autograd::Autocast autocast(DeviceType::cpu, {.enabled = in_bf16});
    return model(inputs[i]).to_vector<float>();
  };
  for (const bool in_bf16 : {false, true}) {
    std::vector<std::vector<float>> alone, together(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) alone.push_back(run(i, in_bf16));
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int repeat = 0; repeat < 10; ++repeat) together[i] = run(i, in_bf16);
      });
    }
    threads.clear();
    EXPECT_EQ(together, alone) << in_bf16;
  }
}

}  // namespace
}  // namespace weft
