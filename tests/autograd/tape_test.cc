// How backward and grad use the tape.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/tape.h"
#include "weft/core/trace/trace.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::values_of;

Tensor leaf(const std::vector<double>& values, const Shape& shape) {
  return make(values, shape, DType::f64).set_requires_grad();
}
Tensor leaf(double value) { return leaf({value}, {}); }

TEST(TapeTest, LeavesAccumulate) {
  const Tensor x = leaf(3);
  (x * x).backward();
  EXPECT_EQ(x.grad().item<double>(), 6);
  (x * 4.0).backward();
  EXPECT_EQ(x.grad().item<double>(), 10);
  EXPECT_FALSE(x.grad().requires_grad());
}

TEST(TapeTest, ALeafIsItsOwnTape) {
  const Tensor x = leaf(3);
  x.backward();
  EXPECT_EQ(x.grad().item<double>(), 1);
}

// Like the variance itself, which is divided by 0; the same in PyTorch.
TEST(TapeTest, VarianceOfTooFewValuesHasNoGradient) {
  const Tensor one = leaf(3), two = leaf({1, 2}, {2});
  var(one, {}, 2).backward();
  EXPECT_TRUE(std::isnan(one.grad().item<double>()));
  var(two, {}, 3).backward();
  EXPECT_EQ(values_of(two.grad()), (std::vector<double>{INFINITY, INFINITY}));
}

TEST(TapeTest, SeveralRootsInOneBackward) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor y = x * 3.0;
  const Tensor outputs[] = {y, sum(x), y};
  const Tensor grads[] = {make({1, 10}, {2}, DType::f64), Tensor(), make({2, 2}, {2}, DType::f64)};
  autograd::backward(outputs, grads);
  EXPECT_TENSOR(x.grad(), {2}, {10, 37});
}

// One root is in the history of another.
TEST(TapeTest, RootsMayDependOnEachOther) {
  const Tensor x = leaf(2);
  const Tensor y = x * x;
  const Tensor z = y * y;
  const Tensor outputs[] = {y, z};
  autograd::backward(outputs);
  EXPECT_EQ(x.grad().item<double>(), 2 * 2 + 4 * 8);
}

TEST(TapeTest, DiamondsSumTheirBranches) {
  const Tensor x = leaf(2);
  const Tensor h = x * 3.0;
  (h * h + exp(h) * 0.0 + h).backward();
  EXPECT_EQ(x.grad().item<double>(), 3 * (2 * 6 + 1));
}

TEST(TapeTest, BackwardRefusesBadRoots) {
  const Tensor x = leaf({1, 2}, {2});
  EXPECT_WEFT_ERROR((x * 2.0).backward(), InvalidArgument, "without a gradient only one-element");
  EXPECT_WEFT_ERROR(make({1}, {1}).backward(), InvalidArgument, "output 0 does not require");
  EXPECT_WEFT_ERROR((x * 2.0).backward(make({1}, {1}, DType::f64)), Shape,
                    "gradient 0: got [1], the output is [2]");
  EXPECT_WEFT_ERROR((x * 2.0).backward(make({1, 1}, {2}, DType::f32)), Dtype,
                    "gradient 0: got f32, the output is f64");
  const Tensor two[] = {x, x};
  EXPECT_WEFT_ERROR(autograd::backward(two, {two, 1}), InvalidArgument,
                    "got 1 gradients for 2 outputs");
  EXPECT_WEFT_ERROR(autograd::backward({}), InvalidArgument, "at least one output");
  EXPECT_FALSE(x.grad().defined());
}

