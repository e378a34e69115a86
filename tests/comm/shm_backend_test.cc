// Shared memory: what allocate() returns, and what is left afterwards. backend_test.cc tests what
// it shares with the other backends.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using testing::as_ranks;
using testing::Doubles;
using testing::Numbers;
using testing::patience;
using testing::sum_of_ranks;
using testing::values_of;

constexpr std::int64_t kCount = 70'001;

Buffer fill(const Storage& memory, std::int64_t first, const Doubles& values) {
  auto* const numbers = static_cast<float*>(memory.data()) + first;
  std::ranges::copy(values, numbers);
  return {numbers, static_cast<std::int64_t>(values.size()), DType::f32};
}

Doubles numbers_in(const Buffer& x) {
  const auto* const numbers = static_cast<const float*>(x.data);
  return Doubles(numbers, numbers + x.count);
}

TEST(ShmBackend, MemoryItGivesIsReducedWhereverInItTheNumbersLie) {
  for (const int n : {1, 2, 3, 5}) {
    as_ranks(shm_backend(), n, [&](Backend& backend) {
      const auto memory = backend.allocate((kCount + 100) * sizeof(float), patience());
      EXPECT_EQ(memory->bytes(), (kCount + 100) * sizeof(float));
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, kCount}) {
        for (const std::int64_t first : {0, 1, 99}) {
          const Buffer x = fill(*memory, first, values_of(backend.rank(), count));
          backend.all_reduce(x, ReduceOp::sum, patience());
          ASSERT_EQ(numbers_in(x), sum_of_ranks(n, count)) << count << " from " << first;
        }
      }
    });
  }
}

// The numbers next to the buffer do not change.
TEST(ShmBackend, ReducesNoMoreThanItIsAskedTo) {
  as_ranks(shm_backend(), 3, [&](Backend& backend) {
    const auto memory = backend.allocate(1000 * sizeof(float), patience());
    const Buffer all = fill(*memory, 0, Doubles(1000, backend.rank() + 1));
    backend.all_reduce(all.part(100, 17), ReduceOp::sum, patience());
    Doubles expected(1000, backend.rank() + 1);
    std::fill_n(expected.begin() + 100, 17, 6);
    EXPECT_EQ(numbers_in(all), expected);
  });
}

TEST(ShmBackend, AllReduceOfItsMemoryAndOfOtherMemoryFitTogether) {
  as_ranks(shm_backend(), 2, [&](Backend& backend) {
    const auto memory = backend.allocate(kCount * sizeof(float), patience());
    Numbers other(values_of(backend.rank(), kCount), DType::f32);
    const Buffer mine = fill(*memory, 0, values_of(backend.rank(), kCount));
    // Rank 1's numbers are in other memory; then at another place of the same memory.
    const Buffer x = backend.rank() == 1 ? other.buffer() : mine;
    backend.all_reduce(x, ReduceOp::sum, patience());
    EXPECT_EQ(numbers_in(x), sum_of_ranks(2, kCount));
    const Buffer y = fill(*memory, backend.rank() * 5, values_of(backend.rank(), 1000));
    backend.all_reduce(y, ReduceOp::sum, patience());
    EXPECT_EQ(numbers_in(y), sum_of_ranks(2, 1000));
  });
}

TEST(ShmBackend, MemoryMayBeGivenBackAndTakenAnew) {
  as_ranks(shm_backend(), 2, [&](Backend& backend) {
    intrusive_ptr<Storage> kept;
    for (int i = 0; i < 5; ++i) {
      const auto memory = backend.allocate(100 * sizeof(float), patience());
      for (const auto& each : {memory, kept}) {
        if (!each) continue;
        const Buffer x = fill(*each, 0, values_of(backend.rank() + i, 100));
        backend.all_reduce(x, ReduceOp::max, patience());
        Doubles expected = values_of(i, 100);
        const Doubles other = values_of(1 + i, 100);
        for (std::size_t k = 0; k < expected.size(); ++k) {
          expected[k] = std::max(expected[k], other[k]);
        }
        ASSERT_EQ(numbers_in(x), expected);
      }
      if (i == 2) kept = memory;
    }
  });
}

TEST(ShmBackend, OutlivesItsBackend) {
  std::vector<intrusive_ptr<Storage>> memory(2);
  as_ranks(shm_backend(), 2, [&](Backend& backend) {
    auto& own = memory[static_cast<std::size_t>(backend.rank())];
    own = backend.allocate(100 * sizeof(float), patience());
    fill(*own, 0, values_of(backend.rank(), 100));
  });
  for (int r = 0; r < 2; ++r) {
    const auto* const numbers =
        static_cast<const float*>(memory[static_cast<std::size_t>(r)]->data());
    EXPECT_EQ(Doubles(numbers, numbers + 100), values_of(r, 100));
  }
}

