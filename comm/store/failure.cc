#include "weft/comm/store/failure.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <new>
#include <utility>

namespace weft::comm {
namespace {

// A pause is this many times as long as the answer took, so that a slow store does not slow down
// the work.
constexpr int kPause = 20;
constexpr std::chrono::milliseconds kLongestPause{2000};
constexpr std::size_t kMostPhaseBytes = 1 << 10, kMostCauseBytes = 8 << 10;

std::string one_line(std::string_view text, std::size_t most) {
  std::string line(text.substr(0, most));
  std::ranges::replace_if(line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

// Takes "<key> <value>" off the front of `rest`; the last line may lack its line end.
std::optional<std::string_view> take_line(std::string_view& rest, std::string_view key) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  if (!line.starts_with(key) || line.substr(key.size(), 1) != " ") return {};
  return line.substr(key.size() + 1);
}

template <class Number>
bool read(std::optional<std::string_view> text, Number& value) {
  if (!text) return false;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

std::string to_text(const Failure& failure) {
  return detail::concat("rank ", failure.rank, "\nstep ", failure.step, "\ntimed_out ",
                        failure.timed_out ? 1 : 0, "\nphase ",
                        one_line(failure.phase, kMostPhaseBytes), "\ncause ",
                        one_line(failure.cause, kMostCauseBytes));
}

Failure parse_failure(std::string_view text) {
  Failure failure;
  std::string_view rest = text;
  const bool rank = read(take_line(rest, "rank"), failure.rank);
  const bool step = read(take_line(rest, "step"), failure.step);
  int timed_out = -1;
  read(take_line(rest, "timed_out"), timed_out);
  const auto phase = take_line(rest, "phase"), cause = take_line(rest, "cause");
  WEFT_CHECK(rank && step && (timed_out == 0 || timed_out == 1) && phase && cause && rest.empty(),
             InvalidArgument, "failure",
             "the store says nothing that can be read of who failed first: \"", text.substr(0, 80),
             '"');
  failure.timed_out = timed_out == 1;
  failure.phase = *phase;
  failure.cause = *cause;
  return failure;
}

std::string describe(const Failure& failure) {
  std::string text = failure.cause;
  if (!failure.phase.empty()) text += " in " + failure.phase;
  if (failure.step >= 0) text += " at step " + std::to_string(failure.step);
  return text;
}

std::string as_first(const Failure& failure) {
  return detail::concat(
      "rank ", failure.rank,
      failure.timed_out ? " was the first to give up: " : " failed first: ", describe(failure));
}

Failure note_failure(Store& store, const Failure& failure, std::string_view key) {
  return parse_failure(store.set_once(key, to_text(failure)));
}

std::string lives_key(int rank) { return detail::concat("failure/lives/", rank); }

Failure note_own_failure(Store& store, const Failure& mine, bool lost_a_rank) {
  store.set(lives_key(mine.rank), "");  // first: others may read the failure at once
  return note_failure(store, mine, lost_a_rank ? kLostKey : kFailureKey);
}

void note_end(Store& store, const Failure& failure) {
  store.erase(lives_key(failure.rank));
  note_failure(store, failure);
}

bool has_survived(Store& store, const Failure& failure) {
  return failure.timed_out || store.try_get(lives_key(failure.rank));
}

std::optional<Failure> find_failure(Store& store, const Deadline& deadline, std::string_view key) {
  const std::optional<std::string> text = store.wait(key, deadline);
  if (!text) return {};
  return parse_failure(*text);
}

Error caught_error(const char* op) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc& error) {
    return Error(ErrorCode::OutOfMemory, op, error.what(), __FILE__, __LINE__);
  } catch (const std::exception& error) {
    return Error(ErrorCode::Library, op, error.what(), __FILE__, __LINE__);
  }
}

FailureReport::FailureReport(Store& run_store, Failure mine, bool lost_a_rank)
    : run_store_(run_store),
      mine_(std::move(mine)),
      lost_a_rank_(lost_a_rank),
      noted_(if_told<std::optional<Failure>>(
          [&] { return note_own_failure(run_store_, mine_, lost_a_rank); })) {}

std::string FailureReport::who_was_first(const FailureWatch& others) const {
  const auto is_old = [&](const Failure& failure) {
    return others.was_there(failure) &&
           if_told<bool>([&] { return has_survived(run_store_, failure); });
  };
  std::optional<Failure> first = noted_;
  if (lost_a_rank_) {
    first = if_told<std::optional<Failure>>(
        [&] { return find_failure(run_store_, Deadline(kStoreTimeout)); });
  }
  if (first && !is_old(*first)) return first->rank == mine_.rank ? "" : as_first(*first);
  if (!lost_a_rank_ || !noted_ || noted_->rank == mine_.rank || is_old(*noted_)) return {};
  return detail::concat("rank ", noted_->rank, " lost a rank before: ", describe(*noted_));
}

FailureWatch::FailureWatch(Store* run_store, int rank)
    : run_store_(run_store),
      rank_(rank),
      before_(told(kFailureKey)),
      lost_before_(told(kLostKey)) {}

bool FailureWatch::was_there(const Failure& failure) const {
  const std::string text = to_text(failure);
  return text == before_ || text == lost_before_;
}

std::optional<std::string> FailureWatch::told(std::string_view key) const {
  if (!run_store_) return {};
  return if_told<std::optional<std::string>>([&] { return run_store_->try_get(key); });
}

std::optional<Failure> FailureWatch::look() {
  const auto now = Clock::now();
  if (now < next_) return {};
  const std::optional<std::string> now_told = told(kFailureKey);
  const auto done = Clock::now();
  next_ = done +
          std::clamp<Clock::duration>(kPause * (done - now), Deadline::kCheckEvery, kLongestPause);
  if (!now_told || now_told == before_) return {};
  const Failure first = parse_failure(*now_told);
  return first.rank == rank_ ? std::nullopt : std::optional(first);
}

}  // namespace weft::comm
