#include "weft/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/worker.h"
#include "weft/nn/dropout.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/every_case.h"
#include "weft/tests/parallel/devices.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::seeded;

using TensorSpan = std::span<const Tensor>;
Tensor cross_entropy(TensorSpan y, TensorSpan target) { return nn::cross_entropy(y[0], target[0]); }

class PipelineTest : public testing::DevicesTest {
 protected:
  static nn::Sequential net(int seed = 1) {
    return seeded(seed, [] {
      return nn::Sequential{nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 8), nn::Tanh(),
                            nn::Linear(8, 3)};
    });
  }
  static std::vector<nn::AnyModule> halves(const nn::Sequential& whole) {
    return {whole.slice(0, 3), whole.slice(3, 5)};
  }
  static std::vector<nn::AnyModule> quarters(const nn::Sequential& whole) {
    return {whole.slice(0, 1), whole.slice(1, 3), whole.slice(3, 4), whole.slice(4, 5)};
  }
  static testing::LabelledBatch rows(std::int64_t n, DType dtype = DType::f32) {
    return batch(0, {n, 6}, dtype);
  }
  /// 0, 1, 2 ... in a column.
  static Tensor some_weights(std::int64_t n) {
    return arange(0, static_cast<double>(n)).reshape({n, 1}).to(DType::f32);
  }
  static Tensor home(const Tensor& x) { return x.to(Device()); }
};

TEST_P(PipelineTest, StagesStayTheModels) {
  nn::Sequential model = net();
  const std::vector<std::string> names = [&] {
    std::vector<std::string> list;
    for (const auto& [name, value] : model.state_dict()) list.push_back(name);
    return list;
  }();
  Pipeline pipe(halves(model), {.devices = devices(2), .chunks = 2});
  std::size_t i = 0;
  for (const auto& [name, value] : model.state_dict()) {
    EXPECT_EQ(name, names[i++]);
    EXPECT_EQ(value.device(), devices(2)[name < "3" ? 0 : 1]) << name;
  }
}

TEST_P(PipelineTest, ForwardAndBackwardAreTheModels) {
  const auto data = rows(7);
  nn::Sequential alone = net();
  const Tensor expected = alone(data.x);
  nn::cross_entropy(expected, data.label).backward();
  for (const std::string& name : schedule_names()) {
    if (name == "interleaved") continue;  // two stages on two devices are 1F1B
    const bool in_a_v = name == "zb-v" || name == "dualpipev";
    for (const int chunks : {1, 2, 3, 8}) {  // 7 rows: micro-batches of 7, 4+3, 3+3+1, 1 each
      if (name == "dualpipev" && chunks < 8) continue;  // needs two for each device
      for (const Recompute mode : {Recompute::never, Recompute::except_last, Recompute::always}) {
        nn::Sequential model = net();
        Pipeline pipe(
            in_a_v ? quarters(model) : halves(model),
            {.devices = devices(2), .chunks = chunks, .checkpoint = mode, .schedule = name});
        const Tensor y = pipe(data.x);
        EXPECT_EQ(y.device(), devices(2)[in_a_v ? 0 : 1]);
        EXPECT_LT(testing::relative_difference(home(y), expected), 1e-6);
        nn::cross_entropy(y, data.label.to(y.device())).backward();
        std::vector<Tensor> by_tape;
        for (std::size_t i = 0; i < model.parameters().size(); ++i) {
          by_tape.push_back(raw::clone(model.parameters()[i].grad()));
          EXPECT_LT(testing::relative_difference(home(by_tape[i]), alone.parameters()[i].grad()),
                    1e-5)
              << name << ' ' << chunks;
        }
        model.zero_grad();
        const Tensor loss = pipe.step({data.x}, {data.label}, cross_entropy);
        EXPECT_NEAR(loss.item<double>(), nn::cross_entropy(expected, data.label).item<double>(),
                    1e-6);
        for (std::size_t i = 0; i < by_tape.size(); ++i) {
          EXPECT_LT(testing::relative_difference(model.parameters()[i].grad().to(Device()),
                                                 home(by_tape[i])),
                    1e-5);
        }
      }
    }
  }
}

