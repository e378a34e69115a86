#include "weft/launch/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::launch {
namespace {

constexpr std::size_t kMostWaitingBytes = 4 << 20;
// The most lines of other ranks among which an equal line is searched.
constexpr int kLookAhead = 256;
constexpr std::size_t kMostKeptBytes = 1 << 20, kMostChunkBytes = 64 << 10;
constexpr std::string_view kEraseLine = "\r\x1b[K";

/// Where the text that was drawn last begins in `line`.
std::size_t last_drawn(std::string_view line) {
  const std::size_t end = line.find_last_not_of('\r');
  if (end == std::string_view::npos) return 0;
  const std::size_t back = line.rfind('\r', end);
  return back == std::string_view::npos ? 0 : back + 1;
}

std::string drawn(std::string_view line) {
  line.remove_prefix(last_drawn(line));
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (line.starts_with(kEraseLine.substr(1))) line.remove_prefix(kEraseLine.size() - 1);
  return std::string(line);
}

int index(StandardStream stream) { return static_cast<int>(stream); }

/// True for "rank 0: loss 0.5" and "rank 1: loss 12", for example.
bool equal_but_for_numbers(std::string_view a, std::string_view b) {
  constexpr std::string_view kDigits = "0123456789";
  const auto take_number = [&](std::string_view& text) {
    const std::size_t end = std::min(text.find_first_not_of(kDigits), text.size());
    text.remove_prefix(end);
    return end > 0;
  };
  while (!a.empty() && !b.empty()) {
    const bool number = take_number(a);
    if (take_number(b) != number) return false;
    if (number) continue;
    if (a.front() != b.front()) return false;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.empty() && b.empty();
}

}  // namespace

std::vector<std::string> LineSplitter::add(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const std::size_t room = kMostLineBytes - begun_.size();
    const std::size_t taken = std::min({bytes.find('\n'), bytes.size(), room});
    begun_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    const bool ended = bytes.starts_with('\n');
    if (ended) bytes.remove_prefix(1);
    if (ended || taken == room) lines.push_back(drawn(std::exchange(begun_, {})));
  }
  begun_.erase(0, last_drawn(begun_));
  return lines;
}

std::string LineSplitter::open() const { return drawn(begun_); }

std::optional<std::string> LineSplitter::finish() {
  std::string line = drawn(std::exchange(begun_, {}));
  if (line.empty()) return {};
  return line;
}

LineMerger::LineMerger(int first_rank, std::vector<bool> shown, std::chrono::milliseconds window,
                       Show show)
    : first_rank_(first_rank),
      shown_(shown),
      open_{shown, shown},
      last_{Lasts(shown.size()), Lasts(shown.size())},
      alone_(shown.size() == 1),
      window_(window),
      show_(std::move(show)) {}

void LineMerger::add(int local_rank, StandardStream stream, std::string text,
                     Clock::time_point now) {
  if (alone_) return show_(stream, text);
  const auto rank = static_cast<std::size_t>(local_rank);
  auto& last = last_[index(stream)][rank];
  const auto& last_elsewhere = last_[1 - index(stream)][rank];
  const auto behind_last = last ? std::next(*last) : waiting_.begin();
  // Finds the same line of another rank, or else a place for this one: next to a line that differs
  // only in numbers, or after all lines of this rank.
  auto same = waiting_.end(), place = behind_last;
  bool beside = false;
  int steps = 0;
  for (auto other = behind_last; other != waiting_.end() && steps < kLookAhead; ++other, ++steps) {
    if (other == last_elsewhere && !beside) place = std::next(other);
    if (other->stream != stream) continue;
    if (other->text == text) {
      same = other;
      break;
    }
    if (!equal_but_for_numbers(other->text, text)) continue;
    const auto first = std::find(other->ranks.begin(), other->ranks.end(), true);
    const bool before = first - other->ranks.begin() < local_rank;
    if (before || !beside) place = before ? std::next(other) : other;
    beside = true;
  }
  if (same == waiting_.end()) {
    // A new line must not make the lines after it wait longer.
    const Clock::time_point due =
        place == waiting_.end() ? now + window_ : std::min(now + window_, place->due);
    waiting_bytes_ += text.size();
    same = waiting_.insert(
        place, {stream, std::move(text), std::vector<bool>(open_[index(stream)].size()), due});
  }
  same->ranks[rank] = true;
  last = same;
  show_due(now);
}

void LineMerger::begin(int local_rank, StandardStream stream) {
  const auto rank = static_cast<std::size_t>(local_rank);
  open_[index(stream)][rank] = shown_[rank];
}

void LineMerger::end(int local_rank, StandardStream stream) {
  open_[index(stream)][static_cast<std::size_t>(local_rank)] = false;
}

bool LineMerger::complete(const Line& line) const {
  const std::vector<bool>& open = open_[index(line.stream)];
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open[i] && !line.ranks[i]) return false;
  }
  return true;
}

