#include "weft/kernels/plan/choice_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "weft/tests/io/files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::write_file;

const std::string kMachine = "a CPU, 2 cores, oneDNN 2.6.0";

std::vector<Choice> some_choices() {
  return {{"matmul 1,2,3,0a", "plain", 0.125},
          {"matmul 1,2,4,0a", "dnnl.sgemm.rows", 1e-6},
          {"conv2d forward x", "direct", 1234.5}};
}

// A line of the file, with any content.
std::string line(const std::string& body, const std::string& machine = kMachine) {
  return checksum("weft choices 1 " + machine + "\n" + body) + ' ' + body + '\n';
}

std::string first_line() { return "weft choices 1 " + kMachine + "\n"; }

TEST(ChoiceFile, ComesBackTheSame) {
  const std::string text = format_choices(some_choices(), kMachine);
  EXPECT_EQ(text, first_line() + line("matmul 1,2,3,0a plain 0.125") +
                      line("matmul 1,2,4,0a dnnl.sgemm.rows 1e-06") +
                      line("conv2d forward x direct 1234.5"));
  EXPECT_EQ(parse_choices(text, kMachine), some_choices());
  EXPECT_EQ(parse_choices(format_choices({}, kMachine), kMachine), std::vector<Choice>());
}

TEST(ChoiceFile, CutAnywhereItKeepsItsWholeLines) {
  const std::vector<Choice> all = some_choices();
  const std::string text = format_choices(all, kMachine);
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::string cut = text.substr(0, size);
    const auto lines = static_cast<std::size_t>(std::count(cut.begin(), cut.end(), '\n'));
    const std::vector<Choice> left(all.begin(), all.begin() + (lines == 0 ? 0 : lines - 1));
    EXPECT_EQ(parse_choices(cut, kMachine), left) << size;
  }
}

// A flipped bit may turn a letter into a line end or the other way round: then two lines are lost.
TEST(ChoiceFile, AFlippedBitCostsTheLinesItTouches) {
  const std::vector<Choice> all = some_choices();
  const std::string text = format_choices(all, kMachine);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
      const std::vector<Choice> left = parse_choices(flipped, kMachine);
      for (const Choice& c : left) {
        EXPECT_NE(std::find(all.begin(), all.end(), c), all.end()) << at << '.' << bit;
      }
      EXPECT_LT(left.size(), all.size()) << at << '.' << bit;
      if (at >= first_line().size()) {
        EXPECT_GE(left.size(), all.size() - 2) << at << '.' << bit;
      }
    }
  }
}

TEST(ChoiceFile, AnotherMachinesOrVersionsIsEmpty) {
  const std::string text = format_choices(some_choices(), kMachine);
  EXPECT_TRUE(parse_choices(text, "another CPU, 2 cores, oneDNN 2.6.0").empty());
  EXPECT_TRUE(parse_choices(text, "a CPU, 2 cores, oneDNN 2.6.1").empty());
  EXPECT_TRUE(parse_choices(text, kMachine + " too").empty());
  std::string newer = text;
  newer.replace(newer.find("choices 1"), 9, "choices 2");
  EXPECT_TRUE(parse_choices(newer, kMachine).empty());
  // And lines of one file are not valid in another.
  EXPECT_TRUE(parse_choices(first_line() + line("k plain 1", "another CPU"), kMachine).empty());
}

TEST(ChoiceFile, BadLinesWithGoodSumsAreLeftOut) {
  for (const std::string body :
       {"", " ", "plain", "plain 1", " plain 1", "k  1", "k plain ", "k plain 1x", "k plain nan",
        "k plain inf", "k plain -1", "k plain 1e999", "k plain 0x1"}) {
    EXPECT_EQ(parse_choices(first_line() + line(body) + line("k good 1"), kMachine),
              (std::vector<Choice>{{"k", "good", 1}}))
        << body;
  }
  EXPECT_TRUE(
      parse_choices(first_line() + line(std::string(300, 'k') + " plain 1"), kMachine).empty());
}

