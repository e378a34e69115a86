// An index out of range on CUDA: what the call gives, and which call throws.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/worker.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/data/numbers.h"
#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

namespace weft {
namespace {

using Index = std::vector<std::int64_t>;

constexpr Device kCuda{DeviceType::cuda, 0};
constexpr std::int64_t kBound = 3;
constexpr std::int64_t kBad[] = {-1, kBound, std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max()};

Tensor on(const Device& device, const Index& index) {
  return from_vector(index, {std::ssize(index)}).to(device);
}
Tensor numbers(const Shape& shape, const Device& device, DType dtype = DType::f32) {
  return arange(1, numel(shape) + 1, {DType::f32, device}).reshape(shape).to(dtype);
}

/// What the operations work on, made before a capture.
struct Operands {
  explicit Operands(const Device& device)
      : list(numbers({3}, device)),
        rows(numbers({3, 2}, device)),
        source(numbers({4}, device)),
        scores(zeros({4, 3}, device)) {}
  Tensor list, rows, source, scores;
};

/// With an index of four entries below kBound.
struct Operation {
  const char* name;
  Tensor (*run)(const Operands& x, const Tensor& index);
};
const Operation kOperations[] = {
    {"index_select", [](auto& x, auto& i) { return index_select(x.rows, 0, i); }},
    {"gather", [](auto& x, auto& i) { return gather(x.list, 0, i); }},
    {"scatter", [](auto& x, auto& i) { return scatter(x.list, 0, i, x.source); }},
    {"scatter_add", [](auto& x, auto& i) { return scatter_add(x.list, 0, i, x.source); }},
    {"index_add", [](auto& x, auto& i) { return index_add(x.list, 0, i, x.source); }},
    {"embedding", [](auto& x, auto& i) { return embedding(i, x.rows); }},
    {"nll_loss", [](auto& x, auto& i) { return nn::nll_loss(x.scores, i, -100, Reduction::none); }},
    {"cross_entropy",
     [](auto& x, auto& i) {
       return nn::cross_entropy(x.scores, i, {.reduction = Reduction::none});
     }},
    {"one_hot", [](auto&, auto& i) { return one_hot(i, kBound); }},
};

class BadIndexTest : public ::testing::TestWithParam<const Operation*> {
 protected:
  ~BadIndexTest() override {
    EXPECT_EQ(heard([] { synchronize(); }), "");
  }

  static void synchronize() { runtime(kCuda).synchronize_device(0); }
  /// The text of the error that f() throws, or nothing.
  static std::string heard(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::InvalidArgument);
      return e.what();
    }
    return "";
  }
  Tensor run(const Tensor& index) const {
    const PathScope outer("encoder"), inner("table");
    return GetParam()->run(index.device().is_cpu() ? host_ : device_, index);
  }
  /// What the CPU says.
  std::string expected(const Index& index) const {
    return heard([&] { run(on(Device(), index)); });
  }

 private:
  const Operands host_{Device()}, device_{kCuda};
};

TEST_P(BadIndexTest, ThrowsAtTheNextWaitWhatTheCpuThrows) {
  for (const std::int64_t bad : kBad) {
    const Index index{1, bad, 0, kBound};
    const std::string text = expected(index);
    EXPECT_NE(text.find(std::to_string(bad) + " at position [1"), std::string::npos) << text;
    EXPECT_NE(text.find("is out of range [0, 3)"), std::string::npos) << text;
    EXPECT_NE(text.find("encoder.table"), std::string::npos) << text;
    const Tensor at = on(kCuda, index);
    EXPECT_EQ(heard([&] { run(at).sum().item<double>(); }), text);
    EXPECT_EQ(heard([&] { run(at).to_vector<double>(); }), text);
    EXPECT_EQ(heard([&] { run(at).to(Device()); }), text);
    EXPECT_EQ(heard([&] {
                run(at);
                runtime(kCuda).synchronize(current_stream(kCuda));
              }),
              text);
    EXPECT_EQ(heard([&] {
                run(at);
                const auto event = runtime(kCuda).new_event(0);
                event->record(current_stream(kCuda));
                event->synchronize();
              }),
              text);
  }
}

