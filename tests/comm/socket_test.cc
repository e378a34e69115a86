// Sockets against peers that come, leave and stay silent.
#include "weft/comm/store/socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/file_limit.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{30'000}, kShort{50};
constexpr const char* kHost = "127.0.0.1";

struct Pair {
  Socket listening = listen_on(kHost, 0);
  Socket one = connect_to(kHost, port_of(listening), Deadline(kLong));
  Socket other = *accept_from(listening, Deadline(kLong));
};

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

TEST(Socket, WhatIsSentArrives) {
  const Pair pair;
  // More than the kernel buffers between the two.
  const std::vector<std::byte> sent = numbered(std::size_t{32} << 20);
  auto sending = std::async(std::launch::async,
                            [&] { send_all(pair.one, sent, Deadline(kLong), "the other"); });
  std::vector<std::byte> received(sent.size());
  recv_all(pair.other, received, Deadline(kLong), "the other");
  sending.get();
  EXPECT_TRUE(received == sent);
  send_all(pair.one, {}, Deadline(milliseconds(0)), "the other");
  recv_all(pair.other, {}, Deadline(milliseconds(0)), "the other");
}

TEST(Socket, WhoKeepsSilentIsNamedAtTheDeadline) {
  const Pair pair;
  std::vector<std::byte> bytes(400);
  EXPECT_WEFT_ERROR(recv_all(pair.one, bytes, Deadline(kShort), "rank 2"), Timeout,
                    "rank 2 has sent 0 of 400 bytes");
  send_all(pair.other, numbered(100), Deadline(kLong), "rank 1");
  EXPECT_WEFT_ERROR(recv_all(pair.one, bytes, Deadline(kShort), "rank 2"), Timeout,
                    "rank 2 has sent 100 of 400 bytes");
}

TEST(Socket, AWaitEndsByWhatItsDeadlineChecks) {
  const Pair pair;
  std::byte bytes[1];
  int checks = 0;
  const Deadline deadline(
      kLong, [&] { WEFT_CHECK(++checks % 3 != 0, PeerFailed, "test", "it is in vain"); });
  const int free_port = port_of(listen_on(kHost, 0));
  EXPECT_WEFT_ERROR(recv_all(pair.one, bytes, deadline, "rank 2"), PeerFailed, "in vain");
  EXPECT_WEFT_ERROR(accept_from(pair.listening, deadline), PeerFailed, "in vain");
  EXPECT_WEFT_ERROR(connect_to(kHost, free_port, deadline), PeerFailed, "in vain");
  EXPECT_EQ(checks, 9);
}

TEST(Socket, WhoListensNoMoreIsNotWaitedFor) {
  const int free_port = port_of(listen_on(kHost, 0));
  EXPECT_WEFT_ERROR(connect_to(kHost, free_port, Deadline(kLong), /*is_listening=*/true),
                    PeerFailed, "nobody listens any more on port ");
}

TEST(Socket, WhoDoesNotReadIsNamedAtTheDeadline) {
  const Pair pair;
  const auto bytes = numbered(std::size_t{64} << 20);
  EXPECT_WEFT_ERROR(send_all(pair.one, bytes, Deadline(kShort), "rank 2"), Timeout,
                    "of 67108864 bytes");
}

TEST(Socket, WhoIsGoneIsNamed) {
  Pair pair;
  send_all(pair.other, numbered(100), Deadline(kLong), "rank 1");
  pair.other = Socket();
  std::vector<std::byte> bytes(400);
  EXPECT_WEFT_ERROR(recv_all(pair.one, bytes, Deadline(kLong), "rank 2"), PeerFailed,
                    "rank 2 closed its connection (it has sent 100 of 400 bytes)");
}

