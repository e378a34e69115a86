// parallelize: plans, models and calls that it refuses, on every rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/layer_norm.h"
#include "weft/optim/adam.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/zero.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

/// x [N,L,8]
struct Net : nn::Module<Net> {
  Tensor forward(const Tensor& x) const {
    return fc2(gelu(fc1(norm(attention(x, {.is_causal = true})))));
  }

  nn::MultiheadAttention attention =
      child("attention", nn::MultiheadAttention(8, 4, {.batch_first = true}));
  nn::LayerNorm norm = child("norm", nn::LayerNorm(8));
  nn::Linear fc1 = child("fc1", nn::Linear(8, 12));
  nn::Linear fc2 = child("fc2", nn::Linear(12, 8));
  nn::Embedding words = child("words", nn::Embedding(5, 8));
  nn::Embedding padded = child("padded", nn::Embedding(5, 8, {.padding_idx = 1}));
  nn::Dropout dropout = child("dropout", nn::Dropout(0.5));
};

void expect_refused(const ParallelPlan& plan, const std::string& text, int n = 2) {
  comm::run_ranks(n, [&](comm::ProcessGroup& group) {
    Net net;
    const auto before = net.state_dict();
    EXPECT_WEFT_ERROR(parallelize(net, group, plan), InvalidArgument, text);
    const auto after = net.state_dict();
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].second.shape(), before[i].second.shape()) << after[i].first;
    }
    EXPECT_FALSE(net.has_forward_hooks());
    EXPECT_NO_THROW(parallelize(net, group, {{"fc1", ColwiseParallel{}}}));
  });
}

TEST(TensorParallelErrorsTest, Plans) {
  expect_refused({{"fc3", ColwiseParallel{}}},
                 "the plan's 'fc3' names no module of Net; there are: attention, ");
  expect_refused({{"*.fc1", ColwiseParallel{}}}, "the plan's '*.fc1' names no module");
  expect_refused({{"fc*", ColwiseParallel{}}, {"*c2", RowwiseParallel{}}},
                 "both 'fc*' and '*c2' of the plan name the module fc2");
  expect_refused({{"attention", HeadParallel{}}, {"attention.out_proj", RowwiseParallel{}}},
                 "the plan's 'attention' and 'attention.out_proj' name 'attention' and "
                 "'attention.out_proj', of which one contains the other");
  expect_refused({{"*", ColwiseParallel{}}}, "ColwiseParallel from Replicate to Shard(-1) is for");
  expect_refused(
      {{"fc1", SequenceParallel{}}},
      "SequenceParallel along 1 is for layers such as LayerNorm and Dropout, but fc1 is a "
      "Linear");
  expect_refused({{"", SequenceParallel{}}}, "contains a MultiheadAttention");
  expect_refused(
      {{"norm", ColwiseParallel{}}},
      "ColwiseParallel from Replicate to Shard(-1) is for Linear, but norm is a LayerNorm");
  expect_refused({{"fc1", HeadParallel{}}}, "is for MultiheadAttention, but fc1 is a Linear");
  expect_refused({{"norm", VocabParallel{}}},
                 "is for Embedding or Linear, but norm is a LayerNorm");
  expect_refused({{"norm", DropoutParallel{}}}, "is for Dropout, but norm is a LayerNorm");
  expect_refused({{"padded", VocabParallel{}}}, "padded has a padding_idx");
  expect_refused({{"fc1", ColwiseParallel{.output = Shard{1}}}},
                 "fc1's output cannot be Shard(1) with ColwiseParallel");
  expect_refused({{"fc2", RowwiseParallel{.input = Shard{1}}}}, "fc2's input cannot be Shard(1)");
  expect_refused({{"fc2", RowwiseParallel{.output = Shard{}}}}, "fc2's output cannot be Shard(-1)");
  expect_refused({{"attention", HeadParallel{.output = Shard{}}}},
                 "attention's output cannot be Shard(-1)");
  expect_refused({{"words", VocabParallel{.input = Shard{}}}}, "words's input cannot be Shard(-1)");
  expect_refused({{"words", VocabParallel{.output = Shard{}}}},
                 "words's output cannot be Shard(-1)");
  expect_refused({{"fc1", VocabParallel{.output = Shard{0}}}}, "fc1's output cannot be Shard(0)");
}

