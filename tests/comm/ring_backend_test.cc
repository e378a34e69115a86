// How the ranks of the ring backend find each other among strangers, and when they connect.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/backend/ring_connections.h"
#include "weft/comm/store/socket.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/file_limit.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using testing::Numbers;
using testing::patience;

int port_in(Store& store, int rank) {
  const std::string address = store.get("addr/" + std::to_string(rank), patience());
  return std::stoi(address.substr(address.rfind(':') + 1));
}

// The first message of a rank: the group's number, and its own.
struct Hello {
  std::uint64_t group, rank;
};

TEST(RingBackend, StrangersDoNotDisturbTheMeeting) {
  const auto store = std::make_shared<MemoryStore>();
  const BackendMaker make = ring_backend("127.0.0.1");
  auto rank0 = std::async(std::launch::async, [&] { return make(store, 0, 2, patience()); });
  const int port = port_in(*store, 0);
  const std::uint64_t group = std::stoull(store->get("group"));

  std::vector<Socket> strangers;
  for (const Hello& hello : {Hello{group + 1, 1},  // from another group
                             Hello{group, 0}, Hello{group, 2}, Hello{group, ~std::uint64_t{0}}}) {
    strangers.push_back(connect_to("127.0.0.1", port, patience()));
    send_all(strangers.back(), std::as_bytes(std::span(&hello, 1)), patience(), "rank 0");
    std::byte answer[1];
    EXPECT_WEFT_ERROR(recv_all(strangers.back(), answer, patience(), "rank 0"), PeerFailed, "");
  }
  for (int i = 0; i < 300; ++i) {  // these send nothing, or not all, and stay connected
    strangers.push_back(connect_to("127.0.0.1", port, patience()));
    if (i % 2) send_all(strangers.back(), std::vector<std::byte>(3), patience(), "rank 0");
  }

  const auto rank1 = make(store, 1, 2, patience());
  const auto first = rank0.get();
  auto done = std::async(std::launch::async, [&] { first->barrier(patience()); });
  rank1->barrier(patience());
  done.get();
}

// A meeting of two ranks; the test's own socket is the second one.
struct Meeting {
  void come() { rank1 = connect_to("127.0.0.1", port, patience(), /*is_listening=*/true); }
  void say_hello() const {
    const Hello hello{std::stoull(store->get("group")), 1};
    send_all(rank1, std::as_bytes(std::span(&hello, 1)), patience(), "rank 0");
  }

  const std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::future<std::unique_ptr<Backend>> rank0 = std::async(
      std::launch::async, [this] { return ring_backend("127.0.0.1")(store, 0, 2, patience()); });
  const int port = port_in(*store, 0);
  Socket rank1;
};

// A rank is interrupted between connecting and its hello, and more strangers come than there is
// room for. The test proves nothing on a machine where this takes longer than a rank may take.
TEST(RingBackend, WhoHasJustComeIsNotSentAway) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    Meeting meeting;
    const auto begin = std::chrono::steady_clock::now();
    meeting.come();
    std::vector<Socket> strangers;
    for (int i = 0; i < 270; ++i) {
      strangers.push_back(connect_to("127.0.0.1", meeting.port, patience()));
    }
    std::this_thread::sleep_for(milliseconds(100));  // so that they have usually been seen
    meeting.say_hello();
    if (std::chrono::steady_clock::now() - begin < milliseconds(200)) {
      EXPECT_TRUE(meeting.rank0.get());
      return;
    }
    try {  // it may have been dropped
      meeting.come();
      meeting.say_hello();
    } catch (const Error&) {
    }
  }
  GTEST_SKIP() << "too slow";
}

// Strangers use all descriptors that the process may have; those that send nothing must make room.
TEST(RingBackend, StrangersDoNotUseUpTheDescriptors) {
  const weft::testing::FileLimit limit(256);
  Meeting meeting;
  std::vector<Socket> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(connect_to("127.0.0.1", meeting.port, patience()));
  }
  // A connection that sends something wrong is closed when the others have been accepted.
  const Hello wrong{0, 0};
  send_all(strangers.back(), std::as_bytes(std::span(&wrong, 1)), patience(), "rank 0");
  std::byte answer[1];
  EXPECT_WEFT_ERROR(recv_all(strangers.back(), answer, patience(), "rank 0"), PeerFailed, "");
  const weft::testing::UsedUpDescriptors used(1);
  meeting.come();  // this uses the last one, and rank 0 has none for it
  meeting.say_hello();
  EXPECT_TRUE(meeting.rank0.get());
}

