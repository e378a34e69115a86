// The algorithms of comm/backend/collectives.h: results that the backends' tests do not cover, and
// the numbers of steps and bytes that the header states.
#include "weft/comm/backend/collectives.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "weft/tests/comm/ranks.h"

namespace weft::comm {
namespace {

using testing::as_ranks;
using testing::Doubles;
using testing::Numbers;
using testing::patience;
using testing::sum_of_ranks;
using testing::values_of;

// Counts the exchanges in which data moves.
class Counted final : public Backend {
 public:
  explicit Counted(Backend& backend) : Backend(backend.rank(), backend.size()), backend_(backend) {}

  const char* name() const override { return "counted"; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    steps_ += !out.empty() || !in.empty();
    const std::int64_t before = backend_.traffic().bytes_sent;
    backend_.exchange(out, in, deadline);
    traffic_.bytes_sent += backend_.traffic().bytes_sent - before;
  }
  void abort() noexcept override { backend_.abort(); }

  int steps() const { return steps_; }

 private:
  Backend& backend_;
  int steps_ = 0;
};

void run(int n, const std::function<void(Counted&)>& f) {
  as_ranks(thread_backend(), n, [&](Backend& backend) {
    Counted counted(backend);
    f(counted);
  });
}

std::int64_t bytes_of_part(const Buffer& x, int r, int n) {
  return static_cast<std::int64_t>(part_of(x, (r + n) % n, n).bytes());
}

constexpr std::int64_t kChunk = kChunkBytes / sizeof(float);

TEST(PartOf, PartsAreNearlyEqualAndTheFirstOnesLonger) {
  std::int32_t numbers[11];
  for (const std::int64_t count : {0, 1, 4, 5, 11}) {
    const Buffer x{numbers, count, DType::i32};
    std::int64_t first = 0;
    for (int r = 0; r < 4; ++r) {
      const Buffer part = part_of(x, r, 4);
      EXPECT_EQ(part.data, numbers + first);
      EXPECT_EQ(part.count, count / 4 + (r < count % 4 ? 1 : 0));
      EXPECT_EQ(part.dtype, DType::i32);
      first += part.count;
    }
    EXPECT_EQ(first, count);
  }
}

TEST(RingAllReduce, SendsTwiceAllPartsButOneInTwoTimesNMinusOneSteps) {
  for (int n = 1; n <= 5; ++n) {
    for (const std::int64_t count : {0, 1, 3, 60, 1001, 30'011}) {
      run(n, [&](Counted& backend) {
        Numbers x(values_of(backend.rank(), count), DType::f32);
        ring_all_reduce(backend, x.buffer(), ReduceOp::sum, patience());
        ASSERT_EQ(x.doubles(), sum_of_ranks(n, count));
        EXPECT_EQ(backend.steps(), 2 * (n - 1));
        const std::int64_t all = 2 * count * 4;
        EXPECT_EQ(backend.traffic().bytes_sent,
                  all - bytes_of_part(x.buffer(), backend.rank(), n) -
                      bytes_of_part(x.buffer(), backend.rank() + 1, n));
        if (count % n == 0) {
          EXPECT_EQ(backend.traffic().bytes_sent, all * (n - 1) / n);
        }
      });
    }
  }
}

// Some ranks' parts have one chunk more than others.
TEST(RingAllReduce, BigPartsGoInChunks) {
  for (const int n : {2, 3}) {
    for (const std::int64_t count : {kChunk * n, kChunk * n + 1, 2 * kChunk * n + n - 1}) {
      run(n, [&](Counted& backend) {
        Numbers x(values_of(backend.rank(), count), DType::f32);
        ring_all_reduce(backend, x.buffer(), ReduceOp::sum, patience());
        ASSERT_EQ(x.doubles(), sum_of_ranks(n, count));
        const std::int64_t chunks = (part_of(x.buffer(), 0, n).count + kChunk - 1) / kChunk;
        EXPECT_EQ(backend.steps(), (n - 1) * (chunks + 1));
      });
    }
  }
}

TEST(RingReduceScatter, SendsAllPartsButOne) {
  run(4, [&](Counted& backend) {
    Numbers x(values_of(backend.rank(), 403), DType::f32);
    const Buffer own = part_of(x.buffer(), backend.rank(), 4);
    Numbers y(DType::f32, own.count);
    ring_reduce_scatter(backend, x.buffer(), y.buffer(), ReduceOp::sum, patience());
    const Doubles sum = sum_of_ranks(4, 403);
    const auto first = sum.begin() + (static_cast<float*>(own.data) - x.as<float>());
    EXPECT_EQ(y.doubles(), Doubles(first, first + own.count));
    EXPECT_EQ(backend.steps(), 3);
    EXPECT_EQ(backend.traffic().bytes_sent, 403 * 4 - bytes_of_part(x.buffer(), backend.rank(), 4));
  });
}

TEST(ChainBroadcast, EachRankButTheLastSendsAllChunksOnce) {
  const std::int64_t count = 4 * kChunk + 5;  // 5 chunks
  for (int n = 1; n <= 4; ++n) {
    run(n, [&](Counted& backend) {
      const int root = n / 2, last = (root + n - 1) % n;
      Numbers x(values_of(backend.rank(), count), DType::f32);
      chain_broadcast(backend, x.buffer(), root, patience());
      ASSERT_EQ(x.doubles(), values_of(root, count));
      EXPECT_EQ(backend.traffic().bytes_sent, backend.rank() == last ? 0 : count * 4);
      // Rank p of the chain begins p steps later; its waiting until then is not counted.
      const bool between = backend.rank() != root && backend.rank() != last;
      EXPECT_EQ(backend.steps(), n == 1 ? 0 : between ? 6 : 5);
    });
  }
}

TEST(ChainReduce, EachRankButRootSendsAllChunksOnce) {
  const std::int64_t count = 4 * kChunk + 5;
  for (int n = 1; n <= 4; ++n) {
    run(n, [&](Counted& backend) {
      const int root = n / 2, first = (root + 1) % n;
      Numbers x(values_of(backend.rank(), count), DType::f32);
      chain_reduce(backend, x.buffer(), ReduceOp::sum, root, patience());
      if (backend.rank() == root) {
        ASSERT_EQ(x.doubles(), sum_of_ranks(n, count));
      }
      EXPECT_EQ(backend.traffic().bytes_sent, backend.rank() == root ? 0 : count * 4);
      const bool between = backend.rank() != root && backend.rank() != first;
      EXPECT_EQ(backend.steps(), n == 1 ? 0 : between ? 6 : 5);
    });
  }
}

TEST(DirectAllReduce, ReducesInTheOrderOfTheRanksInOneStep) {
  // The result is 5; or 8 if 1e8 and -1e8 come first.
  const std::vector<float> values = {1e8f, 3.0f, -1e8f, 5.0f};
  const float in_order = ((values[0] + values[1]) + values[2]) + values[3];
  run(4, [&](Counted& backend) {
    float x = values[backend.rank()];
    direct_all_reduce(backend, {&x, 1, DType::f32}, ReduceOp::sum, patience());
    EXPECT_EQ(x, in_order);
    EXPECT_EQ(backend.steps(), 1);
    EXPECT_EQ(backend.traffic().bytes_sent, 3 * 4);
    x = values[backend.rank()];
    direct_reduce(backend, {&x, 1, DType::f32}, ReduceOp::sum, 2, patience());
    if (backend.rank() == 2) {
      EXPECT_EQ(x, in_order);
    }
    EXPECT_EQ(backend.steps(), 2);
    EXPECT_EQ(backend.traffic().bytes_sent, 3 * 4 + (backend.rank() == 2 ? 0 : 4));
  });
}

TEST(TreeBroadcast, TakesLogarithmicallyManySteps) {
  for (int n = 1; n <= 9; ++n) {
    std::atomic<int> messages{0};
    run(n, [&](Counted& backend) {
      const int root = n / 3, rounds = std::bit_width(static_cast<unsigned>(n - 1));
      Numbers x(values_of(backend.rank(), 10), DType::f32);
      tree_broadcast(backend, x.buffer(), root, patience());
      EXPECT_EQ(x.doubles(), values_of(root, 10));
      EXPECT_LE(backend.steps(), rounds);
      if (backend.rank() == root) {
        EXPECT_EQ(backend.steps(), rounds);
      }
      messages += static_cast<int>(backend.traffic().bytes_sent / 40);
    });
    EXPECT_EQ(messages, n - 1);
  }
}

TEST(DisseminationBarrier, TakesLogarithmicallyManySteps) {
  for (int n = 1; n <= 9; ++n) {
    std::atomic<int> come{0};
    run(n, [&](Counted& backend) {
      ++come;
      dissemination_barrier(backend, patience());
      EXPECT_EQ(come, n);
      EXPECT_EQ(backend.steps(), std::bit_width(static_cast<unsigned>(n - 1)));
      EXPECT_EQ(backend.traffic().bytes_sent, 0);
    });
  }
}

}  // namespace
}  // namespace weft::comm
