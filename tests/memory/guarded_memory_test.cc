#include "weft/tests/memory/guarded_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "weft/core/runtime/allocator.h"

namespace weft {
namespace {

using testing::GuardedMemory;

class GuardedMemoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    static GuardedMemory memory(runtime(Device()));
    register_runtime(DeviceType::cpu, &memory);
    memory_ = &memory;
  }

  /// A storage as bytes that the compiler cannot optimise.
  static volatile unsigned char* bytes_of(const intrusive_ptr<Storage>& storage) {
    return static_cast<unsigned char*>(storage->data());
  }

  static GuardedMemory* memory_;
};
GuardedMemory* GuardedMemoryTest::memory_ = nullptr;

TEST_F(GuardedMemoryTest, StoragesAreAlignedApartAndFull) {
  for (const auto side : {GuardedMemory::Side::end, GuardedMemory::Side::begin}) {
    memory_->set_side(side);
    for (const std::size_t bytes : {1, 63, 64, 100, 4096, 5000, 3 << 20}) {
      const auto a = Storage::allocate(Device(), bytes), b = Storage::allocate(Device(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->data()) % 64, 0u);
      for (std::size_t i = 0; i < bytes; ++i) bytes_of(a)[i] = 1;
      EXPECT_EQ(bytes_of(b)[0], 0xff);
      EXPECT_EQ(bytes_of(b)[bytes - 1], 0xff);
    }
  }
}

TEST_F(GuardedMemoryTest, AccessesBesideAStorageEndTheProcess) {
  memory_->set_side(GuardedMemory::Side::end);
  const auto at_the_end = Storage::allocate(Device(), 128);
  EXPECT_DEATH((void)bytes_of(at_the_end)[128], "");
  memory_->set_side(GuardedMemory::Side::begin);
  const auto at_the_beginning = Storage::allocate(Device(), 100);
  EXPECT_DEATH((void)bytes_of(at_the_beginning)[-1], "");
}

TEST_F(GuardedMemoryTest, AWriteBetweenStorageAndPageIsFound) {
  // AddressSanitizer reports it in its own words, at the write.
  for (const auto side : {GuardedMemory::Side::end, GuardedMemory::Side::begin}) {
    memory_->set_side(side);
    EXPECT_DEATH(bytes_of(Storage::allocate(Device(), 100))[100] = 1,
                 "after a storage of 100 bytes|use-after-poison");
  }
  memory_->set_side(GuardedMemory::Side::end);
  EXPECT_DEATH(bytes_of(Storage::allocate(Device(), 100))[-1] = 1,
               "before a storage of 100 bytes|use-after-poison");
}

TEST_F(GuardedMemoryTest, FreedMemoryCannotBeAccessed) {
  auto storage = Storage::allocate(Device(), 1 << 20);
  const auto data = bytes_of(storage);
  data[5] = 1;
  storage = nullptr;
  EXPECT_DEATH((void)data[5], "");
}

}  // namespace
}  // namespace weft
