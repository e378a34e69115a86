#include "weft/core/trace/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/trace/trace_device.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"
#include "weft/tests/core/heap_count.h"

namespace weft {
namespace {

using nlohmann::json;

json written(const Tracer& tracer) {
  const std::string path = ::testing::TempDir() + "trace_test.json";
  tracer.write(path);
  std::ifstream file(path);
  json trace = json::parse(file);
  std::remove(path.c_str());
  return trace;
}

std::vector<json> events(const json& trace, const std::string& phase) {
  std::vector<json> found;
  for (const json& e : trace["traceEvents"])
    if (e["ph"] == phase) found.push_back(e);
  return found;
}

// Indexed by rank and row.
class RowNames : public std::map<std::pair<int, int>, std::string> {
 public:
  const std::string& of(const json& event) const { return at({event["pid"], event["tid"]}); }
};

RowNames row_names(const json& trace) {
  RowNames names;
  for (const json& e : events(trace, "M")) {
    if (e["name"] == "thread_name") names[{e["pid"], e["tid"]}] = e["args"]["name"];
  }
  return names;
}

TEST(Tracer, WritesChromesFormat) {
  Tracer tracer;
  const Scoped step(&ThreadState::step, std::int64_t{7});
  {
    const PathScope layer("layer1"), conv("conv");
    const Scoped traced(&ThreadState::tracer, &tracer);
    tracer.add("op", "conv2d", 1500, 4007);
  }
  tracer.add("loader", "a\"b\\c\n", 2000000, 2000000);
  const json trace = written(tracer);
  const auto spans = events(trace, "X");
  ASSERT_EQ(spans.size(), 2u) << trace;
  EXPECT_EQ(spans[0]["cat"], "op");
  EXPECT_EQ(spans[0]["name"], "conv2d");
  EXPECT_EQ(spans[0]["pid"], 0);
  EXPECT_EQ(spans[0]["ts"], 1.5);
  EXPECT_EQ(spans[0]["dur"], 2.507);
  EXPECT_EQ(spans[0]["args"], json({{"module", "layer1.conv"}, {"step", 7}}));
  EXPECT_EQ(spans[1]["name"], "a\"b\\c\n");
  EXPECT_EQ(spans[1]["ts"], 2000);
  EXPECT_EQ(spans[1]["dur"], 0);
  EXPECT_EQ(spans[1]["args"], json({{"step", 7}}));
  EXPECT_EQ(row_names(trace).of(spans[0]), "main");
  const auto names = events(trace, "M");
  EXPECT_EQ(names[0]["name"], "process_name");
  EXPECT_EQ(names[0]["args"]["name"], "rank 0");
  EXPECT_EQ(names[1]["name"], "process_labels");
  EXPECT_EQ(names[1]["args"]["labels"], "cores: " + std::to_string(core_count()));
}

TEST(Tracer, CountsWhatMemoryIsUsedFor) {
  Tracer tracer;
  tracer.memory_changed(Device(DeviceType::cpu, 1), MemoryOwner::data_set, 1024);
  tracer.memory_changed(Device(DeviceType::cpu, 1), MemoryOwner::gradients, 0);
  const std::vector<json> counters = events(written(tracer), "C");
  ASSERT_EQ(counters.size(), 2U);
  for (const json& counter : counters) {
    EXPECT_EQ(counter["name"], "memory of cpu:1");
    EXPECT_EQ(counter["pid"], 0);
  }
  EXPECT_EQ(counters[0]["args"], json({{"data set", 1024}}));
  EXPECT_EQ(counters[1]["args"], json({{"gradients", 0}}));
  EXPECT_GE(counters[1]["ts"], counters[0]["ts"]);
}

TEST(Tracer, EmptyTraceIsStillJson) {
  Tracer tracer;
  EXPECT_EQ(written(tracer)["traceEvents"], json::array());
  EXPECT_TRUE(tracer.empty());
  tracer.add("op", "x", 1, 2);
  EXPECT_FALSE(tracer.empty());
}

TEST(Tracer, ShowsADelayOnPurpose) {
  ::setenv("WEFT_FAULT", "delay=20ms:rank=0:step=7", 1);  // read once, at the first fault point
  Tracer tracer;
  {
    const Scoped step(&ThreadState::step, std::int64_t{7});
    const PhaseScope phase("forward");
    fault_point();  // not traced
    const Scoped traced(&ThreadState::tracer, &tracer);
    fault_point();
  }
  ::unsetenv("WEFT_FAULT");
  const auto spans = events(written(tracer), "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0]["cat"], "fault");
  EXPECT_EQ(spans[0]["name"], "fault: delay");
  EXPECT_GE(spans[0]["ts"], 0);
  EXPECT_GE(spans[0]["dur"], 20000);
  EXPECT_EQ(spans[0]["args"], json({{"step", 7}}));
}

TEST(Span, RecordsOnlyWhereATracerIsSet) {
  Tracer tracer;
  {
    Span lost("op", "before");
    EXPECT_FALSE(lost.on());
    lost.set_arg("bytes", 1);
    lost.set_shape({1});
  }
  {
    const Scoped scope(&ThreadState::tracer, &tracer);
    const PathScope path("fc");
    const Span outer("op", "outer");
    const Span inner("op", "inner");
  }
  const auto spans = events(written(tracer), "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "inner") << "spans stand in the order they end";
  for (const json& span : spans) EXPECT_EQ(span["args"]["module"], "fc");
}

TEST(Span, SaysWhatItWasGiven) {
  Tracer tracer;
  {
    const Scoped scope(&ThreadState::tracer, &tracer);
    Span span("loader", "fetch", Device("cpu:1"));
    EXPECT_TRUE(span.on());
    span.set_arg("batch", 3);
    span.set_arg("bytes", std::int64_t{1} << 40);
    span.set_arg("third", 0);
    span.set_shape({32, 1, 28, 28});
    Span large("op", "no shape");
    large.set_shape({1, 1, 1, 1, 1, 1, 1});
    large.set_shape({std::int64_t{1} << 40});
  }
  const auto spans = events(written(tracer), "X");
  EXPECT_EQ(spans[0]["args"], json::object());
  EXPECT_EQ(spans[1]["args"], json({{"device", "cpu:1"},
                                    {"shape", "[32,1,28,28]"},
                                    {"batch", 3},
                                    {"bytes", std::int64_t{1} << 40}}));
}

TEST(Tracer, ResultsBelongToTheSpanBeforeThemAndStartArrows) {
  Tracer tracer;
  const Scoped scope(&ThreadState::tracer, &tracer);
  {
    const Span span("op", "relu");
  }
  const std::uint64_t relu = tracer.add_result("relu", Device("cpu"), {2, 3});
  {
    const Span span("op", "exp");
  }
  const std::uint64_t view = tracer.add_result("view", Device("cpu"), {6});
  const std::uint64_t unused = tracer.add_result("view", Device("cpu"), {6});
  EXPECT_EQ(std::set({relu, view, unused}).size(), 3u);
  for (const std::uint64_t flow : {view, relu, relu + 1000}) {
    Span span("backward", "b");
    span.set_flow(flow);
  }
  const json trace = written(tracer);
  const auto spans = events(trace, "X");
  ASSERT_EQ(spans.size(), 7u) << trace;
  EXPECT_EQ(spans[0]["args"], json({{"device", "cpu:0"}, {"shape", "[2,3]"}}));
  EXPECT_EQ(spans[1]["name"], "exp");
  EXPECT_EQ(spans[1]["args"], json::object()) << "of another name than the result behind it";
  EXPECT_EQ(spans[2]["name"], "view");
  EXPECT_EQ(spans[2]["args"]["shape"], "[6]");
  EXPECT_EQ(spans[2]["dur"], 0.001);

  const auto from = events(trace, "s"), to = events(trace, "f");
  ASSERT_EQ(from.size(), 2u) << "an arrow has two ends";
  ASSERT_EQ(to.size(), 2u);
  const auto inside = [](const json& arrow, const json& span) {
    return span["pid"] == arrow["pid"] && span["tid"] == arrow["tid"] &&
           span["ts"] <= arrow["ts"] &&
           arrow["ts"].get<double>() < span["ts"].get<double>() + span["dur"].get<double>();
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(from[i]["id"], to[i]["id"]);
    EXPECT_EQ(to[i]["bp"], "e");
    EXPECT_TRUE(inside(from[i], spans[i == 0 ? 2 : 0])) << trace;
    EXPECT_TRUE(inside(to[i], spans[4 + i])) << trace;
  }
  EXPECT_NE(from[0]["id"], from[1]["id"]);
}

TEST(Tracer, ResultsOfOperationsInPlace) {
  Tracer tracer;
  const Scoped scope(&ThreadState::tracer, &tracer);
  {
    const Span span("op", "relu_");
  }
  tracer.add_result("relu", Device("cpu"), {2});
  {
    const Span span("op", "relu_backward");
  }
  tracer.add_result("relu", Device("cpu"), {3});
  const auto spans = events(written(tracer), "X");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0]["name"], "relu_");
  EXPECT_EQ(spans[0]["args"]["shape"], "[2]");
  EXPECT_EQ(spans[1]["args"], json::object());
  EXPECT_EQ(spans[2]["name"], "relu");
}

TEST(Tracer, ThreadsHaveRowsWithNamesAndRanksProcesses) {
  Tracer tracer;
  const auto work = [&](int rank, const char* name) {
    if (name) set_thread_name(name);
    const Scoped traced(&ThreadState::tracer, &tracer);
    const Scoped as(&ThreadState::rank, rank);
    for (int i = 0; i < 1000; ++i) const Span span("op", "x");
  };
  std::thread a(work, 1, "worker cpu:1"), b(work, 2, nullptr);
  a.join();
  b.join();
  work(1, nullptr);
  set_thread_name("late \"name\", longer than a name of a thread should be");
  work(2, nullptr);
  const json trace = written(tracer);
  const RowNames names = row_names(trace);
  std::map<std::pair<int, std::string>, int> count;
  for (const json& span : events(trace, "X")) ++count[{span["pid"], names.of(span)}];
  ASSERT_EQ(count.size(), 4u) << json(count);
  EXPECT_EQ((count[{1, "worker cpu:1"}]), 1000);
  EXPECT_EQ((count[{1, "late \"name\", longer than a name of a thread sho"}]), 1000);
  EXPECT_EQ((count[{2, "late \"name\", longer than a name of a thread sho"}]), 1000);
  std::set<std::string> processes;
  for (const json& e : events(trace, "M")) {
    if (e["name"] != "process_name") continue;
    EXPECT_TRUE(processes.insert(e["args"]["name"]).second);
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 1", "rank 2"}));
  EXPECT_EQ(trace["otherData"]["spans_lost"], "0");
}

TEST(Tracer, SpansTakeNoHeapWhileTheReserveLasts) {
  Tracer tracer({.reserved_spans = 1000});
  const Scoped traced(&ThreadState::tracer, &tracer);
  const PathScope path("fc");
  {
    const Span first("op", "x");
  }  // the thread gets its log, and the path its node
  const auto before = testing::heap_count();
  for (int i = 0; i < 999; ++i) const Span span("op", "x");
  EXPECT_EQ(testing::heap_count(), before);
  for (int i = 0; i < 1000; ++i) const Span span("op", "x");
  // Nothing is counted under a sanitizer, which has its own ::operator new.
  if (before > 0) {
    EXPECT_GT(testing::heap_count(), before);
  }
  EXPECT_EQ(events(written(tracer), "X").size(), 2000u);
}

// For TSan: only the logs' counters say what may be read.
TEST(Tracer, MayBeWrittenWhileSpansGoOn) {
  Tracer tracer({.reserved_spans = 300});
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      const Scoped traced(&ThreadState::tracer, &tracer);
      const PathScope path("fc");
      for (int i = 0; i < 2000 && !stop; ++i) {
        {
          const Span span("op", "x");
        }
        tracer.add_result("x", Device("cpu"), {1});
      }
    });
  }
  std::size_t last = 0;
  for (int i = 0; i < 5; ++i) {
    const std::size_t now = events(written(tracer), "X").size();
    EXPECT_GE(now, last);
    last = now;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Tracer, OneThreadTellsManyTracersApart) {
  std::vector<std::unique_ptr<Tracer>> tracers;
  for (int i = 0; i < 20; ++i) tracers.push_back(std::make_unique<Tracer>());
  for (int round = 0; round < 3; ++round) {
    for (const auto& tracer : tracers) {
      const Scoped traced(&ThreadState::tracer, tracer.get());
      const Span span("op", "x");
    }
  }
  for (const auto& tracer : tracers) EXPECT_EQ(events(written(*tracer), "X").size(), 3u);
  tracers.clear();
  Tracer fresh;  // possibly at the address of an old one
  {
    const Span span("op", "x");
  }
  EXPECT_EQ(events(written(fresh), "X").size(), 0u);
}

// Two processes of one host: their clocks agree, but their tracers started at different times.
TEST(Tracer, TracesOfRanksMerge) {
  Tracer first;
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  Tracer second;
  EXPECT_GE(second.start().steady_ns - first.start().steady_ns, 2000000);
  EXPECT_GE(second.start().realtime_ns, 1'600'000'000'000'000'000);
  second.set_offset_ns(second.start().steady_ns - first.start().steady_ns);
  const auto span = [](Tracer& tracer, int rank) {
    const Scoped traced(&ThreadState::tracer, &tracer);
    const Scoped as(&ThreadState::rank, rank);
    const Span span("op", "x");
  };
  span(second, 1);
  span(first, 0);
  span(second, 1);
  const json a = written(first), b = written(second);
  const auto of_first = events(a, "X"), of_second = events(b, "X");
  const auto end = [](const json& e) { return e["ts"].get<double>() + e["dur"].get<double>(); };
  EXPECT_LE(end(of_second[0]), of_first[0]["ts"]);
  EXPECT_LE(end(of_first[0]), of_second[1]["ts"]);
  EXPECT_EQ(b["otherData"]["start_steady_ns"], std::to_string(second.start().steady_ns));
  EXPECT_EQ(b["otherData"]["offset_ns"],
            std::to_string(second.start().steady_ns - first.start().steady_ns));

  second.set_offset_ns(-second.now_ns() - 1500);  // earlier than the first one's start
  EXPECT_LT(events(written(second), "X")[0]["ts"], 0);
}

TEST(Tracer, PartsOfOtherRanksAreWrittenToo) {
  const auto span = [](Tracer& tracer, int rank) {
    const Scoped traced(&ThreadState::tracer, &tracer);
    const Scoped as(&ThreadState::rank, rank);
    const Span span("op", "x");
  };
  Tracer first, second, third, nothing;
  span(second, 1);
  span(third, 2);
  span(third, 2);
  second.set_offset_ns(1'000'000'000'000);
  first.merge(second.part());
  first.merge(nothing.part());
  first.merge(third.part());
  const auto merged = written(first);
  EXPECT_EQ(events(merged, "X").size(), 3u) << "also where the first has none of its own";
  span(first, 0);
  const json all = written(first);
  std::multiset<int> ranks;
  for (const json& e : events(all, "X")) {
    ranks.insert(e["pid"].get<int>());
    EXPECT_EQ(e["ts"].get<double>() >= 1e9, e["pid"] == 1) << "with the offset of its own tracer";
    EXPECT_TRUE(row_names(all).contains({e["pid"], e["tid"]}));
  }
  EXPECT_EQ(ranks, (std::multiset{0, 1, 2, 2}));
  EXPECT_EQ(all["otherData"]["spans_lost"], "0");

  std::string lossy = second.part();
  lossy.replace(0, 1, "7");
  first.merge(lossy);
  EXPECT_EQ(written(first)["otherData"]["spans_lost"], "7");
  EXPECT_WEFT_ERROR(first.merge("nothing"), InvalidArgument, "no part of a trace");
  EXPECT_WEFT_ERROR(first.merge(""), InvalidArgument, "no part of a trace");
}

// Events whose clock the test sets: an event that is recorded next passes at `now`.
class TimedRuntime : public testing::FakeRuntime {
 public:
  using FakeRuntime::FakeRuntime;
  std::int64_t now = 0;
  bool refuses = false;
  std::function<void()> waiting;  // runs while a thread waits; if it is set, all have to wait

