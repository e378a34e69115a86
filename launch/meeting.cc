#include "weft/launch/meeting.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/backend/random_number.h"
#include "weft/comm/membership.h"
#include "weft/comm/store/failure.h"
#include "weft/comm/store/socket.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/core/base/error.h"
#include "weft/launch/process.h"
#include "weft/launch/report.h"

namespace weft::launch {
namespace {

using comm::Deadline;
using std::chrono::milliseconds;

constexpr const char* kOp = "weftrun";
constexpr const char* kLoopback = "127.0.0.1";
// Messages while ranks are being ended must not take much of the ranks' time.
constexpr milliseconds kToldWithin{2000}, kLeaveWithin{5000}, kWatchTurn{5000};
// Node 0 may be stopped for a short time. After this silence the other nodes take it for lost.
constexpr milliseconds kLostAfter{30'000};
// A node that waits longer says for which nodes.
constexpr milliseconds kSilentFor{3000};
// With --nnodes MIN:MAX: how often a node says that it lives, how long node 0 waits for nodes
// beyond MIN, and how long a node waits for its place. A node is lost after kLostTurns turns of
// silence.
constexpr milliseconds kBeat{500}, kLastCall{5000}, kPlace{20'000}, kPoll{50};
constexpr int kLostTurns = 10;

std::string random_token() {
  std::array<unsigned char, 32> bytes;
  WEFT_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             Library, kOp, "getrandom: ", std::generic_category().message(errno));
  std::string token;
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) token += "0123456789abcdef"[digit];
  }
  return token;
}

std::string read_token(const std::string& path) {
  struct stat found{};
  WEFT_CHECK(::stat(path.c_str(), &found) == 0, Io, kOp, "cannot read the token file ", path, ": ",
             std::generic_category().message(errno));
  WEFT_CHECK((found.st_mode & 077) == 0, InvalidArgument, kOp, "the token file ", path,
             " may be read or written by others than its owner: chmod 600 it");
  std::ifstream file(path);
  std::string token;
  std::getline(file, token);
  WEFT_CHECK(!token.empty(), InvalidArgument, kOp, "the token file ", path,
             " is empty, or may not be read: write some 64 random letters there");
  return token;
}

std::string token_of(const Options& options) {
  if (!options.token_file.empty()) return read_token(options.token_file);
  return options.nnodes == 1 ? random_token() : std::string();
}

int free_port(const std::string& host) { return comm::port_of(comm::listen_on(host, 0)); }

/// Calls f(), and ignores an error: whoever would need the result is lost, too.
template <class F>
void try_to(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception&) {
  }
}

/// Calls f(), which makes a store of several nodes or connects to it. If that fails because of
/// their secret, the error gets the option that sets the secret.
template <class F>
decltype(auto) with_token_option(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::InvalidArgument) throw;
    throw error.with_context("weftrun: give each node the same --token-file");
  }
}

}  // namespace

struct Meeting::RankStore {
  std::unique_ptr<comm::TcpStoreServer> server;  ///< only on node 0
  Place place;
  /// By rank: the last generation at the time when the rank's process was started.
  std::map<int, int> first_of_process = {};

  /// Sets first_of_process for all ranks of a node that joins.
  void see_generations(int nproc) {
    comm::Membership list(connect());
    int last = 0;
    while (list.ranks(last + 1, Deadline(milliseconds(0)))) ++last;
    for (int rank = 0; rank < nproc; ++rank) first_of_process[place.first_rank + rank] = last;
  }

  std::unique_ptr<comm::Store> connect() const {
    if (server) return server->store();
    auto store = std::make_unique<comm::TcpStore>(place.store_host, place.store_port, place.token,
                                                  Deadline(kToldWithin));
    store->set_timeout(kToldWithin);
    return store;
  }
};

