#include "weft/comm/membership.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "weft/comm/environment.h"
#include "weft/comm/place.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::comm {
namespace {

// Set by weftrun --min-nproc and --nnodes MIN:MAX. Its value: how often this rank was started
// before.
constexpr const char* kVariable = "WEFT_ELASTIC";
// A wait without a limit is made of waits of this length.
constexpr std::chrono::milliseconds kTurn{5000};

std::string ranks_key(int generation) { return detail::concat("elastic/", generation, "/ranks"); }
std::string waiting_key(int rank) { return detail::concat("elastic/waiting/", rank); }

std::string to_text(const Membership::Ranks& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : " ") + std::to_string(rank);
  return text;
}

Membership::Ranks parse_ranks(const std::string& text) {
  Membership::Ranks ranks;
  std::istringstream in(text);
  for (int rank; in >> rank;) ranks.push_back(rank);
  return ranks;
}

bool contains(const Membership::Ranks& ranks, int rank) {
  return std::ranges::binary_search(ranks, rank);
}

}  // namespace

// --- The list ------------------------------------------------------------------------------------

int Membership::last() {
  while (store_->try_get(ranks_key(known_ + 1))) ++known_;
  return known_;
}

Membership::Ranks Membership::ranks_at(int generation) const {
  return parse_ranks(store_->get(ranks_key(generation)));
}

/// Announces the generation. False if another process announced it before with other ranks.
bool Membership::announce(int generation, const Ranks& ranks) {
  const std::string text = to_text(ranks);
  return store_->set_once(ranks_key(generation), text) == text;
}

void Membership::note(int generation, const Failure& failure) const {
  if (contains(ranks_at(generation), failure.rank)) note_end(*keys(generation), failure);
}

std::shared_ptr<Store> Membership::keys(int generation) const {
  return std::make_shared<PrefixStore>(detail::concat("elastic/", generation, "/keys"), store_);
}

bool Membership::has_failed(int generation) const {
  return keys(generation)->try_get(kFailureKey).has_value();
}

// --- Changes -------------------------------------------------------------------------------------

void Membership::begin(int size) {
  Ranks all;
  for (int rank = 0; rank < size; ++rank) all.push_back(rank);
  announce(0, all);
}

// Makes a new entry even if the rank is no member now, since the lowest rank may be inviting it at
// this moment. Either that invitation finds its entry taken, or this function finds the invitation.
bool Membership::lose(const Failure& failure, int least) {
  store_->erase(waiting_key(failure.rank));
  for (;;) {
    const int end = last();
    for (int generation = 0; generation <= end; ++generation) note(generation, failure);
    Ranks next = ranks_at(end);
    const bool was_member = std::erase(next, failure.rank) > 0;
    const bool goes_on = !was_member || std::ssize(next) >= std::max(least, 1);
    if (!goes_on) next.clear();
    if (announce(end + 1, next)) return goes_on;
  }
}

void Membership::leave(int rank, int generation) {
  for (;;) {
    const int end = last();
    Ranks next = ranks_at(end);
    if (std::erase(next, rank) == 0) return;
    // The ranks of its own generation need nothing more from it; those of later ones may wait for
    // it.
    for (int later = generation + 1; later <= end; ++later) {
      note(later, {.rank = rank, .cause = "it has finished before"});
    }
    if (announce(end + 1, next)) return;
  }
}

std::optional<Membership::Ranks> Membership::ranks(int generation, const Deadline& deadline) {
  const std::optional<std::string> text = store_->wait(ranks_key(generation), deadline);
  if (!text) return {};
  return parse_ranks(*text);
}

int Membership::await_invitation(int rank) {
  int generation = last();
  store_->set(waiting_key(rank), "");
  for (std::optional<Ranks> found = ranks_at(generation);;) {
    if (found && found->empty()) return -1;
    if (found && contains(*found, rank)) return generation;
    if (found) ++generation;
    found = ranks(generation, Deadline(kTurn));
  }
}

bool Membership::grows(int generation, const std::function<bool(int)>& may_come) {
  const Ranks mine = ranks_at(generation);
  const int end = last();
  const Ranks latest = ranks_at(end);
  const auto is_new = [&](int rank) { return !contains(mine, rank); };
  if (latest.empty() || std::ranges::any_of(latest, is_new)) return !latest.empty();
  Ranks next = latest;
  for (const int rank : ranks_at(0)) {
    const bool invited =
        !contains(latest, rank) && may_come(rank) && store_->try_get(waiting_key(rank));
    if (invited) next.push_back(rank);
  }
  std::ranges::sort(next);
  return next != latest && announce(end + 1, next);
}

// --- The process ---------------------------------------------------------------------------------

ElasticRun elastic_run(const InitOptions& options) {
  const auto starts = environment_variable(kVariable);
  if (!starts) {
    return {.connect = [options](const auto&, const auto&, int) {
      return init_process_group(options);
    }};
  }
  const Place run = place_of("env://", {}, {});
  thread_state().rank = *run.rank;
  return {.membership = std::make_shared<Membership>(std::make_shared<TcpStore>(
              run.host, run.port, environment_variable("WEFT_STORE_TOKEN").value_or(""),
              Deadline(options.rendezvous_timeout))),
          .rank = *run.rank,
          .returns = *starts != "0",
          .connect = [options](const std::shared_ptr<Store>& keys, const Generation& generation,
                               int place) {
            InitOptions own = options;
            own.rank = place;
            own.world_size = static_cast<int>(generation.ranks.size());
            return meet_in(keys, generation, own);
          }};
}

}  // namespace weft::comm
