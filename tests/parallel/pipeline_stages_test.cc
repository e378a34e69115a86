// Stages of a pipeline that each rank makes for itself: whole stages, and stages of which ranks
// have parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/mesh.h"
#include "weft/nn/shard.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/pipeline.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/sanitized.h"
#include "weft/tests/parallel/nets.h"
#include "weft/tests/parallel/sharded_nets.h"
#include "weft/tests/parallel/tensor_nets.h"

namespace weft::parallel {
namespace {

using testing::Block;
using testing::kWords;
using testing::loss_of_all;
using testing::Net;
using testing::plan_of;
using testing::text;

class PipelineStagesTest : public FullyShardTest {};

std::shared_ptr<comm::ProcessGroup> shared(comm::ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

constexpr int kPieces = 4;  // of a net: tables, two blocks, head

/// Pieces [first, end) of a net, which has no dropout.
struct Stage : nn::Module<Stage> {
  Stage(const Net& net, int first, int end) {
    for (int i = first; i < end; ++i) {
      if (i == 0) {
        words = child("words", net.words);
        places = child("places", net.places);
      } else if (i < kPieces - 1) {
        const auto number = static_cast<std::size_t>(i - 1);
        blocks.push_back(child("block" + std::to_string(i - 1), net.blocks[number]));
      } else {
        norm = child("norm", net.norm);
        head = child("head", net.head);
      }
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    if (words) {
      const auto length = static_cast<double>(x.shape(1));
      y = (*words)(x) + (*places)(arange(0, length, 1, {DType::i64, x.device()}));
    }
    for (Block& block : blocks) y = block(y);
    return head ? (*head)((*norm)(y)) : y;
  }

  std::optional<nn::Embedding> words, places;
  std::optional<nn::LayerNorm> norm;
  std::optional<nn::Linear> head;
  std::vector<Block> blocks;
};

/// The part of a whole net's plan that belongs to the stage.
ParallelPlan plan_for(const Stage& stage, bool sequence) {
  ParallelPlan plan;
  for (auto [path, style] : plan_of(sequence)) {
    const bool of_block = path.starts_with("blocks.*.");
    if (of_block) path = "block" + path.substr(std::string("blocks.").size());
    const std::string part = path.substr(0, path.find('.'));
    const bool there = of_block ? !stage.blocks.empty()
                                : std::ranges::any_of(stage.named_modules(), [&](const auto& m) {
                                    return m.first == part;
                                  });
    if (there) plan.emplace_back(path, style);
  }
  return plan;
}

/// Renames the entries as they are named in a whole net.
nn::NamedTensors with_names_of_net(nn::NamedTensors state) {
  for (auto& [name, x] : state) {
    if (name.starts_with("block")) name = "blocks." + name.substr(std::string("block").size());
  }
  return state;
}

/// What parallelize leaves whole on each rank: norms, biases that are added after sums, and the
/// table of places, which only sequence parallel cuts.
bool is_replicated(const std::string& name, bool sequence) {
  return name.find("norm") != std::string::npos || name.ends_with("fc2.bias") ||
         name.ends_with("out_proj.bias") || (name == "places.weight" && !sequence);
}

// Each rank of tp has half of the parameters that are not replicated; with fsdp each rank of dp has
// half of that and half of the replicated ones. An odd number of rows may make it up to two rows
// more.
void expect_parts(const std::vector<Stage>& own, comm::ProcessGroup& group, bool sequence,
                  bool fsdp) {
  const int times = fsdp ? 1 : 2;  // copies of a parameter in the group
  std::map<std::string, std::int64_t> whole, row;
  std::vector<double> counts(2), expected(2);
  for (const auto& [name, x] : Net(0).named_parameters()) {
    const bool all = is_replicated(name, sequence);
    expected[all] += static_cast<double>(x.numel() * times * (all ? 2 : 1));
    whole[name] = x.numel();
    row[name] = x.numel() / x.shape(0);
  }
  for (const Stage& stage : own) {
    for (const auto& [name, x] : with_names_of_net(stage.named_parameters())) {
      const bool all = is_replicated(name, sequence);
      counts[all] += static_cast<double>(x.numel());
      const int parts = (all ? 1 : 2) * (fsdp ? 2 : 1);
      EXPECT_LE(x.numel(), whole.at(name) / parts + (parts > 1 ? 2 * row[name] : 0)) << name;
    }
  }
  const Tensor sums = from_vector(counts, {2});
  group.all_reduce(sums).wait();
  EXPECT_EQ(sums.to_vector<double>(), expected);
}

// dp 2 x pp 2 x tp 2, within 1e-9 of one process with the whole batch; rounding gives about 1e-15.
TEST_F(PipelineStagesTest, OfPartsTrainAsOneProcess) {
  struct Case {
    std::string schedule;
    Recompute recompute;
    bool sequence;
    bool fsdp = false;  // in place of replicas
  };
  for (const auto& [schedule, recompute, sequence, fsdp] :
       {Case{"gpipe", Recompute::except_last, false}, Case{"1f1b", Recompute::never, true},
        Case{"zb-h1", Recompute::never, true}, Case{"zb-h1", Recompute::always, false},
        Case{"zb-h1", Recompute::never, true, true}, Case{"interleaved", Recompute::always, true},
        Case{"interleaved", Recompute::never, false, true}, Case{"zb-v", Recompute::never, false},
        Case{"zb-v", Recompute::always, true, true}, Case{"dualpipev", Recompute::never, true},
        Case{"dualpipev", Recompute::always, false, true}}) {
    SCOPED_TRACE(::testing::Message()
                 << schedule << ' ' << to_string(recompute) << ' ' << sequence << ' ' << fsdp);
    comm::run_ranks(8, [&, schedule = schedule, recompute = recompute, sequence = sequence,
                        fsdp = fsdp](comm::ProcessGroup& group) {
      const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}, {"tp", 2}});
      Net plain = testing::seeded(3, [] { return Net(0); });
      const int chunks = schedule == "dualpipev" ? 4 : 2;  // two for each rank
      const bool two_each = schedule != "gpipe" && schedule != "1f1b" && schedule != "zb-h1";
      const int count = two_each ? 4 : 2;
      std::vector<Stage> own;
      std::vector<Parallelized> tp;
      std::vector<FullySharded> sharded;
      const auto make_stage = [&](std::size_t stage) {
        const int s = static_cast<int>(stage);
        const Net net = testing::seeded(3, [] { return Net(0); });
        own.emplace_back(net, s * kPieces / count, (s + 1) * kPieces / count);
        tp.push_back(parallelize(own.back(), *mesh["tp"], plan_for(own.back(), sequence)));
        if (fsdp) sharded.push_back(fully_shard(own.back(), mesh["dp"]));
        return nn::AnyModule(own.back());
      };
      Pipeline pipe(static_cast<std::size_t>(count), make_stage,
                    {.chunks = chunks,
                     .checkpoint = recompute,
                     .schedule = schedule,
                     .group = mesh["pp"],
                     .replicas = fsdp ? nullptr : mesh["dp"]});
      ASSERT_EQ(std::ssize(own), count / 2);
      expect_parts(own, group, sequence, fsdp);
      std::vector<Tensor> parameters;
      for (const Stage& stage : own) {
        for (const Tensor& x : stage.parameters()) parameters.push_back(x);
      }
      optim::SGD sgd(parameters, {.lr = 0.1, .momentum = 0.9});
      optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1, .momentum = 0.9});
      const auto loss = [&](std::span<const Tensor> logits, std::span<const Tensor> y) {
        return cross_entropy(tp[0].ranks(), logits[0].flatten(0, 1), y[0].flatten(), kWords);
      };
      const int d = mesh.coordinate("dp");
      for (int i = 0; i < (testing::kSanitized ? 5 : 20); ++i) {
        const auto [x, y] = text(i, 2 * chunks);
        plain_sgd.zero_grad();
        const Tensor plain_loss = loss_of_all(plain, {x, y});
        plain_loss.backward();
        const double expected = optim::clip_grad_norm(plain.parameters(), 0.5).item<double>();
        plain_sgd.step();
        sgd.zero_grad();
        const Tensor own_x = x.narrow(0, chunks * d, chunks),
                     own_y = y.narrow(0, chunks * d, chunks);
        const double mine = pipe.step({own_x}, {own_y}, loss).item<double>();
        const Tensor both = from_vector(std::vector{mine / 2}, {1});
        mesh["dp"]->all_reduce(both).wait();
        EXPECT_NEAR(both.item<double>(), plain_loss.item<double>(), 1e-9);
        EXPECT_NEAR(pipe.clip_grad_norm(0.5).item<double>(), expected, 1e-9);
        sgd.step();
      }
      nn::NamedTensors here;
      for (std::size_t s = 0; s < tp.size(); ++s) {
        auto state = fsdp ? sharded[s].state_dict() : tp[s].state_dict();
        for (auto& named : state) here.push_back(std::move(named));
      }
      nn::NamedTensors whole = with_names_of_net(pipe.all_gather_named(here));
      nn::NamedTensors state = plain.state_dict();
      std::ranges::sort(whole, {}, &nn::NamedTensors::value_type::first);
      std::ranges::sort(state, {}, &nn::NamedTensors::value_type::first);
      expect_near(whole, state, 1e-9);

      pipe.eval();
      const NoGrad no_grad;
      const auto [x, y] = text(9);
      const double test =
          cross_entropy(tp[0].ranks(), pipe(x).flatten(0, 1), y.flatten(), kWords).item<double>();
      EXPECT_NEAR(test, loss_of_all(plain, {x, y}).item<double>(), 1e-9);
    });
  }
}

