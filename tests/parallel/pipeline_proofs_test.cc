// The two proofs that a pipeline computes the same as one device: every schedule, checkpoint mode
// and number of micro-batches, on 2 to 4 devices.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/parallel/balance.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tests/parallel/devices.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::Delay;
using testing::LabelledBatch;
using testing::same_bits;
using testing::seeded;
using Gradients = std::vector<Tensor>;  // of all parameters

constexpr std::int64_t kRows = 7;  // divisible only by 1 and 7 micro-batches

// x [N,1,6,6] -> logits [N,3], in ten layers; every part of any cut has weights.
nn::Sequential net(DType dtype) {
  nn::Sequential layers = seeded(5, [] {
    return nn::Sequential{nn::Conv2d(1, 3, 3), nn::Tanh(),          nn::ConvTranspose2d(3, 2, 3),
                          nn::ReLU(),          nn::Conv2d(2, 2, 2), nn::Flatten(),
                          nn::Linear(50, 8),   nn::Tanh(),          nn::Linear(8, 8),
                          nn::Linear(8, 3)};
  });
  layers.to(dtype);
  return layers;
}

Tensor loss_of(std::span<const Tensor> y, std::span<const Tensor> target) {
  return nn::cross_entropy(y[0], target[0]);
}

// The gradients of all layers for rows [begin, begin + count), computed on one device.
Gradients gradients_of(DType dtype, const LabelledBatch& whole, std::int64_t begin,
                       std::int64_t count, Device device) {
  nn::Sequential model = net(dtype);
  model.to(device);
  const Tensor loss = nn::cross_entropy(model(raw::narrow(whole.x, 0, begin, count).to(device)),
                                        raw::narrow(whole.label, 0, begin, count).to(device));
  (count == kRows ? loss : loss * (static_cast<double>(count) / kRows)).backward();
  Gradients gradients;
  for (const Tensor& p : model.parameters()) gradients.push_back(p.grad().to(Device()));
  return gradients;
}

// The micro-batches in the order in which a stage adds their gradients.
std::vector<int> order_of(const Schedule& schedule, std::size_t stage) {
  std::vector<int> order;
  for (const auto& actions : schedule.devices) {
    for (const Action& action : actions) {
      const bool adds =
          action.kind == Action::Kind::backward || action.kind == Action::Kind::backward_weight;
      if (adds && action.stage == static_cast<int>(stage)) order.push_back(action.micro_batch);
    }
  }
  return order;
}

// The gradients of parameter `index`, added in that order.
Tensor sum_of(const std::vector<Gradients>& parts, const std::vector<int>& order,
              std::size_t index) {
  Tensor sum = raw::clone(parts[static_cast<std::size_t>(order[0])][index]);
  for (std::size_t i = 1; i < order.size(); ++i) {
    raw::add_scaled_(sum, 1, parts[static_cast<std::size_t>(order[i])][index]);
  }
  return sum;
}

class PipelineProofs : public testing::DevicesTest {
 protected:
  struct Case {
    std::string schedule;
    Recompute mode;
    int devices, stages, chunks;
    std::string text() const {
      return schedule + ", " + to_string(mode) + ", " + std::to_string(stages) + " stages on " +
             std::to_string(devices) + " devices, " + std::to_string(chunks) + " chunks";
    }
  };
  static void for_each_case(const std::function<void(const Case&)>& f) {
    for (const std::string& schedule : schedule_names()) {
      for (const Recompute mode : {Recompute::never, Recompute::except_last, Recompute::always}) {
        for (int devices = 2; devices <= count(); ++devices) {
          for (int chunks = 1; chunks <= 8; ++chunks) {
            const auto parts = part_sizes(kRows, static_cast<std::size_t>(chunks)).size();
            if (schedule == "dualpipev" && static_cast<int>(parts) < 2 * devices) continue;
            f({schedule, mode, devices, devices * stages_per_device(schedule), chunks});
          }
        }
      }
    }
  }
  /// The layers in stages of about the same number of layers.
  static Pipeline pipeline(const nn::Sequential& layers, const Case& c) {
    const std::vector<double> costs(layers.size(), 1.0);
    return Pipeline(cut(layers, balanced(costs, static_cast<std::size_t>(c.stages))),
                    {.devices = devices(c.devices),
                     .chunks = c.chunks,
                     .checkpoint = c.mode,
                     .schedule = c.schedule});
  }
};

// (a) f32, bit for bit: the gradients of each micro-batch by itself, added in the order in which
// this schedule runs the backwards of the parameter's stage.
TEST_P(PipelineProofs, GradientsAddUpAsTheScheduleSaysBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const LabelledBatch whole = batch(0, {kRows, 1, 6, 6}, DType::f32);
  std::map<int, std::vector<Gradients>> of_parts;  // by number of chunks
  for (int chunks = 1; chunks <= 8; ++chunks) {
    std::int64_t begin = 0;
    for (const std::int64_t count : part_sizes(kRows, chunks)) {
      of_parts[chunks].push_back(gradients_of(DType::f32, whole, begin, count, first()));
      begin += count;
    }
  }
  for_each_case([&](const Case& c) {
    SCOPED_TRACE(c.text());
    nn::Sequential model = net(DType::f32);
    Pipeline pipe = pipeline(model, c);
    pipe.step({whole.x}, {whole.label}, loss_of);
    const std::vector<Gradients>& parts = of_parts[c.chunks];
    std::size_t index = 0;  // index of the parameter
    for (std::size_t s = 0; s < pipe.stages().size(); ++s) {
      const std::vector<int> order = order_of(pipe.schedule(static_cast<int>(parts.size())), s);
      ASSERT_EQ(order.size(), parts.size());
      for (const Tensor& p : pipe.stages()[s].parameters()) {
        EXPECT_TRUE(same_bits(p.grad().to(Device()), sum_of(parts, order, index)))
            << "parameter " << index;
        ++index;
      }
    }
  });
}

