// How graph::capture uses a device whose streams record, and where its memory comes from. Uses a
// fake device that logs what it is asked for.
#include "weft/core/runtime/capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft {
namespace {

using Log = std::vector<std::string>;
using Ptr = intrusive_ptr<Storage>;

class RecordingRuntime final : public testing::FakeRuntime {
 public:
  RecordingRuntime() : FakeRuntime(DeviceType::cuda, 2) {}

  Log log;

  bool can_record() const override { return true; }
  void begin_recording(const Stream& stream) override { log.push_back("begin on " + name(stream)); }
  std::unique_ptr<RecordedWork> end_recording(const Stream& stream) override {
    log.push_back("end on " + name(stream));
    return std::make_unique<Work>(*this);
  }
  void abandon_recording(const Stream& stream) noexcept override {
    log.push_back("abandon on " + name(stream));
  }
  void write_words(std::uint64_t* to, std::span<const std::uint64_t> words,
                   const Stream& stream) override {
    std::copy(words.begin(), words.end(), to);
    log.push_back("write " + std::to_string(words.size()) + " on " + name(stream));
  }

  static std::string name(const Stream& stream) {
    return stream.handle ? "own stream" : "default stream";
  }

 private:
  class Work final : public RecordedWork {
   public:
    explicit Work(RecordingRuntime& runtime) : runtime_(runtime) {}
    ~Work() override { runtime_.log.push_back("destroy"); }
    void launch(const Stream& stream) override {
      runtime_.log.push_back("launch on " + name(stream));
    }

   private:
    RecordingRuntime& runtime_;
  };
};

class CaptureTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static testing::FakeRuntime cpu(DeviceType::cpu);
    register_runtime(DeviceType::cpu, &cpu);
    register_runtime(DeviceType::cuda, &cuda());
  }
  static RecordingRuntime& cuda() {
    static RecordingRuntime runtime;
    return runtime;
  }
  void SetUp() override { taken(); }
  static Log taken() { return std::exchange(cuda().log, {}); }

  const Device device_ = Device("cuda:0");
};

TEST_F(CaptureTest, RunsThenRecordsThenLaunches) {
  int runs = 0;
  {
    graph::Step step = graph::capture(device_, [&] {
      ++runs;
      const Stream stream = current_stream(device_);
      cuda().log.push_back("body on " + RecordingRuntime::name(stream));
    });
    step();
    EXPECT_EQ(taken(), Log{"body on default stream"});
    step();
    EXPECT_EQ(taken(), (Log{"begin on own stream", "body on own stream", "end on own stream",
                            "launch on default stream"}));
    step();
    step();
    EXPECT_EQ(taken(), (Log{"launch on default stream", "launch on default stream"}));
    EXPECT_EQ(runs, 2);
  }
  EXPECT_EQ(taken(), Log{"destroy"});
}

TEST_F(CaptureTest, NumbersAreBroughtForwardBeforeEachLaunch) {
  std::int64_t count = 0;
  double rate = 0.5;
  const std::int64_t* count_at = nullptr;
  const double* rate_at = nullptr;
  graph::Step step = graph::capture(device_, [&] {
    ++count;
    if (graph::Capture* capture = thread_state().capture) {
      rate_at = capture->number<double>(rate, [&] { return rate; });
      count_at = capture->number<std::int64_t>(count, [&] { return ++count; });
    }
  });
  step();
  step();
  EXPECT_EQ(*count_at, 2);
  EXPECT_EQ(*rate_at, 0.5);
  taken();
  rate = 0.25;
  step();
  EXPECT_EQ(taken(), (Log{"write 2 on default stream", "launch on default stream"}));
  EXPECT_EQ(*count_at, 3);
  EXPECT_EQ(*rate_at, 0.25);
}

// Numbers are written in blocks; the address of a number never changes.
TEST_F(CaptureTest, ManyNumbers) {
  constexpr int kCount = 700;
  std::vector<const std::int64_t*> at;
  std::int64_t next = 0;
  graph::Step step = graph::capture(device_, [&] {
    graph::Capture* capture = thread_state().capture;
    for (int i = 0; capture && i < kCount; ++i) {
      at.push_back(capture->number<std::int64_t>(next++, [&] { return next++; }));
    }
  });
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(std::ranges::count(taken(), "write 256 on default stream"), 4);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(*at[i], kCount + i);
}