  std::unique_ptr<Event> new_timing_event(int) override {
    WEFT_CHECK(!refuses, Cuda, "event", "none left");
    return std::make_unique<TimedEvent>(*this);
  }

 private:
  struct TimedEvent final : Event {
    explicit TimedEvent(TimedRuntime& r) : runtime(r) {}
    void record(const Stream&) override {
      at = runtime.now;
      passed = !runtime.waiting;
    }
    void block(const Stream&) override {}
    bool done() const override { return passed; }
    void synchronize() override {
      if (runtime.waiting) runtime.waiting();
      passed = true;
    }
    std::int64_t elapsed_ns(const Event& earlier) const override {
      return at - static_cast<const TimedEvent&>(earlier).at;
    }
    TimedRuntime& runtime;
    std::int64_t at = 0;
    bool passed = true;
  };
};

// In a reduction, devices wait for each other, and their threads give them work.
TEST(Tracer, TheFirstSpanOfADeviceKeepsNoOtherThreadWaiting) {
  static TimedRuntime cuda(DeviceType::cuda, 2);
  register_runtime(DeviceType::cuda, &cuda);
  Tracer tracer({.device_time = true});
  std::thread other;
  std::atomic<bool> started{false};
  bool went_on = false;
  cuda.waiting = [&] {
    if (started.exchange(true)) return;  // the other thread waits for its own device
    std::promise<void> traced_there;
    auto done = traced_there.get_future();
    other = std::thread([&tracer, traced_there = std::move(traced_there)]() mutable {
      const Scoped traced(&ThreadState::tracer, &tracer);
      {
        const Span span("op", "there", Device("cuda:1"));
      }
      traced_there.set_value();
    });
    went_on = done.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  };
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    const Span span("op", "here", Device("cuda:0"));
  }
  other.join();
  cuda.waiting = nullptr;
  EXPECT_TRUE(went_on);
}

