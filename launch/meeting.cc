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
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/comm/backend/random_number.h"
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
    // A random number, too: two containers may have the same host name and pid.
    const std::string self = detail::concat("pid ", ::getpid(), " on ", host_name());
    const std::string mine = detail::concat(options.nproc, ' ', comm::random_number(), ' ', self);
    const std::string first = store->set_once(key("ranks/", options.node_rank), mine);
    WEFT_CHECK(first == mine, InvalidArgument, kOp, "two nodes have --node-rank ",
               options.node_rank, ": this one (", self, ") and the one that came first (",
               first.substr(std::min(first.size(), first.find("pid "))),
               "): give each its own, from 0 to ", options.nnodes - 1);
    place.first_rank = place.world_size = 0;
    for (int node = 0; node < options.nnodes; ++node) {
      const int ranks = ranks_of(node, deadline, say);
      place.world_size += ranks;
      if (node < options.node_rank) place.first_rank += ranks;
    }
    if (options.node_rank == 0) {
      store->set(key("place"), detail::concat(place.store_port, ' ', place.master_port));
    } else {
      std::istringstream(store->get(key("place"), deadline)) >> place.store_port >>
          place.master_port;
    }
  }

  /// Waits in a thread, since an event loop cannot wait for a store.
  void watch() {
    known = Descriptor(::eventfd(0, EFD_CLOEXEC));
    WEFT_CHECK(known.valid(), Library, kOp, "cannot make an event");
    known_end.reset();
    quit = false;
    watcher = std::thread([this, own = store->duplicate()] {
      End found{1, "the weftrun of node 0 is gone, or its machine cannot be reached"};
      try_to([&] {
        Deadline lost(kLostAfter);
        while (!read_end(*own, found, lost) && !quit) {
        }
        if (options.node_rank != 0) own->set(key("left/", options.node_rank), "");
      });
      std::lock_guard lock(mutex);
      known_end = std::move(found);
      const std::uint64_t one = 1;
      static_cast<void>(!::write(known.get(), &one, sizeof one));
    });
  }

  /// Whether the end is there. Each answer of node 0 renews `lost`.
  bool read_end(comm::Store& from, End& found, Deadline& lost) const {
    std::optional<std::string> text;
    try {
      text = from.wait(key("end"), Deadline(kWatchTurn));
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
  int attempt = 0;
  std::atomic<bool> quit{false};
  std::thread watcher;
  Descriptor known;
  std::mutex mutex;
  std::optional<End> known_end;
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
}

Place Meeting::join(const Say& say) {
  if (nodes_) nodes_->join(ranks_->place, say);
  return ranks_->place;
}

void Meeting::watch() {
  if (nodes_) nodes_->watch();
}

void Meeting::note(const comm::Failure& failure) noexcept {
  try_to([&] { comm::note_failure(*ranks_->connect(), failure); });
}

void Meeting::tell(const End& end) noexcept {
  if (nodes_) try_to([&] { nodes_->tell(end); });
}

int Meeting::end_fd() const { return nodes_ ? nodes_->known.get() : -1; }

std::optional<Meeting::End> Meeting::end() const {
  if (!nodes_) return {};
  std::lock_guard lock(nodes_->mutex);
  return nodes_->known_end;
}

}  // namespace weft::launch