// They are written before the launch, so earlier work of the body would overwrite them.
TEST_F(CaptureTest, NumbersShareNoMemoryWithTheBody) {
  const void* temporary = nullptr;
  const void* number = nullptr;
  graph::Step step = graph::capture(device_, [&] {
    temporary = Storage::allocate(device_, 2048)->data();
    if (graph::Capture* capture = thread_state().capture) {
      number = capture->number<std::int64_t>(1, [] { return 1; });
    }
  });
  step();
  step();
  EXPECT_NE(number, temporary);
}

TEST_F(CaptureTest, RandomNumbersAreThoseOfTheThreadThatReplays) {
  const std::uint64_t* own = nullptr;
  const std::uint64_t* given = nullptr;
  Generator generator(5), expected(5);
  graph::Step step = graph::capture(device_, [&] {
    if (graph::Capture* capture = thread_state().capture) {
      own = capture->random64(default_generator());
      given = capture->random64(generator);
    }
  });
  std::thread([&] {
    step();
    step();
  }).join();
  EXPECT_EQ(*given, expected.random64());
  manual_seed(7);
  step();
  EXPECT_EQ(*own, Generator(7).random64());
  EXPECT_EQ(*given, expected.random64());
}

TEST_F(CaptureTest, HostStateIsSetAfterEachLaunch) {
  Log calls;
  graph::Step step = graph::capture(device_, [&] {
    if (graph::Capture* capture = thread_state().capture) {
      capture->on_host_state(&calls, [&] { calls.push_back("first"); });
      capture->on_host_state(&step, [&] { calls.push_back("other"); });
      capture->on_host_state(&calls, [&] { calls.push_back("last"); });
    }
  });
  step();
  step();
  EXPECT_EQ(calls, Log{});
  step();
  EXPECT_EQ(calls, (Log{"last", "other"}));
}

TEST_F(CaptureTest, EmptyFunctionsAreRefused) {
  graph::Step step = graph::capture(device_, [&] {
    graph::Capture* capture = thread_state().capture;
    if (!capture) return;
    EXPECT_WEFT_ERROR(capture->on_host_state(&step, {}), InvalidArgument,
                      "[graph] got no function for the host's state");
    EXPECT_WEFT_ERROR(capture->constant("SGD", "the momentum", {}), InvalidArgument,
                      "[SGD] got no function that tells the momentum");
  });
  for (int i = 0; i < 2; ++i) step();
  EXPECT_WEFT_ERROR(graph::capture(device_, {}), InvalidArgument, "got no function to capture");
}

TEST_F(CaptureTest, ConstantsAreChecked) {
  std::int64_t revision = 1;
  graph::Step step = graph::capture(device_, [&] {
    if (graph::Capture* capture = thread_state().capture) {
      capture->constant("optimizer", "the momentum", [&] { return revision; });
    }
  });
  for (int i = 0; i < 3; ++i) step();
  taken();
  revision = 2;
  EXPECT_WEFT_ERROR(step(), InvalidArgument, "[optimizer] the momentum changed");
  EXPECT_EQ(taken(), Log{});
}

TEST_F(CaptureTest, AnErrorAbandonsTheRecording) {
  bool fail = false;
  graph::Step step = graph::capture(device_, [&] {
    const Ptr memory = Storage::allocate(device_, 512);
    if (fail) WEFT_THROW(Shape, "matmul", "no match");
  });
  step();
  fail = true;
  EXPECT_WEFT_ERROR(step(), Shape, "no match");
  EXPECT_EQ(taken(), (Log{"begin on own stream", "abandon on own stream"}));
  EXPECT_EQ(thread_state().capture, nullptr);
  EXPECT_EQ(current_stream(device_).handle, nullptr);
  fail = false;
  step();  // now it captures
  EXPECT_EQ(taken().back(), "launch on default stream");
}

// A library that refuses what a stream that records forbids; the next call may be what finds it.
TEST_F(CaptureTest, AnErrorNamesTheOperationAndHowToDoWithout) {
  bool fail = false;
  graph::Step step = graph::capture(device_, [&] {
    if (graph::Capture* capture = thread_state().capture) capture->on_op("matmul", device_);
    if (fail) WEFT_THROW(Library, "cublas", "cublasLtMatmul(..) failed");
  });
  step();
  fail = true;
  EXPECT_WEFT_ERROR(step(), Library, "[cublas] cublasLtMatmul(..) failed");
  EXPECT_WEFT_ERROR(step(), Library, "in matmul of a captured step (--no-graph");
}