TEST(Tracer, WritingEndsWhileDevicesGetMoreWork) {
  static TimedRuntime cuda(DeviceType::cuda);
  register_runtime(DeviceType::cuda, &cuda);
  Tracer tracer({.device_time = true});
  const Scoped traced(&ThreadState::tracer, &tracer);
  const auto work = [] { const Span span("op", "x", Device("cuda:0")); };
  work();
  int more = 0;
  cuda.waiting = [&] {
    if (++more < 1000) work();
  };
  for (int i = 0; i < 3; ++i) work();
  written(tracer);
  cuda.waiting = nullptr;
  EXPECT_LE(more, 3);
}

// From time to time spans get a new reference event, which may be in another stream.
TEST(DeviceTimes, WaitForTheirSpansEndAndForThePointTheyCountFrom) {
  static TimedRuntime cuda(DeviceType::cuda);
  register_runtime(DeviceType::cuda, &cuda);
  std::int64_t now = 0;
  detail::DeviceTimes times([&] { return now; });
  const auto span = [&] {
    TraceRecord record{};
    record.device = Device("cuda:0");
    times.end(times.begin(record.device), record);
  };
  span();
  int waited = 0;
  cuda.waiting = [&] { ++waited; };
  now = 5'000'000'000;
  span();
  int spans = 0;
  times.for_each([&](const TraceRecord&, const Stream&) { ++spans; });
  cuda.waiting = nullptr;
  EXPECT_EQ(spans, 2);
  EXPECT_EQ(waited, 2);
}

