// A loader that copies its batches to a device while the host goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "weft/core/runtime/copy_stream.h"
#include "weft/data/dataloader.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/device_param.h"

namespace weft::data {
namespace {

// Sample i is a row with ten times the number i; batches use the memory that they are given.
struct Rows {
  struct Batch {
    Tensor x;
    auto tensors() { return std::tie(x); }
  };
  std::int64_t size() const { return 50; }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    Batch batch;
    get_batch(indices, batch, HostMemory());
    return batch;
  }
  void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                 const HostMemory& memory) const {
    memory.prepare(batch.x, {static_cast<std::int64_t>(indices.size()), 10}, DType::f32);
    float* to = batch.x.data<float>();
    for (const std::int64_t i : indices) to = std::fill_n(to, 10, static_cast<float>(i));
  }
};

class DeviceLoader : public testing::DeviceParam {
 protected:
  void SetUp() override {
    DeviceParam::SetUp();
    thread_state().device = Device();
  }
  DataLoader<Rows> loader(int workers) const {
    return DataLoader(Rows(), {.batch_size = 7, .workers = workers, .device = device()});
  }
};
WEFT_FOR_EACH_DEVICE(DeviceLoader);

// Only the loader itself waits for the copies.
TEST_P(DeviceLoader, SumsOfBatchesThatAreReadLater) {
  for (const int workers : {0, 2}) {
    auto batches = loader(workers);
    for (int epoch = 0; epoch < 3; ++epoch) {
      Tensor total = zeros({}, {DType::f32, device()});
      for (auto& [x] : batches) {
        EXPECT_EQ(x.device(), device());
        raw::binary_(BinaryOp::add, total, raw::sum(x));
      }
      EXPECT_EQ(total.item<float>(), 10 * 49 * 50 / 2) << workers << " workers, epoch " << epoch;
    }
  }
}

// Like Rows, but each batch is filled with the number of batches so far.
struct Counted : Rows {
  using Rows::get_batch;
  void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                 const HostMemory& memory) const {
    Rows::get_batch(indices, batch, memory);
    std::fill_n(batch.x.data<float>(), batch.x.numel(), static_cast<float>(count++));
  }
  mutable int count = 0;
};

void run_copies(Device device) {
  if (device.is_cuda()) runtime(device).synchronize(upload_stream(device));
}

// The next epoch's copy does not overwrite a batch of an epoch that was left early.
TEST_P(DeviceLoader, WorkOnAnEpochThatIsLeftEarlyMayComeLater) {
  DataLoader batches(Counted(), {.batch_size = 7, .device = device()});
  std::vector<Tensor> sums;
  for (int epoch = 0; epoch < 3; ++epoch) sums.push_back(raw::sum(batches.begin()->x));
  run_copies(device());
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(sums[static_cast<std::size_t>(epoch)].item<float>(), 70 * epoch);
  }
}

TEST_P(DeviceLoader, BatchesThatAreKeptStay) {
  for (const int workers : {0, 2}) {
    auto batches = loader(workers);
    std::vector<Tensor> kept;
    for (auto& [x] : batches) kept.push_back(x);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(kept[i].to_vector<float>()[0], static_cast<float>(7 * i)) << workers << " workers";
    }
  }
}

TEST_P(DeviceLoader, AnEpochThatIsLeftEarly) {
  for (const int workers : {0, 2}) {
    auto batches = loader(workers);
    for (int epoch = 0; epoch < 3; ++epoch) {
      auto it = batches.begin();
      ++it;
      EXPECT_EQ(it->x.to_vector<float>()[0], 7);
    }
  }
}

}  // namespace
}  // namespace weft::data