void LineMerger::show_due(Clock::time_point now) {
  while (!waiting_.empty() && (waiting_.front().due <= now || complete(waiting_.front()) ||
                               waiting_bytes_ > kMostWaitingBytes)) {
    const Line& line = waiting_.front();
    show_(line.stream, prefix(line) + line.text);
    waiting_bytes_ -= line.text.size();
    for (auto& last : last_[index(line.stream)]) {
      if (last == waiting_.begin()) last.reset();
    }
    waiting_.pop_front();
  }
}

std::optional<LineMerger::Clock::time_point> LineMerger::next_due() const {
  if (waiting_.empty()) return {};
  return waiting_.front().due;
}

std::string LineMerger::prefix(const Line& line) const {
  std::string text;
  const auto& ranks = line.ranks;
  for (std::size_t begin = 0; begin < ranks.size(); ++begin) {
    if (!ranks[begin]) continue;
    std::size_t last = begin;
    while (last + 1 < ranks.size() && ranks[last + 1]) ++last;
    text += detail::concat(text.empty() ? "[" : ",", first_rank_ + static_cast<int>(begin));
    if (last > begin) text += detail::concat('-', first_rank_ + static_cast<int>(last));
    begin = last;
  }
  return text + "] ";
}

Screen::Screen(int out, int err) : sinks_{{out, ::isatty(out) != 0}, {err, ::isatty(err) != 0}} {}

void Screen::line(StandardStream stream, std::string_view text) {
  const bool below = !live_.empty() && is_terminal(stream);
  if (below) put(live_stream_, kEraseLine);
  put(stream, detail::concat(text, '\n'));
  if (below) put(live_stream_, live_);
}

void Screen::live(StandardStream stream, std::string_view text) {
  // Without text there is nothing to draw, unless this stream's live line must be erased.
  if (!is_terminal(stream) || (text.empty() && stream != live_stream_) || text == live_) return;
  if (!live_.empty() || !text.empty()) put(stream, detail::concat(kEraseLine, text));
  live_ = text;
  live_stream_ = stream;
}

void Screen::put(StandardStream stream, std::string_view bytes) {
  if (broken(stream)) return;
  if (chunks_.empty() || chunks_.back().stream != stream ||
      chunks_.back().bytes.size() > kMostChunkBytes) {
    chunks_.push_back({stream, {}});
  }
  chunks_.back().bytes += bytes;
  kept_bytes_ += bytes.size();
}

bool Screen::full() const { return kept_bytes_ > kMostKeptBytes; }

int Screen::waits_for() const {
  return chunks_.empty() ? -1 : sinks_[index(chunks_.front().stream)].fd;
}

void Screen::write_some() {
  std::size_t written = 0;
  while (!chunks_.empty() && written < kMostKeptBytes) {
    pollfd ready{waits_for(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    written += write_front();
  }
}

void Screen::write_all() {
  while (!chunks_.empty()) {
    pollfd ready{waits_for(), POLLOUT, 0};
    if (::poll(&ready, 1, -1) == 1) write_front();
  }
}

std::size_t Screen::write_for(std::chrono::milliseconds time) {
  using Clock = std::chrono::steady_clock;
  std::size_t lost = 0;
  for (auto until = Clock::now() + time; !chunks_.empty();) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd ready{waits_for(), POLLOUT, 0};
    const int n = ::poll(&ready, 1, std::max(0, static_cast<int>(left.count())));
    if (n == 1) {
      write_front();
    } else if (n == 0) {
      lost += give_up(chunks_.front().stream, ETIMEDOUT);
      until = Clock::now() + time;
    }
  }
  return lost;
}

// A pipe that poll() reports as writable takes PIPE_BUF bytes without blocking. It cannot be made
// non-blocking, since others may share it.
std::size_t Screen::write_front() {
  Chunk& chunk = chunks_.front();
  const std::size_t most = std::min<std::size_t>(chunk.bytes.size(), PIPE_BUF);
  const ssize_t n = ::write(waits_for(), chunk.bytes.data(), most);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
  if (n < 0) {
    give_up(chunk.stream, errno);
    return 0;
  }
  kept_bytes_ -= static_cast<std::size_t>(n);
  chunk.bytes.erase(0, static_cast<std::size_t>(n));
  if (chunk.bytes.empty()) chunks_.pop_front();
  return static_cast<std::size_t>(n);
}

std::size_t Screen::give_up(StandardStream stream, int error) {
  const std::size_t before = kept_bytes_;
  sinks_[index(stream)].error = error;
  std::erase_if(chunks_, [&](const Chunk& chunk) {
    if (chunk.stream != stream) return false;
    kept_bytes_ -= chunk.bytes.size();
    return true;
  });
  return before - kept_bytes_;
}

}  // namespace weft::launch
