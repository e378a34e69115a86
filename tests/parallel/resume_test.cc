// A run of three ranks that is saved and resumed continues bit for bit the same, with every way of
// averaging gradients. Three ranks, because two numbers have only one sum; a ring adds three in an
// order that depends on the gradient's position in its message.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/core/runtime/log.h"
#include "weft/data/dataloader.h"
#include "weft/data/distributed_sampler.h"
#include "weft/data/tensor_dataset.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/balance.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/distributed_optimizer.h"
#include "weft/parallel/pipeline.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"
#include "weft/train/recorder.h"

namespace weft::parallel {
namespace {

using comm::testing::in_groups;
using testing::seeded;

constexpr int kRanks = 3;
// This cap closes the bucket of the middle layer. The first layer's bucket is so small that it is
// not reduced by a ring.
constexpr double kCap = 0.02;

nn::Sequential net() {
  return {nn::Linear(12, 200), nn::Tanh(), nn::Linear(200, 100), nn::Tanh(), nn::Linear(100, 3)};
}
// The last three layers have more than 1 MiB of gradients, where a pipeline's first bucket closes.
nn::Sequential wide_net() {
  return {nn::Linear(12, 600), nn::Tanh(), nn::Linear(600, 500), nn::Tanh(), nn::Linear(500, 3)};
}

Tensor loss_of(std::span<const Tensor> y, std::span<const Tensor> target) {
  return nn::mse_loss(y[0], target[0]);
}

struct Log final : LogSink {
  void write(Level level, std::string_view message) override {
    if (level == Level::warning) text += std::string(message) + '\n';
  }
  std::string text;
};

// The result of rank 0.
struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  std::string warnings;
};

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() { ::testing::internal::CaptureStderr(); }
  ~ResumeTest() override { ::testing::internal::GetCapturedStderr(); }

  // Two epochs of three steps; limit 0: all of them.
  train::Options options(std::int64_t limit, bool resumes = false) const {
    train::Options o;
    o.example = "resume";
    o.out = folder_.path("out");
    o.batch_size = 3;
    o.epochs = 2;
    o.limit_steps = limit;
    if (resumes) o.resume = folder_.path("out/checkpoint.safetensors");
    return o;
  }

  // The training of one rank: step(x, target) trains one batch.
  template <class Step, class... Parts>
  void train(comm::ProcessGroup& group, const train::Options& o, nn::Sequential& model,
             optim::SGD& sgd, const Step& step, Parts&... parts) {
    const train::Ranks ranks{
        .rank = group.rank(),
        .size = group.size(),
        .backend = group.backend(),
        .gather = [&](const std::string& text) { return group.all_gather_object(text); }};
    optim::OneCycleLR schedule(sgd, {.max_lr = {0.2}, .total_steps = 8});
    const auto sampler = std::make_shared<data::DistributedSampler>(
        27, data::DistributedSamplerOptions{.num_replicas = kRanks, .rank = group.rank()});
    Generator generator(8);
    data::DataLoader loader(data::TensorDataset(uniform({27, 12}, -1, 1, DType::f32, &generator),
                                                uniform({27, 3}, -1, 1, DType::f32, &generator)),
                            {.batch_size = 3, .sampler = sampler});
    Log log;
    const Scoped<LogSink*> logging(&ThreadState::log, &log);
    train::Recorder recorder(o, ranks);
    recorder.resume(model, loader, sgd, schedule, parts...);
    while (recorder.next_epoch()) {
      sampler->set_epoch(recorder.epoch());
      for (auto& [x, target] : recorder.batches(loader)) {
        sgd.zero_grad();
        recorder.step(step(x, target));
        schedule.step();
      }
      if (o.limit_steps > 0) recorder.save(model, loader, sgd, schedule, parts...);
    }
    const std::vector<double>& losses = recorder.losses();
    if (group.rank() != 0) return;
    run_ = {.losses = losses, .warnings = log.text};
    for (const Tensor& p : model.parameters()) run_.weights.push_back(p.to_vector<float>());
  }

  void train_ddp(comm::ProcessGroup& group, const train::Options& o,
                 const DistributedDataParallelOptions& engine) {
    nn::Sequential model = seeded(5, net);
    DistributedDataParallel ddp(model, group, engine);
    optim::SGD sgd(model.parameters(), {.momentum = 0.9});
    train(
        group, o, model, sgd,
        [&](const Tensor& x, const Tensor& target) {
          const Tensor loss = nn::mse_loss(ddp(x), target);
          loss.backward();
          sgd.step();
          return loss;
        },
        ddp);
  }

