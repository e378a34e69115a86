// The connections of one rank of the ring backend. Private to comm/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/store/socket.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// Connections to the two neighbours from the beginning, and to another rank when one of the two
/// first needs it. For one thread, except shut_down().
///
/// Every rank listens, and its address is in the store. The side that connects sends a Hello first.
/// It contains a number that is known only from the store, so that a stranger who finds the port is
/// not taken for a rank. Until its Hello has arrived, nobody knows whether a connection is a rank
/// or a stranger, so no connection is waited for alone.
///
/// Two ranks may connect to each other at the same time. To agree on one connection:
///   - That of the higher rank counts as soon as it is made: the higher rank goes on and sends. The
///     lower one need not be asked, since its system accepts for it.
///   - That of the lower rank counts when the higher rank has answered its Hello. A thread of the
///     higher rank answers, because the rank itself may be waiting for a third one, which waits for
///     the lower one. If the higher rank is just connecting itself, it answers afterwards that its
///     own connection counts. So connecting never waits for a call of the other rank; and if a
///     connection is closed without an answer, the other rank is gone.
class RingConnections {
 public:
  /// `silence`: how long a connection without a complete Hello may be kept.
  RingConnections(std::string local_addr, int rank, int size,
                  std::chrono::milliseconds silence = std::chrono::minutes(1));
  ~RingConnections();
  RingConnections(const RingConnections&) = delete;
  RingConnections& operator=(const RingConnections&) = delete;

  /// Connects to the neighbours, and reads the addresses of the other ranks.
  void meet(Store& store, const Deadline& deadline);
  /// The connected socket to that rank, which lives as long as this object. Throws PeerFailed if
  /// the rank is gone or after shut_down(), Timeout, and Comm for errors of the system.
  int descriptor(int rank, const Deadline& deadline);
  /// From any thread: wakes the threads that wait for a connection, here and at its other end.
  void shut_down() noexcept;

 private:
  // The first message of a connection, and the answer to it.
  struct Hello {
    std::uint64_t group;  // a random number that the ranks of a group share
    std::uint64_t rank;   // or kMineCounts
  };
  // A connection whose Hello has not arrived completely.
  struct Guest;

  struct Peer {
    std::string address = {};
    Socket socket = {};
    bool by_this_rank = false;  // whether this rank has made the connection
  };

  int size() const { return static_cast<int>(peers_.size()); }
  std::vector<int> neighbours() const;  // in rising order
  bool complete() const;
  void read_address(Store& store, int rank, const Deadline& deadline);

  Socket open(int rank, const Deadline& deadline);
  void connect_down(int rank, const Deadline& deadline);
  void connect_up(int rank, const Deadline& deadline);
  bool take_answered(int rank, Socket socket, const Deadline& deadline);
  void await(int rank, const Deadline& deadline);
  bool answer(const Socket& socket, std::uint64_t with) const;
  void take(int rank, Socket socket, bool by_this_rank);

  void accept_neighbours(const Deadline& deadline);
  void serve();
  void receive(const Deadline& deadline, const std::vector<int>& watched);
  bool hear(Guest& guest);
  void settle(const Hello& hello, Socket socket);
  void admit();

  const std::string local_addr_;
  const int rank_;
  const std::chrono::milliseconds silence_;
  std::uint64_t group_ = 0;

  // Used by the thread, and before it starts by meet().
  std::vector<Guest> guests_;
  std::size_t most_guests_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Socket listening_;
  std::vector<Peer> peers_;    // by rank; this rank's own has no socket
  int connecting_to_ = -1;     // the lower rank that this one is connecting to
  Socket unanswered_;          // that rank's own connection, if it came meanwhile
  int waits_for_answer_ = -1;  // the descriptor of the connection to a higher rank
  bool ended_ = false;

  std::thread thread_;
};

}  // namespace weft::comm
