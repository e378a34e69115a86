#include "weft/core/runtime/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"
#include "weft/tests/core/heap_count.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

namespace weft {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAsan = true;  // then every pooled object is a heap block, on purpose
#else
constexpr bool kAsan = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = kAsan;
#endif

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;
using Ptr = intrusive_ptr<Storage>;

// One fake machine for all tests, as a program has only one: 4 virtual CPU devices, 2 CUDA devices.
// A test starts and ends with nothing in use and nothing cached.
class AllocatorTest : public ::testing::Test {
 protected:
  static testing::FakeRuntime& cpu() {
    static testing::FakeRuntime runtime(DeviceType::cpu);
    return runtime;
  }
  static testing::FakeRuntime& cuda() {
    static testing::FakeRuntime runtime(DeviceType::cuda, 2);
    return runtime;
  }
  static void SetUpTestSuite() {
    register_runtime(DeviceType::cpu, &cpu());
    register_runtime(DeviceType::cuda, &cuda());
    set_host_devices(4);
  }

  AllocatorTest() { clean(); }
  ~AllocatorTest() override {
    cpu().capacity = cuda().capacity = SIZE_MAX;
    clean();
    EXPECT_EQ(cpu().held, 0u);
    EXPECT_EQ(cuda().held, 0u);
  }

  static void clean() {
    for (Device d : {kHost, kSecond, kCuda}) {
      set_memory_limit(d, 0);
      release_cached_memory(d);
      reset_peak_memory(d);
      const MemoryStats now = memory_stats(d);
      EXPECT_EQ(now.in_use_bytes, 0) << d;
      EXPECT_EQ(now.cached_bytes, 0) << d;
    }
  }
  static std::int64_t in_use(Device d = kHost) { return memory_stats(d).in_use_bytes; }
  static std::int64_t held(Device d = kHost) {
    return memory_stats(d).in_use_bytes + memory_stats(d).cached_bytes;
  }

