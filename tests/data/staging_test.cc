// Batches for a device: pinned memory, copied in order, not overwritten before the copy is done.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/copy_stream.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"
#include "weft/tests/data/numbers.h"

namespace weft::data {
namespace {

struct Numbers : testing::Numbers {
  using testing::Numbers::get_batch;
  void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                 const HostMemory& memory) const {
    EXPECT_TRUE(memory.pinned);
    testing::Numbers::get_batch(indices, batch, memory);
    EXPECT_TRUE(batch.x.storage()->pinned());
  }
};

class Staging : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { register_runtime(DeviceType::cuda, &fake()); }
  static testing::FakeRuntime& fake() {
    static testing::FakeRuntime runtime(DeviceType::cuda);
    return runtime;
  }
};

TEST_F(Staging, BatchesArriveOnTheDevice) {
  for (const int workers : {0, 1, 3}) {
    DataLoader loader(Numbers{}, {.batch_size = 7, .workers = workers, .device = "cuda"});
    for (int round = 0; round < 3; ++round) {
      std::int64_t expected = 0;
      std::set<const void*> addresses;
      for (auto& [x] : loader) {
        EXPECT_EQ(x.device(), Device("cuda:0"));
        addresses.insert(x.raw_data());
        const auto* values =
            static_cast<const std::int64_t*>(x.raw_data());  // the fake device uses host memory
        for (std::int64_t i = 0; i < x.numel(); ++i) EXPECT_EQ(values[i], expected++);
      }
      EXPECT_EQ(expected, 40);
    }
  }
}

TEST_F(Staging, MemoryGoesRound) {
  DataLoader loader(Numbers{}, {.batch_size = 8, .workers = 2, .device = "cuda"});
  for (auto& [x] : loader) (void)x;
  const int pinned = fake().pinned_allocations, allocations = fake().allocations;
  const int events = fake().events_made;
  for (int i = 0; i < 5; ++i) {
    for (auto& [x] : loader) (void)x;
  }
  EXPECT_EQ(fake().pinned_allocations, pinned);
  EXPECT_EQ(fake().allocations, allocations);
  EXPECT_EQ(fake().events_made, events);
}

TEST_F(Staging, ABatchTheUserKeepsIsNotWrittenOver) {
  DataLoader loader(Numbers{}, {.batch_size = 4, .device = "cuda"});
  std::vector<Tensor> kept;
  for (auto& [x] : loader) kept.push_back(x);
  ASSERT_EQ(kept.size(), 10u);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(*static_cast<const std::int64_t*>(kept[i].raw_data()),
              static_cast<std::int64_t>(4 * i));
  }
}

TEST_F(Staging, ACopyThatFailsEndsTheEpochBeforeItsBatch) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers{}, {.batch_size = 4, .workers = workers, .device = "cuda"});
    auto it = loader.begin();
    ++it;
    {
      const Tensor kept = it->x;  // so a later batch needs memory of its own
      const FailAllocation fail(Device("cuda"), 1);
      const auto go_on = [&] {
        while (!fail.fired()) ++it;
      };
      EXPECT_WEFT_ERROR(go_on(), OutOfMemory, "");
    }
    const std::int64_t position = loader.position();
    ++it;
    EXPECT_TRUE(it == loader.end());
    EXPECT_EQ(loader.position(), position);
    DataLoader other(Numbers{}, {.batch_size = 4, .device = "cuda"});
    other.set_state(loader.state());
    // The fake device uses host memory.
    EXPECT_EQ(*static_cast<const std::int64_t*>(other.begin()->x.raw_data()), 4 * position);
  }
}

TEST_F(Staging, EveryBatchsCopyIsMarked) {
  // The mark is the event for which the next fetch into the same host memory waits.
  DataLoader loader(Numbers{}, {.batch_size = 4, .device = "cuda"});
  const int before = fake().recorded;
  for (auto& [x] : loader) (void)x;
  EXPECT_GE(fake().recorded - before, 10);
}

TEST_F(Staging, ACopyRunsBesideTheWorkOnTheBatchBefore) {
  void* const work = current_stream(Device("cuda")).handle;
  void* const copies = upload_stream(Device("cuda")).handle;
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers{}, {.batch_size = 4, .workers = workers, .device = "cuda"});
    fake().waits.clear();
    int before = 0;  // how many records there were at the batch before
    int new_memory = workers == 0 ? 2 : 5;
    for (auto& [x] : loader) {
      (void)x;
      // The work of an earlier owner of the memory may be queued up to now.
      if (new_memory-- > 0) {
        EXPECT_GT(fake().waits[0].recorded, before) << workers << " workers";
      }
      before = fake().recorded;
      fake().waits.clear();
    }
    fake().copied_on.clear();
    before = std::numeric_limits<int>::max();
    for (auto& [x] : loader) {
      (void)x;
      ASSERT_EQ(fake().waits.size(), 2u) << workers << " workers";
      EXPECT_EQ(fake().waits[0].stream, copies);
      EXPECT_LT(fake().waits[0].recorded, before) << workers << " workers";
      EXPECT_EQ(fake().waits[1].stream, work);
      EXPECT_EQ(fake().waits[1].recorded, fake().recorded);
      before = fake().recorded;
      fake().waits.clear();
    }
    EXPECT_EQ(fake().copied_on, std::vector<void*>(10, copies));
  }
}

