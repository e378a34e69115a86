#include "weft/train/evaluate.h"

#include <cmath>
#include <csignal>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/data/dataloader.h"
#include "weft/nn/any_module.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/module.h"
#include "weft/nn/sequential.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"

namespace weft::train {
namespace {

constexpr std::int64_t kClasses = 6;

class Accuracy : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(Accuracy);

// Sample i is a row of logits.
struct Rows {
  std::vector<std::vector<double>> logits;
  std::vector<std::int64_t> labels;
  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
  std::pair<Tensor, Tensor> get_batch(std::span<const std::int64_t> indices) const {
    std::vector<double> x;
    std::vector<std::int64_t> label;
    for (const std::int64_t i : indices) {
      x.insert(x.end(), logits[static_cast<std::size_t>(i)].begin(),
               logits[static_cast<std::size_t>(i)].end());
      label.push_back(labels[static_cast<std::size_t>(i)]);
    }
    const auto n = static_cast<std::int64_t>(indices.size());
    return {from_vector(x, {n, kClasses}, Device()), from_vector(label, {n}, Device())};
  }
};

struct Same : nn::Module<Same> {
  int calls = 0;
  Tensor operator()(const Tensor& x) {
    EXPECT_FALSE(is_training());
    EXPECT_FALSE(thread_state().grad_enabled);
    ++calls;
    return x;
  }
};

TEST_P(Accuracy, CountsTheLabelAmongTheHighest) {
  const Rows rows{{{9, 1, 2, 3, 4, 5},     // the label has the highest logit
                   {0, 9, 8, 7, 6, 5},     // the label is the second
                   {0, 9, 8, 7, 6, 5},     // the label is the fifth
                   {0, 9, 8, 7, 6, 5},     // the label is the sixth
                   {0, NAN, 0, 0, 0, 9},   // a NaN counts as higher
                   {0, 1, NAN, 0, 0, 0}},  // the label's own logit is NaN
                  {0, 2, 5, 0, 5, 2}};
  data::DataLoader loader(rows, {.batch_size = 4, .device = device()});
  Same model;
  EXPECT_EQ(top_accuracy(model, loader, {1, 2, 5}),
            (std::vector<double>{1.0 / 6, 3.0 / 6, 4.0 / 6}));
  EXPECT_TRUE(model.is_training());
  EXPECT_EQ(model.calls, 2);
  model.eval();
  EXPECT_EQ(accuracy(model, loader), 1.0 / 6);
  EXPECT_FALSE(model.is_training());
}

// A frozen part stays as its program has put it: its running statistics must not change later.
TEST_P(Accuracy, EachModuleGetsItsOwnModeBack) {
  const Rows rows{std::vector(6, std::vector<double>(6, 0.5)), {0, 1, 2, 3, 4, 5}};
  data::DataLoader loader(rows, {.batch_size = 3, .device = device()});
  nn::BatchNorm1d frozen(kClasses), trained(kClasses);
  nn::Sequential model{frozen, trained};
  model.to(device(), DType::f64);
  frozen.eval();
  EXPECT_EQ(accuracy(model, loader), 1.0 / 6);
  EXPECT_FALSE(frozen.is_training());
  EXPECT_TRUE(trained.is_training());
  EXPECT_TRUE(model.is_training());
}

// As a parallel::Pipeline of which another rank has a stage.
struct Stages {
  std::vector<nn::AnyModule> all;
  std::span<const nn::AnyModule> stages() const { return all; }
  bool is_here(std::size_t stage) const { return stage < 2; }
  Tensor operator()(const Tensor& x) const {
    EXPECT_FALSE(all[0].is_training() || all[1].is_training());
    return x;
  }
};

TEST_P(Accuracy, SoDoThoseInTheStagesOfAPipeline) {
  const Rows rows{std::vector(6, std::vector<double>(6, 0.5)), {0, 1, 2, 3, 4, 5}};
  data::DataLoader loader(rows, {.batch_size = 3, .device = device()});
  nn::BatchNorm1d frozen(kClasses), shared(kClasses), elsewhere(kClasses);
  Stages pipe{{nn::Sequential{frozen, shared}, nn::Sequential{shared}, nn::AnyModule(elsewhere)}};
  frozen.eval();
  EXPECT_EQ(accuracy(pipe, loader), 1.0 / 6);
  EXPECT_FALSE(frozen.is_training());
  EXPECT_TRUE(shared.is_training());
  EXPECT_TRUE(pipe.all[0].is_training());
  EXPECT_TRUE(pipe.all[1].is_training());
}

TEST_P(Accuracy, ALimitOfStepsIsOneOfTheTestToo) {
  const testing::CollectedLog log;
  // Label 0 has the highest logit: this is half of the first 8 samples, and none of the others.
  Rows rows{std::vector(11, std::vector<double>{1, 0, 0, 0, 0, 0}),
            std::vector<std::int64_t>(11, 3)};
  for (const std::size_t i : {0, 2, 5, 7}) rows.labels[i] = 0;
  Same model;
  const auto share = [&](std::int64_t limit) {
    auto loader = test_loader(rows, {.limit_steps = limit}, {.batch_size = 4, .device = device()});
    return accuracy(model, loader);
  };
  for (const std::int64_t limit : {0, 3, 4}) EXPECT_EQ(share(limit), 4.0 / 11) << limit;
  EXPECT_EQ(log.text, "");
  EXPECT_EQ(share(2), 4.0 / 8);
  EXPECT_EQ(log.text, "tests take 8 of the 11 images (--limit-steps 2)\n");
  EXPECT_EQ(share(1), 2.0 / 4);
  auto of_two = test_loader(rows, {.limit_steps = 1}, {.batch_size = 4},
                            {.rank = 1, .size = 2});  // for two ranks a step is two batches
  EXPECT_EQ(of_two.dataset().size(), 8);
  for (const std::int64_t none : {0, -1}) {
    EXPECT_WEFT_ERROR(test_loader(rows, {.limit_steps = 1}, {.batch_size = none}), InvalidArgument,
                      "batch_size is " + std::to_string(none) + ", needs at least 1");
  }
  rows = {};
  EXPECT_EQ(share(1), 0);
}

// For SIGTERM and SIGINT: a test of a large model may take minutes.
TEST_P(Accuracy, ASignalEndsIt) {
  const Rows rows{std::vector(6, std::vector<double>(6, 0.5)), {0, 1, 2, 3, 4, 5}};
  data::DataLoader loader(rows, {.batch_size = 1, .device = device()});
  struct : Same {
    Tensor operator()(const Tensor& x) {
      if (calls == 1) std::raise(SIGTERM);
      return Same::operator()(x);
    }
  } model;
  const InterruptScope scope;
  EXPECT_THROW(accuracy(model, loader), Interrupted);
  EXPECT_EQ(model.calls, 2);
  EXPECT_TRUE(model.is_training());
  EXPECT_EQ(interrupt_status(), 143);
}

// The signal reaches one of two ranks when the other has tested its share and waits for the sum.
TEST_P(Accuracy, ASignalToOneRankEndsAll) {
  const Rows rows{std::vector(6, std::vector<double>(6, 0.5)), {0, 1, 2, 3, 4, 5}};
  std::promise<void> first_waits;
  std::promise<std::string> texts[2];
  const std::shared_future<std::string> told[2] = {texts[0].get_future(), texts[1].get_future()};
  struct : Same {
    std::promise<void>* awaited = nullptr;
    Tensor operator()(const Tensor& x) {
      if (awaited) {
        awaited->get_future().wait();
        std::raise(SIGINT);
      }
      return Same::operator()(x);
    }
  } models[2];
  models[1].awaited = &first_waits;
  const InterruptScope scope;
  // Returns whether the test was interrupted. A thread that ends otherwise breaks its promise.
  const auto test = [&](int rank) {
    std::promise<std::string> text = std::move(texts[rank]);
    const Ranks ranks{.rank = rank, .size = 2, .gather = [&](const std::string& own) {
                        text.set_value(own);
                        if (rank == 0) first_waits.set_value();
                        return std::vector{told[0].get(), told[1].get()};
                      }};
    data::DataLoader loader(rows, {.batch_size = 1, .device = device()});
    try {
      accuracy(models[rank], loader, ranks);
    } catch (const Interrupted&) {
      return true;
    } catch (const std::future_error&) {
    }
    return false;
  };
  auto first = std::async(std::launch::async, test, 0);
  EXPECT_TRUE(test(1));
  EXPECT_TRUE(first.get());
  EXPECT_EQ(models[0].calls, 3);
  EXPECT_EQ(models[1].calls, 1);
}

// A dead net gives every class the same logit: this must not count as all labels learned.
TEST_P(Accuracy, OfEqualLogitsTheFirstIsTheHighest) {
  const Rows rows{std::vector(6, std::vector<double>(6, 0.5)), {0, 1, 2, 3, 4, 5}};
  data::DataLoader loader(rows, {.batch_size = 6, .device = device()});
  Same model;
  EXPECT_EQ(top_accuracy(model, loader, {1, 2, 5}),
            (std::vector<double>{1.0 / 6, 2.0 / 6, 5.0 / 6}));
}

}  // namespace
}  // namespace weft::train