  static constexpr Device kHost{DeviceType::cpu, 0};
  static constexpr Device kSecond{DeviceType::cpu, 1};
  static constexpr Device kCuda{DeviceType::cuda, 0};
};

TEST_F(AllocatorTest, StorageKnowsItsBlock) {
  const Ptr s = Storage::allocate(kHost, 1000);
  EXPECT_NE(s->data(), nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(s->data()) % 64, 0u);
  EXPECT_EQ(s->bytes(), 1000u);
  EXPECT_EQ(s->device(), kHost);
  EXPECT_FALSE(s->pinned());
  std::memset(s->data(), 7, 1000);
  EXPECT_EQ(s->version(), 0u);
  s->bump_version();
  EXPECT_EQ(s->version(), 1u);
}

TEST_F(AllocatorTest, SegmentsFollowPyTorchsSizes) {
  const auto segment = [&](std::size_t bytes) {
    const Ptr s = Storage::allocate(kHost, bytes);
    const auto size = held();
    EXPECT_EQ(in_use(), static_cast<std::int64_t>((bytes + 511) / 512 * 512));
    return size;
  };
  const std::pair<std::size_t, std::size_t> expected[] = {{1, 2 * MiB},
                                                          {MiB, 2 * MiB},
                                                          {MiB + 1, 20 * MiB},
                                                          {10 * MiB - 512, 20 * MiB},
                                                          {10 * MiB, 10 * MiB},
                                                          {10 * MiB + 1, 12 * MiB},
                                                          {33 * MiB - 1, 34 * MiB}};
  for (auto [bytes, size] : expected) {
    EXPECT_EQ(segment(bytes), static_cast<std::int64_t>(size)) << bytes;
    release_cached_memory(kHost);
  }
}

TEST_F(AllocatorTest, SmallBlocksShareASegmentAndMergeAgain) {
  const int before = cpu().allocations;
  std::vector<Ptr> all;
  for (int i = 0; i < 4096; ++i) all.push_back(Storage::allocate(kHost, 512));
  EXPECT_EQ(cpu().allocations, before + 1);
  EXPECT_EQ(memory_stats(kHost).cached_bytes, 0);
  // Freed in random order, the blocks join to a whole segment, which can be returned.
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  all.clear();
  const Ptr whole = Storage::allocate(kHost, MiB);
  EXPECT_EQ(cpu().allocations, before + 1);
  EXPECT_EQ(memory_stats(kHost).cached_bytes, static_cast<std::int64_t>(MiB));
}

TEST_F(AllocatorTest, BestFitTakesTheSmallestThatFits) {
  // Free gaps of 3, 1 and 2 units between blocks that stay.
  std::vector<Ptr> stay;
  std::vector<Ptr> holes;
  for (int units : {3, 1, 2}) {
    holes.push_back(Storage::allocate(kHost, units * 512));
    stay.push_back(Storage::allocate(kHost, 512));
  }
  void* const hole3 = holes[0]->data();
  void* const hole2 = holes[2]->data();
  holes.clear();
  const Ptr two = Storage::allocate(kHost, 2 * 512);
  EXPECT_EQ(two->data(), hole2);
  const Ptr split = Storage::allocate(kHost, 2 * 512);
  EXPECT_EQ(split->data(), hole3);
  const Ptr rest = Storage::allocate(kHost, 512);
  const Ptr exact = Storage::allocate(kHost, 512);
  EXPECT_TRUE(rest->data() == static_cast<char*>(hole3) + 1024 ||
              exact->data() == static_cast<char*>(hole3) + 1024);
}

TEST_F(AllocatorTest, BestFitHoldsAmongBlocksOfNearlyTheSameSize) {
  for (const bool larger_first : {false, true}) {
    Ptr smaller = Storage::allocate(kHost, 64 * 512);
    const Ptr wall = Storage::allocate(kHost, 512);
    Ptr larger = Storage::allocate(kHost, 65 * 512);
    const Ptr end = Storage::allocate(kHost, 512);
    void* const best = smaller->data();
    if (larger_first) larger = nullptr;
    smaller = larger = nullptr;
    EXPECT_EQ(Storage::allocate(kHost, 64 * 512)->data(), best);
  }
}

TEST_F(AllocatorTest, ReleaseLeavesSegmentsInUseAlone) {
  Ptr first = Storage::allocate(kHost, 4096);
  Ptr second = Storage::allocate(kHost, 4096);
  first = nullptr;  // now free: the start of the segment, and the rest at its end
  release_cached_memory(kHost);
  EXPECT_EQ(cpu().held, 2 * MiB);
  std::memset(second->data(), 1, 4096);
  second = nullptr;
  release_cached_memory(kHost);
  EXPECT_EQ(cpu().held, 0u);
}

TEST_F(AllocatorTest, LargeRemaindersUpToOneMiBStayWithTheBlock) {
  const Ptr a = Storage::allocate(kHost, 19 * MiB);  // segment of 20 MiB, 1 MiB over
  EXPECT_EQ(held(), static_cast<std::int64_t>(20 * MiB));
  const int before = cpu().allocations;
  const Ptr b = Storage::allocate(kHost, MiB + 512);
  EXPECT_EQ(cpu().allocations, before + 1) << "the remainder is no block of its own";
  EXPECT_EQ(in_use(), static_cast<std::int64_t>(20 * MiB + 512)) << "counted is what was asked";
}

TEST_F(AllocatorTest, BlocksNeverOverlapAndKeepTheirBytes) {
  struct Live {
    Ptr storage;
    unsigned char fill;
  };
  std::vector<Live> live;
  std::mt19937 draw(42);
  const auto check = [](const Live& l) {
    const auto* p = static_cast<const unsigned char*>(l.storage->data());
    const std::size_t n = l.storage->bytes();
    return n == 0 || (p[0] == l.fill && p[n / 2] == l.fill && p[n - 1] == l.fill &&
                      std::memcmp(p, p + 1, std::min<std::size_t>(n - 1, 4096)) == 0);
  };
  std::int64_t expected = 0;
  const auto rounded = [](std::size_t n) {
    return static_cast<std::int64_t>((n + 511) / 512 * 512);
  };
  for (int i = 0; i < 5000; ++i) {
    if (live.size() < 60 && draw() % 5 < 3) {
      const std::size_t scale[] = {600, 40 * KiB, 2 * MiB, 12 * MiB};
      const std::size_t bytes = draw() % scale[draw() % 4];
      live.push_back({Storage::allocate(kHost, bytes), static_cast<unsigned char>(i)});
      std::memset(live.back().storage->data(), live.back().fill, bytes);
      expected += rounded(bytes);
    } else if (!live.empty()) {
      std::swap(live[draw() % live.size()], live.back());
      ASSERT_TRUE(check(live.back()));
      expected -= rounded(live.back().storage->bytes());
      live.pop_back();
    }
    ASSERT_EQ(in_use(), expected);
    ASSERT_EQ(held(), static_cast<std::int64_t>(cpu().held));
  }
  for (const Live& l : live) EXPECT_TRUE(check(l));
}

TEST_F(AllocatorTest, HeapCounterCounts) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer has its own operator new";
  const auto before = testing::heap_count();
  const auto p = std::make_unique<int>(1);
  EXPECT_EQ(testing::heap_count(), before + 1);
}

