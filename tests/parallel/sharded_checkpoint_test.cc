// Checkpoints that ranks write and read in parts, however the model was cut when they were written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/mesh.h"
#include "weft/core/runtime/allocator.h"
#include "weft/data/dataloader.h"
#include "weft/io/state_dict.h"
#include "weft/nn/ema.h"
#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/sgd.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/sharded_nets.h"
#include "weft/tests/parallel/tensor_nets.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/recorder.h"

namespace weft::parallel {
namespace {

using testing::Net;

enum class Layout { plain, fsdp, hsdp, tp, sequence, fsdp_of_tp };

// Each epoch is one step, with the same text on all ranks.
class ShardedCheckpointTest : public FullyShardTest {
 protected:
  ShardedCheckpointTest() { ::testing::internal::CaptureStderr(); }
  ~ShardedCheckpointTest() override { ::testing::internal::GetCapturedStderr(); }

  train::Options options(int steps) const {
    train::Options o;
    o.example = "parts";
    o.out = folder.path("out");
    o.batch_size = 4;
    o.epochs = steps;
    o.resume = "latest";
    return o;
  }
  static train::Ranks ranks_of(comm::ProcessGroup& group) {
    return {.rank = group.rank(),
            .size = group.size(),
            .backend = group.backend(),
            .gather = [&](const std::string& text) { return group.all_gather_object(text); }};
  }

  struct Whole {
    nn::NamedTensors model, adam, averages;
  };

  /// The names in the folder; numbered files without their ending.
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(folder.path("out"))) {
      const std::string name = file.path().filename();
      names.insert(name.substr(0, name.find("-00001-of-00001.safetensors")));
    }
    return names;
  }
  static std::set<std::string> files_of(const std::string& step) {
    return {"model-" + step, "optimizer-" + step, "model.safetensors.index.json",
            "checkpoint.safetensors"};
  }

  /// Calls f(net, handle, loss_of) with a model in that layout; loss_of(i): the loss of the i-th
  /// step.
  template <class F>
  static void with_layout(comm::ProcessGroup& group, Layout layout, std::uint64_t seed,
                          const F& f) {
    Net net = testing::seeded(seed, [] { return Net(0); });
    const auto plain_loss = [&](int i) { return testing::loss_of_all(net, testing::text(i)); };
    if (layout == Layout::plain) return f(net, net, plain_loss);
    if (layout == Layout::tp || layout == Layout::sequence) {
      Parallelized tp = parallelize(net, group, testing::plan_of(layout == Layout::sequence));
      return f(net, tp, [&](int i) { return testing::loss_of_part(net, tp, testing::text(i)); });
    }
    FullyShardOptions how;
    std::shared_ptr<comm::ProcessGroup> shards = group.duplicate();
    if (layout == Layout::fsdp_of_tp) {
      const comm::Mesh mesh(shards, {{"dp", group.size() / 2}, {"tp", 2}});
      const Parallelized tp = parallelize(net, *mesh["tp"], testing::plan_of(true));
      for (testing::Block& block : net.blocks) fully_shard(block, mesh["dp"]);
      FullySharded sharded = fully_shard(net, mesh["dp"]);
      return f(net, sharded,
               [&](int i) { return testing::loss_of_part(net, tp, testing::text(i)); });
    }
    if (layout == Layout::hsdp) {
      const comm::Mesh mesh(shards, {{"replica", 2}, {"shard", group.size() / 2}});
      shards = mesh["shard"];
      how.replicas = mesh["replica"];
    }
    for (testing::Block& block : net.blocks) fully_shard(block, shards, how);
    FullySharded sharded = fully_shard(net, shards, how);
    f(net, sharded, plain_loss);
  }
  template <class Handle, class Part>
  static decltype(auto) state_of(const Handle& handle, Part& part) {
    if constexpr (requires { handle.state_of(part); }) {
      return handle.state_of(part);
    } else {
      return (part);
    }
  }