// Numbers, which also record where they were in pinned memory.
struct Traced : Numbers {
  using Numbers::get_batch;
  void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                 const HostMemory& memory) const {
    Numbers::get_batch(indices, batch, memory);
    places.insert(batch.x.raw_data());
  }
  static inline std::set<const void*> places;
};

TEST_F(Staging, ALoaderThatEndsEarlyGivesBackNoMemoryThatIsStillToBeRead) {
  void* const stream = upload_stream(Device("cuda")).handle;
  {
    DataLoader loader(Traced{}, {.batch_size = 4, .device = "cuda"});
    for (auto& [x] : loader) {
      (void)x;
      fake().set_done(stream, false);  // the copy is not done yet
      break;
    }
  }
  ASSERT_FALSE(Traced::places.empty());
  const auto taken = [] {
    // More than the loader had, so that they would include all of its memory.
    std::vector<intrusive_ptr<Storage>> blocks;
    for (int i = 0; i < 16; ++i)
      blocks.push_back(Storage::allocate_pinned(4 * sizeof(std::int64_t)));
    return std::ranges::count_if(
        blocks, [](const auto& block) { return Traced::places.contains(block->data()); });
  };
  EXPECT_EQ(taken(), 0);
  fake().set_done(stream, true);
  EXPECT_GT(taken(), 0);
}

// Lists, whose length the batch on the device must get, and members that are not tensors.
struct Named {
  struct Batch {
    std::vector<Tensor> list;
    std::string name;
    auto tensors() { return std::tie(list); }
  };
  std::int64_t size() const { return 6; }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    const Tensor x = from_span(indices, {static_cast<std::int64_t>(indices.size())}, Device());
    return {std::vector<Tensor>(indices[0] == 0 ? 2 : 1, x), std::to_string(indices[0])};
  }
};

TEST_F(Staging, TheDevicesBatchHasTheHostsStructure) {
  for (const int workers : {0, 1}) {
    DataLoader loader(Named{}, {.batch_size = 2, .workers = workers, .device = "cuda"});
    for (int round = 0; round < 2; ++round) {
      std::int64_t first = 0;
      for (const Named::Batch& batch : loader) {
        EXPECT_EQ(batch.name, std::to_string(first));
        ASSERT_EQ(batch.list.size(), first == 0 ? 2u : 1u);
        for (const Tensor& x : batch.list) {
          EXPECT_EQ(x.device(), Device("cuda:0"));
          EXPECT_EQ(*static_cast<const std::int64_t*>(x.raw_data()), first);
        }
        first += 2;
      }
      EXPECT_EQ(first, 6);
    }
  }
}

// A small tensor, and one for which the device has no room.
struct TwoSizes {
  struct Batch {
    Tensor small, large;
    auto tensors() { return std::tie(small, large); }
  };
  static constexpr std::int64_t kLarge = std::int64_t{1} << 23;
  std::int64_t size() const { return 2; }
  Batch get_batch(std::span<const std::int64_t>) const {
    return {ones({4}, Device()), zeros({kLarge}, Device())};
  }
};

// The caller may use the memory of what was copied, and try again.
TEST_F(Staging, ABatchThatFitsInPartIsGivenUp) {
  DataLoader loader(TwoSizes{}, {.batch_size = 1, .device = "cuda"});
  fake().waits.clear();
  fake().capacity = fake().held + sizeof(float) * TwoSizes::kLarge / 2;
  EXPECT_THROW(static_cast<void>(loader.begin()), Error);
  fake().capacity = SIZE_MAX;
  ASSERT_FALSE(fake().waits.empty());
  EXPECT_EQ(fake().waits.back().stream, current_stream(Device("cuda")).handle);
  int batches = 0;
  for (auto& [small, large] : loader) {
    EXPECT_EQ(small.device(), Device("cuda:0"));
    EXPECT_EQ(large.device(), Device("cuda:0"));
    ++batches;
  }
  EXPECT_EQ(batches, 2);
}

}  // namespace
}  // namespace weft::data