/// What the weftruns of several nodes share. Keys, of attempt N:
///   N/ranks/R   how many ranks node R has, and which weftrun says so
///   N/place     the ports of the ranks' store and of MASTER_PORT, by node 0
///   N/well      how many nodes' ranks have all ended well
///   N/end       status and text, of whoever knows first
///   N/left/R    node R has read that
/// With --nnodes MIN:MAX, where N is 0, and N/ranks/R of a lost node is erased, also:
///   N/begins/R  what N/ranks/R was at the beginning
///   N/beat/R    counts as long as the weftrun of node R lives, and has its place
///   N/well/R    in place of N/well
struct Meeting::Nodes {
  explicit Nodes(const Options& o, std::string t) : options(o), token(std::move(t)) {
    if (options.node_rank != 0) return;
    server = with_token_option([&] {
      return std::make_unique<comm::TcpStoreServer>(comm::TcpStoreServer::Options{
          .host = options.endpoint_host, .port = options.endpoint_port, .token = token});
    });
    store = server->store();
  }

  ~Nodes() {
    stop_watching();
    if (options.node_rank != 0 || !known_end) return;
    const Deadline deadline(kLeaveWithin);
    for (int node = 1; node < options.nnodes; ++node) {
      if (options.min_nnodes > 0 && !others[static_cast<std::size_t>(node)].there) continue;
      try_to([&] { store->get(key("left/", node), deadline); });
    }
  }

  template <class... Parts>
  std::string key(const Parts&... parts) const {
    return detail::concat(attempt, '/', parts...);
  }

  std::unique_ptr<comm::Store> connect(const Deadline& deadline) const {
    return with_token_option([&] {
      return std::make_unique<comm::TcpStore>(options.endpoint_host, options.endpoint_port, token,
                                              deadline);
    });
  }

  void connect_to_node_0(const Deadline& deadline, const Say& say) {
    try {
      store = connect(Deadline(kSilentFor));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      say(detail::concat("waiting for node 0 of ", options.nnodes, " at ",
                         comm::tcp_url(options.endpoint_host, options.endpoint_port)));
      store = connect(deadline);
    }
  }

  int ranks_of(int node, const Deadline& deadline, const Say& say) {
    const std::string ranks = key("ranks/", node);
    if (!store->wait(ranks, Deadline(kSilentFor))) {
      say(detail::concat("waiting for node ", node, " of ", options.nnodes));
    }
    try {
      return std::stoi(store->get(ranks, deadline));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      WEFT_THROW(Timeout, kOp, "node ", node, " of ", options.nnodes,
                 " has not come: start weftrun there, with the same --nnodes and --rdzv-endpoint "
                 "and --node-rank ",
                 node);
    }
  }