TEST(TensorParallelErrorsTest, SizesThatDoNotDivide) {
  expect_refused({{"attention", HeadParallel{}}},
                 "attention has 4 heads, which do not divide by 3 ranks", 3);
  expect_refused({{"fc2", ColwiseParallel{}}}, "fc2 has 8 outputs, which do not divide by 3 ranks",
                 3);
  comm::run_ranks(3, [](comm::ProcessGroup& group) {
    nn::Linear layer(8, 3);
    EXPECT_WEFT_ERROR(parallelize(layer, group, {{"", RowwiseParallel{}}}), InvalidArgument,
                      "Linear has 8 inputs, which do not divide by 3 ranks");
  });
}

TEST(TensorParallelErrorsTest, RanksThatDiffer) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Net net;
    const ParallelPlan plan = {{"fc1", ColwiseParallel{}}};
    const ParallelPlan other = {{"fc1", ColwiseParallel{.output = Replicate{}}}};
    EXPECT_WEFT_ERROR(parallelize(net, group, group.rank() ? other : plan), InvalidArgument,
                      "[parallelize] rank 1 cuts another model than rank 0: it has \"plan: 'fc1'");
    nn::Linear layer(4, 2 + group.rank());
    EXPECT_WEFT_ERROR(parallelize(layer, group, {{"", RowwiseParallel{}}}), InvalidArgument,
                      "rank 1 cuts another model than rank 0: it has \"parameter weight f32 [3,4]");
  });
}

TEST(TensorParallelErrorsTest, ModulesThatAreCut) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Net net;
    parallelize(net, group, {{"fc1", ColwiseParallel{}}, {"fc2", RowwiseParallel{}}});
    EXPECT_WEFT_ERROR(parallelize(net, group, {{"attention", HeadParallel{}}}), InvalidArgument,
                      "fc1.weight of Net is cut already: give one plan");
    EXPECT_WEFT_ERROR(fully_shard(net, group), InvalidArgument,
                      "rank 1 cuts another module than rank 0: it has \"part 1 of fc1.weight\"");
    EXPECT_WEFT_ERROR(nn::clone(net), Unsupported, "fully_shard, parallelize");
    EXPECT_WEFT_ERROR(net.to(DType::f64), Unsupported, "fully_shard, parallelize");
    Net normed;
    parallelize(normed, group, {{"norm", SequenceParallel{}}});
    EXPECT_WEFT_ERROR(parallelize(normed, group, {{"norm", SequenceParallel{}}}), InvalidArgument,
                      "norm.weight of Net is cut already");
    Net sharded;
    fully_shard(sharded, group);
    EXPECT_WEFT_ERROR(parallelize(sharded, group, {{"fc1", ColwiseParallel{}}}), InvalidArgument,
                      "is cut already");
  });
}

// Gradients that look like a mistake and are none, and a mistake that shows later.
TEST(TensorParallelErrorsTest, GradientsThatAreNotCompared) {
  struct Late : nn::Module<Late> {
    Tensor forward(const Tensor& x) const { return fc2(norm(fc1(x)) * scale); }
    nn::Linear fc1 = child("fc1", nn::Linear(8, 8, false));
    nn::LayerNorm norm = child("norm", nn::LayerNorm(4));
    nn::Linear fc2 = child("fc2", nn::Linear(8, 2));
    Tensor scale = ones({});
  };
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Late net = testing::seeded(3, [] { return Late(); });
    parallelize(net, group, {{"fc1", ColwiseParallel{}}, {"fc2", RowwiseParallel{}}});
    manual_seed(5);
    const Tensor x = randn({6, 8});
    const auto backward = [&](double factor) { (net(x).square().sum() * factor).backward(); };
    EXPECT_NO_THROW(backward(0));
    EXPECT_NO_THROW(backward(std::numeric_limits<double>::quiet_NaN()));
    net.zero_grad();
    // One row and one result, so that no two infinite numbers are added.
    constexpr double infinity = std::numeric_limits<double>::infinity();
    (net(x.narrow(0, 0, 1)).select(1, 0).square().sum() * infinity).backward();
    EXPECT_TRUE(std::isinf(net.norm.weight.grad().norm().item<double>()));
    net.zero_grad();
    for (int i = 0; i < 2; ++i) {  // an error does not end the comparisons
      EXPECT_WEFT_ERROR(backward(1), InvalidArgument, "the gradient of norm.weight is another one");
    }
    // Nor does an infinite gradient of another parameter hide it.
    const Tensor loss = net(x).square().sum() + (net.norm.bias * infinity).sum();
    EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument, "the gradient of norm.weight is another");
  });
}