TEST(TapeTest, GradLeavesGradAlone) {
  const Tensor x = leaf(3), w = leaf(5);
  const Tensor h = x * w;
  const Tensor y = h * h;
  const Tensor inputs[] = {x, h, x};
  const std::vector<Tensor> g = autograd::grad({&y, 1}, inputs);
  EXPECT_EQ(g[0].item<double>(), 2 * 15 * 5);
  EXPECT_EQ(g[1].item<double>(), 30);
  EXPECT_EQ(g[2].item<double>(), 2 * 15 * 5);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(TapeTest, GradOfAnOutputItself) {
  const Tensor x = leaf(3);
  const Tensor y = x * 2.0;
  EXPECT_EQ(autograd::grad({&y, 1}, {&y, 1})[0].item<double>(), 1);
  EXPECT_EQ(autograd::grad({&x, 1}, {&x, 1})[0].item<double>(), 1);
}

TEST(TapeTest, GradNamesUnusedInputs) {
  const Tensor x = leaf(3), other = leaf(1);
  const Tensor y = x * x;
  const Tensor inputs[] = {x, other};
  EXPECT_WEFT_ERROR(autograd::grad({&y, 1}, inputs), InvalidArgument,
                    "do not depend on input 1 ([]); pass allow_unused=true");
  const auto g = autograd::grad({&y, 1}, inputs, {}, {.allow_unused = true});
  EXPECT_EQ(g[0].item<double>(), 6);
  EXPECT_FALSE(g[1].defined());
  const Tensor plain = make({1}, {1});
  EXPECT_WEFT_ERROR(autograd::grad({&x, 1}, {&plain, 1}), InvalidArgument,
                    "input 0 does not require a gradient");
}

// Branches that do not lead to an input are not computed: the poisoned one would fail.
TEST(TapeTest, GradComputesOnlyWhatIsAskedFor) {
  const Tensor x = leaf(3), w = leaf(5);
  const Tensor saved_later = exp(w);
  const Tensor poisoned = square(saved_later);  // saves its input
  const Tensor y = x * 2.0 + poisoned;
  raw::mul_(saved_later, 2);
  EXPECT_EQ(autograd::grad({&y, 1}, {&x, 1}, {}, {.retain_graph = true})[0].item<double>(), 2);
  EXPECT_WEFT_ERROR(autograd::grad({&y, 1}, {&w, 1}), InvalidArgument, "changed in place");
}

TEST(TapeTest, NoGradRecordsNothing) {
  const Tensor x = leaf(3);
  {
    const NoGrad no_grad;
    EXPECT_FALSE((x * 2.0).requires_grad());
    EXPECT_TRUE((x * 2.0).is_leaf());
    const EnableGrad grad;
    EXPECT_TRUE((x * 2.0).requires_grad());
  }
  EXPECT_TRUE((x * 2.0).requires_grad());
  EXPECT_FALSE((x * 2.0).is_leaf());
  EXPECT_FALSE(make({1}, {1}).requires_grad());
}

TEST(TapeTest, DetachSharesMemoryButNoHistory) {
  const Tensor x = leaf(3);
  const Tensor y = x * 2.0;
  const Tensor d = y.detach();
  EXPECT_FALSE(d.requires_grad());
  EXPECT_EQ(d.storage().get(), y.storage().get());
  (y * d).backward();
  EXPECT_EQ(x.grad().item<double>(), 12);
}

TEST(TapeTest, RequiresGradIsForFloatingLeaves) {
  EXPECT_WEFT_ERROR(make({1}, {1}, DType::i64).set_requires_grad(), Dtype, "this one is i64");
  const Tensor x = leaf(1);
  EXPECT_WEFT_ERROR((x * 2.0).set_requires_grad(false), InvalidArgument, "only a leaf");
  x.set_requires_grad(false);
  EXPECT_FALSE((x * 2.0).requires_grad());
  EXPECT_WEFT_ERROR(Tensor().requires_grad(), InvalidArgument, "undefined");
}

// --- Saved tensors -------------------------------------------------------------------------------

TEST(SavedTest, FreedAfterBackwardUnlessRetained) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor h = x * 1.0;
  const Tensor y = sum(square(h));
  const auto users = [&] { return h.storage()->use_count(); };
  EXPECT_EQ(users(), 2u);
  y.backward({}, true);
  EXPECT_EQ(users(), 2u);
  y.backward();
  EXPECT_EQ(users(), 1u);
  EXPECT_TENSOR(x.grad(), {2}, {4, 8});
}

TEST(SavedTest, ASecondBackwardSaysWhatToDo) {
  const Tensor x = leaf(3);
  const Tensor y = exp(x) * 2.0;
  y.backward();
  const double before = x.grad().item<double>();
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "[exp]");
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "pass retain_graph=true");
  EXPECT_EQ(x.grad().item<double>(), before);
}

// As in PyTorch: nodes that saved nothing can be used again.
TEST(SavedTest, NodesWithoutSavedTensorsStayUsable) {
  const Tensor x = leaf(3);
  const Tensor h = x + 1.0;
  (h * 2.0).backward();
  (h * 3.0).backward();
  EXPECT_EQ(x.grad().item<double>(), 5);
}