TEST_P(PipelineTest, InputsGetGradients) {
  nn::Sequential model = net(), alone = net();
  Pipeline pipe(halves(model), {.devices = devices(2), .chunks = 3});
  const Tensor x = rows(5).x.set_requires_grad(), same = rows(5).x.set_requires_grad();
  pipe(x).sum().backward();
  alone(same).sum().backward();
  EXPECT_LT(testing::relative_difference(x.grad(), same.grad()), 1e-6);
}

TEST_P(PipelineTest, GradGivesGradientsOfInputsAndLeavesThoseOfParametersAlone) {
  nn::Sequential alone = net();
  const Tensor same = rows(5).x.set_requires_grad();
  const Tensor expected = autograd::grad(alone(same).sum(), same);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const Recompute mode : {Recompute::never, Recompute::always}) {
      nn::Sequential model = net();
      Pipeline pipe(halves(model),
                    {.devices = devices(2), .chunks = 3, .checkpoint = mode, .schedule = schedule});
      const Tensor x = rows(5).x.set_requires_grad();
      const Tensor got = autograd::grad(pipe(x).sum(), x);
      EXPECT_LT(testing::relative_difference(got, expected), 1e-6) << schedule;
      EXPECT_FALSE(x.grad().defined());
      for (const auto& [name, p] : model.named_parameters()) {
        EXPECT_FALSE(p.grad().defined()) << schedule << ' ' << name;
      }
    }
  }
}

TEST_P(PipelineTest, WithoutGradientsNothingIsKept) {
  nn::Sequential model = net();
  Pipeline pipe(halves(model), {.devices = devices(2), .chunks = 2});
  const NoGrad no_grad;
  const Tensor y = pipe(rows(4).x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.shape(), (Shape{4, 3}));
}

struct TwoToTwo : nn::Module<TwoToTwo> {
  nn::Linear fc = child("fc", nn::Linear(6, 6));
  std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) { return {fc(a) + b, b}; }
};
struct TwoToOne : nn::Module<TwoToOne> {
  Tensor forward(const Tensor& a, const Tensor& b) { return (a * b).sum(Dims{1}); }
};

TEST_P(PipelineTest, SeveralTensorsBetweenStages) {
  TwoToTwo first_stage = seeded(1, [] { return TwoToTwo(); });
  TwoToTwo same = nn::clone(first_stage);
  Pipeline pipe({first_stage, TwoToOne()}, {.devices = devices(2), .chunks = 2});
  const Tensor a = rows(4).x, b = batch(1, {4, 6}, DType::f32).x;
  const std::vector<Tensor> inputs = {a, b};
  const Tensor y = pipe(inputs)[0];
  const auto [u, v] = same(a, b);
  const Tensor expected = TwoToOne()(u, v);
  EXPECT_LT(testing::relative_difference(home(y), expected), 1e-6);
  y.sum().backward();
  expected.sum().backward();
  EXPECT_LT(testing::relative_difference(home(first_stage.fc.weight.grad()), same.fc.weight.grad()),
            1e-6);
}

TEST_P(PipelineTest, RecomputesWithTheSameRandomNumbers) {
  const auto gradient = [&](Recompute mode) {
    manual_seed(3);
    nn::Sequential model = seeded(
        1, [] { return nn::Sequential{nn::Linear(6, 8), nn::Dropout(0.5), nn::Linear(8, 3)}; });
    manual_seed(4);
    Pipeline pipe({model.slice(0, 2), model.slice(2, 3)},
                  {.devices = devices(2), .chunks = 3, .checkpoint = mode});
    pipe(rows(6).x).sum().backward();
    return home(model.parameters()[0].grad());
  };
  const Tensor expected = gradient(Recompute::never);
  EXPECT_LT(testing::relative_difference(gradient(Recompute::always), expected), 1e-6);
  EXPECT_LT(testing::relative_difference(gradient(Recompute::except_last), expected), 1e-6);
}