TEST(ShmBackend, AGroupMakesTensorsInIt) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::jthread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      ProcessGroup group(shm_backend(), store, r, 3);
      const Tensor x = group.empty({4, 5}, DType::f64), none = group.empty({0, 5});
      EXPECT_EQ(x.shape(), Shape({4, 5}));
      EXPECT_EQ(x.dtype(), DType::f64);
      EXPECT_FALSE(x.storage()->owned());
      raw::fill_(x, r + 1);
      group.all_reduce(x).wait();
      EXPECT_EQ(x.to_vector<double>(), Doubles(20, 6));
      group.all_reduce(none).wait();
      EXPECT_EQ(none.numel(), 0);
      group.barrier().wait();
    });
  }
  ranks.clear();
  ProcessGroup alone(shm_backend(), nullptr, 0, 1);
  EXPECT_EQ(alone.empty({2, 3}).shape(), Shape({2, 3}));
}

TEST(ShmBackend, MemoryOfAnotherSizeThanRankZerosIsAnError) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::jthread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      ProcessGroup group(shm_backend(), store, r, 2);
      EXPECT_WEFT_ERROR(group.empty({r == 1 ? 1'000'000 : 100}), Comm,
                        "rank 0 calls operation 1, empty of 400 bytes, rank 1 calls operation 1, "
                        "empty of 4000000 bytes");
    });
  }
}

TEST(ShmBackend, CallsThatDoNotFitAreNamedOnAllRanks) {
  as_ranks(shm_backend(), 3, [&](Backend& backend) {
    Numbers x(backend.rank() == 2 ? DType::f64 : DType::f32, 10);
    EXPECT_WEFT_ERROR(backend.all_reduce(x.buffer(), ReduceOp::sum, patience()), Comm,
                      "rank 0 has 10 f32 (sum), rank 2 has 10 f64 (sum)");
    EXPECT_WEFT_ERROR(backend.barrier(patience()), Comm, "rank 0 has 10 f32");
  });
}

TEST(ShmBackend, GathersAndReduceScattersThatDoNotFitAreNamed) {
  as_ranks(shm_backend(), 2, [&](Backend& backend) {
    Numbers own(DType::f32, 10 + backend.rank()), all(DType::f32, 30);
    EXPECT_WEFT_ERROR(backend.all_gather(own.buffer(), all.buffer(), patience()), Comm,
                      "all_gather: rank 0 has 10 f32 (sum), rank 1 has 11 f32");
  });
  as_ranks(shm_backend(), 2, [&](Backend& backend) {
    const DType dtype = backend.rank() == 1 ? DType::f64 : DType::f32;
    Numbers all(dtype, 20), own(dtype, 10);
    EXPECT_WEFT_ERROR(backend.reduce_scatter(all.buffer(), own.buffer(), ReduceOp::sum, patience()),
                      Comm, "reduce_scatter: rank 0 has 20 f32 (sum), rank 1 has 20 f64");
  });
}

std::size_t mappings() {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);)
    count += line.find("memfd:weft") != std::string::npos;
  return count;
}

std::size_t descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(ShmBackend, NothingIsLeftOfIt) {
  const std::size_t before = descriptors();
  ASSERT_EQ(mappings(), 0U);
  as_ranks(shm_backend(), 3, [&](Backend& backend) {
    const auto memory = backend.allocate(1 << 20, patience());
    backend.barrier(patience());
    EXPECT_GE(mappings(), 4U);
    backend.barrier(patience());
  });
  EXPECT_EQ(mappings(), 0U);
  EXPECT_EQ(descriptors(), before);
}

// The names on which ranks listen cannot be reached, as on another host.
class Elsewhere final : public Store {
 public:
  explicit Elsewhere(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::unique_ptr<Store> duplicate() const override { return store_->duplicate(); }
  std::string describe() const override { return store_->describe(); }

 private:
  void do_set(const std::string& key, std::string_view value, const Deadline&) override {
    store_->set(key, value);
  }
  std::optional<std::string> do_get(const std::string& key, const Deadline& deadline) override {
    const std::string value = store_->get(key, deadline);
    return key.starts_with("local/name") ? "nobody" : value;
  }
  std::optional<std::string> do_try_get(const std::string& key, const Deadline&) override {
    return store_->try_get(key);
  }
  std::int64_t do_add(const std::string& key, std::int64_t delta, const Deadline&) override {
    return store_->add(key, delta);
  }
  std::string do_set_once(const std::string& key, std::string_view value,
                          const Deadline&) override {
    return store_->set_once(key, value);
  }
  bool do_erase(const std::string& key, const Deadline&) override { return store_->erase(key); }

  std::shared_ptr<Store> store_;
};

TEST(ShmBackend, IsForOneHostAndAllRanksKnow) {
  const BackendMaker make = [](const std::shared_ptr<Store>& store, int rank, int size,
                               const Deadline& deadline) {
    std::unique_ptr<Backend> backend;
    const auto seen = rank == 2 ? std::make_shared<Elsewhere>(store) : store;
    EXPECT_WEFT_ERROR(backend = shm_backend()(seen, rank, size, deadline), Unsupported,
                      "rank 2 cannot reach rank 0 by a Unix socket: it is on another host");
    return thread_backend()(store, rank, size, deadline);
  };
  as_ranks(make, 3, [](Backend&) {});
}

}  // namespace
}  // namespace weft::comm