  void join(Place& place, const Say& say) {
    const Deadline deadline{milliseconds(300'000)};
    if (!store) connect_to_node_0(deadline, say);
    mine = claim(options.min_nnodes > 0 ? Deadline(kPlace) : Deadline(milliseconds(0)), say);
    if (options.min_nnodes > 0) return;
    place.first_rank = place.world_size = 0;
    for (int node = 0; node < options.nnodes; ++node) {
      const int ranks = ranks_of(node, deadline, say);
      place.world_size += ranks;
      if (node < options.node_rank) place.first_rank += ranks;
    }
    exchange_ports(place, deadline);
  }

  /// Takes this node's place, and waits until that is free.
  std::string claim(const Deadline& deadline, const Say& say) const {
    // A random number, too: two containers may have the same host name and pid.
    const std::string self = detail::concat("pid ", ::getpid(), " on ", host_name());
    const std::string own = detail::concat(options.nproc, ' ', comm::random_number(), ' ', self);
    std::string first;
    for (bool waits = false;; waits = true) {
      first = store->set_once(key("ranks/", options.node_rank), own);
      if (first == own || deadline.passed()) break;
      if (!waits) say("waiting until the weftrun that was this node before is taken for lost");
      std::this_thread::sleep_for(kPoll);
    }
    WEFT_CHECK(first == own, InvalidArgument, kOp, "two nodes have --node-rank ", options.node_rank,
               ": this one (", self, ") and the one that came first (",
               first.substr(std::min(first.size(), first.find("pid "))),
               "): give each its own, from 0 to ", options.nnodes - 1);
    return own;
  }

  void exchange_ports(Place& place, const Deadline& deadline) const {
    if (options.node_rank == 0) {
      store->set(key("place"), detail::concat(place.store_port, ' ', place.master_port));
    } else {
      std::istringstream(store->get(key("place"), deadline)) >> place.store_port >>
          place.master_port;
    }
  }

  // --- With --nnodes MIN:MAX ---

  /// Another node, as node 0 sees it.
  struct Other {
    bool there = false;
    std::int64_t beat = 0;
    int silent = 0;  ///< for how many turns
  };

  /// Called after join(). All nodes must have the same number of ranks, so that each knows the
  /// numbers of its own.
  void join_some(RankStore& ranks, const Say& say) {
    const Deadline deadline{milliseconds(300'000)};
    Place& place = ranks.place;
    place.first_rank = options.node_rank * options.nproc;
    place.world_size = options.nnodes * options.nproc;
    if (options.node_rank == 0) return begin(ranks, deadline, say);
    exchange_ports(place, deadline);
    const int expected = std::stoi(store->get(key("ranks/0"), deadline));
    WEFT_CHECK(expected == options.nproc, InvalidArgument, kOp, "node 0 has ", expected,
               " ranks, and this one ", options.nproc,
               ": with --nnodes MIN:MAX give all nodes the same --nproc-per-node");
    place.joins = store->try_get(key("begins/", options.node_rank)) != mine;
    if (place.joins) ranks.see_generations(options.nproc);
  }

  /// Called on node 0. Nodes that have not come are lost until they join.
  void begin(RankStore& ranks, const Deadline& deadline, const Say& say) {
    const auto has_come = [&](int node) { return store->try_get(key("ranks/", node)).has_value(); };
    const auto number = [&] {
      int sum = 0;
      for (int node = 0; node < options.nnodes; ++node) sum += has_come(node) ? 1 : 0;
      return sum;
    };
    if (number() < options.nnodes) {
      say(detail::concat("waiting for ", options.min_nnodes, " to ", options.nnodes, " nodes"));
    }
    while (number() < options.min_nnodes) {
      WEFT_CHECK(!deadline.passed(), Timeout, kOp, "only ", number(), " of ", options.min_nnodes,
                 " to ", options.nnodes,
                 " nodes have come: start weftrun on the others, with the "
                 "same --nnodes and --rdzv-endpoint, and each its own --node-rank");
      std::this_thread::sleep_for(kPoll);
    }
    const Deadline last_call(kLastCall);
    while (number() < options.nnodes && !last_call.passed()) std::this_thread::sleep_for(kPoll);

    comm::Membership(ranks.connect()).begin(ranks.place.world_size);
    others.resize(static_cast<std::size_t>(options.nnodes));
    for (int node = 1; node < options.nnodes; ++node) {
      Other& other = others[static_cast<std::size_t>(node)];
      const auto text = store->try_get(key("ranks/", node));
      other.there = text.has_value();
      if (text) store->set(key("begins/", node), *text);
      if (!text) lose(ranks, node, "its node has not come");
    }
    exchange_ports(ranks.place, deadline);
  }

  /// Reports the ranks of that node as lost. Returns whether the others go on.
  bool lose(const RankStore& ranks, int node, const char* cause) const {
    comm::Membership list(ranks.connect());
    bool goes_on = true;
    for (int i = 0; i < options.nproc; ++i) {
      const comm::Failure failure{.rank = node * options.nproc + i, .cause = cause};
      goes_on = list.lose(failure, options.least_ranks()) && goes_on;
    }
    return goes_on;
  }

  /// Called on the other nodes; returns whether this one goes on. If it was silent for too long,
  /// its ranks have been lost, and it has to end; `found` then says so.
  bool say_that_it_lives(comm::Store& at, End& found, const Deadline& lost) const {
    try {
      const auto holder = at.try_get(key("ranks/", options.node_rank));
      if (holder == mine) {
        at.add(key("beat/", options.node_rank), 1);
        return true;
      }
      found.text = holder ? "another weftrun has taken the place of this node, which was silent"
                          : "this node was silent, and taken for lost; start it again";
      return false;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout || lost.passed()) throw;
      return true;
    }
  }

  /// Whether the others still count on this weftrun. After a silence it may be lost without knowing
  /// it, and its ranks may belong to another weftrun by now.
  bool takes_part() const {
    return options.min_nnodes == 0 || store->try_get(key("ranks/", options.node_rank)) == mine;
  }

  /// On node 0.
  void see_others(comm::Store& at, const RankStore& ranks) {
    const auto is_well = [&](int node) { return at.try_get(key("well/", node)).has_value(); };
    bool all_well = is_well(0);
    for (int node = 1; node < options.nnodes; ++node) {
      Other& other = others[static_cast<std::size_t>(node)];
      const std::int64_t beat = at.add(key("beat/", node), 0);
      const bool silent = beat == std::exchange(other.beat, beat);
      other.silent = silent ? other.silent + 1 : 0;
      if (!other.there) {
        // The entry counts: a beat without an entry is the last one of a weftrun that is lost.
        other.there = at.try_get(key("ranks/", node)).has_value();
        other.silent = 0;
        if (other.there) tell_user(detail::concat("node ", node, " has come"));
      } else if (other.silent >= kLostTurns) {
        other.there = false;
        const bool goes_on =
            is_well(node) || lose(ranks, node, "its node is gone, or cannot be reached");
        at.erase(key("well/", node));  // before its place is free
        at.erase(key("ranks/", node));
        const std::string line =
            detail::concat("node ", node, " is gone, or its machine cannot be reached");
        tell_user(line + (goes_on ? "; the others go on" : ""));
        if (!goes_on) at.set_once(key("end"), "1 " + line);
      }
      all_well = all_well && (!other.there || is_well(node));
    }
    if (all_well) at.set_once(key("end"), "0 ");
  }

  void tell_user(const std::string& line) {
    const std::lock_guard lock(mutex);
    news.push_back(line);
    wake();
  }

  void wake() const {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(known.get(), &one, sizeof one));
  }

  // --- The end of an attempt ---

  /// Waits in a thread, since an event loop cannot wait for a store.
  void watch(const RankStore& ranks) {
    known = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    WEFT_CHECK(known.valid(), Library, kOp, "cannot make an event");
    known_end.reset();
    quit = false;
    // The timeout of each call, so that silence is noticed in time.
    if (options.min_nnodes > 0) store->set_timeout(kToldWithin);
    watcher = std::thread([this, &ranks, own = store->duplicate()] {
      if (options.min_nnodes > 0) own->set_timeout(kToldWithin);
      End found{1, "the weftrun of node 0 is gone, or its machine cannot be reached"};
      try_to([&] {
        Deadline lost(kLostAfter);
        while (!read_end(*own, found, lost) && !quit) {
          if (options.min_nnodes == 0) continue;
          if (options.node_rank == 0) {
            see_others(*own, ranks);
          } else if (!say_that_it_lives(*own, found, lost)) {
            return;
          }
        }
        if (options.node_rank != 0) own->set(key("left/", options.node_rank), "");
      });
      std::lock_guard lock(mutex);
      known_end = std::move(found);
      wake();
    });
  }

  /// Whether the attempt has ended. Each answer of node 0 renews `lost`.
  bool read_end(comm::Store& from, End& found, Deadline& lost) const {
    std::optional<std::string> text;
    try {
      text = from.wait(key("end"), Deadline(options.min_nnodes > 0 ? kBeat : kWatchTurn));
      lost = Deadline(kLostAfter);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout || lost.passed()) throw;
    }
    if (!text) return false;
    found.text = text->substr(std::min(text->size(), text->find(' ') + 1));
    found.status = std::atoi(text->c_str());
    return true;
  }

  void tell(const End& own) {
    if (!takes_part()) return;
    if (own.status == 0 && options.min_nnodes > 0) {
      return store->set(key("well/", options.node_rank), "");
    }
    if (own.status == 0 && store->add(key("well"), 1) < options.nnodes) return;
    store->set_once(key("end"), detail::concat(own.status, ' ', own.text));
  }

  void stop_watching() {
    if (!watcher.joinable()) return;
    quit = true;
    watcher.join();
  }

  const Options& options;
  const std::string token;
  std::unique_ptr<comm::TcpStoreServer> server;
  std::unique_ptr<comm::Store> store;
  std::string mine;  // N/ranks/R of this node
  int attempt = 0;
  std::vector<Other> others;  // by node
  std::atomic<bool> quit{false};
  std::thread watcher;
  Descriptor known;
  std::mutex mutex;
  std::optional<End> known_end;
  std::vector<std::string> news;
};

Meeting::Meeting(const Options& options) : options_(options), token_(token_of(options)) {
  if (options.nnodes > 1) nodes_ = std::make_unique<Nodes>(options, token_);
}

Meeting::~Meeting() = default;

void Meeting::open(int attempt) {
  if (nodes_) {
    nodes_->stop_watching();
    nodes_->attempt = attempt;
  }
  const std::string host = nodes_ ? options_.endpoint_host : kLoopback;
  ranks_ = std::make_unique<RankStore>();
  ranks_->place = {.world_size = options_.nproc,
                   .store_host = host,
                   .token = token_,
                   .master_port = options_.master_port};
  if (options_.node_rank != 0) return;
  ranks_->server = std::make_unique<comm::TcpStoreServer>(
      comm::TcpStoreServer::Options{.host = host, .token = token_});
  ranks_->place.store_port = ranks_->server->port();
  if (options_.master_port == 0) ranks_->place.master_port = free_port(host);
  if (options_.min_nproc > 0) comm::Membership(ranks_->connect()).begin(options_.nproc);
}

Place Meeting::join(const Say& say) {
  if (nodes_) nodes_->join(ranks_->place, say);
  if (options_.min_nnodes > 0) nodes_->join_some(*ranks_, say);
  return ranks_->place;
}

void Meeting::watch() {
  if (nodes_) nodes_->watch(*ranks_);
}

void Meeting::note(const comm::Failure& failure) noexcept {
  try_to([&] {
    if (!nodes_ || nodes_->takes_part()) comm::note_end(*ranks_->connect(), failure);
  });
}

bool Meeting::lose(const comm::Failure& failure, int least) noexcept {
  bool goes_on = false;
  try_to([&] {
    if (nodes_ && !nodes_->takes_part()) return;
    comm::Membership list(ranks_->connect());
    goes_on = list.lose(failure, least);
    int& generation = ranks_->first_of_process[failure.rank];
    while (list.ranks(generation + 1, Deadline(milliseconds(0)))) ++generation;
  });
  return goes_on;
}

Meeting::Membership Meeting::membership_of(int rank) noexcept {
  Membership found;
  try_to([&] {
    const Deadline now(milliseconds(0));
    comm::Membership list(ranks_->connect());
    bool was_member = false, is_member = false;
    int generation = ranks_->first_of_process[rank];
    for (; const auto ranks = list.ranks(generation, now); ++generation) {
      is_member = std::ranges::binary_search(*ranks, rank);
      was_member |= is_member;
    }
    const auto failure = comm::find_failure(*list.keys(generation - 1), now);
    found = {.has_finished = was_member && !is_member,
             .group_timed_out = failure && failure->timed_out};
  });
  return found;
}

void Meeting::tell(const End& end) noexcept {
  if (nodes_) try_to([&] { nodes_->tell(end); });
}

int Meeting::end_fd() const { return nodes_ ? nodes_->known.get() : -1; }

std::vector<std::string> Meeting::news() {
  if (!nodes_) return {};
  std::uint64_t times = 0;
  static_cast<void>(!::read(nodes_->known.get(), &times, sizeof times));
  const std::lock_guard lock(nodes_->mutex);
  return std::exchange(nodes_->news, {});
}

std::optional<Meeting::End> Meeting::end() const {
  if (!nodes_) return {};
  std::lock_guard lock(nodes_->mutex);
  return nodes_->known_end;
}

}  // namespace weft::launch
