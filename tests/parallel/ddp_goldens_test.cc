// DistributedDataParallel compared with PyTorch's with Gloo, in f64: write_ddp_goldens.py has the
// same runs, models and batches.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/parallel/golden_values.h"
#include "weft/tests/parallel/models.h"

namespace weft::parallel {
namespace {

using nlohmann::json;
using testing::batch;
using testing::batch_of;
using testing::LabelledBatch;
using testing::loss_of;

constexpr std::int64_t kRows = 4;  // in each rank's batch

const json& goldens() {
  static const json all = json::parse(std::ifstream("tests/parallel/ddp_goldens.json"));
  return all["runs"];
}

struct Outcome {
  std::vector<double> losses;
  nn::NamedTensors state;
};

/// A rank of a run: its model and its batches.
template <class Model>
class Rank {
 public:
  template <class Make>
  Rank(const Make& make, const Shape& sample, comm::ProcessGroup& group,
       const DistributedDataParallelOptions& options = {})
      : model(testing::seeded(3 + static_cast<std::uint64_t>(group.rank()),
                              [&] {
                                auto made = make();
                                made.to(DType::f64);
                                return made;
                              })),
        ddp(model, group, options),
        optimizer(testing::optimizer_of(model)),
        rank_(group.rank()),
        size_(group.size()),
        shape_(batch_of(kRows * group.size(), sample)) {}

  template <class... Which>
  void backward(int number, const Which&... which) {
    const LabelledBatch part = batch(number, shape_, DType::f64).shard(rank_, size_);
    const auto call = [&](const Tensor& x) { return ddp(x, which...); };
    const Tensor loss = loss_of(call, part);
    losses_.push_back(loss.item<double>());
    loss.backward();
  }
  Outcome outcome() const { return {losses_, model.state_dict()}; }

  Model model;
  DistributedDataParallel<Model> ddp;
  std::unique_ptr<optim::Optimizer> optimizer;

 private:
  int rank_, size_;
  Shape shape_;
  std::vector<double> losses_;
};

struct Heads : nn::Module<Heads> {
  nn::Linear trunk = child("trunk", nn::Linear(64, 8));
  nn::Linear a = child("a", nn::Linear(8, 10));
  nn::Linear b = child("b", nn::Linear(8, 10));
  nn::Linear c = child("c", nn::Linear(8, 10));

  Tensor forward(const Tensor& x, char which) {
    const Tensor h = relu(trunk(x.flatten(1)));
    return which == 'a' ? a(h) : which == 'b' ? b(h) : c(h);
  }
};

/// In turn all ranks use head a, each of the two another one, and all head b; c is never used.
Outcome train_heads(comm::ProcessGroup& group) {
  Rank<Heads> rank([] { return Heads(); }, {1, 1, 8, 8}, group, {.find_unused_parameters = true});
  for (int step = 0; step < 6; ++step) {
    rank.optimizer->zero_grad();
    const char on_one_each = group.rank() == 0 ? 'a' : 'b';
    rank.backward(step, step % 3 == 0 ? 'a' : step % 3 == 1 ? on_one_each : 'b');
    rank.optimizer->step();
  }
  return rank.outcome();
}

template <class Model>
void train(Rank<Model>& rank, const std::string& run) {
  for (int step = 0; step < 6; ++step) {
    rank.optimizer->zero_grad();
    if (run == "no_sync") {
      {
        const auto local = rank.ddp.no_sync();
        rank.backward(3 * step);
        rank.backward(3 * step + 1);
      }
      rank.backward(3 * step + 2);
    } else if (run == "accumulate") {  // means are added, and may be changed in place
      rank.backward(2 * step);
      rank.backward(2 * step + 1);
      for (const Tensor& p : rank.model.parameters()) raw::mul_(p.grad(), 0.25);
    } else {
      rank.backward(step);
    }
    rank.optimizer->step();
  }
}

/// Rank r has 3 + r batches.
template <class Model>
void join(Rank<Model>& rank, const comm::ProcessGroup& group, bool divide_by_initial_world_size) {
  rank.ddp.join(
      [&] {
        for (int step = 0; step < 3 + group.rank(); ++step) {
          rank.optimizer->zero_grad();
          rank.backward(step);
          rank.optimizer->step();
        }
      },
      {.divide_by_initial_world_size = divide_by_initial_world_size});
}

Outcome train(const std::string& run, comm::ProcessGroup& group) {
  if (run == "unused") return train_heads(group);
  Outcome outcome;
  const bool is_model = run == "autoencoder" || run == "cnn" || run == "resnet";
  testing::with_model(is_model ? run : "mlp", [&](const auto& make, const Shape& sample) {
    const auto made = [&] { return make(testing::batch_norm); };
    Rank<decltype(made())> rank(made, sample, group);
    if (run.starts_with("join")) {
      join(rank, group, run == "join");
    } else {
      train(rank, run);
    }
    outcome = rank.outcome();
  });
  return outcome;
}

class DdpGoldens : public ::testing::TestWithParam<std::size_t> {};

TEST_P(DdpGoldens, EachRankIsPyTorchs) {
  const json& golden = goldens().at(GetParam());
  const json& ranks = golden["ranks"];
  comm::run_ranks(static_cast<int>(ranks.size()), [&](comm::ProcessGroup& group) {
    const Outcome got = train(golden["run"], group);
    const json& expected = ranks.at(static_cast<std::size_t>(group.rank()));
    SCOPED_TRACE("rank " + std::to_string(group.rank()));
    testing::expect_golden_losses(got.losses, expected["losses"]);
    testing::expect_golden_values(got.state, expected["state"]);
  });
}

INSTANTIATE_TEST_SUITE_P(Runs, DdpGoldens, ::testing::Range(std::size_t{0}, goldens().size()),
                         [](const auto& info) {
                           const json& golden = goldens().at(info.param);
                           return golden["run"].template get<std::string>() + "_" +
                                  std::to_string(golden["ranks"].size());
                         });

}  // namespace
}  // namespace weft::parallel