  void train_horovod(comm::ProcessGroup& group, const train::Options& o,
                     const DistributedOptimizerOptions& engine) {
    const Horovod hvd(group);
    nn::Sequential model = seeded(5, net);
    DistributedOptimizer sgd(hvd, optim::SGD(model.parameters(), {.momentum = 0.9}),
                             model.named_parameters(), engine);
    train(group, o, model, sgd, [&](const Tensor& x, const Tensor& target) {
      const Tensor loss = nn::mse_loss(model(x), target);
      loss.backward();
      sgd.step();
      return loss;
    });
  }

  // Each rank has its own pipeline.
  void train_pipeline(comm::ProcessGroup& group, const train::Options& o) {
    nn::Sequential model = seeded(5, wide_net);
    const std::vector<std::size_t> stages = {2, 3};
    Pipeline pipe(cut(model, stages), {.devices = {Device(), Device()},
                                       .chunks = 2,
                                       .replicas = {std::shared_ptr<void>(), &group}});
    optim::SGD sgd(model.parameters(), {.momentum = 0.9});
    train(group, o, model, sgd, [&](const Tensor& x, const Tensor& target) {
      const Tensor loss = pipe.step({x}, {target}, loss_of);
      sgd.step();
      return loss;
    });
  }

  Trained run(const std::string& engine, const std::string& backend, const train::Options& o) {
    in_groups(backend, kRanks, [&](comm::ProcessGroup& group) {
      if (engine == "ddp") return train_ddp(group, o, {.bucket_cap_mb = kCap});
      if (engine == "ddp_default_caps") return train_ddp(group, o, {});
      if (engine == "ddp_static_graph") {
        return train_ddp(group, o, {.bucket_cap_mb = kCap, .static_graph = true});
      }
      if (engine == "ddp_find_unused") {
        return train_ddp(group, o, {.bucket_cap_mb = kCap, .find_unused_parameters = true});
      }
      if (engine == "ddp_bf16") {
        return train_ddp(group, o, {.bucket_cap_mb = kCap, .comm_hook = bf16_compress});
      }
      if (engine == "horovod") return train_horovod(group, o, {});
      if (engine == "horovod_fusion") return train_horovod(group, o, {.fusion_threshold = 20'000});
      train_pipeline(group, o);
    });
    return std::move(run_);
  }

  std::string checkpoint() const { return folder_.path("out/checkpoint.safetensors"); }

 private:
  testing::TempFolder folder_;
  Trained run_;
  Scoped<bool> deterministic_{&ThreadState::deterministic, true};
};

TEST_F(ResumeTest, ACheckpointWithoutTheEnginesStateIsTakenAndSaidSo) {
  run("ddp", "threads", options(2));
  train::Checkpoint older = train::load_checkpoint(checkpoint());
  ASSERT_EQ(older.engines.size(), 1U);
  older.engines.clear();
  train::save_checkpoint(checkpoint(), older);
  const Trained resumed = run("ddp", "threads", options(0, true));
  EXPECT_EQ(resumed.losses.size(), 6U);
  EXPECT_EQ(resumed.warnings.find(checkpoint() + ": saved without the engine's state"), 0U)
      << resumed.warnings;

  older.engines.resize(2);
  train::save_checkpoint(checkpoint(), older);
  EXPECT_WEFT_ERROR(run("ddp", "threads", options(0, true)), InvalidArgument,
                    "holds the states of 2 engines, this program has 1");
}

// Parameters: engine and backend.
class ResumeByTest : public ResumeTest,
                     public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(ResumeByTest, GoesOnToTheBit) {
  const auto& [engine, backend] = GetParam();
  const std::string missing = comm::testing::missing_backend(backend);
  if (!missing.empty()) GTEST_SKIP() << missing;
  const Trained whole = run(engine, backend, options(0));
  ASSERT_EQ(whole.losses.size(), 6U);
  for (const int stop : {1, 4}) {
    run(engine, backend, options(stop));
    const Trained resumed = run(engine, backend, options(0, true));
    EXPECT_EQ(resumed.losses, whole.losses) << stop;
    EXPECT_TRUE(resumed.weights == whole.weights) << stop;
    EXPECT_EQ(resumed.warnings, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, ResumeByTest,
                         ::testing::Combine(::testing::Values("ddp", "ddp_default_caps",
                                                              "ddp_static_graph", "ddp_find_unused",
                                                              "ddp_bf16", "horovod",
                                                              "horovod_fusion", "pipeline"),
                                            ::testing::Values("ring", "gloo", "shm")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace weft::parallel
