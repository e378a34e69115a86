// Rows of data/: each set, sampler and loader is made and, if that works, read.

#include "weft/data/any_dataset.h"
#include "weft/data/concat_dataset.h"
#include "weft/data/dataloader.h"
#include "weft/data/distributed_sampler.h"
#include "weft/data/fake.h"
#include "weft/data/subset.h"
#include "weft/data/tensor_dataset.h"
#include "weft/data/transforms.h"
#include "weft/data/weighted_random_sampler.h"
#include "weft/tests/sizes/sizes.h"

namespace weft::testing {
namespace {

/// The order of one epoch; checks that all indices are valid.
Result order(const data::Sampler& sampler, std::int64_t size) {
  Generator generator(1);
  std::vector<std::int64_t> indices;
  EXPECT_GE(sampler.size(), 0);
  sampler.order(sampler.draw_seed(generator), indices);
  EXPECT_EQ(std::ssize(indices), sampler.size());
  for (const std::int64_t i : indices) {
    EXPECT_TRUE(i >= 0 && i < size) << i;
  }
  return {};
}

Result tensors_of(const data::ImageBatch& batch) { return {batch.x, batch.label}; }

data::FakeData images(std::int64_t size = 10) { return data::FakeData(size, {3, 4, 4}, 2); }

/// A batch of four samples, each way of reading it.
template <class Set>
Result four(const Set& set) {
  const std::int64_t n = set.size();
  const std::int64_t indices[] = {0, 1, n - 2, n - 1};
  return tensors_of(set.get_batch(indices));
}

/// The first three batches of a loader.
Result first_batches(const data::FakeData& set, const data::DataLoaderOptions& options) {
  data::DataLoader loader(set, options);
  Result result;
  for (auto& [x, label] : loader) {
    result.tensors.push_back(x);
    result.tensors.push_back(label);
    if (result.tensors.size() == 6) break;
  }
  return result;
}

template <class Set>
Result batch_with_seed(const Set& set, const Sizes& s) {
  data::ImageBatch batch;
  set.get_batch(s.list(0), batch, data::HostMemory(), s[1]);
  return tensors_of(batch);
}

/// The transform applied to a picture of 5 x 6 points.
template <class Transform>
Result apply(const Transform& transform) {
  for (const bool planes : {false, true}) {
    data::Picture picture;
    picture.height = 5;
    picture.width = 6;
    if (planes) std::swap(picture.planes, picture.depth);
    picture.pixels.resize(90);
    Generator generator(1);
    transform(picture, generator);
    EXPECT_GE(picture.height, 0);
    EXPECT_GE(picture.width, 0);
    EXPECT_EQ(picture.pixels.size(),
              picture.plane_bytes() * static_cast<std::size_t>(picture.planes));
  }
  return {};
}

WEFT_SIZES(
    Samplers,
    {
        {"data::SequentialSampler::SequentialSampler(size)",
         {{10}},
         [](const Sizes& s) { return order(data::SequentialSampler(s[0]), s[0]); }},
        {"data::RandomSampler::RandomSampler(size)",
         {{10}},
         [](const Sizes& s) { return order(data::RandomSampler(s[0]), s[0]); }},
        {"data::DistributedSamplerOptions{num_replicas, rank, seed}",
         {{2}, {1}, {0}},
         [](const Sizes& s) {
           return order(
               data::DistributedSampler(10, {.num_replicas = s[0], .rank = s[1], .seed = s[2]}),
               10);
         }},
        {"data::DistributedSamplerOptions{num_replicas, rank, seed} / contiguous",
         {{2}, {1}, {0}},
         [](const Sizes& s) {
           const data::DistributedSamplerOptions options = {.num_replicas = s[0],
                                                            .rank = s[1],
                                                            .shuffle = false,
                                                            .seed = s[2],
                                                            .contiguous = true};
           return order(data::DistributedSampler(10, options), 10);
         }},
        {"data::DistributedSampler::DistributedSampler(size)",
         {{10}, {2}, {1}},
         [](const Sizes& s) {
           return order(data::DistributedSampler(s[0], {.num_replicas = s[1], .rank = s[2]}), s[0]);
         }},
        {"data::DistributedSampler::DistributedSampler(size) / contiguous",
         {{10}, {2}, {1}},
         [](const Sizes& s) {
           const data::DistributedSamplerOptions options = {
               .num_replicas = s[1], .rank = s[2], .shuffle = false, .contiguous = true};
           return order(data::DistributedSampler(s[0], options), s[0]);
         }},
        {"data::DistributedSampler::DistributedSampler(size) / without padding",
         {{10}, {2}, {1}},
         [](const Sizes& s) {
           const data::DistributedSamplerOptions options = {
               .num_replicas = s[1], .rank = s[2], .shuffle = false, .pad = false};
           return order(data::DistributedSampler(s[0], options), s[0]);
         }},
        {"data::DistributedSampler::set_epoch(epoch)",
         {{1}},
         [](const Sizes& s) {
           data::DistributedSampler sampler(10, {.num_replicas = 2});
           sampler.set_epoch(s[0]);
           return order(sampler, 10);
         }},
        {"data::WeightedRandomSampler::WeightedRandomSampler(num_samples)",
         {{2}},
         [](const Sizes& s) {
           data::WeightedRandomSampler without({1, 2, 3}, 2, false);
           order(without, 3);
           return order(data::WeightedRandomSampler({1, 2, 3}, s[0]), 3);
         }},
        {"data::WeightedRandomSampler::WeightedRandomSampler(num_samples) / without replacement",
         {{2}},
         [](const Sizes& s) {
           return order(data::WeightedRandomSampler({1, 2, 3}, s[0], false), 3);
         }},
    });

WEFT_SIZES(
    DataSets,
    {
        {"data::FakeDataOptions{seed, first}",
         {{1}, {1}},
         [](const Sizes& s) {
           return four(data::FakeData(10, {3, 4, 4}, 2, {.seed = s[0], .first = s[1]}));
         }},
        {"data::FakeData::FakeData(size, shape, classes)",
         {{10}, {3, 4, 4}, {2}},
         [](const Sizes& s) { return four(data::FakeData(s[0], s.dims(1), s[2])); }},
        {"data::FakeData::get_batch(indices)",
         {{1, 2}},
         [](const Sizes& s) { return tensors_of(images().get_batch(s.list(0))); }},
        {"data::FakeData::get_batch(indices, epoch_seed)",
         {{1, 2}, {3}},
         [](const Sizes& s) { return batch_with_seed(images(), s); }},
        {"data::AnyDataset::get_batch(indices)",
         {{1, 2}},
         [](const Sizes& s) {
           return tensors_of(data::AnyDataset<data::ImageBatch>(images()).get_batch(s.list(0)));
         }},
        {"data::AnyDataset::get_batch(indices, epoch_seed)",
         {{1, 2}, {3}},
         [](const Sizes& s) {
           return batch_with_seed(data::AnyDataset<data::ImageBatch>(images()), s);
         }},
        {"data::ConcatDataset::get_batch(indices)",
         {{1, 12}},
         [](const Sizes& s) {
           return tensors_of(data::ConcatDataset(images(), images()).get_batch(s.list(0)));
         }},
        {"data::ConcatDataset::get_batch(indices, epoch_seed)",
         {{1, 12}, {3}},
         [](const Sizes& s) {
           return batch_with_seed(data::ConcatDataset(images(), images()), s);
         }},
        {"data::FakeData::FakeData(size, shape, classes) / joined to others",
         {{10}, {10}},
         [](const Sizes& s) { return four(data::ConcatDataset(images(s[0]), images(s[1]))); }},
        {"data::Subset::Subset(indices)",
         {{9, 8, 3, 0}},
         [](const Sizes& s) { return four(data::Subset(images(), s.list(0))); }},
        {"data::Subset::get_batch(indices)",
         {{1, 2}},
         [](const Sizes& s) {
           return tensors_of(data::Subset(images(), {3, 4, 5}).get_batch(s.list(0)));
         }},
        {"data::Subset::get_batch(indices, epoch_seed)",
         {{1, 2}, {3}},
         [](const Sizes& s) { return batch_with_seed(data::Subset(images(), {3, 4, 5}), s); }},
        {"data::TensorDataset::get_batch(indices)",
         {{1, 2}},
         GIVES(data::TensorDataset(ramp({4, 3})).get_batch(s.list(0))[0])},
        {"data::Split{lengths}",
         {{0, 0, 0, 0, 10}},
         [](const Sizes& s) -> Result {
           for (const auto& part : data::random_split(images(), {.lengths = s.list(0)})) {
             EXPECT_LE(part.size(), 10);
           }
           return {};
         }},
        {"data::Split{lengths} / instead of them fractions of many samples",
         {{10}},
         RUNS(data::random_split(images(s[0]), {.fractions = {0.25, 0, 0.75}}))},
        {"data::split_lengths(size)",
         {{10}},
         [](const Sizes& s) -> Result {
           std::int64_t sum = 0;
           for (const std::int64_t length :
                data::split_lengths({.fractions = {0.25, 0, 0.75}}, s[0])) {
             EXPECT_GE(length, 0);
             sum += length;
           }
           EXPECT_EQ(sum, s[0].value);
           data::split_lengths({.fractions = {1}}, s[0]);
           data::split_lengths({.lengths = {4, 6}}, s[0]);
           return {};
         }},
    });

data::DataLoaderOptions loader_options(const Sizes& s) {
  return {.batch_size = s[0], .workers = s[1], .prefetch = s[2], .device_resident_limit = s[3]};
}
const Sizes::Values kLoader = {{4}, {1}, {2}, {1 << 20}};

WEFT_SIZES(
    Loaders,
    {
        {"data::DataLoaderOptions{batch_size, workers, prefetch, device_resident_limit}", kLoader,
         [](const Sizes& s) { return first_batches(images(), loader_options(s)); }},
        {"data::DataLoaderOptions{batch_size, workers, prefetch, device_resident_limit} / resident",
         kLoader,
         [](const Sizes& s) {
           data::DataLoaderOptions options = loader_options(s);
           options.device_resident = true;
           return first_batches(images(), options);
         }},
        {"data::FakeData::FakeData(size, shape, classes) / in a loader",
         {{10}, {2}},
         [](const Sizes& s) {
           return first_batches(images(s[0]), {.batch_size = 2, .shuffle = true, .workers = 1});
         }},
        {"data::FakeData::FakeData(size, shape, classes) / in a resident loader",
         {{10}},
         [](const Sizes& s) {
           return first_batches(images(s[0]), {.batch_size = 2,
                                               .device_resident = true,
                                               .device_resident_limit = std::int64_t{1} << 62});
         }},
    });

WEFT_SIZES(
    Transforms,
    {
        {"data::RandomCrop::RandomCrop(height, width, padding)",
         {{2}, {3}, {1}},
         [](const Sizes& s) { return apply(data::RandomCrop(s[0], s[1], s[2])); }},
        {"data::RandomCrop::RandomCrop(size, padding)",
         {{2}, {1}},
         [](const Sizes& s) { return apply(data::RandomCrop(s[0], s[1])); }},
        {"data::Pad::Pad(padding)", {{2}}, [](const Sizes& s) { return apply(data::Pad(s[0])); }},
        {"data::Resize::Resize(height, width)",
         {{4}, {3}},
         [](const Sizes& s) { return apply(data::Resize(s[0], s[1])); }},
        {"data::Resize::Resize(size)",
         {{4}},
         [](const Sizes& s) { return apply(data::Resize(s[0])); }},
        {"data::CenterCrop::CenterCrop(height, width)",
         {{2}, {3}},
         [](const Sizes& s) { return apply(data::CenterCrop(s[0], s[1])); }},
        {"data::CenterCrop::CenterCrop(size)",
         {{2}},
         [](const Sizes& s) { return apply(data::CenterCrop(s[0])); }},
        {"data::RandomResizedCrop::RandomResizedCrop(height, width)",
         {{4}, {3}},
         [](const Sizes& s) { return apply(data::RandomResizedCrop(s[0], s[1])); }},
        {"data::RandomResizedCrop::RandomResizedCrop(size)",
         {{4}},
         [](const Sizes& s) { return apply(data::RandomResizedCrop(s[0])); }},
    });

}  // namespace
}  // namespace weft::testing
