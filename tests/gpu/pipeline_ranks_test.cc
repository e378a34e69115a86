// Pipelines of several ranks, each with an emulated GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "weft/tests/gpu/gpu_ranks.h"
#include "weft/tests/parallel/nets.h"
#include "weft/weft.h"

namespace weft {
namespace {

using comm::ProcessGroup;
using testing::batch;
using testing::gpu_of;
using testing::in_groups;
using testing::LabelledBatch;

constexpr std::int64_t kRows = 7;

std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

nn::Sequential net(DType dtype) {
  nn::Sequential layers = testing::seeded(5, [] {
    return nn::Sequential{nn::Conv2d(1, 3, 3), nn::Tanh(),      nn::Conv2d(3, 2, 2),
                          nn::ReLU(),          nn::Flatten(),   nn::Linear(18, 8),
                          nn::Tanh(),          nn::Linear(8, 3)};
  });
  layers.to(dtype);
  return layers;
}

std::vector<nn::AnyModule> stages_of(const nn::Sequential& layers, int stages) {
  const std::vector<double> costs(layers.size(), 1.0);
  return parallel::cut(layers, parallel::balanced(costs, static_cast<std::size_t>(stages)));
}

Tensor loss_of(std::span<const Tensor> y, std::span<const Tensor> target) {
  return nn::cross_entropy(y[0], target[0]);
}

class PipelineRanks : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OnGpus, PipelineRanks, ::testing::Values("threads", "shm", "nccl"));

// Bit for bit the result of one process on the same GPUs.
TEST_P(PipelineRanks, GradientsAreThoseOfOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const LabelledBatch whole = batch(0, {kRows, 1, 6, 6}, DType::f32);
  for (const std::string& schedule : parallel::schedule_names()) {
    for (const auto mode : {parallel::Recompute::never, parallel::Recompute::always}) {
      SCOPED_TRACE(schedule + ", " + parallel::to_string(mode));
      const int stages = 2 * parallel::stages_per_device(schedule);
      const parallel::PipelineOptions options{
          .chunks = 4, .checkpoint = mode, .schedule = schedule};
      nn::Sequential alone = net(DType::f32);
      parallel::PipelineOptions of_one = options;
      of_one.devices = {gpu_of(0), gpu_of(1)};
      parallel::Pipeline one(stages_of(alone, stages), of_one);
      for (int step = 0; step < 2; ++step) one.step({whole.x}, {whole.label}, loss_of);
      in_groups(GetParam(), 2, [&](ProcessGroup& group) {
        nn::Sequential model = net(DType::f32);
        parallel::PipelineOptions of_ranks = options;
        of_ranks.group = shared(group);
        of_ranks.devices = {gpu_of(group.rank())};
        parallel::Pipeline pipe(stages_of(model, stages), of_ranks);
        for (int step = 0; step < 2; ++step) pipe.step({whole.x}, {whole.label}, loss_of);
        for (std::size_t s = 0; s < pipe.stages().size(); ++s) {
          const std::vector<Tensor> theirs = one.stages()[s].parameters();
          const std::vector<Tensor> ours = pipe.stages()[s].parameters();
          for (std::size_t i = 0; pipe.is_here(s) && i < ours.size(); ++i) {
            EXPECT_TRUE(
                testing::same_bits(ours[i].grad().to(Device()), theirs[i].grad().to(Device())))
                << "stage " << s << ", parameter " << i;
          }
        }
      });
    }
  }
}

// Two pairs of ranks, each with half of the batch, compared with the whole batch on the host.
TEST_P(PipelineRanks, ReplicasAverageTheirGradients) {
  const LabelledBatch whole = batch(0, {2 * kRows, 1, 6, 6}, DType::f64);
  nn::Sequential alone = net(DType::f64);
  nn::cross_entropy(alone(whole.x), whole.label).backward();
  in_groups(GetParam(), 4, [&](ProcessGroup& world) {
    const int rank = world.rank();
    const comm::Mesh mesh(shared(world), {{"dp", 2}, {"pp", 2}});
    const LabelledBatch own = whole.shard(mesh.coordinate("dp"), 2);
    nn::Sequential model = net(DType::f64);
    parallel::Pipeline pipe(stages_of(model, 2), {.devices = {gpu_of(rank)},
                                                  .chunks = 3,
                                                  .schedule = "1f1b",
                                                  .group = mesh["pp"],
                                                  .replicas = mesh["dp"]});
    pipe.step({own.x}, {own.label}, loss_of);
    std::size_t index = 0;
    for (std::size_t s = 0; s < pipe.stages().size(); ++s) {
      for (const Tensor& p : pipe.stages()[s].parameters()) {
        const Tensor expected = alone.parameters()[index++].grad();
        if (!pipe.is_here(s)) continue;
        ASSERT_TRUE(p.grad().defined());
        EXPECT_LE(testing::relative_difference(p.grad().to(Device()), expected), 1e-9);
      }
    }
    pipe.all_gather();
    const NoGrad no_grad;
    EXPECT_LE(testing::relative_difference(pipe(whole.x).to(Device()), alone(whole.x)), 1e-9);
  });
}

}  // namespace
}  // namespace weft
