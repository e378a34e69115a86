// The contract of every store, for each store and for PrefixStore on it.
#include "weft/comm/store/store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/store/deadline.h"
#include "weft/comm/store/file_store.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/core/base/error.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

// "within 5 s", also when it was a bit more; never 6.
TEST(SecondsSince, RoundsToATenth) {
  using Clock = Deadline::Clock;
  const auto start = Clock::now() - milliseconds(5020);
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const double before = passed(), said = seconds_since(start), after = passed();
  EXPECT_GE(said, before - 0.05);
  EXPECT_LE(said, after + 0.05);
  EXPECT_EQ(said * 10, std::round(said * 10));
}

constexpr milliseconds kLong{30'000}, kShort{50};

// Returns handles to the same store.
using Connect = std::function<std::unique_ptr<Store>()>;

Connect memory() {
  return [first = std::make_shared<MemoryStore>()] { return first->duplicate(); };
}

Connect tcp() {
  return [server = std::make_shared<TcpStoreServer>(TcpStoreServer::Options{.token = "secret"})] {
    return std::make_unique<TcpStore>("127.0.0.1", server->port(), "secret", Deadline(kLong));
  };
}

Connect tcp_server() {
  return [server = std::make_shared<TcpStoreServer>(TcpStoreServer::Options{})] {
    return server->store();
  };
}

Connect file() {
  return [folder = std::make_shared<testing::TempFolder>()] {
    return std::make_unique<FileStore>(folder->path("store"));
  };
}

struct Kind {
  const char* name;
  Connect (*make)();
  bool prefixed;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Store> connect() const {
    std::unique_ptr<Store> store = connect_();
    store->set_timeout(kLong);
    if (!GetParam().prefixed) return store;
    return std::make_unique<PrefixStore>("run 1", std::move(store));
  }

 private:
  const Connect connect_ = GetParam().make();
};

TEST_P(StoreTest, WhatOneSetsTheOthersGet) {
  const auto one = connect(), other = connect();
  one->set("key", "value");
  EXPECT_EQ(other->get("key"), "value");
  EXPECT_EQ(other->try_get("key"), "value");
  EXPECT_EQ(one->get("key"), "value");
  other->set("key", "second");
  EXPECT_EQ(one->get("key"), "second");
}

TEST_P(StoreTest, ValuesAreAnyBytes) {
  const auto one = connect(), other = connect();
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i);
  const std::string key("a\0\n\xff/b", 6);
  one->set(key, bytes);
  one->set("empty", "");
  EXPECT_EQ(other->get(key), bytes);
  EXPECT_EQ(other->get("empty"), "");
  EXPECT_EQ(other->try_get("a"), std::nullopt);
}

TEST_P(StoreTest, TheLongestKeysAndValuesPass) {
  const auto one = connect(), other = connect();
  const std::size_t prefix = GetParam().prefixed ? sizeof("run 1") : 0;
  const std::string key(Store::kMostKeyBytes - prefix, 'k');
  std::string value(Store::kMostValueBytes, 'v');
  value.back() = 'w';
  one->set(key, value);
  EXPECT_TRUE(other->get(key) == value);
  one->set("after", "it");
  EXPECT_EQ(other->get("after"), "it");
}

TEST_P(StoreTest, AWaitEndsByWhatItsDeadlineChecks) {
  const auto one = connect(), other = connect();
  int checks = 0;
  const Deadline deadline(kLong, [&] {
    if (++checks == 2) other->set("key", "value");
    WEFT_CHECK(checks < 4, PeerFailed, "test", "it is in vain");
  });
  EXPECT_EQ(one->get("key", deadline), "value");
  EXPECT_EQ(checks, 2);
  EXPECT_WEFT_ERROR(one->wait("never", deadline), PeerFailed, "it is in vain");
}