// A deadline with a check is checked in between, but does not end sooner.
TEST(RingBackend, ConnectingHasTheWholeTime) {
  const auto store = std::make_shared<MemoryStore>();
  store->set("addr/0", "255.255.255.255:1");  // connecting neither succeeds nor is refused
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_WEFT_ERROR(
      ring_backend("127.0.0.1")(store, 1, 2, Deadline(3 * Deadline::kCheckEvery, [] {})), Timeout,
      "in connecting to rank 0");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 3 * Deadline::kCheckEvery);
}

// The last Hello and a stranger's connection are seen at the same time.
TEST(RingBackend, AStrangerWhoComesWithTheLastRankDoesNotEndTheMeeting) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex looking;
  std::atomic<int> looks = 0;
  const Deadline deadline(std::chrono::seconds(60), [&] {
    const std::lock_guard lock(looking);
    ++looks;
  });
  auto rank0 = std::async(std::launch::async,
                          [&] { return ring_backend("127.0.0.1")(store, 0, 2, deadline); });
  const int port = port_in(*store, 0);
  const Hello hello{std::stoull(store->get("group")), 1};
  const Socket rank1 = connect_to("127.0.0.1", port, patience());
  for (const int before = looks; looks < before + 2;) {  // until rank 0 has accepted it
    std::this_thread::sleep_for(milliseconds(5));
  }
  Socket stranger;
  {
    const std::lock_guard lock(looking);
    std::this_thread::sleep_for(2 * Deadline::kCheckEvery);  // rank 0 waits for the lock by then
    send_all(rank1, std::as_bytes(std::span(&hello, 1)), patience(), "rank 0");
    stranger = connect_to("127.0.0.1", port, patience());
  }
  EXPECT_TRUE(rank0.get());
}

TEST(RingBackend, ARankThatIsMissingIsNamedWithThoseThatWait) {
  const auto store = std::make_shared<MemoryStore>();
  const BackendMaker make = ring_backend("127.0.0.1");
  std::vector<std::future<void>> ranks;
  for (const int r : {0, 2}) {  // a rank that gives up first leaves, which rank 0 would notice
    ranks.push_back(std::async(std::launch::async, [&, r] {
      EXPECT_WEFT_ERROR(
          make(store, r, 4, Deadline(milliseconds(r == 0 ? 300 : 2000))), Timeout,
          r == 0 ? "rank 0 still waits for a connection of rank 1, 3," : "in meeting rank 1");
    }));
  }
}

TEST(RingBackend, ARankThatLeavesBeforeAllHaveMetIsNotWaitedFor) {
  const auto store = std::make_shared<MemoryStore>();
  auto rank0 = std::async(std::launch::async, [&] {
    EXPECT_WEFT_ERROR(ring_backend("127.0.0.1")(store, 0, 3, patience()), PeerFailed,
                      "rank 1 closed its connection");
  });
  const Socket rank1 = connect_to("127.0.0.1", port_in(*store, 0), patience());
  const Hello hello{std::stoull(store->get("group")), 1};
  send_all(rank1, std::as_bytes(std::span(&hello, 1)), patience(), "rank 0");
  std::this_thread::sleep_for(milliseconds(50));  // so that it is usually known by then
  rank1.shut_down();
  rank0.get();
}

TEST(RingBackend, NonsenseInAConnectionIsAnError) {
  const auto store = std::make_shared<MemoryStore>();
  const BackendMaker make = ring_backend("127.0.0.1");
  auto rank0 = std::async(std::launch::async, [&] { return make(store, 0, 2, patience()); });
  const Socket rank1 = connect_to("127.0.0.1", port_in(*store, 0), patience());
  const Hello hello{std::stoull(store->get("group")), 1};
  send_all(rank1, std::as_bytes(std::span(&hello, 1)), patience(), "rank 0");
  const auto backend = rank0.get();
  send_all(rank1, std::vector<std::byte>(100), patience(), "rank 0");
  std::byte bytes[8];
  const Incoming in{1, bytes};
  EXPECT_WEFT_ERROR(backend->exchange({}, {&in, 1}, patience()), Comm,
                    "rank 1 sends something that is no message of this group");
}

