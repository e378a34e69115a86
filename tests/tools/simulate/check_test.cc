// Prediction files, and predictions compared with made-up runs.
#include "weft/tools/simulate/check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/tools/simulate/costs.h"

namespace weft::simulator {
namespace {

PredictionFile some_file() {
  PredictionFile file{.about = {{"date", "2026-01-01"}, {"dtype", "f32"}}, .costs = round_costs()};
  for (const std::int64_t batch : {8, 16}) {
    for (Prediction& each : ranking(file.costs, batch, {2})) {
      file.predictions.push_back(std::move(each));
    }
  }
  return file;
}

TEST(PredictionFile, IsReadBack) {
  const testing::TempFolder folder;
  const PredictionFile file = some_file();
  testing::write_file(folder.path("F.json"), to_text(file));
  const PredictionFile back = read_predictions(folder.path("F.json"));
  EXPECT_EQ(to_text(back), to_text(file));
  EXPECT_EQ(back.about["date"], "2026-01-01");
  ASSERT_EQ(back.predictions.size(), file.predictions.size());
  EXPECT_EQ(back.predictions[0].way, file.predictions[0].way);
  EXPECT_DOUBLE_EQ(back.predictions[0].seconds(), file.predictions[0].seconds());
  // The costs are complete if they give the same predictions.
  EXPECT_DOUBLE_EQ(data_parallel(back.costs, 12).seconds(),
                   data_parallel(file.costs, 12).seconds());
}

TEST(PredictionFile, RefusesOthers) {
  const testing::TempFolder folder;
  EXPECT_WEFT_ERROR(read_predictions(folder.path("nothing")), Io, "cannot be read");
  for (const std::string text : {"{", "{}", "[1]", R"({"costs":1})"}) {
    testing::write_file(folder.path("F.json"), text);
    EXPECT_WEFT_ERROR(read_predictions(folder.path("F.json")), Io,
                      "is nothing that --predict wrote: ");
  }
  nlohmann::json old = nlohmann::json::parse(to_text(some_file()));
  old["costs"]["layers"][0].erase("parameter_rows");
  testing::write_file(folder.path("F.json"), old.dump());
  EXPECT_WEFT_ERROR(read_predictions(folder.path("F.json")), Io,
                    "a 'parameter_rows' is missing in it; make it anew with --predict");
  testing::write_file(folder.path("run.json"), R"({"rows": [{"name": 1}]})");
  EXPECT_WEFT_ERROR(read_run(folder.path("run.json")), Io,
                    "run.json is no run: something in it is not of the type that belongs there");
  testing::write_file(folder.path("run.json"), "{}");
  EXPECT_WEFT_ERROR(read_run(folder.path("run.json")), Io, "in " + folder.path("run.json"));
}

TEST(Check, OfDevices) {
  const testing::TempFolder folder;
  testing::write_file(folder.path("devices.json"), R"({"devices": 2,
    "data_parallel": [{"work": "autoencoder", "batch": 8, "one_ms": {"median": 25000},
                       "data_parallel_ms": {"median": 20760}}],
    "pipeline": [{"work": "autoencoder", "batch": 8, "chunks": 2, "schedule": "gpipe",
                  "checkpoint": "never", "one_ms": {"median": 24000},
                  "pipeline_ms": {"median": 36000}},
                 {"work": "autoencoder", "batch": 8, "chunks": 3, "schedule": "gpipe",
                  "checkpoint": "never", "one_ms": {"median": 24000},
                  "pipeline_ms": {"median": 36000}}]})");
  const Check checked = check(some_file(), read_run(folder.path("")));
  EXPECT_EQ(checked.matched, 5);
  EXPECT_EQ(checked.off, 1);
  EXPECT_FALSE(checked.good());
  // 25.95 s compared with 20.76 s, and a run without a prediction.
  EXPECT_HAS(checked.text, "+25.0%  more than 15 %");
  EXPECT_HAS(checked.text, "3 chunks");
  EXPECT_HAS(checked.text, "none 36000.000 ms");
  EXPECT_HAS(checked.text, "5 of 6 rows have a prediction; 4 of these");
}

TEST(Check, OfTheTable) {
  const testing::TempFolder folder;
  testing::write_file(folder.path("metrics.json"), R"({"rows": [
    {"name": "single", "chunks": 0, "checkpoint": "never", "batch": 8, "step_ms": 25000},
    {"name": "model parallel", "chunks": 0, "checkpoint": "never", "batch": 16, "step_ms": 1},
    {"name": "pipeline", "chunks": 2, "checkpoint": "except_last", "batch": 8, "step_ms": 40000}
  ]})");
  const auto run = read_run(folder.path("metrics.json"));
  ASSERT_EQ(run.size(), 3U);
  EXPECT_EQ(run[0].way, (Way{.engine = "one_device", .batch = 8}));
  EXPECT_EQ(run[1].way, (Way{.engine = "model_parallel", .batch = 16, .devices = 2}));
  EXPECT_EQ(run[2].way, (Way{"pipeline", 8, 2, "gpipe", "except_last", 2}));
  const Check checked = check(some_file(), run);
  EXPECT_EQ(checked.matched, 3);
  EXPECT_EQ(checked.off, 1);
}

