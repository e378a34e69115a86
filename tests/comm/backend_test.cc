// The contract of every backend, with 1 to 5 ranks: results, order, and errors.
#include "weft/comm/backend/backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <latch>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using testing::as_ranks;
using testing::combine;
using testing::Doubles;
using testing::maker_of;
using testing::makes_sense;
using testing::Numbers;
using testing::patience;
using testing::values_of;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                             DType::i32, DType::u8,  DType::boolean};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min,
                             ReduceOp::max};
// None; fewer than ranks; more, not divisible; enough for the algorithms of large buffers.
constexpr std::int64_t kCounts[] = {0, 1, 17, 40'009};

// --- Results -------------------------------------------------------------------------------------

class EveryBackend : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    try {
      make_ = maker_of(std::get<0>(GetParam()));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void run(const std::function<void(Backend&)>& f) const { as_ranks(make_, n(), f); }
  static int n() { return std::get<1>(GetParam()); }

 private:
  BackendMaker make_;
};

// Small enough to be exact in every dtype; products are at most 2^n.
Doubles operands(int rank, std::int64_t count, DType dtype, ReduceOp op) {
  Doubles values = values_of(rank, count);
  for (double& value : values) {
    if (op == ReduceOp::product) value = std::fmod(value, 3);
    if (dtype == DType::boolean) value = value > 5;
  }
  return values;
}

// The expected reduction of all ranks' operands.
Doubles reduced(int n, std::int64_t count, DType dtype, ReduceOp op) {
  Doubles result = operands(0, count, dtype, op);
  for (int r = 1; r < n; ++r) {
    const Doubles other = operands(r, count, dtype, op);
    for (std::int64_t i = 0; i < count; ++i) result[i] = combine(result[i], other[i], dtype, op);
  }
  if (op == ReduceOp::avg) {
    for (double& value : result) value = Numbers(Doubles{value / n}, dtype).doubles()[0];
  }
  return result;
}

// One part per rank; part r of all of them is `values[r]`.
Doubles joined(int n, std::int64_t count, const std::function<Doubles(int)>& values) {
  Doubles all;
  for (int r = 0; r < n; ++r) {
    const Doubles part = values(r);
    all.insert(all.end(), part.begin(), part.begin() + count);
  }
  return all;
}

TEST_P(EveryBackend, SaysWhoItIs) {
  std::atomic<int> ranks{0};
  run([&](Backend& backend) {
    EXPECT_EQ(backend.size(), n());
    EXPECT_EQ(backend.name(), std::string(std::get<0>(GetParam())));
    ranks |= 1 << backend.rank();
  });
  EXPECT_EQ(ranks, (1 << n()) - 1);
}

TEST_P(EveryBackend, AllReduceGivesAllRanksTheResultForEveryDtypeAndOp) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      for (const DType dtype : kDTypes) {
        for (const ReduceOp op : kOps) {
          if (!makes_sense(dtype, op)) continue;
          Numbers x(operands(backend.rank(), count, dtype, op), dtype);
          backend.all_reduce(x.buffer(), op, patience());
          ASSERT_EQ(x.doubles(), reduced(n(), count, dtype, op))
              << dtype << " " << to_string(op) << " " << count;
        }
      }
    }
  });
}

TEST_P(EveryBackend, ReduceGivesAnyRootTheResult) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        for (int root = 0; root < n(); ++root) {
          Numbers x(operands(backend.rank(), count, DType::f32, op), DType::f32);
          backend.reduce(x.buffer(), op, root, patience());
          if (backend.rank() == root) {
            ASSERT_EQ(x.doubles(), reduced(n(), count, DType::f32, op)) << root << " " << count;
          }
        }
      }
    }
  });
}

TEST_P(EveryBackend, ReduceScatterGivesEachRankItsPartOfTheResult) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        const Doubles all = reduced(n(), count * n(), DType::f32, op);
        const Doubles own(all.begin() + backend.rank() * count,
                          all.begin() + (backend.rank() + 1) * count);
        Numbers x(operands(backend.rank(), count * n(), DType::f32, op), DType::f32);
        Numbers y(DType::f32, count);
        backend.reduce_scatter(x.buffer(), y.buffer(), op, patience());
        ASSERT_EQ(y.doubles(), own) << count;

        Numbers in_place(operands(backend.rank(), count * n(), DType::f32, op), DType::f32);
        const Buffer part = in_place.buffer().part(backend.rank() * count, count);
        backend.reduce_scatter(in_place.buffer(), part, op, patience());
        const Doubles after = in_place.doubles();
        ASSERT_TRUE(std::equal(own.begin(), own.end(), after.begin() + backend.rank() * count));
      }
    }
  });
}

