// The programs for several devices: they must have the losses of the program for one.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "weft/io/safetensors.h"
#include "weft/tests/examples/launched.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

class DevicesRun : public testing::LaunchedTest {
 protected:
  DevicesRun() : LaunchedTest("env") {}

  static constexpr const char* kOptions = "--dtype f64 --no-shuffle --epochs 1 --seed 7 ";
};

TEST_F(DevicesRun, DataParallelIsOneDevice) {
  const std::string options = kOptions + std::string("--lr 0.1 --batch-size 8 ");
  succeed("one", false, "mlp", options);
  for (const std::string n : {"1", "2", "3"}) {
    succeed("dp" + n, false, "mlp_dp", options + "--host-devices " + n);
    EXPECT_EQ(
        log().find("one device: nothing runs beside it; --host-devices 2 splits the CPU in two") !=
            std::string::npos,
        n == "1");
    expect_same_run("one", "dp" + n);
    EXPECT_EQ(metrics("one")["test"], metrics("dp" + n)["test"]);
  }
  EXPECT_HAS(log(), "gathered outputs");
  EXPECT_GT(metrics("dp3")["peak_bytes_cpu:2"], 0);
}

TEST_F(DevicesRun, PipelinesAreOneDevice) {
  const std::string options = kOptions + std::string("--batch-size 8 --limit-steps 3 ");
  succeed("one", false, "autoencoder", options);
  for (const std::string how :
       {"gpipe --checkpoint always", "1f1b --checkpoint except_last", "zb-h1 --checkpoint never",
        "interleaved --checkpoint never --chunks 4", "zb-v --checkpoint always",
        "dualpipev --checkpoint never"}) {
    succeed("pipe", false, "autoencoder_pipe",
            options + "--host-devices 2 --chunks 8 --schedule " + how);
    SCOPED_TRACE(how);
    expect_same_run("one", "pipe");
  }
}

// A file says how many micro-batches there are, and in which order. This is what a right solution
// of the lab's exercise 9 writes.
TEST_F(DevicesRun, AScheduleOfAFileGoesWithNoOtherChoice) {
  const std::string write = "tests/learn/right_schedule >" + folder.path("schedule");
  ASSERT_EQ(std::system(write.c_str()), 0);
  const std::string file = "--schedule-file " + folder.path("schedule");
  const std::string options = "--host-devices 2 --batch-size 8 --limit-steps 2 " + file;
  succeed("file", false, "autoencoder_pipe", options + " --dtype f64 --no-shuffle --seed 7");
  succeed("one", false, "autoencoder",
          "--batch-size 8 --limit-steps 2 --dtype f64 --no-shuffle --seed 7");
  expect_same_run("one", "file");
  for (const std::string other : {"--chunks 2", "--checkpoint never", "--schedule 1f1b"}) {
    EXPECT_EQ(run("out", false, "autoencoder_pipe", options + " " + other), 2) << other;
    EXPECT_HAS(log(), other.substr(0, other.find(' ')) + " excludes --schedule-file");
  }
}

TEST_F(DevicesRun, APipelineGoesOnWhereItStopped) {
  const std::string options = "--host-devices 2 --chunks 2 --batch-size 8 --epochs 2 ";
  expect_resumes(false, "autoencoder_pipe", options, 3);
}

// In the first epoch, at whose end it would be saved for the first time.
TEST_F(DevicesRun, APipelineSavesWhenItIsInterrupted) {
  testing::write_mnist(folder.path("data"), 4000, 12);
  const std::string options = "--host-devices 2 --chunks 2 --batch-size 8 ";
  const pid_t child = start("part", false, "autoencoder_pipe", options + "--log-every 3");
  await([&] { return log().find("epoch 0  step 3/500") != std::string::npos; });
  ASSERT_EQ(::kill(child, SIGINT), 0);
  ASSERT_EQ(finish(child), 130) << log();
  const std::string saved = folder.path("part/checkpoint.safetensors");
  const std::size_t steps = train::load_checkpoint(saved).losses.size();
  EXPECT_GE(steps, 3U);
  EXPECT_LT(steps, 500U);
  const std::string limit = options + "--limit-steps " + std::to_string(steps + 7);
  succeed("part", false, "autoencoder_pipe", limit + " --resume latest");
  succeed("whole", false, "autoencoder_pipe", limit);
  EXPECT_EQ(metrics("part")["losses"].size(), steps + 7);
  expect_same_bits("part", "whole");
}

