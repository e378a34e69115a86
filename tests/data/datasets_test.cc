// TensorDataset, Subset, random_split and ConcatDataset, alone and in a DataLoader.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/data/concat_dataset.h"
#include "weft/data/dataloader.h"
#include "weft/data/fake.h"
#include "weft/data/image_set.h"
#include "weft/data/subset.h"
#include "weft/data/tensor_dataset.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/data/numbers.h"

namespace weft::data {
namespace {

using Indices = std::vector<std::int64_t>;
using testing::Numbers;

Indices numbers_of(const Tensor& x) { return x.to_vector<std::int64_t>(); }

bool same(const Tensor& a, const Tensor& b) {
  const auto values = [](const Tensor& x) { return raw::to(x, DType::f64).to_vector<double>(); };
  return a.dtype() == b.dtype() && a.shape() == b.shape() && values(a) == values(b);
}

// --- TensorDataset -------------------------------------------------------------------------------

TEST(TensorDataset, GivesRows) {
  const Tensor x = arange(0, 24).reshape({4, 3, 2}), y = arange(10, 14);
  const TensorDataset set(x, y);
  EXPECT_EQ(set.size(), 4);
  const auto [rows, values] = set.get_batch(Indices{2, 0, 2});
  EXPECT_EQ(rows.shape(), Shape({3, 3, 2}));
  EXPECT_EQ(numbers_of(rows),
            (Indices{12, 13, 14, 15, 16, 17, 0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(numbers_of(values), (Indices{12, 10, 12}));
  EXPECT_EQ(set.get_batch({})[0].shape(), Shape({0, 3, 2}));
  x.fill_(7);
  EXPECT_EQ(numbers_of(set.get_batch(Indices{1})[0]), Indices(6, 7)) << "the memory is shared";
}

TEST(TensorDataset, OfEveryDtypeAndLayout) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor whole = arange(0, 12).reshape({4, 3}).to(dtype);
    const Tensor strided = raw::transpose(raw::contiguous(raw::transpose(whole, 0, 1)), 0, 1);
    const Tensor every = raw::cat(std::vector{whole, whole}, 1).slice(1, 0, 6, 2);
    const TensorDataset set(whole, strided, every);
    const auto [a, b, c] = set.get_batch(Indices{3, 1});
    for (const Tensor& part : {a, b, c}) EXPECT_EQ(part.dtype(), dtype);
    const Tensor index = from_vector(Indices{3, 1}, {2});
    EXPECT_TRUE(same(a, raw::index_select(whole, 0, index))) << dtype;
    EXPECT_TRUE(same(b, raw::index_select(strided, 0, index))) << dtype;
    EXPECT_TRUE(same(c, raw::index_select(every, 0, index))) << dtype;
  }
}

TEST(TensorDataset, OfNothing) {
  const TensorDataset none(zeros({0, 3})), hollow(zeros({2, 0}));
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(hollow.get_batch(Indices{1, 0, 1})[0].shape(), Shape({3, 0}));
  DataLoader loader(none, {.batch_size = 4, .shuffle = true});
  EXPECT_TRUE(loader.begin() == loader.end());
}

TEST(TensorDataset, HasNoTape) {
  const Tensor x = ones({2, 2}).set_requires_grad();
  EXPECT_FALSE(TensorDataset(x).get_batch(Indices{0})[0].requires_grad());
}

TEST(TensorDataset, RefusesBadArguments) {
  const Tensor x = zeros({4, 3});
  EXPECT_WEFT_ERROR((TensorDataset{x, zeros({3})}), Shape,
                    "[tensor_dataset] tensor 1 [3] has 3 rows, tensor 0 [4,3] has 4");
  EXPECT_WEFT_ERROR((TensorDataset{x, scalar(1)}), Shape, "tensor 1 has no dimension of samples");
  EXPECT_WEFT_ERROR(TensorDataset{Tensor()}, InvalidArgument, "tensor 0 is undefined");
  const TensorDataset set(x);
  EXPECT_WEFT_ERROR(set.get_batch(Indices{0, 4}), InvalidArgument, "index 4 is outside the 4");
  EXPECT_WEFT_ERROR(set.get_batch(Indices{-1}), InvalidArgument, "index -1 is outside the 4");
}

TEST(TensorDataset, UnderALoader) {
  const Tensor x = rand({20, 3}), y = arange(0, 20);
  for (const int workers : {0, 2}) {
    for (const bool resident : {false, true}) {
      DataLoader loader(
          TensorDataset(x, y),
          {.batch_size = 6, .shuffle = true, .workers = workers, .device_resident = resident});
      std::set<std::int64_t> seen;
      std::set<const void*> addresses;
      for (auto& [rows, index] : loader) {
        EXPECT_TRUE(same(rows, raw::index_select(x, 0, index)));
        for (const std::int64_t i : numbers_of(index)) seen.insert(i);
        addresses.insert(rows.raw_data());
      }
      EXPECT_EQ(seen.size(), 20u);
      if (!resident) {
        for (auto& [rows, index] : loader) addresses.insert(rows.raw_data());
        EXPECT_LE(addresses.size(), 5u) << "workers x prefetch, and the one in use";
      }
    }
  }
}

// --- Subset and random_split ---------------------------------------------------------------------

TEST(Subset, GivesTheChosen) {
  const Subset set(Numbers{10}, {7, 3, 3, 9});
  EXPECT_EQ(set.size(), 4);
  EXPECT_EQ(numbers_of(set.get_batch(Indices{3, 0, 2}).x), (Indices{9, 7, 3}));
  // A subset of a subset, and through AnyDataset: the same code, nested.
  const Subset inner(set, {2, 0});
  EXPECT_EQ(numbers_of(inner.get_batch(Indices{1, 0}).x), (Indices{7, 3}));
  using Any = AnyDataset<Numbers::Batch>;
  const Subset outer(Any(Subset(Any(Numbers{10}), {7, 3, 3, 9})), {3, 2, 1, 0, 0});
  EXPECT_EQ(numbers_of(outer.get_batch(Indices{0, 1, 4}).x), (Indices{9, 3, 7}));
  EXPECT_EQ(numbers_of(outer.get_batch(Indices{4, 1, 0}).x), (Indices{7, 3, 9}));
  EXPECT_EQ(Subset(Numbers{10}, {}).size(), 0);
}

TEST(Subset, RefusesIndicesOutside) {
  EXPECT_WEFT_ERROR(Subset(Numbers{3}, {0, 3}), InvalidArgument,
                    "[subset] index 3 is outside the 3 samples");
  const Subset set(Numbers{3}, {1, 2});
  EXPECT_WEFT_ERROR(set.get_batch(Indices{2}), InvalidArgument, "index 2 is outside the 2");
  EXPECT_WEFT_ERROR(set.get_batch(Indices{-1}), InvalidArgument, "index -1 is outside the 2");
  EXPECT_EQ(numbers_of(set.get_batch(Indices{1}).x), Indices{2});
}

// A set's use of memory and seed must also work through the sets that contain it.
struct Spy {
  using Batch = Numbers::Batch;
  std::int64_t size() const { return 8; }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    return Numbers{8}.get_batch(indices);
  }
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const {
    Numbers{8}.get_batch(indices, batch, memory);
    raw::binary_(BinaryOp::add, batch.x,
                 scalar(static_cast<double>(epoch_seed), {DType::i64, Device()}));
  }
};

TEST(Datasets, MemoryAndSeedReachTheSet) {
  const Subset subset(Spy(), {5, 6, 7, 0});
  const ConcatDataset both(subset, Spy());
  Spy::Batch batch;
  subset.get_batch(Indices{0, 1}, batch, HostMemory(), 100);
  EXPECT_EQ(numbers_of(batch.x), (Indices{105, 106}));
  const void* const memory = batch.x.raw_data();
  both.get_batch(Indices{3, 2}, batch, HostMemory(), 100);
  EXPECT_EQ(numbers_of(batch.x), (Indices{100, 107}));
  EXPECT_EQ(batch.x.raw_data(), memory);
  both.get_batch(Indices{4, 5}, batch, HostMemory(), 100);  // 4 samples come before
  EXPECT_EQ(numbers_of(batch.x), (Indices{104, 105}));
  EXPECT_EQ(batch.x.raw_data(), memory);
  both.get_batch(Indices{4, 0}, batch, HostMemory(), 100);
  EXPECT_EQ(numbers_of(batch.x), (Indices{104, 105}));
  EXPECT_EQ(batch.x.raw_data(), memory) << "put together";
  // Two samples with one seed: 100 + 5 of the subset's set, 100 + 4 before + 1 of the other.
  both.get_batch(Indices{0, 5}, batch, HostMemory(), 100);
  EXPECT_EQ(numbers_of(batch.x), (Indices{105, 105}));
}

// A set whose batches are views of memory of its own.
struct Views {
  using Batch = Numbers::Batch;
  std::int64_t size() const { return std::ssize(*memory); }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    const auto first = static_cast<std::size_t>(indices[0]);
    return {borrow(std::span(*memory).subspan(first, indices.size()), {std::ssize(indices)})};
  }
  std::shared_ptr<std::vector<std::int64_t>> memory;
};

TEST(Datasets, BorrowedMemoryIsNotFilled) {
  const Views views{std::make_shared<std::vector<std::int64_t>>(Indices{50, 51, 52, 53})};
  DataLoader loader(ConcatDataset(views, Numbers{4}), {.batch_size = 4});
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<Indices> batches;
    for (auto& [x] : loader) batches.push_back(numbers_of(x));
    EXPECT_EQ(batches, (std::vector<Indices>{{50, 51, 52, 53}, {0, 1, 2, 3}})) << epoch;
  }
  // Nor is what a loop has put into its batch.
  Indices own(4, 7);
  for (auto& [x] : loader) x = borrow(std::span(own), {4});
  EXPECT_EQ(own, Indices(4, 7));
}