TEST_P(EveryBackend, BroadcastGivesAllRanksThoseOfAnyRoot) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      for (int root = 0; root < n(); ++root) {
        Numbers x(values_of(backend.rank(), count), DType::f32);
        backend.broadcast(x.buffer(), root, patience());
        ASSERT_EQ(x.doubles(), values_of(root, count)) << root << " " << count;
      }
    }
  });
}

TEST_P(EveryBackend, AllGatherPutsTheRanksNumbersInOrder) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      const Doubles all = joined(n(), count, [&](int r) { return values_of(r, count); });
      Numbers x(values_of(backend.rank(), count), DType::f32), y(DType::f32, count * n());
      backend.all_gather(x.buffer(), y.buffer(), patience());
      ASSERT_EQ(y.doubles(), all) << count;

      Numbers in_place(values_of(backend.rank(), count * n(), -backend.rank() * count), DType::f32);
      const Buffer part = in_place.buffer().part(backend.rank() * count, count);
      backend.all_gather(part, in_place.buffer(), patience());
      ASSERT_EQ(in_place.doubles(), all) << count;
    }
  });
}

TEST_P(EveryBackend, GatherAndScatterAreOfAnyRoot) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      for (int root = 0; root < n(); ++root) {
        const bool is_root = backend.rank() == root;
        const Doubles all = joined(n(), count, [&](int r) { return values_of(r, count); });
        Numbers part(values_of(backend.rank(), count), DType::f32);
        Numbers whole(DType::f32, is_root ? count * n() : 0);
        backend.gather(part.buffer(), whole.buffer(), root, patience());
        if (is_root) {
          ASSERT_EQ(whole.doubles(), all) << root << " " << count;
        }

        Numbers back(DType::f32, count);
        backend.scatter(whole.buffer(), back.buffer(), root, patience());
        ASSERT_EQ(back.doubles(), part.doubles()) << root << " " << count;

        if (!is_root) continue;
        ASSERT_EQ(whole.doubles(), all);
      }
      for (int root = 0; root < n(); ++root) {  // root's own part is already in the whole
        Numbers part(values_of(backend.rank(), count), DType::f32);
        const Doubles all = joined(n(), count, [&](int r) { return values_of(r, count); });
        Numbers whole(all, DType::f32);
        const bool is_root = backend.rank() == root;
        const Buffer own = is_root ? whole.buffer().part(root * count, count) : part.buffer();
        backend.gather(own, whole.buffer(), root, patience());
        backend.scatter(whole.buffer(), own, root, patience());
        ASSERT_EQ(whole.doubles(), all);
        ASSERT_EQ(part.doubles(), values_of(backend.rank(), count));
      }
    }
  });
}

TEST_P(EveryBackend, AllToAllTransposes) {
  run([&](Backend& backend) {
    for (const std::int64_t count : kCounts) {
      Numbers x(values_of(backend.rank(), count * n()), DType::f32), y(DType::f32, count * n());
      backend.all_to_all(x.buffer(), y.buffer(), patience());
      ASSERT_EQ(
          y.doubles(),
          joined(n(), count, [&](int r) { return values_of(r, count, backend.rank() * count); }))
          << count;
    }
  });
}

