#include "weft/comm/store/member.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// "net:[4026531840]"
std::string name_space(const char* path) {
  std::array<char, 64> name{};
  return ::readlink(path, name.data(), name.size() - 1) > 0 ? name.data() : "?";
}

}  // namespace

std::optional<std::int64_t> process_start(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // Fields 3 to 22 follow the name in parentheses, which may contain any character.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  std::int64_t start = 0;
  if (!(fields >> start) || state == "Z" || state == "X") return std::nullopt;
  return start;
}

Member this_member(int rank, std::string address) {
  static std::atomic<std::int64_t> invocations{0};
  const std::int64_t pid = ::getpid();
  return {.rank = rank,
          .host = host_name(),
          .boot = first_line("/proc/sys/kernel/random/boot_id"),
          .pids = name_space("/proc/self/ns/pid"),
          .network = name_space("/proc/self/ns/net"),
          .pid = pid,
          .start = process_start(pid).value_or(0),
          .address = std::move(address),
          .invocation = std::to_string(++invocations)};
}

std::string to_text(const Member& m) {
  return detail::concat(m.rank, '\n', m.host, '\n', m.boot, '\n', m.pids, '\n', m.network, '\n',
                        m.pid, '\n', m.start, '\n', m.address, '\n', m.invocation, '\n');
}

Member parse_member(std::string_view text) {
  std::istringstream lines{std::string(text)};
  const auto line = [&] {
    std::string found;
    std::getline(lines, found);
    return found;
  };
  bool numbers = true;
  const auto number = [&](auto& value) {
    const std::string found = line();
    const char* end = found.data() + found.size();
    const auto [stop, error] = std::from_chars(found.data(), end, value);
    numbers = numbers && error == std::errc() && stop == end;
  };
  Member m;
  number(m.rank);
  for (std::string* field : {&m.host, &m.boot, &m.pids, &m.network}) *field = line();
  number(m.pid);
  number(m.start);
  for (std::string* field : {&m.address, &m.invocation}) *field = line();
  WEFT_CHECK(numbers && lines && to_text(m) == text, Comm, "init_process_group", "the store has '",
             text.substr(0, 80), "' where a process is described; other programs use its keys");
  return m;
}

std::string describe(const Member& member) {
  return "pid " + std::to_string(member.pid) + " on " + member.host;
}

std::string list_of(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) text += " ... (" + std::to_string(ranks.size()) + ')';
  return text;
}

bool same_process(const Member& a, const Member& b) {
  return a.boot == b.boot && a.pids == b.pids && a.pid == b.pid && a.start == b.start;
}

bool same_network(const Member& a, const Member& b) {
  return a.boot == b.boot && a.network == b.network;
}

bool has_ended(const Member& member) {
  const Member here = this_member(0, "");
  if (member.boot != here.boot) return member.host == here.host;
  // Without /proc, or if it hides other users' processes, nothing is known.
  if (member.pids != here.pids || here.start == 0) return false;
  const bool of_another_user = ::kill(static_cast<pid_t>(member.pid), 0) != 0 && errno == EPERM;
  return !of_another_user && process_start(member.pid) != member.start;
}

}  // namespace weft::comm