  /// Resumes the latest checkpoint and trains up to `o.epochs` steps, saving after each.
  Whole train(int n, Layout layout, const train::Options& o) const {
    Whole result;
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      // Another seed when resuming: the loaded values must not be there already.
      with_layout(group, layout, o.resume.empty() ? 3 : 4, [&](Net& net, auto& handle, auto loss) {
        optim::Adam adam(net.parameters(), {.lr = 0.01});
        nn::ExponentialMovingAverage ema(net, 0.9);
        optim::StepLR schedule(adam, {.step_size = 2});
        auto&& state = state_of(handle, adam);
        auto&& averages = state_of(handle, ema);
        data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
        train::Recorder recorder(o, ranks_of(group));
        recorder.resume(handle, loader, state, averages, schedule);
        while (recorder.next_epoch()) {
          for (auto& batch : recorder.batches(loader)) {
            (void)batch;
            adam.zero_grad();
            const Tensor value = loss(static_cast<int>(recorder.steps()));
            value.backward();
            adam.step();
            ema.update();
            schedule.step();
            recorder.step(value);
          }
          recorder.save(handle, loader, state, averages, schedule);
        }
        recorder.losses();
        const Whole now{handle.state_dict(), state.state_dict(), averages.state_dict()};
        if (group.rank() == 0) result = now;
      });
    });
    return result;
  }
  static void expect_close(const Whole& got, const Whole& wanted) {
    expect_near(got.model, wanted.model, 1e-9);
    expect_near(got.adam, wanted.adam, 1e-9);
    expect_near(got.averages, wanted.averages, 1e-9);
  }

  testing::TempFolder folder;
};

TEST_F(ShardedCheckpointTest, ARunGoesOnInAnyLayout) {
  train::Options o = options(10);
  o.resume = "";
  o.out = folder.path("whole");
  const Whole whole = train(1, Layout::plain, o);
  o = options(1);
  o.resume = "";
  train(3, Layout::fsdp, o);
  EXPECT_EQ(files(), files_of("1"));
  int steps = 1;
  Whole last;
  for (const auto& [n, layout] : {std::pair{2, Layout::tp},
                                  {4, Layout::hsdp},
                                  {1, Layout::plain},
                                  {4, Layout::fsdp_of_tp},
                                  {4, Layout::sequence},
                                  {2, Layout::fsdp},
                                  {4, Layout::fsdp},
                                  {8, Layout::fsdp},
                                  {1, Layout::fsdp}}) {
    SCOPED_TRACE(steps);
    last = train(n, layout, options(++steps));
    if (layout == Layout::plain) continue;
    EXPECT_EQ(files(), files_of(std::to_string(steps)));
  }
  expect_close(last, whole);
}

nn::NamedTensors by_name(nn::NamedTensors tensors) {
  std::ranges::sort(tensors, {}, &nn::NamedTensors::value_type::first);
  return tensors;
}
std::uint64_t bytes_of(const nn::StateParts& parts) {
  std::uint64_t bytes = 0;
  for (const nn::StatePart& part : parts) {
    bytes += static_cast<std::uint64_t>(part.tensor.numel()) * size_of(part.tensor.dtype());
  }
  return bytes;
}