TEST_F(AllocatorTest, SteadyStateMakesNoDriverCallAndTakesNoHeap) {
  const auto step = [] {
    Ptr live[40];
    for (int i = 0; i < 40; ++i) live[i] = Storage::allocate(kHost, (i * 7919) % 300000 + 1);
    for (int i = 0; i < 40; i += 2) live[i] = nullptr;
    for (int i = 0; i < 40; i += 2) live[i] = Storage::allocate(kHost, 3 * MiB + i * 512);
  };
  step();
  step();
  const MemoryStats before = memory_stats(kHost);
  const auto heap = testing::heap_count();
  for (int i = 0; i < 20; ++i) step();
  if (!kAsan) {
    EXPECT_EQ(testing::heap_count(), heap);
  }
  const MemoryStats after = memory_stats(kHost);
  EXPECT_EQ(after.driver_allocations, before.driver_allocations);
  EXPECT_EQ(after.driver_frees, before.driver_frees);
  EXPECT_EQ(after.peak_in_use_bytes, before.peak_in_use_bytes);
}

TEST_F(AllocatorTest, PeakIsTheHighestSinceReset) {
  {
    const Ptr a = Storage::allocate(kHost, 4 * KiB);
    const Ptr b = Storage::allocate(kHost, 4 * KiB);
  }
  const Ptr c = Storage::allocate(kHost, 512);
  EXPECT_EQ(memory_stats(kHost).peak_in_use_bytes, 8192);
  reset_peak_memory(kHost);
  EXPECT_EQ(memory_stats(kHost).peak_in_use_bytes, 512);
}

// Sizes are rounded up to 512 bytes.
TEST_F(AllocatorTest, AnObserverHearsWhatEachOwnerHas) {
  struct Heard final : MemoryObserver {
    std::vector<std::pair<MemoryOwner, std::int64_t>> changes;
    void memory_changed(Device device, MemoryOwner owner, std::int64_t bytes) noexcept override {
      EXPECT_EQ(device, Device());
      changes.emplace_back(owner, bytes);
    }
  } heard;
  const Ptr before = Storage::allocate(Device(), 512);
  {
    const Scoped<MemoryObserver*> observed(&ThreadState::memory, &heard);
    const Ptr storage = Storage::allocate(Device(), 1000);
    storage->set_owner(MemoryOwner::gradients);
  }
  const Ptr after = Storage::allocate(Device(), 512);
  using enum MemoryOwner;
  EXPECT_EQ(heard.changes,
            (std::vector<std::pair<MemoryOwner, std::int64_t>>{
                {activations, 1536}, {activations, 512}, {gradients, 1024}, {gradients, 0}}));
}

TEST_F(AllocatorTest, ZeroBytesAreLegal) {
  const int before = cpu().allocations;
  const Ptr a = Storage::allocate(kHost, 0);
  EXPECT_NE(a->data(), nullptr);
  EXPECT_EQ(a->bytes(), 0u);
  EXPECT_EQ(in_use(), 0);
  EXPECT_EQ(cpu().allocations, before);
  EXPECT_NE(Storage::allocate_pinned(0)->data(), nullptr);
}