TEST_F(DevicesRun, SigintEndsATest) {
  expect_test_ends_at_sigint("autoencoder", "");
  std::filesystem::remove_all(folder.path("stopped"));
  expect_test_ends_at_sigint("autoencoder_pipe", "--host-devices 2 --chunks 2");
}

// Batch norms use only the rows of their own device or micro-batch, so the training differs from
// that on one device.
TEST_F(DevicesRun, ResNetsTrainOnTwoDevices) {
  const std::string options =
      "--host-devices 2 --data fake --image-size 8 --batch-size 8 --limit-steps 3 --epochs 1 ";
  succeed("dp", false, "resnet_dp", options);
  EXPECT_EQ(metrics("dp")["losses"].size(), 3U);
  succeed("pipe", false, "resnet_pipe",
          options + "--chunks 2 --pipeline-schedule 1f1b --schedule cosine");
  EXPECT_EQ(metrics("pipe")["losses"].size(), 3U);
  EXPECT_GT(metrics("pipe")["test"]["top5"], 0);
  // Micro-batches of two rows: a single one of such small pictures has no variance.
  succeed("few", false, "resnet_pipe",
          kOptions + std::string("--data fake --image-size 8 --batch-size 8 --limit-steps 1 "
                                 "--host-devices 2 --chunks 5"));
  const std::string cnn =
      "--host-devices 2 --data fake --width-scale 1/64 --hidden 8 --batch-size 8 --limit-steps 2 "
      "--epochs 1 ";
  succeed("cnn", false, "cnn", cnn);
  succeed("cnn_dp", false, "cnn_dp", cnn);
  EXPECT_EQ(metrics("cnn_dp")["losses"].size(), metrics("cnn")["losses"].size());
}

// Only the first norm's inputs are the same with a pipeline and without, since each micro-batch is
// normalised separately. 12 images in 5 chunks give 4 micro-batches.
TEST_F(DevicesRun, DeferredBatchNormsKeepTheStatisticsOfWholeBatches) {
  const std::string options =
      kOptions + std::string("--data fake --image-size 8 --batch-size 12 --limit-steps 1 ");
  const std::string pipeline = options + "--host-devices 2 --chunks 5 ";
  succeed("one", false, "resnet", options);
  succeed("plain", false, "resnet_pipe", pipeline);
  succeed("deferred", false, "resnet_pipe", pipeline + "--deferred-batch-norm");
  const auto weights = [&](const std::string& out) {
    std::map<std::string, std::vector<double>> values;
    for (const auto& [name, x] :
         io::load_safetensors(folder.path(out + "/model.safetensors")).tensors) {
      values[name] = x.to_vector<double>();
    }
    return values;
  };
  auto one = weights("one"), plain = weights("plain"), deferred = weights("deferred");
  ASSERT_EQ(deferred.size(), one.size());
  int norms = 0;
  for (const auto& [name, count] : deferred) {
    if (!name.ends_with("num_batches_tracked")) continue;
    ++norms;
    EXPECT_EQ(count[0], 1) << name;
    EXPECT_EQ(plain[name][0], 4) << name;
  }
  EXPECT_EQ(norms, 20);
  // In f64, sums in another order differ by about 1e-16 of their size.
  const auto& mean = one["bn1.running_mean"];
  const auto& var = one["bn1.running_var"];
  ASSERT_EQ(mean.size(), 64U);
  double furthest = 0;  // of the plain ones
  for (std::size_t i = 0; i < mean.size(); ++i) {
    EXPECT_NEAR(deferred["bn1.running_mean"][i], mean[i], 1e-12);
    // Biased, as in torchgpipe: for 192 values it is 191/192 of what the batch norm itself keeps.
    EXPECT_NEAR(deferred["bn1.running_var"][i], 0.9 + (var[i] - 0.9) * 191 / 192, 1e-12);
    furthest = std::max(furthest, std::abs(plain["bn1.running_mean"][i] - mean[i]));
  }
  EXPECT_GT(furthest, 1e-3);
}

// Also after the test of the first epoch, which sets the model to evaluation mode and then back.
// The two epochs have 4 steps each; the second one is not complete.
TEST_F(DevicesRun, FrozenBatchNormsStayAtRest) {
  succeed("pipe", false, "resnet_pipe",
          "--host-devices 2 --data fake --image-size 8 --batch-size 256 --chunks 2 --epochs "
          "2 --limit-steps 6 --freeze all-but-fc");
  EXPECT_EQ(metrics("pipe")["losses"].size(), 6U);
  int norms = 0;
  for (const auto& [name, x] :
       io::load_safetensors(folder.path("pipe/model.safetensors")).tensors) {
    const bool mean = name.ends_with("running_mean"), var = name.ends_with("running_var");
    if (!mean && !var) continue;
    ++norms;
    EXPECT_EQ(x.to_vector<float>(),
              std::vector<float>(static_cast<std::size_t>(x.numel()), var ? 1 : 0))
        << name;
  }
  EXPECT_EQ(norms, 40);
}