TEST_F(ShardedCheckpointTest, ARankReadsOnlyItsParts) {
  train::Options o = options(1);
  o.resume = "";
  train(2, Layout::tp, o);
  const std::string path = folder.path("out/checkpoint.safetensors");
  const train::Checkpoint all = train::load_checkpoint(path);
  // As an earlier version has saved it from one process.
  train::Checkpoint old = all;
  old.model_files.clear();
  old.part_files.clear();
  const std::string old_path = folder.path("old.safetensors");
  train::save_checkpoint(old_path, old);
  for (const auto& [n, layout] : {std::pair{3, Layout::fsdp},
                                  {4, Layout::hsdp},
                                  {4, Layout::tp},
                                  {2, Layout::sequence},
                                  {4, Layout::fsdp_of_tp}}) {
    comm::run_ranks(n, [&, layout = layout](comm::ProcessGroup& group) {
      with_layout(group, layout, 5, [&](Net& net, auto& handle, auto) {
        if constexpr (!std::is_same_v<decltype(handle), Net&>) {
          for (const std::string& file : {path, old_path}) {
            optim::Adam adam(net.parameters(), {.lr = 0.01});
            auto state = handle.state_of(adam);
            const train::CheckpointReader reader(file);
            const std::uint64_t before = reader.bytes_read();
            handle.load_parts(reader.model());
            state.load_parts(reader.part(0));
            const std::uint64_t own = bytes_of(handle.parts()) + bytes_of(state.parts());
            EXPECT_EQ(reader.bytes_read() - before, own);
            expect_same(by_name(handle.state_dict()), by_name(all.model));
            std::uint64_t whole = 0;
            for (const auto& [name, x] : all.model) whole += 3 * 8 * std::uint64_t(x.numel());
            EXPECT_LT(own, whole * 2 / 3);
          }
        }
      });
    });
  }
}

TEST_F(ShardedCheckpointTest, NothingIsGathered) {
  for (const bool is_cut : {true, false}) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      nn::Sequential model = {nn::Linear(256, 256), nn::Linear(256, 256)};
      const auto shards = group.duplicate();
      std::vector<Parallelized> tp;
      std::vector<FullySharded> sharded;
      if (is_cut)
        tp.push_back(
            parallelize(model, *shards, {{"0", ColwiseParallel{}}, {"1", RowwiseParallel{}}}));
      if (!is_cut) sharded.push_back(fully_shard(model, shards));
      optim::Adam adam(model.parameters(), {.lr = 0.01});
      train::Recorder recorder(options(1), ranks_of(group));
      data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
      const auto save = [&](const auto& handle) {
        auto state = handle.state_of(adam);
        const std::int64_t before = group.traffic().bytes_sent,
                           of_engine = shards->traffic().bytes_sent;
        recorder.save(handle, loader, state);
        const std::int64_t sent = group.traffic().bytes_sent - before;
        EXPECT_EQ(shards->traffic().bytes_sent, of_engine);
        EXPECT_LT(sent, 16'000);  // the model has 526,336 bytes
        EXPECT_GT(sent, 100);
      };
      is_cut ? save(tp[0]) : save(sharded[0]);
    });
  }
}

// The parameters alone are more than the memory of any rank. Blocks are cut as they are made.
TEST_F(ShardedCheckpointTest, AModelThatFitsIntoNoRank) {
  constexpr int kRanks = 4, kBlocks = 32;
  constexpr std::int64_t kWidth = 64, kBytes = 4 * kBlocks * (8 * kWidth * kWidth + 5 * kWidth),
                         kLimit = kBytes * 5 / 6;
  set_host_devices(kRanks);
  const auto block = [] {
    return nn::Sequential{nn::Linear(kWidth, 4 * kWidth), nn::Tanh(),
                          nn::Linear(4 * kWidth, kWidth)};
  };
  comm::run_ranks(kRanks, [&](comm::ProcessGroup& group) {
    const Device device(DeviceType::cpu, group.rank());
    const Scoped here(&ThreadState::device, device);
    set_memory_limit(device, kLimit);
    double loss = 0;
    for (const bool again : {false, true}) {
      manual_seed(again ? 4 : 3);
      nn::Sequential model;
      for (int i = 0; i < kBlocks; ++i) {
        nn::Sequential made = block();
        fully_shard(made, group);
        model.append(made);
      }
      const FullySharded sharded = fully_shard(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1});
      auto state = sharded.state_of(sgd);
      data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
      train::Options o = options(1);
      o.resume = again ? "latest" : "";
      train::Recorder recorder(o, ranks_of(group));
      recorder.resume(sharded, loader, state);
      const Tensor x = full({4, kWidth}, 0.5);
      const auto loss_of = [&] { return (model(x) - 1.0).square().mean(); };
      if (again) {
        EXPECT_EQ(loss_of().item<double>(), loss);
        continue;
      }
      const double first = loss_of().item<double>();
      for (int i = 0; i < 3; ++i) {
        sgd.zero_grad();
        loss_of().backward();
        sgd.step();
      }
      recorder.save(sharded, loader, state);
      loss = loss_of().item<double>();
      EXPECT_LT(loss, first);
    }
    std::vector<nn::Sequential> plain;
    EXPECT_WEFT_ERROR(for (int i = 0; i < kBlocks; ++i) plain.push_back(block()), OutOfMemory,
                      "cpu:");
    plain.clear();
    set_memory_limit(device, 0);
  });
}

