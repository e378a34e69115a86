#include "weft/comm/store/rendezvous.h"

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "weft/comm/store/failure.h"
#include "weft/comm/store/file_store.h"
#include "weft/comm/store/socket.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "init_process_group";
// While a rank waits for a key, it checks this often for other reasons to end the wait.
constexpr milliseconds kLook{200};
// The time between two checks for the file that rank 0 makes.
constexpr milliseconds kFilePause{20};
// Rank 0 may host the store: how long it stays for the others to read why they fail.
constexpr milliseconds kReadTime{2000};

// The keys:
//   rendezvous/rank/2   the process that is rank 2
//   rendezvous/setup    what must be the same on all ranks; the first rank writes it
//   rendezvous/count    how many ranks have come
//   rendezvous/full     empty, by the last rank to come; or by any rank why the run cannot start
//   rendezvous/verdict  by rank 0: empty, or the code and text of the error that all throw
//   rendezvous/read/2   rank 2 has read the error
constexpr const char* kSetup = "rendezvous/setup";
constexpr const char* kCount = "rendezvous/count";
constexpr const char* kFull = "rendezvous/full";
constexpr const char* kVerdict = "rendezvous/verdict";
std::string rank_key(int rank) { return "rendezvous/rank/" + std::to_string(rank); }
std::string read_key(int rank) { return "rendezvous/read/" + std::to_string(rank); }

struct Verdict {
  ErrorCode code = ErrorCode::InvalidArgument;
  std::string text;  // empty: no error
};

std::string to_text(const Verdict& verdict) {
  return verdict.text.empty() ? "" : std::string(to_string(verdict.code)) + ' ' + verdict.text;
}

Verdict parse_verdict(const std::string& text) {
  const std::size_t blank = text.find(' ');
  if (blank == std::string::npos) return {};
  const bool timeout = text.compare(0, blank, to_string(ErrorCode::Timeout)) == 0;
  return {timeout ? ErrorCode::Timeout : ErrorCode::InvalidArgument, text.substr(blank + 1)};
}

class Rendezvous {
 public:
  /// `in_place` says whether the store is still where the others look for it.
  Rendezvous(std::shared_ptr<Store> store, const Joining& joining, std::function<bool()> in_place)
      : store_(std::move(store)), joining_(joining), in_place_(std::move(in_place)) {}

  /// Takes this rank's place; if another process has it, returns that process.
  std::optional<Member> claim();
  /// Fails because another process has this rank's place.
  [[noreturn]] void refuse(const Member& holder, const std::string& remedy);
  /// Null if the store is no longer in its place.
  std::shared_ptr<Store> complete(const Deadline& deadline);

 private:
  int rank() const { return joining_.me.rank; }
  void arrive();
  Verdict judge(const Deadline& deadline);  // by the first rank
  void publish(const Verdict& verdict);     // likewise
  std::optional<std::string> await(const std::string& key, const Deadline& deadline);
  std::string unreachable();
  std::string missing();

  std::shared_ptr<Store> store_;
  const Joining& joining_;
  const std::function<bool()> in_place_;
  std::shared_ptr<Store> keys_;  // of this run
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

std::optional<Member> Rendezvous::claim() {
  for (int run = 0;; ++run) {
    keys_ = run == 0 ? store_ : std::make_shared<PrefixStore>("run " + std::to_string(run), store_);
    const Member holder = parse_member(keys_->set_once(rank_key(rank()), to_text(joining_.me)));
    if (holder == joining_.me) return std::nullopt;
    if (!same_process(holder, joining_.me)) return holder;
  }
}

void Rendezvous::refuse(const Member& holder, const std::string& remedy) {
  const std::string text = detail::concat(
      "rank ", rank(), " has joined twice at ", store_->describe(), ": ", describe(holder), " and ",
      describe(joining_.me), "; each process needs a rank of its own", remedy);
  keys_->set_once(kFull, text);
  WEFT_THROW(InvalidArgument, kOp, text);
}

void Rendezvous::arrive() {
  const std::string setup =
      detail::concat("world size ", joining_.ranks.size(), " and backend ", joining_.backend);
  const std::string first = keys_->set_once(kSetup, setup);
  if (setup != first) {
    keys_->set_once(kFull, detail::concat("rank ", rank(), " has ", setup, ", another rank ", first,
                                          "; all need the same"));
  } else if (keys_->add(kCount, 1) == std::ssize(joining_.ranks)) {
    keys_->set_once(kFull, "");
  }
}

std::shared_ptr<Store> Rendezvous::complete(const Deadline& deadline) {
  arrive();
  Verdict verdict;
  if (rank() == joining_.ranks.front()) {
    verdict = judge(deadline);
    publish(verdict);
  } else {
    const std::optional<std::string> text = await(kVerdict, deadline);
    if (!text) return nullptr;
    verdict = parse_verdict(*text);
    if (!verdict.text.empty()) keys_->set(read_key(rank()), "");
  }
  if (verdict.text.empty()) return keys_;
  throw Error(verdict.code, kOp, verdict.text, __FILE__, __LINE__);
}

Verdict Rendezvous::judge(const Deadline& deadline) {
  try {
    const std::optional<std::string> full = await(kFull, deadline);
    WEFT_CHECK(full, Comm, kOp, "another run has taken the place of ", store_->describe(),
               "; runs at the same time need different ones");
    return {ErrorCode::InvalidArgument, full->empty() ? unreachable() : *full};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) throw;
    return {ErrorCode::Timeout, missing()};
  }
}