// A sum may be taken in any order, but it is the same on all ranks; of two numbers it is a + b.
TEST_P(EveryBackend, AllRanksEndWithTheSameBits) {
  for (const std::int64_t count : {std::int64_t{7}, std::int64_t{1000}, std::int64_t{300'007}}) {
    std::vector<std::vector<float>> operands(n()), results(n());
    run([&](Backend& backend) {
      std::mt19937 random(backend.rank());
      std::normal_distribution<float> normal;
      std::vector<float>& x = results[backend.rank()];
      for (std::int64_t i = 0; i < count; ++i) x.push_back(normal(random));
      operands[backend.rank()] = x;
      backend.all_reduce({x.data(), count, DType::f32}, ReduceOp::sum, patience());
    });
    for (int r = 1; r < n(); ++r) ASSERT_EQ(results[r], results[0]);
    for (std::int64_t i = 0; i < count && n() == 2; ++i) {
      ASSERT_EQ(results[0][i], operands[0][i] + operands[1][i]);
    }
  }
}

TEST_P(EveryBackend, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> come{0};
  run([&](Backend& backend) {
    for (int round = 1; round <= 50; ++round) {
      ++come;
      backend.barrier(patience());
      ASSERT_GE(come, round * n());
      backend.barrier(patience());
    }
  });
}

TEST_P(EveryBackend, AnExchangeKeepsTheOrderBetweenTwoRanks) {
  constexpr std::size_t kSizes[] = {3, 0, 100'000, 1, 0, 3, 100'000};
  run([&](Backend& backend) {
    // A message of every size from each rank to each other one, all with different numbers.
    const auto content = [&](int from, int to, std::size_t i) {
      return std::vector<std::byte>(kSizes[i], static_cast<std::byte>((from * 5 + to) * 7 + i));
    };
    std::vector<std::vector<std::byte>> sent, received;
    std::vector<std::pair<int, std::size_t>> what;
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
      for (int r = 0; r < n(); ++r) {
        if (r == backend.rank()) continue;
        what.push_back({r, i});
        sent.push_back(content(backend.rank(), r, i));
        received.emplace_back(kSizes[i]);
      }
    }
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (std::size_t k = 0; k < what.size(); ++k) {
      out.push_back({what[k].first, sent[k]});
      in.push_back({what[k].first, received[k]});
    }
    for (int round = 0; round < 3; ++round) {
      for (auto& bytes : received) std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
      backend.exchange(out, in, patience());
      for (std::size_t k = 0; k < what.size(); ++k) {
        ASSERT_EQ(received[k], content(what[k].first, backend.rank(), what[k].second));
      }
    }
  });
}

TEST_P(EveryBackend, CountsTheBytesOfMessages) {
  run([&](Backend& backend) {
    if (n() == 1) return;
    const std::byte sent[3] = {};
    std::byte received[3];
    const int next = (backend.rank() + 1) % n(), previous = (backend.rank() + n() - 1) % n();
    const Outgoing out[] = {{next, sent}, {next, {}}};
    const Incoming in[] = {{previous, received}, {previous, {}}};
    backend.exchange(out, in, patience());
    backend.exchange(out, in, patience());
    EXPECT_EQ(backend.traffic().bytes_sent, 6);
    EXPECT_EQ(backend.traffic().bytes_received, 6);
    EXPECT_EQ(backend.traffic().messages_sent, 4);
  });
}

// Its last messages still arrive, and the other ranks need nothing more from it.
TEST_P(EveryBackend, ARankThatIsDoneMayLeave) {
  for (int round = 0; round < 5; ++round) {
    run([&](Backend& backend) {
      Numbers x(values_of(backend.rank(), 40'009), DType::f32);
      backend.all_reduce(x.buffer(), ReduceOp::sum, patience());
      ASSERT_EQ(x.doubles(), reduced(n(), 40'009, DType::f32, ReduceOp::sum));
      backend.barrier(patience());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EveryBackend,
                         ::testing::Combine(::testing::Values("ring", "gloo", "threads"),
                                            ::testing::Range(1, 6)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// --- Failures ------------------------------------------------------------------------------------

class FailingRanks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      make_ = maker_of(GetParam());
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void run(int n, const std::function<void(Backend&)>& f) const { as_ranks(make_, n, f); }

  BackendMaker make_;
};

void send(Backend& backend, int to, std::span<const std::byte> bytes,
          const Deadline& deadline = patience()) {
  const Outgoing out{to, bytes};
  backend.exchange({&out, 1}, {}, deadline);
}

void receive(Backend& backend, int from, std::span<std::byte> bytes,
             const Deadline& deadline = patience()) {
  const Incoming in{from, bytes};
  backend.exchange({}, {&in, 1}, deadline);
}

TEST_P(FailingRanks, AnotherNumberOfBytesThanIsExpectedIsAnError) {
  for (const auto& [sent, expected] :
       {std::pair<std::size_t, std::size_t>(8, 400), {400, 8}, {0, 8}, {8, 0}, {3'000'000, 8}}) {
    run(2, [&, sent = sent, expected = expected](Backend& backend) {
      std::vector<std::byte> bytes(std::max(sent, expected));
      if (backend.rank() == 0) {
        try {  // it notices this, or that rank 1 has left
          send(backend, 1, std::span(bytes).first(sent));
        } catch (const Error& error) {
          EXPECT_NE(error.code(), ErrorCode::Timeout) << error.what();
        }
      } else {
        EXPECT_WEFT_ERROR(receive(backend, 0, std::span(bytes).first(expected)), Comm,
                          "rank 0 sends " + std::to_string(sent) + " bytes where rank 1 expects " +
                              std::to_string(expected));
        EXPECT_WEFT_ERROR(send(backend, 0, {}), Comm, "an earlier call failed: ");
      }
    });
  }
}

TEST_P(FailingRanks, ATimeoutNamesWhoIsWaitedFor) {
  std::latch waited(3);
  run(3, [&](Backend& backend) {
    if (backend.rank() == 0) {
      std::byte bytes[400];
      EXPECT_WEFT_ERROR(receive(backend, 2, bytes, Deadline(milliseconds(100))), Timeout,
                        "rank 2 has sent 0 of 400 bytes");
    } else if (backend.rank() == 1) {
      const std::vector<std::byte> bytes(64 << 20);
      EXPECT_WEFT_ERROR(send(backend, 2, bytes, Deadline(milliseconds(100))), Timeout,
                        "rank 2 has taken ");
    }
    waited.arrive_and_wait();
  });
}

TEST_P(FailingRanks, WhoWaitsForARankThatLeavesIsToldAtOnce) {
  std::latch ready(3);
  run(3, [&](Backend& backend) {
    ready.arrive_and_wait();
    std::vector<std::byte> bytes(16 << 20);
    if (backend.rank() == 0) {
      EXPECT_WEFT_ERROR(receive(backend, 1, bytes), PeerFailed, "rank 1 closed its connection");
    } else if (backend.rank() == 2) {
      EXPECT_WEFT_ERROR(send(backend, 1, bytes), PeerFailed, "rank 1 closed its connection");
    }
  });
}

// A rank that gives up closes its connections in the middle of the message, if that takes more than
// 5 ms.
TEST_P(FailingRanks, WhoIsInTheMiddleOfAMessageIsToldToo) {
  for (const int quitter : {0, 1}) {
    std::vector<std::byte> from(32 << 20), to(32 << 20);
    run(2, [&](Backend& backend) {
      const bool quits = backend.rank() == quitter;
      const Deadline deadline = quits ? Deadline(milliseconds(5)) : patience();
      try {
        if (backend.rank() == 0) {
          send(backend, 1, from, deadline);
        } else {
          receive(backend, 0, to, deadline);
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), quits ? ErrorCode::Timeout : ErrorCode::PeerFailed) << error.what();
      }
    });
  }
}

// It is noticed even while another rank that is waited for is only slow.
TEST_P(FailingRanks, AnyOfThoseWhoAreWaitedForMayLeave) {
  std::latch over(2);
  run(3, [&](Backend& backend) {
    std::byte a[8], b[8];
    if (backend.rank() == 0) {
      const Incoming in[] = {{1, a}, {2, b}};
      EXPECT_WEFT_ERROR(backend.exchange({}, in, patience()), PeerFailed,
                        "rank 2 closed its connection");
    }
    if (backend.rank() != 2) over.arrive_and_wait();
  });
}

TEST_P(FailingRanks, AbortWakesWhoWaitsAndItsPeers) {
  run(2, [&](Backend& backend) {
    std::byte bytes[8];
    if (backend.rank() == 0) {
      const auto aborted = std::async(std::launch::async, [&] {
        std::this_thread::sleep_for(milliseconds(50));  // so that it usually waits by then
        backend.abort();
      });
      EXPECT_WEFT_ERROR(receive(backend, 1, bytes), Comm, "the group was aborted");
      aborted.wait();
      EXPECT_WEFT_ERROR(receive(backend, 1, bytes), Comm, "the group was aborted");
    } else {
      EXPECT_WEFT_ERROR(receive(backend, 0, bytes), PeerFailed, "rank 0 closed its connection");
    }
  });
}

TEST_P(FailingRanks, AbortBetweenTwoCallsIsNoticedByTheOthers) {
  std::latch noticed(2);
  run(2, [&](Backend& backend) {
    std::byte bytes[8];
    if (backend.rank() == 0) {
      backend.abort();
    } else {
      EXPECT_WEFT_ERROR(receive(backend, 0, bytes), PeerFailed, "rank 0 closed its connection");
    }
    noticed.arrive_and_wait();
  });
}

TEST_P(FailingRanks, NothingIsWrittenWhenAnExchangeHasFailed) {
  std::latch failed(2), sent(2);
  run(2, [&](Backend& backend) {
    std::vector<std::byte> bytes(1000, std::byte{1});
    if (backend.rank() == 0) {
      EXPECT_WEFT_ERROR(receive(backend, 1, bytes, Deadline(milliseconds(20))), Timeout, "rank 1");
      failed.arrive_and_wait();
      sent.arrive_and_wait();
      EXPECT_EQ(bytes, std::vector<std::byte>(1000, std::byte{1}));
    } else {
      failed.arrive_and_wait();
      try {
        send(backend, 0, std::vector<std::byte>(1000, std::byte{2}), Deadline(milliseconds(100)));
      } catch (const Error&) {
      }
      sent.arrive_and_wait();
    }
  });
}

TEST_P(FailingRanks, ARankThatDoesNotComeIsNamed) {
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_WEFT_ERROR(make_(store, 0, 2, Deadline(milliseconds(200))), Timeout, "1");
}

INSTANTIATE_TEST_SUITE_P(Backends, FailingRanks, ::testing::Values("ring", "gloo", "threads"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft::comm
