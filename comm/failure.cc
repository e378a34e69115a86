#include "weft/comm/failure.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "weft/core/error.h"

namespace weft::comm {
namespace {

constexpr std::size_t kMostPhaseBytes = 1 << 10, kMostCauseBytes = 8 << 10;

std::string one_line(std::string_view text, std::size_t most) {
  std::string line(text.substr(0, most));
  std::ranges::replace_if(line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

// Takes "<key> <value>" off the front of `rest`; the last line need not end.
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

Failure note_failure(Store& store, const Failure& failure, std::string_view key) {
  return parse_failure(store.set_once(key, to_text(failure)));
}

std::optional<Failure> find_failure(Store& store, const Deadline& deadline, std::string_view key) {
  const std::optional<std::string> text = store.wait(key, deadline);
  if (!text) return {};
  return parse_failure(*text);
}

FailureReport::FailureReport(Store& run_store, Failure mine, bool lost_a_rank)
    : run_store_(run_store),
      mine_(std::move(mine)),
      lost_a_rank_(lost_a_rank),
      noted_(if_told<std::optional<Failure>>(
          [&] { return note_failure(run_store_, mine_, lost_a_rank ? kLostKey : kFailureKey); })) {}

std::string FailureReport::who_was_first() const {
  std::optional<Failure> first = noted_;
  if (lost_a_rank_) {
    first = if_told<std::optional<Failure>>(
        [&] { return find_failure(run_store_, Deadline(kStoreTimeout)); });
  }
  const char* did = !first             ? " lost a rank before: "
                    : first->timed_out ? " was the first to give up: "
                                       : " failed first: ";
  if (!first) first = noted_;
  if (!first || first->rank == mine_.rank) return {};
  return "rank " + std::to_string(first->rank) + did + describe(*first);
}

std::optional<Failure> FailureWatch::look() {
  const auto now = Clock::now();
  if (now < next_) return {};
  const auto told =
      if_told<std::optional<std::string>>([&] { return run_store_->try_get(kFailureKey); });
  const auto done = Clock::now();
  next_ = done + std::max<Clock::duration>(Deadline::kCheckEvery, pause_ * (done - now));
  if (!told) return {};
  const Failure first = parse_failure(*told);
  return first.rank == rank_ ? std::nullopt : std::optional(first);
}

}  // namespace weft::comm