TEST_F(AllocatorTest, VirtualDevicesAreCountedApart) {
  const Ptr a = Storage::allocate(kHost, 512);
  const Ptr b = Storage::allocate(kSecond, 1024);
  EXPECT_EQ(in_use(kHost), 512);
  EXPECT_EQ(in_use(kSecond), 1024);
  EXPECT_WEFT_ERROR(Storage::allocate(Device("cpu:4"), 1), Device,
                    "[cpu:4] no such device: got index 4, 4 CPU devices exist");
  EXPECT_WEFT_ERROR(Storage::allocate(Device("cuda:2"), 1), Device, "2 devices are visible");
  EXPECT_WEFT_ERROR(Storage::allocate(Device(DeviceType::cuda, -1), 1), Device, "[cuda:-1]");
}

TEST_F(AllocatorTest, OverTheLimitIsRefusedAndNothingChanges) {
  set_memory_limit(kSecond, 32 * MiB);
  const Ptr a = Storage::allocate(kSecond, 30 * MiB);
  const MemoryStats before = memory_stats(kSecond);
  EXPECT_WEFT_ERROR(Storage::allocate(kSecond, 4 * MiB), OutOfMemory,
                    "[allocate] cpu:1 is out of memory: asked 4.00 MiB, in use 30.00 MiB, limit "
                    "32.00 MiB (raise the limit or use a smaller batch)");
  EXPECT_EQ(memory_stats(kSecond).in_use_bytes, before.in_use_bytes);
  EXPECT_EQ(memory_stats(kSecond).peak_in_use_bytes, before.peak_in_use_bytes);
  EXPECT_EQ(memory_stats(kSecond).driver_allocations, before.driver_allocations);
  EXPECT_NE(Storage::allocate(kSecond, 2 * MiB), nullptr) << "just fits";
  set_memory_limit(kSecond, 0);
  EXPECT_NE(Storage::allocate(kSecond, 4 * MiB), nullptr);
  EXPECT_WEFT_ERROR(set_memory_limit(kSecond, -1), InvalidArgument,
                    "[set_memory_limit] got -1 bytes, expected 0 or more");
}

TEST_F(AllocatorTest, CachedMemoryIsReturnedBeforeItExceedsTheLimit) {
  set_memory_limit(kHost, 40 * MiB);
  Storage::allocate(kHost, 30 * MiB);
  EXPECT_EQ(cpu().held, 30 * MiB);
  const Ptr b = Storage::allocate(kHost, 32 * MiB);
  EXPECT_EQ(cpu().held, 32 * MiB);
}

TEST_F(AllocatorTest, DriverRefusalReleasesTheCacheAndRetriesOnce) {
  cpu().capacity = 50 * MiB;
  Storage::allocate(kHost, 30 * MiB);
  const Ptr a = Storage::allocate(kHost, 40 * MiB);
  EXPECT_EQ(cpu().held, 40 * MiB);
  const auto driver_calls = memory_stats(kHost).driver_allocations;
  EXPECT_WEFT_ERROR(Storage::allocate(kHost, 12 * MiB), OutOfMemory,
                    "[allocate] cpu:0 is out of memory: asked 12.00 MiB, in use 40.00 MiB, no "
                    "limit, cached 0 B (the device has no more)");
  EXPECT_EQ(memory_stats(kHost).driver_allocations, driver_calls + 2);
  EXPECT_EQ(in_use(), static_cast<std::int64_t>(40 * MiB));
  EXPECT_NE(Storage::allocate(kHost, 10 * MiB), nullptr);
}

TEST_F(AllocatorTest, AbsurdSizesAreRefusedWithoutOverflow) {
  EXPECT_WEFT_ERROR(Storage::allocate(kHost, SIZE_MAX), OutOfMemory, "no device has as much");
  EXPECT_WEFT_ERROR(Storage::allocate(kHost, SIZE_MAX - 511), OutOfMemory, "no device has as much");
  cpu().capacity = MiB;
  EXPECT_WEFT_ERROR(Storage::allocate(kHost, std::size_t{1} << 47), OutOfMemory,
                    "asked 128.00 TiB, in use 0 B");
  EXPECT_EQ(in_use(), 0);
}

