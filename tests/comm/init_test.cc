// From an address or an environment to a group.
#include "weft/comm/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/store/socket.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/file_limit.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using weft::testing::TempFolder;
using Group = std::shared_ptr<ProcessGroup>;

constexpr milliseconds kLong{30'000}, kShort{300};

InitOptions options(const std::string& init_method, std::optional<int> rank = {},
                    std::optional<int> world_size = {}) {
  return {.init_method = init_method,
          .rank = rank,
          .world_size = world_size,
          .backend = "ring",
          .rendezvous_timeout = kLong};
}

std::string free_address() { return tcp_url("127.0.0.1", port_of(listen_on("127.0.0.1", 0))); }

// What `rank` of a world of `size` does in a thread that represents a process. The sum of all
// ranks' numbers proves that they have met.
int sum_of_ranks(InitOptions o) {
  const Group group = init_process_group(o);
  EXPECT_EQ(thread_state().rank, group->rank());
  const Tensor x = full({3}, static_cast<double>(group->rank() + 1));
  group->all_reduce(x).wait();
  group->barrier().wait();  // rank 0 may host the store
  return static_cast<int>(x.to_vector<float>()[2]);
}

std::future<int> start(const InitOptions& o) {
  return std::async(std::launch::async, [=] { return sum_of_ranks(o); });
}

// Sets environment variables for a scope in which no other thread reads them.
using Variables = std::vector<std::pair<std::string, std::string>>;
class Environment {
 public:
  explicit Environment(const Variables& set) {
    for (const auto& [name, value] : set) {
      names_.push_back(name);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& name : names_) ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST(InitProcessGroup, RanksMeetByTcp) {
  const std::string address = free_address();
  auto two = start(options(address, 2, 3)), one = start(options(address, 1, 3));
  EXPECT_EQ(sum_of_ranks(options(address, 0, 3)), 6);
  EXPECT_EQ(one.get(), 6);
  EXPECT_EQ(two.get(), 6);
}

// Rank 0, which hosts the store, may leave as well.
TEST(InitProcessGroup, WhoHasMetMayLeaveAtOnce) {
  for (const std::string backend : {"gloo", "ring", "shm"}) {
    if (!comm::testing::missing_backend(backend).empty()) continue;
    for (int run = 0; run < 10; ++run) {
      const std::string address = free_address();
      std::vector<std::future<void>> ranks;
      for (int rank = 0; rank < 4; ++rank) {
        InitOptions o = options(address, rank, 4);
        o.backend = backend;
        ranks.push_back(std::async(std::launch::async, [o] { init_process_group(o); }));
      }
      for (auto& rank : ranks) EXPECT_NO_THROW(rank.get()) << backend;
    }
  }
}

TEST(InitProcessGroup, RanksMeetInAFile) {
  const TempFolder folder;
  const std::string address = "file://" + folder.path("run");
  auto one = start(options(address, 1, 2));
  EXPECT_EQ(sum_of_ranks(options(address, 0, 2)), 3);
  EXPECT_EQ(one.get(), 3);
  EXPECT_EQ(folder.files(), 0);
}

TEST(InitProcessGroup, RankAndWorldSizeMayStandInTheAddress) {
  const TempFolder folder;
  const std::string address = "file://" + folder.path("run");
  auto one = start(options(address + "?rank=1&world_size=2"));
  // Options besides the address have priority.
  EXPECT_EQ(sum_of_ranks(options(address + "?rank=1&world_size=7", 0, 2)), 3);
  EXPECT_EQ(one.get(), 3);
}

TEST(InitProcessGroup, RanksMeetByTheEnvironment) {
  const std::string port = free_address().substr(sizeof("tcp://127.0.0.1:") - 1);
  const Environment set({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}, {"WORLD_SIZE", "2"}});
  auto one = start(options("env://", 1));
  EXPECT_EQ(sum_of_ranks(options("env://", 0)), 3);
  EXPECT_EQ(one.get(), 3);
}

// weftrun's store stays, so the processes can meet in it any number of times.
TEST(InitProcessGroup, RanksMeetInALaunchersStoreWithItsToken) {
  const TcpStoreServer server({.token = "secret"});
  const Environment set({{"WEFT_STORE", "127.0.0.1:" + std::to_string(server.port())},
                         {"WEFT_STORE_TOKEN", "secret"},
                         {"WORLD_SIZE", "2"}});
  for (int run = 0; run < 2; ++run) {
    auto one = start(options("env://", 1));
    EXPECT_EQ(sum_of_ranks(options("env://", 0)), 3);
    EXPECT_EQ(one.get(), 3);
  }
  InitOptions wrong = options("env://", 0);
  wrong.token = "wrong";
  EXPECT_WEFT_ERROR(init_process_group(wrong), InvalidArgument, "refuses the token");
  EXPECT_STREQ(std::getenv("WEFT_STORE_TOKEN"), "secret");
}

// A backend whose all-reduce is easy to recognise.
struct Sevens final : BackendOver {
  using BackendOver::BackendOver;
  const char* name() const override { return "sevens"; }
  void all_reduce(const Buffer& x, ReduceOp, const Deadline& deadline) override {
    barrier(deadline);
    std::fill_n(static_cast<float*>(x.data), x.count, 7.0F);
  }
};

TEST(InitProcessGroup, TakesABackendOfOnesOwn) {
  const auto own = [](const std::string& address, int rank) {
    InitOptions o = options(address, rank, 2);
    o.backend = "auto";
    o.make_backend = backend_over<Sevens>(ring_backend("127.0.0.1"));
    return o;
  };
  const std::string address = free_address();
  const auto train = [&](int rank) {
    const Group group = init_process_group(own(address, rank));
    EXPECT_STREQ(group->backend(), "sevens");
    const std::int64_t before = group->traffic().bytes_sent;
    const Tensor x = full({3}, rank + 1.0);
    group->broadcast(x, 1).wait();
    EXPECT_EQ(x.to_vector<float>()[2], 2);
    EXPECT_EQ(group->traffic().bytes_sent - before, rank == 1 ? 12 : 0);
    group->all_reduce(x).wait();
    EXPECT_EQ(x.to_vector<float>()[2], 7);
    group->duplicate()->all_reduce(x).wait();
    EXPECT_EQ(group->duplicate()->backend(), std::string("sevens"));
    group->barrier().wait();
  };
  auto one = std::async(std::launch::async, train, 1);
  train(0);
  one.get();

  InitOptions both = own(free_address(), 0);
  both.backend = "ring";
  EXPECT_WEFT_ERROR(init_process_group(both), InvalidArgument,
                    "both a backend, 'ring', and a make_backend");
  // The others use weft's backend.
  const std::string mixed = free_address();
  auto other = std::async(std::launch::async, [&] {
    EXPECT_WEFT_ERROR(init_process_group(options(mixed, 1, 2)), InvalidArgument,
                      "all need the same");
  });
  EXPECT_WEFT_ERROR(init_process_group(own(mixed, 0)), InvalidArgument, "of the program's own");
  other.get();
}

TEST(InitProcessGroup, RanksListenWhereTheEnvironmentSays) {
  const TempFolder folder;
  const std::string address = "file://" + folder.path("run");
  const Environment set(Variables{{"WEFT_LOCAL_ADDR", "192.0.2.1"}});  // no machine's address
  const auto refused = [&](int rank) {
    EXPECT_WEFT_ERROR(init_process_group(options(address, rank, 2)), Comm,
                      "192.0.2.1: Cannot assign requested address");
  };
  const auto one = std::async(std::launch::async, [&] { refused(1); });
  refused(0);
}

TEST(InitProcessGroup, AWorldOfOneNeedsNothing) {
  for (const InitOptions& o :
       {InitOptions{}, options("env://", {}, 1), options("tcp://192.0.2.1:29500", 0, 1),
        options("tcp://192.0.2.1:29500?rank=0&world_size=1"),
        options("file:///no/such/folder/run", 0, 1)}) {
    EXPECT_EQ(sum_of_ranks(o), 1);
  }
  const Group group = init_process_group({.backend = "threads"});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->store()->describe(), "memory");
}

TEST(InitProcessGroup, RanksAreWhatTheyCanBe) {
  EXPECT_WEFT_ERROR(init_process_group(options("tcp://127.0.0.1:1", 2, 2)), InvalidArgument,
                    "rank 2 of 2");
  EXPECT_WEFT_ERROR(init_process_group(options("tcp://127.0.0.1:1", -1, 2)), InvalidArgument,
                    "rank -1 of 2");
  EXPECT_WEFT_ERROR(init_process_group(options("tcp://127.0.0.1:1", 0, 0)), InvalidArgument,
                    "rank 0 of 0");
  EXPECT_WEFT_ERROR(init_process_group(options("env://", 1, 1)), InvalidArgument, "rank 1 of 1");
}

TEST(InitProcessGroup, AddressesAreReadToTheLetter) {
  const struct {
    const char* address;
    const char* text;
  } cases[] = {
      {"", "no kind that is known"},
      {"udp://127.0.0.1:1", "no kind that is known"},
      {"env://x", "no kind that is known"},
      {"tcp://127.0.0.1", "the port is missing"},
      {"tcp://:29500", "the host is missing"},
      {"tcp://[]:29500", "the host is missing"},
      {"tcp://127.0.0.1:", "'' is no whole number"},
      {"tcp://127.0.0.1:80x", "'80x' is no whole number"},
      {"tcp://127.0.0.1:0", "ports are 1 to 65535"},
      {"tcp://127.0.0.1:65536", "ports are 1 to 65535"},
      {"file://relative", "must begin with a slash"},
      {"file:///tmp/x", "rank is missing"},
      {"file:///tmp/x?rank=0", "world_size is missing"},
      {"tcp://127.0.0.1:1?world_size=2", "rank is missing"},
      {"tcp://127.0.0.1:1?rank=a&world_size=2", "'a' is no whole number"},
      {"tcp://127.0.0.1:1?rank=0&size=2", "'size' is not known"},
  };
  for (const auto& [address, text] : cases) {
    EXPECT_WEFT_ERROR(init_process_group(options(address)), InvalidArgument, text);
    EXPECT_WEFT_ERROR(init_process_group(options(address)), InvalidArgument,
                      "tcp://node0:29500?rank=0&world_size=2");
  }
}

TEST(InitProcessGroup, RefusesBackendsThatItDoesNotKnow) {
  InitOptions o = options("file:///no/such/folder/run", 0, 2);
  o.backend = "mpi";
  EXPECT_WEFT_ERROR(init_process_group(o), InvalidArgument,
                    "backend 'mpi' is not known; there are auto, gloo, nccl, nccl-ring, ring");
  o.backend = "threads";
  EXPECT_WEFT_ERROR(init_process_group(o), InvalidArgument, "comm::run_ranks()");
  o.world_size = 1;
  o.backend = "mpi";
  EXPECT_WEFT_ERROR(init_process_group(o), InvalidArgument, "backend 'mpi'");
}

TEST(InitProcessGroup, BeyondLoopbackATokenIsNeeded) {
  for (const int rank : {0, 1}) {
    EXPECT_WEFT_ERROR(init_process_group(options("tcp://192.0.2.1:29500", rank, 2)),
                      InvalidArgument, "WEFT_STORE_TOKEN");
  }
}

// Rank 0 hosts the store: for each other rank it needs four for connections to the store, and one
// for a connection of the group.
TEST(InitProcessGroup, TooFewDescriptorsAreAnErrorAtOnce) {
  const weft::testing::FileLimit limit(64);
  EXPECT_WEFT_ERROR(init_process_group(options(free_address(), 0, 101)), Library,
                    "rank 0 of 101, which hosts the store, needs 500 file descriptors in this "
                    "process, which may open ");
}

TEST(InitProcessGroup, RankZeroThatDoesNotComeIsNamed) {
  InitOptions o = options(free_address(), 1, 2);
  o.rendezvous_timeout = kShort;
  EXPECT_WEFT_ERROR(init_process_group(o), Timeout,
                    "rank 0 of 2, which hosts the store at " + o.init_method);
  o.rendezvous_timeout = milliseconds(0);
  EXPECT_WEFT_ERROR(init_process_group(o), InvalidArgument, "rendezvous_timeout is 0 ms");
}

TEST(InitProcessGroup, TheEnvironmentMayGiveTheTimeouts) {
  {
    const Environment short_one({std::pair("WEFT_TIMEOUT", "0.25")});
    EXPECT_WEFT_ERROR(init_process_group(options(free_address(), 0, 2)), Timeout,
                      "rank 1 of 2 has not come");
    const Group alone = init_process_group({.rank = 0, .world_size = 1});
    EXPECT_EQ(alone->options().timeout, milliseconds(250));
    EXPECT_LT(alone->options().slow, milliseconds(250));
  }
  {
    const Environment shortest({std::pair("WEFT_TIMEOUT", "0.001")});
    const Group alone = init_process_group({.rank = 0, .world_size = 1});
    EXPECT_EQ(alone->options().timeout, milliseconds(1));
    EXPECT_EQ(alone->options().slow, milliseconds(1));
  }
  for (const char* text : {"", "0", "-1", "x", "3s", "1e9", "nan"}) {
    const Environment wrong({std::pair("WEFT_TIMEOUT", text)});
    EXPECT_WEFT_ERROR(init_process_group({.rank = 0, .world_size = 1}), InvalidArgument,
                      "WEFT_TIMEOUT is '" + std::string(text) + "', expected seconds");
  }
}

TEST(InitProcessGroup, RankZeroThatGoesAwayIsNamed) {
  auto server = std::make_unique<TcpStoreServer>(TcpStoreServer::Options{});
  const std::string address = server->store()->describe();
  auto one = std::async(std::launch::async, [&] {
    EXPECT_WEFT_ERROR(init_process_group(options(address, 1, 2)), PeerFailed,
                      "rank 0 of 2, which hosts the store at " + address + ", has failed");
  });
  server->store()->get("rendezvous/rank/1");
  server.reset();
  one.get();
}

TEST(InitProcessGroup, OthersThatDoNotComeAreNamedAndThePortIsFreeAgain) {
  InitOptions o = options(free_address(), 0, 3);
  o.rendezvous_timeout = kShort;
  EXPECT_WEFT_ERROR(init_process_group(o), Timeout, "ranks 1, 2 of 3 have not come");
  EXPECT_WEFT_ERROR(init_process_group(o), Timeout, "ranks 1, 2 of 3 have not come");
}

// Rank 0 hosts the store and stays until the others have read there why it fails.
TEST(InitProcessGroup, WhatDoesNotFitIsTheSameErrorOnAll) {
  for (int i = 0; i < 20; ++i) {
    const std::string address = free_address();
    const auto fail = [&](int rank, int size) {
      EXPECT_WEFT_ERROR(init_process_group(options(address, rank, size)), InvalidArgument,
                        "; all need the same");
    };
    auto other = std::async(std::launch::async, fail, 1, 3);
    fail(0, 2);
    other.get();
  }
}

TEST(InitProcessGroup, APortInUseIsAnErrorWithARemedy) {
  const Socket other = listen_on("127.0.0.1", 0);
  EXPECT_WEFT_ERROR(init_process_group(options(tcp_url("127.0.0.1", port_of(other)), 0, 2)), Comm,
                    "give another port");
}

}  // namespace
}  // namespace weft::comm
