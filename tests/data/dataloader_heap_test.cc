// A loader in a steady state allocates no heap memory.
#include "weft/data/dataloader.h"

#include <new>

#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/data/fake.h"
#include "weft/data/mnist.h"
#include "weft/data/subset.h"
#include "weft/data/tensor_dataset.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/child.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

template <class Dataset>
void expect_quiet(const Dataset& set) {
  for (const int workers : {0, 1, 2}) {
    DataLoader loader(set, {.batch_size = 16, .shuffle = true, .workers = workers});
    // Memory is kept for the largest number of batches that were ever in progress at once. On a
    // busy machine it may take some epochs to reach this maximum.
    std::int64_t heap = -1, driver = -1;
    for (int epoch = 0; epoch < 10 && (heap != 0 || driver != 0); ++epoch) {
      for (auto& [x, label] : loader) (void)x.numel();  // 31 full batches, and one of 4
      const MemoryStats before = memory_stats(Device());
      std::int64_t first = 0, last = 0, batches = 0;
      for (auto& [x, label] : loader) {
        (void)label.numel();
        last = testing::heap_count();
        if (batches++ == 0) first = last;  // now the epoch's order has been drawn
      }
      EXPECT_EQ(batches, 32);
      heap = last - first;
      driver = memory_stats(Device()).driver_allocations - before.driver_allocations;
    }
    EXPECT_EQ(heap, 0) << workers << " workers";
    EXPECT_EQ(driver, 0) << workers << " workers";
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

TEST(DataLoaderHeap, SteadyRowsAndPartsAllocateNothing) {
  if (testing::kSanitized) GTEST_SKIP() << "the pool is off under sanitizers";
  const TensorDataset rows(zeros({1000, 6}), zeros({1000}, DType::i64));
  const auto parts = random_split(rows, {.lengths = {500, 500}});
  expect_quiet(parts[1]);
  const auto of_parts =
      random_split(random_split(rows, {.lengths = {600, 400}})[0], {.lengths = {500, 100}});
  expect_quiet(of_parts[0]);
}

// Each allocation in turn fails, in the caller or in a worker.
TEST(DataLoaderHeap, NoMemoryReachesTheCaller) {
  const FakeData set(40, {1, 8, 8}, 10);
  for (std::int64_t k = 1;; ++k) {
    std::int64_t images = 0;
    const testing::FailHeap fault(k);
    try {
      DataLoader loader(set, {.batch_size = 8, .shuffle = true, .workers = 3});
      for (auto& [x, label] : loader) images += x.shape(0);
    } catch (const std::bad_alloc&) {
      continue;
    } catch (const Error&) {
      continue;
    }
    if (fault.fired()) continue;
    EXPECT_EQ(images, 40);
    break;
  }
}

TEST(DataLoaderHeap, AChildOfForkStartsWorkersOfItsOwn) {
  if (testing::kSanitized) GTEST_SKIP() << "ThreadSanitizer allows no threads in a child of fork()";
  DataLoader loader(FakeData(40, {1, 8, 8}, 10), {.batch_size = 8, .workers = 2});
  auto batch = loader.begin();
  const int status = testing::status_of_child([&] {
    int status = 1;
    try {
      ++batch;
      ++batch;
      ++batch;
    } catch (const Error& e) {
      status = e.code() == ErrorCode::Internal ? 0 : 2;
    }
    batch.~Iterator();
    std::int64_t images = 0;
    for (auto& [x, label] : loader) images += x.shape(0);
    return images == 40 ? status : 3;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace weft::data