// The program would make it without a graph, too, and it may be of a later operation.
TEST_F(CaptureTest, AMistakeOfTheProgramStaysAsItIs) {
  bool fail = false;
  graph::Step step = graph::capture(device_, [&] {
    if (graph::Capture* capture = thread_state().capture) capture->on_op("matmul", device_);
    if (fail) WEFT_THROW(Shape, "add", "got [2] and [3]");
  });
  step();
  fail = true;
  try {
    step();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("captured step"), std::string::npos) << error.what();
  }
}

TEST_F(CaptureTest, MemoryComesFromThePool) {
  release_cached_memory(device_);
  const std::size_t before = cuda().held;
  Ptr kept;
  void* temporary = nullptr;
  {
    graph::Step step = graph::capture(device_, [&] {
      kept = Storage::allocate(device_, 1024);
      temporary = Storage::allocate(device_, 1024)->data();
    });
    step();
    const void* const eager = kept->data();
    step();
    EXPECT_NE(kept->data(), eager);
    // The memory that the capture gave back still belongs to the step: others do not get it, nor
    // does the driver.
    release_cached_memory(device_);
    const std::size_t with_pool = cuda().held;
    EXPECT_GT(with_pool, before);
    for (int i = 0; i < 3; ++i) {
      const Ptr other = Storage::allocate(device_, 1024);
      EXPECT_NE(other->data(), temporary);
    }
  }
  // `kept` holds its segment, which goes back to the driver because nothing else is allocated from
  // it.
  release_cached_memory(device_);
  EXPECT_GT(cuda().held, before);
  kept = {};
  EXPECT_EQ(cuda().held, before);
}

// Cached memory of another stream may still be in use there.
TEST_F(CaptureTest, NoMemoryIsGivenBackWhileRecording) {
  Ptr elsewhere;
  {
    const StreamScope other(cuda().new_stream(0));
    elsewhere = Storage::allocate(device_, 1024);
  }
  graph::Step step = graph::capture(device_, [&] {
    if (!thread_state().capture) return;
    elsewhere = {};
    Storage::allocate(device_, 1024);
  });
  step();
  release_cached_memory(device_);
  const std::size_t capacity = std::exchange(cuda().capacity, cuda().held);
  const int frees = cuda().frees;
  EXPECT_WEFT_ERROR(step(), OutOfMemory, "no cached memory is given back in a capture");
  EXPECT_EQ(cuda().frees, frees);
  cuda().capacity = capacity;
}

constexpr std::size_t MiB = std::size_t{1} << 20;

// A training step: it frees the last step's gradients, and allocates activations and new gradients.
class CapturedMemory : public CaptureTest {
 protected:
  CapturedMemory() {
    release_cached_memory(device_);
    before_ = cuda().most_held = cuda().held;
  }
  ~CapturedMemory() override { set_memory_limit(device_, 0); }

  void body(std::size_t batch) {
    gradient_ = {};
    const Ptr activations = Storage::allocate(device_, batch * MiB);
    gradient_ = Storage::allocate(device_, 12 * MiB);
  }
  std::size_t most() const { return cuda().most_held - before_; }
  std::size_t held() const { return cuda().held - before_; }

  std::size_t before_ = 0;
  Ptr gradient_;
};

TEST_F(CapturedMemory, IsNoMoreThanThatOfTheBody) {
  graph::Step step = graph::capture(device_, [&] { body(64); });
  step();
  EXPECT_EQ(most(), 76 * MiB);
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(most(), 76 * MiB);
}

// Other owners hold parts of a segment; the rest can be used, and is given back.
TEST_F(CapturedMemory, FillsTheGapsOfTheRest) {
  Ptr state;
  {
    graph::Step step = graph::capture(device_, [&] {
      const Ptr activations = Storage::allocate(device_, 64 * MiB);
      gradient_ = {};
      gradient_ = Storage::allocate(device_, 4 * MiB);
    });
    {
      const Ptr activations = Storage::allocate(device_, 100 * MiB);
    }
    state = Storage::allocate(device_, 12 * MiB);  // a part of the same segment
    for (int i = 0; i < 3; ++i) step();
    EXPECT_EQ(held(), 100 * MiB);
    const Ptr other = Storage::allocate(device_, 4 * MiB);
    EXPECT_EQ(held(), 120 * MiB) << "the gap is the step's";
    step.reset();
    const Ptr rest = Storage::allocate(device_, 64 * MiB);
    EXPECT_EQ(held(), 120 * MiB);
  }
  gradient_ = {};
  state = {};
  release_cached_memory(device_);
  EXPECT_EQ(held(), 0U);
}

