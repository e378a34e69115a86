// What a process leaves in its black box, also when it is killed in the middle of a record. The
// processes are forks of this one. WEFT_KILLS=N: kills N of them.
#include "weft/core/runtime/black_box.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/child.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

/// A box in memory that forks share.
class SharedBox {
 public:
  SharedBox()
      : memory_(::mmap(nullptr, sizeof(BlackBox), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~SharedBox() { ::munmap(memory_, sizeof(BlackBox)); }
  SharedBox(const SharedBox&) = delete;
  SharedBox& operator=(const SharedBox&) = delete;

  BlackBox& operator*() const { return *static_cast<BlackBox*>(memory_); }
  BlackBox* operator->() const { return static_cast<BlackBox*>(memory_); }

 private:
  void* memory_;
};

// --- Records -------------------------------------------------------------------------------------

TEST(BlackBox, HoldsNothingAtFirst) {
  const SharedBox box;
  EXPECT_TRUE(box->operations().empty());
  EXPECT_EQ(box->text(0), "");
  EXPECT_EQ(box->text(1), "");
  EXPECT_EQ(box->text(BlackBox::kTexts + 1), "");
}

TEST(BlackBox, ReturnsWhatWasRecorded) {
  const SharedBox box;
  box->set_phase(box->id_of("backward"));
  const std::int64_t before = steady_ns(Clock::now());
  const std::uint64_t done = box->begin({.number = 17,
                                         .begin_ns = before,
                                         .count = 10,
                                         .bytes = 40,
                                         .step = 5,
                                         .name = box->id_of("all_reduce"),
                                         .group = box->id_of("ranks 0-3"),
                                         .tag = box->id_of("bucket 2"),
                                         .module = box->id_of("layer1.0"),
                                         .rank = 3,
                                         .dtype = static_cast<std::int32_t>(DType::f32)});
  const std::uint64_t failed = box->begin({.number = 2, .begin_ns = before + 1, .peer = 1});
  box->begin({.number = 3, .begin_ns = before + 2});
  box->end(failed, true);
  box->end(done, false);
  const std::vector<BlackBox::Found> found = box->operations();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].number, 17);
  EXPECT_EQ(found[0].begin_ns, before);
  EXPECT_GE(found[0].end_ns, before);
  EXPECT_LE(found[0].end_ns, steady_ns(Clock::now()));
  EXPECT_FALSE(found[0].failed);
  EXPECT_EQ(found[0].count, 10);
  EXPECT_EQ(found[0].bytes, 40);
  EXPECT_EQ(found[0].step, 5);
  EXPECT_EQ(box->text(found[0].name), "all_reduce");
  EXPECT_EQ(box->text(found[0].group), "ranks 0-3");
  EXPECT_EQ(box->text(found[0].tag), "bucket 2");
  EXPECT_EQ(box->text(found[0].module), "layer1.0");
  EXPECT_EQ(box->text(found[0].phase), "backward");
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_EQ(found[0].peer, -1);
  EXPECT_EQ(found[0].dtype, static_cast<std::int32_t>(DType::f32));
  EXPECT_EQ(found[1].peer, 1);
  EXPECT_EQ(found[1].dtype, -1);
  EXPECT_EQ(found[1].step, -1);
  EXPECT_TRUE(found[1].failed);
  EXPECT_EQ(found[2].end_ns, -1);
  EXPECT_FALSE(found[2].failed);
}

TEST(BlackBox, KeepsTheLast256) {
  const SharedBox box;
  std::vector<std::uint64_t> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back(box->begin({.number = i}));
  for (const std::uint64_t handle : handles) box->end(handle, true);  // most are gone
  const std::vector<BlackBox::Found> found = box->operations();
  ASSERT_EQ(found.size(), 256u);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].number, 744 + static_cast<int>(i));
    EXPECT_TRUE(found[i].failed);
  }
}

TEST(BlackBox, AnEndThatComesTooLateEndsNoOther) {
  const SharedBox box;
  const std::uint64_t old = box->begin({.number = 1});
  for (int i = 0; i < 256; ++i) box->begin({.number = 2 + i});
  box->end(old, false);
  for (const BlackBox::Found& found : box->operations()) EXPECT_EQ(found.end_ns, -1);
}

// --- Texts ---------------------------------------------------------------------------------------

TEST(BlackBoxTexts, HaveOneNumberEach) {
  const SharedBox box;
  EXPECT_EQ(box->id_of(""), 0u);
  const TextId a = box->id_of("layer1"), b = box->id_of("layer2");
  EXPECT_NE(a, b);
  EXPECT_EQ(box->id_of("layer1"), a);
  EXPECT_EQ(box->text(a), "layer1");
  EXPECT_EQ(box->text(box->id_of(std::string(1000, 'x'))), std::string(240, 'x'));
}