TEST(ChoiceFile, TheLaterOfTwoHolds) {
  EXPECT_EQ(parse_choices(first_line() + line("k a 1") + line("l a 1") + line("k b 2"), kMachine),
            (std::vector<Choice>{{"k", "b", 2}, {"l", "a", 1}}));
}

TEST(ChoiceFile, WhatWouldNotComeBackIsNotWritten) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<Choice> bad = {{"", "a", 1},
                                   {"k", "", 1},
                                   {"k\nl", "a", 1},
                                   {"k", "a\n", 1},
                                   {"k", "a b", 1},
                                   {"k", "a", inf},
                                   {"k", "a", -1},
                                   {"k", "a", std::nan("")},
                                   {std::string(240, 'k'), "a", 1}};
  EXPECT_EQ(format_choices(bad, kMachine), first_line());
}

TEST(ChoiceFile, KeepsTheNewestAndCanReadTheLargest) {
  std::vector<Choice> choices;
  for (std::size_t i = 0; i < kMostChoices + 10; ++i) {
    std::string key = std::to_string(i);
    key.resize(kMostChoiceLine - 17 - 4, '.');  // "SUM KEY a 1"
    choices.push_back({key, "a", 1});
  }
  const std::string machine(1024, 'm');
  const std::string text = format_choices(choices, machine);
  EXPECT_LE(text.size(), kMostChoiceBytes);
  EXPECT_EQ(parse_choices(text, machine), std::vector<Choice>(choices.begin() + 10, choices.end()));
  EXPECT_TRUE(parse_choices(text + std::string(kMostChoiceBytes, 'x'), machine).empty());
}

class ChoiceCacheTest : public ::testing::Test {
 protected:
  /// What a new process would find.
  std::optional<std::string> found(const std::string& key, const std::string& machine = kMachine) {
    const auto choice = ChoiceCache(root).find(machine, key);
    return choice ? std::optional(choice->name) : std::nullopt;
  }
  void remember(const std::string& key, const std::string& name) {
    ChoiceCache(root).add(kMachine, {key, name, 1});
  }
  static int files(const std::string& in) {
    return static_cast<int>(std::distance(fs::directory_iterator(in), {}));
  }

  testing::TempFolder folder;
  const std::string root = folder.path("made/on/demand");
  const std::string file = ChoiceCache(root).path(kMachine);
};

TEST_F(ChoiceCacheTest, RemembersFromOneProcessToTheNext) {
  EXPECT_EQ(found("k"), std::nullopt);
  EXPECT_FALSE(fs::exists(root));  // reading makes no folder
  remember("k", "plain");
  EXPECT_EQ(found("k"), "plain");
  EXPECT_EQ(found("l"), std::nullopt);
  EXPECT_EQ(found("k", "another CPU"), std::nullopt);
  remember("l", "direct");
  remember("k", "other");  // timed again
  EXPECT_EQ(found("k"), "other");
  EXPECT_EQ(found("l"), "direct");
  EXPECT_EQ(files(root), 1);
}

TEST_F(ChoiceCacheTest, AMachineHasAFileOfItsOwn) {
  {
    ChoiceCache cache(root);
    cache.add(kMachine, {"k", "plain", 1});
    cache.add("another CPU", {"k", "direct", 1});
  }
  EXPECT_EQ(files(root), 2);
  EXPECT_EQ(found("k"), "plain");
  EXPECT_EQ(found("k", "another CPU"), "direct");
}

TEST_F(ChoiceCacheTest, WithoutAFolderItRemembersByItself) {
  const std::string before = fs::current_path();
  fs::current_path(folder.root());
  {
    ChoiceCache cache("");
    cache.add(kMachine, {"k", "plain", 1});
    EXPECT_TRUE(cache.find(kMachine, "k"));
    EXPECT_TRUE(cache.save());
    EXPECT_EQ(ChoiceCache("").find(kMachine, "k"), std::nullopt);
  }
  fs::current_path(before);
  EXPECT_EQ(folder.files(), 0);
}

