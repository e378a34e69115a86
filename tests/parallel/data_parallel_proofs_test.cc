// The two proofs that replicas compute what one device does: four models, 1 to 4 devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "weft/parallel/data_parallel.h"
#include "weft/tests/every_case.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/devices.h"
#include "weft/tests/parallel/models.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::batch_of;
using testing::LabelledBatch;
using testing::loss_of;
using testing::optimizer_of;
using testing::relative_difference;
using testing::same_bits;
using testing::seeded;
using testing::with_model;

class DataParallelProofs : public testing::DevicesTest {
 protected:
  static LabelledBatch here(const LabelledBatch& batch) {
    return {batch.x.to(first()), batch.label.to(first())};
  }
};

constexpr const char* kModels[] = {"mlp", "autoencoder", "cnn", "recurrent"};

// (a) f32, two devices, bit for bit: the sum of the gradients of both halves. The loss is a mean
// over the whole batch, so each half counts half.
TEST_P(DataParallelProofs, TwoDevicesAreOneBitForBit) {
  constexpr int kSteps = 12, kShard = 3;
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  for (const std::string name : kModels) {
    with_model(name, [&](const auto& make, const Shape& sample) {
      const Shape shape = batch_of(2 * kShard, sample);
      const auto made = [&] {
        auto model = seeded(3, [&] { return make(testing::batch_norm); });
        model.to(first());
        return model;
      };
      auto one = made(), model = made();
      DataParallel dp(model, {.devices = devices(2)});
      const auto expected = optimizer_of(one), optimizer = optimizer_of(model);
      for (int step = 0; step < kSteps; ++step) {
        const LabelledBatch whole = here(batch(step, shape, DType::f32));
        testing::backward_of_shards(one, whole, 2);
        expected->step();
        optimizer->zero_grad();
        loss_of(dp, whole).backward();
        optimizer->step();
        const nn::NamedTensors weights = model.named_parameters(), others = one.named_parameters();
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(same_bits(weights[i].second.to(Device()), others[i].second.to(Device())))
              << name << ", step " << step << ", " << weights[i].first;
        }
      }
    });
  }
}

// 100 steps where that takes seconds: an emulated GPU takes a minute.
int steps(bool cpu) {
  if (testing::kSanitized) return 5;
  return cpu || testing::every_case() ? 100 : 10;
}

// (b) f64, one to four devices (parts of 12, 6, 4 and 3 rows), compared with the whole batch.
TEST_P(DataParallelProofs, DevicesAreOneWithTheWholeBatch) {
  constexpr int kBatch = 12;
  for (const std::string name : kModels) {
    with_model(name, [&](const auto& make, const Shape& sample) {
      // n = 0: the model itself, without DataParallel.
      const auto trained = [&](int n) {
        auto model = seeded(3, [&] { return make(testing::batch_norm); });
        model.to(first(), DType::f64);
        DataParallel dp(model, {.devices = devices(std::max(n, 1))});
        const auto optimizer = optimizer_of(model);
        for (int step = 0; step < steps(first().is_cpu()); ++step) {
          optimizer->zero_grad();
          const LabelledBatch whole = here(batch(step, batch_of(kBatch, sample), DType::f64));
          if (n == 0) {
            loss_of(model, whole).backward();
          } else {
            loss_of(dp, whole).backward();
          }
          optimizer->step();
        }
        model.to(Device());
        return model.state_dict();
      };
      auto untrained = seeded(3, [&] { return make(testing::batch_norm); });
      const nn::NamedTensors begin = untrained.state_dict(), expected = trained(0);
      for (int n = 1; n <= count(); ++n) {
        double largest = 0;
        const nn::NamedTensors got = trained(n);
        for (std::size_t i = 0; i < got.size(); ++i) {
          // Every weight must change: an unchanged one would prove nothing.
          EXPECT_GT(relative_difference(got[i].second, begin[i].second), 1e-5) << got[i].first;
          const double difference = relative_difference(got[i].second, expected[i].second);
          EXPECT_LE(difference, 1e-9) << name << ", " << got[i].first << " of " << n << " devices";
          largest = std::max(largest, difference);
        }
        RecordProperty("largest_difference_" + name + std::to_string(n),
                       ::testing::PrintToString(largest));
      }
    });
  }
}

WEFT_ON_DEVICES(DataParallelProofs);

}  // namespace
}  // namespace weft::parallel