TEST(BlackBoxTexts, OfGroupsAreCounted) {
  const SharedBox box;
  const TextId first = box->id_of_group("ranks 0-1"), second = box->id_of_group("ranks 0-1"),
               other = box->id_of_group("ranks 0"), third = box->id_of_group("ranks 0-1");
  EXPECT_EQ(box->text(first), "ranks 0-1");
  EXPECT_EQ(box->text(second), "ranks 0-1 #2");
  EXPECT_EQ(box->text(other), "ranks 0");
  EXPECT_EQ(box->text(third), "ranks 0-1 #3");
}

TEST(BlackBoxTexts, OfLargeGroupsAreCutBeforeTheirNumber) {
  const SharedBox box;
  std::string members = "generation 3: ranks 0";
  for (int r = 2; r < 256; r += 2) members += ", " + std::to_string(r);
  const std::string first = box->text(box->id_of_group(members));
  EXPECT_TRUE(members.starts_with(first + ", ")) << first;
  EXPECT_GT(first.size(), BlackBox::kMostText - 30);
  for (const char* const number : {" #2", " #3"}) {
    EXPECT_EQ(box->text(box->id_of_group(members)), first + number);
  }
}

TEST(BlackBoxTexts, AreNoneWhereThereIsNoRoom) {
  for (const std::string& end : {std::string(), std::string(200, 'x')}) {  // entries, then bytes
    const SharedBox box;
    std::map<std::string, TextId> known;
    for (int i = 0; i < 3000; ++i) {
      const std::string text = std::to_string(i) + end;
      if (const TextId id = box->id_of(text)) known[text] = id;
    }
    EXPECT_GT(known.size(), 250u);
    EXPECT_LE(known.size(), BlackBox::kTexts);
    for (const auto& [text, id] : known) {
      EXPECT_EQ(box->text(id), text);
      EXPECT_EQ(box->id_of(text), id);
    }
  }
}

TEST(BlackBoxTexts, OfSeveralThreadsAreTheSame) {
  const SharedBox box;
  std::vector<std::vector<TextId>> ids(4);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) mine.push_back(box->id_of("text " + std::to_string(i)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(box->text(ids[0][i]), "text " + std::to_string(i));
    for (const auto& other : ids) EXPECT_EQ(other[i], ids[0][i]);
  }
}

// --- Processes -----------------------------------------------------------------------------------

/// The page of a launcher, after f() has run in a process that it observes.
void observe(const StatusPage& page, const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(StatusPage::kVariable, std::to_string(page.fd()).c_str(), 1);
    f();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  ::waitpid(child, nullptr, 0);
}

TEST(OwnBlackBox, IsTheLaunchers) {
  const StatusPage page;
  observe(page, [] {
    {
      const PhaseScope phase("forward");
      own_black_box()->begin({.number = 1});
    }
    own_black_box()->begin({.number = 2});
    const PhaseScope phase("save");
    own_black_box()->begin({.number = 3});
    std::raise(SIGKILL);
  });
  const std::vector<BlackBox::Found> found = page.black_box().operations();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(page.black_box().text(found[0].phase), "forward");
  EXPECT_EQ(page.black_box().text(found[1].phase), "");
  EXPECT_EQ(page.black_box().text(found[2].phase), "save");
  EXPECT_EQ(page.read().phase, "save");
}

TEST(OwnBlackBox, IsNoneWithoutALauncher) {
  EXPECT_EQ(testing::status_of_child([] { return own_black_box() ? 1 : 0; }), 0);
}

TEST(OwnBlackBox, KeepsTheMemoryOfBeforeAnException) {
  const StatusPage page;
  observe(page, [] {
    static testing::FakeRuntime runtime(DeviceType::cpu);
    register_runtime(DeviceType::cpu, &runtime);
    const auto throws = [] {
      const auto freed = Storage::allocate(Device("cpu:0"), 5000);
      throw std::runtime_error("the rank has failed");
    };
    EXPECT_THROW(throws(), std::runtime_error);
  });
  EXPECT_EQ(page.black_box().memory(Device("cpu:0")).in_use[0].load(), 5120);
}

TEST(OwnBlackBox, HasTheMemoryByOwner) {
  const StatusPage page;
  observe(page, [] {
    static testing::FakeRuntime runtime(DeviceType::cpu);
    register_runtime(DeviceType::cpu, &runtime);
    set_memory_limit(Device("cpu:0"), 1 << 20);
    const auto kept = Storage::allocate(Device("cpu:0"), 1000);
    {
      const Scoped owner(&ThreadState::memory_owner, MemoryOwner::batches);
      const auto given_back = Storage::allocate(Device("cpu:0"), 5000);
    }
    const Scoped owner(&ThreadState::memory_owner, MemoryOwner::parameters);
    const auto parameters = Storage::allocate(Device("cpu:0"), 4096);
    std::raise(SIGKILL);
  });
  const BlackBox::Memory& memory = page.black_box().memory(Device("cpu:0"));
  const auto in_use = [&](MemoryOwner owner) {
    return memory.in_use[static_cast<std::size_t>(owner)].load();
  };
  EXPECT_EQ(in_use(MemoryOwner::activations), 1024);  // rounded up to 512 B
  EXPECT_EQ(in_use(MemoryOwner::parameters), 4096);
  EXPECT_EQ(in_use(MemoryOwner::batches), 0);
  EXPECT_EQ(memory.limit.load(), 1 << 20);
  EXPECT_EQ(page.black_box().memory(Device("cpu:1")).in_use[0].load(), 0);
}