TEST_F(ChoiceCacheTest, ABadFileIsIgnoredAndReplaced) {
  remember("k", "plain");
  const std::string good = read_file(file);
  for (const std::string& bad :
       {std::string(), std::string("\0\xff\n", 3), good.substr(0, 40),
        std::string("weft choices 1 another CPU\n") + good, good.substr(0, good.size() - 1),
        good + std::string(kMostChoiceBytes, ' ')}) {
    write_file(file, bad);
    EXPECT_EQ(found("k"), std::nullopt);
    remember("l", "direct");
    EXPECT_EQ(found("l"), "direct");
    EXPECT_EQ(read_file(file), first_line() + line("l direct 1"));
  }
  fs::resize_file(file, std::uintmax_t{1} << 40);  // sparse
  {
    const testing::CheapScope cheap;
    EXPECT_EQ(found("l"), std::nullopt);
  }
  remember("l", "direct");
  EXPECT_EQ(found("l"), "direct");
}

TEST_F(ChoiceCacheTest, WhatIsNoFileIsLeftAlone) {
  fs::create_directories(file);
  remember("k", "plain");
  EXPECT_EQ(found("k"), std::nullopt);
  EXPECT_TRUE(fs::is_directory(file));
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // without a writer
  remember("k", "plain");
  EXPECT_EQ(found("k"), std::nullopt);
  EXPECT_TRUE(fs::is_fifo(file));
}

// A folder below a regular file cannot exist, not even for root.
TEST_F(ChoiceCacheTest, AFolderThatCannotBeIsForgotten) {
  write_file(folder.path("made"), "a file");
  ChoiceCache cache(root);
  cache.add(kMachine, {"k", "plain", 1});
  EXPECT_FALSE(cache.save());
  EXPECT_EQ(cache.find(kMachine, "k")->name, "plain");
  // When it can be made, nothing has been lost.
  fs::remove(folder.path("made"));
  EXPECT_TRUE(cache.save());
  EXPECT_EQ(found("k"), "plain");
}

TEST_F(ChoiceCacheTest, WaitsForTheOtherWriter) {
  fs::create_directories(root);
  std::optional<ChoiceCache> cache(root);
  cache->add(kMachine, {"k", "plain", 1});
  {
    const int fd = ::open((file + ".tmp").c_str(), O_WRONLY | O_CREAT, 0600);
    ASSERT_EQ(::flock(fd, LOCK_EX), 0);
    EXPECT_FALSE(cache->save());
    ::close(fd);
  }
  cache.reset();
  EXPECT_EQ(found("k"), "plain");
}

TEST_F(ChoiceCacheTest, IsSavedWhenATurnEnds) {
  ChoiceCache cache(root);
  cache.add(kMachine, {"a", "plain", 1});
  EXPECT_FALSE(fs::exists(root));
  {
    const ChoiceCache::Turn turn(&cache, kMachine);
    cache.add(kMachine, {"b", "plain", 1});
    EXPECT_EQ(found("b"), std::nullopt);
  }
  EXPECT_EQ(found("a"), "plain");
  EXPECT_EQ(found("b"), "plain");
  EXPECT_EQ(files(root), 2);  // and the lock
}

TEST_F(ChoiceCacheTest, ATurnKnowsWhatTheLastOneFound) {
  ChoiceCache one(root), two(root);
  EXPECT_EQ(one.find(kMachine, "k"), std::nullopt);
  EXPECT_EQ(two.find(kMachine, "k"), std::nullopt);
  one.add(kMachine, {"mine", "plain", 1});
  {
    const ChoiceCache::Turn turn(&two, kMachine);
    two.add(kMachine, {"k", "direct", 1});
    two.add(kMachine, {"mine", "direct", 1});
  }
  const ChoiceCache::Turn turn(&one, kMachine);
  EXPECT_EQ(one.find(kMachine, "k")->name, "direct");
  EXPECT_EQ(one.find(kMachine, "mine")->name, "plain");
}