// The next backward after one that failed on all ranks, on one later than on the other.
TEST(TensorParallelErrorsTest, ABackwardThatFailsLeavesNothingToCompare) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Net net = testing::seeded(3, [] { return Net(); });
    parallelize(net, group, {{"fc1", ColwiseParallel{}}, {"fc2", RowwiseParallel{}}});
    manual_seed(5);
    const Tensor x = randn({2, 4, 8});
    bool fail = true;
    const auto fail_at = [&](const Tensor& parameter) {
      autograd::add_grad_hook(parameter, [&](const Tensor&) -> Tensor {
        WEFT_CHECK(!fail, InvalidArgument, "test", "it fails");
        return {};
      });
    };
    fail_at(group.rank() ? net.norm.weight : net.attention.in_proj_weight);
    const auto backward = [&] { net(x).square().sum().backward(); };
    EXPECT_WEFT_ERROR(backward(), InvalidArgument, "it fails");
    fail = false;
    EXPECT_NO_THROW(backward());
  });
}

// Parameters shared by two layers of a plan, and by a layer and a module outside the plan.
TEST(TensorParallelErrorsTest, SharedParameters) {
  struct Scale : nn::Module<Scale> {
    explicit Scale(const Tensor& x) : weight(parameter("weight", x)) {}
    nn::Parameter weight;
  };
  struct Shared : nn::Module<Shared> {
    nn::LayerNorm a = child("a", nn::LayerNorm(4));
    nn::Linear fc = child("fc", nn::Linear(4, 4));
    Scale b = child("b", Scale(a.weight));
    Scale c = child("c", Scale(fc.weight));
  };
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Shared model;
    EXPECT_WEFT_ERROR(parallelize(model, group, {{"a", SequenceParallel{}}}), InvalidArgument,
                      "b's weight is a parameter of a, too: the plan must name both");
    EXPECT_WEFT_ERROR(
        parallelize(model, group, {{"a", SequenceParallel{}}, {"b", SequenceParallel{}}}),
        InvalidArgument, "a and b share a parameter, weight, which the plan treats in two ways");
    EXPECT_WEFT_ERROR(parallelize(model, group, {{"fc", ColwiseParallel{}}}), InvalidArgument,
                      "c's weight is a parameter of fc, too");
  });
}

// Neighbours that do not fit: both are named.
TEST(TensorParallelErrorsTest, NeighboursThatDoNotFit) {
  const auto expect = [](const ParallelPlan& plan, const std::string& text) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      Net net = testing::seeded(3, [] { return Net(); });
      parallelize(net, group, plan);
      manual_seed(5);
      const Tensor x = randn({2, 4, 8});
      EXPECT_WEFT_ERROR(net(x), InvalidArgument, text);
    });
  };
  expect({{"fc1", ColwiseParallel{.output = Replicate{}}}, {"fc2", RowwiseParallel{}}},
         "fc2 takes Shard(-1) with a last dimension of 6, got [2,4,12]; the layer of the plan "
         "before it, fc1, gives Replicate");
  expect({{"fc1", ColwiseParallel{}}, {"fc2", RowwiseParallel{.input = Replicate{}}}},
         "fc2 takes Replicate with a last dimension of 12, got [2,4,6]; the layer of the plan "
         "before it, fc1, gives Shard(-1)");
  expect(
      {{"attention", HeadParallel{.output = Shard{1}}}, {"fc1", ColwiseParallel{}}},
      "fc1 takes Replicate, but the ranks have got different tensors, here [2,2,8]; the layer of "
      "the plan before it, attention, gives Shard(1)");
  expect({{"attention", HeadParallel{}}, {"fc1", ColwiseParallel{.input = Shard{1}}}},
         "fc1 takes Shard(1), but all ranks have got the same tensor, [2,4,8]; the layer of the "
         "plan before it, attention, gives Replicate");
  expect({{"attention", HeadParallel{}}, {"norm", SequenceParallel{}}},
         "norm takes Shard(1), but all ranks have got the same tensor");
}

TEST(TensorParallelErrorsTest, OtherBatches) {
  comm::run_ranks(3, [](comm::ProcessGroup& group) {
    Net net;
    parallelize(net, group, {{"words", VocabParallel{}}, {"fc1", ColwiseParallel{}}});
    const double word = group.rank() == 1 ? 1 : 2;
    EXPECT_WEFT_ERROR(net.words(full({2, 3}, word, DType::i64)), InvalidArgument,
                      "words takes Replicate, but the ranks have got different tensors");
    EXPECT_WEFT_ERROR(net.fc1(full({2, 8}, word)), InvalidArgument,
                      "fc1 takes Replicate, but the ranks have got different tensors");
  });
}

