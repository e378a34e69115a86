// Links that WEFT_FAULT makes thin: how long messages take at least, and whom they hold up. All
// groups of this program have ranks 0 to 2 and the link of kFault; backends alone have the links
// that a test gives them.
#include "weft/comm/backend/thin_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group/operation.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using testing::patience;
using Clock = std::chrono::steady_clock;

constexpr const char* kFault = "link=2-1:10MB/s";
constexpr double kRate = 10e6;
[[maybe_unused]] const int fault_is_set = ::setenv("WEFT_FAULT", kFault, 1);
// At this rate a message would never arrive while the test runs.
constexpr double kHardly = 1e-9;

double seconds_of(const std::function<void()>& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

ThinLinks link_of(const Backend& backend, int a, int b, double bytes_per_second) {
  const ThinLink link{.a = a, .b = b, .bytes_per_second = bytes_per_second};
  return {std::span(&link, 1), {0, 1, 2}, backend.rank()};
}

TEST(ThinLink, IsRead) {
  const ThinLink link = ThinLink::parse("0-12:100MB/s");
  EXPECT_EQ(link.a, 0);
  EXPECT_EQ(link.b, 12);
  EXPECT_EQ(link.bytes_per_second, 100e6);
  EXPECT_EQ(ThinLink::parse("3-1:1.5kB/s").bytes_per_second, 1500);
  EXPECT_EQ(ThinLink::parse("3-1:2GB/s").bytes_per_second, 2e9);
  ASSERT_EQ(thin_links().size(), 1U);
  EXPECT_EQ(thin_links()[0].bytes_per_second, kRate);
}

TEST(ThinLink, AnythingElseIsRefused) {
  for (const char* text : {"",
                           "0-1",
                           "0-1:",
                           "0-1:100",
                           "0-1:MB/s",
                           "0-1:0MB/s",
                           "0-1:-1MB/s",
                           "0-1:1mb/s",
                           "0-1:1 MB/s",
                           "0-1:1MB",
                           "0-1:1MB/s ",
                           "0-1:nanMB/s",
                           "0-1:infMB/s",
                           "0-1:1e308GB/s",
                           "0:1MB/s",
                           "0-0:1MB/s",
                           "-1-1:1MB/s",
                           "0--1:1MB/s",
                           "a-b:1MB/s",
                           "0-1-2:1MB/s",
                           "0-99999999999:1MB/s",
                           "0-1:1MB/s:step=1",
                           " 0-1:1MB/s",
                           "0 -1:1MB/s",
                           "0-1: 1MB/s"}) {
    EXPECT_WEFT_ERROR(ThinLink::parse(text), InvalidArgument,
                      "WEFT_FAULT has 'link=" + std::string(text) + "', expected link=A-B:RATE");
  }
}

class Links : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_backend(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

// Sums of three numbers, whose bits depend on the order.
std::vector<float> sums_with(const BackendMaker& make, double bytes_per_second, double* seconds) {
  std::vector<float> sums;
  testing::as_ranks(make, 3, [&](Backend& backend) {
    if (bytes_per_second > 0) backend.set_links(link_of(backend, 0, 1, bytes_per_second));
    std::vector<float> x(200'001);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 1 / static_cast<float>(i * 3 + static_cast<std::size_t>(backend.rank()) + 1);
    }
    const Buffer all{x.data(), std::ssize(x), DType::f32};
    const double took = seconds_of([&] { backend.all_reduce(all, ReduceOp::sum, patience()); });
    if (backend.rank() != 0) return;  // it sends to rank 1
    if (seconds) *seconds = took;
    sums = x;
  });
  return sums;
}

TEST_P(Links, AnAllReduceTakesAsLongAsItsLinkAndHasTheSameBits) {
  const std::vector<float> plain = sums_with(testing::maker_of("threads"), 0, nullptr);
  double seconds = 0;
  EXPECT_EQ(sums_with(testing::maker_of(GetParam()), kRate, &seconds), plain);
  EXPECT_GE(seconds, 2 * 2 * (200'001 / 3) * 4 / kRate);  // 2 (n - 1) parts from rank 0 to rank 1
  // A thin link that no message uses: the ring's messages go from 0 to 1, to 2, to 0.
  const auto other_way = [](Backend& backend) {
    backend.set_links(link_of(backend, 0, 1, kHardly));
    std::vector<float> x(10);
    const Outgoing out{0, std::as_bytes(std::span(x))};
    const Incoming in{2, std::as_writable_bytes(std::span(x))};
    if (backend.rank() == 2) backend.exchange({&out, 1}, {}, patience());
    if (backend.rank() == 0) backend.exchange({}, {&in, 1}, patience());
  };
  testing::as_ranks(testing::maker_of(GetParam()), 3, other_way);
}

// Rank 0 sends to 1, over the link, and receives from 2, in one call. Rank 2's message comes only
// after rank 1 has rank 0's, and another one before it.
TEST_P(Links, WhatIsHeldBackHoldsNothingElseBack) {
  testing::as_ranks(testing::maker_of(GetParam()), 3, [&](Backend& backend) {
    backend.set_links(link_of(backend, 1, 0, kRate));
    std::vector<std::byte> a(200'000), b(100), c(100);
    const auto pass = [&](std::vector<Outgoing> out, std::vector<Incoming> in) {
      backend.exchange(out, in, patience());
    };
    switch (backend.rank()) {
      case 0: pass({{1, a}, {2, b}}, {{2, c}}); break;
      case 1: pass({}, {{0, a}}), pass({{2, b}}, {}); break;
      case 2: pass({}, {{0, b}}), pass({}, {{1, b}}), pass({{0, c}}, {}); break;
    }
  });
}

TEST_P(Links, MessagesKeepTheirOrderAndEndTogether) {
  testing::as_ranks(testing::maker_of(GetParam()), 3, [&](Backend& backend) {
    backend.set_links(link_of(backend, 0, 1, kRate));
    std::vector<std::byte> a(100'000, std::byte{1}), b, c(200'000, std::byte{2});
    if (backend.rank() == 0) {
      const Outgoing out[] = {{1, a}, {1, b}, {1, c}};
      backend.exchange(out, {}, patience());
    }
    if (backend.rank() != 1) return;
    const std::vector<std::byte> first = a, last = c;
    std::ranges::fill(a, std::byte{0}), std::ranges::fill(c, std::byte{0});
    const Incoming in[] = {{0, a}, {0, b}, {0, c}};
    backend.exchange({}, in, patience());
    EXPECT_EQ(a, first);
    EXPECT_EQ(c, last);
  });
}

// A wait that ends between two looks at the clock must not be slept through: nothing else would
// wake the sender.
TEST_P(Links, ManyShortWaitsEnd) {
  testing::as_ranks(testing::maker_of(GetParam()), 3, [&](Backend& backend) {
    backend.set_links(link_of(backend, 0, 1, kRate));
    std::vector<std::byte> a(300);
    for (std::size_t i = 0; i < 3000; ++i) {
      const std::span<std::byte> some(a.data(), i % 300);  // up to 30 us
      const Outgoing out{1, some};
      const Incoming in{0, some};
      if (backend.rank() == 0) backend.exchange({&out, 1}, {}, patience());
      if (backend.rank() == 1) backend.exchange({}, {&in, 1}, patience());
    }
  });
}

// Rank 0's message to 1 is held back, the one to 2 arrives. Then rank 0 aborts.
TEST_P(Links, AGroupIsAbortedWhileItsMessageIsHeldBack) {
  std::promise<void> rank2_has_its_message;
  testing::as_ranks(testing::maker_of(GetParam()), 3, [&](Backend& backend) {
    backend.set_links(link_of(backend, 0, 1, kHardly));
    std::vector<std::byte> a(10), b(10);
    const Outgoing out[] = {{1, a}, {2, b}};
    const Incoming in{0, a};
    if (backend.rank() == 0) {
      auto aborting = std::async(std::launch::async, [&] {
        rank2_has_its_message.get_future().wait();
        backend.abort();
      });
      EXPECT_WEFT_ERROR(backend.exchange(out, {}, patience()), Comm, "the group was aborted");
    } else if (backend.rank() == 1) {
      EXPECT_WEFT_ERROR(backend.exchange({}, {&in, 1}, patience()), PeerFailed, "rank 0 closed");
    } else {
      backend.exchange({}, {&in, 1}, patience());
      rank2_has_its_message.set_value();
    }
  });
}

TEST_P(Links, ADeadlineEndsTheWaitForALink) {
  std::promise<void> over;
  const std::shared_future<void> is_over = over.get_future().share();
  testing::as_ranks(testing::maker_of(GetParam()), 3, [&](Backend& backend) {
    backend.set_links(link_of(backend, 0, 1, kHardly));
    if (backend.rank() != 0) return is_over.wait();
    std::vector<std::byte> a(10);
    const Outgoing out{1, a};
    EXPECT_WEFT_ERROR(backend.exchange({&out, 1}, {}, Deadline(std::chrono::milliseconds(100))),
                      Timeout, "rank 1 has");
    over.set_value();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Links, ::testing::Values("ring", "gloo", "shm", "threads"),
                         [](const auto& info) { return std::string(info.param); });

// --- Groups --------------------------------------------------------------------------------------

TEST(Groups, HaveTheLinksOfTheRun) {
  constexpr std::int64_t count = 100'000;
  run_ranks(3, [&](ProcessGroup& group) {
    const Tensor x = zeros({count});
    const auto pair = group.subgroup({1, 2});
    const auto others = group.subgroup({0, 1});
    // Rank 1 sends to rank 2; in the pair its rank is 0. Others may begin later.
    double seconds = seconds_of([&] {
      if (pair) pair->broadcast(x, 0).wait();
    });
    if (group.rank() == 1) {
      EXPECT_GE(seconds, count * 4 / kRate);
    }
    if (others) others->broadcast(x, 1).wait();
    seconds = seconds_of([&] { group.all_reduce(x).wait(); });
    if (group.rank() == 1) {
      EXPECT_GE(seconds, 2 * 2 * (count / 3) * 4 / kRate);
    }
  });
}

TEST(Groups, ShareALinkAndShowItToATracer) {
  Tracer tracer;
  const Scoped traced(&ThreadState::tracer, &tracer);
  run_ranks(3, [&](ProcessGroup& group) {
    constexpr std::int64_t count = 100'000;
    const Tensor x = zeros({count}), y = zeros({count});
    const auto a = group.subgroup({1, 2}), b = group.subgroup({1, 2});
    if (!a) return;
    const double seconds = seconds_of([&] {
      Work first = a->broadcast(x, 0), second = b->broadcast(y, 0);
      first.wait(), second.wait();
    });
    if (group.rank() == 1) {
      EXPECT_GE(seconds, 2 * count * 4 / kRate);
    }
  });
  EXPECT_HAS(tracer.part(), "thin link 1-2");
  EXPECT_LACKS(tracer.part(), "thin link 0");
}

TEST(Groups, OfTooFewRanksRefuseTheFault) {
  EXPECT_WEFT_ERROR(run_ranks(2, [](ProcessGroup&) {}), InvalidArgument,
                    "WEFT_FAULT names the link 2-1, expected two of the run's ranks, 0 to 1");
}

TEST(Groups, OfARunThatHasLostRanksKeepTheFault) {
  const Members members = Members::of_run(1, 2, {.number = 1, .ranks = {0, 2}});
  EXPECT_EQ(members.number_in_run(1), 2);
}

// A user's backend that knows nothing of links.
struct Plain final : Backend {
  explicit Plain(std::unique_ptr<Backend> own)
      : Backend(own->rank(), own->size()), inner(std::move(own)) {}
  const char* name() const override { return "plain"; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    inner->exchange(out, in, deadline);
  }
  void abort() noexcept override { inner->abort(); }

  std::unique_ptr<Backend> inner;
};

TEST(Groups, OfABackendWithoutLinksRefuseTheFault) {
  run_ranks(3, [](ProcessGroup& threads) {
    const auto store = std::make_shared<PrefixStore>("plain", threads.store());
    EXPECT_WEFT_ERROR(ProcessGroup(backend_over<Plain>(thread_backend()), store, threads.rank(), 3),
                      Unsupported, "cannot make a link thin, as WEFT_FAULT wants");
  });
}

}  // namespace
}  // namespace weft::comm