TEST_F(ShardedCheckpointTest, FilesThatNoCheckpointNamesAreIgnoredAndGo) {
  train::Options o = options(2);
  o.resume = "";
  o.keep_checkpoints = true;
  train(2, Layout::fsdp, o);
  std::set<std::string> expected = files_of("2");
  expected.merge(std::set<std::string>{"model-1", "optimizer-1", "checkpoint-epoch-0.safetensors",
                                       "checkpoint-epoch-1.safetensors"});
  EXPECT_EQ(files(), expected);

  // Files that killed runs leave, and files that are not the recorder's.
  const std::string end = "-00001-of-00001.safetensors";
  for (const std::string& name : {"model-3" + end, "optimizer-3.2" + end}) {
    testing::write_file(folder.path("out/" + name), std::string(8, '\0') + "torn");
  }
  for (const std::string& name :
       {"model" + end, "model-abc" + end, "model-1.5" + end, std::string("model-3.txt")}) {
    testing::write_file(folder.path("out/" + name), "other");
    expected.insert(name.substr(0, name.find(end)));
  }
  train(2, Layout::tp, options(2));  // has done all steps, so nothing is written
  EXPECT_TRUE(files().contains("model-3"));
  o = options(3);
  train(2, Layout::tp, o);
  for (const char* gone : {"model-2", "optimizer-2"}) {
    EXPECT_TRUE(files().contains(gone)) << "of epoch 1";
  }
  expected.merge(std::set<std::string>{"model-3", "optimizer-3"});
  EXPECT_EQ(files(), expected);

  // A kept checkpoint can be resumed, and the model alone can be loaded by its index.
  o = options(3);
  o.resume = folder.path("out/checkpoint-epoch-0.safetensors");
  o.out = folder.path("again");
  const Whole again = train(3, Layout::fsdp, o);
  expect_close(again, train(1, Layout::plain, options(3)));
  expect_near(by_name(io::load_state_dict(folder.path("out/model.safetensors.index.json"))),
              by_name(again.model), 1e-9);
}

TEST_F(ShardedCheckpointTest, AnIndexGoesWithItsModel) {
  train::Options o = options(1);
  o.resume = "";
  train(2, Layout::fsdp, o);
  const std::string file = folder.path("out/checkpoint.safetensors");
  EXPECT_EQ(io::SliceReader({file}).metadata().at("weft.checkpoint"), "2");
  o.weights = file + ":model";
  EXPECT_WEFT_ERROR(train(1, Layout::plain, o), InvalidArgument,
                    "its model is in model-1-00001-of-00001.safetensors, beside it; --weights " +
                        folder.path("out/model.safetensors.index.json"));
  train(1, Layout::plain, options(2));
  EXPECT_EQ(files(), (std::set<std::string>{"checkpoint.safetensors"}));

  // An index that a user has put there stays.
  const std::string index = folder.path("out/model.safetensors.index.json");
  testing::write_file(index, R"({"weight_map": {"x": "model-00001-of-00001.safetensors"}})");
  testing::write_file(folder.path("out/model-9-00001-of-00001.safetensors"), "");
  train(1, Layout::plain, options(3));
  EXPECT_EQ(files(),
            (std::set<std::string>{"checkpoint.safetensors", "model.safetensors.index.json"}));
}