// Only what a good index asks for is written, and no error stays to be thrown again.
TEST_P(BadIndexTest, GivesNaNOrNothing) {
  for (const std::int64_t bad : kBad) {
    const Tensor got = run(on(kCuda, {1, bad, 0, bad}));
    EXPECT_NE(heard([] { synchronize(); }), "");
    const std::vector<double> values = testing::values_of(got);
    const std::string name = GetParam()->name;
    // The result is as if the bad entries were not there. scatter_add and index_add add 1 and 3.
    if (name == "scatter") {
      EXPECT_EQ(values, (std::vector<double>{3, 1, 3}));
    } else if (name == "scatter_add" || name == "index_add") {
      EXPECT_EQ(values, (std::vector<double>{4, 3, 3}));
    } else if (name == "one_hot") {
      EXPECT_EQ(values, (std::vector<double>{0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}));
    } else {
      const std::vector<double> right = testing::values_of(run(on(Device(), {1, 1, 0, 1})));
      const std::size_t width = right.size() / 4;
      for (std::size_t i = 0; i < right.size(); ++i) {
        if (i / width % 2 == 1) {
          EXPECT_TRUE(std::isnan(values[i])) << i;
        } else {
          EXPECT_NEAR(values[i], right[i], 1e-6) << i;  // the logarithm of cross_entropy
        }
      }
    }
  }
}

TEST_P(BadIndexTest, IsFoundInEachReplay) {
  const Index good{0, 1, 2, 1};
  for (const std::int64_t bad : kBad) {
    const Index wrong{0, 2, bad, kBound};
    const Tensor index = on(kCuda, good);
    Tensor y;
    graph::Step step = graph::capture(kCuda, [&] { y = run(index); });
    for (int i = 0; i < 3; ++i) step();  // runs, captures, replays
    EXPECT_EQ(heard([] { synchronize(); }), "");
    const std::vector<double> right = testing::values_of(y);
    for (int round = 0; round < 2; ++round) {
      index.copy_(on(kCuda, wrong));
      step();
      // A later good replay does not hide it.
      index.copy_(on(kCuda, good));
      step();
      EXPECT_EQ(heard([] { synchronize(); }), expected(wrong));
      step();
      EXPECT_EQ(heard([] { synchronize(); }), "");
      EXPECT_EQ(testing::values_of(y), right);
    }
    index.copy_(on(kCuda, wrong));
    step();
    step.reset();
    EXPECT_EQ(heard([] { synchronize(); }), expected(wrong));
  }
}

TEST_P(BadIndexTest, IsFoundInTheCapturedRun) {
  const Index wrong{0, 2, -1, kBound};
  const Tensor index = on(kCuda, {0, 1, 2, 1});
  graph::Step step = graph::capture(kCuda, [&] { run(index); });
  step();
  index.copy_(on(kCuda, wrong));
  step();
  EXPECT_EQ(heard([] { synchronize(); }), expected(wrong));
}

TEST_P(BadIndexTest, OfTwoStreams) {
  const Stream a = runtime(kCuda).new_stream(0), b = runtime(kCuda).new_stream(0);
  const Index wrong{0, -1, 2, 1}, other{0, 1, 7, 1};
  const Tensor first = on(kCuda, wrong), second = on(kCuda, other);
  synchronize();
  const auto queue = [&] {
    {
      const StreamScope scope(a);
      run(first);
    }
    const StreamScope scope(b);
    run(second);
  };
  queue();
  const std::string at_b = heard([&] { runtime(kCuda).synchronize(b); });
  const std::string at_a = heard([&] { runtime(kCuda).synchronize(a); });
  if (at_b == expected(other)) {
    EXPECT_EQ(at_a, expected(wrong));
  } else {  // stream a was done, too, so the first call's error counts
    EXPECT_EQ(at_b, expected(wrong));
    EXPECT_EQ(at_a, "");
  }
  queue();
  EXPECT_EQ(heard([] { synchronize(); }), expected(wrong));
}