TEST_F(ChoiceCacheTest, ATurnWaitsSoLongAndNoLonger) {
  ChoiceCache one(root), two(root);
  std::optional<ChoiceCache::Turn> held(std::in_place, &one, kMachine);
  const ChoiceCache::Turn another(&one, "another CPU");  // its turns are separate
  {
    const ChoiceCache::Turn turn(&two, kMachine, std::chrono::milliseconds(20));
    two.add(kMachine, {"k", "plain", 1});
  }
  EXPECT_EQ(found("k"), std::nullopt);  // nothing is written without the lock
  std::atomic<bool> over = false;
  std::thread waiting([&] {
    const ChoiceCache::Turn turn(&two, kMachine);
    EXPECT_TRUE(over);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  over = true;
  held.reset();
  waiting.join();
  EXPECT_EQ(found("k"), "plain");
}

// If several processes need the same problem, one of them times it.
TEST_F(ChoiceCacheTest, OfManyProcessesOneTimes) {
  constexpr int kProcesses = 4, kProblems = 6;
  const std::string timed = folder.path("timed");
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    {
      ChoiceCache cache(root);
      for (int i = 0; i < kProblems; ++i) {
        const std::string key = std::to_string(i);
        if (cache.find(kMachine, key)) continue;
        const ChoiceCache::Turn turn(&cache, kMachine);
        if (cache.find(kMachine, key)) continue;
        std::ofstream(timed, std::ios::app) << key;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        cache.add(kMachine, {key, "plain", 1});
      }
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(read_file(timed), "012345");
}

TEST_F(ChoiceCacheTest, WithoutALockTurnsPassAtOnce) {
  const ChoiceCache::Turn none(nullptr, kMachine);
  ChoiceCache off("");
  const ChoiceCache::Turn first(&off, kMachine), second(&off, kMachine);
  write_file(folder.path("made"), "a file");  // at the path of the folder
  ChoiceCache cache(root);
  const ChoiceCache::Turn third(&cache, kMachine), fourth(&cache, kMachine);
  cache.add(kMachine, {"k", "plain", 1});
  EXPECT_TRUE(cache.find(kMachine, "k"));
}

TEST_F(ChoiceCacheTest, ManyWritersLoseNothing) {
  // The lock belongs to the open file, so two caches of one process act like two processes.
  constexpr int kWriters = 4, kEach = 25;
  const auto key = [](int writer, int i) {
    return std::to_string(writer) + '-' + std::to_string(i);
  };
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      ChoiceCache cache(root);
      for (int i = 0; i < kEach; ++i) {
        cache.add(kMachine, {key(writer, i), "plain", 1});
        while (!cache.save()) std::this_thread::yield();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(parse_choices(read_file(file), kMachine).size(), std::size_t{kWriters * kEach});
  EXPECT_EQ(files(root), 1);
}

TEST_F(ChoiceCacheTest, OneCacheServesManyThreads) {
  ChoiceCache cache(root);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        cache.add(kMachine, {std::to_string(t * 25 + i), "plain", 1});
        EXPECT_TRUE(cache.find(kMachine, std::to_string(t * 25)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(cache.save());
  EXPECT_EQ(parse_choices(read_file(file), kMachine).size(), 100u);
}

TEST(DefaultChoiceFolder, FollowsTheEnvironment) {
  const auto folder = [](const char* weft, const char* xdg, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value ? ::setenv(name, value, 1) : ::unsetenv(name);
    };
    set("WEFT_CACHE", weft);
    set("XDG_CACHE_HOME", xdg);
    set("HOME", home);
    return default_choice_folder();
  };
  EXPECT_EQ(folder(nullptr, nullptr, "/home/me"), "/home/me/.cache/weft");
  EXPECT_EQ(folder(nullptr, "/cache", "/home/me"), "/cache/weft");
  EXPECT_EQ(folder(nullptr, "cache", "/home/me"), "/home/me/.cache/weft");
  EXPECT_EQ(folder(nullptr, "", nullptr), "");
  EXPECT_EQ(folder(nullptr, "", ""), "");
  EXPECT_EQ(folder("/mine", "/cache", "/home/me"), "/mine");
  EXPECT_EQ(folder("off", "/cache", "/home/me"), "");
  EXPECT_EQ(folder("", "/cache", "/home/me"), "");
}

}  // namespace
}  // namespace weft