TEST_P(StoreTest, RefusesLongerOnesAndKeysWithoutBytes) {
  const auto store = connect();
  const std::string key(Store::kMostKeyBytes + 1, 'k');
  const std::string value(Store::kMostValueBytes + 1, 'v');
  EXPECT_WEFT_ERROR(store->set(key, "x"), InvalidArgument, "1 to 1024");
  EXPECT_WEFT_ERROR(store->set("", "x"), InvalidArgument, "a key of 0 bytes");
  EXPECT_WEFT_ERROR(store->get(key), InvalidArgument, "1 to 1024");
  EXPECT_WEFT_ERROR(store->try_get(key), InvalidArgument, "1 to 1024");
  EXPECT_WEFT_ERROR(store->add(key, 1), InvalidArgument, "1 to 1024");
  EXPECT_WEFT_ERROR(store->set_once(key, "x"), InvalidArgument, "1 to 1024");
  EXPECT_WEFT_ERROR(store->erase(key), InvalidArgument, "1 to 1024");
  EXPECT_WEFT_ERROR(store->set("key", value), InvalidArgument, "the value of 'key' has 1048577");
  EXPECT_WEFT_ERROR(store->set_once("key", value), InvalidArgument, "the most are 1048576");
  EXPECT_EQ(store->try_get("key"), std::nullopt);
}

TEST_P(StoreTest, GetWaitsUntilTheKeyIsSet) {
  const auto one = connect(), other = connect();
  auto waiting = std::async(std::launch::async, [&] { return other->get("late"); });
  EXPECT_EQ(waiting.wait_for(kShort), std::future_status::timeout);
  one->set("another", "x");
  EXPECT_EQ(waiting.wait_for(kShort), std::future_status::timeout);
  one->set("late", "value");
  EXPECT_EQ(waiting.get(), "value");
}

TEST_P(StoreTest, WaitGivesNothingAtItsDeadline) {
  const auto store = connect();
  EXPECT_EQ(store->wait("key", Deadline(kShort)), std::nullopt);
  store->set("key", "value");
  EXPECT_EQ(store->wait("key", Deadline(kShort)), "value");
}

TEST_P(StoreTest, EveryWayOfSettingEndsTheWait) {
  const auto one = connect(), other = connect();
  auto sum = std::async(std::launch::async, [&] { return other->get("sum"); });
  one->add("sum", 7);
  EXPECT_EQ(sum.get(), "7");
  auto once = std::async(std::launch::async, [&] { return other->get("once"); });
  one->set_once("once", "x");
  EXPECT_EQ(once.get(), "x");
}

TEST_P(StoreTest, GetEndsAtItsDeadline) {
  const auto store = connect();
  EXPECT_WEFT_ERROR(store->get("never", Deadline(kShort)), Timeout, "nobody has set 'never' in ");
  EXPECT_WEFT_ERROR(store->get("never", Deadline(kShort)), Timeout, store->describe());
  store->set_timeout(kShort);
  EXPECT_WEFT_ERROR(store->get("never"), Timeout, "nobody has set");
  store->set_timeout(kLong);
  EXPECT_EQ(store->try_get("never"), std::nullopt);
  store->set("never", "yet");
  EXPECT_EQ(store->get("never", Deadline(milliseconds(0))), "yet");
}

TEST_P(StoreTest, AddCountsFromNothing) {
  const auto one = connect(), other = connect();
  EXPECT_EQ(one->add("sum", 0), 0);
  EXPECT_EQ(one->add("sum", 5), 5);
  EXPECT_EQ(other->add("sum", -7), -2);
  EXPECT_EQ(one->get("sum"), "-2");
  one->set("sum", "40");
  EXPECT_EQ(other->add("sum", 2), 42);
}