// Both proofs in f64 for a net whose skip connections bypass the middle stage.
TEST_P(PipelineProofs, SkipConnectionsGoPastAStage) {
  if (count() < 3) GTEST_SKIP() << "needs three devices";
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const Tensor x = batch(0, {kRows, 1, 8, 8}, DType::f64).x;
  const auto unet = [] {
    testing::UNet made = seeded(5, [] { return testing::UNet(); });
    made.to(DType::f64);
    return made;
  };
  const auto gradients_of_rows = [&](std::int64_t begin, std::int64_t rows) {
    testing::UNet model = unet();
    model.to(first());
    const Tensor part = raw::narrow(x, 0, begin, rows).to(first());
    const Tensor loss = nn::mse_loss(model(part), part);
    (rows == kRows ? loss : loss * (static_cast<double>(rows) / kRows)).backward();
    Gradients gradients;
    for (const Tensor& p : model.parameters()) gradients.push_back(p.grad().to(Device()));
    return gradients;
  };
  const Gradients whole = gradients_of_rows(0, kRows);
  for (const int chunks : {1, 3, 7}) {
    std::vector<Gradients> parts;
    std::int64_t begin = 0;
    for (const std::int64_t rows : part_sizes(kRows, static_cast<std::size_t>(chunks))) {
      parts.push_back(gradients_of_rows(begin, rows));
      begin += rows;
    }
    for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
      for (const Recompute mode : {Recompute::never, Recompute::except_last, Recompute::always}) {
        const Case c{schedule, mode, 3, 3, chunks};
        SCOPED_TRACE(c.text());
        testing::UNet model = unet();
        Pipeline pipe(
            {model.down, nn::pass_through(model.middle, 2), model.up},
            {.devices = devices(3), .chunks = chunks, .checkpoint = mode, .schedule = schedule});
        pipe.step({x}, {x}, [](auto y, auto target) { return nn::mse_loss(y[0], target[0]); });
        std::size_t index = 0;
        for (std::size_t s = 0; s < 3; ++s) {
          const auto order = order_of(pipe.schedule(static_cast<int>(parts.size())), s);
          for (const Tensor& p : pipe.stages()[s].parameters()) {
            const Tensor grad = p.grad().to(Device());
            EXPECT_TRUE(same_bits(grad, sum_of(parts, order, index))) << "parameter " << index;
            EXPECT_LE(testing::relative_difference(grad, whole[index]), 1e-9) << index;
            ++index;
          }
        }
        EXPECT_EQ(index, model.parameters().size());
      }
    }
  }
}

// (b) f64, compared with the whole batch.
TEST_P(PipelineProofs, GradientsAreThoseOfTheWholeBatch) {
  const LabelledBatch whole = batch(0, {kRows, 1, 6, 6}, DType::f64);
  const Gradients expected = gradients_of(DType::f64, whole, 0, kRows, first());
  for_each_case([&](const Case& c) {
    SCOPED_TRACE(c.text());
    nn::Sequential model = net(DType::f64);
    Pipeline pipe = pipeline(model, c);
    pipe.step({whole.x}, {whole.label}, loss_of);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(
          testing::relative_difference(model.parameters()[i].grad().to(Device()), expected[i]),
          1e-9);
    }
  });
}

// The order of operations may depend only on the schedule.
TEST_P(PipelineProofs, DelaysChangeNothing) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const LabelledBatch whole = batch(0, {8, 6}, DType::f32);
  for (const std::string& schedule : schedule_names()) {
    Gradients first;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const auto part = [&](std::int64_t in, std::int64_t out, std::uint64_t i) {
        return nn::Sequential{Delay(10 * round + i), nn::Linear(in, out), nn::Tanh()};
      };
      manual_seed(3);
      const nn::Sequential a = part(6, 8, 0), b = part(8, 8, 1), c = part(8, 8, 2),
                           d = part(8, 3, 3);
      std::vector<nn::AnyModule> stages = {a, b, c, d};
      if (stages_per_device(schedule) == 1) stages = {nn::Sequential{a, b}, nn::Sequential{c, d}};
      Pipeline pipe(stages, {.devices = devices(2),
                             .chunks = 4,
                             .checkpoint = Recompute::except_last,
                             .schedule = schedule});
      pipe.step({whole.x}, {whole.label}, loss_of);
      Gradients gradients;
      for (const nn::AnyModule& stage : stages) {
        for (const Tensor& p : stage.parameters()) gradients.push_back(p.grad().to(Device()));
      }
      if (round == 0) first = gradients;
      for (std::size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(same_bits(gradients[i], first[i])) << schedule << ", parameter " << i;
      }
    }
  }
}

WEFT_ON_DEVICES(PipelineProofs);

}  // namespace
}  // namespace weft::parallel