TEST_P(BadIndexTest, OfTwoThreads) {
  const Index wrong{0, -1, 2, 1};
  const Tensor bad = on(kCuda, wrong), good = on(kCuda, {0, 1, 2, 1});
  synchronize();
  std::string theirs;
  run(good);
  std::thread([&] {
    run(bad);
    theirs = heard([] { synchronize(); });
  }).join();
  EXPECT_EQ(theirs, expected(wrong));
  EXPECT_EQ(heard([] { synchronize(); }), "");
  // The error of a thread that has ended is not reported.
  std::thread([&] { run(bad); }).join();
  EXPECT_EQ(heard([] { synchronize(); }), "");
}

TEST_P(BadIndexTest, OfAWorker) {
  const Index wrong{0, -1, 2, 1};
  const Tensor bad = on(kCuda, wrong);
  JobGroup group;
  group.submit(kCuda, [&] { run(bad); });
  group.wait();
  EXPECT_EQ(heard([] { synchronize(); }), expected(wrong));
}

INSTANTIATE_TEST_SUITE_P(Operations, BadIndexTest, ::testing::ValuesIn([] {
                           std::vector<const Operation*> all;
                           for (const Operation& operation : kOperations) all.push_back(&operation);
                           return all;
                         }()),
                         [](const auto& info) { return info.param->name; });

TEST(BadIndex, OfOtherTypesReadsNaNOrZero) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor x = numbers({3}, kCuda, dtype), index = on(kCuda, {-1, 0});
    for (const auto read : {raw::index_select, raw::gather}) {
      const Tensor y = read(x, 0, index, true);
      EXPECT_THROW(runtime(kCuda).synchronize_device(0), Error);
      const double value = testing::values_of(y)[0];
      EXPECT_TRUE(is_floating(dtype) ? std::isnan(value) : value == 0) << to_string(dtype);
    }
  }
}

TEST(BadIndex, IsNoIgnoredTarget) {
  const Tensor x = zeros({4, 3}, kCuda);
  const Tensor target = on(kCuda, {0, -100, 2, -100});
  EXPECT_FALSE(std::isnan(nn::cross_entropy(x, target).item<double>()));
  EXPECT_WEFT_ERROR(nn::cross_entropy(x, target, {.ignore_index = -1}).item<double>(),
                    InvalidArgument,
                    "[cross_entropy] target -100 at position [1] is out of range [0, 3)");
}

// Rows for which cross entropy takes several blocks, of which the last one looks at the targets.
TEST(BadIndex, OfManyTargets) {
  Index targets(5000, 2);
  targets[4321] = 3;
  targets[4999] = -7;
  EXPECT_WEFT_ERROR(nn::cross_entropy(zeros({5000, 3}, kCuda), on(kCuda, targets)).item<double>(),
                    InvalidArgument,
                    "[cross_entropy] target 3 at position [4321] is out of range [0, 3)");
}

// More checks than there is room for at first, of which the device has done none.
TEST(BadIndex, OfManyCalls) {
  const Tensor x = numbers({3}, kCuda);
  const Tensor good = on(kCuda, {2}), bad = on(kCuda, {5});
  for (int i = 0; i < 1000; ++i) raw::index_select(x, 0, i == 700 ? bad : good);
  EXPECT_WEFT_ERROR(runtime(kCuda).synchronize_device(0), InvalidArgument,
                    "[index_select] index 5 at position [0] is out of range [0, 3)");
  EXPECT_EQ(raw::index_select(x, 0, good).item<float>(), 3);
}

// In a list that index_add sorts.
TEST(BadIndex, OfALongListIsLeftOutInEachReplay) {
  const std::int64_t terms = 3000, places = 5;
  const Tensor source = numbers({terms, 3}, kCuda), index = on(kCuda, Index(terms, 0));
  Tensor y;
  const auto add = [&](const Tensor& at, const Tensor& x) {
    return raw::index_add_(zeros({places, 3}, x.device()), 0, at, x, false);
  };
  graph::Step step = graph::capture(kCuda, [&] { y = add(index, source); });
  for (std::int64_t round = 0; round < 6; ++round) {  // runs, captures, replays
    Index list, good;
    for (std::int64_t j = 0; j < terms; ++j) {
      list.push_back((7 * j + round) % (places + 1));
      good.push_back(list.back() % places);
    }
    index.copy_(on(kCuda, list));
    step();
    // The CPU adds 0 for what is out of range.
    const Tensor kept =
        source.to(Device()) * from_vector(list, {terms, 1}).lt(places).to(DType::f32);
    EXPECT_EQ(testing::values_of(y), testing::values_of(add(on(Device(), good), kept))) << round;
  }
}

