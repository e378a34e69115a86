#include "weft/comm/group/progress.h"

#include <charconv>
#include <optional>
#include <vector>

namespace weft::comm {
namespace {

constexpr int kMostShown = 4;
constexpr const char* kLeft = "left the group";

std::string key_of(int rank) { return "progress/" + std::to_string(rank); }

// A value is the number of the call, a blank, and the text for messages.
std::int64_t number_in(const std::string& value) {
  std::int64_t number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return number;
}
std::string text_in(const std::string& value) { return value.substr(value.find(' ') + 1); }

}  // namespace

void publish_progress(Store& store, int rank, const Call& begun, const char* busy) {
  std::string text = busy ? busy : "";
  if (busy && begun.number > 0) text += " after ";
  if (begun.number > 0) text += to_string(begun) + place_of(begun);
  store.set(key_of(rank), std::to_string(begun.number) + ' ' + text);
}

std::string absent_ranks(Store& store, const Members& members, std::int64_t number) {
  std::vector<std::string> absent;
  for (int r = 0; r < members.size(); ++r) {
    if (r == members.rank) continue;
    const std::optional<std::string> seen = store.try_get(key_of(r));
    if (seen && number_in(*seen) >= number) continue;
    absent.push_back("rank " + std::to_string(members.number_in_run(r)) +
                     (!seen                               ? ", not seen yet"
                      : text_in(*seen).starts_with(kLeft) ? ", which " + text_in(*seen)
                                                          : ", last seen in " + text_in(*seen)));
  }
  std::string text;
  for (std::size_t i = 0; i < absent.size(); ++i) {
    if (i == kMostShown) return text + " and " + std::to_string(absent.size() - i) + " more";
    if (i > 0) text += i + 1 == absent.size() ? ", and " : ", ";
    text += absent[i];
  }
  return text;
}

void publish_leave(Store& store, int rank, const Call& begun) {
  publish_progress(store, rank, begun, kLeft);
}

std::string rank_that_left(Store& store, const Members& members, std::int64_t number) {
  for (int r = 0; r < members.size(); ++r) {
    if (r == members.rank) continue;
    const std::optional<std::string> seen = store.try_get(key_of(r));
    if (!seen || number_in(*seen) >= number || !text_in(*seen).starts_with(kLeft)) continue;
    return detail::concat("rank ", members.number_in_run(r), ' ', text_in(*seen),
                          "; all ranks must make the same calls");
  }
  return {};
}

std::string to_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace weft::comm