// A set whose batches have new tensors each time.
struct Plain {
  std::int64_t size() const { return 8; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return from_span(indices, {static_cast<std::int64_t>(indices.size())}, Device());
  }
};

TEST(Datasets, ASetWithoutMemoryOfItsOwnWillDo) {
  DataLoader loader(ConcatDataset(Subset(Plain(), {5, 6}), Plain()),
                    {.batch_size = 3, .workers = 2});
  std::vector<Indices> batches;
  for (auto& batch : loader) batches.push_back(numbers_of(batch));
  EXPECT_EQ(batches, (std::vector<Indices>{{5, 6, 0}, {1, 2, 3}, {4, 5, 6}, {7}}));
}

TEST(RandomSplit, IsPyTorchs) {
  const auto cases = nlohmann::json::parse(std::ifstream("tests/data/goldens/splits.json"));
  ASSERT_EQ(cases.size(), 8u);
  for (const auto& item : cases) {
    SCOPED_TRACE(item.dump());
    Split split;
    if (item.contains("lengths")) split.lengths = item["lengths"].get<Indices>();
    if (item.contains("fractions")) split.fractions = item["fractions"].get<std::vector<double>>();
    manual_seed(item["seed"]);
    const auto parts = random_split(Numbers{item["size"]}, split);
    ASSERT_EQ(parts.size(), item["parts"].size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].indices(), item["parts"][i].get<Indices>()) << i;
      EXPECT_EQ(&parts[i].dataset(), &parts[0].dataset()) << "one set";
    }
    EXPECT_EQ(default_generator().random64() & ((std::uint64_t{1} << 63) - 1),
              item["next"].get<std::uint64_t>());
  }
}