TEST_F(CapturedMemory, IsGivenBackByResetAndCapturedAgain) {
  {
    graph::Step step = graph::capture(device_, [&] { body(64); });
    for (int i = 0; i < 3; ++i) step();
    step.reset();
    EXPECT_EQ(held(), 12 * MiB);
    EXPECT_EQ(taken().back(), "destroy");
    body(40);  // a smaller batch
    step();
    EXPECT_EQ(taken(),
              (Log{"begin on own stream", "end on own stream", "launch on default stream"}));
    step.reset();
    step.reset();
    step();
    EXPECT_EQ(most(), 76 * MiB);
  }
  EXPECT_EQ(held(), 12 * MiB);
  gradient_ = {};
  release_cached_memory(device_);
  EXPECT_EQ(held(), 0U);
}

TEST_F(CapturedMemory, ResetBeforeTheCapture) {
  int runs = 0;
  graph::Step step = graph::capture(device_, [&] { ++runs; });
  step.reset();
  step();
  step.reset();
  EXPECT_EQ(taken(), Log{});
  step();
  step();
  EXPECT_EQ(runs, 2);
  graph::Step outer = graph::capture(device_, [&] { step.reset(); });
  outer();
  EXPECT_WEFT_ERROR(outer(), Unsupported, "[graph] cannot be captured");
}

// Whatever steps and other code do in turn, a replay writes only its own memory, and in the end
// everything is given back.
TEST_F(CapturedMemory, IsNobodyElses) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto some = [&] {
    return Storage::allocate(device_, below(2) ? 1 + below(MiB) : MiB + below(4 * MiB));
  };
  // One byte of each unit of the allocator.
  const auto each = [](std::span<unsigned char> bytes, const auto& f) {
    for (std::size_t i = 0; i < bytes.size(); i += 512) f(bytes[i]);
  };
  const auto bytes_of = [](const Ptr& p) {
    return std::span(static_cast<unsigned char*>(p->data()), p->bytes());
  };
  struct Captured {
    std::optional<graph::Step> step;
    std::vector<Ptr> made;                            // by the last run of the body
    std::vector<std::span<unsigned char>> addresses;  // of everything that the capture allocated
  };
  std::array<Captured, 3> steps;
  std::vector<std::pair<Ptr, unsigned char>> others;
  for (int round = 0; round < 500; ++round) {
    Captured& c = steps[below(steps.size())];
    switch (below(8)) {
      case 0: c = {}; break;
      case 1:
        if (c.step) c.step->reset();
        c.addresses.clear();
        break;
      case 2: c.made.clear(); break;
      case 3:
      case 4: {
        if (!c.step) {
          c.step = graph::capture(device_, [&] {
            c.made.clear();
            c.addresses.clear();
            for (std::size_t n = 1 + below(6); n > 0; --n) {
              c.made.push_back(some());
              c.addresses.push_back(bytes_of(c.made.back()));
              if (below(2)) c.made.erase(c.made.begin() + static_cast<long>(below(c.made.size())));
            }
            if (!thread_state().capture) c.addresses.clear();
          });
        }
        (*c.step)();
        for (const auto& address : c.addresses) each(address, [](unsigned char& b) { b = 0; });
        break;
      }
      case 5:
        if (!others.empty()) others.erase(others.begin() + static_cast<long>(below(others.size())));
        break;
      default:
        others.emplace_back(some(), static_cast<unsigned char>(1 + below(255)));
        each(bytes_of(others.back().first), [&](auto& b) { b = others.back().second; });
        if (others.size() > 8) others.erase(others.begin());
    }
    for (const auto& [storage, value] : others) {
      bool same = true;
      each(bytes_of(storage), [&](unsigned char b) { same = same && b == value; });
      ASSERT_TRUE(same) << "round " << round;
    }
  }
  steps = {};
  others.clear();
  release_cached_memory(device_);
  EXPECT_EQ(held(), 0U);
}