// Two threads may have replayed it.
TEST(BadIndex, ChecksOfAStepThatIsGoneAreForgotten) {
  const Tensor x = numbers({3}, kCuda), index = on(kCuda, {0});
  std::optional<graph::Step> step = graph::capture(kCuda, [&] { raw::index_select(x, 0, index); });
  for (int i = 0; i < 3; ++i) step->replay();
  std::promise<void> replayed, gone;
  std::thread other([&] {
    step->replay();
    replayed.set_value();
    gone.get_future().wait();
    EXPECT_FALSE(index_reports()->empty());
    runtime(kCuda).synchronize_device(0);
    EXPECT_TRUE(index_reports()->empty());
  });
  replayed.get_future().wait();
  step.reset();
  gone.set_value();
  other.join();
  runtime(kCuda).synchronize_device(0);
  EXPECT_TRUE(index_reports()->empty());
}

// launch_check() does so when the driver refuses the launch.
TEST(BadIndex, ACheckThatIsNotLaunchedIsForgotten) {
  runtime(kCuda).synchronize_device(0);
  ASSERT_TRUE(index_reports(true)->empty());
  IndexReports& mine = *index_reports();
  const BadIndex* const place =
      mine.expect(runtime(kCuda), {.op = "test", .bound = 3}, {1}, /*recorded=*/false);
  EXPECT_FALSE(mine.empty());
  mine.forget(place);
  EXPECT_TRUE(mine.empty());
}

// Waits that the program has not asked for leave the report to the next wait that it asks for.
class BadIndexAndOwnWaits : public ::testing::Test {
 protected:
  // The operands are ready for every stream.
  BadIndexAndOwnWaits() { runtime(kCuda).synchronize_device(0); }
  ~BadIndexAndOwnWaits() override {
    EXPECT_WEFT_ERROR(runtime(kCuda).synchronize_device(0), InvalidArgument,
                      "[index_select] index 5 at position [0] is out of range [0, 3)");
  }
  void read_outside() { raw::index_select(x_, 0, bad_); }

  const Tensor x_ = numbers({3}, kCuda), bad_ = on(kCuda, {5});
};

TEST_F(BadIndexAndOwnWaits, FreeingMemory) {
  const Stream other = runtime(kCuda).new_stream(0);
  Tensor used = numbers({1000}, kCuda);
  used.storage()->record_stream(other);
  {
    const StreamScope scope(other);
    read_outside();
  }
  used = Tensor();  // free as soon as `other` has done all this
  EXPECT_NO_THROW(release_cached_memory(kCuda));
}

TEST_F(BadIndexAndOwnWaits, TheEndOfAnExternalStream) {
  const Stream own = runtime(kCuda).new_stream(0);
  const ExternalStream external(kCuda, own.handle);
  const StreamScope scope(external.get());
  read_outside();
}

// The first span waits, to know when the device's clock began.
TEST_F(BadIndexAndOwnWaits, ALoadersCopies) {
  data::DataLoader loader(testing::Numbers{60}, {.batch_size = 4, .device = kCuda});
  int batches = 0;
  for ([[maybe_unused]] const auto& batch : loader) {
    if (++batches == 3) read_outside();
  }
  EXPECT_EQ(batches, 15);
}

TEST_F(BadIndexAndOwnWaits, TheFirstSpanOfATrace) {
  read_outside();
  Tracer tracer({.device_time = true});
  const Scoped tracing(&ThreadState::tracer, &tracer);
  const Span span("test", "span", kCuda);
}

TEST_F(BadIndexAndOwnWaits, TheEndOfATrace) {
  Tracer tracer({.device_time = true});
  const Scoped tracing(&ThreadState::tracer, &tracer);
  for (const bool outside : {false, true}) {
    const Span span("test", "span", kCuda);
    if (outside) read_outside();
  }
  static_cast<void>(tracer.part());
}

}  // namespace
}  // namespace weft