TEST_F(DevicesRun, WrongDevicesGetOneLine) {
  EXPECT_EQ(run("x", false, "mlp_dp", "--devices 0,x"), 2);
  EXPECT_HAS(log(), "'0,x' is neither all nor numbers like 0,1");
  EXPECT_EQ(run("x", false, "mlp_dp", "--host-devices 2 --devices 0,5"), 1);
  EXPECT_HAS(log(), "[cpu:5] no such device");
  EXPECT_EQ(run("x", false, "mlp_dp", "--host-devices 2 --devices 1,1"), 1);
  EXPECT_HAS(log(), "cpu:1 is named twice");
  EXPECT_EQ(run("x", false, "autoencoder_pipe", "--schedule 1fb"), 2);
  EXPECT_EQ(run("x", false, "p4_table", "--devices 0"), 1);
  EXPECT_HAS(log(), "--devices 0,1");
  EXPECT_EQ(run("x", false, "p4_table", "--weights none --rows 32 --limit-steps 1"), 1);
  EXPECT_HAS(log(), "each row times a new model");
}

TEST_F(DevicesRun, DevicesMayHaveLittleMemory) {
  const std::string options = "--host-devices 2 --limit-steps 1 --epochs 1 --batch-size 256 ";
  succeed("x", false, "autoencoder_pipe", options + "--host-device-memory 1GiB");
  EXPECT_EQ(run("x", false, "autoencoder_pipe", options + "--host-device-memory 16MiB"), 1);
  EXPECT_HAS(log(), "is out of memory: asked");
  EXPECT_HAS(log(), "limit 16.00 MiB");
  EXPECT_EQ(run("x", false, "autoencoder_pipe", options + "--host-device-memory 16"), 2);
}

// Two steps for each row: checks what is written, not how fast it is.
TEST_F(DevicesRun, TheTableHasAllRows) {
  succeed("table", false, "p4_table", "--limit-steps 2 --rows 32");
  const auto rows = metrics("table")["rows"];
  ASSERT_EQ(rows.size(), 6U);
  for (const auto& row : rows) {
    EXPECT_GT(row["step_ms"], 0);
    EXPECT_GT(row["images_per_second"], 0);
    EXPECT_GT(row["ratio_to_single"], 0);
    EXPECT_EQ(row["peak_bytes"].size(), 2U);
    EXPECT_EQ(row["extrapolated"], true);
    if (row["name"] != "pipeline") continue;
    EXPECT_EQ(row["stage_ms"].size(), 2U);
    EXPECT_GT(row["bubble_predicted"], 0);
    EXPECT_GT(row["bubble_measured"], 0);
  }
}

// Ten epochs of 12 images: 10 steps, without times for the first two.
TEST_F(DevicesRun, TheTableCanBeRunInFull) {
  testing::write_mnist(folder.path("data"), 12, 12);
  succeed("table", false, "p4_table", "--full --rows 32");
  const auto rows = metrics("table")["rows"];
  ASSERT_EQ(rows.size(), 6U);
  for (const auto& row : rows) {
    EXPECT_EQ(row["extrapolated"], false);
    EXPECT_EQ(row["steps"], 8);
    // Half of the steps take the median or longer, and an extrapolation would be this multiple.
    const double seconds = row["seconds"], step = row["step_ms"].get<double>() / 1e3;
    EXPECT_GT(seconds, 4 * step);
    EXPECT_GT(std::abs(seconds - 10 * 12 / 32.0 * step), 1e-12);
  }
}

// 50 steps per row, without times for the first two.
TEST_F(DevicesRun, AnInterruptedTableHasNoShortRow) {
  testing::write_mnist(folder.path("data"), 130, 12);
  const pid_t child = start("table", false, "p4_table", "--full --rows 32");
  await([&] { return std::filesystem::exists(folder.path("table/metrics.json")); });
  ASSERT_EQ(::kill(child, SIGINT), 0);
  ASSERT_EQ(finish(child), 130) << log();
  const auto rows = metrics("table")["rows"];
  EXPECT_GE(rows.size(), 1U);
  EXPECT_LT(rows.size(), 6U);
  for (const auto& row : rows) EXPECT_EQ(row["steps"], 48) << row["name"];
}

}  // namespace
}  // namespace weft
