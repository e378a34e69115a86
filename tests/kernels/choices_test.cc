// Timed choices that outlive the process, and their log lines.
#include "weft/core/runtime/log.h"
#include "weft/kernels/plan/choice_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <limits>
#include <map>
#include <new>
#include <thread>

#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/matmul/matmul.h"
#include "weft/kernels/plan/choices.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::cpu {
namespace {

class Lines final : public LogSink {
 public:
  void write(Level, std::string_view message) override { lines.emplace_back(message); }
  std::vector<std::string> lines;
};

View view(Shape shape, DType dtype = DType::f32) {
  return View{nullptr, dtype, shape, contiguous_strides(shape)};
}

MatmulArgs product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::f32) {
  return {view({1, m, k}, dtype), view({1, k, n}, dtype), view({1, m, n}, dtype), {}};
}

class RememberedChoices : public ::testing::Test {
 protected:
  /// Makes one choice like a new process; returns its log line.
  template <class F>
  std::string line_of(F&& f) {
    ChoiceCache cache(root);
    Lines log;
    const Scoped remember(&ThreadState::choices, &cache);
    const Scoped<LogSink*> logging(&ThreadState::log, &log);
    const Scoped explain(&ThreadState::log_perf, true);
    const Scoped timed(&ThreadState::benchmark, true);
    name = f()->name;
    EXPECT_EQ(log.lines.size(), 1u);
    return log.lines.empty() ? "" : log.lines.front();
  }
  std::string choose(const MatmulArgs& args) {
    return line_of([&] { return choose_matmul(args); });
  }
  /// Replaces the name in the only line of the only file.
  void plant(const std::string& winner) {
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (entry.path().extension() == ".txt") path = entry.path();  // and not the lock
    }
    const std::string text = testing::read_file(path);
    const std::size_t end = text.find('\n');
    const std::string machine = text.substr(0, end).substr(std::string("weft choices 1 ").size());
    std::vector<Choice> choices = parse_choices(text, machine);
    ASSERT_EQ(choices.size(), 1u);
    choices[0].name = winner;
    testing::write_file(path, format_choices(choices, machine));
  }
  static bool ends_with(const std::string& text, const std::string& end) {
    return text.ends_with(end) || (ADD_FAILURE() << text << "\ndoes not end with " << end, false);
  }

  testing::TempFolder folder;
  const std::string root = folder.path("cache");
  std::string name;  ///< of the last choice
};

