#include "weft/nn/wrapper_prefix.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_set>

namespace weft::nn {
namespace {

constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod.", "partitions.N."};

/// The length of this prefix in `name`, where N stands for digits; 0 if `name` does not begin with
/// it.
std::size_t length_of(std::string_view prefix, std::string_view name) {
  std::size_t at = 0;
  for (const char c : prefix) {
    const std::size_t begin = at;
    if (c == 'N') {
      while (at < name.size() && '0' <= name[at] && name[at] <= '9') ++at;
    } else if (at < name.size() && name[at] == c) {
      ++at;
    }
    if (at == begin) return 0;
  }
  return at;
}

/// Strips one prefix that all names have and without which they still differ; returns it.
std::string_view strip_one(NamedTensors& values) {
  for (const std::string_view prefix : kPrefixes) {
    std::unordered_set<std::string_view> rest;
    const bool all = std::ranges::all_of(values, [&](const auto& item) {
      const std::size_t length = length_of(prefix, item.first);
      return length > 0 && rest.insert(std::string_view(item.first).substr(length)).second;
    });
    if (!all || values.empty()) continue;
    for (auto& [name, value] : values) name.erase(0, length_of(prefix, name));
    return prefix;
  }
  return {};
}

}  // namespace

std::string wrapper_prefix(const NamedTensors& values) {
  NamedTensors copy = values;
  std::string all;
  for (std::string_view one = strip_one(copy); !one.empty(); one = strip_one(copy)) all += one;
  return all;
}

NamedTensors strip_wrappers(NamedTensors values, const NamedTensors& own) {
  const std::string kept = wrapper_prefix(own);
  while (wrapper_prefix(values) != kept && !strip_one(values).empty()) {
  }
  return values;
}

}  // namespace weft::nn