// --- When ranks connect --------------------------------------------------------------------------

using Backends = std::vector<std::unique_ptr<Backend>>;

/// The backends of n ranks that have met. Destroyed in the order of the ranks, if not before.
Backends met(int n) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::future<std::unique_ptr<Backend>>> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(std::async(std::launch::async, [store, r, n] {
      auto backend = ring_backend("127.0.0.1")(store, r, n, patience());
      backend->meet(patience());
      return backend;
    }));
  }
  Backends backends;
  for (auto& rank : ranks) backends.push_back(rank.get());
  return backends;
}

void send(Backend& from, int to, std::int64_t number) {
  const Outgoing out{to, std::as_bytes(std::span(&number, 1))};
  from.exchange({&out, 1}, {}, patience());
}
std::int64_t receive(Backend& at, int from, const Deadline& deadline = patience()) {
  std::int64_t number = 0;
  const Incoming in{from, std::as_writable_bytes(std::span(&number, 1))};
  at.exchange({}, {&in, 1}, deadline);
  return number;
}

/// Both ends of this process's TCP connections, when there are `expected` or after a while.
int connected_ends(int expected) {
  const auto count = [] {
    int ends = 0;
    for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
      sockaddr_storage peer{};
      socklen_t size = sizeof peer;
      const int descriptor = std::stoi(file.path().filename());
      ends += ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
              peer.ss_family == AF_INET;
    }
    return ends;
  };
  const Deadline deadline(std::chrono::seconds(10));
  while (count() != expected && !deadline.passed()) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return count();
}