TEST_F(ShardedCheckpointTest, TwoRunsInOneFolderAreRefused) {
  auto first = std::make_unique<train::Recorder>(options(1));
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net);
    const FullySharded sharded = cut(model, group);
    data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
    train::Recorder recorder(options(1), ranks_of(group));
    EXPECT_WEFT_ERROR(recorder.save(sharded, loader), Io,
                      folder.path("out") + ": another run is writing here");
    EXPECT_WEFT_ERROR(recorder.finish(sharded), Io, "another run is writing here");
    group.all_gather_object("");
    if (group.rank() == 0) first.reset();
    recorder.save(sharded, loader);  // the other run has ended
    recorder.finish(sharded);
  });
  EXPECT_TRUE(files().contains("model.safetensors"));
}

TEST_F(ShardedCheckpointTest, RanksThatShareNoFolderAreAnError) {
  const std::string name = "elsewhere/model-0-00001-of-00001.safetensors";
  // All ranks throw, and rank 0 names the rank with the other folder.
  const auto save = [&](const std::string& of_rank_1, const std::string& error) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3, net);
      const FullySharded sharded = cut(model, group);
      train::Options o = options(1);
      o.out = folder.path(group.rank() == 0 ? "out" : of_rank_1);
      train::Recorder recorder(o, ranks_of(group));
      data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
      if (error.empty()) return recorder.save(sharded, loader);
      EXPECT_WEFT_ERROR(recorder.save(sharded, loader), Io, error);
      if (group.rank() == 0) EXPECT_WEFT_ERROR(recorder.save(sharded, loader), Io, "rank 1: ");
      if (group.rank() == 1) EXPECT_WEFT_ERROR(recorder.save(sharded, loader), Io, error);
    });
  };
  save("elsewhere", name + ": No such file");
  EXPECT_FALSE(files().contains("checkpoint.safetensors"));
  // Now that folder has a file of the same name and size.
  save("out", "");
  std::filesystem::rename(folder.path("out"), folder.path("elsewhere"));
  save("elsewhere", "this is not the file that another rank has made");
  EXPECT_FALSE(files().contains("checkpoint.safetensors"));
}

TEST_F(ShardedCheckpointTest, WhatRankZeroCannotFinishFailsOnAll) {
  std::filesystem::create_directories(folder.path("out/checkpoint.safetensors"));
  std::filesystem::create_directories(folder.path("out/model.safetensors/x"));
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net);
    const FullySharded sharded = cut(model, group);
    train::Recorder recorder(options(1), ranks_of(group));
    data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
    EXPECT_WEFT_ERROR(recorder.save(sharded, loader), Io, "it exists and is no regular file");
    EXPECT_WEFT_ERROR(recorder.finish(sharded), Io, "model.safetensors: Is a directory");
  });
}

TEST_F(ShardedCheckpointTest, AnotherModelIsRefused) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net),
                   other = {nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 4)};
    const FullySharded sharded = cut(model, group), others = fully_shard(other, group);
    data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
    train::Recorder(options(1), ranks_of(group)).save(sharded, loader);
    const nn::NamedTensors before = others.state_dict();
    train::Recorder recorder(options(1), ranks_of(group));
    FullySharded target = others;
    EXPECT_WEFT_ERROR(recorder.resume(target, loader), InvalidArgument,
                      "2.bias is [5], expected [4], 2.weight is [5,8], expected [4,8], 4.bias is "
                      "unknown, 4.weight is unknown");
    expect_same(others.state_dict(), before);
  });
}

}  // namespace
}  // namespace weft::parallel
