#include "weft/comm/backend/thin_links.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"

namespace weft::comm {
namespace {

constexpr std::string_view kWord = "link=";

[[noreturn]] void refuse(std::string_view text) {
  WEFT_THROW(InvalidArgument, "process_group", "WEFT_FAULT has '", text,
             "', expected link=A-B:RATE with two different ranks and a positive number of kB/s, "
             "MB/s or GB/s, each link once, as in link=0-1:100MB/s,link=1-2:1GB/s");
}

std::vector<ThinLink> read_links() {
  const char* const value = std::getenv("WEFT_FAULT");
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  std::vector<ThinLink> links;
  for (std::string_view rest = value ? value : ""; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    if (!word.starts_with(kWord)) continue;
    WEFT_CHECK(!std::getenv("WEFT_ELASTIC"), Unsupported, "process_group", "WEFT_FAULT has '", word,
               "', and with weftrun --min-nproc or --nnodes MIN:MAX the ranks of a group change; "
               "unset one "
               "of them");
    const ThinLink link = ThinLink::parse(word.substr(kWord.size()));
    const auto same = [&](const ThinLink& other) {
      return std::minmax(link.a, link.b) == std::minmax(other.a, other.b);
    };
    if (std::ranges::any_of(links, same)) refuse(word);
    links.push_back(link);
  }
  return restarts && std::atoi(restarts) > 0 ? std::vector<ThinLink>() : links;
}

}  // namespace

ThinLink ThinLink::parse(std::string_view text) {
  ThinLink link;
  const char* const end = text.data() + text.size();
  const auto read = [&](const char* from, auto& number, std::string_view behind) {
    const auto [stop, error] = std::from_chars(from, end, number);
    const bool right =
        error == std::errc() && *from != '-' && std::string_view(stop, end).starts_with(behind);
    return right ? stop + behind.size() : end;
  };
  const char* const rate = read(read(text.data(), link.a, "-"), link.b, ":");
  const std::string_view unit(read(rate, link.bytes_per_second, ""), end);
  const double scale = unit == "kB/s" ? 1e3 : unit == "MB/s" ? 1e6 : unit == "GB/s" ? 1e9 : 0;
  link.bytes_per_second *= scale;
  const bool finite = std::isfinite(link.bytes_per_second);
  if (link.a == link.b || !finite || link.bytes_per_second <= 0) {
    refuse(std::string(kWord).append(text));
  }
  return link;
}

std::span<const ThinLink> thin_links() {
  static const auto& links = *new const std::vector<ThinLink>(read_links());
  return links;
}

// The traffic from one rank of the run to another, over all groups.
struct ThinLinks::Direction {
  std::string name;
  double bytes_per_second;
  std::mutex mutex = {};
  Clock::time_point free_at = {};
};

ThinLinks::ThinLinks(std::span<const ThinLink> links, const std::vector<int>& numbers, int rank)
    : to_(numbers.size()) {
  // Never destroyed: a tracer keeps the names, and threads may send until the process ends.
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<std::tuple<int, int, double>, Direction>;
  const auto place_of = [&](int number) { return std::ranges::find(numbers, number); };
  for (const ThinLink& link : links) {
    for (const auto& [from, to] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
      if (place_of(from) == numbers.end() || place_of(to) == numbers.end()) continue;
      any_ = true;
      if (numbers[static_cast<std::size_t>(rank)] != from) continue;
      const std::lock_guard lock(*mutex);
      const auto [direction, is_new] =
          all->try_emplace({from, to, link.bytes_per_second},
                           detail::concat("thin link ", from, '-', to), link.bytes_per_second);
      to_[static_cast<std::size_t>(place_of(to) - numbers.begin())] = &direction->second;
    }
  }
}

ThinLinks::Clock::time_point ThinLinks::passed(int to, std::size_t bytes) const {
  Direction* const link = to_.empty() ? nullptr : to_[static_cast<std::size_t>(to)];
  if (!link) return {};
  // 31 years at most: more would overflow the clock.
  const std::chrono::duration<double> takes(
      std::min(static_cast<double>(bytes) / link->bytes_per_second, 1e9));
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(link->mutex);
  const Clock::time_point begin = std::max(now, link->free_at);
  link->free_at = std::min(begin, now + std::chrono::hours(1'000'000)) +
                  std::chrono::ceil<Clock::duration>(takes);
  if (Tracer* const tracer = thread_state().tracer) {
    const auto later = [&](Clock::time_point at) -> std::int64_t {
      return tracer->now_ns() + std::chrono::nanoseconds(at - now).count();
    };
    tracer->add("link", link->name.c_str(), later(begin), later(link->free_at));
  }
  return link->free_at;
}

void ThinLinks::refuse_any(const char* backend) const {
  WEFT_CHECK(!any_, Unsupported, backend,
             "cannot make a link thin, as WEFT_FAULT wants; ring, gloo, shm and threads can");
}

int poll_for(std::span<pollfd> waits, std::chrono::nanoseconds time) {
  constexpr std::int64_t second = 1'000'000'000;
  const timespec timeout{time.count() / second, static_cast<long>(time.count() % second)};
  ::ppoll(waits.data(), waits.size(), &timeout, nullptr);
  const auto closed = std::ranges::find_if(waits, [](const pollfd& wait) {
    return (wait.events & POLLRDHUP) && (wait.revents & (POLLRDHUP | POLLHUP | POLLERR));
  });
  return closed == waits.end() ? -1 : closed->fd;
}

}  // namespace weft::comm
