#include "weft/train/checkpoint.h"

#include <cmath>
#include <filesystem>

#include "weft/io/pickle.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/io/files.h"
#include "weft/train/metrics.h"

namespace weft::train {
namespace {

class Saved : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(Saved);

TEST_P(Saved, RoundTrips) {
  testing::TempFolder folder;
  Checkpoint saved;
  saved.model = {{"fc.weight", rand({2, 3})},
                 {"losses", scalar(3)}};  // a parameter may have this name
  saved.parts = {{{"group.0.lr", scalar(0.1, DType::f64)}},
                 {{"last_epoch", scalar(std::int64_t{3})}}};
  saved.engines = {{{"order", scalar(std::int64_t{0})}}, {}};
  saved.generator = "engine 1 2 3";
  saved.loader = "loader";
  saved.losses = {0.5, 0.25, 1e-300};
  saved.more_losses = {{"second", {3, 2, 1}}, {"first", {4, 5, 6}}};
  saved.notes = {{"epoch", "3"}, {"generator", "mine"}};
  save_checkpoint(folder.path("c"), saved);
  const Checkpoint loaded = load_checkpoint(folder.path("c"));
  ASSERT_EQ(loaded.model.size(), 2u);
  for (const auto& [name, x] : loaded.model) {
    const Tensor& original = saved.model[name == "losses"].second;
    EXPECT_EQ(x.to_vector<float>(), original.to_vector<float>()) << name;
  }
  ASSERT_EQ(loaded.parts.size(), 2u);
  ASSERT_EQ(loaded.parts[0].size(), 1u);
  EXPECT_EQ(loaded.parts[0][0].first, "group.0.lr");
  EXPECT_EQ(loaded.parts[0][0].second.item<double>(), 0.1);
  ASSERT_EQ(loaded.parts[1].size(), 1u);
  EXPECT_EQ(loaded.parts[1][0].first, "last_epoch");
  ASSERT_EQ(loaded.engines.size(), 2u);
  ASSERT_EQ(loaded.engines[0].size(), 1u);
  EXPECT_EQ(loaded.engines[0][0].first, "order");
  EXPECT_TRUE(loaded.engines[1].empty());
  EXPECT_EQ(loaded.generator, saved.generator);
  EXPECT_EQ(loaded.loader, saved.loader);
  EXPECT_EQ(loaded.losses, saved.losses);
  ASSERT_EQ(loaded.more_losses.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(loaded.more_losses[i].name, saved.more_losses[i].name);
    EXPECT_EQ(loaded.more_losses[i].values, saved.more_losses[i].values);
  }
  EXPECT_EQ(loaded.notes, saved.notes);
}

TEST(Checkpoint, RefusesOtherFiles) {
  testing::TempFolder folder;
  const std::string path = folder.path("m");
  io::save_safetensors(path, {{"fc.weight", scalar(1)}});
  EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument,
                    "not a checkpoint (its metadata has no weft.checkpoint)");
  EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument, "--weights begins a run from its");
  io::save_pickle(path, io::PickleValue::state_dict({{"w", scalar(1)}}));
  EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument,
                    "a file of PyTorch's, not a checkpoint of weft's; --weights begins a run");
  io::save_safetensors(path, {}, {{"weft.checkpoint", "9"}});
  EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument, "checkpoint of version 9");
  io::Metadata metadata = {
      {"weft.checkpoint", "1"}, {"generator", ""}, {"loader", ""}, {"parts", "65"}};
  io::save_safetensors(path, {}, metadata);
  EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument, "\"65\" is no number of parts");
  metadata["parts"] = "1";
  metadata["engines"] = "many";
  io::save_safetensors(path, {}, metadata);
  EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument, "\"many\" is no number of engines");
  metadata.erase("engines");
  for (const char* name : {"stray", "part1.stray", "part.stray", "engine0.stray"}) {
    io::save_safetensors(path, {{name, scalar(1)}}, metadata);
    EXPECT_WEFT_ERROR(load_checkpoint(path), InvalidArgument,
                      "tensor \"" + std::string(name) + "\" is no part");
  }
  testing::write_file(path, "");
  EXPECT_WEFT_ERROR(load_checkpoint(path), Io, "too few for a header");
}

TEST(Checkpoint, WritesNoFileThatCannotBeRead) {
  testing::TempFolder folder;
  const std::string path = folder.path("c");
  for (const bool engines : {false, true}) {
    Checkpoint checkpoint{.generator = "g", .loader = "l"};
    std::vector<io::NamedTensors>& lists = engines ? checkpoint.engines : checkpoint.parts;
    lists.resize(65);
    EXPECT_WEFT_ERROR(save_checkpoint(path, checkpoint), InvalidArgument,
                      path + ": got 65 optimisers and schedulers, or engines, expected at most 64");
    EXPECT_EQ(folder.files(), 0);
    lists.resize(64);
    save_checkpoint(path, checkpoint);
    const Checkpoint loaded = load_checkpoint(path);
    EXPECT_EQ((engines ? loaded.engines : loaded.parts).size(), 64U);
    std::filesystem::remove(path);
  }
}

