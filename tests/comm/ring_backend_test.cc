// How the ranks of the ring backend find each other among strangers.
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

}  // namespace
}  // namespace weft::comm
