// DataLoaderOptions::device_resident: the loader's batches, gathered on the device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/rng.h"
#include "weft/data/dataloader.h"
#include "weft/data/fake.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"

namespace weft::data {
namespace {

FakeData images(std::int64_t size, ImageFormat format = {}) {
  return {size, {2, 4, 3}, 5, {.seed = 4, .format = std::move(format)}};
}

// Two devices of each kind; work without a named device is on the host.
class Resident : public testing::DeviceParam {
 protected:
  void SetUp() override {
    set_host_devices(2);
    DeviceParam::SetUp();
    thread_state().device = Device();
  }
  void TearDown() override {
    DeviceParam::TearDown();
    set_host_devices(devices_);
  }

 private:
  const int devices_ = host_device_count();
};
WEFT_FOR_EACH_DEVICE(Resident);

// All batches of two epochs, the state after the first batch, and the generator's next number.
struct Epochs {
  std::vector<std::vector<float>> x;
  std::vector<std::vector<std::int64_t>> label;
  std::string state;
  std::uint64_t next = 0;
  friend bool operator==(const Epochs&, const Epochs&) = default;
};

Epochs epochs_of(const FakeData& set, const DataLoaderOptions& options) {
  manual_seed(9);
  Epochs result;
  DataLoader loader(set, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x, label] : loader) {
      EXPECT_EQ(x.device(), options.device);
      EXPECT_EQ(label.device(), options.device);
      result.x.push_back(x.to_vector<float>());
      result.label.push_back(label.to_vector<std::int64_t>());
      if (result.state.empty()) result.state = loader.state();
    }
  }
  result.next = default_generator().random64();
  return result;
}

// More samples than are read at once, on every device.
TEST_P(Resident, TheSameBatchesAsTheLoaders) {
  const FakeData set = images(1100);
  for (int index = 0; index < device_count(GetParam()); ++index) {
    const Device device(GetParam(), index);
    for (const bool shuffle : {false, true}) {
      DataLoaderOptions options{.batch_size = 96,
                                .shuffle = shuffle,
                                .workers = 2,
                                .drop_last = shuffle,
                                .device = device};
      const Epochs expected = epochs_of(set, options);
      options.device_resident = true;
      EXPECT_EQ(epochs_of(set, options), expected) << device << " shuffle " << shuffle;
    }
  }
}

TEST_P(Resident, GoesOnWhereALoaderStood) {
  const DataLoaderOptions plain{.batch_size = 7, .shuffle = true, .device = device()};
  DataLoaderOptions resident = plain;
  resident.device_resident = true;
  manual_seed(2);
  DataLoader first(images(20), plain);
  auto it = first.begin();
  const std::string state = first.state();
  ++it;
  const auto expected = it->x.to_vector<float>();

  DataLoader second(images(20), resident);
  second.set_state(state);
  EXPECT_EQ(second.begin()->x.to_vector<float>(), expected);
}

// A batch is copied into the tensors that a captured step reads; the step itself does not use the
// loader.
TEST_P(Resident, BesideACapturedStep) {
  DataLoader loader(images(12), {.batch_size = 4, .device = device(), .device_resident = true});
  const Tensor x = zeros({4, 2, 4, 3}, device());
  Tensor total;
  graph::Step step = graph::capture(device(), [&] { total = raw::sum(x); });
  for (auto& batch : loader) {
    raw::copy_(x, batch.x);
    step();
    EXPECT_EQ(total.item<float>(), raw::sum(batch.x).item<float>());
  }
  graph::Step inside = graph::capture(device(), [&] { loader.begin(); });
  inside();
  EXPECT_WEFT_ERROR(inside(), Unsupported, "[dataloader] cannot be captured");
}

TEST_P(Resident, BatchesThatAreKeptStay) {
  DataLoader loader(images(12), {.batch_size = 4, .device = device(), .device_resident = true});
  std::vector<Tensor> kept;
  for (auto& batch : loader) kept.push_back(batch.x);
  std::size_t i = 0;
  for (auto& batch : loader) {
    EXPECT_EQ(kept[i++].to_vector<float>(), batch.x.to_vector<float>());
  }
}

TEST_P(Resident, RandomTransformsAreRefused) {
  const ImageFormat format{.transform = RandomHorizontalFlip()};
  EXPECT_WEFT_ERROR(DataLoader(images(64, format), {.device_resident = true}), InvalidArgument,
                    "would freeze the random transforms of this set");
  const ImageFormat fixed{.transform = Pad(1)};
  DataLoader loader(images(64, fixed), {.device_resident = true});
  EXPECT_EQ(loader.begin()->x.shape(), (Shape{1, 2, 6, 5}));
}

TEST_P(Resident, ASetAboveTheLimitIsRefused) {
  // 24 floats and a label each
  EXPECT_WEFT_ERROR(
      DataLoader(images(64), {.device_resident = true, .device_resident_limit = 64 * 104 - 1}),
      InvalidArgument,
      "device_resident: 64 samples of 104 bytes each are above the limit of 6655 bytes; raise");
  EXPECT_NO_THROW(
      DataLoader(images(64), {.device_resident = true, .device_resident_limit = 64 * 104}));
}

// Draws from the thread's generator, as a set without a seed parameter has to.
struct Noise {
  std::int64_t size() const { return 4; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return randn({static_cast<std::int64_t>(indices.size())});
  }
};

TEST_P(Resident, ASetThatDrawsFromTheGeneratorIsRefusedAndLeavesItAlone) {
  manual_seed(3);
  const std::uint64_t next = default_generator().random64();
  manual_seed(3);
  EXPECT_WEFT_ERROR(DataLoader(Noise(), {.device_resident = true}), InvalidArgument,
                    "would freeze the random transforms of this set");
  EXPECT_EQ(default_generator().random64(), next);
}

// One number for the whole batch.
struct Sums {
  std::int64_t size() const { return 4; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return scalar(static_cast<double>(indices.size()));
  }
};

TEST_P(Resident, TensorsWithoutARowPerSampleAreRefused) {
  EXPECT_WEFT_ERROR(DataLoader(Sums(), {.device_resident = true}), InvalidArgument,
                    "device_resident needs a row for each sample: got [] for 4 samples");
}

// A batch whose default has no tensors at all.
struct Lists {
  std::int64_t size() const { return 6; }
  std::vector<Tensor> get_batch(std::span<const std::int64_t> indices) const {
    const Tensor x = from_span(indices, {static_cast<std::int64_t>(indices.size())}, Device());
    return {x, raw::mul(x, 10)};
  }
};

TEST_P(Resident, BatchesMayBeLists) {
  DataLoader loader(Lists(), {.batch_size = 3, .device = device(), .device_resident = true});
  std::int64_t next = 0;
  for (const std::vector<Tensor>& batch : loader) {
    ASSERT_EQ(batch.size(), 2u);
    EXPECT_EQ(batch[0].to_vector<std::int64_t>(),
              (std::vector<std::int64_t>{next, next + 1, next + 2}));
    EXPECT_EQ(batch[1].to_vector<std::int64_t>()[0], 10 * next);
    next += 3;
  }
  EXPECT_EQ(next, 6);
}

TEST_P(Resident, AnEmptySetHasNoBatches) {
  DataLoader loader(
      images(0), {.batch_size = 4, .shuffle = true, .device = device(), .device_resident = true});
  EXPECT_TRUE(loader.begin() == loader.end());
}

}  // namespace
}  // namespace weft::data