TEST(RandomSplit, TakesAGenerator) {
  Generator own(3);
  manual_seed(0);
  const std::string before = default_generator().state();
  const auto parts = random_split(Numbers{6}, {.lengths = {6}}, own);
  EXPECT_EQ(parts[0].indices(), Generator(3).randperm(6));
  EXPECT_EQ(default_generator().state(), before);
}

TEST(RandomSplit, RefusesBadArguments) {
  const auto refuses = [](const Split& split, const char* text) {
    EXPECT_WEFT_ERROR(random_split(Numbers{10}, split), InvalidArgument, text);
  };
  refuses({}, "[random_split] needs lengths or fractions, and not both");
  refuses({.lengths = {10}, .fractions = {1}}, "and not both");
  refuses({.lengths = {5, 4}}, "the lengths add up to 9, the data set has 10");
  refuses({.lengths = {11, -1}}, "a length is -1");
  refuses({.lengths = {4, 7}}, "the lengths add up to more than the 10 samples of the data set");
  // 10 modulo 2^64
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  refuses({.lengths = {most, most, 12}}, "add up to more than the 10 samples");
  refuses({.fractions = {0.5, 0.4}}, "the fractions add up to 0.9, not to 1");
  refuses({.fractions = {1.5, -0.5}}, "a fraction is -0.5");
}