TEST(Tracer, DeviceTimeComesFromEvents) {
  static TimedRuntime cuda(DeviceType::cuda, 2);
  register_runtime(DeviceType::cuda, &cuda);
  const Device device("cuda:1");
  Tracer tracer({.device_time = true});
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    {
      const Span anchor("op", "first", device);
    }
    {
      const Span span("op", "conv2d", device);
      cuda.now += 5000;
      const Span inner("op", "matmul", device);
      cuda.now += 3000;
    }
    {
      const Span host("op", "on the host", Device("cpu"));
    }
    const Stream other = cuda.new_stream(1);
    const Stream before = set_current_stream(other);
    {
      const Span span("op", "beside", device);
    }
    set_current_stream(before);
    cuda.refuses = true;  // a trace without these times, and no error
    for (int i = 0; i < 3; ++i) {
      const Span span("op", "more", device);
    }
    cuda.refuses = false;
    // More spans than are kept with their events.
    for (int i = 0; i < 2000; ++i) {
      const Span span("op", "many", device);
    }
  }
  const json trace = written(tracer);
  const RowNames names = row_names(trace);
  std::map<std::string, std::map<std::string, std::vector<json>>> by_row;
  for (const json& span : events(trace, "X")) by_row[names.of(span)][span["name"]].push_back(span);
  auto& work = by_row["work of cuda:1"];
  ASSERT_EQ(by_row.size(), 3u) << trace["traceEvents"].size();
  ASSERT_EQ(work["conv2d"].size(), 1u);
  EXPECT_EQ(work["conv2d"][0]["dur"], 8);
  EXPECT_EQ(work["matmul"][0]["dur"], 3);
  // Exactly 5 us apart; each is a sum of two doubles in microseconds.
  EXPECT_NEAR(work["matmul"][0]["ts"].get<double>() - work["conv2d"][0]["ts"].get<double>(), 5,
              1e-6);
  EXPECT_GE(work["conv2d"][0]["ts"], 0);
  EXPECT_EQ(work["many"].size(), 2000u);
  EXPECT_EQ(work.count("on the host"), 0u);
  EXPECT_EQ(by_row["work of cuda:1, stream 1"]["beside"].size(), 1u);

  Tracer without;
  {
    const Scoped traced(&ThreadState::tracer, &without);
    const Span span("op", "conv2d", device);
  }
  EXPECT_EQ(events(written(without), "X").size(), 1u);
}