void Rendezvous::publish(const Verdict& verdict) {
  keys_->set(kVerdict, to_text(verdict));
  if (verdict.text.empty()) return;
  const Deadline read_by(kReadTime);
  for (const int r : joining_.ranks)
    if (r != rank() && keys_->try_get(rank_key(r))) keys_->wait(read_key(r), read_by);
}

// Throws Timeout; returns nothing if the store is no longer in its place.
std::optional<std::string> Rendezvous::await(const std::string& key, const Deadline& deadline) {
  for (;;) {
    // Checked before the key: rank 0 writes its verdict before it removes the file.
    const bool in_place = in_place_();
    if (auto value = keys_->wait(key, Deadline(deadline.left(kLook)))) return value;
    if (!in_place) return std::nullopt;
    if (const auto failure = keys_->try_get(kFailureKey)) {
      const Failure first = parse_failure(*failure);
      WEFT_THROW(PeerFailed, kOp, "rank ", first.rank,
                 " failed before all ranks had met: ", describe(first));
    }
    WEFT_CHECK(!deadline.passed(), Timeout, kOp, missing());
  }
}

// When all ranks have come: names one that the others cannot reach; empty if there is none.
std::string Rendezvous::unreachable() {
  std::vector<Member> members;
  for (const int r : joining_.ranks) members.push_back(parse_member(keys_->get(rank_key(r))));
  for (const Member& far : members) {
    if (same_network(far, members[0])) continue;
    for (const Member& m : members) {
      if (!is_loopback(m.address)) continue;
      return detail::concat("rank ", m.rank, " listens on ", m.address,
                            ", where only its own host reaches it, and the ranks are on several (",
                            describe(members[0]), ", ", describe(far),
                            "): give each the address of its host that the others know, as "
                            "InitOptions::local_addr or in the environment variable "
                            "WEFT_LOCAL_ADDR (an option of weftrun sets it)");
    }
  }
  return "";
}

std::string Rendezvous::missing() {
  std::vector<int> absent;
  for (const int r : joining_.ranks) {
    const std::optional<std::string> text = keys_->try_get(rank_key(r));
    if (!text || has_ended(parse_member(*text))) absent.push_back(r);
  }
  const std::string place =
      detail::concat(" at ", store_->describe(), " within ", seconds_since(start_), " s");
  if (absent.empty())
    return detail::concat("all ranks have come, but rank ", joining_.ranks.front(),
                          " does not answer", place);
  const std::size_t size = joining_.ranks.size();
  return detail::concat(list_of(absent), " of ",
                        joining_.again ? list_of(joining_.ranks) : std::to_string(size),
                        absent.size() == 1 ? " has" : " have", " not come", place,
                        joining_.again ? "" : "; start all, with the same address and world size");
}

// Removes the file when rank 0 is done with it, or has ended.
class FileRemover {
 public:
  FileRemover(const std::shared_ptr<FileStore>& file, bool mine) : file_(*file), mine_(mine) {}
  ~FileRemover() {
    try {
      if (mine_ || abandoned()) file_.remove();
    } catch (const std::exception&) {  // then the next run removes it
    }
  }
  FileRemover(const FileRemover&) = delete;
  FileRemover& operator=(const FileRemover&) = delete;

 private:
  bool abandoned() {
    const std::optional<std::string> leader = file_.try_get(rank_key(0));
    return leader && has_ended(parse_member(*leader));
  }

  FileStore& file_;
  const bool mine_;
};

}  // namespace

std::shared_ptr<Store> join(const std::shared_ptr<Store>& store, const Joining& joining,
                            const Deadline& deadline) {
  Rendezvous rendezvous(store, joining, [] { return true; });
  if (const auto holder = rendezvous.claim()) rendezvous.refuse(*holder, "");
  return rendezvous.complete(deadline);
}

std::optional<Member> member_of(Store& run_store, int rank) {
  const std::optional<std::string> text = run_store.try_get(rank_key(rank));
  if (!text) return {};
  return parse_member(*text);
}

std::shared_ptr<Store> join_in_file(const std::string& path, const Joining& joining,
                                    milliseconds timeout, const Deadline& deadline) {
  const bool leader = joining.me.rank == 0;
  for (;; std::this_thread::sleep_for(deadline.left(kFilePause))) {
    const std::shared_ptr<FileStore> file =
        leader ? std::make_shared<FileStore>(path) : FileStore::open(path);
    if (file) {
      file->set_timeout(timeout);
      Rendezvous rendezvous(file, joining, [&] { return file->in_place(); });
      const std::optional<Member> holder = rendezvous.claim();
      if (!holder) {
        const FileRemover remover(file, leader);
        if (auto keys = rendezvous.complete(deadline)) return keys;
      } else if (!has_ended(*holder)) {
        rendezvous.refuse(*holder, "; if the former is of an earlier run, remove " + path);
      } else if (leader) {
        file->remove();
        continue;
      }
    }
    WEFT_CHECK(!deadline.passed(), Timeout, kOp, "rank 0 of ", joining.ranks.size(),
               " has not come to file://", path, " for rank ", joining.me.rank,
               "; start all ranks, with the same path");
  }
}

}  // namespace weft::comm