TEST_F(RememberedChoices, ASecondProcessTimesNothing) {
  std::string line = choose(product(32, 16, 64));
  const std::string first = name;
  EXPECT_TRUE(ends_with(line, "-> " + first + " (timed)"));
  line = choose(product(32, 16, 64));
  EXPECT_TRUE(ends_with(line, "-> " + first + " (remembered)"));
  EXPECT_EQ(name, first);
  EXPECT_TRUE(ends_with(choose(product(32, 16, 65)), "(timed)"));

  Conv2dArgs conv;
  conv.x = view({2, 3, 8, 8});
  conv.w = view({4, 3, 3, 3});
  conv.y = view({2, 4, 6, 6});
  for (const ConvPass pass :
       {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
    conv.pass = pass;
    const auto chosen = [&] { return choose_conv(conv); };
    EXPECT_TRUE(ends_with(line_of(chosen), "(timed)"));
    const std::string fastest = name;
    EXPECT_TRUE(ends_with(line_of(chosen), "(remembered)"));
    EXPECT_EQ(name, fastest);
  }
}

// Each thread has its own cache, like a rank.
TEST_F(RememberedChoices, OfManyRanksOneTimesAndTheOthersWait) {
  constexpr int kRanks = 3;
  std::vector<std::string> lines(kRanks);
  std::barrier start(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (std::string& line : lines) {
      ranks.emplace_back([&] {
        ChoiceCache cache(root);
        Lines log;
        const Scoped remember(&ThreadState::choices, &cache);
        const Scoped<LogSink*> logging(&ThreadState::log, &log);
        const Scoped explain(&ThreadState::log_perf, true);
        const Scoped threads(&ThreadState::num_threads, 1);
        const Scoped timed(&ThreadState::benchmark, true);
        start.arrive_and_wait();
        choose_matmul(product(96, 80, 64));
        line = log.lines.at(0);
      });
    }
  }
  const auto timed = [](const std::string& line) { return line.ends_with("(timed)"); };
  EXPECT_EQ(std::ranges::count_if(lines, timed), 1);
  for (const std::string& line : lines) {
    EXPECT_TRUE(timed(line) || line.ends_with("(remembered)")) << line;
    const auto winner = [](const std::string& text) {
      return text.substr(text.find("-> "), text.rfind(" (") - text.find("-> "));
    };
    EXPECT_EQ(winner(line), winner(lines.front()));
  }
}

// Even the slowest one: this proves that times are not compared again.
TEST_F(RememberedChoices, WhatIsRememberedIsTaken) {
  const MatmulArgs args = product(32, 16, 64);
  choose(args);
  int built = 0;
  for (const auto& candidate : matmul_candidates(args)) {
    plant(candidate.name);
    const std::string line = choose(args);
    if (candidate.make()) {
      EXPECT_EQ(name, candidate.name);
      EXPECT_TRUE(ends_with(line, "(remembered)"));
      ++built;
    } else {  // the library has changed, or the file was edited
      EXPECT_TRUE(ends_with(line, "(timed)"));
    }
  }
  EXPECT_GT(built, 1);
  plant("nobody");
  EXPECT_TRUE(ends_with(choose(args), "(timed)"));
  EXPECT_TRUE(ends_with(choose(args), "(remembered)"));
}

TEST_F(RememberedChoices, ATeamOfAnotherSizeChoosesForItself) {
  for (const int team : {1, 2, 3}) {  // 2 and 3 have the same candidates
    const Scoped threads(&ThreadState::num_threads, team);
    const std::string of_team = "f32, team of " + std::to_string(team) + ": ";
    const std::string line = choose(product(32, 16, 64));
    EXPECT_TRUE(ends_with(line, "(timed)"));
    EXPECT_NE(line.find(of_team), std::string::npos) << line;
    EXPECT_TRUE(ends_with(choose(product(32, 16, 64)), "(remembered)"));
  }
}

TEST_F(RememberedChoices, DeterministicNeitherReadsNorWrites) {
  const MatmulArgs args = product(32, 16, 64);
  const std::vector<Candidate<MatmulPlan>> candidates = matmul_candidates(args);
  const Scoped fixed(&ThreadState::deterministic, true);
  EXPECT_TRUE(ends_with(choose(args), "-> " + candidates[0].name + " (deterministic rule)"));
  EXPECT_FALSE(std::filesystem::exists(root));
  {
    const Scoped timed(&ThreadState::deterministic, false);
    choose(args);
  }
  plant(candidates.back().name);
  choose(args);
  EXPECT_EQ(name, candidates[0].name);
}

TEST_F(RememberedChoices, TheLogSaysWhatWasTriedAndWhy) {
  const PathScope encoder("encoder"), fc("fc");
  const std::string line = choose(product(32, 16, 64));
  EXPECT_TRUE(line.starts_with("perf: matmul a [1,32,64] strides [0,64,1], b [1,64,16] strides "))
      << line;
  EXPECT_TRUE(ends_with(line, " (timed) in encoder.fc"));
  for (const auto& candidate : matmul_candidates(product(32, 16, 64))) {
    // "NAME 0.0123 ms" if it was timed, "NAME," if not.
    bool timed = false;
    for (const char digit : std::string("0123456789")) {
      timed |= line.find(candidate.name + ' ' + digit) != std::string::npos;
    }
    EXPECT_EQ(timed, candidate.make() != nullptr) << candidate.name << " in " << line;
  }
  EXPECT_TRUE(ends_with(choose(product(32, 16, 64, DType::f64)),
                        "team of " + std::to_string(num_threads()) +
                            ": plain -> plain (only candidate) in encoder.fc"));
  EXPECT_TRUE(
      ends_with(choose(product(40000, 16, 20000)), " (too big to time: 3055 MiB) in encoder.fc"));
}

TEST_F(RememberedChoices, UnaskedItNeitherTalksNorWrites) {
  Lines log;
  const Scoped<LogSink*> logging(&ThreadState::log, &log);
  EXPECT_TRUE(choose_matmul(product(32, 16, 64)));
  EXPECT_TRUE(log.lines.empty());
}

// Choices that this process remembers if the program has set no cache. Uses sizes of no other test,
// since they cannot be forgotten.
class Choosing : public ::testing::Test {
 protected:
  std::string choose(const MatmulArgs& args) {
    log.lines.clear();
    name = choose_matmul(args)->name;
    return log.lines.at(0);
  }
  std::string name;
  Lines log;
  const Scoped<LogSink*> logging{&ThreadState::log, &log};
  const Scoped<bool> explain{&ThreadState::log_perf, true};
  const Scoped<int> threads{&ThreadState::num_threads, 1};
};

TEST_F(Choosing, ARuleAtOnceUnlessAskedToTime) {
  const MatmulArgs args = product(50, 21, 20);
  const std::string first = matmul_candidates(args)[0].name;
  EXPECT_TRUE(choose(args).ends_with("-> " + first + " (rule)")) << log.lines[0];
  set_benchmark(true);
  EXPECT_TRUE(choose(args).ends_with("(timed)")) << log.lines[0];
  set_benchmark(false);
  EXPECT_TRUE(choose(args).ends_with("-> " + first + " (rule)")) << log.lines[0];
}

TEST_F(Choosing, AChoiceOutlivesItsPlan) {
  const Scoped timing(&ThreadState::benchmark, true);
  const MatmulArgs args = product(51, 22, 20);
  EXPECT_TRUE(choose(args).ends_with("(timed)")) << log.lines[0];
  const std::string winner = name;
  EXPECT_TRUE(choose(args).ends_with("-> " + winner + " (remembered)")) << log.lines[0];
}

TEST_F(Choosing, TheFirstFewOfAFamilyAreTimedForTheRest) {
  const Scoped timing(&ThreadState::benchmark, true);
  std::map<std::string, int> won;
  for (int i = 0; i < kTimedOfFamily; ++i) {
    EXPECT_TRUE(choose(product(520 + i, 70, 20)).ends_with("(timed)")) << log.lines[0];
    ++won[name];
  }
  EXPECT_TRUE(choose(product(600, 70, 20)).ends_with(" (as similar shapes)")) << log.lines[0];
  for (const auto& [other, times] : won) EXPECT_LE(times, won[name]);
  const Scoped fixed(&ThreadState::deterministic, true);
  EXPECT_TRUE(choose(product(600, 70, 20)).ends_with(" (deterministic rule)")) << log.lines[0];
}

TEST_F(Choosing, WhatIsTimedAndWhatIsNotAreDifferentPlans) {
  const MatmulKernels kernels = cpu::matmul_kernels();
  const MatmulArgs args = product(53, 24, 20);
  const void* const by_rule = kernels.plan(args).get();
  EXPECT_EQ(kernels.plan(args).get(), by_rule);
  const Scoped timing(&ThreadState::benchmark, true);
  EXPECT_NE(kernels.plan(args).get(), by_rule);
}

// A team costs more than it gains, above all if others need its cores.
TEST(Teams, LittleWorkIsForOneThread) {
  const Scoped threads(&ThreadState::num_threads, 3);
  const auto team_of = [](const MatmulArgs& args) {
    return static_cast<const MatmulPlan&>(*cpu::matmul_kernels().plan(args)).team;
  };
  EXPECT_EQ(team_of(product(1, 128, 784)), 1);
  EXPECT_EQ(team_of(product(1, 1024, 1023)), 1);
  EXPECT_EQ(team_of(product(1, 1024, 1024)), 3);
  EXPECT_EQ(team_of(product(0, 1024, 1024)), 1);
  Conv2dArgs conv;
  conv.x = view({1, 1, 28, 28});
  conv.w = view({8, 1, 3, 3});
  conv.y = view({1, 8, 26, 26});
  const auto conv_team = [&] {
    return static_cast<const ConvPlan&>(*cpu::conv_kernels().plan(conv)).team;
  };
  EXPECT_EQ(conv_team(), 1);
  conv.x = view({32, 1, 28, 28});
  conv.y = view({32, 8, 26, 26});
  EXPECT_EQ(conv_team(), 3);
}

// At the same time they would measure each other. A turn that does not wait is nearly always
// detected.
TEST(TimingTurn, TeamsOfAllCoresTakeTurns) {
  std::atomic<bool> over = false;
  std::thread other;
  {
    const TimingTurn turn(core_count() + 1);
    other = std::thread([&] {
      const TimingTurn next(core_count());
      EXPECT_TRUE(over);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
  }
  other.join();
}

TEST(TimingTurn, TeamsThatFitShareTheCores) {
  if (core_count() < 2) GTEST_SKIP() << "one core";
  const TimingTurn turn(1);
  std::thread([] { const TimingTurn beside(core_count() - 1); }).join();
}

// A build with another list of candidates chooses again.
TEST(ChoiceProblem, TheKeySaysWhatDecides) {
  const ChoiceProblem problem{"conv2d", "text", "machine", {1, 23}, {}, {"direct", "winograd"}};
  ChoiceProblem same = problem;
  same.text = "the same in other words";
  EXPECT_EQ(same.key(), problem.key());
  const ChoiceProblem others[] = {
      {"matmul", "text", "machine", {1, 23}, {}, {"direct", "winograd"}},
      {"conv2d", "text", "machine", {1, 2}, {}, {"direct", "winograd"}},
      {"conv2d", "text", "machine", {12, 3}, {}, {"direct", "winograd"}},
      {"conv2d", "text", "machine", {1, 23}, {}, {"direct", "winograd", "third"}},
      {"conv2d", "text", "machine", {1, 23}, {}, {"direct", "winograd.2"}},
  };
  for (const ChoiceProblem& other : others) EXPECT_NE(other.key(), problem.key());
}

// Other ranks keep waiting for a rank that measures.
TEST(ChoiceProblem, WhoTimesSaysThatItIsBusy) {
  const ChoiceProblem problem{"conv2d", "text", "machine", {1, 23}, {1}, {"direct", "winograd"}};
  const Scoped timed(&ThreadState::benchmark, true);
  const char* busy = nullptr;
  weft::choose(problem, "", [&](auto&) { busy = busy_with(thread_state().rank); });
  EXPECT_STREQ(busy, "kernel timing");
  EXPECT_EQ(busy_with(thread_state().rank), nullptr);
}

// Candidates that are names alone.
class NamesAlone : public ::testing::Test {
 protected:
  /// What is chosen if those with a positive time can be built, and how long they take.
  std::string choose(std::vector<double> times, double lead = 1, std::string_view why_not = "") {
    const Scoped remember(&ThreadState::choices, &cache);
    const Scoped timed(&ThreadState::benchmark, true);
    const auto build = [&](std::size_t i) { return times[i] > 0; };
    const auto time = [&](std::vector<Measured>& measured) {
      ++timings;
      for (std::size_t i = 0; i < times.size(); ++i) {
        if (build(i)) measured.push_back({problem.candidates[i], times[i]});
      }
      if (out_of_memory) throw std::bad_alloc();
    };
    return problem.candidates[weft::choose(problem, why_not, time, lead, build)];
  }

  testing::TempFolder folder;
  ChoiceCache cache{folder.path("cache")};
  ChoiceProblem problem{"conv2d", "text", "machine", {1, 23}, {2}, {"direct", "gemm", "winograd"}};
  int timings = 0;
  bool out_of_memory = false;
};

TEST_F(NamesAlone, ANameThatIsNoCandidateIsNotTaken) {
  EXPECT_EQ(choose({3, 2, 1}), "winograd");
  EXPECT_EQ(choose({1, 2, 3}), "winograd") << "remembered";
  EXPECT_EQ(timings, 1);
  cache.add("machine", {problem.key(), "nobody", 1});
  EXPECT_EQ(choose({1, 2, 3}), "direct");
  EXPECT_EQ(timings, 2);
}

TEST_F(NamesAlone, TimingIsASpanAndRememberingIsNone) {
  const auto spans = [&](const std::vector<double>& times) {
    Tracer tracer;
    {
      const Scoped traced(&ThreadState::tracer, &tracer);
      choose(times);
    }
    tracer.write(folder.path("trace.json"));
    const std::string trace = testing::read_file(folder.path("trace.json"));
    return trace.find(R"("name":"kernel timing")") != std::string::npos;
  };
  EXPECT_TRUE(spans({3, 2, 1}));
  EXPECT_FALSE(spans({3, 2, 1}));
}

// Another rank may need the turn for what this one waits for.
TEST_F(NamesAlone, WhatComesBeforeATimingLeavesTheTurnToOthers) {
  int waits = 0;
  problem.before = [&] {
    ++waits;
    ChoiceCache of_another(folder.path("cache"));
    const ChoiceCache::Turn turn(&of_another, "machine", std::chrono::milliseconds(100));
    of_another.add("machine", {problem.key(), "gemm", 1});
  };
  EXPECT_EQ(choose({3, 2, 1}), "gemm") << "which the other one has found meanwhile";
  EXPECT_EQ(timings, 0);
  EXPECT_EQ(choose({3, 2, 1}), "gemm") << "remembered";
  EXPECT_EQ(waits, 1);
}

TEST_F(NamesAlone, ALaterOneNeedsALead) {
  EXPECT_EQ(choose({1, 0.98, 0.975}, 0.97), "direct");
  problem.words = {2};
  EXPECT_EQ(choose({1, 0.98, 0.975}), "winograd");
  problem.words = {3};
  EXPECT_EQ(choose({1, 0.96, 0.94}, 0.97), "gemm");
}

TEST_F(NamesAlone, WhatCannotBeBuiltIsSkipped) {
  EXPECT_EQ(choose({0, 2, 1}, 1, "rule"), "gemm");
  EXPECT_EQ(timings, 0);
  cache.add("machine", {problem.key(), "direct", 1});
  EXPECT_EQ(choose({0, 2, 1}), "winograd") << "the library has changed";
  EXPECT_WEFT_ERROR(choose({0, 0, 0}), Internal, "[conv2d] no kernel takes these shapes");
}

// Else a family would take for ever what failed a few times.
TEST_F(NamesAlone, WhatFailsHasNotWon) {
  constexpr double kFails = std::numeric_limits<double>::infinity();
  problem.family = {77};
  for (int i = 0; i <= kTimedOfFamily; ++i) {
    problem.words = {77, i};
    EXPECT_EQ(choose({kFails, 0, kFails}), "direct");
    EXPECT_EQ(timings, i + 1);
  }
  EXPECT_EQ(choose({kFails, 2, 1}), "winograd");
}

TEST_F(NamesAlone, WithoutMemoryToTimeTheFirstIsTaken) {
  out_of_memory = true;
  EXPECT_EQ(choose({0, 2, 1}), "gemm");
  EXPECT_EQ(choose({0, 2, 1}), "gemm");
  EXPECT_EQ(timings, 2) << "remembered without a winner";
}

}  // namespace
}  // namespace weft::cpu