TEST(Tracer, BackendsWithoutTimedEventsAreAnError) {
  testing::FakeRuntime plain(DeviceType::cpu);
  EXPECT_WEFT_ERROR(plain.new_timing_event(0), Unsupported, "do not know when they passed");
  EXPECT_WEFT_ERROR(plain.new_event(0)->elapsed_ns(*plain.new_event(0)), Unsupported,
                    "do not know when they passed");
}

// Only prints the cost of a span: machines differ, so nothing is checked.
TEST(Span, Cost) {
  constexpr int kSpans = 10000, kRounds = 20;
  const auto ns_each = [](Tracer* tracer, const auto& body) {
    const Scoped traced(&ThreadState::tracer, tracer);
    const PathScope path("fc");
    double best = HUGE_VAL;  // the fastest round: other programs may slow down the rest
    for (int round = 0; round < kRounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kSpans; ++i) body();
      const std::chrono::duration<double, std::nano> took =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, took.count() / kSpans);
    }
    return best;
  };
  const auto plain = [] { const Span span("op", "x"); };
  // Two records, as for a recorded operation.
  const Dims shape{64, 8, 24, 24};
  const auto full = [&] {
    {
      Span span("op", "x", Device());
      span.set_arg("number", 1);
      span.set_shape(shape);
    }
    if (Tracer* const tracer = thread_state().tracer) tracer->add_result("x", Device(), shape);
  };
  Tracer reserved({.reserved_spans = kSpans * kRounds + 1000}), growing,
      of_both({.reserved_spans = 2 * kSpans * kRounds + 1000});
  const double off = ns_each(nullptr, plain), on = ns_each(&reserved, plain),
               beyond = ns_each(&growing, plain), both = ns_each(&of_both, full);
  std::printf(
      "a span: %.1f ns off, %.1f ns on, %.1f ns when the reserve is used up, %.1f ns with a "
      "device, "
      "an argument, a shape and the record of its result\n",
      off, on, beyond, both);
}

TEST(Tracer, UnwritablePathIsAnIoError) {
  EXPECT_WEFT_ERROR(Tracer().write("/nowhere/trace.json"), Io,
                    "cannot create /nowhere/trace.json.tmp: No such file or directory");
}

}  // namespace
}  // namespace weft