TEST(SavedTest, InPlaceChangeIsCaught) {
  const Tensor x = leaf(3);
  const Tensor h = x * 2.0;
  const Tensor y = square(h);
  raw::add_(h, 1);
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument,
                    "[square] a tensor saved for the backward of "
                    "square ([]) was changed in place afterwards");
  const Tensor e = exp(x);
  raw::mul_(e.detach(), 2);  // through any view
  EXPECT_WEFT_ERROR(e.backward(), InvalidArgument, "[exp]");
}

TEST(SavedTest, OnlyWhatTheRuleNeeds) {
  const Tensor x = make({1, 2}, {2}, DType::f64), w = leaf({3, 4}, {2});
  const Tensor y = x * w;  // dL/dw = g x, so w itself is not needed
  EXPECT_EQ(x.storage()->use_count(), 2u);
  EXPECT_EQ(w.storage()->use_count(), 1u);
  const Tensor s = x + w;
  EXPECT_EQ(x.storage()->use_count(), 2u);
  const Tensor image = testing::some({1, 1, 3, 3}, DType::f64);
  const Tensor kernel = testing::some({1, 1, 2, 2}, DType::f64).set_requires_grad();
  const Tensor c = conv2d(image, kernel);
  EXPECT_EQ(kernel.storage()->use_count(), 1u);  // grad_x is never computed
  EXPECT_EQ(image.storage()->use_count(), 2u);
  const auto edges = autograd::meta_of(c)->producer->edges();
  EXPECT_TRUE(edges[0].empty());
  EXPECT_FALSE(edges[1].empty());
}

// exp saves its own output, which must not make a cycle.
TEST(SavedTest, NoCycles) {
  intrusive_ptr<Storage> storage;
  {
    const Tensor x = leaf({1, 2}, {2});
    const Tensor y = exp(x);
    const Tensor z = x * y;
    y.add_(z);  // z's node has saved y, and y's history now contains z's node
    storage = y.storage();
    EXPECT_GT(storage->use_count(), 2u);
  }
  EXPECT_EQ(storage->use_count(), 1u);
}

TEST(SavedTest, ModuleMovedBetweenForwardAndBackward) {
  const Tensor x = leaf({2, 3}, {2});
  const Tensor w = leaf({5, 7}, {2});
  const Tensor y = sum(x * w);
  // Like Module::to: the same handle gets other memory.
  const Tensor other = make({0, 0}, {2}, DType::f64);
  w.impl()->storage = other.storage();
  y.backward();
  EXPECT_TENSOR(x.grad(), {2}, {5, 7});
}

// --- Errors and spans name the module ------------------------------------------------------------

TEST(ModulePathTest, BackwardNamesTheModuleOfTheForward) {
  const Tensor x = leaf(3);
  Tensor h, y;
  {
    const std::string short_lived = "layer1";
    const PathScope root(nullptr);
    const PathScope outer(short_lived.c_str());
    const PathScope inner("conv2");
    h = x * 2.0;
    y = square(h);
  }
  raw::add_(h, 1);
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "in layer1.conv2");
  EXPECT_EQ(module_path(), "");
}

TEST(ModulePathTest, SpansOfCategoryBackward) {
  Tracer tracer;
  const Tensor x = leaf(3);
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    const PathScope scope("fc");
    square(x).backward();
  }
  const std::string path = ::testing::TempDir() + "/autograd_trace.json";
  tracer.write(path);
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("\"backward\""), std::string::npos) << text;
  EXPECT_NE(text.find("fc"), std::string::npos) << text;
}

// --- Nesting -------------------------------------------------------------------------------------

TEST(ReentrantTest, AHookRunsABackwardOfItsOwn) {
  const Tensor x = leaf(3), w = leaf(2);
  const Tensor y = x * x;
  autograd::add_grad_hook(y, [&](const Tensor&) {
    const EnableGrad grad;
    (w * w * w).backward();
    return Tensor();
  });
  (y * 5.0).backward();
  EXPECT_EQ(x.grad().item<double>(), 30);
  EXPECT_EQ(w.grad().item<double>(), 12);
}

// The inner backward uses nodes that the outer one has not reached yet.
TEST(ReentrantTest, OverAPartOfTheSameGraph) {
  const Tensor x = leaf(3);
  const Tensor h = x * x;
  const Tensor k = h * h;
  autograd::add_grad_hook(k, [&](const Tensor&) {
    h.backward({}, true);
    return Tensor();
  });
  (k * 1.0).backward();
  EXPECT_EQ(x.grad().item<double>(), 6 + 4 * 27);
}

