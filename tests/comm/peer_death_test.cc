// Ranks that are processes; one of them is killed or stopped while they reduce. This program is
// also the ranks: with arguments it runs as one of them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "weft/comm/store/tcp_store.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

extern char** environ;

namespace weft::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::patience;

// --- A rank --------------------------------------------------------------------------------------

// Reduces for ever, and prints how that ended.
int be_a_rank(const std::vector<std::string>& arguments) {
  const std::string name = arguments[0];
  const int rank = std::stoi(arguments[1]), size = std::stoi(arguments[2]);
  const milliseconds timeout(std::stoi(arguments[4]));
  std::string end = "not at all";
  try {
    const std::shared_ptr<Store> store =
        std::make_shared<TcpStore>("127.0.0.1", std::stoi(arguments[3]), "", patience());
    const auto backend = testing::maker_of(name)(std::make_shared<PrefixStore>("group", store),
                                                 rank, size, patience());
    std::vector<float> x(200'000);
    for (int round = 0;; ++round) {
      const auto count = static_cast<std::int64_t>(round % 2 ? x.size() : 16);
      backend->all_reduce({x.data(), count, DType::f32}, ReduceOp::max, Deadline(timeout));
      if (round < 20) continue;
      if (arguments.size() > 5) {  // from now on a message to rank 0 or 1 takes minutes
        const ThinLink link{.a = 0, .b = 1, .bytes_per_second = 1000};
        std::vector<int> ranks(static_cast<std::size_t>(size));
        std::iota(ranks.begin(), ranks.end(), 0);
        backend->set_links(ThinLinks(std::span(&link, 1), ranks, rank));
      }
      if (round == 20) store->set("runs/" + std::to_string(rank), "");
      if (arguments.size() > 5 && arguments[5] == "one way") {
        // Rank 0 waits for the link and for the last rank, which is silent; rank 1 waits for rank
        // 0.
        if (rank == size - 1) pause();
        const std::span<std::byte> bytes = std::as_writable_bytes(std::span(x));
        const Outgoing out{.to = 1, .bytes = bytes.first(bytes.size() / 2)};
        const Incoming in{.from = rank == 0 ? size - 1 : 0, .bytes = bytes.last(bytes.size() / 2)};
        backend->exchange(std::span(&out, rank == 0 ? 1 : 0), std::span(&in, 1), Deadline(timeout));
      }
    }
  } catch (const Error& error) {
    end = std::string(to_string(error.code())) + ": " + error.what();
  }
  std::printf("%s\n", end.c_str());
  return 0;
}

// --- The test ------------------------------------------------------------------------------------

class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_ = ends[0];
    arguments.insert(arguments.begin(), "rank");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~Process() {
    if (pid_ > 0) {
      signal(SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(output_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Does nothing if there is no process: kill() takes 0 for this test's own group.
  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }

  // Its output when it ends, which it must do by itself and normally.
  std::string end(Clock::time_point deadline) {
    std::string said;
    for (;;) {
      pollfd wait{output_, POLLIN, 0};
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (poll(&wait, 1, static_cast<int>(std::max(left, milliseconds(0)).count())) == 0) {
        return said + " (goes on)";
      }
      char text[1024];
      const ssize_t n = read(output_, text, sizeof text);
      if (n <= 0) break;
      said.append(text, static_cast<std::size_t>(n));
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    if (status != 0) said += " (ended with status " + std::to_string(status) + ")";
    return said;
  }

 private:
  pid_t pid_ = 0;
  int output_ = -1;
};

class PeerDeath : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_backend(std::get<0>(GetParam()));
    if (!missing.empty()) GTEST_SKIP() << missing;
  }

  // Starts ranks, and returns when they have begun to reduce. `link`: none, or "thin", or "one way"
  // if it is thin and they then exchange messages instead.
  std::vector<std::unique_ptr<Process>> start(milliseconds timeout, const std::string& link = {}) {
    const int size = std::get<1>(GetParam());
    server_ = std::make_unique<TcpStoreServer>(TcpStoreServer::Options{});
    std::vector<std::unique_ptr<Process>> ranks;
    for (int r = 0; r < size; ++r) {
      std::vector<std::string> arguments{std::get<0>(GetParam()), std::to_string(r),
                                         std::to_string(size), std::to_string(server_->port()),
                                         std::to_string(timeout.count())};
      if (!link.empty()) arguments.push_back(link);
      ranks.push_back(std::make_unique<Process>(arguments));
    }
    for (int r = 0; r < size; ++r) {
      server_->store()->get("runs/" + std::to_string(r), Deadline(seconds(15)));
    }
    return ranks;
  }

 private:
  std::unique_ptr<TcpStoreServer> server_;
};

TEST_P(PeerDeath, AKilledRankIsNoticedLongBeforeTheTimeout) {
  for (const std::string link : {"", "", "", "thin", "one way"}) {
    const auto ranks = start(seconds(60), link);
    // The others now wait for the link, or soon.
    if (!link.empty()) std::this_thread::sleep_for(milliseconds(200));
    const std::size_t dead = link == "one way" ? ranks.size() - 1 : 1;
    const auto killed = Clock::now();
    ranks[dead]->signal(SIGKILL);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (r == dead) continue;
      const std::string end = ranks[r]->end(killed + seconds(5));
      EXPECT_EQ(end.rfind("PeerFailed: ", 0), 0u) << end;
      EXPECT_HAS(end, " closed its connection");
      EXPECT_LACKS(end, "status");  // SIGPIPE would cause one
      EXPECT_LACKS(end, "goes on");
    }
  }
}

TEST_P(PeerDeath, AStoppedRankIsATimeoutThatNamesIt) {
  const auto ranks = start(milliseconds(1000));
  const auto stopped = Clock::now();
  ranks[1]->signal(SIGSTOP);
  bool named = false;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r == 1) continue;
    const std::string end = ranks[r]->end(stopped + seconds(10));
    // The rank that gives up first leaves, which the others then notice.
    EXPECT_TRUE(end.rfind("Timeout: ", 0) == 0 || end.rfind("PeerFailed: ", 0) == 0) << end;
    EXPECT_LACKS(end, "status");
    EXPECT_LACKS(end, "goes on");
    named = named || end.find("rank 1 has ") != std::string::npos;
  }
  EXPECT_TRUE(named);
  EXPECT_GE(Clock::now() - stopped, milliseconds(900));
}

INSTANTIATE_TEST_SUITE_P(Backends, PeerDeath,
                         ::testing::Combine(::testing::Values("ring", "gloo"),
                                            ::testing::Values(2, 3)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace weft::comm

int main(int argc, char** argv) {
  if (argc > 0 && std::string(argv[0]) == "rank") {
    return weft::comm::be_a_rank({argv + 1, argv + argc});
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