TEST_P(PipelineTest, RecomputationKeepsLess) {
  const auto peak = [&](Recompute mode) {
    nn::Sequential model = seeded(1, [] {
      return nn::Sequential{nn::Linear(64, 512), nn::Tanh(),          nn::Linear(512, 512),
                            nn::Tanh(),          nn::Linear(512, 64), nn::Linear(64, 3)};
    });
    Pipeline pipe({model.slice(0, 5), model.slice(5, 6)},
                  {.devices = devices(2), .chunks = 8, .checkpoint = mode});
    const Tensor x = ones({512, 64});
    reset_peak_memory(devices(2)[0]);
    pipe(x).sum().backward();
    return memory_stats(devices(2)[0]).peak_by_owner[0];
  };
  EXPECT_LT(peak(Recompute::always) * 2, peak(Recompute::never));
}

TEST_P(PipelineTest, ASteadyStepTakesNoFreshMemory) {
  int turn = 0;
  for (const std::string& schedule : schedule_names()) {
    for (const Recompute mode : {Recompute::never, Recompute::except_last}) {
      // An emulated GPU takes seconds for each case, so only some are run.
      const bool skipped = ++turn % 4 >= 2;
      if (skipped && !first().is_cpu() && !testing::every_case()) continue;
      SCOPED_TRACE(schedule + ", " + to_string(mode));
      // A layer's result needs 256 KiB per micro-batch.
      nn::Sequential model = seeded(1, [] {
        return nn::Sequential{nn::Linear(6, 128),   nn::Tanh(), nn::Linear(128, 128), nn::Tanh(),
                              nn::Linear(128, 128), nn::Tanh(), nn::Linear(128, 3)};
      });
      std::vector<nn::AnyModule> stages = {model.slice(0, 4), model.slice(4, 7)};
      if (stages_per_device(schedule) == 2) {
        stages = {model.slice(0, 2), model.slice(2, 4), model.slice(4, 6), model.slice(6, 7)};
      }
      Pipeline pipe(stages,
                    {.devices = devices(2), .chunks = 4, .checkpoint = mode, .schedule = schedule});
      const auto data = rows(2048);
      expect_steady_memory(devices(2), [&] {
        model.zero_grad();
        pipe.step({data.x}, {data.label}, cross_entropy);
      });
    }
  }
}

TEST_P(PipelineTest, OneDeviceMayStandForSeveral) {
  nn::Sequential model = net(), alone = net();
  Pipeline pipe(halves(model), {.devices = {first(), first()}, .chunks = 3, .schedule = "1f1b"});
  const auto data = rows(6);
  pipe.step({data.x}, {data.label}, cross_entropy);
  nn::cross_entropy(alone(data.x), data.label).backward();
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    EXPECT_LT(testing::relative_difference(home(model.parameters()[i].grad()),
                                           alone.parameters()[i].grad()),
              1e-5);
  }
}

TEST_P(PipelineTest, TellsWhatRanWhen) {
  nn::Sequential model = net();
  Pipeline pipe(halves(model), {.devices = devices(2), .chunks = 3, .schedule = "1f1b"});
  const auto data = rows(6);
  pipe.step({data.x}, {data.label}, cross_entropy);
  const Timeline& timeline = pipe.timeline();
  const Schedule& schedule = pipe.schedule(3);
  std::vector<std::vector<Action>> ran(2);
  double busy = 0;
  for (const TimedAction& action : timeline.actions) {
    ran[static_cast<std::size_t>(action.device)].push_back(action.action);
    EXPECT_LE(0, action.begin);
    EXPECT_LE(action.begin, action.end);
    EXPECT_LE(action.end, timeline.end);
    busy += action.end - action.begin;
  }
  EXPECT_EQ(ran, schedule.devices);
  EXPECT_NEAR(timeline.busy[0] + timeline.busy[1], busy, 1e-12);
}

struct PassesOn : nn::Module<PassesOn> {
  nn::Linear fc = child("fc", nn::Linear(6, 6));
  std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) {
    return {fc(a).unsqueeze(1), b};
  }
};
struct Product : nn::Module<Product> {
  Tensor forward(const Tensor& a, const Tensor& b) { return matmul(a, b); }
};