/// Runs f(backend) on all of them at once.
void at_once(const Backends& backends, const std::function<void(Backend&)>& f) {
  std::vector<std::future<void>> ranks;
  for (const auto& backend : backends) {
    ranks.push_back(std::async(std::launch::async, [&] { f(*backend); }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST(RingConnections, NeighboursFromTheBeginningAndOthersWhenTheyAreNeeded) {
  const Backends backends = met(4);
  EXPECT_EQ(connected_ends(8), 8) << "two of each of the four ranks";
  at_once(backends, [](Backend& backend) {
    Numbers x(testing::values_of(backend.rank(), 100'000), DType::f32);
    backend.all_reduce(x.buffer(), ReduceOp::sum, patience());
    EXPECT_EQ(x.doubles(), testing::sum_of_ranks(4, 100'000));
  });
  EXPECT_EQ(connected_ends(8), 8);
  send(*backends[1], 3, 5);
  EXPECT_EQ(receive(*backends[3], 1), 5);
  EXPECT_EQ(connected_ends(10), 10);
  at_once(backends, [](Backend& backend) {
    Numbers x(testing::values_of(backend.rank(), 4), DType::f32), y(DType::f32, 4);
    backend.all_to_all(x.buffer(), y.buffer(), patience());
  });
  EXPECT_EQ(connected_ends(12), 12);
}

// All calls are made by one thread, so the other ranks are in no call.
TEST(RingConnections, WaitForNoCallOfTheOtherRank) {
  for (const auto& [from, to] : {std::pair(0, 2), {2, 0}}) {
    const Backends backends = met(4);
    send(*backends[from], to, 6);
    EXPECT_EQ(receive(*backends[to], from), 6);
    send(*backends[to], from, 7);
    EXPECT_EQ(receive(*backends[from], to), 7);
  }
}

// Five ranks: each has two others that are not its neighbours.
TEST(RingConnections, RanksThatNeedEachOtherAtOnceTakeOneConnection) {
  for (int round = 0; round < 40; ++round) {
    const Backends backends = met(5);
    at_once(backends, [](Backend& backend) {
      const int n = backend.size(), rank = backend.rank();
      const int others[] = {(rank + 2) % n, (rank + 3) % n};
      std::int64_t mine = rank, theirs[2] = {};
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      for (int i = 0; i < 2; ++i) {
        out.push_back({others[i], std::as_bytes(std::span(&mine, 1))});
        in.push_back({others[i], std::as_writable_bytes(std::span(&theirs[i], 1))});
      }
      backend.exchange(out, in, patience());
      for (int i = 0; i < 2; ++i) EXPECT_EQ(theirs[i], others[i]);
    });
    ASSERT_EQ(connected_ends(20), 20) << "four of each of the five ranks";
  }
}

TEST(RingConnections, WhatARankSentBeforeItLeftArrives) {
  for (const auto& [from, to] : {std::pair(0, 2), {2, 0}}) {
    Backends backends = met(4);
    send(*backends[from], to, 8);
    backends[from].reset();
    EXPECT_EQ(receive(*backends[to], from), 8);
    EXPECT_WEFT_ERROR(receive(*backends[to], from), PeerFailed, "closed its connection");
  }
}

TEST(RingConnections, ARankThatHasLeftIsNoticedByThoseThatNeverNeededIt) {
  for (const auto& [gone, waits] : {std::pair(2, 0), {0, 2}}) {
    Backends backends = met(4);
    backends[gone].reset();
    EXPECT_WEFT_ERROR(receive(*backends[waits], gone), PeerFailed,
                      "nobody listens any more on port ");
  }
}

TEST(RingConnections, ARankThatSendsNothingIsNamed) {
  for (const auto& [silent, waits] : {std::pair(2, 0), {0, 2}}) {
    const Backends backends = met(4);
    EXPECT_WEFT_ERROR(receive(*backends[waits], silent, Deadline(milliseconds(100))), Timeout,
                      "rank " + std::to_string(silent) + " has sent 0 of 8 bytes");
  }
}

// An answer: the connection of the rank that answers counts.
constexpr std::uint64_t kMineCounts = ~std::uint64_t{0};

void say(const Socket& socket, const Hello& hello) {
  send_all(socket, std::as_bytes(std::span(&hello, 1)), patience(), "a rank");
}
Hello heard(const Socket& socket) {
  Hello hello{};
  recv_all(socket, std::as_writable_bytes(std::span(&hello, 1)), patience(), "a rank");
  return hello;
}
Socket accepted(const Socket& listening) {
  for (;;) {
    if (auto socket = accept_from(listening, patience())) return std::move(*socket);
  }
}

// Ranks 2 and 0 of four connect to each other. One rank is real; the test's sockets act as the
// others.
class TwoThatNeedEachOther : public ::testing::Test {
 protected:
  std::future<std::unique_ptr<Backend>> start(int rank) {
    return std::async(std::launch::async, [this, rank] {
      return ring_backend("127.0.0.1")(store_, rank, 4, patience());
    });
  }
  void listen_as(int rank) {
    store_->set("addr/" + std::to_string(rank), "127.0.0.1:" + std::to_string(port_of(listening_)));
  }
  Socket connect_as(std::uint64_t rank, int to) {
    Socket socket = connect_to("127.0.0.1", port_in(*store_, to), patience());
    say(socket, {group(), rank});
    return socket;
  }
  std::uint64_t group() { return std::stoull(store_->get("group")); }

  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  const Socket listening_ = listen_on("127.0.0.1", 0);
};

// As long as the higher rank lives, however long its connection takes.
TEST_F(TwoThatNeedEachOther, TheLowerOneWaitsForTheConnectionOfWhichItWasTold) {
  for (const int r : {1, 2, 3}) listen_as(r);
  auto rank0 = start(0);
  const Socket rank1 = connect_as(1, 0), rank3 = connect_as(3, 0);
  const auto backend = rank0.get();
  auto received = std::async(std::launch::async, [&] { return receive(*backend, 2); });
  {
    const Socket refused = accepted(listening_);
    EXPECT_EQ(heard(refused).rank, 0U);
    say(refused, {group(), kMineCounts});
  }
  std::this_thread::sleep_for(milliseconds(1500));
  const Socket rank2 = connect_as(2, 0);
  std::uint64_t message[] = {0x77656674, 8, 0, 5};  // the header, little-endian, and a number
  send_all(rank2, std::as_bytes(std::span(message)), patience(), "rank 0");
  EXPECT_EQ(received.get(), 5);
}

TEST_F(TwoThatNeedEachOther, TheHigherOneTellsTheLowerOneThatItsConnectionCounts) {
  for (const int r : {0, 1}) listen_as(r);
  auto rank2 = start(2);
  const Socket rank1 = accepted(listening_);
  EXPECT_EQ(heard(rank1).rank, 2U);
  const Socket rank3 = connect_as(3, 2);
  const auto backend = rank2.get();
  send(*backend, 0, 5);
  const Socket late = connect_as(0, 2);
  EXPECT_EQ(heard(late).rank, kMineCounts);
  std::byte more[1];
  EXPECT_WEFT_ERROR(recv_all(late, more, patience(), "rank 2"), PeerFailed, "");
}

TEST_F(TwoThatNeedEachOther, StrangersWhoSayNothingAreClosed) {
  RingConnections rank0("127.0.0.1", 0, 4, milliseconds(100));
  auto meeting =
      std::async(std::launch::async, [&] { EXPECT_THROW(rank0.meet(*store_, patience()), Error); });
  const Socket stranger = connect_to("127.0.0.1", port_in(*store_, 0), patience());
  std::byte answer[1];
  EXPECT_WEFT_ERROR(recv_all(stranger, answer, Deadline(milliseconds(5000)), "rank 0"), PeerFailed,
                    "");
  rank0.shut_down();
  meeting.get();
}

// Rank 0 of four; the test's sockets act as the others. Rank 1 sends nothing, either.
TEST(RingConnections, ARankThatCannotBeConnectedToIsNamedWithTheReason) {
  for (const bool listens : {true, false}) {
    const auto store = std::make_shared<MemoryStore>();
    Socket rank2 = listen_on("127.0.0.1", 0);
    const std::string address = "127.0.0.1:" + std::to_string(port_of(rank2));
    if (!listens) rank2 = Socket();
    for (const int r : {1, 2, 3}) store->set("addr/" + std::to_string(r), address);
    auto rank0 = std::async(std::launch::async,
                            [&] { return ring_backend("127.0.0.1")(store, 0, 4, patience()); });
    std::vector<Socket> neighbours;
    for (const std::uint64_t r : {1, 3}) {
      neighbours.push_back(connect_to("127.0.0.1", port_in(*store, 0), patience()));
      const Hello hello{std::stoull(store->get("group")), r};
      send_all(neighbours.back(), std::as_bytes(std::span(&hello, 1)), patience(), "rank 0");
    }
    const auto backend = rank0.get();
    std::byte bytes[2][8];
    const Incoming in[] = {{1, bytes[0]}, {2, bytes[1]}};
    const Deadline deadline(milliseconds(100));
    if (listens) {
      EXPECT_WEFT_ERROR(backend->exchange({}, in, deadline), Timeout, "rank 2 has sent 0 of 16");
    } else {
      EXPECT_WEFT_ERROR(backend->exchange({}, in, deadline), PeerFailed,
                        "nobody listens any more on port ");
    }
  }
}

TEST(RingConnections, AbortEndsTheWaitForARankThatWasNotNeededBefore) {
  for (const auto& [silent, waits] : {std::pair(2, 0), {0, 2}}) {
    const Backends backends = met(4);
    auto waiting = std::async(std::launch::async, [&, at = waits, from = silent] {
      EXPECT_WEFT_ERROR(receive(*backends[at], from), Comm, "abort");
    });
    std::this_thread::sleep_for(milliseconds(20));  // so that it usually waits by then
    backends[waits]->abort();
    waiting.get();
  }
}

// Strangers connect to a rank that still listens for ranks that are not connected yet.
TEST(RingConnections, StrangersAreNoRanksLaterEither) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::future<std::unique_ptr<Backend>>> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.push_back(std::async(std::launch::async, [store, r] {
      return ring_backend("127.0.0.1")(store, r, 4, patience());
    }));
  }
  Backends backends;
  for (auto& rank : ranks) backends.push_back(rank.get());
  const std::uint64_t group = std::stoull(store->get("group"));
  for (const Hello& hello :
       {Hello{group + 1, 0}, Hello{group, 1}, Hello{group, 2}, Hello{group, 9}}) {
    const Socket stranger = connect_to("127.0.0.1", port_in(*store, 2), patience());
    send_all(stranger, std::as_bytes(std::span(&hello, 1)), patience(), "rank 2");
    std::byte answer[sizeof(Hello) + 1];
    // Only rank 1 gets an answer: that another connection counts.
    const std::size_t more_than_it_gets =
        hello.group == group && hello.rank == 1 ? sizeof answer : 1;
    EXPECT_WEFT_ERROR(
        recv_all(stranger, std::span(answer).first(more_than_it_gets), patience(), "rank 2"),
        PeerFailed, "");
  }
  send(*backends[0], 2, 9);
  EXPECT_EQ(receive(*backends[2], 0), 9);
}

}  // namespace
}  // namespace weft::comm