TEST(Check, OfRanks) {
  const testing::TempFolder folder;
  testing::write_file(folder.path("ddp.json"), R"({"ranks": 2, "throughput": [
    {"work": "autoencoder", "local_batch": 4, "weft_ms": {"median": 27000},
     "single_ms": {"median": 13000}}], "overlap": [
    {"work": "autoencoder", "local_batch": 4, "bucket_cap_mb": 25, "overlap_ms": {"median": 27000},
     "after_ms": {"median": 27000}}]})");
  const auto run = read_run(folder.path("ddp.json"));
  ASSERT_EQ(run.size(), 4U);
  EXPECT_EQ(run[0].way, (Way{.engine = "ddp", .batch = 8, .devices = 2}));
  const Check checked = check(some_file(), run);
  EXPECT_EQ(checked.matched, 2) << checked.text;
  EXPECT_TRUE(checked.good());
}

TEST(Check, OfAProgram) {
  const testing::TempFolder folder;
  const auto way_of = [&](const std::string& metrics) {
    testing::write_file(folder.path("metrics.json"), metrics);
    return read_run(folder.path("")).at(0);
  };
  const Measured dp = way_of(R"({"example": "mlp_dp", "batch_size": 64, "world_size": 1,
      "peak_bytes_cpu:0": 1, "peak_bytes_cpu:1": 1, "step_ms_median": 3, "threads": 2})");
  EXPECT_EQ(dp.program, "mlp");
  EXPECT_EQ(dp.way, (Way{.engine = "data_parallel", .batch = 64, .devices = 2}));
  EXPECT_DOUBLE_EQ(dp.seconds, 0.003);
  const std::string pipe = R"({"example": "resnet_pipe", "batch_size": 8, "world_size": 1,
      "peak_bytes_cpu:0": 1, "peak_bytes_cpu:1": 1, "step_ms_median": 3, "flags": {"depth": 50,
      "chunks": 4, "checkpoint": "never", "schedule": "step", "pipeline-schedule": "1f1b",
      "pipeline-schedule-file": )";
  const Measured stages = way_of(pipe + R"("none"}})");
  EXPECT_EQ(stages.program, "resnet50");
  EXPECT_EQ(stages.what, "pipeline 1f1b, checkpoint never, 4 chunks");
  EXPECT_EQ(stages.way, (Way{"pipeline", 8, 2, "1f1b", "never", 4}));
  EXPECT_EQ(way_of(R"({"example": "resnet_pipe", "batch_size": 8, "step_ms_median": 3,
                        "flags": {"depth": 18, "image-size": 32}})")
                .program,
            "resnet18, image-size 32");
  const Measured own = way_of(pipe + R"("mine.txt"}})");
  EXPECT_EQ(own.what, "mine.txt");
  EXPECT_EQ(own.way, (Way{.batch = 8}));
  const Measured ddp =
      way_of(R"({"example": "mlp_ddp", "batch_size": 32, "world_size": 2, "step_ms_median": 3})");
  EXPECT_EQ(ddp.way, (Way{.engine = "ddp", .batch = 64, .devices = 2}));
  const Measured zero =
      way_of(R"({"example": "mlp_zero", "batch_size": 32, "world_size": 2, "step_ms_median": 3})");
  EXPECT_EQ(zero.program, "mlp_adam");
  EXPECT_EQ(zero.way, (Way{.engine = "zero1", .batch = 64, .devices = 2}));
  const auto transformer = [&](const std::string& kind, const std::string& flags) {
    return way_of(R"({"example": "char_transformer_)" + kind +
                  R"(", "batch_size": 8, "world_size": 2, "step_ms_median": 3, "flags": {)" +
                  flags + "}}");
  };
  for (const std::string strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    const Measured run = transformer("fsdp", R"("width": 64, "strategy": ")" + strategy + '"');
    EXPECT_EQ(run.program, "char_transformer");
    EXPECT_EQ(run.way, (Way{.engine = strategy, .batch = 16, .devices = 2}));
  }
  const Measured resnet =
      way_of(R"({"example": "resnet_fsdp", "batch_size": 4, "world_size": 2, "step_ms_median": 3,
                 "flags": {"depth": 18, "strategy": "zero1"}})");
  EXPECT_EQ(resnet.program, "resnet18");
  EXPECT_EQ(resnet.way, (Way{.engine = "zero1", .batch = 8, .devices = 2}));
  EXPECT_EQ(transformer("fsdp", R"("layers": 3)").program, "char_transformer, layers 3");
  EXPECT_EQ(transformer("fsdp", R"("replicas": 2)").program, "char_transformer, replicas 2");
  EXPECT_EQ(transformer("tp", R"("tp": 0)").way, (Way{.engine = "tp", .batch = 8, .devices = 2}));
  EXPECT_EQ(transformer("tp", R"("tp": 1)").way.engine, "");
  EXPECT_EQ(transformer("tp", R"("sequence-parallel": true)").way.engine, "");
  const Measured two =
      way_of(R"({"example": "mlp", "batch_size": 64, "threads": 2, "step_ms_median": 3})");
  EXPECT_EQ(two.way, (Way{.engine = "undivided", .batch = 64, .devices = 2}));
  const Measured one =
      way_of(R"({"example": "mlp", "batch_size": 64, "threads": 1, "step_ms_median": 3})");
  EXPECT_EQ(one.way, (Way{.engine = "one_device", .batch = 64}));
}