// An input takes the place of a weight: its gradient must go on to the previous stage.
TEST_P(PipelineTest, PutsOffGradientsOfWeightsAlone) {
  PassesOn front = seeded(1, [] { return PassesOn(); });
  PassesOn same = nn::clone(front);
  const Tensor a = rows(4).x, b = batch(1, {4, 6, 2}, DType::f32).x.set_requires_grad();
  const Tensor expected_b = raw::clone(b).set_requires_grad();
  Pipeline pipe({front, Product()}, {.devices = devices(2), .schedule = "zb-h1"});
  const std::vector<Tensor> inputs = {a, b};
  pipe(inputs)[0].sum().backward();
  const auto [u, v] = same(a, expected_b);
  Product()(u, v).sum().backward();
  EXPECT_LT(testing::relative_difference(b.grad(), expected_b.grad()), 1e-6);
  EXPECT_LT(testing::relative_difference(home(front.fc.weight.grad()), same.fc.weight.grad()),
            1e-6);
}

struct TwoRowsOfEach : nn::Module<TwoRowsOfEach> {
  nn::Linear fc = child("fc", nn::Linear(3, 1));
  Tensor forward(const Tensor& x) { return fc(x.reshape({-1, 3})); }
};

TEST_P(PipelineTest, ResultsMayHaveOtherRowsThanInputs) {
  TwoRowsOfEach model = seeded(1, [] { return TwoRowsOfEach(); });
  TwoRowsOfEach same = nn::clone(model);
  Pipeline pipe({nn::Tanh(), model}, {.devices = devices(2), .chunks = 3});
  const Tensor x = rows(7).x, y = pipe(x), weight = some_weights(14);
  EXPECT_EQ(y.shape(), (Shape{14, 1}));
  (y * weight.to(y.device())).sum().backward();
  (same(tanh(x)) * weight).sum().backward();
  EXPECT_LT(testing::relative_difference(home(model.fc.weight.grad()), same.fc.weight.grad()),
            1e-6);
}

TEST_P(PipelineTest, RecomputesUnderTheForwardsAutocast) {
  nn::Sequential model = net(), same = net();
  Pipeline pipe(halves(model),
                {.devices = devices(2), .chunks = 2, .checkpoint = Recompute::always});
  Pipeline kept(halves(same), {.devices = devices(2), .chunks = 2, .checkpoint = Recompute::never});
  const autograd::Autocast autocast(GetParam());
  pipe(rows(4).x).sum().backward();
  kept(rows(4).x).sum().backward();
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    EXPECT_TRUE(
        testing::same_bits(home(model.parameters()[i].grad()), home(same.parameters()[i].grad())));
  }
}

struct WritesItsInput : nn::Module<WritesItsInput> {
  nn::Linear fc = child("fc", nn::Linear(8, 3));
  Tensor forward(const Tensor& x) {
    const NoGrad no_grad;
    x.mul_(2);
    const EnableGrad again;
    return fc(x);
  }
};

TEST_P(PipelineTest, AStageThatWritesItsInputCannotBeRunAgain) {
  Pipeline pipe({nn::Linear(6, 8), WritesItsInput()},
                {.devices = devices(2), .chunks = 2, .checkpoint = Recompute::always});
  const Tensor y = pipe(rows(4).x);
  EXPECT_WEFT_ERROR(y.sum().backward(), InvalidArgument,
                    "of stage 1 was changed in place, so its forward cannot be run again");
}

// --- Several at once -----------------------------------------------------------------------------

struct Meets : nn::Module<Meets> {
  static inline std::atomic<int> running = 0, most = 0;
  Tensor forward(const Tensor& x) {
    if (!is_training()) return x;
    most = std::max<int>(most, ++running);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (most < 2 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (x.device().index == 0) break;  // the first stage goes on, to feed the second
    }
    --running;
    return x;
  }
};

TEST_P(PipelineTest, StagesRunAtOnce) {
  Meets::most = 0;
  Pipeline pipe({Meets(), Meets()}, {.devices = devices(2), .chunks = 64});
  pipe(ones({64, 1}));
  EXPECT_EQ(Meets::most, 2);
}