TEST(RandomSplit, FractionsOfMoreSamplesThanF64CanCount) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(split_lengths({.fractions = {1}}, most), (Indices{most}));
  const Indices halves = split_lengths({.fractions = {0.5, 0.5}}, most);
  EXPECT_EQ(halves, (Indices{std::int64_t{1} << 62, (std::int64_t{1} << 62) - 1}));
  EXPECT_WEFT_ERROR(split_lengths({.fractions = {1}}, -1), InvalidArgument,
                    "the size of the data set is -1");
}

// --- ConcatDataset -------------------------------------------------------------------------------

FakeData images(std::int64_t size, std::uint64_t seed, ImageFormat format = {}) {
  return {size, {1, 4, 3}, 5, {.seed = seed, .format = std::move(format)}};
}

TEST(ConcatDataset, JoinsSets) {
  const FakeData first = images(5, 1), second = images(3, 2), third = images(4, 3);
  const ConcatDataset set(first, Subset(second, {2, 1}), third);
  EXPECT_EQ(set.size(), 11);
  const auto [x, label] = set.get_batch(Indices{10, 4, 5, 0, 6, 7, 10});
  const auto parts = {third.get_batch(Indices{3}),  first.get_batch(Indices{4}),
                      second.get_batch(Indices{2}), first.get_batch(Indices{0}),
                      second.get_batch(Indices{1}), third.get_batch(Indices{0}),
                      third.get_batch(Indices{3})};
  std::vector<Tensor> rows, labels;
  for (const auto& part : parts) {
    rows.push_back(part.x);
    labels.push_back(part.label);
  }
  EXPECT_TRUE(same(x, raw::cat(rows, 0)));
  EXPECT_TRUE(same(label, raw::cat(labels, 0)));
  // All from one set, and none at all.
  EXPECT_TRUE(same(set.get_batch(Indices{1, 0}).x, first.get_batch(Indices{1, 0}).x));
  EXPECT_EQ(ConcatDataset(Numbers{2}, Numbers{3}).get_batch({}).x.shape(), Shape({0}));
}

TEST(ConcatDataset, OfAnyNumberOfSets) {
  const ConcatDataset set(std::vector<Numbers>{{2}, {0}, {3}});
  EXPECT_EQ(set.size(), 5);
  EXPECT_EQ(numbers_of(set.get_batch(Indices{4, 1, 2, 0, 3}).x), (Indices{2, 1, 0, 0, 1}));
  EXPECT_WEFT_ERROR(ConcatDataset(std::vector<Numbers>{}), InvalidArgument,
                    "[concat_dataset] got no data set");
  EXPECT_WEFT_ERROR(set.get_batch(Indices{5}), InvalidArgument, "index 5 is outside the 5");
  EXPECT_WEFT_ERROR(set.get_batch(Indices{-1}), InvalidArgument, "index -1 is outside the 5");
}

