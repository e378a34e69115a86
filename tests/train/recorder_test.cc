#include "weft/train/recorder.h"

#include <cmath>
#include <csignal>

#include "weft/core/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/train/interrupt.h"

namespace weft::train {
namespace {

struct Numbers {
  std::int64_t size() const { return 10; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return from_span(indices, {static_cast<std::int64_t>(indices.size())});
  }
};

// A model and an optimiser of one number.
struct Counter {
  double value = 0;
  io::NamedTensors state_dict() const { return {{"value", scalar(value, DType::f64)}}; }
  void load_state_dict(const io::NamedTensors& state) { value = state.at(0).second.item<double>(); }
};

struct Log final : LogSink {
  void write(Level level, std::string_view message) override {
    text += (level == Level::warning ? "warning: " : "") + std::string(message) + "\n";
  }
  std::string text;
};

class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest() { testing_stderr(true); }
  ~RecorderTest() override { testing_stderr(false); }
  static void testing_stderr(bool capture) {
    if (capture) {
      ::testing::internal::CaptureStderr();
    } else {
      ::testing::internal::GetCapturedStderr();
    }
  }

  Options options() const {
    Options o;
    o.example = "counter";
    o.out = folder.path("out");
    o.batch_size = 4;
    o.epochs = 3;
    return o;
  }
  data::DataLoader<Numbers> make_loader() const {
    return data::DataLoader(Numbers{}, {.batch_size = 4, .shuffle = true});
  }
  /// The sum over all batches so far is the "model"; its value the loss.
  static void train(
      Recorder& recorder, Counter& model, data::DataLoader<Numbers>& loader,
      std::vector<double>& seen, const std::function<void()>& after_step = [] {}) {
    while (recorder.next_epoch()) {
      for (auto& x : recorder.batches(loader)) {
        for (const double v : x.to_vector<double>()) seen.push_back(v);
        model.value += seen.back();
        recorder.step(scalar(model.value));
        after_step();
      }
      recorder.save(model, loader, Counter{});
    }
  }

  testing::TempFolder folder;
  Log log;
  Scoped<LogSink*> logging{&ThreadState::log, &log};
};

TEST_F(RecorderTest, KeepsTheBooks) {
  Recorder recorder(options());
  Counter model;
  auto loader = make_loader();
  std::vector<double> seen;
  train(recorder, model, loader, seen);
  EXPECT_EQ(recorder.steps(), 9);
  EXPECT_EQ(recorder.losses().back(), model.value);
  EXPECT_FALSE(recorder.interrupted());
  recorder.test("mse", 0.5);
  recorder.finish(model);
  for (const char* file :
       {"model.safetensors", "checkpoint.safetensors", "metrics.json", "loss.png"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.path("out") + "/" + file)) << file;
  }
  const std::string metrics = testing::read_file(folder.path("out/metrics.json"));
  EXPECT_NE(metrics.find("\"mse\": 0.5"), std::string::npos);
  EXPECT_NE(log.text.find("test mse 0.5, trained in 0:00:00; results in"), std::string::npos)
      << log.text;
}

