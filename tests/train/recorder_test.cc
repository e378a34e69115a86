#include "weft/train/recorder.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <regex>
#include <set>

#include "weft/autograd/ops.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/data/tensor_dataset.h"
#include "weft/io/pickle.h"
#include "weft/nn/activation.h"
#include "weft/nn/dropout.h"
#include "weft/nn/ema.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/sequential.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/reduce_lr_on_plateau.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sequential_lr.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/interrupt.h"

namespace weft::train {
namespace {

using testing::Numbers;

// A model and an optimiser with a single number.
struct Counter {
  double value = 0;
  io::NamedTensors state_dict() const { return {{"value", scalar(value, DType::f64)}}; }
  void load_state_dict(const io::NamedTensors& state) { value = state.at(0).second.item<double>(); }
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
    return data::DataLoader(Numbers{10}, {.batch_size = 4, .shuffle = true});
  }
  /// The "model" is the sum over all batches so far; its value is the loss.
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
  /// All numbers and losses of a run that nothing stops.
  std::pair<std::vector<double>, std::vector<double>> whole_run() const {
    manual_seed(4);
    Recorder recorder(options());
    Counter model;
    auto loader = make_loader();
    std::vector<double> seen;
    train(recorder, model, loader, seen);
    return {seen, recorder.losses()};
  }
  /// metrics.json without blanks and ends of lines.
  std::string written() const {
    std::string metrics = testing::read_file(folder.path("out/metrics.json"));
    std::erase_if(metrics, [](char c) { return c == ' ' || c == '\n'; });
    return metrics;
  }

  testing::TempFolder folder;
  testing::CollectedLog log;
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
       {"model.safetensors", "checkpoint.safetensors", "metrics.json", "loss.svg"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.path("out") + "/" + file)) << file;
  }
  const std::string metrics = testing::read_file(folder.path("out/metrics.json"));
  EXPECT_HAS(metrics, "\"mse\": 0.5");
  EXPECT_HAS(written(), R"("memory":[{"activations":)");
  EXPECT_HAS(log.text, "test mse 0.5, trained in 0:00:00; results in");
}

TEST_F(RecorderTest, ATestBeforeTheFirstEpochBelongsToNone) {
  Recorder recorder(options());
  recorder.test("mse", 0.5);
  EXPECT_HAS(log.text, "before training: test mse 0.5\n");
  Counter model;
  auto loader = make_loader();
  std::vector<double> seen;
  train(recorder, model, loader, seen);
  recorder.test("mse", 0.25);
  recorder.finish(model);
  EXPECT_HAS(written(), R"("mse":0.25)");
  EXPECT_LACKS(written(), R"("mse":0.5)");
}

TEST_F(RecorderTest, ATestBeforeTrainingIsNotThatOfAPartOfAnEpoch) {
  Options limited = options();
  limited.limit_steps = 2;
  Recorder recorder(limited);
  recorder.test("mse", 0.5);
  Counter model;
  auto loader = make_loader();
  std::vector<double> seen;
  train(recorder, model, loader, seen);
  recorder.finish(model);
  const std::string metrics = written(), figure = R"("mse":0.5)";
  EXPECT_EQ(metrics.find(figure), metrics.rfind(figure)) << metrics;  // the run's last test
  EXPECT_HAS(metrics, figure);
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
  const std::string metrics = written();
  EXPECT_HAS(metrics, R"("test":{"top1":0.25,"top5":0.5}},)");
  EXPECT_HAS(metrics, R"("test":{"top1":0.5,"top5":1.0},"step)");
  EXPECT_HAS(log.text, "epoch 1: test top5 0.5\n");
  EXPECT_HAS(log.text, "\ntest top1 0.5, test top5 1, trained in");

  o.resume = recorder.path("checkpoint.safetensors");
  Recorder resumed(o);
  Counter one, two;
  EXPECT_WEFT_ERROR(resumed.resume(model, loader, one, two), InvalidArgument,
                    "holds 1 optimisers and schedulers, this program has 2");
  resumed.resume(model, loader, one);
  resumed.finish(model);  // nothing was left to do: the figures come from the checkpoint
  EXPECT_HAS(testing::read_file(folder.path("out/metrics.json")), "\"top5\": 1.0");
}