TEST(Checkpoint, NamesTheEntryThatAFileLacks) {
  testing::TempFolder folder;
  const std::string path = folder.path("c");
  save_checkpoint(path, {.generator = "g", .loader = "l", .losses = {1}});
  const io::SafetensorsFile whole = io::load_safetensors(path);
  for (const std::string missing : {"generator", "loader", "parts", "losses"}) {
    io::SafetensorsFile file = whole;
    file.metadata.erase(missing);
    if (missing == "losses") file.tensors.clear();
    io::save_safetensors(path, file.tensors, file.metadata);
    EXPECT_WEFT_ERROR(load_checkpoint(path), Io,
                      path + ": the entry \"" + missing +
                          "\" is missing, so the run cannot be continued from this file");
  }
  io::SafetensorsFile older = whole;  // saved by a version without an engine's state
  older.metadata.erase("engines");
  io::save_safetensors(path, older.tensors, older.metadata);
  EXPECT_TRUE(load_checkpoint(path).engines.empty());
}

TEST(Metrics, WritesTheFieldsScriptsRead) {
  testing::TempFolder folder;
  Metrics metrics;
  metrics.example = "mlp";
  metrics.losses = {0.5, NAN};
  metrics.epochs = {{0.5, 1, 2, 3, {{"top1", 0.5}}}};
  metrics.test = {{"accuracy", 0.875}};
  metrics.flags = {{"chunks", std::int64_t{8}}, {"checkpoint", std::string("never")}};
  metrics.optimizer = "SGD";
  metrics.lr = 0.5;
  metrics.float32_matmul_precision = "highest";
  metrics.conv_fp32_precision = "tf32";
  metrics.graph = true;
  metrics.cpu = "a";
  metrics.version = "1.2.3";
  metrics.date = "2026-03-01T12:00:00Z";
  metrics.commit = "abc";
  write_metrics(folder.path("m.json"), metrics);
  std::string text = testing::read_file(folder.path("m.json"));
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(
      text,
      R"({"example":"mlp","device":"","dtype":"","threads":0,"seed":0,"batch_size":0,)"
      R"("optimizer":"SGD","lr":0.5,"amp":false,"float32_matmul_precision":"highest",)"
      R"("conv_fp32_precision":"tf32","graph":true,"world_size":1,)"
      R"("flags":{"checkpoint":"never","chunks":8},)"
      R"("losses":[0.5,null],"epochs":[{"mean_loss":0.5,"sum_loss":1.0,"seconds":2.0,)"
      R"("images_per_second":3.0,"test":{"top1":0.5}}],"test":{"accuracy":0.875},"step_ms_median":0.0,)"
      R"("train_seconds":0.0,"cpu":"a","version":"1.2.3","date":"2026-03-01T12:00:00Z",)"
      R"("commit":"abc"})");
  EXPECT_EQ(utc_date().size(), 20U);
}

TEST(Metrics, NamesLossesWhereThereAreSeveral) {
  testing::TempFolder folder;
  Metrics metrics;
  metrics.losses = {0.5};
  metrics.loss_name = "discriminator";
  metrics.more_losses = {{"generator", {0.25}}};
  write_metrics(folder.path("m.json"), metrics);
  std::string text = testing::read_file(folder.path("m.json"));
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_HAS(text, R"("losses":{"discriminator":[0.5],"generator":[0.25]},)");
}

TEST(Metrics, AFlagMayHaveAnyBytes) {
  testing::TempFolder folder;
  Metrics metrics;
  metrics.flags = {{"text", std::string("caf\xe9.txt")}};
  write_metrics(folder.path("m.json"), metrics);
  EXPECT_HAS(testing::read_file(folder.path("m.json")), "\"text\": \"caf\xef\xbf\xbd.txt\"");
}

TEST(Metrics, EpochsSurviveACheckpoint) {
  const std::vector<EpochMetrics> epochs = epochs_from_text(
      epochs_to_text({{0.1, 2, 3, 4, {{"top5", NAN}, {"top1", 8}}}, {5, 6, 7, NAN}}));
  ASSERT_EQ(epochs.size(), 2u);
  ASSERT_EQ(epochs[0].test.size(), 2u);
  EXPECT_EQ(epochs[0].test[1], std::pair(std::string("top1"), 8.0));
  EXPECT_TRUE(epochs[1].test.empty());
  EXPECT_EQ(epochs[0].mean_loss, 0.1);
  EXPECT_EQ(epochs[1].seconds, 7);
  EXPECT_WEFT_ERROR(epochs_from_text("[{}]"), InvalidArgument, "not a list of epochs");
  EXPECT_WEFT_ERROR(epochs_from_text("["), InvalidArgument, "not a list of epochs");
}

}  // namespace
}  // namespace weft::train
