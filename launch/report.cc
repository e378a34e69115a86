#include "weft/launch/report.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/launch/process.h"

namespace weft::launch {
namespace {

constexpr std::size_t kMostErrorFileBytes = 1 << 20;
constexpr int kBoxWidth = 78;

// Replaces invalid bytes: the output of programs need not be UTF-8.
std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

nlohmann::ordered_json to_json(const RankResult& rank) {
  nlohmann::ordered_json json = {
      {"rank", rank.rank},
      {"local_rank", rank.local_rank},
      {"pid", rank.pid},
      {"status", exit_status(rank.wait_status)},
      {"signal", WIFSIGNALED(rank.wait_status) ? WTERMSIG(rank.wait_status) : 0},
      {"told_to_end", rank.told_to_end},
      {"stopped", rank.stopped},
      {"seconds", rank.seconds},
      {"seconds_after_failure", nullptr},
      {"code", nullptr},
      {"message", nullptr},
      {"phase", nullptr},
      {"step", nullptr},
  };
  if (rank.seconds_after_failure) json["seconds_after_failure"] = *rank.seconds_after_failure;
  if (rank.error) {
    json["code"] = rank.error->code;
    json["message"] = rank.error->message;
  }
  if (!rank.phase.empty()) json["phase"] = rank.phase;
  if (rank.step >= 0) json["step"] = rank.step;
  return json;
}

/// Whether a message names it, as "rank 2 has sent nothing" and "ranks 0, 2 have not come" do. No
/// std::regex: it recurses for each character that fits, and a rank may write any message.
bool names(std::string_view message, int rank) {
  const auto is_of_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  const std::string wanted = std::to_string(rank);
  for (std::size_t at = 0; (at = message.find("rank", at)) != std::string_view::npos; ++at) {
    if (at > 0 && is_of_word(message[at - 1])) continue;
    std::string_view rest = message.substr(at + 4);
    if (rest.starts_with('s')) rest.remove_prefix(1);
    for (std::string_view gap = " "; rest.starts_with(gap); gap = ", ") {
      rest.remove_prefix(gap.size());
      const std::string_view number = rest.substr(0, rest.find_first_not_of("0123456789"));
      rest.remove_prefix(number.size());
      if (number == wanted && (rest.empty() || !is_of_word(rest.front()))) return true;
    }
  }
  return false;
}

/// " in forward at step 5", as far as known.
std::string place_of(const RankResult& rank) {
  std::string text;
  if (!rank.phase.empty()) text += " in " + rank.phase;
  if (rank.step >= 0) text += detail::concat(" at step ", rank.step);
  return text;
}

}  // namespace

std::optional<ProgramError> read_error_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostErrorFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto holds_text = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string();
  };
  if (!holds_text("code") || !holds_text("message")) return {};
  ProgramError error{.code = json["code"], .message = json["message"]};
  if (holds_text("phase")) error.phase = json["phase"];
  if (json.contains("step") && json["step"].is_number_integer()) error.step = json["step"];
  return error;
}

void write_error_file(const std::string& path, const ProgramError& error) {
  write_file_atomically(path, to_text({{"code", error.code}, {"message", error.message}}));
}

const RankResult* AttemptResult::first_failure() const {
  const auto own = std::ranges::find_if(failures, [&](int i) { return !ranks[i].follows(); });
  if (own != failures.end()) return &ranks[*own];
  return failures.empty() ? nullptr : &ranks[failures.front()];
}

const RankResult* AttemptResult::unresponsive() const {
  const RankResult* first = first_failure();
  if (!first || !first->timed_out()) return nullptr;
  const auto stopped = std::ranges::find_if(ranks, &RankResult::stopped);
  if (stopped != ranks.end()) return &*stopped;
  const RankResult* found = nullptr;
  for (const RankResult& rank : ranks) {
    const bool named = std::ranges::all_of(failures, [&](int i) {
      return !ranks[i].timed_out() || names(ranks[i].error->message, rank.rank);
    });
    if (!rank.told_to_end || !named) continue;
    if (found) return nullptr;
    found = &rank;
  }
  return found;
}

int AttemptResult::status() const {
  if (signal != 0) return 128 + signal;
  const RankResult* first = first_failure();
  if (!first || (first->follows() && other_status != 0)) return other_status;
  return exit_status(first->wait_status);
}

std::string describe(const RankResult& rank) {
  std::string text = describe_end(rank.wait_status);
  if (rank.error) text += ", " + rank.error->code;
  text += place_of(rank);
  if (rank.error) {
    text += ": " + rank.error->message;
  } else if (WIFSIGNALED(rank.wait_status) && WTERMSIG(rank.wait_status) == SIGKILL) {
    text += "; if nobody sent it, the machine ran out of memory (see dmesg)";
  }
  return text;
}

std::string describe_silence(const RankResult& rank) {
  return detail::concat("rank ", rank.rank, " did not respond (", rank.stopped ? "stopped" : "hung",
                        ")", place_of(rank));
}

std::string failure_box(const AttemptResult& result, const std::string& more) {
  const RankResult* const first = result.first_failure();
  if (!first) return {};
  const RankResult* const silent = result.unresponsive();
  const RankResult& rank = silent ? *silent : *first;
  std::string text =
      detail::concat("+-- rank ", rank.rank, silent ? " did not respond " : " failed first ");
  text.append(kBoxWidth - text.size(), '-') += '\n';
  text += detail::concat("| local rank ", rank.local_rank, " on ", host_name(), ", pid ", rank.pid,
                         ", after ", std::fixed, std::setprecision(1), rank.seconds, " s\n");
  if (silent) {
    text += "| " + describe_silence(rank) + '\n';
    text += detail::concat("| as rank ", first->rank, " saw it: ");
  } else {
    text += "| ";
  }
  text += describe(*first) + '\n';
  if (!rank.last_lines.empty()) text += "| its last lines on stderr:\n";
  for (const std::string& line : rank.last_lines) text += "|   " + line + '\n';
  return text.append(more).append("+").append(kBoxWidth - 1, '-');
}

void write_report(const std::string& path, const AttemptResult& result,
                  const std::vector<std::string>& command, int world_size, int restarts) {
  const RankResult* first = result.first_failure();
  nlohmann::ordered_json json = {
      {"command", command},
      {"host", host_name()},
      {"world_size", world_size},
      {"status", result.status()},
      {"signal", result.signal},
      {"restarts", restarts},
      {"first_failure", nullptr},
      {"other_failure", nullptr},
      {"ranks", nlohmann::ordered_json::array()},
      {"replaced", nlohmann::ordered_json::array()},
  };
  if (const RankResult* silent = result.unresponsive()) first = silent;
  if (first) json["first_failure"] = first->rank;
  if (!result.other_failure.empty()) json["other_failure"] = result.other_failure;
  for (const RankResult& rank : result.ranks) json["ranks"].push_back(to_json(rank));
  for (const RankResult& rank : result.replaced) json["replaced"].push_back(to_json(rank));
  write_file_atomically(path, to_text(json));
}

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace weft::launch
