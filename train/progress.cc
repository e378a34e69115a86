#include "weft/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace weft::train {
namespace {

constexpr double kRefreshSeconds = 0.1;

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

}  // namespace

Progress::Progress() : Progress(stderr, isatty(STDERR_FILENO) != 0) {}

std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e7)) return "?";
  const auto s = static_cast<long>(std::lround(seconds));
  return format("%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

void Progress::start(const std::string& title, std::int64_t total, std::int64_t done,
                     std::int64_t line_every, const std::string& unit) {
  title_ = title;
  unit_ = unit;
  total_ = total;
  first_ = done;
  line_every_ = line_every;
  start_ = Clock::now();
  shown_ = {};
  shown_tenth_ = total > 0 ? done * 10 / total : 0;
  open_ = false;
}

bool Progress::due(std::int64_t done) const {
  if (!out_) return false;
  if (line_due(done)) return true;
  if (terminal_) {
    return std::chrono::duration<double>(Clock::now() - shown_).count() >= kRefreshSeconds;
  }
  return line_every_ == 0 && done < total_ && done * 10 / total_ > shown_tenth_;
}

int Progress::width() const {
  if (columns_ > 0) return columns_;
  winsize size = {};
  if (ioctl(fileno(out_), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Progress::bar(double part, int width) const {
  const int full = static_cast<int>(part * width);
  std::string text(static_cast<std::size_t>(width), '.');
  std::fill_n(text.begin(), full, '=');
  if (full < width) text[static_cast<std::size_t>(full)] = '>';
  return text;
}

// Leaves the last column free, since a terminal may begin a new line after it.
std::string Progress::fitted(std::span<const Field> fields, double part) const {
  const auto most = static_cast<std::size_t>(std::max(width() - 1, 0));
  for (int rank = 4; rank >= 0; --rank) {
    const std::string figures = joined(fields, rank);
    const std::size_t size = title_.size() + figures.size();
    if (size > most) continue;
    constexpr std::size_t kAround = 4, kLeast = 5, kMost = 40;  // "  [" and "]"
    const std::size_t room = most - size;
    if (rank < 4 || room < kAround + kLeast) return title_ + figures;
    return title_ + "  [" + bar(part, static_cast<int>(std::min(room - kAround, kMost))) + "]" +
           figures;
  }
  return (title_ + joined(fields, 0)).substr(0, most);
}

void Progress::update(std::int64_t done, double loss, double per_second) {
  shown_ = Clock::now();
  shown_tenth_ = total_ > 0 ? done * 10 / total_ : 0;
  const double seconds = std::chrono::duration<double>(shown_ - start_).count();
  if (line_due(done)) {
    std::fprintf(out_, "%s%s  step %ld/%ld  loss %.4g  %s\n", terminal_ ? "\r\x1b[K" : "",
                 title_.c_str(), static_cast<long>(done), static_cast<long>(total_), loss,
                 format_duration(seconds).c_str());
    std::fflush(out_);
    open_ = false;
    return;
  }
  const double left = seconds / std::max<double>(static_cast<double>(done - first_), 1) *
                      static_cast<double>(total_ - done);
  const double part = total_ > 0 ? static_cast<double>(done) / static_cast<double>(total_) : 1;
  const Field fields[] = {
      {format("%3.0f%%", part * 100), 0},
      {format("%ld/%ld", static_cast<long>(done), static_cast<long>(total_)), 3},
      {format("loss %.4g", loss), 1},
      {format("%.0f ", per_second) + unit_ + "/s", 4},
      {format_duration(left) + " left", 2}};
  if (!terminal_) {
    std::fprintf(out_, "%s%s\n", title_.c_str(), joined(fields, 4).c_str());
  } else {
    std::fprintf(out_, "\r\x1b[K%s", fitted(fields, part).c_str());
    open_ = true;
  }
  std::fflush(out_);
}

void Progress::finish(std::int64_t done, double loss, double per_second, double seconds) {
  if (!out_) return;
  std::fprintf(out_, "%s%s  %ld/%ld  loss %.4g  %.0f %s/s  %.1f s\n", terminal_ ? "\r\x1b[K" : "",
               title_.c_str(), static_cast<long>(done), static_cast<long>(total_), loss, per_second,
               unit_.c_str(), seconds);
  std::fflush(out_);
  open_ = false;
}

void Progress::abandon() {
  if (!open_) return;
  std::fputc('\n', out_);
  std::fflush(out_);
  open_ = false;
}

}  // namespace weft::train
