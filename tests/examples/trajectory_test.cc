// The training of the two programs, compared with PyTorch: same seed, weights, order and losses.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "weft/autograd/autograd.h"
#include "weft/data/dataloader.h"
#include "weft/data/mnist.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/mlp.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tests/core/sanitized.h"
#include "weft/tests/every_case.h"

namespace weft {
namespace {

using nlohmann::json;

const json& goldens() {
  static const json all = json::parse(std::ifstream("tests/examples/goldens.json"));
  return all;
}

// Trains for `steps` steps (0: one epoch) and returns the losses; then `evaluate` is called with
// the model.
template <class Model, class Optimizer, class LossOf, class Evaluate>
std::vector<double> train(Model model, Optimizer&& optimizer, DType dtype, std::int64_t batch_size,
                          bool shuffle, std::size_t steps, LossOf loss_of, Evaluate evaluate) {
  data::DataLoader loader(data::Mnist(), {.batch_size = batch_size, .shuffle = shuffle});
  std::vector<double> losses;
  for (auto& [x, label] : loader) {
    optimizer.zero_grad();
    const Tensor loss = loss_of(model, x.to(dtype), label);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.template item<double>());
    if (losses.size() == steps) break;
  }
  evaluate(model);
  return losses;
}

Tensor autoencoder_loss(examples::Autoencoder& model, const Tensor& x, const Tensor&) {
  return nn::mse_loss(model(x).first, x);
}

Tensor mlp_loss(nn::Sequential& model, const Tensor& x, const Tensor& label) {
  return nn::cross_entropy(model(x), label);
}

// The mean over the test set of the loss (autoencoder) or of the correct answers (MLP).
template <class Model, class FigureOf>
double over_test_set(Model& model, FigureOf figure_of) {
  NoGrad no_grad;
  double total = 0;
  std::int64_t n = 0;
  data::DataLoader loader(data::Mnist(data::kFashionMnistDir, {.train = false}),
                          {.batch_size = 500});
  for (auto& [x, label] : loader) {
    total += figure_of(model, x, label) * static_cast<double>(x.shape(0));
    n += x.shape(0);
  }
  return total / static_cast<double>(n);
}

struct Outcome {
  std::vector<double> losses;
  double test = 0;
};

Outcome run(const std::string& example, std::uint64_t seed, DType dtype, bool shuffle,
            std::size_t steps, bool test) {
  manual_seed(seed);
  Outcome outcome;
  if (example == "autoencoder") {
    examples::Autoencoder model;
    model.to(dtype);
    outcome.losses = train(model, optim::Adam(model.parameters()), dtype, 32, shuffle, steps,
                           autoencoder_loss, [&](examples::Autoencoder& m) {
                             if (test)
                               outcome.test = over_test_set(
                                   m, [](auto& net, const Tensor& x, const Tensor& label) {
                                     return autoencoder_loss(net, x, label).template item<double>();
                                   });
                           });
  } else {
    nn::Sequential model = examples::mlp();
    model.to(dtype);
    outcome.losses = train(
        model, optim::SGD(model.parameters()), dtype, 64, shuffle, steps, mlp_loss,
        [&](nn::Sequential& m) {
          if (test)
            outcome.test = over_test_set(m, [](auto& net, const Tensor& x, const Tensor& label) {
              return raw::mean(raw::to(eq(raw::argmax(net(x), 1), label), DType::f32))
                  .template item<double>();
            });
        });
  }
  return outcome;
}

class Trajectory : public ::testing::TestWithParam<int> {};

// f64 agrees to rounding, and so does the MLP in f32. Adam divides rounding errors by their own
// size, so the autoencoder drifts: PyTorch with other threads or kernels differs from itself by up
// to 6e-4 in the first 20 losses.
TEST_P(Trajectory, FirstTwentyLossesAreThoseOfPyTorch) {
  const json& golden = goldens()["runs"][static_cast<std::size_t>(GetParam())];
  const std::string example = golden["example"];
  const DType dtype = parse_dtype(golden["dtype"].get<std::string>());
  auto expected = golden["losses"].get<std::vector<double>>();
  // A sanitizer makes the plain f64 loops about ten times slower; a few steps cover all the code.
  if (testing::kSanitized) expected.resize(2);
  const auto got =
      run(example, golden["seed"], dtype, golden["shuffle"], expected.size(), false).losses;
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double tolerance = dtype == DType::f64 ? 1e-9
                             : example == "mlp"  ? 1e-6
                             : i < 5             ? 1e-5
                                                 : 2e-3;
    EXPECT_NEAR(got[i], expected[i], tolerance * std::abs(expected[i]))
        << example << " " << golden["dtype"] << " seed " << golden["seed"] << " step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Trajectory, ::testing::Range(0, 12));

class Epoch : public ::testing::TestWithParam<int> {};

// 0.5 % of the mean loss and 5 % of the test figure: PyTorch differs from itself by 0.16 % and 2.3
// % if only the number of threads changes.
TEST_P(Epoch, MeanLossAndTestFigureAreThoseOfPyTorch) {
  if (testing::kSanitized) GTEST_SKIP() << "a whole epoch takes too long under a sanitizer";
  const json& golden = goldens()["epochs"][static_cast<std::size_t>(GetParam())];
  const Outcome got = run(golden["example"], golden["seed"], DType::f32, true, 0, true);
  ASSERT_EQ(got.losses.size(), golden["steps"].get<std::size_t>());
  double mean = 0;
  for (double loss : got.losses) mean += loss / static_cast<double>(got.losses.size());
  EXPECT_NEAR(mean, golden["mean_loss"], 0.005 * golden["mean_loss"].get<double>());
  EXPECT_NEAR(got.test, golden["test"], 0.05 * golden["test"].get<double>());
}

// The autoencoder's epoch takes a minute.
INSTANTIATE_TEST_SUITE_P(Runs, Epoch, ::testing::Range(testing::every_case() ? 0 : 1, 2));

}  // namespace
}  // namespace weft