TEST(ReentrantTest, AnInnerBackwardThatFreesIsFound) {
  const Tensor x = leaf(3);
  const Tensor h = square(x);
  const Tensor k = h * 2.0;
  autograd::add_grad_hook(k, [&](const Tensor&) {
    h.backward();
    return Tensor();
  });
  EXPECT_WEFT_ERROR((k * 1.0).backward(), InvalidArgument, "pass retain_graph=true");
}

TEST(ReentrantTest, DeepNesting) {
  const Tensor x = leaf(1);
  int depth = 0;
  std::function<void()> nest = [&] {
    if (++depth > 50) return;
    const EnableGrad grad;
    const Tensor y = x * 2.0;
    autograd::add_grad_hook(y, [&](const Tensor&) {
      nest();
      return Tensor();
    });
    y.backward();
  };
  nest();
  EXPECT_EQ(x.grad().item<double>(), 100);
}

// --- Walking -------------------------------------------------------------------------------------

TEST(ReachableTest, EachLeafOnce) {
  const Tensor a = leaf(1), b = leaf(2), unused = leaf(3), plain = make({1}, {}, DType::f64);
  const Tensor y = a * b + a * plain;
  const Tensor outputs[] = {y, b, plain};
  const auto leaves = autograd::reachable_leaves(outputs);
  ASSERT_EQ(leaves.size(), 2u);
  EXPECT_TRUE((leaves[0].same(a) && leaves[1].same(b)) || (leaves[0].same(b) && leaves[1].same(a)));
  EXPECT_TRUE(autograd::reachable_leaves({}).empty());
}

// --- The tape as text ----------------------------------------------------------------------------

std::string printed(const Tensor& y) {
  std::ostringstream out;
  autograd::print(y, out);
  return out.str();
}

// w is used twice, and x needs no gradient. mul keeps the operand whose factor is needed: here h
// and the weight w, which does not count; relu keeps its result, two numbers of f64.
TEST(PrintedTapeTest, NodesStandOnceInTheOrderOfBackward) {
  const Tensor w = leaf({1, 2}, {2}), x = make({3, 4}, {2}, DType::f64);
  Tensor h, y;
  {
    const PathScope scope("layer");
    h = relu(w * x);
  }
  y = sum(h * w);
  const std::string expected =
      "   0  sum          []               -> 1\n"
      "   1  mul          [2]  keeps 16 B  -> 2, 4\n"
      "   2  relu  layer  [2]  keeps 16 B  -> 3\n"
      "   3  mul   layer  [2]  keeps 16 B  -> 4, -\n"
      "   4  leaf         [2]\n";
  EXPECT_EQ(printed(y), expected);
  const auto nodes = autograd::tape(y);
  EXPECT_TRUE(nodes[4].leaf.same(w));
  EXPECT_FALSE(nodes[1].freed);
  y.backward();
  EXPECT_TRUE(autograd::tape(y)[1].freed);
  EXPECT_HAS(printed(y), "[2]  kept 16 B  -> 2, 4\n");
}

TEST(PrintedTapeTest, OfALeafAndOfNothing) {
  EXPECT_EQ(printed(leaf(3)), "   0  leaf  []\n");
  EXPECT_WEFT_ERROR(autograd::tape(make({1}, {}, DType::f64)), InvalidArgument,
                    "[tape] the tensor requires no gradient");
}

// --- Long histories ------------------------------------------------------------------------------

TEST(DeepTest, NeitherBackwardNorDestructionRecurses) {
  constexpr int kLength = 100'000;
  const Tensor x = leaf(1);
  Tensor y = x;
  for (int i = 0; i < kLength; ++i) y = i % 2 ? y + 1.0 : y * x;
  y.backward({}, true);
  EXPECT_TRUE(x.grad().defined());
  const auto leaves = autograd::reachable_leaves({&y, 1});
  EXPECT_EQ(leaves.size(), 1u);
  const auto users = x.impl()->use_count();
  EXPECT_GT(users, 50'000u);
  y = Tensor();
  EXPECT_EQ(x.impl()->use_count(), 2u);  // x and leaves
}

TEST(DeepTest, HistoryRebasedInPlace) {
  const Tensor x = leaf(1);
  {
    const Tensor y = x * 1.0;
    for (int i = 0; i < 100'000; ++i) y.mul_(1.0);
    y.backward();
  }
  EXPECT_EQ(x.grad().item<double>(), 1);
  EXPECT_EQ(x.impl()->use_count(), 1u);
}

}  // namespace
}  // namespace weft