TEST_F(AllocatorTest, KthAllocationFailsOnceOnDemand) {
  for (int k = 1; k <= 3; ++k) {
    const FailAllocation fault(kHost, k);
    for (int i = 1; i <= 4; ++i) {
      EXPECT_EQ(fault.fired(), i > k);
      if (i == k) {
        EXPECT_WEFT_ERROR(Storage::allocate(kHost, 100), OutOfMemory,
                          "asked 100 B, in use 0 B, no limit");
      } else {
        EXPECT_NE(Storage::allocate(kHost, 100), nullptr);
        Storage::allocate(kHost, 0);
        Storage::allocate(kSecond, 100);
      }
    }
  }
  {
    const FailAllocation fault(kHost, 1);
  }
  EXPECT_NE(Storage::allocate(kHost, 100), nullptr) << "ends with its scope";
  EXPECT_WEFT_ERROR(FailAllocation(kHost, 0), InvalidArgument, "got 0, expected 1 or more");
}

TEST_F(AllocatorTest, BorrowedMemoryIsReleasedByItsOwner) {
  char bytes[16];
  int released = 0;
  const auto release = [](void* context) { ++*static_cast<int*>(context); };
  {
    Ptr a = Storage::borrow(kHost, bytes, sizeof bytes, release, &released);
    const Ptr b = a;
    a = nullptr;
    EXPECT_EQ(released, 0);
    EXPECT_EQ(b->data(), bytes);
    EXPECT_EQ(b->bytes(), 16u);
    EXPECT_EQ(in_use(), 0);
    b->record_stream(cuda().new_stream(0));  // the owner has to do this
  }
  EXPECT_EQ(released, 1);
  Storage::borrow(kHost, bytes, sizeof bytes);
}

TEST_F(AllocatorTest, BorrowedMemoryMayCount) {
  char bytes[3000];
  const std::int64_t limit = in_use() + 4000;
  set_memory_limit(kHost, limit);
  const auto gradients = [] {
    return memory_stats(kHost).in_use_by_owner[static_cast<std::size_t>(MemoryOwner::gradients)];
  };
  {
    const Ptr a = Storage::borrow(kHost, bytes, sizeof bytes);
    a->charge();
    EXPECT_EQ(in_use(), 3000);
    EXPECT_EQ(gradients(), 0);
    a->set_owner(MemoryOwner::gradients);
    EXPECT_EQ(gradients(), 3000);
    EXPECT_EQ(in_use(), 3000);
    EXPECT_WEFT_ERROR(a->charge(), InvalidArgument, "counts already");
    const Ptr b = Storage::borrow(kHost, bytes, sizeof bytes);
    EXPECT_WEFT_ERROR(b->charge(), OutOfMemory, "limit");
    EXPECT_WEFT_ERROR(Storage::allocate(kHost, 2000), OutOfMemory, "limit");
    EXPECT_WEFT_ERROR(Storage::allocate(kHost, 64)->charge(), InvalidArgument, "counts already");
  }
  EXPECT_EQ(in_use(), 0);
  EXPECT_EQ(gradients(), 0);
  set_memory_limit(kHost, 0);
}

TEST_F(AllocatorTest, MemoryIsGivenBackAndComesAgain) {
  const Ptr a = Storage::allocate(kHost, 1000);
  const std::int64_t whole = in_use();
  a->bump_version();
  a->release("it is elsewhere");
  EXPECT_TRUE(a->released());
  EXPECT_EQ(in_use(), whole - 1024);
  EXPECT_EQ(a->bytes(), 1000u);
  EXPECT_WEFT_ERROR(a->data(), InvalidArgument, "it is elsewhere");
  a->release("again");
  EXPECT_WEFT_ERROR(a->data(), InvalidArgument, "it is elsewhere");
  {
    const FailAllocation fail(kHost, 1);
    EXPECT_WEFT_ERROR(a->restore(), OutOfMemory, "refused by a test");
    EXPECT_TRUE(a->released());
  }
  a->restore();
  a->restore();
  EXPECT_EQ(in_use(), whole);
  EXPECT_EQ(a->version(), 1u);
  std::memset(a->data(), 1, 1000);

  const Ptr empty = Storage::allocate(kHost, 0);
  empty->release("never");
  EXPECT_FALSE(empty->released());
  EXPECT_NE(empty->data(), nullptr);
  char bytes[16];
  EXPECT_WEFT_ERROR(Storage::borrow(kHost, bytes, sizeof bytes)->release("mine"), InvalidArgument,
                    "does not come from the cache");
  a->release("at the end");
}