TEST(TensorParallelErrorsTest, ASequenceThatDoesNotDivide) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Net net;
    parallelize(net, group,
                {{"attention", HeadParallel{.output = Shard{1}}},
                 {"norm", SequenceParallel{}},
                 {"fc1", ColwiseParallel{.input = Shard{1}}}});
    EXPECT_WEFT_ERROR(net(ones({2, 3, 8})), Shape,
                      "attention.out_proj's result [2,3,8] cannot be Shard(1): expected another "
                      "dimension than the last one, which divides into 2 parts");
    Net other;
    parallelize(other, group, {{"attention", HeadParallel{.output = Shard{2}}}});
    EXPECT_WEFT_ERROR(other(ones({2, 4, 8})), Shape,
                      "out_proj's result [2,4,8] cannot be Shard(2)");
  });
}

// The norm computes with a part of the sequence, and nobody sums up its gradients.
TEST(TensorParallelErrorsTest, GradientsOfParts) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Net net = testing::seeded(3, [] { return Net(); });
    parallelize(net, group,
                {{"attention", HeadParallel{.output = Shard{1}}},
                 {"fc1", ColwiseParallel{.input = Shard{1}}},
                 {"fc2", RowwiseParallel{}}});
    manual_seed(5);
    const Tensor x = randn({2, 4, 8});
    const auto backward = [&] { net(x).square().sum().backward(); };
    net.norm.requires_grad(false);  // what is trained later is watched, too
    EXPECT_NO_THROW(backward());
    net.norm.requires_grad(true);
    EXPECT_WEFT_ERROR(backward(), InvalidArgument,
                      "the gradient of norm.weight is another one on rank 1, norm ");
  });
}

TEST(TensorParallelErrorsTest, WeightsOfAttention) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    nn::MultiheadAttention attention(8, 4);
    parallelize(attention, group, {{"", HeadParallel{}}});
    const Tensor x = ones({3, 2, 8});
    EXPECT_WEFT_ERROR(attention(x, x, x), Unsupported, ".need_weights = false");
    const Tensor mask = zeros({3, 3});
    mask.set_requires_grad();
    EXPECT_WEFT_ERROR(attention(x, {.attn_mask = mask}), Unsupported,
                      "a mask cannot have a gradient where a rank has some of the heads");
    const Tensor padding = zeros({2, 3});
    padding.set_requires_grad();
    EXPECT_WEFT_ERROR(attention(x, {.key_padding_mask = padding}), Unsupported,
                      "a mask cannot have a gradient");
    EXPECT_WEFT_ERROR(attention(x, {.attn_mask = zeros({8, 3, 3})}), Shape,
                      "attn_mask: got [8,3,3], expected [4,3,3]");
  });
}

// These engines would give all ranks the parts of one rank, and average gradients of different
// parts.
TEST(TensorParallelErrorsTest, EnginesThatTakeThePartsForCopies) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const auto cut = [&] {
      nn::Linear model = testing::seeded(1, [] { return nn::Linear(4, 6); });
      parallelize(model, group, {{"", ColwiseParallel{.output = Replicate{}}}});
      return model;
    };
    EXPECT_WEFT_ERROR(DistributedDataParallel(cut(), group), InvalidArgument,
                      "it has \"part 1 of 2 of weight\", rank 0 has \"part 0 of 2 of weight\"");
    ZeroRedundancyOptimizer adam(optim::Adam(cut().parameters(), {.lr = 0.1}), group);
    EXPECT_WEFT_ERROR(adam.step(), InvalidArgument, "use the ranks that have the same parts");
  });
}

TEST(TensorParallelErrorsTest, AWordThatIsNone) {
  comm::run_ranks(4, [](comm::ProcessGroup& group) {
    nn::Embedding words(5, 3);  // 2, 2, 1 and no rows
    parallelize(words, group, {{"", VocabParallel{}}});
    const auto look_up = [&](std::int64_t i) {
      return words(from_vector<std::int64_t>({0, i}, {2}));
    };
    EXPECT_EQ(look_up(4).shape(), (Shape{2, 3}));
    EXPECT_WEFT_ERROR(look_up(5), InvalidArgument, "has 5 rows, and an index is none of them");
    EXPECT_WEFT_ERROR(look_up(-1), InvalidArgument, "has 5 rows, and an index is none of them");
    EXPECT_EQ(words(zeros({0, 2}, DType::i64)).shape(), (Shape{0, 2, 3}));
  });
}

}  // namespace
}  // namespace weft::parallel