// Returns x; its backward takes long if the first device's worker runs it.
struct Lingers : autograd::Function<Lingers> {
  static Tensor forward(autograd::Context&, const Tensor& x) { return raw::clone(x); }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor> grads) {
    const Device* const worker = worker_device();
    if (worker && worker->index == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return {grads[0]};
  }
};

// Two branches that begin and end on the first device, each through another device.
struct OverThreeDevices : nn::Module<OverThreeDevices> {
  nn::Linear left = child("left", nn::Linear(6, 6)), right = child("right", nn::Linear(6, 6));
  Device second, third;
  OverThreeDevices(Device b, Device c) : second(b), third(c) {}
  Tensor forward(const Tensor& x) {
    const auto by_way_of = [](const Tensor& y, Device device) {
      return Lingers::apply(y.to(device)).to(y.device());
    };
    return by_way_of(left(x), second) + by_way_of(right(x), third);
  }
};

// In the backward of the first stage one branch ends while the first device's worker still runs the
// other. The rest of that branch belongs to the first device, whose second thread waits for its
// turn in its own list: so one more thread must run it.
TEST_P(PipelineTest, AListThatWaitsForItsTurnLeavesTheDeviceToOthers) {
  if (count() < 3) GTEST_SKIP() << "needs three devices";
  OverThreeDevices front = seeded(1, [] { return OverThreeDevices(devices(3)[1], devices(3)[2]); });
  OverThreeDevices same = nn::clone(front);
  nn::Linear head(6, 3), same_head = nn::clone(head);
  Pipeline pipe({front, head}, {.devices = {first(), first()},
                                .chunks = 8,
                                .checkpoint = Recompute::never,
                                .schedule = "1f1b"});
  const auto data = rows(16);
  pipe.step({data.x}, {data.label}, cross_entropy);
  same.to(first());
  same_head.to(first());
  nn::cross_entropy(same_head(same(data.x.to(first()))), data.label.to(first())).backward();
  for (std::size_t i = 0; i < front.parameters().size(); ++i) {
    EXPECT_LT(testing::relative_difference(home(front.parameters()[i].grad()),
                                           home(same.parameters()[i].grad())),
              1e-5);
  }
}

struct Fails : nn::Module<Fails> {
  nn::Linear fc = child("fc", nn::Linear(8, 3));
  static inline int fail_at = -1;
  static inline int seen = 0;
  Tensor forward(const Tensor& x) {
    if (is_training() && seen++ == fail_at) throw std::runtime_error("no luck");
    return fc(x);
  }
};

TEST_P(PipelineTest, AnErrorNamesStageAndMicroBatchAndStopsAll) {
  nn::Linear front(6, 8);
  Pipeline pipe(
      {front, Fails()},
      {.devices = devices(2), .chunks = 4, .checkpoint = Recompute::never, .schedule = "1f1b"});
  const auto data = rows(8);
  for (const int at : {0, 2}) {
    Fails::seen = 0;
    Fails::fail_at = at;
    const std::string place = "forward of micro-batch " + std::to_string(at) + " in stage 1 on " +
                              to_string(devices(2)[1]);
    EXPECT_WEFT_ERROR(pipe.step({data.x}, {data.label}, cross_entropy), Library, place);
  }
  Fails::fail_at = -1;
  front.zero_grad();
  pipe.step({data.x}, {data.label}, cross_entropy);  // it still works
  EXPECT_TRUE(front.weight.grad().defined());
}

TEST_P(PipelineTest, RunsOutOfMemoryAndGoesOnWithLess) {
  nn::Sequential model = seeded(
      1, [] { return nn::Sequential{nn::Linear(6, 4096), nn::ReLU(), nn::Linear(4096, 3)}; });
  Pipeline pipe({model.slice(0, 2), model.slice(2, 3)},
                {.devices = devices(2), .chunks = 2, .checkpoint = Recompute::never});
  const Device second = devices(2)[1];
  release_cached_memory(second);
  set_memory_limit(second, memory_stats(second).in_use_bytes + (12 << 20));
  const auto large = rows(1024), small = rows(8);  // 8 MiB per micro-batch: there is room for one
  EXPECT_WEFT_ERROR(pipe.step({large.x}, {large.label}, cross_entropy), OutOfMemory,
                    to_string(second) + " is out of memory");
  EXPECT_WEFT_ERROR(pipe.step({large.x}, {large.label}, cross_entropy), OutOfMemory,
                    "of micro-batch 1");
  model.zero_grad();
  EXPECT_TRUE(pipe.step({small.x}, {small.label}, cross_entropy).defined());
  set_memory_limit(second, 0);
}