// The middle one has no parameters, but must pass gradients to the layer before it.
nn::Sequential layer(int s) {
  if (s == 1) return nn::Sequential{nn::Tanh()};
  return testing::seeded(static_cast<std::uint64_t>(s + 1),
                         [&] { return nn::Sequential{nn::Linear(6, s == 2 ? 3 : 6)}; });
}

Tensor cross_entropy_of(std::span<const Tensor> y, std::span<const Tensor> label) {
  return nn::cross_entropy(y[0], label[0]);
}

// Compares with the same pipeline with all stages on every rank.
TEST_F(PipelineStagesTest, ARankMakesItsOwn) {
  const testing::LabelledBatch data = testing::batch(0, {7, 6}, DType::f32);
  comm::run_ranks(3, [&](comm::ProcessGroup& group) {
    std::vector<int> made;
    const std::vector<nn::AnyModule> stages = {layer(0), layer(1), layer(2)};
    const auto factory = [&](std::size_t s) {
      made.push_back(static_cast<int>(s));
      return layer(static_cast<int>(s));
    };
    const PipelineOptions options{
        .chunks = 3, .checkpoint = Recompute::always, .schedule = "1f1b", .group = shared(group)};
    Pipeline all(stages, options), own(3, factory, options);
    EXPECT_EQ(made, std::vector{group.rank()});
    const auto r = static_cast<std::size_t>(group.rank());
    for (std::size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(own.stages()[s].parameters().size(), s == r && s != 1 ? 2U : 0U);
    }
    const Tensor expected = all.step({data.x}, {data.label}, cross_entropy_of);
    EXPECT_TRUE(testing::same_bits(own.step({data.x}, {data.label}, cross_entropy_of), expected));
    EXPECT_TRUE(testing::same_bits(own.clip_grad_norm(0.1), all.clip_grad_norm(0.1)));
    for (std::size_t i = 0; r != 1 && i < 2; ++i) {
      EXPECT_TRUE(testing::same_bits(own.stages()[r].parameters()[i].grad(),
                                     all.stages()[r].parameters()[i].grad()));
    }
    nn::NamedTensors here;
    for (const auto& [name, x] : own.stages()[r].state_dict()) {
      here.emplace_back(std::to_string(r) + '.' + name, x);
    }
    const nn::NamedTensors whole = own.all_gather_named(here);
    ASSERT_EQ(whole.size(), 4U);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const std::size_t stage = i / 2 * 2;
      const nn::NamedTensors state = stages[stage].state_dict();
      const auto& [name, x] = state[i % 2];
      EXPECT_EQ(whole[i].first, std::to_string(stage) + '.' + name);
      EXPECT_TRUE(testing::same_bits(whole[i].second, x));
    }
  });
}

