// Optimisers and schedules, some steps at a time.
#include <csignal>
#include <memory>
#include <stdexcept>

#include "weft/core/base/error.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tests/peers/calls.h"

namespace weft::peers {
namespace {

using Tensors = std::vector<Tensor>;

std::unique_ptr<optim::Optimizer> make_optimizer(const Call& c, Tensors params) {
  const std::string kind = c.text("kind");
  if (kind == "SGD") {
    return std::make_unique<optim::SGD>(
        std::move(params), optim::SGDOptions{.lr = c.number("lr"),
                                             .momentum = c.number("momentum", 0),
                                             .dampening = c.number("dampening", 0),
                                             .weight_decay = c.number("weight_decay", 0),
                                             .nesterov = c.flag("nesterov")});
  }
  if (kind == "Adam") {
    return std::make_unique<optim::Adam>(
        std::move(params), optim::AdamOptions{.lr = c.number("lr"),
                                              .beta1 = c.number("beta1", 0.9),
                                              .beta2 = c.number("beta2", 0.999),
                                              .eps = c.number("eps", 1e-8),
                                              .weight_decay = c.number("weight_decay", 0)});
  }
  if (kind == "AdamW") {
    return std::make_unique<optim::AdamW>(
        std::move(params), optim::AdamWOptions{.lr = c.number("lr"),
                                               .beta1 = c.number("beta1", 0.9),
                                               .beta2 = c.number("beta2", 0.999),
                                               .eps = c.number("eps", 1e-8),
                                               .weight_decay = c.number("weight_decay", 0.01)});
  }
  if (kind == "Adadelta") {
    return std::make_unique<optim::Adadelta>(
        std::move(params), optim::AdadeltaOptions{.lr = c.number("lr"),
                                                  .rho = c.number("rho", 0.9),
                                                  .eps = c.number("eps", 1e-6),
                                                  .weight_decay = c.number("weight_decay", 0)});
  }
  WEFT_CHECK(kind == "RMSprop", InvalidArgument, "differential", "no optimiser ", kind);
  return std::make_unique<optim::RMSprop>(
      std::move(params), optim::RMSpropOptions{.lr = c.number("lr"),
                                               .alpha = c.number("alpha", 0.99),
                                               .eps = c.number("eps", 1e-8),
                                               .weight_decay = c.number("weight_decay", 0),
                                               .momentum = c.number("momentum", 0),
                                               .centered = c.flag("centered")});
}

std::unique_ptr<optim::LRScheduler> make_schedule(const Call& c, optim::Optimizer& optimizer) {
  const std::string kind = c.text("schedule");
  if (kind == "StepLR") {
    return std::make_unique<optim::StepLR>(
        optimizer,
        optim::StepLROptions{.step_size = c.integer("step_size"), .gamma = c.number("gamma")});
  }
  if (kind == "MultiStepLR") {
    const Dims milestones = c.dims("milestones");
    return std::make_unique<optim::MultiStepLR>(
        optimizer, optim::MultiStepLROptions{.milestones = {milestones.begin(), milestones.end()},
                                             .gamma = c.number("gamma")});
  }
  if (kind == "CosineAnnealingLR") {
    return std::make_unique<optim::CosineAnnealingLR>(
        optimizer, optim::CosineAnnealingLROptions{.T_max = c.integer("T_max"),
                                                   .eta_min = c.number("eta_min")});
  }
  if (kind == "LinearLR") {
    return std::make_unique<optim::LinearLR>(
        optimizer, optim::LinearLROptions{.start_factor = c.number("start_factor"),
                                          .end_factor = c.number("end_factor"),
                                          .total_iters = c.integer("total_iters")});
  }
  WEFT_CHECK(kind == "OneCycleLR", InvalidArgument, "differential", "no schedule ", kind);
  return std::make_unique<optim::OneCycleLR>(
      optimizer, optim::OneCycleLROptions{.max_lr = {c.number("max_lr")},
                                          .total_steps = c.integer("total_steps"),
                                          .pct_start = c.number("pct_start"),
                                          .cycle_momentum = c.flag("cycle_momentum")});
}

// Operands: the parameters' first values, then their gradients of the first step, of the second ...
// Results: the parameters after the last step, then the learning rate of each step.
Tensors optimise(const Call& c) {
  const auto count = static_cast<std::size_t>(c.integer("params"));
  Tensors params;
  for (std::size_t i = 0; i < count; ++i) {
    params.push_back(c.in[i].clone().set_requires_grad());
  }
  const auto optimizer = make_optimizer(c, params);
  std::unique_ptr<optim::LRScheduler> schedule;
  if (c.has("schedule")) schedule = make_schedule(c, *optimizer);
  std::vector<double> rates;
  for (std::size_t at = count; at + count <= c.in.size(); at += count) {
    for (std::size_t i = 0; i < count; ++i) params[i].set_grad(c.in[at + i].clone());
    if (c.has("max_norm")) optim::clip_grad_norm(params, c.number("max_norm"));
    optimizer->step();
    rates.push_back(optimizer->lr());
    if (schedule) schedule->step();
  }
  Tensors results;
  for (const Tensor& p : params) results.push_back(p.detach());
  results.push_back(from_vector(rates, {static_cast<std::int64_t>(rates.size())}));
  return results;
}

}  // namespace

void add_training(Operations& table) {
  table["optimise"] = optimise;
  // What the harness does with a program that ends, hangs or throws what it should not; see
  // differential_test.cc.
  table["crash"] = [](const Call&) -> Tensors {
    std::raise(SIGSEGV);
    return {};
  };
  table["hang"] = [](const Call&) -> Tensors {
    while (true) raise(SIGSTOP);
  };
  table["throw"] = [](const Call&) -> Tensors { throw std::runtime_error("not weft's"); };
}

}  // namespace weft::peers