TEST_F(AllocatorTest, StreamsDoNotShareFreeBlocks) {
  const Stream other = cuda().new_stream(0);
  Ptr a = Storage::allocate(kCuda, 4096);
  void* const first = a->data();
  a = nullptr;
  const Stream before = set_current_stream(other);
  const Ptr b = Storage::allocate(kCuda, 4096);
  EXPECT_NE(b->data(), first);
  set_current_stream(before);
  EXPECT_EQ(Storage::allocate(kCuda, 4096)->data(), first);
}

TEST_F(AllocatorTest, RecordedStreamDelaysReuseUntilItHasPassed) {
  const Stream side = cuda().new_stream(0);
  const Stream third = cuda().new_stream(0);
  cuda().set_done(side.handle, false);
  cuda().set_done(third.handle, false);
  const int recorded = cuda().recorded;
  Ptr a = Storage::allocate(kCuda, 4096);
  void* const data = a->data();
  a->record_stream(side);
  a->record_stream(side);
  a->record_stream(third);
  a->record_stream(current_stream(kCuda));  // its own stream: the work is in order anyway
  a = nullptr;
  EXPECT_EQ(cuda().recorded, recorded + 2);
  EXPECT_EQ(in_use(kCuda), 0);
  EXPECT_NE(Storage::allocate(kCuda, 4096)->data(), data);
  cuda().set_done(side.handle, true);
  EXPECT_NE(Storage::allocate(kCuda, 4096)->data(), data) << "one of two is still at work";
  cuda().set_done(third.handle, true);
  EXPECT_EQ(Storage::allocate(kCuda, 4096)->data(), data);
}

TEST_F(AllocatorTest, ADeviceIsToldOfItsLoans) {
  using Loans = std::vector<testing::FakeRuntime::Loan>;
  const Stream side = cuda().new_stream(0), home = current_stream(kCuda);
  cuda().set_done(side.handle, false);
  cuda().loan_shift = 64;
  Ptr a = Storage::allocate(kCuda, 1000);
  char* const p = static_cast<char*>(a->data()) - 64;
  EXPECT_EQ(cuda().lent, (Loans{{p, 1000, home}}));
  a->record_stream(side);
  a = nullptr;
  EXPECT_TRUE(cuda().taken_back.empty()) << "the other stream is still at work";
  cuda().set_done(side.handle, true);
  EXPECT_EQ(Storage::allocate(kCuda, 500)->data(), p + 64);
  EXPECT_EQ(cuda().taken_back, (Loans{{p, 0, home}, {p, 0, home}}));
  cuda().loan_shift = 0;
}

TEST_F(AllocatorTest, AnotherDevicesDefaultStreamIsAnother) {
  const Stream there{Device("cuda:1"), current_stream(kCuda).handle};
  const int recorded = cuda().recorded;
  Storage::allocate(kCuda, 4096)->record_stream(there);
  EXPECT_EQ(cuda().recorded, recorded + 1);
}

TEST_F(AllocatorTest, EventsAreRecycledInASteadyState) {
  const Stream side = cuda().new_stream(0);
  const auto step = [&] {
    Ptr a = Storage::allocate(kCuda, 4096), b = Storage::allocate(kCuda, 4096);
    a->record_stream(side);
    b->record_stream(side);
  };
  step();
  step();
  const int made = cuda().events_made;
  const auto heap = testing::heap_count();
  for (int i = 0; i < 50; ++i) step();
  EXPECT_EQ(cuda().events_made, made);
  if (!kAsan) {
    EXPECT_EQ(testing::heap_count(), heap);
  }
}

TEST_F(AllocatorTest, ReleaseWaitsForRecordedStreams) {
  const Stream side = cuda().new_stream(0);
  cuda().set_done(side.handle, false);
  Ptr a = Storage::allocate(kCuda, 4096);
  a->record_stream(side);
  a = nullptr;
  EXPECT_EQ(cuda().held, 2 * MiB);
  const int waited = cuda().waited;
  release_cached_memory(kCuda);
  EXPECT_EQ(cuda().waited, waited + 1);
  EXPECT_EQ(cuda().held, 0u);
}