TEST_F(PipelineStagesTest, InOneProcessItMakesAll) {
  const std::vector<Device> here(3);
  const auto factory = [](std::size_t s) { return layer(static_cast<int>(s)); };
  Pipeline pipe(3, factory, {.devices = here, .chunks = 2});
  const testing::LabelledBatch data = testing::batch(0, {7, 6}, DType::f32);
  EXPECT_TRUE(
      testing::same_bits(pipe.step({data.x}, {data.label}, cross_entropy_of),
                         Pipeline({layer(0), layer(1), layer(2)}, {.devices = here, .chunks = 2})
                             .step({data.x}, {data.label}, cross_entropy_of)));
}

TEST_F(PipelineStagesTest, IsInTheModeOfTheStagesThatARankHas) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const auto factory = [](std::size_t s) {
      nn::AnyModule stage = layer(s == 0 ? 0 : 2);
      if (s == 1) stage.eval();
      return stage;
    };
    Pipeline pipe(2, factory, {.group = shared(group)});
    EXPECT_EQ(pipe.is_training(), group.rank() == 0);
    pipe.train();
    EXPECT_TRUE(pipe.is_training());
    pipe.eval();
    EXPECT_FALSE(pipe.is_training());
  });
}

// Runs f on n ranks; returns the text of each rank's error.
std::vector<std::string> errors_of(int n, const std::function<void(comm::ProcessGroup&)>& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  comm::run_ranks(n, [&](comm::ProcessGroup& group) {
    try {
      f(group);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return errors;
}

TEST_F(PipelineStagesTest, SaysWhatCannotBe) {
  const auto factory = [](std::size_t s) { return layer(s == 0 ? 0 : 2); };
  EXPECT_WEFT_ERROR(Pipeline(2, StageFactory()), InvalidArgument, "the factory is empty");
  EXPECT_WEFT_ERROR(Pipeline(0, factory), InvalidArgument, "needs at least one stage");
  const auto mixed = errors_of(2, [&](comm::ProcessGroup& group) {
    const PipelineOptions options{.group = shared(group)};
    if (group.rank() == 0) Pipeline(2, factory, options);
    if (group.rank() == 1) Pipeline({layer(0), layer(2)}, options);
  });
  for (const std::string& error : mixed) {
    EXPECT_HAS(error, "rank 1 runs another pipeline than rank 0");
    EXPECT_HAS(error, "each rank makes its stages");
  }
  const auto failing = errors_of(2, [&](comm::ProcessGroup& group) {
    Pipeline(2,
             [&](std::size_t s) {
               WEFT_CHECK(s == 0, Unsupported, "factory", "cannot make this one");
               return layer(0);
             },
             {.group = shared(group)});
  });
  for (const std::string& error : failing) EXPECT_HAS(error, "cannot make this one");
  // A factory throws an exception that is not the library's, in one of two pipelines: the other one
  // does not wait.
  std::atomic<int> ended = 0;
  comm::run_ranks(4, [&](comm::ProcessGroup& group) {
    const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}});
    const auto one_fails = [&](std::size_t s) {
      if (group.rank() == 1) throw 1;
      return factory(s);
    };
    try {
      Pipeline(2, one_fails, {.group = mesh["pp"], .replicas = mesh["dp"]});
    } catch (...) {
      ++ended;
    }
    while (ended < 4) std::this_thread::yield();  // or the end of a group would end them
  });
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Pipeline pipe(2, factory, {.group = shared(group)});
    EXPECT_WEFT_ERROR(pipe.all_gather_named({{"same", zeros({1})}}), InvalidArgument,
                      "ranks 0 and 1 both give same");
  });
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Pipeline pipe(2, factory, {.group = shared(group)});
    EXPECT_WEFT_ERROR(pipe.all_gather(), Unsupported, "each rank has made only its own stages");
  });
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const auto cut = [&](std::size_t) {
      Stage stage(Net(0), 0, kPieces);
      parallelize(stage, group, plan_for(stage, false));
      return stage;
    };
    EXPECT_WEFT_ERROR(Pipeline(1, cut, {.devices = {Device()}}), Unsupported,
                      "stage 0 is cut into parts");
  });
}

}  // namespace
}  // namespace weft::parallel
