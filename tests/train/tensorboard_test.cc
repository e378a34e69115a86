// Event files, read back record by record, and what a run writes to them.
#include "weft/train/tensorboard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <vector>

#include "weft/data/dataloader.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/train/event_files.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/recorder.h"

namespace weft::train {
namespace {

using testing::TempFolder;
using namespace testing::event_files;

TEST(EventFile, ChecksumsAreThoseOfTheFormat) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  const std::uint32_t crc = 0xe3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

TEST(EventFile, HoldsAVersionAStartAndThePoints) {
  const TempFolder folder;
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const double before = seconds();
  std::string path;
  {
    EventFile file(folder.path("made/here"), 300);
    path = file.path();
    file.scalar("loss/" + std::string(200, 'x'), 0.1, 300);
    EXPECT_EQ(std::filesystem::file_size(path), 0u);
    file.flush();
    EXPECT_EQ(events_of(path).size(), 3u);
    file.scalar("t", -1e300, std::int64_t{1} << 40);
  }
  EXPECT_EQ(files(folder.path("made/here")), std::vector<std::string>{path});
  EXPECT_HAS(path, "/events.out.tfevents.");
  const auto events = events_of(path);
  ASSERT_EQ(events.size(), 4u);
  for (const Fields& event : events) {
    EXPECT_GE(number<double>(event.at(1)), before - 1e-3);
    EXPECT_LE(number<double>(event.at(1)), seconds() + 1e-3);
  }
  EXPECT_EQ(events[0].at(3), "brain.Event:2");
  EXPECT_EQ(number<std::int64_t>(events[1].at(2)), 300);
  EXPECT_EQ(number<std::int64_t>(fields(events[1].at(7)).at(1)), 1);
  const auto found = curves(folder.path("made/here"));
  EXPECT_EQ(found.at("loss/" + std::string(200, 'x')), (Curve{{300, 0.1f}}));
  EXPECT_EQ(found.at("t"), (Curve{{std::int64_t{1} << 40, -INFINITY}}));
}

TEST(EventFile, SaysWhereItCannotWrite) {
  const TempFolder folder;
  testing::write_file(folder.path("file"), "");
  EXPECT_WEFT_ERROR(EventFile(folder.path("file/events")), Io,
                    "[tensorboard] " + folder.path("file/events") + ": cannot make this folder: ");
  // Acts like a full disk, for one process.
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10, limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  {
    EventFile file(folder.path("full"));
    EXPECT_WEFT_ERROR(file.flush(), Io, file.path() + ": cannot be written: File too large");
    EXPECT_EQ(std::filesystem::file_size(file.path()), 10u);
    file.scalar("t", 1, 1);
    // Again room: the file goes on within the record.
    ::setrlimit(RLIMIT_FSIZE, &limit);
    file.flush();
    EXPECT_EQ(events_of(file.path()).size(), 3u);
    ::setrlimit(RLIMIT_FSIZE, &small);
    file.scalar("t", 1, 2);
  }  // its destructor throws nothing
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
}

/// Trains two epochs of three steps with the loss `factor` x step.
void train(const Options& options, double factor) {
  ::testing::internal::CaptureStderr();
  Recorder recorder(options);
  testing::Nothing model;
  data::DataLoader loader(testing::Numbers{}, {.batch_size = 4});
  recorder.resume(model, loader);
  while (recorder.next_epoch()) {
    for (auto& x : recorder.batches(loader)) {
      (void)x;
      const auto step = static_cast<double>(recorder.steps());
      recorder.step({{"one", scalar(factor * step)}, {"two", scalar(-step)}});
    }
    recorder.test("top1", factor);
    recorder.save(model, loader);
  }
  ::testing::internal::GetCapturedStderr();
}

Options options_of(const TempFolder& folder) {
  Options o;
  o.example = "events";
  o.out = folder.path("out");
  o.batch_size = 4;
  o.epochs = 2;
  o.tensorboard = true;
  return o;
}

TEST(RecorderEvents, TellLossesTestsAndSpeed) {
  const TempFolder folder;
  Options o = options_of(folder);
  o.tensorboard = false;
  train(o, 1);
  EXPECT_FALSE(std::filesystem::exists(folder.path("out/tensorboard")));
  o.tensorboard = true;
  train(o, 10);
  auto found = curves(folder.path("out/tensorboard"));
  EXPECT_EQ(found.size(), 4u);
  EXPECT_EQ(found["loss/one"], (Curve{{0, 0}, {1, 10}, {2, 20}, {3, 30}, {4, 40}, {5, 50}}));
  EXPECT_EQ(found["loss/two"], (Curve{{0, -0}, {1, -1}, {2, -2}, {3, -3}, {4, -4}, {5, -5}}));
  EXPECT_EQ(found["test/top1"], (Curve{{2, 10}, {5, 10}}));
  const Curve rate = found["images_per_second"];
  ASSERT_EQ(rate.size(), 2u);
  EXPECT_EQ(rate[1].first, 5);
  EXPECT_GT(rate[1].second, 0);
}

// When a run is killed, the checkpoint is older than its events; another run may have used the
// folder.
TEST(RecorderEvents, AResumedRunGoesOnInTheSameCurves) {
  const TempFolder folder;
  Options o = options_of(folder);
  train(o, 99);
  o.epochs = 1;
  train(o, 1);
  o.resume = folder.path("out/checkpoint.safetensors");
  std::filesystem::copy(o.resume, folder.path("after-one"));
  o.epochs = 2;
  train(o, 7);
  o.resume = folder.path("after-one");
  train(o, 10);
  EXPECT_EQ(files(folder.path("out/tensorboard")).size(), 4u);
  auto found = curves(folder.path("out/tensorboard"));
  EXPECT_EQ(found["loss/one"], (Curve{{0, 0}, {1, 1}, {2, 2}, {3, 30}, {4, 40}, {5, 50}}));
  EXPECT_EQ(found["test/top1"], (Curve{{2, 1}, {5, 10}}));
}

}  // namespace
}  // namespace weft::train