// Without MSG_NOSIGNAL, SIGPIPE would end this test.
TEST(Socket, SendingToWhoIsGoneIsAnErrorAndNoSignal) {
  Pair pair;
  pair.other = Socket();
  const auto bytes = numbered(std::size_t{1} << 20);
  EXPECT_WEFT_ERROR(for (int i = 0; i < 100; ++i)
                        send_all(pair.one, bytes, Deadline(kLong), "rank 2"),
                    PeerFailed, "rank 2 closed its connection");
}

TEST(Socket, ShuttingDownWakesBothEnds) {
  const Pair pair;
  const auto receive = [](const Socket& socket) {
    std::vector<std::byte> bytes(1);
    EXPECT_WEFT_ERROR(recv_all(socket, bytes, Deadline(kLong), "rank 2"), PeerFailed, "rank 2");
  };
  auto own = std::async(std::launch::async, [&] { receive(pair.one); });
  auto others = std::async(std::launch::async, [&] { receive(pair.other); });
  EXPECT_EQ(own.wait_for(kShort), std::future_status::timeout);
  pair.one.shut_down();
  own.get();
  others.get();
}

TEST(Socket, ShuttingDownWakesWhoAccepts) {
  const Socket listening = listen_on(kHost, 0);
  auto accepting = std::async(std::launch::async, [&] {
    EXPECT_WEFT_ERROR(accept_from(listening, Deadline(kLong)), Comm, "cannot accept");
  });
  EXPECT_EQ(accepting.wait_for(kShort), std::future_status::timeout);
  listening.shut_down();
  accepting.get();
}

TEST(Socket, AcceptingEndsAtItsDeadline) {
  const Socket listening = listen_on(kHost, 0);
  EXPECT_EQ(accept_from(listening, Deadline(kShort)).has_value(), false);
  const Socket client = connect_to(kHost, port_of(listening), Deadline(kLong));
  EXPECT_TRUE(accept_from(listening, Deadline(kLong))->valid());
}

TEST(Socket, ListeningWhereItCannotBeIsAnErrorWithARemedy) {
  const Socket first = listen_on(kHost, 0);
  EXPECT_WEFT_ERROR(listen_on(kHost, port_of(first)), Comm, "give another port");
  EXPECT_WEFT_ERROR(listen_on("192.0.2.1", 0), Comm, "no address of this machine");
  EXPECT_WEFT_ERROR(listen_on("no.such.host.invalid", 0), Comm,
                    "cannot listen on port 0 of no.such.host.invalid");
  EXPECT_WEFT_ERROR(listen_on(kHost, 65536), InvalidArgument, "port 65536");
  EXPECT_WEFT_ERROR(connect_to(kHost, 0, Deadline(kShort)), InvalidArgument, "port 0");
}

TEST(Socket, ConnectingEndsAtItsDeadlineWithTheLastReason) {
  const int port = port_of(listen_on(kHost, 0));
  EXPECT_WEFT_ERROR(connect_to(kHost, port, Deadline(kShort)), Timeout, "Connection refused");
  EXPECT_WEFT_ERROR(connect_to("no.such.host.invalid", 1, Deadline(kShort)), Timeout,
                    "port 1 of no.such.host.invalid");
}

// Waiting does not help.
TEST(Socket, ConnectingWithoutADescriptorIsAnErrorAtOnce) {
  const Socket listening = listen_on(kHost, 0);
  const int port = port_of(listening);
  const weft::testing::FileLimit limit(256);
  const weft::testing::UsedUpDescriptors used(0);
  EXPECT_WEFT_ERROR(connect_to(kHost, port, Deadline(kLong)), Comm,
                    "Too many open files (errno 24); ulimit -n allows more");
}

TEST(Socket, TellsLoopbackFromOtherAddresses) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "192.0.2.1", "::", "2001:db8::1", "no.such.host.invalid"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(Socket, UrlsBracketIpv6Addresses) {
  EXPECT_EQ(tcp_url("node0", 29500), "tcp://node0:29500");
  EXPECT_EQ(tcp_url("::1", 1), "tcp://[::1]:1");
}

}  // namespace
}  // namespace weft::comm