TEST_P(StoreTest, AddRefusesWhatIsNoNumber) {
  const auto store = connect();
  for (const char* text : {"", "x", "1x", " 1", "99999999999999999999"}) {
    store->set("text", text);
    EXPECT_WEFT_ERROR(store->add("text", 1), InvalidArgument, "is no number");
    EXPECT_EQ(store->get("text"), text);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(store->add("large", kMost), kMost);
  EXPECT_WEFT_ERROR(store->add("large", 1), InvalidArgument, "leaves 64 bits");
  EXPECT_EQ(store->add("large", -1), kMost - 1);
}

TEST_P(StoreTest, SetOnceKeepsTheFirst) {
  const auto one = connect(), other = connect();
  EXPECT_EQ(one->set_once("key", "first"), "first");
  EXPECT_EQ(other->set_once("key", "second"), "first");
  EXPECT_EQ(one->get("key"), "first");
}

TEST_P(StoreTest, EraseForgets) {
  const auto one = connect(), other = connect();
  EXPECT_FALSE(one->erase("key"));
  one->set("key", "value");
  EXPECT_TRUE(other->erase("key"));
  EXPECT_EQ(one->try_get("key"), std::nullopt);
  EXPECT_FALSE(one->erase("key"));
  EXPECT_EQ(other->set_once("key", "again"), "again");
  EXPECT_EQ(one->add("sum", 1), 1);
}

TEST_P(StoreTest, NoCountOfManyIsLost) {
  constexpr int kThreads = 4, kEach = 50;
  std::vector<std::set<std::int64_t>> seen(kThreads);
  std::vector<std::string> first(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto store = connect();
      for (int i = 0; i < kEach; ++i) seen[t].insert(store->add("sum", 1));
      first[t] = store->set_once("first", std::to_string(t));
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<std::int64_t> all;
  for (const auto& some : seen) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(*all.rbegin(), kThreads * kEach);
  for (const auto& value : first) EXPECT_EQ(value, first[0]);
}

TEST_P(StoreTest, OneHandleServesSeveralThreads) {
  const auto store = connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string key = "key " + std::to_string(t);
      for (int i = 0; i < 20; ++i) {
        store->set(key, std::to_string(i));
        EXPECT_EQ(store->get(key), std::to_string(i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(StoreTest, ADuplicateSeesTheSameAndDoesNotWaitForTheOther) {
  const auto one = connect();
  const auto other = one->duplicate();
  EXPECT_EQ(other->timeout(), one->timeout());
  EXPECT_EQ(other->describe(), one->describe());
  auto waiting = std::async(std::launch::async, [&] { return one->get("late"); });
  EXPECT_EQ(waiting.wait_for(kShort), std::future_status::timeout);
  other->set("late", "value");
  EXPECT_EQ(waiting.get(), "value");
}

std::string name_of(const ::testing::TestParamInfo<Kind>& kind) { return kind.param.name; }

INSTANTIATE_TEST_SUITE_P(
    All, StoreTest,
    ::testing::Values(Kind{"Memory", memory, false}, Kind{"MemoryWithPrefix", memory, true},
                      Kind{"File", file, false}, Kind{"FileWithPrefix", file, true},
                      Kind{"Tcp", tcp, false}, Kind{"TcpWithPrefix", tcp, true},
                      Kind{"TcpServer", tcp_server, false},
                      Kind{"TcpServerWithPrefix", tcp_server, true}),
    name_of);

TEST(PrefixStore, PrefixesDoNotMeet) {
  const auto store = std::make_shared<MemoryStore>();
  PrefixStore one("one", store), other("other", store);
  one.set("key", "1");
  EXPECT_EQ(other.try_get("key"), std::nullopt);
  EXPECT_EQ(store->get("one/key"), "1");
  EXPECT_EQ(one.describe(), "memory under 'one/'");
}

TEST(PrefixStore, TheWholeKeyCounts) {
  PrefixStore store(std::string(1000, 'p'), std::make_shared<MemoryStore>());
  EXPECT_NO_THROW(store.set(std::string(23, 'k'), "fits"));
  EXPECT_WEFT_ERROR(store.set(std::string(24, 'k'), "x"), InvalidArgument, "a key of 1025 bytes");
  EXPECT_WEFT_ERROR(store.get(std::string(24, 'k')), InvalidArgument, "a key of 1025 bytes");
}

TEST(PrefixStore, KeepsTheTimeoutOfItsStore) {
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_EQ(store->timeout(), milliseconds(300'000));
  store->set_timeout(milliseconds(17));
  EXPECT_EQ(PrefixStore("p", store).timeout(), milliseconds(17));
}

}  // namespace
}  // namespace weft::comm
