#include "weft/comm/place.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "weft/comm/environment.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "init_process_group";

[[noreturn]] void refuse_address(std::string_view address, const std::string& why) {
  WEFT_THROW(InvalidArgument, kOp, "init_method '", address, "': ", why,
             "; it is env://, tcp://host:port or file:///path, the latter two with rank and "
             "world_size, as in tcp://node0:29500?rank=0&world_size=2");
}

// The text before the first `separator`, both of which are removed; the whole text if there is
// none.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

int number_in(std::string_view address, std::string_view text) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) {
    refuse_address(address, "'" + std::string(text) + "' is no whole number");
  }
  return number;
}

Place parse_address(std::string_view address) {
  std::string_view query = address;
  std::string_view base = take_until(query, '?');
  Place place;
  if (base.starts_with("file://")) {
    base.remove_prefix(7);
    if (!base.starts_with('/')) refuse_address(address, "the path must begin with a slash");
    place.path = base;
  } else if (base.starts_with("tcp://")) {
    base.remove_prefix(6);
    const std::size_t colon = base.rfind(':');
    if (colon == std::string_view::npos) refuse_address(address, "the port is missing");
    std::string_view host = base.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (host.empty()) refuse_address(address, "the host is missing");
    place.host = host;
    place.port = number_in(address, base.substr(colon + 1));
    if (place.port < 1 || place.port > 65535) refuse_address(address, "ports are 1 to 65535");
  } else {
    refuse_address(address, "it is of no kind that is known");
  }
  while (!query.empty()) {
    std::string_view value = take_until(query, '&');
    const std::string_view name = take_until(value, '=');
    if (name == "rank") {
      place.rank = number_in(address, value);
    } else if (name == "world_size") {
      place.size = number_in(address, value);
    } else {
      refuse_address(address, "'" + std::string(name) + "' is not known");
    }
  }
  return place;
}

}  // namespace

Place place_of(const std::string& init_method, std::optional<int> rank, std::optional<int> size) {
  if (size == 1) return {.rank = rank.value_or(0), .size = 1};
  if (init_method != "env://") {
    Place place = parse_address(init_method);
    place.hosts_store = true;
    if (rank) place.rank = rank;
    if (size) place.size = size;
    if (!place.rank || !place.size) {
      refuse_address(init_method, std::string(place.rank ? "world_size" : "rank") + " is missing");
    }
    return place;
  }
  // Options that are given replace what the launcher has set.
  const LaunchEnvironment found = launch_environment([&](const char* name) {
    const std::string_view wanted = name;
    if (wanted == "RANK" && rank) return std::optional(std::to_string(*rank));
    if (wanted == "WORLD_SIZE" && size) return std::optional(std::to_string(*size));
    return environment_variable(name);
  });
  Place place = found.size == 1 ? Place() : parse_address(found.meeting);
  place.rank = found.rank;
  place.size = found.size;
  place.hosts_store = found.hosts_store;
  return place;
}

std::optional<std::chrono::milliseconds> timeout_of_environment() {
  const auto text = environment_variable("WEFT_TIMEOUT");
  if (!text) return {};
  double seconds = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, seconds);
  WEFT_CHECK(error == std::errc() && stop == end && seconds >= 0.001 && seconds <= 1e6,
             InvalidArgument, kOp, "environment variable WEFT_TIMEOUT is '", *text,
             "', expected seconds from 0.001 to 1000000, as in WEFT_TIMEOUT=30");
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

}  // namespace weft::comm
