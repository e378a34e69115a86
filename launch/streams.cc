#include "weft/launch/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <tuple>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"

namespace weft::launch {
namespace {

constexpr std::array kStreams = {StandardStream::out, StandardStream::err};
// Within this time equal lines of several ranks are shown once.
constexpr std::chrono::milliseconds kWindow{200};
constexpr std::size_t kLastLines = 20, kReadBytes = 64 << 10, kMostReads = 64;

int index(StandardStream stream) { return static_cast<int>(stream); }
int own_fd(StandardStream stream) {
  return stream == StandardStream::out ? STDOUT_FILENO : STDERR_FILENO;
}

Descriptor open_log(const std::string& path, bool again) {
  const int truncate = again ? 0 : O_TRUNC;
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | truncate | O_APPEND | O_CLOEXEC, 0644));
  WEFT_CHECK(file.valid(), Io, "weftrun", "cannot write ", path, ": ",
             std::generic_category().message(errno));
  return file;
}

bool write_whole(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return false;
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  return true;
}

void keep_last(std::deque<std::string>& lines, std::string line) {
  lines.push_back(std::move(line));
  if (lines.size() > kLastLines) lines.pop_front();
}

std::deque<std::string> last_lines_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto most = static_cast<std::streamoff>(kReadBytes);
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - most));
  std::string tail(kReadBytes, '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  tail.resize(static_cast<std::size_t>(file.gcount()));
  LineSplitter splitter;
  std::deque<std::string> lines;
  for (std::string& line : splitter.add(tail)) keep_last(lines, std::move(line));
  if (auto rest = splitter.finish()) keep_last(lines, std::move(*rest));
  return lines;
}

bool is_shown(const Options& options, int local_rank) {
  return options.local_ranks_filter.empty() || options.local_ranks_filter.contains(local_rank);
}

bool is_first_shown(const Options& options, int local_rank) {
  const auto& filter = options.local_ranks_filter;
  return local_rank == (filter.empty() ? 0 : *filter.begin());
}

std::vector<bool> shown_ranks(const Options& options) {
  std::vector<bool> shown;
  for (int i = 0; i < options.nproc; ++i) shown.push_back(is_shown(options, i));
  return shown;
}

}  // namespace

std::string LogFolder::file(int attempt, int local_rank, StandardStream stream) {
  const auto make = [](const std::string& folder) {
    const std::error_code error = make_folders(folder);
    WEFT_CHECK(!error, Io, "weftrun", folder, ": cannot make this folder: ", error.message());
  };
  if (path_.empty()) {
    const std::string parent = options_.log_dir.empty() ? temporary_folder() : options_.log_dir;
    make(parent);
    std::string name = options_.run_id + "_";
    std::ranges::replace(name, '/', '_');  // of a job called user/first
    path_ = make_folder((std::filesystem::path(parent) / name).string());
  }
  const std::string own = detail::concat(path_, "/attempt_", attempt, "/", local_rank);
  make(own);
  return own + (stream == StandardStream::out ? "/stdout.log" : "/stderr.log");
}

Keyboard::Keyboard(Descriptor to) : to_(std::move(to)) { set_nonblocking(to_); }

pollfd Keyboard::waits_for() const {
  if (!typed_.empty()) return {to_.get(), POLLOUT, 0};
  const bool foreground = ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
  return {to_.valid() && foreground ? STDIN_FILENO : -1, POLLIN, 0};
}

void Keyboard::pass_on() {
  if (typed_.empty()) {
    typed_.resize(4096);
    const ssize_t n = ::read(STDIN_FILENO, typed_.data(), typed_.size());
    typed_.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) to_.close();
    return;
  }
  const ssize_t n = ::write(to_.get(), typed_.data(), typed_.size());
  if (n > 0) typed_.erase(0, static_cast<std::size_t>(n));
  if (n < 0 && errno != EAGAIN && errno != EINTR) {
    typed_.clear();
    to_.close();
  }
}

Streams::Streams(const Options& options, int first_rank, int attempt, Screen& screen,
                 LogFolder& logs)
    : options_(options),
      first_rank_(first_rank),
      attempt_(attempt),
      screen_(screen),
      logs_(logs),
      ranks_(static_cast<std::size_t>(options.nproc)),
      merger_(first_rank, shown_ranks(options), kWindow,
              [&screen](StandardStream stream, const std::string& line) {
                screen.line(stream, line);
              }) {
  for (int i = 0; i < options.nproc; ++i) ranks_[i].local_rank = i;
}

std::array<Descriptor, 3> Streams::connect(int local_rank, Program& program) {
  std::array<Descriptor, 3> ends;
  ranks_[local_rank].last_lines.clear();
  program.in = connect_input(local_rank, ends[0]);
  program.out = connect_output(ranks_[local_rank], StandardStream::out, ends[1]);
  program.err = connect_output(ranks_[local_rank], StandardStream::err, ends[2]);
  return ends;
}