TEST_F(AllocatorTest, ABlockWhoseEventFailsIsNeverReused) {
  const Device second("cuda:1");
  const Stream side = cuda().new_stream(1);
  Ptr a = Storage::allocate(second, 4096);
  Ptr b = Storage::allocate(second, 4096);
  void* const data = a->data();
  a->record_stream(side);
  cuda().broken = true;
  a = nullptr;  // called in a destructor, so it throws nothing
  cuda().broken = false;
  EXPECT_NE(Storage::allocate(second, 4096)->data(), data);
  b = nullptr;
  release_cached_memory(second);
  EXPECT_EQ(memory_stats(second).cached_bytes, static_cast<std::int64_t>(2 * MiB));
  cuda().held -= 2 * MiB;  // lost on purpose
}

TEST_F(AllocatorTest, PinnedMemoryComesFromCudaAndIsCached) {
  const int before = cuda().pinned_allocations;
  Ptr a = Storage::allocate_pinned(5000);
  EXPECT_TRUE(a->pinned());
  EXPECT_EQ(a->device(), kHost);
  EXPECT_EQ(cuda().pinned_allocations, before + 1);
  EXPECT_EQ(in_use(kHost), 0) << "page-locked memory is in no device's account";
  void* const data = a->data();

  // A copy to the device may still read it after the host has released it.
  const Stream copy = cuda().new_stream(0);
  cuda().set_done(copy.handle, false);
  a->record_stream(copy);
  a = nullptr;
  EXPECT_NE(Storage::allocate_pinned(5000)->data(), data);
  cuda().set_done(copy.handle, true);
  EXPECT_EQ(Storage::allocate_pinned(5000)->data(), data);
  EXPECT_EQ(cuda().pinned_allocations, before + 1);

  cuda().loan_shift = 64;
  cuda().lent.clear();
  cuda().taken_back.clear();
  Storage::allocate_pinned(100);
  ASSERT_EQ(cuda().lent.size(), 1u);
  EXPECT_EQ(cuda().lent[0].bytes, 100u);
  EXPECT_EQ(cuda().lent[0].stream.device, kHost);
  EXPECT_EQ(cuda().taken_back.size(), 1u);
  cuda().loan_shift = 0;
}

TEST_F(AllocatorTest, HostMemoryIsLentToo) {
  using Loans = std::vector<testing::FakeRuntime::Loan>;
  cpu().lent.clear();
  cpu().taken_back.clear();
  cpu().loan_shift = 64;
  char* const p = static_cast<char*>(Storage::allocate(kHost, 1000)->data()) - 64;
  cpu().loan_shift = 0;
  EXPECT_EQ(cpu().lent, (Loans{{p, 1000, current_stream(kHost)}}));
  EXPECT_EQ(cpu().taken_back, (Loans{{p, 0, current_stream(kHost)}}));
}

TEST_F(AllocatorTest, ManyThreadsAllocateAndFreeEachOthersBlocks) {
  std::mutex mutex;
  std::vector<Ptr> shared;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 draw(t);
      for (int i = 0; i < 2000; ++i) {
        Ptr mine = Storage::allocate(t % 2 ? kSecond : kHost, draw() % (64 * KiB) + 1);
        std::memset(mine->data(), static_cast<int>(t), mine->bytes());
        const std::lock_guard lock(mutex);
        if (shared.size() < 30) {
          shared.push_back(std::move(mine));
        } else {
          shared[draw() % 30] = std::move(mine);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  shared.clear();
  EXPECT_EQ(in_use(kHost) + in_use(kSecond), 0);
}

TEST_F(AllocatorTest, AddressSanitizerSeesUseOfAFreedBlock) {
  if (!kAsan) GTEST_SKIP() << "needs AddressSanitizer";
  EXPECT_DEATH(
      {
        Ptr a = Storage::allocate(kHost, 100);
        volatile char* p = static_cast<char*>(a->data());
        a = nullptr;
        p[0] = 1;
      },
      "use-after-poison");
  EXPECT_DEATH(
      {
        const Ptr a = Storage::allocate(kHost, 100);
        volatile char* p = static_cast<char*>(a->data());
        p[100] = 1;
      },
      "use-after-poison");
}

}  // namespace
}  // namespace weft