TEST_F(RecorderTest, ASaveBeforeTheFirstEpochIsKeptForNone) {
  Options o = options();
  o.keep_checkpoints = true;
  Recorder recorder(o);
  Counter model;
  auto loader = make_loader();
  recorder.save(model, loader, Counter{});
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder.path("out"))) {
    names.insert(file.path().filename());
  }
  EXPECT_TRUE(names.contains("checkpoint.safetensors"));
  EXPECT_TRUE(std::ranges::none_of(
      names, [](const std::string& name) { return name.starts_with("checkpoint-"); }));
  ASSERT_TRUE(recorder.next_epoch());
  EXPECT_EQ(recorder.epoch(), 0);
}

nn::Sequential small_model() { return {nn::Linear(3, 4), nn::Linear(4, 2)}; }

TEST_F(RecorderTest, BeginsWithWeightsOfEitherFormat) {
  nn::Sequential from = small_model();
  io::NamedTensors wrapped;
  for (const auto& [name, value] : from.state_dict()) wrapped.emplace_back("module." + name, value);
  const std::string plain = folder.path("a"), torch = folder.path("b");
  io::save_safetensors(plain, from.state_dict());
  io::save_pickle(torch, io::PickleValue::dict(
                             {{"epoch", 7}, {"model", io::PickleValue::state_dict(wrapped)}}));
  for (const std::string& weights : {plain, torch + ":model"}) {
    nn::Sequential model = small_model();
    nn::ExponentialMovingAverage ema(model, 0.5);
    data::DataLoader loader(Numbers{});
    Options o = options();
    o.weights = weights;
    o.resume = "latest";  // there is none yet
    Recorder recorder(o);
    recorder.resume(model, loader, ema);
    EXPECT_EQ(recorder.steps(), 0);
    const auto expected = from.state_dict(), got = model.state_dict(), mean = ema.state_dict();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(got[i].second.to_vector<float>(), expected[i].second.to_vector<float>());
      EXPECT_EQ(mean[i].second.to_vector<float>(), expected[i].second.to_vector<float>());
    }
  }
  nn::Sequential model = small_model();
  data::DataLoader loader(Numbers{});
  Options o = options();
  o.weights = torch;
  EXPECT_WEFT_ERROR(Recorder(o).resume(model, loader), InvalidArgument,
                    torch + ":model (4 tensors)");
  save_checkpoint(folder.path("c"), {.model = from.state_dict()});
  o.weights = folder.path("c");
  EXPECT_WEFT_ERROR(Recorder(o).resume(model, loader), InvalidArgument,
                    "a checkpoint of weft's; --weights " + o.weights + ":model begins with");
  o.weights += ":model";
  Recorder(o).resume(model, loader);
  EXPECT_EQ(model.parameters()[0].to_vector<float>(), from.parameters()[0].to_vector<float>());
  o.weights = folder.path("none");
  EXPECT_WEFT_ERROR(Recorder(o).resume(model, loader), Io, o.weights);
}

// The names of a model whose only child is called "module" are not a wrapper's.
TEST_F(RecorderTest, AModelsOwnPrefixStays) {
  struct Wrapper : nn::Module<Wrapper> {
    nn::Linear module = child("module", nn::Linear(2, 1));
    Tensor forward(const Tensor& x) { return module(x); }
  };
  const Wrapper from;
  nn::NamedTensors wrapped = from.state_dict();
  for (auto& item : wrapped) item.first.insert(0, "module.");
  io::save_safetensors(folder.path("a"), from.state_dict());
  io::save_safetensors(folder.path("b"), wrapped);
  for (const char* name : {"a", "b"}) {
    Wrapper model;
    data::DataLoader loader(Numbers{});
    Options o = options();
    o.weights = folder.path(name);
    Recorder(o).resume(model, loader);
    EXPECT_EQ(model.parameters()[0].to_vector<float>(), from.parameters()[0].to_vector<float>());
  }
}

