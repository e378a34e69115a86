// Special cases of ranks that read each other's memory.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using testing::as_ranks;
using testing::patience;

TEST(ThreadBackend, BothSidesAreToldOfAnotherNumberOfBytes) {
  as_ranks(thread_backend(), 2, [](Backend& backend) {
    std::byte bytes[8];
    const std::string text = "rank 0 sends 8 bytes where rank 1 expects 4";
    if (backend.rank() == 0) {
      const Outgoing out{1, bytes};
      EXPECT_WEFT_ERROR(backend.exchange({&out, 1}, {}, patience()), Comm, text);
    } else {
      const Incoming in{0, std::span(bytes).first(4)};
      EXPECT_WEFT_ERROR(backend.exchange({}, {&in, 1}, patience()), Comm, text);
    }
  });
}

TEST(ThreadBackend, WhatItsSenderHasGivenUpIsReadByNobody) {
  std::latch given_up(2), looked(2);
  as_ranks(thread_backend(), 2, [&](Backend& backend) {
    const Deadline soon(milliseconds(50));
    if (backend.rank() == 0) {
      const std::vector<std::byte> bytes(8);
      const Outgoing out{1, bytes};
      EXPECT_WEFT_ERROR(backend.exchange({&out, 1}, {}, soon), Timeout,
                        "rank 1 has taken 0 of 8 bytes");
      given_up.arrive_and_wait();
    } else {
      given_up.arrive_and_wait();
      std::byte bytes[8];
      const Incoming in{0, bytes};
      EXPECT_WEFT_ERROR(backend.exchange({}, {&in, 1}, soon), Timeout,
                        "rank 0 has sent 0 of 8 bytes");
    }
    looked.arrive_and_wait();
  });
}

TEST(ThreadBackend, RanksOfAnotherProcessAreRefused) {
  const auto store = std::make_shared<MemoryStore>();
  store->set("hub", "12345");  // as if rank 0 were elsewhere
  EXPECT_WEFT_ERROR(thread_backend()(store, 1, 2, patience()), Comm,
                    "rank 0 is gone, or is no thread of rank 1's process");
}

TEST(ThreadBackend, TheSameRankTwiceIsRefused) {
  const auto store = std::make_shared<MemoryStore>();
  const auto join = [&](int rank) {
    return std::async(std::launch::async, [=] {
      return thread_backend()(store, rank, 3, Deadline(milliseconds(1000)));
    });
  };
  auto rank0 = join(0), first = join(1), second = join(1);
  EXPECT_WEFT_ERROR(rank0.get(), Timeout, "rank 2 has not come");
  int refused = 0;
  for (auto* rank1 : {&first, &second}) {
    try {
      rank1->get();
    } catch (const Error& error) {
      refused += std::string(error.what()).find("rank 1 is there twice") != std::string::npos;
    }
  }
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace weft::comm