// --- Kills ---------------------------------------------------------------------------------------

/// The texts of the records, by number.
struct Texts {
  explicit Texts(BlackBox& box) {
    for (int i = 0; i < 100; ++i) ids.push_back(box.id_of("text " + std::to_string(i)));
  }
  TextId of(std::int64_t number) const { return ids[static_cast<std::size_t>(number % 100)]; }

  std::vector<TextId> ids;
};

/// A record whose members are functions of its number.
OperationRecord made_of(std::int64_t number, const Texts& texts) {
  const auto small = static_cast<std::int32_t>(number % 1000);
  return {.number = number,
          .begin_ns = 3 * number,
          .count = number * number,
          .bytes = ~number,
          .step = number ^ 0x5555,
          .name = texts.of(number),
          .group = texts.of(number + 1),
          .tag = texts.of(number * 7),
          .module = static_cast<TextId>(number + 1),
          .phase = 0,
          .rank = small,
          .peer = -small,
          .dtype = small + 1};
}

bool is_whole(const BlackBox::Found& found, const Texts& texts) {
  const OperationRecord& record = found;
  const OperationRecord expected = made_of(found.number, texts);
  return std::memcmp(&record, &expected, sizeof record) == 0 &&
         (found.end_ns == -1 ? !found.failed : found.failed == (found.number % 2 != 0));
}

TEST(BlackBoxKills, LeaveNoTornRecord) {
  const char* given = std::getenv("WEFT_KILLS");
  const int kills = given ? std::atoi(given) : 50;
  std::mt19937 random(1);
  std::int64_t records = 0, open = 0, cut = 0;
  for (int i = 0; i < kills; ++i) {
    const SharedBox box;
    const Texts texts(*box);
    const pid_t child = ::fork();
    if (child == 0) {
      // Two writers, as the threads of two groups. One of them ends what it begins.
      const std::thread other([&] {
        for (std::int64_t number = 1;; number += 2)
          box->end(box->begin(made_of(number, texts)), true);
      });
      for (std::int64_t number = 2;; number += 2) box->begin(made_of(number, texts));
    }
    ASSERT_GT(child, 0);
    std::string torn;
    const auto look = [&] {
      std::vector<BlackBox::Found> found = box->operations();
      for (const BlackBox::Found& record : found) {
        if (!is_whole(record, texts)) torn += std::to_string(record.number) + ' ';
      }
      return found;
    };
    // All slots have been written more than once.
    for (auto found = look(); found.empty() || found.back().number < 2000; found = look()) {
      std::this_thread::yield();
    }
    // It is read while it runs, and after its end.
    const auto until = Clock::now() + std::chrono::microseconds(random() % 3000);
    while (Clock::now() < until) look();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::vector<BlackBox::Found> found = look();
    EXPECT_EQ(torn, "") << "kill " << i;
    records += static_cast<std::int64_t>(found.size());
    cut += found.size() < 256;
    for (const BlackBox::Found& record : found) open += record.end_ns == -1;
    // Each thread may have been in the middle of one.
    EXPECT_GE(found.size(), 254u);
  }
  std::printf("%d kills: %lld records read, %lld of them open; %lld kills were inside a record\n",
              kills, static_cast<long long>(records), static_cast<long long>(open),
              static_cast<long long>(cut));
}

// --- Cost ----------------------------------------------------------------------------------------

/// The median of the nanoseconds that f() takes.
template <class F>
std::int64_t median_ns(const F& f) {
  std::vector<std::int64_t> times(1'000'000);
  for (std::int64_t& time : times) {
    const std::int64_t begin = steady_ns(Clock::now());
    f();
    time = steady_ns(Clock::now()) - begin;
  }
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

// Prints only: a time is no property of the code. As OperationQueue does it, which has read the
// clock anyway when an operation begins.
TEST(BlackBox, CostOfARecord) {
  const SharedBox box;
  const std::string tag = "bucket 2";
  std::int64_t number = 0;
  const std::int64_t record = median_ns([&] {
    ++number;
    const std::uint64_t handle = box->begin({.number = number,
                                             .begin_ns = number,
                                             .count = 4096,
                                             .bytes = 16384,
                                             .step = 5,
                                             .name = box->id_of("all_reduce"),
                                             .group = 1,
                                             .tag = box->id_of(tag),
                                             .module = 2});
    box->end(handle, false);
  });
  const std::int64_t empty = median_ns([&] { ++number; });
  std::printf("median of 10^6: a record %lld ns, an empty loop %lld ns\n",
              static_cast<long long>(record), static_cast<long long>(empty));
  EXPECT_EQ(box->operations().size(), 256u);
}

}  // namespace
}  // namespace weft