TEST_F(RecorderTest, AHeadOfAnotherShapeStaysAsItIs) {
  nn::Sequential from{nn::Linear(3, 4), nn::Linear(4, 9)}, model = small_model();
  const std::vector<float> head = model.parameters()[2].to_vector<float>();
  io::save_safetensors(folder.path("a"), from.state_dict());
  data::DataLoader loader(Numbers{});
  Options o = options();
  o.weights = folder.path("a");
  EXPECT_WEFT_ERROR(Recorder(o).resume(model, loader), InvalidArgument, "1.weight [9,4] for [2,4]");
  o.head = "1.";
  Recorder(o).resume(model, loader);
  EXPECT_EQ(model.parameters()[2].to_vector<float>(), head);
  EXPECT_EQ(model.parameters()[0].to_vector<float>(), from.parameters()[0].to_vector<float>());
}

TEST_F(RecorderTest, ResumesWhereverItStopped) {
  const auto [whole, losses] = whole_run();
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

// The files of a run that is killed after some step: it saves every second step, and at ends of
// epochs.
TEST_F(RecorderTest, GoesOnFromTheLatestCheckpoint) {
  const auto [whole, losses] = whole_run();
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
    EXPECT_HAS(log.text, file + ": not there yet; from the beginning");
    manual_seed(killed <= 2 ? 4 : 1000);  // from the beginning again, or from the file's state
    const auto [from, seen] = attempt(0);
    std::int64_t saved = killed - 1;
    while (saved % 2 != 0 && saved % 3 != 0) --saved;
    EXPECT_EQ(from, saved) << "killed at " << killed;
    // The epochs have 4, 4 and 2 numbers.
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
  const std::string metrics = written();
  EXPECT_HAS(metrics, R"("losses":{"one":[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0],)"
                      R"("two":[0.0,10.0,20.0,30.0,40.0,50.0,60.0,70.0,80.0],)"
                      R"("third":[-0.0,-1.0,-2.0,null,-4.0,-5.0,-6.0,-7.0,-8.0]})");
  EXPECT_HAS(log.text, "the loss of the third is inf at step 3");
}

TEST_F(RecorderTest, RefusesLossesThatItsFilesCannotTellApart) {
  Recorder recorder(options());
  const Tensor one = scalar(1);
  EXPECT_WEFT_ERROR(recorder.step({}), InvalidArgument, "a step without a loss");
  EXPECT_WEFT_ERROR(recorder.step({{"", one}, {"other", one}}), InvalidArgument,
                    "of which one has no name");
  EXPECT_WEFT_ERROR(recorder.step({{"one", one}, {"one", one}}), InvalidArgument,
                    "two losses are called 'one'");
  EXPECT_EQ(recorder.steps(), 0);
}

TEST_F(RecorderTest, AStepWithALossThatIsNoNumberMayBeRepeated) {
  Recorder recorder(options());
  const Tensor one = scalar(1);
  EXPECT_WEFT_ERROR(recorder.step({{"one", one}, {"two", zeros({2})}}), Shape, "one element");
  EXPECT_EQ(recorder.steps(), 0);
  recorder.step({{"one", one}, {"two", one}});
  EXPECT_WEFT_ERROR(recorder.step({{"one", one}, {"two", zeros({2})}}), Shape, "one element");
  EXPECT_EQ(recorder.steps(), 1);
  recorder.step({{"one", one}, {"two", one}});
  recorder.save(Counter(), make_loader());
  const Checkpoint saved = load_checkpoint(folder.path("out/checkpoint.safetensors"));
  EXPECT_EQ(saved.losses, (std::vector<double>{1, 1}));
  EXPECT_EQ(saved.more_losses.at(0).values, saved.losses);
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
  EXPECT_HAS(log.text, "interrupted after step 5 of epoch ");
  EXPECT_HAS(log.text, "the same command with --resume latest goes on from there");
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
    EXPECT_HAS(log.text, "warning: " + folder.path("out") + ": another run is writing here");
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

// --- Every scheduler with every optimiser --------------------------------------------------------

struct OptimizerCase {
  std::string name;  // the class, then the options that are on
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>, std::vector<Tensor>)> make;
};

template <class Options>
using Flags = std::vector<std::pair<const char*, bool Options::*>>;

// One case for each combination of the flags, with two groups of different rates.
template <class O, class Options>
void add_cases(std::vector<OptimizerCase>& cases, const char* name, const Options& base,
               const Flags<Options>& flags) {
  for (unsigned on = 0; on < 1U << flags.size(); ++on) {
    Options options = base;
    std::string text = name;
    for (std::size_t i = 0; i < flags.size(); ++i) {
      if ((on >> i & 1) == 0) continue;
      options.*flags[i].second = true;
      text += std::string(" ") + flags[i].first;
    }
    if constexpr (requires { options.nesterov; }) {
      if (options.nesterov && options.momentum == 0) continue;  // refused
    }
    cases.push_back({text, [options](std::vector<Tensor> one, std::vector<Tensor> two) {
                       Options slower = options;
                       slower.lr *= 0.3;
                       return std::make_unique<O>(std::vector<optim::ParamGroup<Options>>{
                           {std::move(one), options}, {std::move(two), slower}});
                     }});
  }
}

std::vector<OptimizerCase> optimizer_cases() {
  using namespace optim;
  std::vector<OptimizerCase> cases;
  const Flags<SGDOptions> sgd = {{"nesterov", &SGDOptions::nesterov},
                                 {"maximize", &SGDOptions::maximize}};
  const Flags<RMSpropOptions> rmsprop = {{"centered", &RMSpropOptions::centered},
                                         {"maximize", &RMSpropOptions::maximize}};
  for (const double momentum : {0.0, 0.9}) {
    add_cases<SGD>(cases, momentum > 0 ? "SGD momentum" : "SGD",
                   SGDOptions{.lr = 0.05, .momentum = momentum, .weight_decay = 0.01}, sgd);
    add_cases<RMSprop>(cases, momentum > 0 ? "RMSprop momentum" : "RMSprop",
                       RMSpropOptions{.lr = 0.01, .weight_decay = 0.01, .momentum = momentum},
                       rmsprop);
  }
  add_cases<Adadelta>(cases, "Adadelta", AdadeltaOptions{.weight_decay = 0.01},
                      Flags<AdadeltaOptions>{{"maximize", &AdadeltaOptions::maximize}});
  add_cases<Adam>(
      cases, "Adam", AdamOptions{.lr = 0.01, .weight_decay = 0.01},
      Flags<AdamOptions>{{"amsgrad", &AdamOptions::amsgrad}, {"maximize", &AdamOptions::maximize}});
  add_cases<AdamW>(cases, "AdamW", AdamWOptions{.lr = 0.01},
                   Flags<AdamWOptions>{{"amsgrad", &AdamWOptions::amsgrad},
                                       {"maximize", &AdamWOptions::maximize}});
  return cases;
}

struct SchedulerCase {
  std::string name;
  std::function<std::unique_ptr<optim::LRScheduler>(optim::Optimizer&)> make;
};

template <class Scheduler, class Options>
std::shared_ptr<optim::LRScheduler> shared(optim::Optimizer& optimizer, const Options& options) {
  return std::make_shared<Scheduler>(optimizer, options);
}

// For runs of 12 steps, with a scheduler step after each.
std::vector<SchedulerCase> scheduler_cases() {
  using namespace optim;
  std::vector<SchedulerCase> cases;
  const auto add = [&]<class Scheduler, class Options>(
                       const char* name, std::in_place_type_t<Scheduler>, const Options& options) {
    cases.push_back(
        {name, [options](Optimizer& o) { return std::make_unique<Scheduler>(o, options); }});
  };
  add("StepLR", std::in_place_type<StepLR>, StepLROptions{.step_size = 4, .gamma = 0.5});
  add("MultiStepLR", std::in_place_type<MultiStepLR>,
      MultiStepLROptions{.milestones = {2, 7, 7}, .gamma = 0.5});
  add("ExponentialLR", std::in_place_type<ExponentialLR>, ExponentialLROptions{.gamma = 0.9});
  add("LambdaLR", std::in_place_type<LambdaLR>,
      LambdaLR::Lambda([](std::int64_t t) { return 1 / (1.0 + static_cast<double>(t)); }));
  add("CosineAnnealingLR", std::in_place_type<CosineAnnealingLR>,
      CosineAnnealingLROptions{.T_max = 5, .eta_min = 0.001});
  add("CosineAnnealingWarmRestarts", std::in_place_type<CosineAnnealingWarmRestarts>,
      CosineAnnealingWarmRestartsOptions{.T_0 = 2, .T_mult = 2});
  add("LinearLR", std::in_place_type<LinearLR>, LinearLROptions{.total_iters = 8});
  add("ReduceLROnPlateau", std::in_place_type<ReduceLROnPlateau>,
      ReduceLROnPlateauOptions{.factor = 0.5, .patience = 1, .cooldown = 1});
  for (const bool cycle : {false, true}) {
    add(cycle ? "OneCycleLR cycle_momentum" : "OneCycleLR", std::in_place_type<OneCycleLR>,
        OneCycleLROptions{.max_lr = {0.05, 0.02}, .total_steps = 14, .cycle_momentum = cycle});
  }
  cases.push_back(
      {"SequentialLR", [](Optimizer& o) {
         return std::make_unique<SequentialLR>(
             o,
             SequentialLROptions{
                 .schedulers = {shared<LinearLR>(o, LinearLROptions{}),
                                shared<CosineAnnealingLR>(o, CosineAnnealingLROptions{.T_max = 4}),
                                shared<OneCycleLR>(
                                    o, OneCycleLROptions{.max_lr = {0.03},
                                                         .total_steps = 9,
                                                         .cycle_momentum = o.momentum(0) > 0})},
                 .milestones = {3, 5}});
       }});
  cases.push_back({"by hand", nullptr});
  return cases;
}

// The objects that set a run's rates, and are saved with it.
struct Rates {
  Rates(const SchedulerCase& with, optim::Optimizer& of)
      : optimizer(of), scheduler(with.make ? with.make(of) : nullptr) {}
  io::NamedTensors state_dict() const {
    return scheduler ? scheduler->state_dict() : io::NamedTensors();
  }
  void load_state_dict(const io::NamedTensors& state) {
    if (scheduler) scheduler->load_state_dict(state);
  }
  void step(std::int64_t step, double loss) {
    if (auto* const plateau = dynamic_cast<optim::ReduceLROnPlateau*>(scheduler.get())) {
      plateau->step(loss);
    } else if (scheduler) {
      scheduler->step();
    } else {
      optimizer.set_lr(1, optimizer.lr(1) * 0.8);
      if (step == 4 && optimizer.momentum(0) > 0) optimizer.set_momentum(0, 0.5);
      if (step == 4) optimizer.set_initial_lr(0, 0.3);
      if (step == 9) optim::ExponentialLR late(optimizer, {.gamma = 0.5});  // sets initial rates
    }
  }
  optim::Optimizer& optimizer;
  std::unique_ptr<optim::LRScheduler> scheduler;
};

class EverySchedulerAndOptimizer : public RecorderTest {
 protected:
  struct Run {
    std::vector<double> losses, numbers;  // rates and momenta at the end
    std::vector<std::vector<float>> weights, averages;
    bool operator==(const Run&) const = default;
  };

  Run train(const Options& o, const OptimizerCase& with, const SchedulerCase& by) const {
    manual_seed(o.resume.empty() ? 4 : 1000);
    nn::Sequential model{nn::Linear(3, 4), nn::Tanh(), nn::Dropout(0.25), nn::Linear(4, 2)};
    const std::vector<Tensor> p = model.parameters();
    const auto optimizer = with.make({p[0], p[1]}, {p[2], p[3]});
    Rates rates(by, *optimizer);
    nn::ExponentialMovingAverage ema(model, 0.8);
    data::DataLoader loader(data::TensorDataset(samples_, targets_),
                            {.batch_size = 3, .shuffle = true});
    Recorder recorder(o);
    recorder.resume(model, loader, *optimizer, rates, ema);
    while (recorder.next_epoch()) {
      for (auto& [x, target] : recorder.batches(loader)) {
        optimizer->zero_grad();
        const Tensor loss = nn::mse_loss(model(x), target);
        loss.backward();
        optimizer->step();
        ema.update();
        recorder.step(loss);
        rates.step(recorder.steps(), loss.item<double>());
      }
      if (o.limit_steps > 0) recorder.save(model, loader, *optimizer, rates, ema);
    }
    Run run{.losses = recorder.losses()};
    for (std::size_t g = 0; g < 2; ++g) {
      run.numbers.push_back(optimizer->lr(g));
      run.numbers.push_back(optimizer->momentum(g));
      if (optimizer->has_initial_lr(g)) run.numbers.push_back(optimizer->initial_lr(g));
    }
    for (const Tensor& w : p) run.weights.push_back(w.to_vector<float>());
    for (const auto& [name, a] : ema.state_dict()) run.averages.push_back(a.to_vector<float>());
    return run;
  }

 private:
  Generator generator_{7};
  Tensor samples_ = uniform({10, 3}, -1, 1, DType::f32, &generator_);
  Tensor targets_ = uniform({10, 2}, -1, 1, DType::f32, &generator_);
};

TEST_F(EverySchedulerAndOptimizer, GoesOnToTheBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  for (const OptimizerCase& optimizer : optimizer_cases()) {
    for (const SchedulerCase& scheduler : scheduler_cases()) {
      const bool cycles = scheduler.name.ends_with("cycle_momentum");
      if (cycles &&
          optimizer.make({zeros({1}).set_requires_grad()}, {zeros({1}).set_requires_grad()})
                  ->momentum(0) == 0) {
        continue;  // refused
      }
      const Run whole = train(options(), optimizer, scheduler);
      ASSERT_TRUE(std::isfinite(whole.losses.back()));
      for (const int stop : {1, 6}) {  // 6 is in the second of three epochs
        Options o = options();
        o.limit_steps = stop;
        train(o, optimizer, scheduler);
        o.limit_steps = 0;
        o.resume = folder.path("out/checkpoint.safetensors");
        EXPECT_TRUE(train(o, optimizer, scheduler) == whole)
            << optimizer.name << ", " << scheduler.name << ", after " << stop;
      }
    }
  }
  EXPECT_LACKS(log.text, "warning");
}

// Otherwise the test above would miss new ones.
TEST_F(EverySchedulerAndOptimizer, AreAllInTheLists) {
  std::set<std::string> listed;
  const auto list = [&](const auto& cases) {
    for (const auto& c : cases) {
      const std::regex word("[A-Za-z_]+");
      std::sregex_iterator it(c.name.begin(), c.name.end(), word);
      const std::string type = it->str();
      listed.insert(type);
      for (++it; it != std::sregex_iterator(); ++it) listed.insert(type + "." + it->str());
    }
  };
  list(optimizer_cases());
  list(scheduler_cases());
  std::set<std::string> declared;
  for (const auto& file : std::filesystem::directory_iterator("optim")) {
    if (file.path().extension() != ".h") continue;
    const std::string text = testing::read_file(file.path().string());
    const auto each = [](const std::string& in, const char* pattern, const auto& f) {
      const std::regex regex(pattern);
      for (std::sregex_iterator it(in.begin(), in.end(), regex), end; it != end; ++it) f(*it);
    };
    each(text, R"(class (\w+)( final)? : public \w+)", [&](const std::smatch& found) {
      if (found[1] != "FormulaLR") declared.insert(found[1]);
    });
    each(text, R"(struct (\w+)Options \{([\s\S]*?)\n\};)", [&](const std::smatch& options) {
      each(options[2], R"(\n  bool (\w+) = )", [&](const std::smatch& field) {
        declared.insert(options[1].str() + "." + field[1].str());
      });
    });
  }
  EXPECT_GE(declared.size(), 14U);  // the search has found them
  for (const std::string& name : declared) {
    EXPECT_TRUE(listed.contains(name)) << name << ": add it to optimizer_cases() or "
                                       << "scheduler_cases()";
  }
}

}  // namespace
}  // namespace weft::train