int Streams::connect_input(int local_rank, Descriptor& end) {
  if (first_rank_ + local_rank != 0) {
    end = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  } else if (::isatty(STDIN_FILENO)) {
    auto [read_end, write_end] = make_pipe();
    end = std::move(read_end);
    keyboard_.emplace(std::move(write_end));
  } else {
    return STDIN_FILENO;
  }
  return end.get();
}

int Streams::connect_output(Rank& rank, StandardStream stream, Descriptor& end) {
  Source& source = rank.sources[index(stream)];
  const bool tee = options_.tee.has(rank.local_rank, stream);
  if (tee) {
    source.log = open_log(logs_.file(attempt_, rank.local_rank, stream), rank.again);
  } else if (options_.redirects.has(rank.local_rank, stream)) {
    const std::string path = logs_.file(attempt_, rank.local_rank, stream);
    if (stream == StandardStream::err) rank.stderr_file = path;
    end = open_log(path, rank.again);
    return end.get();
  } else if (options_.nproc == 1 && is_shown(options_, rank.local_rank)) {
    return own_fd(stream);  // there is nothing to merge
  }
  std::tie(source.fd, end) =
      screen_.is_terminal(stream) ? make_terminal(own_fd(stream)) : make_pipe();
  set_nonblocking(source.fd);
  merger_.begin(rank.local_rank, stream);
  return end.get();
}

void Streams::add_to(std::vector<pollfd>& polled) {
  polled.push_back({screen_.waits_for(), POLLOUT, 0});
  polled.push_back(keyboard_ ? keyboard_->waits_for() : pollfd{-1, 0, 0});
  polled_sources_.clear();
  if (screen_.full()) return;  // the ranks have to wait then
  for (Rank& rank : ranks_) {
    for (const StandardStream stream : kStreams) {
      const Descriptor& fd = rank.sources[index(stream)].fd;
      if (!fd.valid()) continue;
      polled_sources_.emplace_back(&rank, stream);
      polled.push_back({fd.get(), POLLIN, 0});
    }
  }
}

void Streams::serve(std::span<const pollfd> polled) {
  if (polled[0].revents) screen_.write_some();
  if (polled[1].revents) keyboard_->pass_on();
  for (std::size_t i = 0; i < polled_sources_.size(); ++i) {
    if (polled[i + 2].revents) read(*polled_sources_[i].first, polled_sources_[i].second);
  }
}

/// Whether more may be available at once.
bool Streams::read(Rank& rank, StandardStream stream) {
  Source& source = rank.sources[index(stream)];
  if (screen_.broken(stream) && !source.log.valid()) {
    end(rank, stream);  // the rank gets a write error, as without weftrun
    return false;
  }
  std::array<char, kReadBytes> bytes;
  const ssize_t n = ::read(source.fd.get(), bytes.data(), bytes.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {  // a terminal ends with EIO
    end(rank, stream);
    return false;
  }
  const std::string_view got(bytes.data(), static_cast<std::size_t>(n));
  if (source.log.valid() && !write_whole(source.log.get(), got)) {
    screen_.line(StandardStream::err,
                 detail::concat("weftrun: cannot write the log of local rank ", rank.local_rank,
                                ": ", std::strerror(errno), "; it ends here"));
    source.log.close();
  }
  for (std::string& line : source.lines.add(got)) take_line(rank, stream, std::move(line));
  if (is_first_shown(options_, rank.local_rank)) screen_.live(stream, source.lines.open());
  return true;
}

void Streams::take_line(Rank& rank, StandardStream stream, std::string line) {
  if (stream == StandardStream::err) keep_last(rank.last_lines, line);
  if (is_shown(options_, rank.local_rank)) {
    merger_.add(rank.local_rank, stream, std::move(line), Clock::now());
  }
}

void Streams::end(Rank& rank, StandardStream stream) {
  Source& source = rank.sources[index(stream)];
  if (is_first_shown(options_, rank.local_rank)) screen_.live(stream, "");
  if (auto line = source.lines.finish()) take_line(rank, stream, std::move(*line));
  merger_.end(rank.local_rank, stream);
  source.fd.close();
}

void Streams::drain(Rank& rank) {
  for (const StandardStream stream : kStreams) {
    if (!rank.sources[index(stream)].fd.valid()) continue;
    for (std::size_t i = 0; i < kMostReads && read(rank, stream); ++i) {
    }
    end(rank, stream);
  }
}

void Streams::end(int local_rank) {
  Rank& rank = ranks_[local_rank];
  drain(rank);
  rank.again = true;
}

void Streams::finish() {
  for (Rank& rank : ranks_) drain(rank);
  merger_.show_all();
}

std::deque<std::string> Streams::last_lines(int local_rank) const {
  const Rank& rank = ranks_[local_rank];
  return rank.stderr_file.empty() ? rank.last_lines : last_lines_of(rank.stderr_file);
}

}  // namespace weft::launch