// A replay also writes memory of the step that is in no storage.
TEST_F(CapturedMemory, CountsTowardsTheLimit) {
  const std::int64_t others = memory_stats(device_).in_use_bytes;
  set_memory_limit(device_, others + static_cast<std::int64_t>(100 * MiB));
  graph::Step step = graph::capture(device_, [&] { body(64); });
  for (int i = 0; i < 3; ++i) step();
  EXPECT_WEFT_ERROR(Storage::allocate(device_, 32 * MiB), OutOfMemory,
                    "of this 64.00 MiB by captured steps");
  EXPECT_NE(Storage::allocate(device_, 24 * MiB), nullptr) << "just fits";
  EXPECT_EQ(most(), 100 * MiB);
  step.reset();
  EXPECT_NE(Storage::allocate(device_, 32 * MiB), nullptr);
}

// After an error at any point the device is as before, and the next call captures.
TEST_F(CapturedMemory, IsGivenBackAfterAnError) {
  graph::Step step = graph::capture(device_, [&] {
    body(64);
    if (graph::Capture* capture = thread_state().capture) {
      capture->number<std::int64_t>(1, [] { return 1; });
    }
  });
  step();
  for (int k = 1; k <= 3; ++k) {
    taken();
    {
      const FailAllocation fail(device_, k);
      EXPECT_WEFT_ERROR(step(), OutOfMemory, "refused by a test");
    }
    EXPECT_EQ(taken(), (Log{"begin on own stream", "abandon on own stream"}));
    release_cached_memory(device_);
    EXPECT_EQ(held(), gradient_ ? 12 * MiB : 0) << k;
  }
  step();
  step();
  EXPECT_LE(most(), 76 * MiB + 2 * MiB) << "with the number";
}

TEST(WhyNotCapturable, IsTheFirstReason) {
  int ran = 0;
  const auto body = [&ran](const char* op) {
    ++ran;
    if (op) graph::check_not_capturing(op, "it waits for the value");
    graph::check_not_capturing("print", "it does so too");
  };
  EXPECT_EQ(graph::why_not_capturable([&] { body("item"); }), "item: it waits for the value");
  EXPECT_EQ(graph::why_not_capturable([&] { body(nullptr); }), "print: it does so too");
  EXPECT_EQ(graph::why_not_capturable([&] { ++ran; }), "");
  EXPECT_EQ(ran, 3);
  body("item");  // not refused outside
  EXPECT_WEFT_ERROR(graph::why_not_capturable({}), InvalidArgument, "got no function to try");
}

TEST(WhyNotCapturable, AnErrorOfTheBodyEndsIt) {
  EXPECT_WEFT_ERROR(graph::why_not_capturable([] { WEFT_THROW(Shape, "matmul", "no match"); }),
                    Shape, "no match");
  EXPECT_EQ(thread_state().trial, nullptr);
}

TEST(WhyNotCapturable, OtherThreadsNoteNothing) {
  const auto body = [] {
    const ThreadState state = thread_state();
    std::thread([&state] {
      const ThreadStateGuard guard(state);
      graph::check_not_capturing("item", "it waits for the value");
    }).join();
  };
  EXPECT_EQ(graph::why_not_capturable(body), "");
}

TEST_F(CaptureTest, AStreamScopeOfTheBodyIsNoReason) {
  const Stream other = cuda().new_stream(0);
  const auto scope = [&] { const StreamScope scope(other); };
  EXPECT_EQ(graph::why_not_capturable(scope), "");
  EXPECT_EQ(graph::why_not_capturable([&] { set_current_stream(current_stream(device_)); }),
            "set_current_stream: work on another stream would not be part of the step");
}

TEST_F(CaptureTest, OtherDevicesAreRefused) {
  graph::Step step = graph::capture(device_, [&] { Storage::allocate(Device("cuda:1"), 64); });
  step();
  EXPECT_WEFT_ERROR(step(), Unsupported, "memory of cuda:1 in a step of cuda:0");
  graph::Step host = graph::capture(device_, [&] { Storage::allocate(Device("cpu:0"), 64); });
  step = std::move(host);
  step();
  EXPECT_NO_THROW(step());
}

TEST_F(CaptureTest, NothingToCapture) {
  EXPECT_WEFT_ERROR(graph::capture(device_, nullptr), InvalidArgument, "no function");
  EXPECT_WEFT_ERROR(graph::capture(Device("cuda:5"), [] {}), Device, "no such device");
}

}  // namespace
}  // namespace weft