TEST(ConcatDataset, RefusesRowsThatDoNotGoTogether) {
  const Indices both{0, 5};
  const auto joined = [&](const Tensor& a, const Tensor& b) {
    return ConcatDataset(TensorDataset(a), TensorDataset(b)).get_batch(both);
  };
  EXPECT_EQ(joined(zeros({5, 2}), ones({5, 2}))[0].to_vector<float>(),
            (std::vector<float>{0, 0, 1, 1}));
  EXPECT_WEFT_ERROR(joined(zeros({5, 2}), zeros({5, 3})), Shape,
                    "[concat_dataset] set 1 gives rows of f32 [1,3], one before it of f32 [2,2]");
  EXPECT_WEFT_ERROR(joined(zeros({5, 2}), zeros({5, 2}, DType::f64)), Shape,
                    "set 1 gives rows of f64 [1,2], one before it of f32 [2,2]");
  struct Sums {
    std::int64_t size() const { return 5; }
    Tensor get_batch(std::span<const std::int64_t>) const { return scalar(1); }
  };
  EXPECT_WEFT_ERROR(ConcatDataset(Sums(), Sums()).get_batch(both), Shape,
                    "set 0 gives [] for 1 samples; a row for each is needed");
  struct Lists {
    std::size_t tensors;
    std::int64_t size() const { return 5; }
    std::vector<Tensor> get_batch(std::span<const std::int64_t> indices) const {
      return std::vector<Tensor>(tensors, zeros({static_cast<std::int64_t>(indices.size())}));
    }
  };
  EXPECT_EQ(ConcatDataset(Lists{2}, Lists{2}).get_batch(both).size(), 2u);
  EXPECT_WEFT_ERROR(ConcatDataset(Lists{2}, Lists{3}).get_batch(both), Shape,
                    "set 1 gives batches of 3 tensors, one before it of 2");
}

// All of it together: the same batches for any number of workers, on the device, and after a
// resume.
TEST(Datasets, UnderALoader) {
  const auto shade = [](Picture& picture, Generator& generator) {
    for (std::uint8_t& pixel : picture.pixels)
      pixel = static_cast<std::uint8_t>(generator.random32());
  };
  for (const bool random : {false, true}) {
    const ImageFormat format{.transform = random ? Transform(shade) : nullptr};
    const ConcatDataset joined(ImageSet(images(30, 1, format)), images(20, 2, format));
    manual_seed(1);
    const auto set = random_split(joined, {.fractions = {0.7, 0.3}})[0];
    struct Read {
      std::vector<std::vector<float>> x;
      std::vector<Indices> label;
      bool operator==(const Read&) const = default;
    };
    const auto options = [](int workers, bool resident) {
      return DataLoaderOptions{
          .batch_size = 8, .shuffle = true, .workers = workers, .device_resident = resident};
    };
    const auto read = [](auto& loader, Read& to) {
      for (auto& [x, label] : loader) {
        to.x.push_back(x.template to_vector<float>());
        to.label.push_back(numbers_of(label));
      }
    };
    Read expected;
    manual_seed(9);
    DataLoader plain(set, options(0, false));
    read(plain, expected);
    ASSERT_EQ(expected.x.size(), 5u);
    for (const int workers : {1, 3}) {
      manual_seed(9);
      DataLoader loader(set, options(workers, false));
      Read all;
      std::string state;
      {
        auto it = loader.begin();
        ++it;
        all.x = {expected.x[0], it->x.to_vector<float>()};
        all.label = {expected.label[0], numbers_of(it->label)};
        state = loader.state();
      }
      DataLoader rest(set, options(workers - 1, false));
      rest.set_state(state);
      read(rest, all);
      EXPECT_EQ(all, expected) << workers;
    }
    if (random) {
      EXPECT_WEFT_ERROR(DataLoader(set, options(0, true)), InvalidArgument,
                        "would freeze the random transforms of this set");
    } else {
      manual_seed(9);
      DataLoader resident(set, options(0, true));
      Read all;
      read(resident, all);
      EXPECT_EQ(all, expected);
    }
  }
}

}  // namespace
}  // namespace weft::data