TEST(Check, WithoutAMatchIsNotGood) {
  const Check checked =
      check(some_file(), {{"DataParallel", "mlp", {"data_parallel", 8, 2}, 25.95}});
  EXPECT_EQ(checked.matched, 0);
  EXPECT_FALSE(checked.good());
  EXPECT_HAS(checked.text, "mlp, DataParallel");
}

TEST(Check, ALongPathIsOneLine) {
  const std::string path(300, 'p');
  const Check checked = check(some_file(), {{path, "mlp", {.batch = 8}, 0.003}});
  EXPECT_HAS(checked.text,
             "\nmlp, " + path + "      8         none     3.000 ms         -\n0 of 1 ");
}

TEST(Check, RefusesWhatIsNoRun) {
  const testing::TempFolder folder;
  EXPECT_WEFT_ERROR(read_run(folder.path("nothing")), Io, "cannot be read");
  EXPECT_WEFT_ERROR(read_run(folder.path("")), Io, "holds none of metrics.json");
  for (const std::string text : {"{", "{}", "[1]", R"({"rows": [{"name": "single"}]})"}) {
    testing::write_file(folder.path("run.json"), text);
    EXPECT_WEFT_ERROR(read_run(folder.path("run.json")), Io, "run.json");
  }
}

}  // namespace
}  // namespace weft::simulator
