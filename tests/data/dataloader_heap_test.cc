// A loader in its stride leaves the heap alone.
#include "weft/data/dataloader.h"

#include "weft/core/allocator.h"
#include "weft/data/fake.h"
#include "weft/data/mnist.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

template <class Dataset>
void expect_quiet(const Dataset& set) {
  for (const int workers : {0, 1, 2}) {
    DataLoader loader(set, {.batch_size = 16, .shuffle = true, .workers = workers});
    for (int i = 0; i < 3; ++i) {
      for (auto& [x, label] : loader) (void)x.numel();  // 31 full batches, and one of 4
    }
    const MemoryStats before = memory_stats(Device());
    std::int64_t first = 0, last = 0, batches = 0;
    for (auto& [x, label] : loader) {
      (void)label.numel();
      last = testing::heap_count();
      if (batches++ == 0) first = last;  // the epoch's order has been drawn
    }
    EXPECT_EQ(batches, 32);
    EXPECT_EQ(last - first, 0) << workers << " workers";
    EXPECT_EQ(memory_stats(Device()).driver_allocations, before.driver_allocations);
  }
}

TEST(DataLoaderHeap, SteadyBatchesAllocateNothing) {
  if (testing::kSanitized) GTEST_SKIP() << "the pool is off under sanitizers";
  testing::TempFolder folder;
  testing::write_file(folder.path("train-images-idx3-ubyte"),
                      testing::idx_header({500, 28, 28}) + std::string(500 * 784, '\1'));
  testing::write_file(folder.path("train-labels-idx1-ubyte"),
                      testing::idx_header({500}) + std::string(500, '\1'));
  expect_quiet(Mnist(folder.root()));
  expect_quiet(Mnist(folder.root(), {.transform = Compose({Pad(2), Resize(64)})}));
}

TEST(DataLoaderHeap, SteadyTransformsAllocateNothing) {
  if (testing::kSanitized) GTEST_SKIP() << "the pool is off under sanitizers";
  const Compose transform({RandomCrop(32, 4), RandomHorizontalFlip(), Resize(24), CenterCrop(20)});
  expect_quiet(FakeData(500, {3, 32, 32}, 10, {.format = {.transform = transform}}));
}

}  // namespace
}  // namespace weft::data
