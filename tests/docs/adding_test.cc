// Checks that the code on docs/adding.md, taken from the page, does what the page says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "weft/tests/docs/own_backend.h"
#include "weft/tests/docs/own_hook.h"
#include "weft/tests/docs/own_learning_rate.h"
#include "weft/tests/docs/own_operation.h"
#include "weft/tests/docs/own_optimizer.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

TEST(AddingPage, TheOperationsBackwardIsItsDerivative) {
  manual_seed(0);
#include "weft/tests/docs/own_operation_check.inc"
  const Tensor y = Softsign::apply(tensor({-3, 0, 1}));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{-0.75, 0, 0.5}));
}

using Train = std::function<void(nn::Sequential&, comm::ProcessGroup&, const Tensor&)>;

/// The gradients of two steps, on each of two ranks.
std::vector<std::vector<float>> gradients(const Train& backward) {
  std::vector<std::vector<float>> all(2);
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    manual_seed(1);
    nn::Sequential model{nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 3)};
    manual_seed(static_cast<std::uint64_t>(10 + group.rank()));
    backward(model, group, randn({4, 6}));
    for (const Tensor& parameter : model.parameters()) {
      for (const float value : parameter.grad().to_vector<float>()) {
        all[static_cast<std::size_t>(group.rank())].push_back(value);
      }
    }
  });
  return all;
}

TEST(AddingPage, TheHookGivesTheGradientsOfTheBuiltInAllReduce) {
  const auto own = gradients([](auto& model, auto& group, const Tensor& x) {
#include "weft/tests/docs/own_hook_use.inc"
    for (int step = 0; step < 2; ++step) ddp(x).square().mean().backward();
  });
  const auto builtin = gradients([](auto& model, auto& group, const Tensor& x) {
    parallel::DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step) ddp(x).square().mean().backward();
  });
  const auto alone = gradients([](auto& model, auto&, const Tensor& x) {
    for (int step = 0; step < 2; ++step) model(x).square().mean().backward();
  });
  EXPECT_EQ(own[0], own[1]);
  EXPECT_EQ(own, builtin);
  EXPECT_NE(own, alone);
}

TEST(AddingPage, TheBackendReducesAsTheOthersDo) {
  for (const int ranks : {2, 3}) {
    comm::run_ranks(ranks, [&](comm::ProcessGroup& threads) {
      const auto reduced = [&](comm::ProcessGroup& group, DType dtype, comm::ReduceOp op) {
        const Tensor x = arange(1, 41, 1, dtype);
        raw::mul_(x, group.rank() + 1);
        group.all_reduce(x, op).wait();
        return x.to(DType::f64).to_vector<double>();
      };
      comm::ProcessGroup group(comm::backend_over<Star>(comm::thread_backend()),
                               std::make_shared<comm::PrefixStore>("star", threads.store()),
                               threads.rank(), threads.size());
      EXPECT_STREQ(group.backend(), "star");
      for (const DType dtype : {DType::f32, DType::f64, DType::i64}) {
        for (const auto op : {comm::ReduceOp::sum, comm::ReduceOp::max, comm::ReduceOp::avg}) {
          if (op == comm::ReduceOp::avg && dtype == DType::i64) continue;
          EXPECT_EQ(reduced(group, dtype, op), reduced(threads, dtype, op)) << ranks;
        }
      }
      group.barrier().wait();
    });
  }
}

TEST(AddingPage, TheBackendServesALaunchedProgram) {
  const testing::TempFolder folder;
  const std::string command =
      "launch/weftrun --nproc-per-node 2 tests/docs/own_backend >" + folder.path("log") + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string log = testing::read_file(folder.path("log"));
  for (const char* rank : {"rank 0 of 2", "rank 1 of 2"}) {
    EXPECT_NE(log.find(std::string(rank) + ": the sum is 3; 83 gradients by star are those by shm"),
              std::string::npos)
        << log;
  }
}

TEST(AddingPage, TheDataSetGoesThroughALoader) {
#include "weft/tests/docs/own_data_set.inc"
  std::int64_t rows = 0;
  for (auto& [x, y] : loader) {
    rows += x.shape(0);
    EXPECT_TRUE(allclose(y, x * x));
  }
  EXPECT_EQ(rows, 1000);
}

TEST(AddingPage, TheOptimizerGoesOneRateDownhill) {
  const Tensor p = tensor({1, 2, 3}).set_requires_grad();
  SignSGD sgd({p}, 0.5);
  (p * tensor({4, 0, -1})).sum().backward();
  sgd.step();
  EXPECT_EQ(p.to_vector<float>(), (std::vector<float>{0.5, 2, 3.5}));
}

TEST(AddingPage, TheLearningRateFallsToZero) {
  optim::SGD sgd({ones({1}).set_requires_grad()}, {.lr = 0.8});
  LinearDecayLR scheduler(sgd, 4);
  std::vector<double> rates{sgd.lr()};
  for (int step = 0; step < 5; ++step) scheduler.step(), rates.push_back(sgd.lr());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(rates[i], 0.2 * std::max(4.0 - static_cast<double>(i), 0.0), 1e-15);
  }
}

}  // namespace
}  // namespace weft