TEST_P(PipelineTest, AStageThatDoesNotFitIsNamedBeforeAnythingRuns) {
  nn::Linear front(6, 8);
  Pipeline pipe({front, nn::Linear(7, 3)}, {.devices = devices(2), .chunks = 2});
  EXPECT_WEFT_ERROR(pipe(rows(4).x), Shape,
                    "in stage 1 on " + to_string(devices(2)[1]) +
                        ", tried with 2 rows of what the stage before it gave");
  EXPECT_TRUE(pipe.timeline().actions.empty());
}

struct NeighboursDiffer : nn::Module<NeighboursDiffer> {
  Tensor forward(const Tensor& x) { return x - x.narrow(0, 1, 1); }
};

TEST_P(PipelineTest, AStageMayNeedSeveralRows) {
  nn::Linear front(6, 3);
  Pipeline pipe({front, NeighboursDiffer()}, {.devices = devices(2), .chunks = 2});
  EXPECT_EQ(pipe(rows(4).x).shape(), (Shape{4, 3}));
  EXPECT_WEFT_ERROR(pipe(rows(3).x), Shape, "micro-batch 1 in stage 1");  // the last has one row
}

// --- What is refused -----------------------------------------------------------------------------

TEST_P(PipelineTest, SaysWhatIsWrong) {
  nn::Sequential model = net();
  const auto two = devices(2);
  EXPECT_WEFT_ERROR(Pipeline({}), InvalidArgument, "at least one stage");
  EXPECT_WEFT_ERROR(Pipeline(halves(model), {.devices = {two[0]}}), Device,
                    "got 1 devices, the schedule is for 2");
  EXPECT_WEFT_ERROR(Pipeline(quarters(model), {.devices = {two[0]}, .schedule = "zb-v"}), Device,
                    "got 1 devices, the schedule is for 2");
  EXPECT_WEFT_ERROR(
      Pipeline(quarters(model), {.devices = two, .chunks = 3, .schedule = "dualpipev"}),
      InvalidArgument, "got 3 micro-batches on 2 devices, expected at least 4");
  EXPECT_WEFT_ERROR(Pipeline(halves(model), {.devices = {two[0], Device(GetParam(), 63)}}), Device,
                    "no such device");
  EXPECT_WEFT_ERROR(Pipeline(halves(model), {.devices = two, .chunks = 0}), InvalidArgument,
                    "chunks: got 0");
  EXPECT_WEFT_ERROR(Pipeline(halves(model), {.devices = two, .schedule = "none"}), InvalidArgument,
                    "none");
  EXPECT_WEFT_ERROR(Pipeline(halves(model), {.devices = two, .actions = gpipe(3, 2)}),
                    InvalidArgument, "is for 3 stages, got 2");
  Pipeline pipe(halves(model), {.devices = two, .actions = gpipe(2, 4)});
  EXPECT_WEFT_ERROR(pipe(rows(2).x), InvalidArgument, "is for 4 micro-batches");
  const auto data = rows(4);
  EXPECT_WEFT_ERROR(pipe.step({data.x}, {rows(3).label}, cross_entropy), Shape,
                    "target [3]: expected 4 rows");
  const Tensor y = pipe(data.x);
  y.sum().backward({}, true);
  EXPECT_WEFT_ERROR(y.sum().backward(), InvalidArgument, "run the forward again");
  const NoGrad no_grad;
  EXPECT_WEFT_ERROR(pipe.step({data.x}, {data.label}, cross_entropy), InvalidArgument,
                    "gradients, which are off");
}

WEFT_ON_DEVICES(PipelineTest);

}  // namespace
}  // namespace weft::parallel