TEST_F(RecorderTest, KeepsTheFiguresAndCheckpointsOfEveryEpoch) {
  Options o = options();
  o.keep_checkpoints = true;
  Recorder recorder(o);
  Counter model;
  auto loader = make_loader();
  while (recorder.next_epoch()) {
    for (auto& x : recorder.batches(loader)) {
      model.value = static_cast<double>(recorder.epoch());
      recorder.step(scalar(x.numel()));
    }
    recorder.test("top1", model.value / 4);
    recorder.test("top5", model.value / 2);
    recorder.save(model, loader, Counter{});
  }
  for (int epoch = 0; epoch < 3; ++epoch) {
    const std::string name = "checkpoint-epoch-" + std::to_string(epoch) + ".safetensors";
    EXPECT_EQ(load_checkpoint(recorder.path(name)).model[0].second.item<double>(), epoch);
  }
  recorder.finish(model);
  std::string metrics = testing::read_file(folder.path("out/metrics.json"));
  std::erase_if(metrics, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_NE(metrics.find(R"("test":{"top1":0.25,"top5":0.5}},)"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find(R"("test":{"top1":0.5,"top5":1.0},"step)"), std::string::npos) << metrics;
  EXPECT_NE(log.text.find("epoch 1: test top5 0.5\n"), std::string::npos) << log.text;
  EXPECT_NE(log.text.find("\ntest top1 0.5, test top5 1, trained in"), std::string::npos)
      << log.text;

  o.resume = recorder.path("checkpoint.safetensors");
  Recorder resumed(o);
  Counter one, two;
  EXPECT_WEFT_ERROR(resumed.resume(model, loader, one, two), InvalidArgument,
                    "holds 1 optimisers and schedulers, this program has 2");
  resumed.resume(model, loader, one);
  resumed.finish(model);  // nothing was left to do: the figures are those of the checkpoint
  EXPECT_NE(testing::read_file(folder.path("out/metrics.json")).find("\"top5\": 1.0"),
            std::string::npos);
}

TEST_F(RecorderTest, ResumesWhereverItStopped) {
  manual_seed(4);
  std::vector<double> whole, losses;
  {
    Recorder recorder(options());
    Counter model;
    auto loader = make_loader();
    train(recorder, model, loader, whole);
    losses = recorder.losses();
  }
  for (int stop = 1; stop <= 9; ++stop) {
    manual_seed(4);
    std::vector<double> seen;
    {
      Options o = options();
      o.limit_steps = stop;
      Recorder recorder(o);
      Counter model;
      auto loader = make_loader();
      train(recorder, model, loader, seen);
      EXPECT_EQ(recorder.steps(), stop);
    }
    manual_seed(1000);
    Options o = options();
    o.resume = folder.path("out/checkpoint.safetensors");
    Recorder recorder(o);
    Counter model;
    auto loader = make_loader();
    Counter optimizer;
    recorder.resume(model, loader, optimizer);
    EXPECT_EQ(recorder.steps(), stop);
    train(recorder, model, loader, seen);
    EXPECT_EQ(seen, whole) << "stopped after " << stop;
    EXPECT_EQ(recorder.losses(), losses);
    recorder.finish(model);
    const std::string metrics = testing::read_file(folder.path("out/metrics.json"));
    std::size_t epochs = 0;
    for (std::size_t i = 0; (i = metrics.find("mean_loss", i)) != std::string::npos; ++i) ++epochs;
    EXPECT_EQ(epochs, 3u) << metrics;
  }
}

// What a run that is killed after some step leaves behind: every second step, and ends of epochs.
TEST_F(RecorderTest, GoesOnFromTheLatestCheckpoint) {
  manual_seed(4);
  std::vector<double> whole, losses;
  {
    Recorder recorder(options());
    Counter model;
    auto loader = make_loader();
    train(recorder, model, loader, whole);
    losses = recorder.losses();
  }
  std::filesystem::create_directories(folder.path("out"));
  const std::string file = folder.path("out/checkpoint.safetensors");
  for (int killed = 1; killed <= 9; ++killed) {
    std::filesystem::remove(file);
    testing::write_file(file + ".tmp", "half of a checkpoint");
    Options o = options();
    o.checkpoint_every = 2;
    o.resume = "latest";
    log.text.clear();
    const auto attempt = [&](int killed_at) {
      Recorder recorder(o);
      Counter model, optimizer;
      auto loader = make_loader();
      recorder.resume(model, loader, optimizer);
      const std::int64_t from = recorder.steps();
      std::vector<double> seen;
      const auto after_step = [&] {
        if (recorder.steps() == killed_at) throw std::runtime_error("killed");
      };
      if (killed_at > 0) {
        EXPECT_THROW(train(recorder, model, loader, seen, after_step), std::runtime_error);
      } else {
        train(recorder, model, loader, seen);
        EXPECT_EQ(recorder.losses(), losses);
      }
      return std::pair(from, seen);
    };
    manual_seed(4);
    EXPECT_EQ(attempt(killed).first, 0);
    EXPECT_NE(log.text.find(file + ": not there yet; from the beginning"), std::string::npos);
    manual_seed(killed <= 2 ? 4 : 1000);  // from the beginning once more, or as the file says
    const auto [from, seen] = attempt(0);
    std::int64_t saved = killed - 1;
    while (saved % 2 != 0 && saved % 3 != 0) --saved;
    EXPECT_EQ(from, saved) << "killed at " << killed;
    // Epochs are of 4, 4 and 2 numbers.
    const auto done = saved / 3 * 10 + saved % 3 * 4;
    EXPECT_EQ(seen, std::vector<double>(whole.begin() + done, whole.end())) << killed;
  }
}

TEST_F(RecorderTest, KeepsTheBooksOfSeveralLosses) {
  const auto value = [](double v) { return scalar(v, DType::f64); };
  const auto run = [&](const Options& o) {
    Recorder recorder(o);
    Counter model;
    auto loader = make_loader();
    recorder.resume(model, loader);
    while (recorder.next_epoch()) {
      for (auto& x : recorder.batches(loader)) {
        const double step = static_cast<double>(recorder.steps());
        (void)x;
        recorder.step({{"one", value(step)},
                       {"two", value(10 * step)},
                       {"third", value(step == 3 ? INFINITY : -step)}});
      }
      recorder.save(model, loader);
    }
    recorder.finish(model);
    EXPECT_WEFT_ERROR(recorder.step(value(1)), InvalidArgument, "a step with 1 losses after steps");
    EXPECT_WEFT_ERROR(recorder.step({{"one", value(1)}, {"three", value(1)}, {"third", value(1)}}),
                      InvalidArgument, "a loss named 'three' after steps where it was 'two'");
  };
  Options o = options();
  o.limit_steps = 5;
  run(o);
  o.limit_steps = 0;
  o.resume = folder.path("out/checkpoint.safetensors");
  run(o);
  std::string metrics = testing::read_file(folder.path("out/metrics.json"));
  std::erase_if(metrics, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_NE(metrics.find(R"("losses":{"one":[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0],)"
                         R"("two":[0.0,10.0,20.0,30.0,40.0,50.0,60.0,70.0,80.0],)"
                         R"("third":[-0.0,-1.0,-2.0,null,-4.0,-5.0,-6.0,-7.0,-8.0]})"),
            std::string::npos)
      << metrics;
  EXPECT_NE(log.text.find("the loss of the third is inf at step 3"), std::string::npos);
}

TEST_F(RecorderTest, InterruptEndsTheLoopAfterTheStep) {
  const InterruptScope scope;
  Recorder recorder(options());
  Counter model;
  auto loader = make_loader();
  std::vector<double> seen;
  train(recorder, model, loader, seen, [&] {
    if (recorder.steps() == 5) std::raise(SIGINT);
  });
  EXPECT_EQ(recorder.steps(), 5);
  EXPECT_TRUE(recorder.interrupted());
  EXPECT_EQ(interrupt_status(), 130);
  EXPECT_NE(log.text.find("interrupted after step 5 of epoch "), std::string::npos) << log.text;
  EXPECT_NE(log.text.find("the same command with --resume latest goes on from there"),
            std::string::npos);
  EXPECT_EQ(load_checkpoint(recorder.path("checkpoint.safetensors")).losses.size(), 5u);
  EXPECT_FALSE(recorder.next_epoch());
}

TEST_F(RecorderTest, WarnsOfALossThatIsNoNumberOnce) {
  Recorder recorder(options());
  auto loader = make_loader();
  while (recorder.next_epoch()) {
    for (auto& x : recorder.batches(loader)) {
      (void)x;
      recorder.step(scalar(recorder.steps() >= 4 ? NAN : 1));
    }
  }
  EXPECT_EQ(log.text.find("warning: the loss is nan at step 4 (epoch 1)"), 0u) << log.text;
  EXPECT_EQ(log.text.find("warning", 5), std::string::npos);
}

TEST_F(RecorderTest, AnUnwritableFolderIsKnownBeforeTraining) {
  testing::write_file(folder.path("file"), "");
  Options o = options();
  o.out = folder.path("file/out");
  EXPECT_WEFT_ERROR(Recorder{o}, Io, "choose another with --out");
  o.out = "/proc/weft";
  EXPECT_WEFT_ERROR(Recorder{o}, Io, "choose another with --out");
}

TEST_F(RecorderTest, WarnsOfASecondRunInTheSameFolder) {
  {
    Recorder first(options());
    EXPECT_EQ(log.text, "");
    Recorder second(options());
    EXPECT_NE(log.text.find("warning: " + folder.path("out") + ": another run is writing here"),
              std::string::npos)
        << log.text;
  }
  log.text.clear();
  Recorder third(options());
  EXPECT_EQ(log.text, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("out")));
}

TEST_F(RecorderTest, RefusesToResumeFromADamagedCheckpoint) {
  Options o = options();
  Recorder(o).save(Counter{}, make_loader(), Counter{});
  o.resume = folder.path("out/checkpoint.safetensors");
  std::string bytes = testing::read_file(o.resume);
  bytes.back() ^= 1;
  testing::write_file(o.resume, bytes);
  Counter model, optimizer;
  auto loader = make_loader();
  EXPECT_WEFT_ERROR(Recorder(o).resume(model, loader, optimizer), Io, "checksum of tensor");
}

}  // namespace
}  // namespace weft::train
